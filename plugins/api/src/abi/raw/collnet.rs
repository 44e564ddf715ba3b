//! Mirror of [`crate::collnet`].

use abi_stable::std_types::{RBox, ROption, RResult, RSlice, RString};
use abi_stable::{StableAbi, sabi_trait};

use super::net::{RawNetProperties, RawRegion};
use super::{RawError, RawHostBox};
use crate::collnet::{CollNetSegment, DataType, ReduceOp};
use crate::error::{Error, Result};
use crate::net::Registration;

#[sabi_trait]
pub trait RawCollNet: Send + Sync {
    fn name(&self) -> RResult<RString, RawError>;
    #[sabi(last_prefix_field)]
    fn open(&self, comm_id: u64, host: RawHostBox) -> RResult<RawCollNetContextBox, RawError>;
}

#[sabi_trait]
pub trait RawCollNetContext: Send + Sync {
    fn devices(&self) -> RResult<u32, RawError>;
    fn properties(&self, device: u32) -> RResult<RawNetProperties, RawError>;
    fn listen(&self, device: u32) -> RResult<RawCollListening, RawError>;
    fn supports(&self, dtype: i32, op: i32) -> RResult<bool, RawError>;
    #[sabi(last_prefix_field)]
    fn make_virtual(&self, members: RSlice<'_, u32>) -> RResult<u32, RawError>;
}

#[sabi_trait]
pub trait RawCollNetListener: Send {
    #[sabi(last_prefix_field)]
    fn connect(&mut self, handles: RSlice<'_, [u8; 128]>, rank: u32) -> RResult<RawCollNetCommBox, RawError>;
}

#[sabi_trait]
pub trait RawCollNetComm: Send {
    /// # Safety
    /// As `CollNetComm::register`.
    unsafe fn register(&mut self, region: RawRegion) -> RResult<u64, RawError>;
    fn deregister(&mut self, registration: u64) -> RResult<(), RawError>;
    /// # Safety
    /// As `CollNetComm::iall_reduce`.
    unsafe fn iall_reduce(
        &mut self,
        send: RawPart,
        recv: RawPart,
        count: usize,
        kind: RawReduction,
    ) -> RResult<ROption<u64>, RawError>;
    /// # Safety
    /// As `CollNetComm::iall_gather`.
    unsafe fn iall_gather(
        &mut self,
        send: RawPart,
        recv: RSlice<'_, RawPart>,
        window: RawWindow,
    ) -> RResult<ROption<u64>, RawError>;
    /// # Safety
    /// As `CollNetComm::ireduce_scatter`.
    unsafe fn ireduce_scatter(
        &mut self,
        send: RSlice<'_, RawPart>,
        recv: RawPart,
        window: RawWindow,
        kind: RawReduction,
    ) -> RResult<ROption<u64>, RawError>;
    /// # Safety
    /// As `CollNetComm::flush`.
    unsafe fn flush(&mut self, part: RawPart) -> RResult<ROption<u64>, RawError>;
    #[sabi(last_prefix_field)]
    fn test(&mut self, request: u64) -> RResult<ROption<usize>, RawError>;
}

pub type RawCollNetBox = RawCollNet_TO<'static, RBox<()>>;
pub type RawCollNetContextBox = RawCollNetContext_TO<'static, RBox<()>>;
pub type RawCollNetListenerBox = RawCollNetListener_TO<'static, RBox<()>>;
pub type RawCollNetCommBox = RawCollNetComm_TO<'static, RBox<()>>;

/// The result of `listen`.
#[repr(C)]
#[derive(StableAbi)]
pub struct RawCollListening {
    pub handle: [u8; 128],
    pub listener: RawCollNetListenerBox,
}

/// Type and operation, by number.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct RawReduction {
    pub dtype: i32,
    pub op: i32,
}

impl RawReduction {
    pub fn new(dtype: DataType, op: ReduceOp) -> Self {
        Self { dtype: dtype as i32, op: op as i32 }
    }

    /// # Errors
    /// A newer host may name types and operations that this side does not know.
    pub fn plain(self) -> Result<(DataType, ReduceOp)> {
        let dtype = DataType::ALL.into_iter().find(|t| *t as i32 == self.dtype);
        let all = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min, ReduceOp::Avg];
        let op = all.into_iter().find(|o| *o as i32 == self.op);
        dtype.zip(op).ok_or_else(|| {
            Error::unsupported(format!("element type {} with reduction {}", self.dtype, self.op))
        })
    }
}

/// The bytes of the whole that a call handles.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct RawWindow {
    pub bytes_per_rank: usize,
    pub offset: usize,
    pub bytes: usize,
}

/// [`CollNetSegment`].
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct RawPart {
    pub registration: u64,
    pub addr: u64,
    pub bytes: usize,
    pub room: [u64; 3],
}

impl RawPart {
    pub fn new((addr, registration): (u64, Registration), bytes: usize) -> Self {
        Self { registration: registration.0, addr, bytes, room: [0; 3] }
    }

    /// Address and registration.
    pub fn place(&self) -> (u64, Registration) {
        (self.addr, Registration(self.registration))
    }
}

impl From<&CollNetSegment> for RawPart {
    fn from(s: &CollNetSegment) -> Self {
        Self::new((s.addr, s.registration), s.bytes)
    }
}

impl From<&RawPart> for CollNetSegment {
    fn from(raw: &RawPart) -> Self {
        Self { registration: Registration(raw.registration), addr: raw.addr, bytes: raw.bytes }
    }
}
