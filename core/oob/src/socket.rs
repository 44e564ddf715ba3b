//! Sockets that never block and never raise a signal: TCP, and unix-domain ones with a random abstract name.
//!
//! Everything is close-on-exec, and every send carries `MSG_NOSIGNAL`: a peer that is gone is an error, never
//! a SIGPIPE.

use crate::silent;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrUnix, sockopt};
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Connections the kernel keeps for us until we accept them (cut to net.core.somaxconn).
const BACKLOG: i32 = 4096;

/// The random name of an abstract unix-domain socket.
pub type Token = [u8; 16];

/// The address of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    /// A TCP address.
    Tcp(SocketAddr),
    /// The name of a unix-domain socket of this host and network namespace.
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

/// The times at which the kernel asks an idle connection's peer whether it is still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// The time that a connection is idle before the first question.
    pub idle: Duration,
    /// The pause between questions without an answer.
    pub interval: Duration,
    /// The number of unanswered questions that end the connection.
    pub count: u32,
}

/// The options of a TCP socket. Small packets always leave at once, and dead hosts are always noticed.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The times by which dead hosts are noticed; `None` leaves the times to the kernel.
    pub keepalive: Option<Keepalive>,
    /// Bytes of the kernel's receive buffer; `None` lets the kernel adapt it.
    pub receive_buffer: Option<usize>,
    /// Bytes of the kernel's send buffer; `None` lets the kernel adapt it.
    pub send_buffer: Option<usize>,
    /// The traffic class of all packets (the TOS byte of IPv4).
    pub traffic_class: Option<u8>,
}

impl Options {
    /// Sets a socket. What fails only costs speed.
    pub fn apply(&self, fd: BorrowedFd<'_>) {
        let _ = sockopt::set_tcp_nodelay(fd, true);
        let _ = sockopt::set_socket_keepalive(fd, true);
        if let Some(keepalive) = self.keepalive {
            let _ = sockopt::set_tcp_keepidle(fd, keepalive.idle);
            let _ = sockopt::set_tcp_keepintvl(fd, keepalive.interval);
            let _ = sockopt::set_tcp_keepcnt(fd, keepalive.count);
        }
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

/// Opens a TCP listener; port 0 lets the kernel choose. Returns the address it really has. Connections
/// come to it once their other ends have spoken ([`silent`]).
///
/// # Errors
/// The kernel's refusal.
pub fn listen(at: SocketAddr, options: &Options) -> Result<(OwnedFd, SocketAddr), Errno> {
    let fd = open(tcp_family(&at))?;
    // Accepted sockets inherit these; buffer sizes only count from the first packet on.
    options.apply(fd.as_fd());
    if at.port() != 0 {
        // A fixed port is used again at once by the next communicator.
        sockopt::set_socket_reuseaddr(&fd, true)?;
    }
    net::bind(&fd, &at)?;
    silent::keep_out(fd.as_fd());
    net::listen(&fd, BACKLOG)?;
    let bound = SocketAddr::try_from(net::getsockname(&fd)?)?;
    Ok((fd, bound))
}

/// Opens a unix-domain listener; it vanishes with its descriptor.
///
/// # Errors
/// The kernel's refusal.
pub fn listen_unix(token: &Token) -> Result<OwnedFd, Errno> {
    let fd = open(AddressFamily::UNIX)?;
    net::bind(&fd, &unix_address(token)?)?;
    net::listen(&fd, BACKLOG)?;
    Ok(fd)
}

/// The address that an accepted connection came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller(pub Option<SocketAddr>);

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(address) => address.fmt(f),
            None => f.write_str("a process of this host"),
        }
    }
}

