//! NVIDIA GPUs, through the CUDA driver.
//!
//! ```text
//! CudaDevice (the Device trait)
//!   └─► memory, heap (vmm, shared, token), kernels, launch, stream, event, graph, query (nvml)
//!         └─► context (current context, capture mode) ─► sys (dlopen) ─► libcuda.so.1
//! ```
//!
//! Invariants: nothing here panics or links without a driver; the caller's current context is
//! never changed; the legacy stream is never used on our own account; nothing waits for a whole device.

mod apart;
mod call;
mod context;
mod event;
mod expose;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
mod flat;
mod graph;
mod heap;
mod kernels;
mod launch;
mod memory;
mod moment;
mod multicast;
pub(crate) mod nvml;
mod query;
mod result;
mod shared;
mod stream;
mod sys;
mod token;
mod vmm;

use std::any::Any;
use std::ffi::c_void;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::time::Duration;

use cudarc::driver::sys::{CUpointer_attribute, CUstream};
use hawser_base::env;
use hawser_base::error::Result;
use hawser_kernels_abi::{Args, KernelKey};
use hawser_plan::Route;
use hawser_plan::executor::copy_engine::{ReduceKernel, reduce_kernel};
use hawser_plan::executor::fused::batch::FusedBatch;
use hawser_plan::topology::DeviceKind;
use rustc_hash::FxHashMap;

use self::context::{Context, platform};
use self::kernels::Kernels;
use self::launch::{Grid, Manner};
use self::memory::Copier;
use self::result::code;
use self::stream::Events;
use crate::device::{
    Caps, Device, Event, Export, Exposed, FlatMaps, FusedKernelLaunch, Graph, Graphs, HeapKind, HostWords,
    Ipc, Kernels as KernelLaunches, MemoryOp, Moment, Multicast, MulticastObject, OwnedStream, Pieces,
    RecordNode, Row, SharedMemory, Stream, StreamState, StreamWords, Streams,
};
use crate::memory::Memory;
use crate::pool::{self, Pool, Source};

pub use self::query::{DeviceSummary, PeerLink, summary};

/// `CU_MEMORYTYPE_DEVICE`.
const DEVICE_MEMORY: u64 = 2;

/// Number of GPUs that this process sees, at least 1; the error says why there is none.
pub fn count() -> Result<u32> {
    Ok(platform()?.devices.len() as u32)
}

/// Ordinal of the calling thread's current device; 0 if the thread has no current context.
pub fn current() -> Result<u32> {
    platform()?.current()
}

/// Opens a device. All users of a device in this process share one [`Device`] while it lives.
pub fn open(ordinal: u32) -> Result<Arc<dyn Device>> {
    Ok(opened(ordinal)?)
}

fn opened(ordinal: u32) -> Result<Arc<CudaDevice>> {
    static OPEN: LazyLock<Mutex<FxHashMap<u32, Weak<CudaDevice>>>> = LazyLock::new(Mutex::default);
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(device) = open.get(&ordinal).and_then(Weak::upgrade) {
        return Ok(device);
    }
    let device = Arc::new(CudaDevice::new(ordinal)?);
    open.insert(ordinal, Arc::downgrade(&device));
    Ok(device)
}

/// One GPU. Fields are dropped in this order: the context last.
struct CudaDevice {
    caps: Caps,
    pool: Arc<Pool>,
    copier: Arc<Copier>,
    events: Events,
    kernels: Kernels,
    context: Arc<Context>,
}

impl CudaDevice {
    fn new(ordinal: u32) -> Result<Self> {
        let caps = query::caps(ordinal)?;
        let context = Context::retain(ordinal, caps.id.clone())?;
        let copier = Arc::new(Copier::new(&context)?);
        let name = format!("device {ordinal} ({})", caps.id);
        let source = || -> Result<Box<dyn Source>> { Ok(Box::new(copier.clone())) };
        Ok(CudaDevice {
            pool: pool::of(&name, &pool::Policy::of(env::settings()), source)?,
            copier,
            events: Events::new(&context),
            kernels: Kernels::new(&context),
            caps,
            context,
        })
    }

