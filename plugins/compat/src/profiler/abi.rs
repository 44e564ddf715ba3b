//! The part that all versions of the profiler ABI have in common.

use std::ffi::{CString, c_char, c_int, c_void};
use std::mem::{MaybeUninit, size_of};
use std::sync::Arc;

use hawser_plugin::profiler::{Event, EventHandle, EventMask, EventState, StateArgs};

use super::names::Strings;
use crate::common::{self, Missing, SUCCESS, required};
use crate::logger::Logger;

/// `ncclProfiler_vN_t`: six slots in every version. `I` is the type of `init`, `D` the descriptor of an
/// event.
#[repr(C)]
pub struct Table<I, D> {
    pub(super) name: *const c_char,
    pub(super) init: Option<I>,
    pub(super) start: Option<Start<D>>,
    pub(super) stop: Option<Stop>,
    pub(super) record: Option<Record>,
    pub(super) finalize: Option<Stop>,
}

/// `startEvent`: context, handle out, descriptor.
type Start<D> = unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *mut D) -> c_int;
/// `stopEvent` with a handle, `finalize` with a context.
type Stop = unsafe extern "C" fn(*mut c_void) -> c_int;
/// `recordEventState`: handle, state, arguments or NULL.
type Record = unsafe extern "C" fn(*mut c_void, c_int, *mut c_void) -> c_int;

// SAFETY: a table is never written after it was made.
unsafe impl<I, D> Sync for Table<I, D> {}

/// `ncclProfilerEventDescr_vN_t`: the head is the same but for the width of the kind, the body a union.
#[repr(C)]
pub struct Descr<K, B> {
    pub(super) kind: K,
    pub(super) parent: *mut c_void,
    pub(super) rank: c_int,
    pub(super) body: B,
}

/// An ABI version that we read.
pub(super) type Version = crate::table::Version<Plugin>;

/// A plugin as its table tells it.
pub(super) struct Plugin {
    pub(super) name: String,
    pub(super) calls: Arc<dyn Calls>,
}

/// The words of one version, and how they are said.
///
/// # Safety
/// All bytes zero are a valid descriptor.
pub(super) unsafe trait Abi: Sized + 'static {
    /// The table's name.
    const SYMBOL: &'static str;
    /// The kinds of events that it has.
    const KINDS: EventMask;
    /// `init`.
    type Init: Copy + Send + Sync;
    /// The descriptor of an event.
    type Descr;
    /// The arguments of a state.
    type Args;

    /// For the table of versions.
    const VERSION: Version = Version { symbol: Self::SYMBOL, read: read::<Self> };

    /// Calls `init`.
    ///
    /// # Safety
    /// As [`Calls::init`].
    unsafe fn init(init: Self::Init, comm: &Comm, context: *mut *mut c_void, mask: *mut c_int) -> c_int;

    /// Describes an event of a kind in [`Abi::KINDS`] in a zeroed descriptor. False: it cannot be said.
    fn describe(event: &Event<'_>, comm: &Comm, descr: &mut Self::Descr) -> bool;

    /// The arguments of a state; None: this version does not know the state.
    fn args(state: EventState, args: StateArgs) -> Option<Self::Args>;
}

/// A version that is exported too: reads what a host says in it.
///
/// # Safety
/// Implementations read only what the promises of the methods cover.
pub(super) unsafe trait Reads: Abi {
    /// The event of a descriptor; None if its kind is unknown. `resolve` turns a parent's handle into the
    /// profiler's.
    ///
    /// # Safety
    /// The body has the member of the kind; its strings are NULL or terminated.
    unsafe fn event<'a>(
        descr: &'a Self::Descr,
        resolve: &dyn Fn(*mut c_void) -> Option<EventHandle>,
    ) -> Option<Event<'a>>;

    /// The arguments of a state.
    ///
    /// # Safety
    /// `args` is NULL or has the member of the state.
    unsafe fn state(state: c_int, args: *const Self::Args) -> StateArgs;
}

/// A communicator in C's types; the strings live until after `finalize`.
pub(super) struct Comm {
    pub(super) id: u64,
    pub(super) name: Option<CString>,
    pub(super) nodes: c_int,
    pub(super) ranks: c_int,
    pub(super) rank: c_int,
    pub(super) logger: Logger,
    pub(super) strings: Arc<Strings>,
}

impl Comm {
    /// The communicator's name or NULL.
    pub(super) fn name(&self) -> *const c_char {
        self.name.as_ref().map_or(std::ptr::null(), |name| name.as_ptr())
    }
}

