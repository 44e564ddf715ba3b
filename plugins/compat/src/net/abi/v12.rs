//! Net v12 (NCCL 2.30): virtual devices of up to eight, rails and planes.

use std::ffi::{c_char, c_int};

use hawser_plugin::net::MAX_REQUESTS;

use super::Members8;
use super::properties::{GetProperties, PropertiesReader, RawProperties, properties};
use super::signatures::*;
use crate::common::{Missing, required};
use crate::net::calls::{Accept, Calls, Connect, Init, Irecv, Isend, Listen, MakeVDevice, Memory, RegMr};

properties! {
    /// `ncclNetProperties_v12_t`.
    128 bytes:
    0 => name: *const c_char,
    8 => pci_path: *const c_char,
    16 => guid: u64,
    24 => ptr_support: c_int,
    28 => reg_is_global: c_int,
    32 => force_flush: c_int,
    36 => speed: c_int,
    40 => port: c_int,
    44 => latency: f32,
    48 => max_comms: c_int,
    52 => max_recvs: c_int,
    56 => device_type: c_int,
    60 => device_version: c_int,
    64 => members: Members8,
    104 => max_p2p_bytes: usize,
    112 => max_collective_bytes: usize,
    120 => max_multi_request: c_int,
    124 => rail: i16,
    126 => plane: i16,
}

/// `ncclNet_v12_t`.
#[derive(Clone, Copy)]
#[repr(C)]
#[allow(missing_docs)] // NCCL's functions
pub struct Net {
    pub name: *const c_char,
    pub init: Option<InitV11>,
    pub devices: Option<Devices>,
    pub get_properties: Option<GetProperties<NetProperties>>,
    pub listen: Option<ListenV11>,
    pub connect: Option<ConnectV11>,
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
    pub make_v_device: Option<MakeVDeviceV12>,
    pub finalize: Option<Close>,
    pub set_net_attr: Option<SetNetAttr>,
}

const _: () = assert!(size_of::<Net>() == 176);

impl super::Table for Net {
    const SYMBOL: &'static str = "ncclNetPlugin_v12";

    unsafe fn calls(&self) -> Result<Calls, Missing> {
        let get_properties = required(self.get_properties, "getProperties")?;
        Ok(Calls {
            max_requests: MAX_REQUESTS,
            init: Init::V11(required(self.init, "init")?),
            devices: required(self.devices, "devices")?,
            // SAFETY: our caller promises that the table's functions may be called.
            properties: unsafe { PropertiesReader::new(get_properties) },
            listen: Listen::V11(required(self.listen, "listen")?),
            connect: Connect::V11(required(self.connect, "connect")?),
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
            make_v_device: self.make_v_device.map(MakeVDevice::V12),
            finalize: Some(required(self.finalize, "finalize")?),
            set_net_attr: self.set_net_attr,
        })
    }
}
