//! Env plugin version 2 (NCCL 2.30): may log.

use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};

use super::{Finalize, Plugin, Value, Version};
use crate::common::{self, Missing, required};
use crate::logger::Logger;

pub(super) const VERSION: Version = Version { symbol: "ncclEnvPlugin_v2", read };

/// NCCL's major, minor and patch version, its suffix, and the logger.
pub(super) type Init = unsafe extern "C" fn(u8, u8, u8, *const c_char, Option<Logger>) -> c_int;

impl super::Init for Init {
    unsafe fn call(
        &self,
        (major, minor, patch): (u8, u8, u8),
        suffix: *const c_char,
        logger: Logger,
    ) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { self(major, minor, patch, suffix, Some(logger)) }
    }
}

/// `ncclEnv_v2_t`.
#[repr(C)]
struct Table {
    name: *const c_char,
    init: Option<Init>,
    finalize: Option<Finalize>,
    value: Option<Value>,
}

const _: () = {
    assert!(size_of::<Table>() == 32);
    assert!(
        offset_of!(Table, init) == 8 && offset_of!(Table, finalize) == 16 && offset_of!(Table, value) == 24
    );
};

/// # Safety
/// `table` is the address of an `ncclEnv_v2_t`.
unsafe fn read(table: *const c_void) -> Result<Plugin, Missing> {
    // SAFETY: see above.
    let table = unsafe { &*table.cast::<Table>() };
    Ok(Plugin {
        // SAFETY: NULL or a name.
        name: unsafe { common::text(table.name) }.unwrap_or_else(|| "unnamed".into()),
        init: Box::new(required(table.init, "init")?),
        finalize: required(table.finalize, "finalize")?,
        value: required(table.value, "getEnv")?,
    })
}
