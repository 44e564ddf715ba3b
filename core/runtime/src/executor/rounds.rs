//! Copy engines on a GPU: the steps of a program as copies and memory operations of streams.
//!
//! A device takes only so many commands before another rank of the same thread has to go on, so a launch is
//! submitted in rounds: [`CopyEngineLaunch::next_round`] puts one on the streams.

use std::sync::Arc;

use hawser_base::error::{Error, Result};
use hawser_device::{Device, Moment, Stream};
use hawser_plan::executor::launch::LaunchPlan;

use crate::comm_state::{CommState, LoadedProgram};
use crate::executor::copy_engine::Emission;
use crate::executor::copy_engine::events::CopyEvents;
use crate::transport::control::Control;
use crate::tuning::TimedOp;

/// A launch of copy engines that is being put on its streams.
pub struct CopyEngineLaunch<'a> {
    emission: Emission<'a>,
    device: &'a dyn Device,
    stream: Stream,
    /// Streams whose later work comes after the launch.
    before: &'a [Stream],
    control: Arc<Control>,
    /// The moment at which the launch began, and the operation that is timed.
    timed: Option<(Option<Moment>, Box<TimedOp>)>,
}

impl<'a> CopyEngineLaunch<'a> {
    /// Begins a launch behind everything of the communicator and of `stream`.
    ///
    /// # Errors
    /// The driver refused something; the communicator is broken, since peers wait for this rank.
    pub fn begin(
        comm: &'a CommState,
        (plan, program): (&'a LaunchPlan, Option<&'a LoadedProgram>),
        (stream, before): (Stream, &'a [Stream]),
        (timed, events): (Option<Box<TimedOp>>, Option<CopyEvents>),
    ) -> Result<Self> {
        let control = comm.peer_memory.control.clone();
        let begun = comm.begin_copies(plan, program, (stream, events));
        let emission = begun.inspect_err(|error| {
            control.fail(error.clone());
        })?;
        let timed = timed.map(|timed| (timed.begin(stream), timed));
        Ok(Self { emission, device: &*comm.device, stream, before, control, timed })
    }

    /// Puts the next commands on the streams; None when all are there.
    ///
    /// # Errors
    /// The driver refused something; the communicator is broken, since peers wait for this rank.
    pub fn next_round(mut self: Box<Self>) -> Result<Option<Box<Self>>> {
        match self.emission.round() {
            Ok(true) => Ok(Some(self)),
            Ok(false) => self.finish().map(|()| None),
            Err(error) => {
                self.give_up(&error);
                Err(error)
            }
        }
    }

    fn finish(self) -> Result<()> {
        let Self { emission, device, stream, before, control, timed } = self;
        let end = || {
            emission.finish()?;
            if let Some((from, timed)) = timed {
                timed.end(from, stream);
            }
            before.iter().try_for_each(|other| device.order(stream, *other))
        };
        end().inspect_err(|error: &Error| {
            control.fail(error.clone());
        })
    }

    /// Breaks the communicator. What is on the streams counts as a launch, which its end has to wait for.
    pub fn give_up(self, error: &Error) {
        self.control.fail(error.clone());
        let _ = self.emission.finish();
    }
}
