//! The calls of a collnet table in one form for all versions.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use hawser_plugin::collnet::{CollNetSegment, DataType, ReduceOp};
use hawser_plugin::net::Registration;

use super::abi::signatures::*;
use super::forms::{Iallgather, Iallreduce, Init, Ireducescatter, Parts, Reduction};
use crate::common::Missing;
use crate::logger::Logger;
use crate::net::abi::properties::PropertiesReader;
use crate::net::abi::signatures as net;
use crate::net::calls::{Failure, Memory, Outcome, int, outcome, pointer};
use crate::net::forms::{Listen, MakeVDevice};

/// A table of any version.
#[allow(missing_docs)] // NCCL's functions
pub struct Calls {
    pub init: Box<dyn Init>,
    pub devices: net::Devices,
    /// Only with contexts, and then always if there are devices.
    pub finalize: Option<net::Close>,
    /// The functions that a plugin without devices may lack.
    pub operations: Result<Operations, Missing>,
}

/// The part of a table that is for plugins with devices.
#[allow(missing_docs)] // NCCL's functions
pub struct Operations {
    pub properties: PropertiesReader,
    pub listen: Box<dyn Listen>,
    pub connect: Connect,
    pub reduce_support: ReduceSupport,
    pub memory: Memory,
    pub iallreduce: Box<dyn Iallreduce>,
    pub iallgather: Option<Box<dyn Iallgather>>,
    pub ireducescatter: Option<Box<dyn Ireducescatter>>,
    pub iflush: Option<Iflush>,
    pub test: net::Test,
    pub close_coll: net::Close,
    pub close_listen: net::Close,
    pub make_v_device: Option<Box<dyn MakeVDevice>>,
}

/// A buffer: address and registration.
pub type Buffer = (u64, Registration);
/// Bytes per rank, then offset and length of what a call handles of the whole.
pub type Window = (usize, usize, usize);

impl Calls {
    /// True if each communicator has a context of its own.
    pub fn has_contexts(&self) -> bool {
        self.init.makes_context()
    }

    /// Prepares the plugin. The result is the context, NULL for versions without.
    ///
    /// # Safety
    /// The calls came from a table that keeps its version's contract.
    pub unsafe fn init(&self, comm_id: u64, logger: Logger) -> Outcome<*mut c_void> {
        let mut context = null_mut();
        // SAFETY: the pointer is valid for the call, the callback for ever.
        let code = unsafe { self.init.call(&raw mut context, comm_id, logger) };
        outcome(code, context)
    }
}

/// The methods below may be called when the operations came from a table that keeps its version's contract,
/// and the objects that are passed came from the same table and are open. Buffers lie in their registrations
/// and are left alone until the request is done. A request that is NULL was "not now".
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

    /// True if the network can reduce this.
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
        let reduction = Reduction { dtype: dtype as c_int, op: op as c_int };
        let (from, to, out) = (pointers(send), pointers(recv), &raw mut request);
        // SAFETY: the caller vouches for the buffers.
        let code = unsafe { self.iallreduce.call(comm, from, to, count, reduction, out) }?;
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
        window: Window,
    ) -> Outcome<*mut c_void> {
        let mut request = null_mut();
        let call = self.iallgather.as_ref().ok_or(Failure::Absent)?;
        let parts = Parts { segments: recv, count: int(recv.len())?, window };
        // SAFETY: the caller vouches for the buffers.
        let code = unsafe { call.call(comm, pointers(send), &parts, &raw mut request) }?;
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
        window: Window,
        dtype: DataType,
        op: ReduceOp,
    ) -> Outcome<*mut c_void> {
        let mut request = null_mut();
        let call = self.ireducescatter.as_ref().ok_or(Failure::Absent)?;
        let parts = Parts { segments: send, count: int(send.len())?, window };
        let reduction = Reduction { dtype: dtype as c_int, op: op as c_int };
        // SAFETY: the caller vouches for the buffers.
        let code = unsafe { call.call(comm, &parts, pointers(recv), reduction, &raw mut request) }?;
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
        // A flush orders all of a buffer with the GPU, whatever length is named, so a cut length loses
        // nothing.
        let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
        // SAFETY: the caller vouches for the buffer.
        let code = unsafe { iflush(comm, addr, bytes, mr, &raw mut request) };
        outcome(code, request)
    }
}

/// Address and registration of a buffer as a plugin takes them.
pub fn pointers((addr, registration): Buffer) -> (*mut c_void, *mut c_void) {
    (pointer(addr), pointer(registration.0))
}
