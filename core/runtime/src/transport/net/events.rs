//! Events of net plugins: NCCL's callback, which plugins call with a handle of a [`Span`] that their request
//! belongs to.

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use hawser_plugin::profiler::{EventState, StateArgs, What};

use crate::profiling::Span;

/// Types of calls.
const START: c_int = 0;
const STOP: c_int = 1;
const UPDATE: c_int = 2;
const UPDATE_AND_STOP: c_int = 3;

/// The number by which plugins know a span, valid while the span lives.
pub fn handle(span: &Arc<Span>) -> u64 {
    Arc::as_ptr(span) as u64
}

/// The callback. Returns 0, or 3 (`ncclInternalError`) for a type that does not exist.
///
/// # Safety
/// To start, `event` is valid for a write and `parent` is NULL or a handle of a span that lives; else `event`
/// is one that this function wrote and that was not stopped. The payload is only handed on.
pub unsafe extern "C" fn report(
    event: *mut *mut c_void,
    kind: c_int,
    parent: *mut c_void,
    id: i64,
    payload: *mut c_void,
) -> c_int {
    // SAFETY: the caller vouches for all of it.
    let act = || unsafe { carry_out(event, kind, parent, id, payload) };
    catch_unwind(AssertUnwindSafe(act)).unwrap_or(3)
}

/// # Safety
/// As [`report`].
unsafe fn carry_out(
    event: *mut *mut c_void,
    kind: c_int,
    parent: *mut c_void,
    id: i64,
    payload: *mut c_void,
) -> c_int {
    if event.is_null() {
        return 3;
    }
    let data = payload as u64;
    if kind == START {
        let child = if parent.is_null() {
            None
        } else {
            let parent = parent.cast_const().cast::<Span>();
            // SAFETY: a handle is the address of a span that an `Arc` holds now; this takes a share of its
            // own.
            let parent = unsafe {
                Arc::increment_strong_count(parent);
                Arc::from_raw(parent)
            };
            parent.child(&What::NetPlugin { id, data })
        };
        let child = child.map_or(std::ptr::null_mut(), |child| Arc::into_raw(child).cast_mut().cast());
        // SAFETY: the caller vouches for the pointer.
        unsafe { event.write(child) };
        return 0;
    }
    // SAFETY: as above.
    let child = unsafe { event.read() }.cast_const().cast::<Span>();
    if child.is_null() {
        return 0;
    }
    if matches!(kind, UPDATE | UPDATE_AND_STOP) {
        // SAFETY: written at the start, and not stopped.
        unsafe { &*child }.record(EventState::NET_PLUGIN_UPDATE, StateArgs::Data(data));
    }
    match kind {
        STOP | UPDATE_AND_STOP => {
            // SAFETY: the share that the start made; nobody uses it again.
            unsafe {
                event.write(std::ptr::null_mut());
                drop(Arc::from_raw(child));
            }
            0
        }
        UPDATE => 0,
        _ => 3,
    }
}
