//! The functions behind the exported tables. They turn C arguments into one call and its result back, no
//! more.
//!
//! Every one of them has the contract of NCCL's net interface: pointers are valid for the call and have the
//! types that the signature has in C; objects came from this table and are open.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use hawser_plugin::host::NetProfiler;
use hawser_plugin::net::{
    Flows, HANDLE_BYTES, Handle, MAX_RECVS, MemoryKinds, NetAttributes, NetConfig, Region, Registration,
    Segment,
};
use hawser_plugin::{Error, ErrorKind, Result};

use super::Export;
use super::connection::{Comm, End, ListenComm, Ticket};
use super::context::{Context, State, device_number};
use crate::common::guard;
use crate::logger::{Logger, from_host};
use crate::net::abi::properties::Properties;
use crate::net::abi::{
    Attributes, CommAttributes, CommConfig, DeviceHandle, Members4, Members8, NO_TRAFFIC_CLASS,
};
use crate::net::calls::{number, pointer};

/// An object of ours that C may pass as NULL, or a place for a result that it may forget.
macro_rules! checked {
    ($pointer:expr, $call:literal) => {
        // SAFETY: the contract of all functions here: NULL, or valid for the call.
        match unsafe { $pointer.as_ref() } {
            Some(value) => value,
            None => return Err(Error::new(ErrorKind::InvalidArgument, concat!("NULL passed to ", $call))),
        }
    };
    (mut $pointer:expr, $call:literal) => {
        // SAFETY: as above.
        match unsafe { $pointer.as_mut() } {
            Some(value) => value,
            None => return Err(Error::new(ErrorKind::InvalidArgument, concat!("NULL passed to ", $call))),
        }
    };
}

