//! The plugin interface over [`Link`]: places where listeners are found, and the ends of connections.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hawser_plugin::net::*;
use hawser_plugin::{Error, ErrorKind, Result};

use crate::conditions::{Conditions, Draws};
use crate::link::{Link, Nic, RECEIVER, SENDER};
use crate::places::{Place, Site};
use crate::{Clock, Fabric, violated};

const MAGIC: &[u8; 8] = b"hawsrsim";

/// The devices that a context has.
const DEVICES: u32 = 2;

/// The net, opened for a communicator.
pub struct Context {
    conditions: Arc<Conditions>,
    parts: Arc<AtomicU64>,
    nics: [Arc<Nic>; DEVICES as usize],
    clock: Clock,
    site: Arc<Site>,
}

type Shared = Arc<Mutex<Link>>;

/// Listeners that wait for their senders.
static PLACES: Mutex<BTreeMap<u64, Shared>> = Mutex::new(BTreeMap::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Context {
    /// A context of a thread that is at a place.
    pub fn new(Fabric { conditions, parts, clock, places }: Fabric, place: Place) -> Self {
        let nics = [(); DEVICES as usize].map(|()| {
            let mut draws = Draws::new(conditions.seed, parts.fetch_add(1, Ordering::Relaxed));
            let dies = draws.percent(conditions.nic_deaths);
            let left = if dies { 1 + draws.below(conditions.within) } else { u64::MAX };
            Arc::new(Nic { left: AtomicU64::new(left) })
        });
        Self { conditions, parts, nics, clock, site: places.site(place) }
    }

    fn nic(&self, device: u32) -> Result<&Arc<Nic>> {
        let text = || format!("the simulated net has no device {device}, only 0 to {}", DEVICES - 1);
        self.nics.get(device as usize).ok_or_else(|| Error::new(ErrorKind::InvalidArgument, text()))
    }
}

impl NetContext for Context {
    fn devices(&self) -> Result<u32> {
        Ok(DEVICES)
    }

    fn properties(&self, device: u32) -> Result<NetProperties> {
        self.nic(device)?;
        let mut properties = NetProperties::new(format!("sim{device}"), device);
        properties.speed_mbps = u32::try_from(self.conditions.mbytes * 8).unwrap_or(u32::MAX);
        properties.latency_us = self.conditions.latency_us as f32;
        Ok(properties)
    }

    fn listen(&self, device: u32) -> Result<(Handle, Box<dyn Listener>)> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let nic = self.nic(device)?.clone();
        let mut link = Link::new(self.conditions.clone(), self.parts.fetch_add(1, Ordering::Relaxed));
        link.nics[RECEIVER] = Some(nic);
        link.sites[RECEIVER] = Some(self.site.clone());
        let (link, number) = (Arc::new(Mutex::new(link)), NEXT.fetch_add(1, Ordering::Relaxed));
        lock(&PLACES).insert(number, link.clone());
        let mut handle = [0; HANDLE_BYTES];
        handle[..8].copy_from_slice(MAGIC);
        handle[8..16].copy_from_slice(&number.to_le_bytes());
        handle[16..20].copy_from_slice(&std::process::id().to_le_bytes());
        Ok((handle, Box::new(Waiting { link, place: Some(number), clock: self.clock })))
    }

    fn connect(&self, device: u32, handle: &Handle) -> Result<Box<dyn Connector>> {
        let nic = self.nic(device)?.clone();
        if handle[..8] != *MAGIC {
            return Err(Error::new(ErrorKind::InvalidArgument, "the handle is none of the simulated net"));
        }
        if handle[16..20] != std::process::id().to_le_bytes() {
            let text = "the simulated net joins ranks of one process, and the peer is in another one";
            return Err(Error::remote(text));
        }
        let number = handle[8..16].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
        let mut places = lock(&PLACES);
        let link =
            places.get(&number).ok_or_else(|| Error::remote("nobody listens there in the simulated net"))?;
        let mut draws = Draws::new(self.conditions.seed, self.parts.fetch_add(1, Ordering::Relaxed));
        if draws.percent(self.conditions.refusals) {
            let refused = std::io::Error::from_raw_os_error(111);
            return Err(Error::system("connecting through the simulated net", refused));
        }
        let mut found = lock(link);
        if found.is_closed(RECEIVER) {
            return Err(Error::remote("nobody listens there in the simulated net any more"));
        }
        found.nics[SENDER] = Some(nic);
        found.sites[SENDER] = Some(self.site.clone());
        drop(found);
        let link = places.remove(&number).expect("it is there");
        Ok(Box::new(Waiting { link, place: None, clock: self.clock }))
    }
}

