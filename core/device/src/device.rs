//! Devices: where buffers live and programs run.
//!
//! A device implements [`Device`], [`Streams`] and [`SharedMemory`]; what only some kinds can do
//! ([`Kernels`], [`StreamWords`], [`Graphs`], [`FlatMaps`], [`Ipc`]) it has or has not, and nobody asks for
//! its kind. The traits are object-safe and called per launch, never per chunk. The caller validates
//! arguments; a device only reports what the hardware or the driver refused. Addresses are `u64` and opaque
//! to everyone but the device.

use std::any::Any;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use hawser_base::error::{Error, Result};
use hawser_kernels_abi::{Args, KernelKey};
use hawser_plan::executor::copy_engine::ReduceKernel;
use hawser_plan::executor::fused::FusedArgs;
use hawser_plan::executor::fused::batch::FusedBatch;
use hawser_plan::topology::DeviceKind;

use crate::memory::Memory;
use crate::pool::Pool;

/// A `cudaStream_t`; 0 is the default stream. The host device ignores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Stream(pub u64);

/// The operations of a stream on a `u32` in memory, without a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryOp {
    /// Waits until it is not 0 (below 2^31).
    Wait {
        /// The address of the word.
        addr: u64,
    },
    /// Waits until it has counted to `value` or further; it may wrap.
    WaitFor {
        /// The address of the word.
        addr: u64,
        /// The value that it has to have reached.
        value: u32,
    },
    /// Writes it, when everything before it on the stream can be seen.
    Write {
        /// The address of the word.
        addr: u64,
        /// The value that is written.
        value: u32,
    },
}

/// The state of a stream at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamState {
    /// Tells it from streams that had or will have the same handle.
    pub id: u64,
    /// The capture that it takes part in, if any.
    pub capture: Option<u64>,
}

/// The capabilities of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caps {
    /// The kind, as the planner knows it.
    pub kind: DeviceKind,
    /// Ordinal in this process.
    pub ordinal: u32,
    /// Identity that is equal in all processes of the host: the PCI bus id (`0000:1b:00.0`), with the
    /// MIG instance if any; on the host device a name unique per rank.
    pub id: String,
    /// For logs and `hawser doctor`.
    pub name: String,
    /// Identities of the devices whose memory this one can map (peer access).
    pub peers: Vec<String>,
    /// True if peers are reached over NVLink.
    pub nvlink: bool,
    /// Most blocks that may run at the same time.
    pub multiprocessors: u32,
    /// Streams of a process that may wait for words while others go on.
    pub queues: u32,
}

/// The kind of memory that a heap lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeapKind {
    /// Device memory that peers map (the p2p transport).
    Device,
    /// Host memory that all devices of the host map (the shm transport).
    Host,
}

/// An allocation of the user that copy engines of peers can reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exposed {
    /// Its first byte.
    pub base: u64,
    /// Its length.
    pub bytes: u64,
    /// Tells it from those that were or will be at the same address.
    pub id: u64,
}

/// The ways in which a peer may map a heap.
pub struct Export {
    /// Opaque bytes for [`SharedMemory::import`]; the same host only. At most 256 bytes.
    pub token: Vec<u8>,
    /// A descriptor that a peer in another process needs as well.
    pub fd: Option<OwnedFd>,
}

/// A buffer of the user as the pieces of physical memory that it lies in, for [`FlatMaps`].
pub struct Pieces {
    /// Address at which the first piece begins; the buffer begins there or behind.
    pub base: u64,
    /// The lengths of the pieces, one behind the other, and descriptors of them.
    pub pieces: Vec<(u64, OwnedFd)>,
    /// The length of which all places of pieces are multiples.
    pub granularity: u64,
}

/// The memory of one rank in a flat range.
pub struct Row<'a> {
    /// The place of its first piece, behind the begin of the row.
    pub at: u64,
    /// As [`Pieces::pieces`].
    pub pieces: Vec<(u64, BorrowedFd<'a>)>,
}

/// Words that both the host and the device can reach (abort flag, report).
pub struct HostWords {
    /// Host address, valid as long as `memory` lives.
    pub host: *mut u8,
    /// The memory; `memory.addr` is the device address.
    pub memory: Memory,
}

// SAFETY: the pointer is only an address; all accesses go through atomics or after completion.
unsafe impl Send for HostWords {}
// SAFETY: as above.
unsafe impl Sync for HostWords {}

