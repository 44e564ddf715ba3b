//! Sockets that come in: the listeners of a context, and the handshake at their side.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use crate::auth::{ANSWER, Answer, Challenge, HELLO, Hello, Proof, Refusal, Socket};
use crate::pool::lock;
use crate::rx::RxConn;
use crate::shop::Shop;
use crate::sys::{self, Moved};

/// A handshake takes no longer.
const PATIENCE: Duration = Duration::from_secs(10);

/// All listeners of a context.
#[derive(Default)]
pub(crate) struct Registry(Mutex<FxHashMap<u64, Arc<Listening>>>);

impl Registry {
    pub fn add(&self, listening: Arc<Listening>) {
        lock(&self.0).insert(listening.number, listening);
    }

    pub fn remove(&self, number: u64) {
        let gone = lock(&self.0).remove(&number);
        drop(gone); // not while the lock is held: it may hold a connection
    }

    fn find(&self, number: u64) -> Option<Arc<Listening>> {
        lock(&self.0).get(&number).cloned()
    }
}

/// A handle that was given out. Stays until the connection that came of it is gone: lost sockets are dialled again.
pub(crate) struct Listening {
    pub number: u64,
    pub secret: [u8; 32],
    /// Where we can be reached.
    pub addresses: Vec<SocketAddr>,
    pub shop: Arc<Shop>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Number of the connection that came, and the connection.
    connection: Option<(u64, Weak<RxConn>)>,
    /// The connection until the host has it.
    ready: Option<Arc<RxConn>>,
    /// The host waits no longer.
    is_closed: bool,
}

impl Listening {
    pub fn new(number: u64, secret: [u8; 32], addresses: Vec<SocketAddr>, shop: Arc<Shop>) -> Self {
        Self { number, secret, addresses, shop, state: Mutex::default() }
    }

    /// The connection, once.
    pub fn take(&self) -> Option<Arc<RxConn>> {
        lock(&self.state).ready.take()
    }

    /// The host waits no longer: who comes now is refused. Closes a connection that nobody took.
    pub fn close(&self) {
        let mut state = lock(&self.state);
        state.is_closed = true;
        let (ready, was_taken) = (state.ready.take(), state.connection.is_some());
        drop(state);
        match ready {
            Some(connection) => connection.close(),
            None if was_taken => {}
            None => self.shop.service.registry.remove(self.number),
        }
    }

    /// The connection that a socket belongs to; the first one makes it.
    fn connection(self: &Arc<Self>, hello: &Hello, from: &str) -> Result<Arc<RxConn>, Refusal> {
        let mut state = lock(&self.state);
        match &state.connection {
            Some((number, _)) if *number != hello.connection => Err(Refusal::Taken),
            Some((_, connection)) => connection.upgrade().ok_or(Refusal::Unknown),
            None if state.is_closed => Err(Refusal::Unknown),
            None if hello.socket != Socket::Control => Err(Refusal::Stale),
            None => {
                let connection = RxConn::new(self.clone(), usize::from(hello.pipes), from);
                state.connection = Some((hello.connection, Arc::downgrade(&connection)));
                state.ready = Some(connection.clone());
                Ok(connection)
            }
        }
    }

    /// Whether a socket with this greeting could be welcome.
    fn may_come(&self, hello: &Hello) -> Result<(), Refusal> {
        let state = lock(&self.state);
        match &state.connection {
            Some((number, _)) if *number != hello.connection => Err(Refusal::Taken),
            _ => Ok(()),
        }
    }
}

/// A socket whose other end has not yet proved anything.
pub(crate) struct Guest {
    fd: Option<OwnedFd>,
    pub from: String,
    pub deadline: Instant,
    bytes: [u8; HELLO],
    have: usize,
    greeted: Option<(Hello, Arc<Listening>, Proof)>,
}

