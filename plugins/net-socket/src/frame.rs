//! The messages on the sockets once they are authenticated: records on the control connection, chunks on data
//! sockets.
//!
//! A record is 8 bytes (kind, count, pipe, length of the rest) and its rest. A chunk is a header of 32 bytes
//! and payload. Numbers are little-endian. **Slots** number the segments of all posted receives of a
//! connection in the order of posting; a message is named by the slot that it goes to, so both ends speak of
//! the same thing without a match list.

use hawser_plugin::net::MAX_RECVS;

/// Bytes of the fixed part of a record.
pub(crate) const RECORD_HEADER: usize = 8;
/// Longest message that may travel inside a record: 64 KiB, and room for a checksum in front of them.
pub(crate) const MAX_INLINE: usize = (64 << 10) + 64;
/// Longest record.
pub(crate) const MAX_RECORD: usize = RECORD_HEADER + 12 + MAX_INLINE;
/// Longest chunk.
pub(crate) const MAX_CHUNK: usize = 16 << 20;
/// Bytes of a chunk's header.
pub(crate) const CHUNK_HEADER: usize = 32;

const CHUNK_MAGIC: u32 = 0x4b43_7748;

/// One segment of a posted receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Posted {
    /// The tag that sends are matched by.
    pub tag: i32,
    /// The length of the segment in bytes.
    pub capacity: u64,
}

