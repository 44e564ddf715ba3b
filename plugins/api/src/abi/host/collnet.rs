//! CollNet plugins of libraries.

use abi_stable::std_types::RSlice;

use super::net::request;
use super::raw_host;
use crate::abi::raw::collnet::{
    RawCollListening, RawCollNetBox, RawCollNetCommBox, RawCollNetContextBox, RawCollNetListenerBox, RawPart,
    RawReduction, RawWindow,
};
use crate::abi::raw::plain;
use crate::collnet::{
    CollNet, CollNetComm, CollNetContext, CollNetListener, CollNetSegment, DataType, ReduceOp,
};
use crate::error::Result;
use crate::host::Log;
use crate::net::{Handle, NetProperties, Region, Registration, Request};

pub struct LoadedCollNet {
    pub name: String,
    pub raw: RawCollNetBox,
}

impl CollNet for LoadedCollNet {
    fn name(&self) -> &str {
        &self.name
    }

    fn open(&self, comm_id: u64, log: &Log) -> Result<Box<dyn CollNetContext>> {
        Ok(Box::new(LoadedContext(plain(self.raw.open(comm_id, raw_host(log)))?)))
    }
}

struct LoadedContext(RawCollNetContextBox);

impl CollNetContext for LoadedContext {
    fn devices(&self) -> Result<u32> {
        plain(self.0.devices())
    }

    fn properties(&self, device: u32) -> Result<NetProperties> {
        plain(self.0.properties(device))
    }

    fn listen(&self, device: u32) -> Result<(Handle, Box<dyn CollNetListener>)> {
        let listening: RawCollListening = plain(self.0.listen(device))?;
        Ok((listening.handle, Box::new(LoadedListener(listening.listener))))
    }

    fn supports(&self, dtype: DataType, op: ReduceOp) -> Result<bool> {
        plain(self.0.supports(dtype as i32, op as i32))
    }

    fn make_virtual(&self, members: &[u32]) -> Result<u32> {
        plain(self.0.make_virtual(members.into()))
    }
}

struct LoadedListener(RawCollNetListenerBox);

impl CollNetListener for LoadedListener {
    fn connect(mut self: Box<Self>, handles: &[Handle], rank: u32) -> Result<Box<dyn CollNetComm>> {
        Ok(Box::new(LoadedComm(plain(self.0.connect(handles.into(), rank))?)))
    }
}

struct LoadedComm(RawCollNetCommBox);

impl CollNetComm for LoadedComm {
    unsafe fn register(&mut self, region: &Region) -> Result<Registration> {
        // SAFETY: our caller keeps to the same contract.
        plain(unsafe { self.0.register(region.into()) }).map(Registration)
    }

    fn deregister(&mut self, registration: Registration) -> Result<()> {
        plain(self.0.deregister(registration.0))
    }

    unsafe fn iall_reduce(
        &mut self,
        send: (u64, Registration),
        recv: (u64, Registration),
        count: usize,
        dtype: DataType,
        op: ReduceOp,
    ) -> Result<Option<Request>> {
        let bytes = count.saturating_mul(dtype.size());
        let (send, recv) = (RawPart::new(send, bytes), RawPart::new(recv, bytes));
        // SAFETY: our caller keeps to the same contract.
        plain(unsafe { self.0.iall_reduce(send, recv, count, RawReduction::new(dtype, op)) }).map(request)
    }

    unsafe fn iall_gather(
        &mut self,
        send: (u64, Registration),
        recv: &[CollNetSegment],
        bytes_per_rank: usize,
        (offset, bytes): (usize, usize),
    ) -> Result<Option<Request>> {
        let recv: Vec<RawPart> = recv.iter().map(RawPart::from).collect();
        let window = RawWindow { bytes_per_rank, offset, bytes };
        let send = RawPart::new(send, bytes_per_rank);
        // SAFETY: our caller keeps to the same contract.
        plain(unsafe { self.0.iall_gather(send, RSlice::from_slice(&recv), window) }).map(request)
    }

    unsafe fn ireduce_scatter(
        &mut self,
        send: &[CollNetSegment],
        recv: (u64, Registration),
        bytes_per_rank: usize,
        (offset, bytes): (usize, usize),
        dtype: DataType,
        op: ReduceOp,
    ) -> Result<Option<Request>> {
        let send: Vec<RawPart> = send.iter().map(RawPart::from).collect();
        let window = RawWindow { bytes_per_rank, offset, bytes };
        let (send, recv) = (RSlice::from_slice(&send), RawPart::new(recv, bytes_per_rank));
        // SAFETY: our caller keeps to the same contract.
        let begun = unsafe { self.0.ireduce_scatter(send, recv, window, RawReduction::new(dtype, op)) };
        plain(begun).map(request)
    }

    unsafe fn flush(
        &mut self,
        addr: u64,
        bytes: usize,
        registration: Registration,
    ) -> Result<Option<Request>> {
        // SAFETY: our caller keeps to the same contract.
        plain(unsafe { self.0.flush(RawPart::new((addr, registration), bytes)) }).map(request)
    }

    fn test(&mut self, request: Request) -> Result<Option<usize>> {
        plain(self.0.test(request.0))
    }
}
