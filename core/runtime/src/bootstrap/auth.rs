//! The greetings of the bootstrap: who connects to whom, and why.
//!
//! Every connection begins with the handshake of [`hawser_oob::handshake`]: both ends prove to know the
//! communicator's secret before a byte is believed. The greeting says what the connection is for, which rank
//! comes, and to which rank it wants to come.

use super::wire::{Fields, malformed};
use super::{Remark, detail, remark};
use hawser_base::error::{Error, Result};
use hawser_oob::accept::{self, Arrival, Limits, Unwanted};
use hawser_oob::dial::{self, Dial, Ended, Offer};
use hawser_oob::foreign;
use hawser_oob::handshake::Protocol;
use hawser_oob::socket::{Address, Options, Origin};
use hawser_oob::strangers::{self, Lines};
use hawser_oob::stream::Stream;
use hawser_oob::wait::Patience;
use hawser_oob::wire::Wire;
use rustix::event::PollFd;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

pub(super) use hawser_oob::dial::{Retry, SAME_ID};
pub(super) use hawser_oob::handshake::Key;

/// The secret everything else is derived from.
pub(super) type Secret = [u8; 32];

/// The "rank" of a root in greetings.
pub(super) const ROOT: u32 = u32::MAX;

/// Bytes that a greeting adds: role, rank, target, protection.
const GREETING: usize = 10;
/// Bytes that a welcome adds: protection.
const WELCOME: usize = 1;

/// The advice where two ranks have different keys.
const SAME_KEY: &str = "if it is a rank of this job, give all ranks the same unique id, or the same \
                        NCCL_COMM_ID and key (HAWSER_COMM_ID_KEY_FILE)";

const PROTOCOL: Protocol =
    Protocol { magic: *b"HAWSboot", version: 21, greeting: GREETING, answer: 0, welcome: WELCOME };

/// Handshakes in progress at one listener; beyond it one that is older than [`GRACE`] gives way.
const MOST_PENDING: usize = strangers::MOST;
const GRACE: Duration = Duration::from_millis(250);

/// The purpose of a connection.
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
    /// The news of what becomes of ranks, to and from rank 0.
    Watch = 6,
    /// A look whether a rank is there; the connection carries nothing.
    Look = 7,
}

impl Role {
    const ALL: [Role; 7] =
        [Role::Join, Role::Release, Role::Star, Role::Peer, Role::Descriptor, Role::Watch, Role::Look];
}

impl Role {
    /// True if connections for this purpose are sealed.
    fn is_sealed(self, wire: Wire) -> bool {
        wire.is_sealed() && self != Role::Descriptor
    }
}

/// The first words on a connection: who connects to whom, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Greeting {
    /// The purpose of the connection.
    pub role: Role,
    /// The rank that connects.
    pub rank: u32,
    /// The rank that it wants to reach, or [`ROOT`].
    pub target: u32,
}

/// The error of ranks whose protections differ, which `who` names.
pub(super) fn differs(who: &str) -> Error {
    let remedy = "give all ranks, and the process that makes the unique id, the same HAWSER_WIRE and \
                  ncclSetEncryption";
    Error::invalid_usage(who).remedy(remedy)
}

impl Greeting {
    fn encode(&self, wire: Wire) -> [u8; GREETING] {
        let mut bytes = [0; GREETING];
        bytes[0] = self.role as u8;
        bytes[1..5].copy_from_slice(&self.rank.to_le_bytes());
        bytes[5..9].copy_from_slice(&self.target.to_le_bytes());
        bytes[9] = wire.code();
        bytes
    }

    fn parse(bytes: &[u8]) -> Result<(Greeting, Wire)> {
        let mut fields = Fields::new(bytes);
        let code = fields.u8()?;
        let role = Role::ALL
            .into_iter()
            .find(|role| *role as u8 == code)
            .ok_or_else(|| malformed("unknown role"))?;
        let greeting = Greeting { role, rank: fields.u32()?, target: fields.u32()? };
        let wire = Wire::of_code(fields.u8()?).ok_or_else(|| malformed("unknown protection"))?;
        fields.end()?;
        Ok((greeting, wire))
    }
}

