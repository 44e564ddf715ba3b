//! CollNet plugins.

use std::sync::Arc;

use abi_stable::std_types::{ROption, RResult, RSlice, RString};
use abi_stable::type_level::downcasting::TD_Opaque;

use super::Shield;
use super::net::number;
use crate::abi::raw::collnet::{
    RawCollListening, RawCollNet, RawCollNetComm, RawCollNetComm_TO, RawCollNetCommBox, RawCollNetContext,
    RawCollNetContext_TO, RawCollNetContextBox, RawCollNetListener, RawCollNetListener_TO, RawPart,
    RawReduction, RawWindow,
};
use crate::abi::raw::net::{RawNetProperties, RawRegion};
use crate::abi::raw::{RawError, RawHostBox, plain_log};
use crate::collnet::{CollNet, CollNetComm, CollNetContext, CollNetListener, CollNetSegment};
use crate::error::ErrorKind;
use crate::net::{Registration, Request};

impl RawCollNet for Shield<Arc<dyn CollNet>> {
    fn name(&self) -> RResult<RString, RawError> {
        self.call(|net| Ok(net.name().into()))
    }

    fn open(&self, comm_id: u64, host: RawHostBox) -> RResult<RawCollNetContextBox, RawError> {
        let log = plain_log(host);
        self.guard.log_to(&log);
        self.call(|net| {
            let context = self.child(net.open(comm_id, &log)?);
            Ok(RawCollNetContext_TO::from_value(context, TD_Opaque))
        })
    }
}

impl RawCollNetContext for Shield<Box<dyn CollNetContext>> {
    fn devices(&self) -> RResult<u32, RawError> {
        self.call(|context| context.devices())
    }

    fn properties(&self, device: u32) -> RResult<RawNetProperties, RawError> {
        self.call(|context| Ok(context.properties(device)?.into()))
    }

    fn listen(&self, device: u32) -> RResult<RawCollListening, RawError> {
        self.call(|context| {
            let (handle, listener) = context.listen(device)?;
            let listener = RawCollNetListener_TO::from_value(self.child(listener), TD_Opaque);
            Ok(RawCollListening { handle, listener })
        })
    }

    fn supports(&self, dtype: i32, op: i32) -> RResult<bool, RawError> {
        self.call(|context| match (RawReduction { dtype, op }).plain() {
            Ok((dtype, op)) => context.supports(dtype, op),
            Err(error) if error.kind == ErrorKind::Unsupported => Ok(false),
            Err(error) => Err(error),
        })
    }

    fn make_virtual(&self, members: RSlice<'_, u32>) -> RResult<u32, RawError> {
        self.call(|context| context.make_virtual(&members))
    }
}

impl RawCollNetListener for Shield<Box<dyn CollNetListener>> {
    fn connect(&mut self, handles: RSlice<'_, [u8; 128]>, rank: u32) -> RResult<RawCollNetCommBox, RawError> {
        let guard = self.guard.clone();
        self.call_once(|listener| {
            let comm = Shield { inner: Some(listener.connect(&handles, rank)?), guard };
            Ok(RawCollNetComm_TO::from_value(comm, TD_Opaque))
        })
    }
}

impl RawCollNetComm for Shield<Box<dyn CollNetComm>> {
    unsafe fn register(&mut self, region: RawRegion) -> RResult<u64, RawError> {
        // SAFETY: the host keeps to the contract of `CollNetComm::register`.
        self.call_mut(|comm| Ok(unsafe { comm.register(&region.into()) }?.0))
    }

    fn deregister(&mut self, registration: u64) -> RResult<(), RawError> {
        self.call_mut(|comm| comm.deregister(Registration(registration)))
    }

    unsafe fn iall_reduce(
        &mut self,
        send: RawPart,
        recv: RawPart,
        count: usize,
        kind: RawReduction,
    ) -> RResult<ROption<u64>, RawError> {
        self.call_mut(|comm| {
            let (dtype, op) = kind.plain()?;
            // SAFETY: the host keeps to the contract of `CollNetComm::iall_reduce`.
            Ok(number(unsafe { comm.iall_reduce(send.place(), recv.place(), count, dtype, op) }?))
        })
    }

    unsafe fn iall_gather(
        &mut self,
        send: RawPart,
        recv: RSlice<'_, RawPart>,
        w: RawWindow,
    ) -> RResult<ROption<u64>, RawError> {
        self.call_mut(|comm| {
            let recv = plain_parts(&recv);
            let window = (w.offset, w.bytes);
            // SAFETY: the host keeps to the contract of `CollNetComm::iall_gather`.
            Ok(number(unsafe { comm.iall_gather(send.place(), &recv, w.bytes_per_rank, window) }?))
        })
    }

    unsafe fn ireduce_scatter(
        &mut self,
        send: RSlice<'_, RawPart>,
        recv: RawPart,
        w: RawWindow,
        kind: RawReduction,
    ) -> RResult<ROption<u64>, RawError> {
        self.call_mut(|comm| {
            let (dtype, op) = kind.plain()?;
            let (send, recv) = (plain_parts(&send), recv.place());
            let window = (w.offset, w.bytes);
            // SAFETY: the host keeps to the contract of `CollNetComm::ireduce_scatter`.
            let begun = unsafe { comm.ireduce_scatter(&send, recv, w.bytes_per_rank, window, dtype, op) };
            Ok(number(begun?))
        })
    }

    unsafe fn flush(&mut self, part: RawPart) -> RResult<ROption<u64>, RawError> {
        self.call_mut(|comm| {
            let (addr, registration) = part.place();
            // SAFETY: the host keeps to the contract of `CollNetComm::flush`.
            Ok(number(unsafe { comm.flush(addr, part.bytes, registration) }?))
        })
    }

    fn test(&mut self, request: u64) -> RResult<ROption<usize>, RawError> {
        self.call_mut(|comm| Ok(comm.test(Request(request))?.into()))
    }
}

fn plain_parts(raw: &[RawPart]) -> Vec<CollNetSegment> {
    raw.iter().map(CollNetSegment::from).collect()
}
