//! The queue of events that the host's threads leave for the thread that follows the events: a list of steps,
//! which takes a lock that is free nearly always, a look at the clock, and a few stores.

use std::cell::Cell;

use hawser_plugin::profiler::{Event, EventHandle, EventState, StateArgs, What};
use rustc_hash::FxHashSet;

use crate::clock::{self, Ticks};

/// Events that are open at the host at most.
const MOST_OPEN: usize = 1 << 14;
/// Steps from which on no event begins, since nobody takes them: each that began has its end here.
const MOST_STEPS: usize = 1 << 16;
/// Steps from which on they are taken at once.
pub const MANY_STEPS: usize = 1 << 12;
/// The most letters of a text.
const MOST_LETTERS: usize = 127;
/// The most texts of an event.
const MOST_TEXTS: usize = 4;

/// The steps of the events of a communicator, in the order in which they came.
#[derive(Default)]
pub struct Steps {
    steps: Vec<Step>,
    started: Vec<Started>,
    /// The texts of started events, one behind the other.
    texts: String,
    /// Threads that began events for the first time: number, name, place among those of the communicator.
    pub threads: Vec<(u32, String, usize)>,
    /// Events that could not be taken.
    pub dropped: u64,
}

struct Step {
    id: u64,
    at: Ticks,
    kind: StepKind,
}

enum StepKind {
    Start,
    Stop,
    State(EventState, StateArgs),
}

/// An event without its texts, whose lengths stand beside it.
struct Started {
    parent: Option<EventHandle>,
    rank: u32,
    thread: u32,
    tag: u64,
    what: What<'static>,
    lengths: [u8; MOST_TEXTS],
}

/// A step as it is read.
pub enum Read<'a> {
    /// An event of a thread begins.
    Start(Event<'a>, u32),
    /// It stops.
    Stop,
    /// It is in a new state.
    State(EventState, StateArgs),
}

/// The steps that nobody has taken yet.
pub struct Queue {
    steps: Steps,
    /// Handles of this communicator begin here.
    base: u64,
    last: u64,
    open: usize,
    last_thread: u32,
    threads: FxHashSet<u32>,
}

impl Queue {
    /// An empty queue; handles are numbers above `base`.
    pub fn new(base: u64) -> Self {
        let (steps, threads) = (Steps::default(), FxHashSet::default());
        Self { steps, base, last: 0, open: 0, last_thread: 0, threads }
    }

    /// An event begins; None if there are too many.
    pub fn start(&mut self, event: &Event<'_>) -> Option<EventHandle> {
        let steps = &mut self.steps;
        if self.open >= MOST_OPEN || steps.steps.len() >= MOST_STEPS {
            steps.dropped += 1;
            return None;
        }
        let thread = thread();
        if thread != self.last_thread {
            self.name_thread(thread);
        }
        self.open += 1;
        self.last += 1;
        let id = self.base + self.last;
        self.steps.start(id, event, thread);
        Some(EventHandle(id))
    }

    /// An event stops.
    pub fn stop(&mut self, EventHandle(id): EventHandle) {
        self.open = self.open.saturating_sub(1);
        self.steps.steps.push(Step { id, at: clock::now(), kind: StepKind::Stop });
    }

    /// An event is in a new state.
    pub fn record(&mut self, EventHandle(id): EventHandle, state: EventState, args: StateArgs) {
        let steps = &mut self.steps.steps;
        if steps.len() < MOST_STEPS {
            steps.push(Step { id, at: clock::now(), kind: StepKind::State(state, args) });
        }
    }

    /// True for one step in many: those that wait are to be taken soon.
    pub fn is_filling(&self) -> bool {
        self.steps.steps.len() % MANY_STEPS == MANY_STEPS - 1
    }

    /// Takes all steps, and goes on with an empty list.
    pub fn take(&mut self, empty: Steps) -> Steps {
        std::mem::replace(&mut self.steps, empty)
    }

