//! The host executor: runs launches to their end in the calling thread, all communicators of a group side by
//! side.

mod fifo;
pub mod interp;

use std::sync::Arc;

use hawser_base::error::{Error, Result};
use hawser_base::log;
use hawser_device::Stream;
use hawser_plugin::profiler::{EventState, StateArgs, What};
use smallvec::SmallVec;

use self::interp::HostLaunch;
use super::{Launch, Work};
use crate::comm_state::CommState;
use crate::profiling::Span;
use crate::transport::net::{EventRecorder, Helper, Net};
use crate::tuning::TimedOp;

/// The launches of a thread that serves few ranks, for which it takes no memory.
const FEW: usize = 2;

/// Runs launches of the host device to their end.
///
/// # Errors
/// The first failure. Every communicator keeps its own, and refuses further operations.
pub fn run(launches: &mut [&mut Launch]) -> Result<()> {
    let timed = timed(launches);
    let launches: SmallVec<[&Launch; FEW]> = launches.iter().map(|launch| &**launch).collect();
    let host: SmallVec<[HostLaunch<'_>; FEW]> =
        launches.iter().filter_map(|launch| host_launch(launch)).collect::<Result<_>>()?;
    launches.iter().for_each(|launch| launch.comm.journal.submitted(launch.sequence));
    let channels = channels(&launches);
    let helpers = helpers(&launches);
    let from: Vec<_> = timed.iter().map(|timed| timed.begin(Stream::default())).collect();
    // SAFETY: the launches keep their communicators, and so all FIFOs and images, alive; the buffers are the
    // user's promise.
    let mut failures = unsafe { interp::run(host, || sweep(&helpers)) };
    // What was written last is on its way before the thread leaves, if it can be.
    helpers.iter().filter(|net| !net.is_drained()).for_each(|net| while net.sweep() {});
    drop(helpers);
    if failures.is_empty() {
        let is_over = |launch: &&&Launch| !matches!(launch.work, Work::OneSided(_));
        launches.iter().filter(is_over).for_each(|launch| launch.comm.journal.done(launch.sequence));
        timed.into_iter().zip(from).for_each(|(timed, from)| timed.end(from, Stream::default()));
    }
    end_channels(channels);
    failures.iter_mut().for_each(|(image, error)| explain(&launches, *image, error));
    for (image, error) in &failures {
        launches.iter().filter(|launch| runs_for(launch, *image)).for_each(|launch| fail(launch, error));
    }
    failures.into_iter().next().map_or_else(|| one_sided(&launches), |(_, error)| Err(error))
}

/// Carries out one-sided operations, after all else: first what is put by all ranks of the thread, then the
/// waits.
fn one_sided(launches: &[&Launch]) -> Result<()> {
    for is_wait in [false, true] {
        for launch in launches {
            let Work::OneSided(ops) = &launch.work else { continue };
            let mut ops = ops.iter().filter(|op| op.is_wait() == is_wait);
            ops.try_for_each(|op| launch.comm.one_sided(op)).inspect_err(|error| fail(launch, error))?;
        }
    }
    launches.iter().for_each(|launch| launch.comm.journal.done(launch.sequence));
    Ok(())
}

/// A communicator's operation has failed: it refuses further ones, the other ranks are told, and buffers are
/// the program's again when the call returns.
fn fail(launch: &Launch, error: &Error) {
    log::error(error);
    launch.comm.bootstrap.report(error);
    let _ = launch.comm.broken.set(error.clone());
    launch.comm.give_up_buffers();
}

/// True if a launch belongs to the communicator with this image.
fn runs_for(launch: &Launch, image: u64) -> bool {
    launch.comm.peer_memory.image() == image
}

/// The networks of the launches, whose slots this thread moves while it waits for them. Where a profiler
/// wants to hear of slots the proxy moves them, since plugins count by thread.
fn helpers<'a>(launches: &[&'a Launch]) -> Vec<Helper<'a>> {
    let mut comms: Vec<&Arc<CommState>> = Vec::new();
    for launch in launches {
        if !comms.iter().any(|known| Arc::ptr_eq(known, &launch.comm)) {
            comms.push(&launch.comm);
        }
    }
    let unwatched = comms.into_iter().filter(|comm| !comm.profiling.wants(EventRecorder::KINDS));
    unwatched.filter_map(|comm| comm.net.as_ref()).map(Net::help).collect()
}

/// One look at all networks; whether anything moved.
fn sweep(helpers: &[Helper<'_>]) -> bool {
    let mut has_moved = false;
    for net in helpers {
        has_moved |= net.sweep();
    }
    has_moved
}

/// The operations to be timed of launches that run side by side: ranks of one operation that is alone.
fn timed(launches: &mut [&mut Launch]) -> Vec<TimedOp> {
    let (mut all, mut of) = (Vec::new(), None);
    for launch in launches {
        let Some(timed) = launch.timed.take() else { return Vec::new() };
        let own = (launch.comm.comm_id, timed.number());
        if *of.get_or_insert(own) != own {
            return Vec::new();
        }
        all.push(*timed);
    }
    all
}

/// A launch as the host interpreter takes it; None for one that needs no interpreter.
fn host_launch(launch: &Launch) -> Option<Result<HostLaunch<'_>>> {
    let (plan, copies) = match &launch.work {
        Work::Steps(plan) => (plan, None),
        Work::CopyEngine(plan, program) => {
            (plan, Some(launch.comm.copies(plan, program.as_deref(), launch.copy_events())))
        }
        Work::Copies(copies) => {
            let copied = copies.iter().try_for_each(|copy| launch.comm.copy(copy, launch.stream));
            return copied.err().map(Err);
        }
        Work::OneSided(_) => return None,
        Work::Batch(_) | Work::Fused(_) | Work::FusedBatch(_) => {
            return Some(Err(Error::internal("a launch for GPUs on the host device")));
        }
    };
    let (name, roster) = (&launch.comm.name, launch.comm.bootstrap.roster());
    let journal = &launch.comm.journal;
    let class = launch.class;
    let with =
        |copies| HostLaunch { kernel: plan.kernel, args: &plan.args, name, class, copies, roster, journal };
    Some(copies.transpose().map(with))
}

/// A launch that was aborted because the network failed says so.
fn explain(launches: &[&Launch], image: u64, error: &mut Error) {
    let fault =
        |l: &&Launch| runs_for(l, image).then(|| l.comm.peer_memory.control.fault().cloned()).flatten();
    if let Some(fault) = launches.iter().find_map(fault) {
        *error = fault;
    }
}

/// The events of the channels of launches that begin now.
fn channels(launches: &[&Launch]) -> Vec<Arc<Span>> {
    let operation = |launch: &&Launch| launch.events.as_ref()?.operations.first().cloned();
    if launches.iter().all(|launch| launch.events.is_none()) {
        return Vec::new();
    }
    let timer = now_ns();
    let mut all = Vec::with_capacity(launches.len());
    for launch in launches {
        let Some(operation) = operation(launch) else { continue };
        let channels = 0..launch.work.channels();
        all.extend(channels.filter_map(|channel| operation.child(&What::KernelCh { channel, timer })));
    }
    all
}

/// Ends the events of channels.
fn end_channels(channels: Vec<Arc<Span>>) {
    if channels.is_empty() {
        return;
    }
    let timer = now_ns();
    channels.iter().for_each(|c| c.record(EventState::KERNEL_CH_STOP, StateArgs::Timer(timer)));
}

/// The host's clock, which stands for the GPU's.
fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
