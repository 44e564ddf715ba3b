//! Proof of a shared secret, before a byte of a connection is believed. Pure functions: no input or output.
//!
//! | step | from | message | says |
//! |---|---|---|---|
//! | 1 | connector | greeting | magic, version, 32 random bytes, who it is and what it wants |
//! | 2 | listener | challenge | magic, 32 random bytes and a proof; or why it refuses |
//! | 3 | connector | answer | a proof, and what the listener has to know |
//! | 4 | listener | welcome | a proof, and what the connector has to know; or why it refuses |
//!
//! A proof is the keyed hash (HMAC-SHA256) of the number of the step, of everything that both ends have said,
//! and of what the message adds. No proof can be replayed, because both ends bring random bytes, or
//! reflected, because the steps have numbers. The listener believes nothing before step 3, the connector
//! nothing before step 2. Two messages have no proof: a refusal in step 2, and the complaint of a connector
//! whose key is another than the listener's, in place of step 3. Both
//! ends get the same keys for what follows ([`crate::seal`]); it is the users' choice to use them.
//!
//! A [`Protocol`] says how many bytes its users add to each message; the messages have fixed lengths.

use crate::frame::Fields;
use crate::seal::SessionKeys;
use crate::sha256;
use std::fmt;

/// Bytes of a shared secret.
pub const SECRET: usize = 32;

const NONCE: usize = 32;
const PROOF: usize = 32;
const MAGIC: usize = 8;
/// Magic and version of a greeting.
const MARK: usize = MAGIC + 2;

const CHALLENGE: u8 = 2;
const ANSWER: u8 = 3;
const WELCOME: u8 = 4;

/// The parameters of a handshake: who speaks, and how many bytes are added to each message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protocol {
    /// The first bytes of both ends, by which strangers are told from friends.
    pub magic: [u8; MAGIC],
    /// The version; ends with different versions do not talk.
    pub version: u16,
    /// The number of bytes that a greeting adds.
    pub greeting: usize,
    /// The number of bytes that an answer adds.
    pub answer: usize,
    /// The number of bytes that a welcome adds.
    pub welcome: usize,
}

impl Protocol {
    /// Bytes of a whole greeting.
    pub const fn greeting_bytes(&self) -> usize {
        MARK + NONCE + self.greeting
    }

    /// Bytes of a whole challenge.
    pub const fn challenge_bytes(&self) -> usize {
        MAGIC + 1 + PROOF + NONCE
    }

    /// Bytes of a whole answer.
    pub const fn answer_bytes(&self) -> usize {
        PROOF + self.answer
    }

    /// Bytes of a whole welcome.
    pub const fn welcome_bytes(&self) -> usize {
        PROOF + 1 + self.welcome
    }

    /// True if the first bytes of a greeting, however few, can be those of this protocol.
    pub fn may_begin_with(&self, bytes: &[u8]) -> bool {
        bytes.iter().zip(&self.magic).all(|(byte, magic)| byte == magic)
    }

    /// The bytes that a whole greeting adds.
    ///
    /// # Errors
    /// A sentence that says what is wrong with it.
    pub fn read_greeting<'a>(&self, bytes: &'a [u8]) -> Result<&'a [u8], String> {
        if bytes.len() != self.greeting_bytes() || !bytes.starts_with(&self.magic) {
            return Err("it does not speak this protocol".into());
        }
        let version = u16::from_le_bytes([bytes[MAGIC], bytes[MAGIC + 1]]);
        if version != self.version {
            return Err(format!(
                "it speaks version {version} of the protocol, this library {}",
                self.version
            ));
        }
        Ok(&bytes[MARK + NONCE..])
    }

    /// The challenge of a listener that does not want the connector; `code` says why and is not 0.
    pub fn refusal(&self, code: u8) -> Vec<u8> {
        let mut bytes = vec![0; self.challenge_bytes()];
        bytes[..MAGIC].copy_from_slice(&self.magic);
        bytes[MAGIC] = code;
        bytes
    }
}

/// A key for one purpose.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; SECRET]);

/// Does not print the key.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

impl Key {
    /// Keys of different purposes tell nothing about each other or the secret.
    pub fn derive(secret: &[u8; SECRET], purpose: &str) -> Key {
        Key(sha256::mac(secret, format!("hawser {purpose}").as_bytes()))
    }
}

/// The reason why a connector has no connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The program that answers does not speak the protocol.
    Foreign,
    /// The listener that answers does not know the secret.
    WrongSecret,
    /// The listener refuses, with its code for the reason.
    Refused(u8),
}

