//! The side connection: TCP that never blocks. The handshake of [`hello`], then control messages, each
//! with its length in front.

use std::io::{ErrorKind as Io, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};

use crate::hello::{self, BLOCK, Block, FIRST, SECOND, THIRD, Talk};
use crate::proto::wire::{MAX_MESSAGE, Message};

/// A stranger has this long to prove who it is, and so has a peer.
const PATIENCE: Duration = Duration::from_secs(10);
/// One address is dialled this long before the next one.
const DIAL: Duration = Duration::from_secs(3);
/// Pause after a refused dial.
const PAUSE: Duration = Duration::from_millis(50);

/// How a stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The peer's process has closed it, or is gone.
    Closed,
    /// The network gave up.
    Lost,
}

/// Bytes in both directions.
struct Stream {
    tcp: TcpStream,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    end: Option<End>,
}

impl Stream {
    fn new(tcp: TcpStream) -> std::io::Result<Self> {
        tcp.set_nonblocking(true)?;
        tcp.set_nodelay(true)?;
        let fd = tcp.as_fd();
        sockopt::set_socket_keepalive(fd, true)?;
        sockopt::set_tcp_keepidle(fd, Duration::from_secs(5))?;
        sockopt::set_tcp_keepintvl(fd, Duration::from_secs(2))?;
        sockopt::set_tcp_keepcnt(fd, 3)?;
        Ok(Self { tcp, inbox: Vec::new(), outbox: Vec::new(), end: None })
    }

    /// Reads and writes what there is.
    fn turn(&mut self) {
        while !self.outbox.is_empty() && self.end.is_none() {
            match self.tcp.write(&self.outbox) {
                Ok(0) => break,
                Ok(sent) => drop(self.outbox.drain(..sent)),
                Err(error) if error.kind() == Io::Interrupted => {}
                Err(error) if error.kind() == Io::WouldBlock => break,
                Err(_) => break,
            }
        }
        let mut bytes = [0; 4096];
        while self.end.is_none() && self.inbox.len() < 64 * MAX_MESSAGE {
            match self.tcp.read(&mut bytes) {
                Ok(0) => self.end = Some(End::Closed),
                Ok(got) => self.inbox.extend_from_slice(&bytes[..got]),
                Err(error) if error.kind() == Io::Interrupted => {}
                Err(error) if error.kind() == Io::WouldBlock => break,
                Err(error) => {
                    let closed = matches!(error.kind(), Io::ConnectionReset | Io::BrokenPipe);
                    self.end = Some(if closed { End::Closed } else { End::Lost });
                }
            }
        }
    }

    fn take(&mut self, bytes: usize) -> Option<Vec<u8>> {
        (self.inbox.len() >= bytes).then(|| self.inbox.drain(..bytes).collect())
    }
}

/// An authenticated connection.
pub(crate) struct Side {
    stream: Stream,
    pub peer: SocketAddr,
}

impl Side {
    pub fn send(&mut self, message: &Message) {
        let bytes = message.encode();
        self.stream.outbox.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
        self.stream.outbox.extend_from_slice(&bytes);
    }

    /// Moves bytes; returns the messages that arrived.
    ///
    /// # Errors
    /// What is wrong with a message.
    pub fn turn(&mut self) -> Result<Vec<Message>, &'static str> {
        self.stream.turn();
        let mut messages = Vec::new();
        while let Some(head) = self.stream.inbox.first_chunk::<2>() {
            let bytes = usize::from(u16::from_le_bytes(*head));
            if bytes > MAX_MESSAGE {
                return Err("a control message that is too long");
            }
            if self.stream.inbox.len() < 2 + bytes {
                break;
            }
            let message: Vec<u8> = self.stream.inbox.drain(..2 + bytes).skip(2).collect();
            messages.push(Message::decode(&message)?);
        }
        Ok(messages)
    }

    pub fn end(&self) -> Option<End> {
        self.stream.end
    }

    /// Everything was handed to the kernel; no more will be.
    pub fn finish(&mut self) -> bool {
        self.stream.turn();
        if !self.stream.outbox.is_empty() {
            return self.stream.end.is_some();
        }
        let _ = self.stream.tcp.shutdown(Shutdown::Write);
        self.stream.inbox.clear();
        self.stream.end.is_some()
    }
}

/// Something that came to the listener, and has not proved anything yet.
pub(crate) struct Guest {
    stream: Stream,
    pub from: SocketAddr,
    until: Instant,
    talk: Option<Talk>,
}

/// What became of a guest or a dial.
pub(crate) enum Visit<T> {
    Wait(T),
    Friend(Side, Block),
    Stranger(String),
}

impl Guest {
    pub fn new(tcp: TcpStream, from: SocketAddr) -> std::io::Result<Self> {
        let from = SocketAddr::new(from.ip().to_canonical(), from.port());
        Ok(Self { stream: Stream::new(tcp)?, from, until: Instant::now() + PATIENCE, talk: None })
    }

