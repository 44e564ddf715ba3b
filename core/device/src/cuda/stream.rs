//! Streams of our own, and order between streams.

use std::ffi::{c_int, c_uint};
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{
    CUevent_flags, CUstream, CUstream_flags, CUstreamBatchMemOpParams, CUstreamWaitValue_flags,
};
use hawser_base::error::Result;

use super::context::Context;
use super::event;
use super::memory::in_context;
use super::result::{MISSING, code};
use crate::device::{MemoryOp, OwnedStream, Stream};

/// Priority of streams that ask for none, `cudaStreamCreate`'s.
const DEFAULT_PRIORITY: c_int = 0;

/// A stream that does not wait for the legacy stream, of the usual or of the highest priority.
pub fn create(context: &Arc<Context>, urgent: bool) -> Result<OwnedStream> {
    let _scope = context.enter_relaxed()?;
    let priority = if urgent { highest_priority(context)? } else { DEFAULT_PRIORITY };
    let mut raw: CUstream = ptr::null_mut();
    let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint;
    // SAFETY: valid for the handle.
    unsafe { context.driver.stream_create_with_priority(&mut raw, flags, priority) }.check(context)?;
    let stream = Stream(raw.expose_provenance() as u64);
    Ok(OwnedStream { stream, owner: Box::new(Owned { context: context.clone(), raw }) })
}

/// The priority of what shall not wait for computing; the context is current.
pub fn highest_priority(context: &Context) -> Result<c_int> {
    let (mut least, mut highest) = (DEFAULT_PRIORITY, DEFAULT_PRIORITY);
    // SAFETY: valid for both numbers.
    unsafe { context.driver.stream_priority_range(&mut least, &mut highest) }.check(context)?;
    Ok(highest)
}

/// Destroys the stream when dropped.
struct Owned {
    context: Arc<Context>,
    raw: CUstream,
}

// SAFETY: streams may be used and destroyed from any thread, the driver locks them.
unsafe impl Send for Owned {}
// SAFETY: as above.
unsafe impl Sync for Owned {}

impl Drop for Owned {
    fn drop(&mut self) {
        in_context(&self.context, || {
            // SAFETY: created in `create`; the handle is not used after its owner, and work on it goes on.
            unsafe { self.context.driver.stream_destroy(self.raw) }
        });
    }
}

/// A number that no other stream of the process ever has; the handle where the driver cannot tell. The
/// context must be current, as in all that follows.
pub fn id(context: &Context, stream: CUstream) -> Result<u64> {
    let mut id = 0;
    // SAFETY: valid for the id; the driver checks the caller's stream.
    let asked = unsafe { context.driver.stream_id(stream, &mut id) };
    if asked.code == MISSING { Ok(stream.addr() as u64) } else { asked.check(context).map(|()| id) }
}

/// The priority of a stream: the default is 0, and what comes first is below.
pub fn priority(context: &Arc<Context>, stream: CUstream) -> Result<c_int> {
    let _scope = context.enter()?;
    let mut priority = DEFAULT_PRIORITY;
    // SAFETY: valid for the number; the driver checks the caller's stream.
    unsafe { context.driver.stream_priority(stream, &mut priority) }.check(context)?;
    Ok(priority)
}

/// Identity of the capture that the stream takes part in, if any.
pub fn capture(context: &Context, stream: CUstream) -> Result<Option<u64>> {
    let (mut status, mut id): (c_int, u64) = (0, 0);
    // SAFETY: valid for a status (an enum of C int size) and an id, the rest is optional.
    let asked = unsafe {
        let (graph, nodes, count) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        context.driver.stream_capture_info(stream, (&raw mut status).cast(), &mut id, graph, nodes, count)
    };
    match asked.code {
        // The legacy stream while another stream of the thread is captured: not part of the capture.
        MISSING | code::STREAM_CAPTURE_IMPLICIT => Ok(None),
        _ => asked.check(context).map(|()| (status != 0).then_some(id)),
    }
}

