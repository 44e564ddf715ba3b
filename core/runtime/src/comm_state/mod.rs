//! A communicator that is up: plans calls and holds everything that launches need.
//!
//! The handle that programs have of it, and how it comes up, is in [`crate::comm`].
//!
//! | file | holds |
//! |---|---|
//! | `compile`, `choice`, `plan_cache` | the plan of a call: from the cache, or chosen and compiled |
//! | `deciding` | the choice that a call would get, for those who ask |
//! | `sequence` | numbers of collectives, and rules that count from one of them on |
//! | `reach` | buffers that other ranks use where they are, and why others are staged |
//! | `inter_node` | the connections over the network that a launch needs |
//! | `single_rank` | collectives of one rank, which are copies |
//! | `one_sided`, `put_ways` | puts, signals and waits |
//! | `stream_puts`, `stream_watch`, `stream_ops` | the same on a GPU: by the stream, or by a thread |
//! | `kernel_network` | transfers that kernels of the user ask for |
//! | `sm_free` | the lines about copy engines |
//! | `busy` | whether launches are under way |
//! | `settle`, `deferred_free` | the end: launches are waited for, then the memory goes |

mod busy;
mod choice;
mod compile;
mod deciding;
mod deferred_free;
mod graph_buffers;
mod inter_node;
mod kernel_network;
mod loaded_program;
mod one_sided;
pub mod plan_cache;
mod put_ways;
mod reach;
mod sequence;
mod settle;
mod single_rank;
pub mod sm_free;
mod stream_ops;
pub mod stream_puts;
mod stream_watch;

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock};

use hawser_base::env;
use hawser_base::error::{Error, ErrorKind, Result};
use hawser_base::lock::lock;
use hawser_base::log::{self, Subsys};
use hawser_base::wait::{AbortFlag, Wait};
use hawser_device::{Device, Memory, Stream};
use hawser_kernels_abi::{Args, DeviceOp, KernelKey, Step};
use hawser_plan::algo::ProgramKey;
use hawser_plan::choose::Decision;
use hawser_plan::executor::copy_engine::Leg;
use hawser_plan::executor::launch::LaunchPlan;
use hawser_plan::layout::HeapLayout;
use hawser_plan::{Call, Class, PlanConfig, Topology};
use rustc_hash::FxHashMap;

pub use self::busy::BusyProbe;
pub use self::compile::Compiled;
use self::deferred_free::Remains;
use self::kernel_network::KernelNetwork;
pub use self::loaded_program::LoadedProgram;
use self::plan_cache::PlanCache;
pub use self::reach::Reached;
use self::sm_free::SmFree;
use self::stream_ops::StreamOps;
use self::stream_watch::StreamWatch;
use crate::bootstrap::Bootstrap;
use crate::classes;
use crate::executor::copy_engine::events::CopyEvents;
use crate::executor::copy_engine::host::Copies;
use crate::executor::copy_engine::{CopyEngines, Emission, Who};
use crate::lsa::Lsa;
use crate::profiling::{Profiling, Span};
use crate::progress::journal::Journal;
use crate::progress::members::Registered;
use crate::ras;
use crate::rma::Rma;
use crate::rules_update::{Epoch, ServedParticipant, Staged};
use crate::stream_order::Order;
use crate::transport::PeerMemory;
use crate::transport::net::{ConnectionKey, EventRecorder, Net};
use crate::transport::suspend::Suspended;
use crate::tuning::{OpTimings, Tuners, Windows};

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
    /// This rank's part in changes of rules; None where it is alone. Behind `net`: while that waits for other
    /// ranks, they get answers.
    pub participant: Option<ServedParticipant>,
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
    /// The reason why an operation failed on this rank: the FIFOs are in an undefined state from then on.
    pub broken: OnceLock<Error>,
    /// The class of operations, where neither call nor rule says another.
    pub class: classes::Setting,
    /// The order of launches on streams.
    pub order: Arc<Order>,
    /// Asks whether launches are under way.
    pub busy_probe: BusyProbe,
    /// Copy engines, if ranks have staging for them.
    pub copy_engines: Option<CopyEngines>,
    /// Lines about them.
    pub sm_free: SmFree,
    /// Symmetric windows.
    pub windows: Windows,
    /// The windows and signals of one-sided operations.
    pub rma: Rma,
    /// Windows and resources for kernels of the user.
    pub lsa: Arc<Lsa>,
    /// The topology of calls once there are windows, or registered buffers, that kernels of all ranks reach;
    /// None if that makes no difference.
    pub with_windows: Option<Topology>,
    /// The thread for one-sided operations of a GPU, once there was one.
    pub stream_ops: OnceLock<Arc<StreamOps>>,
    /// The watch over signals that streams wait for, once there was one.
    pub stream_watch: OnceLock<Arc<StreamWatch>>,
    /// The thread for networks in kernels, once there was one.
    pub kernel_network: OnceLock<KernelNetwork>,
    /// True if each rank loads and stores the buffers of all others: they are in one process, whose devices
    /// reach each other's ordinary memory.
    pub is_load_store: bool,
    /// The times of operations, if somebody wants to know them.
    pub times: Arc<OpTimings>,
    /// The content of the heap while the communicator is suspended.
    pub suspended: Mutex<Option<Suspended>>,
    /// After an abort; the last memory to go.
    pub remains: Remains,
    /// Gone when all of this has been freed: the last field.
    pub alive: Arc<()>,
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

