//! The C side of the net interface: types that several versions share, and one file per version.
//!
//! A version's file holds its structs with asserts on their layout, and turns its table into [`Calls`] and
//! its properties into [`properties::RawProperties`]. A new version is a new file and a line in
//! [`NEWEST_FIRST`]; if its table has a function in a new form, the file implements the form's trait
//! (`net::forms`), too. Layouts are those of 64-bit Linux.

pub mod properties;
pub mod signatures;
mod types;
pub mod v10;
pub mod v11;
pub mod v12;
pub mod v6;
pub mod v7;
pub mod v8;
pub mod v9;

use super::calls::Calls;
use crate::table::Version;
pub use types::{Attributes, CommAttributes, CommConfig, DeviceHandle, Members4, Members8, NO_TRAFFIC_CLASS};

/// The tables that are looked for, in this order.
pub const NEWEST_FIRST: &[Version<Calls>] = &[
    Version::of::<v12::Net>(),
    Version::of::<v11::Net>(),
    Version::of::<v10::Net>(),
    Version::of::<v9::Net>(),
    Version::of::<v8::Net>(),
    Version::of::<v7::Net>(),
    Version::of::<v6::Net>(),
];

/// The body of a version's [`Table::calls`](crate::table::Table::calls), with the fields of [`Calls`] that
/// not all versions have.
macro_rules! calls {
    ($table:ident {
        finalize: $finalize:expr,
        $($field:ident: $value:expr),+ $(,)?
    }) => {{
        use $crate::common::required;
        use $crate::net::abi::properties::PropertiesReader;
        use $crate::net::calls::Memory;
        use $crate::net::forms::Init;
        let get_properties = required($table.get_properties, "getProperties")?;
        let init = required($table.init, "init")?;
        let finalize = $finalize;
        if init.makes_context() {
            required(finalize, "finalize")?;
        }
        Ok(Calls {
            init: Box::new(init),
            finalize,
            devices: required($table.devices, "devices")?,
            // SAFETY: what `Table::calls` asks of its caller.
            properties: unsafe { PropertiesReader::new(get_properties) },
            listen: Box::new(required($table.listen, "listen")?),
            connect: Box::new(required($table.connect, "connect")?),
            accept: Box::new(required($table.accept, "accept")?),
            memory: Memory {
                register: Box::new(required($table.reg_mr, "regMr")?),
                register_dma_buf: $table.reg_mr_dma_buf,
                deregister: required($table.dereg_mr, "deregMr")?,
            },
            isend: Box::new(required($table.isend, "isend")?),
            irecv: Box::new(required($table.irecv, "irecv")?),
            iflush: $table.iflush,
            test: required($table.test, "test")?,
            close_send: required($table.close_send, "closeSend")?,
            close_recv: required($table.close_recv, "closeRecv")?,
            close_listen: required($table.close_listen, "closeListen")?,
            $($field: $value,)+
        })
    }};
}
use calls;
