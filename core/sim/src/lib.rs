//! Hawser's twin: the real planner's decisions and the real programs on simulated hosts, GPUs, networks and
//! time.
//!
//! ```text
//! cluster file ─► Cluster ─► Topology ─► the real chooser ─► Decision ─► the real programs
//!                    └─────► Links ────────────────────────────────────► simulated executors ─► Prediction
//! ```
//!
//! One thread, a virtual clock in picoseconds, everything drawn from a seed: the same input gives the same
//! trace, byte for byte. Modules import only what stands above them in this list: [`error`], [`engine`]
//! (events, and flows with max-min shares), [`cluster`] (what there is), [`links`] (the ways between ranks),
//! [`executor`] (who runs programs), [`predict`], [`step`] (collectives and computing side by side).
//!
//! ```
//! use hawser_plan::{Call, Collective, DataType, PlanConfig, choose};
//! use hawser_sim::{Cluster, File, Options, Twin};
//!
//! let file = File::parse("cluster = \"1 host of hgx-h200\"")?;
//! let cluster = Cluster::new(&file, None)?;
//! let config = PlanConfig::default();
//! let call = Call::of_bytes(Collective::AllReduce, 1 << 20, DataType::Float32, 0, cluster.topology.size());
//! let decision = choose::choose(&call, &cluster.topology, &config)?;
//! let prediction = Twin::new(&cluster).predict(&call, &decision, &config, &Options::default())?;
//! assert!(prediction.us > 1.0 && prediction.us < 1000.0);
//! # Ok::<(), hawser_sim::SimError>(())
//! ```

#![forbid(unsafe_code)]

pub mod cluster;
pub mod engine;
pub mod error;
pub mod executor;
pub mod links;
pub mod predict;
pub mod step;

pub use cluster::{Cluster, File};
pub use error::{Result, SimError};
pub use predict::{MOST_STEPS, Options, Prediction, Twin};
