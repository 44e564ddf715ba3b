//! A communicator whose events are followed to their ends, for a trace, for figures, or for both.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use hawser_plugin::profiler::{Event, EventHandle, EventMask, EventState, ProfilerConfig, StateArgs};

use crate::clock::{Clock, monotonic};
use crate::count::Counts;
use crate::describe::{KINDS, index};
use crate::expose::Figures;
use crate::file::{SEPARATOR, TraceFile};
use crate::metrics::Member;
use crate::queue::{Queue, Read, Steps};
use crate::record::{Place, Record, dropped_line, process_line, rank_line, thread_lines};
use crate::settings::host;
use crate::tree::Tree;

/// Bytes of lines that are handed to the writer at once.
const BATCH_BYTES: usize = 256 << 10;
/// Bits of a handle that count the events of a communicator.
const EVENT_BITS: u32 = 40;

/// The places to which a communicator's events go.
pub struct Outlets {
    /// The trace.
    pub file: Option<Arc<TraceFile>>,
    /// The figures of the process.
    pub figures: Option<Arc<Figures>>,
}

/// A communicator whose events are followed.
pub struct Watched {
    queue: Mutex<Queue>,
    followed: Mutex<Followed>,
    ranks: u32,
    trace: Option<Trace>,
    metrics: Option<(Arc<Figures>, Member)>,
}

struct Trace {
    file: Arc<TraceFile>,
    process: u32,
}

/// The state of the events whose steps were taken.
struct Followed {
    tree: Tree,
    clock: Clock,
    counts: Counts,
    /// Events that are in the counts and not in the trace.
    dropped: u64,
    /// An empty list, for the next steps.
    spare: Steps,
}

/// The sums of a communicator that is closed.
pub struct Closed {
    /// The number of events of each kind and function, as a line.
    pub counts: String,
    /// Events that are not in the trace.
    pub dropped: u64,
    /// False if the trace is not written yet.
    pub is_written: bool,
    /// Lines of the file that could not be written.
    pub lost: u64,
}

impl Watched {
    /// A communicator with places for its events; None if there are none. `number` tells the communicators of
    /// this process apart.
    pub fn new(
        config: &ProfilerConfig,
        mask: EventMask,
        outlets: Outlets,
        number: u64,
        label: &str,
    ) -> Option<Self> {
        let process = process_number(number);
        let trace = outlets.file.map(|file| {
            let title = format!("{label}, {} {}", host(), std::process::id());
            file.send_head(process_line(process, &title, config, &Place::own()), TraceFile::deadline());
            file.send_head(rank_line(process, config.rank), TraceFile::deadline());
            Trace { file, process }
        });
        let metrics = outlets.figures.map(|figures| {
            let (id, name) = (config.comm_id, config.comm_name.clone().unwrap_or_default());
            let member = Member { id: format!("{id:#x}"), name, rank: config.rank, ranks: config.ranks };
            figures.metrics.communicator(&member, true);
            (figures, member)
        });
        if trace.is_none() && metrics.is_none() {
            return None;
        }
        let followed = Followed {
            tree: Tree::new(process, mask),
            clock: Clock::new(),
            counts: Counts::default(),
            dropped: 0,
            spare: Steps::default(),
        };
        let queue = Queue::new(number << EVENT_BITS);
        Some(Self {
            queue: Mutex::new(queue),
            followed: Mutex::new(followed),
            ranks: config.ranks,
            trace,
            metrics,
        })
    }

    /// An event begins; None if there are too many. The flag says that the steps should be taken soon.
    pub fn start(&self, event: &Event<'_>) -> (Option<EventHandle>, bool) {
        let mut queue = lock(&self.queue);
        (queue.start(event), queue.is_filling())
    }

    /// An event stops.
    pub fn stop(&self, event: EventHandle) {
        lock(&self.queue).stop(event);
    }

    /// An event is in a new state.
    pub fn record(&self, event: EventHandle, state: EventState, args: StateArgs) {
        lock(&self.queue).record(event, state, args);
    }

    /// Takes the steps that have come, and waits for room in the trace until `deadline`; true if there were
    /// any.
    pub fn follow(&self, deadline: Instant) -> bool {
        self.advance(&mut lock(&self.followed), deadline)
    }

