//! The addresses of control sockets: how a process is found by its number.
//!
//! By default a socket has a name in the abstract namespace of unix(7), not a file: it goes with the process
//! that listens there, however that ends. Whoever is in another network namespace does not see it; for them
//! `HAWSER_RUNTIME_DIR` names a folder, where the socket is a file.

mod abstract_name;
mod folder;

use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use hawser_base::env::Settings;
use hawser_base::error::Result;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::Pid;

/// The kind of address that the control sockets of this user's processes have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A name in the abstract namespace.
    AbstractName,
    /// A file in this folder.
    Folder(PathBuf),
}

/// A socket that listens; it does not block. Dropping it removes its file, if it has one.
#[derive(Debug)]
pub struct Listener {
    /// The socket.
    pub socket: UnixListener,
    /// The address, for people.
    pub text: String,
    file: Option<PathBuf>,
}

impl Address {
    /// The addresses that the settings want; None if they want no sockets.
    pub fn of(settings: &Settings) -> Option<Self> {
        match settings.runtime_dir.as_deref() {
            Some("none") => None,
            Some(folder) => Some(Self::Folder(folder.into())),
            None => Some(Self::AbstractName),
        }
    }

    /// Listens at the address of this process.
    ///
    /// # Errors
    /// `System`: the socket or its folder cannot be made. `InvalidUsage`: the folder is somebody else's, or
    /// has too long a name.
    pub fn listen(&self) -> Result<Listener> {
        match self {
            Self::AbstractName => abstract_name::listen(),
            Self::Folder(folder) => folder::listen(folder),
        }
    }

    /// Connects to a process, of which the socket turns out to be this user's.
    ///
    /// # Errors
    /// `System`: the process has no socket there. `InvalidUsage`: the socket, or its folder, is another
    /// user's.
    pub fn connect(&self, pid: u32) -> Result<UnixStream> {
        match self {
            Self::AbstractName => abstract_name::connect(pid),
            Self::Folder(folder) => folder::connect(folder, pid),
        }
    }

    /// The processes of this PID namespace that have sockets there. Some may have ended.
    ///
    /// # Errors
    /// `InvalidUsage`: the folder is not one of this user alone.
    pub fn processes(&self) -> Result<Vec<u32>> {
        match self {
            Self::AbstractName => abstract_name::processes(),
            Self::Folder(folder) => folder::processes(folder),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            folder::remove(file);
        }
    }
}

/// Connects without waiting: a socket whose queue is full, which may be a stranger's, is an error.
fn connect_to(address: &SocketAddrUnix) -> rustix::io::Result<UnixStream> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    net::connect(&socket, address)?;
    rustix::io::ioctl_fionbio(&socket, false)?;
    Ok(UnixStream::from(socket))
}

/// The number of this PID namespace (pid_namespaces(7)): containers that share a folder, or a network, have
/// processes of the same number.
fn pid_namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino())
}

/// True if a process has ended, also when its parent has not asked how (proc_pid_stat(5)).
fn has_ended(pid: Pid) -> bool {
    if rustix::process::test_kill_process(pid) == Err(Errno::SRCH) {
        return true;
    }
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> =
        stat.rsplit_once(") ").map_or_else(Vec::new, |(_, rest)| rest.split(' ').collect());
    // A process whose first thread has ended goes on with the others.
    let threads: usize = fields.get(17).and_then(|count| count.parse().ok()).unwrap_or(0);
    matches!(fields.first(), Some(&"Z" | &"X")) && threads <= 1
}

/// A process without a socket: what it may be, and what to do.
fn not_there(what: String, error: impl Into<std::io::Error>) -> hawser_base::error::Error {
    hawser_base::error::Error::system(what, error.into()).remedy(
        "is it there, on this host, of this user, in this container (network and PID namespace), with the \
         same HAWSER_RUNTIME_DIR, and does it have a communicator of more than one rank?",
    )
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A file of a process in a folder, where a test listens for it.
    pub use super::folder::socket_of;

    #[test]
    fn a_killed_process_that_nobody_has_asked_about_has_ended() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_child(&child);
        assert!(!has_ended(pid));
        child.kill().unwrap();
        // Waits for its end, but leaves it as it is.
        let options = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
        rustix::process::waitid(rustix::process::WaitId::Pid(pid), options).unwrap();
        assert!(has_ended(pid));
        child.wait().unwrap();
        assert!(has_ended(pid));
    }
}
