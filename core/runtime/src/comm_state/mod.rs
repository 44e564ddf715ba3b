//! A communicator that is up: plans calls and holds everything that launches need.
//!
//! The handle that programs have of it, and how it comes up and ends, is in [`crate::comm`].

mod choice;
mod deciding;
mod deferred_free;
mod inter_node;
mod loaded_program;
mod one_sided;
pub mod plan_cache;
mod sequence;
mod single_rank;
pub mod sm_free;
mod stream_ops;

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use hawser_base::env;
use hawser_base::error::{Error, ErrorKind, Result};
use hawser_base::lock::lock;
use hawser_base::log::{self, Subsys};
use hawser_base::wait::{AbortFlag, Wait};
use hawser_device::{Device, Memory, Stream};
use hawser_kernels_abi::{Args, DeviceOp, KernelKey, NO_DEP, Step};
use hawser_plan::algo::{self, ProgramKey};
use hawser_plan::choose::Decision;
use hawser_plan::executor::copy_engine;
use hawser_plan::executor::fused::FusedPlan;
use hawser_plan::executor::fused::zero_copy;
use hawser_plan::executor::interpreter::lower;
use hawser_plan::executor::launch::{LaunchPlan, device_op};
use hawser_plan::executor::{self, Decided, Plan};
use hawser_plan::layout::HeapLayout;
use hawser_plan::{Call, CallOptions, PlanConfig, ReduceOp, Topology};
use rustc_hash::FxHashMap;

use self::choice::Asked;
use self::deferred_free::Remains;
pub use self::loaded_program::LoadedProgram;
use self::plan_cache::{CallKey, PlanCache};
use self::sm_free::SmFree;
use self::stream_ops::StreamOps;
use crate::bootstrap::Bootstrap;
use crate::executor::copy_engine::events::CopyEvents;
use crate::executor::copy_engine::{Dma, Emission, Who};
use crate::profiling::{Profiling, Span};
use crate::progress::journal::Journal;
use crate::progress::members::Registered;
use crate::ras;
use crate::rma::Rma;
use crate::rules_update::{Epoch, ServedParticipant, Staged};
use crate::stream_order::Order;
use crate::transport::net::{ConnectionKey, EventRecorder, Net};
use crate::transport::suspend::Suspended;
use crate::transport::{PeerMemory, bytes_of};
use crate::tuning::call_attributes::{TIMED_BEFORE, is_drawn};
use crate::tuning::{CallAttributes, OpTimings, TimedOp, TunedDecision, Tuners, Windows};

/// Everything a communicator has once bring-up is over. Freed when the last launch and handle let go.
pub struct CommState {
    /// This rank.
    pub rank: u32,
    /// The topology that all ranks agreed on.
    pub topology: Topology,
    /// See `topology`.
    pub plan_config: PlanConfig,
    /// The places of FIFOs in a heap.
    pub layout: HeapLayout,
    /// Name for logs and errors.
    pub name: String,
    /// The same number on all ranks, and on no other communicator.
    pub comm_id: u64,
    /// Counts collectives, and knows when the rules change.
    pub epoch: Arc<Epoch<Staged>>,
    /// This rank's part in changes of rules; None where it is alone.
    pub participant: Option<ServedParticipant>,
    /// Profiler plugins.
    pub profiling: Arc<Profiling>,
    /// The last operations of this rank, for those who look why nothing moves.
    pub journal: Journal,
    /// Lets this rank be asked how it is; not set where it is alone.
    pub asked: OnceLock<Registered>,
    /// Lets clients of RAS hear of this rank.
    pub counted: OnceLock<ras::Registered>,
    /// Control connections to the other ranks.
    pub bootstrap: Arc<Bootstrap>,
    /// The network, where ranks share no memory. Before `peer_memory`, which it works on: it goes first.
    pub net: Option<Net>,
    /// The device.
    pub device: Arc<dyn Device>,
    /// FIFO memory and the device's image of the communicator.
    pub peer_memory: PeerMemory,
    /// The communicator's flag: raised by abort, also while a destroy in another thread waits for the device.
    pub abort: AbortFlag,
    /// Programs in use, lowered for this rank.
    pub programs: Mutex<FxHashMap<(ProgramKey, DeviceOp), Arc<LoadedProgram>>>,
    /// The tuners that count, and choices already made with them.
    pub choices: Mutex<Choices>,
    /// Scratch of programs that need any; replaced by a larger one on demand, old ones stay for graphs.
    pub scratch: Mutex<Vec<Memory>>,
    /// Number of the next batch of messages.
    pub next_batch: AtomicU64,
    /// Why an operation failed on this rank: the FIFOs are in an undefined state from then on.
    pub broken: OnceLock<Error>,
    /// The order of launches on streams.
    pub order: Order,
    /// Copy engines, if ranks have staging for them.
    pub dma: Option<Dma>,
    /// Lines about them.
    pub sm_free: SmFree,
    /// Symmetric windows.
    pub windows: Windows,
    /// The windows and signals of one-sided operations.
    pub rma: Rma,
    /// The thread for one-sided operations of a GPU, once there was one.
    pub stream_ops: OnceLock<Arc<StreamOps>>,
    /// Whether each rank loads and stores the buffers of all others: they are in one process, whose devices
    /// reach each other's ordinary memory.
    pub is_load_store: bool,
    /// The times of operations, if somebody wants to know them.
    pub times: Arc<OpTimings>,
    /// The content of the heap while the communicator is suspended.
    pub suspended: Mutex<Option<Suspended>>,
    /// After an abort; the last to go.
    pub remains: Remains,
}

