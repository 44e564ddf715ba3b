//! Buffers of the program that were registered with a communicator, and their registrations at connections.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hawser_base::error::{Error, Result};
use hawser_plugin::net::{MemoryKinds, Receiver, Region, Registration, Segment, Sender};

/// A buffer that was registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UserBuffer {
    /// Registrations of the communicator before it: an address may be registered again.
    pub number: u64,
    /// Address of its first byte.
    pub addr: u64,
    /// Its length in bytes.
    pub bytes: u64,
}

impl UserBuffer {
    /// True if so many bytes from `addr` on lie in it.
    fn holds(&self, addr: u64, bytes: u64) -> bool {
        let at = addr.checked_sub(self.addr);
        at.and_then(|at| at.checked_add(bytes)).is_some_and(|end| end <= self.bytes)
    }

    /// The buffer as plugins register it.
    fn region(&self, kind: MemoryKinds) -> Region {
        Region { addr: self.addr, bytes: self.bytes as usize, kind, dmabuf: None }
    }
}

/// The buffers of a communicator that are registered now.
#[derive(Default)]
pub struct UserBuffers {
    /// The buffers, and the number of all that there were.
    all: Mutex<(Vec<UserBuffer>, u64)>,
    count: AtomicUsize,
}

impl UserBuffers {
    /// A buffer was registered.
    pub fn add(&self, addr: u64, bytes: u64) {
        let mut all = self.lock();
        let number = all.1;
        all.1 += 1;
        all.0.push(UserBuffer { number, addr, bytes });
        self.count.store(all.0.len(), Ordering::Release);
    }

    /// The registration of a buffer was taken back. Returns what it was.
    pub fn remove(&self, addr: u64, bytes: u64) -> Option<UserBuffer> {
        let mut all = self.lock();
        let at = all.0.iter().rposition(|buffer| (buffer.addr, buffer.bytes) == (addr, bytes))?;
        let buffer = all.0.remove(at);
        self.count.store(all.0.len(), Ordering::Release);
        Some(buffer)
    }

    /// The buffer that holds so many bytes from `addr` on.
    pub fn find(&self, addr: u64, bytes: u64) -> Option<UserBuffer> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.lock().0.iter().find(|buffer| buffer.holds(addr, bytes)).copied()
    }

    fn lock(&self) -> MutexGuard<'_, (Vec<UserBuffer>, u64)> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An end of a connection at which memory is registered.
pub trait Registers {
    /// As [`Sender::register`].
    ///
    /// # Safety
    /// As there.
    unsafe fn register_region(&mut self, region: &Region) -> hawser_plugin::Result<Registration>;

    /// As [`Sender::deregister`].
    fn deregister_region(&mut self, registration: Registration) -> hawser_plugin::Result<()>;
}

impl Registers for dyn Sender {
    unsafe fn register_region(&mut self, region: &Region) -> hawser_plugin::Result<Registration> {
        // SAFETY: passed on to the caller.
        unsafe { self.register(region) }
    }

    fn deregister_region(&mut self, registration: Registration) -> hawser_plugin::Result<()> {
        self.deregister(registration)
    }
}

impl Registers for dyn Receiver {
    unsafe fn register_region(&mut self, region: &Region) -> hawser_plugin::Result<Registration> {
        // SAFETY: passed on to the caller.
        unsafe { self.register(region) }
    }

    fn deregister_region(&mut self, registration: Registration) -> hawser_plugin::Result<()> {
        self.deregister(registration)
    }
}

/// The buffers that are registered at one end of a connection.
#[derive(Default)]
pub struct RegisteredHere {
    all: Vec<(UserBuffer, Registration)>,
    /// Those whose registration was taken back while a request was in flight.
    stale: Vec<Registration>,
}

impl RegisteredHere {
    /// Registers a buffer here.
    pub fn add<E: Registers + ?Sized>(
        &mut self,
        end: &mut E,
        buffer: UserBuffer,
        kind: MemoryKinds,
    ) -> Result<()> {
        if self.all.iter().any(|(known, _)| *known == buffer) {
            return Ok(());
        }
        // SAFETY: the program promises that the memory stays until it has taken the registration back, when
        // `forget` deregisters it.
        let registration = unsafe { end.register_region(&buffer.region(kind)) }?;
        self.all.push((buffer, registration));
        Ok(())
    }

    /// The program takes a registration back; `is_busy` if a request may use it.
    pub fn forget<E: Registers + ?Sized>(&mut self, end: &mut E, buffer: UserBuffer, is_busy: bool) {
        let gone = self.all.extract_if(.., |(known, _)| *known == buffer);
        self.stale.extend(gone.map(|(_, registration)| registration));
        self.clear(end, is_busy);
    }

    /// Deregisters what was taken back, if no request is in flight.
    pub fn clear<E: Registers + ?Sized>(&mut self, end: &mut E, is_busy: bool) {
        if !is_busy {
            // What the plugin cannot take back it keeps until the connection ends.
            self.stale.drain(..).for_each(|registration| drop(end.deregister_region(registration)));
        }
    }

    /// Deregisters all.
    pub fn end<E: Registers + ?Sized>(&mut self, end: &mut E) {
        self.stale.extend(self.all.drain(..).map(|(_, registration)| registration));
        self.clear(end, false);
    }

    /// The piece of a buffer as the plugin knows it.
    ///
    /// # Errors
    /// `InvalidUsage`: it was taken back while an operation uses it.
    pub fn segment(&self, (addr, bytes): (u64, usize), tag: u32) -> Result<Segment> {
        let found = self.all.iter().find(|(buffer, _)| buffer.holds(addr, bytes as u64));
        let Some((_, registration)) = found else {
            let text = format!("the {bytes} bytes at {addr:#x} of an operation are not registered any more");
            return Err(Error::invalid_usage(text)
                .remedy("take registrations of buffers back after the last operation that uses them"));
        };
        Ok(Segment { addr, bytes, registration: *registration, tag: tag as i32, profile: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_found_by_all_bytes_that_it_holds() {
        let buffers = UserBuffers::default();
        assert_eq!(buffers.find(100, 1), None);
        buffers.add(100, 50);
        buffers.add(100, 80);
        let found = |addr, bytes| buffers.find(addr, bytes).map(|buffer| buffer.number);
        assert_eq!([found(100, 50), found(120, 60), found(150, 0)], [Some(0), Some(1), Some(0)]);
        assert_eq!([found(99, 2), found(150, 31), found(101, u64::MAX)], [None; 3]);
        assert_eq!(buffers.remove(100, 50).map(|buffer| buffer.number), Some(0));
        assert_eq!((buffers.remove(100, 50), found(100, 50)), (None, Some(1)));
    }
}