/// Either end before the connection is up.
struct Waiting {
    link: Shared,
    /// A listener's, until the sender has found it.
    place: Option<u64>,
    clock: Clock,
}

impl Waiting {
    fn end(&self, side: usize) -> Box<End> {
        Box::new(End { link: self.link.clone(), side, regions: BTreeMap::new(), next: 1, clock: self.clock })
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            lock(&PLACES).remove(&place);
        }
        let (mut link, is_listener) = (lock(&self.link), self.place.is_some());
        let (side, is_up) = match is_listener {
            true => (RECEIVER, link.is_accepted),
            false => (SENDER, link.is_connected),
        };
        if !is_up {
            link.close(side);
        }
    }
}

impl Connector for Waiting {
    fn poll(&mut self) -> Result<Option<Box<dyn Sender>>> {
        let mut link = lock(&self.link);
        if link.is_held_back(SENDER)? || link.not_now() {
            return Ok(None);
        }
        if link.is_closed(RECEIVER) {
            return Err(Error::remote("the listener of the simulated net is gone"));
        }
        link.is_connected = true;
        drop(link);
        Ok(Some(self.end(SENDER)))
    }
}

impl Listener for Waiting {
    fn accept(&mut self) -> Result<Option<Box<dyn Receiver>>> {
        let mut link = lock(&self.link);
        if link.is_held_back(RECEIVER)? || !link.is_connected || link.not_now() {
            return Ok(None);
        }
        link.is_accepted = true;
        drop(link);
        Ok(Some(self.end(RECEIVER)))
    }
}

/// One end of a connection.
struct End {
    link: Shared,
    side: usize,
    regions: BTreeMap<u64, (u64, usize)>,
    next: u64,
    clock: Clock,
}

impl End {
    fn now(&self) -> Duration {
        (self.clock)()
    }

    fn add_region(&mut self, region: &Region) -> Result<Registration> {
        if region.kind != MemoryKinds::HOST {
            return Err(Error::unsupported("memory of a GPU"));
        }
        self.regions.insert(self.next, (region.addr, region.bytes));
        self.next += 1;
        Ok(Registration(self.next - 1))
    }

    fn remove_region(&mut self, Registration(number): Registration) -> Result<()> {
        let Some((addr, bytes)) = self.regions.remove(&number) else {
            return Err(violated(format!("the host takes back the registration {number}, which is none")));
        };
        if self.side == SENDER && lock(&self.link).uses(SENDER, addr, bytes) {
            return Err(violated("the host takes back memory from which a send is in flight".to_owned()));
        }
        Ok(())
    }

    fn check(&self, segment: &Segment) -> Result<()> {
        let region = self.regions.get(&segment.registration.0);
        let is_inside = region.is_some_and(|(addr, bytes)| {
            segment.addr >= *addr && segment.addr + segment.bytes as u64 <= addr + *bytes as u64
        });
        if is_inside {
            return Ok(());
        }
        Err(violated(format!("a segment of {} bytes lies outside of its registration", segment.bytes)))
    }
}

impl Drop for End {
    fn drop(&mut self) {
        lock(&self.link).close(self.side);
    }
}

impl Sender for End {
    unsafe fn register(&mut self, region: &Region) -> Result<Registration> {
        self.add_region(region)
    }

    fn deregister(&mut self, registration: Registration) -> Result<()> {
        self.remove_region(registration)
    }

    unsafe fn isend(&mut self, segment: &Segment) -> Result<Option<Request>> {
        self.check(segment)?;
        let now = self.now();
        Ok(lock(&self.link).post_send(segment, now)?.map(Request))
    }

    fn test(&mut self, request: Request) -> Result<Option<usize>> {
        let now = self.now();
        lock(&self.link).test(SENDER, request.0, now)
    }
}

impl Receiver for End {
    unsafe fn register(&mut self, region: &Region) -> Result<Registration> {
        self.add_region(region)
    }

    fn deregister(&mut self, registration: Registration) -> Result<()> {
        self.remove_region(registration)
    }

    unsafe fn irecv(&mut self, segments: &[Segment], _optional: bool) -> Result<Option<Request>> {
        let [segment] = segments else {
            return Err(violated(format!("a group of {} receives, where one is offered", segments.len())));
        };
        self.check(segment)?;
        let now = self.now();
        Ok(lock(&self.link).post_receive(segment, now)?.map(Request))
    }

    fn test(&mut self, request: Request, sizes: &mut [usize]) -> Result<bool> {
        let now = self.now();
        let over = lock(&self.link).test(RECEIVER, request.0, now)?;
        if let Some(bytes) = over {
            sizes.fill(bytes);
        }
        Ok(over.is_some())
    }
}
