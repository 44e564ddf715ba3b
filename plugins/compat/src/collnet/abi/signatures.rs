//! The signatures and structs of collnet tables that net tables do not have.

use std::ffi::{c_int, c_void};

use crate::logger::Logger;

/// `init` since v11: context, communicator, logger. Before that it is net's of v6.
pub type InitV11 = unsafe extern "C" fn(*mut *mut c_void, u64, Option<Logger>) -> c_int;
/// `connect`: handles of all ranks, number of ranks, this rank, listener, result.
pub type Connect =
    unsafe extern "C" fn(*mut *mut c_void, c_int, c_int, *mut c_void, *mut *mut c_void) -> c_int;
/// `reduceSupport`: type, operation, result.
pub type ReduceSupport = unsafe extern "C" fn(c_int, c_int, *mut c_int) -> c_int;
/// `iallreduce` of v6 to v8: connection, send, receive, elements, type, operation, registrations of both,
/// result.
pub type IallreduceV6 = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    *mut c_void,
    c_int,
    c_int,
    c_int,
    *mut c_void,
    *mut c_void,
    *mut *mut c_void,
) -> c_int;
/// `iallreduce` since v9.
pub type IallreduceV9 = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    *mut c_void,
    usize,
    c_int,
    c_int,
    *mut c_void,
    *mut c_void,
    *mut *mut c_void,
) -> c_int;
/// `iallgather`: connection, send, number and parts of receive, bytes per rank, offset and bytes of the
/// window, registration of send, result.
pub type Iallgather<S> = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    c_int,
    *mut S,
    usize,
    usize,
    usize,
    *mut c_void,
    *mut *mut c_void,
) -> c_int;
/// `ireducescatter`: connection, number and parts of send, receive, bytes per rank, offset and bytes of the
/// window, type, operation, registration of receive, result.
pub type Ireducescatter<S> = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *mut S,
    *mut c_void,
    usize,
    usize,
    usize,
    c_int,
    c_int,
    *mut c_void,
    *mut *mut c_void,
) -> c_int;
/// `iflush`: connection, address, length, registration, result.
pub type Iflush =
    unsafe extern "C" fn(*mut c_void, *mut c_void, c_int, *mut c_void, *mut *mut c_void) -> c_int;

/// A part of a buffer in v8.
#[repr(C)]
pub struct SegmentV8 {
    /// Its registration.
    pub registration: *mut c_void,
    /// The place where it begins.
    pub addr: *mut c_void,
    /// Its length.
    pub bytes: u32,
}

/// A part of a buffer since v9.
#[repr(C)]
pub struct SegmentV9 {
    /// Its registration.
    pub registration: *mut c_void,
    /// The place where it begins.
    pub addr: *mut c_void,
    /// Its length.
    pub bytes: usize,
}

const _: () = {
    assert!(size_of::<SegmentV8>() == 24);
    assert!(size_of::<SegmentV9>() == 24);
    assert!(std::mem::offset_of!(SegmentV8, bytes) == 16);
    assert!(std::mem::offset_of!(SegmentV9, bytes) == 16);
};
