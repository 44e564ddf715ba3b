//! Connections of a C plugin behind our traits.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

use hawser_plugin::net::{
    Connector, HANDLE_BYTES, Handle, Listener, MAX_RECVS, MemoryKinds, Receiver, Region, Registration,
    Request, Segment, Sender,
};
use hawser_plugin::{Error, ErrorKind, Result};

use super::adapter::{Context, Object};
use super::calls::{number, outcome, pointer};

/// Opens a listener and returns the handle that the plugin filled in.
pub fn listen(context: &Arc<Context>, device: u32) -> Result<(Handle, Box<dyn Listener>)> {
    let plugin = &context.plugin;
    let number = plugin.device(device)?;
    let max_recvs = plugin.properties(device, &context.log)?.max_recvs as usize;
    let mut handle = HandleBuffer::new(&[0; HANDLE_BYTES]);
    // SAFETY: the context is open and the device exists; the buffer is valid for the call.
    let comm = unsafe { plugin.calls.listen(context.object.0, number, handle.address()) };
    let comm = comm.map_err(|failure| plugin.error(&format!("listen on device {device}"), failure))?;
    if comm.is_null() {
        return Err(plugin.broken("listen", "gave no listener"));
    }
    let listener = AdaptedListener { context: context.clone(), comm: Object(comm), max_recvs, used: false };
    Ok((*handle.bytes(), Box::new(listener)))
}

/// Begins to connect.
pub fn connect(context: &Arc<Context>, device: u32, handle: &Handle) -> Result<Box<dyn Connector>> {
    let number = context.plugin.device(device)?;
    let max_recvs = context.plugin.properties(device, &context.log)?.max_recvs as usize;
    Ok(Box::new(AdaptedConnector {
        context: context.clone(),
        device: number,
        handle: Box::new(HandleBuffer::new(handle)),
        max_recvs,
        used: false,
    }))
}

/// A handle where a plugin may keep the state of a connection on its way: it has its own memory, which stays where it
/// is, aligned for whatever struct the plugin sees in it.
#[repr(C, align(64))]
struct HandleBuffer(UnsafeCell<Handle>);

impl HandleBuffer {
    fn new(handle: &Handle) -> Self {
        Self(UnsafeCell::new(*handle))
    }

    fn address(&self) -> *mut c_void {
        self.0.get().cast()
    }

    fn bytes(&mut self) -> &Handle {
        self.0.get_mut()
    }
}

struct AdaptedListener {
    context: Arc<Context>,
    comm: Object,
    max_recvs: usize,
    used: bool,
}

impl Listener for AdaptedListener {
    fn accept(&mut self) -> Result<Option<Box<dyn Receiver>>> {
        let plugin = &self.context.plugin;
        if self.used {
            return Err(Error::internal("this listener is used up: it has accepted, or failed to"));
        }
        // SAFETY: the listener is open.
        let comm = unsafe { plugin.calls.accept(self.comm.0) };
        let comm = comm.inspect_err(|_| self.used = true);
        let comm = comm.map_err(|failure| plugin.error("accept", failure))?;
        if comm.is_null() {
            return Ok(None);
        }
        self.used = true;
        let end = Connection::new(&self.context, comm, self.max_recvs, plugin.calls.max_requests);
        Ok(Some(Box::new(AdaptedReceiver(end))))
    }
}

impl Drop for AdaptedListener {
    fn drop(&mut self) {
        // SAFETY: the listener is open and not used any more.
        let code = unsafe { (self.context.plugin.calls.close_listen)(self.comm.0) };
        self.context.log_failure("closeListen", code);
    }
}

struct AdaptedConnector {
    context: Arc<Context>,
    device: c_int,
    handle: Box<HandleBuffer>,
    max_recvs: usize,
    used: bool,
}

impl Connector for AdaptedConnector {
    fn poll(&mut self) -> Result<Option<Box<dyn Sender>>> {
        let context = &self.context;
        let plugin = &context.plugin;
        if self.used {
            return Err(Error::internal("this connector is used up: it has connected, or failed to"));
        }
        let (device, class, handle) = (self.device, context.traffic_class, self.handle.address());
        // SAFETY: the context is open, the device exists; the buffer is the same at each attempt.
        let comm = unsafe { plugin.calls.connect(context.object.0, device, class, handle) };
        let comm = comm.inspect_err(|_| self.used = true);
        let comm = comm.map_err(|failure| plugin.error(&format!("connect on device {device}"), failure))?;
        if comm.is_null() {
            return Ok(None);
        }
        self.used = true;
        let limit = plugin.calls.max_requests * self.max_recvs;
        Ok(Some(Box::new(AdaptedSender(Connection::new(context, comm, self.max_recvs, limit)))))
    }
}

