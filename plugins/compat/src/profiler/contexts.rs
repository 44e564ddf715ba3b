//! The communicators of an exported profiler, and the handles of its events.
//!
//! NCCL's `stopEvent` and `recordEventState` get a handle and nothing else, and parents are named by handles
//! of events that may be over for long. So a handle is a number that can always be asked about: the
//! communicator's in the upper 16 bits, and below it the profiler's own handle, or, if that needs more than
//! 47 bits, the number of an entry that holds it.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{CStr, c_int};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use hawser_plugin::Log;
use hawser_plugin::profiler::{EventHandle, ProfilerContext};
use rustc_hash::FxHashMap;

/// Bits of a handle below the communicator's number.
const LOW_BITS: u32 = 48;
/// Set if the low bits are the number of an entry.
const ENTRY: u64 = 1 << (LOW_BITS - 1);
/// Entries of events that are over and can still be named as parents.
const KEPT: usize = 1 << 16;

/// All communicators of one exported profiler.
pub struct Contexts(RwLock<State>);

struct State {
    last: u16,
    all: BTreeMap<u16, Arc<Context>>,
}

/// An open communicator.
pub struct Context {
    pub(super) name: &'static CStr,
    pub(super) inner: Box<dyn ProfilerContext>,
    pub(super) log: Log,
    pub(super) rank: u32,
    /// It panicked: it is not asked any more.
    pub(super) dead: AtomicBool,
    mask: Mask,
    entries: Mutex<Entries>,
}

/// The place where the host wants to find the mask, and the last wish of this communicator.
struct Mask {
    place: *mut c_int,
    wish: AtomicI32,
}

// SAFETY: `place` is only written atomically, see `publish`.
unsafe impl Send for Mask {}
// SAFETY: as above.
unsafe impl Sync for Mask {}

/// Handles of more than 47 bits.
#[derive(Default)]
struct Entries {
    last: u64,
    handles: FxHashMap<u64, EventHandle>,
    over: VecDeque<u64>,
}

impl Context {
    /// `place` is NULL or stays valid until the communicator is removed.
    pub(super) fn new(
        name: &'static CStr,
        inner: Box<dyn ProfilerContext>,
        log: Log,
        rank: u32,
        place: *mut c_int,
    ) -> Self {
        let (mask, dead) = (Mask { place, wish: AtomicI32::new(0) }, AtomicBool::new(false));
        Self { name, inner, log, rank, dead, mask, entries: Mutex::default() }
    }

    /// The low bits for a handle of the profiler.
    fn low(&self, handle: EventHandle) -> u64 {
        if handle.0 < ENTRY {
            return handle.0;
        }
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.last = (entries.last + 1) % ENTRY;
        let number = entries.last;
        entries.handles.insert(number, handle);
        ENTRY | number
    }

    /// The profiler's handle behind low bits; None if it was forgotten.
    fn handle(&self, low: u64) -> Option<EventHandle> {
        if low < ENTRY {
            return Some(EventHandle(low));
        }
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.handles.get(&(low & !ENTRY)).copied()
    }

    /// The event of this entry is over: it can be forgotten once many others are over.
    fn over(&self, low: u64) {
        if low < ENTRY {
            return;
        }
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.over.push_back(low & !ENTRY);
        if entries.over.len() > KEPT
            && let Some(oldest) = entries.over.pop_front()
        {
            entries.handles.remove(&oldest);
        }
    }
}

impl Contexts {
    /// A set of contexts that holds none.
    pub(super) const fn new() -> Self {
        Self(RwLock::new(State { last: 0, all: BTreeMap::new() }))
    }

    /// Adds a communicator and publishes its mask. Its number is never 0, and a free one as long unused as
    /// possible. None: all are taken.
    pub(super) fn add(&self, context: Context) -> Option<u16> {
        let mut state = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let after = state.last.wrapping_add(1);
        let free = (0..=u16::MAX).map(|step| after.wrapping_add(step));
        let number = free.into_iter().find(|number| *number != 0 && !state.all.contains_key(number))?;
        context.mask.wish.store(wish(&context), Ordering::Relaxed);
        let context = Arc::new(context);
        (state.last, _) = (number, state.all.insert(number, context.clone()));
        publish(&state, &context);
        Some(number)
    }

    /// Takes a communicator out. What still runs in it ends first, with the last reference.
    pub(super) fn remove(&self, number: u64) -> Option<Arc<Context>> {
        let mut state = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let context = state.all.remove(&u16::try_from(number).ok()?)?;
        publish(&state, &context);
        Some(context)
    }

    /// The communicator of a number.
    pub(super) fn find(&self, number: u64) -> Option<Arc<Context>> {
        let state = self.0.read().unwrap_or_else(PoisonError::into_inner);
        state.all.get(&u16::try_from(number).ok()?).cloned()
    }

    /// Publishes the mask again if the profiler changed its mind.
    pub(super) fn refresh(&self, context: &Context) {
        let wish = wish(context);
        if context.mask.wish.swap(wish, Ordering::Relaxed) != wish {
            publish(&self.0.read().unwrap_or_else(PoisonError::into_inner), context);
        }
    }
}

