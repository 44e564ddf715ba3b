//! NCCL's collnet plugins behind [`hawser_plugin::CollNet`]: collectives that the network computes.
//!
//! As [`crate::net`], with which it shares properties, registration and much of the adapter. A library may
//! hold both kinds of table, each in a version of its own.

mod abi;
mod adapter;
mod calls;
mod forms;

use std::sync::Arc;

use hawser_plugin::CollNet;

use crate::Found;
use crate::library::Library;
use crate::net::shared::Plugin;
use crate::table;

/// The symbols that [`from_library`] looks for, in this order.
pub fn symbols() -> impl Iterator<Item = &'static str> {
    abi::NEWEST_FIRST.iter().map(|version| version.symbol)
}

/// The newest collnet plugin of a library; None if it holds none. The newest counts even if it turns out to
/// be unusable.
///
/// # Errors
/// The table cannot be used: a line that says which entry is NULL. Entries that only plugins with devices
/// need are checked when the plugin is opened.
pub fn from_library(library: &Arc<Library>) -> Option<Result<Found<dyn CollNet>, String>> {
    let (version, table) = table::first(abi::NEWEST_FIRST, library)?;
    // SAFETY: by its name, the symbol is a table of this version; the adapter keeps the library open.
    let loaded = unsafe { version.load(table) };
    Some(loaded.map(|(name, calls)| {
        let plugin = Plugin::new("collnet plugin", version.symbol, name, Some(library.clone()));
        let plugin: Arc<dyn CollNet> = Arc::new(adapter::Adapter::new(calls, plugin));
        Found { symbol: version.symbol, plugin }
    }))
}
