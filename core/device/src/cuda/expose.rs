//! The user's memory for peers: which allocation an address is in, and how a peer's device reaches it.
//!
//! Only memory of `cuMemAlloc` (`cudaMalloc`): peers of the process reach it once peer access is on, other
//! processes open its IPC handle. Other memory may be made of pieces, or mapped for its own device alone.

use std::sync::Arc;

use cudarc::driver::sys::CUpointer_attribute;
use hawser_base::error::Result;
use hawser_base::log::{self, Subsys};

use super::CudaDevice;
use super::context::platform;
use super::heap::{OpenedHandle, enable_peer_access, ipc_handle, is_shared};
use super::memory::Block;
use super::query;
use crate::device::Exposed;
use crate::memory::Memory;

impl CudaDevice {
    /// See [`crate::device::SharedMemory::expose`].
    pub(super) fn allocation(&self, addr: u64) -> Result<Option<Exposed>> {
        use CUpointer_attribute::{
            CU_POINTER_ATTRIBUTE_BUFFER_ID as BUFFER_ID, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL as ORDINAL,
            CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE as IS_LEGACY,
        };
        let _scope = self.context.enter()?;
        // Flags are one byte; the rest of the word stays 0.
        if self.pointer_attribute(IS_LEGACY, addr)? != Some(1)
            || self.pointer_attribute(ORDINAL, addr)? != Some(u64::from(self.context.ordinal))
        {
            return Ok(None);
        }
        let Some(id) = self.pointer_attribute(BUFFER_ID, addr)? else { return Ok(None) };
        let (mut base, mut bytes) = (0, 0);
        // SAFETY: valid for the address and the length.
        unsafe { self.context.driver.mem_address_range(&mut base, &mut bytes, addr) }.check(&self.context)?;
        Ok(Some(Exposed { base, bytes: bytes as u64, id }))
    }

    /// See [`crate::device::Ipc::exposed_handle`].
    pub(super) fn handle_of(&self, exposed: &Exposed) -> Result<[u8; 64]> {
        ipc_handle(&self.context, exposed.base)
    }

    /// See [`crate::device::Ipc::open_exposed`].
    pub(super) fn open_handle(&self, handle: &[u8; 64]) -> Result<Memory> {
        let opened = OpenedHandle::open(&self.context, handle)?;
        Ok(Memory { addr: opened.addr, bytes: 0, owner: Box::new(opened) })
    }

    /// See [`crate::device::Device::alloc_as_user`].
    pub(super) fn user_memory(&self, bytes: u64) -> Result<Memory> {
        let block = Block::new(&self.context, bytes.max(1))?;
        self.copier.zero(block.addr, bytes.max(1))?;
        Ok(Memory { addr: block.addr, bytes, owner: Box::new(block) })
    }

    /// See [`crate::device::SharedMemory::reach`].
    pub(super) fn reach_device(&self, ordinal: u32) -> Result<()> {
        if ordinal == self.context.ordinal {
            return Ok(());
        }
        let peer = super::opened(ordinal)?;
        enable_peer_access(&self.context, Arc::as_ref(&peer.context))?;
        // From now on, to load a kernel is to wait for all GPUs that reach this one, and they may wait for
        // what this thread would launch next.
        self.kernels.prepare_all(&self.caps)
    }

    /// See [`crate::device::Kernels::reach_all`].
    pub(super) fn reach_devices(&self, ids: &[&str]) -> Result<bool> {
        for ordinal in 0..platform()?.devices.len() as u32 {
            if !ids.contains(&query::id_of(ordinal)?.as_str()) {
                continue;
            }
            if let Err(error) = self.reach_device(ordinal) {
                log::info(Subsys::Init, || format!("no direct use of each other's memory: {error}"));
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// See [`crate::device::Kernels::is_reached`].
    pub(super) fn is_open(&self, addr: u64, bytes: u64) -> Result<bool> {
        let within =
            |e: Exposed| addr.checked_sub(e.base).is_some_and(|at| at <= e.bytes && bytes <= e.bytes - at);
        // All other memory has access rights of its own.
        Ok(self.allocation(addr)?.map_or_else(|| is_shared(&self.context, addr, bytes), within))
    }
}