/// The tuners of a communicator, and choices made with them.
pub struct Choices {
    /// Tuner plugins.
    pub tuners: Arc<Tuners>,
    /// The plans that were compiled with them.
    pub cache: PlanCache,
}

impl Choices {
    /// Nothing is chosen yet.
    pub fn new(tuners: Arc<Tuners>) -> Self {
        Self { tuners, cache: PlanCache::default() }
    }
}

/// A choice bound to a call's size.
pub enum Compiled {
    /// Steps of a program.
    Steps(LaunchPlan, Arc<LoadedProgram>, TunedDecision),
    /// A fused kernel.
    Fused(Arc<FusedPlan>, TunedDecision),
}

impl Compiled {
    /// The choice, and the blocks that it runs in.
    pub fn chosen(&self) -> (&TunedDecision, u8) {
        match self {
            Self::Steps(plan, _, chosen) => (chosen, plan.blocks()),
            Self::Fused(plan, chosen) => (chosen, plan.blocks as u8),
        }
    }
}

/// How long an aborted communicator waits for its stream before it gives its memory up.
const AFTER_ABORT: Duration = Duration::from_secs(2);

/// How long after an abort kernels of replays may still look at the communicator's memory.
const REPLAYS: Duration = Duration::from_millis(100);

impl CommState {
    /// [`zero_copy::READY`] if a call's launch may say so to other ranks, else 0.
    pub fn reach(&self, plan: &FusedPlan, call: &Call, number: u64) -> Result<u8> {
        let Some(buffers) = plan.to_reach(call.input, call.output) else { return Ok(0) };
        for (addr, bytes) in buffers.into_iter().filter(|(_, bytes)| *bytes > 0) {
            if !self.device.needs_kernels()?.is_reached(addr, bytes)? {
                let text = "other GPUs cannot use these buffers in place \
                            (those of cudaMalloc and ncclMemAlloc can be): staged";
                log::info(Subsys::Coll, || format!("{} rank {} op {number}: {text}", self.name, self.rank));
                return Ok(0);
            }
        }
        Ok(zero_copy::READY)
    }

    /// Says what was chosen for a call.
    pub fn log_call(&self, call: &Call, choice: &Decision, blocks: u8, number: u64) {
        self.sm_free.call(self, call, choice, number);
        log::info(Subsys::Coll, || {
            let (algorithm, route) = (choice.key.algorithm.name(), choice.route.name());
            let what = format!("{} {} x {}", call.collective.name(), call.count, call.dtype.name());
            format!("{} rank {} op {number}: {what}: {algorithm}/{route} x {blocks}", self.name, self.rank)
        });
    }

