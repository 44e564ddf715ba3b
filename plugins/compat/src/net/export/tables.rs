//! The tables of the versions that are exported.

use std::ffi::CStr;

use super::Export;
use super::functions::*;
use crate::net::abi;

/// A table of a version: the functions that are the same in all, and those that are named.
macro_rules! table {
    ($version:ident, $name:ident, $($field:ident: $function:ident,)+) => {
        abi::$version::Net {
            name: $name.as_ptr(),
            devices: Some(devices::<E>),
            get_properties: Some(get_properties::<E, _>),
            accept: Some(accept::<E>),
            reg_mr: Some(reg_mr::<E>),
            reg_mr_dma_buf: Some(reg_mr_dma_buf::<E>),
            dereg_mr: Some(dereg_mr::<E>),
            iflush: Some(iflush::<E>),
            test: Some(test::<E>),
            close_send: Some(close_comm::<E>),
            close_recv: Some(close_comm::<E>),
            close_listen: Some(close_listen::<E>),
            // For device offload, which is not offered. NCCL calls `irecvConsumed` whenever it is there, and
            // for requests that are over.
            get_device_mr: None,
            irecv_consumed: None,
            $($field: Some($function::<E>),)+
        }
    };
}

/// `ncclNetPlugin_v8`.
pub const fn v8<E: Export>(name: &'static CStr) -> abi::v8::Net {
    table!(v8, name, init: init_v6, listen: listen_v6, connect: connect_v7, isend: isend_v6, irecv: irecv_v6,)
}

/// `ncclNetPlugin_v9`.
pub const fn v9<E: Export>(name: &'static CStr) -> abi::v9::Net {
    table!(v9, name, init: init_v6, listen: listen_v6, connect: connect_v7, isend: isend_v9, irecv: irecv_v9,
        make_v_device: make_v_device_v9,)
}

/// `ncclNetPlugin_v10`.
pub const fn v10<E: Export>(name: &'static CStr) -> abi::v10::Net {
    table!(v10, name, init: init_v10, listen: listen_v6, connect: connect_v10, isend: isend_v10,
        irecv: irecv_v10, make_v_device: make_v_device_v9,)
}

/// `ncclNetPlugin_v11`.
pub const fn v11<E: Export>(name: &'static CStr) -> abi::v11::Net {
    table!(v11, name, init: init_v11, listen: listen_v11, connect: connect_v11, isend: isend_v10,
        irecv: irecv_v10, make_v_device: make_v_device_v9, finalize: finalize, set_net_attr: set_net_attr,)
}

/// `ncclNetPlugin_v12`.
pub const fn v12<E: Export>(name: &'static CStr) -> abi::v12::Net {
    table!(v12, name, init: init_v11, listen: listen_v11, connect: connect_v11, isend: isend_v10,
        irecv: irecv_v10, make_v_device: make_v_device_v12, finalize: finalize, set_net_attr: set_net_attr,)
}
