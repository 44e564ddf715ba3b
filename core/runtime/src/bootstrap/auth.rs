//! Proof of the shared secret, before a byte of a connection is believed.
//!
//! The connector sends a greeting (magic, version, role, its rank, the rank it wants to reach, 32 random bytes). The
//! acceptor answers with 32 random bytes and its proof: the keyed hash (HMAC-SHA256) of a label, the greeting and its own
//! random bytes. The connector checks it and sends its proof, made with another label. Neither proof can be replayed
//! or reflected. The acceptor welcomes it with one more byte: without that, a connector whose proof is late (the network
//! was away for a while) would send on a connection that the acceptor has given up. What follows is not encrypted.
//!
//! [`Acceptor`] drives many handshakes at once without blocking: a stranger who says nothing, garbage or half a
//! handshake costs a slot until the time limit, and never delays the others.

use super::log;
use super::socket::{self, Address, Input, Refusal, Stream, random};
use super::wire::{Fields, malformed};
use crate::error::{Error, ErrorKind, Result};
use crate::wait::Wait;
use hmac_sha256::HMAC;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// The secret everything else is derived from.
pub(super) type Secret = [u8; 32];

/// The "rank" of a root in greetings.
pub(super) const ROOT: u32 = u32::MAX;

const MAGIC: [u8; 8] = *b"HAWSboot";
const VERSION: u8 = 3;
const GREETING: usize = 50;
const ANSWER: usize = 8 + 32 + 32;
const PROOF: usize = 32;
const WELCOME: [u8; 1] = [1];

/// Handshakes in progress at one listener; beyond it the oldest gives way once it is older than [`GRACE`].
const MOST_PENDING: usize = 128;
const GRACE: Duration = Duration::from_millis(250);

/// How long the listener rests when the process has no descriptors left.
const REST: Duration = Duration::from_millis(20);

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Role {
    /// A rank comes to the root.
    Join = 1,
    /// A rank tells a root that it is not needed.
    Release = 2,
    /// A rank's arm of the star around rank 0.
    Star = 3,
    /// Messages from rank to rank.
    Peer = 4,
    /// File descriptors from rank to rank (unix-domain only).
    Descriptor = 5,
}

/// Who connects to whom, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Greeting {
    pub role: Role,
    pub rank: u32,
    pub target: u32,
}

impl Greeting {
    fn encode(&self, nonce: &[u8; 32]) -> [u8; GREETING] {
        let mut bytes = [0; GREETING];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8] = VERSION;
        bytes[9] = self.role as u8;
        bytes[10..14].copy_from_slice(&self.rank.to_le_bytes());
        bytes[14..18].copy_from_slice(&self.target.to_le_bytes());
        bytes[18..].copy_from_slice(nonce);
        bytes
    }

    fn parse(bytes: &[u8; GREETING]) -> Result<Greeting> {
        let mut fields = Fields::new(bytes);
        if fields.array::<8>()? != MAGIC {
            return Err(malformed("no greeting of this protocol"));
        }
        let version = fields.u8()?;
        if version != VERSION {
            return Err(malformed(format!("protocol version {version}, this library speaks {VERSION}")));
        }
        let code = fields.u8()?;
        let roles = [Role::Join, Role::Release, Role::Star, Role::Peer, Role::Descriptor];
        let role =
            roles.into_iter().find(|role| *role as u8 == code).ok_or_else(|| malformed("unknown role"))?;
        Ok(Greeting { role, rank: fields.u32()?, target: fields.u32()? })
    }
}

/// A key for one purpose, derived from a secret.
#[derive(Clone)]
pub(super) struct Key([u8; 32]);

impl Key {
    /// Keys of different purposes tell nothing about each other or the secret.
    pub fn derive(secret: &Secret, purpose: &str) -> Key {
        Key(HMAC::mac(format!("hawser {purpose}"), secret))
    }

    /// To be sent, or compared by [`matches()`].
    fn proof(&self, label: &[u8], greeting: &[u8; GREETING], nonce: &[u8]) -> HMAC {
        let mut proof = HMAC::new(self.0);
        [label, greeting, nonce].iter().for_each(|part| proof.update(part));
        proof
    }
}

const ACCEPTOR: &[u8] = b"acceptor";
const CONNECTOR: &[u8] = b"connector";

/// How often and how long to try again.
#[derive(Clone, Copy)]
pub(super) struct Retry {
    /// Further tries after the first.
    pub count: u32,
    /// Pause before try n+1 is n times this.
    pub sleep: Duration,
    /// Whether a refused connection may succeed later (the listener may not exist yet).
    pub refused: bool,
    /// What a refused connection means for the user.
    pub when_refused: &'static str,
}

