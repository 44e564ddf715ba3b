//! Both ends of a connection as the host holds them.

use std::sync::{Arc, Mutex};

use hawser_plugin::net::{
    MAX_RECVS, MAX_REQUESTS, MemoryKinds, Receiver, Region, Registration, Request, Segment, Sender,
};
use hawser_plugin::{Error, ErrorKind, Result};
use rustc_hash::FxHashMap;

use crate::config::Settings;
use crate::conn::{Conn, Job, system};
use crate::flush::{Flusher, Read};
use crate::port::{Port, lock};
use crate::progress_thread::ProgressThread;
use crate::proto::rx::Rx;
use crate::proto::tx::Tx;
use crate::proto::wire::Entry;
use crate::verbs::Errno;

/// Messages that a sender holds at most.
const MOST_SENDS: usize = MAX_REQUESTS * MAX_RECVS;

/// A region, and its local and remote key on each port that could register it.
type Known = (Region, Vec<Key>);
type Key = Option<(u32, u32)>;

/// Memory that is registered at an end: on each of its ports.
pub(crate) struct Regions {
    ports: Vec<Arc<Port>>,
    kinds: MemoryKinds,
    all: Vec<Option<Known>>,
    free: Vec<usize>,
}

impl Regions {
    /// No registered memory yet.
    pub fn new(ports: Vec<Arc<Port>>, kinds: MemoryKinds) -> Self {
        Self { ports, kinds, all: Vec::new(), free: Vec::new() }
    }

    /// Registers with all ports that can; `bar` is told of the others, and why.
    ///
    /// # Safety
    /// The memory stays valid until it is deregistered.
    unsafe fn register(
        &mut self,
        region: &Region,
        mut bar: impl FnMut(usize, Errno),
    ) -> Result<Registration> {
        if !self.kinds.contains(region.kind) || region.kind.0.count_ones() != 1 {
            return Err(Error::unsupported("this kind of memory"));
        }
        if region.addr.checked_add(region.bytes as u64).is_none() {
            return Err(Error::internal("a region ends beyond the address space"));
        }
        // SAFETY: the caller vouches for the memory.
        let tried: Vec<_> = self.ports.iter().map(|port| unsafe { port.register(region) }).collect();
        let failed = || tried.iter().enumerate().filter_map(|(at, mr)| Some((at, *mr.as_ref().err()?)));
        if let Some((at, errno)) = failed().next()
            && failed().count() == tried.len()
        {
            let what = format!("registering {} bytes with {}", region.bytes, self.ports[at].name);
            return Err(system(what, errno));
        }
        failed().for_each(|(at, errno)| bar(at, errno));
        let keys = tried.into_iter().map(|mr| mr.ok().map(|mr| (mr.lkey, mr.rkey))).collect();
        let index = self.free.pop().unwrap_or(self.all.len());
        if index == self.all.len() {
            self.all.push(None);
        }
        self.all[index] = Some((*region, keys));
        Ok(Registration(index as u64))
    }

    fn deregister(&mut self, registration: Registration) -> Result<()> {
        let known = usize::try_from(registration.0).ok().and_then(|index| self.all.get_mut(index));
        let Some(known) = known.and_then(Option::take) else {
            return Err(Error::internal(format!("registration {} does not exist", registration.0)));
        };
        self.free.push(registration.0 as usize);
        forget(&self.ports, &known)
    }

    /// The keys of the region that holds a segment.
    fn check(&self, segment: &Segment) -> Result<&[Key]> {
        self.find(segment).map(|known| &known.1[..])
    }

    /// The region that holds a segment.
    fn find(&self, segment: &Segment) -> Result<&Known> {
        let known = usize::try_from(segment.registration.0).ok().and_then(|index| self.all.get(index));
        let Some(Some(known)) = known else {
            let text = format!("registration {} does not exist at this connection", segment.registration.0);
            return Err(Error::internal(text));
        };
        let region = &known.0;
        let offset = segment.addr.checked_sub(region.addr);
        let end = offset.and_then(|offset| offset.checked_add(segment.bytes as u64));
        if end.is_some_and(|end| end <= region.bytes as u64) || segment.bytes == 0 {
            return Ok(known);
        }
        Err(Error::internal(format!(
            "a segment of {} bytes at {:#x} leaves its region of {} bytes at {:#x}",
            segment.bytes, segment.addr, region.bytes, region.addr
        )))
    }
}

impl Drop for Regions {
    fn drop(&mut self) {
        for known in self.all.iter().flatten() {
            let _ = forget(&self.ports, known);
        }
    }
}

