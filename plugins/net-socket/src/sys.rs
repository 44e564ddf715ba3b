//! The kernel's side: sockets that never block and never raise a signal.

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, sockopt};

use crate::config::Settings;

/// Connections that the kernel keeps for us until we accept them (cut to net.core.somaxconn).
const BACKLOG: i32 = 4096;
/// An idle socket asks its peer after 10 s, three times every 5 s.
const KEEPALIVE: (u64, u64, u32) = (10, 5, 3);

/// Bytes that a data socket holds and has not put on the network, about.
const MOST_UNSENT: usize = 512 << 10;

/// What a transfer did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moved {
    /// At least one byte.
    Bytes(usize),
    /// The socket has no room or no data now.
    Nothing,
    /// The peer has closed its end (reading only).
    Closed,
}

/// A piece of somebody's memory, by address: the kernel reads or writes it, we never look.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    pub addr: u64,
    pub len: usize,
}

impl Span {
    pub fn of(bytes: &[u8]) -> Self {
        Self { addr: bytes.as_ptr() as u64, len: bytes.len() }
    }

    pub fn of_mut(bytes: &mut [u8]) -> Self {
        Self { addr: bytes.as_mut_ptr() as u64, len: bytes.len() }
    }

    fn iovec(self) -> libc::iovec {
        libc::iovec { iov_base: self.addr as *mut libc::c_void, iov_len: self.len }
    }
}

/// Sends the beginning of the spans, as much as there is room for.
///
/// # Safety
/// The spans are readable memory.
pub(crate) unsafe fn send_spans(
    fd: BorrowedFd<'_>,
    spans: [Span; 2],
    zero_copy: bool,
) -> Result<Moved, Errno> {
    let mut iovecs = spans.map(Span::iovec);
    let mut message = message(&mut iovecs);
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | if zero_copy { libc::MSG_ZEROCOPY } else { 0 };
    // SAFETY: the message describes two iovecs that live until the call returns; the caller vouches for what they name.
    let sent = unsafe { libc::sendmsg(fd.as_raw_fd(), &raw mut message, flags) };
    outcome(sent, false)
}

/// Fills the beginning of the spans with what has arrived.
///
/// # Safety
/// The spans are memory that nobody else touches now.
pub(crate) unsafe fn receive_spans(fd: BorrowedFd<'_>, spans: [Span; 2]) -> Result<Moved, Errno> {
    let mut iovecs = spans.map(Span::iovec);
    let mut message = message(&mut iovecs);
    // SAFETY: the message describes two iovecs that live until the call returns; the caller vouches for what they name.
    let got = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    outcome(got, true)
}

/// Reads what has arrived.
pub(crate) fn receive(fd: BorrowedFd<'_>, into: &mut [u8]) -> Result<Moved, Errno> {
    let got = net::recv(fd, into, RecvFlags::DONTWAIT).map(|(count, _)| count);
    match got {
        Ok(0) => Ok(Moved::Closed),
        Ok(count) => Ok(Moved::Bytes(count)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(Moved::Nothing),
        Err(errno) => Err(errno),
    }
}

/// Sends as much as there is room for.
pub(crate) fn send(fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<Moved, Errno> {
    match net::send(fd, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
        Ok(count) => Ok(Moved::Bytes(count)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(Moved::Nothing),
        Err(errno) => Err(errno),
    }
}

fn message(iovecs: &mut [libc::iovec; 2]) -> libc::msghdr {
    // SAFETY: all-zero is a valid msghdr: no name, no control data, no iovecs.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = iovecs.as_mut_ptr();
    message.msg_iovlen = iovecs.len();
    message
}

fn outcome(result: isize, reading: bool) -> Result<Moved, Errno> {
    if let Ok(count) = usize::try_from(result) {
        return Ok(if count == 0 && reading { Moved::Closed } else { Moved::Bytes(count) });
    }
    match Errno::from_io_error(&std::io::Error::last_os_error()) {
        Some(Errno::AGAIN | Errno::INTR) => Ok(Moved::Nothing),
        Some(errno) => Err(errno),
        None => Err(Errno::IO),
    }
}

/// A TCP listener on an address, port chosen by the kernel. Returns the address that it really has.
pub(crate) fn listen(at: SocketAddr, tuning: &Tuning) -> Result<(OwnedFd, SocketAddr), Errno> {
    let fd = open(&at)?;
    // Accepted sockets inherit these; buffer sizes only count from the first packet on.
    tuning.apply(fd.as_fd());
    net::bind(&fd, &at)?;
    net::listen(&fd, BACKLOG)?;
    let bound = SocketAddr::try_from(net::getsockname(&fd)?)?;
    Ok((fd, bound))
}

/// Takes one waiting connection, if there is one, and says where it came from.
pub(crate) fn accept(listener: BorrowedFd<'_>) -> Result<Option<(OwnedFd, String)>, Errno> {
    match net::acceptfrom_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
        Ok((fd, from)) => {
            let from = from.and_then(|address| SocketAddr::try_from(address).ok());
            Ok(Some((fd, from.map_or_else(|| "an unknown address".into(), |address| address.to_string()))))
        }
        // The client was faster in leaving than we in accepting, or there is nobody.
        Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED | Errno::PROTO) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Where a connection starts from.
#[derive(Debug, Clone, Default)]
pub(crate) struct Origin {
    pub address: Option<SocketAddr>,
    /// Interface that the packets must use, whatever the routing table says.
    pub interface: Option<String>,
}

/// Begins to connect. The socket becomes writable when it is known whether that worked.
pub(crate) fn connect(origin: &Origin, to: SocketAddr, tuning: &Tuning) -> Result<OwnedFd, Errno> {
    let fd = open(&to)?;
    tuning.apply(fd.as_fd());
    if let Some(interface) = &origin.interface {
        // Needs a right on old kernels; the source address still asks for the interface then.
        let _ = set_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_BINDTODEVICE, interface.as_bytes());
    }
    if let Some(address) = origin.address {
        let yes = 1i32.to_ne_bytes();
        let _ = set_option(fd.as_fd(), libc::SOL_IP, libc::IP_BIND_ADDRESS_NO_PORT, &yes);
        net::bind(&fd, &address)?;
    }
    match net::connect(&fd, &to) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(fd),
        Err(errno) => Err(errno),
    }
}

/// How a connect ended, once the socket is writable; false: not yet.
pub(crate) fn connected(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    sockopt::socket_error(fd)??;
    let end = |address| SocketAddr::try_from(address).ok();
    let peer = match net::getpeername(fd) {
        Ok(address) => address.and_then(end),
        Err(Errno::NOTCONN) => return Ok(false),
        Err(errno) => return Err(errno),
    };
    // Without a listener, a connection within one host can end at its own beginning if the kernel happens to choose
    // the wanted port for it.
    if peer.is_some() && peer == net::getsockname(fd).ok().and_then(end) {
        return Err(Errno::CONNREFUSED);
    }
    Ok(true)
}

fn open(address: &SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
}

/// Options of every socket.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tuning {
    receive_buffer: Option<usize>,
    send_buffer: Option<usize>,
    traffic_class: Option<u8>,
}