    /// The choice for a call, bound to its size, and how it is timed, if it is. Kept: training repeats a few
    /// calls for ever.
    pub fn compiled(
        &self,
        call: &Call,
        options: Option<&CallOptions>,
        stream: Stream,
        number: u64,
    ) -> Result<(Arc<Compiled>, Option<Box<TimedOp>>)> {
        let mut choices = lock(&self.choices)?;
        let (mut attributes, mut is_timed) = self.attributes(&choices.tuners, call, stream, number)?;
        if let Some(CallOptions { rule: rule @ Some(_), .. }) = options {
            // A call that names its rule is no trial, and nothing is learned from it.
            (attributes.rule, attributes.trial, is_timed) = (*rule, None, false);
        }
        let options = options.filter(|options| !options.is_default()).map(|options| options.deciding());
        let key = CallKey::new(call, attributes, options);
        let compiled = match choices.cache.find(&key, number) {
            Some(compiled) => compiled,
            None => {
                let tuners = choices.tuners.clone();
                drop(choices);
                let asked = Asked { attributes, options };
                self.compile(call, (key, asked), &tuners, number)?
            }
        };
        let ran = (call, &self.topology);
        let timed =
            is_timed.then(|| TimedOp::new(&self.times, ran, (compiled.chosen().0, attributes), number));
        Ok((compiled, timed.flatten().map(Box::new)))
    }

    /// What tuners may ask about collective `number`, and whether it is to be timed.
    pub fn attributes(
        &self,
        tuners: &Tuners,
        call: &Call,
        stream: Stream,
        number: u64,
    ) -> Result<(CallAttributes, bool)> {
        let wants = tuners.wants();
        let trial = if wants.times { tuners.trial(number) } else { None };
        let is_before = || tuners.trial(number.saturating_add(TIMED_BEFORE)).is_some();
        let is_timed = wants.times && (trial.is_some() || is_drawn(number) || is_before());
        let in_graph = (wants.in_graph || is_timed) && self.device.stream_state(stream)?.capture.is_some();
        let registered = self.windows.hold(call, self.topology.size());
        // What is captured keeps its plan: nothing is tried there, and nobody knows when it runs.
        let trial = trial.filter(|_| !in_graph);
        Ok((
            CallAttributes { in_graph: in_graph && wants.in_graph, registered, trial, rule: None },
            is_timed && !in_graph,
        ))
    }

    /// Makes the choice for a call, and keeps it.
    fn compile(
        &self,
        call: &Call,
        (key, asked): (CallKey, Asked),
        tuners: &Arc<Tuners>,
        number: u64,
    ) -> Result<Arc<Compiled>> {
        let attributes = asked.attributes;
        let (chosen, plan_config) = self.choose_by_options(call, asked, tuners)?;
        if attributes.trial.is_none() {
            tuners.show(&self.name, self.rank, (call, attributes), &chosen);
        }
        let choice = &chosen.choice;
        let executor = executor::of(choice.route.executor);
        let program = match executor.runs_steps() {
            true => Some(self.program(choice.key, device_op(call))?),
            false => None,
        };
        let plan_config = &*tuners.plan_config(call, attributes, &self.topology, choice, &plan_config);
        let (rank, topology) = (self.rank, &self.topology);
        let decided = Decided { call, decision: choice, rank, topology, config: plan_config };
        let compiled = match (executor.compile(&decided, program.as_ref().map(|p| &p.lowered))?, program) {
            (Plan::Steps(plan), Some(program)) => {
                self.connect(&plan, &program.lowered.steps)?;
                Arc::new(Compiled::Steps(plan, program, chosen))
            }
            (Plan::Fused(mut plan), _) => {
                // Now, since a kernel that is already spinning can keep the driver from loading another one.
                self.device.needs_kernels()?.prepare(plan.kernel)?;
                let parts = self.peer_memory.reach(plan.part(), &self.wait())?;
                plan.connect(&parts, self.peer_memory.fused_epochs()?, self.peer_memory.dev_comm.addr);
                Arc::new(Compiled::Fused(Arc::from(plan), chosen))
            }
            (Plan::Steps(_), None) => return Err(Error::internal("steps of no program")),
        };
        // The factor of a pre-multiplied sum is part of the plan but not of the key.
        let mut choices = lock(&self.choices)?;
        let again = call.op != ReduceOp::PreMulSum && Arc::ptr_eq(&choices.tuners, tuners);
        choices.cache.keep(key, number, &compiled, again);
        Ok(compiled)
    }

