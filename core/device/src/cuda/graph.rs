//! CUDA graphs: launches of a stream that are recorded once and launched together.

use std::ffi::{c_int, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{
    CUgraph, CUgraphExec, CUgraphNode, CUstream, CUstreamCaptureMode, CUuserObject, CUuserObject_flags,
    CUuserObjectRetain_flags,
};
use hawser_base::error::{Error, Result};
use hawser_base::log;

use super::context::Context;
use super::memory::in_context;
use super::result::MISSING;
use crate::device::Graph;

/// Records what this thread puts on `stream`, which must not be the legacy stream.
pub fn begin_capture(context: &Context, stream: CUstream) -> Result<()> {
    let _scope = context.enter()?;
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    // SAFETY: the caller's stream; the driver checks it.
    let status = unsafe { context.driver.stream_begin_capture(stream, mode) };
    status.check(context).map_err(|e| e.context(format!("capturing stream {:#x}", stream.addr())))
}

/// Ends the capture and instantiates what was recorded.
pub fn end_capture(context: &Arc<Context>, stream: CUstream) -> Result<Graph> {
    let recorded = Recorded::take(context, stream)?;
    let _scope = context.enter_relaxed()?;
    let mut raw: CUgraphExec = ptr::null_mut();
    // SAFETY: valid for the handle; the graph is alive; no flags.
    unsafe { context.driver.graph_instantiate(&mut raw, recorded.raw, 0) }
        .check(context)
        .map_err(|e| e.context(format!("instantiating the graph of stream {:#x}", stream.addr())))?;
    Ok(Graph { owner: Box::new(Executable { context: context.clone(), raw: Mutex::new(raw) }) })
}

/// Puts one launch of the graph on `stream`.
pub fn launch(context: &Context, graph: &Graph, stream: CUstream) -> Result<()> {
    let executable = graph
        .owner
        .downcast_ref::<Executable>()
        .filter(|executable| executable.context.ordinal == context.ordinal)
        .ok_or_else(|| Error::invalid_argument(format!("{context}: the graph is of another device")))?;
    let raw = executable.raw.lock().unwrap_or_else(PoisonError::into_inner);
    let _scope = context.enter_relaxed()?;
    // SAFETY: the graph lives until `executable` is dropped; the driver checks the caller's stream.
    unsafe { context.driver.graph_launch(*raw, stream) }
        .check(context)
        .map_err(|e| e.context(format!("launching a graph on stream {:#x}", stream.addr())))
}

/// Drops `kept` with the graph that `stream` is captured into; false where the driver has no such objects.
pub fn keep(context: &Context, stream: CUstream, kept: Box<dyn Send>) -> Result<bool> {
    let _scope = context.enter_relaxed()?;
    let graph = captured_graph(context, stream)?;
    let data = Box::into_raw(Box::new(kept));
    let mut object: CUuserObject = ptr::null_mut();
    let flags = CUuserObject_flags::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC as c_uint;
    // SAFETY: valid for the handle; the function fits the data, which lives until it is called.
    let made =
        unsafe { context.driver.user_object_create(&mut object, data.cast(), Some(drop_kept), 1, flags) };
    if !made.is_ok() {
        // SAFETY: the driver has refused the object and has not kept the pointer.
        drop(unsafe { Box::from_raw(data) });
        return if made.code == MISSING { Ok(false) } else { made.check(context).map(|()| false) };
    }
    let flags = CUuserObjectRetain_flags::CU_GRAPH_USER_OBJECT_MOVE as c_uint;
    // SAFETY: the graph is being captured; it takes over the one reference that there is.
    let retained = unsafe { context.driver.graph_retain_user_object(graph, object, 1, flags) };
    if !retained.is_ok() {
        // SAFETY: the reference is still ours; the last one calls the function.
        unsafe { context.driver.user_object_release(object, 1) }.check(context)?;
    }
    retained.check(context).map(|()| true)
}

/// The graph that a stream is captured into.
fn captured_graph(context: &Context, stream: CUstream) -> Result<CUgraph> {
    let (mut status, mut id, mut count): (c_int, u64, usize) = (0, 0, 0);
    let (mut graph, mut nodes): (CUgraph, *const CUgraphNode) = (ptr::null_mut(), ptr::null());
    // SAFETY: valid for a status (an enum of C int size) and all that is told; the driver checks the stream.
    let asked = unsafe {
        let status = (&raw mut status).cast();
        context.driver.stream_capture_info(stream, status, &mut id, &mut graph, &mut nodes, &mut count)
    };
    asked.check(context)?;
    if graph.is_null() {
        return Err(Error::invalid_usage(format!("stream {:#x} is not being captured", stream.addr())));
    }
    Ok(graph)
}

/// # Safety
/// `data` came from [`keep`], and this is the only call with it.
unsafe extern "C" fn drop_kept(data: *mut c_void) {
    // SAFETY: the caller's promise.
    let kept = unsafe { Box::from_raw(data.cast::<Box<dyn Send>>()) };
    // A panic must not reach the driver.
    if catch_unwind(AssertUnwindSafe(|| drop(kept))).is_err() {
        log::warn("the end of a graph panicked: a bug in this library");
    }
}

/// The recorded calls; not needed any more once they are instantiated.
struct Recorded<'a> {
    context: &'a Context,
    raw: CUgraph,
}

impl<'a> Recorded<'a> {
    fn take(context: &'a Context, stream: CUstream) -> Result<Self> {
        let _scope = context.enter()?;
        let mut raw: CUgraph = ptr::null_mut();
        // SAFETY: valid for the handle; the driver checks the caller's stream.
        unsafe { context.driver.stream_end_capture(stream, &mut raw) }
            .check(context)
            .map_err(|e| e.context(format!("ending the capture of stream {:#x}", stream.addr())))?;
        Ok(Recorded { context, raw })
    }
}

impl Drop for Recorded<'_> {
    fn drop(&mut self) {
        in_context(self.context, || {
            // SAFETY: given by the end of the capture, in nobody else's hands.
            unsafe { self.context.driver.graph_destroy(self.raw) }
        });
    }
}

/// A graph that can be launched. The lock keeps calls from overlapping, which the driver leaves to us.
struct Executable {
    context: Arc<Context>,
    raw: Mutex<CUgraphExec>,
}

// SAFETY: the handle may be used from any thread as long as calls on it do not overlap: launches hold
// the lock, and the destructor has it to itself.
unsafe impl Send for Executable {}
// SAFETY: as above.
unsafe impl Sync for Executable {}

impl Drop for Executable {
    fn drop(&mut self) {
        let raw = *self.raw.get_mut().unwrap_or_else(PoisonError::into_inner);
        in_context(&self.context, || {
            // SAFETY: instantiated in `end_capture`; a launch that is on its way frees it at its end.
            unsafe { self.context.driver.graph_exec_destroy(raw) }
        });
    }
}
