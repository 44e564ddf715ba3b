//! The C types that several versions of the net table share.

use std::ffi::c_int;

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
    /// The number of members.
    pub count: c_int,
    /// The numbers of the members.
    pub devices: [c_int; 4],
}

/// `ncclNetVDeviceProps` of v12.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Members8 {
    /// The number of members.
    pub count: c_int,
    /// The numbers of the members.
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
