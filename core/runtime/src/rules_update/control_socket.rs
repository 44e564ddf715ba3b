//! The door of a process: a unix-domain socket in a folder of its owner, through which other programs of the
//! same user list its communicators and change their rules. Nobody else gets through the folder.
//!
//! A question is a line of words, then perhaps bytes, then the end of the stream. Answers are lines of fields
//! with tabs between them, the last of which is `end`:
//!
//! ```text
//! list             communicator ID NAME RANK RANKS COLLECTIVES; job NAME
//! apply ID,ID..    changed ID NAME COLLECTIVE; unchanged ID NAME WHY; unknown ID NAME WHY
//!                  (the bytes are the rules)
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

use hawser_base::env::Settings;
use hawser_base::error::{Error, Result};
use hawser_base::log::{self, Subsys};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::participant::Participant;
use super::protocol::Outcome;
use super::wire;

/// The longest question, in bytes.
const LONGEST: u64 = 64 << 20;
/// The time that somebody may take to ask, and to take the answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest path that a socket can have, in bytes.
const LONGEST_PATH: usize = 107;

/// The open door. Dropping it removes the socket.
pub struct ControlSocket {
    listener: UnixListener,
    path: PathBuf,
    job: String,
    clients: Vec<Client>,
    patience: Duration,
}

/// Somebody who waits for outcomes.
struct Client {
    stream: UnixStream,
    open: usize,
    outcomes: Receiver<String>,
    until: Instant,
}

impl ControlSocket {
    /// Opens the door; None if the settings want none.
    ///
    /// # Errors
    /// `System` or `InvalidUsage`: the folder cannot be made or is somebody else's, or the socket cannot be
    /// made.
    pub fn open(settings: &Settings) -> Result<Option<Self>> {
        let Some(folder) = &settings.runtime_folder() else { return Ok(None) };
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
        let (job, patience) = (settings.job().unwrap_or_default(), settings.rules_timeout * 8);
        Ok(Some(Self { listener, path, job, clients: Vec::new(), patience }))
    }

    /// For poll(2).
    pub fn listener(&self) -> &impl AsFd {
        &self.listener
    }

    /// Answers who asks, and who waits. Says whether somebody waits.
    pub fn serve(&mut self, participants: &[Arc<Participant>]) -> bool {
        while let Ok((stream, _)) = self.listener.accept() {
            match self.welcome(stream, participants) {
                Ok(client) => self.clients.extend(client),
                Err(error) => {
                    log::info(Subsys::Init, || format!("somebody asked about rules, but: {error}"));
                }
            }
        }
        self.clients.retain_mut(Client::goes_on);
        !self.clients.is_empty()
    }

    /// Answers a question, or begins to.
    fn welcome(
        &self,
        mut stream: UnixStream,
        participants: &[Arc<Participant>],
    ) -> std::io::Result<Option<Client>> {
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
            ("list", _) => stream.write_all(self.list(participants).as_bytes()).map(|()| None),
            ("apply", wanted) => match wire::unpack(content) {
                Some(files) => Ok(Some(self.apply(stream, wanted, &files, participants))),
                None => stream.write_all(b"refused\tthe rules came damaged\nend\n").map(|()| None),
            },
            (other, _) => {
                let other = plain(other);
                let text = format!("refused\tthis version of the library does not know \"{other}\"\nend\n");
                stream.write_all(text.as_bytes()).map(|()| None)
            }
        }
    }

    fn list(&self, participants: &[Arc<Participant>]) -> String {
        let mut text = format!("job\t{}\n", plain(&self.job));
        for participant in participants {
            let Participant { comm_id, name, rank, ranks, .. } = &**participant;
            let begun = participant.begun();
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
        participants: &[Arc<Participant>],
    ) -> Client {
        let (tell, outcomes) = channel();
        let mut open = 0;
        for id in wanted.split(',').filter(|id| !id.is_empty()) {
            let of = |participant: &&Arc<Participant>| format!("{:016x}", participant.comm_id) == id;
            let Some(participant) = participants.iter().filter(of).min_by_key(|participant| participant.rank)
            else {
                let _ = tell.send(format!("unchanged\t{}\t?\tit is not there any more\n", plain(id)));
                open += 1;
                continue;
            };
            let (tell, id, name) = (tell.clone(), id.to_owned(), plain(&participant.name));
            let done = move |outcome| {
                let line = match outcome {
                    Outcome::Changed(at) => format!("changed\t{id}\t{name}\t{at}\n"),
                    Outcome::Unchanged(why) => format!("unchanged\t{id}\t{name}\t{}\n", plain(&why)),
                    Outcome::Unknown(why) => format!("unknown\t{id}\t{name}\t{}\n", plain(&why)),
                };
                let _ = tell.send(line);
                super::service::ring();
            };
            participant.propose(files, Box::new(done));
            open += 1;
        }
        Client { stream, open, outcomes, until: Instant::now() + self.patience }
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
        // Those of ranks that died with no time to do so.
        if let Some(folder) = self.path.parent() {
            sweep(folder);
        }
    }
}

impl Client {
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

/// The socket of a process in this process's PID namespace: containers that share a folder have the same
/// numbers.
pub fn socket_of(folder: &Path, pid: u32) -> PathBuf {
    folder.join(format!("{}{pid}.rules", prefix()))
}

/// Processes that have, or had, a socket there, in this process's PID namespace.
pub fn processes_in(folder: &Path) -> Vec<u32> {
    let prefix = prefix();
    let pid = |path: PathBuf| path.file_stem()?.to_str()?.strip_prefix(&prefix)?.parse().ok();
    sockets_in(folder, "rules").into_iter().filter_map(pid).collect()
}

fn sockets_in(folder: &Path, wanted: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| path.extension().is_some_and(|ending| ending == wanted)).collect()
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
    let left = sockets_in(folder, "rules").into_iter().filter(|path| is_refused(path).unwrap_or(false));
    // One that nobody listens at yet refuses as well: here the process counts.
    let prefix = prefix();
    let is_over = |path: &PathBuf| {
        let pid = path.file_stem().and_then(|stem| stem.to_str()?.strip_prefix(&prefix)?.parse().ok());
        let pid = pid.and_then(rustix::process::Pid::from_raw);
        pid.is_some_and(|pid| rustix::process::test_kill_process(pid) == Err(Errno::SRCH))
    };
    let unnamed = sockets_in(folder, "new").into_iter().filter(is_over);
    left.chain(unnamed).for_each(|path| drop(std::fs::remove_file(path)));
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
        let beginning = [std::process::id(), i32::MAX as u32].map(|pid| {
            let path = socket_of(&folder, pid).with_extension("new");
            std::fs::write(&path, "").unwrap();
            path
        });
        sweep(&folder);
        assert_eq!(beginning.map(|path| path.exists()), [true, false]);
        assert_eq!(processes_in(&folder), [std::process::id()]);
        assert!(folder.join("7-1.rules").exists() && !folder.join("7-2.rules").exists());
        std::fs::remove_dir_all(folder).unwrap();
    }
}
