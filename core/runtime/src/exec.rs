//! Executors: puts planned launches on devices.

use std::collections::VecDeque;
use std::sync::Arc;

use hawser_plan::device_plan::KernelKey;
use hawser_plan::exchange::bundle::BundleLaunch;
use hawser_plan::lower::LaunchPlan;
use hawser_plan::p2p::OwnCopy;
use hawser_plan::topology::DeviceKind;
use hawser_plugin::profiler::{EventState, StateArgs, What};

use crate::comm::{CommState, GroupSpans, LoadedProgram, Span, TimedOp};
use crate::device::interp::{self, HostLaunch};
use crate::device::{Device, ExchangeLaunch, Moment, Stream};
use crate::dma::Emission;
use crate::error::{Error, Result};
use crate::transport::control::Control;
use crate::transport::net::{EventRecorder, Helper, Net};

/// A launch of one communicator, addresses filled in.
pub struct Launch {
    /// Whose.
    pub comm: Arc<CommState>,
    /// What.
    pub work: Work,
    /// Where.
    pub stream: Stream,
    /// Other streams of its group: it runs after what is on them.
    pub after: Vec<Stream>,
    /// Other streams of its group: what comes later on them runs after it.
    pub before: Vec<Stream>,
    /// What profilers see of it; the events stop when the launch is dropped.
    pub events: Events,
    /// How long it takes, if somebody wants to know.
    pub timed: Option<TimedOp>,
}

impl Launch {
    /// Without events.
    pub fn new(comm: &Arc<CommState>, work: Work, stream: Stream) -> Self {
        let (after, before, events) = (Vec::new(), Vec::new(), Events::default());
        Self { comm: comm.clone(), work, stream, after, before, events, timed: None }
    }

    /// Whether it belongs to the communicator with this image.
    fn runs_for(&self, image: u64) -> bool {
        self.comm.peer_memory.dev_comm.addr == image
    }
}

/// What a launch runs.
pub enum Work {
    /// The steps of a program.
    Steps(LaunchPlan),
    /// A fused kernel.
    Exchange(KernelKey, Box<ExchangeLaunch>),
    /// Several calls in one fused kernel.
    Bundle(Box<BundleLaunch>),
    /// The steps of a program by copy engines.
    Copies(LaunchPlan, Option<Arc<LoadedProgram>>),
    /// Copies within the device, of a communicator of one rank.
    Own(Vec<OwnCopy>),
}

impl Work {
    /// The kernel, if one runs it.
    fn kernel(&self) -> Option<KernelKey> {
        match self {
            Self::Steps(plan) => Some(plan.kernel),
            Self::Exchange(kernel, _) => Some(*kernel),
            Self::Bundle(launch) => Some(launch.kernel),
            Self::Copies(plan, _) => plan.folds().then_some(plan.kernel),
            Self::Own(_) => None,
        }
    }

    fn blocks(&self) -> u32 {
        match self {
            Self::Steps(plan) => plan.args.n_blocks.into(),
            Self::Exchange(_, launch) => launch.blocks,
            Self::Bundle(launch) => launch.blocks,
            Self::Copies(..) => 1,
            Self::Own(_) => 0,
        }
    }