    /// Puts a kernel that takes one structure, at `args`, on a stream.
    #[inline]
    fn launch_kernel(
        &self,
        kernel: KernelKey,
        grid: Grid,
        args: *const c_void,
        stream: Stream,
    ) -> Result<()> {
        let function = self.kernels.function(kernel, &self.caps)?;
        launch::launch(&self.context, function, kernel, grid, args, stream)
    }

    /// The launch attributes of kernels of collectives: from sm_90 on they wait themselves for the end of the
    /// one before.
    fn manner(&self) -> Manner {
        if matches!(self.caps.kind, DeviceKind::Cuda { sm: 90.. }) {
            Manner::Overlapping
        } else {
            Manner::Plain
        }
    }

    /// True if an address is memory of this GPU.
    fn is_here(&self, addr: u64) -> Result<bool> {
        use CUpointer_attribute::{
            CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL as ORDINAL, CU_POINTER_ATTRIBUTE_MEMORY_TYPE as MEMORY_TYPE,
        };
        Ok(self.pointer_attribute(MEMORY_TYPE, addr)? == Some(DEVICE_MEMORY)
            && self.pointer_attribute(ORDINAL, addr)? == Some(u64::from(self.context.ordinal)))
    }

    /// One number about a pointer; `None` if the driver does not know the memory.
    fn pointer_attribute(&self, attribute: CUpointer_attribute, addr: u64) -> Result<Option<u64>> {
        let mut value: u64 = 0;
        // SAFETY: the attributes that are asked for are at most 8 bytes long (the machine is little-endian).
        let status =
            unsafe { self.context.driver.pointer_attribute((&raw mut value).cast(), attribute, addr) };
        if status.code == code::INVALID_VALUE {
            return Ok(None);
        }
        status.check(&self.context)?;
        Ok(Some(value))
    }
}

impl Device for CudaDevice {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn enter(&self) -> Result<Box<dyn Any>> {
        Ok(Box::new(self.context.enter()?))
    }

    fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    fn alloc(&self, bytes: u64) -> Result<Memory> {
        self.pool.alloc(bytes)
    }

    fn alloc_as_user(&self, bytes: u64) -> Result<Memory> {
        self.user_memory(bytes)
    }

    fn host_words(&self, bytes: u64) -> Result<HostWords> {
        memory::host_words(&self.context, bytes)
    }

    fn upload(&self, addr: u64, bytes: &[u8]) -> Result<()> {
        self.copier.upload(addr, bytes)
    }

    fn download(&self, addr: u64, bytes: &mut [u8]) -> Result<()> {
        self.copier.download(addr, bytes)
    }

    fn accepts(&self, addr: u64) -> Result<bool> {
        use CUpointer_attribute::{
            CU_POINTER_ATTRIBUTE_ACCESS_FLAGS as ACCESS, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL as ORDINAL,
            CU_POINTER_ATTRIBUTE_IS_MANAGED as IS_MANAGED, CU_POINTER_ATTRIBUTE_MEMORY_TYPE as MEMORY_TYPE,
        };
        if addr == 0 {
            return Ok(false);
        }
        let _scope = self.context.enter()?;
        match self.pointer_attribute(MEMORY_TYPE, addr)? {
            None => return Ok(false),
            Some(DEVICE_MEMORY) => {}
            Some(_) => return Ok(true),
        }
        if self.pointer_attribute(ORDINAL, addr)? == Some(u64::from(self.context.ordinal)) {
            return Ok(true);
        }
        // Another GPU's memory: refused only if the driver says that this one has no access.
        let asked = |attribute| self.pointer_attribute(attribute, addr).ok().flatten();
        Ok(asked(IS_MANAGED) == Some(1) || asked(ACCESS) != Some(0))
    }

    fn kernels(&self) -> Option<&dyn KernelLaunches> {
        Some(self)
    }

    fn stream_words(&self) -> Option<&dyn StreamWords> {
        Some(self)
    }

    fn graphs(&self) -> Option<&dyn Graphs> {
        Some(self)
    }

