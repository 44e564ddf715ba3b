//! Events that are not over, and when they are.
//!
//! The host's stop of a collective or message only says that it is enqueued: it is over with its last child
//! (proxy operation or kernel channel), and children begin after that stop. How many kernel channels to wait
//! for is known; where none are reported, a task waits for children until nothing happened to it for a while.
//! If that is in vain again and again, the host is one whose stop is the end, and nobody waits any more,
//! unless a child comes late after all. Children of children count alike. All times are arguments.

use std::collections::VecDeque;

use hawser_plugin::profiler::{Event, EventMask, EventState, StateArgs, What};
use rustc_hash::FxHashMap;

use crate::describe::{self, Value};
use crate::record::Record;

/// Open events at most.
const MOST_OPEN: usize = 1 << 14;
/// Tasks that wait for children at most.
const MOST_WAITING: usize = 1024;
/// Nanoseconds after which a task without open children waits no longer.
const PATIENCE: u64 = 2_000_000_000;
/// So many tasks wait in vain before the others stop waiting.
const VAIN: u32 = 16;
/// States that are kept of an event.
const MOST_STATES: usize = 16;
/// Kinds of children that keep their parent open.
const HOLDING: u64 =
    EventMask::PROXY_OP.0 | EventMask::PROXY_STEP.0 | EventMask::KERNEL_CH.0 | EventMask::NET_PLUGIN.0;

/// The open events of a communicator.
pub struct Tree {
    process: u32,
    /// Some kinds of children of tasks are reported.
    children_come: bool,
    kernels_come: bool,
    open: FxHashMap<u64, Open>,
    /// Stopped tasks that wait for children, oldest first; some are over already.
    waiting: VecDeque<u64>,
    /// Tasks that waited since a child last came after a stop.
    vain: u32,
}

struct Open {
    /// `end` is the latest end so far of itself and its children.
    record: Record,
    /// Children that are not over.
    children: u32,
    /// Kernel channels that did not end yet.
    channels: u32,
    stopped: bool,
    /// The kinds of events that can have children after their stop.
    waits: Waits,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Waits {
    /// Only for children that it has.
    No,
    /// Until all its kernel channels ended.
    ForChannels,
    /// Until nothing happened for a while.
    ForAny,
}

impl Tree {
    /// `mask` says which kinds the host reports.
    pub fn new(process: u32, mask: EventMask) -> Self {
        Self {
            process,
            children_come: mask.0 & HOLDING != 0,
            kernels_come: mask.contains(EventMask::KERNEL_CH),
            open: FxHashMap::default(),
            waiting: VecDeque::new(),
            vain: 0,
        }
    }

    /// An event begins. False: there are too many open ones.
    pub fn start(&mut self, id: u64, event: &Event<'_>, thread: u32, now: u64) -> bool {
        if self.open.len() >= MOST_OPEN {
            return false;
        }
        let kind = event.what.kind();
        let parent = event.parent.map(|parent| parent.0);
        if let Some(parent) = parent.filter(|_| kind.0 & HOLDING != 0) {
            let parent = self.open.get_mut(&parent);
            if parent.as_ref().is_none_or(|parent| parent.stopped) {
                self.vain = 0;
            }
            if let Some(parent) = parent {
                parent.children += 1;
                parent.record.has_children = true;
            }
        }
        let record = Record {
            process: self.process,
            id,
            parent,
            kind: describe::index(kind),
            name: describe::name(&event.what),
            particulars: describe::particulars(event),
            thread,
            start: now,
            end: now,
            states: Vec::new(),
            has_children: false,
            unfinished: false,
        };
        let (channels, waits) = self.waits(&event.what);
        self.open.insert(id, Open { record, children: 0, channels, stopped: false, waits });
        true
    }