/// Deregisters with all ports that know a region, also after a failure; the first one is told.
fn forget(ports: &[Arc<Port>], (region, keys): &Known) -> Result<()> {
    let mut outcome = Ok(());
    for (port, _) in ports.iter().zip(keys).filter(|(_, key)| key.is_some()) {
        if let Err(errno) = port.deregister(region) {
            outcome = outcome.and_then(|()| Err(system(format!("deregistering with {}", port.name), errno)));
        }
    }
    outcome
}

/// The sending end.
pub(crate) struct IbSender {
    conn: Arc<Mutex<Conn<Tx>>>,
    regions: Regions,
    progress_thread: Arc<ProgressThread>,
}

impl IbSender {
    pub fn new(conn: Arc<Mutex<Conn<Tx>>>, kinds: MemoryKinds, progress_thread: Arc<ProgressThread>) -> Self {
        let ports = lock(&conn).ports().to_vec();
        Self { conn, regions: Regions::new(ports, kinds), progress_thread }
    }
}

impl Sender for IbSender {
    unsafe fn register(&mut self, region: &Region) -> Result<Registration> {
        // SAFETY: the caller vouches for the memory.
        unsafe { self.regions.register(region, |at, errno| lock(&self.conn).bar(at, errno)) }
    }

    fn deregister(&mut self, registration: Registration) -> Result<()> {
        self.regions.deregister(registration)
    }

    unsafe fn isend(&mut self, segment: &Segment) -> Result<Option<Request>> {
        let keys = self.regions.check(segment)?;
        let mut conn = lock(&self.conn);
        conn.check()?;
        if conn.machine.target(segment.tag).is_none() {
            conn.progress()?;
        }
        let Some((slot, room)) = conn.machine.target(segment.tag) else {
            if conn.machine.left {
                return Err(Error::remote("the receiver has closed the connection"));
            }
            return Ok(None);
        };
        let bytes = segment.bytes as u64;
        if bytes > room {
            let text =
                format!("a message of {bytes} bytes is longer than its receive {slot} of {room} bytes");
            return Err(conn.break_off(Error::new(ErrorKind::InvalidUsage, text)));
        }
        if conn.machine.open() >= MOST_SENDS {
            return Ok(None);
        }
        let now = conn.now();
        let Some(target) = conn.machine.begin(segment.tag, bytes, now) else { return Ok(None) };
        let job = Job {
            addr: segment.addr,
            lkeys: keys.iter().map(|key| key.map_or(0, |key| key.0)).collect(),
            to: target.entry.addr,
            rkeys: target.entry.keys,
            full: bytes == target.entry.bytes,
            profile: segment.profile,
        };
        conn.jobs.insert(target.slot, job);
        conn.act();
        Ok(Some(Request(target.slot)))
    }

    fn test(&mut self, request: Request) -> Result<Option<usize>> {
        let mut conn = lock(&self.conn);
        let conn = &mut *conn;
        if !conn.machine.is_known(request.0) {
            conn.check()?;
            return Err(Error::internal(format!("request {} is not in flight", request.0)));
        }
        let moved = conn.progress();
        conn.count();
        match conn.machine.finish(request.0) {
            Some(bytes) => {
                conn.jobs.remove(&request.0);
                Ok(Some(bytes as usize))
            }
            None => moved.map(|()| None),
        }
    }
}

impl Drop for IbSender {
    fn drop(&mut self) {
        lock(&self.conn).close();
        self.progress_thread.close(self.conn.clone());
    }
}

/// Marks requests that are flushes.
const FLUSH: u64 = 1 << 63;

/// The receiving end.
pub(crate) struct IbReceiver {
    conn: Arc<Mutex<Conn<Rx>>>,
    regions: Regions,
    progress_thread: Arc<ProgressThread>,
    settings: Settings,
    /// One per port, made when it is needed.
    flushers: Vec<Option<Flusher>>,
    /// Reads that are not over, with their ports.
    flushes: FxHashMap<u64, Vec<(usize, Read)>>,
    next_flush: u64,
}

impl IbReceiver {
    pub fn new(
        conn: Arc<Mutex<Conn<Rx>>>,
        kinds: MemoryKinds,
        progress_thread: Arc<ProgressThread>,
        settings: Settings,
    ) -> Self {
        let ports = lock(&conn).ports().to_vec();
        let flushers = ports.iter().map(|_| None).collect();
        let regions = Regions::new(ports, kinds);
        Self {
            conn,
            regions,
            progress_thread,
            settings,
            flushers,
            flushes: FxHashMap::default(),
            next_flush: FLUSH,
        }
    }

