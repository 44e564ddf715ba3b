//! Sockets that go out: the handshake at the dialler's side.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use hawser_oob::dial::{self, Offer};
use hawser_oob::handshake::{Failure, Key};
use hawser_oob::socket::{Address, Options, Origin};
use rustix::io::Errno;

use crate::greeting::{Answer, Hello, PROTOCOL, Refusal, Socket, Welcome};
use crate::tx::TxConn;

/// Connecting and the handshake take no longer; then the next path gets its turn.
const PATIENCE: Duration = Duration::from_secs(3);

/// A socket that is to be dialled.
pub(crate) struct Errand {
    /// The connection that wants the socket.
    pub connection: Weak<TxConn>,
    /// The name of the socket within the connection.
    pub socket: Socket,
    /// The moment at which to dial.
    pub at: Instant,
    /// Failures before this one.
    pub attempt: u32,
}

impl Errand {
    /// A dial that begins at once.
    pub fn now(connection: &Arc<TxConn>, socket: Socket) -> Self {
        Self { connection: Arc::downgrade(connection), socket, at: Instant::now(), attempt: 0 }
    }

    /// The next try, if the connection wants one.
    pub fn again(self, ended: &Ended) -> Option<Self> {
        let pause = self.connection.upgrade()?.dial_failed(self.socket, self.attempt, ended)?;
        Some(Self { at: Instant::now() + pause, attempt: self.attempt + 1, ..self })
    }
}

/// The beginning of a dial, as the connection wants it.
pub(crate) struct Start {
    /// The place on this host that the connection starts from.
    pub origin: Origin,
    /// The address to dial.
    pub to: SocketAddr,
    /// The words of the greeting.
    pub hello: Hello,
    /// The key that both ends prove to know.
    pub key: Key,
    /// The number of bytes of the listener's control stream that were understood.
    pub answer: Answer,
}

/// The way in which a dial ended.
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
    /// The dial took too long.
    pub fn late() -> Self {
        Self::Failed(format!("no answer within {} s", PATIENCE.as_secs()))
    }

    fn of(ended: &dial::Ended) -> Self {
        match ended {
            dial::Ended::Unreachable(Errno::CONNREFUSED) => Self::Refused,
            dial::Ended::Handshake(Failure::Refused(code)) => {
                Refusal::parse(*code).map_or(Self::Wrong, Self::Unwanted)
            }
            dial::Ended::Handshake(_) => Self::Wrong,
            ended => Self::Failed(ended.to_string()),
        }
    }
}

/// A socket on its way.
pub(crate) struct Dial {
    errand: Errand,
    hello: Hello,
    to: SocketAddr,
    inner: dial::Dial,
    /// The moment at which the dial counts as failed.
    pub deadline: Instant,
}

impl Dial {
    /// Begins to connect. None: nobody wants the socket any more.
    pub fn begin(
        errand: Errand,
        options: &Options,
        watch: impl FnOnce(BorrowedFd<'_>) -> Result<(), Errno>,
    ) -> Result<Option<Self>, (Errand, Ended)> {
        let Some(connection) = errand.connection.upgrade() else { return Ok(None) };
        let Some(start) = connection.begin_dial(errand.socket, errand.attempt) else { return Ok(None) };
        let Start { origin, to, hello, key, answer } = start;
        let (greeting, answer) = (hello.encode(), answer.encode());
        let offer = Offer { protocol: PROTOCOL, key: &key, greeting: &greeting, answer: &answer };
        let begun = dial::Dial::begin(&origin, &Address::Tcp(to), options, &offer);
        let begun =
            begun.and_then(|dial| watch(dial.as_fd()).map(|()| dial).map_err(dial::Ended::Unreachable));
        match begun {
            Ok(inner) => Ok(Some(Self { errand, hello, to, inner, deadline: Instant::now() + PATIENCE })),
            Err(ended) => Err((errand, Ended::of(&ended))),
        }
    }

    /// The socket.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }

    /// Goes on as far as possible without waiting. Some: the end.
    pub fn advance(&mut self) -> Option<Ended> {
        Some(match self.inner.advance() {
            Ok(None) => return None,
            Ok(Some(welcome)) => match Welcome::parse(&welcome) {
                Some(Welcome { consumed, addresses }) => Ended::Well { consumed, addresses },
                None => Ended::Wrong,
            },
            Err(ended) => Ended::of(&ended),
        })
    }

    /// Gives the socket to its connection. Some: it did not come to that.
    pub fn finish(self, ended: Ended) -> Option<(Errand, Ended)> {
        let Ended::Well { consumed, addresses } = ended else { return Some((self.errand, ended)) };
        let connection = self.errand.connection.upgrade()?;
        let used = connection.dialled(
            self.inner.into_stream().into_parts(),
            &self.hello,
            self.to,
            consumed,
            addresses,
        );
        used.err().map(|reason| (self.errand, Ended::Failed(reason)))
    }
}