fn call<E: Export>(name: &str, run: impl FnOnce(&'static State) -> Result<()>) -> c_int {
    let state = E::state();
    guard(state.name(), name, || state.log(), || run(state))
}

pub unsafe extern "C" fn init_v6<E: Export>(logger: Option<Logger>) -> c_int {
    call::<E>("init", |state| state.init_process(NetConfig::new(0, from_host(logger))))
}

pub unsafe extern "C" fn init_v10<E: Export>(logger: Option<Logger>, profiler: Option<NetProfiler>) -> c_int {
    call::<E>("init", |state| {
        let mut config = NetConfig::new(0, from_host(logger));
        config.profiler = profiler;
        state.init_process(config)
    })
}

pub unsafe extern "C" fn init_v11<E: Export>(
    context: *mut *mut c_void,
    comm_id: u64,
    settings: *mut CommConfig,
    logger: Option<Logger>,
    profiler: Option<NetProfiler>,
) -> c_int {
    call::<E>("init", |state| {
        let context = checked!(mut context, "init");
        *context = null_mut();
        let mut config = NetConfig::new(comm_id, from_host(logger));
        // SAFETY: NULL, or valid for the call.
        config.traffic_class = traffic_class(unsafe { settings.as_ref() });
        config.profiler = profiler;
        *context = state.init(&config)?;
        Ok(())
    })
}

pub unsafe extern "C" fn finalize<E: Export>(context: *mut c_void) -> c_int {
    call::<E>("finalize", |state| {
        state.finalize(context);
        Ok(())
    })
}

pub unsafe extern "C" fn devices<E: Export>(devices: *mut c_int) -> c_int {
    call::<E>("devices", |state| {
        *checked!(mut devices, "devices") = state.devices()?;
        Ok(())
    })
}

pub unsafe extern "C" fn get_properties<E: Export, P: Properties>(
    device: c_int,
    properties: *mut P,
) -> c_int {
    call::<E>("getProperties", |state| {
        *checked!(mut properties, "getProperties") = P::from_raw(&state.properties(device)?);
        Ok(())
    })
}

pub unsafe extern "C" fn make_v_device_v9<E: Export>(device: *mut c_int, members: *mut Members4) -> c_int {
    call::<E>("makeVDevice", |state| {
        let members = checked!(members, "makeVDevice");
        make_v_device(state, device, members.count, &members.devices)
    })
}

pub unsafe extern "C" fn make_v_device_v12<E: Export>(device: *mut c_int, members: *mut Members8) -> c_int {
    call::<E>("makeVDevice", |state| {
        let members = checked!(members, "makeVDevice");
        make_v_device(state, device, members.count, &members.devices)
    })
}

fn make_v_device(state: &State, device: *mut c_int, count: c_int, devices: &[c_int]) -> Result<()> {
    let members = usize::try_from(count).ok().and_then(|count| devices.get(..count));
    let members = members.ok_or_else(|| invalid(format!("a virtual device of {count} devices")))?;
    let members = members.iter().map(|member| device_number(*member)).collect::<Result<_>>()?;
    let device = checked!(mut device, "makeVDevice");
    *device = c_int::try_from(state.make_virtual(members)?).unwrap_or(c_int::MAX);
    Ok(())
}

pub unsafe extern "C" fn set_net_attr<E: Export>(context: *mut c_void, attributes: *mut Attributes) -> c_int {
    call::<E>("setNetAttr", |state| {
        let raw = checked!(attributes, "setNetAttr");
        let what = [raw.op, raw.algo, raw.proto];
        let attributes = NetAttributes { send: flows(raw.send), recv: flows(raw.recv), what };
        state.context(context)?.net.set_attributes(&attributes)
    })
}

pub unsafe extern "C" fn listen_v6<E: Export>(
    device: c_int,
    handle: *mut c_void,
    listener: *mut *mut c_void,
) -> c_int {
    call::<E>("listen", |state| listen(state.process_context(None)?, device, handle, listener))
}

pub unsafe extern "C" fn listen_v11<E: Export>(
    context: *mut c_void,
    device: c_int,
    handle: *mut c_void,
    listener: *mut *mut c_void,
) -> c_int {
    call::<E>("listen", |state| listen(state.context(context)?, device, handle, listener))
}

fn listen(
    context: std::sync::Arc<Context>,
    device: c_int,
    handle: *mut c_void,
    out: *mut *mut c_void,
) -> Result<()> {
    let place = checked!(mut handle.cast::<Handle>(), "listen");
    let out = checked!(mut out, "listen");
    *out = null_mut();
    let (handle, listener) = context.net.listen(device_number(device)?)?;
    *place = handle;
    *out = Box::into_raw(Box::new(ListenComm::new(listener, context))).cast();
    Ok(())
}

pub unsafe extern "C" fn connect_v7<E: Export>(
    device: c_int,
    handle: *mut c_void,
    sender: *mut *mut c_void,
    _offload: *mut *mut DeviceHandle,
) -> c_int {
    call::<E>("connect", |state| connect(state.process_context(None)?, device, handle, sender))
}

pub unsafe extern "C" fn connect_v10<E: Export>(
    device: c_int,
    settings: *mut CommConfig,
    handle: *mut c_void,
    sender: *mut *mut c_void,
    _offload: *mut *mut DeviceHandle,
) -> c_int {
    call::<E>("connect", |state| {
        // SAFETY: NULL, or valid for the call.
        let class = traffic_class(unsafe { settings.as_ref() });
        connect(state.process_context(class)?, device, handle, sender)
    })
}

pub unsafe extern "C" fn connect_v11<E: Export>(
    context: *mut c_void,
    device: c_int,
    handle: *mut c_void,
    sender: *mut *mut c_void,
    _offload: *mut *mut DeviceHandle,
) -> c_int {
    call::<E>("connect", |state| connect(state.context(context)?, device, handle, sender))
}

fn connect(
    context: std::sync::Arc<Context>,
    device: c_int,
    handle: *mut c_void,
    out: *mut *mut c_void,
) -> Result<()> {
    const { assert!(size_of::<Handle>() == HANDLE_BYTES) };
    let bytes = checked!(handle.cast::<Handle>(), "connect");
    let out = checked!(mut out, "connect");
    *out = null_mut();
    if let Some(sender) = context.connect(device, bytes, handle.addr())? {
        *out = Box::into_raw(Comm::new(End::Sender(sender), context)).cast();
    }
    Ok(())
}

pub unsafe extern "C" fn accept<E: Export>(
    listener: *mut c_void,
    receiver: *mut *mut c_void,
    _offload: *mut *mut DeviceHandle,
) -> c_int {
    call::<E>("accept", |_| {
        let out = checked!(mut receiver, "accept");
        *out = null_mut();
        if let Some(comm) = checked!(listener.cast::<ListenComm>(), "accept").accept()? {
            *out = Box::into_raw(comm).cast();
        }
        Ok(())
    })
}

pub unsafe extern "C" fn reg_mr<E: Export>(
    comm: *mut c_void,
    data: *mut c_void,
    bytes: usize,
    kind: c_int,
    out: *mut *mut c_void,
) -> c_int {
    call::<E>("regMr", |_| {
        let kind = MemoryKinds(kind as u32);
        let region = Region { addr: number(data), bytes, kind, dmabuf: None };
        // SAFETY: NCCL keeps the memory until deregMr.
        unsafe { register(comm, &region, out) }
    })
}

pub unsafe extern "C" fn reg_mr_dma_buf<E: Export>(
    comm: *mut c_void,
    data: *mut c_void,
    bytes: usize,
    _kind: c_int,
    offset: u64,
    descriptor: c_int,
    out: *mut *mut c_void,
) -> c_int {
    call::<E>("regMrDmaBuf", |_| {
        let dmabuf = Some((descriptor, offset));
        let region = Region { addr: number(data), bytes, kind: MemoryKinds::DMABUF, dmabuf };
        // SAFETY: NCCL keeps the memory until deregMr.
        unsafe { register(comm, &region, out) }
    })
}

/// # Safety
/// The memory stays valid until it is deregistered.
unsafe fn register(comm: *mut c_void, region: &Region, out: *mut *mut c_void) -> Result<()> {
    let out = checked!(mut out, "regMr");
    *out = null_mut();
    let comm = checked!(comm.cast::<Comm>(), "regMr");
    // SAFETY: the caller's promise.
    let registration = unsafe { comm.register(region) }?;
    *out = pointer(registration.0.wrapping_add(1));
    Ok(())
}

pub unsafe extern "C" fn dereg_mr<E: Export>(comm: *mut c_void, registration: *mut c_void) -> c_int {
    call::<E>("deregMr", |_| checked!(comm.cast::<Comm>(), "deregMr").deregister(from_mhandle(registration)))
}

pub unsafe extern "C" fn close_comm<E: Export>(comm: *mut c_void) -> c_int {
    call::<E>("close", |_| {
        checked!(comm.cast::<Comm>(), "close");
        // SAFETY: it was made by `Box::into_raw`, and NCCL closes a connection once.
        drop(unsafe { Box::from_raw(comm.cast::<Comm>()) });
        Ok(())
    })
}

pub unsafe extern "C" fn close_listen<E: Export>(listener: *mut c_void) -> c_int {
    call::<E>("closeListen", |_| {
        checked!(listener.cast::<ListenComm>(), "closeListen");
        // SAFETY: it was made by `Box::into_raw`, and NCCL closes a listener once.
        drop(unsafe { Box::from_raw(listener.cast::<ListenComm>()) });
        Ok(())
    })
}

pub unsafe extern "C" fn isend_v6<E: Export>(
    comm: *mut c_void,
    data: *mut c_void,
    bytes: c_int,
    tag: c_int,
    registration: *mut c_void,
    request: *mut *mut c_void,
) -> c_int {
    call::<E>("isend", |_| isend(comm, segment(data, length(bytes)?, tag, registration, null_mut()), request))
}

pub unsafe extern "C" fn isend_v9<E: Export>(
    comm: *mut c_void,
    data: *mut c_void,
    bytes: usize,
    tag: c_int,
    registration: *mut c_void,
    request: *mut *mut c_void,
) -> c_int {
    call::<E>("isend", |_| isend(comm, segment(data, bytes, tag, registration, null_mut()), request))
}

pub unsafe extern "C" fn isend_v10<E: Export>(
    comm: *mut c_void,
    data: *mut c_void,
    bytes: usize,
    tag: c_int,
    registration: *mut c_void,
    profile: *mut c_void,
    request: *mut *mut c_void,
) -> c_int {
    call::<E>("isend", |_| isend(comm, segment(data, bytes, tag, registration, profile), request))
}

fn isend(comm: *mut c_void, segment: Segment, request: *mut *mut c_void) -> Result<()> {
    let request = checked!(mut request, "isend");
    *request = null_mut();
    let comm = checked!(comm.cast::<Comm>(), "isend");
    // SAFETY: NCCL leaves the segment alone until the request is done.
    *request = unsafe { comm.isend(&segment) }?.cast();
    Ok(())
}

pub unsafe extern "C" fn irecv_v6<E: Export>(
    comm: *mut c_void,
    count: c_int,
    data: *mut *mut c_void,
    sizes: *mut c_int,
    tags: *mut c_int,
    registrations: *mut *mut c_void,
    request: *mut *mut c_void,
) -> c_int {
    call::<E>("irecv", |_| {
        let size = |at: usize| length(entry(sizes, at));
        let segments = group(count, data, size, tags, registrations, null_mut())?;
        irecv(comm, &segments, request, false)
    })
}

pub unsafe extern "C" fn irecv_v9<E: Export>(
    comm: *mut c_void,
    count: c_int,
    data: *mut *mut c_void,
    sizes: *mut usize,
    tags: *mut c_int,
    registrations: *mut *mut c_void,
    request: *mut *mut c_void,
) -> c_int {
    call::<E>("irecv", |_| {
        let size = |at: usize| Ok(entry(sizes, at));
        let segments = group(count, data, size, tags, registrations, null_mut())?;
        irecv(comm, &segments, request, true)
    })
}

pub unsafe extern "C" fn irecv_v10<E: Export>(
    comm: *mut c_void,
    count: c_int,
    data: *mut *mut c_void,
    sizes: *mut usize,
    tags: *mut c_int,
    registrations: *mut *mut c_void,
    profiles: *mut *mut c_void,
    request: *mut *mut c_void,
) -> c_int {
    call::<E>("irecv", |_| {
        let size = |at: usize| Ok(entry(sizes, at));
        let segments = group(count, data, size, tags, registrations, profiles)?;
        irecv(comm, &segments, request, true)
    })
}

/// `presets`: whether the version says by `*request` = 1 that completion is optional.
fn irecv(comm: *mut c_void, segments: &[Segment], request: *mut *mut c_void, presets: bool) -> Result<()> {
    const OPTIONAL: usize = 1;
    let request = checked!(mut request, "irecv");
    let optional = presets && request.addr() == OPTIONAL;
    *request = null_mut();
    let comm = checked!(comm.cast::<Comm>(), "irecv");
    // SAFETY: NCCL leaves the segments alone until the request is done.
    *request = unsafe { comm.irecv(segments, optional) }?.cast();
    Ok(())
}

pub unsafe extern "C" fn iflush<E: Export>(
    comm: *mut c_void,
    count: c_int,
    data: *mut *mut c_void,
    sizes: *mut c_int,
    registrations: *mut *mut c_void,
    request: *mut *mut c_void,
) -> c_int {
    call::<E>("iflush", |_| {
        let size = |at: usize| length(entry(sizes, at));
        let segments = group(count, data, size, null_mut(), registrations, null_mut())?;
        let request = checked!(mut request, "iflush");
        *request = null_mut();
        let comm = checked!(comm.cast::<Comm>(), "iflush");
        // SAFETY: NCCL leaves the segments alone until the request is done.
        *request = unsafe { comm.flush(&segments) }?.cast();
        Ok(())
    })
}

pub unsafe extern "C" fn test<E: Export>(request: *mut c_void, done: *mut c_int, sizes: *mut c_int) -> c_int {
    call::<E>("test", |_| {
        let ticket = checked!(request.cast::<Ticket>(), "test");
        let done = checked!(mut done, "test");
        *done = 0;
        let mut known = [0; MAX_RECVS];
        let comm = checked!(ticket.comm, "test");
        if let Some(segments) = comm.test(ticket, &mut known)? {
            *done = 1;
            for (at, bytes) in known.iter().enumerate().take(if sizes.is_null() { 0 } else { segments }) {
                let bytes = c_int::try_from(*bytes).unwrap_or(c_int::MAX);
                // SAFETY: `sizes` has an entry per segment of the request.
                unsafe { sizes.add(at).write(bytes) };
            }
        }
        Ok(())
    })
}

/// The segments of a grouped call. `tags` and `profiles` may be NULL.
fn group(
    count: c_int,
    data: *mut *mut c_void,
    size: impl Fn(usize) -> Result<usize>,
    tags: *mut c_int,
    registrations: *mut *mut c_void,
    profiles: *mut *mut c_void,
) -> Result<Vec<Segment>> {
    let count = usize::try_from(count).ok().filter(|count| (1..=MAX_RECVS).contains(count));
    let count = count.ok_or_else(|| invalid(format!("groups have 1 to {MAX_RECVS} receives")))?;
    checked!(data, "a grouped call");
    checked!(registrations, "a grouped call");
    let one = |at: usize| {
        let tag = if tags.is_null() { 0 } else { entry(tags, at) };
        let profile = if profiles.is_null() { null_mut() } else { entry(profiles, at) };
        Ok(segment(entry(data, at), size(at)?, tag, entry(registrations, at), profile))
    };
    (0..count).map(one).collect()
}

/// An element of an array of C.
fn entry<T: Copy>(array: *mut T, at: usize) -> T {
    // SAFETY: the contract of grouped calls: the arrays have as many entries as the group.
    unsafe { array.add(at).read() }
}

fn segment(
    data: *mut c_void,
    bytes: usize,
    tag: c_int,
    registration: *mut c_void,
    profile: *mut c_void,
) -> Segment {
    let registration = from_mhandle(registration);
    Segment { addr: number(data), bytes, registration, tag, profile: number(profile) }
}

/// The inverse of what `regMr` gives: see the table in [`super`].
fn from_mhandle(mhandle: *mut c_void) -> Registration {
    Registration(number(mhandle).wrapping_sub(1))
}

fn length(bytes: c_int) -> Result<usize> {
    usize::try_from(bytes).map_err(|_| invalid(format!("a message of {bytes} bytes")))
}

fn traffic_class(settings: Option<&CommConfig>) -> Option<i32> {
    settings.map(|settings| settings.traffic_class).filter(|class| *class != NO_TRAFFIC_CLASS)
}

fn flows(raw: CommAttributes) -> Flows {
    Flows {
        max_peers: raw.max_peers,
        min_peers: raw.min_peers,
        max_flows: raw.max_flows,
        min_flows: raw.min_flows,
    }
}

fn invalid(text: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, text)
}
