//! The door of a process: a unix-domain socket in a folder of its owner, through which other programs of the same user list
//! its communicators and change their rules. Nobody else gets through the folder.
//!
//! A question is a line of words, then perhaps bytes, then the end of the stream. Answers are lines of fields with tabs
//! between them, the last of which is `end`:
//!
//! ```text
//! list             communicator ID NAME RANK RANKS COLLECTIVES; job NAME
//! apply ID,ID..    changed ID NAME COLLECTIVE; unchanged ID NAME WHY; unknown ID NAME WHY   (the bytes are the rules)
//! ```

use std::fmt::Write as _;
use std::io::{ErrorKind as Io, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::protocol::Outcome;
use super::seat::Seat;
use super::wire;
use crate::env::Settings;
use crate::error::{Error, Result};
use crate::log::{self, Subsys};

/// The longest question, in bytes.
const LONGEST: u64 = 64 << 20;
/// How long somebody may take to ask, and to take the answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest path that a socket can have, in bytes.
const LONGEST_PATH: usize = 107;

/// The open door. Dropping it removes the socket.
pub struct Door {
    listener: UnixListener,
    path: PathBuf,
    job: String,
    guests: Vec<Guest>,
    patience: Duration,
}

/// Somebody who waits for outcomes.
struct Guest {
    stream: UnixStream,
    open: usize,
    outcomes: Receiver<String>,
    until: Instant,
}

impl Door {
    /// Opens the door; None if the settings want none.
    ///
    /// # Errors
    /// `System` or `InvalidUsage`: the folder cannot be made or is somebody else's, or the socket cannot be made.
    pub fn open(settings: &Settings) -> Result<Option<Self>> {
        let Some(folder) = &settings.runtime_folder else { return Ok(None) };
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
            let listener = UnixListener::bind(&new)?;
            std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o600))?;
            listener.set_nonblocking(true)?;
            std::fs::rename(&new, &path)?;
            Ok(listener)
        };
        let listener = open().map_err(|error| Error::system(format!("socket {}", path.display()), error))?;
        log::info(Subsys::Init, || {
            format!("rules of this process can be changed through {}", path.display())
        });
        let (job, patience) = (settings.job.clone().unwrap_or_default(), settings.rules_timeout * 8);
        Ok(Some(Self { listener, path, job, guests: Vec::new(), patience }))
    }

    /// For poll(2).
    pub fn listener(&self) -> &impl AsFd {
        &self.listener
    }

    /// Answers who asks, and who waits. Says whether somebody waits.
    pub fn serve(&mut self, seats: &[Arc<Seat>]) -> bool {
        while let Ok((stream, _)) = self.listener.accept() {
            match self.welcome(stream, seats) {
                Ok(guest) => self.guests.extend(guest),
                Err(error) => {
                    log::info(Subsys::Init, || format!("somebody asked about rules, but: {error}"));
                }
            }
        }
        self.guests.retain_mut(Guest::goes_on);
        !self.guests.is_empty()
    }

    /// Answers a question, or begins to.
    fn welcome(&self, mut stream: UnixStream, seats: &[Arc<Seat>]) -> std::io::Result<Option<Guest>> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut question = Vec::new();
        let deadline = Instant::now() + PATIENCE;
        let mut part = [0; 64 << 10];
        loop {
            let count = stream.read(&mut part)?;
            if count == 0 {
                break;
            }
            question.extend(&part[..count]);
            if question.len() as u64 > LONGEST || Instant::now() > deadline {
                return Err(std::io::Error::new(Io::InvalidData, "the question is too long or too slow"));
            }
        }
        let line = question.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let content = question.get(line.len() + 1..).unwrap_or_default();
        let line = String::from_utf8_lossy(line);
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("list", _) => stream.write_all(self.list(seats).as_bytes()).map(|()| None),
            ("apply", wanted) => match wire::unpack(content) {
                Some(files) => Ok(Some(self.apply(stream, wanted, &files, seats))),
                None => stream.write_all(b"refused\tthe rules came damaged\nend\n").map(|()| None),
            },
            (other, _) => {
                let other = plain(other);
                let text = format!("refused\tthis version of the library does not know \"{other}\"\nend\n");
                stream.write_all(text.as_bytes()).map(|()| None)
            }
        }
    }

    fn list(&self, seats: &[Arc<Seat>]) -> String {
        let mut text = format!("job\t{}\n", plain(&self.job));
        for seat in seats {
            let Seat { comm_id, name, rank, ranks, .. } = &**seat;
            let begun = seat.begun();
            let _ = writeln!(text, "communicator\t{comm_id:016x}\t{}\t{rank}\t{ranks}\t{begun}", plain(name));
        }
        text + "end\n"
    }

    /// Proposes rules to the communicators that are named, each by its lowest rank here.
    fn apply(
        &self,
        stream: UnixStream,
        wanted: &str,
        files: &[hawser_plugin::tuner::SettingsFile],
        seats: &[Arc<Seat>],
    ) -> Guest {
        let (tell, outcomes) = channel();
        let mut open = 0;
        for id in wanted.split(',').filter(|id| !id.is_empty()) {
            let of = |seat: &&Arc<Seat>| format!("{:016x}", seat.comm_id) == id;
            let Some(seat) = seats.iter().filter(of).min_by_key(|seat| seat.rank) else {
                let _ = tell.send(format!("unchanged\t{}\t?\tit is not there any more\n", plain(id)));
                open += 1;
                continue;
            };
            let (tell, id, name) = (tell.clone(), id.to_owned(), plain(&seat.name));
            let done = move |outcome| {
                let line = match outcome {
                    Outcome::Changed(at) => format!("changed\t{id}\t{name}\t{at}\n"),
                    Outcome::Unchanged(why) => format!("unchanged\t{id}\t{name}\t{}\n", plain(&why)),
                    Outcome::Unknown(why) => format!("unknown\t{id}\t{name}\t{}\n", plain(&why)),
                };
                let _ = tell.send(line);
                super::service::ring();
            };
            seat.propose(files, Box::new(done));
            open += 1;
        }
        Guest { stream, open, outcomes, until: Instant::now() + self.patience }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Guest {
    /// Passes outcomes on; false when there is nothing left to tell.
    fn goes_on(&mut self) -> bool {
        while let Ok(line) = self.outcomes.try_recv() {
            self.open -= 1;
            if self.stream.write_all(line.as_bytes()).is_err() {
                return false;
            }
        }
        if self.open == 0 || Instant::now() >= self.until {
            let _ = self.stream.write_all(b"end\n");
            return false;
        }
        true
    }
}

/// The socket of a process in this process's PID namespace: containers that share a folder have the same numbers.
pub fn socket_of(folder: &Path, pid: u32) -> PathBuf {
    folder.join(format!("{}{pid}.rules", prefix()))
}

/// Processes that have, or had, a socket there, in this process's PID namespace.
pub fn processes_in(folder: &Path) -> Vec<u32> {
    let prefix = prefix();
    let pid = |path: PathBuf| path.file_stem()?.to_str()?.strip_prefix(&prefix)?.parse().ok();
    sockets_in(folder).into_iter().filter_map(pid).collect()
}

fn sockets_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| path.extension().is_some_and(|ending| ending == "rules")).collect()
}