/// Connects and proves the secret, both ways. The connection is sealed if that is the protection, but for
/// descriptors, which stay on this host.
///
/// # Errors
/// `System` when the peer cannot be reached, `InvalidUsage` when it does not know the secret or has another
/// protection, or as [`Patience::check`].
pub(super) fn connect(
    to: &Address,
    (key, wire): (&Key, Wire),
    greeting: Greeting,
    retry: Retry,
    wait: &impl Patience<Error = Error>,
    describe: &dyn Fn() -> String,
) -> Result<Stream> {
    let said = greeting.encode(wire);
    let offer = Offer { protocol: PROTOCOL, key, greeting: &said, answer: &[] };
    let (mut stream, welcome) = dial::connect(to, &offer, retry, wait, describe)?;
    let theirs = welcome.first().and_then(|code| Wire::of_code(*code));
    if theirs != Some(wire) {
        let Greeting { rank, target, .. } = greeting;
        let other = if target == ROOT {
            "the process that made the unique id".to_owned()
        } else {
            format!("rank {target}")
        };
        let theirs = theirs.map_or("another one", Wire::name);
        return Err(differs(&format!("rank {rank} has HAWSER_WIRE={wire}, {other} has {theirs}")));
    }
    if greeting.role.is_sealed(wire) {
        stream.seal()?;
    }
    Ok(stream)
}

/// Begins to connect, for one that looks now and then how far it is.
///
/// # Errors
/// The address is wrong, or the system refuses a socket: all that fails at once.
pub(super) fn begin(
    to: &Address,
    (key, wire): (&Key, Wire),
    greeting: Greeting,
) -> std::result::Result<Dial, Ended> {
    let offer = Offer { protocol: PROTOCOL, key, greeting: &greeting.encode(wire), answer: &[] };
    Dial::begin(&Origin::default(), to, &Options::default(), &offer)
}

/// A listener of a rank or a root, and the handshakes in progress on it.
pub(super) struct Acceptor {
    inner: accept::Acceptor,
    lines: Lines,
    last_stranger: Option<String>,
    key: Key,
    wire: Wire,
    target: u32,
    roles: &'static [Role],
}

/// A connection that proved the secret.
pub(super) struct Accepted {
    /// The connection.
    pub stream: Stream,
    /// The purpose of the connection.
    pub role: Role,
    /// The rank that it says it comes from.
    pub rank: u32,
    /// The address it came from, in words.
    pub from: String,
    /// Its protection, if that is another: nothing more is to be said to it.
    pub other_wire: Option<Wire>,
}

impl Accepted {
    /// Tells whether it has the same protection.
    pub fn is_alike(&self) -> bool {
        self.other_wire.is_none()
    }
}

impl Acceptor {
    /// Accepts `roles` for rank `target`; a handshake may take `limit`.
    pub fn new(
        listener: OwnedFd,
        (key, wire): (Key, Wire),
        target: u32,
        roles: &'static [Role],
        limit: Duration,
    ) -> Self {
        let limits = Limits { pending: MOST_PENDING, grace: GRACE, patience: limit };
        let inner = accept::Acceptor::new(listener, Options::default(), PROTOCOL, limits);
        Acceptor { inner, lines: Lines::default(), last_stranger: None, key, wire, target, roles }
    }

