//! Progress: what every rank has called, what of it is over, and whom it waits for; and the verdict that is
//! made of that when nothing moves.
//!
//! | file | holds |
//! |---|---|
//! | [`operation`] | an operation as its rank called it, and whom it waits for |
//! | [`journal`] | the last operations of a rank, written at every call |
//! | [`joining`] | a rank that waits for others in init |
//! | [`reader`] | reading the journals of another process |
//! | [`stall`] | requests that a net plugin has not carried out |
//! | [`report`] | what a process says of itself when it is asked |
//! | [`process_state`] | whether a process runs, is stopped or is held by a debugger |
//! | [`verdict`] | from the reports of all ranks to one sentence that names who is to blame |
//! | [`table`] | a verdict as text, with a line for every rank |
//! | [`decision`] | the question how a call would run now, and its answer |
//! | [`members`] | the communicators of this process that can be asked |
//! | `ask_signal` | the signal by which a process is asked |
//! | [`hang_watch`] | the thread that asks by itself when nothing has moved for `HAWSER_HANG_AFTER` |
//!
//! A journal is written by whoever calls and by nobody else, costs a few stores per operation, and needs no
//! thread to be read: also the operations of a process that is stopped can be seen.

mod ask_signal;
pub mod decision;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod hang_watch;
pub mod joining;
pub mod journal;
pub mod members;
pub mod operation;
pub mod process_state;
pub mod reader;
pub mod report;
pub mod stall;
pub mod table;
pub mod verdict;
