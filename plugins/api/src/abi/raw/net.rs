//! Mirror of [`crate::net`].

use abi_stable::std_types::{RBox, ROption, RResult, RSlice, RSliceMut, RString, RVec};
use abi_stable::{StableAbi, sabi_trait};

use super::{RawError, RawHostBox};
use crate::net::{Flows, MemoryKinds, NetAttributes, NetProperties, Region, Registration, Segment};

#[sabi_trait]
pub trait RawNet: Send + Sync {
    fn name(&self) -> RResult<RString, RawError>;
    #[sabi(last_prefix_field)]
    fn open(&self, config: RawNetConfig) -> RResult<RawNetContextBox, RawError>;
}

#[sabi_trait]
pub trait RawNetContext: Send + Sync {
    fn devices(&self) -> RResult<u32, RawError>;
    fn properties(&self, device: u32) -> RResult<RawNetProperties, RawError>;
    fn listen(&self, device: u32) -> RResult<RawListening, RawError>;
    fn connect(&self, device: u32, handle: &[u8; 128]) -> RResult<RawConnectorBox, RawError>;
    fn make_virtual(&self, members: RSlice<'_, u32>) -> RResult<u32, RawError>;
    #[sabi(last_prefix_field)]
    fn set_attributes(&self, attributes: RawNetAttributes) -> RResult<(), RawError>;
}

#[sabi_trait]
pub trait RawListener: Send {
    #[sabi(last_prefix_field)]
    fn accept(&mut self) -> RResult<ROption<RawReceiverBox>, RawError>;
}

#[sabi_trait]
pub trait RawConnector: Send {
    #[sabi(last_prefix_field)]
    fn poll(&mut self) -> RResult<ROption<RawSenderBox>, RawError>;
}

#[sabi_trait]
pub trait RawSender: Send {
    /// # Safety
    /// As `Sender::register`.
    unsafe fn register(&mut self, region: RawRegion) -> RResult<u64, RawError>;
    fn deregister(&mut self, registration: u64) -> RResult<(), RawError>;
    /// # Safety
    /// As `Sender::isend`.
    unsafe fn isend(&mut self, segment: RawSegment) -> RResult<ROption<u64>, RawError>;
    #[sabi(last_prefix_field)]
    fn test(&mut self, request: u64) -> RResult<ROption<usize>, RawError>;
}

#[sabi_trait]
pub trait RawReceiver: Send {
    /// # Safety
    /// As `Receiver::register`.
    unsafe fn register(&mut self, region: RawRegion) -> RResult<u64, RawError>;
    fn deregister(&mut self, registration: u64) -> RResult<(), RawError>;
    /// # Safety
    /// As `Receiver::irecv`. Bit 0 of `flags`: optional completion.
    unsafe fn irecv(
        &mut self,
        segments: RSlice<'_, RawSegment>,
        flags: u64,
    ) -> RResult<ROption<u64>, RawError>;
    /// # Safety
    /// As `Receiver::flush`.
    unsafe fn flush(&mut self, segments: RSlice<'_, RawSegment>) -> RResult<ROption<u64>, RawError>;
    fn test(&mut self, request: u64, sizes: RSliceMut<'_, usize>) -> RResult<bool, RawError>;
    #[sabi(last_prefix_field)]
    fn consumed(&mut self, segments: usize, request: u64) -> RResult<(), RawError>;
}

pub type RawNetBox = RawNet_TO<'static, RBox<()>>;
pub type RawNetContextBox = RawNetContext_TO<'static, RBox<()>>;
pub type RawListenerBox = RawListener_TO<'static, RBox<()>>;
pub type RawConnectorBox = RawConnector_TO<'static, RBox<()>>;
pub type RawSenderBox = RawSender_TO<'static, RBox<()>>;
pub type RawReceiverBox = RawReceiver_TO<'static, RBox<()>>;

/// [`crate::net::NetConfig`]. The traffic class counts if bit 0 of `given` is set; `profiler` is the
/// callback's address.
#[repr(C)]
#[derive(StableAbi)]
pub struct RawNetConfig {
    pub comm_id: u64,
    pub given: u64,
    pub traffic_class: i32,
    pub spare: u32,
    pub profiler: usize,
    pub host: RawHostBox,
    pub room: [u64; 8],
    pub texts: RVec<RString>,
}

/// The result of `listen`.
#[repr(C)]
#[derive(StableAbi)]
pub struct RawListening {
    pub handle: [u8; 128],
    pub listener: RawListenerBox,
}

/// [`NetProperties`]. Bits of `flags`: 0 global registration, 1 force flush, 2 outlives members.
#[repr(C)]
#[derive(StableAbi)]
pub struct RawNetProperties {
    pub name: RString,
    pub pci_path: ROption<RString>,
    pub guid: u64,
    pub flags: u64,
    pub memory: u32,
    pub speed_mbps: u32,
    pub port: u32,
    pub latency_us: f32,
    pub max_comms: u32,
    pub max_recvs: u32,
    pub max_p2p_bytes: u64,
    pub max_collective_bytes: u64,
    pub max_multi_request: u32,
    pub rail: i16,
    pub plane: i16,
    pub offload: [i32; 2],
    pub members: RVec<u32>,
    pub room: [u64; 16],
    pub texts: RVec<RString>,
}

impl From<NetProperties> for RawNetProperties {
    fn from(p: NetProperties) -> Self {
        Self {
            name: p.name.into(),
            pci_path: p.pci_path.map(RString::from).into(),
            guid: p.guid,
            flags: u64::from(p.global_registration)
                | u64::from(p.force_flush) << 1
                | u64::from(p.outlives_members) << 2,
            memory: p.memory.0,
            speed_mbps: p.speed_mbps,
            port: p.port,
            latency_us: p.latency_us,
            max_comms: p.max_comms,
            max_recvs: p.max_recvs,
            max_p2p_bytes: p.max_p2p_bytes,
            max_collective_bytes: p.max_collective_bytes,
            max_multi_request: p.max_multi_request,
            rail: p.rail,
            plane: p.plane,
            offload: [p.offload.0, p.offload.1],
            members: p.members.into(),
            room: [0; 16],
            texts: RVec::new(),
        }
    }
}

impl From<RawNetProperties> for NetProperties {
    fn from(raw: RawNetProperties) -> Self {
        Self {
            name: raw.name.into(),
            pci_path: raw.pci_path.into_option().map(String::from),
            guid: raw.guid,
            memory: MemoryKinds(raw.memory),
            global_registration: raw.flags & 1 != 0,
            force_flush: raw.flags & 2 != 0,
            outlives_members: raw.flags & 4 != 0,
            speed_mbps: raw.speed_mbps,
            port: raw.port,
            latency_us: raw.latency_us,
            max_comms: raw.max_comms,
            max_recvs: raw.max_recvs,
            members: raw.members.into(),
            max_p2p_bytes: raw.max_p2p_bytes,
            max_collective_bytes: raw.max_collective_bytes,
            max_multi_request: raw.max_multi_request,
            rail: raw.rail,
            plane: raw.plane,
            offload: (raw.offload[0], raw.offload[1]),
        }
    }
}

/// [`NetAttributes`].
#[repr(C)]
#[derive(StableAbi)]
pub struct RawNetAttributes {
    pub send: [i32; 4],
    pub recv: [i32; 4],
    pub what: [u32; 3],
    pub spare: u32,
    pub room: [u64; 4],
}

impl From<&NetAttributes> for RawNetAttributes {
    fn from(a: &NetAttributes) -> Self {
        let flows = |f: &Flows| [f.max_peers, f.min_peers, f.max_flows, f.min_flows];
        Self { send: flows(&a.send), recv: flows(&a.recv), what: a.what, spare: 0, room: [0; 4] }
    }
}

impl From<RawNetAttributes> for NetAttributes {
    fn from(raw: RawNetAttributes) -> Self {
        let flows =
            |f: [i32; 4]| Flows { max_peers: f[0], min_peers: f[1], max_flows: f[2], min_flows: f[3] };
        Self { send: flows(raw.send), recv: flows(raw.recv), what: raw.what }
    }
}

/// [`Region`]. `dmabuf` is -1 without a descriptor.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct RawRegion {
    pub addr: u64,
    pub bytes: usize,
    pub kind: u32,
    pub dmabuf: i32,
    pub offset: u64,
    pub room: [u64; 4],
}

impl From<&Region> for RawRegion {
    fn from(r: &Region) -> Self {
        let (dmabuf, offset) = r.dmabuf.unwrap_or((-1, 0));
        Self { addr: r.addr, bytes: r.bytes, kind: r.kind.0, dmabuf, offset, room: [0; 4] }
    }
}

impl From<RawRegion> for Region {
    fn from(raw: RawRegion) -> Self {
        let dmabuf = (raw.dmabuf >= 0).then_some((raw.dmabuf, raw.offset));
        Self { addr: raw.addr, bytes: raw.bytes, kind: MemoryKinds(raw.kind), dmabuf }
    }
}

/// [`Segment`].
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct RawSegment {
    pub addr: u64,
    pub bytes: usize,
    pub registration: u64,
    pub profile: u64,
    pub tag: i32,
    pub spare: u32,
    pub room: [u64; 3],
}

impl From<&Segment> for RawSegment {
    fn from(s: &Segment) -> Self {
        let (registration, profile) = (s.registration.0, s.profile);
        Self { addr: s.addr, bytes: s.bytes, registration, profile, tag: s.tag, spare: 0, room: [0; 3] }
    }
}

impl From<&RawSegment> for Segment {
    fn from(raw: &RawSegment) -> Self {
        Self {
            addr: raw.addr,
            bytes: raw.bytes,
            registration: Registration(raw.registration),
            tag: raw.tag,
            profile: raw.profile,
        }
    }
}
