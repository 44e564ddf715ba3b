//! A loopback interface of one's own.

use std::io::Error;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Gives this process a network namespace (network_namespaces(7)) of its own where it may have one, so that
/// worlds of many processes do not use up the ports of one loopback interface. Before there are threads.
///
/// # Errors
/// The namespace is there, but its loopback interface cannot be brought up.
pub fn stand_apart() -> Result<(), Error> {
    // SAFETY: there are no other threads, which would stay where they are.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        return Ok(());
    }
    // SAFETY: the descriptor is new, and only this function's.
    let socket = unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        if fd < 0 {
            return Err(Error::last_os_error());
        }
        OwnedFd::from_raw_fd(fd)
    };
    // SAFETY: plain numbers, for which zeros will do.
    let mut request: libc::ifreq = unsafe { zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(c"lo".to_bytes()) {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
    // SAFETY: the kernel reads the name and the flags of a request of this kind.
    let code = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw const request) };
    if code == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}
