//! CUDA's virtual memory management: physical memory and the address ranges it is mapped at.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::{
    CUdevice, CUdevice_attribute, CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc,
    CUmemAllocationGranularity_flags, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemAllocationProp_st__bindgen_ty_1, CUmemAllocationType, CUmemGenericAllocationHandle, CUmemLocation,
    CUmemLocationType,
};
use hawser_base::error::{Error, Result};

use super::context::{Context, platform};
use super::memory::in_context;
use super::result::Status;

/// The form in which handles travel: file descriptors.
const BY_FD: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// True if the device has VMM and can share it by file descriptor.
pub fn is_supported(context: &Context) -> bool {
    use CUdevice_attribute::{
        CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED as SHARES,
        CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED as MAPS,
    };
    let has = |attribute| {
        platform().and_then(|p| p.attribute(attribute, context.device)).is_ok_and(|value| value != 0)
    };
    has(MAPS) && has(SHARES)
}

/// Whom physical memory is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// This process alone.
    Private,
    /// Other processes too, by file descriptor.
    Shared,
}

/// A reference to physical memory, released when dropped; mappings of it stay valid.
pub struct Physical {
    context: Arc<Context>,
    handle: CUmemGenericAllocationHandle,
    /// Length, a multiple of the granularity.
    pub bytes: u64,
}

impl Physical {
    /// Takes at least `bytes` bytes of the device's memory. The outer result is ours, the inner the
    /// allocation's.
    pub fn create(context: &Arc<Context>, bytes: u64, of: Use) -> Result<std::result::Result<Self, Status>> {
        let _scope = context.enter_relaxed()?;
        let properties = properties(context, of);
        let bytes = bytes.max(1).next_multiple_of(granularity_of(context, &properties)?);
        let mut handle = 0;
        // SAFETY: valid for the handle and the properties.
        let status = unsafe { context.driver.mem_create(&mut handle, bytes as usize, &properties, 0) };
        Ok(match status.is_ok() {
            true => Ok(Physical { context: context.clone(), handle, bytes }),
            false => Err(status),
        })
    }

    /// Another process's memory by its descriptor, which the driver does not keep.
    pub fn import(context: &Arc<Context>, fd: BorrowedFd<'_>, bytes: u64) -> Result<Self> {
        let _scope = context.enter_relaxed()?;
        let mut handle = 0;
        let number = fd.as_raw_fd() as usize as *mut c_void; // the driver wants the number in a pointer
        // SAFETY: valid for the handle; the descriptor is open, the driver checks what it is.
        unsafe { context.driver.mem_import(&mut handle, number, BY_FD) }.check(&context)?;
        Ok(Physical { context: context.clone(), handle, bytes })
    }

    /// The memory that is mapped at `addr`, `bytes` bytes long, whoever made it. The outer result is ours,
    /// the inner the driver's: other memory than VMM's has no handle.
    pub fn at(
        context: &Arc<Context>,
        addr: CUdeviceptr,
        bytes: u64,
    ) -> Result<std::result::Result<Self, Status>> {
        let _scope = context.enter_relaxed()?;
        let mut handle = 0;
        let place = addr as usize as *mut c_void; // the driver wants the address in a pointer
        // SAFETY: valid for the handle; the driver looks the address up.
        let status = unsafe { context.driver.mem_retain(&mut handle, place) };
        Ok(if status.is_ok() {
            Ok(Physical { context: context.clone(), handle, bytes })
        } else {
            Err(status)
        })
    }

    /// An object of the driver's with such a handle, which is released with this.
    pub fn of_handle(context: &Arc<Context>, handle: CUmemGenericAllocationHandle, bytes: u64) -> Self {
        Physical { context: context.clone(), handle, bytes }
    }

    /// The driver's handle.
    pub fn handle(&self) -> CUmemGenericAllocationHandle {
        self.handle
    }

    /// Maps all of it at an address, where a range is reserved and nothing is mapped.
    pub fn map_at(&self, addr: CUdeviceptr) -> Result<()> {
        let _scope = self.context.enter_relaxed()?;
        // SAFETY: the caller reserved the range, the handle is alive; the driver checks what is there.
        unsafe { self.context.driver.mem_map(addr, self.bytes as usize, 0, self.handle, 0) }
            .check(&self.context)
    }

    /// A new descriptor for another process.
    pub fn export(&self) -> Result<OwnedFd> {
        let _scope = self.context.enter_relaxed()?;
        let mut fd: c_int = -1;
        // SAFETY: valid for a C int, which this handle type gives.
        unsafe { self.context.driver.mem_export((&raw mut fd).cast(), self.handle, BY_FD, 0) }
            .check(&self.context)?;
        // SAFETY: the driver made the descriptor for us.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // A child that executes another program must not keep our memory alive.
        let _ = rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC);
        Ok(fd)
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        in_context(&self.context, || {
            // SAFETY: created or imported once; the handle is not used again.
            unsafe { self.context.driver.mem_release(self.handle) }
        });
    }
}

