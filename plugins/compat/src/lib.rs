//! NCCL's C plugin ABIs in both directions, and the search for plugins.
//!
//! *NCCL to Hawser*: a C table found in a [`library::Library`] becomes one boxed adapter onto a trait of
//! `hawser_plugin`, filled when it is loaded; there are no statics, so several plugins of one version work
//! side by side. *Hawser to NCCL*: the export macros turn an implementation of such a trait into the tables
//! that NVIDIA's library looks for.
//!
//! A version of an ABI is a file of its own: its layout, and what it says in another way than others.
//!
//! ```
//! use hawser_compat::search::{Request, find_tuners};
//! use hawser_plugin::Log;
//!
//! let log = Log::silent();
//! // As with NCCL_TUNER_PLUGIN=none: no library is opened, and only built-in tuners are found.
//! let found = find_tuners(&Request::new(Some("none"), None, &log));
//! assert!(found.candidates.is_empty());
//! ```

pub mod collnet;
pub mod common;
pub mod env;
pub mod library;
pub mod logger;
pub mod net;
pub mod profiler;
pub mod search;
mod table;
pub mod tuner;

use std::sync::Arc;

/// A plugin found in a library.
pub struct Found<T: ?Sized> {
    /// The symbol that was taken: the newest one there, such as `ncclNetPlugin_v9`.
    pub symbol: &'static str,
    /// The plugin behind our own trait. Keeps its library open.
    pub plugin: Arc<T>,
}

impl<T: ?Sized> Clone for Found<T> {
    fn clone(&self) -> Self {
        Self { symbol: self.symbol, plugin: self.plugin.clone() }
    }
}