impl Tuning {
    pub fn new(settings: &Settings, traffic_class: Option<i32>) -> Self {
        Self {
            receive_buffer: settings.receive_buffer,
            send_buffer: settings.send_buffer,
            traffic_class: traffic_class.and_then(|class| u8::try_from(class).ok()),
        }
    }

    /// What fails only costs speed.
    pub fn apply(&self, fd: BorrowedFd<'_>) {
        let _ = sockopt::set_tcp_nodelay(fd, true);
        let _ = sockopt::set_socket_keepalive(fd, true);
        let _ = sockopt::set_tcp_keepidle(fd, Duration::from_secs(KEEPALIVE.0));
        let _ = sockopt::set_tcp_keepintvl(fd, Duration::from_secs(KEEPALIVE.1));
        let _ = sockopt::set_tcp_keepcnt(fd, KEEPALIVE.2);
        if let Some(bytes) = self.receive_buffer {
            let _ = sockopt::set_socket_recv_buffer_size(fd, bytes);
        }
        if let Some(bytes) = self.send_buffer {
            let _ = sockopt::set_socket_send_buffer_size(fd, bytes);
        }
        if let Some(class) = self.traffic_class {
            let _ = sockopt::set_ip_tos(fd, class);
            let _ = sockopt::set_ipv6_tclass(fd, u32::from(class));
        }
    }
}

/// Limits what the kernel holds unsent, so that chunks go to the socket that really moves. Within a host all do.
pub(crate) fn limit_unsent(fd: BorrowedFd<'_>) {
    let bytes = (MOST_UNSENT as i32).to_ne_bytes();
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, &bytes);
}

/// Announces zero-copy sends. False: this kernel has none.
pub(crate) fn allow_zero_copy(fd: BorrowedFd<'_>) -> bool {
    set_option(fd, libc::SOL_SOCKET, libc::SO_ZEROCOPY, &1i32.to_ne_bytes())
}

/// Takes the kernel's notices that zero-copy sends are over. Nothing waits for them: a message is over when the peer
/// has it.
pub(crate) fn drop_notices(fd: BorrowedFd<'_>) {
    let mut control = [0u64; 16];
    loop {
        // SAFETY: all-zero is a valid msghdr.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control);
        let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
        // SAFETY: the message names one buffer that lives until the call returns, with its length.
        if unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, flags) } < 0 {
            return;
        }
    }
}

/// What the kernel knows of the way to the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Flow {
    /// How often it has repeated its oldest packet or window probe without any answer.
    pub unanswered: u32,
    /// Bytes that the peer's kernel has acknowledged.
    pub acknowledged: u64,
    /// Bytes are unacknowledged or not even sent.
    pub is_pending: bool,
    /// The peer has room for more, or this kernel does not say.
    pub has_room: bool,
}