/// The calls of any version. All are `unsafe` because they run foreign code that trusts its arguments:
/// contexts and handles are the plugin's, and the context is not finalized yet.
pub(super) trait Calls: Send + Sync {
    /// The kinds of events that the version has.
    fn kinds(&self) -> EventMask;

    /// Makes the plugin ready for a communicator.
    ///
    /// # Safety
    /// `mask` and the strings of `comm` stay valid until `finalize` returned.
    unsafe fn init(&self, comm: &Comm, context: &mut *mut c_void, mask: *mut c_int) -> c_int;

    /// An event of a known kind starts. The handle is left alone if the version cannot say it.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn start(
        &self,
        context: *mut c_void,
        handle: &mut *mut c_void,
        event: &Event<'_>,
        comm: &Comm,
    ) -> c_int;

    /// An event is over.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn stop(&self, handle: *mut c_void) -> c_int;

    /// An event is in a new state; a state that the version does not know is not told.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn record(&self, handle: *mut c_void, state: EventState, args: StateArgs) -> c_int;

    /// The last call with this context.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn finalize(&self, context: *mut c_void) -> c_int;
}

/// The functions of a complete table.
struct Loaded<V: Abi> {
    init: V::Init,
    start: Start<V::Descr>,
    stop: Stop,
    record: Record,
    finalize: Stop,
}

/// # Safety
/// `table` is the address of a table of version `V`.
unsafe fn read<V: Abi>(table: *const c_void) -> Result<Plugin, Missing> {
    const { assert!(size_of::<Table<V::Init, V::Descr>>() == 48) };
    // SAFETY: see above.
    let table = unsafe { &*table.cast::<Table<V::Init, V::Descr>>() };
    let calls = Loaded::<V> {
        init: required(table.init, "init")?,
        start: required(table.start, "startEvent")?,
        stop: required(table.stop, "stopEvent")?,
        record: required(table.record, "recordEventState")?,
        finalize: required(table.finalize, "finalize")?,
    };
    // SAFETY: NULL or a name.
    let name = unsafe { common::text(table.name) }.unwrap_or_else(|| "unnamed".into());
    Ok(Plugin { name, calls: Arc::new(calls) })
}

impl<V: Abi> Calls for Loaded<V> {
    fn kinds(&self) -> EventMask {
        V::KINDS
    }

    unsafe fn init(&self, comm: &Comm, context: &mut *mut c_void, mask: *mut c_int) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { V::init(self.init, comm, context, mask) }
    }

    unsafe fn start(
        &self,
        context: *mut c_void,
        handle: &mut *mut c_void,
        event: &Event<'_>,
        comm: &Comm,
    ) -> c_int {
        // Zeroed in place, so that what the event leaves unset, and the gaps, are 0 for the plugin.
        let mut descr = MaybeUninit::<V::Descr>::zeroed();
        // SAFETY: zeroes are valid, by the trait's contract.
        let descr = unsafe { descr.assume_init_mut() };
        if !V::describe(event, comm, descr) {
            return SUCCESS;
        }
        // SAFETY: the caller's promise; handle and descriptor live here.
        unsafe { (self.start)(context, handle, descr) }
    }

    unsafe fn stop(&self, handle: *mut c_void) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { (self.stop)(handle) }
    }

    unsafe fn record(&self, handle: *mut c_void, state: EventState, args: StateArgs) -> c_int {
        let Some(mut args) = V::args(state, args) else { return SUCCESS };
        // SAFETY: the caller's promise; the arguments live here.
        unsafe { (self.record)(handle, state.0 as c_int, (&raw mut args).cast()) }
    }

    unsafe fn finalize(&self, context: *mut c_void) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { (self.finalize)(context) }
    }
}

/// A handle as C has it; NULL for none.
pub(super) fn object(handle: Option<EventHandle>) -> *mut c_void {
    address(handle.map_or(0, |handle| handle.0))
}

/// A number that C declares as a pointer.
pub(super) fn address(number: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(number as usize)
}

/// A number for a C `int`; what does not fit becomes the largest.
pub(super) fn int(number: u32) -> c_int {
    c_int::try_from(number).unwrap_or(c_int::MAX)
}

/// A C `int` as a count or rank; NCCL's negative ones mean "none".
pub(super) fn natural(number: c_int) -> u32 {
    u32::try_from(number).unwrap_or(0)
}
