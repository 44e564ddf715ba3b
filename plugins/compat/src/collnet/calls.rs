//! The calls of a collnet table in one form for all versions.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use hawser_plugin::collnet::{CollNetSegment, DataType, ReduceOp};
use hawser_plugin::net::Registration;

use super::abi::signatures::*;
use crate::common::Missing;
use crate::logger::Logger;
use crate::net::abi::properties::PropertiesReader;
use crate::net::abi::signatures as net;
use crate::net::calls::{Failure, Listen, MakeVDevice, Memory, Outcome, int, outcome, pointer};

/// A table of any version.
#[allow(missing_docs)] // NCCL's functions
pub struct Calls {
    pub init: Init,
    pub devices: net::Devices,
    /// Only with contexts, and then always if there are devices.
    pub finalize: Option<net::Close>,
    /// What a plugin without devices may lack.
    pub operations: Result<Operations, Missing>,
}

/// The part of a table that is for plugins with devices.
#[allow(missing_docs)] // NCCL's functions
pub struct Operations {
    pub properties: PropertiesReader,
    pub listen: Listen,
    pub connect: Connect,
    pub reduce_support: ReduceSupport,
    pub memory: Memory,
    pub iallreduce: Iallreduce,
    pub iallgather: Option<Parts<Iallgather<SegmentV8>, Iallgather<SegmentV9>>>,
    pub ireducescatter: Option<Parts<Ireducescatter<SegmentV8>, Ireducescatter<SegmentV9>>>,
    pub iflush: Option<Iflush>,
    pub test: net::Test,
    pub close_coll: net::Close,
    pub close_listen: net::Close,
    pub make_v_device: Option<MakeVDevice>,
}

/// The forms of `init`.
pub enum Init {
    /// Once per process.
    V6(net::InitV6),
    /// Once per communicator: makes a context.
    V11(InitV11),
}

/// The forms of `iallreduce`.
#[allow(missing_docs)] // named by version
pub enum Iallreduce {
    V6(IallreduceV6),
    V9(IallreduceV9),
}

/// The forms of a call that takes parts of buffers.
#[allow(missing_docs)] // named by version
pub enum Parts<A, B> {
    V8(A),
    V9(B),
}

/// A buffer: address and registration.
pub type Buffer = (u64, Registration);
/// Bytes per rank, then offset and length of what a call handles of the whole.
pub type Window = (usize, usize, usize);

impl Calls {
    /// Whether each communicator has a context of its own.
    pub fn has_contexts(&self) -> bool {
        matches!(self.init, Init::V11(_))
    }

    /// Prepares the plugin. The result is the context, NULL for versions without.
    ///
    /// # Safety
    /// The calls came from a table that keeps its version's contract.
    pub unsafe fn init(&self, comm_id: u64, logger: Logger) -> Outcome<*mut c_void> {
        let mut context = null_mut();
        // SAFETY: the signature goes with the version; the pointer is valid for the call, the callback for ever.
        let code = unsafe {
            match self.init {
                Init::V6(init) => init(Some(logger)),
                Init::V11(init) => init(&raw mut context, comm_id, Some(logger)),
            }
        };
        outcome(code, context)
    }
}

/// The methods below may be called when the operations came from a table that keeps its version's contract, and the
/// objects that are passed came from the same table and are open. Buffers lie in their registrations and are left alone
/// until the request is done. A request that is NULL was "not now".
impl Operations {
    /// Joins the ranks. Blocks.
    ///
    /// # Safety
    /// See the impl block; each handle points to 128 writable bytes.
    pub unsafe fn connect(
        &self,
        handles: &mut [*mut c_void],
        rank: u32,
        listener: *mut c_void,
    ) -> Outcome<*mut c_void> {
        let mut comm = null_mut();
        let (ranks, rank) = (int(handles.len())?, int(rank as usize)?);
        // SAFETY: the caller vouches for the handles; the pointers are valid for the call.
        let code = unsafe { (self.connect)(handles.as_mut_ptr(), ranks, rank, listener, &raw mut comm) };
        outcome(code, comm)
    }

    /// Whether the network can reduce this.
    ///
    /// # Safety
    /// See the impl block.
    pub unsafe fn reduce_support(&self, dtype: DataType, op: ReduceOp) -> Outcome<bool> {
        let mut supported = 0;
        // SAFETY: a valid pointer.
        let code = unsafe { (self.reduce_support)(dtype as c_int, op as c_int, &raw mut supported) };
        outcome(code, supported != 0)
    }

