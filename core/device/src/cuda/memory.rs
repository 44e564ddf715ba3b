//! Private device memory, memory shared with the host, and copies.
//!
//! Copies and fills run on a stream of our own and wait for that stream only: neither the legacy
//! stream nor the user's streams take part, so all of it works while a stream is being captured.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{
    CU_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTALLOC_PORTABLE, CUdeviceptr, CUstream, CUstream_flags,
};
use hawser_base::env;
use hawser_base::error::Result;

use super::context::Context;
use super::result::{Status, code};
use super::vmm::{self, Mapping, Physical, Use};
use crate::device::HostWords;
use crate::memory::{Memory, size_text};
use crate::pool::Source;

/// The stream that fills and copies.
pub struct Copier {
    context: Arc<Context>,
    stream: CUstream,
}

// SAFETY: a stream may be used from any thread, the driver locks it.
unsafe impl Send for Copier {}
// SAFETY: as above.
unsafe impl Sync for Copier {}

impl Copier {
    /// A stream that does not wait for the legacy stream, of the highest priority: an upload
    /// must not stand behind kernels of other streams.
    pub fn new(context: &Arc<Context>) -> Result<Self> {
        let _scope = context.enter_relaxed()?;
        let (mut least, mut greatest): (c_int, c_int) = (0, 0);
        // SAFETY: valid for the two numbers.
        unsafe { context.driver.ctx_stream_priority_range(&mut least, &mut greatest) }.check(&context)?;
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint;
        let mut stream = ptr::null_mut();
        // SAFETY: valid for the handle.
        unsafe { context.driver.stream_create_with_priority(&mut stream, flags, greatest) }
            .check(&context)?;
        Ok(Copier { context: context.clone(), stream })
    }

    /// Sets `bytes` bytes of device memory to zero and waits for it.
    pub fn zero(&self, addr: u64, bytes: u64) -> Result<()> {
        let _scope = self.context.enter_relaxed()?;
        // SAFETY: the caller owns the range; the driver checks it.
        unsafe { self.context.driver.memset_d8_async(addr, 0, bytes as usize, self.stream) }
            .check(&self.context)?;
        self.wait()
    }

    /// Copies to the device and waits for it.
    pub fn upload(&self, addr: u64, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let _scope = self.context.enter_relaxed()?;
        // SAFETY: the source outlives the copy, which is waited for; the driver checks the range.
        unsafe {
            self.context.driver.memcpy_htod_async(addr, bytes.as_ptr().cast(), bytes.len(), self.stream)
        }
        .check(&self.context)?;
        self.wait()
    }

    /// Copies from the device and waits for it.
    pub fn download(&self, addr: u64, bytes: &mut [u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let _scope = self.context.enter_relaxed()?;
        // SAFETY: the destination outlives the copy, which is waited for; the driver checks the range.
        unsafe {
            self.context.driver.memcpy_dtoh_async(bytes.as_mut_ptr().cast(), addr, bytes.len(), self.stream)
        }
        .check(&self.context)?;
        self.wait()
    }

    fn wait(&self) -> Result<()> {
        // SAFETY: the stream lives as long as `self`.
        unsafe { self.context.driver.stream_synchronize(self.stream) }.check(&self.context)
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        in_context(&self.context, || {
            // SAFETY: created in `new`, every piece of work on it was waited for.
            unsafe { self.context.driver.stream_destroy(self.stream) }
        });
    }
}

/// Memory of `cuMemAlloc`.
pub struct Block {
    context: Arc<Context>,
    /// Address of the first byte.
    pub addr: CUdeviceptr,
}

impl Block {
    /// Takes `bytes` bytes; they are not zero yet.
    pub fn new(context: &Arc<Context>, bytes: u64) -> Result<Self> {
        let _scope = context.enter_relaxed()?;
        let mut addr = 0;
        // SAFETY: valid for the address.
        let status = unsafe { context.driver.mem_alloc(&mut addr, bytes as usize) };
        check_allocation(context, status, bytes)?;
        Ok(Block { context: context.clone(), addr })
    }

