//! The forms that the functions of net tables have had, each as one trait over all of its signatures.
//!
//! [`Calls`](super::calls::Calls) holds a function behind its trait and passes all that any form may want. A
//! signature that several versions share implements the trait here. A new version whose table has a function
//! in a new form defines that signature in its own file and implements the trait there: nothing else changes.

use std::ffi::{c_int, c_void};

use hawser_plugin::host::NetProfiler;
use hawser_plugin::net::{MAX_RECVS, Segment};

use super::abi::signatures::*;
use super::abi::{CommConfig, DeviceHandle, Members4, Members8};
use super::calls::{Outcome, int, padded, pointer};
use crate::logger::Logger;

/// All that a form of `init` may be told.
pub struct Start {
    /// The place for the context.
    pub context: *mut *mut c_void,
    /// The communicator's number.
    pub comm_id: u64,
    /// The communicator's settings.
    pub config: *mut CommConfig,
    /// The function through which the plugin writes lines to the log.
    pub logger: Logger,
    /// The function through which the plugin tells profilers of events.
    pub profiler: NetProfiler,
}

/// `init` in any form.
pub trait Init: Send + Sync {
    /// True if it makes a context for each communicator; otherwise it is called once in a process.
    fn makes_context(&self) -> bool {
        false
    }

    /// Calls it.
    ///
    /// # Safety
    /// The function keeps its version's contract; the pointers are valid for the call, the callbacks for
    /// ever.
    unsafe fn call(&self, start: &Start) -> c_int;
}

impl Init for InitV6 {
    unsafe fn call(&self, start: &Start) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { self(Some(start.logger)) }
    }
}

impl Init for InitV10 {
    unsafe fn call(&self, start: &Start) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { self(Some(start.logger), Some(start.profiler)) }
    }
}

impl Init for InitV11 {
    fn makes_context(&self) -> bool {
        true
    }

    unsafe fn call(&self, start: &Start) -> c_int {
        let Start { context, comm_id, config, logger, profiler } = *start;
        // SAFETY: the caller's promise.
        unsafe { self(context, comm_id, config, Some(logger), Some(profiler)) }
    }
}

/// `listen` in any form.
pub trait Listen: Send + Sync {
    /// Calls it. `handle` has 128 bytes that the plugin fills in; the listener goes to `out`.
    ///
    /// # Safety
    /// The function keeps its version's contract; the pointers are valid for the call.
    unsafe fn call(
        &self,
        context: *mut c_void,
        device: c_int,
        handle: *mut c_void,
        out: *mut *mut c_void,
    ) -> c_int;
}

impl Listen for ListenV6 {
    unsafe fn call(
        &self,
        _context: *mut c_void,
        device: c_int,
        handle: *mut c_void,
        out: *mut *mut c_void,
    ) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { self(device, handle, out) }
    }
}

impl Listen for ListenV11 {
    unsafe fn call(
        &self,
        context: *mut c_void,
        device: c_int,
        handle: *mut c_void,
        out: *mut *mut c_void,
    ) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { self(context, device, handle, out) }
    }
}

/// All that a form of `connect` may be told.
pub struct Reach {
    /// The context; NULL for versions without.
    pub context: *mut c_void,
    /// The number of the device.
    pub device: c_int,
    /// The communicator's settings.
    pub config: *mut CommConfig,
    /// The handle of the listener, 128 bytes.
    pub handle: *mut c_void,
    /// The place for the sending end.
    pub out: *mut *mut c_void,
    /// The place for device offload; NULL stays there, since none is wanted.
    pub offload: *mut *mut DeviceHandle,
}

/// `connect` in any form.
pub trait Connect: Send + Sync {
    /// Calls it.
    ///
    /// # Safety
    /// The function keeps its version's contract; the pointers are valid for the call.
    unsafe fn call(&self, reach: &Reach) -> c_int;
}

impl Connect for ConnectV6 {
    unsafe fn call(&self, reach: &Reach) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { self(reach.device, reach.handle, reach.out) }
    }
}

impl Connect for ConnectV7 {
    unsafe fn call(&self, reach: &Reach) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { self(reach.device, reach.handle, reach.out, reach.offload) }
    }
}

impl Connect for ConnectV10 {
    unsafe fn call(&self, reach: &Reach) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { self(reach.device, reach.config, reach.handle, reach.out, reach.offload) }
    }
}

impl Connect for ConnectV11 {
    unsafe fn call(&self, reach: &Reach) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { self(reach.context, reach.device, reach.handle, reach.out, reach.offload) }
    }
}

