//! The signatures that net tables are made of. A name ends in the first version that has the form, if there
//! are several.

use std::ffi::{c_int, c_void};

use hawser_plugin::host::NetProfiler;

use super::{Attributes, CommConfig, DeviceHandle, Members4, Members8};
use crate::logger::Logger;

/// `init` of v6 to v9.
pub type InitV6 = unsafe extern "C" fn(Option<Logger>) -> c_int;
/// `init` of v10.
pub type InitV10 = unsafe extern "C" fn(Option<Logger>, Option<NetProfiler>) -> c_int;
/// `init` since v11.
pub type InitV11 = unsafe extern "C" fn(
    *mut *mut c_void,
    u64,
    *mut CommConfig,
    Option<Logger>,
    Option<NetProfiler>,
) -> c_int;
/// `devices`.
pub type Devices = unsafe extern "C" fn(*mut c_int) -> c_int;
/// `listen` of v6 to v10: device, handle, result.
pub type ListenV6 = unsafe extern "C" fn(c_int, *mut c_void, *mut *mut c_void) -> c_int;
/// `listen` since v11: with the context in front.
pub type ListenV11 = unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, *mut *mut c_void) -> c_int;
/// `connect` of v6: device, handle, result.
pub type ConnectV6 = unsafe extern "C" fn(c_int, *mut c_void, *mut *mut c_void) -> c_int;
/// `connect` of v7 to v9: with device offload.
pub type ConnectV7 =
    unsafe extern "C" fn(c_int, *mut c_void, *mut *mut c_void, *mut *mut DeviceHandle) -> c_int;
/// `connect` of v10: with the communicator's settings.
pub type ConnectV10 = unsafe extern "C" fn(
    c_int,
    *mut CommConfig,
    *mut c_void,
    *mut *mut c_void,
    *mut *mut DeviceHandle,
) -> c_int;
/// `connect` since v11: with the context in front.
pub type ConnectV11 =
    unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, *mut *mut c_void, *mut *mut DeviceHandle) -> c_int;
/// `accept` of v6.
pub type AcceptV6 = unsafe extern "C" fn(*mut c_void, *mut *mut c_void) -> c_int;
/// `accept` since v7: with device offload.
pub type AcceptV7 = unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *mut *mut DeviceHandle) -> c_int;
/// `regMr` of v6 and v7: connection, address, length, kind, result.
pub type RegMrV6 = unsafe extern "C" fn(*mut c_void, *mut c_void, c_int, c_int, *mut *mut c_void) -> c_int;
/// `regMr` since v8.
pub type RegMrV8 = unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int, *mut *mut c_void) -> c_int;
/// `regMrDmaBuf`: connection, address, length, kind, offset, descriptor, result.
pub type RegMrDmaBuf =
    unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int, u64, c_int, *mut *mut c_void) -> c_int;
/// `deregMr`.
pub type DeregMr = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;
/// `isend` of v6 to v8: connection, address, length, tag, registration, result.
pub type IsendV6 =
    unsafe extern "C" fn(*mut c_void, *mut c_void, c_int, c_int, *mut c_void, *mut *mut c_void) -> c_int;
/// `isend` of v9.
pub type IsendV9 =
    unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int, *mut c_void, *mut *mut c_void) -> c_int;
/// `isend` since v10: with the profiler's parent handle.
pub type IsendV10 = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    usize,
    c_int,
    *mut c_void,
    *mut c_void,
    *mut *mut c_void,
) -> c_int;
/// `irecv` of v6 to v8: connection, number, addresses, lengths, tags, registrations, result.
pub type IrecvV6 = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *mut *mut c_void,
    *mut c_int,
    *mut c_int,
    *mut *mut c_void,
    *mut *mut c_void,
) -> c_int;
/// `irecv` of v9.
pub type IrecvV9 = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *mut *mut c_void,
    *mut usize,
    *mut c_int,
    *mut *mut c_void,
    *mut *mut c_void,
) -> c_int;
/// `irecv` since v10: with the profiler's parent handles.
pub type IrecvV10 = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *mut *mut c_void,
    *mut usize,
    *mut c_int,
    *mut *mut c_void,
    *mut *mut c_void,
    *mut *mut c_void,
) -> c_int;
/// `iflush`: connection, number, addresses, lengths, registrations, result.
pub type Iflush = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *mut *mut c_void,
    *mut c_int,
    *mut *mut c_void,
    *mut *mut c_void,
) -> c_int;
/// `test`: request, done, sizes. Sizes are ints in every version.
pub type Test = unsafe extern "C" fn(*mut c_void, *mut c_int, *mut c_int) -> c_int;
/// `closeSend`, `closeRecv`, `closeListen`, `finalize`.
pub type Close = unsafe extern "C" fn(*mut c_void) -> c_int;
/// `getDeviceMr`, since v7. Hawser's data moves through host calls, so nobody asks.
pub type GetDeviceMr = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut *mut c_void) -> c_int;
/// `irecvConsumed`, since v7: connection, number, request.
pub type IrecvConsumed = unsafe extern "C" fn(*mut c_void, c_int, *mut c_void) -> c_int;
/// `makeVDevice` of v9 to v11.
pub type MakeVDeviceV9 = unsafe extern "C" fn(*mut c_int, *mut Members4) -> c_int;
/// `makeVDevice` since v12.
pub type MakeVDeviceV12 = unsafe extern "C" fn(*mut c_int, *mut Members8) -> c_int;
/// `setNetAttr`, since v11.
pub type SetNetAttr = unsafe extern "C" fn(*mut c_void, *mut Attributes) -> c_int;
