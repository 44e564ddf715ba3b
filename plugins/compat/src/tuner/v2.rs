//! Tuner version 2 (NCCL 2.21): the plugin names algorithm and protocol instead of changing times.

use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};
use std::sync::Arc;

use hawser_plugin::tuner::{Algorithm, Protocol};

use super::Version;
use super::adapter::{Ask, Calls, Comm, Plugin};
use super::cost_table::CostTable;
use crate::common::{self, Missing, required};
use crate::logger::Logger;

pub(super) const VERSION: Version = Version { symbol: "ncclTunerPlugin_v2", read };

/// `NCCL_ALGO_UNDEF` and `NCCL_PROTO_UNDEF`: what the plugin finds in its outputs.
const UNDEFINED: c_int = -1;

/// `init` up to version 4.
pub(super) type Init = unsafe extern "C" fn(usize, usize, Option<Logger>, *mut *mut c_void) -> c_int;
/// Context, function, bytes, collnet support, NVLS support, operations; algorithm, protocol and channels out.
type Tune = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    usize,
    c_int,
    c_int,
    c_int,
    *mut c_int,
    *mut c_int,
    *mut c_int,
) -> c_int;
/// `destroy`, later called `finalize`.
pub(super) type Finalize = unsafe extern "C" fn(*mut c_void) -> c_int;

/// `ncclTuner_v2_t`.
#[repr(C)]
struct Table {
    name: *const c_char,
    init: Option<Init>,
    tune: Option<Tune>,
    destroy: Option<Finalize>,
}

const _: () = {
    assert!(size_of::<Table>() == 32);
    assert!(
        offset_of!(Table, init) == 8 && offset_of!(Table, tune) == 16 && offset_of!(Table, destroy) == 24
    );
};

/// The functions of a complete table.
struct V2 {
    init: Init,
    tune: Tune,
    destroy: Finalize,
}

/// # Safety
/// `table` is the address of an `ncclTuner_v2_t`.
unsafe fn read(table: *const c_void) -> Result<Plugin, Missing> {
    // SAFETY: see above.
    let table = unsafe { &*table.cast::<Table>() };
    let calls = V2 {
        init: required(table.init, "init")?,
        tune: required(table.tune, "getCollInfo")?,
        destroy: required(table.destroy, "destroy")?,
    };
    // SAFETY: NULL or a name.
    let name = unsafe { common::text(table.name) }.unwrap_or_else(|| "unnamed".into());
    Ok(Plugin { name, calls: Arc::new(calls) })
}

impl Calls for V2 {
    unsafe fn init(&self, comm: &Comm, context: &mut *mut c_void) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { (self.init)(comm.ranks, comm.nodes, Some(comm.logger), context) }
    }

    unsafe fn tune(
        &self,
        context: *mut c_void,
        ask: &Ask,
        table: &mut CostTable,
        channels: &mut c_int,
    ) -> c_int {
        let possible = |algorithm| table.is_possible(algorithm, Protocol::Simple);
        let nvls = possible(Algorithm::NVLS) || possible(Algorithm::NVLS_TREE);
        let collnet = possible(Algorithm::COLLNET_CHAIN);
        let (mut algorithm, mut protocol) = (UNDEFINED, UNDEFINED);
        // SAFETY: the caller's promise; the outputs live here.
        let code = unsafe {
            (self.tune)(
                context,
                ask.function,
                ask.bytes,
                c_int::from(collnet),
                c_int::from(nvls),
                ask.pipelined,
                &mut algorithm,
                &mut protocol,
                channels,
            )
        };
        table.choose(algorithm, protocol);
        code
    }

    unsafe fn finalize(&self, context: *mut c_void) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { (self.destroy)(context) }
    }
}