/// Connects and proves the secret, both ways.
///
/// # Errors
/// `System` when the peer cannot be reached, `InvalidUsage` when it does not know the secret, or as [`Wait::check`].
pub(super) fn connect(
    to: &Address,
    key: &Key,
    greeting: Greeting,
    retry: Retry,
    wait: &Wait,
    describe: &dyn Fn() -> String,
) -> Result<Stream> {
    let mut tries = 0;
    loop {
        let (error, again) = match Stream::connect(to, wait, describe) {
            Ok(stream) => match introduce(&stream, key, greeting, wait, describe) {
                Ok(()) => return Ok(stream),
                // Closed before the answer: the listener went away or was too busy.
                Err(error) => (error.clone(), error.kind == ErrorKind::Remote),
            },
            Err(Refusal::Gone(error)) => (error, false),
            Err(Refusal::Os(errno)) => {
                (unreachable(to, errno, &retry, describe), may_pass(errno, retry.refused))
            }
        };
        if !again || tries >= retry.count {
            return Err(error);
        }
        tries += 1;
        let pause = wait.at_most(retry.sleep.saturating_mul(tries));
        while !pause.remaining().is_some_and(|left| left.is_zero()) {
            wait.check(|| format!("{} ({}; try {tries} of {})", describe(), error.text, retry.count))?;
            std::thread::sleep(pause.slice());
        }
    }
}

fn may_pass(errno: Errno, refused: bool) -> bool {
    match errno {
        Errno::CONNREFUSED => refused,
        Errno::TIMEDOUT | Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::CONNRESET | Errno::AGAIN => true,
        _ => false,
    }
}

fn unreachable(to: &Address, errno: Errno, retry: &Retry, describe: &dyn Fn() -> String) -> Error {
    let error = Error::system(format!("{}: connect to {to}", describe()), errno);
    match errno {
        Errno::CONNREFUSED => error.remedy(retry.when_refused),
        Errno::MFILE | Errno::NFILE => error.remedy("raise the limit of open files (ulimit -n)"),
        Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::TIMEDOUT => {
            error.remedy("check the network and NCCL_SOCKET_IFNAME on both sides")
        }
        _ => error,
    }
}

/// The connector's side of the handshake.
fn introduce(
    stream: &Stream,
    key: &Key,
    who: Greeting,
    wait: &Wait,
    describe: &dyn Fn() -> String,
) -> Result<()> {
    let greeting = who.encode(&random()?);
    let waiting = || format!("{} (handshake)", describe());
    stream.write_all(&greeting, false, wait, &waiting)?;
    let mut answer = [0; ANSWER];
    stream.read_exact(&mut answer, wait, &waiting)?;
    let (magic, rest) = answer.split_at(8);
    let (nonce, proof) = rest.split_at(32);
    if magic != MAGIC {
        let text = format!("{}: another program listens at that address", describe());
        return Err(Error::invalid_usage(text).remedy("check that all ranks got the same, fresh unique id"));
    }
    if !matches(&key.proof(ACCEPTOR, &greeting, nonce), proof) {
        let text =
            format!("{}: the listener there belongs to another communicator (wrong secret)", describe());
        return Err(Error::invalid_usage(text).remedy("check that all ranks got the same, fresh unique id"));
    }
    stream.write_all(&key.proof(CONNECTOR, &greeting, nonce).finalize(), false, wait, &waiting)?;
    stream.read_exact(&mut [0; WELCOME.len()], wait, &waiting)
}

/// Takes constant time.
fn matches(expected: &HMAC, proof: &[u8]) -> bool {
    <&[u8; PROOF]>::try_from(proof).is_ok_and(|proof| expected.clone().finalize_verify(proof))
}

/// A listener and the handshakes in progress on it.
pub(super) struct Acceptor {
    listener: OwnedFd,
    key: Key,
    target: u32,
    roles: &'static [Role],
    limit: Duration,
    pending: Vec<Pending>,
    rest_until: Option<Instant>,
}

/// A connection that proved the secret.
pub(super) struct Accepted {
    pub stream: Stream,
    pub role: Role,
    pub rank: u32,
    pub from: String,
}

struct Pending {
    stream: Stream,
    from: String,
    since: Instant,
    greeting: [u8; GREETING],
    have: usize,
    proof: Option<Expected>,
}

struct Expected {
    who: Greeting,
    proof: HMAC,
    bytes: [u8; PROOF],
    have: usize,
}

/// What came of one look at a pending handshake.
enum Step {
    Wait,
    Done(Greeting),
    Drop(String),
}

impl Acceptor {
    /// Accepts `roles` for rank `target`; a handshake may take `limit`.
    pub fn new(listener: OwnedFd, key: Key, target: u32, roles: &'static [Role], limit: Duration) -> Self {
        Acceptor { listener, key, target, roles, limit, pending: Vec::new(), rest_until: None }
    }

