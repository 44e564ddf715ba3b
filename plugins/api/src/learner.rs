//! The learner interface: what a tuner makes of the times of operations while a job runs.
//!
//! A learner belongs to one communicator and lives on its rank 0. The host tells it how long operations took; it proposes
//! settings, which the host gives to all ranks ([`Tuner::open_with`](crate::Tuner::open_with)) from one operation on, or to
//! none. Nothing of it is asked by calls: whatever it does, operations run by settings that all ranks have agreed on.

use std::time::Duration;

use crate::tuner::{Algorithm, Function, Protocol, SettingsFile};

/// See the module. One thread calls it, and no call may wait. `now` is the time since some moment.
pub trait Learner: Send {
    /// These settings count now, and it did not propose them: a user did.
    fn rebase(&mut self, files: &[SettingsFile], now: Duration);

    /// How long an operation took.
    fn measured(&mut self, measured: &Measured, now: Duration);

    /// Something has happened that makes operations slower for a while, in words.
    fn stressed(&mut self, what: &str, now: Duration);

    /// What all ranks should have from now on. Asked several times a second; not while a proposal is open.
    fn propose(&mut self, now: Duration) -> Option<Proposal>;

    /// What became of its proposal: the operation from which on it counts, or why it does not.
    fn settled(&mut self, outcome: Result<u64, String>, now: Duration);
}

/// How long an operation took, and what it ran.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// The collective.
    pub function: Function,
    /// Bytes of the larger of send and receive side.
    pub bytes: u64,
    /// What ran.
    pub algorithm: Algorithm,
    /// See `algorithm`.
    pub protocol: Protocol,
    /// Whether it was for a trial.
    pub trial: bool,
    /// Microseconds from the moment when all ranks had begun: the shortest of all ranks.
    pub us: f32,
    /// The rank that began last, and by how many microseconds it was behind the one before it; None = not known.
    pub late: Option<(u32, f32)>,
}

/// Settings that a learner proposes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proposal {
    /// The reason, for the log.
    pub why: String,
    /// What [`Tuner::open_with`](crate::Tuner::open_with) gets on all ranks.
    pub files: Vec<SettingsFile>,
}
