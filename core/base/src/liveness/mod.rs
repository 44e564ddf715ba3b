//! The ranks of a communicator that are alive, and those that are to blame for an error.
//!
//! | file | holds |
//! |---|---|
//! | [`process`] | how a process is told from all others, and how its end is noticed on one host |
//! | [`forked`] | what children of fork(2) may not touch |
//! | [`roster`] | what is known of every rank: it left, it died, it reported a failure |
//!
//! Nothing here waits or talks to other ranks: the bootstrap's service thread does (`bootstrap/watch.rs`).
//! Operations ask the [`Roster`] only after they have waited in vain for a while.

pub mod forked;
pub mod process;
pub mod roster;

pub use process::Identity;
pub use roster::{End, Roster};
