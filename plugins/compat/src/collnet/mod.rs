//! NCCL's collnet plugins behind [`hawser_plugin::CollNet`]: collectives that the network computes.
//!
//! As [`crate::net`], with which it shares properties, registration and much of the adapter. A library may hold both
//! kinds of table, each in a version of its own.

mod abi;
mod adapter;
mod calls;

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use hawser_plugin::CollNet;

use crate::Found;
use crate::common::text;
use crate::library::Library;
use crate::net::shared::Plugin;

/// The symbols that [`from_library`] looks for, in this order.
pub fn symbols() -> impl Iterator<Item = &'static str> {
    abi::NEWEST_FIRST.iter().map(|version| version.symbol)
}

/// The newest collnet plugin of a library; None if it holds none. The newest counts even if it turns out to be unusable.
///
/// # Errors
/// The table cannot be used: a line that says which entry is NULL. Entries that only plugins with devices need are
/// checked when the plugin is opened.
pub fn from_library(library: &Arc<Library>) -> Option<Result<Found<dyn CollNet>, String>> {
    let here = |version: &'static abi::Version| Some((version, library.data(version.symbol)?));
    let (version, table) = abi::NEWEST_FIRST.iter().find_map(here)?;
    // SAFETY: by its name, the symbol is a table of this version; the adapter keeps the library open.
    Some(unsafe { load(version, table, library.clone()) })
}

/// # Safety
/// `table` points to a table of this version in the library, whose functions keep NCCL's contract for it.
unsafe fn load(
    version: &abi::Version,
    table: *const c_void,
    library: Arc<Library>,
) -> Result<Found<dyn CollNet>, String> {
    let symbol = version.symbol;
    // SAFETY: each table begins with a pointer to its name.
    let name = unsafe { text(table.cast::<*const c_char>().read_unaligned()) };
    let name = name.ok_or_else(|| format!("{symbol} cannot be used: its name is NULL or empty"))?;
    // SAFETY: the caller's promise.
    let calls = unsafe { (version.read)(table) };
    let calls = calls.map_err(|missing| format!("{symbol} '{name}' cannot be used: {missing}"))?;
    let plugin = Plugin::new("collnet plugin", symbol, name, Some(library));
    Ok(Found { symbol, plugin: Arc::new(adapter::Adapter::new(calls, plugin)) })
}