    /// A read through each port that may have written to a segment.
    fn begin_flush(&mut self, segment: &Segment) -> Result<Vec<(usize, Read)>> {
        let mut reads = Vec::new();
        for (at, key) in self.regions.check(segment)?.iter().enumerate() {
            // What a port does not know it has not written to.
            let Some((_, rkey)) = *key else { continue };
            let (port, flusher) = (&self.regions.ports[at], &mut self.flushers[at]);
            if flusher.is_none() {
                match Flusher::new(port.clone(), &self.settings) {
                    Ok(made) => *flusher = Some(made),
                    Err(errno) => {
                        port.refresh(None);
                        if port.state().is_usable() {
                            return Err(system(format!("a flush with {}", port.name), errno));
                        }
                    }
                }
            }
            reads.push((at, Read::new((segment.addr, rkey))));
        }
        Ok(reads)
    }

    fn test_flush(&mut self, request: Request) -> Result<bool> {
        let Some(reads) = self.flushes.get_mut(&request.0) else {
            return Err(Error::internal(format!("request {} is not in flight", request.0)));
        };
        let (conn, flushers) = (&self.conn, &mut self.flushers);
        let mut failed = None;
        reads.retain_mut(|(at, read)| {
            let quiet = lock(conn).is_quiet(*at);
            // A device that cannot even have one: what it wrote is in order once its queue pairs are gone.
            let Some(flusher) = &mut flushers[*at] else { return !quiet };
            // SAFETY: the caller of `flush` keeps the segment registered until the request is over.
            let over = unsafe { flusher.is_over(read, quiet) };
            over.inspect_err(|&errno| failed = Some((*at, errno))).is_ok_and(|over| !over)
        });
        let is_over = reads.is_empty();
        if is_over || failed.is_some() {
            self.flushes.remove(&request.0);
        }
        if let Some((at, errno)) = failed {
            return Err(system(format!("a flush with {}", self.regions.ports[at].name), errno));
        }
        if !is_over {
            lock(&self.conn).progress()?;
        }
        Ok(is_over)
    }
}

impl Receiver for IbReceiver {
    unsafe fn register(&mut self, region: &Region) -> Result<Registration> {
        // SAFETY: the caller vouches for the memory.
        unsafe { self.regions.register(region, |at, errno| lock(&self.conn).bar(at, errno)) }
    }

    fn deregister(&mut self, registration: Registration) -> Result<()> {
        self.regions.deregister(registration)
    }

    unsafe fn irecv(&mut self, segments: &[Segment], _optional_completion: bool) -> Result<Option<Request>> {
        if segments.is_empty() || segments.len() > MAX_RECVS {
            let text = format!("a receive of {} segments; 1 to {MAX_RECVS} can be", segments.len());
            return Err(Error::internal(text));
        }
        let entry = |segment: &Segment| {
            let keys = self.regions.check(segment)?.iter().map(|key| key.map_or(0, |key| key.1)).collect();
            Ok(Entry { tag: segment.tag, addr: segment.addr, bytes: segment.bytes as u64, keys })
        };
        let entries = segments.iter().map(entry).collect::<Result<Vec<_>>>()?;
        let mut conn = lock(&self.conn);
        conn.check()?;
        let now = conn.now();
        let Some(number) = conn.machine.post(entries, now) else {
            conn.progress()?;
            return Ok(None);
        };
        conn.act();
        Ok(Some(Request(number)))
    }

    unsafe fn flush(&mut self, segments: &[Segment]) -> Result<Option<Request>> {
        // Segments of a group lie in one GPU's memory: one of them stands for all.
        let Some(segment) = segments.iter().rfind(|segment| segment.bytes > 0) else { return Ok(None) };
        if self.regions.find(segment)?.0.kind == MemoryKinds::HOST {
            return Ok(None);
        }
        let reads = self.begin_flush(segment)?;
        let request = Request(self.next_flush);
        self.next_flush += 1;
        self.flushes.insert(request.0, reads);
        // Begins the reads.
        self.test_flush(request).map(|is_over| (!is_over).then_some(request))
    }

    fn test(&mut self, request: Request, sizes: &mut [usize]) -> Result<bool> {
        if request.0 & FLUSH != 0 {
            return self.test_flush(request);
        }
        let mut conn = lock(&self.conn);
        let moved = conn.progress();
        match conn.machine.finish(request.0) {
            None => {
                moved?;
                Err(Error::internal(format!("request {} is not in flight", request.0)))
            }
            Some(None) => moved.map(|()| false),
            Some(Some(found)) => {
                sizes.iter_mut().zip(found).for_each(|(size, bytes)| *size = bytes as usize);
                Ok(true)
            }
        }
    }
}

impl Drop for IbReceiver {
    fn drop(&mut self) {
        lock(&self.conn).close();
        self.progress_thread.close(self.conn.clone());
    }
}
