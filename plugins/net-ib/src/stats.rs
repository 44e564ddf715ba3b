//! Counters: of the process, and of each rail that exists. For tests, doctors and the curious.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::port::lock;

/// Completions that latencies are taken of: the last ones of a rail.
const WINDOW: usize = 256;

pub(crate) static BYTES: AtomicU64 = AtomicU64::new(0);
pub(crate) static CHUNKS: AtomicU64 = AtomicU64::new(0);
pub(crate) static RESENT: AtomicU64 = AtomicU64::new(0);
pub(crate) static RAISED: AtomicU64 = AtomicU64::new(0);
pub(crate) static STOPPED: AtomicU64 = AtomicU64::new(0);
pub(crate) static STRANGERS: AtomicU64 = AtomicU64::new(0);

static RAILS: Mutex<Vec<Weak<RailCounters>>> = Mutex::new(Vec::new());

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}

/// The counters of all connections of the process.
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

/// The counters of one rail of one connection of the process.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RailStats {
    /// `sender to 10.0.0.1`.
    pub connection: String,
    /// `mlx5_0:1–mlx5_1:1`: local and remote port.
    pub rail: String,
    /// It carries data now.
    pub up: bool,
    /// Bytes written on it, those written again included.
    pub bytes: u64,
    /// Chunks written on it.
    pub chunks: u64,
    /// Chunks that it lost: they were written again elsewhere, or here later.
    pub lost: u64,
    /// The number of times that the rail came up, the first time included.
    pub raised: u64,
    /// The number of times that the rail was stopped.
    pub stopped: u64,
    /// From posting a chunk to its completion.
    pub latency: Option<Latency>,
}

/// Times of the last completions of a rail, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Latency {
    /// The number of completions that were measured: 256 at most.
    pub count: usize,
    /// Half of them were quicker.
    pub median: u32,
    /// One of a hundred was slower.
    pub slow: u32,
    /// The slowest.
    pub largest: u32,
}

/// The rails of all connections that exist now.
pub fn rails() -> Vec<RailStats> {
    let rails = RAILS.lock().unwrap_or_else(PoisonError::into_inner);
    rails.iter().filter_map(Weak::upgrade).map(|rail| rail.read()).collect()
}

impl std::fmt::Display for RailStats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { bytes, chunks, lost, raised, stopped, .. } = self;
        write!(
            f,
            "{bytes} bytes in {chunks} chunks, {lost} lost, up {raised} times, stopped {stopped} times"
        )?;
        let Some(Latency { count, median, slow, largest }) = self.latency else { return Ok(()) };
        write!(f, ", last {count} completions: median {median} µs, 99 % {slow} µs, largest {largest} µs")
    }
}

/// The counters that a rail keeps while it works.
#[derive(Debug)]
pub(crate) struct RailCounters {
    connection: String,
    rail: String,
    up: AtomicBool,
    bytes: AtomicU64,
    chunks: AtomicU64,
    lost: AtomicU64,
    raised: AtomicU64,
    stopped: AtomicU64,
    window: Mutex<Window>,
}

/// The last latencies, as a ring.
#[derive(Debug, Default)]
struct Window {
    times: Vec<u32>,
    next: usize,
}

impl RailCounters {
    /// Counters that [`rails`] tells of as long as they live.
    pub fn new(connection: &str, rail: &str) -> Arc<Self> {
        let counters = Arc::new(Self {
            connection: connection.to_owned(),
            rail: rail.to_owned(),
            up: AtomicBool::new(false),
            bytes: AtomicU64::new(0),
            chunks: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            raised: AtomicU64::new(0),
            stopped: AtomicU64::new(0),
            window: Mutex::default(),
        });
        let mut rails = RAILS.lock().unwrap_or_else(PoisonError::into_inner);
        rails.retain(|rail| rail.strong_count() > 0);
        rails.push(Arc::downgrade(&counters));
        counters
    }

    /// Counts a chunk that was written.
    pub fn wrote(&self, bytes: u64) {
        for (own, all, number) in [(&self.bytes, &BYTES, bytes), (&self.chunks, &CHUNKS, 1)] {
            add(own, number);
            add(all, number);
        }
    }

    /// Counts that the rail came up, or was stopped.
    pub fn changed(&self, up: bool) {
        self.up.store(up, Ordering::Relaxed);
        let (own, all) = if up { (&self.raised, &RAISED) } else { (&self.stopped, &STOPPED) };
        add(own, 1);
        add(all, 1);
    }

    /// So many chunks were lost since it came up first. Returns those that are new.
    pub fn lost(&self, total: u64) -> u64 {
        let before = self.lost.load(Ordering::Relaxed);
        let new = total.saturating_sub(before);
        if new > 0 {
            self.lost.store(total, Ordering::Relaxed);
            add(&RESENT, new);
        }
        new
    }

    /// A chunk took so many microseconds.
    pub fn took(&self, micros: u64) {
        let mut window = lock(&self.window);
        let time = u32::try_from(micros).unwrap_or(u32::MAX);
        if window.times.len() < WINDOW {
            window.times.push(time);
        } else {
            let next = window.next;
            window.times[next] = time;
            window.next = (next + 1) % WINDOW;
        }
    }

    /// The counters as the user sees them.
    pub fn read(&self) -> RailStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut times = Vec::with_capacity(WINDOW);
        for &time in &lock(&self.window).times {
            times.insert(times.partition_point(|other| *other <= time), time);
        }
        let latency = times.last().map(|&largest| {
            let slow = times[times.len() * 99 / 100];
            Latency { count: times.len(), median: times[times.len() / 2], slow, largest }
        });
        RailStats {
            connection: self.connection.clone(),
            rail: self.rail.clone(),
            up: self.up.load(Ordering::Relaxed),
            bytes: get(&self.bytes),
            chunks: get(&self.chunks),
            lost: get(&self.lost),
            raised: get(&self.raised),
            stopped: get(&self.stopped),
            latency,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rail_is_told_of_while_it_lives_and_its_window_moves_on() {
        let counters = RailCounters::new("test of stats", "a–b");
        counters.wrote(100);
        counters.wrote(50);
        counters.changed(true);
        counters.lost(3);
        for micros in 0..2 * WINDOW as u64 {
            counters.took(micros);
        }
        let find = || rails().into_iter().find(|rail| rail.connection == "test of stats");
        let rail = find().unwrap();
        assert_eq!((rail.bytes, rail.chunks, rail.lost, rail.raised, rail.stopped), (150, 2, 3, 1, 0));
        let latency = rail.latency.unwrap();
        assert_eq!((latency.count, latency.median, latency.largest), (256, 384, 511));
        assert!(rail.up && rail.to_string().contains("largest 511 µs"), "{rail}");
        drop(counters);
        assert_eq!(find(), None);
    }
}