/// The key of a handshake, and everything that both ends have said in it.
#[derive(Clone)]
struct Transcript {
    key: Key,
    said: Vec<u8>,
}

impl Transcript {
    /// A message with a proof in front.
    fn say(&mut self, step: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = sha256::mac(&self.key.0, &self.proved(step, body)).to_vec();
        bytes.extend_from_slice(body);
        self.said.extend_from_slice(&bytes);
        bytes
    }

    /// The bytes that a message adds, if its proof is right. Takes constant time.
    fn hear<'a>(&mut self, step: u8, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let (proof, body) = bytes.split_first_chunk::<PROOF>()?;
        let is_right = sha256::verify(&self.key.0, &self.proved(step, body), proof);
        self.said.extend_from_slice(bytes);
        is_right.then_some(body)
    }

    /// The keys for what follows, after the answer.
    fn session(&self, is_connector: bool) -> SessionKeys {
        SessionKeys::derive(&self.key.0, &self.said, is_connector)
    }

    /// The bytes that a proof is made of: the step, all that was said before, and what the message adds.
    fn proved(&self, step: u8, body: &[u8]) -> Vec<u8> {
        let length = (self.said.len() as u64).to_le_bytes();
        [&[step], &length[..], &self.said, body].concat()
    }
}

/// The connector's side of one handshake.
#[derive(Clone)]
pub struct Connector {
    protocol: Protocol,
    talk: Transcript,
    session: Option<Box<SessionKeys>>,
}

impl Connector {
    /// Begins a handshake. `nonce` is random; `body` is what the greeting adds.
    pub fn new(protocol: Protocol, key: &Key, nonce: [u8; NONCE], body: &[u8]) -> Self {
        debug_assert_eq!(body.len(), protocol.greeting);
        let version = protocol.version.to_le_bytes();
        let said = [&protocol.magic[..], &version, &nonce, body].concat();
        Self { protocol, talk: Transcript { key: key.clone(), said }, session: None }
    }

    /// The greeting as sent. To be asked before the challenge is read.
    pub fn greeting(&self) -> &[u8] {
        &self.talk.said
    }

    /// Reads the challenge and makes the answer; `body` is what it adds.
    ///
    /// # Errors
    /// The listener is not one of this job, and the failure says why.
    pub fn answer(&mut self, challenge: &[u8], body: &[u8]) -> Result<Vec<u8>, Failure> {
        debug_assert_eq!(body.len(), self.protocol.answer);
        let mut fields = Fields::new(challenge);
        let (magic, code) = (fields.array::<MAGIC>(), fields.u8());
        match (magic, code) {
            (Ok(magic), Ok(0)) if magic == self.protocol.magic => {}
            (Ok(magic), Ok(code)) if magic == self.protocol.magic => return Err(Failure::Refused(code)),
            _ => return Err(Failure::Foreign),
        }
        let proved = self.talk.hear(CHALLENGE, fields.rest());
        proved.filter(|nonce| nonce.len() == NONCE).ok_or(Failure::WrongSecret)?;
        let answer = self.talk.say(ANSWER, body);
        self.session = Some(Box::new(self.talk.session(true)));
        Ok(answer)
    }

    /// The keys for what follows the handshake, once the challenge was answered. The listener is known to
    /// have them when its welcome was right.
    pub fn session(&self) -> Option<&SessionKeys> {
        self.session.as_deref()
    }

    /// The message in place of an answer to a listener that has another key: so the listener, which cannot
    /// know which of the two is wrong, is able to tell its user.
    pub fn complaint(&self) -> Vec<u8> {
        vec![0; self.protocol.answer_bytes()]
    }

    /// Reads the welcome; returns what it adds.
    ///
    /// # Errors
    /// The listener is not one of this job or refuses, and the failure says why.
    pub fn welcomed<'a>(&mut self, welcome: &'a [u8]) -> Result<&'a [u8], Failure> {
        match self.talk.hear(WELCOME, welcome).and_then(<[u8]>::split_first) {
            Some((0, body)) => Ok(body),
            Some((code, _)) => Err(Failure::Refused(*code)),
            None => Err(Failure::WrongSecret),
        }
    }
}

/// The listener's side of one handshake, from the greeting on.
#[derive(Clone)]
pub struct Responder {
    protocol: Protocol,
    talk: Transcript,
}

impl fmt::Debug for Responder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Responder")
    }
}

impl Responder {
    /// Answers a whole greeting. Returns the challenge as well; `nonce` is random.
    pub fn new(protocol: Protocol, key: &Key, greeting: &[u8], nonce: [u8; NONCE]) -> (Self, Vec<u8>) {
        let mut talk = Transcript { key: key.clone(), said: greeting.to_vec() };
        let proved = talk.say(CHALLENGE, &nonce);
        let challenge = [&protocol.magic[..], &[0], &proved].concat();
        (Self { protocol, talk }, challenge)
    }

