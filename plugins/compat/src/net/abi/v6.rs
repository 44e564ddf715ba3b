//! Net v6 (NCCL 2.13): the base. Lengths are ints, there is no context and no device offload.

use std::ffi::{c_char, c_int};

use super::calls;
use super::properties::{GetProperties, RawProperties, properties};
use super::signatures::*;
use crate::common::Missing;
use crate::net::calls::Calls;
use crate::table::Table;

properties! {
    /// `ncclNetProperties_v6_t`.
    48 bytes:
    0 => name: *const c_char,
    8 => pci_path: *const c_char,
    16 => guid: u64,
    24 => ptr_support: c_int,
    28 => speed: c_int,
    32 => port: c_int,
    36 => latency: f32,
    40 => max_comms: c_int,
    44 => max_recvs: c_int,
}

/// `ncclNet_v6_t`.
#[derive(Clone, Copy)]
#[repr(C)]
#[allow(missing_docs)] // NCCL's functions
pub struct Net {
    pub name: *const c_char,
    pub init: Option<InitV6>,
    pub devices: Option<Devices>,
    pub get_properties: Option<GetProperties<NetProperties>>,
    pub listen: Option<ListenV6>,
    pub connect: Option<ConnectV6>,
    pub accept: Option<AcceptV6>,
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
}

const _: () = assert!(size_of::<Net>() == 136);

impl Table for Net {
    type Calls = Calls;
    const SYMBOL: &'static str = "ncclNetPlugin_v6";

    unsafe fn calls(&self) -> Result<Calls, Missing> {
        calls!(self {
            finalize: None,
            max_requests: 8, // what plugins of that time are promised
            irecv_consumed: None,
            make_v_device: None,
            set_net_attr: None,
        })
    }
}