    /// The plan, if the steps of a program are run.
    fn steps(&self) -> Option<&LaunchPlan> {
        match self {
            Self::Steps(plan) | Self::Copies(plan, _) => Some(plan),
            Self::Exchange(..) | Self::Bundle(..) | Self::Own(_) => None,
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
    for launch in launches.iter().filter(|l| !is_host(l)) {
        launch.work.kernel().map_or(Ok(()), |kernel| launch.comm.device.prepare(kernel))?;
    }
    // One communicator after the other, in the order that all ranks have; its ranks in this thread side by side.
    for launches in launches.chunk_by_mut(|a, b| a.comm.comm_id == b.comm.comm_id) {
        if !is_host(&&launches[0]) {
            put_all(launches)?;
        }
    }
    let on_gpus = launches.iter().filter(|l| !is_host(l)).map(|l| &l.comm);
    on_gpus.for_each(|comm| {
        if let Some(net) = &comm.net {
            net.launched(comm.order.has_captures());
        }
    });
    if launches.iter().any(|l| is_host(&l)) { run_on_host(launches) } else { Ok(()) }
}

fn is_host(launch: &&Launch) -> bool {
    launch.comm.device.caps().kind == DeviceKind::Host
}

/// Runs the launches of the host device side by side.
fn run_on_host(launches: &mut [Launch]) -> Result<()> {
    let timed = timed(launches.iter_mut().filter(|l| is_host(&&**l)));
    let launches = &*launches;
    let host: Vec<HostLaunch<'_>> =
        launches.iter().filter(is_host).filter_map(host_launch).collect::<Result<_>>()?;
    let channels = channels(launches.iter().filter(is_host));
    let helpers = helpers(launches);
    let from: Vec<_> = timed.iter().map(|timed| timed.begin(Stream::default())).collect();
    // SAFETY: the launches keep their communicators, and so all FIFOs and images, alive; the buffers are the user's promise.
    let mut failures = unsafe { interp::run(host, || sweep(&helpers)) };
    // What was written last is on its way before the thread leaves, if it can be.
    helpers.iter().filter(|net| !net.is_drained()).for_each(|net| while net.sweep() {});
    drop(helpers);
    if failures.is_empty() {
        timed.into_iter().zip(from).for_each(|(timed, from)| timed.end(from, Stream::default()));
    }
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

/// The networks of launches of the host device, whose slots this thread moves while it waits for them. Where
/// a profiler wants to hear of slots the proxy moves them, since plugins count by thread.
fn helpers(launches: &[Launch]) -> Vec<Helper<'_>> {
    let mut comms: Vec<&Arc<CommState>> = Vec::new();
    for launch in launches.iter().filter(is_host) {
        if !comms.iter().any(|known| Arc::ptr_eq(known, &launch.comm)) {
            comms.push(&launch.comm);
        }
    }
    let unwatched = comms.iter().filter(|comm| !comm.profiling.wants(EventRecorder::KINDS));
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

/// What is to be timed of launches of the host device, which run side by side: ranks of one operation that is alone.
fn timed<'a>(launches: impl Iterator<Item = &'a mut Launch>) -> Vec<TimedOp> {
    let (mut all, mut of) = (Vec::new(), None);
    for launch in launches {
        let Some(timed) = launch.timed.take() else { return Vec::new() };
        let own = (launch.comm.comm_id, timed.number());
        if *of.get_or_insert(own) != own {
            return Vec::new();
        }
        all.push(timed);
    }
    all
}

/// A launch for the host device's interpreter.
fn host_launch(launch: &Launch) -> Option<Result<HostLaunch<'_>>> {
    let (plan, copies) = match &launch.work {
        Work::Steps(plan) => (plan, None),
        Work::Copies(plan, loaded) => (plan, Some(launch.comm.commands(plan, loaded.as_deref()))),
        Work::Exchange(..) | Work::Bundle(..) => return None,
        Work::Own(copies) => {
            let copied = copies.iter().try_for_each(|copy| launch.comm.copy(copy, launch.stream));
            return copied.err().map(Err);
        }
    };
    let name = &launch.comm.name;
    let with = |copies| HostLaunch { kernel: plan.kernel, args: &plan.args, name, copies };
    Some(copies.transpose().map(with))
}

/// Puts the launches of one communicator on their streams: those of a rank in order, ranks in turns, since a device takes
/// only so much before another rank has to go on.
fn put_all(launches: &mut [Launch]) -> Result<()> {
    let mut ranks: Vec<(*const CommState, VecDeque<&mut Launch>)> = Vec::new();
    for launch in launches {
        let rank = Arc::as_ptr(&launch.comm);
        match ranks.iter_mut().find(|(of, _)| *of == rank) {
            Some((_, queue)) => queue.push_back(launch),
            None => ranks.push((rank, [launch].into())),
        }
    }
    let mut current: Vec<Option<Putting<'_>>> = ranks.iter().map(|_| None).collect();
    let mut go_on = || {
        let mut left = false;
        for ((_, queue), current) in ranks.iter_mut().zip(&mut current) {
            match current.take() {
                Some(putting) => *current = putting.go_on()?,
                None => match queue.pop_front() {
                    Some(launch) => *current = put(launch)?,
                    None => continue,
                },
            }
            left = true;
        }
        Ok(left)
    };
    let outcome = loop {
        match go_on() {
            Ok(true) => {}
            Ok(false) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    if let Err(error) = &outcome {
        current.into_iter().flatten().for_each(|putting| putting.give_up(error));
    }
    outcome
}

/// A launch of copy engines that is being put on its streams.
struct Putting<'a> {
    emission: Emission<'a>,
    device: &'a dyn Device,
    stream: Stream,
    before: &'a [Stream],
    control: Arc<Control>,
    timed: Option<(Option<Moment>, TimedOp)>,
}

impl Putting<'_> {
    /// Puts the next commands on the streams; None when all are. After a failure the communicator is broken: peers wait for
    /// what this rank has not put there.
    fn go_on(mut self) -> Result<Option<Self>> {
        match self.emission.round() {
            Ok(true) => return Ok(Some(self)),
            Ok(false) => {}
            Err(error) => {
                self.give_up(&error);
                return Err(error);
            }
        }
        let (control, device) = (self.control, self.device);
        let end = || {
            self.emission.finish()?;
            if let Some((from, timed)) = self.timed {
                timed.end(from, self.stream);
            }
            self.before.iter().try_for_each(|other| device.order(self.stream, *other))
        };
        end().map(|()| None).inspect_err(|error: &Error| {
            control.fail(error.clone());
        })
    }

    /// Breaks the communicator. What is on the streams counts as a launch, which its end has to wait for.
    fn give_up(self, error: &Error) {
        self.control.fail(error.clone());
        let _ = self.emission.finish();
    }
}

/// Puts a launch on its stream, or begins to.
fn put(launch: &mut Launch) -> Result<Option<Putting<'_>>> {
    let Launch { comm, work, stream, after, before, events, timed } = launch;
    let (device, stream, before) = (&*comm.device, *stream, &before[..]);
    after.iter().try_for_each(|other| device.order(*other, stream))?;
    let blocks = work.blocks();
    let event = events.group.as_ref().and_then(|g| g.launch(stream));
    match work {
        Work::Steps(plan) => comm.order.put(device, stream, blocks, |done| {
            plan.args.done = done;
            let put = || device.launch(plan.kernel, &plan.args, plan.threads, stream);
            TimedOp::around(timed.take(), stream, put)
        })?,
        Work::Exchange(kernel, launch) => comm.order.put(device, stream, blocks, |done| {
            launch.args.done = done;
            TimedOp::around(timed.take(), stream, || device.launch_exchange(*kernel, launch, stream))
        })?,
        Work::Bundle(launch) => comm.order.put(device, stream, blocks, |done| {
            launch.args.done = done;
            device.launch_bundle(launch, stream)
        })?,
        Work::Own(copies) => copies.iter().try_for_each(|copy| comm.copy(copy, stream))?,
        Work::Copies(plan, loaded) => {
            let control = comm.peer_memory.control.clone();
            let emission = comm.begin_copies(plan, loaded.as_deref(), stream);
            let emission = emission.inspect_err(|error| {
                control.fail(error.clone());
            })?;
            let timed = timed.take().map(|timed| (timed.begin(stream), timed));
            return Ok(Some(Putting { emission, device, stream, before, control, timed }));
        }
    }
    drop(event);
    before.iter().try_for_each(|other| device.order(stream, *other))?;
    Ok(None)
}

/// A launch that was aborted because the network failed says so.
fn explain(launches: &[Launch], image: u64, error: &mut Error) {
    let fault = |l: &Launch| l.runs_for(image).then(|| l.comm.peer_memory.control.fault().cloned()).flatten();
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
