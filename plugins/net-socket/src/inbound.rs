//! Sockets that come in: the listeners of a context, and the handshake at their side.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use hawser_oob::accept::{Proved, Step, Unwanted, Visitor, WRONG_KEY, send_whole};
use hawser_oob::foreign;
use hawser_oob::socket::Caller;
use rustc_hash::FxHashMap;

use crate::greeting::{self, Answer, Hello, Refusal, Socket};
use crate::pool::lock;
use crate::rx::RxConn;
use crate::shared::Shared;

/// A handshake takes no longer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// All listeners of a context.
#[derive(Default)]
pub(crate) struct Registry(Mutex<FxHashMap<u64, Arc<Listening>>>);

impl Registry {
    /// Lets sockets for this listener in.
    pub fn add(&self, listening: Arc<Listening>) {
        lock(&self.0).insert(listening.number, listening);
    }

    /// Forgets a listener.
    pub fn remove(&self, number: u64) {
        let gone = lock(&self.0).remove(&number);
        drop(gone); // not while the lock is held: it may hold a connection
    }

    fn find(&self, number: u64) -> Option<Arc<Listening>> {
        lock(&self.0).get(&number).cloned()
    }
}

/// A handle that was given out. Stays until the connection that came of it is gone: lost sockets are dialled
/// again.
pub(crate) struct Listening {
    /// The random number of the listener, which its handle carries.
    pub number: u64,
    /// The secret of its handle.
    pub secret: [u8; 32],
    /// The addresses at which this listener can be reached.
    pub addresses: Vec<SocketAddr>,
    /// The state that all connections of the context share.
    pub shared: Arc<Shared>,
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
    pub fn new(number: u64, secret: [u8; 32], addresses: Vec<SocketAddr>, shared: Arc<Shared>) -> Self {
        Self { number, secret, addresses, shared, state: Mutex::default() }
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
            None => self.shared.service.registry.remove(self.number),
        }
    }

    /// The connection that a socket belongs to; the first one makes it.
    fn connection(self: &Arc<Self>, hello: &Hello, from: Caller) -> Result<Arc<RxConn>, Refusal> {
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

    /// Checks that a socket with this greeting could be welcome.
    fn may_come(&self, hello: &Hello) -> Result<(), Refusal> {
        let state = lock(&self.state);
        match &state.connection {
            Some((number, _)) if *number != hello.connection => Err(Refusal::Taken),
            _ if hello.wire != self.shared.settings.wire => Err(Refusal::OtherWire),
            _ => Ok(()),
        }
    }
}

/// The outcome of one look at a socket whose other end had not proved anything.
pub(crate) enum Visit {
    /// It still has not; to be asked again after the next event.
    Wait(Visitor),
    /// It knows the secret.
    Friend(Friend),
    /// It does not, for this reason.
    Stranger(String),
}

/// Goes on with a handshake as far as possible without waiting.
pub(crate) fn advance(visitor: Visitor, registry: &Registry) -> Visit {
    let proved = match visitor.advance(|greeting| Ok(greeting::key(&find(greeting, registry)?.1.secret))) {
        Step::Wait(visitor) => return Visit::Wait(visitor),
        Step::Stranger(why) => return Visit::Stranger(why),
        Step::Foreign(protocol) => return Visit::Stranger(foreign::reason(protocol)),
        Step::WrongKey(_) => return Visit::Stranger(WRONG_KEY.into()),
        Step::Proved(proved) => proved,
    };
    let Some(answer) = Answer::parse(&proved.answer) else {
        return Visit::Stranger("it does not speak this protocol".into());
    };
    match find(&proved.greeting, registry) {
        Ok((hello, listening)) => Visit::Friend(Friend { proved, hello, listening, answer }),
        Err(unwanted) => {
            if let Some(code) = unwanted.code {
                send_whole(proved.fd.as_fd(), &proved.responder.refuse(code));
            }
            Visit::Stranger(unwanted.why)
        }
    }
}

/// The listener that a greeting is for, if that may want the socket.
fn find(greeting: &[u8], registry: &Registry) -> Result<(Hello, Arc<Listening>), Unwanted> {
    let Some(hello) = Hello::parse(greeting) else {
        return Err(Unwanted { code: None, why: "it does not speak this protocol".into() });
    };
    let found = registry.find(hello.listener).ok_or(Refusal::Unknown);
    let found = found.and_then(|listening| listening.may_come(&hello).map(|()| listening));
    let listening = found.map_err(|refusal| {
        let why = match refusal {
            Refusal::Taken => "its handle is already in use",
            Refusal::OtherWire => "its end has another protection (HAWSER_WIRE)",
            _ => "its handle is none of ours (any more)",
        };
        Unwanted { code: Some(refusal.code()), why: why.into() }
    })?;
    Ok((hello, listening))
}

/// A socket that proved to belong to a handle's sender.
pub(crate) struct Friend {
    proved: Proved,
    hello: Hello,
    listening: Arc<Listening>,
    answer: Answer,
}

impl Friend {
    /// The socket.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.proved.fd.as_fd()
    }

    /// Gives the socket to its connection.
    pub fn come_in(self) {
        let Proved { fd, from, responder, .. } = self.proved;
        match self.listening.connection(&self.hello, from) {
            Ok(connection) => connection.admit(fd, &self.hello, &responder, self.answer, &self.listening),
            Err(refusal) => {
                send_whole(fd.as_fd(), &responder.refuse(refusal.code()));
            }
        }
    }
}
