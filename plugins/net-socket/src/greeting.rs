//! The parts of both ends of a socket in the handshake of [`hawser_oob::handshake`].
//!
//! | from | message | adds |
//! |---|---|---|
//! | dialler | greeting | [`Hello`]: which listener, which connection, which of its sockets |
//! | listener | challenge | nothing; or a [`Refusal`] |
//! | dialler | answer | [`Answer`]: how far it consumed the control stream |
//! | listener | welcome | [`Welcome`]: how far it consumed the control stream, addresses; or [`Refusal`] |

use std::net::SocketAddr;

use hawser_oob::frame::Fields;
use hawser_oob::handle::{ADDRESS_BYTES, MOST_ADDRESSES, read_addresses, write_addresses};
use hawser_oob::handshake::{Key, Protocol};
use hawser_oob::wire::Wire;
use hawser_plugin::net::{HANDLE_BYTES, MAX_VIRTUAL};

/// The first bytes of this plugin's handles.
pub(crate) const HANDLE: [u8; 4] = *b"HwS3";

/// The parameters of the handshake.
pub(crate) const PROTOCOL: Protocol =
    Protocol { magic: *b"HAWSsock", version: 5, greeting: HELLO, answer: ANSWER, welcome: WELCOME };

const HELLO: usize = 26;
const ANSWER: usize = 8;
const ADDRESSES: usize = MAX_VIRTUAL * ADDRESS_BYTES;
const WELCOME: usize = 8 + 1 + ADDRESSES;

const _: () = assert!(HANDLE_BYTES == hawser_oob::handle::HANDLE_BYTES && MAX_VIRTUAL == MOST_ADDRESSES);

/// The key of a handle's secret.
pub(crate) fn key(secret: &[u8; 32]) -> Key {
    Key::derive(secret, "socket")
}

/// The name of a socket within its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Socket {
    /// The socket of records and short messages.
    Control,
    /// A data socket, by its number.
    Pipe(u16),
}

/// The dialler's first words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hello {
    /// The number of the listener, from its handle.
    pub listener: u64,
    /// Random number of the connection, the same for all its sockets.
    pub connection: u64,
    /// The name of this socket within the connection.
    pub socket: Socket,
    /// The number of data sockets that the connection has.
    pub pipes: u16,
    /// Counts the sockets that were dialled for this purpose, from 1.
    pub generation: u32,
    /// The protection of what follows.
    pub wire: Wire,
}

impl Hello {
    /// The words as bytes of the greeting.
    pub fn encode(&self) -> [u8; HELLO] {
        let (kind, pipe) = match self.socket {
            Socket::Control => (0, 0),
            Socket::Pipe(pipe) => (1, pipe),
        };
        let mut bytes = [0; HELLO];
        bytes[..8].copy_from_slice(&self.listener.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.connection.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.generation.to_le_bytes());
        bytes[20..22].copy_from_slice(&pipe.to_le_bytes());
        bytes[22..24].copy_from_slice(&self.pipes.to_le_bytes());
        (bytes[24], bytes[25]) = (kind, self.wire.code());
        bytes
    }

    /// None for words that no dialler of this version says.
    pub fn parse(bytes: &[u8]) -> Option<Hello> {
        let mut fields = Fields::new(bytes);
        let (listener, connection) = (fields.u64().ok()?, fields.u64().ok()?);
        let (generation, pipe, pipes) = (fields.u32().ok()?, fields.u16().ok()?, fields.u16().ok()?);
        let socket = match (fields.u8().ok()?, pipe) {
            (0, 0) => Socket::Control,
            (1, pipe) if pipe < pipes => Socket::Pipe(pipe),
            _ => return None,
        };
        let wire = Wire::of_code(fields.u8().ok()?)?;
        fields.end().ok()?;
        let is_sane = (1..=crate::config::MAX_SOCKETS).contains(&usize::from(pipes));
        is_sane.then_some(Hello { listener, connection, socket, pipes, generation, wire })
    }
}

/// The reason why a listener does not want a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Refusal {
    /// There is no such listener here (any more).
    Unknown = 1,
    /// Another sender has come with this handle.
    Taken = 2,
    /// A younger socket has taken the place, or the connection is not up.
    Stale = 3,
    /// The listener has another protection.
    OtherWire = 4,
}

impl Refusal {
    /// The code as sent; not 0.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The refusal of a code.
    pub fn parse(code: u8) -> Option<Refusal> {
        [Self::Unknown, Self::Taken, Self::Stale, Self::OtherWire].into_iter().find(|one| one.code() == code)
    }
}

/// The words that the dialler adds to its proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Bytes of the listener's control stream that the dialler has consumed.
    pub consumed: u64,
}

impl Answer {
    /// The words as bytes of the answer.
    pub fn encode(&self) -> [u8; ANSWER] {
        self.consumed.to_le_bytes()
    }

    /// Reads what [`Answer::encode`] wrote.
    pub fn parse(bytes: &[u8]) -> Option<Answer> {
        Some(Answer { consumed: u64::from_le_bytes(bytes.try_into().ok()?) })
    }
}

/// The words that the listener adds to its last proof.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Welcome {
    /// Bytes of the dialler's control stream that the listener has consumed.
    pub consumed: u64,
    /// The addresses at which the listener can be reached.
    pub addresses: Vec<SocketAddr>,
}

impl Welcome {
    /// The words as bytes of the welcome.
    pub fn encode(&self) -> [u8; WELCOME] {
        let mut bytes = [0; WELCOME];
        bytes[..8].copy_from_slice(&self.consumed.to_le_bytes());
        bytes[8] = write_addresses(&self.addresses, &mut bytes[9..]).0;
        bytes
    }

    /// None for words that no listener of this version says.
    pub fn parse(bytes: &[u8]) -> Option<Welcome> {
        let mut fields = Fields::new(bytes);
        let (consumed, count) = (fields.u64().ok()?, fields.u8().ok()?);
        Some(Welcome { consumed, addresses: read_addresses(count, fields.rest()).ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_goes_in_comes_out() {
        for socket in [Socket::Control, Socket::Pipe(3)] {
            let wire = Wire::Encrypt;
            let hello = Hello { listener: 1, connection: 2, socket, pipes: 4, generation: 3, wire };
            assert_eq!(Hello::parse(&hello.encode()), Some(hello));
        }
        let answer = Answer { consumed: 77 };
        assert_eq!(Answer::parse(&answer.encode()), Some(answer));
        let addresses = (1..=8).map(|i| format!("[fd00::{i}]:9").parse().unwrap()).collect();
        let welcome = Welcome { consumed: 5, addresses };
        assert_eq!(Welcome::parse(&welcome.encode()), Some(welcome));
    }

    #[test]
    fn refusals_have_codes_and_none_is_zero() {
        for refusal in [Refusal::Unknown, Refusal::Taken, Refusal::Stale, Refusal::OtherWire] {
            assert_eq!(Refusal::parse(refusal.code()), Some(refusal));
        }
        assert_eq!(Refusal::parse(0), None);
    }

    proptest! {
        #[test]
        fn any_words_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..200), sane: bool) {
            let mut bytes = bytes;
            if sane {
                bytes.resize(HELLO, 0);
                bytes[20..26].copy_from_slice(&[0, 0, 1, 0, 0, 1]);
            }
            if let Some(hello) = Hello::parse(&bytes) {
                prop_assert_eq!(&hello.encode()[..], &bytes);
            }
            prop_assert_eq!(Answer::parse(&bytes).is_some(), bytes.len() == ANSWER);
            let _ = Welcome::parse(&bytes);
        }
    }
}
