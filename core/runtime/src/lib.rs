//! Hawser's runtime: acts on what the planner decided.
//!
//! ```text
//! Comm::collective ─► group ─► resolve ─► submit ─► executor ─► device
//!                               plan cache,            interpreter, fused, copy engine, host
//!                               else hawser-plan       over memory and networks that transport set up
//! ```
//!
//! A program makes a [`Comm`] for each rank, and calls collectives on it. Everything below that handle stands
//! in rooms, which import downwards only: ARCHITECTURE.md lists them, and the stops of a call.
//!
//! ```
//! use hawser_plan::{Call, Collective, DataType};
//! use hawser_runtime::{Comm, Stream, group};
//!
//! # if !hawser_device::is_host() { return Ok(()); }
//! // Two ranks on the CPU, in one thread: their calls belong together, so they stand in a group.
//! let comms = Comm::init_all(&[0, 1])?;
//! let mut data = [[1.0f32; 4], [2.0; 4]];
//! group::start()?;
//! for (comm, data) in comms.iter().zip(&mut data) {
//!     let buffer = data.as_mut_ptr() as u64;
//!     let call = Call::of_bytes(Collective::AllReduce, 16, DataType::Float32, 0, comm.ranks());
//!     comm.collective(Call { input: buffer, output: buffer, ..call }, Stream::default())?;
//! }
//! group::end()?;
//! assert_eq!(data, [[3.0; 4]; 2]);
//! # Ok::<(), hawser_runtime::Error>(())
//! ```

pub mod bootstrap;
mod call_check;
pub mod classes;
pub mod comm;
pub mod comm_state;
pub mod executor;
pub mod gin;
pub mod lsa;
mod messages;
mod model;
mod op_number;
pub mod partitioned;
mod phases;
pub mod planted;
mod plugin_types;
pub mod plugins;
mod profiling;
pub mod progress;
pub mod proxy;
pub mod ras;
mod record;
pub mod resolve;
pub mod rma;
pub mod rules_update;
mod stream_order;
pub mod submit;
pub mod transport;
pub mod tuning;

pub use bootstrap::{UniqueId, set_pre_shared_key};
pub use comm::{Comm, Config, LastDecision, MemoryStats, Shrink, group, mem_alloc, mem_free, unique_id};
pub use hawser_base::error::{Error, ErrorKind, Result};
pub use hawser_device::Stream;
