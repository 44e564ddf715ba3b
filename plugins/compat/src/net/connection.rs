//! Connections of a C plugin behind our traits.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use hawser_plugin::net::{
    Connector, HANDLE_BYTES, Handle, Listener, MAX_RECVS, Receiver, Region, Registration, Request, Segment,
    Sender,
};
use hawser_plugin::{Error, ErrorKind, Result};

use super::adapter::{Context, Loaded};
use super::calls::{make_listener, outcome, pointer};
use super::shared::{Flight, HandleBuffer, InFlight, Object, believed};

/// Opens a listener and returns the handle that the plugin filled in.
pub fn listen(context: &Arc<Context>, device: u32) -> Result<(Handle, Box<dyn Listener>)> {
    let Loaded { calls, plugin } = &*context.loaded;
    let max_recvs = context.properties(device)?.max_recvs as usize;
    let mut handle = HandleBuffer::new(&[0; HANDLE_BYTES]);
    // SAFETY: the context is open and the device exists; the buffer is valid for the call.
    let comm = unsafe { make_listener(&*calls.listen, context.object.0, device as c_int, handle.address()) };
    let comm = comm.map_err(|failure| plugin.error(&format!("listen on device {device}"), failure))?;
    if comm.is_null() {
        return Err(plugin.broken("listen", "gave no listener"));
    }
    let listener = AdaptedListener { context: context.clone(), comm: Object(comm), max_recvs, used: false };
    Ok((*handle.bytes(), Box::new(listener)))
}

/// Begins to connect.
pub fn connect(context: &Arc<Context>, device: u32, handle: &Handle) -> Result<Box<dyn Connector>> {
    let max_recvs = context.properties(device)?.max_recvs as usize;
    let (context, handle) = (context.clone(), Box::new(HandleBuffer::new(handle)));
    Ok(Box::new(AdaptedConnector { context, device: device as c_int, handle, max_recvs, used: false }))
}

struct AdaptedListener {
    context: Arc<Context>,
    comm: Object,
    max_recvs: usize,
    used: bool,
}

impl Listener for AdaptedListener {
    fn accept(&mut self) -> Result<Option<Box<dyn Receiver>>> {
        let Loaded { calls, plugin } = &*self.context.loaded;
        if self.used {
            return Err(Error::internal("this listener is used up: it has accepted, or failed to"));
        }
        // SAFETY: the listener is open.
        let comm = unsafe { calls.accept(self.comm.0) };
        let comm = comm.inspect_err(|_| self.used = true);
        let comm = comm.map_err(|failure| plugin.error("accept", failure))?;
        if comm.is_null() {
            return Ok(None);
        }
        self.used = true;
        let end = Connection::new(&self.context, comm, calls.max_requests);
        Ok(Some(Box::new(AdaptedReceiver { end, max_recvs: self.max_recvs })))
    }
}

impl Drop for AdaptedListener {
    fn drop(&mut self) {
        // SAFETY: the listener is open and not used any more.
        let code = unsafe { (self.context.loaded.calls.close_listen)(self.comm.0) };
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
        let Loaded { calls, plugin } = &*context.loaded;
        if self.used {
            return Err(Error::internal("this connector is used up: it has connected, or failed to"));
        }
        let (device, class, handle) = (self.device, context.traffic_class, self.handle.address());
        // SAFETY: the context is open, the device exists; the buffer is the same at each attempt.
        let comm = unsafe { calls.connect(context.object.0, device, class, handle) };
        let comm = comm.inspect_err(|_| self.used = true);
        let comm = comm.map_err(|failure| plugin.error(&format!("connect on device {device}"), failure))?;
        if comm.is_null() {
            return Ok(None);
        }
        self.used = true;
        Ok(Some(Box::new(AdaptedSender(Connection::new(context, comm, calls.max_requests * self.max_recvs)))))
    }
}

/// The part that both ends have in common.
struct Connection {
    context: Arc<Context>,
    comm: Object,
    in_flight: InFlight,
}

impl Connection {
    fn new(context: &Arc<Context>, comm: *mut c_void, limit: usize) -> Self {
        Self { context: context.clone(), comm: Object(comm), in_flight: InFlight::new(limit) }
    }

    /// # Safety
    /// As [`Sender::register`].
    unsafe fn register(&mut self, region: &Region) -> Result<Registration> {
        let Loaded { calls, plugin } = &*self.context.loaded;
        // SAFETY: the connection is open; the caller vouches for the memory.
        unsafe { plugin.register(&calls.memory, self.comm.0, region) }
    }

    fn deregister(&mut self, registration: Registration) -> Result<()> {
        let Loaded { calls, plugin } = &*self.context.loaded;
        // SAFETY: the connection is open; the host names a registration of it.
        unsafe { plugin.deregister(&calls.memory, self.comm.0, registration) }
    }

