//! Hawser's runtime: acts on what the planner decided.
//!
//! ```text
//! Comm::collective ─► group ─► resolve ─► submit ─► executor ─► device
//!                               plan cache,            interpreter, fused, copy engine, host
//!                               else hawser-plan       over memory and networks that transport set up
//! ```

pub mod bootstrap;
mod call_check;
pub mod comm;
pub mod comm_state;
pub mod executor;
mod messages;
mod model;
mod op_number;
mod phases;
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
