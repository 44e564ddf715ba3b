//! Hawser's plugin interface: what third parties depend on.
//!
//! A plugin implements one or more of [`Net`], [`CollNet`], [`Tuner`], [`Profiler`] and [`Env`]: ordinary, object-safe
//! Rust traits whose documentation is the contract. How they cross a library boundary is not the author's business: the
//! export macros wrap an implementation for Hawser's own ABI (checked layouts, panics caught) and for NCCL's C ABIs.

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
