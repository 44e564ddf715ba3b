//! Records that ranks, and the tool, send each other: values with `serde`'s traits as bytes of postcard.
//!
//! Formats of the data path, which devices and plugins read, are not records: they are `repr(C)` and
//! asserted.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A record as bytes. Nothing that is sent can fail to be written; if it did, the bytes would be those of no
/// record.
pub fn encode(record: &impl Serialize) -> Vec<u8> {
    postcard::to_allocvec(record).unwrap_or_default()
}

/// The record in these bytes; None if they are not exactly one.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    match postcard::take_from_bytes(bytes) {
        Ok((record, [])) => Some(record),
        Ok(_) | Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cut_or_too_long_is_no_record() {
        let bytes = encode(&("nö", vec![1u64, 300], true));
        let read = |bytes: &[u8]| decode::<(String, Vec<u64>, bool)>(bytes);
        assert_eq!(read(&bytes), Some(("nö".to_owned(), vec![1, 300], true)));
        assert!((0..bytes.len()).all(|short| read(&bytes[..short]).is_none()));
        assert_eq!(read(&[&bytes[..], &[0]].concat()), None);
        assert_eq!(decode::<Vec<u64>>(&[0xff; 9]), None, "a length that nobody can hold");
    }
}
