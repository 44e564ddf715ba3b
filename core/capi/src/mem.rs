//! Memory, registered buffers and windows.
//!
//! Registered buffers are what the network reads and writes without staging (`Comm::register_buffer`).
//! Windows are made by all ranks together. Where their memory allows it, their handle is the
//! address of the struct that kernels follow (`hawser_runtime::lsa`); all other handles are numbers that
//! only the host understands. Symmetric windows are also what collectives use without staging, and what
//! rules with `registered` ask for.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hawser_runtime::rma::Window;
use hawser_runtime::{Error, Result, mem_alloc, mem_free};

use crate::args::{self, Out};
use crate::handle::{CommPtr, Handle};
use crate::p2p::grouped;

/// All of NCCL's window flags: symmetric, strict ordering, GIN only, CFT counted.
const WINDOW_FLAGS: c_int = 15;
/// `NCCL_WIN_COLL_SYMMETRIC`.
const SYMMETRIC: c_int = 1;
/// `NCCL_WIN_GIN_ONLY` and `NCCL_WIN_CFT_COUNTED`.
const RESTRICTIONS: c_int = 4 | 8;

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
        let made = live.name(live.buffers.add(buff, size, false))?;
        live.comm.register_buffer(buff as u64, size as u64).inspect_err(|_| {
            live.buffers.remove(made);
        })?;
        handle.set("handle", made)
    }

    /// Takes a registration back; NULL is fine.
    fn ncclCommDeregister / pncclCommDeregister(comm: CommPtr, handle: *const c_void) {
        let live = comm.ready()?;
        let Some(buffer) = live.buffers.remove(handle) else {
            return if handle.is_null() { Ok(()) } else { live.name(Err(no_buffer(handle))) };
        };
        live.comm.deregister_buffer(buffer.base, buffer.bytes);
        Ok(())
    }

    /// Registers a buffer as a window. All ranks call it.
    fn ncclCommWindowRegister / pncclCommWindowRegister(
        comm: CommPtr, buff: *const c_void, size: usize, win: Out<*const c_void>, winFlags: c_int,
    ) {
        grouped(comm.ready().and_then(|live| register(&live, (buff, size), win, winFlags)))
    }

    /// Takes a window back; NULL is fine.
    fn ncclCommWindowDeregister / pncclCommWindowDeregister(comm: CommPtr, win: *const c_void) {
        let live = comm.ready()?;
        let Some(window) = live.windows.remove(win) else {
            let known = win.is_null();
            let unknown = || live.name(Err(no_registration("win", win, "ncclCommWindowRegister")));
            return if known { Ok(()) } else { unknown() };
        };
        conceal(&live, window);
        live.comm.drop_window_for_kernels(window.place).map(drop)
    }

    /// The address that a window was made from.
    fn ncclWinGetUserPtr / pncclWinGetUserPtr(comm: CommPtr, win: *const c_void,
        outUserPtr: Out<*const c_void>) {
        let live = comm.ready()?;
        outUserPtr.set("outUserPtr", std::ptr::null())?;
        let unknown = || no_registration("win", win, "ncclCommWindowRegister");
        let window = live.name(live.windows.find(win).ok_or_else(unknown))?;
        outUserPtr.set("outUserPtr", window.base as *const c_void)
    }
}

/// Registers a window. One that kernels may use takes all ranks, so in a group its end does that.
fn register(
    live: &Arc<Handle>,
    (buff, size): (*const c_void, usize),
    win: Out<*const c_void>,
    flags: c_int,
) -> Result<()> {
    win.set("win", std::ptr::null())?;
    check_flags(flags)?;
    let is_symmetric = flags & SYMMETRIC != 0;
    let made = live.name(live.windows.add(buff, size, is_symmetric))?;
    let window = live.windows.find(made).ok_or_else(vanished)?;
    expose(live, window).inspect_err(|_| {
        live.windows.remove(made);
    })?;
    if live.comm.kernels_cannot_have_windows()?.is_some() {
        return win.set("win", made);
    }
    let owner = live.clone();
    let outcome = live.comm.make_window_for_kernels(window.place, window.of_comm(), move |handle| {
        let handle = handle.inspect_err(|_| {
            owner.windows.remove(window.handle as *const c_void);
            conceal(&owner, window);
        });
        let Some(handle) = owner.name(handle)? else {
            return win.set("win", window.handle as *const c_void);
        };
        owner.windows.rename(window.handle, handle)?;
        win.set("win", handle as *const c_void)
    });
    outcome.and_then(|()| live.progress())
}