    /// The bytes that an answer adds, if the connector knows the secret.
    pub fn check<'a>(&mut self, answer: &'a [u8]) -> Option<&'a [u8]> {
        self.talk.hear(ANSWER, answer).filter(|body| body.len() == self.protocol.answer)
    }

    /// The keys for what follows the handshake, once the answer was right.
    pub fn session(&self) -> SessionKeys {
        self.talk.session(false)
    }

    /// The welcome for a connector whose answer was right; `body` is what it adds.
    pub fn welcome(&self, body: &[u8]) -> Vec<u8> {
        debug_assert_eq!(body.len(), self.protocol.welcome);
        self.talk.clone().say(WELCOME, &[&[0], body].concat())
    }

    /// The message to a connector whose answer was right but who is not wanted; `code` says why and is not 0.
    pub fn refuse(&self, code: u8) -> Vec<u8> {
        let mut body = vec![0; 1 + self.protocol.welcome];
        body[0] = code;
        self.talk.clone().say(WELCOME, &body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PLAIN: Protocol = Protocol { magic: *b"HAWStest", version: 3, greeting: 5, answer: 8, welcome: 16 };

    fn key(byte: u8) -> Key {
        Key::derive(&[byte; 32], "test")
    }

    fn connector() -> Connector {
        Connector::new(PLAIN, &key(5), [9; 32], b"hello")
    }

    /// Both ends after the challenge, and the answer on its way.
    fn answered() -> (Connector, Responder, Vec<u8>) {
        let mut near = connector();
        assert_eq!(PLAIN.read_greeting(near.greeting()), Ok(&b"hello"[..]));
        let (far, challenge) = Responder::new(PLAIN, &key(5), near.greeting(), [6; 32]);
        let answer = near.answer(&challenge, &[1; 8]).unwrap();
        (near, far, answer)
    }

    #[test]
    fn both_ends_prove_the_secret() {
        let (near, mut far, answer) = answered();
        assert_eq!(far.check(&answer), Some(&[1; 8][..]));
        assert_eq!(near.clone().welcomed(&far.welcome(&[2; 16])), Ok(&[2; 16][..]));
        assert_eq!(near.clone().welcomed(&far.refuse(7)), Err(Failure::Refused(7)));
        // Both have the same keys, each for its own direction.
        let (mut sealer, mut data) = (near.session().unwrap().clone().into_ends().0, *b"data");
        let tag = sealer.seal(&[], &mut data);
        assert_eq!(far.session().into_ends().1.open(&[], &mut data, &tag), Ok(()));
        assert_eq!(&data, b"data");
    }

    #[test]
    fn messages_have_the_lengths_that_the_protocol_says() {
        let (near, mut far, answer) = answered();
        let (_, challenge) = Responder::new(PLAIN, &key(5), near.greeting(), [6; 32]);
        assert_eq!(connector().greeting().len(), PLAIN.greeting_bytes());
        assert_eq!((challenge.len(), answer.len()), (PLAIN.challenge_bytes(), PLAIN.answer_bytes()));
        assert_eq!(PLAIN.refusal(1).len(), PLAIN.challenge_bytes());
        far.check(&answer).unwrap();
        assert_eq!(far.welcome(&[0; 16]).len(), PLAIN.welcome_bytes());
        assert_eq!(far.refuse(1).len(), PLAIN.welcome_bytes());
    }

    #[test]
    fn another_secret_or_purpose_is_no_proof() {
        for other in [key(4), Key::derive(&[5; 32], "else")] {
            let (_, challenge) = Responder::new(PLAIN, &other, connector().greeting(), [6; 32]);
            assert_eq!(connector().answer(&challenge, &[1; 8]), Err(Failure::WrongSecret));
        }
        assert!(!format!("{:?}", key(5)).contains('5'));
    }

    #[test]
    fn a_changed_bit_is_no_proof() {
        let greeting = connector().greeting().to_vec();
        let (far, challenge) = Responder::new(PLAIN, &key(5), &greeting, [6; 32]);
        for bit in 0..challenge.len() * 8 {
            let mut bad = challenge.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(connector().answer(&bad, &[1; 8]).is_err(), "bit {bit}");
        }
        let (near, _, answer) = answered();
        for bit in 0..answer.len() * 8 {
            let mut bad = answer.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(far.clone().check(&bad), None, "bit {bit}");
        }
        let mut far = far;
        far.check(&answer).unwrap();
        let welcome = far.welcome(&[2; 16]);
        for bit in 0..welcome.len() * 8 {
            let mut bad = welcome.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(near.clone().welcomed(&bad), Err(Failure::WrongSecret), "bit {bit}");
        }
    }

    /// The listener saw another greeting than the connector sent: somebody between them changed it.
    #[test]
    fn a_changed_greeting_is_noticed_by_both() {
        for bit in 0..PLAIN.greeting_bytes() * 8 {
            let mut greeting = connector().greeting().to_vec();
            greeting[bit / 8] ^= 1 << (bit % 8);
            let (mut far, challenge) = Responder::new(PLAIN, &key(5), &greeting, [6; 32]);
            assert_eq!(connector().answer(&challenge, &[1; 8]), Err(Failure::WrongSecret), "bit {bit}");
            assert_eq!(far.check(&answered().2), None, "bit {bit}");
        }
    }

    #[test]
    fn a_proof_cannot_be_replayed() {
        let (near, mut far, answer) = answered();
        far.check(&answer).unwrap();
        let welcome = far.welcome(&[2; 16]);
        // The same greeting and answer again: the listener has other random bytes.
        let (mut again, _) = Responder::new(PLAIN, &key(5), connector().greeting(), [7; 32]);
        assert_eq!(again.check(&answer), None);
        // The same challenge and welcome again: the connector has other random bytes.
        let (_, challenge) = Responder::new(PLAIN, &key(5), connector().greeting(), [6; 32]);
        let mut other = Connector::new(PLAIN, &key(5), [8; 32], b"hello");
        assert_eq!(other.answer(&challenge, &[1; 8]), Err(Failure::WrongSecret));
        assert_eq!(other.welcomed(&welcome), Err(Failure::WrongSecret));
        assert!(near.clone().welcomed(&welcome).is_ok());
    }

    #[test]
    fn a_proof_cannot_be_reflected() {
        let protocol = Protocol { answer: 32, welcome: 31, ..PLAIN };
        let near = Connector::new(protocol, &key(5), [9; 32], b"hello");
        let (mut far, challenge) = Responder::new(protocol, &key(5), near.greeting(), [6; 32]);
        // The listener's own challenge as an answer: the lengths fit, the step does not.
        let reflected = &challenge[MAGIC + 1..];
        assert_eq!(reflected.len(), protocol.answer_bytes());
        assert_eq!(far.check(reflected), None);
        // The connector's own answer as a welcome.
        let mut near = near;
        let answer = near.answer(&challenge, &[0; 32]).unwrap();
        assert_eq!(answer.len(), protocol.welcome_bytes());
        assert_eq!(near.welcomed(&answer), Err(Failure::WrongSecret));
    }

    #[test]
    fn refusals_are_told_and_strangers_are_known() {
        assert_eq!(connector().answer(&PLAIN.refusal(3), &[1; 8]), Err(Failure::Refused(3)));
        assert_eq!(connector().answer(b"HTTP/1.1 400 Bad Request", &[1; 8]), Err(Failure::Foreign));
        assert_eq!(connector().answer(b"", &[1; 8]), Err(Failure::Foreign));
        let other = Protocol { version: 4, ..PLAIN };
        let newer = Connector::new(other, &key(5), [9; 32], b"hello");
        assert!(PLAIN.read_greeting(newer.greeting()).unwrap_err().contains("version 4"));
        assert!(PLAIN.may_begin_with(b"HAWS") && PLAIN.may_begin_with(newer.greeting()));
        assert!(!PLAIN.may_begin_with(b"GET "));
    }

    proptest! {
        #[test]
        fn any_greeting_is_survived(bytes in prop::collection::vec(any::<u8>(), 0..80), whole: bool) {
            let mut bytes = bytes;
            if whole {
                bytes.resize(PLAIN.greeting_bytes(), 0);
                bytes[..MAGIC].copy_from_slice(&PLAIN.magic);
            }
            if let Ok(body) = PLAIN.read_greeting(&bytes) {
                prop_assert_eq!(body.len(), PLAIN.greeting);
            }
        }

        #[test]
        fn any_message_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..120), is_marked: bool) {
            let mut bytes = bytes;
            let (near, mut far, _) = answered();
            prop_assert_eq!(far.check(&bytes), None);
            prop_assert_eq!(near.clone().welcomed(&bytes), Err(Failure::WrongSecret));
            if is_marked && bytes.len() > MAGIC {
                bytes[..MAGIC].copy_from_slice(&PLAIN.magic);
            }
            prop_assert!(connector().answer(&bytes, &[1; 8]).is_err());
        }
    }
}