    fn flat_maps(&self) -> Option<&dyn FlatMaps> {
        vmm::is_supported(&self.context).then_some(self)
    }

    fn ipc(&self) -> Option<&dyn Ipc> {
        Some(self)
    }
}

impl Streams for CudaDevice {
    fn stream(&self) -> Result<OwnedStream> {
        stream::create(&self.context, false)
    }

    fn urgent_stream(&self) -> Result<OwnedStream> {
        stream::create(&self.context, true)
    }

    fn stream_state(&self, stream: Stream) -> Result<StreamState> {
        let _scope = self.context.enter()?;
        let stream = raw_stream(stream);
        let capture = stream::capture(&self.context, stream)?;
        // The driver does not tell the id of a stream in a capture, and nobody needs it.
        let id = if capture.is_some() { 0 } else { stream::id(&self.context, stream)? };
        Ok(StreamState { id, capture })
    }

    fn is_urgent(&self, stream: Stream) -> bool {
        stream::priority(&self.context, raw_stream(stream)).is_ok_and(|priority| priority < 0)
    }

    fn order(&self, earlier: Stream, later: Stream) -> Result<()> {
        if earlier == later {
            return Ok(());
        }
        self.events.order(raw_stream(earlier), raw_stream(later))
    }

    fn fork(&self, earlier: Stream, later: Stream) -> Result<()> {
        self.events.fork(raw_stream(earlier), raw_stream(later))
    }

    fn copy(&self, stream: Stream, dst: u64, src: u64, bytes: u64) -> Result<()> {
        let _scope = self.context.enter()?;
        stream::copy(&self.context, raw_stream(stream), dst, src, bytes)
    }

    fn copy_and_wait(&self, own: &OwnedStream, dst: u64, src: u64, bytes: u64) -> Result<()> {
        let _scope = self.context.enter_relaxed()?;
        stream::copy(&self.context, raw_stream(own.stream), dst, src, bytes)?;
        // SAFETY: a stream of our own, which lives as long as its owner.
        unsafe { self.context.driver.stream_synchronize(raw_stream(own.stream)) }.check(&self.context)
    }

    fn copy_beside_kernels(
        &self,
        own: &OwnedStream,
        dst: u64,
        src: u64,
        bytes: u64,
        (bounce, room): (u64, u64),
    ) -> Result<()> {
        let scope = self.context.enter_relaxed()?;
        if !(self.is_here(dst)? && self.is_here(src)?) {
            drop(scope);
            return self.copy_and_wait(own, dst, src, bytes);
        }
        let stream = raw_stream(own.stream);
        for at in (0..bytes).step_by(room.max(1) as usize) {
            let part = room.min(bytes - at);
            stream::copy(&self.context, stream, bounce, src + at, part)?;
            stream::copy(&self.context, stream, dst + at, bounce, part)?;
        }
        // SAFETY: a stream of our own, which lives as long as its owner.
        unsafe { self.context.driver.stream_synchronize(stream) }.check(&self.context)
    }

    fn moment(&self, stream: Stream) -> Result<Moment> {
        moment::moment(&self.context, raw_stream(stream))
    }

    fn between(&self, earlier: &Moment, later: &Moment) -> Result<Option<Duration>> {
        moment::between(&self.context, earlier, later)
    }

    fn synchronize(&self, stream: Stream) -> Result<()> {
        let _scope = self.context.enter_relaxed()?;
        // SAFETY: the caller's stream; the driver checks it.
        unsafe { self.context.driver.stream_synchronize(raw_stream(stream)) }.check(&self.context)
    }

    fn is_idle(&self, stream: Stream) -> Result<bool> {
        let _scope = self.context.enter_relaxed()?;
        // SAFETY: the caller's stream; the driver checks it.
        let status = unsafe { self.context.driver.stream_query(raw_stream(stream)) };
        if status.code == code::NOT_READY { Ok(false) } else { status.check(&self.context).map(|()| true) }
    }
}

impl SharedMemory for CudaDevice {
    fn alloc_heap(&self, bytes: u64, kind: HeapKind) -> Result<Memory> {
        heap::alloc(&self.pool, &self.copier, &self.context, bytes, kind)
    }

