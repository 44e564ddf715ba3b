//! Net v7 (NCCL 2.19): v6 with device offload, which Hawser does not ask for.

use std::ffi::{c_char, c_int};

use hawser_plugin::net::MAX_REQUESTS;

use super::calls;
use super::properties::{GetProperties, RawProperties, properties};
use super::signatures::*;
use crate::common::Missing;
use crate::net::calls::Calls;
use crate::table::Table;

properties! {
    /// `ncclNetProperties_v7_t`.
    56 bytes:
    0 => name: *const c_char,
    8 => pci_path: *const c_char,
    16 => guid: u64,
    24 => ptr_support: c_int,
    28 => speed: c_int,
    32 => port: c_int,
    36 => latency: f32,
    40 => max_comms: c_int,
    44 => max_recvs: c_int,
    48 => device_type: c_int,
    52 => device_version: c_int,
}

/// `ncclNet_v7_t`.
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
    pub reg_mr: Option<RegMrV6>,
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
    const SYMBOL: &'static str = "ncclNetPlugin_v7";

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