    /// Begins to reduce.
    ///
    /// # Safety
    /// See the impl block.
    pub unsafe fn iallreduce(
        &self,
        comm: *mut c_void,
        send: Buffer,
        recv: Buffer,
        count: usize,
        dtype: DataType,
        op: ReduceOp,
    ) -> Outcome<*mut c_void> {
        let mut request = null_mut();
        let ((from, from_mr), (to, to_mr)) = (pointers(send), pointers(recv));
        let (dtype, op, out) = (dtype as c_int, op as c_int, &raw mut request);
        // SAFETY: the signature goes with the version; the caller vouches for the buffers.
        let code = unsafe {
            match self.iallreduce {
                Iallreduce::V6(call) => call(comm, from, to, int(count)?, dtype, op, from_mr, to_mr, out),
                Iallreduce::V9(call) => call(comm, from, to, count, dtype, op, from_mr, to_mr, out),
            }
        };
        outcome(code, request)
    }

    /// Begins to gather.
    ///
    /// # Safety
    /// See the impl block.
    pub unsafe fn iallgather(
        &self,
        comm: *mut c_void,
        send: Buffer,
        recv: &[CollNetSegment],
        (per_rank, offset, bytes): Window,
    ) -> Outcome<*mut c_void> {
        let mut request = null_mut();
        let ((from, mr), count) = (pointers(send), int(recv.len())?);
        let out = &raw mut request;
        // SAFETY: the signature goes with the version; the caller vouches for the buffers. NCCL's own parts live as long
        // as the call, too.
        let code = unsafe {
            match self.iallgather.as_ref().ok_or(Failure::Absent)? {
                Parts::V8(call) => {
                    let mut parts = parts_v8(recv)?;
                    let parts = parts.as_mut_ptr();
                    call(comm, from, count, parts, per_rank, offset, bytes, mr, out)
                }
                Parts::V9(call) => {
                    let mut parts = parts_v9(recv);
                    let parts = parts.as_mut_ptr();
                    call(comm, from, count, parts, per_rank, offset, bytes, mr, out)
                }
            }
        };
        outcome(code, request)
    }

    /// Begins to reduce and scatter.
    ///
    /// # Safety
    /// See the impl block.
    pub unsafe fn ireducescatter(
        &self,
        comm: *mut c_void,
        send: &[CollNetSegment],
        recv: Buffer,
        (per_rank, offset, bytes): Window,
        dtype: DataType,
        op: ReduceOp,
    ) -> Outcome<*mut c_void> {
        let mut request = null_mut();
        let ((to, mr), count) = (pointers(recv), int(send.len())?);
        let (dtype, op, out) = (dtype as c_int, op as c_int, &raw mut request);
        // SAFETY: as with `iallgather`.
        let code = unsafe {
            match self.ireducescatter.as_ref().ok_or(Failure::Absent)? {
                Parts::V8(call) => {
                    let mut parts = parts_v8(send)?;
                    let parts = parts.as_mut_ptr();
                    call(comm, count, parts, to, per_rank, offset, bytes, dtype, op, mr, out)
                }
                Parts::V9(call) => {
                    let mut parts = parts_v9(send);
                    let parts = parts.as_mut_ptr();
                    call(comm, count, parts, to, per_rank, offset, bytes, dtype, op, mr, out)
                }
            }
        };
        outcome(code, request)
    }

    /// Begins to flush. NULL: nothing to wait for.
    ///
    /// # Safety
    /// See the impl block.
    pub unsafe fn iflush(&self, comm: *mut c_void, buffer: Buffer, bytes: usize) -> Outcome<*mut c_void> {
        let Some(iflush) = self.iflush else { return Ok(null_mut()) };
        let mut request = null_mut();
        let (addr, mr) = pointers(buffer);
        // A flush orders all of a buffer with the GPU, whatever length is named, so a cut length loses nothing.
        let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
        // SAFETY: the caller vouches for the buffer.
        let code = unsafe { iflush(comm, addr, bytes, mr, &raw mut request) };
        outcome(code, request)
    }
}

fn pointers((addr, registration): Buffer) -> (*mut c_void, *mut c_void) {
    (pointer(addr), pointer(registration.0))
}

fn parts_v8(segments: &[CollNetSegment]) -> Outcome<Vec<SegmentV8>> {
    let part = |segment: &CollNetSegment| {
        let (addr, registration) = pointers((segment.addr, segment.registration));
        let too_long = |_| Failure::Length { length: segment.bytes, most: u32::MAX as usize };
        Ok(SegmentV8 { registration, addr, bytes: u32::try_from(segment.bytes).map_err(too_long)? })
    };
    segments.iter().map(part).collect()
}

fn parts_v9(segments: &[CollNetSegment]) -> Vec<SegmentV9> {
    let part = |segment: &CollNetSegment| {
        let (addr, registration) = pointers((segment.addr, segment.registration));
        SegmentV9 { registration, addr, bytes: segment.bytes }
    };
    segments.iter().map(part).collect()
}
