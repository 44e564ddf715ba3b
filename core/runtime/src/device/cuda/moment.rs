//! Moments of a stream, as events that know the time.

use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::sys::{CUevent, CUstream};

use super::context::Context;
use super::memory::in_context;
use super::result::code;
use crate::device::Moment;
use crate::error::{Error, Result};

/// Puts an event on a stream.
pub fn moment(context: &Arc<Context>, stream: CUstream) -> Result<Moment> {
    let _scope = context.enter_relaxed()?;
    let mut raw: CUevent = ptr::null_mut();
    // SAFETY: valid for the handle; flags 0: an event with a time.
    unsafe { context.driver.event_create(&mut raw, 0) }.check(context)?;
    let event = Timed { context: context.clone(), raw };
    // SAFETY: a live event; the driver checks the caller's stream.
    unsafe { context.driver.event_record(raw, stream) }.check(context)?;
    Ok(Moment { owner: Box::new(event) })
}

/// The time between two events, to half a microsecond; None while the later one is not reached.
pub fn between(context: &Context, earlier: &Moment, later: &Moment) -> Result<Option<Duration>> {
    let of = |moment: &Moment| moment.owner.downcast_ref::<Timed>().map(|event| event.raw);
    let (earlier, later) =
        of(earlier).zip(of(later)).ok_or_else(|| Error::internal("a moment of another device"))?;
    let _scope = context.enter_relaxed()?;
    let mut milliseconds = 0_f32;
    // SAFETY: both events live as long as their moments; valid for the number.
    let asked = unsafe { context.driver.event_elapsed(&mut milliseconds, earlier, later) };
    if asked.code == code::NOT_READY {
        return Ok(None);
    }
    asked.check(context)?;
    Ok(Some(Duration::from_secs_f32(milliseconds.max(0.0) / 1000.0)))
}

/// Destroys the event when dropped.
struct Timed {
    context: Arc<Context>,
    raw: CUevent,
}

// SAFETY: events may be used and destroyed from any thread, the driver locks them.
unsafe impl Send for Timed {}
// SAFETY: as above.
unsafe impl Sync for Timed {}

impl Drop for Timed {
    fn drop(&mut self) {
        in_context(&self.context, || {
            // SAFETY: created in `moment`, in nobody's hands; the driver frees it when it is reached.
            unsafe { self.context.driver.event_destroy(self.raw) }
        });
    }
}
