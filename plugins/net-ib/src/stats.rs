//! Counters of the process: for tests, doctors and the curious.

use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) static BYTES: AtomicU64 = AtomicU64::new(0);
pub(crate) static CHUNKS: AtomicU64 = AtomicU64::new(0);
pub(crate) static RESENT: AtomicU64 = AtomicU64::new(0);
pub(crate) static RAISED: AtomicU64 = AtomicU64::new(0);
pub(crate) static STOPPED: AtomicU64 = AtomicU64::new(0);
pub(crate) static STRANGERS: AtomicU64 = AtomicU64::new(0);

pub(crate) fn add(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}

/// What all connections of the process did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Bytes written, those written again included.
    pub bytes: u64,
    /// Chunks written.
    pub chunks: u64,
    /// Chunks written again.
    pub resent: u64,
    /// Rails that came up, first times included.
    pub raised: u64,
    /// Rails that were stopped.
    pub stopped: u64,
    /// Connections to listeners that were refused.
    pub strangers: u64,
}

/// The counters now.
pub fn stats() -> Stats {
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    Stats {
        bytes: read(&BYTES),
        chunks: read(&CHUNKS),
        resent: read(&RESENT),
        raised: read(&RAISED),
        stopped: read(&STOPPED),
        strangers: read(&STRANGERS),
    }
}
