//! Operations on words that get through whatever the streams of the process wait for.
//!
//! A GPU serves a few queues of a context (`CUDA_DEVICE_MAX_CONNECTIONS`, 8 by default), which all streams
//! share. A stream that waits for a word holds its queue; once all are held nothing moves on any stream, of
//! whatever priority. A context that is made then has queues of its own (measured on H200: 0.05 to 0.17 s,
//! with 1 to 20 streams waiting, for memory of both kinds). It is kept: to destroy it while many streams wait
//! hangs in the driver, with its lock held.

use std::ptr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{CUcontext, CUstream};
use hawser_base::error::{Error, ErrorKind, Result};

use super::context::Context;
use super::result::code;
use super::stream;
use crate::device::MemoryOp;

/// The time that the operations may take.
const LIMIT: Duration = Duration::from_secs(2);

/// Of each device that needed one.
static KEPT: Mutex<Vec<Apart>> = Mutex::new(Vec::new());

#[derive(Clone, Copy)]
struct Apart {
    ordinal: u32,
    raw: CUcontext,
    stream: CUstream,
}

// SAFETY: contexts and streams may be used from any thread, the driver locks them.
unsafe impl Send for Apart {}

/// Lets a context of its own do the operations, and waits for them.
pub fn memory_ops(context: &Context, ops: &[MemoryOp]) -> Result<()> {
    // Puts the caller's context back at the end.
    let _scope = context.enter_relaxed()?;
    let apart = kept(context)?;
    inside(context, apart.raw, || put(context, apart.stream, ops))
}

fn kept(context: &Context) -> Result<Apart> {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(apart) = kept.iter().find(|apart| apart.ordinal == context.ordinal) {
        return Ok(*apart);
    }
    let apart = make(context)?;
    kept.push(apart);
    Ok(apart)
}

fn make(context: &Context) -> Result<Apart> {
    let (mut raw, mut stream): (CUcontext, CUstream) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: valid for the handle; the new context is on top of the thread's.
    unsafe { context.driver.ctx_create(&mut raw, 0, context.device) }.check(context)?;
    // SAFETY: takes it off again; valid for the handle.
    unsafe { context.driver.ctx_pop(&mut raw) }.check(context)?;
    // SAFETY: valid for the handle; 1 is CU_STREAM_NON_BLOCKING.
    let create = || unsafe { context.driver.stream_create_with_priority(&mut stream, 1, 0) }.check(context);
    inside(context, raw, create)?;
    Ok(Apart { ordinal: context.ordinal, raw, stream })
}

/// Does something while `raw` is current instead of the context that is.
fn inside(context: &Context, raw: CUcontext, work: impl FnOnce() -> Result<()>) -> Result<()> {
    // SAFETY: made in `make`, and never destroyed.
    unsafe { context.driver.ctx_set_current(raw) }.check(context)?;
    let done = work();
    // SAFETY: the context is retained as long as it lives.
    unsafe { context.driver.ctx_set_current(context.raw) }.check(context)?;
    done
}

fn put(context: &Context, stream: CUstream, ops: &[MemoryOp]) -> Result<()> {
    ops.chunks(stream::MOST_OPS).try_for_each(|ops| stream::memory_ops(context, stream, ops))?;
    let begin = Instant::now();
    loop {
        // SAFETY: a stream of the context that is current.
        let status = unsafe { context.driver.stream_query(stream) };
        if status.code != code::NOT_READY {
            return status.check(context);
        }
        if begin.elapsed() > LIMIT {
            return Err(Error::new(
                ErrorKind::Timeout,
                "operations on words apart from all streams are stuck",
            ));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
