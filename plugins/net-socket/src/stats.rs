//! Counters of the whole process, for tests and benchmarks.

use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) static CHUNKS: AtomicU64 = AtomicU64::new(0);
pub(crate) static CHUNK_BYTES: AtomicU64 = AtomicU64::new(0);
pub(crate) static EARLY: AtomicU64 = AtomicU64::new(0);
pub(crate) static INLINE: AtomicU64 = AtomicU64::new(0);
pub(crate) static REPEATED: AtomicU64 = AtomicU64::new(0);
pub(crate) static LOST: AtomicU64 = AtomicU64::new(0);
pub(crate) static REDIALLED: AtomicU64 = AtomicU64::new(0);
pub(crate) static STRANGERS: AtomicU64 = AtomicU64::new(0);

/// The counters of everything that the plugin has done in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Chunks handed to data sockets.
    pub chunks: u64,
    /// Their bytes.
    pub chunk_bytes: u64,
    /// Messages that travelled in control connections.
    pub inline: u64,
    /// Those of them that went before their receive was known.
    pub early: u64,
    /// Chunks that were sent again because their socket was lost.
    pub repeated: u64,
    /// Sockets that were lost.
    pub lost: u64,
    /// Sockets that took the place of a lost one.
    pub redialled: u64,
    /// Connections that were dropped because they did not prove to belong to a handle.
    pub strangers: u64,
}

/// The counters now.
#[doc(hidden)]
pub fn stats() -> Stats {
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    Stats {
        chunks: read(&CHUNKS),
        chunk_bytes: read(&CHUNK_BYTES),
        inline: read(&INLINE),
        early: read(&EARLY),
        repeated: read(&REPEATED),
        lost: read(&LOST),
        redialled: read(&REDIALLED),
        strangers: read(&STRANGERS),
    }
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}