    /// For how many channels, and how, an event waits after its stop.
    fn waits(&self, what: &What<'_>) -> (u32, Waits) {
        match *what {
            What::Coll { channels, .. } | What::P2p { channels, .. } if self.kernels_come && channels > 0 => {
                (channels.into(), Waits::ForChannels)
            }
            What::Coll { .. } | What::P2p { .. } if self.children_come => (0, Waits::ForAny),
            _ => (0, Waits::No),
        }
    }

    /// The host's stop. What is over goes to `done`.
    pub fn stop(&mut self, id: u64, now: u64, done: &mut Vec<Record>) {
        let Some(event) = self.open.get_mut(&id).filter(|event| !event.stopped) else { return };
        event.stopped = true;
        event.record.end = event.record.end.max(now);
        if self.vain >= VAIN {
            event.waits = Waits::No;
        }
        if event.waits != Waits::No {
            self.waiting.push_back(id);
        }
        self.finish(id, done);
        self.lose_patience(now, done);
    }

    /// A new state.
    pub fn record(&mut self, id: u64, state: EventState, args: StateArgs, now: u64) {
        let Some(event) = self.open.get_mut(&id) else { return };
        let record = &mut event.record;
        if let StateArgs::Predicted(nanoseconds) = args {
            return record.particulars.push(("predicted_ns", Value::Number(nanoseconds)));
        }
        if record.states.len() < MOST_STATES {
            record.states.push((describe::state(state), now));
        }
        let (name, value) = match args {
            StateArgs::Bytes(bytes) => ("bytes", bytes),
            StateArgs::Appended(operations) => ("appended", operations.into()),
            StateArgs::Timer(timer) => ("gpu_stop_ns", timer),
            _ => return,
        };
        match record.particulars.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = Value::Number(value),
            None => record.particulars.push((name, Value::Number(value))),
        }
    }

    /// Everything that is still open, over or not.
    pub fn close(&mut self, now: u64) -> Vec<Record> {
        self.waiting.clear();
        let mut ids: Vec<u64> = self.open.keys().copied().collect();
        ids.sort_unstable_by_key(|id| std::cmp::Reverse(*id)); // children have larger numbers
        let mut done = Vec::new();
        for id in ids {
            if let Some(event) = self.open.get_mut(&id) {
                if !event.stopped {
                    (event.record.unfinished, event.record.end) = (true, event.record.end.max(now));
                }
                (event.stopped, event.children, event.waits) = (true, 0, Waits::No);
                self.finish(id, &mut done);
            }
        }
        done
    }

    /// Moves an event to `done` if it is over, and then perhaps those above it.
    fn finish(&mut self, id: u64, done: &mut Vec<Record>) {
        let mut next = Some(id);
        while let Some(id) = next.take() {
            let over = self.open.get(&id).is_some_and(Open::is_over);
            let Some(event) = over.then(|| self.open.remove(&id)).flatten() else { return };
            let holds = (HOLDING >> event.record.kind) & 1 == 1;
            let parent = event.record.parent.filter(|_| holds);
            if let Some(above) = parent.and_then(|parent| self.open.get_mut(&parent)) {
                above.children = above.children.saturating_sub(1);
                let is_channel = (EventMask::KERNEL_CH.0 >> event.record.kind) & 1 == 1;
                above.channels = above.channels.saturating_sub(u32::from(is_channel));
                above.record.end = above.record.end.max(event.record.end);
                next = parent;
            }
            done.push(event.record);
        }
    }

    /// Tasks that waited long enough, or are too many, wait only for the children that they have.
    fn lose_patience(&mut self, now: u64, done: &mut Vec<Record>) {
        while let Some(&oldest) = self.waiting.front() {
            let quiet = self.open.get(&oldest).map(|event| now.saturating_sub(event.record.end));
            let keep = quiet.is_some_and(|quiet| quiet < PATIENCE) && self.waiting.len() <= MOST_WAITING;
            if keep {
                return;
            }
            self.waiting.pop_front();
            if let Some(event) = self.open.get_mut(&oldest) {
                event.waits = Waits::No;
                self.vain = self.vain.saturating_add(1);
                self.finish(oldest, done);
            }
        }
    }
}

