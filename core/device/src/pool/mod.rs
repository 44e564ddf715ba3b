//! The memory that the library takes of a device: one pool per device and process, with a limit.
//!
//! There are two kinds of memory:
//!
//! * **shared**: scratch, programs, tables, slots for NICs. They are ranges of segments that several users
//!   share; free ranges serve the next user.
//! * **whole**: heaps (FIFOs, staging) and `ncclMemAlloc`. Each is a handle of its own, since peers map whole
//!   handles, and is used again for the same size, unless it was exported.
//!
//! A handle that went to another process is never used again: a late peer may still write there. It goes back
//! to the driver when it is dropped, and the memory with the last peer's mapping. What is idle goes back
//! beyond a threshold.

mod monitor;
mod policy;
mod segment;

use std::any::Any;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use rustc_hash::FxHashMap;

use hawser_base::error::{Error, Result};
pub use policy::Policy;

use crate::memory::{Memory, size_text};
use monitor::{Monitor, SharedStats};
use segment::{Range, Segment};

/// Segments are multiples of this: what VMM gives at least.
pub const GRANULARITY: u64 = 2 << 20;

/// A source that a pool takes memory from.
pub trait Source: Send + Sync {
    /// A handle of at least `bytes` bytes, a multiple of [`GRANULARITY`], that this device alone uses. Must
    /// work during a capture.
    ///
    /// # Errors
    /// The system or the driver refused.
    fn take(&self, bytes: u64) -> Result<Memory>;

    /// Clears memory and waits for it. Must work during a capture.
    ///
    /// # Errors
    /// The driver refused.
    fn zero(&self, addr: u64, bytes: u64) -> Result<()>;

    /// True if what [`Source::take`] gives is zero.
    fn is_zeroed(&self) -> bool;
}

/// Memory of its own handle, and what must stay alive for it.
pub type Payload = Box<dyn Any + Send + Sync>;

/// Figures of a pool, in bytes and events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Taken of the device.
    pub committed: u64,
    /// Of these, in somebody's hands.
    pub in_use: u64,
    /// Most that ever was committed.
    pub peak: u64,
    /// The number of times that memory was taken.
    pub growths: u64,
    /// The number of times that idle memory was given back.
    pub trims: u64,
    /// The number of times that the limit stood in the way.
    pub refusals: u64,
}

/// The memory of one device.
pub struct Pool {
    /// Before the memory that it reports on.
    monitor: Option<Monitor>,
    id: u64,
    name: String,
    policy: Policy,
    state: Mutex<State>,
    shared_stats: Arc<SharedStats>,
    source: Box<dyn Source>,
}

#[derive(Default)]
struct State {
    stats: Stats,
    segments: Vec<Segment>,
    /// Whole memory that nobody uses.
    idle: Vec<(Arc<Ticket>, Payload)>,
}

/// The places where whole memory counts.
#[derive(Clone, Copy)]
enum Phase {
    InUse,
    Idle,
    /// Nowhere any more.
    Gone,
}

/// The right to hold whole memory; the bytes count until the last clone is dropped.
pub struct Ticket {
    pool: Weak<Pool>,
    bytes: u64,
    phase: AtomicU8,
}

/// A range of shared memory in somebody's hands.
struct Taken {
    pool: Arc<Pool>,
    range: Range,
}

/// The pool of a device of this process: `device` names it, `source` is asked for where it takes from if
/// nobody has it yet.
///
/// # Errors
/// `source` failed, or the thread of `NCCL_CUMEM_MONITOR` could not be started.
pub fn of(
    device: &str,
    policy: &Policy,
    source: impl FnOnce() -> Result<Box<dyn Source>>,
) -> Result<Arc<Pool>> {
    static POOLS: LazyLock<Mutex<FxHashMap<String, Weak<Pool>>>> = LazyLock::new(Mutex::default);
    let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(pool) = pools.get(device).and_then(Weak::upgrade) {
        return Ok(pool);
    }
    pools.retain(|_, pool| pool.strong_count() > 0);
    let pool = Pool::new(device, policy.clone(), source()?)?;
    pools.insert(device.to_owned(), Arc::downgrade(&pool));
    Ok(pool)
}

