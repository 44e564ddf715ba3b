//! The listener's side: connections that come in, and what they have to prove before they count.
//!
//! [`Visitor`] drives one handshake; [`Acceptor`] has a listener and drives many at once. Neither ever
//! blocks: a stranger who says nothing, garbage or half a handshake costs a slot until the time limit, and
//! never delays the others.

use crate::handshake::{Key, Protocol, Responder};
use crate::socket::{self, Caller, Moved, Options};
use crate::stream::Stream;
use rustix::event::{PollFd, PollFlags};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// How long a listener rests when the process has no descriptors left.
pub const REST: Duration = Duration::from_millis(20);

/// A connection whose other end has not yet proved anything.
#[derive(Debug)]
pub struct Visitor {
    fd: OwnedFd,
    /// The address that the connection came from.
    pub from: Caller,
    /// The moment at which the connection was accepted.
    pub since: Instant,
    protocol: Protocol,
    message: Vec<u8>,
    have: usize,
    /// The greeting, once it is whole and was answered.
    answered: Option<(Vec<u8>, Responder)>,
}

/// The outcome of one look at a [`Visitor`].
#[derive(Debug)]
pub enum Step {
    /// There is nothing to do before the socket has more to read.
    Wait(Visitor),
    /// It knows the secret.
    Proved(Proved),
    /// It does not, for this reason.
    Stranger(String),
}

/// Why a listener does not go on with a visitor after its greeting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unwanted {
    /// The code that the visitor is told, or `None` if it is told nothing.
    pub code: Option<u8>,
    /// The reason, for the log.
    pub why: String,
}

/// A connection whose other end knows the secret, and still waits for its welcome.
#[derive(Debug)]
pub struct Proved {
    /// The connection.
    pub fd: OwnedFd,
    /// The address that the connection came from.
    pub from: Caller,
    /// The bytes that the greeting added.
    pub greeting: Vec<u8>,
    /// The bytes that the answer added.
    pub answer: Vec<u8>,
    /// Makes the welcome, or the refusal.
    pub responder: Responder,
}

impl Proved {
    /// Sends the welcome. `None` if the connection does not take it.
    pub fn welcome(self, body: &[u8]) -> Option<Accepted> {
        send_whole(self.fd.as_fd(), &self.responder.welcome(body)).then(|| Accepted {
            stream: Stream::from(self.fd),
            from: self.from,
            greeting: self.greeting,
            answer: self.answer,
        })
    }
}

/// The first bytes on a fresh socket always fit its buffer. Returns whether all were taken.
pub fn send_whole(fd: BorrowedFd<'_>, bytes: &[u8]) -> bool {
    socket::send(fd, bytes) == Ok(Moved::Bytes(bytes.len()))
}

impl Visitor {
    /// A connection that was just accepted.
    pub fn new(fd: OwnedFd, from: Caller, protocol: Protocol) -> Self {
        let since = Instant::now();
        Self { fd, from, since, protocol, message: Vec::new(), have: 0, answered: None }
    }

    /// Goes on as far as possible without waiting. `admit` is given what the greeting adds, and returns the
    /// key that the visitor has to know.
    pub fn advance(mut self, mut admit: impl FnMut(&[u8]) -> Result<Key, Unwanted>) -> Step {
        let stranger = |why: &str| Step::Stranger(why.to_string());
        loop {
            let length = match self.answered {
                None => self.protocol.greeting_bytes(),
                Some(_) => self.protocol.answer_bytes(),
            };
            self.message.resize(length, 0);
            match socket::receive(self.fd.as_fd(), &mut self.message[self.have..]) {
                Ok(Moved::Bytes(count)) => self.have += count,
                Ok(Moved::Nothing) => return Step::Wait(self),
                Ok(Moved::Closed) => return stranger("it left before its proof (does it know the secret?)"),
                Err(errno) => return Step::Stranger(std::io::Error::from(errno).to_string()),
            }
            // The first bytes already tell garbage from a slow friend.
            if self.answered.is_none() && !self.protocol.may_begin_with(&self.message[..self.have]) {
                return stranger("it does not speak this protocol");
            }
            if self.have < length {
                continue;
            }
            self.have = 0;
            let Some((greeting, mut responder)) = self.answered.take() else {
                match self.greet(&mut admit) {
                    Ok(answered) => self.answered = Some(answered),
                    Err(why) => return Step::Stranger(why),
                }
                continue;
            };
            let Some(answer) = responder.check(&self.message).map(<[u8]>::to_vec) else {
                return stranger("it does not know the secret (wrong proof)");
            };
            return Step::Proved(Proved { fd: self.fd, from: self.from, greeting, answer, responder });
        }
    }

    fn greet(
        &self,
        admit: &mut impl FnMut(&[u8]) -> Result<Key, Unwanted>,
    ) -> Result<(Vec<u8>, Responder), String> {
        let body = self.protocol.read_greeting(&self.message)?;
        let key = match admit(body) {
            Ok(key) => key,
            Err(Unwanted { code, why }) => {
                if let Some(code) = code {
                    send_whole(self.fd.as_fd(), &self.protocol.refusal(code));
                }
                return Err(why);
            }
        };
        let nonce = socket::random().map_err(|errno| format!("the kernel has no random bytes: {errno}"))?;
        let (responder, challenge) = Responder::new(self.protocol, &key, &self.message, nonce);
        if !send_whole(self.fd.as_fd(), &challenge) {
            return Err("it takes no bytes".into());
        }
        Ok((body.to_vec(), responder))
    }
}

