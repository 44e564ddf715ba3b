//! Trying a library in a process that may die.
//!
//! A plugin that crashes while it is loaded or initialised takes its process along. [`probe`] does the first
//! steps with it elsewhere: in a helper program if there is one, else in a forked child. Neither is free: a
//! helper costs the start of a program, and a fork of a process with threads can get stuck on a lock that
//! some thread held, or confuse a GPU driver that the process has initialised. The deadline ends both. So
//! probing is for finding out which plugin is to blame, not for every day.
//!
//! The other process reports its steps as lines on a pipe, each with a mark, because plugins print too.

use std::ffi::c_int;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use hawser_plugin::Log;
use hawser_plugin::net::NetConfig;
use hawser_plugin::profiler::ProfilerConfig;
use hawser_plugin::tuner::TunerConfig;

use super::contents::{Contents, READERS};
use super::{Kind, contents};
use crate::library::Library;

const MARK: &str = "hawser-probe: ";

/// The settings of a probe.
#[derive(Debug, Clone, Copy)]
pub struct Probe<'a> {
    /// A program that runs [`helper`] when it is called as `PROGRAM doctor --probe KIND PATH`; None = fork.
    pub program: Option<&'a Path>,
    /// A plugin that is not through by then counts as broken.
    pub deadline: Duration,
}

/// The outcome of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failed {
    /// The dynamic loader refused the library: its reason.
    NotOpened(String),
    /// The plugin ended the process or did not come back: during which step, and how.
    Crashed(String),
}

/// Opens a library and the plugins of a kind in it, in another process. A plugin that reports an error is
/// fine here.
///
/// Blocking: up to the deadline. Thread: any.
///
/// # Errors
/// See [`Failed`]. If there can be no other process, or it never gets to the plugin, the plugin counts as
/// fine.
pub fn probe(path: &Path, kind: Kind, how: &Probe<'_>) -> Result<(), Failed> {
    let child = match how.program {
        Some(program) => spawned(program, kind, path),
        None => forked(kind, path),
    };
    match child {
        Ok(child) => child.judge(path, how.deadline),
        Err(_) => Ok(()),
    }
}

/// The other process's part, for helper programs: reports to `out` (standard output). Returns whether the
/// library can be opened and has a plugin of the kind.
///
/// # Errors
/// There is no such kind.
pub fn helper(kind: &str, path: &Path, mut out: impl Write) -> Result<bool, String> {
    let kind = Kind::ALL.into_iter().find(|known| known.word() == kind);
    let kind = kind.ok_or("the kind is one of net, tuner, profiler, env")?;
    Ok(steps(kind, path, &mut |line| {
        let _ = writeln!(out, "{MARK}{line}").and_then(|()| out.flush());
    }))
}

/// Tries the first steps of a plugin. Errors of the plugin are as good as success: the host will see them
/// again and report them. Returns whether there is a plugin of the kind.
fn steps(kind: Kind, path: &Path, report: &mut dyn FnMut(&str)) -> bool {
    report("step loading");
    let library = match Library::open(path) {
        Ok(library) => library,
        Err(error) => {
            report(&format!("refused {}", error.replace('\n', " ")));
            return false;
        }
    };
    report("step reading");
    let mut is_there = false;
    if contents::identity(&library).is_some() {
        let log = Log::silent();
        let contents = Contents::read(&library, &READERS, &log);
        is_there = match kind {
            Kind::Net => !contents.nets.is_empty(),
            Kind::Tuner => !contents.tuners.is_empty(),
            Kind::Profiler => !contents.profilers.is_empty(),
            Kind::Env => !contents.envs.is_empty(),
        };
        match kind {
            Kind::Net => open_nets(&contents, &log, report),
            Kind::Tuner => contents.tuners.iter().for_each(|tuner| {
                report("step init");
                drop(tuner.plugin.open(&TunerConfig::new(0, 1, 1, log.clone())));
            }),
            Kind::Profiler => contents.profilers.iter().for_each(|profiler| {
                report("step init");
                drop(profiler.plugin.open(&ProfilerConfig::new(0, 1, 0, log.clone())));
            }),
            Kind::Env => contents.envs.iter().for_each(|env| {
                report("step init");
                drop(env.plugin.open((2, 32, 3), &log));
            }),
        }
    }
    if !is_there {
        report(&format!("missing the library has no {} plugin", kind.word()));
    }
    report("done");
    is_there
}

fn open_nets(contents: &Contents, log: &Log, report: &mut dyn FnMut(&str)) {
    for candidate in &contents.nets {
        report("step init");
        let Ok(context) = candidate.net.plugin.open(&NetConfig::new(0, log.clone())) else { continue };
        report("step devices");
        for device in 0..context.devices().unwrap_or(0) {
            report("step properties");
            drop(context.properties(device));
        }
        report("step finalize");
    }
}

/// The other process, and what it reports on.
struct Child {
    pid: libc::pid_t,
    reports: std::fs::File,
}

fn spawned(program: &Path, kind: Kind, path: &Path) -> std::io::Result<Child> {
    let mut child = Command::new(program)
        .args(["doctor", "--probe", kind.word()])
        .arg(path)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let reports = child.stdout.take().ok_or_else(|| std::io::Error::other("a child without an output"))?;
    // Ended by its number, as a forked one.
    Ok(Child { pid: child.id() as libc::pid_t, reports: OwnedFd::from(reports).into() })
}

