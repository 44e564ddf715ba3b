//! Simulated executors: what runs the plans of the real ones.
//!
//! [`steps`] stands for all that follow the steps of a program (the interpreter, and the host's threads),
//! [`exchange`] for fused kernels. Each takes what the real executor compiles; the loop of a run is in `run`.

pub mod exchange;
mod run;
pub mod steps;

use hawser_plan::algo::ProgramKey;
use hawser_plan::link_constants::Path;
use hawser_types::Collective;

use crate::engine::{Flows, Time};
use crate::links::Links;

/// The surroundings of a run.
#[derive(Clone, Copy)]
pub struct Scene<'a> {
    /// The links, and the ways over them.
    pub links: &'a Links<'a>,
    /// The moments at which ranks begin their first operation.
    pub starts: &'a [Time],
    /// Operations that every rank runs one after the other.
    pub operations: u32,
    /// True if a trace is kept.
    pub is_traced: bool,
    /// Asked now and then: true ends the run.
    pub stop: &'a dyn Fn() -> bool,
}

/// The outcome of a run.
#[derive(Debug)]
pub struct Outcome {
    /// By operation: the moment at which the last rank had it.
    pub ended: Vec<Time>,
    /// The events that happened.
    pub events: u64,
    /// The links, which know what crossed them.
    pub flows: Flows,
    /// The trace; empty unless one was wanted.
    pub trace: String,
}

/// Bytes per picosecond of a rate in GB/s.
pub fn per_ps(gbs: f64) -> f64 {
    gbs * 1e-3
}

/// The time that a launch of so many blocks takes besides what it moves.
fn launch(path: &Path, blocks: u32) -> Time {
    Time::from_us(path.fixed_us + path.block_us * f64::from(blocks))
}

/// True for operations after which a rank may be ahead of others: those that follow each other overlap, and
/// one alone says little.
pub fn overlaps(key: &ProgramKey) -> bool {
    use Collective::{Broadcast, Gather, Reduce, Scatter};
    matches!(key.collective, Broadcast | Gather | Reduce | Scatter)
}