    /// Begins a launch of copy engines.
    pub fn begin_copies<'a>(
        &'a self,
        plan: &'a LaunchPlan,
        loaded: Option<&'a LoadedProgram>,
        on: (Stream, Option<CopyEvents>),
    ) -> Result<Emission<'a>> {
        let who = Who { name: &self.name, rank: self.rank, op_number: plan.args.op_number };
        let steps = steps_of(plan, loaded);
        self.copier()?.begin(&*self.device, &self.order, (plan, steps), on, who)
    }

    /// The commands of a launch of copy engines on the host device.
    pub fn commands(
        &self,
        plan: &LaunchPlan,
        loaded: Option<&LoadedProgram>,
    ) -> Result<[Vec<copy_engine::What>; copy_engine::STREAMS as usize]> {
        self.copier()?.commands(&*self.device, plan, steps_of(plan, loaded))
    }

    fn copier(&self) -> Result<&Dma> {
        self.dma.as_ref().ok_or_else(|| Error::internal("a launch of copy engines without staging"))
    }

    /// Waits for all operations on this rank, or until they are aborted: their stream may be stuck in other
    /// work then.
    pub fn flush(&self) -> Result<()> {
        let aborted = || Error::new(ErrorKind::Aborted, "aborted while its last operations ran");
        if let Some(end) = self.order.end(&*self.device)? {
            let is_over = || match self.device.is_idle(end.stream) {
                // Released streams are idle too.
                Ok(_) if self.peer_memory.control.is_aborted() => {
                    Some(Err(self.failure().unwrap_or_else(aborted)))
                }
                Ok(idle) => idle.then_some(Ok(())),
                Err(error) => Some(Err(error)),
            };
            Wait::new(self.abort.clone(), None).until(is_over, || "its last operations ran")??;
        }
        self.net.as_ref().map_or(Ok(()), Net::drain)
    }

    /// Waits for the operations of all ranks and gives device memory back. Collective.
    pub fn suspend(&self, wait: &Wait) -> Result<()> {
        self.flush()?;
        // Peers write into this rank's heap until they have passed it.
        self.bootstrap.barrier(wait)?;
        let before = self.peer_memory.suspendable_bytes(&*self.device);
        *lock(&self.suspended)? = Some(self.peer_memory.suspend(&*self.device)?);
        log::info(Subsys::Alloc, || {
            format!("{} rank {}: suspended, {} KiB given back", self.name, self.rank, before >> 10)
        });
        Ok(())
    }

    /// Takes the memory again that [`CommState::suspend`] gave back. Collective.
    pub fn resume(&self, wait: &Wait) -> Result<()> {
        let suspended = lock(&self.suspended)?.take();
        let suspended = suspended.ok_or_else(|| Error::internal("nothing is kept of a suspended heap"))?;
        self.peer_memory.resume(&*self.device, &self.bootstrap, suspended, wait)
    }

    /// Why no further operation can work, if so: an operation failed on this rank.
    pub fn failure(&self) -> Option<Error> {
        let net = || self.peer_memory.control.fault().cloned();
        self.broken.get().cloned().or_else(net).or_else(|| self.device_error())
    }

    /// The error that a kernel reported when it gave up.
    fn device_error(&self) -> Option<Error> {
        let report = self.peer_memory.control.report();
        let (kind, why) = match report.code {
            0 => return None,
            1 => (ErrorKind::Aborted, "aborted"),
            _ => (ErrorKind::Timeout, "deadline passed (HAWSER_OP_TIMEOUT)"),
        };
        let what = ["data", "room", "another channel"].get(report.what as usize).unwrap_or(&"a peer");
        let place = format!("block {}, step {}, tile {}", report.block, report.step, report.tile);
        let operation = crate::op_number::operation(report.op_number);
        let who = format!("communicator {}, rank {}, {operation}", self.name, self.rank);
        let text = format!("{who}: {why} while it waited for {what} of rank {} ({place})", report.peer);
        Some(Error::new(kind, text).with_peer(report.peer))
    }

    /// Device memory held, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        let scratch = lock(&self.scratch).map_or(0, |s| s.iter().map(|m| m.bytes).sum());
        let images = lock(&self.programs)
            .map_or(0, |p| p.values().filter_map(|l| l.image.as_ref()).map(|m| m.bytes).sum());
        self.peer_memory.bytes() + self.net.as_ref().map_or(0, Net::bytes) + scratch + images
    }

    fn program(&self, key: ProgramKey, op: DeviceOp) -> Result<Arc<LoadedProgram>> {
        let mut programs = lock(&self.programs)?;
        if let Some(loaded) = programs.get(&(key, op)) {
            return Ok(loaded.clone());
        }
        let lowered = lower(&algo::shape(&key)?, &algo::rank_program(&key, self.rank)?, op)?;
        let fits = lowered.steps.len() <= hawser_kernels_abi::INLINE_STEPS;
        let image = if fits { None } else { Some(self.upload(bytes_of(&lowered.steps))?) };
        let has_waits = lowered.steps.iter().any(|step| step.after_channel != NO_DEP);
        let loaded = Arc::new(LoadedProgram { lowered, image, has_waits });
        programs.insert((key, op), loaded.clone());
        Ok(loaded)
    }

    fn upload(&self, bytes: &[u8]) -> Result<Memory> {
        let memory = self.device.alloc(bytes.len() as u64)?;
        self.device.upload(memory.addr, bytes)?;
        Ok(memory)
    }

    /// Fills in the addresses that the planner does not know.
    pub fn complete(
        &self,
        mut plan: LaunchPlan,
        loaded: Option<&LoadedProgram>,
        number: u64,
    ) -> Result<LaunchPlan> {
        self.fill(&mut plan.args, loaded.is_some_and(|loaded| loaded.has_waits));
        plan.args.op_number = number;
        if plan.args.n_inline == 0
            && let Some(image) = loaded.and_then(|loaded| loaded.image.as_ref())
        {
            plan.args.steps = image.addr;
        }
        if plan.scratch_bytes > 0 {
            plan.args.works[0].base[2] = self.scratch(plan.scratch_bytes)?;
        }
        Ok(plan)
    }

    /// Fills in the addresses that all launches of the communicator share.
    pub fn fill(&self, args: &mut Args, has_waits: bool) {
        args.comm = self.peer_memory.dev_comm.addr;
        args.entry = self.peer_memory.entry(args.protocol);
        if !has_waits {
            args.entry.deps = 0;
        }
    }

    /// Makes sure that the connections which a plan uses exist or are on their way.
    pub fn connect(&self, plan: &LaunchPlan, steps: &[Step]) -> Result<()> {
        if !plan.kernel.route.is_copied() {
            self.reach_fifos()?;
        }
        let Some(net) = &self.net else { return Ok(()) };
        let keys: Vec<ConnectionKey> = self.far_ends(plan, steps).into_iter().map(|(key, _)| key).collect();
        net.want(&keys)
    }

    /// Makes sure that the FIFOs between the ranks of this host are there.
    pub fn reach_fifos(&self) -> Result<()> {
        self.peer_memory.reach_fifos(&*self.device, &self.wait())
    }

    /// A wait for what another rank's bootstrap does, from now on.
    fn wait(&self) -> Wait {
        Wait::new(self.abort.clone(), env::settings().op_timeout)
    }

    /// Tells the net which slots belong to which event.
    pub fn expect<'a>(
        &self,
        plan: &LaunchPlan,
        steps: &[Step],
        event: impl Fn(ConnectionKey) -> Option<&'a Arc<Span>>,
    ) {
        let Some(net) = self.net.as_ref().filter(|_| self.profiling.wants(EventRecorder::KINDS)) else {
            return;
        };
        let mut slots: FxHashMap<ConnectionKey, u64> = FxHashMap::default();
        for (key, count) in self.far_ends(plan, steps) {
            *slots.entry(key).or_default() += count;
        }
        for (key, slots) in slots.into_iter().filter(|(_, slots)| *slots > 0) {
            if let Some(event) = event(key) {
                net.expect(key, slots, event);
            }
        }
    }

    fn far_ends(&self, plan: &LaunchPlan, steps: &[Step]) -> Vec<(ConnectionKey, u64)> {
        inter_node::ends(plan, steps, self.rank, &self.topology, &self.layout)
    }

    fn scratch(&self, bytes: u64) -> Result<u64> {
        let mut scratch = lock(&self.scratch)?;
        if scratch.last().is_none_or(|m| m.bytes < bytes) {
            scratch.push(self.device.alloc(bytes.next_power_of_two())?);
        }
        scratch.last().map(|m| m.addr).ok_or_else(|| Error::internal("scratch vanished"))
    }
}

