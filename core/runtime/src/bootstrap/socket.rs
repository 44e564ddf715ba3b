//! Non-blocking stream sockets, TCP and abstract unix-domain, that wait through [`Wait`].
//!
//! Everything is close-on-exec, and every send carries MSG_NOSIGNAL: a peer that is gone is an error, never a SIGPIPE.

use super::wire::{Frame, HEADER, Header, Kind};
use crate::error::{Error, ErrorKind, Result};
use crate::wait::Wait;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// The random name of an abstract unix-domain socket.
pub(super) type Token = [u8; 16];

/// Connections the kernel keeps for us until we accept them (cut to net.core.somaxconn).
const BACKLOG: i32 = 4096;

/// The payload buffer of a frame grows by at most this much ahead of the bytes that really came.
const READ_STEP: usize = 256 << 10;

/// Where a listener is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Address {
    Tcp(SocketAddr),
    Unix(Token),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => address.fmt(f),
            Address::Unix(token) => write!(f, "@{}", unix_name(token)),
        }
    }
}

/// A connected stream, non-blocking.
pub(super) struct Stream {
    fd: OwnedFd,
}

/// What a read found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Input {
    Bytes(usize),
    Nothing,
    Closed,
}

/// Opens a TCP listener; port 0 lets the kernel choose. Returns the address it really has.
pub(super) fn listen_tcp(at: SocketAddr) -> std::result::Result<(OwnedFd, SocketAddr), Errno> {
    let fd = open(tcp_family(&at))?;
    if at.port() != 0 {
        // A fixed port (NCCL_COMM_ID) is used again at once by the next communicator.
        sockopt::set_socket_reuseaddr(&fd, true)?;
    }
    net::bind(&fd, &at)?;
    net::listen(&fd, BACKLOG)?;
    let bound = SocketAddr::try_from(net::getsockname(&fd)?)?;
    Ok((fd, bound))
}

/// Opens an abstract unix-domain listener; it vanishes with its descriptor.
pub(super) fn listen_unix(token: &Token) -> std::result::Result<OwnedFd, Errno> {
    let fd = open(AddressFamily::UNIX)?;
    net::bind(&fd, &unix_address(token)?)?;
    net::listen(&fd, BACKLOG)?;
    Ok(fd)
}

/// Takes one waiting connection, if there is one, and says in words where it came from.
pub(super) fn accept(listener: &OwnedFd) -> std::result::Result<Option<(Stream, String)>, Errno> {
    match net::acceptfrom_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
        Ok((fd, from)) => {
            let from = from.and_then(|address| SocketAddr::try_from(address).ok());
            if from.is_some() {
                tune(&fd);
            }
            let from =
                from.map_or_else(|| "a process of this host".to_string(), |address| address.to_string());
            Ok(Some((Stream { fd }, from)))
        }
        // The client was faster in leaving than we in accepting, or there is nobody.
        Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED | Errno::PROTO) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Why a connection did not come about.
pub(super) enum Refusal {
    /// The kernel says no; another try may help.
    Os(Errno),
    /// Abort or deadline.
    Gone(Error),
}

impl Stream {
    /// Connects; waits for the answer at most as long as `wait` allows.
    pub fn connect(
        to: &Address,
        wait: &Wait,
        describe: &dyn Fn() -> String,
    ) -> std::result::Result<Stream, Refusal> {
        let fd = match to {
            Address::Tcp(address) => open(tcp_family(address)),
            Address::Unix(_) => open(AddressFamily::UNIX),
        };
        let stream = Stream { fd: fd.map_err(Refusal::Os)? };
        let begun = match to {
            Address::Tcp(address) => {
                tune(&stream.fd);
                net::connect(&stream.fd, address)
            }
            Address::Unix(token) => {
                unix_address(token).and_then(|address| net::connect(&stream.fd, &address))
            }
        };
        match begun {
            Ok(()) => {}
            Err(Errno::INPROGRESS | Errno::INTR) => {
                stream.ready(PollFlags::OUT, wait, describe).map_err(Refusal::Gone)?;
            }
            Err(errno) => return Err(Refusal::Os(errno)),
        }
        match sockopt::socket_error(&stream.fd) {
            Ok(Ok(())) if stream.is_its_own_peer() => Err(Refusal::Os(Errno::CONNREFUSED)),
            Ok(Ok(())) => Ok(stream),
            Ok(Err(errno)) | Err(errno) => Err(Refusal::Os(errno)),
        }
    }

    /// Without a listener, a connection within one host can end at its own beginning if the kernel happens to choose
    /// the wanted port for it.
    fn is_its_own_peer(&self) -> bool {
        let end = |address| SocketAddr::try_from(address).ok();
        let own = net::getsockname(&self.fd).ok().and_then(end);
        own.is_some() && own == net::getpeername(&self.fd).ok().flatten().and_then(end)
    }

