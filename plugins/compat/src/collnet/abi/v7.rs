//! Collnet v7 (NCCL 2.19): v6 with the properties of net v7.

use std::ffi::c_char;

use super::calls;
use super::signatures::*;
use crate::collnet::calls::Calls;
use crate::common::Missing;
use crate::net::abi::properties::GetProperties;
use crate::net::abi::signatures as net;
use crate::net::abi::v7::NetProperties;
use crate::table::Table;

/// `ncclCollNet_v7_t`.
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
    reg_mr: Option<net::RegMrV6>,
    reg_mr_dma_buf: Option<net::RegMrDmaBuf>,
    dereg_mr: Option<net::DeregMr>,
    iallreduce: Option<IallreduceV6>,
    iflush: Option<Iflush>,
    test: Option<net::Test>,
    close_coll: Option<net::Close>,
    close_listen: Option<net::Close>,
}

const _: () = assert!(size_of::<CollNet>() == 120);

impl Table for CollNet {
    type Calls = Calls;
    const SYMBOL: &'static str = "ncclCollNetPlugin_v7";

    unsafe fn calls(&self) -> Result<Calls, Missing> {
        calls!(self { finalize: None, iallgather: None, ireducescatter: None, make_v_device: None })
    }
}