impl Open {
    fn is_over(&self) -> bool {
        let waits = match self.waits {
            Waits::No => false,
            Waits::ForChannels => self.channels > 0,
            Waits::ForAny => true,
        };
        self.stopped && self.children == 0 && !waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_plugin::profiler::EventHandle;

    fn coll(channels: u8) -> What<'static> {
        What::Coll {
            seq: 0,
            func: "AllReduce",
            send: 0,
            recv: 0,
            count: 0,
            root: 0,
            datatype: "ncclInt8",
            channels,
            warps: 0,
            algo: "RING",
            proto: "LL",
            group: None,
        }
    }

    const OP: What<'static> =
        What::ProxyOp { pid: 0, channel: 0, peer: 0, steps: 0, chunk_bytes: 0, is_send: true };
    const STEP: What<'static> = What::ProxyStep { step: 0 };
    const KERNEL: What<'static> = What::KernelCh { channel: 0, timer: 0 };
    const API: What<'static> = What::GroupApi { depth: 1, captured: false };
    const ALL: EventMask = EventMask(0x7fff);

    struct Probe(Tree, Vec<Record>);

    impl Probe {
        fn new(mask: EventMask) -> Self {
            Self(Tree::new(1, mask), Vec::new())
        }

        fn start(&mut self, id: u64, parent: u64, what: What<'_>, now: u64) -> bool {
            let parent = Some(EventHandle(parent)).filter(|parent| parent.0 != 0);
            self.0.start(id, &Event { parent, rank: 0, what, tag: 0 }, 5, now)
        }

        fn stop(&mut self, id: u64, now: u64) {
            self.0.stop(id, now, &mut self.1);
        }

        /// Events that got over since the last call, with start and end.
        fn over(&mut self) -> Vec<(u64, u64, u64)> {
            self.1.drain(..).map(|record| (record.id, record.start, record.end)).collect()
        }
    }

    #[test]
    fn a_collective_is_over_with_its_last_child() {
        let mut probe = Probe::new(ALL);
        probe.start(1, 0, coll(2), 10);
        probe.stop(1, 11);
        probe.start(2, 1, KERNEL, 20);
        probe.start(3, 1, OP, 21);
        probe.start(4, 3, STEP, 22);
        probe.stop(3, 23);
        probe.stop(2, 30);
        assert_eq!(probe.over(), [(2, 20, 30)]);
        probe.start(5, 1, KERNEL, 31);
        probe.stop(5, 40);
        assert_eq!(probe.over(), [(5, 31, 40)], "the step is not over");
        probe.stop(4, 50);
        assert_eq!(probe.over(), [(4, 22, 50), (3, 21, 50), (1, 10, 50)]);
        assert!(probe.0.open.is_empty());
    }

    #[test]
    fn a_collective_that_stops_last_ends_there() {
        let mut probe = Probe::new(ALL);
        probe.start(1, 0, coll(1), 10);
        probe.start(2, 1, KERNEL, 11);
        probe.stop(2, 12);
        assert_eq!(probe.over(), [(2, 11, 12)]);
        probe.stop(1, 15);
        probe.stop(1, 99);
        assert_eq!(probe.over(), [(1, 10, 15)]);
    }

    #[test]
    fn without_kernel_channels_a_task_waits_for_a_while() {
        let mut probe = Probe::new(EventMask(EventMask::COLL.0 | EventMask::PROXY_OP.0));
        for id in [1, 2] {
            probe.start(id, 0, coll(4), id);
            probe.stop(id, 10 + id);
        }
        probe.start(3, 1, OP, 50);
        assert_eq!(probe.over(), []);
        probe.start(4, 0, API, 60);
        probe.stop(4, PATIENCE + 100);
        assert_eq!(probe.over(), [(4, 60, PATIENCE + 100), (2, 2, 12)]);
        probe.stop(3, PATIENCE + 200);
        assert_eq!(probe.over(), [(3, 50, PATIENCE + 200), (1, 1, PATIENCE + 200)]);
    }

