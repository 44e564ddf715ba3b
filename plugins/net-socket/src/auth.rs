//! Proof of the handle's secret, before a byte of a socket is believed. Messages of fixed length, pure functions.
//!
//! | from | message | says |
//! |---|---|---|
//! | dialler | [`Hello`] | which listener, which connection, which of its sockets, 32 random bytes |
//! | listener | [`Challenge`] | 32 random bytes and the listener's proof, or why not |
//! | dialler | [`Answer`] | the dialler's proof; how far it consumed the control stream |
//! | listener | [`Welcome`] | all its addresses, how far it consumed the control stream, a proof over that; or why not |
//!
//! A proof is the keyed hash (HMAC-SHA256) of a label, the greeting, the challenge and what the message adds. No proof can be
//! replayed (both ends bring random bytes) or reflected (labels differ). What follows is not encrypted.

use std::net::SocketAddr;

use hawser_plugin::net::MAX_VIRTUAL;
use hmac_sha256::HMAC;

use crate::handle::{ADDRESS_BYTES, read_addresses, write_addresses};

const MAGIC: [u8; 8] = *b"HAWSsock";
const VERSION: u16 = 2;
const ADDRESSES: usize = MAX_VIRTUAL * ADDRESS_BYTES;

/// Bytes of the messages.
pub(crate) const HELLO: usize = 72;
pub(crate) const CHALLENGE: usize = 8 + 32 + 32;
pub(crate) const ANSWER: usize = 8 + 32;
pub(crate) const WELCOME: usize = 2 + 8 + ADDRESSES + 32;

/// What all proofs of a socket cover.
#[derive(Clone)]
pub(crate) struct Proof {
    secret: [u8; 32],
    hello: [u8; HELLO],
    nonce: [u8; 32],
}

impl Proof {
    pub fn new(secret: [u8; 32], hello: [u8; HELLO], nonce: [u8; 32]) -> Self {
        Self { secret, hello, nonce }
    }

    fn hash(&self, label: &[u8], extra: &[u8]) -> [u8; 32] {
        self.mac(label, extra).finalize()
    }

    /// Takes constant time.
    fn matches(&self, label: &[u8], extra: &[u8], hash: &[u8; 32]) -> bool {
        self.mac(label, extra).finalize_verify(hash)
    }

    fn mac(&self, label: &[u8], extra: &[u8]) -> HMAC {
        let mut mac = HMAC::new(self.secret);
        [label, &self.hello, &self.nonce, extra].iter().for_each(|part| mac.update(part));
        mac
    }
}

/// Which of a connection's sockets this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Socket {
    Control,
    Pipe(u16),
}

/// The dialler's first words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hello {
    pub listener: u64,
    /// Random number of the connection, the same for all its sockets.
    pub connection: u64,
    pub socket: Socket,
    /// Data sockets of the connection.
    pub pipes: u16,
    /// Counts the sockets that were dialled for this purpose, from 1.
    pub generation: u32,
    pub nonce: [u8; 32],
}

impl Hello {
    pub fn encode(&self) -> [u8; HELLO] {
        let (kind, pipe) = match self.socket {
            Socket::Control => (0, 0),
            Socket::Pipe(pipe) => (1, pipe),
        };
        let mut bytes = [0; HELLO];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[10] = kind;
        bytes[12..14].copy_from_slice(&pipe.to_le_bytes());
        bytes[14..16].copy_from_slice(&self.pipes.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.generation.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.listener.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.connection.to_le_bytes());
        bytes[40..].copy_from_slice(&self.nonce);
        bytes
    }

    /// None: a stranger.
    pub fn parse(bytes: &[u8; HELLO]) -> Option<Hello> {
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let pipes = half(14);
        let socket = match (bytes[10], half(12)) {
            (0, 0) => Socket::Control,
            (1, pipe) if pipe < pipes => Socket::Pipe(pipe),
            _ => return None,
        };
        let known = bytes[..8] == MAGIC && half(8) == VERSION;
        let sane = (1..=crate::config::MAX_SOCKETS).contains(&usize::from(pipes));
        (known && sane).then(|| Hello {
            listener: word(bytes, 24),
            connection: word(bytes, 32),
            socket,
            pipes,
            generation: u32::from_le_bytes([bytes[16], bytes[17], bytes[18], bytes[19]]),
            nonce: random_part(bytes, 40),
        })
    }
}

