//! Giving the memory of heaps back while nobody uses a communicator, and taking it again at the same
//! addresses: launches that were planned or captured before stay right.

use std::os::fd::OwnedFd;

use hawser_base::error::{Error, Result};
use hawser_base::wait::Wait;
use hawser_device::Device;

use super::{PeerMemory, pass_handles};
use crate::bootstrap::Bootstrap;

/// The content of the heap of a suspended communicator; none if its memory has stayed.
pub struct Suspended(Option<Vec<u8>>);

impl PeerMemory {
    /// The bytes that [`PeerMemory::suspend`] gives back.
    pub fn suspendable_bytes(&self, device: &dyn Device) -> u64 {
        if self.can_suspend(device) { self.heap.bytes } else { 0 }
    }

    /// Gives the memory of this rank's heap back and lets go of those of peers. No rank may use them: all
    /// have passed a barrier after their last operation. Gives nothing where memory cannot be taken from
    /// under its addresses.
    ///
    /// # Errors
    /// The device refused; the communicator is not to be used any more.
    pub fn suspend(&self, device: &dyn Device) -> Result<Suspended> {
        if !self.can_suspend(device) {
            return Ok(Suspended(None));
        }
        let mut content = vec![0; self.heap.bytes as usize];
        device.download(self.heap.addr, &mut content)?;
        self.mapped.iter().try_for_each(|(_, memory)| device.detach(memory))?;
        device.detach(&self.heap)?;
        Ok(Suspended(Some(content)))
    }

    /// Takes the memory again, with what it held. Collective.
    ///
    /// # Errors
    /// There is no memory, or a peer could not be reached; the communicator is not to be used any more.
    pub fn resume(
        &self,
        device: &dyn Device,
        bootstrap: &Bootstrap,
        suspended: Suspended,
        wait: &Wait,
    ) -> Result<()> {
        if let Some(content) = &suspended.0 {
            device.attach(&self.heap)?;
            device.upload(self.heap.addr, content)?;
        }
        let elsewhere: Vec<u32> =
            self.mapped.iter().filter(|(near, _)| near.is_elsewhere).map(|(near, _)| near.rank).collect();
        let (tokens, mut handles) =
            pass_handles(device, bootstrap, &elsewhere, (&self.heap, self.kind), wait)?;
        for (near, memory) in &self.mapped {
            let peer = near.rank as usize;
            let fd: Option<OwnedFd> = handles[peer].take();
            if device.can_detach(memory) {
                device.attach_peer(memory, &tokens[peer], fd).map_err(|error: Error| {
                    let text = format!("the heap of rank {peer} cannot be mapped again");
                    error.context(text).with_peer(near.rank)
                })?;
            }
        }
        // Nobody writes before all have what they held, and handles are there until all have used them.
        bootstrap.barrier(wait)
    }

    fn can_suspend(&self, device: &dyn Device) -> bool {
        device.can_detach(&self.heap) && self.mapped.iter().all(|(_, memory)| device.can_detach(memory))
    }
}
