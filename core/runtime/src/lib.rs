//! Hawser's runtime: acts on what the planner decided.
//!
//! ```text
//! Comm::collective ─► group ─► resolve ─► submit ─► executor ─► device
//!                               plan cache,            interpreter, fused, copy engine, host
//!                               else hawser-plan       over memory and networks that transport set up
//! ```

pub mod bootstrap;
pub mod comm;
pub mod device;
pub mod dma;
pub mod executor;
pub mod group;
mod phases;
pub mod plugins;
pub mod pool;
pub mod proxy;
pub mod resolve;
pub mod rules_update;
pub mod submit;
pub mod transport;

pub use bootstrap::UniqueId;
pub use comm::{Comm, Config, Decision, mem_alloc, mem_free, unique_id};
pub use device::Stream;
pub use hawser_base::error::{Error, ErrorKind, Result};
