//! Host memory that several processes and their GPUs map: a sealed memfd, page-locked by the driver.

use std::ffi::c_void;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{CU_MEMHOSTREGISTER_DEVICEMAP, CU_MEMHOSTREGISTER_PORTABLE};
use hawser_base::error::{Error, Result};
use hawser_base::liveness::forked;
use hawser_base::log;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::context::Context;
use super::memory::{device_pointer, in_context};
use super::result::code;
use crate::memory::size_text;

/// Lengths are multiples of this: the largest page size of the supported machines.
const GRANULARITY: u64 = 64 << 10;

/// One mapping of the memory in this process, registered for all devices. A range must be
/// registered only once, so all users in the process share it.
pub struct HostRange {
    context: Arc<Context>,
    fd: OwnedFd,
    addr: *mut c_void,
    bytes: usize,
    is_registered: bool,
}

// SAFETY: the pointer is an address; the mapping ends when the last user drops the range.
unsafe impl Send for HostRange {}
// SAFETY: as above.
unsafe impl Sync for HostRange {}

impl HostRange {
    /// Zeroed memory of at least `bytes` bytes.
    pub fn create(context: &Arc<Context>, bytes: u64) -> Result<Self> {
        let what = || format!("{context}: {} of shared host memory", size_text(bytes));
        let bytes = bytes.max(1).next_multiple_of(GRANULARITY);
        let fd = memfd_create("hawser-heap", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(|e| Error::system(format_args!("{}: memfd_create", what()), e))?;
        ftruncate(&fd, bytes).map_err(|e| Error::system(format_args!("{}: ftruncate", what()), e))?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(|e| Error::system(format_args!("{}: sealing", what()), e))?;
        HostRange::map(context, fd, bytes)
    }

    /// A peer's memory. Its file must be as long as the peer says and must not shrink.
    pub fn import(context: &Arc<Context>, fd: OwnedFd, bytes: u64) -> Result<Self> {
        let length = fstat(&fd)
            .map_err(|e| Error::system(format_args!("{context}: fstat of a peer's memory"), e))?
            .st_size;
        let seals = fcntl_get_seals(&fd).unwrap_or(SealFlags::empty());
        if (length as u64) < bytes || !seals.contains(SealFlags::SHRINK) {
            return Err(Error::remote(format!(
                "{context}: a peer's shared host memory is not what it said: {length} bytes instead of \
                 {bytes}, sealed: {}",
                seals.contains(SealFlags::SHRINK)
            )));
        }
        HostRange::map(context, fd, bytes)
    }

    fn map(context: &Arc<Context>, fd: OwnedFd, bytes: u64) -> Result<Self> {
        let length = bytes as usize;
        // SAFETY: a new mapping at an address of the kernel's choice, of a file that cannot shrink.
        let addr = unsafe {
            mmap(ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &fd, 0)
        }
        .map_err(|e| {
            Error::system(format_args!("{context}: mmap of {} of shared memory", size_text(bytes)), e)
        })?;
        forked::keep_out(addr as usize, length);
        let mut range = HostRange { context: context.clone(), fd, addr, bytes: length, is_registered: false };
        let _scope = context.enter_relaxed()?;
        let flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: the range is mapped until `range` is dropped, which unregisters it first.
        let status = unsafe { context.driver.mem_host_register(addr, length, flags) };
        if !status.is_ok() {
            let advice = "raise the limits of locked memory (ulimit -l unlimited, docker --ulimit \
                          memlock=-1) and of the memory cgroup";
            let error = status.error(context).remedy(format!("asked for {}", size_text(bytes)));
            return Err(if status.code == code::OUT_OF_MEMORY { error.remedy(advice) } else { error });
        }
        range.is_registered = true;
        Ok(range)
    }

    /// Address on a device of this process. Its context must be current.
    pub fn device_pointer(&self, context: &Context) -> Result<u64> {
        device_pointer(context, self.addr)
    }

    /// Address in this process.
    pub fn host_address(&self) -> u64 {
        self.addr as u64
    }

    /// Length of the mapping.
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// The file, for a peer in another process.
    pub fn fd(&self) -> Result<OwnedFd> {
        let fd: BorrowedFd<'_> = std::os::fd::AsFd::as_fd(&self.fd);
        fd.try_clone_to_owned()
            .map_err(|e| Error::system(format_args!("{}: dup of shared memory", self.context), e))
    }
}

impl Drop for HostRange {
    fn drop(&mut self) {
        if self.is_registered {
            in_context(&self.context, || {
                // SAFETY: registered in `map`; whoever used the memory has let go of it.
                unsafe { self.context.driver.mem_host_unregister(self.addr) }
            });
        }
        // SAFETY: mapped in `map`, no longer registered or used.
        if let Err(error) = unsafe { munmap(self.addr, self.bytes) } {
            log::warn(&format!("{}: munmap of shared host memory failed: {error}", self.context));
        }
    }
}
