//! Collnet v7 (NCCL 2.19): v6 with the properties of net v7.

use std::ffi::c_char;

use super::signatures::*;
use crate::collnet::calls::{Calls, Iallreduce, Init, Operations};
use crate::common::{Missing, required};
use crate::net::abi::properties::{GetProperties, PropertiesReader};
use crate::net::abi::signatures as net;
use crate::net::abi::v7::NetProperties;
use crate::net::calls::{Listen, Memory, RegMr};

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

impl super::Table for CollNet {
    const SYMBOL: &'static str = "ncclCollNetPlugin_v7";

    unsafe fn calls(&self) -> Result<Calls, Missing> {
        Ok(Calls {
            init: Init::V6(required(self.init, "init")?),
            devices: required(self.devices, "devices")?,
            finalize: None,
            // SAFETY: the caller's promise.
            operations: unsafe { self.operations() },
        })
    }
}

impl CollNet {
    /// What a plugin without devices may lack.
    ///
    /// # Safety
    /// As [`super::Table::calls`].
    unsafe fn operations(&self) -> Result<Operations, Missing> {
        let get_properties = required(self.get_properties, "getProperties")?;
        Ok(Operations {
            // SAFETY: our caller promises that the table's functions may be called.
            properties: unsafe { PropertiesReader::new(get_properties) },
            listen: Listen::V6(required(self.listen, "listen")?),
            connect: required(self.connect, "connect")?,
            reduce_support: required(self.reduce_support, "reduceSupport")?,
            memory: Memory {
                register: RegMr::V6(required(self.reg_mr, "regMr")?),
                register_dma_buf: self.reg_mr_dma_buf,
                deregister: required(self.dereg_mr, "deregMr")?,
            },
            iallreduce: Iallreduce::V6(required(self.iallreduce, "iallreduce")?),
            iallgather: None,
            ireducescatter: None,
            iflush: self.iflush,
            test: required(self.test, "test")?,
            close_coll: required(self.close_coll, "closeColl")?,
            close_listen: required(self.close_listen, "closeListen")?,
            make_v_device: None,
        })
    }
}
