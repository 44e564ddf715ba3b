//! What the host offers to a plugin.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// How urgent a log line is (the numbers are NCCL's).
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

/// Which part of the library a line is about: bits of `NCCL_DEBUG_SUBSYS`.
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
    /// Not NCCL's; see [`Log::stress`].
    pub const STRESS: Self = Self(1 << 62);
    pub const ALL: Self = Self(u64::MAX);
}

/// Where a plugin's log lines go. Cheap to clone.
///
/// Blocking: no. Thread: any.
#[derive(Clone)]
pub struct Log(Arc<Sink>);

/// Takes level, subsystem and a line.
type Sink = dyn Fn(Level, Subsys, &str) + Send + Sync;

impl Log {
    /// A log that hands lines to `sink`.
    pub fn new(sink: impl Fn(Level, Subsys, &str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(sink))
    }

    /// A log that drops everything.
    pub fn silent() -> Self {
        Self::new(|_, _, _| {})
    }

    /// One line.
    pub fn line(&self, level: Level, subsys: Subsys, text: &str) {
        (self.0)(level, subsys, text);
    }

    /// A line that the user should see.
    pub fn warn(&self, text: impl AsRef<str>) {
        self.line(Level::Warn, Subsys::ALL, text.as_ref());
    }

    /// A line for those who ask for it.
    pub fn info(&self, subsys: Subsys, text: impl AsRef<str>) {
        self.line(Level::Info, subsys, text.as_ref());
    }

    /// A line of a net that says what it has lost while it goes on with the rest: hosts that learn from measured times take
    /// them for other times than before.
    pub fn stress(&self, text: impl AsRef<str>) {
        self.line(Level::Info, Subsys(Subsys::NET.0 | Subsys::STRESS.0), text.as_ref());
    }
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Log")
    }
}

/// NCCL's callback through which a net plugin reports events to profiler plugins: `(event handle, type (start 0,
/// stop 1, update 2, update and stop 3), parent handle, plugin id, payload)`, 0 on success.
pub type NetProfiler = unsafe extern "C" fn(*mut *mut c_void, c_int, *mut c_void, i64, *mut c_void) -> c_int;