/// Why a listener does not want a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Refusal {
    /// There is no such listener here (any more).
    Unknown = 1,
    /// Another sender has come with this handle.
    Taken = 2,
    /// A younger socket has taken the place, or the connection is not up.
    Stale = 3,
}

impl Refusal {
    fn parse(code: u8) -> Option<Refusal> {
        [Self::Unknown, Self::Taken, Self::Stale].into_iter().find(|one| *one as u8 == code)
    }
}

/// The listener's answer to a greeting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Challenge {
    Asked { nonce: [u8; 32] },
    Refused(Refusal),
}

impl Challenge {
    pub fn ask(proof: &Proof) -> [u8; CHALLENGE] {
        let mut bytes = [0; CHALLENGE];
        bytes[8..40].copy_from_slice(&proof.nonce);
        bytes[40..].copy_from_slice(&proof.hash(b"challenge", &[]));
        bytes
    }

    pub fn refuse(refusal: Refusal) -> [u8; CHALLENGE] {
        let mut bytes = [0; CHALLENGE];
        bytes[0] = refusal as u8;
        bytes
    }

    /// None: it does not know the secret, or is no listener of ours.
    pub fn parse(bytes: &[u8; CHALLENGE], secret: [u8; 32], hello: [u8; HELLO]) -> Option<Challenge> {
        if bytes[0] != 0 {
            return Refusal::parse(bytes[0]).map(Challenge::Refused);
        }
        let nonce = random_part(bytes, 8);
        let proof = Proof::new(secret, hello, nonce);
        proof.matches(b"challenge", &[], &random_part(bytes, 40)).then_some(Challenge::Asked { nonce })
    }
}

/// The dialler's proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Bytes of the listener's control stream that the dialler has consumed.
    pub consumed: u64,
}

impl Answer {
    pub fn encode(&self, proof: &Proof) -> [u8; ANSWER] {
        let mut bytes = [0; ANSWER];
        bytes[..8].copy_from_slice(&self.consumed.to_le_bytes());
        let hash = proof.hash(b"answer", &bytes[..8]);
        bytes[8..].copy_from_slice(&hash);
        bytes
    }

    /// None: it does not know the secret.
    pub fn parse(bytes: &[u8; ANSWER], proof: &Proof) -> Option<Answer> {
        let good = proof.matches(b"answer", &bytes[..8], &random_part(bytes, 8));
        good.then(|| Answer { consumed: word(bytes, 0) })
    }
}

/// The listener's last word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Welcome {
    Come {
        /// Bytes of the dialler's control stream that the listener has consumed.
        consumed: u64,
        /// Where the listener can be reached.
        addresses: Vec<SocketAddr>,
    },
    Refused(Refusal),
}

impl Welcome {
    pub fn encode(&self, proof: &Proof) -> [u8; WELCOME] {
        let mut bytes = [0; WELCOME];
        match self {
            Self::Refused(refusal) => bytes[0] = *refusal as u8,
            Self::Come { consumed, addresses } => {
                bytes[1] = write_addresses(addresses, &mut bytes[10..10 + ADDRESSES]).0;
                bytes[2..10].copy_from_slice(&consumed.to_le_bytes());
            }
        }
        let hash = proof.hash(b"welcome", &bytes[..10 + ADDRESSES]);
        bytes[10 + ADDRESSES..].copy_from_slice(&hash);
        bytes
    }

