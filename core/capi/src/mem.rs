//! Memory, registered buffers and windows.
//!
//! Registration is accepted and remembered; at this API level a registered buffer is used like any
//! other. A window is opaque to kernels too: the device API is not offered.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hawser_runtime::{Error, Result, mem_alloc, mem_free};

use crate::args::{self, Out};
use crate::handle::{CommPtr, Handle};

/// All of NCCL's window flags: symmetric, strict ordering, GIN only, CFT counted.
const WINDOW_FLAGS: c_int = 15;

nccl_api! {
    /// Allocates memory on the current device that peers can map. Size 0 gives NULL.
    fn ncclMemAlloc / pncclMemAlloc(ptr: Out<*mut c_void>, size: usize) {
        ptr.set("ptr", std::ptr::null_mut())?;
        if size == 0 { Ok(()) } else { ptr.set("ptr", mem_alloc(size as u64)? as *mut c_void) }
    }

    /// Frees memory of `ncclMemAlloc`; NULL is fine.
    fn ncclMemFree / pncclMemFree(ptr: *const c_void) {
        if ptr.is_null() { Ok(()) } else { mem_free(ptr as u64) }
    }

    /// Registers a buffer with a communicator.
    fn ncclCommRegister / pncclCommRegister(
        comm: CommPtr, buff: *const c_void, size: usize, handle: Out<*const c_void>,
    ) {
        let live = comm.ready()?;
        handle.set("handle", std::ptr::null())?;
        handle.set("handle", live.name(register(&live, buff, size))? as *const c_void)
    }

    /// Takes a registration back; NULL is fine.
    fn ncclCommDeregister / pncclCommDeregister(comm: CommPtr, handle: *const c_void) {
        let live = comm.ready()?;
        if handle.is_null() { Ok(()) } else { live.name(live.comm.deregister(handle as u64)) }
    }

    /// Registers a buffer as a window. All ranks call it.
    fn ncclCommWindowRegister / pncclCommWindowRegister(
        comm: CommPtr, buff: *const c_void, size: usize, win: Out<*const c_void>, winFlags: c_int,
    ) {
        let live = comm.ready()?;
        win.set("win", std::ptr::null())?;
        check_flags(winFlags)?;
        let window = live.name(register(&live, buff, size))?;
        live.windows.table().insert(window, buff as u64);
        win.set("win", window as *const c_void)
    }

    /// Takes a window back; NULL is fine.
    fn ncclCommWindowDeregister / pncclCommWindowDeregister(comm: CommPtr, win: *const c_void) {
        let live = comm.ready()?;
        if win.is_null() {
            return Ok(());
        }
        let known = live.windows.table().remove(&(win as u64)).is_some();
        if known { live.name(live.comm.deregister(win as u64)) } else { Err(no_window(win)) }
    }

    /// The address that a window was made from.
    fn ncclWinGetUserPtr / pncclWinGetUserPtr(comm: CommPtr, win: *const c_void, outUserPtr: Out<*const c_void>) {
        let live = comm.ready()?;
        outUserPtr.set("outUserPtr", std::ptr::null())?;
        let base = live.windows.table().get(&(win as u64)).copied().ok_or_else(|| no_window(win))?;
        outUserPtr.set("outUserPtr", base as *const c_void)
    }
}

/// Windows of one communicator: the handle and the address of its first byte.
#[derive(Default)]
pub struct Windows(Mutex<BTreeMap<u64, u64>>);

impl Windows {
    fn table(&self) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn register(handle: &Handle, buff: *const c_void, size: usize) -> Result<u64> {
    if size == 0 {
        return Err(Error::invalid_argument("size is 0").remedy("register a buffer that has bytes"));
    }
    handle.comm.register(args::buffer("buff", buff, size)?, size as u64)
}

fn check_flags(flags: c_int) -> Result<()> {
    if flags & !WINDOW_FLAGS == 0 {
        return Ok(());
    }
    Err(Error::invalid_argument(format!("winFlags {flags:#x} has bits that mean nothing"))
        .remedy("combine the NCCL_WIN_ flags 1, 2, 4 and 8 only"))
}

fn no_window(win: *const c_void) -> Error {
    Error::invalid_argument(format!("win {win:?} is not a window of this communicator"))
        .remedy("pass what ncclCommWindowRegister stored, once")
}
