//! The small part of verbs that this plugin uses, as a trait: [`real`] is libibverbs, [`soft`] is a double
//! for tests.
//!
//! Errors are errno values. Everything is non-blocking but for what drivers do when queue pairs and
//! registrations are made and destroyed. Dropping a [`Qp`] destroys it: when that returns nothing lands
//! through it any more, nothing is read for it, and none of its completions is polled afterwards.

pub(crate) mod gid;
pub(crate) mod real;
pub mod soft;
pub(crate) mod sys;

use std::sync::Arc;

use hawser_plugin::net::Region;

/// An errno value.
pub(crate) type Errno = i32;

/// A source of devices: the machine, or a test double.
pub(crate) trait Verbs: Send + Sync {
    /// Opens all devices.
    ///
    /// # Errors
    /// One sentence that says why there are none.
    fn open(&self) -> Result<Vec<Arc<dyn Device>>, String>;
}

/// A constant description of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DeviceInfo {
    pub name: String,
    pub pci_path: Option<String>,
    pub guid: u64,
    /// Port numbers, from 1.
    pub ports: Vec<u8>,
    /// GPU memory: by address, by descriptor.
    pub peer_memory: bool,
    pub dmabuf: bool,
}

/// A port as it is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PortInfo {
    pub active: bool,
    pub speed_mbps: u32,
    pub ethernet: bool,
    pub lid: u16,
    /// As in `enum ibv_mtu`.
    pub mtu: u8,
    pub gids: u32,
}

/// An event that a device reports by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    PortDown(u8),
    PortUp(u8),
    /// Addresses of the port changed.
    Gid(u8),
    /// The device is of no use any more.
    Fatal,
}

/// A registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mr {
    pub lkey: u32,
    pub rkey: u32,
    /// The implementation's own.
    pub token: u64,
}

/// An opened device.
pub(crate) trait Device: Send + Sync {
    fn info(&self) -> &DeviceInfo;
    fn port(&self, port: u8) -> Result<PortInfo, Errno>;
    /// The address with this index; None: no such entry.
    fn gid(&self, port: u8, index: u32) -> Option<gid::Gid>;
    /// The network interface behind an address of an Ethernet port, if there is one.
    fn interface(&self, port: u8, gid: u32) -> Option<String>;
    /// The events since the last call. One caller.
    fn events(&self) -> Vec<Event>;

    /// # Safety
    /// The memory stays valid until it is deregistered.
    unsafe fn register(&self, region: &Region, relaxed: bool) -> Result<Mr, Errno>;
    fn deregister(&self, mr: Mr) -> Result<(), Errno>;

    /// A completion queue, which makes queue pairs that complete there.
    fn queue(&self, depth: u32) -> Result<Box<dyn Cq>, Errno>;
}

/// A completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wc {
    /// Number of the queue pair.
    pub qp: u32,
    pub wr: u64,
    /// `enum ibv_wc_status`; with an error only `qp` and `wr` mean something.
    pub status: u32,
    pub vendor: u32,
    /// The immediate of a write that arrived.
    pub imm: Option<u32>,
    pub bytes: u32,
}

/// The capacities of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Caps {
    pub sends: u32,
    pub receives: u32,
    pub inline: u32,
}

/// A completion queue.
pub(crate) trait Cq: Send {
    /// Appends completions that are there.
    fn poll(&mut self, out: &mut Vec<Wc>) -> Result<(), Errno>;
    /// A reliable connected queue pair, initialised for a port; receives may be posted to it.
    fn pair(&mut self, port: u8, pkey: u16, caps: Caps) -> Result<Box<dyn Qp>, Errno>;
}

/// The way to the peer's queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Route {
    pub port: u8,
    /// By address: over Ethernet, without a LID, or to another subnet.
    pub global: bool,
    pub qp: u32,
    /// First packet numbers: ours, theirs.
    pub psn: (u32, u32),
    pub lid: u16,
    pub gid: [u8; 16],
    /// Index of our own address.
    pub gid_index: u8,
    pub mtu: u8,
    pub service_level: u8,
    pub traffic_class: u8,
    /// `NCCL_IB_TIMEOUT`, `NCCL_IB_RETRY_CNT`.
    pub timeout: u8,
    pub retries: u8,
}

/// Memory of a work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub addr: u64,
    pub len: u32,
    pub lkey: u32,
}

/// A queue pair.
pub(crate) trait Qp: Send {
    fn number(&self) -> u32;
    /// Bytes that can be sent inline.
    fn inline(&self) -> u32;
    fn connect(&mut self, route: &Route) -> Result<(), Errno>;
    /// Into the error state: everything posted completes as flushed.
    fn stop(&mut self) -> Result<(), Errno>;

    /// # Safety
    /// The memory is writable and left alone until the completion, or until the pair is dropped.
    unsafe fn receive(&mut self, wr: u64, span: Span) -> Result<(), Errno>;
    /// # Safety
    /// The memory is readable until the completion, or until the pair is dropped; inline: until this returns.
    unsafe fn send(&mut self, wr: u64, span: Span, inline: bool) -> Result<(), Errno>;
    /// An RDMA write with immediate; `split`: as a write and an empty one with the immediate.
    ///
    /// # Safety
    /// As [`Qp::send`].
    unsafe fn write(
        &mut self,
        wr: u64,
        span: Span,
        to: (u64, u32),
        imm: u32,
        split: bool,
    ) -> Result<(), Errno>;
    /// An RDMA read.
    ///
    /// # Safety
    /// The memory is writable until the completion, or until the pair is dropped.
    unsafe fn read(&mut self, wr: u64, into: Span, from: (u64, u32)) -> Result<(), Errno>;
}
