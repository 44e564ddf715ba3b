//! The net interface: moves bytes between hosts.
//!
//! The way of a connection: [`Net::open`] once per communicator, [`NetContext::listen`] at the receiver,
//! whose [`Handle`] the host carries to the sender, [`NetContext::connect`] there, and both ends are polled
//! until [`Listener::accept`] and [`Connector::poll`] give a [`Receiver`] and a [`Sender`]. A connection is
//! one-way. Memory is registered before it is used. Sends match receives **strictly in the order in which
//! they were posted**.
//!
//! Rules for every method unless it says otherwise: it never waits for the peer or the network (`Ok(None)`
//! means "not now, ask again with the same arguments"); it may be called from any thread, but never from two
//! threads at once for one object; a panic is turned into an error by the export macros, and the plugin is
//! not used any further. Dropping an object closes it; the host drops connections before the context, and the
//! context before the plugin.

use crate::error::{Error, Result};
use crate::host::{Log, NetProfiler};

/// Bytes of a [`Handle`].
pub const HANDLE_BYTES: usize = 128;
/// Requests that the host keeps in flight on a connection at most. With grouped receives a sender must hold
/// this many times [`NetProperties::max_recvs`].
pub const MAX_REQUESTS: usize = 32;
/// Receives that the host groups at most.
pub const MAX_RECVS: usize = 8;
/// Members of a virtual device at most.
pub const MAX_VIRTUAL: usize = 8;

/// The address of a listener: opaque bytes that the host carries to the sender.
pub type Handle = [u8; HANDLE_BYTES];

/// The kinds of memory that a plugin can read and write: a bit set (NCCL's numbers).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryKinds(pub u32);

impl MemoryKinds {
    /// Host memory.
    pub const HOST: Self = Self(1);
    /// GPU memory by address (GPUDirect RDMA through a peer-memory driver).
    pub const CUDA: Self = Self(2);
    /// GPU memory by DMA-BUF descriptor.
    pub const DMABUF: Self = Self(4);

    /// True if all of `other` is in.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// A net plugin.
pub trait Net: Send + Sync {
    /// Name in `NCCL_NET` and logs, compared without case. Constant.
    fn name(&self) -> &str;

    /// Makes the plugin ready for a communicator. Blocking: may take as long as opening devices does; no
    /// network traffic that waits for peers. Thread: may run at the same time for several communicators.
    ///
    /// # Errors
    /// Any: the host says why and takes the next net, unless the user demanded this one.
    fn open(&self, config: &NetConfig) -> Result<Box<dyn NetContext>>;
}

/// The facts about a communicator that a net is opened with.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct NetConfig {
    /// A number that is equal on all ranks of the communicator, and another one for other communicators.
    pub comm_id: u64,
    /// Traffic class that the user wants for the packets (`ncclConfig_t::trafficClass`); None = not set.
    pub traffic_class: Option<i32>,
    /// The log for lines.
    pub log: Log,
    /// The function through which the net reports events, if a profiler wants them.
    pub profiler: Option<NetProfiler>,
}

impl NetConfig {
    /// A config with the given id; nothing else is set.
    pub fn new(comm_id: u64, log: Log) -> Self {
        Self { comm_id, traffic_class: None, log, profiler: None }
    }
}

/// A plugin, opened for a communicator. Its methods may be called by several threads at once.
pub trait NetContext: Send + Sync {
    /// Number of devices: physical ones first, then the virtual ones made so far. 0 = not usable here; the
    /// host goes on to the next net. Devices never go away or change their number.
    fn devices(&self) -> Result<u32>;

    /// The properties of a device. They never change.
    fn properties(&self, device: u32) -> Result<NetProperties>;

    /// Opens a place to which one sender will connect. Must return at once.
    fn listen(&self, device: u32) -> Result<(Handle, Box<dyn Listener>)>;

    /// Begins to connect to the listener with this handle. Must return at once; the work is done by
    /// [`Connector::poll`].
    fn connect(&self, device: u32, handle: &Handle) -> Result<Box<dyn Connector>>;

