//! The calls of the kernel for data sockets beyond [`hawser_oob::socket`]: pieces of memory, zero-copy sends,
//! the state of the path.

use std::os::fd::{AsRawFd, BorrowedFd};

use hawser_oob::socket::{Moved, set_option};
use rustix::io::Errno;

/// Bytes that a data socket holds and has not put on the network, about.
const MOST_UNSENT: usize = 512 << 10;

/// A piece of somebody's memory, by address: the kernel reads or writes it, we never look.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    /// The address of the memory.
    pub addr: u64,
    /// The length in bytes.
    pub len: usize,
}

impl Span {
    /// The span of a slice that is read.
    pub fn of(bytes: &[u8]) -> Self {
        Self { addr: bytes.as_ptr() as u64, len: bytes.len() }
    }

    /// The span of a slice that is written.
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
pub(crate) unsafe fn send_spans<const N: usize>(
    fd: BorrowedFd<'_>,
    spans: [Span; N],
    zero_copy: bool,
) -> Result<Moved, Errno> {
    let mut iovecs = spans.map(Span::iovec);
    let mut message = message(&mut iovecs);
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | if zero_copy { libc::MSG_ZEROCOPY } else { 0 };
    // SAFETY: the message describes iovecs that live until the call returns; the caller vouches for what
    // they name.
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
    // SAFETY: the message describes iovecs that live until the call returns; the caller vouches for what
    // they name.
    let got = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    outcome(got, true)
}

fn message(iovecs: &mut [libc::iovec]) -> libc::msghdr {
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

/// Limits what the kernel holds unsent, so that chunks go to the socket that really moves. Within a host all
/// do.
pub(crate) fn limit_unsent(fd: BorrowedFd<'_>) {
    let bytes = (MOST_UNSENT as i32).to_ne_bytes();
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, &bytes);
}

/// Announces zero-copy sends. False: this kernel has none.
pub(crate) fn allow_zero_copy(fd: BorrowedFd<'_>) -> bool {
    set_option(fd, libc::SOL_SOCKET, libc::SO_ZEROCOPY, &1i32.to_ne_bytes())
}

/// Takes the kernel's notices that zero-copy sends are over. Nothing waits for them: a message is over when
/// the peer has it.
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

/// The kernel's knowledge of the way to the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Flow {
    /// The number of times that it has repeated its oldest packet or window probe without any answer.
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

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_oob::socket::{
        Address, Options, Origin, accept, begin_connect, is_connected, listen, receive,
    };
    use std::os::fd::AsFd;
    use std::time::{Duration, Instant};

    fn until<T>(mut what: impl FnMut() -> Option<T>) -> T {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(found) = what() {
                return found;
            }
            assert!(Instant::now() < deadline, "nothing happened");
            std::thread::yield_now();
        }
    }

    #[test]
    fn bytes_pass_in_spans() {
        let options = Options::default();
        let (listener, address) = listen("127.0.0.1:0".parse().unwrap(), &options).unwrap();
        let near = begin_connect(&Origin::default(), &Address::Tcp(address), &options).unwrap();
        until(|| is_connected(near.as_fd()).unwrap().then_some(()));
        // SAFETY: both spans are live arrays.
        let sent = unsafe { send_spans(near.as_fd(), [Span::of(b"head"), Span::of(b"body")], false) };
        assert_eq!(sent, Ok(Moved::Bytes(8)));
        // A connection comes with its first words.
        let (far, _) = until(|| accept(listener.as_fd()).unwrap());
        let (mut first, mut second) = ([0; 5], [0; 9]);
        let got = until(|| {
            let spans = [Span::of_mut(&mut first), Span::of_mut(&mut second)];
            // SAFETY: both spans are live arrays.
            match unsafe { receive_spans(far.as_fd(), spans) } {
                Ok(Moved::Nothing) => None,
                other => Some(other),
            }
        });
        assert_eq!((got, &first, &second[..3]), (Ok(Moved::Bytes(8)), b"headb", &b"ody"[..]));
        assert_eq!(receive(far.as_fd(), &mut first), Ok(Moved::Nothing));
        let quiet = until(|| flow(near.as_fd()).filter(|flow| !flow.is_pending));
        assert_eq!((quiet.unanswered, quiet.acknowledged), (0, 9)); // the SYN counts
    }
}
