//! The connector's way to a listener: connecting and the handshake, step by step or as one call that waits.

use crate::error::Error;
use crate::handshake::{Connector, Failure, Key, Protocol};
use crate::socket::{self, Address, Moved, Options, Origin};
use crate::stream::Stream;
use crate::wait::{self, Patience};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Everything that a connector brings to a handshake.
#[derive(Clone, Copy, Debug)]
pub struct Offer<'a> {
    /// The protocol of both ends.
    pub protocol: Protocol,
    /// The key that both ends prove to know.
    pub key: &'a Key,
    /// The bytes that the greeting adds; the listener sees it before anything is proved.
    pub greeting: &'a [u8],
    /// The bytes that the answer adds; the listener believes them.
    pub answer: &'a [u8],
}

/// The reason for the failure of a dial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// There is no connection, or no handshake, for a reason of the operating system's.
    Unreachable(Errno),
    /// The connection broke during the handshake.
    Broken(Errno),
    /// The peer closed the connection during the handshake.
    Closed,
    /// The listener is not who it should be, or does not want this connection.
    Handshake(Failure),
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ended::Unreachable(errno) => std::io::Error::from(*errno).fmt(f),
            Ended::Broken(errno) => write!(f, "the connection broke: {}", std::io::Error::from(*errno)),
            Ended::Closed => f.write_str("the peer closed the connection (its process ended or it gave up)"),
            Ended::Handshake(Failure::Foreign) => f.write_str("another program listens at that address"),
            Ended::Handshake(Failure::WrongSecret) => {
                f.write_str("the listener there belongs to another communicator (wrong secret)")
            }
            Ended::Handshake(Failure::Refused(code)) => write!(f, "the listener refuses (reason {code})"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Connecting,
    Greeted,
    Answered,
}

/// A connection on its way, which never blocks.
pub struct Dial {
    fd: OwnedFd,
    connector: Connector,
    answer: Vec<u8>,
    stage: Stage,
    /// The message that is being read: its first `have` bytes are there.
    message: Vec<u8>,
    have: usize,
    challenge_bytes: usize,
    welcome_bytes: usize,
}

impl Dial {
    /// Begins to connect.
    ///
    /// # Errors
    /// `Unreachable` for what fails at once.
    pub fn begin(origin: &Origin, to: &Address, options: &Options, offer: &Offer<'_>) -> Result<Self, Ended> {
        let nonce = socket::random().map_err(Ended::Unreachable)?;
        let fd = socket::begin_connect(origin, to, options).map_err(Ended::Unreachable)?;
        let Offer { protocol, key, greeting, answer } = *offer;
        Ok(Self {
            fd,
            connector: Connector::new(protocol, key, nonce, greeting),
            answer: answer.to_vec(),
            stage: Stage::Connecting,
            message: Vec::new(),
            have: 0,
            challenge_bytes: protocol.challenge_bytes(),
            welcome_bytes: protocol.welcome_bytes(),
        })
    }

    /// Tells whether nobody has answered at all.
    pub fn is_connecting(&self) -> bool {
        self.stage == Stage::Connecting
    }

    /// The events that the socket has to be polled for.
    pub fn events(&self) -> PollFlags {
        if self.is_connecting() { PollFlags::OUT } else { PollFlags::IN }
    }

    /// Goes on as far as possible without waiting. Returns what the welcome adds once the handshake is over.
    ///
    /// # Errors
    /// Why there will be no connection.
    pub fn advance(&mut self) -> Result<Option<Vec<u8>>, Ended> {
        if self.is_connecting() {
            if !socket::is_connected(self.as_fd()).map_err(Ended::Unreachable)? {
                return Ok(None);
            }
            self.say(self.connector.greeting())?;
            self.stage = Stage::Greeted;
        }
        if self.stage == Stage::Greeted {
            if !self.read(self.challenge_bytes)? {
                return Ok(None);
            }
            let answer = self.connector.answer(&self.message, &self.answer).inspect_err(|failure| {
                if *failure == Failure::WrongSecret {
                    // Whether it comes or not, there will be no connection.
                    let _ = self.say(&self.connector.complaint());
                }
            });
            self.say(&answer.map_err(Ended::Handshake)?)?;
            (self.stage, self.have) = (Stage::Answered, 0);
        }
        if !self.read(self.welcome_bytes)? {
            return Ok(None);
        }
        self.connector.welcomed(&self.message).map(|body| Some(body.to_vec())).map_err(Ended::Handshake)
    }