/// Lets the stream wait until the word at `addr` has counted to `value`; false where the driver or the GPU
/// cannot do that.
pub fn wait_value(context: &Context, stream: CUstream, addr: u64, value: u32) -> Result<bool> {
    let flags = CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as c_uint;
    // SAFETY: the word is device memory that lives until the work on the stream is over (`CommState`); the
    // driver checks the rest.
    let waited = unsafe { context.driver.stream_wait_value(stream, addr, value, flags) };
    match waited.code {
        MISSING | code::NOT_SUPPORTED => Ok(false),
        _ => waited.check(context).map(|()| true),
    }
}

/// Most operations of a batch: the driver takes 256.
pub const MOST_OPS: usize = 256;

/// Puts a copy on a stream.
pub fn copy(context: &Context, stream: CUstream, dst: u64, src: u64, bytes: u64) -> Result<()> {
    // SAFETY: the caller's memory, which lives until the work on the stream is over; the driver checks the
    // rest.
    unsafe { context.driver.memcpy_async(dst, src, bytes as usize, stream) }.check(context)
}

/// Puts at most [`MOST_OPS`] operations on a stream.
pub fn memory_ops(context: &Context, stream: CUstream, ops: &[MemoryOp]) -> Result<()> {
    /// `CU_STREAM_MEM_OP_WAIT_VALUE_32`, `CU_STREAM_MEM_OP_WRITE_VALUE_32`.
    const KINDS: [u64; 2] = [1, 2];
    /// `CU_STREAM_WAIT_VALUE_GEQ`, and the default of writes: a fence before.
    const FLAGS: u64 = 0;
    // The parameters are 48 bytes: kind, address, value, flags, alias.
    let wait =
        |addr, value: u32| CUstreamBatchMemOpParams { pad: [KINDS[0], addr, value.into(), FLAGS, 0, 0] };
    let param = |op: &MemoryOp| match *op {
        MemoryOp::Wait { addr } => wait(addr, 1),
        MemoryOp::WaitFor { addr, value } => wait(addr, value),
        MemoryOp::Write { addr, value } => {
            CUstreamBatchMemOpParams { pad: [KINDS[1], addr, value.into(), FLAGS, 0, 0] }
        }
    };
    let mut params: Vec<CUstreamBatchMemOpParams> = ops.iter().map(param).collect();
    // SAFETY: as many parameters as told; the driver copies them before it returns. Memory as in `copy`.
    unsafe { context.driver.stream_batch_mem_op(stream, params.len() as c_uint, params.as_mut_ptr(), 0) }
        .check(context)
}

/// Events to reuse: one is free again as soon as the later stream has been told to wait for it.
pub struct Events {
    context: Arc<Context>,
    free: Mutex<Vec<event::Owned>>,
}

impl Events {
    /// Makes an empty set.
    pub fn new(context: &Arc<Context>) -> Self {
        Events { context: context.clone(), free: Mutex::default() }
    }

    /// Lets `later` wait for what is on `earlier` now, unless only one of them is being captured or
    /// they belong to different captures: no order can be expressed there.
    pub fn order(&self, earlier: CUstream, later: CUstream) -> Result<()> {
        let scope = self.context.enter()?;
        if capture(&self.context, earlier)? != capture(&self.context, later)? {
            return Ok(());
        }
        drop(scope);
        self.fork(earlier, later)
    }

    /// Lets `later` wait for what is on `earlier` now; it takes part in a capture of `earlier` from then on.
    pub fn fork(&self, earlier: CUstream, later: CUstream) -> Result<()> {
        let scope = self.context.enter()?;
        let event = self.take()?;
        let driver = self.context.driver;
        // SAFETY: a live event; the driver checks the caller's stream.
        let recorded = unsafe { driver.event_record(event.raw, earlier) };
        let waited = match recorded.is_ok() {
            // SAFETY: as above; no flags.
            true => unsafe { driver.stream_wait_event(later, event.raw, 0) },
            false => recorded,
        };
        drop(scope);
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(event);
        waited.check(&self.context)
    }

    fn take(&self) -> Result<event::Owned> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        free.map_or_else(|| event::Owned::new(&self.context, CUevent_flags::CU_EVENT_DISABLE_TIMING), Ok)
    }
}
