//! Lines with a pool's figures (`NCCL_CUMEM_MONITOR`).

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use hawser_base::error::{Error, Result};
use hawser_base::figures::{self, Counter};
use hawser_base::log;

use super::Stats;

/// The state that a pool and its monitor share.
pub struct SharedStats {
    name: String,
    figures: Mutex<(Stats, bool)>,
    changed: Condvar,
    /// Committed and used bytes, and refusals, as others read them.
    shown: [Counter; 3],
}

impl SharedStats {
    /// Nothing taken yet.
    pub fn new(name: String) -> Self {
        let device = [("device", name.as_str())];
        let shown = [
            figures::level("pool_committed_bytes", &device),
            figures::level("pool_used_bytes", &device),
            figures::sum("pool_refusals_total", &device),
        ];
        Self { name, figures: Mutex::default(), changed: Condvar::new(), shown }
    }

    /// The figures now.
    pub fn stats(&self) -> Stats {
        self.figures.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    /// New figures.
    pub fn set(&self, stats: Stats) {
        let values = [stats.committed, stats.in_use, stats.refusals];
        self.shown.iter().zip(values).for_each(|(figure, value)| figure.set(value));
        self.figures.lock().unwrap_or_else(PoisonError::into_inner).0 = stats;
    }

    /// Writes a line.
    pub fn write(&self, stats: &Stats, limit: Option<u64>, why: &str) {
        let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
        log::monitor(&format!(
            "MEMORY_POOL {}: committed {}, in use {}, idle {}, peak {}, limit {}, growths {}, trims {}, \
             refusals {} ({why})",
            self.name,
            mib(stats.committed),
            mib(stats.in_use),
            mib(stats.committed - stats.in_use),
            mib(stats.peak),
            limit.map_or_else(|| "none".into(), mib),
            stats.growths,
            stats.trims,
            stats.refusals
        ));
    }
}

/// A thread that writes a line at every interval until it is dropped.
pub struct Monitor {
    shared_stats: Arc<SharedStats>,
    thread: Option<JoinHandle<()>>,
}

impl Monitor {
    /// Starts it.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn start(shared_stats: Arc<SharedStats>, interval: Duration, limit: Option<u64>) -> Result<Self> {
        let seen = shared_stats.clone();
        let thread = std::thread::Builder::new()
            .name("hawser-pool".into())
            .spawn(move || watch(&seen, interval, limit))
            .map_err(|e| Error::system("starting the thread of NCCL_CUMEM_MONITOR", e))?;
        Ok(Self { shared_stats, thread: Some(thread) })
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.shared_stats.figures.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
        self.shared_stats.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn watch(shared_stats: &SharedStats, interval: Duration, limit: Option<u64>) {
    let mut figures = shared_stats.figures.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let waited = shared_stats.changed.wait_timeout_while(figures, interval, |(_, over)| !*over);
        let (guard, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if !timeout.timed_out() {
            return;
        }
        let stats = guard.0;
        drop(guard);
        shared_stats.write(&stats, limit, "interval");
        figures = shared_stats.figures.lock().unwrap_or_else(PoisonError::into_inner);
    }
}