    /// As [`InFlight::test`].
    fn test(&mut self, request: Request, sizes: &mut [c_int; MAX_RECVS]) -> Result<Option<Flight>> {
        let Loaded { calls, plugin } = &*self.context.loaded;
        self.in_flight.test(request, sizes, |request, done, sizes| {
            // SAFETY: the plugin gave this request and has not said yet that it is over; the pointers are
            // valid.
            let code = unsafe { (calls.test)(request, done, sizes) };
            outcome(code, ()).map_err(|failure| plugin.error("test", failure))
        })
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
        if self.0.in_flight.is_full() {
            return Ok(None);
        }
        let Loaded { calls, plugin } = &*self.0.context.loaded;
        // SAFETY: the connection is open; the caller vouches for the segment.
        let request = unsafe { calls.isend(self.0.comm.0, segment) };
        let request = request.map_err(|failure| plugin.error("isend", failure))?;
        Ok(self.0.in_flight.began(request, [segment.bytes]))
    }

    fn test(&mut self, request: Request) -> Result<Option<usize>> {
        const UNWRITTEN: c_int = -1;
        let mut sizes = [UNWRITTEN; MAX_RECVS];
        let flight = self.0.test(request, &mut sizes)?;
        Ok(flight.map(|flight| believed(sizes[0], flight.bytes[0])))
    }
}

impl Drop for AdaptedSender {
    fn drop(&mut self) {
        let context = &self.0.context;
        // SAFETY: the connection is open and not used any more.
        context.log_failure("closeSend", unsafe { (context.loaded.calls.close_send)(self.0.comm.0) });
    }
}

struct AdaptedReceiver {
    end: Connection,
    /// Receives that the device can group.
    max_recvs: usize,
}

impl AdaptedReceiver {
    /// Refuses groups that would overrun the plugin's arrays, or ours.
    fn check_group(&self, segments: &[Segment]) -> Result<()> {
        let most = self.max_recvs;
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
        unsafe { self.end.register(region) }
    }

    fn deregister(&mut self, registration: Registration) -> Result<()> {
        self.end.deregister(registration)
    }

    unsafe fn irecv(&mut self, segments: &[Segment], optional_completion: bool) -> Result<Option<Request>> {
        self.check_group(segments)?;
        if self.end.in_flight.is_full() {
            return Ok(None);
        }
        let Loaded { calls, plugin } = &*self.end.context.loaded;
        // SAFETY: the connection is open; the caller vouches for the segments.
        let request = unsafe { calls.irecv(self.end.comm.0, segments, optional_completion) };
        let request = request.map_err(|failure| plugin.error("irecv", failure))?;
        Ok(self.end.in_flight.began(request, segments.iter().map(|segment| segment.bytes)))
    }

    unsafe fn flush(&mut self, segments: &[Segment]) -> Result<Option<Request>> {
        if segments.is_empty() {
            return Ok(None);
        }
        self.check_group(segments)?;
        let Loaded { calls, plugin } = &*self.end.context.loaded;
        // SAFETY: the connection is open; the caller vouches for the segments.
        let request = unsafe { calls.iflush(self.end.comm.0, segments) };
        let request = request.map_err(|failure| plugin.error("iflush", failure))?;
        Ok(self.end.in_flight.began(request, []))
    }

    fn test(&mut self, request: Request, sizes: &mut [usize]) -> Result<bool> {
        let preset: [usize; MAX_RECVS] = std::array::from_fn(|at| sizes.get(at).copied().unwrap_or(0));
        let told = preset.map(|size| c_int::try_from(size).unwrap_or(c_int::MAX));
        let mut written = told;
        let Some(flight) = self.end.test(request, &mut written)? else { return Ok(false) };
        for (at, size) in sizes.iter_mut().enumerate().take(MAX_RECVS) {
            let room = flight.bytes[at];
            // The ABI's sizes are ints: of a buffer beyond their range they say nothing.
            if written[at] == told[at] || room > c_int::MAX as usize {
                continue;
            }
            *size = usize::try_from(written[at]).ok().filter(|said| *said <= room).ok_or_else(|| {
                let text = format!("says {} bytes arrived in a buffer of {room}", written[at]);
                self.end.context.loaded.plugin.broken("test", text)
            })?;
        }
        Ok(true)
    }

    fn consumed(&mut self, segments: usize, request: Request) -> Result<()> {
        let Loaded { calls, plugin } = &*self.end.context.loaded;
        let Some(consumed) = calls.irecv_consumed else { return Ok(()) };
        let count = c_int::try_from(segments).unwrap_or(c_int::MAX);
        // SAFETY: the connection is open; the caller names a request of it.
        let code = unsafe { consumed(self.end.comm.0, count, pointer(request.0)) };
        outcome(code, ()).map_err(|failure| plugin.error("irecvConsumed", failure))
    }
}

impl Drop for AdaptedReceiver {
    fn drop(&mut self) {
        let context = &self.end.context;
        // SAFETY: the connection is open and not used any more.
        context.log_failure("closeRecv", unsafe { (context.loaded.calls.close_recv)(self.end.comm.0) });
    }
}
