//! What the chooser asks of an executor.

use hawser_types::{Algorithm, Call, Collective, Executor, Result, Route};

use crate::algo::ProgramKey;
use crate::choice::Outcome;
use crate::config::PlanConfig;
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
    /// What is known of the job and the machine.
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

/// How often a program is laid over the data, and the blocks of one copy.
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

/// An executor as the planner sees it.
pub trait PlanExecutor: Sync {
    /// The name of the executor.
    fn executor(&self) -> Executor;

    /// The routes that it has.
    fn routes(&self) -> &'static [Route];

    /// Whether it may be a candidate at all for a family's program.
    fn offers(&self, collective: Collective, algorithm: Algorithm) -> bool;

    /// Whether it can run a call.
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

    /// The copies of the program where a tuner asks for so many blocks. `best` is the grid that the estimate found.
    ///
    /// # Errors
    /// As [`PlanExecutor::estimate`].
    fn advised(&self, query: &Query<'_>, best: Grid, blocks: u32) -> Result<u32>;

    /// The threads of a block.
    fn threads(&self, query: &Query<'_>, grid: Grid) -> u32;
}
