//! `hawser exec --verify`: a program that runs as a child, and what it and its children load.
//!
//! Before the start the head of the file tells whether `LD_PRELOAD` has an effect at all. Then
//! `/proc/PID/maps` is read again and again: a process that has a file called `libnccl.so…` has to have the
//! preloaded library. Another one beside it is told of, but allowed: PyTorch maps the one of its package as
//! well, and its calls go to the one that was preloaded. What is linked into another library cannot be seen.

use std::collections::BTreeSet;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

use super::elf::{self, Kind};

/// The time that the loader may take to map the library.
const LOADING: Duration = Duration::from_secs(10);
/// The time between two looks at first, and later on.
const LOOKS: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(500)];
/// The time at which the longer pauses begin: by then programs have loaded what they load.
const BUSY: Duration = Duration::from_secs(60);
/// The time that a program gets to end in peace.
const GRACE: Duration = Duration::from_secs(2);
/// Most interpreters of interpreters.
const MOST_SCRIPTS: usize = 4;

/// Checks that the loader heeds `LD_PRELOAD` for a program.
///
/// # Errors
/// It does not, and why.
pub fn check_program(path: &Path) -> Result<()> {
    let mut path = path.to_owned();
    for _ in 0..MOST_SCRIPTS {
        let name = path.display();
        let Kind::Script(line) = elf::kind(&path)? else { return check_elf(&path) };
        let mut words = line.split_whitespace();
        let first = words.next().with_context(|| format!("{name} begins with #! and names no program"))?;
        // env takes options and settings before the program's name.
        let is_env = Path::new(first).file_name().is_some_and(|name| name == "env");
        let program =
            if is_env { words.find(|word| !word.starts_with('-') && !word.contains('=')) } else { None };
        let program = program.unwrap_or(first);
        path = super::find_program(program.as_ref())
            .with_context(|| format!("{name} is read by {program}, which is not there"))?;
    }
    Ok(())
}

fn check_elf(path: &Path) -> Result<()> {
    let name = path.display();
    match elf::kind(path)? {
        Kind::Elf { has_loader: true } => {}
        Kind::Elf { has_loader: false } => {
            bail!("{name} is linked statically: nothing can be preloaded; build it against libnccl.so.2")
        }
        Kind::Elf32 => bail!("{name} is a 32-bit program, and the library is a 64-bit one"),
        // A script without #!, which a shell reads.
        _ => return Ok(()),
    }
    let mode =
        std::fs::metadata(path).with_context(|| format!("cannot look at {name}"))?.permissions().mode();
    if mode & 0o6000 != 0 {
        bail!(
            "{name} runs as another user or group (setuid, setgid): the loader then preloads nothing; run it \
               as that user"
        );
    }
    Ok(())
}

/// Runs a command and watches what it loads. Returns its exit code; ends as it did if a signal ended it.
///
/// # Errors
/// It cannot be started, or loads another library, or not ours; then it has been ended.
pub fn run(mut command: Command, library: &Path) -> Result<ExitCode> {
    let program = command.get_program().display().to_string();
    // Before there is a child, or a signal in between would end this process alone.
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2])
        .context("cannot receive signals")?;
    let mut child = command.spawn().with_context(|| format!("cannot run {program}"))?;
    let mut watch = Watch::new(library, child.id())?;
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for the program")? {
            return Ok(ended(status));
        }
        for signal in signals.pending() {
            pass_on(&child, signal);
        }
        if let Err(refusal) = watch.look() {
            end(&mut child);
            return Err(refusal);
        }
        std::thread::sleep(LOOKS[usize::from(watch.start.elapsed() > BUSY)]);
    }
}

/// Ends this process as the child ended, or returns the code for it.
fn ended(status: ExitStatus) -> ExitCode {
    if let Some(signal) = status.signal() {
        // Comes back only for signals that end nothing, which cannot be.
        let _ = signal_hook::low_level::emulate_default_handler(signal);
    }
    ExitCode::from(status.code().map_or(1, |code| code as u8))
}

fn pass_on(child: &Child, signal: i32) {
    if let Some(signal) = Signal::from_named_raw(signal) {
        // It may have ended just now.
        let _ = kill_process(Pid::from_child(child), signal);
    }
}

/// Ends the child and all its children: in peace if they do so soon.
fn end(child: &mut Child) {
    let all: Vec<u32> = family(child.id()).into_iter().collect();
    let tell = |signal| {
        for pid in all.iter().filter_map(|pid| Pid::from_raw(*pid as i32)) {
            let _ = kill_process(pid, signal);
        }
    };
    tell(Signal::TERM);
    let until = Instant::now() + GRACE;
    while Instant::now() < until && !matches!(child.try_wait(), Ok(Some(_))) {
        std::thread::sleep(Duration::from_millis(10));
    }
    tell(Signal::KILL);
    let _ = child.wait();
}

/// The watch over a program and its children.
struct Watch {
    library: PathBuf,
    /// Device and number of the library's file.
    file: (u64, u64),
    child: u32,
    start: Instant,
    /// The program itself has the library.
    is_loaded: bool,
    /// Another library beside ours was told of.
    has_told: bool,
}

