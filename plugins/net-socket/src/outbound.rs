//! Sockets that go out: the handshake at the dialler's side.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::auth::{Answer, CHALLENGE, Challenge, HELLO, Hello, Proof, Refusal, Socket, WELCOME, Welcome};
use crate::sys::{self, Moved, Origin, Tuning};
use crate::tx::TxConn;

/// Connecting and the handshake take no longer; then the next path gets its turn.
const PATIENCE: Duration = Duration::from_secs(3);

/// A socket that is to be dialled.
pub(crate) struct Errand {
    pub connection: Weak<TxConn>,
    pub socket: Socket,
    pub at: Instant,
    /// Failures before this one.
    pub attempt: u32,
}

impl Errand {
    pub fn now(connection: &Arc<TxConn>, socket: Socket) -> Self {
        Self { connection: Arc::downgrade(connection), socket, at: Instant::now(), attempt: 0 }
    }

    /// The next try, if the connection wants one.
    pub fn again(self, ended: &Ended) -> Option<Self> {
        let pause = self.connection.upgrade()?.dial_failed(self.socket, self.attempt, ended)?;
        Some(Self { at: Instant::now() + pause, attempt: self.attempt + 1, ..self })
    }
}

/// Where and how to begin, as the connection says.
pub(crate) struct Start {
    pub origin: Origin,
    pub to: SocketAddr,
    pub hello: Hello,
    pub secret: [u8; 32],
    /// How far the listener's control stream is understood.
    pub answer: Answer,
}

/// How a dial ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The listener wants the socket and says how far it is and where it lives.
    Well { consumed: u64, addresses: Vec<SocketAddr> },
    /// The peer's host has no such socket.
    Refused,
    /// A listener answers, but does not want us.
    Unwanted(Refusal),
    /// Something answers that does not know the handle.
    Wrong,
    /// No path.
    Failed(String),
}

impl Ended {
    pub fn late() -> Self {
        Self::Failed(format!("no answer within {} s", PATIENCE.as_secs()))
    }

    fn of(errno: Errno) -> Self {
        match errno {
            Errno::CONNREFUSED => Self::Refused,
            errno => Self::Failed(std::io::Error::from(errno).to_string()),
        }
    }
}

enum Stage {
    Connecting,
    Greeted,
    Answered(Proof),
}

/// A socket on its way.
pub(crate) struct Dial {
    errand: Errand,
    start: Start,
    fd: OwnedFd,
    stage: Stage,
    bytes: [u8; WELCOME],
    have: usize,
    pub deadline: Instant,
}

impl Dial {
    /// Begins to connect. None: nobody wants the socket any more.
    pub fn begin(
        errand: Errand,
        tuning: &Tuning,
        watch: impl FnOnce(BorrowedFd<'_>) -> Result<(), Errno>,
    ) -> Result<Option<Self>, (Errand, Ended)> {
        let Some(connection) = errand.connection.upgrade() else { return Ok(None) };
        let Some(start) = connection.begin_dial(errand.socket, errand.attempt) else { return Ok(None) };
        let begun = sys::connect(&start.origin, start.to, tuning);
        let begun = begun.and_then(|fd| watch(fd.as_fd()).map(|()| fd));
        match begun {
            Ok(fd) => Ok(Some(Self {
                errand,
                start,
                fd,
                stage: Stage::Connecting,
                bytes: [0; WELCOME],
                have: 0,
                deadline: Instant::now() + PATIENCE,
            })),
            Err(errno) => Err((errand, Ended::of(errno))),
        }
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Goes on as far as possible without waiting. Some: the end.
    pub fn advance(&mut self) -> Option<Ended> {
        if let Stage::Connecting = self.stage {
            match sys::connected(self.fd()) {
                Ok(true) => {}
                Ok(false) => return None,
                Err(errno) => return Some(Ended::of(errno)),
            }
            if let Err(ended) = self.say(&self.start.hello.encode()) {
                return Some(ended);
            }
            self.stage = Stage::Greeted;
        }
        loop {
            let want = if let Stage::Answered(_) = self.stage { WELCOME } else { CHALLENGE };
            match sys::receive(self.fd.as_fd(), &mut self.bytes[self.have..want]) {
                Ok(Moved::Bytes(count)) => self.have += count,
                Ok(Moved::Nothing) => return None,
                Ok(Moved::Closed) => {
                    return Some(Ended::Failed("the peer hung up during the handshake".into()));
                }
                Err(errno) => return Some(Ended::of(errno)),
            }
            if self.have == want {
                self.have = 0;
                let ended = if let Stage::Answered(_) = self.stage { self.enter() } else { self.answer() };
                if ended.is_some() {
                    return ended;
                }
            }
        }
    }

    fn answer(&mut self) -> Option<Ended> {
        let hello: [u8; HELLO] = self.start.hello.encode();
        let challenge = self.bytes.first_chunk::<CHALLENGE>();
        let challenge = challenge.and_then(|bytes| Challenge::parse(bytes, self.start.secret, hello));
        let nonce = match challenge {
            None => return Some(Ended::Wrong),
            Some(Challenge::Refused(refusal)) => return Some(Ended::Unwanted(refusal)),
            Some(Challenge::Asked { nonce }) => nonce,
        };
        let proof = Proof::new(self.start.secret, hello, nonce);
        if let Err(ended) = self.say(&self.start.answer.encode(&proof)) {
            return Some(ended);
        }
        self.stage = Stage::Answered(proof);
        None
    }

    fn enter(&self) -> Option<Ended> {
        let Stage::Answered(proof) = &self.stage else { return None };
        Some(match Welcome::parse(&self.bytes, proof) {
            None => Ended::Wrong,
            Some(Welcome::Refused(refusal)) => Ended::Unwanted(refusal),
            Some(Welcome::Come { consumed, addresses }) => Ended::Well { consumed, addresses },
        })
    }

    /// The first bytes on a fresh socket always fit its buffer.
    fn say(&self, bytes: &[u8]) -> Result<(), Ended> {
        match sys::send(self.fd(), bytes) {
            Ok(Moved::Bytes(count)) if count == bytes.len() => Ok(()),
            Ok(_) => Err(Ended::Failed("the socket has no room for a handshake".into())),
            Err(errno) => Err(Ended::of(errno)),
        }
    }

    /// Gives the socket to its connection. Some: it did not come to that.
    pub fn finish(self, ended: Ended) -> Option<(Errand, Ended)> {
        let Ended::Well { consumed, addresses } = ended else { return Some((self.errand, ended)) };
        let connection = self.errand.connection.upgrade()?;
        let used = connection.dialled(self.fd, &self.start.hello, self.start.to, consumed, addresses);
        used.err().map(|reason| (self.errand, Ended::Failed(reason)))
    }
}