    fn share(&self, heap: &Memory) -> Result<()> {
        heap::share(&self.context, heap)
    }

    fn export(&self, heap: &Memory, kind: HeapKind) -> Result<Export> {
        heap::export(&self.context, heap, kind)
    }

    fn import(&self, token: &[u8], fd: Option<OwnedFd>, kind: HeapKind) -> Result<Memory> {
        heap::import(&self.context, token, fd, kind)
    }

    fn host_address(&self, memory: &Memory) -> Option<u64> {
        heap::host_address(memory)
    }

    fn can_detach(&self, memory: &Memory) -> bool {
        heap::can_detach(memory)
    }

    fn detach(&self, memory: &Memory) -> Result<()> {
        heap::detach(memory)
    }

    fn attach(&self, heap: &Memory) -> Result<()> {
        heap::attach(&self.context, heap)
    }

    fn attach_peer(&self, memory: &Memory, token: &[u8], fd: Option<OwnedFd>) -> Result<()> {
        heap::attach_peer(&self.context, memory, token, fd)
    }

    fn expose(&self, addr: u64) -> Result<Option<Exposed>> {
        self.allocation(addr)
    }

    fn reach(&self, ordinal: u32) -> Result<()> {
        self.reach_device(ordinal)
    }
}

impl KernelLaunches for CudaDevice {
    fn prepare(&self, kernel: KernelKey) -> Result<()> {
        self.kernels.prepare(kernel, &self.caps)?;
        match kernel.route {
            // Takes its place where it can; nothing may be loaded while streams wait.
            Route::COPY_ENGINE => self.kernels.prepare(reduce_kernel::ADDER, &self.caps),
            _ => Ok(()),
        }
    }

    fn launch(&self, kernel: KernelKey, args: &Args, threads: u32, stream: Stream) -> Result<()> {
        if args.n_blocks == 0 {
            return Ok(());
        }
        let grid = Grid { blocks: args.n_blocks.into(), threads, shared_bytes: 0, manner: self.manner() };
        self.launch_kernel(kernel, grid, ptr::from_ref(args).cast(), stream)
    }

    fn launch_fused(&self, kernel: KernelKey, launch: &FusedKernelLaunch, stream: Stream) -> Result<()> {
        let &FusedKernelLaunch { blocks, threads, .. } = launch;
        let grid = Grid { blocks, threads, shared_bytes: 0, manner: self.manner() };
        self.launch_kernel(kernel, grid, ptr::from_ref(&launch.args).cast(), stream)
    }

    fn launch_batch(&self, launch: &FusedBatch, stream: Stream) -> Result<()> {
        let &FusedBatch { kernel, blocks, threads, .. } = launch;
        let grid = Grid { blocks, threads, shared_bytes: 0, manner: self.manner() };
        self.launch_kernel(kernel, grid, ptr::from_ref(&launch.args).cast(), stream)
    }

    fn reduce(&self, reduce: &ReduceKernel, stream: Stream) -> Result<()> {
        let reduce = Some(reduce)
            .filter(|_| env::settings().memory_adds)
            .and_then(ReduceKernel::in_memory)
            .unwrap_or(*reduce);
        let (threads, shared_bytes) = reduce.block();
        let _scope = self.context.enter()?;
        let manner = Manner::Urgent(stream::highest_priority(&self.context)?);
        let grid = Grid { blocks: reduce.blocks, threads, shared_bytes, manner };
        reduce.pieces().try_for_each(|piece| {
            self.launch_kernel(piece.kernel, grid, ptr::from_ref(&piece.args).cast(), stream)
        })
    }

    fn reach_all(&self, ids: &[&str]) -> Result<bool> {
        self.reach_devices(ids)
    }

    fn is_reached(&self, addr: u64, bytes: u64) -> Result<bool> {
        self.is_open(addr, bytes)
    }
}

