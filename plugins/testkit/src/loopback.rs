//! A net between objects of one process. It keeps the contract to the letter and checks what callers do, so
//! it serves as the reference of the suites and as a net for hosts' tests.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hawser_plugin::net::{
    Connector, HANDLE_BYTES, Handle, Listener, MAX_REQUESTS, MemoryKinds, Net, NetConfig, NetContext,
    NetProperties, Receiver, Region, Registration, Request, Segment, Sender,
};
use hawser_plugin::{Error, ErrorKind, Result};

const MAGIC: &[u8; 8] = b"loopback";

/// A net with one device whose both ends are in this process.
#[derive(Debug, Clone)]
pub struct Loopback {
    /// Receives that may be grouped.
    pub max_recvs: u32,
}

impl Default for Loopback {
    fn default() -> Self {
        Self { max_recvs: 8 }
    }
}

impl Net for Loopback {
    fn name(&self) -> &str {
        "loopback"
    }

    fn open(&self, _config: &NetConfig) -> Result<Box<dyn NetContext>> {
        Ok(Box::new(self.clone()))
    }
}

impl NetContext for Loopback {
    fn devices(&self) -> Result<u32> {
        Ok(1)
    }

    fn properties(&self, device: u32) -> Result<NetProperties> {
        check_device(device)?;
        let mut properties = NetProperties::new("loopback", device);
        properties.max_recvs = self.max_recvs;
        properties.speed_mbps = 100_000;
        properties.latency_us = 1.0;
        Ok(properties)
    }

    fn listen(&self, device: u32) -> Result<(Handle, Box<dyn Listener>)> {
        check_device(device)?;
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        locked(&PLACES).insert(number, None);
        let mut handle = [0; HANDLE_BYTES];
        handle[..8].copy_from_slice(MAGIC);
        handle[8..16].copy_from_slice(&number.to_le_bytes());
        Ok((handle, Box::new(Listening(number))))
    }

    fn connect(&self, device: u32, handle: &Handle) -> Result<Box<dyn Connector>> {
        check_device(device)?;
        let (magic, rest) = handle.split_at(8);
        let number = rest.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        if magic != MAGIC {
            return Err(Error::new(ErrorKind::InvalidArgument, "the handle is none of this net"));
        }
        Ok(Box::new(Connecting(number)))
    }
}

fn check_device(device: u32) -> Result<()> {
    let text = || format!("device {device} does not exist: there is only 0");
    if device == 0 { Ok(()) } else { Err(Error::new(ErrorKind::InvalidArgument, text())) }
}

/// Listeners that are open, and the link of the one that connected.
static PLACES: Mutex<BTreeMap<u64, Option<Arc<Mutex<Link>>>>> = Mutex::new(BTreeMap::new());

fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A listener, by its number.
struct Listening(u64);

impl Drop for Listening {
    fn drop(&mut self) {
        locked(&PLACES).remove(&self.0);
    }
}

impl Listener for Listening {
    fn accept(&mut self) -> Result<Option<Box<dyn Receiver>>> {
        let link = locked(&PLACES).get(&self.0).cloned().flatten();
        Ok(link.map(|link| Box::new(End::new(link)) as Box<dyn Receiver>))
    }
}

/// A sender to the listener of this number.
struct Connecting(u64);

impl Connector for Connecting {
    fn poll(&mut self) -> Result<Option<Box<dyn Sender>>> {
        let mut places = locked(&PLACES);
        let place = places.get_mut(&self.0).filter(|place| place.is_none());
        let place = place.ok_or_else(|| Error::remote("the listener of this handle is closed or taken"))?;
        let link = Arc::new(Mutex::new(Link::default()));
        *place = Some(link.clone());
        Ok(Some(Box::new(End::new(link))))
    }
}

/// The part that sender and receiver share.
#[derive(Default)]
struct Link {
    sends: VecDeque<(u64, Segment)>,
    receives: VecDeque<Group>,
    sent: BTreeMap<u64, usize>,
    received: BTreeMap<u64, Vec<usize>>,
    last: u64,
    /// One end is gone.
    closed: bool,
    failed: Option<Error>,
}

struct Group {
    number: u64,
    segments: Vec<(Segment, Option<usize>)>,
}