    fn name_thread(&mut self, thread: u32) {
        self.last_thread = thread;
        if self.threads.insert(thread) {
            let name = std::fs::read_to_string(format!("/proc/self/task/{thread}/comm")).unwrap_or_default();
            self.steps.threads.push((thread, name.trim().to_owned(), self.threads.len()));
        }
    }
}

impl Steps {
    fn start(&mut self, id: u64, event: &Event<'_>, thread: u32) {
        let (mut lengths, mut count) = ([0; MOST_TEXTS], 0);
        let what = with_texts(&event.what, |text| {
            let text = &text[..text.floor_char_boundary(MOST_LETTERS)];
            if let Some(length) = lengths.get_mut(count) {
                self.texts.push_str(text);
                *length = text.len() as u8;
            }
            count += 1;
            ""
        });
        let Event { parent, rank, tag, .. } = *event;
        self.started.push(Started { parent, rank, thread, tag, what, lengths });
        self.steps.push(Step { id, at: clock::now(), kind: StepKind::Start });
    }

    /// Hands every step on, with its event and its time.
    pub fn read(&self, mut each: impl FnMut(u64, Ticks, Read<'_>)) {
        let (mut started, mut texts) = (self.started.iter(), self.texts.as_str());
        for Step { id, at, kind } in &self.steps {
            let read = match kind {
                StepKind::Stop => Read::Stop,
                StepKind::State(state, args) => Read::State(*state, *args),
                StepKind::Start => {
                    let Some(Started { parent, rank, thread, tag, what, lengths }) = started.next() else {
                        continue;
                    };
                    let mut lengths = lengths.iter();
                    let what = with_texts(what, |_| {
                        let length = lengths.next().map_or(0, |length| usize::from(*length));
                        let (text, rest) = texts.split_at_checked(length).unwrap_or_default();
                        texts = rest;
                        text
                    });
                    Read::Start(Event { parent: *parent, rank: *rank, what, tag: *tag }, *thread)
                }
            };
            each(*id, *at, read);
        }
    }

    /// Forgets everything, and keeps the room.
    pub fn clear(&mut self) {
        let Self { steps, started, texts, threads, dropped } = self;
        steps.clear();
        started.clear();
        texts.clear();
        threads.clear();
        *dropped = 0;
    }

    /// True if nothing has come.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.dropped == 0
    }
}

/// The same event with other texts. Kinds of newer hosts have none that are known here.
fn with_texts<'a, 'b>(what: &What<'a>, mut of: impl FnMut(&'a str) -> &'b str) -> What<'b> {
    match *what {
        What::Coll { seq, func, send, recv, count, root, datatype, channels, warps, algo, proto, group } => {
            let (func, datatype, algo, proto) = (of(func), of(datatype), of(algo), of(proto));
            What::Coll { seq, func, send, recv, count, root, datatype, channels, warps, algo, proto, group }
        }
        What::P2p { func, buff, datatype, count, peer, channels, group } => {
            What::P2p { func: of(func), buff, datatype: of(datatype), count, peer, channels, group }
        }
        What::CollApi { func, count, datatype, root, stream, captured } => {
            What::CollApi { func: of(func), count, datatype: of(datatype), root, stream, captured }
        }
        What::P2pApi { func, count, datatype, stream, captured } => {
            What::P2pApi { func: of(func), count, datatype: of(datatype), stream, captured }
        }
        What::CeColl { seq, func, send, recv, count, root, datatype, stream } => {
            let (func, datatype) = (of(func), of(datatype));
            What::CeColl { seq, func, send, recv, count, root, datatype, stream }
        }
        What::KernelPhase { channel, phase, name, timer } => {
            What::KernelPhase { channel, phase, name: of(name), timer }
        }
        What::Group => What::Group,
        What::ProxyCtrl => What::ProxyCtrl,
        What::ProxyOp { pid, channel, peer, steps, chunk_bytes, is_send } => {
            What::ProxyOp { pid, channel, peer, steps, chunk_bytes, is_send }
        }
        What::ProxyStep { step } => What::ProxyStep { step },
        What::KernelCh { channel, timer } => What::KernelCh { channel, timer },
        What::NetPlugin { id, data } => What::NetPlugin { id, data },
        What::GroupApi { depth, captured } => What::GroupApi { depth, captured },
        What::KernelLaunch { stream } => What::KernelLaunch { stream },
        What::CeSync { complete, ranks } => What::CeSync { complete, ranks },
        What::CeBatch { ops, bytes, intra_sync } => What::CeBatch { ops, bytes, intra_sync },
        _ => What::Group,
    }
}

