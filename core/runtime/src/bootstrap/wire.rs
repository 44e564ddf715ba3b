//! The frames that bootstrap connections carry once the peer is known: the kinds of frames, and what is
//! inside them. No input or output here. The frames themselves are those of [`hawser_oob::frame`].

use hawser_base::error::{Error, ErrorKind, Result};
use hawser_oob::frame;

pub(super) use hawser_oob::frame::{Fields, HEADER, frame_bytes};

/// The kinds of frames on bootstrap connections.
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
    /// Rank to rank 0 and back: what became of rank `tag`.
    Fate = 11,
    /// Rank to rank 0 and on to all: say how you are.
    Ask = 12,
    /// The answer, the same way back.
    Answer = 13,
    /// Rank to rank 0 and on to all: a sentence for the logs.
    Notice = 14,
}

impl frame::Kind for Kind {
    fn code(self) -> u8 {
        self as u8
    }

    fn parse(code: u8) -> Option<Kind> {
        use Kind::*;
        [
            Hello, Table, Status, Failure, Release, Gather, Result, Message, Descriptor, Released, Fate, Ask,
            Answer, Notice,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == code)
    }
}

/// The fixed part of a frame of the bootstrap.
pub(super) type Header = frame::Header<Kind>;
/// A frame of the bootstrap.
pub(super) type Frame = frame::Frame<Kind>;
/// Collects frames of the bootstrap from a stream.
pub(super) type FrameReader = frame::FrameReader<Kind>;
/// The outcome of one look of a [`FrameReader`].
pub(super) type Incoming = frame::Incoming<Kind>;

/// The error for input that no rank of this version sends.
pub(super) fn malformed(what: impl std::fmt::Display) -> Error {
    Error::remote(format!("malformed bootstrap message ({what})"))
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
    match decode_leading_parts(bytes, count)? {
        (parts, []) => Ok(parts),
        (_, rest) => Err(malformed(format!("{} bytes too many", rest.len()))),
    }
}

/// The same where something follows, which is returned too.
pub(super) fn decode_leading_parts(bytes: &[u8], count: usize) -> Result<(Vec<Vec<u8>>, &[u8])> {
    let mut fields = Fields::new(bytes);
    let lengths = fields.bytes(4 * count)?;
    let mut parts = Vec::with_capacity(count);
    for length in lengths.chunks_exact(4) {
        let length = u32::from_le_bytes([length[0], length[1], length[2], length[3]]);
        parts.push(fields.bytes(length as usize)?.to_vec());
    }
    Ok((parts, fields.rest()))
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
    let (total, named) = decode_numbers(bytes)?;
    Ok(rank_words(&named, total))
}

/// Reads a `Status` payload: how many ranks are missing, and the first of them.
fn decode_numbers(bytes: &[u8]) -> Result<(usize, Vec<u32>)> {
    let mut fields = Fields::new(bytes);
    let total = fields.u32()? as usize;
    let mut named = Vec::new();
    for _ in 0..total.min(NAMED_RANKS) {
        named.push(fields.u32()?);
    }
    fields.end()?;
    Ok((total, named))
}

/// The payload of a root's `Status` frame: the missing ranks, and which stranger came last.
pub(super) fn encode_status(ranks: &[u32], stranger: Option<&str>) -> Vec<u8> {
    let mut bytes = encode_ranks(ranks);
    bytes.extend_from_slice(stranger.unwrap_or_default().as_bytes());
    bytes
}

/// A root's word on a meeting that is not complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Status {
    /// The number of ranks that are missing.
    pub missing: usize,
    /// The first of them.
    pub named: Vec<u32>,
    /// A sentence about the stranger that came last; empty if there was none.
    pub stranger: String,
}

impl Status {
    /// The missing ranks in words such as `ranks 3, 5`.
    pub fn words(&self) -> String {
        rank_words(&self.named, self.missing)
    }
}

/// Reads what [`encode_status`] wrote.
pub(super) fn decode_status(bytes: &[u8]) -> Result<Status> {
    let total = Fields::new(bytes).u32()? as usize;
    let length = (4 + 4 * total.min(NAMED_RANKS)).min(bytes.len());
    let (ranks, stranger) = bytes.split_at(length);
    let (missing, named) = decode_numbers(ranks)?;
    Ok(Status { missing, named, stranger: String::from_utf8_lossy(stranger).into_owned() })
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
    fn every_kind_has_its_own_code() {
        use frame::Kind as _;
        let known: Vec<Kind> = (0..=u8::MAX).filter_map(Kind::parse).collect();
        assert_eq!(known.len(), 14);
        assert!(known.iter().all(|kind| Kind::parse(kind.code()) == Some(*kind)));
    }

    #[test]
    fn rank_lists_read_well() {
        assert_eq!(list_ranks(&[3]), "rank 3");
        assert_eq!(list_ranks(&[3, 5]), "ranks 3, 5");
        let many: Vec<u32> = (0..40).collect();
        assert!(list_ranks(&many).ends_with("15 and 24 more"));
        assert_eq!(decode_ranks(&encode_ranks(&many)).unwrap(), list_ranks(&many));
        for text in ["", "a caller"] {
            let status = encode_status(&many, Some(text).filter(|text| !text.is_empty()));
            let status = decode_status(&status).unwrap();
            assert_eq!((status.words(), &*status.stranger), (list_ranks(&many), text));
            assert_eq!((status.missing, &status.named[..]), (40, &many[..16]));
        }
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
        fn random_bytes_never_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..200), count in 0usize..40
        ) {
            if let Ok(parts) = decode_parts(&bytes, count) {
                prop_assert_eq!(encode_parts(&parts).unwrap(), bytes.clone());
            }
            let _ = decode_ranks(&bytes);
            let _ = decode_status(&bytes);
            let _ = decode_failure(&bytes);
        }

        #[test]
        fn parts_survive(
            parts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..20), 0..20)
        ) {
            prop_assert_eq!(decode_parts(&encode_parts(&parts).unwrap(), parts.len()).unwrap(), parts);
        }
    }
}
