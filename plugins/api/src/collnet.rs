//! The collnet interface: collectives that the network computes (SHARP and the like).
//!
//! One connection joins all ranks. The rules of [`crate::net`] hold here too.

use crate::error::{Error, Result};
use crate::host::Log;
use crate::net::{Handle, NetProperties, Region, Registration, Request};

/// Element types, with NCCL's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(i32)]
#[allow(missing_docs)] // NCCL's names
pub enum DataType {
    Int8 = 0,
    Uint8 = 1,
    Int32 = 2,
    Uint32 = 3,
    Int64 = 4,
    Uint64 = 5,
    Float16 = 6,
    Float32 = 7,
    Float64 = 8,
    Bfloat16 = 9,
    Float8e4m3 = 10,
    Float8e5m2 = 11,
}

impl DataType {
    /// All types in the order of their numbers.
    pub const ALL: [Self; 12] = [
        Self::Int8,
        Self::Uint8,
        Self::Int32,
        Self::Uint32,
        Self::Int64,
        Self::Uint64,
        Self::Float16,
        Self::Float32,
        Self::Float64,
        Self::Bfloat16,
        Self::Float8e4m3,
        Self::Float8e5m2,
    ];

    /// Bytes of an element.
    pub const fn size(self) -> usize {
        match self {
            Self::Int8 | Self::Uint8 | Self::Float8e4m3 | Self::Float8e5m2 => 1,
            Self::Float16 | Self::Bfloat16 => 2,
            Self::Int32 | Self::Uint32 | Self::Float32 => 4,
            Self::Int64 | Self::Uint64 | Self::Float64 => 8,
        }
    }
}

/// Reductions, with NCCL's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(i32)]
#[allow(missing_docs)] // NCCL's names
pub enum ReduceOp {
    Sum = 0,
    Prod = 1,
    Max = 2,
    Min = 3,
    Avg = 4,
}

/// A collnet plugin.
pub trait CollNet: Send + Sync {
    /// Name for logs. Constant.
    fn name(&self) -> &str;

    /// As [`crate::net::Net::open`].
    fn open(&self, comm_id: u64, log: &Log) -> Result<Box<dyn CollNetContext>>;
}

/// A plugin, opened for a communicator.
pub trait CollNetContext: Send + Sync {
    /// As [`crate::net::NetContext::devices`].
    fn devices(&self) -> Result<u32>;

    /// As [`crate::net::NetContext::properties`].
    fn properties(&self, device: u32) -> Result<NetProperties>;

    /// Opens this rank's end; the host carries the handle to all ranks.
    fn listen(&self, device: u32) -> Result<(Handle, Box<dyn CollNetListener>)>;

    /// True if the network can reduce this type with this operation.
    fn supports(&self, dtype: DataType, op: ReduceOp) -> Result<bool>;

    /// As [`crate::net::NetContext::make_virtual`].
    fn make_virtual(&self, members: &[u32]) -> Result<u32> {
        let _ = members;
        Err(Error::unsupported("a virtual device"))
    }
}

/// This rank's end before the ranks are joined.
pub trait CollNetListener: Send {
    /// Joins the ranks; `handles` holds everybody's in rank order. Collective; **may block** until all ranks
    /// call it.
    fn connect(self: Box<Self>, handles: &[Handle], rank: u32) -> Result<Box<dyn CollNetComm>>;
}

/// A part of a buffer for [`CollNetComm::iall_gather`] and [`CollNetComm::ireduce_scatter`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CollNetSegment {
    /// The registration that holds it.
    pub registration: Registration,
    /// Address of the first byte.
    pub addr: u64,
    /// The length in bytes.
    pub bytes: usize,
}

/// All ranks, joined. Requests are tested like those of a [`crate::net::Sender`].
pub trait CollNetComm: Send {
    /// As [`crate::net::Sender::register`].
    ///
    /// # Safety
    /// The memory stays valid until it is deregistered.
    unsafe fn register(&mut self, region: &Region) -> Result<Registration>;

    /// As [`crate::net::Sender::deregister`].
    fn deregister(&mut self, registration: Registration) -> Result<()>;

    /// Reduces `count` elements of all ranks' `send` into everybody's `recv` (addresses with registrations).
    ///
    /// # Safety
    /// Both buffers lie in their registrations and are left alone until the request is done.
    unsafe fn iall_reduce(
        &mut self,
        send: (u64, Registration),
        recv: (u64, Registration),
        count: usize,
        dtype: DataType,
        op: ReduceOp,
    ) -> Result<Option<Request>>;

    /// Gathers `bytes_per_rank` bytes of each rank into the parts `recv`; the window names which bytes of the
    /// whole are handled by this call.
    ///
    /// # Safety
    /// As [`CollNetComm::iall_reduce`].
    unsafe fn iall_gather(
        &mut self,
        send: (u64, Registration),
        recv: &[CollNetSegment],
        bytes_per_rank: usize,
        window: (usize, usize),
    ) -> Result<Option<Request>> {
        let _ = (send, recv, bytes_per_rank, window);
        Err(Error::unsupported("all-gather in the network"))
    }

    /// Reduces and scatters the parts `send`; see [`CollNetComm::iall_gather`].
    ///
    /// # Safety
    /// As [`CollNetComm::iall_reduce`].
    unsafe fn ireduce_scatter(
        &mut self,
        send: &[CollNetSegment],
        recv: (u64, Registration),
        bytes_per_rank: usize,
        window: (usize, usize),
        dtype: DataType,
        op: ReduceOp,
    ) -> Result<Option<Request>> {
        let _ = (send, recv, bytes_per_rank, window, dtype, op);
        Err(Error::unsupported("reduce-scatter in the network"))
    }

    /// As [`crate::net::Receiver::flush`].
    ///
    /// # Safety
    /// As [`CollNetComm::iall_reduce`].
    unsafe fn flush(
        &mut self,
        addr: u64,
        bytes: usize,
        registration: Registration,
    ) -> Result<Option<Request>> {
        let _ = (addr, bytes, registration);
        Ok(None)
    }

    /// True if a request is over: the bytes moved, once.
    fn test(&mut self, request: Request) -> Result<Option<usize>>;
}
