//! RAS: what the communicators of a job are doing, for the clients of NCCL's RAS (`ncclras`, and programs
//! that speak its text protocol).
//!
//! | file | holds |
//! |---|---|
//! | [`protocol`] | the lines that clients send |
//! | [`census`] | what processes tell each other |
//! | [`job`] | from their answers to the state of the job |
//! | `text`, `json` | the state of the job as clients read it |
//! | `sources` | the communicators of this process, and asking the processes of their ranks |
//! | `listener` | the sockets that clients connect to |
//! | `client` | a client, from its first line to the end of its answer |
//! | `server` | the thread that listens |
//!
//! Every process with a communicator listens at the same port (`SO_REUSEPORT`, as NCCL does), so one of them
//! answers as long as any is there. Which one that is makes no difference: it asks the others over the
//! control connections of its communicators. Nothing can be changed through this port.

pub mod census;
mod client;
mod clock;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod job;
mod json;
mod listener;
pub mod protocol;
mod server;
mod sources;
mod text;

#[cfg(test)]
mod tests;

pub use sources::{Registered, Source, own_ranks};
