//! Net v10 (NCCL 2.26): traffic classes and network events for profilers. Properties are those of v9.

use std::ffi::c_char;

use hawser_plugin::net::MAX_REQUESTS;

use super::calls;
use super::properties::GetProperties;
use super::signatures::*;
use super::v9::NetProperties;
use crate::common::Missing;
use crate::net::calls::Calls;
use crate::table::Table;

/// `ncclNet_v10_t`.
#[derive(Clone, Copy)]
#[repr(C)]
#[allow(missing_docs)] // NCCL's functions
pub struct Net {
    pub name: *const c_char,
    pub init: Option<InitV10>,
    pub devices: Option<Devices>,
    pub get_properties: Option<GetProperties<NetProperties>>,
    pub listen: Option<ListenV6>,
    pub connect: Option<ConnectV10>,
    pub accept: Option<AcceptV7>,
    pub reg_mr: Option<RegMrV8>,
    pub reg_mr_dma_buf: Option<RegMrDmaBuf>,
    pub dereg_mr: Option<DeregMr>,
    pub isend: Option<IsendV10>,
    pub irecv: Option<IrecvV10>,
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
    const SYMBOL: &'static str = "ncclNetPlugin_v10";

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
