//! Executors: each knows how one kind of launch reaches a device.
//!
//! | executor | runs | file |
//! |---|---|---|
//! | interpreter | the steps of any program, by a kernel over FIFOs | [`interpreter`] |
//! | fused | whole collectives of one host, by a kernel made for them | [`fused`] |
//! | copy engine | the steps of a program as copies and memory operations of streams | [`copy_engine`] |
//! | host | the steps of any program on the CPU, in the calling thread | [`host`] |
//! | one-sided | no program: puts, signals and waits, in the order of a stream | [`one_sided`] |
//!
//! What all of them have in common (stream order, profiler events, timing, failures) is in [`crate::submit`].

pub mod copy_engine;
pub mod fused;
pub mod host;
pub mod interpreter;
pub mod one_sided;
pub mod rounds;

use std::sync::Arc;

use hawser_device::Stream;
use hawser_kernels_abi::KernelKey;
use hawser_plan::executor::fused::batch::FusedBatch;
use hawser_plan::executor::launch::LaunchPlan;
use hawser_plan::p2p::OwnCopy;
use hawser_plan::{Class, Route};
use smallvec::SmallVec;

use self::copy_engine::events::CopyEvents;
use crate::comm_state::{CommState, LoadedProgram};
use crate::profiling::{GroupSpans, Span};
use crate::rma::RmaOp;
use crate::tuning::TimedOp;

/// The launches of a group, in the order in which they are submitted. Most groups have one, or one for each
/// of two ranks in one thread.
pub type Launches = SmallVec<[Launch; 2]>;

/// Work of one communicator that is ready to be submitted to a stream.
pub struct Launch {
    /// The communicator that the launch belongs to.
    pub comm: Arc<CommState>,
    /// The work that runs.
    pub work: Work,
    /// The number of the first operation that the launch runs.
    pub number: u64,
    /// The place of the last operation that the launch runs in the journal of its rank.
    pub sequence: u64,
    /// The class of what the launch runs: the most urgent one, if it runs several operations.
    pub class: Class,
    /// The stream that the launch is submitted to.
    pub stream: Stream,
    /// The work around the launch that a group of several streams, or with events of the program, has.
    pub around: Option<Box<Around>>,
    /// The events of the launch that profilers see, if one watches; the events stop when it is dropped.
    pub events: Option<Events>,
    /// Takes the time of the launch, if somebody wants to know it.
    pub timed: Option<Box<TimedOp>>,
}

impl Launch {
    /// A launch without events, on one stream. `number` is that of the first operation, `sequence` the place
    /// of the last one in the journal.
    pub fn new(comm: &Arc<CommState>, work: Work, (number, sequence): (u64, u64), stream: Stream) -> Self {
        let comm = comm.clone();
        let class = comm.class_on(None, stream);
        Self { comm, work, number, sequence, class, stream, around: None, events: None, timed: None }
    }

    /// The events of the copies of a launch of copy engines, which begin now; `None` if nobody watches them.
    pub fn copy_events(&self) -> Option<CopyEvents> {
        self.events.as_ref()?.copy_events(self.comm.topology.size())
    }

    /// Returns the surroundings of the launch, to be changed.
    pub fn around_mut(&mut self) -> &mut Around {
        self.around.get_or_insert_default()
    }
}

/// The surroundings of a launch: what streams do right before and after it.
#[derive(Default)]
pub struct Around {
    /// Other streams of its group whose work the launch comes after.
    pub after: Vec<Stream>,
    /// Other streams of its group whose later work comes after the launch.
    pub before: Vec<Stream>,
    /// Events of the program that are recorded right before the launch.
    pub record: Vec<u64>,
}

/// The work of a launch, by executor.
pub enum Work {
    /// The interpreter (on the host device: the host executor) runs the steps of a program.
    Steps(LaunchPlan),
    /// The interpreter runs a batch of messages whose launch is kept.
    Batch(interpreter::BatchLaunch),
    /// A fused kernel runs one call.
    Fused(fused::FusedLaunch),
    /// A fused kernel runs several small calls of a group.
    FusedBatch(Box<FusedBatch>),
    /// Copy engines run the steps of a program; the program is there if its steps do not travel in the plan.
    CopyEngine(LaunchPlan, Option<Arc<LoadedProgram>>),
    /// The driver copies within the device, for a communicator of one rank.
    Copies(SmallVec<[OwnCopy; 1]>),
    /// One-sided operations: signals with what is put before them, or waits.
    OneSided(Vec<RmaOp>),
}

impl Work {
    /// The work for a plan whose addresses are filled in, with the program whose steps do not travel in it.
    pub fn of_plan(plan: LaunchPlan, loaded: Option<&Arc<LoadedProgram>>) -> Self {
        match plan.kernel.route {
            Route::COPY_ENGINE => Self::CopyEngine(plan, loaded.cloned()),
            _ => Self::Steps(plan),
        }
    }

    /// The kernel that runs the work and may not be loaded yet. Those of fused plans and of kept batches are
    /// loaded when the plan is made.
    pub fn kernel_to_load(&self) -> Option<KernelKey> {
        match self {
            Self::Steps(plan) => Some(plan.kernel),
            Self::FusedBatch(launch) => Some(launch.kernel),
            Self::CopyEngine(plan, _) => plan.reduces().then_some(plan.kernel),
            Self::Batch(_) | Self::Fused(_) | Self::Copies(_) | Self::OneSided(_) => None,
        }
    }

    /// The channels of the work that profilers see: those of steps.
    pub fn channels(&self) -> u8 {
        match self {
            Self::Steps(plan) | Self::CopyEngine(plan, _) => plan.args.n_blocks,
            Self::Batch(_) | Self::Fused(_) | Self::FusedBatch(_) | Self::Copies(_) | Self::OneSided(_) => 0,
        }
    }
}

/// The profiler events of a launch.
pub struct Events {
    /// The events of the group that the launch belongs to.
    pub group: Arc<GroupSpans>,
    /// The events of the operations that it runs.
    pub operations: Vec<Arc<Span>>,
    /// The event of the collective that copy engines run.
    pub copied: Option<Arc<Span>>,
}

impl Events {
    /// The events of operations of a group.
    pub fn new(group: &Arc<GroupSpans>, operations: Vec<Arc<Span>>) -> Self {
        Self { group: group.clone(), operations, copied: None }
    }

    /// The events of the parts of a collective that copy engines run on so many ranks.
    pub fn copy_events(&self, ranks: u32) -> Option<CopyEvents> {
        self.copied.clone().map(|coll| CopyEvents::start(coll, ranks))
    }
}