/// A stream of one's own, destroyed when dropped; work that is on it still runs to its end.
pub struct OwnedStream {
    /// The handle, valid as long as `self` lives.
    pub stream: Stream,
    /// The owner of the stream; dropping it destroys the stream.
    pub owner: Box<dyn Any + Send + Sync>,
}

/// A captured and instantiated CUDA graph, destroyed when dropped; a launch that is on its way still
/// runs to its end. What the captured calls used (communicators, buffers) must outlive its launches.
pub struct Graph {
    /// The data that only the device that made it knows.
    pub owner: Box<dyn Any + Send + Sync>,
}

/// A point in a stream's work that can be waited for.
pub struct Moment {
    /// The data that only the device that made it knows.
    pub owner: Box<dyn Any + Send + Sync>,
}

/// A point that streams and replays of graphs reach and wait for; over until it is recorded first.
pub struct Event {
    /// The data that only the device that made it knows.
    pub owner: Box<dyn Any + Send + Sync>,
}

/// A node of a graph under capture that records an event at each replay.
pub struct RecordNode {
    /// The driver's handle.
    pub node: u64,
    /// The nodes that it comes after.
    pub after: Vec<u64>,
}

/// A launch of a fused kernel.
#[derive(Debug, Clone, Copy)]
pub struct FusedKernelLaunch {
    /// The arguments that the kernel reads.
    pub args: FusedArgs,
    /// Grid size.
    pub blocks: u32,
    /// Threads per block.
    pub threads: u32,
}

/// A device: what it is, and memory of its own. Every kind has this, streams and memory that peers use;
/// what only some kinds have is behind an `Option`.
pub trait Device: Streams + SharedMemory {
    /// The device's identity and abilities.
    fn caps(&self) -> &Caps;

    /// Enters the device's context on this thread until the guard is dropped.
    fn enter(&self) -> Result<Box<dyn Any>>;

    /// The pool that its memory comes from.
    fn pool(&self) -> &Arc<Pool>;

    /// Zeroed memory private to the device. Blocking; must work while a stream of the thread is being
    /// captured.
    fn alloc(&self, bytes: u64) -> Result<Memory>;

    /// Zeroed memory as programs take it (`cudaMalloc`), outside the pool.
    fn alloc_as_user(&self, bytes: u64) -> Result<Memory>;

    /// Memory shared with the host, zeroed.
    fn host_words(&self, bytes: u64) -> Result<HostWords>;

    /// Copies bytes to device memory and returns when they are there. Must work during a capture.
    fn upload(&self, addr: u64, bytes: &[u8]) -> Result<()>;

    /// Copies bytes from device memory and returns when they are here (tests, reports).
    fn download(&self, addr: u64, bytes: &mut [u8]) -> Result<()>;

    /// True if an address can be used by kernels of this device (mapped memory on the host device).
    fn accepts(&self, addr: u64) -> Result<bool>;

    /// Its kernels. None: programs run on the CPU, by polling.
    fn kernels(&self) -> Option<&dyn Kernels> {
        None
    }

    /// The waits and writes of its streams on words of memory, if it has them.
    fn stream_words(&self) -> Option<&dyn StreamWords> {
        None
    }

    /// Its graphs.
    fn graphs(&self) -> Option<&dyn Graphs> {
        None
    }

    /// The means by which ranks map the memory of programs side by side.
    fn flat_maps(&self) -> Option<&dyn FlatMaps> {
        None
    }

    /// The means by which other processes map the memory of programs.
    fn ipc(&self) -> Option<&dyn Ipc> {
        None
    }
}

/// Streams of a device: work that is put on one runs in order. On the host device there is one, whose work
/// is over when the call returns.
pub trait Streams: Send + Sync {
    /// A new stream that does not wait for the default stream; the default stream itself on the host
    /// device. Must work while a stream of the thread is being captured.
    ///
    /// # Errors
    /// The driver refused it.
    fn stream(&self) -> Result<OwnedStream>;

    /// The same with the highest priority: work of others does not share its hardware queue.
    fn urgent_stream(&self) -> Result<OwnedStream>;

    /// The identity of a stream, and the capture that it takes part in.
    fn stream_state(&self, stream: Stream) -> Result<StreamState>;

    /// True if a stream has a priority above the default. False where the device does not tell.
    fn is_urgent(&self, stream: Stream) -> bool {
        let _ = stream;
        false
    }

    /// Everything put on `later` from now on runs after what is on `earlier` now. Nothing happens when
    /// the two are equal or belong to different captures.
    fn order(&self, earlier: Stream, later: Stream) -> Result<()>;