/// Physical memory at an address range that some devices may read and write. The memory can be taken away
/// and replaced; the range stays.
pub struct Mapping {
    context: Arc<Context>,
    /// Address of the first byte.
    pub addr: CUdeviceptr,
    bytes: usize,
    /// The devices that may use what is mapped; none while nothing is.
    granted: Mutex<Option<Vec<CUdevice>>>,
}

impl Mapping {
    /// Maps all of `physical` for the context's device.
    pub fn new(context: &Arc<Context>, physical: &Physical) -> Result<Self> {
        let _scope = context.enter_relaxed()?;
        let (driver, bytes) = (context.driver, physical.bytes as usize);
        let mut addr = 0;
        // SAFETY: valid for the address; no alignment or place is asked for.
        unsafe { driver.mem_address_reserve(&mut addr, bytes, 0, 0, 0) }.check(&context)?;
        let mapping = Mapping { context: context.clone(), addr, bytes, granted: Mutex::default() };
        mapping.map(physical, &[context.device])?;
        Ok(mapping)
    }

    /// Maps physical memory of the same length where nothing is mapped, for these devices.
    ///
    /// # Errors
    /// The length is another one, or the driver refused.
    pub fn map(&self, physical: &Physical, devices: &[CUdevice]) -> Result<()> {
        if physical.bytes as usize != self.bytes {
            let text = format!("memory of {} bytes for a range of {}", physical.bytes, self.bytes);
            return Err(Error::internal(text));
        }
        physical.map_at(self.addr)?;
        *self.granted() = Some(Vec::new());
        devices.iter().try_for_each(|device| self.grant(*device))
    }

    /// Takes the memory away. Returns the devices that could use it; none if nothing was mapped.
    ///
    /// # Errors
    /// The driver refused.
    pub fn unmap(&self) -> Result<Option<Vec<CUdevice>>> {
        let mut granted = self.granted();
        if granted.is_some() {
            let _scope = self.context.enter_relaxed()?;
            // SAFETY: mapped by `map`; whoever used the range has let go of it.
            unsafe { self.context.driver.mem_unmap(self.addr, self.bytes) }.check(&self.context)?;
        }
        Ok(granted.take())
    }

    fn granted(&self) -> MutexGuard<'_, Option<Vec<CUdevice>>> {
        self.granted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a device read and write the range.
    pub fn grant(&self, device: CUdevice) -> Result<()> {
        let _scope = self.context.enter_relaxed()?;
        let access = CUmemAccessDesc {
            location: CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device },
            flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: the range is mapped; valid for the one description.
        unsafe { self.context.driver.mem_set_access(self.addr, self.bytes, &access, 1) }
            .check(&self.context)?;
        if let Some(granted) = &mut *self.granted()
            && !granted.contains(&device)
        {
            granted.push(device);
        }
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.granted().is_some() {
            in_context(&self.context, || {
                // SAFETY: mapped by `map`; whoever used the range has let go of it.
                unsafe { self.context.driver.mem_unmap(self.addr, self.bytes) }
            });
        }
        in_context(&self.context, || {
            // SAFETY: reserved in `new`, nothing is mapped any more.
            unsafe { self.context.driver.mem_address_free(self.addr, self.bytes) }
        });
    }
}

/// The length of which sizes and places of shared memory are multiples.
pub fn granularity(context: &Context) -> Result<u64> {
    let _scope = context.enter_relaxed()?;
    granularity_of(context, &properties(context, Use::Shared))
}

fn granularity_of(context: &Context, properties: &CUmemAllocationProp) -> Result<u64> {
    let mut granularity: usize = 0;
    let least = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    // SAFETY: valid for the number and the properties.
    unsafe { context.driver.mem_granularity(&mut granularity, properties, least) }.check(&context)?;
    Ok(granularity.max(1) as u64)
}

fn location(context: &Context) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: context.device }
}

fn properties(context: &Context, of: Use) -> CUmemAllocationProp {
    use CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED as FOR_NICS;
    let for_nics =
        platform().and_then(|p| p.attribute(FOR_NICS, context.device)).is_ok_and(|value| value != 0);
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: match of {
            Use::Private => CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
            Use::Shared => BY_FD,
        },
        location: location(context),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: for_nics.into(),
            usage: 0,
            reserved: [0; 4],
        },
    }
}
