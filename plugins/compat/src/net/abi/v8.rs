//! Net v8 (NCCL 2.20): registrations of any length, and such as hold for all connections.

use std::ffi::{c_char, c_int};

use hawser_plugin::net::MAX_REQUESTS;

use super::calls;
use super::properties::{GetProperties, RawProperties, properties};
use super::signatures::*;
use crate::common::Missing;
use crate::net::calls::Calls;
use crate::table::Table;

properties! {
    /// `ncclNetProperties_v8_t`.
    64 bytes:
    0 => name: *const c_char,
    8 => pci_path: *const c_char,
    16 => guid: u64,
    24 => ptr_support: c_int,
    28 => reg_is_global: c_int,
    32 => speed: c_int,
    36 => port: c_int,
    40 => latency: f32,
    44 => max_comms: c_int,
    48 => max_recvs: c_int,
    52 => device_type: c_int,
    56 => device_version: c_int,
}

/// `ncclNet_v8_t`.
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
    pub isend: Option<IsendV6>,
    pub irecv: Option<IrecvV6>,
    pub iflush: Option<Iflush>,
    pub test: Option<Test>,
    pub close_send: Option<Close>,
    pub close_recv: Option<Close>,
    pub close_listen: Option<Close>,
    pub get_device_mr: Option<GetDeviceMr>,
    pub irecv_consumed: Option<IrecvConsumed>,
}

const _: () = assert!(size_of::<Net>() == 152);

impl Table for Net {
    type Calls = Calls;
    const SYMBOL: &'static str = "ncclNetPlugin_v8";

    unsafe fn calls(&self) -> Result<Calls, Missing> {
        calls!(self {
            finalize: None,
            max_requests: MAX_REQUESTS,
            irecv_consumed: self.irecv_consumed,
            make_v_device: None,
            set_net_attr: None,
        })
    }
}
