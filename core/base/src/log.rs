//! The log: events of the crate `tracing`, the two forms in which they are written, and the text of the last
//! error.
//!
//! What the runtime has to say is a `tracing` event, within the spans `communicator`, `operation` and
//! `connection` that tell whom it concerns. A subscriber writes the events that `NCCL_DEBUG` asks for in
//! NCCL's form (`lines`), and all of them as JSON if `HAWSER_LOG_JSON` names a file (`json`). It is made
//! the default of the process when the settings are read, if they ask for a log and nobody has set another
//! default: a program in Rust that brings its own subscriber gets the events in that. (`libnccl.so.2` holds a
//! copy of `tracing` of its own, which no program can reach.)
//!
//! An event that nobody wants costs one relaxed load, and its text is not made.

mod json;
mod lines;
mod plugins;
mod sink;
mod stamp;

use std::cell::Cell;
use std::io::Write;
use std::sync::{Mutex, OnceLock};

use tracing::level_filters::LevelFilter;
use tracing::span::EnteredSpan;
use tracing::{Level, Span};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::Registry;

use crate::error::Error;
use json::JsonLines;
use lines::{NcclLines, Verbosity};
pub use plugins::{Keeper, for_plugins, keep_figures, losses, on_stress};
use sink::Sink;
use stamp::Stamp;

/// Targets of lines that a setting of their own asks for, whatever `NCCL_DEBUG` is.
const EXPLAIN: &str = "hawser::explain";
const MONITOR: &str = "hawser::monitor";
/// The target of the line with the version.
const VERSION: &str = "hawser::version";