impl StreamWords for CudaDevice {
    fn memory_ops(&self, stream: Stream, ops: &[MemoryOp]) -> Result<()> {
        let _scope = self.context.enter()?;
        ops.chunks(stream::MOST_OPS)
            .try_for_each(|ops| stream::memory_ops(&self.context, raw_stream(stream), ops))
    }

    fn memory_ops_apart(&self, ops: &[MemoryOp]) -> Result<()> {
        apart::memory_ops(&self.context, ops)
    }

    fn wait_value(&self, stream: Stream, addr: u64, value: u32) -> Result<bool> {
        let _scope = self.context.enter()?;
        stream::wait_value(&self.context, raw_stream(stream), addr, value)
    }

    fn call(&self, stream: Stream, call: Box<dyn Fn() + Send + Sync>) -> Result<()> {
        let _scope = self.context.enter()?;
        call::put(&self.context, raw_stream(stream), call)
    }
}

impl Graphs for CudaDevice {
    fn begin_capture(&self, stream: Stream) -> Result<()> {
        graph::begin_capture(&self.context, raw_stream(stream))
    }

    fn end_capture(&self, stream: Stream) -> Result<Graph> {
        graph::end_capture(&self.context, raw_stream(stream))
    }

    fn launch_graph(&self, graph: &Graph, stream: Stream) -> Result<()> {
        graph::launch(&self.context, graph, raw_stream(stream))
    }

    fn event(&self) -> Result<Event> {
        event::create(&self.context)
    }

    fn record_event(&self, stream: Stream, event: &Event) -> Result<()> {
        event::record(&self.context, raw_stream(stream), event)
    }

    fn record_users_event(&self, stream: Stream, event: u64) -> Result<()> {
        let _scope = self.context.enter()?;
        let event = ptr::with_exposed_provenance_mut(event as usize);
        // SAFETY: the program's event; the driver checks it and the stream.
        unsafe { self.context.driver.event_record(event, raw_stream(stream)) }.check(&self.context)
    }

    fn wait_event(&self, stream: Stream, event: &Event, is_captured: bool) -> Result<()> {
        event::wait(&self.context, raw_stream(stream), event, is_captured)
    }

    fn record_in_graph(&self, stream: Stream, event: &Event, node: Option<RecordNode>) -> Result<RecordNode> {
        event::record_in_graph(&self.context, raw_stream(stream), event, node)
    }

    fn keep_for_graph(&self, stream: Stream, kept: Box<dyn Send>) -> Result<bool> {
        graph::keep(&self.context, raw_stream(stream), kept)
    }
}

impl FlatMaps for CudaDevice {
    fn pieces(&self, addr: u64, bytes: u64) -> Result<Pieces> {
        flat::pieces(&self.context, addr, bytes)
    }

    fn lay_out(&self, stride: u64, rows: &[Row<'_>]) -> Result<Memory> {
        flat::lay_out(&self.context, stride, rows)
    }

    fn multicast(&self) -> Option<&dyn Multicast> {
        multicast::is_supported(&self.context).then_some(self)
    }
}

impl Multicast for CudaDevice {
    fn multicast_granularity(&self, devices: u32) -> Result<u64> {
        multicast::granularity(&self.context, devices)
    }

    fn create_multicast(&self, devices: u32, bytes: u64) -> Result<Box<dyn MulticastObject>> {
        Ok(Box::new(multicast::Object::create(&self.context, devices, bytes)?))
    }

    fn import_multicast(&self, descriptor: BorrowedFd<'_>, bytes: u64) -> Result<Box<dyn MulticastObject>> {
        Ok(Box::new(multicast::Object::import(&self.context, descriptor, bytes)?))
    }
}

impl Ipc for CudaDevice {
    fn exposed_handle(&self, exposed: &Exposed) -> Result<[u8; 64]> {
        self.handle_of(exposed)
    }

    fn open_exposed(&self, handle: &[u8; 64]) -> Result<Memory> {
        self.open_handle(handle)
    }
}

/// The driver's handle of a stream; `cudaStream_t` is the same type.
fn raw_stream(stream: Stream) -> CUstream {
    ptr::with_exposed_provenance_mut(stream.0 as usize)
}

#[cfg(test)]
mod tests;
