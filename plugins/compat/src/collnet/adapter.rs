//! A collnet table of NCCL's behind our traits.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use hawser_plugin::collnet::{
    CollNetComm, CollNetContext, CollNetListener, CollNetSegment, DataType, ReduceOp,
};
use hawser_plugin::net::{
    HANDLE_BYTES, Handle, MAX_RECVS, MAX_REQUESTS, NetProperties, Region, Registration, Request,
};
use hawser_plugin::{CollNet, Error, ErrorKind, Log, Result};

use super::calls::{Calls, Operations};
use crate::common::Missing;
use crate::logger;
use crate::net::calls::{Outcome, make_listener, outcome};
use crate::net::shared::{HandleBuffer, InFlight, Object, Plugin, believed};

/// A collnet plugin of NCCL's.
pub struct Adapter(Arc<Loaded>);

/// A plugin and its calls.
struct Loaded {
    calls: Calls,
    /// Declared last, so dropped last: the functions lie in its library.
    plugin: Plugin,
}

impl Adapter {
    /// A plugin by its table.
    pub fn new(calls: Calls, plugin: Plugin) -> Self {
        Self(Arc::new(Loaded { calls, plugin }))
    }
}

impl CollNet for Adapter {
    fn name(&self) -> &str {
        self.0.plugin.name()
    }

    fn open(&self, comm_id: u64, log: &Log) -> Result<Box<dyn CollNetContext>> {
        let Loaded { calls, plugin } = &*self.0;
        // SAFETY: the table keeps its contract; the callback is a function of this program.
        let init = || unsafe { calls.init(comm_id, logger::for_plugins(log)) };
        let object = Object(plugin.init(calls.has_contexts(), init)?);
        let context = Context { object, log: log.clone(), loaded: self.0.clone() };
        // Only a plugin that has devices must have the rest.
        if context.devices()? > 0 {
            context.operations()?;
        }
        Ok(Box::new(OpenAdapter(Arc::new(context))))
    }
}

/// A plugin prepared for a communicator. Connections hold it, so it is finalised after the last one is
/// closed.
struct Context {
    object: Object,
    log: Log,
    loaded: Arc<Loaded>,
}

impl Context {
    fn devices(&self) -> Result<u32> {
        // SAFETY: `init` succeeded, or there would be no context.
        unsafe { self.loaded.plugin.devices(self.loaded.calls.devices) }
    }

    /// The rest of the table.
    fn operations(&self) -> Result<&Operations> {
        let missing = |Missing(entry): &Missing| {
            self.loaded.plugin.broken("devices", format!("says there are some, but {entry} is NULL"))
        };
        self.loaded.calls.operations.as_ref().map_err(missing)
    }

    /// The result of a call.
    fn result<T>(&self, call: &str, outcome: Outcome<T>) -> Result<T> {
        outcome.map_err(|failure| self.loaded.plugin.error(call, failure))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if let Some(finalize) = self.loaded.calls.finalize {
            // SAFETY: `init` gave this context, nothing uses it any more.
            let code = unsafe { finalize(self.object.0) };
            self.loaded.plugin.log_failure(&self.log, "finalize", code);
        }
    }
}

struct OpenAdapter(Arc<Context>);

impl CollNetContext for OpenAdapter {
    fn devices(&self) -> Result<u32> {
        self.0.devices()
    }

    fn properties(&self, device: u32) -> Result<NetProperties> {
        let (plugin, devices) = (&self.0.loaded.plugin, self.0.devices()?);
        plugin.device(device, devices)?;
        plugin.properties(&self.0.operations()?.properties, device, devices, &self.0.log)
    }

    fn listen(&self, device: u32) -> Result<(Handle, Box<dyn CollNetListener>)> {
        let (context, plugin) = (&self.0, &self.0.loaded.plugin);
        let number = plugin.device(device, context.devices()?)?;
        let operations = context.operations()?;
        let mut handle = HandleBuffer::new(&[0; HANDLE_BYTES]);
        // SAFETY: the context is open and the device exists; the buffer is valid for the call.
        let comm = unsafe { make_listener(&*operations.listen, context.object.0, number, handle.address()) };
        let comm = context.result(&format!("listen on device {device}"), comm)?;
        if comm.is_null() {
            return Err(plugin.broken("listen", "gave no listener"));
        }
        Ok((*handle.bytes(), Box::new(AdaptedListener { comm: Object(comm), context: context.clone() })))
    }

    fn supports(&self, dtype: DataType, op: ReduceOp) -> Result<bool> {
        // SAFETY: `init` succeeded.
        let supported = unsafe { self.0.operations()?.reduce_support(dtype, op) };
        self.0.result("reduceSupport", supported)
    }

    fn make_virtual(&self, members: &[u32]) -> Result<u32> {
        let (loaded, devices) = (&self.0.loaded, self.0.devices()?);
        let make = self.0.operations()?.make_v_device.as_deref();
        // SAFETY: `init` succeeded.
        unsafe { loaded.plugin.make_virtual(make, members, devices) }
    }
}

struct AdaptedListener {
    comm: Object,
    context: Arc<Context>,
}

