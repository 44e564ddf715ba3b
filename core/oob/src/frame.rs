//! Frames: messages with a length in front, and the fields inside them. No input or output, but for
//! [`FrameReader`].
//!
//! A frame is a header of [`HEADER`] bytes (payload length u32, kind u8, three zero bytes, tag u64, all
//! little endian) and the payload. Lengths are checked against the receiver's limit before anything is
//! allocated for them.

use crate::error::{Error, Result};
use crate::seal;
use crate::socket::Moved;
use crate::stream::Stream;
use std::fmt;

/// Bytes of a frame header.
pub const HEADER: usize = 16;

/// The payload buffer of a frame grows by at most this much ahead of the bytes that really came.
const READ_STEP: usize = 256 << 10;

/// The kinds of a protocol's frames: an enumeration with one code per kind.
pub trait Kind: Copy + fmt::Debug {
    /// The code of this kind.
    fn code(self) -> u8;
    /// The kind of a code; `None` if there is no such kind.
    fn parse(code: u8) -> Option<Self>;
}

/// The kind of a protocol whose frames all mean the same.
impl Kind for () {
    fn code(self) -> u8 {
        0
    }

    fn parse(code: u8) -> Option<Self> {
        (code == 0).then_some(())
    }
}

/// The fixed part of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<K> {
    /// The kind of the frame, which says what it means.
    pub kind: K,
    /// A number that the protocol is free to use.
    pub tag: u64,
    /// The number of payload bytes that follow.
    pub len: usize,
}

impl<K: Kind> Header<K> {
    /// The header as sent.
    ///
    /// # Errors
    /// `Usage` when the payload is too long for the length field.
    pub fn encode(&self) -> Result<[u8; HEADER]> {
        let len = u32::try_from(self.len).map_err(|_| {
            Error::usage(format!("a message of {} bytes is over the limit of 4 GiB", self.len))
        })?;
        let mut bytes = [0; HEADER];
        bytes[..4].copy_from_slice(&len.to_le_bytes());
        bytes[4] = self.kind.code();
        bytes[8..].copy_from_slice(&self.tag.to_le_bytes());
        Ok(bytes)
    }

    /// Reads a header that announces at most `limit` payload bytes.
    ///
    /// # Errors
    /// `Peer` when it is no such header.
    pub fn parse(bytes: &[u8; HEADER], limit: usize) -> Result<Header<K>> {
        let mut fields = Fields::new(bytes);
        let len = fields.u32()? as usize;
        let (kind, zero, tag) = (fields.u8()?, fields.array::<3>()?, fields.u64()?);
        let kind = K::parse(kind).filter(|_| zero == [0; 3]);
        let kind = kind.ok_or_else(|| malformed("unknown frame kind"))?;
        if len > limit {
            return Err(malformed(format!("{kind:?} frame of {len} bytes, the limit is {limit}")));
        }
        Ok(Header { kind, tag, len })
    }
}

/// A whole frame.
#[derive(Debug)]
pub struct Frame<K> {
    /// The kind of the frame, which says what it means.
    pub kind: K,
    /// The number that the sender gave it.
    pub tag: u64,
    /// The bytes behind the header.
    pub payload: Vec<u8>,
}

/// Header and payload in one buffer, for frames that go to many receivers.
///
/// # Errors
/// `Usage` when the payload is too long for a frame.
pub fn frame_bytes<K: Kind>(kind: K, tag: u64, payload: &[u8]) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(HEADER + payload.len());
    bytes.extend_from_slice(&Header { kind, tag, len: payload.len() }.encode()?);
    bytes.extend_from_slice(payload);
    Ok(bytes)
}

/// Collects one frame after the other from a stream, over as many reads as it takes.
#[derive(Debug)]
pub struct FrameReader<K> {
    limit: usize,
    header: [u8; HEADER],
    have: usize,
    open: Option<(Header<K>, Vec<u8>)>,
}

/// The outcome of one look of a [`FrameReader`].
#[derive(Debug)]
pub enum Incoming<K> {
    /// A whole frame.
    Frame(Frame<K>),
    /// No whole frame yet.
    Nothing,
    /// The peer has closed the connection.
    Closed,
}

impl<K: Kind> FrameReader<K> {
    /// A reader that refuses frames with more than `limit` payload bytes.
    pub fn new(limit: usize) -> Self {
        FrameReader { limit, header: [0; HEADER], have: 0, open: None }
    }

