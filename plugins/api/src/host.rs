//! The services of a host to its plugins: a log, and calls for events that the host acts on.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// The urgency of a log line. The numbers are NCCL's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
#[allow(missing_docs)] // NCCL's names
pub enum Level {
    Version = 1,
    Warn = 2,
    Info = 3,
    Abort = 4,
    Trace = 5,
}

/// The part of the library that a line is about. The bits are those of `NCCL_DEBUG_SUBSYS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subsys(pub u64);

#[allow(missing_docs)] // NCCL's names
impl Subsys {
    pub const INIT: Self = Self(1);
    pub const COLL: Self = Self(2);
    pub const P2P: Self = Self(4);
    pub const NET: Self = Self(0x10);
    pub const TUNING: Self = Self(0x40);
    pub const ENV: Self = Self(0x80);
    pub const PROXY: Self = Self(0x400);
    pub const REG: Self = Self(0x2000);
    pub const PROFILE: Self = Self(0x4000);
    pub const ALL: Self = Self(u64::MAX);
}

/// The host's side of [`Log`]: it hears what plugins say. A plugin reaches it through [`Log`]. No call may
/// wait; any thread may call.
pub trait Listener: Send + Sync {
    /// A line for the log.
    fn line(&self, level: Level, subsys: Subsys, text: &str);

    /// A plugin has lost something and goes on with the rest, so that operations take longer than before.
    /// `what` says it in words. Without a body of its own, a host only writes that to its log.
    fn stress(&self, what: &str) {
        self.line(Level::Info, Subsys::NET, what);
    }

    /// A net counts something of one of its rails; hosts that keep no figures forget it.
    fn count(&self, net: &str, rail: &str, what: &str, by: u64) {
        let _ = (net, rail, what, by);
    }

    /// The figures of the host's process at this moment; hosts that keep none give none.
    fn figures(&self) -> Vec<Figure> {
        Vec::new()
    }
}

/// A figure of the host's process, such as the bytes that a rail carried.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Figure {
    /// Its name in Prometheus's style.
    pub name: String,
    /// Keys and values of its labels.
    pub labels: Vec<(String, String)>,
    /// The value.
    pub value: u64,
    /// True if it only grows; else it rises and falls.
    pub is_sum: bool,
}

impl Figure {
    /// A figure that only grows, or one that rises and falls.
    pub fn new(name: String, labels: Vec<(String, String)>, value: u64, is_sum: bool) -> Self {
        Self { name, labels, value, is_sum }
    }
}

/// A host that takes lines and nothing else.
struct Lines<F>(F);

impl<F: Fn(Level, Subsys, &str) + Send + Sync> Listener for Lines<F> {
    fn line(&self, level: Level, subsys: Subsys, text: &str) {
        (self.0)(level, subsys, text);
    }
}

/// The way from a plugin to its host: log lines and events. Cheap to clone.
///
/// Blocking: no. Thread: any.
#[derive(Clone)]
pub struct Log(Arc<dyn Listener>);

impl Log {
    /// A log that hands lines to `sink`, those about events too.
    pub fn new(sink: impl Fn(Level, Subsys, &str) + Send + Sync + 'static) -> Self {
        Self::to(Lines(sink))
    }

    /// A log that hands lines and events to a host.
    pub fn to(listener: impl Listener + 'static) -> Self {
        Self(Arc::new(listener))
    }

    /// A log that drops everything.
    pub fn silent() -> Self {
        Self::new(|_, _, _| {})
    }

    /// Writes one line.
    pub fn line(&self, level: Level, subsys: Subsys, text: &str) {
        self.0.line(level, subsys, text);
    }

    /// Writes a line that the user should see.
    pub fn warn(&self, text: impl AsRef<str>) {
        self.line(Level::Warn, Subsys::ALL, text.as_ref());
    }

    /// Writes a line for those who ask for it.
    pub fn info(&self, subsys: Subsys, text: impl AsRef<str>) {
        self.line(Level::Info, subsys, text.as_ref());
    }

    /// Tells the host that a net has lost something and goes on with the rest, so that operations take longer
    /// than before. The host logs it, and those who learn from measured times hear of it.
    pub fn stress(&self, what: impl AsRef<str>) {
        self.0.stress(what.as_ref());
    }

    /// For nets: adds to a count of one of the net's rails, such as `resent_chunks`. The host shows it to
    /// profilers and tools as `rail_resent_chunks_total`.
    pub fn count(&self, net: &str, rail: &str, what: &str, by: u64) {
        self.0.count(net, rail, what, by);
    }

    /// For profilers: the figures of the host's process at this moment. NCCL keeps none.
    pub fn figures(&self) -> Vec<Figure> {
        self.0.figures()
    }
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Log")
    }
}

/// NCCL's callback through which a net plugin reports events to profiler plugins: `(event handle, type (start
/// 0, stop 1, update 2, update and stop 3), parent handle, plugin id, payload)`, 0 on success.
pub type NetProfiler = unsafe extern "C" fn(*mut *mut c_void, c_int, *mut c_void, i64, *mut c_void) -> c_int;

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// A host that keeps what it hears.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<String>>>);

    impl Listener for Kept {
        fn line(&self, level: Level, _: Subsys, text: &str) {
            self.0.lock().unwrap().push(format!("{level:?} {text}"));
        }

        fn stress(&self, what: &str) {
            self.0.lock().unwrap().push(format!("stress {what}"));
        }
    }

    #[test]
    fn stress_is_an_event_and_for_others_a_line() {
        let kept = Kept::default();
        let log = Log::to(kept.clone());
        log.warn("a");
        log.stress("a rail is lost");
        let lines = kept.clone();
        Log::new(move |level, subsys, text| lines.line(level, subsys, text)).stress("b");
        assert_eq!(kept.0.lock().unwrap()[..], ["Warn a", "stress a rail is lost", "Info b"]);
    }

    #[test]
    fn a_host_without_figures_has_none() {
        let log = Log::silent();
        log.count("IB", "mlx5_0", "resent_chunks", 3);
        assert!(log.figures().is_empty());
    }
}
