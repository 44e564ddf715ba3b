//! Collnet v12 (NCCL 2.30): v11 with the properties and virtual devices of net v12.

use std::ffi::c_char;

use super::calls;
use super::signatures::*;
use crate::collnet::calls::Calls;
use crate::common::Missing;
use crate::net::abi::properties::GetProperties;
use crate::net::abi::signatures as net;
use crate::net::abi::v12::NetProperties;
use crate::table::Table;

/// `ncclCollNet_v12_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct CollNet {
    name: *const c_char,
    init: Option<InitV11>,
    devices: Option<net::Devices>,
    get_properties: Option<GetProperties<NetProperties>>,
    listen: Option<net::ListenV11>,
    connect: Option<Connect>,
    reduce_support: Option<ReduceSupport>,
    reg_mr: Option<net::RegMrV8>,
    reg_mr_dma_buf: Option<net::RegMrDmaBuf>,
    dereg_mr: Option<net::DeregMr>,
    iallreduce: Option<IallreduceV9>,
    iallgather: Option<Iallgather<SegmentV9>>,
    ireducescatter: Option<Ireducescatter<SegmentV9>>,
    iflush: Option<Iflush>,
    test: Option<net::Test>,
    close_coll: Option<net::Close>,
    close_listen: Option<net::Close>,
    make_v_device: Option<net::MakeVDeviceV12>,
    finalize: Option<net::Close>,
}

const _: () = assert!(size_of::<CollNet>() == 152);

impl Table for CollNet {
    type Calls = Calls;
    const SYMBOL: &'static str = "ncclCollNetPlugin_v12";

    unsafe fn calls(&self) -> Result<Calls, Missing> {
        calls!(self {
            finalize: self.finalize,
            iallgather: self.iallgather.map(|call| Box::new(call) as _),
            ireducescatter: self.ireducescatter.map(|call| Box::new(call) as _),
            make_v_device: self.make_v_device.map(|call| Box::new(call) as _),
        })
    }
}