/// A record of the control connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Record<'a> {
    /// Sender: a whole short message.
    Inline { slot: u64, data: &'a [u8] },
    /// Both: this many bytes of your stream were understood. You may forget them.
    Confirm { consumed: u64 },
    /// Sender: this data socket is lost. Answered with `PipeFinal` (unless that is already on its way).
    PipeDown { pipe: u16, generation: u32 },
    /// Sender: the message for this slot is longer than the receive.
    TooLong { slot: u64, bytes: u64 },
    /// Both: I leave; nothing of mine follows.
    Bye,
    /// Receiver: these segments, one receive, are posted. They take the next slots.
    Credit { segments: Vec<Posted> },
    /// Receiver: all chunks of the message for this slot are in its buffer.
    Done { slot: u64 },
    /// Receiver: this data socket is closed at my end; it brought so many whole chunks.
    PipeFinal { pipe: u16, generation: u32, chunks: u64 },
    /// Sender: a whole short message for which no receive was known; it goes to the first that fits from the
    /// slot `known` on.
    Early { known: u64, tag: i32, data: &'a [u8] },
    /// Sender: tell me of all receives that are posted, I wait for one.
    Want,
}

const INLINE: u8 = 1;
const CONFIRM: u8 = 2;
const PIPE_DOWN: u8 = 3;
const TOO_LONG: u8 = 4;
const BYE: u8 = 5;
const CREDIT: u8 = 6;
const DONE: u8 = 7;
const PIPE_FINAL: u8 = 8;
const EARLY: u8 = 9;
const WANT: u8 = 10;

impl<'a> Record<'a> {
    /// Hands the bytes of the record to `put`, in pieces.
    pub fn encode(&self, mut put: impl FnMut(&[u8])) {
        match self {
            Self::Inline { slot, data } => {
                put(&header(INLINE, 0, 0, 8 + data.len()));
                put(&slot.to_le_bytes());
                put(data);
            }
            Self::Confirm { consumed } => {
                put(&header(CONFIRM, 0, 0, 8));
                put(&consumed.to_le_bytes());
            }
            Self::PipeDown { pipe, generation } => {
                put(&header(PIPE_DOWN, 0, *pipe, 4));
                put(&generation.to_le_bytes());
            }
            Self::TooLong { slot, bytes } => {
                put(&header(TOO_LONG, 0, 0, 16));
                put(&slot.to_le_bytes());
                put(&bytes.to_le_bytes());
            }
            Self::Bye => put(&header(BYE, 0, 0, 0)),
            Self::Credit { segments } => {
                put(&header(CREDIT, segments.len() as u8, 0, segments.len() * 12));
                for segment in segments {
                    put(&segment.tag.to_le_bytes());
                    put(&segment.capacity.to_le_bytes());
                }
            }
            Self::Done { slot } => {
                put(&header(DONE, 0, 0, 8));
                put(&slot.to_le_bytes());
            }
            Self::PipeFinal { pipe, generation, chunks } => {
                put(&header(PIPE_FINAL, 0, *pipe, 12));
                put(&generation.to_le_bytes());
                put(&chunks.to_le_bytes());
            }
            Self::Early { known, tag, data } => {
                put(&header(EARLY, 0, 0, 12 + data.len()));
                put(&known.to_le_bytes());
                put(&tag.to_le_bytes());
                put(data);
            }
            Self::Want => put(&header(WANT, 0, 0, 0)),
        }
    }

    /// The first record of `bytes` and its length; None if more bytes are needed.
    ///
    /// # Errors
    /// A sentence when this is no record, whatever may follow.
    pub fn parse(bytes: &'a [u8]) -> Result<Option<(Self, usize)>, String> {
        let Some((head, rest)) = bytes.split_first_chunk::<RECORD_HEADER>() else { return Ok(None) };
        let [kind, count, pipe_low, pipe_high, len @ ..] = *head;
        let len = u32::from_le_bytes(len) as usize;
        if !(INLINE..=WANT).contains(&kind) || len > MAX_RECORD - RECORD_HEADER {
            return Err(format!("a record of kind {kind} with {len} bytes"));
        }
        let Some(body) = rest.get(..len) else { return Ok(None) };
        let pipe = u16::from_le_bytes([pipe_low, pipe_high]);
        let record = Self::parse_body(kind, count, pipe, body);
        let record = record.ok_or_else(|| format!("a record of kind {kind} with {len} bytes"))?;
        Ok(Some((record, RECORD_HEADER + len)))
    }

    fn parse_body(kind: u8, count: u8, pipe: u16, body: &'a [u8]) -> Option<Self> {
        let exact = |len: usize| (body.len() == len).then_some(());
        match kind {
            INLINE => Some(Self::Inline { slot: u64_at(body, 0)?, data: body.get(8..)? }),
            CONFIRM => exact(8).and(Some(Self::Confirm { consumed: u64_at(body, 0)? })),
            PIPE_DOWN => exact(4).and(Some(Self::PipeDown { pipe, generation: u32_at(body, 0)? })),
            TOO_LONG => {
                exact(16).and(Some(Self::TooLong { slot: u64_at(body, 0)?, bytes: u64_at(body, 8)? }))
            }
            BYE => exact(0).and(Some(Self::Bye)),
            CREDIT => {
                let count = usize::from(count);
                if count == 0 || count > MAX_RECVS || body.len() != count * 12 {
                    return None;
                }
                let segment = |i: usize| {
                    Some(Posted {
                        tag: u32_at(body, i * 12)?.cast_signed(),
                        capacity: u64_at(body, i * 12 + 4)?,
                    })
                };
                Some(Self::Credit { segments: (0..count).map(segment).collect::<Option<_>>()? })
            }
            DONE => exact(8).and(Some(Self::Done { slot: u64_at(body, 0)? })),
            PIPE_FINAL => exact(12).and(Some(Self::PipeFinal {
                pipe,
                generation: u32_at(body, 0)?,
                chunks: u64_at(body, 4)?,
            })),
            EARLY => Some(Self::Early {
                known: u64_at(body, 0)?,
                tag: u32_at(body, 8)?.cast_signed(),
                data: body.get(12..)?,
            }),
            WANT => exact(0).and(Some(Self::Want)),
            _ => None,
        }
    }
}

fn header(kind: u8, count: u8, pipe: u16, len: usize) -> [u8; RECORD_HEADER] {
    let ([p0, p1], [l0, l1, l2, l3]) = (pipe.to_le_bytes(), (len as u32).to_le_bytes());
    [kind, count, p0, p1, l0, l1, l2, l3]
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

/// The header that stands in front of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChunkHeader {
    /// The slot of the receive that the message goes to.
    pub slot: u64,
    /// Bytes of the whole message.
    pub total: u64,
    /// The offset of the chunk in its message.
    pub offset: u64,
    /// Bytes of the chunk.
    pub len: u32,
}

impl ChunkHeader {
    /// The header as sent.
    pub fn encode(&self) -> [u8; CHUNK_HEADER] {
        let mut bytes = [0; CHUNK_HEADER];
        bytes[..4].copy_from_slice(&CHUNK_MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.len.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.slot.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_le_bytes());
        bytes[24..].copy_from_slice(&self.total.to_le_bytes());
        bytes
    }

    /// # Errors
    /// A sentence when this is no chunk, or one that leaves its message.
    pub fn parse(bytes: &[u8; CHUNK_HEADER]) -> Result<Self, String> {
        let word = |at| u64_at(bytes, at).unwrap_or_default();
        let chunk = Self {
            slot: word(8),
            offset: word(16),
            total: word(24),
            len: u32_at(bytes, 4).unwrap_or_default(),
        };
        let end = chunk.offset.checked_add(u64::from(chunk.len));
        let fits = chunk.len > 0 && chunk.len as usize <= MAX_CHUNK && end.is_some_and(|e| e <= chunk.total);
        if u32_at(bytes, 0) != Some(CHUNK_MAGIC) || !fits {
            return Err(format!("a chunk of {} bytes at {} of {}", chunk.len, chunk.offset, chunk.total));
        }
        Ok(chunk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes_of(record: &Record<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        record.encode(|piece| bytes.extend_from_slice(piece));
        bytes
    }

    fn samples() -> Vec<Record<'static>> {
        vec![
            Record::Inline { slot: 7, data: b"hello" },
            Record::Inline { slot: u64::MAX, data: b"" },
            Record::Confirm { consumed: 1 << 40 },
            Record::PipeDown { pipe: 63, generation: 9 },
            Record::TooLong { slot: 1, bytes: 2 },
            Record::Bye,
            Record::Credit { segments: vec![Posted { tag: -1, capacity: 1 << 40 }; MAX_RECVS] },
            Record::Done { slot: 3 },
            Record::PipeFinal { pipe: 513, generation: u32::MAX, chunks: 17 },
            Record::Early { known: 12, tag: -3, data: b"early" },
            Record::Want,
        ]
    }

    #[test]
    fn records_come_back_and_parts_of_them_wait() {
        for record in samples() {
            let mut bytes = bytes_of(&record);
            for cut in 0..bytes.len() {
                assert_eq!(Record::parse(&bytes[..cut]), Ok(None), "{record:?}");
            }
            let len = bytes.len();
            bytes.extend_from_slice(b"next");
            assert_eq!(Record::parse(&bytes), Ok(Some((record, len))));
        }
    }

    #[test]
    fn lengths_are_checked_before_the_body_is_there() {
        assert!(Record::parse(&header(INLINE, 0, 0, MAX_RECORD)).is_err());
        assert!(Record::parse(&header(0, 0, 0, 0)).is_err());
        assert!(Record::parse(&header(11, 0, 0, 0)).is_err());
        let mut credit = header(CREDIT, 9, 0, 9 * 12).to_vec();
        credit.resize(RECORD_HEADER + 9 * 12, 0);
        assert!(Record::parse(&credit).is_err());
        let mut short = header(DONE, 0, 0, 7).to_vec();
        short.resize(RECORD_HEADER + 7, 0);
        assert!(Record::parse(&short).is_err());
    }

    #[test]
    fn chunks_come_back_and_must_fit_their_message() {
        let good = ChunkHeader { slot: 5, total: 100, offset: 60, len: 40 };
        assert_eq!(ChunkHeader::parse(&good.encode()), Ok(good));
        for bad in [
            ChunkHeader { len: 41, ..good },
            ChunkHeader { len: 0, ..good },
            ChunkHeader { offset: u64::MAX, ..good },
            ChunkHeader { total: u64::MAX, len: MAX_CHUNK as u32 + 1, ..good },
        ] {
            assert!(ChunkHeader::parse(&bad.encode()).is_err(), "{bad:?}");
        }
        let mut shifted = good.encode();
        shifted.rotate_left(1);
        assert!(ChunkHeader::parse(&shifted).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(
            kind in 0u8..14, count: u8, len in 0usize..200, rest in prop::collection::vec(any::<u8>(), 0..200)
        ) {
            let mut bytes = header(kind, count, 0, len).to_vec();
            bytes.extend_from_slice(&rest);
            if let Ok(Some((record, used))) = Record::parse(&bytes) {
                prop_assert!(used <= bytes.len());
                let again = bytes_of(&record);
                let parsed = Record::parse(&again);
                prop_assert_eq!(parsed, Ok(Some((record, again.len()))));
            }
            let _ = Record::parse(&rest);
        }

        #[test]
        fn any_chunk_header_is_survived(bytes: [u8; CHUNK_HEADER], with_magic: bool) {
            let mut bytes = bytes;
            if with_magic {
                bytes[..4].copy_from_slice(&CHUNK_MAGIC.to_le_bytes());
            }
            if let Ok(chunk) = ChunkHeader::parse(&bytes) {
                prop_assert_eq!(chunk.encode(), bytes);
            }
        }
    }
}
