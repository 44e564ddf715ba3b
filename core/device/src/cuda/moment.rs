//! Moments of a stream, as events that know the time.

use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::sys::{CUevent_flags, CUstream};
use hawser_base::error::{Error, Result};

use super::context::Context;
use super::event::Owned;
use super::result::code;
use crate::device::Moment;

/// Puts an event on a stream.
pub fn moment(context: &Arc<Context>, stream: CUstream) -> Result<Moment> {
    let _scope = context.enter_relaxed()?;
    let event = Owned::new(context, CUevent_flags::CU_EVENT_DEFAULT)?;
    // SAFETY: a live event; the driver checks the caller's stream.
    unsafe { context.driver.event_record(event.raw, stream) }.check(context)?;
    Ok(Moment { owner: Box::new(event) })
}

/// The time between two events, to half a microsecond; None while the later one is not reached.
pub fn between(context: &Context, earlier: &Moment, later: &Moment) -> Result<Option<Duration>> {
    let of = |moment: &Moment| moment.owner.downcast_ref::<Owned>().map(|event| event.raw);
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
