//! Bytes on bootstrap connections: frames, and the fields inside them. No input or output here.
//!
//! A frame is a header of [`HEADER`] bytes (payload length u32, kind u8, three zero bytes, tag u64, all little endian)
//! and the payload. Lengths are checked against the receiver's limit before anything is allocated for them.

use crate::error::{Error, ErrorKind, Result};

/// Bytes of a frame header.
pub(super) const HEADER: usize = 16;

/// What a frame means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// Rank to root: who I am and where I listen.
    Hello = 1,
    /// Root to rank: everybody's addresses.
    Table = 2,
    /// Root or rank 0: the ranks that are still missing (so that the receiver's own deadline can name them).
    Status = 3,
    /// Root or rank 0: it failed, with kind and text.
    Failure = 4,
    /// Rank to root: this id is not needed (payload: text of a failure, or empty).
    Release = 5,
    /// Rank to rank 0: my contribution to collective number `tag`.
    Gather = 6,
    /// Rank 0 to rank: all contributions to collective number `tag`.
    Result = 7,
    /// Rank to rank: a message with the user's tag.
    Message = 8,
    /// Rank to rank on a unix-domain connection: a file descriptor with the user's tag.
    Descriptor = 9,
    /// Root to rank: the release was taken.
    Released = 10,
}

impl Kind {
    fn parse(code: u8) -> Option<Kind> {
        use Kind::*;
        [Hello, Table, Status, Failure, Release, Gather, Result, Message, Descriptor, Released]
            .into_iter()
            .find(|kind| *kind as u8 == code)
    }
}

/// The fixed part of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub kind: Kind,
    pub tag: u64,
    /// Payload bytes that follow.
    pub len: usize,
}

impl Header {
    /// The header as sent. Fails when the payload is too long for the length field.
    pub fn encode(&self) -> Result<[u8; HEADER]> {
        let len = u32::try_from(self.len).map_err(|_| {
            Error::invalid_argument(format!(
                "a bootstrap message of {} bytes is over the limit of 4 GiB",
                self.len
            ))
        })?;
        let mut bytes = [0; HEADER];
        bytes[..4].copy_from_slice(&len.to_le_bytes());
        bytes[4] = self.kind as u8;
        bytes[8..].copy_from_slice(&self.tag.to_le_bytes());
        Ok(bytes)
    }

    /// Reads a header that announces at most `limit` payload bytes.
    pub fn parse(bytes: &[u8; HEADER], limit: usize) -> Result<Header> {
        let mut fields = Fields::new(bytes);
        let (len, kind, zero, tag) =
            (fields.u32()? as usize, fields.u8()?, fields.array::<3>()?, fields.u64()?);
        let kind = Kind::parse(kind).filter(|_| zero == [0; 3]);
        let kind = kind.ok_or_else(|| malformed("unknown frame kind"))?;
        if len > limit {
            return Err(malformed(format!("{kind:?} frame of {len} bytes, the limit is {limit}")));
        }
        Ok(Header { kind, tag, len })
    }
}

/// A whole frame.
#[derive(Debug)]
pub(super) struct Frame {
    pub kind: Kind,
    pub tag: u64,
    pub payload: Vec<u8>,
}

/// Header and payload in one buffer, for frames that go to many receivers.
pub(super) fn frame_bytes(kind: Kind, tag: u64, payload: &[u8]) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(HEADER + payload.len());
    bytes.extend_from_slice(&Header { kind, tag, len: payload.len() }.encode()?);
    bytes.extend_from_slice(payload);
    Ok(bytes)
}

/// The error for input that no rank of this version sends.
pub(super) fn malformed(what: impl std::fmt::Display) -> Error {
    Error::remote(format!("malformed bootstrap message ({what})"))
}

/// Reads fields from the front of a byte string; every read is bounds-checked.
pub(super) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Fields { rest: bytes }
    }

    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(len).ok_or_else(|| malformed("too short"))?;
        self.rest = rest;
        Ok(head)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or_else(|| malformed("too short"))?;
        self.rest = rest;
        Ok(*head)
    }

    pub fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    pub fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub fn rest(self) -> &'a [u8] {
        self.rest
    }

    pub fn end(self) -> Result<()> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(malformed(format!("{} bytes too many", self.rest.len())))
        }
    }
}

/// Contributions as rank 0 sends them to all: their lengths (u32 each), then their bytes.
pub(super) fn encode_parts(parts: &[Vec<u8>]) -> Result<Vec<u8>> {
    let total: usize = parts.iter().map(Vec::len).sum();
    let mut bytes = Vec::with_capacity(4 * parts.len() + total);
    for part in parts {
        let len =
            u32::try_from(part.len()).map_err(|_| Error::invalid_argument("a contribution is over 4 GiB"))?;
        bytes.extend_from_slice(&len.to_le_bytes());
    }
    parts.iter().for_each(|part| bytes.extend_from_slice(part));
    Ok(bytes)
}

