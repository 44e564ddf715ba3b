//! Ends launches of copy engines that are aborted or late.
//!
//! Streams mark in host memory which launch has begun and which is over; one thread of the process looks at
//! the marks while launches are under way. A launch that lasts longer than the deadline, or whose
//! communicator is aborted, is released: the thread sets every word that this rank's streams may wait for,
//! again and again, until the launches are over. What they move then is worthless, and the communicator is
//! broken.
//!
//! Launches in a graph cannot count, since nobody knows how often they are replayed: with a deadline they set
//! a word at their begin and clear it at their end.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use hawser_base::env;
use hawser_base::error::{Error, ErrorKind, Result};
use hawser_base::lock::lock;
use hawser_device::{Device, MemoryOp, OwnedStream};
use hawser_plan::executor::copy_engine::Bases;

use super::Who;
use crate::transport::control::{Control, Replay};
use crate::transport::net::Stage;

/// The time between two looks at the marks.
const PERIOD: Duration = Duration::from_millis(2);
/// The time for which releases wait for a queue of the GPU before they are made through a context of their
/// own.
const STUCK_AFTER: Duration = Duration::from_millis(30);
/// The time for which a communicator that has gone waits for the last releases.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);
/// The time for which a communicator that goes after an abort waits for replayed graphs, which mark nothing.
const REPLAY_GRACE: Duration = Duration::from_millis(100);

/// The launches of a communicator that the thread watches.
pub struct Watched {
    device: Arc<dyn Device>,
    control: Arc<Control>,
    /// The stream on which releases are put, beside the streams that wait.
    stream: OwnedStream,
    /// The operations that set every word for which this rank's streams may wait.
    release: Vec<MemoryOp>,
    /// The staging for the network, whose slots have words of their own.
    stage: Option<Arc<Stage>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The number of launches so far, which wraps as the marks do.
    issued: u32,
    /// The launches that are not known to be over.
    under_way: VecDeque<Launch>,
    /// The launch that had begun at the last look, and the time at which that was seen first.
    since: Option<(u32, Instant)>,
    /// The latest launch that was captured, if there is a deadline, and the time since which a replay of it
    /// has been under way.
    captured: Option<(Launch, Option<Instant>)>,
    /// The time since which the stream for releases has been stuck.
    stuck: Option<Instant>,
    /// True once the staging may not be touched any more.
    closed: bool,
}

impl State {
    fn waits_for(&self, number: u32) -> bool {
        !self.closed && self.under_way.iter().any(|launch| launch.number == number)
    }
}

struct Launch {
    number: u32,
    /// The communicator, rank and operation, in words for errors.
    who: String,
    peers: Vec<u32>,
}

impl Watched {
    /// Begins to watch the launches of the rank with these bases.
    pub fn start(
        device: Arc<dyn Device>,
        control: Arc<Control>,
        bases: &Bases,
        stage: Option<Arc<Stage>>,
    ) -> Result<Arc<Self>> {
        let words = bases.staging[bases.rank as usize];
        // A rank that is alone on its host has none.
        let bytes = if words == 0 { 0 } else { bases.layout.word_bytes() };
        let release = (0..bytes).step_by(16);
        let release = release.map(|at| MemoryOp::Write { addr: words + at, value: 1 }).collect();
        let stream = device.urgent_stream()?;
        let watched = Arc::new(Self { device, control, stream, release, stage, state: Mutex::default() });
        Watcher::get()?.add(&watched);
        // Replays mark nothing, so nobody else wakes the thread for them.
        watched.control.on_abort(|| drop(Watcher::get().map(Watcher::wake)));
        Ok(watched)
    }

    /// Notes that a launch begins. Returns the operation that its stream does first, if any.
    pub fn begin(&self, who: Who<'_>, peers: Vec<u32>, is_captured: bool) -> Result<Option<MemoryOp>> {
        if is_captured && env::settings().op_timeout.is_none() {
            return Ok(None);
        }
        let mut state = lock(&self.state)?;
        let who = format!(
            "communicator {}, rank {}, {}",
            who.name,
            who.rank,
            crate::op_number::operation(who.op_number)
        );
        let first = if is_captured {
            state.captured = Some((Launch { number: 0, who: format!("{who}, in a graph"), peers }, None));
            MemoryOp::Write { addr: self.control.replay(), value: 1 }
        } else {
            state.issued = state.issued.wrapping_add(1);
            let number = state.issued;
            state.under_way.push_back(Launch { number, who, peers });
            MemoryOp::Write { addr: self.control.marks()[0], value: number }
        };
        drop(state);
        Watcher::get()?.wake();
        Ok(Some(first))
    }

    /// The operation that the stream of the latest launch does last.
    pub fn end(&self, is_captured: bool) -> Option<MemoryOp> {
        if is_captured {
            let op = MemoryOp::Write { addr: self.control.replay(), value: 0 };
            return Some(op).filter(|_| env::settings().op_timeout.is_some());
        }
        let number = self.state().issued;
        Some(MemoryOp::Write { addr: self.control.marks()[1], value: number })
    }

    /// The number of the launch that begins next, and of the latest that is known to be over.
    pub fn next(&self) -> (u32, u32) {
        let issued = self.state().issued;
        (issued.wrapping_add(1), self.control.marked()[1])
    }

    /// Releases what waits, if the communicator is aborted: replayed graphs too, which the thread knows
    /// nothing of.
    pub fn release(&self) {
        if self.control.is_aborted() {
            self.look(None);
        }
    }

