//! Control sockets with names in the abstract namespace of unix(7), which leave nothing behind.
//!
//! A name is `hawser-USER-NAMESPACE-PID-RANDOM`: the user's number, the PID namespace, the process in it. The
//! kernel lists names in `/proc/net/unix`. Anybody may listen under any name, so who listens is asked of the
//! kernel; the random part keeps others from taking the name of a process that is yet to come.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use hawser_base::error::{Error, Result};
use hawser_oob::socket;
use rustix::net::SocketAddrUnix;
use rustix::process::Pid;

use super::super::same_user;
use super::{Listener, connect_to, has_ended, not_there, pid_namespace};

/// The bit of a listening socket in the fourth column of `/proc/net/unix` (`__SO_ACCEPTCON`, linux/net.h).
const ACCEPTS: u32 = 1 << 16;

/// Listens under a name of this process.
pub fn listen() -> Result<Listener> {
    let random = socket::random().map_err(|errno| Error::system("getrandom", errno))?;
    let name = format!("{}{}-{:016x}", prefix(), std::process::id(), u64::from_ne_bytes(random));
    let open = || -> std::io::Result<UnixListener> {
        let socket = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    };
    let text = format!("@{name}");
    let socket = open().map_err(|error| Error::system(format!("the socket {text}"), error))?;
    Ok(Listener { socket, text, file: None })
}

/// Connects to a process of this user.
pub fn connect(pid: u32) -> Result<UnixStream> {
    let what = |name: &str| format!("asking process {pid} through {name}");
    let mut failed = None;
    for (_, name) in listening()?.into_iter().filter(|(process, _)| *process == pid) {
        let stream = SocketAddrUnix::new_abstract_name(name.as_bytes()).and_then(|at| connect_to(&at));
        match stream {
            Ok(stream) => match same_user::check_peer(&stream) {
                Ok(()) => return Ok(stream),
                Err(error) => failed = Some(error),
            },
            Err(error) => failed = Some(not_there(what(&format!("@{name}")), error)),
        }
    }
    let none = || not_there(what("its control socket"), std::io::ErrorKind::NotFound);
    Err(failed.unwrap_or_else(none))
}

/// The processes that listen under names of this user, each once.
pub fn processes() -> Result<Vec<u32>> {
    let mut all: Vec<u32> = listening()?.into_iter().map(|(pid, _)| pid).collect();
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

/// The processes, and their names, that a table of sockets shows. A forked child may hold a socket of a
/// process that has ended; nobody answers there.
fn listening() -> Result<Vec<(u32, String)>> {
    // Of this thread's network namespace, in which its sockets are made.
    const TABLE: &str = "/proc/thread-self/net/unix";
    let table = std::fs::read(TABLE).map_err(|error| Error::system(TABLE, error))?;
    let mut all = names_in(&String::from_utf8_lossy(&table), &prefix());
    all.retain(|(pid, _)| Pid::from_raw(*pid as i32).is_some_and(|pid| !has_ended(pid)));
    Ok(all)
}

/// The processes that listen under names with this beginning, and the names (proc_net(5)).
fn names_in(table: &str, prefix: &str) -> Vec<(u32, String)> {
    let socket = |line: &str| {
        let mut columns = line.split_ascii_whitespace();
        let flags = u32::from_str_radix(columns.nth(3)?, 16).ok()?;
        let name = columns.nth(3)?.strip_prefix('@')?;
        let (pid, _) = name.strip_prefix(prefix)?.split_once('-')?;
        let pid = pid.parse().ok().filter(|pid| i32::try_from(*pid).is_ok())?;
        (flags & ACCEPTS != 0).then(|| (pid, name.to_owned()))
    };
    table.lines().filter_map(socket).collect()
}

fn prefix() -> String {
    format!("hawser-{}-{}-", same_user::own(), pid_namespace())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn a_process_is_found_and_leaves_nothing() {
        let own = std::process::id();
        let listener = listen().unwrap();
        assert!(processes().unwrap().contains(&own));
        let mut asking = connect(own).unwrap();
        asking.write_all(b"x").unwrap();
        // Another test's socket has the same process: only one of them is asked.
        if let Ok((mut asked, _)) = listener.socket.accept() {
            let mut byte = [0];
            asked.read_exact(&mut byte).unwrap();
            assert_eq!(byte, *b"x");
        }
        let name = listener.text.clone();
        let is_there = || listening().unwrap().iter().any(|(_, listed)| name == format!("@{listed}"));
        assert!(is_there());
        drop(listener);
        assert!(!is_there());
    }

    /// A stranger may listen under a name of ours, and take nobody: whoever asks does not wait for it.
    #[test]
    fn a_full_queue_keeps_nobody_waiting() {
        let name = format!("{}{}-full", prefix(), i32::MAX);
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        let waiting: Vec<_> = (0..8).map(|_| connect_to(&address)).collect();
        assert!(waiting[0].is_ok());
        assert_eq!(waiting[7].as_ref().err(), Some(&rustix::io::Errno::AGAIN));
    }

    #[test]
    fn who_has_no_socket_is_told_from_who_is_silent() {
        let error = connect(i32::MAX as u32).unwrap_err();
        assert!(
            error.to_string().contains("asking process 2147483647 through its control socket"),
            "{error}"
        );
        assert!(error.to_string().contains("HAWSER_RUNTIME_DIR"), "{error}");
    }

    #[test]
    fn only_listeners_of_the_user_and_namespace_count() {
        let table = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 21 @hawser-7-40-11-ab\n\
            0000000000000000: 00000003 00000000 00000000 0001 03 22 @hawser-7-40-12-ab\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 23 @hawser-70-40-13-ab\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 24 @hawser-7-41-14-ab\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 25 /hawser-7-40-15-ab\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 26\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 27 @hawser-7-40--1-ab\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 28 @hawser-7-40-99999999999-ab\n\
            damaged\n";
        assert_eq!(names_in(table, "hawser-7-40-"), [(11, "hawser-7-40-11-ab".to_owned())]);
    }
}
