//! Net v10 (NCCL 2.26): traffic classes and network events for profilers. Properties are those of v9.

use std::ffi::c_char;

use hawser_plugin::net::MAX_REQUESTS;

use super::properties::{GetProperties, PropertiesReader};
use super::signatures::*;
use super::v9::NetProperties;
use crate::common::{Missing, required};
use crate::net::calls::{Accept, Calls, Connect, Init, Irecv, Isend, Listen, MakeVDevice, Memory, RegMr};

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

impl super::Table for Net {
    const SYMBOL: &'static str = "ncclNetPlugin_v10";

    unsafe fn calls(&self) -> Result<Calls, Missing> {
        let get_properties = required(self.get_properties, "getProperties")?;
        Ok(Calls {
            max_requests: MAX_REQUESTS,
            init: Init::V10(required(self.init, "init")?),
            devices: required(self.devices, "devices")?,
            // SAFETY: our caller promises that the table's functions may be called.
            properties: unsafe { PropertiesReader::new(get_properties) },
            listen: Listen::V6(required(self.listen, "listen")?),
            connect: Connect::V10(required(self.connect, "connect")?),
            accept: Accept::V7(required(self.accept, "accept")?),
            memory: Memory {
                register: RegMr::V8(required(self.reg_mr, "regMr")?),
                register_dma_buf: self.reg_mr_dma_buf,
                deregister: required(self.dereg_mr, "deregMr")?,
            },
            isend: Isend::V10(required(self.isend, "isend")?),
            irecv: Irecv::V10(required(self.irecv, "irecv")?),
            iflush: self.iflush,
            test: required(self.test, "test")?,
            close_send: required(self.close_send, "closeSend")?,
            close_recv: required(self.close_recv, "closeRecv")?,
            close_listen: required(self.close_listen, "closeListen")?,
            irecv_consumed: self.irecv_consumed,
            make_v_device: self.make_v_device.map(MakeVDevice::V9),
            finalize: None,
            set_net_attr: None,
        })
    }
}
