//! The C side of the collnet interface: one file per version, as in [`crate::net::abi`], whose properties and many of
//! whose signatures are shared.

pub mod signatures;
pub mod v10;
pub mod v11;
pub mod v12;
pub mod v6;
pub mod v7;
pub mod v8;
pub mod v9;

use std::ffi::c_void;

use super::calls::Calls;
use crate::common::Missing;

/// The tables that are looked for, in this order.
pub const NEWEST_FIRST: [Version; 7] = [
    Version::of::<v12::CollNet>(),
    Version::of::<v11::CollNet>(),
    Version::of::<v10::CollNet>(),
    Version::of::<v9::CollNet>(),
    Version::of::<v8::CollNet>(),
    Version::of::<v7::CollNet>(),
    Version::of::<v6::CollNet>(),
];

/// How a table of one version is found and read.
pub struct Version {
    /// The data symbol.
    pub symbol: &'static str,
    /// Reads the table.
    ///
    /// # Safety
    /// As [`Table::calls`]; the address is that of a table of this version.
    pub read: unsafe fn(*const c_void) -> Result<Calls, Missing>,
}

impl Version {
    const fn of<T: Table>() -> Self {
        Self { symbol: T::SYMBOL, read: read::<T> }
    }
}

/// # Safety
/// As [`Table::calls`]; `table` points to a readable `T`.
unsafe fn read<T: Table>(table: *const c_void) -> Result<Calls, Missing> {
    // SAFETY: the caller knows the type by the symbol; nothing is said about alignment, so none is assumed.
    let table = unsafe { table.cast::<T>().read_unaligned() };
    // SAFETY: the caller's promise.
    unsafe { table.calls() }
}

/// A table of one version.
pub trait Table: Copy {
    /// The data symbol that holds it.
    const SYMBOL: &'static str;

    /// The calls behind it, or the entry that is missing.
    ///
    /// # Safety
    /// The functions keep NCCL's contract for this version, for as long as the calls live.
    unsafe fn calls(&self) -> Result<Calls, Missing>;
}
