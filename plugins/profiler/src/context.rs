//! A communicator that is watched.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use hawser_plugin::profiler::{
    Event, EventHandle, EventMask, EventState, ProfilerConfig, ProfilerContext, StateArgs,
};
use hawser_plugin::{Log, Subsys};
use rustc_hash::FxHashSet;
use rustix::time::{ClockId, clock_gettime};

use crate::count::Counts;
use crate::describe::{KINDS, index};
use crate::expose::Figures;
use crate::file::TraceFile;
use crate::metrics::Member;
use crate::record::{Place, Record, dropped_line, place_line, process_line, rank_line, thread_lines};
use crate::settings::host;
use crate::tree::Tree;

/// A communicator, with or without a trace and figures.
pub struct Context {
    mask: EventMask,
    log: Log,
    label: String,
    counts: Mutex<Counts>,
    /// Events that are in the counts and not in the trace.
    dropped: AtomicU64,
    watched: Option<Watched>,
}

/// A communicator whose events are followed to their ends.
struct Watched {
    tree: Mutex<Tree>,
    last_event: Arc<AtomicU64>,
    ranks: u32,
    trace: Option<Trace>,
    metrics: Option<(Arc<Figures>, Member)>,
}

struct Trace {
    file: Arc<TraceFile>,
    process: u32,
    /// The threads that have a name in the trace.
    threads: Mutex<FxHashSet<u32>>,
}

/// The places to which a communicator's events go.
pub struct Outlets {
    /// The trace.
    pub file: Option<Arc<TraceFile>>,
    /// The figures of the process.
    pub figures: Option<Arc<Figures>>,
}

impl Context {
    /// `number` tells the communicators of this process apart.
    pub fn new(
        config: &ProfilerConfig,
        mask: EventMask,
        outlets: Outlets,
        number: u64,
        last_event: Arc<AtomicU64>,
    ) -> Self {
        let id = config.comm_id;
        let name = config.comm_name.as_ref().map_or(String::new(), |name| format!(" {name:?}"));
        let label = format!("rank {} of {}, communicator{name} {id:#x}", config.rank, config.ranks);
        let process = process_number(number);
        let trace = outlets.file.map(|file| {
            let title = format!("{label}, {} {}", host(), std::process::id());
            file.send_head(process_line(process, &title), TraceFile::deadline());
            file.send_head(rank_line(process, config.rank), TraceFile::deadline());
            file.send_head(place_line(process, config, &Place::own()), TraceFile::deadline());
            Trace { file, process, threads: Mutex::default() }
        });
        let metrics = outlets.figures.map(|figures| {
            let name = config.comm_name.clone().unwrap_or_default();
            let member = Member { id: format!("{id:#x}"), name, rank: config.rank, ranks: config.ranks };
            figures.metrics.communicator(&member, true);
            (figures, member)
        });
        let is_watched = trace.is_some() || metrics.is_some();
        let (tree, ranks) = (Mutex::new(Tree::new(process, mask)), config.ranks);
        let watched = is_watched.then_some(Watched { tree, last_event, ranks, trace, metrics });
        let (counts, dropped) = (Mutex::default(), AtomicU64::new(0));
        Self { mask, log: config.log.clone(), label, counts, dropped, watched }
    }
}

impl ProfilerContext for Context {
    fn mask(&self) -> EventMask {
        self.mask
    }

    fn start(&self, event: &Event<'_>) -> Option<EventHandle> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).add(&event.what);
        let watched = self.watched.as_ref()?;
        if let Some(trace) = &watched.trace {
            trace.name_thread();
        }
        let id = watched.last_event.fetch_add(1, Ordering::Relaxed) + 1;
        let is_kept = watched.tree().start(id, event, thread(), now());
        if let Some((figures, _)) = &watched.metrics {
            match is_kept {
                true => figures.metrics.began(KINDS[index(event.what.kind())].0),
                false => figures.metrics.dropped(),
            }
        }
        if !is_kept {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        is_kept.then_some(EventHandle(id))
    }

    fn stop(&self, event: EventHandle) {
        let Some(watched) = &self.watched else { return };
        let mut done = Vec::new();
        watched.tree().stop(event.0, now(), &mut done);
        let taken = done.into_iter().map(|record| watched.ended(record, TraceFile::send));
        let lost = taken.filter(|taken| !taken).count();
        if lost > 0 {
            self.dropped.fetch_add(lost as u64, Ordering::Relaxed);
        }
    }

    fn record(&self, event: EventHandle, state: EventState, args: StateArgs) {
        if let Some(watched) = &self.watched {
            watched.tree().record(event.0, state, args, now());
        }
    }
}

impl Watched {
    fn tree(&self) -> MutexGuard<'_, Tree> {
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an event that is over; false if the trace could not take it.
    fn ended(&self, record: Record, send: impl FnOnce(&TraceFile, Record) -> bool) -> bool {
        if let Some((figures, _)) = &self.metrics {
            figures.metrics.ended(&record, self.ranks);
        }
        self.trace.as_ref().is_none_or(|trace| send(&trace.file, record))
    }