/// What became of a [`Guest`].
pub(crate) enum Visit {
    /// The next event.
    Wait,
    /// It knows the secret.
    Friend(Box<Friend>),
    /// It does not.
    Stranger(&'static str),
}

impl Guest {
    pub fn new(fd: OwnedFd, from: String) -> Self {
        let deadline = Instant::now() + PATIENCE;
        Self { fd: Some(fd), from, deadline, bytes: [0; HELLO], have: 0, greeted: None }
    }

    /// Goes on as far as possible without waiting.
    pub fn advance(&mut self, registry: &Registry) -> Visit {
        loop {
            let want = if self.greeted.is_some() { ANSWER } else { HELLO };
            let Some(fd) = &self.fd else { return Visit::Stranger("it is gone") };
            match sys::receive(fd.as_fd(), &mut self.bytes[self.have..want]) {
                Ok(Moved::Bytes(count)) => self.have += count,
                Ok(Moved::Nothing) => return Visit::Wait,
                Ok(Moved::Closed) => return Visit::Stranger("it left during the handshake"),
                Err(_) => return Visit::Stranger("its socket broke during the handshake"),
            }
            if self.have < want {
                continue;
            }
            self.have = 0;
            let step = if self.greeted.is_some() { self.check_answer() } else { self.greet(registry) };
            if let Some(visit) = step {
                return visit;
            }
        }
    }

    fn greet(&mut self, registry: &Registry) -> Option<Visit> {
        let Some(hello) = Hello::parse(&self.bytes) else {
            return Some(Visit::Stranger("it does not speak this protocol"));
        };
        let found = registry.find(hello.listener).ok_or(Refusal::Unknown);
        let found = found.and_then(|listening| listening.may_come(&hello).map(|()| listening));
        let listening = match found {
            Ok(listening) => listening,
            Err(refusal) => {
                self.say(&Challenge::refuse(refusal));
                return Some(Visit::Stranger(match refusal {
                    Refusal::Taken => "its handle is already in use",
                    _ => "its handle is none of ours (any more)",
                }));
            }
        };
        let Ok(nonce) = sys::random() else { return Some(Visit::Stranger("the kernel has no random bytes")) };
        let proof = Proof::new(listening.secret, self.bytes, nonce);
        if !self.say(&Challenge::ask(&proof)) {
            return Some(Visit::Stranger("it left during the handshake"));
        }
        self.greeted = Some((hello, listening, proof));
        None
    }

    fn check_answer(&mut self) -> Option<Visit> {
        let (hello, listening, proof) = self.greeted.take()?;
        let answer = self.bytes.first_chunk::<ANSWER>().and_then(|bytes| Answer::parse(bytes, &proof));
        let Some(answer) = answer else {
            return Some(Visit::Stranger("it does not know the secret of the handle"));
        };
        let fd = self.fd.take()?;
        let from = self.from.clone();
        Some(Visit::Friend(Box::new(Friend { fd, from, hello, listening, proof, answer })))
    }

    /// The first bytes on a fresh socket always fit its buffer.
    fn say(&self, bytes: &[u8]) -> bool {
        let sent = self.fd.as_ref().map(|fd| sys::send(fd.as_fd(), bytes));
        sent == Some(Ok(Moved::Bytes(bytes.len())))
    }
}

/// A socket that proved to belong to a handle's sender.
pub(crate) struct Friend {
    fd: OwnedFd,
    from: String,
    hello: Hello,
    listening: Arc<Listening>,
    proof: Proof,
    answer: Answer,
}

impl Friend {
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Gives the socket to its connection.
    pub fn come_in(self) {
        let refusal = match self.listening.connection(&self.hello, &self.from) {
            Ok(connection) => {
                return connection.admit(self.fd, &self.hello, &self.proof, self.answer, &self.listening);
            }
            Err(refusal) => refusal,
        };
        let welcome = crate::auth::Welcome::Refused(refusal).encode(&self.proof);
        let _ = sys::send(self.fd.as_fd(), &welcome);
    }
}
