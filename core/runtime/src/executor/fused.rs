//! Fused kernels on a GPU: each runs a whole collective of one host, or several small ones, without FIFOs.

use std::sync::Arc;

use hawser_base::error::Result;
use hawser_device::{FusedKernelLaunch, Stream};
use hawser_plan::executor::fused::FusedPlan;
use hawser_plan::executor::fused::batch::FusedBatch;

use crate::comm_state::{CommState, Reached};
use crate::tuning::TimedOp;

/// One call that a fused kernel runs. The kernel's arguments are made where the launch is submitted: they are
/// long.
pub struct FusedLaunch {
    /// The plan for calls of this form.
    pub plan: Arc<FusedPlan>,
    /// The addresses of input and output.
    pub buffers: (u64, u64),
    /// The places at which other ranks find the buffers.
    pub reach: Reached,
}

/// Submits one call to a stream.
///
/// # Errors
/// The driver refused the launch.
pub fn submit(
    comm: &CommState,
    launch: &FusedLaunch,
    number: u64,
    stream: Stream,
    timed: Option<Box<TimedOp>>,
) -> Result<()> {
    let FusedLaunch { plan, buffers, reach } = launch;
    let mut launch = FusedKernelLaunch { args: plan.args, blocks: plan.blocks, threads: plan.threads };
    plan.complete(&mut launch.args, *buffers, plan.scalar(), number);
    launch.args.direct |= reach.direct;
    (launch.args.src_seen, launch.args.dst_seen) = (reach.src_seen, reach.dst_seen);
    let kernels = comm.device.needs_kernels()?;
    comm.order.put(&*comm.device, stream, plan.blocks, |done| {
        launch.args.done = done;
        TimedOp::around(timed, stream, || kernels.launch_fused(plan.kernel, &launch, stream))
    })
}

/// Submits several small calls to a stream, as one launch.
///
/// # Errors
/// The driver refused the launch.
pub fn submit_batch(comm: &CommState, launch: &mut FusedBatch, stream: Stream) -> Result<()> {
    let kernels = comm.device.needs_kernels()?;
    comm.order.put(&*comm.device, stream, launch.blocks, |done| {
        launch.args.done = done;
        kernels.launch_batch(launch, stream)
    })
}