/// The handle that the host gets for an event of a communicator. Never 0.
pub(super) fn pack(number: u64, context: &Context, handle: EventHandle) -> u64 {
    number << LOW_BITS | context.low(handle)
}

/// The number of a handle's communicator.
pub(super) fn number_of(handle: u64) -> u64 {
    handle >> LOW_BITS
}

/// The profiler's handle behind a host's, in its own communicator; None for NULL, and for other
/// communicators'.
pub(super) fn unpack(number: u64, context: &Context, handle: u64) -> Option<EventHandle> {
    (handle != 0 && number_of(handle) == number).then(|| context.handle(low_of(handle)))?
}

/// The event is over.
pub(super) fn over(context: &Context, handle: u64) {
    context.over(low_of(handle));
}

fn low_of(handle: u64) -> u64 {
    handle & ((1 << LOW_BITS) - 1)
}

fn wish(context: &Context) -> c_int {
    (context.inner.mask().0 & 0x7fff_ffff) as c_int
}

/// NCCL has one mask for all communicators, so it gets what any of those with this place wants. The last one
/// gone leaves the place alone: nobody is sure then that it is still there.
fn publish(state: &State, context: &Context) {
    let place = context.mask.place;
    let sharers = state.all.values().filter(|other| other.mask.place == place);
    let wishes = sharers.map(|other| other.mask.wish.load(Ordering::Relaxed));
    if let Some(all) = wishes.reduce(|all, wish| all | wish)
        && !place.is_null()
    {
        // SAFETY: a communicator that is not finalized has this place, so the host keeps it; it reads it
        // whole.
        unsafe { AtomicI32::from_ptr(place) }.store(all, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_plugin::profiler::{Event, EventMask};
    use std::ptr;
    use std::sync::atomic::AtomicU64;

    struct Wishes(Arc<AtomicU64>);

    impl ProfilerContext for Wishes {
        fn mask(&self) -> EventMask {
            EventMask(self.0.load(Ordering::Relaxed))
        }
        fn start(&self, _: &Event<'_>) -> Option<EventHandle> {
            None
        }
        fn stop(&self, _: EventHandle) {}
    }

    fn context(mask: u64, place: *mut c_int) -> (Context, Arc<AtomicU64>) {
        let wish = Arc::new(AtomicU64::new(mask));
        (Context::new(c"x", Box::new(Wishes(wish.clone())), Log::silent(), 0, place), wish)
    }

    #[test]
    fn any_handle_comes_back() {
        let (context, _) = context(0, ptr::null_mut());
        for handle in [0, 1, 0x12, ENTRY - 1, ENTRY, 1 << 48, u64::MAX].map(EventHandle) {
            let packed = pack(7, &context, handle);
            assert!(packed != 0 && number_of(packed) == 7);
            assert_eq!(unpack(7, &context, packed), Some(handle));
            assert_eq!(unpack(8, &context, packed), None);
        }
        assert_eq!(unpack(0, &context, 0), None);
    }

    #[test]
    fn an_event_that_is_over_is_remembered_for_a_while() {
        let (context, _) = context(0, ptr::null_mut());
        let parent = pack(1, &context, EventHandle(u64::MAX));
        over(&context, parent);
        for _ in 1..KEPT {
            let next = pack(1, &context, EventHandle(u64::MAX - 1));
            over(&context, next);
        }
        assert_eq!(unpack(1, &context, parent), Some(EventHandle(u64::MAX)));
        let next = pack(1, &context, EventHandle(u64::MAX - 1));
        over(&context, next);
        assert_eq!(unpack(1, &context, parent), None);
        assert_eq!(context.entries.lock().unwrap().handles.len(), KEPT);
    }

    #[test]
    fn one_place_holds_what_any_communicator_wants() {
        let (mut shared, mut own) = (-1, -1);
        let (shared, own): (*mut c_int, *mut c_int) = (&mut shared, &mut own);
        // SAFETY: both live to the end of the test.
        let seen = || unsafe { (*shared, *own) };
        let contexts = Contexts::new();
        let (first, wish) = context(1, shared);
        let first = contexts.add(first).unwrap();
        let second = contexts.add(context(6, shared).0).unwrap();
        contexts.add(context(8 | 1 << 40, own).0).unwrap();
        assert_eq!(seen(), (7, 8));
        wish.store(0x10, Ordering::Relaxed);
        contexts.refresh(&contexts.find(first.into()).unwrap());
        assert_eq!(seen(), (0x16, 8));
        drop(contexts.remove(second.into()).unwrap());
        assert_eq!(seen(), (0x10, 8));
        drop(contexts.remove(first.into()).unwrap());
        assert_eq!(seen(), (0x10, 8));
    }

    #[test]
    fn numbers_are_reused_last() {
        let contexts = Contexts::new();
        let add = || contexts.add(context(0, ptr::null_mut()).0).unwrap();
        assert_eq!([add(), add()], [1, 2]);
        contexts.remove(1).unwrap();
        assert_eq!(add(), 3);
        contexts.0.write().unwrap().last = u16::MAX;
        assert_eq!(add(), 1, "0 is no number, and 1 is free");
        assert!(contexts.find(4).is_none() && contexts.find(1 << 16).is_none());
        assert!(contexts.remove(0).is_none());
    }
}
