//! The agreement of all ranks of a communicator to use other rules from one collective on. Pure: no I/O, no
//! clock (time is passed in), no thread; `tests` runs it under random schedules.
//!
//! Rank 0 coordinates ([`Coordinator`]); every rank, also rank 0, is a [`Member`]; the calls of a rank pass
//! its [`Barrier`].
//!
//! ```text
//! proposer ─Propose─► rank 0
//! rank 0 ─Stage─► all: read, check                          all ─Staged(digest)─► rank 0: all alike?
//! rank 0 ─Ask───► all: fence = begun + margin               all ─Promised(fence)─► rank 0: at = the largest
//! rank 0 ─Commit(at)─► all: new rules from collective `at`  all ─Heard─► rank 0 ─Outcome─► proposer
//! ```
//!
//! A rank that promised does not begin the collective of its fence before it knows the decision, so none can
//! have passed `at`, which is no less than any fence. Until rank 0 has all promises it may give the change up
//! ([`Body::Drop`]): refused or late anywhere, it is dropped everywhere. What happens when a rank ends in the
//! middle is in `docs/adr/0010`.

mod barrier;
mod coordinator;
mod member;
#[cfg(test)]
mod tests;

pub use barrier::{Barrier, Pass};
pub use coordinator::Coordinator;
pub use member::{Fences, Member};

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Collectives that a rank may begin between its promise and the decision without waiting.
pub const MARGIN: u64 = 16;
/// Changes that are decided but not reached yet, at most.
pub const MOST_WAITING: usize = 16;
/// Proposals that wait for their turn at rank 0, at most.
pub const MOST_QUEUED: usize = 16;
/// A rank that was asked and hears nothing for so many times the limit of a step is in doubt.
pub const DOUBT: u32 = 3;

/// A message that ranks send one another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// The change that is meant; of a proposal and its outcome the proposer's number for it; 0 for a
    /// farewell.
    pub number: u64,
    /// The content of the message.
    pub body: Body,
}

/// The content of a [`Message`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Body {
    /// To rank 0: please change to this.
    Propose(Arc<[u8]>),
    /// From rank 0: read and check this.
    Stage(Arc<[u8]>),
    /// To rank 0: that is possible; equal digests mean equal choices.
    Staged(u64),
    /// To rank 0: that is not possible, and why.
    Refused(String),
    /// From rank 0: promise a fence, so many collectives from now.
    Ask(u64),
    /// To rank 0: this collective does not begin here before the decision.
    Promised(u64),
    /// From rank 0: it is decided; the new rules count from this collective on.
    Commit(u64),
    /// To rank 0: the decision has come.
    Heard,
    /// From rank 0: nothing changes, and why.
    Drop(String),
    /// From rank 0 to the proposer: what became of it.
    Outcome(Outcome),
    /// From rank 0: this ended in the middle of the change; the communicator is of no use any more.
    Broken(String),
    /// Either way: the sender leaves the communicator in peace.
    Farewell,
}

/// The outcomes of a proposal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// All ranks have the new rules from this collective on.
    Changed(u64),
    /// Nothing has changed anywhere, and why.
    Unchanged(String),
    /// Rank 0 cannot be asked any more.
    Unknown(String),
}

/// The actions that a step of a machine wants done.
#[derive(Debug, Default)]
pub struct Todo {
    /// Messages to be sent, in order.
    pub send: Vec<(u32, Message)>,
    /// Lines for the log.
    pub notes: Vec<String>,
    /// The communicator cannot go on on this rank.
    pub fail: Option<String>,
    /// Outcomes of this rank's own proposals.
    pub outcomes: Vec<(u64, Outcome)>,
}

impl Todo {
    pub fn send(&mut self, to: u32, number: u64, body: Body) {
        self.send.push((to, Message { number, body }));
    }
}

/// Limits in time.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The time that ranks may take for each step.
    pub step: Duration,
}

/// "rank 3", "ranks 3, 5 and 20 more".
fn ranks(all: impl Iterator<Item = u32>) -> String {
    let all: Vec<String> = all.map(|rank| rank.to_string()).collect();
    let few = all.len().min(8);
    let more = if few < all.len() { format!(" and {} more", all.len() - few) } else { String::new() };
    format!("{} {}{more}", if all.len() == 1 { "rank" } else { "ranks" }, all[..few].join(", "))
}