    /// Takes the events that are left, and writes how many are missing, `before` and here. Gives the latter.
    fn close(&self, before: u64, deadline: Instant) -> u64 {
        let left = self.tree().close(now());
        let send = |file: &TraceFile, record| file.send_late(record, deadline);
        let lost = left.into_iter().map(|record| self.ended(record, send)).filter(|sent| !sent).count();
        let dropped = before + lost as u64;
        if let Some(trace) = self.trace.as_ref().filter(|_| dropped > 0) {
            trace.file.send_line(dropped_line(trace.process, dropped), deadline);
        }
        if let Some((figures, member)) = &self.metrics {
            figures.metrics.communicator(member, false);
        }
        lost as u64
    }
}

impl Trace {
    /// Gives the calling thread its name in the trace, if it has none there yet.
    fn name_thread(&self) {
        thread_local!(static NAMED: Cell<u32> = const { Cell::new(0) });
        // Most threads work for one communicator: they ask no lock.
        if NAMED.replace(self.process) == self.process {
            return;
        }
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let thread = thread();
        if !threads.insert(thread) {
            return;
        }
        let name = std::fs::read_to_string(format!("/proc/self/task/{thread}/comm")).unwrap_or_default();
        let name = format!("{} ({thread})", name.trim());
        // Nothing waits for the writer here; without its name a thread has its number.
        self.file.send_head(thread_lines(self.process, thread, &name, threads.len()), Instant::now());
    }
}

/// Writes what is left and says what there was.
impl Drop for Context {
    fn drop(&mut self) {
        let mut text = format!("profiler: {}: ", self.label);
        text += &self.counts.lock().unwrap_or_else(PoisonError::into_inner).summary();
        let mut dropped = self.dropped.load(Ordering::Relaxed);
        if let Some(watched) = &self.watched {
            let deadline = TraceFile::deadline();
            dropped += watched.close(dropped, deadline);
            if let Some(trace) = &watched.trace {
                if !trace.file.flush(deadline) {
                    self.log.warn("profiler: the trace is not written yet, and is not waited for any longer");
                }
                let lost = trace.file.lost();
                if lost > 0 {
                    text += &format!("; {lost} lines of its file could not be written");
                }
            }
        }
        if dropped > 0 {
            text += &format!("; {dropped} events are not in the trace: ask for fewer kinds");
        }
        self.log.info(Subsys::PROFILE, text);
    }
}

/// Nanoseconds of the monotonic clock, which the processes of a host share.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl Place {
    /// This process, and what its clocks say now.
    fn own() -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let wall = clock_gettime(ClockId::Realtime);
        let realtime = wall.tv_sec as u64 * 1_000_000_000 + wall.tv_nsec as u64;
        // Hosts without that number are told apart by their names.
        let boot = Some(boot.trim()).filter(|boot| !boot.is_empty()).map_or_else(host, str::to_owned);
        Self { host: host(), boot, process: std::process::id(), monotonic: now(), realtime }
    }
}

/// Number of the calling thread.
fn thread() -> u32 {
    thread_local!(static NUMBER: u32 = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs());
    NUMBER.with(|number| *number)
}

/// A communicator's number in the trace: different for those of other processes and hosts, so that traces can
/// be joined.
fn process_number(number: u64) -> u32 {
    let mut text = host().into_bytes();
    text.extend(std::process::id().to_le_bytes());
    text.extend(number.to_le_bytes());
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    let hash = text.iter().fold(0xcbf2_9ce4_8422_2325, step);
    ((hash >> 32) as u32 & 0x7fff_ffff).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_run_and_numbers_differ() {
        let before = now();
        assert!(before > 0 && now() >= before);
        assert_eq!(thread(), thread());
        let other = std::thread::spawn(thread).join().unwrap();
        assert_ne!(thread(), other);
        assert_ne!(process_number(0), process_number(1));
        assert!((0..1000).all(|number| process_number(number) <= i32::MAX as u32));
    }
}
