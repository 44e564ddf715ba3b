//! Net v9 (NCCL 2.24): messages of any length, optional completion, virtual devices.

use std::ffi::{c_char, c_int};

use hawser_plugin::net::MAX_REQUESTS;

use super::Members4;
use super::calls;
use super::properties::{GetProperties, RawProperties, properties};
use super::signatures::*;
use crate::common::Missing;
use crate::net::calls::Calls;
use crate::table::Table;

properties! {
    /// `ncclNetProperties_v9_t` and `_v10_t`.
    104 bytes:
    0 => name: *const c_char,
    8 => pci_path: *const c_char,
    16 => guid: u64,
    24 => ptr_support: c_int,
    28 => reg_is_global: c_int,
    32 => force_flush: c_int,
    36 => speed: c_int,
    40 => port: c_int,
    44 => latency: f32,
    48 => max_comms: c_int,
    52 => max_recvs: c_int,
    56 => device_type: c_int,
    60 => device_version: c_int,
    64 => members: Members4,
    88 => max_p2p_bytes: usize,
    96 => max_collective_bytes: usize,
}

/// `ncclNet_v9_t`.
#[derive(Clone, Copy)]
#[repr(C)]
#[allow(missing_docs)] // NCCL's functions
pub struct Net {
    pub name: *const c_char,
    pub init: Option<InitV6>,
    pub devices: Option<Devices>,
    pub get_properties: Option<GetProperties<NetProperties>>,
    pub listen: Option<ListenV6>,
    pub connect: Option<ConnectV7>,
    pub accept: Option<AcceptV7>,
    pub reg_mr: Option<RegMrV8>,
    pub reg_mr_dma_buf: Option<RegMrDmaBuf>,
    pub dereg_mr: Option<DeregMr>,
    pub isend: Option<IsendV9>,
    pub irecv: Option<IrecvV9>,
    pub iflush: Option<Iflush>,
    pub test: Option<Test>,
    pub close_send: Option<Close>,
    pub close_recv: Option<Close>,
    pub close_listen: Option<Close>,
    pub get_device_mr: Option<GetDeviceMr>,
    pub irecv_consumed: Option<IrecvConsumed>,
    pub make_v_device: Option<MakeVDeviceV9>,
}

const _: () = assert!(size_of::<Net>() == 160);

impl Table for Net {
    type Calls = Calls;
    const SYMBOL: &'static str = "ncclNetPlugin_v9";

    unsafe fn calls(&self) -> Result<Calls, Missing> {
        calls!(self {
            finalize: None,
            max_requests: MAX_REQUESTS,
            irecv_consumed: self.irecv_consumed,
            make_v_device: self.make_v_device.map(|call| Box::new(call) as _),
            set_net_attr: None,
        })
    }
}
