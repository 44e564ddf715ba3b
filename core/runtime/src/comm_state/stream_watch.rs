//! A watch over signals that streams wait for by themselves.
//!
//! Streams mark in memory of the host which operations they have come to and which are over; a thread of the
//! communicator looks at the marks while there are any. A wait whose rank has died or that is late ends the
//! communicator; once that has ended, whyever, the thread sets the words that streams wait for to what they
//! wait for, again and again, until they have passed.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use hawser_base::error::{Error, Result};
use hawser_device::{HostWords, MemoryOp};

use super::CommState;
use crate::profiling::Span;
use crate::rma::{Awaited, SignalWord};

/// The time between two looks.
const PERIOD: Duration = Duration::from_millis(2);
/// The same where profilers want to know when operations are over.
const SHORT_PERIOD: Duration = Duration::from_micros(50);
/// Bytes from one mark to the other.
const MARK_BYTES: u64 = 64;

/// A signal that a stream waits for: its word, and the number there that lets the stream pass.
#[derive(Clone)]
pub struct StreamWait {
    /// The word.
    pub word: SignalWord,
    /// The number.
    pub number: u32,
    /// The raises that the program waits for.
    pub awaited: Awaited,
}

/// The operations of a communicator that are watched.
pub struct StreamWatch {
    /// The latest operation that a stream has come to, and that is over.
    marks: HostWords,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The operations so far; wraps as marks do.
    issued: u32,
    /// Those that are not known to be over.
    under_way: VecDeque<UnderWay>,
    /// The thread sleeps until it is rung for.
    is_asleep: bool,
    is_closed: bool,
}

struct UnderWay {
    number: u32,
    waits: Vec<StreamWait>,
    /// Bytes are copied into or from windows.
    copies: bool,
    /// The raises there were at the last look that saw a change, and the time of that; from the moment on at
    /// which the stream has come to it.
    seen: Option<(u64, Instant)>,
    /// Their events, which stop when the operations are over.
    events: Vec<Arc<Span>>,
}

impl StreamWatch {
    /// Starts the thread, which ends after [`StreamWatch::close`].
    ///
    /// # Errors
    /// There is no memory or thread left.
    pub fn start(comm: &Arc<CommState>) -> Result<Arc<Self>> {
        let marks = comm.device.host_words(2 * MARK_BYTES)?;
        let watch = Arc::new(Self { marks, state: Mutex::default(), changed: Condvar::new() });
        let (own, weak) = (watch.clone(), Arc::downgrade(comm));
        let spawned = thread::Builder::new().name("hawser-signals".into()).spawn(move || own.run(&weak));
        spawned.map_err(|error| Error::system("starting the watch over signals", error))?;
        Ok(watch)
    }

    /// Watches operations, which copy bytes or not. Answers what their stream does before and after them.
    pub fn begin(&self, waits: Vec<StreamWait>, copies: bool, events: Vec<Arc<Span>>) -> [MemoryOp; 2] {
        let mut state = self.state();
        state.issued = state.issued.wrapping_add(1);
        let number = state.issued;
        state.under_way.push_back(UnderWay { number, waits, copies, seen: None, events });
        if std::mem::take(&mut state.is_asleep) {
            self.changed.notify_one();
        }
        let addr = self.marks.memory.addr;
        [addr, addr + MARK_BYTES].map(|addr| MemoryOp::Write { addr, value: number })
    }

    /// True if an operation that copies bytes is not over.
    pub fn copies(&self) -> bool {
        let over = self.mark(1);
        let is_left = |one: &UnderWay| one.number.wrapping_sub(over) as i32 > 0;
        self.state().under_way.iter().any(|one| one.copies && is_left(one))
    }

    /// The communicator goes: streams pass from now on.
    pub fn close(&self) {
        self.state().is_closed = true;
        self.changed.notify_all();
    }

    /// Lets streams pass.
    pub fn release(&self) {
        self.look(&mut self.state(), None);
    }

    fn run(&self, comm: &Weak<CommState>) {
        loop {
            let mut state = self.state();
            while state.under_way.is_empty() && !state.is_closed {
                state.is_asleep = true;
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            state.is_asleep = false;
            let comm = comm.upgrade();
            let failed = self.look(&mut state, comm.as_deref());
            let is_last = state.under_way.is_empty() && state.is_closed;
            let has_events = state.under_way.iter().any(|one| !one.events.is_empty());
            // Whoever lets go of the communicator last ends it, and closes this.
            drop(state);
            if is_last {
                return;
            }
            if let Some((comm, error)) = comm.as_deref().zip(failed) {
                comm.end_by(&error);
            }
            drop(comm);
            thread::sleep(if has_events { SHORT_PERIOD } else { PERIOD });
        }
    }

    /// Forgets what is over, and lets streams pass if the communicator has ended. Answers why it must end.
    fn look(&self, state: &mut State, comm: Option<&CommState>) -> Option<Error> {
        let [begun, over] = [0, 1].map(|at| self.mark(at));
        while state.under_way.front().is_some_and(|one| one.number.wrapping_sub(over) as i32 <= 0) {
            state.under_way.pop_front();
        }
        let Some(comm) = comm.filter(|comm| !state.is_closed && !comm.has_ended()) else {
            release(state);
            return None;
        };
        let mut begun_ones =
            state.under_way.iter_mut().filter(|one| begun.wrapping_sub(one.number) as i32 >= 0);
        begun_ones.find_map(|one| one.check(comm).err())
    }

    fn mark(&self, which: usize) -> u32 {
        // SAFETY: inside the memory, which `self` keeps; only streams write it.
        let mark = unsafe { &*self.marks.host.add(which * MARK_BYTES as usize).cast::<AtomicU32>() };
        mark.load(Ordering::Acquire)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets streams pass. A peer that is alive may write a smaller number again, so this is done at each look.
fn release(state: &State) {
    for wait in state.under_way.iter().flat_map(|one| &one.waits) {
        if missing(wait) > 0 {
            wait.word.store(wait.number);
        }
    }
}

/// The raises that a wait lacks.
fn missing(wait: &StreamWait) -> u64 {
    let lacks = wait.number.wrapping_sub(wait.word.load()) as i32;
    u64::from(lacks.max(0).cast_unsigned())
}

impl UnderWay {
    /// Fails if one of its waits may not go on.
    fn check(&mut self, comm: &CommState) -> Result<()> {
        let lacks = |wait: &&StreamWait| missing(wait) > 0;
        let Some(wait) = self.waits.iter().find(lacks) else { return Ok(()) };
        let all = self.waits.iter().map(missing).sum();
        let since = match self.seen {
            Some((before, since)) if before == all => since,
            _ => self.seen.insert((all, Instant::now())).1,
        };
        comm.may_wait_for_signal(&wait.awaited, missing(wait), since)
    }
}
