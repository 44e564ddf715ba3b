//! Profilers: `ncclProfiler_v1` to `_v7` (there is no "Plugin" in the name) onto our trait, and our trait as
//! `_v4` to `_v7`.
//!
//! | file | holds |
//! |---|---|
//! | `v1` .. `v7` | one ABI version each: layouts, and what becomes of our events and states, from v4 on both
//! ways |
//! | `abi` | what the versions have in common, as a trait of each |
//! | `adapter` | our trait over any of them |
//! | `names` | our strings as C strings that outlive the call, and as numbers for v1 |
//! | `kinds` | which kinds of events come with others |
//! | [`export`] | the other direction, behind [`export_nccl_profiler!`](crate::export_nccl_profiler) |
//! | `contexts` | its communicators and handles |

mod abi;
mod adapter;
mod contexts;
#[doc(hidden)]
pub mod export;
mod kinds;
mod names;
mod v1;
mod v2;
mod v3;
mod v4;
mod v5;
mod v6;
mod v7;

use std::ffi::c_void;
use std::sync::Arc;

use hawser_plugin::Profiler;

use crate::Found;
use crate::library::Library;
use crate::table;
use abi::{Abi, Version};
use adapter::Adapter;
pub use kinds::{comes_along, with_ancestors};

/// Newest first: the first one that a library has is taken.
const VERSIONS: &[Version] = &[
    v7::V7::VERSION,
    v6::V6::VERSION,
    v5::V5::VERSION,
    v4::V4::VERSION,
    v3::V3::VERSION,
    v2::V2::VERSION,
    v1::V1::VERSION,
];

/// The profiler of a library, by the newest of its tables. None: it has none.
///
/// # Errors
/// Its table lacks a function. Older tables are not tried then: a library is initialised once.
pub fn from_library(library: &Arc<Library>) -> Option<Result<Found<dyn Profiler>, String>> {
    let (version, table) = table::first(VERSIONS, library)?;
    // SAFETY: the symbol's name says which version its table has.
    Some(unsafe { adapt(version, table, library) })
}

/// The profiler behind a table that was not looked up by its name; `library` is what must stay open.
///
/// # Errors
/// No version that we read has this symbol, or the table lacks a function.
///
/// # Safety
/// `table` is the address of a table of the version that `symbol` names.
pub unsafe fn from_table(
    symbol: &str,
    table: *const c_void,
    library: &Arc<Library>,
) -> Result<Found<dyn Profiler>, String> {
    let version = table::named(VERSIONS, symbol, "profiler")?;
    // SAFETY: the caller's promise.
    unsafe { adapt(version, table, library) }
}

/// # Safety
/// `table` is the address of a table of this version.
unsafe fn adapt(
    version: &Version,
    table: *const c_void,
    library: &Arc<Library>,
) -> Result<Found<dyn Profiler>, String> {
    // SAFETY: the caller's promise.
    let plugin = unsafe { version.read_of(table, library) }?;
    Ok(Found { symbol: version.symbol, plugin: Arc::new(Adapter::new(plugin, library.clone())) })
}
