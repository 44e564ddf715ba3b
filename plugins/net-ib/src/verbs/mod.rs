//! The small part of verbs that this plugin uses, as a trait: [`real`] is libibverbs, [`soft`] is a double
//! for tests.
//!
//! Errors are errno values. Everything is non-blocking but for what drivers do when queue pairs and
//! registrations are made and destroyed. Dropping a [`Qp`] destroys it: when that returns nothing lands
//! through it any more, nothing is read for it, and none of its completions is polled afterwards.

pub(crate) mod gid;
#[cfg(test)]
mod headers;
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
    /// The name of the device, such as `mlx5_0`.
    pub name: String,
    /// The path of the device in sysfs, if it is a PCI device.
    pub pci_path: Option<String>,
    /// The GUID of the system image.
    pub guid: u64,
    /// Port numbers, from 1.
    pub ports: Vec<u8>,
    /// GPU memory: by address, by descriptor.
    pub peer_memory: bool,
    /// The device can register GPU memory by dma-buf.
    pub dmabuf: bool,
}

/// A port as it is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PortInfo {
    /// The port is active.
    pub active: bool,
    /// The speed in megabits per second.
    pub speed_mbps: u32,
    /// True for RoCE, false for InfiniBand.
    pub ethernet: bool,
    /// The local identifier on InfiniBand.
    pub lid: u16,
    /// As in `enum ibv_mtu`.
    pub mtu: u8,
    /// The number of entries in the table of addresses.
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
    /// The key by which this end's work requests name the memory.
    pub lkey: u32,
    /// The key by which the peer's work requests name the memory.
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
    /// The number of the work request.
    pub wr: u64,
    /// `enum ibv_wc_status`; with an error only `qp` and `wr` mean something.
    pub status: u32,
    /// The vendor's code for a failure.
    pub vendor: u32,
    /// The immediate of a write that arrived.
    pub imm: Option<u32>,
    /// The number of bytes that arrived.
    pub bytes: u32,
}

/// The capacities of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Caps {
    /// The most sends under way.
    pub sends: u32,
    /// The most receives that are posted.
    pub receives: u32,
    /// The most bytes that a send may carry inline.
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
    /// The number of the local port.
    pub port: u8,
    /// By address: over Ethernet, without a LID, or to another subnet.
    pub global: bool,
    /// The number of the peer's queue pair.
    pub qp: u32,
    /// First packet numbers: ours, theirs.
    pub psn: (u32, u32),
    /// The local identifier of the peer's port on InfiniBand.
    pub lid: u16,
    /// The address of the peer's port.
    pub gid: [u8; 16],
    /// Index of our own address.
    pub gid_index: u8,
    /// The packet size, as verbs encode it.
    pub mtu: u8,
    /// The service level on InfiniBand.
    pub service_level: u8,
    /// The traffic class of all packets.
    pub traffic_class: u8,
    /// `NCCL_IB_TIMEOUT`, `NCCL_IB_RETRY_CNT`.
    pub timeout: u8,
    /// The number of times that the device sends a packet again.
    pub retries: u8,
}

/// Memory of a work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    /// The address of the memory.
    pub addr: u64,
    /// The length in bytes.
    pub len: u32,
    /// The local key of the memory.
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
