//! One-sided operations of GPUs, in the order of streams.
//!
//! They are carried out by a thread of the communicator, as the host device carries them out in the calling
//! one. The stream calls the host when it comes to them, which hands them to the thread, and waits for a
//! word in memory of the host, which the thread sets when they are over or have failed. So no kernel waits,
//! replays of a graph are calls like others, and abort, deadlines and dead ranks end waits here as they do
//! there.
//!
//! A word is 0 until the thread sets it, and the stream clears it when it has seen it. Then it serves another
//! operation; those of captured ones are used at each replay, and by nobody else.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;

use hawser_base::error::{Error, Result};
use hawser_base::log;
use hawser_device::{Device, HostWords, MemoryOp};

use super::CommState;
use crate::profiling::Span;
use crate::rma::RmaOp;

/// Bytes of memory that words are taken from, and from word to word.
const SLAB_BYTES: u64 = 4096;
const WORD_BYTES: u64 = 64;

/// The thread and words of a communicator for them; lives until no stream waits any more.
pub struct StreamOps {
    state: Mutex<State>,
    rung: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Words that the thread has set for the last time, or nobody has used.
    spent: Vec<Word>,
    slabs: Vec<HostWords>,
    /// Operations that are not over, but for those of graphs.
    under_way: u32,
    is_closed: bool,
}

/// A function of the host that a stream calls.
type Call = Box<dyn Fn() + Send + Sync>;

/// Operations that a stream has come to.
struct Job {
    ops: Arc<[RmaOp]>,
    /// Their events, which stop when they have been carried out.
    _events: Vec<Arc<Span>>,
    word: Word,
    is_captured: bool,
}

/// A word in memory of the host.
#[derive(Clone, Copy)]
struct Word {
    host: *const AtomicU32,
    /// Its address on the device.
    addr: u64,
}

// SAFETY: an address of an atomic in memory that `StreamOps` keeps.
unsafe impl Send for Word {}
// SAFETY: as above.
unsafe impl Sync for Word {}

impl Word {
    /// # Safety
    /// The `StreamOps` that the word is from is alive.
    unsafe fn get(&self) -> &AtomicU32 {
        // SAFETY: the caller's promise; nobody but atomics and streams touch it.
        unsafe { &*self.host }
    }
}

impl StreamOps {
    /// Starts the thread, which ends after [`StreamOps::close`].
    ///
    /// # Errors
    /// There is no thread left.
    pub fn start(comm: &Arc<CommState>) -> Result<Arc<Self>> {
        let ops = Arc::new(Self { state: Mutex::default(), rung: Condvar::new() });
        let (served, weak) = (ops.clone(), Arc::downgrade(comm));
        let spawned = thread::Builder::new().name("hawser-rma".into()).spawn(move || served.serve(&weak));
        spawned.map_err(|error| Error::system("starting a thread for one-sided transfers", error))?;
        Ok(ops)
    }

    /// Prepares the part of a stream in operations: a call of the host, then these operations on a word.
    ///
    /// # Errors
    /// No memory is left.
    pub fn prepare(
        self: &Arc<Self>,
        device: &dyn Device,
        (ops, events): (&[RmaOp], Vec<Arc<Span>>),
        is_captured: bool,
    ) -> Result<(Call, [MemoryOp; 2])> {
        let (word, ops): (_, Arc<[RmaOp]>) = (self.word(device)?, ops.into());
        self.state().under_way += u32::from(!is_captured);
        let addr = word.addr;
        // A call that comes once keeps the words; those of graphs are never freed.
        let (weak, held) = (Arc::downgrade(self), (!is_captured).then(|| self.clone()));
        // Nobody knows when the last replay of a captured call has been.
        let events = Mutex::new(if is_captured { Vec::new() } else { events });
        let call = move || {
            if let Some(own) = held.clone().or_else(|| weak.upgrade()) {
                let events = events.lock().map(|mut events| std::mem::take(&mut *events)).unwrap_or_default();
                own.ring(Job { ops: ops.clone(), _events: events, word, is_captured });
            }
        };
        Ok((Box::new(call), [MemoryOp::Wait { addr }, MemoryOp::Write { addr, value: 0 }]))
    }

    /// True if all operations so far are over, but for those of graphs.
    pub fn is_idle(&self) -> bool {
        self.state().under_way == 0
    }

