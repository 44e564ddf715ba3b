//! A Rust net inside this process, to be exported to C: it counts from 0, answers "not now" often, and panics
//! on demand.

#![allow(dead_code)] // each test file uses a part of it

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use hawser_plugin::net::{
    Connector, HANDLE_BYTES, Handle, Listener, MemoryKinds, NetAttributes, NetConfig, NetContext,
    NetProperties, Receiver, Region, Registration, Request, Segment, Sender,
};
use hawser_plugin::{Error, ErrorKind, Net, Result};

/// Physical devices.
pub const DEVICES: u32 = 3;
/// A message with this tag makes `isend` panic.
pub const PANIC_TAG: i32 = 666;
/// Polls of a connector that find nothing.
const POLLS: usize = 3;

/// The plugin. What is public is for tests to look at.
#[derive(Default)]
pub struct Loopback {
    pub name: &'static str,
    pub shared: Arc<Shared>,
    /// Makes `open` fail.
    pub broken: AtomicBool,
}

/// The part that all contexts have in common.
#[derive(Default)]
pub struct Shared {
    /// Communicator and traffic class of each `open`.
    pub opened: Mutex<Vec<(u64, Option<i32>)>>,
    pub contexts: AtomicUsize,
    pub connections: AtomicUsize,
    pub connectors: AtomicUsize,
    pub optional: AtomicUsize,
    pub attributes: Mutex<Option<NetAttributes>>,
    pub regions: Mutex<Vec<Region>>,
    listeners: Mutex<HashMap<u64, Arc<Mutex<Pipe>>>>,
    next_listener: AtomicUsize,
}

impl Net for Loopback {
    fn name(&self) -> &str {
        self.name
    }

    fn open(&self, config: &NetConfig) -> Result<Box<dyn NetContext>> {
        if self.broken.load(Relaxed) {
            return Err(Error::new(ErrorKind::System, "no network today"));
        }
        self.shared.opened.lock().unwrap().push((config.comm_id, config.traffic_class));
        self.shared.contexts.fetch_add(1, Relaxed);
        Ok(Box::new(Context { shared: self.shared.clone(), virtuals: Mutex::default() }))
    }
}

struct Context {
    shared: Arc<Shared>,
    virtuals: Mutex<Vec<Vec<u32>>>,
}

impl Drop for Context {
    fn drop(&mut self) {
        self.shared.contexts.fetch_sub(1, Relaxed);
    }
}

impl Context {
    fn check(&self, device: u32) -> Result<()> {
        let none = || Error::new(ErrorKind::InvalidArgument, format!("no device {device}"));
        if device < self.devices()? { Ok(()) } else { Err(none()) }
    }
}

impl NetContext for Context {
    fn devices(&self) -> Result<u32> {
        Ok(DEVICES + self.virtuals.lock().unwrap().len() as u32)
    }

    fn properties(&self, device: u32) -> Result<NetProperties> {
        self.check(device)?;
        Ok(properties(device, self.virtuals.lock().unwrap().get((device.max(DEVICES) - DEVICES) as usize)))
    }

    fn listen(&self, device: u32) -> Result<(Handle, Box<dyn Listener>)> {
        self.check(device)?;
        let id = self.shared.next_listener.fetch_add(1, Relaxed) as u64;
        let pipe = Arc::new(Mutex::new(Pipe::default()));
        self.shared.listeners.lock().unwrap().insert(id, pipe.clone());
        let mut handle = [0xff; HANDLE_BYTES]; // all of it is in use
        handle[..8].copy_from_slice(&id.to_le_bytes());
        Ok((handle, Box::new(Waiting { pipe, shared: self.shared.clone() })))
    }

    fn connect(&self, device: u32, handle: &Handle) -> Result<Box<dyn Connector>> {
        self.check(device)?;
        let id = u64::from_le_bytes(handle[..8].try_into().unwrap());
        let pipe = self.shared.listeners.lock().unwrap().get(&id).cloned();
        let pipe = pipe.ok_or_else(|| Error::remote("nobody listens there"))?;
        self.shared.connectors.fetch_add(1, Relaxed);
        Ok(Box::new(Calling { pipe, shared: self.shared.clone(), polls: 0 }))
    }

    fn make_virtual(&self, members: &[u32]) -> Result<u32> {
        members.iter().try_for_each(|member| self.check(*member))?;
        let mut virtuals = self.virtuals.lock().unwrap();
        virtuals.push(members.to_vec());
        Ok(DEVICES + virtuals.len() as u32 - 1)
    }

    fn set_attributes(&self, attributes: &NetAttributes) -> Result<()> {
        *self.shared.attributes.lock().unwrap() = Some(*attributes);
        Ok(())
    }
}

/// The properties of the devices.
pub fn properties(device: u32, members: Option<&Vec<u32>>) -> NetProperties {
    let mut properties = NetProperties::new(format!("loop{device}"), device);
    properties.pci_path = (device == 1).then(|| "/sys/devices/loop".into());
    properties.memory = MemoryKinds(5);
    properties.global_registration = true;
    properties.speed_mbps = 100 * device;
    properties.max_comms = 1000;
    properties.max_recvs = 8;
    properties.max_p2p_bytes = 1 << 36;
    properties.max_multi_request = 3;
    (properties.rail, properties.plane) = (device as i16, 1);
    if device >= DEVICES {
        properties.members = members.unwrap().clone();
    }
    properties
}

struct Waiting {
    pipe: Arc<Mutex<Pipe>>,
    shared: Arc<Shared>,
}

impl Listener for Waiting {
    fn accept(&mut self) -> Result<Option<Box<dyn Receiver>>> {
        if !self.pipe.lock().unwrap().connected {
            return Ok(None);
        }
        Ok(Some(Box::new(End::new(&self.pipe, &self.shared))))
    }
}