impl Drop for CommState {
    fn drop(&mut self) {
        // The others need not wait for this rank to change rules.
        drop(self.participant.take());
        // Streams may still come to one-sided operations: they are released from now on.
        if let Some(ops) = self.stream_ops.get() {
            ops.close();
        }
        // Kernels may still be on their way: memory is unmapped only when the stream has passed them.
        self.settle();
        if self.dma.as_ref().is_some_and(|dma| !dma.close()) {
            self.leak("the words of its copy engines cannot be set");
        }
        if self.peer_memory.control.is_aborted() {
            let memory = (self.net.take(), self.take_memory());
            self.remains = Remains::new(memory, self.peer_memory.control.clone());
        }
    }
}

impl CommState {
    /// Waits until launches are over, for a while only after an abort.
    fn settle(&mut self) {
        let end = match self.order.end(&*self.device) {
            Ok(Some(end)) => end,
            Ok(None) => return self.settle_replays(),
            Err(error) => {
                return self.leak(&format!("what is on its streams cannot be waited for ({error})"));
            }
        };
        let mut aborted: Option<Instant> = None;
        while self.device.is_idle(end.stream).is_ok_and(|idle| !idle) {
            if self.abort.is_raised() {
                self.peer_memory.control.abort();
            }
            if let Some(dma) = &self.dma {
                dma.release();
            }
            if self.peer_memory.control.is_aborted()
                && aborted.get_or_insert_with(Instant::now).elapsed() > AFTER_ABORT
            {
                return self.leak("its stream is stuck in other work after an abort");
            }
            thread::sleep(Duration::from_micros(50));
        }
        self.settle_replays();
    }

