//! From a call to its compiled plan: a hit in the plan cache, or else the choice, the program and the
//! connections that the plan needs.

use std::sync::Arc;

use hawser_base::error::{Error, Result};
use hawser_base::lock::lock;
use hawser_device::{Memory, Stream};
use hawser_kernels_abi::{DeviceOp, NO_DEP};
use hawser_plan::algo::{self, ProgramKey};
use hawser_plan::executor::fused::FusedPlan;
use hawser_plan::executor::interpreter::lower;
use hawser_plan::executor::launch::{LaunchPlan, device_op};
use hawser_plan::executor::{self, Decided, Plan};
use hawser_plan::{Call, CallOptions, ReduceOp};

use super::choice::Asked;
use super::plan_cache::CallKey;
use super::{CommState, LoadedProgram};
use crate::transport::bytes_of;
use crate::tuning::call_attributes::{TIMED_BEFORE, is_drawn};
use crate::tuning::{CallAttributes, TimedOp, TunedDecision, Tuners};

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

impl CommState {
    /// The choice for a call, bound to its size, and how it is timed, if it is. With `are_buffers_lent` as if
    /// the buffers lay in windows. Kept: training repeats a few calls for ever.
    pub fn compiled(
        &self,
        call: &Call,
        options: Option<&CallOptions>,
        stream: Stream,
        (number, are_buffers_lent): (u64, bool),
    ) -> Result<(Arc<Compiled>, Option<Box<TimedOp>>)> {
        let mut choices = lock(&self.choices)?;
        let (mut attributes, mut is_timed) = self.attributes(&choices.tuners, call, stream, number)?;
        attributes.has_windows |= are_buffers_lent;
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

    /// The facts that tuners may ask for about collective `number`; true if it is to be timed.
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
        let has_windows = self.lsa.calls_reach_buffers();
        // What is captured keeps its plan: nothing is tried there, and nobody knows when it runs.
        let trial = trial.filter(|_| !in_graph);
        Ok((
            CallAttributes {
                in_graph: in_graph && wants.in_graph,
                registered,
                has_windows,
                trial,
                rule: None,
            },
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
        let topology = self.topology_of(attributes);
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
        let plan_config = &*tuners.plan_config(call, attributes, topology, choice, &plan_config);
        let rank = self.rank;
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
                plan.connect(&parts, self.peer_memory.fused_epochs()?, self.peer_memory.image());
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
}