/// The number of the calling thread.
fn thread() -> u32 {
    thread_local!(static NUMBER: Cell<u32> = const { Cell::new(0) });
    NUMBER.with(|number| {
        if number.get() == 0 {
            number.set(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs());
        }
        number.get()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn coll<'a>(func: &'a str, proto: &'a str) -> What<'a> {
        What::Coll {
            seq: 1,
            func,
            send: 2,
            recv: 3,
            count: 4,
            root: 5,
            datatype: "ncclFloat32",
            channels: 6,
            warps: 7,
            algo: "RING",
            proto,
            group: Some(EventHandle(8)),
        }
    }

    #[test]
    fn steps_come_out_as_they_went_in() {
        let mut queue = Queue::new(1 << 40);
        let all = [
            coll("AllReduce", "LL128"),
            What::KernelCh { channel: 1, timer: 2 },
            What::CollApi { func: "a", count: 1, datatype: "b", root: 2, stream: 3, captured: true },
            What::KernelPhase { channel: 1, phase: 2, name: "phase", timer: 3 },
        ];
        let events = all.map(|what| Event { parent: Some(EventHandle(9)), rank: 3, what, tag: 11 });
        let handles = events.each_ref().map(|event| queue.start(event).unwrap());
        queue.record(handles[1], EventState::KERNEL_CH_STOP, StateArgs::Timer(5));
        queue.stop(handles[0]);
        let steps = queue.take(Steps::default());
        let (mut seen, mut threads) = (Vec::new(), Vec::new());
        steps.read(|id, _, read| match read {
            Read::Start(event, of) => {
                assert_eq!((EventHandle(id), &event), (handles[seen.len()], &events[seen.len()]));
                threads.push(of);
                seen.push(format!("{event:?}"));
            }
            Read::Stop => assert_eq!(EventHandle(id), handles[0]),
            Read::State(state, args) => {
                assert_eq!((EventHandle(id), state), (handles[1], EventState::KERNEL_CH_STOP));
                assert_eq!(args, StateArgs::Timer(5));
            }
        });
        assert_eq!((seen.len(), threads), (4, vec![thread(); 4]));
        assert_eq!(steps.threads.len(), 1, "the thread has a name");
        assert!(queue.take(Steps::default()).is_empty());
    }

    #[test]
    fn long_texts_are_cut_between_letters() {
        let mut queue = Queue::new(0);
        let long = "ä".repeat(200);
        queue.start(&Event { parent: None, rank: 0, what: coll(&long, "LL"), tag: 0 }).unwrap();
        queue.take(Steps::default()).read(|_, _, read| {
            let Read::Start(event, _) = read else { panic!() };
            assert_eq!(event.what, coll(&long[..126], "LL"));
        });
    }

    #[test]
    fn a_list_that_nobody_takes_ends_and_has_all_stops() {
        let mut queue = Queue::new(0);
        let event = Event { parent: None, rank: 0, what: What::Group, tag: 0 };
        let mut kept = 0;
        for _ in 0..2 * MOST_STEPS {
            if let Some(handle) = queue.start(&event) {
                queue.stop(handle);
                kept += 1;
            }
        }
        let steps = queue.take(Steps::default());
        assert_eq!((kept, steps.dropped), (MOST_STEPS / 2, 3 * MOST_STEPS as u64 / 2));
        let mut stops = 0;
        steps.read(|_, _, read| stops += usize::from(matches!(read, Read::Stop)));
        assert_eq!(stops, kept);
        assert!(queue.start(&event).is_some());
    }
}