    /// The same, and `later`, a stream of our own, takes part in a capture of `earlier` from now on.
    fn fork(&self, earlier: Stream, later: Stream) -> Result<()>;

    /// Puts a copy on a stream, by whatever the driver takes for it. The addresses are this device's view of
    /// any memory.
    fn copy(&self, stream: Stream, dst: u64, src: u64, bytes: u64) -> Result<()>;

    /// Copies on a stream of our own, as [`Streams::copy`], and returns when that is over. Other threads may
    /// capture.
    fn copy_and_wait(&self, own: &OwnedStream, dst: u64, src: u64, bytes: u64) -> Result<()>;

    /// The same without this GPU's multiprocessors, so that it goes on while kernels fill them. Drivers copy
    /// within one GPU by a kernel: such bytes pass through `bounce`, the address and length of memory of the
    /// host that nobody else uses meanwhile.
    fn copy_beside_kernels(
        &self,
        own: &OwnedStream,
        dst: u64,
        src: u64,
        bytes: u64,
        bounce: (u64, u64),
    ) -> Result<()>;

    /// The moment when everything is over that is on `stream` now. Not during a capture.
    fn moment(&self, stream: Stream) -> Result<Moment>;

    /// The time from one moment to a later one; None while that has not come. Does not wait; other threads
    /// may capture.
    fn between(&self, earlier: &Moment, later: &Moment) -> Result<Option<Duration>>;

    /// Waits until everything on `stream` is over. Not during a capture.
    fn synchronize(&self, stream: Stream) -> Result<()>;

    /// Returns true if everything on `stream` is over. Does not wait.
    fn is_idle(&self, stream: Stream) -> Result<bool>;
}

/// Memory of a device that other ranks of the host use.
pub trait SharedMemory: Send + Sync {
    /// Zeroed memory that peers of the same host may map.
    fn alloc_heap(&self, bytes: u64, kind: HeapKind) -> Result<Memory>;

    /// Lets the other devices of this process that have peer access use `heap` too, as they may use
    /// ordinary device memory in copies (`ncclMemAlloc`).
    fn share(&self, heap: &Memory) -> Result<()>;

    /// The handle by which peers map `heap`, which came from `alloc_heap(kind)`.
    fn export(&self, heap: &Memory, kind: HeapKind) -> Result<Export>;

    /// Maps a peer's heap for this device. `fd` is present when the peer lives in another process and
    /// exported one.
    fn import(&self, token: &[u8], fd: Option<OwnedFd>, kind: HeapKind) -> Result<Memory>;

    /// The address by which this process reaches memory of [`HeapKind::Host`] that was allocated or mapped
    /// here; None for memory of a device.
    fn host_address(&self, memory: &Memory) -> Option<u64>;

    /// True if the memory of a heap, or of a peer's heap mapped here, can be taken from under its addresses.
    fn can_detach(&self, memory: &Memory) -> bool;

    /// Gives the memory of a heap, or the mapping of a peer's heap, back. The addresses stay reserved and
    /// must not be used until they are attached again; what the memory held is lost.
    ///
    /// # Errors
    /// `InvalidUsage` where [`SharedMemory::can_detach`] says no; the system or the driver refused.
    fn detach(&self, memory: &Memory) -> Result<()>;

    /// Takes memory for a heap again, at the same addresses. It is to be exported again.
    ///
    /// # Errors
    /// There is no memory, or the driver refused.
    fn attach(&self, heap: &Memory) -> Result<()>;

    /// Maps a peer's heap again, at the same addresses; otherwise as [`SharedMemory::import`].
    ///
    /// # Errors
    /// As [`SharedMemory::import`].
    fn attach_peer(&self, memory: &Memory, token: &[u8], fd: Option<OwnedFd>) -> Result<()>;

    /// The allocation around an address if copy engines of other devices of this process can reach it after
    /// [`SharedMemory::reach`], and those of other processes through [`Ipc::exposed_handle`]. Works during a
    /// capture.
    fn expose(&self, addr: u64) -> Result<Option<Exposed>>;

    /// Lets this device and another one of this process, which is open, reach each other's memory.
    fn reach(&self, ordinal: u32) -> Result<()>;
}

/// Kernels of a device, and the memory that they use in place. A device without them runs programs on the
/// CPU, where an executor polls them.
pub trait Kernels: Send + Sync {
    /// Loads a kernel; called for all launches of a group before the first one is launched.
    fn prepare(&self, kernel: KernelKey) -> Result<()>;

    /// Puts a launch on a stream and returns.
    fn launch(&self, kernel: KernelKey, args: &Args, threads: u32, stream: Stream) -> Result<()>;