/// The inverse of [`encode_parts`] for a known number of parts.
pub(super) fn decode_parts(bytes: &[u8], count: usize) -> Result<Vec<Vec<u8>>> {
    let mut fields = Fields::new(bytes);
    let lengths = fields.bytes(4 * count)?;
    let mut parts = Vec::with_capacity(count);
    for length in lengths.chunks_exact(4) {
        let length = u32::from_le_bytes([length[0], length[1], length[2], length[3]]);
        parts.push(fields.bytes(length as usize)?.to_vec());
    }
    fields.end()?;
    Ok(parts)
}

/// The payload of a `Failure` frame.
pub(super) fn encode_failure(error: &Error) -> Vec<u8> {
    let code = ErrorKind::ALL.iter().position(|kind| *kind == error.kind).unwrap_or(0);
    let mut bytes = vec![code as u8];
    bytes.extend_from_slice(error.text.as_bytes());
    bytes
}

/// The inverse of [`encode_failure`]; an unknown kind becomes `Remote`.
pub(super) fn decode_failure(bytes: &[u8]) -> Error {
    let Some((code, text)) = bytes.split_first() else {
        return malformed("empty failure");
    };
    let kind = ErrorKind::ALL.get(usize::from(*code)).copied().unwrap_or(ErrorKind::Remote);
    Error::new(kind, String::from_utf8_lossy(text))
}

/// The payload of a `Status` frame: how many ranks are missing, and the first of them.
pub(super) fn encode_ranks(ranks: &[u32]) -> Vec<u8> {
    let mut bytes = (ranks.len() as u32).to_le_bytes().to_vec();
    ranks.iter().take(NAMED_RANKS).for_each(|rank| bytes.extend_from_slice(&rank.to_le_bytes()));
    bytes
}

/// Reads a `Status` payload into words such as `ranks 3, 5`.
pub(super) fn decode_ranks(bytes: &[u8]) -> Result<String> {
    let mut fields = Fields::new(bytes);
    let total = fields.u32()? as usize;
    let mut named = Vec::new();
    for _ in 0..total.min(NAMED_RANKS) {
        named.push(fields.u32()?);
    }
    fields.end()?;
    Ok(rank_words(&named, total))
}

/// Ranks named in one message before the rest is only counted.
const NAMED_RANKS: usize = 16;

/// `rank 3`, `ranks 3, 5`, or the first ones and a count.
pub(super) fn list_ranks(ranks: &[u32]) -> String {
    rank_words(&ranks[..ranks.len().min(NAMED_RANKS)], ranks.len())
}

fn rank_words(named: &[u32], total: usize) -> String {
    let noun = if total == 1 { "rank" } else { "ranks" };
    let list = named.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    match total - named.len().min(total) {
        0 => format!("{noun} {list}"),
        more => format!("{noun} {list} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rank_lists_read_well() {
        assert_eq!(list_ranks(&[3]), "rank 3");
        assert_eq!(list_ranks(&[3, 5]), "ranks 3, 5");
        let many: Vec<u32> = (0..40).collect();
        assert!(list_ranks(&many).ends_with("15 and 24 more"));
        assert_eq!(decode_ranks(&encode_ranks(&many)).unwrap(), list_ranks(&many));
    }

    #[test]
    fn failures_keep_kind_and_text() {
        for kind in ErrorKind::ALL {
            let error = Error::new(kind, "rank 3 said no");
            assert_eq!(decode_failure(&encode_failure(&error)), error);
        }
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), count in 0usize..40) {
            if let Some(header) = bytes.first_chunk::<HEADER>()
                && let Ok(header) = Header::parse(header, 1000)
            {
                prop_assert!(header.len <= 1000);
            }
            if let Ok(parts) = decode_parts(&bytes, count) {
                prop_assert_eq!(encode_parts(&parts).unwrap(), bytes.clone());
            }
            let _ = decode_ranks(&bytes);
            let _ = decode_failure(&bytes);
        }

        #[test]
        fn headers_and_parts_survive(
            tag in any::<u64>(), len in 0usize..1000, parts in proptest::collection::vec(
                proptest::collection::vec(any::<u8>(), 0..20), 0..20)
        ) {
            let header = Header { kind: Kind::Message, tag, len };
            prop_assert_eq!(Header::parse(&header.encode().unwrap(), 1000).unwrap(), header);
            prop_assert_eq!(decode_parts(&encode_parts(&parts).unwrap(), parts.len()).unwrap(), parts);
        }
    }
}