/// What both ends have in common.
struct Connection {
    context: Arc<Context>,
    comm: Object,
    /// Receives that the device can group.
    max_recvs: usize,
    /// Requests that the plugin can hold. More are refused with "not now"; some plugins fail instead.
    limit: usize,
    /// Oldest first.
    in_flight: VecDeque<Flight>,
}

/// A request in flight.
struct Flight {
    request: Request,
    /// Bytes per segment; none of a flush.
    bytes: [usize; MAX_RECVS],
}

impl Connection {
    fn new(context: &Arc<Context>, comm: *mut c_void, max_recvs: usize, limit: usize) -> Self {
        Self { context: context.clone(), comm: Object(comm), max_recvs, limit, in_flight: VecDeque::new() }
    }

    /// # Safety
    /// As [`Sender::register`].
    unsafe fn register(&mut self, region: &Region) -> Result<Registration> {
        let plugin = &self.context.plugin;
        let made = match (region.kind, region.dmabuf) {
            (MemoryKinds::HOST | MemoryKinds::CUDA, _) => {
                // SAFETY: the connection is open; the caller vouches for the memory.
                let made = unsafe {
                    plugin.calls.register(self.comm.0, region.addr, region.bytes, region.kind.0 as c_int)
                };
                made.map_err(|failure| plugin.error("regMr", failure))
            }
            (MemoryKinds::DMABUF, Some(descriptor)) => {
                let memory = (region.addr, region.bytes);
                // NCCL names the kind of memory, not the way to it.
                let kind = MemoryKinds::CUDA.0 as c_int;
                // SAFETY: as above.
                let made = unsafe { plugin.calls.register_dma_buf(self.comm.0, memory, kind, descriptor) };
                made.map_err(|failure| plugin.error("regMrDmaBuf", failure))
            }
            (kind, _) => {
                let text = format!(
                    "cannot register memory of kind {}: name one kind, and DMA-BUF with its descriptor",
                    kind.0
                );
                Err(Error::new(ErrorKind::InvalidArgument, text))
            }
        };
        Ok(Registration(number(made?)))
    }

    fn deregister(&mut self, registration: Registration) -> Result<()> {
        let plugin = &self.context.plugin;
        // SAFETY: the connection is open; the plugin gave this registration.
        let code = unsafe { (plugin.calls.dereg_mr)(self.comm.0, pointer(registration.0)) };
        outcome(code, ()).map_err(|failure| plugin.error("deregMr", failure))
    }

    fn is_full(&self) -> bool {
        self.in_flight.len() >= self.limit
    }

    /// Keeps what a call began; NULL was "not now".
    fn began(&mut self, request: *mut c_void, segments: &[Segment]) -> Option<Request> {
        if request.is_null() {
            return None;
        }
        let request = Request(number(request));
        let mut bytes = [0; MAX_RECVS];
        bytes.iter_mut().zip(segments).for_each(|(bytes, segment)| *bytes = segment.bytes);
        self.in_flight.push_back(Flight { request, bytes });
        Some(request)
    }

    /// Whether a request is over; then it is forgotten, and `sizes` holds what the plugin wrote. `sizes` comes in as
    /// what counts if the plugin writes nothing.
    fn test(&mut self, request: Request, sizes: &mut [c_int; MAX_RECVS]) -> Result<Option<Flight>> {
        let plugin = &self.context.plugin;
        let Some(at) = self.in_flight.iter().position(|flight| flight.request == request) else {
            return Err(Error::internal(format!("test: request {:#x} is not in flight", request.0)));
        };
        // SAFETY: the plugin gave this request and has not said yet that it is over.
        let done = unsafe { plugin.calls.test(pointer(request.0), sizes) };
        let done = done.map_err(|failure| plugin.error("test", failure))?;
        Ok(if done { self.in_flight.remove(at) } else { None })
    }
}

struct AdaptedSender(Connection);

impl Sender for AdaptedSender {
    unsafe fn register(&mut self, region: &Region) -> Result<Registration> {
        // SAFETY: the caller's promise.
        unsafe { self.0.register(region) }
    }

    fn deregister(&mut self, registration: Registration) -> Result<()> {
        self.0.deregister(registration)
    }

    unsafe fn isend(&mut self, segment: &Segment) -> Result<Option<Request>> {
        if self.0.is_full() {
            return Ok(None);
        }
        let plugin = &self.0.context.plugin;
        // SAFETY: the connection is open; the caller vouches for the segment.
        let request = unsafe { plugin.calls.isend(self.0.comm.0, segment) };
        let request = request.map_err(|failure| plugin.error("isend", failure))?;
        Ok(self.0.began(request, std::slice::from_ref(segment)))
    }

