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
pub mod env;
pub mod error;
pub mod executor;
pub mod group;
pub mod liveness;
pub mod log;
mod phases;
pub mod plugins;
pub mod pool;
pub mod progress;
pub mod proxy;
pub mod resolve;
pub mod rules_update;
pub mod stages;
pub mod submit;
pub mod transport;
pub mod wait;

pub use bootstrap::UniqueId;
pub use comm::{Comm, Config, Decision, mem_alloc, mem_free, unique_id};
pub use device::Stream;
pub use error::{Error, ErrorKind, Result};
pub use log::{last_error, set_last_error};