/// `accept` in any form.
pub trait Accept: Send + Sync {
    /// Calls it. The receiving end goes to `out`; NULL stays in `offload`, since none is wanted.
    ///
    /// # Safety
    /// The function keeps its version's contract; the pointers are valid for the call.
    unsafe fn call(
        &self,
        listener: *mut c_void,
        out: *mut *mut c_void,
        offload: *mut *mut DeviceHandle,
    ) -> c_int;
}

impl Accept for AcceptV6 {
    unsafe fn call(
        &self,
        listener: *mut c_void,
        out: *mut *mut c_void,
        _offload: *mut *mut DeviceHandle,
    ) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { self(listener, out) }
    }
}

impl Accept for AcceptV7 {
    unsafe fn call(
        &self,
        listener: *mut c_void,
        out: *mut *mut c_void,
        offload: *mut *mut DeviceHandle,
    ) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { self(listener, out, offload) }
    }
}

/// `regMr` in any form.
pub trait RegMr: Send + Sync {
    /// Calls it. The registration goes to `out`.
    ///
    /// # Errors
    /// The length is more than this form can say.
    ///
    /// # Safety
    /// The function keeps its version's contract; the memory stays valid until it is deregistered.
    unsafe fn call(
        &self,
        connection: *mut c_void,
        memory: (*mut c_void, usize),
        kind: c_int,
        out: *mut *mut c_void,
    ) -> Outcome<c_int>;
}

impl RegMr for RegMrV6 {
    unsafe fn call(
        &self,
        connection: *mut c_void,
        (data, bytes): (*mut c_void, usize),
        kind: c_int,
        out: *mut *mut c_void,
    ) -> Outcome<c_int> {
        // SAFETY: the caller's promise.
        Ok(unsafe { self(connection, data, int(bytes)?, kind, out) })
    }
}

impl RegMr for RegMrV8 {
    unsafe fn call(
        &self,
        connection: *mut c_void,
        (data, bytes): (*mut c_void, usize),
        kind: c_int,
        out: *mut *mut c_void,
    ) -> Outcome<c_int> {
        // SAFETY: the caller's promise.
        Ok(unsafe { self(connection, data, bytes, kind, out) })
    }
}

/// `isend` in any form.
pub trait Isend: Send + Sync {
    /// Calls it. The request goes to `out`.
    ///
    /// # Errors
    /// The length is more than this form can say.
    ///
    /// # Safety
    /// The function keeps its version's contract; the segment lies in its registered memory until the request
    /// is done.
    unsafe fn call(
        &self,
        connection: *mut c_void,
        segment: &Segment,
        out: *mut *mut c_void,
    ) -> Outcome<c_int>;
}

impl Isend for IsendV6 {
    unsafe fn call(
        &self,
        connection: *mut c_void,
        segment: &Segment,
        out: *mut *mut c_void,
    ) -> Outcome<c_int> {
        let (data, mr) = (pointer(segment.addr), pointer(segment.registration.0));
        // SAFETY: the caller's promise.
        Ok(unsafe { self(connection, data, int(segment.bytes)?, segment.tag, mr, out) })
    }
}

impl Isend for IsendV9 {
    unsafe fn call(
        &self,
        connection: *mut c_void,
        segment: &Segment,
        out: *mut *mut c_void,
    ) -> Outcome<c_int> {
        let (data, mr) = (pointer(segment.addr), pointer(segment.registration.0));
        // SAFETY: the caller's promise.
        Ok(unsafe { self(connection, data, segment.bytes, segment.tag, mr, out) })
    }
}

impl Isend for IsendV10 {
    unsafe fn call(
        &self,
        connection: *mut c_void,
        segment: &Segment,
        out: *mut *mut c_void,
    ) -> Outcome<c_int> {
        let (data, mr) = (pointer(segment.addr), pointer(segment.registration.0));
        let profile = pointer(segment.profile);
        // SAFETY: the caller's promise.
        Ok(unsafe { self(connection, data, segment.bytes, segment.tag, mr, profile, out) })
    }
}

/// The arrays of a grouped call.
pub struct Group {
    /// The number of segments.
    pub count: c_int,
    /// Their addresses.
    pub addrs: [*mut c_void; MAX_RECVS],
    /// Their lengths.
    pub sizes: [usize; MAX_RECVS],
    /// Their tags.
    pub tags: [c_int; MAX_RECVS],
    /// Their registrations.
    pub registrations: [*mut c_void; MAX_RECVS],
    /// Their profilers' handles.
    pub profiles: [*mut c_void; MAX_RECVS],
}

