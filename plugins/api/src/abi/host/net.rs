//! Net plugins of libraries.

use abi_stable::std_types::{ROption, RSlice, RSliceMut, RVec};

use super::raw_host;
use crate::abi::raw::net::{
    RawConnectorBox, RawListenerBox, RawNetBox, RawNetConfig, RawNetContextBox, RawReceiverBox, RawSegment,
    RawSenderBox,
};
use crate::abi::raw::plain;
use crate::error::{Error, Result};
use crate::net::{
    Connector, Handle, Listener, MAX_RECVS, Net, NetAttributes, NetConfig, NetContext, NetProperties,
    Receiver, Region, Registration, Request, Segment, Sender,
};

pub struct LoadedNet {
    pub name: String,
    pub raw: RawNetBox,
}

impl Net for LoadedNet {
    fn name(&self) -> &str {
        &self.name
    }

    fn open(&self, config: &NetConfig) -> Result<Box<dyn NetContext>> {
        let raw = plain(self.raw.open(RawNetConfig {
            comm_id: config.comm_id,
            given: u64::from(config.traffic_class.is_some()),
            traffic_class: config.traffic_class.unwrap_or(-1),
            spare: 0,
            profiler: config.profiler.map_or(0, |callback| callback as usize),
            host: raw_host(&config.log),
            room: [0; 8],
            texts: RVec::new(),
        }))?;
        Ok(Box::new(LoadedContext(raw)))
    }
}

struct LoadedContext(RawNetContextBox);

impl NetContext for LoadedContext {
    fn devices(&self) -> Result<u32> {
        plain(self.0.devices())
    }

    fn properties(&self, device: u32) -> Result<NetProperties> {
        plain(self.0.properties(device))
    }

    fn listen(&self, device: u32) -> Result<(Handle, Box<dyn Listener>)> {
        let listening: crate::abi::raw::net::RawListening = plain(self.0.listen(device))?;
        Ok((listening.handle, Box::new(LoadedListener(listening.listener))))
    }

    fn connect(&self, device: u32, handle: &Handle) -> Result<Box<dyn Connector>> {
        Ok(Box::new(LoadedConnector(plain(self.0.connect(device, handle))?)))
    }

    fn make_virtual(&self, members: &[u32]) -> Result<u32> {
        plain(self.0.make_virtual(members.into()))
    }

    fn set_attributes(&self, attributes: &NetAttributes) -> Result<()> {
        plain(self.0.set_attributes(attributes.into()))
    }
}

struct LoadedListener(RawListenerBox);

impl Listener for LoadedListener {
    fn accept(&mut self) -> Result<Option<Box<dyn Receiver>>> {
        let receiver: ROption<RawReceiverBox> = plain(self.0.accept())?;
        Ok(receiver.into_option().map(|raw| Box::new(LoadedReceiver(raw)) as Box<dyn Receiver>))
    }
}

struct LoadedConnector(RawConnectorBox);

impl Connector for LoadedConnector {
    fn poll(&mut self) -> Result<Option<Box<dyn Sender>>> {
        let sender: ROption<RawSenderBox> = plain(self.0.poll())?;
        Ok(sender.into_option().map(|raw| Box::new(LoadedSender(raw)) as Box<dyn Sender>))
    }
}

struct LoadedSender(RawSenderBox);

impl Sender for LoadedSender {
    unsafe fn register(&mut self, region: &Region) -> Result<Registration> {
        // SAFETY: our caller keeps to the same contract.
        plain(unsafe { self.0.register(region.into()) }).map(Registration)
    }

    fn deregister(&mut self, registration: Registration) -> Result<()> {
        plain(self.0.deregister(registration.0))
    }

    unsafe fn isend(&mut self, segment: &Segment) -> Result<Option<Request>> {
        // SAFETY: our caller keeps to the same contract.
        plain(unsafe { self.0.isend(segment.into()) }).map(request)
    }

    fn test(&mut self, request: Request) -> Result<Option<usize>> {
        plain(self.0.test(request.0))
    }
}

struct LoadedReceiver(RawReceiverBox);

impl Receiver for LoadedReceiver {
    unsafe fn register(&mut self, region: &Region) -> Result<Registration> {
        // SAFETY: our caller keeps to the same contract.
        plain(unsafe { self.0.register(region.into()) }).map(Registration)
    }

    fn deregister(&mut self, registration: Registration) -> Result<()> {
        plain(self.0.deregister(registration.0))
    }

    unsafe fn irecv(&mut self, segments: &[Segment], optional_completion: bool) -> Result<Option<Request>> {
        with_raw(segments, |segments| {
            // SAFETY: our caller keeps to the same contract.
            plain(unsafe { self.0.irecv(segments, optional_completion.into()) }).map(request)
        })
    }

    unsafe fn flush(&mut self, segments: &[Segment]) -> Result<Option<Request>> {
        // SAFETY: our caller keeps to the same contract.
        with_raw(segments, |segments| plain(unsafe { self.0.flush(segments) }).map(request))
    }

    fn test(&mut self, request: Request, sizes: &mut [usize]) -> Result<bool> {
        plain(self.0.test(request.0, RSliceMut::from(sizes)))
    }

    fn consumed(&mut self, segments: usize, request: Request) -> Result<()> {
        plain(self.0.consumed(segments, request.0))
    }
}

pub(super) fn request(raw: ROption<u64>) -> Option<Request> {
    raw.into_option().map(Request)
}

/// Hands over the raw segments, without an allocation.
fn with_raw<R>(segments: &[Segment], f: impl FnOnce(RSlice<'_, RawSegment>) -> Result<R>) -> Result<R> {
    let none = Segment { addr: 0, bytes: 0, registration: Registration(0), tag: 0, profile: 0 };
    let mut raw = [RawSegment::from(&none); MAX_RECVS];
    let raw = raw.get_mut(..segments.len()).ok_or_else(|| {
        Error::internal(format!("a group of {} receives, {MAX_RECVS} are allowed", segments.len()))
    })?;
    raw.iter_mut().zip(segments).for_each(|(raw, segment)| *raw = segment.into());
    f(RSlice::from_slice(raw))
}