/// Makes [`Subsys`] and what needs an event for each of its values, since the target of an event is fixed
/// where it is made.
macro_rules! subsystems {
    ($($(#[doc = $doc:literal])+ $name:ident = $bit:literal, $word:literal, $target:literal;)+) => {
        /// The parts of the log, as `NCCL_DEBUG_SUBSYS` names them.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Subsys {
            $($(#[doc = $doc])+ $name,)+
        }

        /// For each part of the log: the word for it in `NCCL_DEBUG_SUBSYS`, the target of its events, and
        /// its bit.
        const SUBSYSTEMS: &[(&str, &str, u32)] = &[$(($word, $target, 1 << $bit)),+];

        impl Subsys {
            fn is_wanted(self) -> bool {
                match self {
                    $(Self::$name => tracing::enabled!(target: $target, Level::INFO),)+
                }
            }

            fn is_traced(self) -> bool {
                match self {
                    $(Self::$name => tracing::enabled!(target: $target, Level::TRACE),)+
                }
            }

            fn inform(self, text: &str) {
                match self {
                    $(Self::$name => tracing::info!(target: $target, message = text),)+
                }
            }

            fn trace(self, text: &str) {
                match self {
                    $(Self::$name => tracing::trace!(target: $target, message = text),)+
                }
            }
        }
    };
}

subsystems! {
    /// Communicators that come up and end.
    Init = 0, "INIT", "hawser::init";
    /// Collectives that are called.
    Coll = 1, "COLL", "hawser::coll";
    /// Messages and memory between GPUs.
    P2p = 2, "P2P", "hawser::p2p";
    /// Memory that processes of a host share.
    Shm = 3, "SHM", "hawser::shm";
    /// The network.
    Net = 4, "NET", "hawser::net";
    /// The links between GPUs, and CUDA graphs.
    Graph = 5, "GRAPH", "hawser::graph";
    /// The choice of algorithms, and the reasons.
    Tuning = 6, "TUNING", "hawser::tuning";
    /// The values of settings.
    Env = 7, "ENV", "hawser::env";
    /// Memory that is taken and given back.
    Alloc = 8, "ALLOC", "hawser::alloc";
    /// Calls of the C interface.
    Call = 9, "CALL", "hawser::call";
    /// The thread that moves data between devices and the network.
    Proxy = 10, "PROXY", "hawser::proxy";
    /// The connections by which ranks find each other.
    Bootstrap = 11, "BOOTSTRAP", "hawser::bootstrap";
    /// Buffers that users register.
    Reg = 12, "REG", "hawser::reg";
    /// Profiler plugins that are loaded.
    Profile = 13, "PROFILE", "hawser::profile";
    /// The port that clients of RAS ask at.
    Ras = 15, "RAS", "hawser::ras";
}

/// The latest error text of the process.
static LAST: Mutex<String> = Mutex::new(String::new());

thread_local! {
    /// The device that the thread serves; -1 = none.
    static DEVICE: Cell<i64> = const { Cell::new(-1) };
}

/// The settings of the log.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// `NCCL_DEBUG`.
    pub level: Option<&'a str>,
    /// `NCCL_DEBUG_SUBSYS`.
    pub subsystems: &'a str,
    /// `NCCL_DEBUG_FILE`. None: standard output.
    pub file: Option<&'a str>,
    /// `NCCL_DEBUG_TIMESTAMP_FORMAT`, and the bits of `NCCL_DEBUG_TIMESTAMP_LEVELS`.
    pub times: (&'a str, u32),
    /// `HAWSER_LOG_JSON`.
    pub json: Option<&'a str>,
    /// True if other settings ask for lines of their own ([`explain`], [`monitor`]).
    pub lines_apart: bool,
}

/// Makes the subscribers that the settings ask for the default of the process, unless it has one.
pub fn configure(wanted: &Wanted<'_>) {
    let verbosity = Verbosity::of(wanted.level, wanted.subsystems);
    let wants_lines = verbosity.level > lines::SILENT || wanted.lines_apart;
    if !wants_lines && wanted.json.is_none() || tracing::dispatcher::has_been_set() {
        return;
    }
    let stamp = Stamp::new(wanted.times.0, wanted.times.1);
    let (lines_sink, failure) = Sink::open_or_stdout(wanted.file);
    let lines = wants_lines.then(|| NcclLines::new(lines_sink, stamp).with_filter(verbosity.filter()));
    let (json, json_failure) = match wanted.json.map(Sink::open) {
        Some(Ok(sink)) => (Some(JsonLines::new(sink).with_filter(json::filter(verbosity))), None),
        Some(Err(why)) => {
            (None, Some(format!("there is no log in JSON, as HAWSER_LOG_JSON cannot be opened: {why}")))
        }
        None => (None, None),
    };
    let subscriber = Registry::default().with(lines).with(json);
    // Somebody who was faster has a subscriber that gets all events.
    let _ = tracing::subscriber::set_global_default(subscriber);
    failure.iter().chain(&json_failure).for_each(|text| warn(text));
}

/// Remembers which device the calling thread serves, for the `[dev]` part of its lines.
pub fn set_device(ordinal: u32) {
    DEVICE.with(|d| d.set(i64::from(ordinal)));
}

/// The device that the calling thread serves.
fn device() -> Option<i64> {
    Some(DEVICE.with(Cell::get)).filter(|device| *device >= 0)
}

/// Something is wrong: logged at WARN and above, and kept for [`last_error`].
pub fn warn(text: &str) {
    set_last_error(text);
    tracing::warn!(target: "hawser", message = text);
}

/// Writes a warning that reaches people at every level of `NCCL_DEBUG`: through the log where that takes
/// warnings, else as a line on standard error.
pub fn alarm(text: &str) {
    if tracing::enabled!(target: "hawser", Level::WARN) {
        warn(text);
    } else {
        // Who has closed standard error does not want it.
        let _ = writeln!(std::io::stderr(), "hawser WARN {text}");
    }
}

/// Writes an error with all that it knows at WARN and above, and keeps its text for [`last_error`].
pub fn error(error: &Error) {
    error.note_logged();
    plugins::count("errors_total", &[("kind", &format!("{:?}", error.kind))], 1);
    set_last_error(&error.text);
    tracing::warn!(
        target: "hawser",
        message = error.text.as_str(),
        kind = ?error.kind,
        operation = error.operation.as_deref(),
        rank = error.rank,
        peer = error.peer,
        resource = error.resource.as_deref(),
        code = error.code.map(tracing::field::display),
        remedy = error.remedy.as_deref(),
    );
}

/// The span of what is done for a communicator on one rank: all that is said in it concerns them.
pub fn communicator_span(comm_id: Option<u64>, name: Option<&str>, rank: u32) -> Span {
    // Nothing of this is made unless somebody wants the span.
    let hex = |id: u64| tracing::field::display(format!("{id:x}"));
    tracing::info_span!(target: "hawser", "communicator", comm = comm_id.map(hex), name, rank)
}

/// Enters the spans of putting `calls` calls of a communicator on the device. Where nobody wants spans this
/// is one relaxed load.
#[inline]
pub fn enter_operation(comm_id: u64, name: &str, rank: u32, calls: usize) -> Option<[EnteredSpan; 2]> {
    if Level::INFO > LevelFilter::current() {
        return None;
    }
    Some(enter_operation_spans(comm_id, name, rank, calls))
}

#[cold]
fn enter_operation_spans(comm_id: u64, name: &str, rank: u32, calls: usize) -> [EnteredSpan; 2] {
    let communicator = communicator_span(Some(comm_id), Some(name), rank).entered();
    let operation = tracing::info_span!(target: "hawser", "operation", calls).entered();
    // The inner one is left first.
    [operation, communicator]
}

/// Enters the span of what happens to the connections with another rank. Where nobody wants spans this is
/// one relaxed load.
pub fn enter_connection(rank: u32, peer: u32) -> Option<EnteredSpan> {
    (Level::INFO <= LevelFilter::current())
        .then(|| tracing::info_span!(target: "hawser", "connection", rank, peer).entered())
}

/// A line of a subsystem; `text` is made only when it is wanted.
#[inline]
pub fn info(subsys: Subsys, text: impl FnOnce() -> String) {
    if wants(subsys) {
        subsys.inform(&text());
    }
}

/// A line for those who hunt a bug (`NCCL_DEBUG=TRACE`).
pub fn trace(subsys: Subsys, text: impl FnOnce() -> String) {
    if Level::TRACE <= LevelFilter::current() && subsys.is_traced() {
        subsys.trace(&text());
    }
}

/// Writes a line that the user asked for with `HAWSER_EXPLAIN`: written at every level.
pub fn explain(text: &str) {
    text.lines().for_each(|line| tracing::info!(target: EXPLAIN, message = line));
}

/// A line that a setting of its own asked for (`NCCL_CUMEM_MONITOR`, `NCCL_SM_FREE_VERBOSE`): written at
/// every level.
pub fn monitor(text: &str) {
    tracing::info!(target: MONITOR, message = text);
}

/// Lines that a program asked for by a call: written where lines are written, whatever the settings ask for.
pub fn dump(text: &str, file: Option<&str>) {
    let is_taken = tracing::enabled!(target: MONITOR, Level::INFO);
    if is_taken {
        text.lines().for_each(monitor);
    } else {
        Sink::open_or_stdout(file).0.write(text);
    }
}

/// Returns whether anybody wants the lines of a subsystem.
#[inline]
pub fn wants(subsys: Subsys) -> bool {
    // Where nobody wants anything, the relaxed load behind `current` is all that happens.
    Level::INFO <= LevelFilter::current() && subsys.is_wanted()
}

/// The line that `NCCL_DEBUG=VERSION` and above print once per process.
pub fn version_once() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        let text = concat!("Hawser ", env!("CARGO_PKG_VERSION"), " (NCCL API 2.32.3)");
        tracing::info!(target: VERSION, message = text);
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

/// True if a target is one of this library's: in a program in Rust other crates make events as well.
fn is_ours(target: &str) -> bool {
    target.strip_prefix("hawser").is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_error_is_kept() {
        set_last_error("one");
        warn("two");
        assert_eq!(last_error(), "two");
    }

    #[test]
    fn only_targets_of_the_library_are_its_own() {
        assert!(is_ours("hawser") && is_ours("hawser::net"));
        assert!(!is_ours("hawsers") && !is_ours("hyper::hawser"));
    }
}