    pub fn turn(mut self, listener: u64, secret: [u8; 32], nonce: [u8; 32], own: &Block) -> Visit<Self> {
        self.stream.turn();
        let refuse = |text: &str| Visit::Stranger(text.to_owned());
        if self.talk.is_none()
            && let Some(bytes) = self.stream.take(FIRST)
        {
            let mut first = [0; FIRST];
            first.copy_from_slice(&bytes);
            if !hello::is_for(&first, listener) {
                return refuse("it does not speak this protocol, or to another listener");
            }
            let mut talk = Talk::new(secret, &first);
            self.stream.outbox = talk.say(2, &nonce);
            self.talk = Some(talk);
            self.stream.turn();
        }
        if let Some(talk) = &mut self.talk
            && let Some(bytes) = self.stream.inbox.get(..THIRD).map(<[u8]>::to_vec)
        {
            let block = talk.hear(3, &bytes).and_then(|tail| <[u8; BLOCK]>::try_from(tail).ok());
            let Some(block) = block else { return refuse("it does not know the secret") };
            self.stream.inbox.drain(..THIRD);
            return match Block::decode(&block) {
                Err(text) => refuse(text),
                Ok(block) => {
                    self.stream.outbox.extend(talk.say(4, &own.encode()));
                    self.stream.turn();
                    Visit::Friend(Side { stream: self.stream, peer: self.from }, block)
                }
            };
        }
        if self.stream.end.is_some() {
            return refuse("it left before it said who it is");
        }
        if Instant::now() > self.until { refuse("it said nothing in time") } else { Visit::Wait(self) }
    }
}

/// The sender's way to the listener.
pub(crate) struct Dial {
    addresses: Vec<SocketAddr>,
    next: usize,
    until: Instant,
    state: State,
    last: String,
}

enum State {
    Resting(Instant),
    Connecting(OwnedFd, Instant),
    Talking(Stream, Talk, bool, Instant),
}

impl Dial {
    pub fn new(addresses: Vec<SocketAddr>, patience: Duration) -> Self {
        let now = Instant::now();
        Self {
            addresses,
            next: 0,
            until: now + patience,
            state: State::Resting(now),
            last: "nothing was tried".into(),
        }
    }

    pub fn turn(mut self, listener: u64, secret: [u8; 32], nonce: [u8; 32], own: &Block) -> Visit<Self> {
        let now = Instant::now();
        if now > self.until {
            return Visit::Stranger(format!(
                "no connection to the receiver at {:?}: {}",
                self.addresses, self.last
            ));
        }
        let at = self.addresses[(self.next + self.addresses.len() - 1) % self.addresses.len()];
        self.state = match self.state {
            State::Resting(since) if now < since => State::Resting(since),
            State::Resting(_) => {
                let to = self.addresses[self.next % self.addresses.len()];
                self.next += 1;
                match begin(to) {
                    Ok(fd) => State::Connecting(fd, now + DIAL),
                    Err(errno) => rest(&mut self.last, now, format!("{to}: {errno}")),
                }
            }
            State::Connecting(fd, until) => match is_connected(&fd) {
                Ok(false) if now < until => State::Connecting(fd, until),
                Ok(false) => rest(&mut self.last, now, format!("{at}: no answer")),
                Err(errno) => rest(&mut self.last, now, format!("{at}: {errno}")),
                Ok(true) => match Stream::new(TcpStream::from(fd)) {
                    Err(error) => rest(&mut self.last, now, format!("{at}: {error}")),
                    Ok(mut stream) => {
                        let first = hello::first(listener, nonce);
                        stream.outbox.extend_from_slice(&first);
                        State::Talking(stream, Talk::new(secret, &first), false, now + PATIENCE)
                    }
                },
            },
            State::Talking(mut stream, mut talk, proved, until) => {
                stream.turn();
                let hello = hear(&mut stream, &mut talk, proved, own);
                match hello {
                    Ok(Some(block)) => return Visit::Friend(Side { stream, peer: at }, block),
                    Err(text) => rest(&mut self.last, now, format!("{at}: {text}")),
                    Ok(None) if stream.end.is_some() => {
                        rest(&mut self.last, now, format!("{at}: the receiver closed the connection"))
                    }
                    Ok(None) if now > until => {
                        rest(&mut self.last, now, format!("{at}: the receiver says nothing"))
                    }
                    Ok(None) => {
                        let proved = proved || talk.heard() > 0;
                        State::Talking(stream, talk, proved, until)
                    }
                }
            }
        };
        Visit::Wait(self)
    }
}

fn rest(last: &mut String, now: Instant, why: String) -> State {
    *last = why;
    State::Resting(now + PAUSE)
}

/// Steps 2 to 4 at the sender.
fn hear(
    stream: &mut Stream,
    talk: &mut Talk,
    proved: bool,
    own: &Block,
) -> Result<Option<Block>, &'static str> {
    if !proved {
        let Some(bytes) = stream.take(SECOND) else { return Ok(None) };
        talk.hear(2, &bytes).ok_or("it does not know the secret of its handle")?;
        stream.outbox.extend(talk.say(3, &own.encode()));
        stream.turn();
        return Ok(None);
    }
    let Some(bytes) = stream.take(THIRD) else { return Ok(None) };
    let tail = talk.hear(4, &bytes).and_then(|tail| <[u8; BLOCK]>::try_from(tail).ok());
    Block::decode(&tail.ok_or("its description is not proved")?).map(Some)
}

fn begin(to: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let fd = socket_with(family, SocketType::STREAM, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)?;
    match connect(&fd, &to) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(fd),
        Err(errno) => Err(errno),
    }
}

fn is_connected(fd: &OwnedFd) -> Result<bool, Errno> {
    let mut fds = [PollFd::new(fd, PollFlags::OUT)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    if poll(&mut fds, Some(&now))? == 0 {
        return Ok(false);
    }
    sockopt::socket_error(fd)?.map(|()| true)
}
