//! The state of a process: whether it runs, is stopped or is held by a debugger, and what its main thread
//! does.

use serde::{Deserialize, Serialize};

/// The state of a process, as the kernel tells it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessState {
    /// The state's letter in `/proc/PID/status`: `R`, `S`, `D`, `T`, `t`, `Z` (see proc_pid_stat(5)).
    pub letter: char,
    /// The process that traces it; 0 for none.
    pub tracer: u32,
    /// The KiB of its memory that are swapped out.
    pub swapped_kib: u64,
    /// The state of the main thread: "runs", "in futex(2)"; empty if that cannot be read.
    pub main_thread: String,
}

impl ProcessState {
    /// The state of a process of this host; None if there is none with this number.
    pub fn of(pid: u32) -> Option<Self> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let mut state = Self::parse(&status)?;
        let main = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/syscall"));
        state.main_thread = main.map(|text| main_thread(&text)).unwrap_or_default();
        // Who waits for a lock waits for another thread: Python's, where one holds the interpreter.
        if state.main_thread == call_text("futex")
            && let Some(name) = running_thread(pid)
        {
            state.main_thread += &format!(" while its thread \"{name}\" runs");
        }
        Some(state)
    }

    /// Reads the text of `/proc/PID/status`.
    fn parse(status: &str) -> Option<Self> {
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let letter = field("State:")?.chars().next()?;
        let tracer = field("TracerPid:").and_then(|pid| pid.parse().ok()).unwrap_or(0);
        let swapped = field("VmSwap:").and_then(|size| size.split(' ').next()?.parse().ok()).unwrap_or(0);
        Some(Self { letter, tracer, swapped_kib: swapped, main_thread: String::new() })
    }

    /// True if somebody has stopped it by a signal.
    pub fn is_stopped(&self) -> bool {
        self.letter == 'T'
    }

    /// True if a debugger holds it.
    pub fn is_held(&self) -> bool {
        self.letter == 't'
    }

    /// True if it has ended.
    pub fn is_over(&self) -> bool {
        matches!(self.letter, 'Z' | 'X')
    }

    /// True if so much of its memory is swapped out that it may be what the process waits for.
    pub fn is_swapped(&self) -> bool {
        const MUCH_KIB: u64 = 16 << 10;
        self.swapped_kib >= MUCH_KIB
    }

    /// The end of a sentence about what the main thread does: "; its main thread is in futex(2)".
    pub fn main_thread_text(&self) -> String {
        let main = &self.main_thread;
        let is = if main.starts_with("in ") || main.starts_with("blocked") { "is " } else { "" };
        if main.is_empty() { String::new() } else { format!("; its main thread {is}{main}") }
    }

    /// The end of a sentence about a process of which much is swapped out.
    pub fn swapped_text(&self) -> String {
        match self.is_swapped() {
            true => format!("; {} MiB of its memory are swapped out", self.swapped_kib >> 10),
            false => String::new(),
        }
    }

    /// A few words for a table.
    pub fn text(&self) -> String {
        let word = match self.letter {
            'R' => "running",
            'S' | 'I' => "sleeping",
            'D' if self.is_swapped() => "waits for a disk, perhaps for swapped memory",
            'D' => "waits for a disk or driver",
            'T' => "stopped",
            't' => "held by a debugger",
            'Z' | 'X' => "ended",
            _ => "?",
        };
        match self.tracer {
            0 => word.into(),
            tracer => format!("{word} (traced by {tracer})"),
        }
    }
}

/// The name of a thread of a process that runs, other than the main one and those of this library.
fn running_thread(pid: u32) -> Option<String> {
    /// The most threads that are looked at.
    const MOST: usize = 512;
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten().take(MOST);
    let mut names = threads.filter(|thread| thread.file_name().to_str() != Some(&pid.to_string()));
    names.find_map(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).ok()?;
        let (name, state) = thread_state(&stat)?;
        (state == 'R' && !name.starts_with("hawser-")).then(|| name.to_owned())
    })
}