impl Watch {
    fn new(library: &Path, child: u32) -> Result<Self> {
        let found = std::fs::metadata(library).context("the library went away")?;
        let file = (found.dev(), found.ino());
        Ok(Self {
            library: library.to_owned(),
            file,
            child,
            start: Instant::now(),
            is_loaded: false,
            has_told: false,
        })
    }

    /// Looks once.
    fn look(&mut self) -> Result<()> {
        for pid in family(self.child) {
            // It may have ended, or be another user's by now.
            let Ok(maps) = std::fs::read_to_string(format!("/proc/{pid}/maps")) else { continue };
            let loaded = loaded(&maps);
            let is_ours = |path: &&PathBuf| {
                **path == self.library
                    || std::fs::metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == self.file)
            };
            let has_ours = loaded.iter().any(|path| is_ours(&path));
            self.is_loaded |= pid == self.child && has_ours;
            let Some(other) = loaded.iter().find(|path| !is_ours(path)) else { continue };
            if has_ours && !self.has_told {
                self.has_told = true;
                eprintln!(
                    "hawser: process {pid} ({}) has {} beside ours: calls by name go to ours, which comes \
                     first; what a program takes from that file itself does not",
                    name(pid),
                    other.display()
                );
            }
            if !has_ours {
                bail!(
                    "process {pid} ({}) has loaded {} and not {}, which was to be preloaded; it was ended. \
                     Something between takes LD_PRELOAD out of the environment",
                    name(pid),
                    other.display(),
                    self.library.display()
                );
            }
        }
        if !self.is_loaded && self.start.elapsed() > LOADING {
            bail!(
                "process {} ({}) has not loaded {}; it was ended. LD_DEBUG=libs in its environment tells why",
                self.child,
                name(self.child),
                self.library.display()
            );
        }
        Ok(())
    }
}

/// The files called libnccl.so that a process has mapped.
fn loaded(maps: &str) -> BTreeSet<PathBuf> {
    // Address, rights, offset, device, inode, path: the path is what is left, spaces and all.
    let path = |line: &str| Some(PathBuf::from(line.get(line.find('/')?..)?.trim_end_matches(" (deleted)")));
    let is_nccl = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name == "libnccl.so" || name.starts_with("libnccl.so.")
    };
    maps.lines().filter_map(path).filter(is_nccl).collect()
}

/// A process and all that it has started and that were started by those.
fn family(pid: u32) -> BTreeSet<u32> {
    let (mut all, mut left) = (BTreeSet::new(), vec![pid]);
    while let Some(pid) = left.pop() {
        if !all.insert(pid) {
            continue;
        }
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        for thread in threads {
            let text = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            left.extend(text.split_whitespace().filter_map(|word| word.parse::<u32>().ok()));
        }
    }
    all
}

fn name(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm"))
        .map_or_else(|_| "?".into(), |name| name.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_name_every_nccl_once() {
        let maps = "7f00-7f01 r-xp 00000000 08:01 12 /opt/a b/libnccl.so.2\n\
                    7f01-7f02 r--p 00001000 08:01 12 /opt/a b/libnccl.so.2\n\
                    7f02-7f03 r-xp 00000000 08:01 13 /x/libnccl.so (deleted)\n\
                    7f03-7f04 r-xp 00000000 08:01 14 /x/libnccl-net.so\n\
                    7f04-7f05 rw-p 00000000 00:00 0 [heap]\n";
        let found: Vec<_> = loaded(maps).into_iter().collect();
        assert_eq!(found, ["/opt/a b/libnccl.so.2", "/x/libnccl.so"].map(PathBuf::from));
    }

    #[test]
    fn children_of_children_are_family() {
        let mut shell = Command::new("sh").args(["-c", "sleep 60 & wait"]).spawn().unwrap();
        let until = Instant::now() + LOADING;
        while family(shell.id()).len() < 2 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(family(shell.id()).len(), 2);
        end(&mut shell);
    }

    #[test]
    fn programs_that_cannot_be_preloaded_are_refused() {
        let folder = std::env::temp_dir().join(format!("hawser-verify-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = |name: &str, bytes: &[u8]| {
            let path = folder.join(name);
            std::fs::write(&path, bytes).unwrap();
            path
        };
        let mut header = vec![0; 64];
        header[..5].copy_from_slice(b"\x7fELF\x02");
        let refused = |path: &Path| check_program(path).unwrap_err().to_string();
        assert!(refused(&file("static", &header)).contains("is linked statically"));
        header[4] = 1;
        assert!(refused(&file("small", &header)).contains("32-bit"));
        let static_script = format!("#!{}\n", folder.join("static").display());
        header[4] = 2;
        file("static", &header);
        assert!(refused(&file("script", static_script.as_bytes())).contains("is linked statically"));
        assert!(refused(&file("lost", b"#!/nonexistent/python\n")).contains("which is not there"));
        check_program(&file("shell", b"#!/usr/bin/env -S A=1 sh\n")).unwrap();
        check_program(&file("plain", b"true\n")).unwrap();
        std::fs::remove_dir_all(folder).unwrap();
    }
}