    /// Adds everything this acceptor waits for.
    pub fn register<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        if self.rest_until.is_none() && self.pending.len() < MOST_PENDING {
            fds.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        fds.extend(self.pending.iter().map(|pending| PollFd::new(&pending.stream, PollFlags::IN)));
    }

    /// When [`Acceptor::advance`] must be called even if nothing happens.
    pub fn next_deadline(&self) -> Option<Instant> {
        let limit = if self.pending.len() < MOST_PENDING { self.limit } else { self.limit.min(GRACE) };
        let oldest = self.pending.first().map(|pending| pending.since + limit);
        [oldest, self.rest_until].into_iter().flatten().min()
    }

    /// Takes all steps that need no waiting and returns the connections that proved the secret.
    pub fn advance(&mut self) -> Vec<Accepted> {
        let now = Instant::now();
        self.make_room(now);
        self.accept_waiting(now);
        let mut done = Vec::new();
        for mut pending in std::mem::take(&mut self.pending) {
            let step = match pending.advance(&self.key, self.target, self.roles) {
                Step::Wait if now >= pending.since + self.limit => {
                    Step::Drop("no proof within the time limit".into())
                }
                step => step,
            };
            match step {
                Step::Wait => self.pending.push(pending),
                Step::Done(who) => {
                    done.push(Accepted {
                        stream: pending.stream,
                        role: who.role,
                        rank: who.rank,
                        from: pending.from,
                    });
                }
                Step::Drop(why) => log(&format!("bootstrap dropped a stranger at {}: {why}", pending.from)),
            }
        }
        done
    }

    fn make_room(&mut self, now: Instant) {
        if self.pending.len() >= MOST_PENDING && now >= self.pending[0].since + GRACE {
            let oldest = self.pending.remove(0);
            log(&format!("bootstrap dropped a stranger at {}: too many handshakes at once", oldest.from));
        }
    }

    fn accept_waiting(&mut self, now: Instant) {
        if self.rest_until.is_some_and(|until| now < until) {
            return;
        }
        self.rest_until = None;
        while self.pending.len() < MOST_PENDING {
            match socket::accept(&self.listener) {
                Ok(Some((stream, from))) => self.pending.push(Pending::new(stream, from, now)),
                Ok(None) => return,
                Err(errno) => {
                    log(&format!("bootstrap cannot accept a connection: {}", std::io::Error::from(errno)));
                    self.rest_until = Some(now + REST);
                    return;
                }
            }
        }
    }
}

impl Pending {
    fn new(stream: Stream, from: String, since: Instant) -> Self {
        Pending { stream, from, since, greeting: [0; GREETING], have: 0, proof: None }
    }

    fn advance(&mut self, key: &Key, target: u32, roles: &[Role]) -> Step {
        loop {
            let (buffer, have) = match &mut self.proof {
                None => (&mut self.greeting[..], &mut self.have),
                Some(expected) => (&mut expected.bytes[..], &mut expected.have),
            };
            match self.stream.read_some(&mut buffer[*have..]) {
                Ok(Input::Bytes(count)) => *have += count,
                Ok(Input::Nothing) => return Step::Wait,
                Ok(Input::Closed) => return Step::Drop("it left before its proof (other unique id?)".into()),
                Err(errno) => return Step::Drop(std::io::Error::from(errno).to_string()),
            }
            // The first bytes already tell garbage from a slow friend.
            let magic = self.have.min(MAGIC.len());
            if self.greeting[..magic] != MAGIC[..magic] {
                return Step::Drop("it does not speak this protocol".into());
            }
            match &self.proof {
                None if self.have == GREETING => match self.answer(key, target, roles) {
                    Ok(expected) => self.proof = Some(expected),
                    Err(error) => return Step::Drop(error.into_text()),
                },
                Some(expected) if expected.have == PROOF => {
                    if !matches(&expected.proof, &expected.bytes) {
                        return Step::Drop("wrong proof (other unique id?)".into());
                    }
                    return match self.stream.write_some(&WELCOME, false) {
                        Ok(1) => Step::Done(expected.who),
                        Ok(_) => Step::Drop("it takes no bytes".into()),
                        Err(errno) => Step::Drop(std::io::Error::from(errno).to_string()),
                    };
                }
                _ => {}
            }
        }
    }

