//! CUDA graphs: launches of a stream that are recorded once and launched together.

use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{CUgraph, CUgraphExec, CUstream, CUstreamCaptureMode};
use hawser_base::error::{Error, Result};

use super::context::Context;
use super::memory::in_context;
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
