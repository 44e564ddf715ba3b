//! Tuners: `ncclTunerPlugin_v2` to `_v6` onto our trait, and our trait as `_v4`, `_v5` and `_v6`.
//!
//! | file | holds |
//! |---|---|
//! | `v2` .. `v6` | one ABI version each: the table's layout, and its calls |
//! | `adapter` | our trait over any of them |
//! | `cost_table` | our candidates as NCCL's cost table and back |
//! | [`export`] | the other direction, behind [`export_nccl_tuner!`](crate::export_nccl_tuner) |

mod adapter;
mod cost_table;
#[doc(hidden)]
pub mod export;
mod v2;
mod v3;
mod v4;
mod v5;
mod v6;

use std::ffi::c_void;
use std::sync::Arc;

use hawser_plugin::Tuner;

use crate::Found;
use crate::library::Library;
use crate::table;
use adapter::{Adapter, Plugin};

/// An ABI version that we read.
type Version = table::Version<Plugin>;

/// Newest first: the first one that a library has is taken.
const VERSIONS: &[Version] = &[v6::VERSION, v5::VERSION, v4::VERSION, v3::VERSION, v2::VERSION];

/// The tuner of a library, by the newest of its tables. None: it has none.
///
/// # Errors
/// Its table lacks a function. Older tables are not tried then: a library is initialised once.
pub fn from_library(library: &Arc<Library>) -> Option<Result<Found<dyn Tuner>, String>> {
    let (version, table) = table::first(VERSIONS, library)?;
    // SAFETY: the symbol's name says which version its table has.
    Some(unsafe { adapt(version, table, library) })
}

/// The tuner behind a table that was not looked up by its name; `library` is what must stay open.
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
) -> Result<Found<dyn Tuner>, String> {
    let version = table::named(VERSIONS, symbol, "tuner")?;
    // SAFETY: the caller's promise.
    unsafe { adapt(version, table, library) }
}

/// # Safety
/// `table` is the address of a table of this version.
unsafe fn adapt(
    version: &Version,
    table: *const c_void,
    library: &Arc<Library>,
) -> Result<Found<dyn Tuner>, String> {
    // SAFETY: the caller's promise.
    let plugin = unsafe { version.read_of(table, library) }?;
    Ok(Found { symbol: version.symbol, plugin: Arc::new(Adapter::new(plugin, library.clone())) })
}