    fn advance(&self, followed: &mut Followed, deadline: Instant) -> bool {
        let spare = std::mem::take(&mut followed.spare);
        let mut steps = lock(&self.queue).take(spare);
        // Read after the last step, so that the time of none is later.
        let nanoseconds = followed.clock.advance();
        let any = !steps.is_empty();
        if let Some(trace) = &self.trace {
            for (thread, name, place) in &steps.threads {
                let name = format!("{name} ({thread})");
                trace.file.send_head(thread_lines(trace.process, *thread, &name, *place), deadline);
            }
        }
        if let Some((figures, _)) = &self.metrics {
            figures.metrics.dropped(steps.dropped);
        }
        followed.dropped += steps.dropped;
        let mut done = Done { watched: self, lines: String::new(), count: 0, lost: 0, deadline };
        let Followed { tree, counts, dropped, .. } = followed;
        let mut over = Vec::new();
        steps.read(|id, at, read| {
            let now = nanoseconds(at);
            match read {
                Read::Start(event, thread) => {
                    counts.add(&event.what);
                    let is_kept = tree.start(id, &event, thread, now);
                    *dropped += u64::from(!is_kept);
                    self.began(KINDS[index(event.what.kind())].0, is_kept);
                }
                Read::Stop => tree.stop(id, now, &mut over),
                Read::State(state, args) => tree.record(id, state, args, now),
            }
            over.drain(..).for_each(|record| done.add(&record));
        });
        *dropped += done.end();
        steps.clear();
        followed.spare = steps;
        any
    }

    fn began(&self, kind: &str, is_kept: bool) {
        if let Some((figures, _)) = &self.metrics {
            match is_kept {
                true => figures.metrics.began(kind),
                false => figures.metrics.dropped(1),
            }
        }
    }

    /// Takes the events that are left, also those that are not over, and writes how many are missing.
    pub fn close(&self, deadline: Instant) -> Closed {
        let mut followed = lock(&self.followed);
        self.advance(&mut followed, deadline);
        let mut done = Done { watched: self, lines: String::new(), count: 0, lost: 0, deadline };
        followed.tree.close(monotonic()).iter().for_each(|record| done.add(record));
        followed.dropped += done.end();
        let (counts, dropped) = (followed.counts.summary(), followed.dropped);
        let (mut is_written, mut lost) = (true, 0);
        if let Some(Trace { file, process }) = &self.trace {
            if dropped > 0 {
                file.send_lines(dropped_line(*process, dropped), 1, deadline);
            }
            is_written = file.flush(deadline);
            lost = file.lost();
        }
        if let Some((figures, member)) = &self.metrics {
            figures.metrics.communicator(member, false);
        }
        Closed { counts, dropped, is_written, lost }
    }
}

/// Takes events that are over.
struct Done<'a> {
    watched: &'a Watched,
    /// Lines for the trace.
    lines: String,
    count: u64,
    /// Events that the trace could not take.
    lost: u64,
    deadline: Instant,
}

impl Done<'_> {
    fn add(&mut self, record: &Record) {
        if let Some((figures, _)) = &self.watched.metrics {
            figures.metrics.ended(record, self.watched.ranks);
        }
        if self.watched.trace.is_none() {
            return;
        }
        if !self.lines.is_empty() {
            self.lines.push_str(SEPARATOR);
        }
        record.write_lines(&mut self.lines);
        self.count += 1;
        if self.lines.len() >= BATCH_BYTES {
            self.send();
        }
    }

    fn send(&mut self) {
        let (lines, count) = (std::mem::take(&mut self.lines), std::mem::take(&mut self.count));
        if let Some(trace) = self.watched.trace.as_ref().filter(|_| count > 0)
            && !trace.file.send_lines(lines, count, self.deadline)
        {
            self.lost += count;
        }
    }

    /// Sends what is left; how many events the trace could not take.
    fn end(mut self) -> u64 {
        self.send();
        self.lost
    }
}

impl Place {
    /// This process, and what its clocks say now.
    fn own() -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let wall = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        let realtime = wall.tv_sec as u64 * 1_000_000_000 + wall.tv_nsec as u64;
        // Hosts without that number are told apart by their names.
        let boot = Some(boot.trim()).filter(|boot| !boot.is_empty()).map_or_else(host, str::to_owned);
        Self { host: host(), boot, process: std::process::id(), monotonic: monotonic(), realtime }
    }
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_communicators_differ() {
        assert_ne!(process_number(0), process_number(1));
        assert!((0..1000).all(|number| process_number(number) <= i32::MAX as u32));
    }
}