struct Calling {
    pipe: Arc<Mutex<Pipe>>,
    shared: Arc<Shared>,
    polls: usize,
}

impl Connector for Calling {
    fn poll(&mut self) -> Result<Option<Box<dyn Sender>>> {
        self.polls += 1;
        if self.polls <= POLLS {
            return Ok(None);
        }
        assert_eq!(self.polls, POLLS + 1, "polled after it had connected");
        self.pipe.lock().unwrap().connected = true;
        Ok(Some(Box::new(End::new(&self.pipe, &self.shared))))
    }
}

impl Drop for Calling {
    fn drop(&mut self) {
        self.shared.connectors.fetch_sub(1, Relaxed);
    }
}

#[derive(Default)]
struct Pipe {
    connected: bool,
    next: u64,
    sends: VecDeque<(u64, Segment)>,
    receives: VecDeque<(u64, Vec<Segment>, Vec<Option<usize>>)>,
    /// Requests that are over, with the bytes of their segments.
    over: HashMap<u64, Vec<usize>>,
}

impl Pipe {
    fn id(&mut self) -> Request {
        self.next += 1;
        Request(self.next - 1)
    }

    /// Sends and receives meet, oldest first.
    fn meet(&mut self) {
        while let (Some((id, from)), Some((into, segments, sizes))) =
            (self.sends.front(), self.receives.front_mut())
        {
            let fits = |at: &usize| sizes[*at].is_none() && segments[*at].tag == from.tag;
            let at = (0..segments.len()).find(fits).expect("a buffer with this tag");
            assert!(from.bytes <= segments[at].bytes);
            // SAFETY: both lie in memory that their owners leave alone until the requests are over.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    from.addr as *const u8,
                    segments[at].addr as *mut u8,
                    from.bytes,
                )
            };
            sizes[at] = Some(from.bytes);
            self.over.insert(*id, vec![from.bytes]);
            if let Some(sizes) = sizes.iter().copied().collect::<Option<Vec<_>>>() {
                self.over.insert(*into, sizes);
                self.receives.pop_front();
            }
            self.sends.pop_front();
        }
    }
}

/// Either end of a connection.
struct End {
    pipe: Arc<Mutex<Pipe>>,
    shared: Arc<Shared>,
    registered: u64,
    calls: usize,
}

impl End {
    fn new(pipe: &Arc<Mutex<Pipe>>, shared: &Arc<Shared>) -> Self {
        shared.connections.fetch_add(1, Relaxed);
        Self { pipe: pipe.clone(), shared: shared.clone(), registered: 0, calls: 0 }
    }

    fn register(&mut self, region: &Region) -> Registration {
        self.shared.regions.lock().unwrap().push(*region);
        self.registered += 1;
        Registration(self.registered - 1)
    }

    fn deregister(&self, registration: Registration) -> Result<()> {
        let unknown = || Error::internal(format!("no registration {}", registration.0));
        if registration.0 < self.registered { Ok(()) } else { Err(unknown()) }
    }

    /// Every third call finds no room.
    fn has_room(&mut self, segments: &[Segment]) -> bool {
        assert!(segments.iter().all(|segment| segment.registration.0 < self.registered));
        self.calls += 1;
        !self.calls.is_multiple_of(3)
    }

    fn test(&mut self, request: Request) -> Option<Vec<usize>> {
        let mut pipe = self.pipe.lock().unwrap();
        pipe.meet();
        pipe.over.remove(&request.0)
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.shared.connections.fetch_sub(1, Relaxed);
    }
}

impl Sender for End {
    unsafe fn register(&mut self, region: &Region) -> Result<Registration> {
        Ok(End::register(self, region))
    }

    fn deregister(&mut self, registration: Registration) -> Result<()> {
        End::deregister(self, registration)
    }

    unsafe fn isend(&mut self, segment: &Segment) -> Result<Option<Request>> {
        assert_ne!(segment.tag, PANIC_TAG, "panics on demand");
        if !self.has_room(&[*segment]) {
            return Ok(None);
        }
        let mut pipe = self.pipe.lock().unwrap();
        let id = pipe.id();
        pipe.sends.push_back((id.0, *segment));
        Ok(Some(id))
    }

    fn test(&mut self, request: Request) -> Result<Option<usize>> {
        Ok(End::test(self, request).map(|sizes| sizes[0]))
    }
}

impl Receiver for End {
    unsafe fn register(&mut self, region: &Region) -> Result<Registration> {
        Ok(End::register(self, region))
    }

    fn deregister(&mut self, registration: Registration) -> Result<()> {
        End::deregister(self, registration)
    }

    unsafe fn irecv(&mut self, segments: &[Segment], optional_completion: bool) -> Result<Option<Request>> {
        if !self.has_room(segments) {
            return Ok(None);
        }
        self.shared.optional.fetch_add(usize::from(optional_completion), Relaxed);
        let mut pipe = self.pipe.lock().unwrap();
        let id = pipe.id();
        pipe.receives.push_back((id.0, segments.to_vec(), vec![None; segments.len()]));
        Ok(Some(id))
    }

    unsafe fn flush(&mut self, segments: &[Segment]) -> Result<Option<Request>> {
        if segments.iter().all(|segment| segment.bytes == 0) {
            return Ok(None);
        }
        let mut pipe = self.pipe.lock().unwrap();
        let id = pipe.id();
        pipe.over.insert(id.0, Vec::new());
        Ok(Some(id))
    }

    fn test(&mut self, request: Request, sizes: &mut [usize]) -> Result<bool> {
        let Some(known) = End::test(self, request) else { return Ok(false) };
        assert_eq!(sizes.len(), known.len());
        sizes.copy_from_slice(&known);
        Ok(true)
    }
}
