//! The C side of the collnet interface: one file per version, as in [`crate::net::abi`], whose properties and
//! many of whose signatures are shared.

pub mod signatures;
pub mod v10;
pub mod v11;
pub mod v12;
pub mod v6;
pub mod v7;
pub mod v8;
pub mod v9;

use super::calls::Calls;
use crate::table::Version;

/// The tables that are looked for, in this order.
pub const NEWEST_FIRST: &[Version<Calls>] = &[
    Version::of::<v12::CollNet>(),
    Version::of::<v11::CollNet>(),
    Version::of::<v10::CollNet>(),
    Version::of::<v9::CollNet>(),
    Version::of::<v8::CollNet>(),
    Version::of::<v7::CollNet>(),
    Version::of::<v6::CollNet>(),
];

/// The body of a version's [`Table::calls`](crate::table::Table::calls), with the entries that not all
/// versions have.
macro_rules! calls {
    ($table:ident {
        finalize: $finalize:expr,
        $($field:ident: $value:expr),+ $(,)?
    }) => {{
        use $crate::collnet::calls::Operations;
        use $crate::collnet::forms::Init;
        use $crate::common::required;
        use $crate::net::abi::properties::PropertiesReader;
        use $crate::net::calls::Memory;
        let init = required($table.init, "init")?;
        let finalize: Option<net::Close> = $finalize;
        let operations = || {
            let get_properties = required($table.get_properties, "getProperties")?;
            if init.makes_context() {
                required(finalize, "finalize")?;
            }
            Ok(Operations {
                // SAFETY: what `Table::calls` asks of its caller.
                properties: unsafe { PropertiesReader::new(get_properties) },
                listen: Box::new(required($table.listen, "listen")?),
                connect: required($table.connect, "connect")?,
                reduce_support: required($table.reduce_support, "reduceSupport")?,
                memory: Memory {
                    register: Box::new(required($table.reg_mr, "regMr")?),
                    register_dma_buf: $table.reg_mr_dma_buf,
                    deregister: required($table.dereg_mr, "deregMr")?,
                },
                iallreduce: Box::new(required($table.iallreduce, "iallreduce")?),
                iflush: $table.iflush,
                test: required($table.test, "test")?,
                close_coll: required($table.close_coll, "closeColl")?,
                close_listen: required($table.close_listen, "closeListen")?,
                $($field: $value,)+
            })
        };
        let operations = operations();
        let devices = required($table.devices, "devices")?;
        Ok(Calls { init: Box::new(init), devices, finalize, operations })
    }};
}
use calls;