    /// Puts a launch of a fused kernel on a stream and returns. It may begin while the launch before it
    /// on the stream ends, and waits for its end in the kernel.
    fn launch_fused(&self, kernel: KernelKey, launch: &FusedKernelLaunch, stream: Stream) -> Result<()>;

    /// The same for a kernel that runs several exchanges.
    fn launch_batch(&self, launch: &FusedBatch, stream: Stream) -> Result<()>;

    /// Puts a kernel on a stream that combines what copy engines moved.
    fn reduce(&self, reduce: &ReduceKernel, stream: Stream) -> Result<()>;

    /// Lets kernels of this device use ordinary memory of the devices with these [`Caps::id`]s in this
    /// process, and the other way round. False: they cannot.
    fn reach_all(&self, ids: &[&str]) -> Result<bool>;

    /// True if devices that were named to [`Kernels::reach_all`] can use `bytes` bytes at `addr`, which lie
    /// on this device.
    fn is_reached(&self, addr: u64, bytes: u64) -> Result<bool>;
}

/// Operations of streams on words of memory, without a kernel.
pub trait StreamWords: Send + Sync {
    /// Puts operations on words of memory on a stream, in order.
    fn memory_ops(&self, stream: Stream, ops: &[MemoryOp]) -> Result<()>;

    /// The same, at once and whatever streams wait for; slow. For when an abort finds no free queue. Writes
    /// only.
    fn memory_ops_apart(&self, ops: &[MemoryOp]) -> Result<()>;

    /// Everything put on `stream` from now on waits until the `u32` at `addr` has counted to `value` or
    /// further (it may wrap). False: this device cannot do that.
    fn wait_value(&self, stream: Stream, addr: u64, value: u32) -> Result<bool>;

    /// Calls a function of the host when everything is over that is on the stream before it; what is put on
    /// the stream afterwards waits for its end. In a capture it is called at each replay. The thread is the
    /// driver's and serves all streams: the function must neither wait nor call the device.
    fn call(&self, stream: Stream, call: Box<dyn Fn() + Send + Sync>) -> Result<()>;
}

/// Graphs of captured work, and the events by which replays and other work wait for each other.
pub trait Graphs: Send + Sync {
    /// From now on calls on `stream`, not the default stream, are recorded instead of run, until
    /// [`Graphs::end_capture`] on the same thread. Does not wait. Other threads are not affected
    /// (`CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`).
    ///
    /// # Errors
    /// The stream is being captured already or is the default stream.
    fn begin_capture(&self, stream: Stream) -> Result<()>;

    /// Ends the capture of `stream` and makes what was recorded ready to launch. Blocking, but does not
    /// wait for work on the device. The capture is over in any case.
    ///
    /// # Errors
    /// `stream` is not being captured by this thread, a recorded call broke the capture, or no memory
    /// is left.
    fn end_capture(&self, stream: Stream) -> Result<Graph>;

    /// Puts a launch of everything in `graph` on a stream and returns. Launches of one graph run one
    /// after the other.
    ///
    /// # Errors
    /// The graph is of another device, or the driver refused the launch.
    fn launch_graph(&self, graph: &Graph, stream: Stream) -> Result<()>;

    /// A new event. Works during a capture.
    fn event(&self) -> Result<Event>;

    /// Records the event behind what is on `stream` now. Not during a capture.
    fn record_event(&self, stream: Stream, event: &Event) -> Result<()>;

    /// Records an event of the program, a `cudaEvent_t`, behind what is on `stream` now.
    ///
    /// # Errors
    /// The driver does not know the event.
    fn record_users_event(&self, stream: Stream, event: u64) -> Result<()>;

    /// Everything put on `stream` from now on waits for what the event recorded last; in a capture, for what
    /// it recorded last when the graph is replayed.
    fn wait_event(&self, stream: Stream, event: &Event, is_captured: bool) -> Result<()>;

    /// Records the event at each replay of what is captured, behind what is on `stream` now. Nothing captured
    /// later waits for that; `node`, such a node of the same capture, is moved there.
    fn record_in_graph(&self, stream: Stream, event: &Event, node: Option<RecordNode>) -> Result<RecordNode>;

    /// Drops `kept` when the graph that `stream` is captured into is gone, with all that was instantiated
    /// from it and all its launches. The thread is any, and may be the driver's: the drop must neither wait
    /// nor call the device. False, and `kept` is dropped at once, where the driver cannot tell.
    ///
    /// # Errors
    /// The stream is not captured, or the driver refused.
    fn keep_for_graph(&self, stream: Stream, kept: Box<dyn Send>) -> Result<bool>;
}