impl Group {
    /// The arrays of at most [`MAX_RECVS`] segments; the adapter checks that there are not more.
    pub fn new(segments: &[Segment]) -> Self {
        let none = std::ptr::null_mut();
        let mut group = Self {
            count: 0,
            addrs: [none; MAX_RECVS],
            sizes: [0; MAX_RECVS],
            tags: [0; MAX_RECVS],
            registrations: [none; MAX_RECVS],
            profiles: [none; MAX_RECVS],
        };
        for (at, segment) in segments.iter().take(MAX_RECVS).enumerate() {
            group.addrs[at] = pointer(segment.addr);
            group.sizes[at] = segment.bytes;
            group.tags[at] = segment.tag;
            group.registrations[at] = pointer(segment.registration.0);
            group.profiles[at] = pointer(segment.profile);
            group.count += 1;
        }
        group
    }
}

/// `irecv` in any form.
pub trait Irecv: Send + Sync {
    /// True if it may be told that its completion is optional.
    fn knows_optional_completion(&self) -> bool {
        true
    }

    /// Calls it. The request goes to `out`.
    ///
    /// # Errors
    /// A length is more than this form can say.
    ///
    /// # Safety
    /// The function keeps its version's contract; the segments lie in their registered memory until the
    /// request is done.
    unsafe fn call(
        &self,
        connection: *mut c_void,
        group: &mut Group,
        out: *mut *mut c_void,
    ) -> Outcome<c_int>;
}

impl Irecv for IrecvV6 {
    fn knows_optional_completion(&self) -> bool {
        false
    }

    unsafe fn call(
        &self,
        connection: *mut c_void,
        group: &mut Group,
        out: *mut *mut c_void,
    ) -> Outcome<c_int> {
        let mut sizes = [0; MAX_RECVS];
        for (int_size, size) in sizes.iter_mut().zip(group.sizes) {
            *int_size = int(size)?;
        }
        let (data, tags) = (group.addrs.as_mut_ptr(), group.tags.as_mut_ptr());
        let mrs = group.registrations.as_mut_ptr();
        // SAFETY: the caller's promise; the arrays have room for the largest group.
        Ok(unsafe { self(connection, group.count, data, sizes.as_mut_ptr(), tags, mrs, out) })
    }
}

impl Irecv for IrecvV9 {
    unsafe fn call(
        &self,
        connection: *mut c_void,
        group: &mut Group,
        out: *mut *mut c_void,
    ) -> Outcome<c_int> {
        let (data, sizes) = (group.addrs.as_mut_ptr(), group.sizes.as_mut_ptr());
        let (tags, mrs) = (group.tags.as_mut_ptr(), group.registrations.as_mut_ptr());
        // SAFETY: the caller's promise; the arrays have room for the largest group.
        Ok(unsafe { self(connection, group.count, data, sizes, tags, mrs, out) })
    }
}

impl Irecv for IrecvV10 {
    unsafe fn call(
        &self,
        connection: *mut c_void,
        group: &mut Group,
        out: *mut *mut c_void,
    ) -> Outcome<c_int> {
        let (data, sizes) = (group.addrs.as_mut_ptr(), group.sizes.as_mut_ptr());
        let (tags, mrs) = (group.tags.as_mut_ptr(), group.registrations.as_mut_ptr());
        let profiles = group.profiles.as_mut_ptr();
        // SAFETY: the caller's promise; the arrays have room for the largest group.
        Ok(unsafe { self(connection, group.count, data, sizes, tags, mrs, profiles, out) })
    }
}

/// `makeVDevice` in any form.
pub trait MakeVDevice: Send + Sync {
    /// Calls it. The number of the new device goes to `out`.
    ///
    /// # Errors
    /// There are more members than this form can say.
    ///
    /// # Safety
    /// The function keeps its version's contract; `out` is valid for the call.
    unsafe fn call(&self, members: &[u32], out: *mut c_int) -> Outcome<c_int>;
}

impl MakeVDevice for MakeVDeviceV9 {
    unsafe fn call(&self, members: &[u32], out: *mut c_int) -> Outcome<c_int> {
        let mut members = Members4 { count: int(members.len())?, devices: padded(members)? };
        // SAFETY: the caller's promise; the pointer is valid for the call.
        Ok(unsafe { self(out, &raw mut members) })
    }
}

impl MakeVDevice for MakeVDeviceV12 {
    unsafe fn call(&self, members: &[u32], out: *mut c_int) -> Outcome<c_int> {
        let mut members = Members8 { count: int(members.len())?, devices: padded(members)? };
        // SAFETY: the caller's promise; the pointer is valid for the call.
        Ok(unsafe { self(out, &raw mut members) })
    }
}
