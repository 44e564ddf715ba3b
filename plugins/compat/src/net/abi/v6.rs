//! Net v6 (NCCL 2.13): the base. Lengths are ints, there is no context and no device offload.

use std::ffi::{c_char, c_int};

use super::properties::{GetProperties, PropertiesReader, RawProperties, properties};
use super::signatures::*;
use crate::common::{Missing, required};
use crate::net::calls::{Accept, Calls, Connect, Init, Irecv, Isend, Listen, Memory, RegMr};

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

impl super::Table for Net {
    const SYMBOL: &'static str = "ncclNetPlugin_v6";

    unsafe fn calls(&self) -> Result<Calls, Missing> {
        let get_properties = required(self.get_properties, "getProperties")?;
        Ok(Calls {
            max_requests: 8, // what plugins of that time are promised
            init: Init::V6(required(self.init, "init")?),
            devices: required(self.devices, "devices")?,
            // SAFETY: our caller promises that the table's functions may be called.
            properties: unsafe { PropertiesReader::new(get_properties) },
            listen: Listen::V6(required(self.listen, "listen")?),
            connect: Connect::V6(required(self.connect, "connect")?),
            accept: Accept::V6(required(self.accept, "accept")?),
            memory: Memory {
                register: RegMr::V6(required(self.reg_mr, "regMr")?),
                register_dma_buf: self.reg_mr_dma_buf,
                deregister: required(self.dereg_mr, "deregMr")?,
            },
            isend: Isend::V6(required(self.isend, "isend")?),
            irecv: Irecv::V6(required(self.irecv, "irecv")?),
            iflush: self.iflush,
            test: required(self.test, "test")?,
            close_send: required(self.close_send, "closeSend")?,
            close_recv: required(self.close_recv, "closeRecv")?,
            close_listen: required(self.close_listen, "closeListen")?,
            irecv_consumed: None,
            make_v_device: None,
            finalize: None,
            set_net_attr: None,
        })
    }
}
