//! Executors: puts planned launches on devices.

use std::sync::Arc;

use hawser_plan::device_plan::KernelKey;
use hawser_plan::lower::LaunchPlan;
use hawser_plan::world::DeviceKind;
use hawser_plugin::profiler::{EventState, StateArgs, What};

use crate::comm::{GroupSpans, Live, Span};
use crate::device::interp::{self, HostLaunch};
use crate::device::{ExchangeLaunch, Stream};
use crate::error::{Error, Result};
use crate::transport::net::Net;

/// A launch of one communicator, addresses filled in.
pub struct Launch {
    /// Whose.
    pub comm: Arc<Live>,
    /// What.
    pub work: Work,
    /// Where.
    pub stream: Stream,
    /// Other streams with calls that it serves: it runs after what is on them, and what comes later on them
    /// runs after it.
    pub others: Vec<Stream>,
    /// What profilers see of it; the events stop when the launch is dropped.
    pub events: Events,
}

impl Launch {
    /// Whether it belongs to the communicator with this image.
    fn runs_for(&self, image: u64) -> bool {
        self.comm.fabric.dev_comm.addr == image
    }
}

/// What a launch runs.
pub enum Work {
    /// The steps of a program.
    Steps(LaunchPlan),
    /// A fused kernel.
    Exchange(KernelKey, Box<ExchangeLaunch>),
}

impl Work {
    fn kernel(&self) -> KernelKey {
        match self {
            Self::Steps(plan) => plan.kernel,
            Self::Exchange(kernel, _) => *kernel,
        }
    }

    fn blocks(&self) -> u32 {
        match self {
            Self::Steps(plan) => plan.args.n_blocks.into(),
            Self::Exchange(_, launch) => launch.blocks,
        }
    }

    /// The plan, if an interpreter runs it.
    fn steps(&self) -> Option<&LaunchPlan> {
        match self {
            Self::Steps(plan) => Some(plan),
            Self::Exchange(..) => None,
        }
    }
}

/// The events of a launch.
#[derive(Default)]
pub struct Events {
    /// The group that it belongs to.
    pub group: Option<Arc<GroupSpans>>,
    /// Its operations.
    pub operations: Vec<Arc<Span>>,
}

/// Runs a group's launches: GPUs get theirs on the streams, the host device's run to their end here.
///
/// All kernels are loaded before the first launch, since a kernel that is already spinning can keep
/// the driver from loading another one.
///
/// # Errors
/// The first failure. On the host device every communicator keeps its own, and refuses further operations.
pub fn run(launches: &mut [Launch]) -> Result<()> {
    let is_host = |l: &&Launch| l.comm.device.caps().kind == DeviceKind::Host;
    for launch in launches.iter().filter(|l| !is_host(l)) {
        launch.comm.device.prepare(launch.work.kernel())?;
    }
    for launch in launches.iter_mut().filter(|l| !is_host(&&**l)) {
        put(launch)?;
    }
    let launches = &*launches;
    launches.iter().filter_map(|l| l.comm.net.as_ref()).for_each(Net::wake);
    let host: Vec<HostLaunch<'_>> = launches
        .iter()
        .filter(is_host)
        .filter_map(|l| Some((l.work.steps()?, &l.comm.name)))
        .map(|(plan, name)| HostLaunch { kernel: plan.kernel, args: &plan.args, name })
        .collect();
    let channels = channels(launches.iter().filter(is_host));
    // SAFETY: the launches keep their communicators, and so all FIFOs and images, alive; the buffers are the user's promise.
    let mut failures = unsafe { interp::run(&host) };
    let timer = now_ns();
    channels.iter().for_each(|c| c.record(EventState::KERNEL_CH_STOP, StateArgs::Timer(timer)));
    drop(channels);
    failures.iter_mut().for_each(|(image, error)| explain(launches, *image, error));
    for (image, error) in &failures {
        for launch in launches.iter().filter(|l| l.runs_for(*image)) {
            crate::log::warn(&error.text);
            let _ = launch.comm.broken.set(error.clone());
        }
    }
    failures.into_iter().next().map_or(Ok(()), |(_, error)| Err(error))
}

/// Puts a launch on its stream.
fn put(launch: &mut Launch) -> Result<()> {
    let Launch { comm, work, stream, others, events } = launch;
    let (device, stream) = (&*comm.device, *stream);
    others.iter().try_for_each(|other| device.order(*other, stream))?;
    let event = events.group.as_ref().and_then(|g| g.launch(stream));
    comm.order.put(device, stream, work.blocks(), |done| match work {
        Work::Steps(plan) => {
            plan.args.done = done;
            device.launch(plan.kernel, &plan.args, plan.threads, stream)
        }
        Work::Exchange(kernel, launch) => {
            launch.args.done = done;
            device.launch_exchange(*kernel, launch, stream)
        }
    })?;
    drop(event);
    others.iter().try_for_each(|other| device.order(stream, *other))
}

/// A launch that was aborted because the network failed says so.
fn explain(launches: &[Launch], image: u64, error: &mut Error) {
    let fault = |l: &Launch| l.runs_for(image).then(|| l.comm.fabric.control.fault().cloned()).flatten();
    if let Some(fault) = launches.iter().find_map(fault) {
        *error = fault;
    }
}

/// The events of the channels of launches that begin now.
fn channels<'a>(launches: impl Iterator<Item = &'a Launch>) -> Vec<Arc<Span>> {
    let of_launch = |launch: &'a Launch| {
        let channel = |channel: u8| What::KernelCh { channel, timer: now_ns() };
        let blocks = 0..launch.work.steps().map_or(0, |plan| plan.args.n_blocks);
        launch.events.operations.first().map(|op| blocks.filter_map(move |b| op.child(&channel(b))))
    };
    launches.filter_map(of_launch).flatten().collect()
}

/// The host's clock, which stands for the GPU's.
fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