    fn answer(&self, key: &Key, target: u32, roles: &[Role]) -> Result<Expected> {
        let who = Greeting::parse(&self.greeting)?;
        if who.target != target || !roles.contains(&who.role) {
            return Err(malformed(format!("{:?} for rank {} at rank {target}", who.role, who.target)));
        }
        let nonce: [u8; 32] = random()?;
        let mut answer = [0; ANSWER];
        answer[..8].copy_from_slice(&MAGIC);
        answer[8..40].copy_from_slice(&nonce);
        answer[40..].copy_from_slice(&key.proof(ACCEPTOR, &self.greeting, &nonce).finalize());
        match self.stream.write_some(&answer, false) {
            Ok(ANSWER) => {}
            Ok(_) => return Err(malformed("it takes no bytes")),
            Err(errno) => return Err(Error::system("answering", errno)),
        }
        let proof = key.proof(CONNECTOR, &self.greeting, &nonce);
        Ok(Expected { who, proof, bytes: [0; PROOF], have: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait::AbortFlag;
    use proptest::prelude::*;
    use std::net::SocketAddr;

    #[test]
    fn greetings_survive_and_proofs_depend_on_everything() {
        let who = Greeting { role: Role::Star, rank: 7, target: 0 };
        let greeting = who.encode(&[5; 32]);
        assert_eq!(Greeting::parse(&greeting).unwrap(), who);
        let key = Key::derive(&[1; 32], "peer");
        let proof = key.proof(ACCEPTOR, &greeting, &[9; 32]);
        let sent = proof.clone().finalize();
        assert!(matches(&proof, &sent) && !matches(&proof, &sent[1..]));
        let other_rank = Greeting { rank: 8, ..who }.encode(&[5; 32]);
        let others = [
            key.proof(CONNECTOR, &greeting, &[9; 32]),
            key.proof(ACCEPTOR, &greeting, &[8; 32]),
            key.proof(ACCEPTOR, &other_rank, &[9; 32]),
            Key::derive(&[1; 32], "root").proof(ACCEPTOR, &greeting, &[9; 32]),
            Key::derive(&[2; 32], "peer").proof(ACCEPTOR, &greeting, &[9; 32]),
        ];
        assert!(others.iter().all(|other| !matches(other, &sent)));
    }

    /// The network is away when the proof is on its way, for longer than the acceptor waits.
    #[test]
    fn a_proof_that_comes_too_late_is_given_again() {
        let local = SocketAddr::from(([127, 0, 0, 1], 0));
        let (listener, address) = socket::listen_tcp(local).unwrap();
        let (key, limit) = (Key::derive(&[3; 32], "peer"), Duration::from_millis(50));
        let mut acceptor = Acceptor::new(listener, key.clone(), 1, &[Role::Peer], limit);
        let wait = Wait::new(AbortFlag::new(), Some(Duration::from_secs(20)));
        let (network, entrance) = socket::listen_tcp(local).unwrap();
        let arrival = || wait.until(|| socket::accept(&network).unwrap(), || "a connection").unwrap().0;
        let test = || "the test".to_string();
        let dial = || Stream::connect(&Address::Tcp(address), &wait, &test).ok().unwrap();
        std::thread::scope(|scope| {
            let connector = scope.spawn(|| {
                let retry = Retry { count: 3, sleep: limit, refused: false, when_refused: "" };
                let who = Greeting { role: Role::Peer, rank: 0, target: 1 };
                connect(&Address::Tcp(entrance), &key, who, retry, &wait, &test)
            });
            let pass = |from: &Stream, to: &Stream, bytes: usize| {
                let mut bytes = vec![0; bytes];
                from.read_exact(&mut bytes, &wait, &test).unwrap();
                to.write_all(&bytes, false, &wait, &test).unwrap();
            };
            let (near, far) = (arrival(), dial());
            pass(&near, &far, GREETING);
            while acceptor.pending.first().is_none_or(|pending| pending.proof.is_none()) {
                wait.check(test).unwrap();
                assert!(acceptor.advance().is_empty());
            }
            pass(&far, &near, ANSWER);
            while !acceptor.pending.is_empty() {
                wait.check(test).unwrap();
                assert!(acceptor.advance().is_empty());
            }
            drop((near, far));
            let (near, far) = (arrival(), dial());
            let network = scope.spawn(move || {
                pass(&near, &far, GREETING);
                pass(&far, &near, ANSWER);
                pass(&near, &far, PROOF);
                pass(&far, &near, WELCOME.len());
            });
            let accepted = wait.until(|| acceptor.advance().pop(), test).unwrap();
            assert_eq!((accepted.role, accepted.rank), (Role::Peer, 0));
            network.join().unwrap();
            assert!(connector.join().unwrap().is_ok());
        });
    }

    proptest! {
        #[test]
        fn random_greetings_never_panic(bytes in proptest::array::uniform32(any::<u8>()), keep_magic: bool) {
            let mut greeting = [0u8; GREETING];
            greeting[18..].copy_from_slice(&bytes);
            greeting[8..18].copy_from_slice(&bytes[..10]);
            if keep_magic {
                greeting[..8].copy_from_slice(&MAGIC);
            }
            if let Ok(who) = Greeting::parse(&greeting) {
                prop_assert_eq!(who.encode(&bytes), greeting);
            }
        }
    }
}
