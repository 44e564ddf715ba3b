//! Tables of functions, and the search for the newest one in a library.

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use crate::common::{Missing, text};
use crate::library::Library;

/// A table of one version.
pub trait Table: Copy {
    /// The form into which the tables of all versions are brought.
    type Calls;
    /// The data symbol that holds it.
    const SYMBOL: &'static str;

    /// The calls behind it, or the entry that is missing.
    ///
    /// # Safety
    /// The functions keep NCCL's contract for this version, for as long as the calls live.
    unsafe fn calls(&self) -> Result<Self::Calls, Missing>;
}

/// A version of a table: the symbol by which it is found, and how it is read.
pub struct Version<C> {
    /// The data symbol.
    pub symbol: &'static str,
    /// Copies and checks the table.
    ///
    /// # Safety
    /// The pointer is the address of a table of this version.
    pub read: unsafe fn(*const c_void) -> Result<C, Missing>,
}

impl<C> Version<C> {
    /// The version with this table.
    pub const fn of<T: Table<Calls = C>>() -> Self {
        Self { symbol: T::SYMBOL, read: read::<T> }
    }

    /// The name in a table and the calls behind it, or why it cannot be used.
    ///
    /// # Safety
    /// As [`Table::calls`]; the address is that of a table of this version, whose name is a terminated
    /// string.
    pub unsafe fn load(&self, table: *const c_void) -> Result<(String, C), String> {
        let symbol = self.symbol;
        // SAFETY: each table begins with a pointer to its name.
        let name = unsafe { text(table.cast::<*const c_char>().read_unaligned()) };
        let name = name.ok_or_else(|| format!("{symbol} cannot be used: its name is NULL or empty"))?;
        // SAFETY: the caller's promise.
        let calls = unsafe { (self.read)(table) };
        let calls = calls.map_err(|missing| format!("{symbol} '{name}' cannot be used: {missing}"))?;
        Ok((name, calls))
    }

    /// The contents of a library's table, or the reason why it cannot be used.
    ///
    /// # Safety
    /// The address is that of a table of this version.
    pub unsafe fn read_of(&self, table: *const c_void, library: &Library) -> Result<C, String> {
        // SAFETY: the caller's promise.
        let read = unsafe { (self.read)(table) };
        read.map_err(|missing| format!("{} of {}: {missing}", self.symbol, library.path().display()))
    }
}

/// The first version that a library holds, and its table.
pub fn first<'a, C>(
    versions: &'a [Version<C>],
    library: &Arc<Library>,
) -> Option<(&'a Version<C>, *const c_void)> {
    versions.iter().find_map(|version| Some((version, library.data(version.symbol)?)))
}

/// The version whose symbol this is; `kind` is what its tables describe.
pub fn named<'a, C>(versions: &'a [Version<C>], symbol: &str, kind: &str) -> Result<&'a Version<C>, String> {
    let version = versions.iter().find(|version| version.symbol == symbol);
    version.ok_or_else(|| format!("{symbol} is no {kind} of a version that can be read"))
}

/// # Safety
/// As [`Table::calls`]; `table` points to a readable `T`.
unsafe fn read<T: Table>(table: *const c_void) -> Result<T::Calls, Missing> {
    // SAFETY: the caller knows the type by the symbol; nothing is said about alignment, so none is assumed.
    let table = unsafe { table.cast::<T>().read_unaligned() };
    // SAFETY: the caller's promise.
    unsafe { table.calls() }
}
