//! Giving the memory of heaps back while nobody uses a communicator, and taking it again at the same
//! addresses: launches that were planned or captured before stay right.

use std::os::fd::OwnedFd;

use hawser_base::error::{Error, Result};
use hawser_base::wait::Wait;
use hawser_device::{Device, Memory};

use super::parts::Owner;
use super::{PeerMemory, pass_handles};
use crate::bootstrap::Bootstrap;

/// The content of this rank's heap and late parts, in order; none if their memory has stayed.
pub struct Suspended(Option<Vec<Vec<u8>>>);

impl PeerMemory {
    /// The bytes that [`PeerMemory::suspend`] gives back.
    pub fn suspendable_bytes(&self, device: &dyn Device) -> u64 {
        let mut bytes = 0;
        let sum = self.try_for_each(|memory, owner| {
            bytes += if owner == Owner::Own { memory.bytes } else { 0 };
            Ok(())
        });
        if sum.is_ok() && self.can_suspend(device) { bytes } else { 0 }
    }

    /// Gives the memory of this rank's heap and late parts back and lets go of those of peers. No rank may
    /// use them: all have passed a barrier after their last operation. Gives nothing where memory cannot be
    /// taken from under its addresses.
    ///
    /// # Errors
    /// The device refused; the communicator is not to be used any more.
    pub fn suspend(&self, device: &dyn Device) -> Result<Suspended> {
        if !self.can_suspend(device) {
            return Ok(Suspended(None));
        }
        let mut contents = Vec::new();
        self.try_for_each(|memory, owner| {
            if owner == Owner::Own {
                let mut content = vec![0; memory.bytes as usize];
                device.download(memory.addr, &mut content)?;
                contents.push(content);
            }
            device.detach(memory)
        })?;
        Ok(Suspended(Some(contents)))
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
        if let Some(contents) = suspended.0 {
            let mut contents = contents.into_iter();
            self.try_for_each(|memory, owner| {
                if owner == Owner::Peer {
                    return Ok(());
                }
                let content = contents.next().ok_or_else(|| Error::internal("a heap without its content"))?;
                device.attach(memory)?;
                device.upload(memory.addr, &content)
            })?;
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
        // All have told their handles, so all have the memory of their parts again.
        self.late.as_ref().map_or(Ok(()), |late| late.map_again(wait))?;
        // Nobody writes before all have what they held, and handles are there until all have used them.
        bootstrap.barrier(wait)
    }

    fn can_suspend(&self, device: &dyn Device) -> bool {
        let refused = |memory: &Memory| match device.can_detach(memory) {
            true => Ok(()),
            false => Err(Error::internal("memory that stays")),
        };
        self.try_for_each(|memory, _| refused(memory)).is_ok()
    }

    /// Does something with this rank's heap and those of peers, then with late parts.
    fn try_for_each(&self, mut act: impl FnMut(&Memory, Owner) -> Result<()>) -> Result<()> {
        act(&self.heap, Owner::Own)?;
        self.mapped.iter().try_for_each(|(_, memory)| act(memory, Owner::Peer))?;
        self.late.as_ref().map_or(Ok(()), |late| late.try_for_each(act))
    }
}
