//! Control sockets that are files in a folder of their owner: `NAMESPACE-PID.rules`, a PID namespace and a
//! process in it. Nobody else gets through the folder.
//!
//! A process that is killed leaves its file; the next one that comes or goes removes it.

use std::io::ErrorKind as Io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use hawser_base::error::{Error, Result};
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;
use rustix::process::Pid;

use super::super::same_user;
use super::{Listener, connect_to, has_ended, not_there, pid_namespace};

/// The longest path that a socket can have, in bytes.
const LONGEST_PATH: usize = 107;

/// Listens in a folder, which is made if it is not there.
pub fn listen(folder: &Path) -> Result<Listener> {
    make_folder(folder)?;
    let path = socket_of(folder, std::process::id());
    // Moved to its name when it listens: one that refuses is one that was left.
    let new = path.with_extension("new");
    if new.as_os_str().len() > LONGEST_PATH {
        let text = format!("the path {} is longer than {LONGEST_PATH} bytes", new.display());
        return Err(Error::invalid_usage(text).remedy("set HAWSER_RUNTIME_DIR to a shorter one"));
    }
    sweep(folder);
    let open = || -> std::io::Result<UnixListener> {
        let _ = std::fs::remove_file(&new);
        let socket = UnixListener::bind(&new)?;
        std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o600))?;
        socket.set_nonblocking(true)?;
        std::fs::rename(&new, &path)?;
        Ok(socket)
    };
    let text = path.display().to_string();
    let socket = open().map_err(|error| Error::system(format!("the socket {text}"), error))?;
    at_exit::register(&path);
    Ok(Listener { socket, text, file: Some(path) })
}

/// Connects to a process.
pub fn connect(folder: &Path, pid: u32) -> Result<UnixStream> {
    let path = socket_of(folder, pid);
    let what = || format!("asking process {pid} through {}", path.display());
    if let Err(error) = std::fs::symlink_metadata(&path) {
        return Err(not_there(what(), error));
    }
    same_user::check_folder(folder)?;
    same_user::check_socket(&path)?;
    let stream = SocketAddrUnix::new(&path).and_then(|at| connect_to(&at));
    let stream = stream.map_err(|error| not_there(what(), error))?;
    same_user::check_peer(&stream)?;
    Ok(stream)
}

/// The processes that have, or had, a socket in a folder.
pub fn processes(folder: &Path) -> Result<Vec<u32>> {
    if std::fs::symlink_metadata(folder).is_err_and(|error| error.kind() == Io::NotFound) {
        return Ok(Vec::new());
    }
    same_user::check_folder(folder)?;
    let prefix = prefix();
    let pid = |path: PathBuf| path.file_stem()?.to_str()?.strip_prefix(&prefix)?.parse().ok();
    Ok(sockets_in(folder, "rules").into_iter().filter_map(pid).collect())
}

/// Removes the socket of this process, and those of processes that died with no time to do so.
pub fn remove(path: &Path) {
    let _ = std::fs::remove_file(path);
    if let Some(folder) = path.parent() {
        sweep(folder);
    }
}

/// The socket of a process in a folder.
pub fn socket_of(folder: &Path, pid: u32) -> PathBuf {
    folder.join(format!("{}{pid}.rules", prefix()))
}

fn sockets_in(folder: &Path, wanted: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| path.extension().is_some_and(|ending| ending == wanted)).collect()
}

/// The part of names of sockets that stands before process numbers.
fn prefix() -> String {
    format!("{}-", pid_namespace())
}

/// Makes a folder that nobody else can look into, or checks that it is one.
fn make_folder(folder: &Path) -> Result<()> {
    let made = std::fs::DirBuilder::new().recursive(false).mode(0o700).create(folder);
    if let Err(error) = made.or_else(|e| if e.kind() == Io::AlreadyExists { Ok(()) } else { Err(e) }) {
        return Err(Error::system(format!("the folder {}", folder.display()), error));
    }
    same_user::check_folder(folder)
}