impl AsFd for Visitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// How many visitors an [`Acceptor`] has at a time, and how much time they get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Handshakes in progress at most; beyond it the oldest gives way once it is older than `grace`.
    pub pending: usize,
    /// How long the oldest handshake is safe from those that wait for its slot.
    pub grace: Duration,
    /// The time that a handshake may take.
    pub patience: Duration,
}

/// A connection that proved the secret and was welcomed.
#[derive(Debug)]
pub struct Accepted {
    /// The connection.
    pub stream: Stream,
    /// The address that the connection came from.
    pub from: Caller,
    /// The bytes that the greeting added.
    pub greeting: Vec<u8>,
    /// The bytes that the answer added.
    pub answer: Vec<u8>,
}

/// The outcome of one look at an [`Acceptor`].
#[derive(Debug)]
pub enum Arrival {
    /// A connection that proved the secret.
    Accepted(Accepted),
    /// A connection that was dropped, and why.
    Stranger(Caller, String),
    /// The listener cannot accept connections for a while, and why.
    Trouble(std::io::Error),
}

/// A listener and the handshakes in progress on it.
#[derive(Debug)]
pub struct Acceptor {
    listener: OwnedFd,
    options: Options,
    protocol: Protocol,
    limits: Limits,
    pending: Vec<Visitor>,
    rest_until: Option<Instant>,
}

impl Acceptor {
    /// Accepts what comes to `listener`.
    pub fn new(listener: OwnedFd, options: Options, protocol: Protocol, limits: Limits) -> Self {
        Acceptor { listener, options, protocol, limits, pending: Vec::new(), rest_until: None }
    }

    /// Adds everything this acceptor waits for.
    pub fn register<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        if self.rest_until.is_none() && self.pending.len() < self.limits.pending {
            fds.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        fds.extend(self.pending.iter().map(|pending| PollFd::new(pending, PollFlags::IN)));
    }

    /// The moment at which [`Acceptor::advance`] must be called even if nothing happens.
    pub fn next_deadline(&self) -> Option<Instant> {
        let Limits { pending, grace, patience } = self.limits;
        let limit = if self.pending.len() < pending { patience } else { patience.min(grace) };
        let oldest = self.pending.first().map(|pending| pending.since + limit);
        [oldest, self.rest_until].into_iter().flatten().min()
    }

    /// Takes all steps that need no waiting. `admit` is given what a greeting adds, and returns the key that
    /// the visitor has to know; `welcome` is given a visitor that proved it, and returns what the welcome
    /// adds.
    pub fn advance(
        &mut self,
        mut admit: impl FnMut(&[u8]) -> Result<Key, Unwanted>,
        mut welcome: impl FnMut(&Proved) -> Vec<u8>,
    ) -> Vec<Arrival> {
        let now = Instant::now();
        let mut arrivals = Vec::new();
        self.make_room(now, &mut arrivals);
        self.accept_waiting(now, &mut arrivals);
        for visitor in std::mem::take(&mut self.pending) {
            let from = visitor.from;
            let why = match visitor.advance(&mut admit) {
                Step::Wait(visitor) if now >= visitor.since + self.limits.patience => {
                    "no proof within the time limit".to_string()
                }
                Step::Wait(visitor) => {
                    self.pending.push(visitor);
                    continue;
                }
                Step::Proved(proved) => {
                    let body = welcome(&proved);
                    match proved.welcome(&body) {
                        Some(accepted) => {
                            arrivals.push(Arrival::Accepted(accepted));
                            continue;
                        }
                        None => "it takes no bytes".to_string(),
                    }
                }
                Step::Stranger(why) => why,
            };
            arrivals.push(Arrival::Stranger(from, why));
        }
        arrivals
    }

    fn make_room(&mut self, now: Instant, arrivals: &mut Vec<Arrival>) {
        if self.pending.len() >= self.limits.pending && now >= self.pending[0].since + self.limits.grace {
            let oldest = self.pending.remove(0);
            arrivals.push(Arrival::Stranger(oldest.from, "too many handshakes at once".into()));
        }
    }

    fn accept_waiting(&mut self, now: Instant, arrivals: &mut Vec<Arrival>) {
        if self.rest_until.is_some_and(|until| now < until) {
            return;
        }
        self.rest_until = None;
        while self.pending.len() < self.limits.pending {
            match socket::accept(self.listener.as_fd(), &self.options) {
                Ok(Some((fd, from))) => self.pending.push(Visitor::new(fd, from, self.protocol)),
                Ok(None) => return,
                Err(errno) => {
                    arrivals.push(Arrival::Trouble(errno.into()));
                    self.rest_until = Some(now + REST);
                    return;
                }
            }
        }
    }
}