impl Pool {
    /// An empty pool.
    ///
    /// # Errors
    /// The thread of `NCCL_CUMEM_MONITOR` could not be started.
    pub fn new(name: &str, policy: Policy, source: Box<dyn Source>) -> Result<Arc<Self>> {
        let shared_stats = Arc::new(SharedStats::new(name.to_owned()));
        let interval = policy.monitor.filter(|interval| *interval > Duration::ZERO);
        let monitor = interval
            .map(|interval| Monitor::start(shared_stats.clone(), interval, policy.most))
            .transpose()?;
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(Self {
            monitor,
            id,
            name: name.to_owned(),
            policy,
            state: Mutex::default(),
            shared_stats,
            source,
        }))
    }

    /// A number that no other pool of this process has.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Zeroed memory that no peer maps.
    ///
    /// # Errors
    /// `InvalidUsage` at the limit; what the driver said.
    pub fn alloc(self: &Arc<Self>, bytes: u64) -> Result<Memory> {
        let range = self.range(bytes)?;
        let taken = Taken { pool: self.clone(), range };
        if range.is_used || !self.source.is_zeroed() {
            self.source.zero(range.addr, bytes.max(1))?;
        }
        Ok(Memory { addr: range.addr, bytes, owner: Box::new(taken) })
    }

    /// The right to hold `bytes` bytes of whole memory, which the caller takes itself.
    ///
    /// # Errors
    /// `InvalidUsage` at the limit.
    pub fn ticket(self: &Arc<Self>, bytes: u64) -> Result<Arc<Ticket>> {
        let mut state = self.lock();
        self.make_room(&mut state, bytes)?;
        state.stats.in_use += bytes;
        self.grown(&mut state, bytes);
        let phase = AtomicU8::new(Phase::InUse as u8);
        Ok(Arc::new(Ticket { pool: Arc::downgrade(self), bytes, phase }))
    }

    /// Whole memory of exactly this length that was kept.
    pub fn reuse(&self, bytes: u64) -> Option<(Arc<Ticket>, Payload)> {
        let mut state = self.lock();
        let index = state.idle.iter().position(|(ticket, _)| ticket.bytes == bytes)?;
        let (ticket, payload) = state.idle.swap_remove(index);
        ticket.phase.store(Phase::InUse as u8, Ordering::Relaxed);
        state.stats.in_use += bytes;
        self.shared_stats.set(state.stats);
        Some((ticket, payload))
    }

    /// Takes whole memory back that nobody else knows, to use it again or give it back.
    pub fn keep(&self, ticket: Arc<Ticket>, payload: Payload) {
        let mut state = self.lock();
        ticket.phase.store(Phase::Idle as u8, Ordering::Relaxed);
        state.stats.in_use -= ticket.bytes;
        state.idle.push((ticket, payload));
        self.trim(&mut state);
        self.shared_stats.set(state.stats);
    }

    /// Takes what `NCCL_CUMEM_PREALLOC` asks for beside what there is.
    ///
    /// # Errors
    /// The driver refused to give the memory.
    pub fn fill(&self) -> Result<()> {
        if !self.policy.preallocate {
            return Ok(());
        }
        let mut state = self.lock();
        let missing = self.policy.floor().saturating_sub(state.stats.committed).next_multiple_of(GRANULARITY);
        let missing = missing.min(self.policy.room(state.stats.committed) / GRANULARITY * GRANULARITY);
        if missing == 0 {
            return Ok(());
        }
        let memory = self.source.take(missing).map_err(|e| {
            e.context(format!("NCCL_CUMEM_PREALLOC: {} of {}", size_text(missing), self.name))
                .remedy("lower NCCL_CUMEM_POOL_SIZE")
        })?;
        state.segments.push(Segment::new(memory));
        self.grown(&mut state, missing);
        Ok(())
    }

    /// Gives all idle memory back to the driver. Says whether there was any.
    pub fn give_back(&self) -> bool {
        let mut state = self.lock();
        self.release(&mut state, |_| true)
    }

    /// Bytes that may be in use beside those that are; `u64::MAX` without a limit.
    pub fn room(&self) -> u64 {
        self.policy.room(self.lock().stats.in_use)
    }

    /// The figures now.
    pub fn stats(&self) -> Stats {
        self.shared_stats.stats()
    }

    fn range(&self, bytes: u64) -> Result<Range> {
        let mut state = self.lock();
        let found = state.segments.iter_mut().find_map(|segment| segment.take(bytes));
        let range = match found {
            Some(range) => range,
            None => self.grow(&mut state, bytes)?,
        };
        state.stats.in_use += range.bytes;
        self.shared_stats.set(state.stats);
        Ok(range)
    }

    /// A range of a new segment.
    fn grow(&self, state: &mut State, bytes: u64) -> Result<Range> {
        let need = segment::rounded(bytes).1.next_multiple_of(GRANULARITY);
        self.make_room(state, need)?;
        let [wished, least] = self.policy.growth(state.stats.committed, need, GRANULARITY);
        let mut taken = self.source.take(wished);
        if taken.is_err() && wished > least {
            taken = self.source.take(least);
        }
        if taken.is_err() && self.release(state, |_| true) {
            taken = self.source.take(least);
        }
        let memory = taken?;
        self.grown(state, memory.bytes);
        let mut segment = Segment::new(memory);
        let range = segment.take(bytes);
        state.segments.push(segment);
        range.ok_or_else(|| Error::internal(format!("a segment too small for {bytes} bytes")))
    }

    /// Makes sure that `need` bytes may be taken.
    fn make_room(&self, state: &mut State, need: u64) -> Result<()> {
        let Some(most) = self.policy.most else { return Ok(()) };
        if self.policy.room(state.stats.committed) < need {
            self.release(state, |stats| stats.committed + need > most);
        }
        if self.policy.room(state.stats.committed) >= need {
            return Ok(());
        }
        state.stats.refusals += 1;
        self.tell(state, "refusal");
        let text = format!(
            "{}: {} more would make {} where NCCL_CUMEM_MAX_SIZE allows {} ({} in use)",
            self.name,
            size_text(need),
            size_text(state.stats.committed + need),
            size_text(most),
            size_text(state.stats.in_use)
        );
        Err(Error::invalid_usage(text)
            .remedy("raise it, lower NCCL_PSM_BUFFER_SIZE or NCCL_BUFFSIZE, or free memory of ncclMemAlloc"))
    }

    /// Counts memory that was taken.
    fn grown(&self, state: &mut State, bytes: u64) {
        let stats = &mut state.stats;
        stats.committed += bytes;
        stats.peak = stats.peak.max(stats.committed);
        stats.growths += 1;
        self.tell(state, "growth");
    }

    /// Gives idle memory back where there is too much of it.
    fn trim(&self, state: &mut State) {
        let Some(target) = self.policy.shrinks_to(state.stats.committed, state.stats.in_use) else { return };
        let floor = self.policy.floor();
        let mut last = u64::MAX;
        // Largest first, each only if the floor is still kept.
        while state.stats.committed > target {
            let limit = (state.stats.committed - floor).min(last);
            let Some(bytes) = self.release_one(state, limit) else { break };
            last = bytes;
            state.stats.trims += 1;
            self.tell(state, "trim");
        }
    }

    /// Gives idle memory back, the largest first, while `wanted`. Says whether any was.
    fn release(&self, state: &mut State, wanted: impl Fn(&Stats) -> bool) -> bool {
        let before = state.stats.trims;
        while wanted(&state.stats) && self.release_one(state, u64::MAX).is_some() {
            state.stats.trims += 1;
            self.tell(state, "trim");
        }
        state.stats.trims > before
    }

    /// Gives the largest idle piece of at most `most` bytes back; its bytes.
    fn release_one(&self, state: &mut State, most: u64) -> Option<u64> {
        let segments = state.segments.iter().enumerate().filter(|(_, s)| s.is_idle());
        let segment = segments.map(|(i, s)| (s.bytes(), i)).filter(|(b, _)| *b <= most).max();
        let whole = state.idle.iter().enumerate().map(|(i, (ticket, _))| (ticket.bytes, i));
        let whole = whole.filter(|(b, _)| *b <= most).max();
        let bytes = match (segment, whole) {
            (Some((bytes, index)), other) if other.is_none_or(|(b, _)| b <= bytes) => {
                drop(state.segments.swap_remove(index));
                bytes
            }
            (_, Some((bytes, index))) => {
                let (ticket, payload) = state.idle.swap_remove(index);
                ticket.phase.store(Phase::Gone as u8, Ordering::Relaxed);
                drop((payload, ticket));
                bytes
            }
            _ => return None,
        };
        state.stats.committed -= bytes;
        Some(bytes)
    }

    /// Makes the figures known, with a line if every event gets one.
    fn tell(&self, state: &State, why: &str) {
        self.shared_stats.set(state.stats);
        if self.policy.monitor == Some(Duration::ZERO) {
            self.shared_stats.write(&state.stats, self.policy.most, why);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        drop(self.monitor.take());
        if self.policy.monitor.is_some() {
            self.shared_stats.write(&self.stats(), self.policy.most, "end");
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut state = self.pool.lock();
        state.stats.in_use -= self.range.bytes;
        if let Some(segment) = state.segments.iter_mut().find(|s| s.holds(self.range.addr)) {
            segment.give(self.range);
        }
        self.pool.trim(&mut state);
        self.pool.shared_stats.set(state.stats);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.phase.load(Ordering::Relaxed) == Phase::Gone as u8 {
            return;
        }
        let Some(pool) = self.pool.upgrade() else { return };
        let mut state = pool.lock();
        state.stats.committed -= self.bytes;
        if self.phase.load(Ordering::Relaxed) == Phase::InUse as u8 {
            state.stats.in_use -= self.bytes;
        }
        pool.shared_stats.set(state.stats);
    }
}

#[cfg(test)]
mod tests;