impl Link {
    /// Moves what can be moved.
    fn progress(&mut self) -> Result<()> {
        while let (Some((_, send)), Some(group)) = (self.sends.front(), self.receives.front_mut()) {
            let fits =
                |(segment, got): &&mut (Segment, Option<usize>)| got.is_none() && segment.tag == send.tag;
            let Some((place, got)) = group.segments.iter_mut().find(fits) else { break };
            if place.bytes < send.bytes {
                let text = format!("a message of {} bytes for a receive of {}", send.bytes, place.bytes);
                self.failed = Some(Error::new(ErrorKind::InvalidUsage, text));
                break;
            }
            // SAFETY: both callers keep their segments valid and to themselves until their requests are done.
            unsafe { std::ptr::copy(send.addr as *const u8, place.addr as *mut u8, send.bytes) };
            *got = Some(send.bytes);
            if let Some((number, send)) = self.sends.pop_front() {
                self.sent.insert(number, send.bytes);
            }
            if group.segments.iter().all(|(_, got)| got.is_some())
                && let Some(group) = self.receives.pop_front()
            {
                let sizes = group.segments.into_iter().filter_map(|(_, got)| got).collect();
                self.received.insert(group.number, sizes);
            }
        }
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// The meaning of a request that is not done.
    fn pending(&self, known: bool) -> Result<()> {
        match (known, self.closed) {
            (false, _) => Err(Error::internal("the request is unknown or over")),
            (true, true) => Err(Error::remote("the peer closed the connection")),
            (true, false) => Ok(()),
        }
    }
}

/// One end of a link. Requests are numbered per link.
struct End {
    link: Arc<Mutex<Link>>,
    regions: BTreeMap<u64, Region>,
}

impl End {
    fn new(link: Arc<Mutex<Link>>) -> Self {
        Self { link, regions: BTreeMap::new() }
    }

    fn add(&mut self, region: &Region) -> Result<Registration> {
        if region.kind != MemoryKinds::HOST {
            return Err(Error::unsupported("memory that is not the host's"));
        }
        let number = self.regions.keys().next_back().map_or(1, |last| last + 1);
        self.regions.insert(number, *region);
        Ok(Registration(number))
    }

    fn remove(&mut self, registration: Registration) -> Result<()> {
        let removed = self.regions.remove(&registration.0);
        removed.map(drop).ok_or_else(|| Error::internal(format!("{registration:?} is unknown")))
    }

    fn check(&self, segment: &Segment) -> Result<()> {
        let region = self.regions.get(&segment.registration.0);
        let region =
            region.ok_or_else(|| Error::internal(format!("{:?} is unknown", segment.registration)))?;
        let (begin, end) = (segment.addr, segment.addr.saturating_add(segment.bytes as u64));
        if begin < region.addr || end > region.addr + region.bytes as u64 {
            return Err(Error::internal("a segment is not inside its registered region"));
        }
        Ok(())
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let mut link = locked(&self.link);
        link.closed = true;
        // The memory behind what was posted may go away now.
        link.sends.clear();
        link.receives.clear();
    }
}

impl Sender for End {
    unsafe fn register(&mut self, region: &Region) -> Result<Registration> {
        self.add(region)
    }

    fn deregister(&mut self, registration: Registration) -> Result<()> {
        self.remove(registration)
    }

    unsafe fn isend(&mut self, segment: &Segment) -> Result<Option<Request>> {
        self.check(segment)?;
        let mut link = locked(&self.link);
        link.progress()?;
        link.pending(true)?;
        if link.sends.len() + link.sent.len() >= MAX_REQUESTS * hawser_plugin::net::MAX_RECVS {
            return Ok(None);
        }
        link.last += 1;
        let number = link.last;
        link.sends.push_back((number, *segment));
        Ok(Some(Request(number)))
    }

    fn test(&mut self, request: Request) -> Result<Option<usize>> {
        let mut link = locked(&self.link);
        link.progress()?;
        if let Some(bytes) = link.sent.remove(&request.0) {
            return Ok(Some(bytes));
        }
        let known = link.closed || link.sends.iter().any(|(number, _)| *number == request.0);
        link.pending(known).map(|()| None)
    }
}

impl Receiver for End {
    unsafe fn register(&mut self, region: &Region) -> Result<Registration> {
        self.add(region)
    }

    fn deregister(&mut self, registration: Registration) -> Result<()> {
        self.remove(registration)
    }

    unsafe fn irecv(&mut self, segments: &[Segment], _optional: bool) -> Result<Option<Request>> {
        segments.iter().try_for_each(|segment| self.check(segment))?;
        let mut link = locked(&self.link);
        link.progress()?;
        link.pending(true)?;
        if link.receives.len() + link.received.len() >= MAX_REQUESTS {
            return Ok(None);
        }
        link.last += 1;
        let number = link.last;
        let segments = segments.iter().map(|segment| (*segment, None)).collect();
        link.receives.push_back(Group { number, segments });
        Ok(Some(Request(number)))
    }

    fn test(&mut self, request: Request, sizes: &mut [usize]) -> Result<bool> {
        let mut link = locked(&self.link);
        link.progress()?;
        if let Some(got) = link.received.remove(&request.0) {
            sizes.iter_mut().zip(got).for_each(|(size, got)| *size = got);
            return Ok(true);
        }
        let known = link.closed || link.receives.iter().any(|group| group.number == request.0);
        link.pending(known).map(|()| false)
    }
}
