//! Calls of the host in the order of a stream.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};

use cudarc::driver::sys::CUstream;
use hawser_base::error::Result;
use hawser_base::log;

use super::context::Context;
use super::stream::capture;

/// A function of the host for a stream to call.
type Call = Box<dyn Fn() + Send + Sync>;

/// Puts a call on a stream. The context must be current. In a capture it is called at each replay, and kept
/// for ever, since nobody tells when a graph is gone.
pub fn put(context: &Context, stream: CUstream, call: Call) -> Result<()> {
    let is_captured = capture(context, stream)?.is_some();
    let function: unsafe extern "C" fn(*mut c_void) = if is_captured { again } else { once };
    let data = Box::into_raw(Box::new(call));
    // SAFETY: the function fits the data, which lives until it was called, or for ever; the driver checks the
    // caller's stream.
    let put = unsafe { context.driver.launch_host_func(stream, Some(function), data.cast()) };
    if !put.is_ok() {
        // SAFETY: the driver has refused the call and has not kept the pointer.
        drop(unsafe { Box::from_raw(data) });
    }
    put.check(context)
}

/// # Safety
/// `data` came from [`put`], and this is the only call with it.
unsafe extern "C" fn once(data: *mut c_void) {
    // SAFETY: the caller's promise.
    run(&*unsafe { Box::from_raw(data.cast::<Call>()) });
}

/// # Safety
/// `data` came from [`put`].
unsafe extern "C" fn again(data: *mut c_void) {
    // SAFETY: the caller's promise; captured calls are never freed.
    run(unsafe { &*data.cast::<Call>() });
}

/// A panic must not reach the driver.
fn run(call: &Call) {
    if catch_unwind(AssertUnwindSafe(call)).is_err() {
        log::warn("a call in the order of a stream panicked: a bug in this library");
    }
}
