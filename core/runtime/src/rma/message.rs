//! The form of what is put to ranks elsewhere: a header, then the bytes of a put.

use hawser_base::error::{Error, Result};
use serde::{Deserialize, Serialize};

use super::Signal;

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
}

impl Header {
    /// A message with this header and `bytes` bytes, which `fill` writes.
    ///
    /// # Errors
    /// The errors of `fill`.
    pub fn message(&self, bytes: usize, fill: impl FnOnce(&mut [u8]) -> Result<()>) -> Result<Vec<u8>> {
        let failed = |error| Error::internal(format!("a header of a put cannot be written: {error}"));
        let mut message = postcard::to_extend(self, Vec::with_capacity(32 + bytes)).map_err(failed)?;
        let at = message.len();
        message.resize(at + bytes, 0);
        fill(&mut message[at..])?;
        Ok(message)
    }

    /// Takes a message apart.
    ///
    /// # Errors
    /// `Remote`: it is none.
    pub fn read(message: &[u8]) -> Result<(Self, &[u8])> {
        match postcard::take_from_bytes(message) {
            Ok((Self::Raise(_), [_, ..])) | Err(_) => {
                let text = format!("a message of {} bytes that is no put and no signal", message.len());
                Err(Error::remote(text).remedy("run the same version of the library on all ranks"))
            }
            Ok(taken) => Ok(taken),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_and_nonsense_is_refused() {
        let put = Header::Put { window: 3, offset: u64::MAX };
        let fill = |room: &mut [u8]| {
            room.copy_from_slice(b"rope");
            Ok(())
        };
        assert_eq!(Header::read(&put.message(4, fill).unwrap()).unwrap(), (put, &b"rope"[..]));
        let raise = Header::Raise(Signal { index: 7, context: 300 });
        let mut message = raise.message(0, |_| Ok(())).unwrap();
        assert_eq!(Header::read(&message).unwrap(), (raise, &[][..]));
        message.push(1);
        for bad in [&message[..], &[], &[9, 9, 9], &[0xff; 40]] {
            assert!(Header::read(bad).unwrap_err().text.contains("no put and no signal"));
        }
    }
}
