//! The form of what is put to ranks elsewhere: a header, then the bytes of a put.

use hawser_base::error::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use super::{Fetch, Signal};
use crate::transport::net::Record;

/// The beginning of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Header {
    /// The bytes that follow go into a window.
    Put {
        /// The number of the window.
        window: u64,
        /// The offset in it.
        offset: u64,
    },
    /// A signal is raised; nothing follows.
    Raise(Signal),
    /// A signal is raised in the word of the receiver, which the sender would count itself if its puts were
    /// no messages; nothing follows.
    Count(Signal),
    /// A signal of a network in kernels grows; nothing follows.
    AddSignal {
        /// The number of the network.
        network: u64,
        /// The place of the signal among those of all contexts.
        place: u32,
        /// The number that is added.
        value: u64,
    },
    /// A word of a window grows; nothing follows.
    AddWord {
        /// The number of the window.
        window: u64,
        /// The offset in it.
        offset: u64,
        /// The number that is added.
        value: u64,
    },
    /// The sender wants bytes of a window; nothing follows.
    Get(Fetch),
    /// All bytes that were wanted by this ticket have come before; nothing follows.
    Got(u64),
    /// A piece of a put comes over the net; nothing follows.
    Come(Piece),
}

/// A piece of a put that comes over the net.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// The number of the window.
    pub window: u64,
    /// The offset in it.
    pub offset: u64,
    /// The number of bytes.
    pub bytes: u64,
    /// The connection that it comes over, and its number on it.
    pub place: (u32, u64),
    /// The record of its checksum, if it has one.
    pub record: Option<Record>,
}

/// The CRC32C of all that is before it, as the last 4 bytes of a message, the lowest first
/// (`HAWSER_CHECKSUM`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sums {
    /// They have none.
    No,
    /// They have one, which the receiver compares.
    Yes,
}

/// Bytes of a checksum.
const SUM: usize = 4;

impl Header {
    /// A message with this header and `bytes` bytes, which `fill` writes.
    ///
    /// # Errors
    /// The errors of `fill`.
    pub fn message(
        &self,
        bytes: usize,
        sums: Sums,
        fill: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<Vec<u8>> {
        let failed = |error| Error::internal(format!("a header of a put cannot be written: {error}"));
        let room = Vec::with_capacity(32 + bytes + SUM);
        let mut message = postcard::to_extend(self, room).map_err(failed)?;
        let at = message.len();
        message.resize(at + bytes, 0);
        fill(&mut message[at..])?;
        if sums == Sums::Yes {
            message.extend(crc32c::crc32c(&message).to_le_bytes());
        }
        Ok(message)
    }

    /// Takes a message apart.
    ///
    /// # Errors
    /// `Remote`: it is none; `System`: it is not what was sent.
    pub fn read(message: &[u8], sums: Sums) -> Result<(Self, &[u8])> {
        let message = if sums == Sums::Yes { checked(message)? } else { message };
        match postcard::take_from_bytes(message) {
            Ok((put @ Self::Put { .. }, bytes)) => Ok((put, bytes)),
            Ok((header, [])) => Ok((header, &[])),
            Ok(_) | Err(_) => {
                let text = format!("a message of {} bytes that is no put and no signal", message.len());
                Err(Error::remote(text).remedy("run the same version of the library on all ranks"))
            }
        }
    }
}

/// A message without its checksum, which is that of the rest.
fn checked(message: &[u8]) -> Result<&[u8]> {
    let (rest, told) = message.split_last_chunk::<SUM>().unwrap_or((message, &[0; SUM]));
    let (told, sum) = (u32::from_le_bytes(*told), crc32c::crc32c(rest));
    if told == sum && rest.len() < message.len() {
        return Ok(rest);
    }
    let text = format!(
        "{} bytes were changed on the way: checksum {told:#010x} was sent, what came has {sum:#010x}",
        message.len()
    );
    Err(Error::new(ErrorKind::System, text).remedy(
        "the network, a NIC or memory of a host is faulty: try another interface (NCCL_SOCKET_IFNAME), and \
         look at the counters of links on both hosts",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PUT: Header = Header::Put { window: 3, offset: u64::MAX };

    fn rope(room: &mut [u8]) -> Result<()> {
        room.copy_from_slice(b"rope");
        Ok(())
    }

    #[test]
    fn messages_come_back_and_nonsense_is_refused() {
        for sums in [Sums::No, Sums::Yes] {
            let put = PUT.message(4, sums, rope).unwrap();
            assert_eq!(Header::read(&put, sums).unwrap(), (PUT, &b"rope"[..]));
        }
        let raise = Header::Raise(Signal { index: 7, context: 300 });
        let mut message = raise.message(0, Sums::No, |_| Ok(())).unwrap();
        assert_eq!(Header::read(&message, Sums::No).unwrap(), (raise, &[][..]));
        message.push(1);
        for bad in [&message[..], &[], &[9, 9, 9], &[0xff; 40]] {
            assert!(Header::read(bad, Sums::No).unwrap_err().text.contains("no put and no signal"));
        }
    }

    #[test]
    fn every_changed_bit_and_every_cut_is_noticed() {
        let put = PUT.message(4, Sums::Yes, rope).unwrap();
        for bit in 0..put.len() * 8 {
            let mut changed = put.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let error = Header::read(&changed, Sums::Yes).unwrap_err();
            assert!(error.kind == ErrorKind::System && error.text.contains("changed on the way"), "{error}");
        }
        for bytes in 0..put.len() {
            assert!(Header::read(&put[..bytes], Sums::Yes).unwrap_err().text.contains("changed on the way"));
        }
    }
}
