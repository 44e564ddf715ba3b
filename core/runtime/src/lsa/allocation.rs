//! Allocations of `cudaMalloc`, which cannot be mapped side by side: other processes open them by handles of
//! legacy IPC, where the driver chooses.

use std::sync::{Arc, Mutex, Weak};

use hawser_base::env;
use hawser_base::error::{Error, Result};
use hawser_base::lock::lock;
use hawser_device::{Device, Memory};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use super::team::Team;

/// The allocation around a buffer, as its rank offers it to the others.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Allocation {
    /// The address of its first byte in the process of the rank.
    base: u64,
    /// Tells it from those that were or will be at the same address there.
    id: u64,
    /// The place of the buffer in it.
    at: u64,
    /// The handle by which other processes open it; empty if there are none.
    handle: Vec<u8>,
    /// The device, as its process counts them.
    pub ordinal: u32,
    /// The reason why it cannot be mapped side by side with others.
    pub why_apart: String,
}

impl Allocation {
    /// The allocation around a buffer of this rank, of which the device says why it is not of CUDA's VMM.
    ///
    /// # Errors
    /// `why_apart`, unless the buffer lies in one allocation that the other ranks of the team can open.
    pub fn around(
        device: &dyn Device,
        (addr, bytes): (u64, u64),
        team: &Team,
        why_apart: Error,
    ) -> Result<Self> {
        let holds = |base: u64, length: u64| {
            addr.checked_sub(base).is_some_and(|at| at <= length && bytes <= length - at)
        };
        let Some(exposed) = device.expose(addr)?.filter(|found| holds(found.base, found.bytes)) else {
            return Err(why_apart);
        };
        // The GPUs of a process have to be opened to each other for it.
        let has_near = team.is_elsewhere.iter().filter(|is_elsewhere| !**is_elsewhere).count() > 1;
        if has_near && !env::settings().direct {
            return Err(why_apart.remedy("or do not set NCCL_P2P_DIRECT_DISABLE"));
        }
        let handle = match team.is_elsewhere.contains(&true) {
            true => match device.needs_ipc()?.exposed_handle(&exposed) {
                Ok(handle) => handle.to_vec(),
                Err(error) => {
                    return Err(why_apart.context(format!("CUDA IPC offers no handle ({})", error.text)));
                }
            },
            false => Vec::new(),
        };
        let (base, id, ordinal) = (exposed.base, exposed.id, device.caps().ordinal);
        Ok(Self { base, id, at: addr - base, handle, ordinal, why_apart: why_apart.to_string() })
    }

    /// The address of the buffer where the allocation is open, or in a process that it belongs to.
    pub fn place(&self, opened: Option<&Memory>) -> u64 {
        opened.map_or(self.base, |memory| memory.addr) + self.at
    }

    /// An allocation for tests.
    #[cfg(test)]
    pub fn example(why_apart: &str) -> Self {
        Self { base: 0, id: 1, at: 0, handle: Vec::new(), ordinal: 0, why_apart: why_apart.to_owned() }
    }
}

/// The allocations of other ranks that are open, by rank, address and identity there. Windows of a
/// communicator in one allocation share it, and the last one that goes closes it.
#[derive(Default)]
pub struct Opened(Mutex<FxHashMap<(u32, u64, u64), Weak<Memory>>>);

impl Opened {
    /// The allocation of rank `peer`, which is in another process; it is open as long as the answer lives.
    ///
    /// # Errors
    /// The driver refused, as in another container.
    pub fn open(&self, device: &dyn Device, peer: u32, allocation: &Allocation) -> Result<Arc<Memory>> {
        let key = (peer, allocation.base, allocation.id);
        let mut opened = lock(&self.0)?;
        if let Some(memory) = opened.get(&key).and_then(Weak::upgrade) {
            return Ok(memory);
        }
        let handle = allocation.handle.as_slice().try_into();
        let handle = handle.map_err(|_| Error::remote("its handle has another length"))?;
        let memory = Arc::new(device.needs_ipc()?.open_exposed(handle)?);
        opened.retain(|_, memory| memory.strong_count() > 0);
        opened.insert(key, Arc::downgrade(&memory));
        Ok(memory)
    }
}
