//! Tuner version 4 (NCCL 2.24): tells whether the buffers are registered.

use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};
use std::sync::Arc;

use super::Version;
use super::adapter::{Ask, Calls, Comm, Plugin};
use super::cost_table::{ALGORITHMS, CostTable, PROTOCOLS};
use super::v2::{Finalize, Init};
use crate::common::{self, Missing, required};

pub(super) const VERSION: Version = Version { symbol: "ncclTunerPlugin_v4", read };

/// `getCollInfo` since version 4: context, function, bytes, operations, table, its rows and columns,
/// registered; channels out.
pub(super) type Tune = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    usize,
    c_int,
    *mut *mut f32,
    c_int,
    c_int,
    c_int,
    *mut c_int,
) -> c_int;

/// `ncclTuner_v4_t`.
#[repr(C)]
pub struct Table {
    pub(super) name: *const c_char,
    pub(super) init: Option<Init>,
    pub(super) tune: Option<Tune>,
    pub(super) destroy: Option<Finalize>,
}

const _: () = {
    assert!(size_of::<Table>() == 32);
    assert!(
        offset_of!(Table, init) == 8 && offset_of!(Table, tune) == 16 && offset_of!(Table, destroy) == 24
    );
};

// SAFETY: a table is never written after it was made.
unsafe impl Sync for Table {}

/// The functions of a complete table.
struct V4 {
    init: Init,
    tune: Tune,
    destroy: Finalize,
}

/// # Safety
/// `table` is the address of an `ncclTuner_v4_t`.
pub(super) unsafe fn read(table: *const c_void) -> Result<Plugin, Missing> {
    // SAFETY: see above.
    let table = unsafe { &*table.cast::<Table>() };
    let calls = V4 {
        init: required(table.init, "init")?,
        tune: required(table.tune, "getCollInfo")?,
        destroy: required(table.destroy, "destroy")?,
    };
    // SAFETY: NULL or a name.
    let name = unsafe { common::text(table.name) }.unwrap_or_else(|| "unnamed".into());
    Ok(Plugin { name, calls: Arc::new(calls) })
}

impl Calls for V4 {
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
        // SAFETY: the caller's promise.
        unsafe { tune(self.tune, context, ask, table, channels) }
    }

    unsafe fn finalize(&self, context: *mut c_void) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { (self.destroy)(context) }
    }
}

/// `getCollInfo` since version 4.
///
/// # Safety
/// `function` is the plugin's, `context` what its `init` gave.
pub(super) unsafe fn tune(
    function: Tune,
    context: *mut c_void,
    ask: &Ask,
    table: &mut CostTable,
    channels: &mut c_int,
) -> c_int {
    let (rows, columns) = (ALGORITHMS as c_int, PROTOCOLS as c_int);
    // SAFETY: the caller's promise; the table has these rows and columns.
    unsafe {
        function(
            context,
            ask.function,
            ask.bytes,
            ask.pipelined,
            table.as_c(),
            rows,
            columns,
            ask.registered,
            channels,
        )
    }
}