    /// Reads without blocking until a frame is whole or nothing is left.
    ///
    /// # Errors
    /// `System` with its errno for a broken connection, `Peer` for a malformed header or a wrong seal; the
    /// stream is useless afterwards.
    pub fn advance(&mut self, stream: &Stream) -> Result<Incoming<K>> {
        let read_error = |errno| match errno {
            seal::FORGED => Error::peer(seal::reason(errno)),
            errno => Error::system("reading from a connection", errno),
        };
        loop {
            let Some((header, payload)) = &mut self.open else {
                match stream.read_some(&mut self.header[self.have..]).map_err(read_error)? {
                    Moved::Bytes(count) => self.have += count,
                    Moved::Nothing => return Ok(Incoming::Nothing),
                    Moved::Closed => return Ok(Incoming::Closed),
                }
                if self.have == HEADER {
                    self.have = 0;
                    self.open = Some((Header::parse(&self.header, self.limit)?, Vec::new()));
                }
                continue;
            };
            if payload.len() == header.len {
                let frame = Frame { kind: header.kind, tag: header.tag, payload: std::mem::take(payload) };
                self.open = None;
                return Ok(Incoming::Frame(frame));
            }
            let old = payload.len();
            payload.resize(header.len.min(old + READ_STEP), 0);
            let input = stream.read_some(&mut payload[old..]);
            payload.truncate(old + if let Ok(Moved::Bytes(count)) = input { count } else { 0 });
            match input.map_err(read_error)? {
                Moved::Bytes(_) => {}
                Moved::Nothing => return Ok(Incoming::Nothing),
                Moved::Closed => return Ok(Incoming::Closed),
            }
        }
    }
}

/// The error for input that no peer of this version sends.
pub fn malformed(what: impl fmt::Display) -> Error {
    Error::peer(format!("malformed message ({what})"))
}

/// Reads fields from the front of a byte string; every read is bounds-checked.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    /// A reader at the beginning of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Fields { rest: bytes }
    }

    /// The next `len` bytes.
    ///
    /// # Errors
    /// `Peer` when there are fewer; so do all readers below.
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(len).ok_or_else(|| malformed("too short"))?;
        self.rest = rest;
        Ok(head)
    }

    /// The next `N` bytes.
    ///
    /// # Errors
    /// As [`Fields::bytes`].
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or_else(|| malformed("too short"))?;
        self.rest = rest;
        Ok(*head)
    }

    /// The next byte.
    ///
    /// # Errors
    /// As [`Fields::bytes`].
    pub fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    /// The next two bytes as a number.
    ///
    /// # Errors
    /// As [`Fields::bytes`].
    pub fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// The next four bytes as a number.
    ///
    /// # Errors
    /// As [`Fields::bytes`].
    pub fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// The next eight bytes as a number.
    ///
    /// # Errors
    /// As [`Fields::bytes`].
    pub fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// All bytes that were not read.
    pub fn rest(self) -> &'a [u8] {
        self.rest
    }

    /// Checks that nothing is left.
    ///
    /// # Errors
    /// `Peer` when there are bytes that nobody has read.
    pub fn end(self) -> Result<()> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(malformed(format!("{} bytes too many", self.rest.len())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn random_headers_never_panic(bytes: [u8; HEADER], is_kind: bool) {
            let mut bytes = bytes;
            if is_kind {
                bytes[4..8].copy_from_slice(&[0; 4]);
            }
            if let Ok(header) = Header::<()>::parse(&bytes, 1000) {
                prop_assert!(header.len <= 1000);
                prop_assert_eq!(header.encode().unwrap(), bytes);
            }
        }

        #[test]
        fn headers_survive(tag in any::<u64>(), len in 0usize..1000) {
            let header = Header { kind: (), tag, len };
            prop_assert_eq!(Header::parse(&header.encode().unwrap(), 1000).unwrap(), header);
        }

        #[test]
        fn fields_never_reach_beyond_the_end(
            bytes in proptest::collection::vec(any::<u8>(), 0..20), len in 0usize..40
        ) {
            let mut fields = Fields::new(&bytes);
            prop_assert_eq!(fields.clone().bytes(len).is_ok(), len <= bytes.len());
            prop_assert_eq!(fields.u64().is_ok(), bytes.len() >= 8);
            prop_assert_eq!(fields.clone().end().is_ok(), fields.rest().is_empty());
        }
    }
}