/// Before the numbers of this PID namespace (pid_namespaces(7)).
fn prefix() -> String {
    format!("{}-", std::fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino()))
}

/// Makes a folder that nobody else can look into, or checks that it is one.
fn make_folder(folder: &Path) -> Result<()> {
    let name = || format!("the folder {}", folder.display());
    let made = std::fs::DirBuilder::new().recursive(false).mode(0o700).create(folder);
    match made {
        Err(error) if error.kind() != Io::AlreadyExists => return Err(Error::system(name(), error)),
        _ => {}
    }
    let meta = std::fs::symlink_metadata(folder).map_err(|error| Error::system(name(), error))?;
    let is_ours = meta.is_dir() && meta.uid() == rustix::process::geteuid().as_raw();
    if !is_ours || meta.mode() & 0o077 != 0 {
        let text = format!("{} is not a folder of this user alone (mode 700)", name());
        return Err(Error::invalid_usage(text).remedy("set HAWSER_RUNTIME_DIR to one"));
    }
    Ok(())
}

/// Removes sockets of processes that have ended without doing so: nobody listens there.
fn sweep(folder: &Path) {
    for path in sockets_in(folder) {
        if is_refused(&path).unwrap_or(false) {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Does not wait for one whose queue is full.
fn is_refused(path: &Path) -> rustix::io::Result<bool> {
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK, None)?;
    Ok(net::connect(&socket, &SocketAddrUnix::new(path)?) == Err(Errno::CONNREFUSED))
}

/// Text as one field of a line.
fn plain(text: &str) -> String {
    text.replace('\t', " ").replace('\n', "\u{b}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_somebody_else_is_refused() {
        let folder = std::env::temp_dir().join(format!("hawser-door-{}", std::process::id()));
        make_folder(&folder).unwrap();
        make_folder(&folder).unwrap();
        let set = |mode| std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(mode)).unwrap();
        set(0o755);
        assert!(make_folder(&folder).unwrap_err().text.contains("HAWSER_RUNTIME_DIR"));
        set(0o700);
        let link = folder.join("link");
        std::os::unix::fs::symlink(&folder, &link).unwrap();
        assert!(make_folder(&link).is_err(), "a link may lead anywhere");
        let _door = UnixListener::bind(socket_of(&folder, std::process::id())).unwrap();
        let _other = UnixListener::bind(folder.join("7-1.rules")).unwrap();
        // Nobody listens there any more.
        drop(UnixListener::bind(socket_of(&folder, 1)).unwrap());
        drop(UnixListener::bind(folder.join("7-2.rules")).unwrap());
        std::fs::write(folder.join("other"), "").unwrap();
        sweep(&folder);
        assert_eq!(processes_in(&folder), [std::process::id()]);
        assert!(folder.join("7-1.rules").exists() && !folder.join("7-2.rules").exists());
        std::fs::remove_dir_all(folder).unwrap();
    }
}