    /// Adds everything this acceptor waits for.
    pub fn register<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        self.inner.register(fds);
    }

    /// The moment at which [`Acceptor::advance`] must be called even if nothing happens.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.inner.next_deadline()
    }

    /// The caller that came last with a wrong key or another protocol, in words. Nothing of it is proved but
    /// the address.
    pub fn last_stranger(&self) -> Option<&str> {
        self.last_stranger.as_deref()
    }

    /// Takes all steps that need no waiting and returns the connections that proved the secret.
    pub fn advance(&mut self) -> Vec<Accepted> {
        let Acceptor { inner, lines, last_stranger, key, wire, target, roles } = self;
        let admit = |bytes: &[u8]| is_for(bytes, *target, roles).map(|()| key.clone());
        let mut done = Vec::new();
        for arrival in inner.advance(admit, |_| vec![wire.code()]) {
            match arrival {
                Arrival::Accepted(accepted) => {
                    // It was admitted, so it can be read.
                    let Ok((Greeting { role, rank, .. }, theirs)) = Greeting::parse(&accepted.greeting)
                    else {
                        continue;
                    };
                    let (mut stream, other_wire) = (accepted.stream, (theirs != *wire).then_some(theirs));
                    if role.is_sealed(theirs) && stream.seal().is_err() {
                        continue;
                    }
                    done.push(Accepted { stream, role, rank, from: accepted.from.to_string(), other_wire });
                }
                Arrival::WrongKey(from, greeting) => {
                    let text = wrong_key(&from.to_string(), &greeting);
                    let line = lines.line(format!("bootstrap: {text}; {SAME_KEY}"));
                    let weight = if *target == ROOT { Remark::Warning } else { Remark::Detail };
                    line.into_iter().for_each(|line| remark(weight, &line));
                    *last_stranger = Some(text);
                }
                Arrival::Stranger(from, why) => {
                    let text = format!("bootstrap dropped a stranger at {from}: {why}");
                    lines.line(text).into_iter().for_each(|line| detail(&line));
                }
                Arrival::Foreign(from, protocol) => {
                    let why = foreign::reason(protocol);
                    let line = lines.line(format!("bootstrap dropped a stranger at {from}: {why}"));
                    let weight = if *target == ROOT { Remark::Warning } else { Remark::Detail };
                    line.into_iter().for_each(|line| remark(weight, &line));
                    *last_stranger = Some(format!("a caller from {from} sent {protocol}"));
                }
                Arrival::Trouble(why) => {
                    let line = lines.line(format!("bootstrap: {why}"));
                    line.into_iter().for_each(|line| remark(Remark::Warning, &line));
                }
            }
        }
        done
    }
}

/// The sentence about a caller with another key: `greeting` says who it wants to be.
fn wrong_key(from: &str, greeting: &[u8]) -> String {
    let who = Greeting::parse(greeting)
        .map_or(String::new(), |(who, _)| format!(" that says it is rank {}", who.rank));
    format!("a caller from {from}{who} proved a wrong key")
}

/// Checks that a greeting asks for one of `roles` of rank `target`. Who does not is told nothing.
fn is_for(greeting: &[u8], target: u32, roles: &[Role]) -> std::result::Result<(), Unwanted> {
    let refuse = |why: String| Unwanted { code: None, why };
    let (who, _) = Greeting::parse(greeting).map_err(|error| refuse(error.into_text()))?;
    if who.target == target && roles.contains(&who.role) {
        return Ok(());
    }
    Err(refuse(malformed(format!("{:?} for rank {} at rank {target}", who.role, who.target)).into_text()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_greeting_is_for_one_rank_and_its_roles() {
        let who = Greeting { role: Role::Star, rank: 7, target: 0 };
        let said = who.encode(Wire::Encrypt);
        assert_eq!(Greeting::parse(&said).unwrap(), (who, Wire::Encrypt));
        assert_eq!(is_for(&said, 0, &[Role::Peer, Role::Star]), Ok(()));
        for (target, roles) in [(1, &[Role::Star][..]), (0, &[Role::Peer]), (ROOT, &[Role::Join])] {
            assert!(is_for(&said, target, roles).is_err());
        }
    }

    proptest! {
        #[test]
        fn random_greetings_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..12)) {
            if let Ok((who, wire)) = Greeting::parse(&bytes) {
                prop_assert_eq!(&who.encode(wire)[..], &bytes);
            }
        }
    }
}