    /// The communicator goes: what streams have come to, or still come to, is released.
    pub fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        for job in std::mem::take(&mut state.jobs) {
            set(&mut state, &job);
        }
        drop(state);
        self.rung.notify_all();
    }

    fn ring(&self, job: Job) {
        let mut state = self.state();
        if state.is_closed {
            set(&mut state, &job);
            return;
        }
        state.jobs.push_back(job);
        drop(state);
        self.rung.notify_one();
    }

    fn serve(&self, comm: &Weak<CommState>) {
        while let Some(job) = self.next() {
            let comm = comm.upgrade();
            // The end of one that has failed was told where it failed.
            if let Some(comm) = comm.as_ref().filter(|comm| comm.failure().is_none())
                && let Err(error) = job.ops.iter().try_for_each(|op| comm.one_sided(op))
            {
                comm.end_by(&error);
            }
            // Before the communicator is let go of: its end waits for the stream.
            set(&mut self.state(), &job);
        }
    }

    /// The next operations; None when the communicator has gone and nothing is left.
    fn next(&self) -> Option<Job> {
        let mut state = self.state();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            if state.is_closed {
                return None;
            }
            state = self.rung.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A word that is 0 and that nobody uses.
    fn word(&self, device: &dyn Device) -> Result<Word> {
        let mut state = self.state();
        // SAFETY: `self` is alive.
        let is_free = |word: &Word| unsafe { word.get() }.load(Ordering::Acquire) == 0;
        if let Some(at) = state.spent.iter().position(is_free) {
            return Ok(state.spent.swap_remove(at));
        }
        let slab = device.host_words(SLAB_BYTES)?;
        for at in (0..SLAB_BYTES).step_by(WORD_BYTES as usize) {
            // SAFETY: inside the memory, which has `SLAB_BYTES` bytes.
            let host = unsafe { slab.host.add(at as usize) };
            state.spent.push(Word { host: host.cast_const().cast(), addr: slab.memory.addr + at });
        }
        state.slabs.push(slab);
        state.spent.pop().ok_or_else(|| Error::internal("a slab without words"))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets the stream go on that waits for a job.
fn set(state: &mut State, job: &Job) {
    // SAFETY: the slab lies in `state`.
    unsafe { job.word.get() }.store(1, Ordering::Release);
    if !job.is_captured {
        state.spent.push(job.word);
        state.under_way -= 1;
    }
}

impl CommState {
    /// An operation failed where nobody waits for its outcome: the communicator ends with this error.
    pub(super) fn end_by(&self, error: &Error) {
        log::error(error);
        self.bootstrap.report(error);
        self.peer_memory.control.fail(error.clone());
    }

    /// The thread for one-sided operations of a GPU, made when the first comes.
    ///
    /// # Errors
    /// There is no thread left.
    pub fn stream_ops(self: &Arc<Self>) -> Result<&Arc<StreamOps>> {
        if let Some(ops) = self.stream_ops.get() {
            return Ok(ops);
        }
        let ops = StreamOps::start(self)?;
        if let Err(late) = self.stream_ops.set(ops) {
            late.close();
        }
        self.stream_ops.get().ok_or_else(|| Error::internal("no thread for one-sided transfers"))
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use hawser_device::host::HostDevice;

    use super::*;

    /// The word that a stream waits for or writes.
    fn value(op: &MemoryOp) -> &'static AtomicU32 {
        let (MemoryOp::Wait { addr } | MemoryOp::WaitFor { addr, .. } | MemoryOp::Write { addr, .. }) = *op;
        // SAFETY: words of the test's `StreamOps` on the host device, where addresses are the host's.
        unsafe { &*(addr as *const AtomicU32) }
    }

    #[test]
    fn a_word_serves_the_next_once_the_stream_has_cleared_it() {
        let device = HostDevice::beside().unwrap();
        let ops = Arc::new(StreamOps { state: Mutex::default(), rung: Condvar::new() });
        let [first, captured, second] = [false, true, false]
            .map(|is_captured| ops.prepare(&device, (&[], Vec::new()), is_captured).unwrap());
        let addresses = [&first, &captured, &second].map(|(_, [wait, _])| value(wait).as_ptr());
        assert!(addresses[0] != addresses[1] && addresses[0] != addresses[2] && addresses[1] != addresses[2]);
        let carry_out = |call: &dyn Fn()| {
            call();
            let job = ops.state().jobs.pop_front().unwrap();
            set(&mut ops.state(), &job);
        };
        for (call, [wait, _]) in [&first, &captured] {
            assert_eq!(value(wait).load(Ordering::Acquire), 0);
            carry_out(&**call);
            assert_eq!(value(wait).load(Ordering::Acquire), 1, "the stream goes on");
        }
        // Nobody gets a word that a stream may still look at, nor one of a graph.
        let most = (SLAB_BYTES / WORD_BYTES) as usize;
        let taken = |count: usize| -> Vec<_> {
            let prepared = (0..count).map(|_| ops.prepare(&device, (&[], Vec::new()), false).unwrap());
            prepared.map(|(_, [wait, _])| value(&wait).as_ptr()).collect()
        };
        let others = taken(most);
        assert!(!others.contains(&addresses[0]) && !others.contains(&addresses[1]));
        [&first, &captured].iter().for_each(|(_, [wait, _])| value(wait).store(0, Ordering::Release));
        let others = taken(most);
        assert!(others.contains(&addresses[0]) && !others.contains(&addresses[1]));
        // What comes when the communicator has gone, or was waiting then, is released.
        (second.0)();
        ops.close();
        assert_eq!(value(&second.1[0]).load(Ordering::Acquire), 1);
        assert!(ops.next().is_none());
        (captured.0)();
        assert_eq!(value(&captured.1[0]).load(Ordering::Acquire), 1);
    }
}
