//! The owners of sockets: the functions of the C library that make them, so that those of a process that
//! dies can be closed. The library makes all of its own by these.

use std::ffi::c_int;

use libc::{sockaddr, socklen_t};

use super::replaced::{real, with};

/// Ends all connections of some groups, and their listeners, as the kernel does when their processes end.
pub fn cut_sockets(groups: &[usize]) {
    with(|turns, _| {
        for (descriptor, _) in turns.sockets.iter().filter(|(_, group)| groups.contains(group)) {
            // SAFETY: it takes numbers only, and refuses descriptors that are no sockets, or closed.
            unsafe { libc::shutdown(*descriptor, libc::SHUT_RDWR) };
        }
    });
}

/// See socket(2).
///
/// # Safety
/// None is needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(family: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: it takes numbers only.
    note_socket(unsafe { (real().socket)(family, kind, protocol) })
}

/// See accept4(2).
///
/// # Safety
/// As of the function of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept4(
    listener: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
    flags: c_int,
) -> c_int {
    // SAFETY: as of the function.
    note_socket(unsafe { (real().accept4)(listener, address, length, flags) })
}

/// Notes whose a new socket is, if it is one.
fn note_socket(descriptor: c_int) -> c_int {
    if descriptor >= 0 {
        with(|turns, me| turns.sockets.insert(descriptor, turns.schedule.group(me)));
    }
    descriptor
}