    /// Reads what is there.
    pub fn read_some(&self, into: &mut [u8]) -> std::result::Result<Input, Errno> {
        match net::recv(&self.fd, into, RecvFlags::empty()) {
            Ok((0, _)) => Ok(Input::Closed),
            Ok((count, _)) => Ok(Input::Bytes(count)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(Input::Nothing),
            Err(errno) => Err(errno),
        }
    }

    /// Whether the other end has closed the connection, and all that it sent was read.
    pub fn is_at_end(&self) -> bool {
        match net::recv(&self.fd, &mut [0; 1], RecvFlags::PEEK) {
            Ok((count, _)) => count == 0,
            Err(errno) => !matches!(errno, Errno::AGAIN | Errno::INTR),
        }
    }

    /// Writes what fits, possibly nothing. `more` says that further bytes follow at once.
    pub fn write_some(&self, bytes: &[u8], more: bool) -> std::result::Result<usize, Errno> {
        let more = if more { SendFlags::MORE } else { SendFlags::empty() };
        match net::send(&self.fd, bytes, SendFlags::NOSIGNAL | more) {
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            other => other,
        }
    }

    /// Fills `into`.
    pub fn read_exact(&self, into: &mut [u8], wait: &Wait, describe: &dyn Fn() -> String) -> Result<()> {
        let mut have = 0;
        while have < into.len() {
            match self.read_some(&mut into[have..]).map_err(|errno| broken(errno, describe))? {
                Input::Bytes(count) => have += count,
                Input::Nothing => self.ready(PollFlags::IN, wait, describe)?,
                Input::Closed => return Err(closed(describe)),
            }
        }
        Ok(())
    }

    /// Writes all of `bytes`.
    pub fn write_all(
        &self,
        bytes: &[u8],
        more: bool,
        wait: &Wait,
        describe: &dyn Fn() -> String,
    ) -> Result<()> {
        let mut sent = 0;
        while sent < bytes.len() {
            match self.write_some(&bytes[sent..], more).map_err(|errno| broken(errno, describe))? {
                0 => self.ready(PollFlags::OUT, wait, describe)?,
                count => sent += count,
            }
        }
        Ok(())
    }

    /// Writes one frame.
    pub fn write_frame(
        &self,
        kind: Kind,
        tag: u64,
        payload: &[u8],
        wait: &Wait,
        describe: &dyn Fn() -> String,
    ) -> Result<()> {
        let header = Header { kind, tag, len: payload.len() }.encode()?;
        self.write_all(&header, !payload.is_empty(), wait, describe)?;
        self.write_all(payload, false, wait, describe)
    }

    /// Reads one frame of at most `limit` payload bytes.
    pub fn read_frame(&self, limit: usize, wait: &Wait, describe: &dyn Fn() -> String) -> Result<Frame> {
        let mut reader = FrameReader::new(limit);
        loop {
            match reader.advance(self).map_err(|error| error.context(describe()))? {
                Incoming::Frame(frame) => return Ok(frame),
                Incoming::Nothing => self.ready(PollFlags::IN, wait, describe)?,
                Incoming::Closed => return Err(closed(describe)),
            }
        }
    }

    /// Blocks until the socket is ready for `flags` (or has an error to report).
    pub fn ready(&self, flags: PollFlags, wait: &Wait, describe: &dyn Fn() -> String) -> Result<()> {
        loop {
            wait.check(describe)?;
            if poll(&mut [PollFd::new(&self.fd, flags)], Some(wait.slice()))? > 0 {
                return Ok(());
            }
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Collects one frame after the other from a stream, over as many reads as it takes.
pub(super) struct FrameReader {
    limit: usize,
    header: [u8; HEADER],
    have: usize,
    open: Option<(Header, Vec<u8>)>,
}

/// What a [`FrameReader`] found.
pub(super) enum Incoming {
    Frame(Frame),
    Nothing,
    Closed,
}

impl FrameReader {
    /// A reader that refuses frames with more than `limit` payload bytes.
    pub fn new(limit: usize) -> Self {
        FrameReader { limit, header: [0; HEADER], have: 0, open: None }
    }

    /// Reads without blocking until a frame is whole or nothing is left.
    ///
    /// # Errors
    /// A malformed header or a broken connection; the stream is useless afterwards.
    pub fn advance(&mut self, stream: &Stream) -> Result<Incoming> {
        let read_error = |errno| Error::system("reading from a bootstrap connection", errno);
        loop {
            let Some((header, payload)) = &mut self.open else {
                match stream.read_some(&mut self.header[self.have..]).map_err(read_error)? {
                    Input::Bytes(count) => self.have += count,
                    Input::Nothing => return Ok(Incoming::Nothing),
                    Input::Closed => return Ok(Incoming::Closed),
                }
                if self.have == HEADER {
                    self.have = 0;
                    self.open = Some((Header::parse(&self.header, self.limit)?, Vec::new()));
                }
                continue;
            };
            if payload.len() == header.len {
                let frame = Frame { kind: header.kind, tag: header.tag, payload: std::mem::take(payload) };
                self.open = None;
                return Ok(Incoming::Frame(frame));
            }
            let old = payload.len();
            payload.resize(header.len.min(old + READ_STEP), 0);
            let input = stream.read_some(&mut payload[old..]);
            payload.truncate(old + if let Ok(Input::Bytes(count)) = input { count } else { 0 });
            match input.map_err(read_error)? {
                Input::Bytes(_) => {}
                Input::Nothing => return Ok(Incoming::Nothing),
                Input::Closed => return Ok(Incoming::Closed),
            }
        }
    }
}

/// poll(2); an interrupted call counts as a timeout. Returns the number of ready descriptors.
pub(super) fn poll(fds: &mut [PollFd<'_>], timeout: Option<Duration>) -> Result<usize> {
    let timeout = timeout.map(|limit| Timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    });
    match rustix::event::poll(fds, timeout.as_ref()) {
        Ok(count) => Ok(count),
        Err(Errno::INTR) => Ok(0),
        Err(errno) => Err(Error::system("poll", errno)),
    }
}

/// Random bytes from the kernel.
pub(super) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut have = 0;
    while have < N {
        match rustix::rand::getrandom(&mut bytes[have..], rustix::rand::GetRandomFlags::empty()) {
            Ok(count) => have += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(Error::system("getrandom", errno)),
        }
    }
    Ok(bytes)
}

fn open(family: AddressFamily) -> std::result::Result<OwnedFd, Errno> {
    net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
}

/// Small frames leave at once, and dead hosts are noticed. Failures only cost speed.
fn tune(fd: &OwnedFd) {
    let _ = sockopt::set_tcp_nodelay(fd, true);
    let _ = sockopt::set_socket_keepalive(fd, true);
}

fn tcp_family(address: &SocketAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

fn unix_name(token: &Token) -> String {
    let digits: String = token.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("hawser-{digits}")
}

fn unix_address(token: &Token) -> std::result::Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new_abstract_name(unix_name(token).as_bytes())
}

fn broken(errno: Errno, describe: &dyn Fn() -> String) -> Error {
    let reason = std::io::Error::from(errno);
    Error::new(ErrorKind::Remote, format!("{}: the connection broke: {reason}", describe()))
}

fn closed(describe: &dyn Fn() -> String) -> Error {
    let text = format!("{}: the peer closed the connection (its process ended or it gave up)", describe());
    Error::new(ErrorKind::Remote, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait::AbortFlag;
    use std::net::{IpAddr, Ipv4Addr};

    fn pair() -> (Stream, Stream) {
        let (listener, address) = listen_tcp(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0)).unwrap();
        let wait = Wait::new(AbortFlag::new(), Some(Duration::from_secs(20)));
        let near = Stream::connect(&Address::Tcp(address), &wait, &|| "test".into()).ok().unwrap();
        let far = wait.until(|| accept(&listener).unwrap(), || "accept").unwrap().0;
        (near, far)
    }

    #[test]
    fn a_long_length_is_refused_before_the_payload() {
        let (near, far) = pair();
        let wait = Wait::new(AbortFlag::new(), Some(Duration::from_secs(20)));
        near.write_frame(Kind::Message, 1, &[7; 101], &wait, &|| "test".into()).unwrap();
        let error = far.read_frame(100, &wait, &|| "test".into()).unwrap_err();
        assert!(error.text.contains("101"), "{error}");
    }

    #[test]
    fn large_frames_pass_and_a_closed_peer_is_no_signal() {
        let (near, far) = pair();
        let wait = Wait::new(AbortFlag::new(), Some(Duration::from_secs(20)));
        let payload: Vec<u8> = (0..3_000_000u32).map(|i| i as u8).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| near.write_frame(Kind::Message, 9, &payload, &wait, &|| "test".into()).unwrap());
            let frame = far.read_frame(payload.len(), &wait, &|| "test".into()).unwrap();
            assert!(frame.payload == payload && frame.tag == 9);
        });
        drop(far);
        let failed =
            (0..1000).find_map(|_| near.write_all(&[0; 4096], false, &wait, &|| "rank 1".into()).err());
        assert_eq!(failed.unwrap().kind, ErrorKind::Remote);
    }
}
