//! The C side of the net interface: types that several versions share, and one file per version.
//!
//! A version's file holds its structs with asserts on their layout, and turns its table into [`Calls`] and its
//! properties into [`properties::RawProperties`]. A new version is a new file and a line in [`NEWEST_FIRST`]. Layouts
//! are those of 64-bit Linux.

pub mod properties;
pub mod signatures;
pub mod v10;
pub mod v11;
pub mod v12;
pub mod v6;
pub mod v7;
pub mod v8;
pub mod v9;

use std::ffi::{c_int, c_void};

use super::calls::Calls;
use crate::common::Missing;

/// The tables that are looked for, in this order.
pub const NEWEST_FIRST: [Version; 7] = [
    Version::of::<v12::Net>(),
    Version::of::<v11::Net>(),
    Version::of::<v10::Net>(),
    Version::of::<v9::Net>(),
    Version::of::<v8::Net>(),
    Version::of::<v7::Net>(),
    Version::of::<v6::Net>(),
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

/// `ncclNetDeviceHandle`: what device offload would need. Only its address is passed, as NULL.
#[repr(C)]
pub struct DeviceHandle {
    _opaque: [u8; 32],
}

/// `ncclNetCommConfig`: of `connect` in v10, of `init` since.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct CommConfig {
    /// -1 = the user did not say.
    pub traffic_class: c_int,
}

/// Traffic class that the user did not set.
pub const NO_TRAFFIC_CLASS: c_int = -1;

/// `ncclNetVDeviceProps` of v9 to v11.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Members4 {
    /// How many.
    pub count: c_int,
    /// Which.
    pub devices: [c_int; 4],
}

/// `ncclNetVDeviceProps` of v12.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Members8 {
    /// How many.
    pub count: c_int,
    /// Which.
    pub devices: [c_int; 8],
}

/// `ncclNetCommAttr`.
#[derive(Clone, Copy)]
#[repr(C)]
#[allow(missing_docs)] // NCCL's fields
pub struct CommAttributes {
    pub max_peers: i32,
    pub min_peers: i32,
    pub max_flows: i32,
    pub min_flows: i32,
}

/// `ncclNetAttr`: a hint about what a communicator will do, since v11.
#[derive(Clone, Copy)]
#[repr(C)]
#[allow(missing_docs)] // NCCL's fields
pub struct Attributes {
    pub send: CommAttributes,
    pub recv: CommAttributes,
    pub op: u32,
    pub algo: u32,
    pub proto: u32,
}

const _: () = {
    assert!(size_of::<DeviceHandle>() == 32);
    assert!(size_of::<CommConfig>() == 4);
    assert!(size_of::<Members4>() == 20);
    assert!(size_of::<Members8>() == 36);
    assert!(size_of::<Attributes>() == 44);
};
