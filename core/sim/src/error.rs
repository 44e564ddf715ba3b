//! The failures of a simulation.

use hawser_types::PlanError;
use thiserror::Error;

/// A failure of the twin.
#[derive(Debug, Error)]
pub enum SimError {
    /// The text of a cluster cannot be understood; the message says where.
    #[error("{0}")]
    Syntax(String),
    /// A cluster that cannot be, with what to write instead.
    #[error("{what}: {remedy}")]
    Cluster {
        /// The wrong figure or word, and why it is wrong.
        what: String,
        /// A way out.
        remedy: String,
    },
    /// The planner refused.
    #[error("{}", .0.text)]
    Plan(#[from] PlanError),
    /// A decision that the twin has no executor for.
    #[error("{0} is not simulated yet: choose another one (NCCL_PROTO, NCCL_ALGO or a rule)")]
    NotSimulated(String),
    /// Nothing can happen any more, and ranks have not ended: a program that waits in a circle.
    #[error("after {us:.3} µs nothing moves any more: {waits}")]
    Stuck {
        /// The virtual time of the last event, in µs.
        us: f64,
        /// A sentence that says who waits for whom.
        waits: String,
    },
    /// The caller asked to stop.
    #[error("interrupted")]
    Interrupted,
}

/// The result of what may fail in the twin.
pub type Result<T> = std::result::Result<T, SimError>;

/// The error of a wrong figure or word in a cluster.
pub fn wrong(what: impl Into<String>, remedy: impl Into<String>) -> SimError {
    SimError::Cluster { what: what.into(), remedy: remedy.into() }
}
