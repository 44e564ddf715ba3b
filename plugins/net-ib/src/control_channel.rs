//! The control channel: TCP that never blocks. The handshake of [`hawser_oob::handshake`], then control
//! messages, each in a frame of its own.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use hawser_oob::dial::{self, Offer};
use hawser_oob::frame::{FrameReader, Incoming, frame_bytes};
use hawser_oob::handle::ConnectInfo;
use hawser_oob::socket::{self, Address, Keepalive, Options, Origin};
use hawser_oob::stream::Stream;
use rustix::io::Errno;

use crate::handshake::{self, Block, PROTOCOL};
use crate::proto::wire::{MAX_MESSAGE, Message};

/// A stranger has this long to prove who it is, and so has a peer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// One address is dialled this long before the next one.
const DIAL: Duration = Duration::from_secs(3);
/// The pause after a dial that failed.
const PAUSE: Duration = Duration::from_millis(50);
/// The most control messages that are read at a time.
const MOST_MESSAGES: usize = 64;

/// The options of both ends of a control channel: a dead host is noticed within 11 s.
pub(crate) fn options() -> Options {
    let keepalive = Keepalive { idle: Duration::from_secs(5), interval: Duration::from_secs(2), count: 3 };
    Options { keepalive: Some(keepalive), ..Options::default() }
}

/// The way in which a control channel ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The peer's process has closed it, or is gone.
    Closed,
    /// The network gave up.
    Lost,
}

/// An authenticated connection.
pub(crate) struct ControlChannel {
    stream: Stream,
    reader: FrameReader<()>,
    /// Bytes that the socket has not taken yet.
    outbox: Vec<u8>,
    end: Option<End>,
    /// The address of the peer.
    pub peer: SocketAddr,
}

impl ControlChannel {
    /// A connection whose handshake is over.
    pub fn new(stream: Stream, peer: SocketAddr) -> Self {
        Self { stream, reader: FrameReader::new(MAX_MESSAGE), outbox: Vec::new(), end: None, peer }
    }

    /// Appends a message; [`ControlChannel::turn`] sends it.
    pub fn send(&mut self, message: &Message) {
        // No message is too long for a frame.
        self.outbox.extend(frame_bytes((), 0, &message.encode()).unwrap_or_default());
    }

    /// Moves bytes; returns the messages that arrived.
    ///
    /// # Errors
    /// The fault of a message, if it has one.
    pub fn turn(&mut self) -> Result<Vec<Message>, &'static str> {
        self.write();
        let mut messages = Vec::new();
        while self.end.is_none() && messages.len() < MOST_MESSAGES {
            match self.reader.advance(&self.stream) {
                Ok(Incoming::Frame(frame)) => messages.push(Message::decode(&frame.payload)?),
                Ok(Incoming::Nothing) => break,
                Ok(Incoming::Closed) => self.end = Some(End::Closed),
                Err(error) => match error.errno.map(Errno::from_raw_os_error) {
                    None => return Err("a control message that is too long"),
                    Some(Errno::CONNRESET | Errno::PIPE) => self.end = Some(End::Closed),
                    Some(_) => self.end = Some(End::Lost),
                },
            }
        }
        Ok(messages)
    }

    /// Hands the outbox to the kernel, as far as it takes it. What breaks here is noticed when reading.
    fn write(&mut self) {
        while !self.outbox.is_empty() && self.end.is_none() {
            match self.stream.write_some(&self.outbox, false) {
                Ok(0) | Err(_) => break,
                Ok(sent) => drop(self.outbox.drain(..sent)),
            }
        }
    }

    /// The way in which the connection ended, once it has.
    pub fn end(&self) -> Option<End> {
        self.end
    }

    /// Hands everything to the kernel and says that no more will come. True: the peer has ended the
    /// connection too.
    pub fn finish(&mut self) -> bool {
        if self.turn().is_err() {
            self.end = Some(End::Closed);
        }
        if self.outbox.is_empty() {
            socket::finish_writing(self.stream.as_fd());
        }
        self.end.is_some()
    }
}

/// The outcome of one turn of a [`Dial`].
pub(crate) enum Dialled {
    /// It goes on.
    Wait(Dial),
    /// There is a connection, and this is what the peer has.
    Connected(ControlChannel, Block),
    /// There will be none, for this reason.
    Failed(String),
}

/// The sender's way to the listener: its addresses in turn, until one works or the patience is over.
pub(crate) struct Dial {
    info: ConnectInfo,
    next: usize,
    until: Instant,
    /// The dial that is under way, its address, and when it began.
    current: Option<(dial::Dial, SocketAddr, Instant)>,
    resting_until: Instant,
    last: String,
}

impl Dial {
    /// A dial that begins with the first [`Dial::turn`].
    pub fn new(info: ConnectInfo, patience: Duration) -> Self {
        let now = Instant::now();
        let last = "nothing was tried".into();
        Self { info, next: 0, until: now + patience, current: None, resting_until: now, last }
    }

    /// Goes on without waiting. `own` is what this end has.
    pub fn turn(mut self, own: &Block) -> Dialled {
        let now = Instant::now();
        if now > self.until {
            let addresses = &self.info.addresses;
            let text = format!("no connection to the receiver at {addresses:?}: {}", self.last);
            return Dialled::Failed(text);
        }
        let (mut dial, to, since) = match self.current.take() {
            Some(current) => current,
            None if now < self.resting_until => return Dialled::Wait(self),
            None => {
                let to = self.info.addresses[self.next % self.info.addresses.len()];
                self.next += 1;
                match begin(&self.info, to, own) {
                    Ok(dial) => (dial, to, now),
                    Err(ended) => return self.rest(to, &ended.to_string()),
                }
            }
        };
        match dial.advance() {
            Ok(Some(welcome)) => match Block::decode(&welcome) {
                Ok(block) => Dialled::Connected(ControlChannel::new(dial.into_stream(), to), block),
                Err(text) => self.rest(to, text),
            },
            Err(ended) => self.rest(to, &ended.to_string()),
            Ok(None) if dial.is_connecting() && now > since + DIAL => self.rest(to, "no answer"),
            Ok(None) if now > since + DIAL + PATIENCE => self.rest(to, "the receiver says nothing"),
            Ok(None) => {
                self.current = Some((dial, to, since));
                Dialled::Wait(self)
            }
        }
    }

    fn rest(mut self, to: SocketAddr, why: &str) -> Dialled {
        self.last = format!("{to}: {why}");
        self.resting_until = Instant::now() + PAUSE;
        Dialled::Wait(self)
    }
}

fn begin(info: &ConnectInfo, to: SocketAddr, own: &Block) -> Result<dial::Dial, dial::Ended> {
    let (greeting, answer, key) = (info.listener.to_le_bytes(), own.encode(), handshake::key(&info.secret));
    let offer = Offer { protocol: PROTOCOL, key: &key, greeting: &greeting, answer: &answer };
    dial::Dial::begin(&Origin::default(), &Address::Tcp(to), &options(), &offer)
}
