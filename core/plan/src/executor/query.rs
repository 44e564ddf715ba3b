//! The interface of an executor: the questions of the chooser, and the plans that are compiled.

use hawser_types::{Algorithm, Call, Collective, DeviceKind, Executor, PlanError, Result, Route};

use crate::algo::ProgramKey;
use crate::config::PlanConfig;
use crate::decision::{Decision, Outcome};
use crate::executor::fused::FusedPlan;
use crate::executor::interpreter::{Lowered, bind};
use crate::executor::launch::LaunchPlan;
use crate::topology::Topology;

/// A call with a program and a route that it might take.
#[derive(Debug, Clone, Copy)]
pub struct Query<'a> {
    /// The call.
    pub call: &'a Call,
    /// The program.
    pub key: ProgramKey,
    /// The executor, the protocol and the strategy.
    pub route: Route,
    /// The facts about the job and the machine.
    pub topology: &'a Topology,
    /// The settings.
    pub config: &'a PlanConfig,
}

impl Query<'_> {
    /// Bytes of the larger of input and output.
    pub fn bytes(&self) -> u64 {
        self.call.total_bytes(self.key.ranks)
    }
}

/// The number of times that a program is laid over the data, and the blocks of one copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// Copies of the program over parts of every chunk.
    pub instances: u32,
    /// Blocks of one copy.
    pub channels: u32,
}

/// A program and its size, for a prediction.
#[derive(Debug, Clone, Copy)]
pub struct Load<'a> {
    /// The program.
    pub key: &'a ProgramKey,
    /// The executor, the protocol and the strategy.
    pub route: Route,
    /// Bytes of the larger of input and output.
    pub bytes: u64,
}

/// A call for which everything is decided, as one rank compiles it.
#[derive(Debug, Clone, Copy)]
pub struct Decided<'a> {
    /// The call.
    pub call: &'a Call,
    /// The decision about it.
    pub decision: &'a Decision,
    /// The rank that compiles.
    pub rank: u32,
    /// The facts about the job and the machine.
    pub topology: &'a Topology,
    /// The settings.
    pub config: &'a PlanConfig,
}

/// The plan that an executor compiles: a launch, but for what only the runtime knows.
#[derive(Debug, Clone, PartialEq)]
pub enum Plan {
    /// The steps of a program over the data of a call.
    Steps(LaunchPlan),
    /// A call of a fused kernel.
    Fused(Box<FusedPlan>),
}

impl Plan {
    /// The blocks that it is launched in.
    pub fn blocks(&self) -> u8 {
        match self {
            Self::Steps(plan) => plan.blocks(),
            Self::Fused(plan) => plan.blocks as u8,
        }
    }
}

/// An executor as the planner sees it.
pub trait PlanExecutor: Sync {
    /// The name of the executor.
    fn executor(&self) -> Executor;

    /// The routes that it has.
    fn routes(&self) -> &'static [Route];

    /// True if it may be a candidate at all for a family's program, on ranks of a kind of device.
    fn offers(&self, collective: Collective, algorithm: Algorithm, device: DeviceKind) -> bool;

    /// Checks that it can run a call.
    ///
    /// # Errors
    /// The reason why it cannot.
    fn supports(&self, query: &Query<'_>) -> std::result::Result<(), String>;

    /// The time that a call that it supports would take, and the cheapest grid.
    ///
    /// # Errors
    /// A program that cannot be made: a bug of this crate.
    fn estimate(&self, query: &Query<'_>) -> Result<Outcome>;

    /// The predicted time in µs with a given grid.
    fn predict(&self, load: &Load<'_>, grid: Grid, topology: &Topology, config: &PlanConfig) -> f64;

    /// The copies of the program where a tuner asks for so many blocks. `best` is the grid that the estimate
    /// found.
    ///
    /// # Errors
    /// As [`PlanExecutor::estimate`].
    fn advised(&self, query: &Query<'_>, best: Grid, blocks: u32) -> Result<u32>;

    /// The threads of a block.
    fn threads(&self, query: &Query<'_>, grid: Grid) -> u32;

    /// True if its plans are made of a rank's lowered program.
    fn runs_steps(&self) -> bool {
        true
    }

    /// The plan of a call. `program` is the rank's lowered program; an executor that does not run steps
    /// derives what it moves from the same generator's description.
    ///
    /// # Errors
    /// `InvalidUsage` when the settings leave too few lanes for the program's channels; `InvalidProgram` for
    /// an executor that runs steps and gets no program.
    fn compile(&self, decided: &Decided<'_>, program: Option<&Lowered>) -> Result<Plan>;
}

/// Compiles the steps of a program under some settings, for the executors that run steps.
pub(super) fn compile_steps(
    decided: &Decided<'_>,
    program: Option<&Lowered>,
    config: &PlanConfig,
) -> Result<Plan> {
    let program = program.ok_or_else(|| PlanError::program("steps are compiled without a program"))?;
    let Decided { call, decision, topology, .. } = *decided;
    Ok(Plan::Steps(bind(program, call, decision, topology.size(), config)?))
}
