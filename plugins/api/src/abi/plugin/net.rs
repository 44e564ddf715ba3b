//! Net plugins, and what the other kinds share with them.

use std::sync::Arc;

use abi_stable::std_types::{ROption, RResult, RSlice, RSliceMut, RString};
use abi_stable::type_level::downcasting::TD_Opaque;

use super::Shield;
use crate::abi::raw::net::{
    RawConnector, RawConnector_TO, RawConnectorBox, RawListener, RawListener_TO, RawListening, RawNet,
    RawNetAttributes, RawNetConfig, RawNetContext, RawNetContext_TO, RawNetContextBox, RawNetProperties,
    RawReceiver, RawReceiver_TO, RawReceiverBox, RawRegion, RawSegment, RawSender, RawSender_TO,
    RawSenderBox,
};
use crate::abi::raw::{RawError, plain_log};
use crate::error::{Error, Result};
use crate::host::NetProfiler;
use crate::net::{
    Connector, Listener, MAX_RECVS, Net, NetConfig, NetContext, Receiver, Registration, Request, Segment,
    Sender,
};

impl RawNet for Shield<Arc<dyn Net>> {
    fn name(&self) -> RResult<RString, RawError> {
        self.call(|net| Ok(net.name().into()))
    }

    fn open(&self, raw: RawNetConfig) -> RResult<RawNetContextBox, RawError> {
        let log = plain_log(raw.host);
        self.guard.log_to(&log);
        let config = NetConfig {
            comm_id: raw.comm_id,
            traffic_class: (raw.given & 1 != 0).then_some(raw.traffic_class),
            log,
            profiler: profiler_at(raw.profiler),
        };
        self.call(|net| {
            let context = self.child(net.open(&config)?);
            Ok(RawNetContext_TO::from_value(context, TD_Opaque))
        })
    }
}

/// The host's callback by its address; 0 = none.
fn profiler_at(address: usize) -> Option<NetProfiler> {
    // SAFETY: the host wrote the address of such a function, or 0, which is the None of this type.
    unsafe { std::mem::transmute::<usize, Option<NetProfiler>>(address) }
}

impl RawNetContext for Shield<Box<dyn NetContext>> {
    fn devices(&self) -> RResult<u32, RawError> {
        self.call(|context| context.devices())
    }

    fn properties(&self, device: u32) -> RResult<RawNetProperties, RawError> {
        self.call(|context| Ok(context.properties(device)?.into()))
    }

    fn listen(&self, device: u32) -> RResult<RawListening, RawError> {
        self.call(|context| {
            let (handle, listener) = context.listen(device)?;
            let listener = RawListener_TO::from_value(self.child(listener), TD_Opaque);
            Ok(RawListening { handle, listener })
        })
    }

    fn connect(&self, device: u32, handle: &[u8; 128]) -> RResult<RawConnectorBox, RawError> {
        self.call(|context| {
            let connector = context.connect(device, handle)?;
            Ok(RawConnector_TO::from_value(self.child(connector), TD_Opaque))
        })
    }

    fn make_virtual(&self, members: RSlice<'_, u32>) -> RResult<u32, RawError> {
        self.call(|context| context.make_virtual(&members))
    }

    fn set_attributes(&self, attributes: RawNetAttributes) -> RResult<(), RawError> {
        self.call(|context| context.set_attributes(&attributes.into()))
    }
}

impl RawListener for Shield<Box<dyn Listener>> {
    fn accept(&mut self) -> RResult<ROption<RawReceiverBox>, RawError> {
        let guard = self.guard.clone();
        self.call_mut(|listener| {
            let receiver = listener.accept()?;
            let shield = |receiver| Shield { inner: Some(receiver), guard };
            Ok(receiver.map(|r| RawReceiver_TO::from_value(shield(r), TD_Opaque)).into())
        })
    }
}

impl RawConnector for Shield<Box<dyn Connector>> {
    fn poll(&mut self) -> RResult<ROption<RawSenderBox>, RawError> {
        let guard = self.guard.clone();
        self.call_mut(|connector| {
            let sender = connector.poll()?;
            let shield = |sender| Shield { inner: Some(sender), guard };
            Ok(sender.map(|s| RawSender_TO::from_value(shield(s), TD_Opaque)).into())
        })
    }
}

impl RawSender for Shield<Box<dyn Sender>> {
    unsafe fn register(&mut self, region: RawRegion) -> RResult<u64, RawError> {
        // SAFETY: the host keeps to the contract of `Sender::register`.
        self.call_mut(|sender| Ok(unsafe { sender.register(&region.into()) }?.0))
    }

    fn deregister(&mut self, registration: u64) -> RResult<(), RawError> {
        self.call_mut(|sender| sender.deregister(Registration(registration)))
    }

    unsafe fn isend(&mut self, segment: RawSegment) -> RResult<ROption<u64>, RawError> {
        // SAFETY: the host keeps to the contract of `Sender::isend`.
        self.call_mut(|sender| Ok(number(unsafe { sender.isend(&(&segment).into()) }?)))
    }

    fn test(&mut self, request: u64) -> RResult<ROption<usize>, RawError> {
        self.call_mut(|sender| Ok(sender.test(Request(request))?.into()))
    }
}

impl RawReceiver for Shield<Box<dyn Receiver>> {
    unsafe fn register(&mut self, region: RawRegion) -> RResult<u64, RawError> {
        // SAFETY: the host keeps to the contract of `Receiver::register`.
        self.call_mut(|receiver| Ok(unsafe { receiver.register(&region.into()) }?.0))
    }

    fn deregister(&mut self, registration: u64) -> RResult<(), RawError> {
        self.call_mut(|receiver| receiver.deregister(Registration(registration)))
    }

    unsafe fn irecv(
        &mut self,
        segments: RSlice<'_, RawSegment>,
        flags: u64,
    ) -> RResult<ROption<u64>, RawError> {
        self.call_mut(|receiver| {
            // SAFETY: the host keeps to the contract of `Receiver::irecv`.
            with_plain(&segments, |segments| unsafe { receiver.irecv(segments, flags & 1 != 0) }).map(number)
        })
    }

    unsafe fn flush(&mut self, segments: RSlice<'_, RawSegment>) -> RResult<ROption<u64>, RawError> {
        // SAFETY: the host keeps to the contract of `Receiver::flush`.
        self.call_mut(|receiver| with_plain(&segments, |s| unsafe { receiver.flush(s) }).map(number))
    }

    fn test(&mut self, request: u64, mut sizes: RSliceMut<'_, usize>) -> RResult<bool, RawError> {
        self.call_mut(|receiver| receiver.test(Request(request), sizes.as_mut_slice()))
    }

    fn consumed(&mut self, segments: usize, request: u64) -> RResult<(), RawError> {
        self.call_mut(|receiver| receiver.consumed(segments, Request(request)))
    }
}

pub(super) fn number(request: Option<Request>) -> ROption<u64> {
    request.map(|request| request.0).into()
}

/// Hands over the plain segments, without an allocation.
fn with_plain<R>(raw: &[RawSegment], f: impl FnOnce(&[Segment]) -> Result<R>) -> Result<R> {
    let none = Segment { addr: 0, bytes: 0, registration: Registration(0), tag: 0, profile: 0 };
    let mut plain = [none; MAX_RECVS];
    let plain = plain.get_mut(..raw.len()).ok_or_else(|| {
        Error::internal(format!("a group of {} receives, {MAX_RECVS} are allowed", raw.len()))
    })?;
    plain.iter_mut().zip(raw).for_each(|(plain, raw)| *plain = raw.into());
    f(plain)
}
