//! NCCL's net plugins, in both directions.
//!
//! *NCCL to Hawser*: [`from_library`] finds the newest table `ncclNetPlugin_v12` to `_v6` in a library and
//! puts it behind [`hawser_plugin::Net`]. A file of `abi` says what a version looks like, `calls` gives all
//! versions one form, `forms` says what differs in a function that all have, and one adapter implements the
//! traits on it. It owns all its state, so any number of plugins live side by side, and it keeps the library
//! open.
//!
//! *Hawser to NCCL*: [`export_nccl_net!`](crate::export_nccl_net) makes a Rust plugin loadable by NVIDIA's
//! library.

pub(crate) mod abi;
mod adapter;
pub(crate) mod calls;
mod connection;
pub mod export;
pub(crate) mod forms;
mod properties;
pub(crate) mod shared;

use std::ffi::c_void;
use std::sync::Arc;

use hawser_plugin::Net;

use crate::Found;
use crate::library::Library;
use crate::table::{self, Version};

/// The symbols that [`from_library`] looks for, in this order.
pub fn symbols() -> impl Iterator<Item = &'static str> {
    abi::NEWEST_FIRST.iter().map(|version| version.symbol)
}

/// The newest net plugin of a library; None if it holds none. The newest counts even if it turns out to be
/// unusable: a library is initialised once, not tried version by version.
///
/// # Errors
/// The table cannot be used: a line that says which entry is NULL.
pub fn from_library(library: &Arc<Library>) -> Option<Result<Found<dyn Net>, String>> {
    let (version, table) = table::first(abi::NEWEST_FIRST, library)?;
    // SAFETY: by its name, the symbol is a table of this version; the adapter keeps the library open.
    Some(unsafe { load(version, table, Some(library.clone())) })
}

/// A net plugin from a table in memory, by the name of its version's symbol. For tables of this process; a
/// table of a library goes through [`from_library`], which keeps the library open.
///
/// # Errors
/// As [`from_library`], and for an unknown symbol.
///
/// # Safety
/// `table` points to a table of the version that `symbol` names, its functions keep NCCL's contract for that
/// version, and both live as long as the plugin that is returned and everything made by it.
pub unsafe fn from_table(symbol: &str, table: *const c_void) -> Result<Found<dyn Net>, String> {
    let version = abi::NEWEST_FIRST.iter().find(|version| version.symbol == symbol);
    let version = version.ok_or_else(|| format!("{symbol} is not the name of a net table"))?;
    if table.is_null() {
        return Err(format!("{symbol}: no table"));
    }
    // SAFETY: the caller's promise.
    unsafe { load(version, table, None) }
}

/// # Safety
/// As [`from_table`]; if there is a library, it holds the table.
unsafe fn load(
    version: &Version<calls::Calls>,
    table: *const c_void,
    library: Option<Arc<Library>>,
) -> Result<Found<dyn Net>, String> {
    // SAFETY: the caller's promise.
    let (name, calls) = unsafe { version.load(table) }?;
    let plugin = shared::Plugin::new("net plugin", version.symbol, name, library);
    Ok(Found { symbol: version.symbol, plugin: Arc::new(adapter::Adapter::new(calls, plugin)) })
}
