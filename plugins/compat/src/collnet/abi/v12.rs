//! Collnet v12 (NCCL 2.30): v11 with the properties and virtual devices of net v12.

use std::ffi::c_char;

use super::signatures::*;
use crate::collnet::calls::{Calls, Iallreduce, Init, Operations, Parts};
use crate::common::{Missing, required};
use crate::net::abi::properties::{GetProperties, PropertiesReader};
use crate::net::abi::signatures as net;
use crate::net::abi::v12::NetProperties;
use crate::net::calls::{Listen, MakeVDevice, Memory, RegMr};

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

impl super::Table for CollNet {
    const SYMBOL: &'static str = "ncclCollNetPlugin_v12";

    unsafe fn calls(&self) -> Result<Calls, Missing> {
        Ok(Calls {
            init: Init::V11(required(self.init, "init")?),
            devices: required(self.devices, "devices")?,
            finalize: self.finalize,
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
        required(self.finalize, "finalize")?;
        Ok(Operations {
            // SAFETY: our caller promises that the table's functions may be called.
            properties: unsafe { PropertiesReader::new(get_properties) },
            listen: Listen::V11(required(self.listen, "listen")?),
            connect: required(self.connect, "connect")?,
            reduce_support: required(self.reduce_support, "reduceSupport")?,
            memory: Memory {
                register: RegMr::V8(required(self.reg_mr, "regMr")?),
                register_dma_buf: self.reg_mr_dma_buf,
                deregister: required(self.dereg_mr, "deregMr")?,
            },
            iallreduce: Iallreduce::V9(required(self.iallreduce, "iallreduce")?),
            iallgather: self.iallgather.map(Parts::V9),
            ireducescatter: self.ireducescatter.map(Parts::V9),
            iflush: self.iflush,
            test: required(self.test, "test")?,
            close_coll: required(self.close_coll, "closeColl")?,
            close_listen: required(self.close_listen, "closeListen")?,
            make_v_device: self.make_v_device.map(MakeVDevice::V12),
        })
    }
}