/// Takes one waiting connection, if there is one. Options are for those that turn out to be friends: of a
/// crowd of strangers most are closed at once.
///
/// # Errors
/// The kernel's refusal; most likely the process has no descriptors left.
pub fn accept(listener: BorrowedFd<'_>) -> Result<Option<(OwnedFd, Caller)>, Errno> {
    match take_connection(listener) {
        Ok((fd, from)) => {
            let canonical =
                |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
            Ok(Some((fd, Caller(from.map(canonical)))))
        }
        // The client was faster in leaving than we in accepting, or there is nobody.
        Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED | Errno::PROTO) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// The time for which the other end of a TCP connection has said nothing; since it was established, if it
/// never said a word. None if the kernel does not say.
pub fn silence(fd: BorrowedFd<'_>) -> Option<Duration> {
    // SAFETY: plain numbers, for which zeros will do.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&info) as libc::socklen_t;
    let (place, level) = ((&raw mut info).cast(), libc::IPPROTO_TCP);
    // SAFETY: the kernel writes at most `length` bytes.
    let code = unsafe { libc::getsockopt(fd.as_raw_fd(), level, libc::TCP_INFO, place, &raw mut length) };
    (code == 0).then(|| Duration::from_millis(info.tcpi_last_data_recv.into()))
}

/// Takes a connection, with the address of the caller if that is one of TCP. By the C library's function, as
/// in [`open`].
fn take_connection(listener: BorrowedFd<'_>) -> Result<(OwnedFd, Option<SocketAddr>), Errno> {
    // SAFETY: plain numbers, for which zeros will do.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&storage) as libc::socklen_t;
    let (address, flags) = ((&raw mut storage).cast(), libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
    // SAFETY: the kernel writes at most `length` bytes of the address.
    let fd = unsafe { libc::accept4(listener.as_raw_fd(), address, &raw mut length, flags) };
    let fd = owned(fd)?;
    if i32::from(storage.ss_family) != libc::AF_UNIX {
        silent::let_in(fd.as_fd());
    }
    let from = match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the kernel has written an address of this family, which the storage has room for.
            let v4 = unsafe { &*(&raw const storage).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Some(SocketAddr::from((ip, u16::from_be(v4.sin_port))))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { &*(&raw const storage).cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            Some(SocketAddr::from((ip, u16::from_be(v6.sin6_port))))
        }
        _ => None,
    };
    Ok((fd, from))
}

/// The place on this host that a connection starts from.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    /// The address of this host that the connection has; `None` lets the routing table choose.
    pub address: Option<SocketAddr>,
    /// The interface that the packets must use, whatever the routing table says.
    pub interface: Option<String>,
}

/// Begins to connect. The socket becomes writable when it is known whether that worked; [`is_connected`] says
/// it.
///
/// # Errors
/// The kernel's refusal.
pub fn begin_connect(origin: &Origin, to: &Address, options: &Options) -> Result<OwnedFd, Errno> {
    let (fd, begun) = match to {
        Address::Tcp(to) => {
            let fd = open(tcp_family(to))?;
            options.apply(fd.as_fd());
            start_at(&fd, origin)?;
            let begun = net::connect(&fd, to);
            (fd, begun)
        }
        Address::Unix(token) => {
            let fd = open(AddressFamily::UNIX)?;
            let begun = net::connect(&fd, &unix_address(token)?);
            (fd, begun)
        }
    };
    match begun {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(fd),
        Err(errno) => Err(errno),
    }
}

fn start_at(fd: &OwnedFd, origin: &Origin) -> Result<(), Errno> {
    if let Some(interface) = &origin.interface {
        // Needs a right on old kernels; the source address still asks for the interface then.
        let _ = set_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_BINDTODEVICE, interface.as_bytes());
    }
    if let Some(address) = origin.address {
        let yes = 1i32.to_ne_bytes();
        let _ = set_option(fd.as_fd(), libc::SOL_IP, libc::IP_BIND_ADDRESS_NO_PORT, &yes);
        net::bind(fd, &address)?;
    }
    Ok(())
}

/// The end of a connect, once the socket is writable; `false` if it has not ended.
///
/// # Errors
/// Why there is no connection.
pub fn is_connected(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    sockopt::socket_error(fd)??;
    let end = |address| SocketAddr::try_from(address).ok();
    let peer = match net::getpeername(fd) {
        Ok(address) => address.and_then(end),
        Err(Errno::NOTCONN) => return Ok(false),
        Err(errno) => return Err(errno),
    };
    // Without a listener, a connection within one host can end at its own beginning if the kernel happens to
    // choose the wanted port for it.
    if peer.is_some() && peer == net::getsockname(fd).ok().and_then(end) {
        return Err(Errno::CONNREFUSED);
    }
    Ok(true)
}

/// The outcome of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// At least one byte was moved.
    Bytes(usize),
    /// The socket has no room, or no data, now.
    Nothing,
    /// The peer has closed its end (reading only).
    Closed,
}