    /// The context that the memory belongs to.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        in_context(&self.context, || {
            // SAFETY: allocated in `new`; whoever used the memory has let go of it.
            unsafe { self.context.driver.mem_free(self.addr) }
        });
    }
}

/// The pool's memory: VMM where it may be used, else `cuMemAlloc`.
impl Source for Arc<Copier> {
    fn take(&self, bytes: u64) -> Result<Memory> {
        let context = &self.context;
        if env::settings().cumem_enable != Some(false) && vmm::is_supported(context) {
            match Physical::create(context, bytes, Use::Private)? {
                Ok(physical) => {
                    let mapping = Mapping::new(context, &physical)?;
                    return Ok(Memory {
                        addr: mapping.addr,
                        bytes: physical.bytes,
                        owner: Box::new((mapping, physical)),
                    });
                }
                Err(status) if !matches!(status.code, code::NOT_PERMITTED | code::NOT_SUPPORTED) => {
                    check_allocation(context, status, bytes)?;
                }
                Err(_) => {}
            }
        }
        let block = Block::new(context, bytes)?;
        Ok(Memory { addr: block.addr, bytes, owner: Box::new(block) })
    }

    fn zero(&self, addr: u64, bytes: u64) -> Result<()> {
        Copier::zero(self, addr, bytes)
    }

    fn is_zeroed(&self) -> bool {
        false
    }
}

/// Page-locked host memory that all devices see.
struct Pinned {
    context: Arc<Context>,
    host: *mut c_void,
}

// SAFETY: the pointer is an address; it is freed once.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Drop for Pinned {
    fn drop(&mut self) {
        in_context(&self.context, || {
            // SAFETY: allocated in `host_words`; whoever used the memory has let go of it.
            unsafe { self.context.driver.mem_free_host(self.host) }
        });
    }
}

/// Zeroed memory that the host and all devices reach.
pub fn host_words(context: &Arc<Context>, bytes: u64) -> Result<HostWords> {
    let _scope = context.enter_relaxed()?;
    let mut host = ptr::null_mut();
    let length = bytes.max(8) as usize;
    // SAFETY: valid for the address.
    let status = unsafe {
        context.driver.mem_host_alloc(&mut host, length, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP)
    };
    check_allocation(context, status, bytes)?;
    let pinned = Pinned { context: context.clone(), host };
    // SAFETY: the driver gave `length` writable bytes, nobody else knows them yet.
    unsafe { host.cast::<u8>().write_bytes(0, length) };
    let addr = device_pointer(context, host)?;
    Ok(HostWords { host: host.cast(), memory: Memory { addr, bytes, owner: Box::new(pinned) } })
}

/// Address of page-locked host memory on the context's device. The context must be current.
pub fn device_pointer(context: &Context, host: *mut c_void) -> Result<u64> {
    let mut addr = 0;
    // SAFETY: valid for the address; the driver checks that the memory is known to it.
    unsafe { context.driver.mem_host_device_pointer(&mut addr, host, 0) }.check(context)?;
    Ok(addr)
}

/// An allocation's result; where memory ran out the text says how much there is.
pub fn check_allocation(context: &Context, status: Status, bytes: u64) -> Result<()> {
    if status.is_ok() {
        return Ok(());
    }
    let error = status.error(context);
    if status.code != code::OUT_OF_MEMORY {
        return Err(error.remedy(format!("asked for {}", size_text(bytes))));
    }
    let (mut free, mut total): (usize, usize) = (0, 0);
    let _scope = context.enter_relaxed();
    // SAFETY: valid for the two numbers.
    let free = match unsafe { context.driver.mem_info(&mut free, &mut total) }.is_ok() {
        true => format!("{} of {} free", size_text(free as u64), size_text(total as u64)),
        false => "free memory unknown".into(),
    };
    Err(error.remedy(format!(
        "asked for {}, {free}; leave some memory to the library (a smaller batch)",
        size_text(bytes)
    )))
}

/// Runs a destructor's driver call in the context. Failures become warnings.
pub fn in_context(context: &Context, call: impl FnOnce() -> Status) {
    // Entering fails if the driver is gone (the process ends); then the call fails for the same reason.
    let _scope = context.enter_relaxed();
    call().warn(context);
}