    #[test]
    fn who_waits_in_vain_stops_waiting_until_a_child_is_late() {
        let mut probe = Probe::new(ALL);
        let (mut id, mut now) = (0, 0);
        let mut task = |probe: &mut Probe| {
            (id, now) = (id + 1, now + PATIENCE);
            probe.start(id, 0, coll(2), now);
            probe.stop(id, now);
            (id, probe.over().iter().any(|over| over.0 == id))
        };
        let waited = (0..100).take_while(|_| !task(&mut probe).1).count();
        assert_eq!(waited as u32, VAIN + 1, "those, and the one whose stop shows it");
        let (last, over) = task(&mut probe);
        assert!(over);
        probe.start(1000, last, KERNEL, 0);
        assert!(!task(&mut probe).1, "the late child");
    }

    #[test]
    fn a_task_without_reported_children_is_over_when_it_stops() {
        let mut probe = Probe::new(EventMask::COLL);
        probe.start(1, 0, coll(4), 1);
        probe.stop(1, 2);
        assert_eq!(probe.over(), [(1, 1, 2)]);
    }

    #[test]
    fn calls_do_not_wait_for_what_they_enqueue() {
        let mut probe = Probe::new(ALL);
        probe.start(1, 0, API, 1);
        probe.start(2, 1, coll(1), 2);
        probe.stop(1, 3);
        assert_eq!(probe.over(), [(1, 1, 3)]);
    }

    #[test]
    fn what_is_open_is_bounded() {
        let mut probe = Probe::new(ALL);
        let tasks = MOST_WAITING as u64 + 1;
        for id in 1..=tasks {
            probe.start(id, 0, coll(1), id);
            probe.stop(id, id);
        }
        assert_eq!(probe.over(), [(1, 1, 1)]);
        let mut id = tasks;
        while probe.start(id + 1, 0, STEP, 0) {
            id += 1;
        }
        assert_eq!(probe.0.open.len(), MOST_OPEN);
        assert_eq!(probe.0.close(7).len(), MOST_OPEN);
        assert!(probe.0.open.is_empty() && probe.0.waiting.is_empty());
    }

    #[test]
    fn closing_ends_everything() {
        let mut probe = Probe::new(ALL);
        probe.start(1, 0, coll(2), 1);
        probe.stop(1, 2);
        probe.start(2, 1, OP, 3);
        probe.start(3, 0, API, 4);
        let done = probe.0.close(9);
        let of = |id| done.iter().find(|record| record.id == id).unwrap();
        assert_eq!((of(1).end, of(1).unfinished), (9, false));
        assert_eq!((of(2).end, of(2).unfinished), (9, true));
        assert_eq!((of(3).end, of(3).unfinished), (9, true));
    }

    #[test]
    fn states_are_kept_and_bounded() {
        let mut probe = Probe::new(ALL);
        probe.start(1, 0, STEP, 0);
        for now in 0..100 {
            probe.0.record(1, EventState::SEND_WAIT, StateArgs::Bytes(now), now);
        }
        probe.0.record(1, EventState::KERNEL_CH_STOP, StateArgs::Timer(8), 100);
        probe.0.record(2, EventState::SEND_WAIT, StateArgs::None, 0);
        probe.stop(1, 101);
        let record = probe.1.pop().unwrap();
        assert_eq!(record.states.len(), MOST_STATES);
        assert_eq!(record.states[15], ("send_wait", 15));
        let numbers = [("step", 0), ("bytes", 99), ("gpu_stop_ns", 8)];
        assert_eq!(record.particulars, numbers.map(|(name, number)| (name, Value::Number(number))));
    }
}
