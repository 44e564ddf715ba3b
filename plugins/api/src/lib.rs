//! Hawser's plugin interface: the traits that third parties implement.
//!
//! A plugin implements one or more of [`Net`] (moves bytes between hosts), [`CollNet`] (lets the network
//! compute), [`Tuner`] (chooses how a collective is done), [`Profiler`] (watches) and [`Env`] (gives
//! settings). They are ordinary, object-safe Rust traits whose documentation is the contract. How they cross
//! a library boundary is not the author's business: the export macros wrap an implementation for Hawser's own
//! ABI (checked layouts, panics caught), and `hawser-compat` has macros for NCCL's C ABIs.
//!
//! `CHANGELOG.md` beside this crate lists what changed and what an author has to do.
//!
//! ```
//! use hawser_plugin::env::EnvContext;
//! use hawser_plugin::{Env, Log, Result};
//!
//! hawser_plugin::export_plugin! { env: Quiet }
//!
//! /// A plugin that gives one setting.
//! struct Quiet;
//!
//! impl Env for Quiet {
//!     fn name(&self) -> &str {
//!         "quiet"
//!     }
//!
//!     fn open(&self, _version: (u8, u8, u8), _log: &Log) -> Result<Box<dyn EnvContext>> {
//!         Ok(Box::new(Quiet))
//!     }
//! }
//!
//! impl EnvContext for Quiet {
//!     fn value(&self, name: &str) -> Option<String> {
//!         (name == "NCCL_DEBUG").then(|| "WARN".to_owned())
//!     }
//! }
//! # fn main() {
//! let context = Quiet.open((2, 30, 0), &Log::silent()).unwrap();
//! assert_eq!(context.value("NCCL_DEBUG").as_deref(), Some("WARN"));
//! # }
//! ```

pub mod abi;
pub mod builtin;
pub mod collnet;
pub mod decision;
pub mod env;
pub mod error;
mod export;
pub mod host;
pub mod learner;
pub mod net;
pub mod profiler;
pub mod settings;
pub mod tuner;

pub use builtin::{BuiltIn, Component};
pub use collnet::CollNet;
pub use env::Env;
pub use error::{Error, ErrorKind, Result};
pub use host::{Level, Listener, Log, Subsys};
pub use learner::Learner;
pub use net::Net;
pub use profiler::Profiler;
pub use settings::setting;
pub use tuner::Tuner;

#[doc(hidden)]
pub use inventory;
