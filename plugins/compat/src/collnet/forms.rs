//! The forms that the functions of collnet tables have had, as `net::forms` has those of net tables.

use std::ffi::{c_int, c_void};

use hawser_plugin::collnet::CollNetSegment;

use super::abi::signatures::{self as raw, InitV11, SegmentV8, SegmentV9};
use super::calls::{Window, pointers};
use crate::logger::Logger;
use crate::net::abi::signatures::InitV6;
use crate::net::calls::{Failure, Outcome, int};

/// `init` in any form.
pub trait Init: Send + Sync {
    /// True if it makes a context for each communicator; otherwise it is called once in a process.
    fn makes_context(&self) -> bool {
        false
    }

    /// Calls it. The context goes to `out`.
    ///
    /// # Safety
    /// The function keeps its version's contract; the pointer is valid for the call, the callback for ever.
    unsafe fn call(&self, out: *mut *mut c_void, comm_id: u64, logger: Logger) -> c_int;
}

impl Init for InitV6 {
    unsafe fn call(&self, _out: *mut *mut c_void, _comm_id: u64, logger: Logger) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { self(Some(logger)) }
    }
}

impl Init for InitV11 {
    fn makes_context(&self) -> bool {
        true
    }

    unsafe fn call(&self, out: *mut *mut c_void, comm_id: u64, logger: Logger) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { self(out, comm_id, Some(logger)) }
    }
}

/// Type and operation of a reduction, as plugins number them.
#[derive(Debug, Clone, Copy)]
pub struct Reduction {
    /// The number of the data type.
    pub dtype: c_int,
    /// The number of the operation.
    pub op: c_int,
}

/// Address and registration of a buffer.
type Pointers = (*mut c_void, *mut c_void);

/// `iallreduce` in any form.
pub trait Iallreduce: Send + Sync {
    /// Calls it. The request goes to `out`.
    ///
    /// # Errors
    /// The number of elements is more than this form can say.
    ///
    /// # Safety
    /// The function keeps its version's contract; the buffers lie in their registrations until the request is
    /// done.
    unsafe fn call(
        &self,
        comm: *mut c_void,
        from: Pointers,
        to: Pointers,
        count: usize,
        reduction: Reduction,
        out: *mut *mut c_void,
    ) -> Outcome<c_int>;
}

impl Iallreduce for raw::IallreduceV6 {
    unsafe fn call(
        &self,
        comm: *mut c_void,
        (from, from_mr): Pointers,
        (to, to_mr): Pointers,
        count: usize,
        Reduction { dtype, op }: Reduction,
        out: *mut *mut c_void,
    ) -> Outcome<c_int> {
        // SAFETY: the caller's promise.
        Ok(unsafe { self(comm, from, to, int(count)?, dtype, op, from_mr, to_mr, out) })
    }
}

impl Iallreduce for raw::IallreduceV9 {
    unsafe fn call(
        &self,
        comm: *mut c_void,
        (from, from_mr): Pointers,
        (to, to_mr): Pointers,
        count: usize,
        Reduction { dtype, op }: Reduction,
        out: *mut *mut c_void,
    ) -> Outcome<c_int> {
        // SAFETY: the caller's promise.
        Ok(unsafe { self(comm, from, to, count, dtype, op, from_mr, to_mr, out) })
    }
}

/// Parts of buffers, and what a call handles of the whole.
pub struct Parts<'a> {
    /// The parts.
    pub segments: &'a [CollNetSegment],
    /// Their number.
    pub count: c_int,
    /// Bytes per rank, then offset and length of what the call handles.
    pub window: Window,
}

/// A part of a buffer as a version has it.
trait Segment: Sized {
    /// The part in this version's struct.
    fn of(segment: &CollNetSegment) -> Outcome<Self>;

    /// All parts in this version's struct.
    fn all(parts: &Parts<'_>) -> Outcome<Vec<Self>> {
        parts.segments.iter().map(Self::of).collect()
    }
}

impl Segment for SegmentV8 {
    fn of(segment: &CollNetSegment) -> Outcome<Self> {
        let (addr, registration) = pointers((segment.addr, segment.registration));
        let too_long = |_| Failure::Length { length: segment.bytes, most: u32::MAX as usize };
        Ok(Self { registration, addr, bytes: u32::try_from(segment.bytes).map_err(too_long)? })
    }
}

impl Segment for SegmentV9 {
    fn of(segment: &CollNetSegment) -> Outcome<Self> {
        let (addr, registration) = pointers((segment.addr, segment.registration));
        Ok(Self { registration, addr, bytes: segment.bytes })
    }
}

/// `iallgather` in any form.
pub trait Iallgather: Send + Sync {
    /// Calls it. The request goes to `out`.
    ///
    /// # Errors
    /// A part is longer than this form can say.
    ///
    /// # Safety
    /// As [`Iallreduce::call`].
    unsafe fn call(
        &self,
        comm: *mut c_void,
        from: Pointers,
        to: &Parts<'_>,
        out: *mut *mut c_void,
    ) -> Outcome<c_int>;
}

impl<S: Segment> Iallgather for raw::Iallgather<S> {
    unsafe fn call(
        &self,
        comm: *mut c_void,
        (from, mr): Pointers,
        to: &Parts<'_>,
        out: *mut *mut c_void,
    ) -> Outcome<c_int> {
        let (per_rank, offset, bytes) = to.window;
        // NCCL's own parts live as long as the call, too.
        let mut parts = S::all(to)?;
        let parts = parts.as_mut_ptr();
        // SAFETY: the caller's promise.
        Ok(unsafe { self(comm, from, to.count, parts, per_rank, offset, bytes, mr, out) })
    }
}

/// `ireducescatter` in any form.
pub trait Ireducescatter: Send + Sync {
    /// Calls it. The request goes to `out`.
    ///
    /// # Errors
    /// A part is longer than this form can say.
    ///
    /// # Safety
    /// As [`Iallreduce::call`].
    unsafe fn call(
        &self,
        comm: *mut c_void,
        from: &Parts<'_>,
        to: Pointers,
        reduction: Reduction,
        out: *mut *mut c_void,
    ) -> Outcome<c_int>;
}

impl<S: Segment> Ireducescatter for raw::Ireducescatter<S> {
    unsafe fn call(
        &self,
        comm: *mut c_void,
        from: &Parts<'_>,
        (to, mr): Pointers,
        Reduction { dtype, op }: Reduction,
        out: *mut *mut c_void,
    ) -> Outcome<c_int> {
        let (per_rank, offset, bytes) = from.window;
        // NCCL's own parts live as long as the call, too.
        let mut parts = S::all(from)?;
        let parts = parts.as_mut_ptr();
        // SAFETY: the caller's promise.
        Ok(unsafe { self(comm, from.count, parts, to, per_rank, offset, bytes, dtype, op, mr, out) })
    }
}