    /// Nobody knows of replays whose order is the program's. After an abort their kernels leave within this
    /// time.
    fn settle_replays(&self) {
        if self.peer_memory.control.is_aborted() && self.order.has_unknown_replays() {
            thread::sleep(REPLAYS);
        }
    }

    /// Keeps all memory that work on a stream may still use, and goes on releasing its waits.
    fn leak(&mut self, why: &str) {
        log::warn(&format!(
            "{} rank {}: {why}: the communicator's memory stays allocated",
            self.name, self.rank
        ));
        if let Some(net) = self.net.take() {
            net.leak();
        }
        std::mem::forget((self.take_memory(), self.peer_memory.control.clone()));
    }

    /// All memory that work on a stream may use, and what releases its waits.
    fn take_memory(&mut self) -> impl Send + use<> {
        // The images of steps are the programs'.
        let programs = self.programs.get_mut().map(std::mem::take);
        let scratch = self.scratch.get_mut().map(std::mem::take);
        let words = self.stream_ops.take();
        (self.dma.take(), programs.ok(), scratch.ok(), words, self.peer_memory.take_memory())
    }
}

/// The steps that a plan's blocks name, on the host.
fn steps_of<'a>(plan: &'a LaunchPlan, loaded: Option<&'a LoadedProgram>) -> &'a [Step] {
    match loaded {
        Some(loaded) if plan.args.n_inline == 0 => &loaded.lowered.steps,
        _ => &plan.args.inline_steps,
    }
}

/// Loads the kernels that most programs start with, so that the first operation does not wait for them.
pub fn warm_up(state: &CommState) -> Result<()> {
    let protocol = hawser_plan::Route::SIMPLE;
    let Some(kernels) = state.device.kernels() else { return Ok(()) };
    kernels.prepare(KernelKey::new(DeviceOp::Copy, hawser_plan::DataType::Uint8, protocol))
}
