//! Multicast objects: one range of addresses at which a store reaches the memory of all GPUs of a team, and
//! `multimem.ld_reduce` combines what lies there (PTX ISA, `multimem`; CUDA driver API, "Multicast Object
//! Management").
//!
//! **No hardware has run this**: it is tested on the stand-in for the driver alone, which checks the order of
//! the calls. So it is off unless a setting says otherwise (`HAWSER_MULTICAST`).

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use cudarc::driver::sys::{
    CUdevice_attribute, CUmemAllocationHandleType, CUmulticastGranularity_flags, CUmulticastObjectProp,
};
use hawser_base::error::Result;

use super::context::{Context, platform};
use super::flat::Range;
use super::memory::in_context;
use super::vmm::Physical;
use crate::device::MulticastObject;

/// The form in which handles travel: file descriptors.
const BY_FD: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// True if the device takes part in multicast.
pub fn is_supported(context: &Context) -> bool {
    let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED;
    platform().and_then(|p| p.attribute(attribute, context.device)).is_ok_and(|value| value != 0)
}

/// See [`crate::Multicast::multicast_granularity`].
pub fn granularity(context: &Arc<Context>, devices: u32) -> Result<u64> {
    let _scope = context.enter_relaxed()?;
    let (properties, mut granularity) = (properties(devices, 0), 0);
    let least = CUmulticastGranularity_flags::CU_MULTICAST_GRANULARITY_MINIMUM;
    // SAFETY: valid for the number and the properties.
    unsafe { context.driver.multicast_granularity(&mut granularity, &properties, least) }.check(context)?;
    Ok(granularity as u64)
}

fn properties(devices: u32, bytes: u64) -> CUmulticastObjectProp {
    CUmulticastObjectProp { numDevices: devices, size: bytes as usize, handleTypes: BY_FD.0.into(), flags: 0 }
}

/// An object of a team, as the process of one GPU has it. Fields are dropped in this order.
pub struct Object {
    context: Arc<Context>,
    /// The addresses at which it is mapped.
    range: Option<Range>,
    /// The places of this GPU's memory in it: offset and length.
    bound: Vec<(usize, usize)>,
    /// The driver has handles of such objects as of memory.
    handle: Physical,
}

impl Object {
    /// See [`crate::Multicast::create_multicast`].
    pub fn create(context: &Arc<Context>, devices: u32, bytes: u64) -> Result<Self> {
        let _scope = context.enter_relaxed()?;
        let (properties, mut handle) = (properties(devices, bytes), 0);
        // SAFETY: valid for the handle and the properties.
        unsafe { context.driver.multicast_create(&mut handle, &properties) }.check(context)?;
        Ok(Self::of(context, Physical::of_handle(context, handle, bytes)))
    }

    /// See [`crate::Multicast::import_multicast`].
    pub fn import(context: &Arc<Context>, descriptor: BorrowedFd<'_>, bytes: u64) -> Result<Self> {
        Ok(Self::of(context, Physical::import(context, descriptor, bytes)?))
    }

    fn of(context: &Arc<Context>, handle: Physical) -> Self {
        Self { context: context.clone(), range: None, bound: Vec::new(), handle }
    }
}

impl MulticastObject for Object {
    fn export(&self) -> Result<OwnedFd> {
        self.handle.export()
    }

    fn join(&self) -> Result<()> {
        let _scope = self.context.enter_relaxed()?;
        // SAFETY: the handle is alive.
        unsafe { self.context.driver.multicast_add_device(self.handle.handle(), self.context.device) }
            .check(&self.context)
    }

    fn bind(&mut self, at: u64, (addr, bytes): (u64, u64)) -> Result<()> {
        let _scope = self.context.enter_relaxed()?;
        let (offset, bytes) = (at as usize, bytes as usize);
        // SAFETY: the handle is alive; the driver looks at what lies at the address.
        unsafe { self.context.driver.multicast_bind_addr(self.handle.handle(), offset, addr, bytes, 0) }
            .check(&self.context)?;
        self.bound.push((offset, bytes));
        Ok(())
    }

    fn map(&mut self) -> Result<u64> {
        let mut range = Range::reserve(&self.context, self.handle.bytes)?;
        let addr = range.begin();
        range.map(addr, &self.handle)?;
        self.range = Some(range);
        Ok(addr)
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        self.range = None;
        for (offset, bytes) in &self.bound {
            in_context(&self.context, || {
                // SAFETY: bound by `bind`; nothing is mapped any more.
                unsafe {
                    let (handle, device) = (self.handle.handle(), self.context.device);
                    self.context.driver.multicast_unbind(handle, device, *offset, *bytes)
                }
            });
        }
    }
}