/// The name and the state's letter in the text of `/proc/PID/task/TID/stat`. The name may hold brackets.
fn thread_state(stat: &str) -> Option<(&str, char)> {
    let (head, rest) = stat.rsplit_once(") ")?;
    Some((head.split_once('(')?.1, rest.chars().next()?))
}

/// The words for a call in which a thread is.
fn call_text(name: &str) -> String {
    format!("in {name}(2)")
}

/// Puts the text of `/proc/PID/task/TID/syscall` into words.
fn main_thread(text: &str) -> String {
    let first = text.split_ascii_whitespace().next().unwrap_or_default();
    match first.parse::<i64>() {
        Ok(number) if number >= 0 => match call_name(number) {
            Some(name) => call_text(name),
            None => format!("in system call {number}"),
        },
        Ok(_) => "blocked outside of a system call".into(),
        Err(_) if first == "running" => "runs".into(),
        Err(_) => String::new(),
    }
}

/// The names of calls in which a main thread may stay.
fn call_name(number: i64) -> Option<&'static str> {
    let known = [
        (libc::SYS_read, "read"),
        (libc::SYS_write, "write"),
        (libc::SYS_pread64, "pread"),
        (libc::SYS_ppoll, "ppoll"),
        (libc::SYS_epoll_pwait, "epoll_pwait"),
        (libc::SYS_futex, "futex"),
        (libc::SYS_nanosleep, "nanosleep"),
        (libc::SYS_clock_nanosleep, "clock_nanosleep"),
        (libc::SYS_recvfrom, "recvfrom"),
        (libc::SYS_recvmsg, "recvmsg"),
        (libc::SYS_sendto, "sendto"),
        (libc::SYS_accept4, "accept4"),
        (libc::SYS_connect, "connect"),
        (libc::SYS_wait4, "wait4"),
        (libc::SYS_ioctl, "ioctl"),
        (libc::SYS_fsync, "fsync"),
        (libc::SYS_openat, "openat"),
        (libc::SYS_sched_yield, "sched_yield"),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_poll, "poll"),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_select, "select"),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_epoll_wait, "epoll_wait"),
    ];
    known.into_iter().find(|(known, _)| *known == number).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_read() {
        let own = ProcessState::of(std::process::id()).unwrap();
        assert!(!own.is_stopped() && !own.is_over());
        assert_eq!(ProcessState::of(u32::MAX), None);
        let held = ProcessState::parse("Name:\tx\nState:\tt (tracing stop)\nTracerPid:\t77\n").unwrap();
        assert!(held.is_held() && held.text().contains("traced by 77"));
        let stopped = ProcessState::parse("State:\tT (stopped)\nTracerPid:\t0\n").unwrap();
        assert!(stopped.is_stopped() && !stopped.is_held());
        let swapping = "State:\tD (disk sleep)\nTracerPid:\t0\nVmSwap:\t   90112 kB\n";
        let swapping = ProcessState::parse(swapping).unwrap();
        assert!(swapping.is_swapped() && swapping.swapped_kib == 90_112);
        assert!(swapping.text().contains("swapped memory"));
        assert_eq!(swapping.swapped_text(), "; 88 MiB of its memory are swapped out");
        assert!(!ProcessState::parse("State:\tD (disk sleep)\nVmSwap:\t 12 kB\n").unwrap().is_swapped());
        assert_eq!(ProcessState::parse("nonsense"), None);
    }

    #[test]
    fn threads_have_names_and_states() {
        assert_eq!(thread_state("77 (a) b) R 1 2"), Some(("a) b", 'R')));
        assert_eq!(thread_state("77 (worker) S 1 2"), Some(("worker", 'S')));
        assert_eq!((thread_state("77 R"), thread_state("")), (None, None));
    }

    #[test]
    fn system_calls_have_their_names() {
        assert_eq!(main_thread(&format!("{} 0x1 0x2 0x7f", libc::SYS_futex)), "in futex(2)");
        assert_eq!(main_thread("running"), "runs");
        assert_eq!(main_thread("999 0x1"), "in system call 999");
        assert_eq!(main_thread(""), "");
    }
}
