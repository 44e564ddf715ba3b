//! The interpreter on a GPU: a kernel that runs the steps of any program over FIFOs.

use std::sync::{Arc, Mutex};

use hawser_base::error::Result;
use hawser_base::lock::lock;
use hawser_device::Stream;
use hawser_plan::executor::launch::LaunchPlan;

use hawser_plan::p2p::Message;
use smallvec::SmallVec;

use crate::comm_state::CommState;
use crate::comm_state::plan_cache::KeptBatch;
use crate::tuning::TimedOp;

/// Messages that share launches; most groups send one and receive one.
pub type Messages = SmallVec<[Message; 2]>;

/// A small batch of messages: its launch is kept by the communicator and takes these addresses when it is
/// submitted.
pub struct BatchLaunch {
    /// The launch that is kept.
    pub kept: Arc<Mutex<KeptBatch>>,
    /// The messages with their addresses.
    pub messages: Messages,
}

/// Submits the steps of a program to a stream.
///
/// # Errors
/// The driver refused the launch.
pub fn submit(
    comm: &CommState,
    plan: &mut LaunchPlan,
    stream: Stream,
    timed: Option<Box<TimedOp>>,
) -> Result<()> {
    let LaunchPlan { kernel, args, threads, .. } = plan;
    let kernels = comm.device.needs_kernels()?;
    comm.order.put(&*comm.device, stream, args.n_blocks.into(), |done| {
        args.done = done;
        TimedOp::around(timed, stream, || kernels.launch(*kernel, args, *threads, stream))
    })
}

/// Submits a kept batch of messages to a stream.
///
/// # Errors
/// The driver refused the launch.
pub fn submit_batch(comm: &CommState, batch: &BatchLaunch, number: u64, stream: Stream) -> Result<()> {
    let mut kept = lock(&batch.kept)?;
    let plan = kept.bind(&batch.messages);
    plan.args.op_number = number;
    comm.enter_landings(plan, number)?;
    submit(comm, plan, stream, None)
}