/// Ordinary memory of a program, as other processes of the host map it.
pub trait Ipc: Send + Sync {
    /// The handle that another process opens to map an allocation.
    fn exposed_handle(&self, exposed: &Exposed) -> Result<[u8; 64]>;

    /// Maps an allocation of a process of this host. `addr` is where its first byte is.
    fn open_exposed(&self, handle: &[u8; 64]) -> Result<Memory>;
}

/// Flat ranges of addresses, in which rows of one length hold the memory of one rank each.
pub trait FlatMaps: Send + Sync {
    /// The pieces of physical memory that a buffer lies in.
    ///
    /// # Errors
    /// `InvalidUsage`: it is memory that others cannot map by a descriptor, or has too many pieces.
    fn pieces(&self, addr: u64, bytes: u64) -> Result<Pieces>;

    /// A new range of rows that are `stride` bytes long, with what is in them mapped for this device. What no
    /// row holds must not be used.
    ///
    /// # Errors
    /// No addresses are left, or the driver refused.
    fn lay_out(&self, stride: u64, rows: &[Row<'_>]) -> Result<Memory>;

    /// Multicast, if the device takes part in it.
    fn multicast(&self) -> Option<&dyn Multicast>;
}

/// Addresses at which a store reaches the memory of all GPUs of a team. No hardware has run this yet.
pub trait Multicast: Send + Sync {
    /// The number that lengths and places in an object of so many GPUs are multiples of.
    ///
    /// # Errors
    /// The driver refused.
    fn multicast_granularity(&self, devices: u32) -> Result<u64>;

    /// A new object for so many GPUs.
    ///
    /// # Errors
    /// No such object is left, or the driver refused.
    fn create_multicast(&self, devices: u32, bytes: u64) -> Result<Box<dyn MulticastObject>>;

    /// The object that another process has made, by its descriptor.
    ///
    /// # Errors
    /// The driver refused.
    fn import_multicast(&self, descriptor: BorrowedFd<'_>, bytes: u64) -> Result<Box<dyn MulticastObject>>;
}

/// A multicast object, as the process of one GPU has it. Dropping it unmaps it, and unbinds the memory.
pub trait MulticastObject: Send + Sync {
    /// A new descriptor for another process.
    ///
    /// # Errors
    /// The driver refused.
    fn export(&self) -> Result<OwnedFd>;

    /// This GPU takes part. All do before any of them binds memory.
    ///
    /// # Errors
    /// The driver refused, as where two ranks share the GPU.
    fn join(&self) -> Result<()>;

    /// Binds this GPU's memory, an address and a length, to a place in the object.
    ///
    /// # Errors
    /// It is no memory that can be bound, or the driver refused.
    fn bind(&mut self, at: u64, memory: (u64, u64)) -> Result<()>;

    /// Maps the object for this GPU, and tells where.
    ///
    /// # Errors
    /// No addresses are left, or the driver refused.
    fn map(&mut self) -> Result<u64>;
}

impl dyn Device + '_ {
    /// Its kernels, for a launch that was made for a device which has some.
    ///
    /// # Errors
    /// `Internal`: it has none.
    #[inline]
    pub fn needs_kernels(&self) -> Result<&dyn Kernels> {
        self.kernels().ok_or_else(|| Error::internal("a launch of a kernel on a device that has none"))
    }

    /// The waits and writes of its streams on words, for a launch of copy engines.
    ///
    /// # Errors
    /// `Internal`: it polls its copies.
    #[inline]
    pub fn needs_stream_words(&self) -> Result<&dyn StreamWords> {
        self.stream_words()
            .ok_or_else(|| Error::internal("a device that polls its copies has no words of streams"))
    }

    /// Its graphs.
    ///
    /// # Errors
    /// `InvalidUsage`: it has none.
    #[inline]
    pub fn needs_graphs(&self) -> Result<&dyn Graphs> {
        self.graphs().ok_or_else(|| {
            Error::invalid_usage("graphs need CUDA: the host device has none")
                .remedy("run on a GPU, or launch the operations one by one")
        })
    }

    /// The means by which other processes map the memory of programs.
    ///
    /// # Errors
    /// `Internal`: they cannot.
    #[inline]
    pub fn needs_ipc(&self) -> Result<&dyn Ipc> {
        self.ipc().ok_or_else(|| Error::internal("another process cannot map the user's host memory"))
    }
}