    fn test(&mut self, request: Request) -> Result<Option<usize>> {
        const UNWRITTEN: c_int = -1;
        let mut sizes = [UNWRITTEN; MAX_RECVS];
        let Some(flight) = self.0.test(request, &mut sizes)? else { return Ok(None) };
        // NCCL does not look at the size of a send, so plugins are careless with it: what cannot be is not believed.
        let posted = flight.bytes[0];
        let said = usize::try_from(sizes[0]).ok().filter(|said| *said <= posted);
        Ok(Some(if posted > c_int::MAX as usize { posted } else { said.unwrap_or(posted) }))
    }
}

impl Drop for AdaptedSender {
    fn drop(&mut self) {
        let context = &self.0.context;
        // SAFETY: the connection is open and not used any more.
        context.log_failure("closeSend", unsafe { (context.plugin.calls.close_send)(self.0.comm.0) });
    }
}

struct AdaptedReceiver(Connection);

impl AdaptedReceiver {
    /// Refuses groups that would overrun the plugin's arrays, or ours.
    fn check_group(&self, segments: &[Segment]) -> Result<()> {
        let most = self.0.max_recvs;
        if (1..=most).contains(&segments.len()) {
            return Ok(());
        }
        let text = format!("a group of {} receives, this device takes 1 to {most}", segments.len());
        Err(Error::new(ErrorKind::InvalidArgument, text))
    }
}

impl Receiver for AdaptedReceiver {
    unsafe fn register(&mut self, region: &Region) -> Result<Registration> {
        // SAFETY: the caller's promise.
        unsafe { self.0.register(region) }
    }

    fn deregister(&mut self, registration: Registration) -> Result<()> {
        self.0.deregister(registration)
    }

    unsafe fn irecv(&mut self, segments: &[Segment], optional_completion: bool) -> Result<Option<Request>> {
        self.check_group(segments)?;
        if self.0.is_full() {
            return Ok(None);
        }
        let plugin = &self.0.context.plugin;
        // SAFETY: the connection is open; the caller vouches for the segments.
        let request = unsafe { plugin.calls.irecv(self.0.comm.0, segments, optional_completion) };
        let request = request.map_err(|failure| plugin.error("irecv", failure))?;
        Ok(self.0.began(request, segments))
    }

    unsafe fn flush(&mut self, segments: &[Segment]) -> Result<Option<Request>> {
        if segments.is_empty() {
            return Ok(None);
        }
        self.check_group(segments)?;
        let plugin = &self.0.context.plugin;
        // SAFETY: the connection is open; the caller vouches for the segments.
        let request = unsafe { plugin.calls.iflush(self.0.comm.0, segments) };
        let request = request.map_err(|failure| plugin.error("iflush", failure))?;
        Ok(self.0.began(request, &[]))
    }

    fn test(&mut self, request: Request, sizes: &mut [usize]) -> Result<bool> {
        let preset: [usize; MAX_RECVS] = std::array::from_fn(|at| sizes.get(at).copied().unwrap_or(0));
        let told = preset.map(|size| c_int::try_from(size).unwrap_or(c_int::MAX));
        let mut written = told;
        let Some(flight) = self.0.test(request, &mut written)? else { return Ok(false) };
        for (at, size) in sizes.iter_mut().enumerate().take(MAX_RECVS) {
            let room = flight.bytes[at];
            // The ABI's sizes are ints: of a buffer beyond their range they say nothing.
            if written[at] == told[at] || room > c_int::MAX as usize {
                continue;
            }
            *size = usize::try_from(written[at]).ok().filter(|said| *said <= room).ok_or_else(|| {
                let text = format!("says {} bytes arrived in a buffer of {room}", written[at]);
                self.0.context.plugin.broken("test", text)
            })?;
        }
        Ok(true)
    }

    fn consumed(&mut self, segments: usize, request: Request) -> Result<()> {
        let plugin = &self.0.context.plugin;
        let Some(consumed) = plugin.calls.irecv_consumed else { return Ok(()) };
        let count = c_int::try_from(segments).unwrap_or(c_int::MAX);
        // SAFETY: the connection is open; the caller names a request of it.
        let code = unsafe { consumed(self.0.comm.0, count, pointer(request.0)) };
        outcome(code, ()).map_err(|failure| plugin.error("irecvConsumed", failure))
    }
}

impl Drop for AdaptedReceiver {
    fn drop(&mut self) {
        let context = &self.0.context;
        // SAFETY: the connection is open and not used any more.
        context.log_failure("closeRecv", unsafe { (context.plugin.calls.close_recv)(self.0.comm.0) });
    }
}
