//! The listener's side: connections that come in, and what they have to prove before they count.
//!
//! [`Visitor`] drives one handshake; [`Acceptor`] has a listener and drives many at once. Neither ever
//! blocks: a stranger who says nothing, garbage or half a handshake costs a slot until the time limit, and
//! never delays the others.

use crate::foreign;
use crate::handshake::{Key, Protocol, Responder};
use crate::socket::{self, Caller, Moved, Options};
use crate::strangers::{self, Place};
use crate::stream::Stream;
use crate::wait;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Part of its grace for a visitor that has not said a word: who knows the secret speaks at once.
const SILENT: u32 = 50;

/// Of a crowd of silent visitors this part gives way at once: one at a time would take longer than others
/// need to come.
const SOME: usize = 4;

/// The most connections that are taken before those that are there are heard.
const AT_ONCE: usize = 256;

/// The time for which a listener rests when the process has no descriptors left.
pub const REST: Duration = Duration::from_millis(20);

/// A connection whose other end has not yet proved anything.
#[derive(Debug)]
pub struct Visitor {
    fd: OwnedFd,
    _place: Place,
    /// The address that the connection came from.
    pub from: Caller,
    /// The moment at which the connection was accepted.
    pub since: Instant,
    /// The moment since which the other end has said nothing, if it never said a word: not much later than
    /// that at which it connected, however long it waited to be accepted.
    silent_since: Instant,
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
    /// It has another key; the bytes that the greeting added, which nothing proves.
    WrongKey(Vec<u8>),
    /// It does not, for this reason.
    Stranger(String),
    /// It speaks another protocol, which is known.
    Foreign(&'static str),
}

/// The reason to drop a connection whose other end has another key.
pub const WRONG_KEY: &str = "it does not know the secret (wrong proof)";

/// The reason why a listener does not go on with a visitor after its greeting.
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
            stream: Stream::with_keys(self.fd, self.responder.session()),
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
    /// A connection that was just accepted, and its place in the budget of strangers.
    pub fn new(fd: OwnedFd, from: Caller, protocol: Protocol, place: Place) -> Self {
        let since = Instant::now();
        let (message, have, answered) = (Vec::new(), 0, None);
        Self { fd, _place: place, from, since, silent_since: since, protocol, message, have, answered }
    }

