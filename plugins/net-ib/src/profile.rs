//! Events for profilers, in NCCL's form: one per chunk of a send, from its posting to its completion.

use std::ffi::c_void;
use std::ptr::null_mut;

use hawser_plugin::host::NetProfiler;

/// The number of events of NCCL's own IB net: type 1, version 1.
const PLUGIN: i64 = (1 << 16) | 1;
/// Types of calls.
const START: i32 = 0;
const STOP: i32 = 1;
/// The kind of payload: an operation of a queue pair.
const QUEUE_PAIR: u8 = 1;
/// `IBV_WR_RDMA_WRITE_WITH_IMM`.
const WRITE: i32 = 1;

/// NCCL's description of an operation of a queue pair, version 1.
#[repr(C)]
struct Operation {
    device: i32,
    wr: u64,
    opcode: i32,
    qp: i32,
    bytes: usize,
}

#[repr(C)]
struct Payload {
    kind: u8,
    operation: Operation,
}

const _: () = assert!(size_of::<Payload>() == 40 && std::mem::offset_of!(Payload, operation) == 8);

/// An event that a profiler keeps.
#[derive(Debug)]
pub(crate) struct Event {
    callback: NetProfiler,
    handle: *mut c_void,
}

// SAFETY: the handle is the profiler's, which takes it from any thread of the plugin.
unsafe impl Send for Event {}

impl Event {
    /// A chunk is posted on a device; `parent` is what the host passed with the request. None: nobody wants
    /// it.
    pub fn start(
        callback: NetProfiler,
        parent: u64,
        (device, qp): (usize, u32),
        wr: u64,
        bytes: u64,
    ) -> Option<Self> {
        let operation =
            Operation { device: device as i32, wr, opcode: WRITE, qp: qp as i32, bytes: bytes as usize };
        let mut payload = Payload { kind: QUEUE_PAIR, operation };
        let (mut handle, parent) = (null_mut(), parent as *mut c_void);
        // SAFETY: the host's callback; it reads the payload of this type during the call, and the parent is
        // its own.
        let code =
            unsafe { callback(&mut handle, START, parent, PLUGIN, (&raw mut payload).cast::<c_void>()) };
        (code == 0 && !handle.is_null()).then_some(Self { callback, handle })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the handle came from the callback and is stopped once.
        unsafe { (self.callback)(&mut self.handle, STOP, null_mut(), PLUGIN, null_mut()) };
    }
}