/// Removes sockets of processes that have ended without doing so: nobody listens there, or a forked child
/// holds it open, which answers nobody.
fn sweep(folder: &Path) {
    // One that nobody listens at yet refuses as well: for those the process alone counts.
    let prefix = prefix();
    let is_over = |path: &PathBuf| {
        let pid = path.file_stem().and_then(|stem| stem.to_str()?.strip_prefix(&prefix)?.parse().ok());
        pid.and_then(Pid::from_raw).is_some_and(has_ended)
    };
    let rules = sockets_in(folder, "rules").into_iter();
    let left = rules.filter(|path| is_over(path) || is_refused(path).unwrap_or(false));
    let unnamed = sockets_in(folder, "new").into_iter().filter(is_over);
    left.chain(unnamed).for_each(|path| drop(std::fs::remove_file(path)));
}

/// True if nobody listens at a socket. It does not wait for one whose queue is full.
fn is_refused(path: &Path) -> rustix::io::Result<bool> {
    Ok(connect_to(&SocketAddrUnix::new(path)?).is_err_and(|errno| errno == Errno::CONNREFUSED))
}

/// The socket of a process that ends before it has destroyed its communicators.
mod at_exit {
    use super::{Path, PathBuf};
    use std::sync::{Mutex, Once, TryLockError};

    /// The socket that is open, and the process that opened it.
    static OPEN: Mutex<Option<(u32, PathBuf)>> = Mutex::new(None);

    pub fn register(path: &Path) {
        static HANDLER: Once = Once::new();
        HANDLER.call_once(|| {
            // SAFETY: the handler may be called at any time, also while other threads run; it waits for
            // nobody. Without it the socket stays until the next process sweeps.
            unsafe { libc::atexit(remove_open) };
        });
        let open = Some((std::process::id(), path.to_owned()));
        *OPEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = open;
    }

    extern "C" fn remove_open() {
        let open = match OPEN.try_lock() {
            Ok(open) => open,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        // A child of a fork ends as well, and leaves its parent's alone.
        if let Some((_, path)) = open.as_ref().filter(|(owner, _)| *owner == std::process::id()) {
            super::remove(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_somebody_else_is_refused() {
        let folder = std::env::temp_dir().join(format!("hawser-control-{}", std::process::id()));
        make_folder(&folder).unwrap();
        make_folder(&folder).unwrap();
        let set = |mode| std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(mode)).unwrap();
        set(0o755);
        assert!(make_folder(&folder).unwrap_err().text.contains("HAWSER_RUNTIME_DIR"));
        set(0o700);
        let link = folder.join("link");
        std::os::unix::fs::symlink(&folder, &link).unwrap();
        assert!(make_folder(&link).is_err(), "a link may lead anywhere");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn sockets_that_were_left_are_removed() {
        let folder = std::env::temp_dir().join(format!("hawser-sweep-{}", std::process::id()));
        make_folder(&folder).unwrap();
        let _listener = UnixListener::bind(socket_of(&folder, std::process::id())).unwrap();
        let _other = UnixListener::bind(folder.join("7-1.rules")).unwrap();
        // Nobody listens there any more.
        drop(UnixListener::bind(socket_of(&folder, 1)).unwrap());
        drop(UnixListener::bind(folder.join("7-2.rules")).unwrap());
        // A forked child of an ended process listens there.
        let held = UnixListener::bind(socket_of(&folder, i32::MAX as u32 - 1)).unwrap();
        std::fs::write(folder.join("other"), "").unwrap();
        let beginning = [std::process::id(), i32::MAX as u32].map(|pid| {
            let path = socket_of(&folder, pid).with_extension("new");
            std::fs::write(&path, "").unwrap();
            path
        });
        // Another test may be starting a child, which holds for a moment what was just closed here.
        for _ in 0..500 {
            sweep(&folder);
            if processes(&folder).unwrap().len() == 1 && !folder.join("7-2.rules").exists() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert_eq!(beginning.map(|path| path.exists()), [true, false]);
        assert_eq!(processes(&folder).unwrap(), [std::process::id()]);
        assert!(folder.join("7-1.rules").exists() && !folder.join("7-2.rules").exists());
        drop(held);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
