//! Makes what HCAs wrote to GPU memory visible to the GPU: each HCA of the connection reads a byte of it
//! through a queue pair that is connected to itself. On PCI a read does not overtake the writes of the same
//! device, so when its completion is there, they are where the GPU sees them. An HCA whose port is gone may
//! be unable to read; what it wrote is in order once its queue pairs are destroyed, and that is waited for
//! instead.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hawser_plugin::net::{MemoryKinds, Region};

use crate::config::Settings;
use crate::port::Port;
use crate::verbs::{Caps, Cq, Errno, Mr, Qp, Route, Span};

/// Reads under way at most.
const READS: u32 = 64;
/// The number of times that a read is tried again on a new queue pair.
const TRIES: u32 = 3;
/// The time after a failure at which ports are looked at: the kernel may learn a moment later than the HCA
/// that a port is gone.
const PAUSE: Duration = Duration::from_millis(50);

/// One HCA's part. Work requests are numbered from 1, and complete in order.
pub(crate) struct Flusher {
    port: Arc<Port>,
    settings: Settings,
    qp: Option<Box<dyn Qp>>,
    cq: Box<dyn Cq>,
    cell: Box<[u8; 64]>,
    mr: Mr,
    begun: u64,
    done: u64,
    /// The moment at which a read failed last.
    failed: Option<Instant>,
}

/// A read under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Read {
    /// 0: not begun, because the port is gone.
    number: u64,
    from: (u64, u32),
    tries: u32,
}

impl Read {
    /// From an address that the HCA knows by this remote key.
    pub fn new(from: (u64, u32)) -> Self {
        Self { number: 0, from, tries: 0 }
    }
}

impl Flusher {
    pub fn new(port: Arc<Port>, settings: &Settings) -> Result<Self, Errno> {
        let cell = Box::new([0; 64]);
        let cq = port.device.queue(2 * READS)?;
        // SAFETY: the box is deregistered before it is dropped.
        let mr = unsafe { port.register(&region(&cell)) }?;
        let settings = settings.clone();
        Ok(Self { port, settings, qp: None, cq, cell, mr, begun: 0, done: 0, failed: None })
    }

    /// # Safety
    /// The memory stays registered until the read is over.
    unsafe fn start(&mut self, read: &mut Read) -> Result<(), Errno> {
        if self.qp.is_none() {
            self.qp = Some(self.pair()?);
        }
        let qp = self.qp.as_mut().ok_or(libc::ENOTCONN)?;
        let span = Span { addr: self.cell.as_ptr() as u64, len: 1, lkey: self.mr.lkey };
        // SAFETY: the cell is ours and outlives the pair; the caller vouches for the source.
        unsafe { qp.read(self.begun + 1, span, read.from)? };
        self.begun += 1;
        (read.number, read.tries) = (self.begun, read.tries + 1);
        Ok(())
    }

    /// Begins a read if it can, and says whether it is over. `quiet`: the connection has no queue pair on
    /// this port.
    ///
    /// # Safety
    /// The memory stays registered until the read is over.
    pub unsafe fn is_over(&mut self, read: &mut Read, quiet: bool) -> Result<bool, Errno> {
        let mut seen = Vec::new();
        self.cq.poll(&mut seen)?;
        let current = self.qp.as_ref().map_or(0, |qp| qp.number());
        for wc in seen.iter().filter(|wc| wc.qp == current) {
            if wc.status != 0 {
                self.qp = None;
                self.failed = Some(Instant::now());
                // Whoever watches ports may not have come to this one yet.
                self.port.refresh(None);
                break;
            }
            self.done = wc.wr;
        }
        if read.number > 0 && self.done >= read.number {
            return Ok(true);
        }
        let is_usable = self.port.state().is_usable();
        if !is_usable && quiet {
            return Ok(true);
        }
        if !is_usable || self.qp.is_some() && read.number > 0 {
            return Ok(false);
        }
        if read.tries > TRIES {
            return Err(libc::EIO);
        }
        if self.failed.is_some_and(|failed| failed.elapsed() < PAUSE) {
            return Ok(false);
        }
        // SAFETY: the caller vouches for it.
        let begun = unsafe { self.start(read) };
        let Err(errno) = begun else { return Ok(false) };
        self.port.refresh(None);
        if self.port.state().is_usable() { Err(errno) } else { Ok(false) }
    }

    /// A queue pair that is its own peer. Reads of the one before are not waited for any more.
    fn pair(&mut self) -> Result<Box<dyn Qp>, Errno> {
        let state = self.port.state();
        let (gid_index, gid) = state.gid.ok_or(libc::EADDRNOTAVAIL)?;
        let mut qp = self.cq.pair(
            self.port.number,
            self.settings.pkey,
            Caps { sends: READS, receives: 1, inline: 0 },
        )?;
        let route = Route {
            port: self.port.number,
            global: state.info.ethernet || state.info.lid == 0,
            qp: qp.number(),
            psn: (0, 0),
            lid: state.info.lid,
            gid: gid.bytes,
            gid_index: gid_index as u8,
            mtu: state.info.mtu,
            service_level: self.settings.service_level,
            traffic_class: 0,
            timeout: self.settings.timeout,
            retries: self.settings.retries,
        };
        qp.connect(&route)?;
        Ok(qp)
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        self.qp = None;
        let _ = self.port.deregister(&region(&self.cell));
    }
}

fn region(cell: &[u8; 64]) -> Region {
    Region { addr: cell.as_ptr() as u64, bytes: cell.len(), kind: MemoryKinds::HOST, dmabuf: None }
}