/// Reads what has arrived.
///
/// # Errors
/// The connection is broken.
#[inline]
pub fn receive(fd: BorrowedFd<'_>, into: &mut [u8]) -> Result<Moved, Errno> {
    match net::recv(fd, into, RecvFlags::DONTWAIT) {
        Ok((0, _)) => Ok(Moved::Closed),
        Ok((count, _)) => Ok(Moved::Bytes(count)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(Moved::Nothing),
        Err(errno) => Err(errno),
    }
}

/// Sends as much as there is room for.
///
/// # Errors
/// The connection is broken.
#[inline]
pub fn send(fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<Moved, Errno> {
    send_with(fd, bytes, SendFlags::empty())
}

/// Sends as much as there is room for, where further bytes follow at once.
///
/// # Errors
/// The connection is broken.
pub fn send_more(fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<Moved, Errno> {
    send_with(fd, bytes, SendFlags::MORE)
}

#[inline]
fn send_with(fd: BorrowedFd<'_>, bytes: &[u8], flags: SendFlags) -> Result<Moved, Errno> {
    match net::send(fd, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT | flags) {
        Ok(count) => Ok(Moved::Bytes(count)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(Moved::Nothing),
        Err(errno) => Err(errno),
    }
}

/// True if the other end has closed the connection, and all that it sent was read.
pub fn is_at_end(fd: BorrowedFd<'_>) -> bool {
    match net::recv(fd, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((count, _)) => count == 0,
        Err(errno) => !matches!(errno, Errno::AGAIN | Errno::INTR),
    }
}

/// Ends both directions at once.
pub fn cut(fd: BorrowedFd<'_>) {
    let _ = net::shutdown(fd, Shutdown::Both);
}

/// Says that nothing more will be written.
pub fn finish_writing(fd: BorrowedFd<'_>) {
    let _ = net::shutdown(fd, Shutdown::Write);
}

/// Sets an option of a socket that rustix does not know. Returns whether the kernel took it.
pub fn set_option(fd: BorrowedFd<'_>, level: i32, name: i32, value: &[u8]) -> bool {
    let len = value.len() as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes of `value`.
    unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, value.as_ptr().cast(), len) == 0 }
}

/// Random bytes from the kernel.
///
/// # Errors
/// The kernel has none to give.
pub fn random<const N: usize>() -> Result<[u8; N], Errno> {
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

/// A socket, by the C library's function, which a program may replace, unlike rustix' (the twin notes whose
/// socket it is).
fn open(family: AddressFamily) -> Result<OwnedFd, Errno> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: it takes numbers only.
    owned(unsafe { libc::socket(family.as_raw().into(), kind, 0) })
}

/// The descriptor that a function of the C library has just made, or its error.
fn owned(fd: i32) -> Result<OwnedFd, Errno> {
    if fd < 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    // SAFETY: it is new, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn tcp_family(address: &SocketAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

fn unix_name(token: &Token) -> String {
    let digits: String = token.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("hawser-{digits}")
}

fn unix_address(token: &Token) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new_abstract_name(unix_name(token).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::until;

    fn local() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 0))
    }

    #[test]
    fn bytes_pass_and_a_closed_peer_is_no_signal() {
        let options = Options { traffic_class: Some(8), ..Options::default() };
        let token = random().unwrap();
        let tcp = listen(local(), &options).unwrap();
        let places = [(tcp.0, Address::Tcp(tcp.1)), (listen_unix(&token).unwrap(), Address::Unix(token))];
        for (listener, address) in places {
            assert!(matches!(accept(listener.as_fd()), Ok(None)));
            let near = begin_connect(&Origin::default(), &address, &options).unwrap();
            until(|| is_connected(near.as_fd()).unwrap().then_some(()));
            assert_eq!(send_more(near.as_fd(), b"head"), Ok(Moved::Bytes(4)));
            assert_eq!(send(near.as_fd(), b"body"), Ok(Moved::Bytes(4)));
            let (far, from) = until(|| accept(listener.as_fd()).unwrap());
            assert_eq!(from.0.is_some(), matches!(address, Address::Tcp(_)));
            let mut bytes = [0; 9];
            let got = until(|| match receive(far.as_fd(), &mut bytes) {
                Ok(Moved::Nothing) => None,
                other => Some(other),
            });
            assert!(matches!(got, Ok(Moved::Bytes(4..=8))), "{got:?}");
            assert_eq!(&bytes[..4], b"head");
            assert_eq!(receive(near.as_fd(), &mut bytes), Ok(Moved::Nothing));
            assert!(!is_at_end(near.as_fd()));
            drop(far);
            until(|| send(near.as_fd(), &[0; 4096]).err());
            assert_ne!(receive(near.as_fd(), &mut bytes), Ok(Moved::Nothing));
        }
    }

    #[test]
    fn nobody_listens_is_an_error() {
        let (listener, address) = listen(local(), &Options::default()).unwrap();
        drop(listener);
        let begun = begin_connect(&Origin::default(), &Address::Tcp(address), &Options::default());
        let error = match begun {
            Ok(fd) => until(|| is_connected(fd.as_fd()).err()),
            Err(errno) => errno,
        };
        assert_eq!(error, Errno::CONNREFUSED);
        let nobody = begin_connect(&Origin::default(), &Address::Unix([7; 16]), &Options::default());
        assert_eq!(nobody.err(), Some(Errno::CONNREFUSED));
    }

    #[test]
    fn random_bytes_differ() {
        assert_ne!(random::<32>().unwrap(), random::<32>().unwrap());
    }
}