    /// The connection, once the handshake is over. It has the keys to be sealed, and is not.
    pub fn into_stream(self) -> Stream {
        match self.connector.session() {
            Some(keys) => Stream::with_keys(self.fd, keys.clone()),
            None => Stream::from(self.fd),
        }
    }

    /// Reads a message of `length` bytes and not one byte more; `false` if it is not whole yet.
    fn read(&mut self, length: usize) -> Result<bool, Ended> {
        self.message.resize(length, 0);
        while self.have < length {
            let into = &mut self.message[self.have..];
            match socket::receive(self.fd.as_fd(), into).map_err(Ended::Broken)? {
                Moved::Bytes(count) => self.have += count,
                Moved::Nothing => return Ok(false),
                Moved::Closed => return Err(Ended::Closed),
            }
        }
        Ok(true)
    }

    /// The first bytes on a fresh socket always fit its buffer.
    fn say(&self, bytes: &[u8]) -> Result<(), Ended> {
        match socket::send(self.fd.as_fd(), bytes).map_err(Ended::Broken)? {
            Moved::Bytes(count) if count == bytes.len() => Ok(()),
            _ => Err(Ended::Broken(Errno::NOBUFS)),
        }
    }
}

impl AsFd for Dial {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The rule by which a failed connection is tried again.
#[derive(Clone, Copy, Debug)]
pub struct Retry {
    /// The number of further tries after the first.
    pub count: u32,
    /// The pause before try n+1 is n times this.
    pub sleep: Duration,
    /// True if a refused connection may succeed later, because the listener may not exist yet.
    pub refused: bool,
    /// The advice for a user whose connection was refused.
    pub when_refused: &'static str,
    /// The advice for a user whose secret the listener does not have.
    pub when_strange: &'static str,
}

/// The pause after the first connection that a busy listener closed; then twice as long each time.
const BUSY: Duration = Duration::from_millis(5);

impl Retry {
    /// The pause after so many failed tries.
    fn pause(&self, tries: u32, ended: &Ended) -> Duration {
        let pause = self.sleep.saturating_mul(tries);
        match ended {
            Ended::Broken(_) | Ended::Closed => pause.min(BUSY.saturating_mul(1 << tries.min(16))),
            _ => pause,
        }
    }
}

/// The advice where ranks have their secret from a unique id.
pub const SAME_ID: &str = "check that all ranks got the same, fresh unique id";

/// Connects, proves the secret both ways, and returns the connection with what the welcome adds. Waits, and
/// tries again.
///
/// # Errors
/// `System` when the peer cannot be reached, `Usage` when it does not know the secret, `Peer` when it leaves,
/// or as [`Patience::check`].
pub fn connect<P: Patience>(
    to: &Address,
    offer: &Offer<'_>,
    retry: Retry,
    wait: &P,
    describe: &dyn Fn() -> String,
) -> Result<(Stream, Vec<u8>), P::Error> {
    let mut tries = 0;
    loop {
        let ended = match attempt(to, offer, wait, describe)? {
            Ok(done) => return Ok(done),
            Err(ended) => ended,
        };
        let error = explain(to, &ended, &retry, describe);
        if !may_pass(&ended, retry.refused) || tries >= retry.count {
            return Err(error.into());
        }
        tries += 1;
        let (since, pause) = (Instant::now(), retry.pause(tries, &ended));
        while since.elapsed() < pause {
            wait.check(&|| format!("{} ({error}; try {tries} of {})", describe(), retry.count))?;
            std::thread::sleep(wait.slice().min(pause.saturating_sub(since.elapsed())));
        }
    }
}

/// The time for which a connection may be unanswered before another one is begun beside it, the first time.
/// Where a listener's queue is full the kernel drops what comes, and asks again after 1, 3 and 7 seconds
/// only.
const UNANSWERED: Duration = Duration::from_millis(50);

/// The most connections that are begun beside each other.
const AT_ONCE: usize = 5;

/// The outcome of one try: the connection with its welcome, or why there is none.
type Attempt = Result<(Stream, Vec<u8>), Ended>;

/// One try: the connection or why there is none; an error ends all tries.
fn attempt<P: Patience>(
    to: &Address,
    offer: &Offer<'_>,
    wait: &P,
    describe: &dyn Fn() -> String,
) -> Result<Attempt, P::Error> {
    let begin = || Dial::begin(&Origin::default(), to, &Options::default(), offer);
    let mut dials = match begin() {
        Ok(dial) => vec![dial],
        Err(ended) => return Ok(Err(ended)),
    };
    let (mut next, mut pause) = (Instant::now() + UNANSWERED, UNANSWERED);
    loop {
        match advance_first(&mut dials) {
            Ok(Some(welcome)) => {
                let won = dials.pop().map(|dial| (dial.into_stream(), welcome));
                return Ok(won.ok_or(Ended::Closed));
            }
            Ok(None) => {}
            Err(ended) => return Ok(Err(ended)),
        }
        let is_unanswered = dials.iter().all(Dial::is_connecting);
        let now = Instant::now();
        if is_unanswered && now >= next && dials.len() < AT_ONCE {
            dials.extend(begin().ok());
            (next, pause) = (now + 2 * pause, 2 * pause);
        }
        let stage = if is_unanswered { "" } else { " (handshake)" };
        wait.check(&|| format!("{}{stage}", describe()))?;
        let mut fds: Vec<PollFd<'_>> = dials.iter().map(|dial| PollFd::new(dial, dial.events())).collect();
        wait::poll(&mut fds, Some(wait.slice()))?;
    }
}

/// Takes the next steps of connections to one place, the first of which that is answered counts: the others
/// are dropped before they have said a word. The one whose handshake is over is then the last.
///
/// # Errors
/// Why there will be no connection, if none is left.
fn advance_first(dials: &mut Vec<Dial>) -> Result<Option<Vec<u8>>, Ended> {
    let mut at = 0;
    while let Some(dial) = dials.get_mut(at) {
        let outcome = dial.advance();
        let is_answered = !dial.is_connecting();
        match outcome {
            Err(ended) if dials.len() == 1 => return Err(ended),
            Err(_) => drop(dials.remove(at)),
            Ok(welcome) if is_answered => {
                dials.swap(0, at);
                dials.truncate(1);
                return Ok(welcome);
            }
            Ok(_) => at += 1,
        }
    }
    Ok(None)
}

fn may_pass(ended: &Ended, refused: bool) -> bool {
    match ended {
        // Closed before the welcome: the listener went away or was too busy.
        Ended::Broken(_) | Ended::Closed => true,
        Ended::Handshake(_) => false,
        Ended::Unreachable(Errno::CONNREFUSED) => refused,
        Ended::Unreachable(errno) => matches!(
            *errno,
            Errno::TIMEDOUT | Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::CONNRESET | Errno::AGAIN
        ),
    }
}

fn explain(to: &Address, ended: &Ended, retry: &Retry, describe: &dyn Fn() -> String) -> Error {
    let Ended::Unreachable(errno) = *ended else {
        let text = format!("{}: {ended}", describe());
        return match ended {
            Ended::Handshake(_) => Error::usage(text).remedy(retry.when_strange),
            _ => Error::peer(text),
        };
    };
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
