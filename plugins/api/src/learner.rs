//! The learner interface: a learner proposes other settings while a job runs, because of how long operations
//! took.
//!
//! A learner belongs to one communicator and lives on its rank 0. The host tells it how long operations took.
//! It proposes settings, which the host gives to all ranks ([`Tuner::open_with`](crate::Tuner::open_with))
//! from one operation on, or to none. No operation waits for a learner: operations run by settings that all
//! ranks have agreed on.

use std::time::Duration;

use crate::tuner::{Decision, Function, SettingsFile};

/// A learner for one communicator. One thread calls it, and no call may wait. `now` is the time since some
/// moment.
pub trait Learner: Send {
    /// Tells that these settings count now, which a user wanted, not this learner.
    fn rebase(&mut self, files: &[SettingsFile], now: Duration);

    /// Tells how long an operation took.
    fn measured(&mut self, measured: &Measured, now: Duration);

    /// Tells that something has happened which makes operations slower for a while; `what` says it in words.
    fn stressed(&mut self, what: &str, now: Duration);

    /// The settings that all ranks should have from now on; None = those that they have. The host asks
    /// several times a second, but not while a proposal is open.
    fn propose(&mut self, now: Duration) -> Option<Proposal>;

    /// Tells what became of the proposal: the operation from which on it counts, or why it does not count.
    fn settled(&mut self, outcome: Result<u64, String>, now: Duration);
}

/// A measured time of an operation, and what ran.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// The collective.
    pub function: Function,
    /// The bytes of the send side or of the receive side, whichever is larger.
    pub bytes: u64,
    /// The decision that ran.
    pub decision: Decision,
    /// True if the operation was for a trial.
    pub trial: bool,
    /// The microseconds from the moment when all ranks had begun: the shortest time of all ranks.
    pub us: f32,
    /// The microseconds that the operation took of the job: the mean over ranks of the whole time from its
    /// begin to its end, with the waiting for others. What operations leave to those behind them shows here.
    pub cost_us: f32,
    /// The rank that began last, and by how many microseconds it was behind the one before it; None = it is
    /// not known.
    pub late: Option<(u32, f32)>,
}

/// Settings that a learner proposes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proposal {
    /// The reason for the log.
    pub why: String,
    /// The files that [`Tuner::open_with`](crate::Tuner::open_with) gets on all ranks.
    pub files: Vec<SettingsFile>,
}