    /// Counts the time for which it waited to be accepted as silence. For one that was heard and had said
    /// nothing: the greeting of a friend who waited so long would have been there.
    fn has_waited(&mut self) {
        if self.is_silent()
            && self.from.0.is_some()
            && let Some(silence) = socket::silence(self.fd.as_fd())
        {
            self.silent_since = Instant::now().checked_sub(silence).unwrap_or(self.since);
        }
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
                Ok(Moved::Nothing) => {
                    self.has_waited();
                    return Step::Wait(self);
                }
                Ok(Moved::Closed) => return stranger("it left before its proof (does it know the secret?)"),
                Err(errno) => return Step::Stranger(std::io::Error::from(errno).to_string()),
            }
            // The first bytes already tell garbage from a slow friend.
            if self.answered.is_none() && !self.protocol.may_begin_with(&self.message[..self.have]) {
                return match foreign::protocol(&self.message[..self.have]) {
                    Some(protocol) => Step::Foreign(protocol),
                    None => stranger("it does not speak this protocol"),
                };
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
                return Step::WrongKey(greeting);
            };
            return Step::Proved(Proved { fd: self.fd, from: self.from, greeting, answer, responder });
        }
    }

    /// The moment until which it is safe from those that wait for its place.
    fn safe_until(&self, grace: Duration) -> Instant {
        if self.is_silent() { self.silent_since + grace / SILENT } else { self.since + grace }
    }

    fn is_silent(&self) -> bool {
        self.have == 0 && self.answered.is_none()
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

/// The visitor that gives way to one that waits, of those that are no longer safe: rather one that has not
/// said a word, then one of the address with the most visitors, then the oldest.
pub fn first_to_go<'a, K>(
    visitors: impl Iterator<Item = (K, &'a Visitor)>,
    now: Instant,
    grace: Duration,
) -> Option<K> {
    in_order_to_go(visitors, now, grace).into_iter().next()
}

/// The visitors that are no longer safe, in the order in which they give way.
fn in_order_to_go<'a, K>(
    visitors: impl Iterator<Item = (K, &'a Visitor)>,
    now: Instant,
    grace: Duration,
) -> Vec<K> {
    let all: Vec<(K, &Visitor)> = visitors.collect();
    let address = |visitor: &Visitor| visitor.from.0.map(|from| from.ip());
    let mut counts: BTreeMap<Option<IpAddr>, usize> = BTreeMap::new();
    for (_, visitor) in &all {
        *counts.entry(address(visitor)).or_default() += 1;
    }
    let worth = |visitor: &Visitor| {
        let crowd = counts.get(&address(visitor)).copied().unwrap_or_default();
        (!visitor.is_silent(), std::cmp::Reverse(crowd), visitor.since)
    };
    let mut unsafe_now: Vec<_> = all
        .into_iter()
        .filter(|(_, visitor)| now >= visitor.safe_until(grace))
        .map(|(key, visitor)| (worth(visitor), key))
        .collect();
    unsafe_now.sort_by_key(|(worth, _)| *worth);
    unsafe_now.into_iter().map(|(_, key)| key).collect()
}

/// Checks that a connection of this host comes from a process of this user, of root, or of a user that this
/// process's namespace has no number for. Connections of other hosts are not looked at.
///
/// # Errors
/// The text names the user that it comes from instead.
pub fn check_user(fd: BorrowedFd<'_>, from: Caller) -> Result<(), String> {
    /// Users of other namespaces are shown so (user_namespaces(7)).
    const UNMAPPED: u32 = 65_534;
    if from.0.is_some() {
        return Ok(());
    }
    let peer = rustix::net::sockopt::socket_peercred(fd).map_err(|errno| errno.to_string())?.uid.as_raw();
    if [rustix::process::geteuid().as_raw(), 0, UNMAPPED].contains(&peer) {
        return Ok(());
    }
    Err(format!("it is a process of user {peer}"))
}

/// The number of visitors that an [`Acceptor`] has at a time, and the time that they get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Handshakes in progress at most; beyond it, and where the process has no place left
    /// ([`strangers`]), one gives way ([`first_to_go`]).
    pub pending: usize,
    /// The time for which a handshake is safe from those that wait for its place; a part of it before its
    /// first byte.
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
    /// A connection that was dropped since it speaks another protocol, which is known.
    Foreign(Caller, &'static str),
    /// A connection that was dropped since its other end has another key, and what its greeting added.
    WrongKey(Caller, Vec<u8>),
    /// The listener cannot accept connections for a while; why, and what to do.
    Trouble(String),
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
    /// True if somebody has shut the listener down: nobody comes any more, though poll(2) says that it is
    /// ready.
    is_shut_down: bool,
}

impl Acceptor {
    /// Accepts what comes to `listener`.
    pub fn new(listener: OwnedFd, options: Options, protocol: Protocol, limits: Limits) -> Self {
        Acceptor {
            listener,
            options,
            protocol,
            limits,
            pending: Vec::new(),
            rest_until: None,
            is_shut_down: false,
        }
    }

    /// Adds everything this acceptor waits for.
    pub fn register<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        if self.rest_until.is_none() && !self.is_shut_down && self.has_room() {
            fds.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        fds.extend(self.pending.iter().map(|pending| PollFd::new(pending, PollFlags::IN)));
    }

    /// The moment at which [`Acceptor::advance`] must be called even if nothing happens.
    pub fn next_deadline(&self) -> Option<Instant> {
        let Limits { grace, patience, .. } = self.limits;
        let has_room = self.has_room();
        let limit = |visitor: &Visitor| {
            let end = visitor.since + patience;
            if has_room { end } else { end.min(visitor.safe_until(grace)) }
        };
        let first = self.pending.iter().map(limit).min();
        [first, self.rest_until].into_iter().flatten().min()
    }

    fn has_room(&self) -> bool {
        self.pending.len() < self.limits.pending && Place::take(self.pending.len()).is_some()
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
        // Who has spoken meanwhile is no longer silent when others want its place.
        self.hear(now, &mut admit, &mut welcome, &mut arrivals);
        self.accept_waiting(now, &mut admit, &mut welcome, &mut arrivals);
        arrivals
    }

    /// Hears those that have said something, and ends those that take too long.
    fn hear(
        &mut self,
        now: Instant,
        admit: &mut impl FnMut(&[u8]) -> Result<Key, Unwanted>,
        welcome: &mut impl FnMut(&Proved) -> Vec<u8>,
        arrivals: &mut Vec<Arrival>,
    ) {
        if self.pending.is_empty() {
            return;
        }
        // One question for all: most of a crowd has nothing to say.
        let mut fds: Vec<_> =
            self.pending.iter().map(|visitor| PollFd::new(visitor, PollFlags::IN)).collect();
        let is_known = wait::poll(&mut fds, Some(Duration::ZERO)).is_ok();
        let speaks: Vec<bool> = fds.iter().map(|fd| !is_known || !fd.revents().is_empty()).collect();
        for (visitor, speaks) in std::mem::take(&mut self.pending).into_iter().zip(speaks) {
            if speaks {
                self.hear_one(visitor, now, admit, welcome, arrivals);
            } else {
                self.keep(visitor, now, arrivals);
            }
        }
    }

    /// Hears one visitor, and keeps it if it has not said all.
    fn hear_one(
        &mut self,
        visitor: Visitor,
        now: Instant,
        admit: &mut impl FnMut(&[u8]) -> Result<Key, Unwanted>,
        welcome: &mut impl FnMut(&Proved) -> Vec<u8>,
        arrivals: &mut Vec<Arrival>,
    ) {
        let from = visitor.from;
        arrivals.push(match visitor.advance(&mut *admit) {
            Step::Wait(visitor) => return self.keep(visitor, now, arrivals),
            Step::Proved(proved) => {
                self.options.apply(proved.fd.as_fd());
                let body = welcome(&proved);
                match proved.welcome(&body) {
                    Some(accepted) => Arrival::Accepted(accepted),
                    None => Arrival::Stranger(from, "it takes no bytes".to_string()),
                }
            }
            Step::WrongKey(greeting) => Arrival::WrongKey(from, greeting),
            Step::Foreign(protocol) => Arrival::Foreign(from, protocol),
            Step::Stranger(why) => Arrival::Stranger(from, why),
        });
    }

    fn keep(&mut self, visitor: Visitor, now: Instant, arrivals: &mut Vec<Arrival>) {
        if now >= visitor.since + self.limits.patience {
            arrivals.push(Arrival::Stranger(visitor.from, "no proof within the time limit".to_string()));
        } else {
            self.pending.push(visitor);
        }
    }

    /// Lets one go, if one is no longer safe, or some of a crowd of silent ones; false if there is none.
    fn make_room(&mut self, now: Instant, grace: Duration, why: &str, arrivals: &mut Vec<Arrival>) -> bool {
        let mut going: Vec<usize> = in_order_to_go(self.pending.iter().enumerate(), now, grace);
        let silent = going.iter().take_while(|at| self.pending[**at].is_silent()).count();
        going.truncate((silent / SOME).max(1));
        going.sort_unstable();
        for at in going.iter().rev() {
            arrivals.push(Arrival::Stranger(self.pending.swap_remove(*at).from, why.into()));
        }
        !going.is_empty()
    }

    /// The events of the listener: none, that somebody waits, or that it has been shut down.
    fn state_of_listener(&self) -> PollFlags {
        let mut fds = [PollFd::new(&self.listener, PollFlags::IN)];
        let ready = wait::poll(&mut fds, Some(Duration::ZERO)).unwrap_or(0);
        if ready > 0 { fds[0].revents() } else { PollFlags::empty() }
    }

    /// Takes those that wait, and hears each at once: a friend that waited has said its greeting.
    fn accept_waiting(
        &mut self,
        now: Instant,
        admit: &mut impl FnMut(&[u8]) -> Result<Key, Unwanted>,
        welcome: &mut impl FnMut(&Proved) -> Vec<u8>,
        arrivals: &mut Vec<Arrival>,
    ) {
        if self.is_shut_down || self.rest_until.is_some_and(|until| now < until) {
            return;
        }
        self.rest_until = None;
        for _ in 0..AT_ONCE {
            // Asking is cheap; to accept nobody costs the kernel a socket.
            let state = self.state_of_listener();
            if state.contains(PollFlags::HUP) {
                self.is_shut_down = true;
                arrivals.push(Arrival::Trouble(strangers::remember_trouble(Errno::INVAL)));
                return;
            }
            if state.is_empty() {
                return;
            }
            let place =
                if self.pending.len() < self.limits.pending { Place::take(self.pending.len()) } else { None };
            let Some(place) = place else {
                let why = "too many handshakes at once";
                if self.make_room(now, self.limits.grace, why, arrivals) {
                    continue;
                }
                return;
            };
            match socket::accept(self.listener.as_fd()) {
                Ok(Some((fd, from))) => {
                    strangers::forget_trouble();
                    if let Err(why) = check_user(fd.as_fd(), from) {
                        arrivals.push(Arrival::Stranger(from, why));
                        continue;
                    }
                    let visitor = Visitor::new(fd, from, self.protocol, place);
                    self.hear_one(visitor, now, admit, welcome, arrivals);
                }
                Ok(None) => return,
                // The descriptors of strangers are the first to be given up.
                Err(Errno::MFILE | Errno::NFILE)
                    if self.make_room(now, Duration::ZERO, "no descriptors are left", arrivals) => {}
                Err(errno) => {
                    arrivals.push(Arrival::Trouble(strangers::remember_trouble(errno)));
                    self.rest_until = Some(now + REST);
                    return;
                }
            }
        }
    }
}
