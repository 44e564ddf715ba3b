//! `ncclMemAlloc` and friends: memory on the calling thread's current device.

use std::sync::{Mutex, OnceLock};

use hawser_base::env;
use hawser_base::error::{Error, Result};
use hawser_base::lock::lock;
use rustc_hash::FxHashMap;

use hawser_device::{HeapKind, Memory};

/// Allocates device memory that suits every transport (VMM where supported). Zeroed; at least `bytes` long.
pub fn mem_alloc(bytes: u64) -> Result<u64> {
    env::settings().check()?;
    let device = hawser_device::open(hawser_device::current()?)?;
    let memory = device.alloc_heap(bytes.max(1), HeapKind::Device)?;
    device.share(&memory)?;
    let addr = memory.addr;
    lock(table())?.insert(addr, memory);
    Ok(addr)
}

/// Frees memory of [`mem_alloc`]. NULL is accepted.
pub fn mem_free(addr: u64) -> Result<()> {
    if addr == 0 {
        return Ok(());
    }
    // Freed when the table is unlocked again: that may wait for the GPU, and so for ranks that want memory of
    // their own.
    let memory = lock(table())?.remove(&addr);
    if memory.is_some() {
        return Ok(());
    }
    Err(Error::invalid_argument(format!("{addr:#x} was not returned by ncclMemAlloc, or was freed already")))
}

fn table() -> &'static Mutex<FxHashMap<u64, Memory>> {
    static TABLE: OnceLock<Mutex<FxHashMap<u64, Memory>>> = OnceLock::new();
    TABLE.get_or_init(Mutex::default)
}
