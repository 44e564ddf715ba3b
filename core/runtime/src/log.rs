//! Log lines in NCCL's form (`host:pid:tid [dev] NCCL WARN text`) and the last error text.
//!
//! One line is one `write(2)`, so lines of several processes do not mix. The level is an atomic:
//! with `NCCL_DEBUG` unset a disabled line costs a load and a branch.

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};

use crate::env::Settings;

/// Subsystems of `NCCL_DEBUG_SUBSYS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
#[allow(missing_docs)] // NCCL's names
pub enum Subsys {
    Init = 1,
    Coll = 1 << 1,
    P2p = 1 << 2,
    Shm = 1 << 3,
    Net = 1 << 4,
    Graph = 1 << 5,
    Tuning = 1 << 6,
    Env = 1 << 7,
    Alloc = 1 << 8,
    Call = 1 << 9,
    Proxy = 1 << 10,
    Bootstrap = 1 << 11,
    Reg = 1 << 12,
    Profile = 1 << 13,
}

const NAMES: [(&str, u32); 14] = [
    ("INIT", 1),
    ("COLL", 1 << 1),
    ("P2P", 1 << 2),
    ("SHM", 1 << 3),
    ("NET", 1 << 4),
    ("GRAPH", 1 << 5),
    ("TUNING", 1 << 6),
    ("ENV", 1 << 7),
    ("ALLOC", 1 << 8),
    ("CALL", 1 << 9),
    ("PROXY", 1 << 10),
    ("BOOTSTRAP", 1 << 11),
    ("REG", 1 << 12),
    ("PROFILE", 1 << 13),
];

/// 0 = silent, 1 = VERSION, 2 = WARN, 3 = INFO, 4 = TRACE.
static LEVEL: AtomicU8 = AtomicU8::new(0);
static MASK: AtomicU32 = AtomicU32::new(0);
static SINK: OnceLock<Option<Mutex<File>>> = OnceLock::new();
static LAST: Mutex<String> = Mutex::new(String::new());

thread_local! {
    static DEVICE: Cell<i64> = const { Cell::new(-1) };
}

/// Takes level, subsystems and file from the settings.
pub fn configure(settings: &Settings) {
    let level = match settings.debug.as_deref().map(str::to_ascii_uppercase).as_deref() {
        None => 0,
        Some("VERSION") => 1,
        Some("WARN") => 2,
        Some("TRACE") => 4,
        Some(_) => 3,
    };
    LEVEL.store(level, Ordering::Relaxed);
    MASK.store(mask(&settings.debug_subsys), Ordering::Relaxed);
    let file = settings.debug_file.as_deref().map(|path| {
        let path = path.replace("%h", &host_name()).replace("%p", &std::process::id().to_string());
        OpenOptions::new().create(true).append(true).open(&path).map_err(|error| format!("{path}: {error}"))
    });
    let (file, failure) = match file.transpose() {
        Ok(file) => (file.map(Mutex::new), None),
        Err(why) => (None, Some(why)),
    };
    let _ = SINK.set(file);
    if let Some(why) = failure {
        warn(&format!("the log goes to standard output, as NCCL_DEBUG_FILE cannot be opened: {why}"));
    }
}

/// Remembers which device the calling thread serves, for the `[dev]` part of its lines.
pub fn set_device(ordinal: u32) {
    DEVICE.with(|d| d.set(i64::from(ordinal)));
}

/// Something is wrong: logged at WARN and above, and kept for [`last_error`].
pub fn warn(text: &str) {
    set_last_error(text);
    if LEVEL.load(Ordering::Relaxed) >= 2 {
        write_line("WARN", text);
    }
}

/// A line of a subsystem; `text` is made only when it is wanted.
pub fn info(subsys: Subsys, text: impl FnOnce() -> String) {
    if wants(subsys) {
        write_line("INFO", &text());
    }
}

/// A line for those who hunt a bug (`NCCL_DEBUG=TRACE`).
pub fn trace(subsys: Subsys, text: impl FnOnce() -> String) {
    if LEVEL.load(Ordering::Relaxed) >= 4 && wants(subsys) {
        write_line("TRACE", &text());
    }
}

/// What the user asked for with `HAWSER_EXPLAIN`: written at every level.
pub fn explain(text: &str) {
    text.lines().for_each(|line| write_line("EXPLAIN", line));
}

/// A line that a setting of its own asked for (`NCCL_CUMEM_MONITOR`, `NCCL_SM_FREE_VERBOSE`): written at every level.
pub fn monitor(text: &str) {
    write_line("INFO", text);
}

/// Whether lines of a subsystem are written.
pub fn wants(subsys: Subsys) -> bool {
    LEVEL.load(Ordering::Relaxed) >= 3 && MASK.load(Ordering::Relaxed) & subsys as u32 != 0
}

/// The line that `NCCL_DEBUG=VERSION` and above print once per process.
pub fn version_once() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        if LEVEL.load(Ordering::Relaxed) >= 1 {
            write_line("INFO", &format!("Hawser {} (NCCL API 2.32.3)", env!("CARGO_PKG_VERSION")));
        }
    });
}

/// The latest error text of this process.
pub fn last_error() -> String {
    LAST.lock().map(|t| t.clone()).unwrap_or_default()
}

/// Replaces the latest error text.
pub fn set_last_error(text: &str) {
    if let Ok(mut last) = LAST.lock() {
        text.clone_into(&mut last);
    }
}

fn write_line(level: &str, text: &str) {
    let device = DEVICE.with(Cell::get);
    let device = if device < 0 { "-".to_owned() } else { device.to_string() };
    let tid = rustix::thread::gettid().as_raw_nonzero();
    let line = format!("{}:{}:{tid} [{device}] NCCL {level} {text}\n", host_name(), std::process::id());
    match SINK.get().and_then(Option::as_ref) {
        Some(file) => drop(file.lock().map(|mut f| f.write_all(line.as_bytes()))),
        None => drop(std::io::stdout().lock().write_all(line.as_bytes())),
    }
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The bit mask of a `NCCL_DEBUG_SUBSYS` list; `^` at the start inverts it.
fn mask(list: &str) -> u32 {
    let (invert, names) = list.strip_prefix('^').map_or((false, list), |rest| (true, rest));
    let one = |name: &str| match NAMES.iter().find(|(n, _)| n.eq_ignore_ascii_case(name.trim())) {
        Some((_, bit)) => *bit,
        None if name.trim().eq_ignore_ascii_case("ALL") => u32::MAX,
        None => 0,
    };
    let bits = names.split(',').map(one).fold(0, |a, b| a | b);
    if invert { !bits } else { bits }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subsystem_lists() {
        assert_eq!(mask("INIT,coll"), 3);
        assert_eq!(mask("^INIT"), !1);
        assert_eq!(mask("ALL"), u32::MAX);
        assert_eq!(mask("nonsense"), 0);
    }

    #[test]
    fn the_last_error_is_kept() {
        set_last_error("one");
        warn("two");
        assert_eq!(last_error(), "two");
    }
}