    /// Makes a virtual device of several physical ones and returns its number. All members carry the traffic
    /// of its connections.
    fn make_virtual(&self, members: &[u32]) -> Result<u32> {
        let _ = members;
        Err(Error::unsupported("a virtual device"))
    }

    /// Tells what the communicator will do with its connections. A hint: errors are logged, no more.
    fn set_attributes(&self, attributes: &NetAttributes) -> Result<()> {
        let _ = attributes;
        Ok(())
    }
}

/// The properties of a net device.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct NetProperties {
    /// For logs. Not unique.
    pub name: String,
    /// Path in sysfs of the PCI device; None for virtual devices and software.
    pub pci_path: Option<String>,
    /// Equal for ports that share one physical link.
    pub guid: u64,
    /// The kinds of memory that the device can read and write.
    pub memory: MemoryKinds,
    /// A registration at one connection is valid for all of them.
    pub global_registration: bool,
    /// Every receive into GPU memory must be followed by a flush.
    pub force_flush: bool,
    /// Megabits per second; 0 = unknown.
    pub speed_mbps: u32,
    /// Port of the device, from 0 or 1.
    pub port: u32,
    /// Microseconds; 0 = unknown.
    pub latency_us: f32,
    /// Connections at most.
    pub max_comms: u32,
    /// Receives that may be grouped in one call (1 to [`MAX_RECVS`]).
    pub max_recvs: u32,
    /// Physical devices behind it; itself if it is physical.
    pub members: Vec<u32>,
    /// Connections of a virtual device that this one is a member of go on when other members are lost. Hosts
    /// then make one of all devices that they use side by side.
    pub outlives_members: bool,
    /// Longest send of point-to-point traffic in bytes.
    pub max_p2p_bytes: u64,
    /// Longest message of a collective operation in bytes.
    pub max_collective_bytes: u64,
    /// Requests that one grouped call may hold.
    pub max_multi_request: u32,
    /// Rail of a multi-rail network; -1 = unknown.
    pub rail: i16,
    /// Plane of a multi-plane network; -1 = unknown.
    pub plane: i16,
    /// NCCL's device-offload type and version; 0 and 0 = data moves through host calls (all that this host
    /// uses).
    pub offload: (i32, i32),
}

impl NetProperties {
    /// A device with the defaults that NCCL fills in for plugins that do not say.
    pub fn new(name: impl Into<String>, device: u32) -> Self {
        Self {
            name: name.into(),
            pci_path: None,
            guid: u64::from(device),
            memory: MemoryKinds::HOST,
            global_registration: false,
            force_flush: false,
            speed_mbps: 0,
            port: 0,
            latency_us: 0.0,
            max_comms: 65536,
            max_recvs: 1,
            members: vec![device],
            outlives_members: false,
            max_p2p_bytes: 1 << 30,
            max_collective_bytes: 512 << 20,
            max_multi_request: 1,
            rail: -1,
            plane: -1,
            offload: (0, 0),
        }
    }
}

/// The use that a communicator will make of its connections, one entry per direction (send, receive). -1 =
/// not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NetAttributes {
    /// As a sender.
    pub send: Flows,
    /// As a receiver.
    pub recv: Flows,
    /// NCCL's function number, algorithm number and protocol number bit sets.
    pub what: [u32; 3],
}

/// Numbers of peers and flows in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flows {
    /// Peers at the same time, at most.
    pub max_peers: i32,
    /// Peers at the same time, at least.
    pub min_peers: i32,
    /// Connections per peer, at most.
    pub max_flows: i32,
    /// Connections per peer, at least.
    pub min_flows: i32,
}

impl Default for Flows {
    fn default() -> Self {
        Self { max_peers: -1, min_peers: -1, max_flows: -1, min_flows: -1 }
    }
}

/// Waits for the sender of a handle.
pub trait Listener: Send {
    /// The connection, once the sender is there. After `Some` the listener is only dropped.
    fn accept(&mut self) -> Result<Option<Box<dyn Receiver>>>;
}

