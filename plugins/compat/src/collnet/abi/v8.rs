//! Collnet v8 (NCCL 2.20): + all-gather and reduce-scatter, with parts of up to 4 GiB.

use std::ffi::c_char;

use super::calls;
use super::signatures::*;
use crate::collnet::calls::Calls;
use crate::common::Missing;
use crate::net::abi::properties::GetProperties;
use crate::net::abi::signatures as net;
use crate::net::abi::v8::NetProperties;
use crate::table::Table;

/// `ncclCollNet_v8_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct CollNet {
    name: *const c_char,
    init: Option<net::InitV6>,
    devices: Option<net::Devices>,
    get_properties: Option<GetProperties<NetProperties>>,
    listen: Option<net::ListenV6>,
    connect: Option<Connect>,
    reduce_support: Option<ReduceSupport>,
    reg_mr: Option<net::RegMrV8>,
    reg_mr_dma_buf: Option<net::RegMrDmaBuf>,
    dereg_mr: Option<net::DeregMr>,
    iallreduce: Option<IallreduceV6>,
    iallgather: Option<Iallgather<SegmentV8>>,
    ireducescatter: Option<Ireducescatter<SegmentV8>>,
    iflush: Option<Iflush>,
    test: Option<net::Test>,
    close_coll: Option<net::Close>,
    close_listen: Option<net::Close>,
}

const _: () = assert!(size_of::<CollNet>() == 136);

impl Table for CollNet {
    type Calls = Calls;
    const SYMBOL: &'static str = "ncclCollNetPlugin_v8";

    unsafe fn calls(&self) -> Result<Calls, Missing> {
        calls!(self {
            finalize: None,
            iallgather: self.iallgather.map(|call| Box::new(call) as _),
            ireducescatter: self.ireducescatter.map(|call| Box::new(call) as _),
            make_v_device: None,
        })
    }
}
