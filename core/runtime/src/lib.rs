//! Hawser's runtime: acts on what the planner decided.
//!
//! ```text
//! Comm::collective ─► group ─► plan (hawser-plan) ─► exec ─► device (CUDA kernels or host interpreter)
//!                                                     FIFOs set up by transport (p2p, shm, net), bootstrap over TCP
//! ```

pub mod bootstrap;
pub mod comm;
pub mod device;
pub mod dma;
pub mod env;
pub mod error;
pub mod exec;
pub mod group;
pub mod log;
pub mod plugins;
pub mod pool;
pub mod progress;
pub mod proxy;
pub mod rules_update;
pub mod stages;
pub mod transport;
pub mod wait;

pub use bootstrap::UniqueId;
pub use comm::{Comm, Config, Decision, mem_alloc, mem_free, unique_id};
pub use device::Stream;
pub use error::{Error, ErrorKind, Result};
pub use log::{last_error, set_last_error};