/// A connection on its way.
pub trait Connector: Send {
    /// The connection, once it is up. After `Some` the connector is only dropped. Whether the receiver has to
    /// accept first is the plugin's choice, so hosts poll connectors and listeners in turn.
    fn poll(&mut self) -> Result<Option<Box<dyn Sender>>>;
}

/// Memory to be registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// Address of the first byte.
    pub addr: u64,
    /// The length in bytes.
    pub bytes: usize,
    /// Exactly one kind; with [`MemoryKinds::DMABUF`] `dmabuf` is set.
    pub kind: MemoryKinds,
    /// Descriptor and offset of the memory within it. Stays the host's.
    pub dmabuf: Option<(i32, u64)>,
}

/// Names a registered region at the connection that made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Registration(pub u64);

/// Names a request in flight at its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Request(pub u64);

/// A piece of registered memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Address of the first byte.
    pub addr: u64,
    /// The length in bytes. 0 is allowed: it matches a message without payload.
    pub bytes: usize,
    /// The registration that holds it.
    pub registration: Registration,
    /// Picks the buffer inside a grouped receive: a send takes the first one of the group with its tag that
    /// no earlier send took.
    pub tag: i32,
    /// NCCL's parent handle for network events; 0 = none.
    pub profile: u64,
}

/// The sending end of a connection.
pub trait Sender: Send {
    /// Makes memory usable for this connection. May block for as long as the driver takes.
    ///
    /// # Errors
    /// `Unsupported` for a kind of memory that the properties do not name.
    ///
    /// # Safety
    /// The memory stays valid until it is deregistered.
    unsafe fn register(&mut self, region: &Region) -> Result<Registration>;

    /// Inverse of `register`. No request that uses it is in flight.
    fn deregister(&mut self, registration: Registration) -> Result<()>;

    /// Begins to send. `None`: no room for a request now, or the receiver is not ready.
    ///
    /// # Safety
    /// The segment lies in its registered region and is not written until the request is done.
    unsafe fn isend(&mut self, segment: &Segment) -> Result<Option<Request>>;

    /// Asks whether a request is over: the number of bytes sent, once, after which the request is dead. Hosts
    /// test the oldest request first and may give up on younger ones when it is not over.
    fn test(&mut self, request: Request) -> Result<Option<usize>>;
}

/// The receiving end of a connection.
pub trait Receiver: Send {
    /// As [`Sender::register`].
    ///
    /// # Safety
    /// The memory stays valid until it is deregistered.
    unsafe fn register(&mut self, region: &Region) -> Result<Registration>;

    /// As [`Sender::deregister`], but after a failure or an abort receives may be in flight: the receiver is
    /// dropped right after.
    fn deregister(&mut self, registration: Registration) -> Result<()>;

    /// Begins to receive into one segment, or into a group of up to [`NetProperties::max_recvs`] that is one
    /// request. A segment may be longer than what is sent, never shorter. With `optional_completion` the
    /// caller finds out by itself that the data are there (flags in the data); the plugin may then complete
    /// early and write twice.
    ///
    /// # Safety
    /// The segments lie in their registered regions and are not touched until the request is done.
    unsafe fn irecv(&mut self, segments: &[Segment], optional_completion: bool) -> Result<Option<Request>>;

    /// Makes what finished receives wrote to GPU memory visible to the GPU. `Ok(None)`: nothing to wait for.
    ///
    /// # Safety
    /// As [`Receiver::irecv`].
    unsafe fn flush(&mut self, segments: &[Segment]) -> Result<Option<Request>> {
        let _ = segments;
        Ok(None)
    }

    /// True once a request is over, after which the request is dead. `sizes` has one entry per
    /// segment of the request and gets the bytes received; a plugin that does not know leaves them. A flush
    /// has no sizes.
    fn test(&mut self, request: Request, sizes: &mut [usize]) -> Result<bool>;

    /// The GPU has read the first `segments` buffers of the request (device offload only).
    fn consumed(&mut self, segments: usize, request: Request) -> Result<()> {
        let _ = (segments, request);
        Ok(())
    }
}