impl CollNetListener for AdaptedListener {
    fn connect(self: Box<Self>, handles: &[Handle], rank: u32) -> Result<Box<dyn CollNetComm>> {
        if rank as usize >= handles.len() {
            let text = format!("rank {rank} of {} cannot be: there are so many handles", handles.len());
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let context = &self.context;
        let buffers: Vec<HandleBuffer> = handles.iter().map(HandleBuffer::new).collect();
        let mut places: Vec<*mut c_void> = buffers.iter().map(HandleBuffer::address).collect();
        // SAFETY: the listener is open; the buffers live until after the call.
        let comm = unsafe { context.operations()?.connect(&mut places, rank, self.comm.0) };
        let comm = context.result(&format!("connect of rank {rank} of {}", handles.len()), comm)?;
        if comm.is_null() {
            return Err(context.loaded.plugin.broken("connect", "gave no connection"));
        }
        let in_flight = InFlight::new(MAX_REQUESTS);
        Ok(Box::new(AdaptedComm { comm: Object(comm), in_flight, context: context.clone() }))
    }
}

impl Drop for AdaptedListener {
    fn drop(&mut self) {
        if let Ok(operations) = &self.context.loaded.calls.operations {
            // SAFETY: the listener is open and not used any more.
            let code = unsafe { (operations.close_listen)(self.comm.0) };
            self.context.loaded.plugin.log_failure(&self.context.log, "closeListen", code);
        }
    }
}

struct AdaptedComm {
    comm: Object,
    in_flight: InFlight,
    context: Arc<Context>,
}

impl AdaptedComm {
    /// Calls a function that begins something of `bytes` bytes, if the plugin has room for a request.
    fn begin(
        &mut self,
        name: &str,
        bytes: usize,
        call: impl FnOnce(&Operations, *mut c_void) -> Outcome<*mut c_void>,
    ) -> Result<Option<Request>> {
        if self.in_flight.is_full() {
            return Ok(None);
        }
        let request = call(self.context.operations()?, self.comm.0);
        let request = self.context.result(name, request)?;
        Ok(self.in_flight.began(request, [bytes]))
    }
}

impl CollNetComm for AdaptedComm {
    unsafe fn register(&mut self, region: &Region) -> Result<Registration> {
        let memory = &self.context.operations()?.memory;
        // SAFETY: the connection is open; the caller vouches for the memory.
        unsafe { self.context.loaded.plugin.register(memory, self.comm.0, region) }
    }

    fn deregister(&mut self, registration: Registration) -> Result<()> {
        let memory = &self.context.operations()?.memory;
        // SAFETY: the connection is open; the host names a registration of it.
        unsafe { self.context.loaded.plugin.deregister(memory, self.comm.0, registration) }
    }

    unsafe fn iall_reduce(
        &mut self,
        send: (u64, Registration),
        recv: (u64, Registration),
        count: usize,
        dtype: DataType,
        op: ReduceOp,
    ) -> Result<Option<Request>> {
        // SAFETY: the connection is open; the caller vouches for the buffers.
        self.begin("iallreduce", count.saturating_mul(dtype.size()), |operations, comm| unsafe {
            operations.iallreduce(comm, send, recv, count, dtype, op)
        })
    }

    unsafe fn iall_gather(
        &mut self,
        send: (u64, Registration),
        recv: &[CollNetSegment],
        bytes_per_rank: usize,
        (offset, bytes): (usize, usize),
    ) -> Result<Option<Request>> {
        // SAFETY: the connection is open; the caller vouches for the buffers.
        self.begin("iallgather", bytes, |operations, comm| unsafe {
            operations.iallgather(comm, send, recv, (bytes_per_rank, offset, bytes))
        })
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
        // SAFETY: the connection is open; the caller vouches for the buffers.
        self.begin("ireducescatter", bytes, |operations, comm| unsafe {
            operations.ireducescatter(comm, send, recv, (bytes_per_rank, offset, bytes), dtype, op)
        })
    }

    unsafe fn flush(
        &mut self,
        addr: u64,
        bytes: usize,
        registration: Registration,
    ) -> Result<Option<Request>> {
        // SAFETY: the connection is open; the caller vouches for the buffer.
        let request = unsafe { self.context.operations()?.iflush(self.comm.0, (addr, registration), bytes) };
        let request = self.context.result("iflush", request)?;
        Ok(self.in_flight.began(request, [0]))
    }

    fn test(&mut self, request: Request) -> Result<Option<usize>> {
        const UNWRITTEN: c_int = -1;
        let mut sizes = [UNWRITTEN; MAX_RECVS];
        let (operations, plugin) = (self.context.operations()?, &self.context.loaded.plugin);
        let flight = self.in_flight.test(request, &mut sizes, |request, done, sizes| {
            // SAFETY: the plugin gave this request and has not said yet that it is over; the pointers are
            // valid.
            let code = unsafe { (operations.test)(request, done, sizes) };
            outcome(code, ()).map_err(|failure| plugin.error("test", failure))
        })?;
        Ok(flight.map(|flight| believed(sizes[0], flight.bytes[0])))
    }
}

impl Drop for AdaptedComm {
    fn drop(&mut self) {
        if let Ok(operations) = &self.context.loaded.calls.operations {
            // SAFETY: the connection is open and not used any more.
            let code = unsafe { (operations.close_coll)(self.comm.0) };
            self.context.loaded.plugin.log_failure(&self.context.log, "closeColl", code);
        }
    }
}