    /// None: it does not know the secret, or talks nonsense.
    pub fn parse(bytes: &[u8; WELCOME], proof: &Proof) -> Option<Welcome> {
        let body = &bytes[..10 + ADDRESSES];
        if !proof.matches(b"welcome", body, &random_part(bytes, 10 + ADDRESSES)) {
            return None;
        }
        if body[0] != 0 {
            return Refusal::parse(body[0]).map(Self::Refused);
        }
        let addresses = read_addresses(body[1], &body[10..]).ok()?;
        Some(Self::Come { consumed: word(body, 2), addresses })
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

fn random_part(bytes: &[u8], at: usize) -> [u8; 32] {
    let mut part = [0; 32];
    part.copy_from_slice(&bytes[at..at + 32]);
    part
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hello(socket: Socket) -> Hello {
        Hello { listener: 1, connection: 2, socket, pipes: 4, generation: 3, nonce: [9; 32] }
    }

    #[test]
    fn both_ends_prove_the_secret() {
        let hello = hello(Socket::Pipe(3)).encode();
        assert_eq!(Hello::parse(&hello).map(|h| h.encode()), Some(hello));
        let proof = Proof::new([5; 32], hello, [6; 32]);
        let challenge = Challenge::ask(&proof);
        assert_eq!(Challenge::parse(&challenge, [5; 32], hello), Some(Challenge::Asked { nonce: [6; 32] }));
        let answer = Answer { consumed: 77 };
        assert_eq!(Answer::parse(&answer.encode(&proof), &proof), Some(answer));
        let addresses: Vec<SocketAddr> = (1..=8).map(|i| format!("[fd00::{i}]:9").parse().unwrap()).collect();
        for welcome in [Welcome::Come { consumed: 5, addresses }, Welcome::Refused(Refusal::Stale)] {
            assert_eq!(Welcome::parse(&welcome.encode(&proof), &proof), Some(welcome));
        }
    }

    #[test]
    fn another_secret_or_a_changed_bit_is_no_proof() {
        let hello = hello(Socket::Control).encode();
        let proof = Proof::new([5; 32], hello, [6; 32]);
        assert_eq!(Challenge::parse(&Challenge::ask(&proof), [4; 32], hello), None);
        let answer = Answer { consumed: 77 }.encode(&proof);
        let addresses = vec!["1.2.3.4:5".parse().unwrap()];
        let welcome = Welcome::Come { consumed: 5, addresses }.encode(&proof);
        for bit in 0..ANSWER * 8 {
            let mut bad = answer;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Answer::parse(&bad, &proof), None, "bit {bit}");
        }
        for bit in 0..WELCOME * 8 {
            let mut bad = welcome;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Welcome::parse(&bad, &proof), None, "bit {bit}");
        }
    }

    #[test]
    fn a_proof_of_one_message_is_none_of_another() {
        let proof = Proof::new([5; 32], hello(Socket::Control).encode(), [6; 32]);
        assert_ne!(proof.hash(b"challenge", &[]), proof.hash(b"answer", &[]));
        assert_ne!(proof.hash(b"welcome", &[]), proof.hash(b"answer", &[]));
    }

    #[test]
    fn refusals_are_told() {
        for refusal in [Refusal::Unknown, Refusal::Taken, Refusal::Stale] {
            let challenge = Challenge::refuse(refusal);
            let parsed = Challenge::parse(&challenge, [0; 32], [0; HELLO]);
            assert_eq!(parsed, Some(Challenge::Refused(refusal)));
        }
    }

    proptest! {
        #[test]
        fn any_greeting_is_survived(bytes in prop::collection::vec(any::<u8>(), HELLO), whole: bool) {
            let mut bytes: [u8; HELLO] = bytes.try_into().unwrap();
            if whole {
                bytes[..8].copy_from_slice(&MAGIC);
                bytes[8..12].copy_from_slice(&[1, 0, 1, 0]);
            }
            if let Some(hello) = Hello::parse(&bytes) {
                prop_assert_eq!(Hello::parse(&hello.encode()), Some(hello));
            }
        }

        #[test]
        fn any_answer_is_refused(seed: [u8; 32], body in prop::collection::vec(any::<u8>(), WELCOME)) {
            let proof = Proof::new(seed, [0; HELLO], [1; 32]);
            let challenge: [u8; CHALLENGE] = body[..CHALLENGE].try_into().unwrap();
            let asked = Challenge::parse(&challenge, seed, [0; HELLO]);
            prop_assert!(!matches!(asked, Some(Challenge::Asked { .. })), "{:?}", asked);
            let answer: [u8; ANSWER] = body[..ANSWER].try_into().unwrap();
            prop_assert_eq!(Answer::parse(&answer, &proof), None);
            let welcome: [u8; WELCOME] = body.try_into().unwrap();
            prop_assert_eq!(Welcome::parse(&welcome, &proof), None);
        }
    }
}