impl CommState {
    /// Says what was chosen for a call.
    pub fn log_call(&self, call: &Call, (choice, class): (&Decision, Class), blocks: u8, number: u64) {
        self.sm_free.call(self, call, choice, number);
        log::info(Subsys::Coll, || {
            let (algorithm, route) = (choice.key.algorithm.name(), choice.route.name());
            let what = format!("{} {} x {}", call.collective.name(), call.count, call.dtype.name());
            let staged =
                self.why_staged(call, choice).map_or(String::new(), |why| format!("; staged: {why}"));
            let of = format!("{} rank {} op {number}", self.name, self.rank);
            let class = if class == Class::Normal { "" } else { class.name() };
            let comma = if class.is_empty() { "" } else { ", " };
            format!("{of}: {what}: {algorithm}/{route} x {blocks}{comma}{class}{staged}")
        });
    }

    /// The class of an operation: what the call or a tuner has said, else the communicator's, else urgent
    /// where the stream has a priority above normal.
    pub fn class_on(&self, said: Option<Class>, stream: Stream) -> Class {
        if let Some(class) = said {
            classes::expect(class);
            return class;
        }
        self.class.get().unwrap_or_else(|| match self.asks_streams() && self.device.is_urgent(stream) {
            true => Class::Urgent,
            false => Class::Normal,
        })
    }

    /// True if the class of a launch on a GPU makes a difference, so that its stream is asked: where the
    /// proxy moves data.
    fn asks_streams(&self) -> bool {
        self.net.is_some() && self.device.kernels().is_some()
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
        self.copier()?.begin(&*self.device, &self.order, (plan, steps), on, (who, &|leg| self.lends(leg)))
    }

    /// A launch of copy engines on the host device.
    pub fn copies(
        &self,
        plan: &LaunchPlan,
        loaded: Option<&LoadedProgram>,
        events: Option<CopyEvents>,
    ) -> Result<Copies> {
        let copier = self.copier()?;
        let commands =
            copier.commands(&*self.device, (plan, steps_of(plan, loaded)), &|leg| self.lends(leg))?;
        Ok(Copies::new(commands, copier.latches().cloned(), events))
    }

    /// The program gets its buffers back, though operations on them may not be over on other ranks: from now
    /// on nobody else reads or writes them. On GPUs, copies that peers have put on their streams go on.
    pub fn give_up_buffers(&self) {
        if let Some(latches) = self.copy_engines.as_ref().and_then(CopyEngines::latches) {
            latches.shut();
        }
        if let Some(net) = &self.net {
            net.give_up_buffers();
        }
    }

    /// True if the network takes a transfer with another host from the user's buffer, or puts it there.
    fn lends(&self, leg: &Leg) -> Result<bool> {
        self.net.as_ref().map_or(Ok(false), |net| net.lends(leg))
    }

    fn copier(&self) -> Result<&CopyEngines> {
        self.copy_engines.as_ref().ok_or_else(|| Error::internal("a launch of copy engines without staging"))
    }

    /// Waits for all operations on this rank, or until they are aborted: their stream may be stuck in other
    /// work then.
    pub fn flush(&self) -> Result<()> {
        let aborted = || Error::new(ErrorKind::Aborted, "aborted while its last operations ran");
        if let Some(end) = self.order.end(&*self.device)? {
            let control = &self.peer_memory.control;
            let is_over = || {
                control.abort_if_failed();
                match self.device.is_idle(end.stream) {
                    // Released streams are idle too.
                    Ok(_) if control.is_aborted() => Some(Err(self.failure().unwrap_or_else(aborted))),
                    Ok(idle) => idle.then_some(Ok(())),
                    Err(error) => Some(Err(error)),
                }
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

    /// The reason why no further operation can work, if so: an operation failed on this rank.
    pub fn failure(&self) -> Option<Error> {
        let net = || self.peer_memory.control.fault().cloned();
        self.broken.get().cloned().or_else(net).or_else(|| self.device_error())
    }

    /// True if the communicator has failed or was aborted: what it waits for does not come.
    pub fn has_ended(&self) -> bool {
        self.peer_memory.control.is_aborted() || self.abort.is_raised() || self.failure().is_some()
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
        let net = self.net.as_ref().map_or(0, Net::bytes);
        self.peer_memory.bytes() + net + scratch + images + self.lsa.bytes()
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
            plan.set_base(2, self.scratch(plan.scratch_bytes)?);
        }
        Ok(plan)
    }

    /// Fills in the addresses that all launches of the communicator share.
    pub fn fill(&self, args: &mut Args, has_waits: bool) {
        args.comm = self.peer_memory.image();
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
