//! Records that ranks, and the tool, send each other: values with `serde`'s traits as bytes of postcard.
//!
//! Formats of the data path, which devices and plugins read, are not records: they are `repr(C)` and
//! asserted.

use hawser_base::error::{Error, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// A tuner or a program of a rank, which all ranks of a communicator need alike.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shared {
    /// The name of the tuner or program.
    pub name: String,
    /// The digest of everything that its answers depend on; ranks compare it.
    pub digest: u64,
    /// The place that it was read from, for errors.
    pub source: String,
}

/// The tuners or programs of a rank in their order, or the reason why it has none.
pub type SharedRecord = std::result::Result<Vec<Shared>, String>;

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

/// The records of all ranks. `what` names the kind of record in the error.
///
/// # Errors
/// `RemoteError` that names the first rank whose bytes are no record.
pub fn decode_all<T: DeserializeOwned>(records: &[Vec<u8>], what: &str) -> Result<Vec<T>> {
    let one = |(rank, bytes): (usize, &Vec<u8>)| {
        decode(bytes).ok_or_else(|| {
            Error::remote(format!("rank {rank} sent a {what} that this build cannot read"))
                .remedy("use the same build everywhere")
        })
    };
    records.iter().enumerate().map(one).collect()
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

    #[test]
    fn the_rank_of_a_broken_record_is_named() {
        let own: SharedRecord = Err("no".into());
        let records = [encode(&own), encode(&own)];
        assert_eq!(decode_all::<SharedRecord>(&records, "x").unwrap(), [own.clone(), own]);
        let error = decode_all::<SharedRecord>(&[records[0].clone(), vec![9]], "list").unwrap_err();
        assert!(error.text.contains("rank 1 sent a list"), "{error}");
    }
}
