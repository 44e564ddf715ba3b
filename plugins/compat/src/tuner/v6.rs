//! Tuner version 6 (NCCL 2.30): may set the chunk size.

use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};
use std::sync::Arc;

use super::Version;
use super::adapter::{Ask, Calls, Comm, Plugin};
use super::cost_table::CostTable;
use super::v2::Finalize;
use super::v4::{self, Tune};
use super::v5::{self, Init};
use crate::common::{self, Missing, SUCCESS, required};

pub(super) const VERSION: Version = Version { symbol: "ncclTunerPlugin_v6", read };

/// Context, function, bytes, algorithm, protocol, channels; chunk size in and out.
pub(super) type Chunk =
    unsafe extern "C" fn(*mut c_void, c_int, usize, c_int, c_int, c_int, *mut usize) -> c_int;

/// `ncclTuner_v6_t`. `chunk` stands after `finalize` and may be NULL.
#[repr(C)]
pub struct Table {
    pub(super) name: *const c_char,
    pub(super) init: Option<Init>,
    pub(super) tune: Option<Tune>,
    pub(super) finalize: Option<Finalize>,
    pub(super) chunk: Option<Chunk>,
}

const _: () = {
    assert!(size_of::<Table>() == 40);
    assert!(offset_of!(Table, init) == 8 && offset_of!(Table, tune) == 16);
    assert!(offset_of!(Table, finalize) == 24 && offset_of!(Table, chunk) == 32);
};

// SAFETY: a table is never written after it was made.
unsafe impl Sync for Table {}

/// The functions of a complete table.
struct V6 {
    init: Init,
    tune: Tune,
    finalize: Finalize,
    chunk: Option<Chunk>,
}

/// # Safety
/// `table` is the address of an `ncclTuner_v6_t`.
pub(super) unsafe fn read(table: *const c_void) -> Result<Plugin, Missing> {
    // SAFETY: see above.
    let table = unsafe { &*table.cast::<Table>() };
    let calls = V6 {
        init: required(table.init, "init")?,
        tune: required(table.tune, "getCollInfo")?,
        finalize: required(table.finalize, "finalize")?,
        chunk: table.chunk,
    };
    // SAFETY: NULL or a name.
    let name = unsafe { common::text(table.name) }.unwrap_or_else(|| "unnamed".into());
    Ok(Plugin { name, calls: Arc::new(calls) })
}

impl Calls for V6 {
    unsafe fn init(&self, comm: &Comm, context: &mut *mut c_void) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { v5::init(self.init, comm, context) }
    }

    unsafe fn tune(
        &self,
        context: *mut c_void,
        ask: &Ask,
        table: &mut CostTable,
        channels: &mut c_int,
    ) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { v4::tune(self.tune, context, ask, table, channels) }
    }

    unsafe fn chunk(&self, context: *mut c_void, ask: &Ask, chosen: [c_int; 3], bytes: &mut usize) -> c_int {
        let Some(chunk) = self.chunk else { return SUCCESS };
        let [algorithm, protocol, channels] = chosen;
        // SAFETY: the caller's promise; `bytes` is in and out.
        unsafe { chunk(context, ask.function, ask.bytes, algorithm, protocol, channels, bytes) }
    }

    unsafe fn finalize(&self, context: *mut c_void) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { (self.finalize)(context) }
    }
}