/// Tells the communicator of a window that was registered.
fn expose(handle: &Handle, window: Registered) -> Result<()> {
    handle.comm.expose(window.place, window.of_comm())?;
    handle.comm.register_with_net(window.base, window.bytes)?;
    if window.is_symmetric { handle.comm.add_window(window.base, window.bytes) } else { Ok(()) }
}

/// Tells the communicator that a window is no more.
fn conceal(handle: &Handle, window: Registered) {
    handle.comm.hide(window.place);
    handle.comm.deregister_with_net(window.base, window.bytes);
    if window.is_symmetric {
        handle.comm.remove_window(window.base, window.bytes);
    }
}

fn vanished() -> Error {
    Error::internal("a window vanished while it was registered")
}

/// Registered buffers or windows of one communicator, with the handles that C has.
#[derive(Default)]
pub struct Registrations(Mutex<Table>);

/// The registrations that are live, and the number of all that there were.
#[derive(Default)]
struct Table {
    live: Vec<Registered>,
    made: u64,
}

/// A registered buffer.
#[derive(Debug, Clone, Copy)]
pub struct Registered {
    /// The handle that C has.
    pub handle: u64,
    /// Its address.
    pub base: u64,
    /// Its length.
    pub bytes: u64,
    /// Number of registrations of the communicator before it: all ranks register windows in one order, so it
    /// tells which windows belong together.
    pub place: u64,
    is_symmetric: bool,
}

impl Registered {
    /// The window as its communicator knows it.
    fn of_comm(&self) -> Window {
        Window { addr: self.base, bytes: self.bytes, is_symmetric: self.is_symmetric }
    }
}

impl Registrations {
    /// Remembers a buffer; the handle is unique in the process and never NULL.
    fn add(&self, buff: *const c_void, size: usize, is_symmetric: bool) -> Result<*const c_void> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        if size == 0 {
            return Err(Error::invalid_argument("size is 0").remedy("register a buffer that has bytes"));
        }
        let base = args::buffer("buff", buff, size)?;
        // Odd, so that nobody takes it for an address.
        let handle = NEXT.fetch_add(2, Ordering::Relaxed);
        let mut table = self.table();
        let place = table.made;
        table.made += 1;
        table.live.push(Registered { handle, base, bytes: size as u64, place, is_symmetric });
        Ok(handle as *const c_void)
    }

    fn remove(&self, handle: *const c_void) -> Option<Registered> {
        let live = &mut self.table().live;
        let at = live.iter().position(|window| window.handle == handle as u64)?;
        Some(live.swap_remove(at))
    }

    /// Gives a registration another handle.
    fn rename(&self, handle: u64, new: u64) -> Result<()> {
        let live = &mut self.table().live;
        let found = live.iter_mut().find(|window| window.handle == handle).ok_or_else(vanished)?;
        found.handle = new;
        Ok(())
    }

    /// The registration that a handle stands for.
    pub fn find(&self, handle: *const c_void) -> Option<Registered> {
        self.table().live.iter().find(|window| window.handle == handle as u64).copied()
    }

    /// The registration that had so many before it, if it was not taken back.
    pub fn at(&self, place: u64) -> Option<Registered> {
        self.table().live.iter().find(|window| window.place == place).copied()
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn check_flags(flags: c_int) -> Result<()> {
    if flags & SYMMETRIC != 0 && flags & RESTRICTIONS != 0 {
        return Err(Error::invalid_argument(format!(
            "winFlags {flags:#x}: NCCL_WIN_COLL_SYMMETRIC cannot be combined with NCCL_WIN_GIN_ONLY or \
             NCCL_WIN_CFT_COUNTED"
        ))
        .remedy("leave out one of them: a symmetric window is for everything"));
    }
    if flags & !WINDOW_FLAGS == 0 {
        return Ok(());
    }
    Err(Error::invalid_argument(format!("winFlags {flags:#x} has bits that mean nothing"))
        .remedy("combine the NCCL_WIN_ flags 1, 2, 4 and 8 only"))
}

/// A registration that is none: NCCL has `ncclInvalidUsage` for it, unlike for windows.
fn no_buffer(handle: *const c_void) -> Error {
    Error::invalid_usage(format!("handle {handle:?} is not registered with this communicator"))
        .remedy("pass what ncclCommRegister stored, and only until it was taken back")
}

fn no_registration(name: &str, value: *const c_void, maker: &str) -> Error {
    Error::invalid_argument(format!("{name} {value:?} is not registered with this communicator"))
        .remedy(format!("pass what {maker} stored, and only until it was taken back"))
}
