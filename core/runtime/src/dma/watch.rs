//! Ends launches of copy engines that are aborted or late.
//!
//! Streams mark in host memory which launch has begun and which is over; one thread of the process looks at the marks while
//! launches are under way. A launch that lasts longer than the deadline, or whose communicator is aborted, is released: the
//! thread sets every word that this rank's streams may wait for, again and again, until the launches are over. What they
//! move then is worthless, and the communicator is broken.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use hawser_plan::dma::Bases;

use super::Who;
use crate::comm::lock;
use crate::device::{Device, MemoryOp, OwnedStream};
use crate::env;
use crate::error::{Error, ErrorKind, Result};
use crate::transport::control::Control;
use crate::transport::net::Stage;

/// Time between two looks.
const PERIOD: Duration = Duration::from_millis(2);
/// How long a communicator that goes after an abort waits for replayed graphs, which mark nothing.
const GRAPHS: Duration = Duration::from_millis(100);

/// The launches of one communicator.
pub struct Watched {
    device: Arc<dyn Device>,
    control: Arc<Control>,
    /// Releases, apart from the streams that wait.
    stream: OwnedStream,
    /// Sets every word that this rank waits for.
    release: Vec<MemoryOp>,
    /// Slots that the network carries have words of their own.
    stage: Option<Arc<Stage>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Launches so far; wraps, as the marks do.
    issued: u32,
    /// Those that are not known to be over.
    under_way: VecDeque<Launch>,
    /// The launch that had begun at the last look, and since when.
    since: Option<(u32, Instant)>,
    /// The staging is gone.
    closed: bool,
}

struct Launch {
    number: u32,
    /// For errors.
    who: String,
    peers: Vec<u32>,
}

impl Watched {
    /// Of the rank with these bases.
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

    /// A launch begins; what its stream does first.
    pub fn begin(&self, who: Who<'_>, peers: Vec<u32>) -> Result<MemoryOp> {
        let mut state = lock(&self.state)?;
        state.issued = state.issued.wrapping_add(1);
        let who = format!(
            "communicator {}, rank {}, {}",
            who.name,
            who.rank,
            crate::comm::operation(who.op_number)
        );
        let number = state.issued;
        state.under_way.push_back(Launch { number, who, peers });
        drop(state);
        Watcher::get()?.wake();
        Ok(MemoryOp::Write { addr: self.control.marks()[0], value: number })
    }

    /// What the stream of the latest launch does last.
    pub fn end(&self) -> MemoryOp {
        let number = self.state.lock().unwrap_or_else(PoisonError::into_inner).issued;
        MemoryOp::Write { addr: self.control.marks()[1], value: number }
    }

    /// The number of the launch that begins next, and of the latest that is known to be over.
    pub fn next(&self) -> (u32, u32) {
        let issued = self.state.lock().unwrap_or_else(PoisonError::into_inner).issued;
        (issued.wrapping_add(1), self.control.marked()[1])
    }

    /// Releases what waits, if the communicator is aborted: replayed graphs too, which the thread knows nothing of.
    pub fn release(&self) {
        if self.control.is_aborted() {
            self.look(None);
        }
    }

    /// Never touches staging again.
    pub fn close(&self) {
        let begin = Instant::now();
        while self.control.is_aborted() && begin.elapsed() < GRAPHS {
            self.release();
            std::thread::sleep(PERIOD);
        }
        self.state.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
    }

    /// One look; whether there is anything to look at.
    fn look(&self, deadline: Option<Duration>) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
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
        if self.control.is_aborted() {
            if let Some(stage) = &self.stage {
                stage.release();
            }
            // Not before the last time is over: a stream takes only so much. What cannot be put on a stream any more has
            // nothing to release: the device is lost.
            if self.device.is_idle(self.stream.stream).unwrap_or(true) {
                let _ = self.device.memory_ops(self.stream.stream, &self.release);
            }
            return true;
        }
        !state.under_way.is_empty()
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

/// The thread.
#[derive(Default)]
struct Watcher {
    list: Mutex<(Vec<Weak<Watched>>, bool)>,
    changed: Condvar,
}

impl Watcher {
    /// The one of this process, started if need be.
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
