//! Simulated executors: what runs the plans of the real ones.
//!
//! [`steps`] stands for all that follow the steps of a program (the interpreter, and the host's threads),
//! [`exchange`] for fused kernels, [`copies`] for copy engines (between hosts with `slots`). Each takes what
//! the real executor compiles; the loop of a run is in `run`.

pub mod copies;
pub mod exchange;
pub mod orbits;
mod run;
mod slots;
pub mod steps;

use hawser_plan::algo::ProgramKey;
use hawser_plan::link_constants::Path;
use hawser_types::Collective;

use crate::engine::{Flows, Time};
use crate::links::Links;

/// The communicators that run a call at the same time, all of one form: member `i` is rank `i % each` of
/// communicator `i / each`.
#[derive(Debug, Clone, Copy)]
pub struct Members<'a> {
    /// The rank of the cluster that each member is; none is there twice.
    pub ranks: &'a [u32],
    /// The ranks of a communicator.
    pub each: u32,
    /// Members that act, the first ones: all, or those of a period that stand for the others ([`orbits`]).
    pub acting: u32,
}

impl Members<'_> {
    /// The number of members that act.
    pub fn count(&self) -> u32 {
        self.acting
    }

    /// The member that acts for this one: itself, unless a period stands for all.
    pub fn actor(&self, member: u32) -> u32 {
        member % self.acting
    }

    /// The same connection, as the member that acts for its sender has it: sender and receiver.
    pub fn seen_by_actor(&self, from: u32, to: u32) -> (u32, u32) {
        let all = self.ranks.len() as u32;
        let actor = self.actor(from);
        (actor, (to + all - (from - actor)) % all)
    }

    /// The rank of the cluster that a member is.
    pub fn of(&self, member: u32) -> u32 {
        self.ranks[member as usize]
    }

    /// The rank of a member in its communicator.
    pub fn rank(&self, member: u32) -> u32 {
        member % self.each
    }

    /// The member that has rank 0 of the communicator of this one.
    pub fn first(&self, member: u32) -> u32 {
        member - member % self.each
    }
}

/// The surroundings of a run.
#[derive(Clone, Copy)]
pub struct Scene<'a> {
    /// The links, and the ways over them.
    pub links: &'a Links<'a>,
    /// The ranks that run the call.
    pub members: Members<'a>,
    /// The moments at which members begin their first operation.
    pub starts: &'a [Time],
    /// Operations that every member runs one after the other.
    pub operations: u32,
    /// Bytes of the buffers of a rank; `u64::MAX` if nobody knows.
    pub buffers: u64,
    /// True if a trace is kept.
    pub is_traced: bool,
    /// Asked now and then: true ends the run.
    pub stop: &'a dyn Fn() -> bool,
}

/// The outcome of a run.
#[derive(Debug)]
pub struct Outcome {
    /// By operation: the moment at which the last member had it.
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
