//! The C side of the collnet interface: one file per version, as in [`crate::net::abi`], whose properties and many of
//! whose signatures are shared.

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
pub const NEWEST_FIRST: [Version<Calls>; 7] = [
    Version::of::<v12::CollNet>(),
    Version::of::<v11::CollNet>(),
    Version::of::<v10::CollNet>(),
    Version::of::<v9::CollNet>(),
    Version::of::<v8::CollNet>(),
    Version::of::<v7::CollNet>(),
    Version::of::<v6::CollNet>(),
];

/// The body of a version's [`Table::calls`](crate::table::Table::calls): which forms its entries have, and those that not all versions have.
macro_rules! calls {
    ($table:ident {
        init: $init:ident,
        listen: $listen:ident,
        reg_mr: $reg_mr:ident,
        iallreduce: $iallreduce:ident,
        finalize: $finalize:expr,
        $($field:ident: $value:expr,)+
    }) => {{
        use $crate::collnet::calls::{Iallreduce, Init, Operations};
        use $crate::common::required;
        use $crate::net::abi::properties::PropertiesReader;
        use $crate::net::calls::{Listen, Memory, RegMr};
        let init = Init::$init(required($table.init, "init")?);
        let finalize: Option<net::Close> = $finalize;
        let operations = || {
            let get_properties = required($table.get_properties, "getProperties")?;
            if matches!(init, Init::V11(_)) {
                required(finalize, "finalize")?;
            }
            Ok(Operations {
                // SAFETY: what `Table::calls` asks of its caller.
                properties: unsafe { PropertiesReader::new(get_properties) },
                listen: Listen::$listen(required($table.listen, "listen")?),
                connect: required($table.connect, "connect")?,
                reduce_support: required($table.reduce_support, "reduceSupport")?,
                memory: Memory {
                    register: RegMr::$reg_mr(required($table.reg_mr, "regMr")?),
                    register_dma_buf: $table.reg_mr_dma_buf,
                    deregister: required($table.dereg_mr, "deregMr")?,
                },
                iallreduce: Iallreduce::$iallreduce(required($table.iallreduce, "iallreduce")?),
                iflush: $table.iflush,
                test: required($table.test, "test")?,
                close_coll: required($table.close_coll, "closeColl")?,
                close_listen: required($table.close_listen, "closeListen")?,
                $($field: $value,)+
            })
        };
        let operations = operations();
        Ok(Calls { init, devices: required($table.devices, "devices")?, finalize, operations })
    }};
}
use calls;