fn forked(kind: Kind, path: &Path) -> std::io::Result<Child> {
    let [reading, writing] = pipe()?;
    // SAFETY: the child has this thread only. It runs code that may take locks which other threads held: then
    // it hangs until the parent's deadline. It never returns from here.
    match unsafe { libc::fork() } {
        -1 => Err(std::io::Error::last_os_error()),
        0 => in_child(kind, path, writing),
        pid => Ok(Child { pid, reports: reading.into() }),
    }
}

/// An end to read from and one to write to.
fn pipe() -> std::io::Result<[OwnedFd; 2]> {
    let mut ends: [c_int; 2] = [-1; 2];
    // SAFETY: the array has room for two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: both are new and belong to nobody else.
    Ok(ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) }))
}

fn in_child(kind: Kind, path: &Path, writing: OwnedFd) -> ! {
    let mut reports = std::fs::File::from(writing);
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is whole; nobody wants the core of a process that is there to crash.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const none) };
    let tried = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        steps(kind, path, &mut |line| {
            let _ = writeln!(reports, "{MARK}{line}");
        });
    }));
    // SAFETY: ends the process without handlers that belong to the parent.
    unsafe { libc::_exit(c_int::from(tried.is_err())) }
}

impl Child {
    /// Follows the reports to their end and says what they mean.
    fn judge(mut self, path: &Path, deadline: Duration) -> Result<(), Failed> {
        let until = Instant::now() + deadline;
        let (mut text, mut step) = (String::new(), None);
        loop {
            while let Some((line, rest)) = text.split_once('\n') {
                match line.strip_prefix(MARK).map(|line| line.split_once(' ').unwrap_or((line, ""))) {
                    Some(("step", name)) => step = Some(name.to_owned()),
                    Some(("done", _)) => {
                        self.end(until);
                        return Ok(());
                    }
                    Some(("refused", why)) => {
                        let why = why.to_owned();
                        self.end(until);
                        return Err(Failed::NotOpened(why));
                    }
                    _ => {}
                }
                text = rest.to_owned();
            }
            let how = match self.more(until) {
                More::Text(more) => {
                    text.push_str(&more);
                    continue;
                }
                More::End => {
                    let how = self.end(until).unwrap_or_else(|| "ended".to_owned());
                    format!("the process {how}")
                }
                More::Late => {
                    self.end(until);
                    format!("it was not through after {} s", deadline.as_secs_f32())
                }
            };
            // Without a single report the plugin was never touched: the fault is the helper's, or the fork's.
            return step.map_or(Ok(()), |step| Err(crashed(path, &step, &how)));
        }
    }

    fn more(&mut self, until: Instant) -> More {
        let left = until.saturating_duration_since(Instant::now());
        let mut poll = libc::pollfd { fd: self.reports.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let millis = c_int::try_from(left.as_millis().saturating_add(1)).unwrap_or(c_int::MAX);
        // SAFETY: one entry, as announced.
        match unsafe { libc::poll(&raw mut poll, 1, millis) } {
            0 => return More::Late,
            -1 if left.is_zero() => return More::Late,
            -1 => return More::Text(String::new()), // interrupted
            _ => {}
        }
        let mut bytes = [0; 4096];
        match self.reports.read(&mut bytes) {
            Ok(0) => More::End,
            Ok(count) => More::Text(String::from_utf8_lossy(&bytes[..count]).into_owned()),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => More::Text(String::new()),
            Err(_) => More::End,
        }
    }

    /// Waits for the end, or makes it; says how it was if it was no good one.
    fn end(&self, until: Instant) -> Option<String> {
        let mut status: c_int = 0;
        loop {
            // SAFETY: waits for our own child.
            match unsafe { libc::waitpid(self.pid, &raw mut status, libc::WNOHANG) } {
                0 if Instant::now() < until => std::thread::sleep(Duration::from_millis(1)),
                0 => {
                    // SAFETY: the child was not waited for, so the number is still its own.
                    unsafe { libc::kill(self.pid, libc::SIGKILL) };
                    // SAFETY: as above; a killed process ends.
                    unsafe { libc::waitpid(self.pid, &raw mut status, 0) };
                    return None;
                }
                -1 if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted => {}
                -1 => return None, // somebody else waits for all children of this process
                _ => break,
            }
        }
        if libc::WIFSIGNALED(status) {
            return Some(format!("was killed by {}", signal(libc::WTERMSIG(status))));
        }
        let code = libc::WEXITSTATUS(status);
        (code != 0).then(|| format!("ended with code {code}"))
    }
}

enum More {
    Text(String),
    End,
    Late,
}

fn crashed(path: &Path, step: &str, how: &str) -> Failed {
    let file = path.display();
    Failed::Crashed(format!(
        "{file} was tried in a process of its own and broke it in step '{step}': {how}. Report it to \
         the plugin's maker, or leave it out"
    ))
}

fn signal(number: c_int) -> String {
    let name = match number {
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGILL => "SIGILL",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGTERM => "SIGTERM",
        _ => return format!("signal {number}"),
    };
    name.to_owned()
}