    /// Ends the watch, which never touches staging again. Returns false if releases that are on the stream
    /// are not over, and so may still touch it.
    pub fn close(&self) -> bool {
        let begin = Instant::now();
        while self.control.is_aborted() && begin.elapsed() < REPLAY_GRACE {
            self.release();
            std::thread::sleep(PERIOD);
        }
        self.state().closed = true;
        let begin = Instant::now();
        while self.device.is_idle(self.stream.stream).is_ok_and(|idle| !idle) {
            if begin.elapsed() > CLOSE_LIMIT {
                return false;
            }
            std::thread::sleep(PERIOD);
        }
        true
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the marks once, and fails or releases what is late or aborted. Returns whether anything is
    /// left to watch.
    fn look(&self, deadline: Option<Duration>) -> bool {
        let mut state = self.state();
        if state.closed {
            return false;
        }
        let [begun, over] = self.control.marked();
        while state.under_way.front().is_some_and(|launch| launch.number.wrapping_sub(over) as i32 <= 0) {
            state.under_way.pop_front();
        }
        if state.under_way.is_empty() {
            state.since = None;
        } else if begun.wrapping_sub(over) as i32 > 0 {
            match state.since {
                Some((number, since)) if number == begun => {
                    if let Some(limit) = deadline.filter(|limit| since.elapsed() > *limit)
                        && !self.control.is_aborted()
                    {
                        self.control.fail(late(&state.under_way[0], limit));
                    }
                }
                _ => state.since = Some((begun, Instant::now())),
            }
        }
        self.look_at_replays(&mut state, deadline);
        if self.control.is_aborted() {
            self.release_words(&mut state);
            return true;
        }
        !state.under_way.is_empty() || state.captured.is_some()
    }

    fn look_at_replays(&self, state: &mut State, deadline: Option<Duration>) {
        let (Some((launch, since)), Some(limit)) = (&mut state.captured, deadline) else { return };
        match self.control.see_replay() {
            Replay::None => *since = None,
            Replay::New => *since = Some(Instant::now()),
            Replay::Same if since.is_some_and(|since| since.elapsed() > limit) => {
                if !self.control.is_aborted() {
                    self.control.fail(late(launch, limit));
                }
            }
            Replay::Same => {}
        }
    }

    /// Sets all words, unless the operations of the last time are not over: a stream takes only so many.
    /// Errors do not matter: a device that takes no operations is lost, and nothing waits there.
    fn release_words(&self, state: &mut State) {
        if let Some(stage) = &self.stage {
            stage.release();
        }
        let Some(words) = self.device.stream_words() else { return };
        if self.device.is_idle(self.stream.stream).unwrap_or(true) {
            state.stuck = None;
            let _ = words.memory_ops(self.stream.stream, &self.release);
        } else if state.stuck.get_or_insert_with(Instant::now).elapsed() > STUCK_AFTER {
            let _ = words.memory_ops_apart(&self.release);
            state.stuck = None;
        }
    }
}

fn late(launch: &Launch, limit: Duration) -> Error {
    let peers: Vec<String> = launch.peers.iter().map(u32::to_string).collect();
    let text = format!(
        "{}: deadline of {limit:?} passed while copy engines waited for a peer (rank {})",
        launch.who,
        peers.join(" or ")
    );
    Error::new(ErrorKind::Timeout, text).remedy("look at those ranks, or raise HAWSER_OP_TIMEOUT")
}

/// Waits until the launches of all communicators of the process that are under way now are over, as far as is
/// known.
pub fn wait_for_launches() {
    let Ok(watcher) = Watcher::get() else { return };
    let all: Vec<_> = watcher.list.lock().unwrap_or_else(PoisonError::into_inner).0.clone();
    for watched in all {
        let Some(latest) = watched.upgrade().map(|watched| watched.state().issued) else { continue };
        while watched.upgrade().is_some_and(|watched| watched.state().waits_for(latest)) {
            std::thread::sleep(PERIOD);
        }
    }
}

/// The thread of the process that looks at all watched communicators.
#[derive(Default)]
struct Watcher {
    /// The watched communicators, and whether there is something new to look at.
    list: Mutex<(Vec<Weak<Watched>>, bool)>,
    changed: Condvar,
}

impl Watcher {
    /// The thread of this process, which the first call starts.
    fn get() -> Result<&'static Self> {
        static WATCHER: OnceLock<Watcher> = OnceLock::new();
        static STARTED: OnceLock<Option<std::io::ErrorKind>> = OnceLock::new();
        let watcher = WATCHER.get_or_init(Self::default);
        let started = STARTED.get_or_init(|| {
            let thread = std::thread::Builder::new().name("hawser-dma".into());
            thread.spawn(|| watcher.run()).err().map(|error| error.kind())
        });
        match started {
            None => Ok(watcher),
            Some(kind) => Err(Error::system("starting the watch over copy engines", *kind)),
        }
    }

    fn add(&self, watched: &Arc<Watched>) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.0.retain(|watched| watched.strong_count() > 0);
        list.0.push(Arc::downgrade(watched));
    }

    fn wake(&self) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::replace(&mut list.1, true) {
            self.changed.notify_one();
        }
    }

    fn run(&self) {
        let deadline = env::settings().op_timeout;
        loop {
            let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
            while !list.1 {
                list = self.changed.wait(list).unwrap_or_else(PoisonError::into_inner);
            }
            let all: Vec<Arc<Watched>> = list.0.iter().filter_map(Weak::upgrade).collect();
            list.1 = false;
            drop(list);
            let mut busy = false;
            for watched in all {
                busy |= watched.look(deadline);
            }
            if busy {
                self.list.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
                std::thread::sleep(PERIOD);
            }
        }
    }
}