/// None: this is no TCP socket.
pub(crate) fn flow(fd: BorrowedFd<'_>) -> Option<Flow> {
    // tcp_info as of Linux 5.4; older kernels fill less.
    let mut info = [0u8; 232];
    let mut len = info.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `info`.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if result != 0 {
        return None;
    }
    let word = |at: usize| u32::from_ne_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]]);
    let (retransmits, probes) = (info[2], info[3]);
    let (segment, unacked, unsent) = (word(16), word(24), word(144));
    let knows_window = len as usize >= info.len();
    let has_room = !knows_window || word(228) >= segment;
    let mut acknowledged = [0; 8];
    acknowledged.copy_from_slice(&info[120..128]);
    Some(Flow {
        unanswered: u32::from(retransmits.max(probes)),
        acknowledged: u64::from_ne_bytes(acknowledged),
        is_pending: unacked > 0 || unsent > 0,
        has_room,
    })
}

/// Ends both directions at once.
pub(crate) fn cut(fd: BorrowedFd<'_>) {
    let _ = net::shutdown(fd, Shutdown::Both);
}

/// Says that nothing more will be written.
pub(crate) fn finish_writing(fd: BorrowedFd<'_>) {
    let _ = net::shutdown(fd, Shutdown::Write);
}

fn set_option(fd: BorrowedFd<'_>, level: i32, name: i32, value: &[u8]) -> bool {
    let len = value.len() as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes of `value`.
    unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, value.as_ptr().cast(), len) == 0 }
}

/// Random bytes from the kernel.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], Errno> {
    let mut bytes = [0; N];
    let mut have = 0;
    while have < N {
        match rustix::rand::getrandom(&mut bytes[have..], rustix::rand::GetRandomFlags::empty()) {
            Ok(count) => have += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(bytes)
}

/// A condition variable that an epoll can wait for.
pub(crate) struct Bell(OwnedFd);

impl Bell {
    pub fn new() -> Result<Self, Errno> {
        use rustix::event::{EventfdFlags, eventfd};
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    pub fn ring(&self) {
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Makes it silent again.
    pub fn hush(&self) {
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn until<T>(mut what: impl FnMut() -> Option<T>) -> T {
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(found) = what() {
                return found;
            }
            assert!(std::time::Instant::now() < deadline, "nothing happened");
            std::thread::yield_now();
        }
    }

    #[test]
    fn bytes_pass_in_spans_and_a_closed_peer_is_no_signal() {
        let (listener, address) = listen("127.0.0.1:0".parse().unwrap(), &Tuning::default()).unwrap();
        assert!(matches!(accept(listener.as_fd()), Ok(None)));
        let near = connect(&Origin::default(), address, &Tuning::new(&Settings::new(2), Some(8))).unwrap();
        let (far, _) = until(|| accept(listener.as_fd()).unwrap());
        until(|| connected(near.as_fd()).unwrap().then_some(()));
        // SAFETY: both spans are live arrays.
        let sent = unsafe { send_spans(near.as_fd(), [Span::of(b"head"), Span::of(b"body")], false) };
        assert_eq!(sent, Ok(Moved::Bytes(8)));
        let (mut first, mut second) = ([0; 5], [0; 9]);
        let got = until(|| {
            // SAFETY: both spans are live arrays.
            match unsafe { receive_spans(far.as_fd(), [Span::of_mut(&mut first), Span::of_mut(&mut second)]) }
            {
                Ok(Moved::Nothing) => None,
                other => Some(other),
            }
        });
        assert_eq!((got, &first, &second[..3]), (Ok(Moved::Bytes(8)), b"headb", &b"ody"[..]));
        assert_eq!(receive(far.as_fd(), &mut first), Ok(Moved::Nothing));
        let quiet = until(|| flow(near.as_fd()).filter(|flow| !flow.is_pending));
        assert_eq!((quiet.unanswered, quiet.acknowledged), (0, 9)); // the SYN counts
        drop(far);
        until(|| send(near.as_fd(), &[0; 4096]).err());
        assert_ne!(receive(near.as_fd(), &mut first), Ok(Moved::Nothing));
    }

    #[test]
    fn nobody_listens_is_an_error() {
        let (listener, address) = listen("127.0.0.1:0".parse().unwrap(), &Tuning::default()).unwrap();
        drop(listener);
        let error = match connect(&Origin::default(), address, &Tuning::new(&Settings::new(2), Some(8))) {
            Ok(fd) => until(|| connected(fd.as_fd()).err()),
            Err(errno) => errno,
        };
        assert_eq!(error, Errno::CONNREFUSED);
    }

    #[test]
    fn random_bytes_differ() {
        assert_ne!(random::<32>().unwrap(), random::<32>().unwrap());
    }
}
