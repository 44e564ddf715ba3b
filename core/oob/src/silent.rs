//! Connections whose other end says nothing, which a listener need not hear of.
//!
//! Whoever knows the secret speaks first, so a listener has the kernel drop what opens a connection without
//! a word: the bare acknowledgement that ends TCP's handshake. A caller that speaks is let in by its first
//! words, which acknowledge as well. One that never speaks stays half open in the kernel, which forgets it
//! after a while, or keeps nothing of it (SYN cookies): thousands of them cost the process no time and no
//! place in its queue.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::OnceLock;

/// The kernel's switch of SYN cookies, without which half-open connections keep others out.
const COOKIES: &str = "/proc/sys/net/ipv4/tcp_syncookies";

/// Bits of a TCP header's byte 13: FIN, SYN and RST, which say something without bytes of data.
const FLAGS: u32 = 0b111;

/// Has the kernel keep connections from a listener until their other ends have spoken. Without success
/// they all come, as ever.
pub fn keep_out(listener: BorrowedFd<'_>) {
    static HAS_COOKIES: OnceLock<bool> = OnceLock::new();
    if !HAS_COOKIES.get_or_init(|| std::fs::read_to_string(COOKIES).is_ok_and(|text| text.trim() != "0")) {
        return;
    }
    let mut steps = filter();
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    let (fd, length) = (listener.as_raw_fd(), size_of_val(&program) as libc::socklen_t);
    let (level, place) = (libc::SOL_SOCKET, (&raw const program).cast());
    // SAFETY: the kernel copies the program and its steps, which live until the call has returned.
    unsafe { libc::setsockopt(fd, level, libc::SO_ATTACH_FILTER, place, length) };
}

/// Ends that for a listener, or for a connection that was accepted, which has it from its listener.
pub fn let_in(socket: BorrowedFd<'_>) {
    let nothing: libc::c_int = 0;
    let (place, length) = ((&raw const nothing).cast(), size_of_val(&nothing) as libc::socklen_t);
    let (fd, level) = (socket.as_raw_fd(), libc::SOL_SOCKET);
    // SAFETY: the kernel reads at most one number.
    unsafe { libc::setsockopt(fd, level, libc::SO_DETACH_FILTER, place, length) };
}

/// The filter: takes segments that have data or one of [`FLAGS`], and drops all others.
fn filter() -> [libc::sock_filter; 12] {
    use libc::{BPF_ABS, BPF_ALU, BPF_AND, BPF_B, BPF_JGT, BPF_JMP, BPF_K, BPF_LD, BPF_LEN, BPF_MISC};
    use libc::{BPF_RET, BPF_RSH, BPF_SUB, BPF_TAX, BPF_W, BPF_X};
    // SAFETY: the function makes a value of its arguments.
    let step = |code: u32, value: u32| unsafe { libc::BPF_STMT(code as u16, value) };
    let jump_if_above_0 = |over: u8| {
        // SAFETY: as above.
        unsafe { libc::BPF_JUMP((BPF_JMP | BPF_JGT | BPF_K) as u16, 0, over, 0) }
    };
    [
        // The length of the header: the upper half of byte 12, in words of 4 bytes.
        step(BPF_LD | BPF_B | BPF_ABS, 12),
        step(BPF_ALU | BPF_AND | BPF_K, 0xf0),
        step(BPF_ALU | BPF_RSH | BPF_K, 2),
        step(BPF_MISC | BPF_TAX, 0),
        step(BPF_LD | BPF_W | BPF_LEN, 0),
        step(BPF_ALU | BPF_SUB | BPF_X, 0),
        jump_if_above_0(4),
        step(BPF_LD | BPF_B | BPF_ABS, 13),
        step(BPF_ALU | BPF_AND | BPF_K, FLAGS),
        jump_if_above_0(1),
        step(BPF_RET | BPF_K, 0),
        step(BPF_RET | BPF_K, u32::MAX),
    ]
}
