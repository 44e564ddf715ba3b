//! The calls of a net table in one form for all versions: what a version lacks is left out or refused here, and nowhere
//! else.

use std::ffi::{c_int, c_void};
use std::ptr::{null_mut, with_exposed_provenance_mut};

use hawser_plugin::host::NetProfiler;
use hawser_plugin::net::{MAX_RECVS, Segment};
use hawser_plugin::{Error, ErrorKind};

use super::abi::properties::PropertiesReader;
use super::abi::signatures::*;
use super::abi::{Attributes, CommConfig, DeviceHandle, Members4, Members8};
use crate::common::{SUCCESS, failure};
use crate::logger::Logger;

/// A table of any version. Required entries are there; what may be absent is an `Option`.
#[allow(missing_docs)] // NCCL's functions
pub struct Calls {
    /// Requests that the plugin can hold per connection.
    pub max_requests: usize,
    pub init: Init,
    pub devices: Devices,
    pub properties: PropertiesReader,
    pub listen: Listen,
    pub connect: Connect,
    pub accept: Accept,
    pub memory: Memory,
    pub isend: Isend,
    pub irecv: Irecv,
    pub iflush: Option<Iflush>,
    pub test: Test,
    pub close_send: Close,
    pub close_recv: Close,
    pub close_listen: Close,
    pub irecv_consumed: Option<IrecvConsumed>,
    pub make_v_device: Option<MakeVDevice>,
    /// Only with contexts, and then always.
    pub finalize: Option<Close>,
    pub set_net_attr: Option<SetNetAttr>,
}

/// The forms of `init`.
pub enum Init {
    /// Once per process.
    V6(InitV6),
    /// Once per process, with the profiler's callback.
    V10(InitV10),
    /// Once per communicator: makes a context.
    V11(InitV11),
}

/// The forms of `listen`.
#[allow(missing_docs)] // named by version
pub enum Listen {
    V6(ListenV6),
    V11(ListenV11),
}

/// The forms of `connect`.
#[allow(missing_docs)] // named by version
pub enum Connect {
    V6(ConnectV6),
    V7(ConnectV7),
    V10(ConnectV10),
    V11(ConnectV11),
}

/// The forms of `accept`.
#[allow(missing_docs)] // named by version
pub enum Accept {
    V6(AcceptV6),
    V7(AcceptV7),
}

/// Registration.
#[allow(missing_docs)] // NCCL's functions
pub struct Memory {
    pub register: RegMr,
    pub register_dma_buf: Option<RegMrDmaBuf>,
    pub deregister: DeregMr,
}

/// The forms of `regMr`.
#[allow(missing_docs)] // named by version
pub enum RegMr {
    V6(RegMrV6),
    V8(RegMrV8),
}

/// The forms of `isend`.
#[allow(missing_docs)] // named by version
pub enum Isend {
    V6(IsendV6),
    V9(IsendV9),
    V10(IsendV10),
}

/// The forms of `irecv`.
#[allow(missing_docs)] // named by version
pub enum Irecv {
    V6(IrecvV6),
    V9(IrecvV9),
    V10(IrecvV10),
}

/// The forms of `makeVDevice`.
#[allow(missing_docs)] // named by version
pub enum MakeVDevice {
    V9(MakeVDeviceV9),
    V12(MakeVDeviceV12),
}

/// Why a call did not happen or went wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The plugin returned this code.
    Code(c_int),
    /// The length is more than this version's type can say.
    Length { length: usize, most: usize },
    /// The plugin does not have this call.
    Absent,
}

impl Failure {
    /// The error for the user; `what` names plugin and call.
    pub fn error(self, what: &str) -> Error {
        match self {
            Self::Code(code) => failure(code, what),
            Self::Length { length, most } => {
                let text =
                    format!("{what}: {length} is more than {most}, the most this version takes: use pieces");
                Error::new(ErrorKind::InvalidArgument, text)
            }
            Self::Absent => Error::unsupported(what),
        }
    }
}

/// What a call gives.
pub type Outcome<T> = std::result::Result<T, Failure>;

/// The entry may be called when `calls` came from a table that keeps its version's contract, and the objects that are
/// passed came from the same table and are open. All methods below share this and say only what comes on top.
impl Calls {
    /// Whether each communicator has a context of its own.
    pub fn has_contexts(&self) -> bool {
        matches!(self.init, Init::V11(_))
    }

    /// Whether `irecv` may be told that its completion is optional.
    pub fn has_optional_completion(&self) -> bool {
        !matches!(self.irecv, Irecv::V6(_))
    }

    /// Prepares the plugin. The result is the context, NULL for versions without.
    ///
    /// # Safety
    /// See the impl block.
    pub unsafe fn init(
        &self,
        comm_id: u64,
        traffic_class: c_int,
        logger: Logger,
        profiler: NetProfiler,
    ) -> Outcome<*mut c_void> {
        let mut context = null_mut();
        let mut config = CommConfig { traffic_class };
        // SAFETY: the signature goes with the version; the pointers are valid for the call, the callbacks for ever.
        let code = unsafe {
            match self.init {
                Init::V6(init) => init(Some(logger)),
                Init::V10(init) => init(Some(logger), Some(profiler)),
                Init::V11(init) => {
                    init(&raw mut context, comm_id, &raw mut config, Some(logger), Some(profiler))
                }
            }
        };
        outcome(code, context)
    }

    /// The sending end, NULL if it is not there yet.
    ///
    /// # Safety
    /// See the impl block; `handle` points to 128 writable bytes that are the same at each attempt, as plugins keep
    /// their state there.
    pub unsafe fn connect(
        &self,
        context: *mut c_void,
        device: c_int,
        traffic_class: c_int,
        handle: *mut c_void,
    ) -> Outcome<*mut c_void> {
        let mut sender = null_mut();
        let mut offload: *mut DeviceHandle = null_mut(); // NULL: not wanted
        let mut config = CommConfig { traffic_class };
        let (out, offload, config) = (&raw mut sender, &raw mut offload, &raw mut config);
        // SAFETY: the signature goes with the version; the pointers are valid for the call.
        let code = unsafe {
            match self.connect {
                Connect::V6(connect) => connect(device, handle, out),
                Connect::V7(connect) => connect(device, handle, out, offload),
                Connect::V10(connect) => connect(device, config, handle, out, offload),
                Connect::V11(connect) => connect(context, device, handle, out, offload),
            }
        };
        outcome(code, sender)
    }

    /// The receiving end, NULL if the sender is not there yet.
    ///
    /// # Safety
    /// See the impl block.
    pub unsafe fn accept(&self, listener: *mut c_void) -> Outcome<*mut c_void> {
        let mut receiver = null_mut();
        let mut offload: *mut DeviceHandle = null_mut(); // NULL: not wanted
        // SAFETY: the signature goes with the version; the pointers are valid for the call.
        let code = unsafe {
            match self.accept {
                Accept::V6(accept) => accept(listener, &raw mut receiver),
                Accept::V7(accept) => accept(listener, &raw mut receiver, &raw mut offload),
            }
        };
        outcome(code, receiver)
    }

    /// Begins to send. NULL: not now.
    ///
    /// # Safety
    /// See the impl block; the segment lies in its registered memory until the request is done.
    pub unsafe fn isend(&self, connection: *mut c_void, segment: &Segment) -> Outcome<*mut c_void> {
        let mut request = null_mut();
        let (data, bytes, tag) = (pointer(segment.addr), segment.bytes, segment.tag);
        let (mr, profile, out) =
            (pointer(segment.registration.0), pointer(segment.profile), &raw mut request);
        // SAFETY: the signature goes with the version; the caller vouches for the memory.
        let code = unsafe {
            match self.isend {
                Isend::V6(isend) => isend(connection, data, int(bytes)?, tag, mr, out),
                Isend::V9(isend) => isend(connection, data, bytes, tag, mr, out),
                Isend::V10(isend) => isend(connection, data, bytes, tag, mr, profile, out),
            }
        };
        outcome(code, request)
    }

    /// Begins to receive. NULL: not now. Versions that do not know optional completion are not told of it.
    ///
    /// # Safety
    /// See the impl block; the segments lie in their registered memory until the request is done.
    pub unsafe fn irecv(
        &self,
        connection: *mut c_void,
        segments: &[Segment],
        optional: bool,
    ) -> Outcome<*mut c_void> {
        let mut group = Group::new(segments);
        let told = optional && self.has_optional_completion();
        let mut request = if told { pointer(1) } else { null_mut() };
        let (data, sizes, tags) = (&raw mut group.addrs, &raw mut group.sizes, &raw mut group.tags);
        let (mrs, out) = (&raw mut group.registrations, &raw mut request);
        // SAFETY: the signature goes with the version; the arrays have room for the largest group; the caller vouches
        // for the memory.
        let code = unsafe {
            match self.irecv {
                Irecv::V6(irecv) => {
                    let mut sizes = [0; MAX_RECVS];
                    for (int_size, segment) in sizes.iter_mut().zip(segments) {
                        *int_size = int(segment.bytes)?;
                    }
                    let sizes = sizes.as_mut_ptr();
                    irecv(connection, group.count, data.cast(), sizes, tags.cast(), mrs.cast(), out)
                }
                Irecv::V9(irecv) => {
                    irecv(connection, group.count, data.cast(), sizes.cast(), tags.cast(), mrs.cast(), out)
                }
                Irecv::V10(irecv) => {
                    let (n, profiles) = (group.count, &raw mut group.profiles);
                    let (data, sizes, tags) = (data.cast(), sizes.cast(), tags.cast());
                    irecv(connection, n, data, sizes, tags, mrs.cast(), profiles.cast(), out)
                }
            }
        };
        outcome(code, request)
    }

    /// Begins to flush. NULL: nothing to wait for.
    ///
    /// # Safety
    /// As [`Calls::irecv`].
    pub unsafe fn iflush(&self, connection: *mut c_void, segments: &[Segment]) -> Outcome<*mut c_void> {
        let Some(iflush) = self.iflush else { return Ok(null_mut()) };
        let mut group = Group::new(segments);
        // A flush orders all of a buffer with the GPU, whatever length is named, so a cut length loses nothing.
        let mut sizes = group.sizes.map(|size| c_int::try_from(size).unwrap_or(c_int::MAX));
        let mut request = null_mut();
        let (data, mrs) = (group.addrs.as_mut_ptr(), group.registrations.as_mut_ptr());
        // SAFETY: the arrays have room for the largest group; the caller vouches for the memory.
        let code =
            unsafe { iflush(connection, group.count, data, sizes.as_mut_ptr(), mrs, &raw mut request) };
        outcome(code, request)
    }

    /// Passes a hint on, if the plugin wants any.
    ///
    /// # Safety
    /// See the impl block.
    pub unsafe fn set_net_attr(&self, context: *mut c_void, mut attributes: Attributes) -> Outcome<()> {
        let Some(set) = self.set_net_attr else { return Ok(()) };
        // SAFETY: a valid pointer.
        let code = unsafe { set(context, &raw mut attributes) };
        outcome(code, ())
    }
}

impl Listen {
    /// A listener, NULL if the plugin breaks its contract. `handle` is filled in.
    ///
    /// # Safety
    /// As with [`Calls`]; `handle` points to 128 writable bytes.
    pub unsafe fn call(
        &self,
        context: *mut c_void,
        device: c_int,
        handle: *mut c_void,
    ) -> Outcome<*mut c_void> {
        let mut listener = null_mut();
        // SAFETY: the signature goes with the version; the pointers are valid for the call.
        let code = unsafe {
            match self {
                Self::V6(listen) => listen(device, handle, &raw mut listener),
                Self::V11(listen) => listen(context, device, handle, &raw mut listener),
            }
        };
        outcome(code, listener)
    }
}

impl Memory {
    /// Registers memory. The result is the plugin's, and NULL with plugins that need none.
    ///
    /// # Safety
    /// As with [`Calls`]; the memory stays valid until it is deregistered.
    pub unsafe fn register(
        &self,
        connection: *mut c_void,
        addr: u64,
        bytes: usize,
        kind: c_int,
    ) -> Outcome<*mut c_void> {
        let mut registration = null_mut();
        let out = &raw mut registration;
        // SAFETY: the signature goes with the version; the caller vouches for the memory.
        let code = unsafe {
            match self.register {
                RegMr::V6(register) => register(connection, pointer(addr), int(bytes)?, kind, out),
                RegMr::V8(register) => register(connection, pointer(addr), bytes, kind, out),
            }
        };
        outcome(code, registration)
    }

    /// Registers memory by a descriptor.
    ///
    /// # Safety
    /// As [`Memory::register`].
    pub unsafe fn register_dma_buf(
        &self,
        connection: *mut c_void,
        (addr, bytes): (u64, usize),
        kind: c_int,
        (descriptor, offset): (c_int, u64),
    ) -> Outcome<*mut c_void> {
        let mut registration = null_mut();
        let register = self.register_dma_buf.ok_or(Failure::Absent)?;
        let (data, out) = (pointer(addr), &raw mut registration);
        // SAFETY: the caller vouches for the memory and its descriptor.
        let code = unsafe { register(connection, data, bytes, kind, offset, descriptor, out) };
        outcome(code, registration)
    }
}

impl MakeVDevice {
    /// Makes a virtual device and returns its number, as the plugin says.
    ///
    /// # Safety
    /// As with [`Calls`].
    pub unsafe fn call(&self, members: &[u32]) -> Outcome<c_int> {
        let mut device = -1;
        let count = int(members.len())?;
        // SAFETY: the signature goes with the version; the pointers are valid for the call.
        let code = unsafe {
            match self {
                Self::V9(make) => {
                    let mut members = Members4 { count, devices: padded(members)? };
                    make(&raw mut device, &raw mut members)
                }
                Self::V12(make) => {
                    let mut members = Members8 { count, devices: padded(members)? };
                    make(&raw mut device, &raw mut members)
                }
            }
        };
        outcome(code, device)
    }
}

/// The arrays of a grouped call.
struct Group {
    count: c_int,
    addrs: [*mut c_void; MAX_RECVS],
    sizes: [usize; MAX_RECVS],
    tags: [c_int; MAX_RECVS],
    registrations: [*mut c_void; MAX_RECVS],
    profiles: [*mut c_void; MAX_RECVS],
}

impl Group {
    /// Of at most [`MAX_RECVS`] segments; the adapter checks that.
    fn new(segments: &[Segment]) -> Self {
        let mut group = Self {
            count: 0,
            addrs: [null_mut(); MAX_RECVS],
            sizes: [0; MAX_RECVS],
            tags: [0; MAX_RECVS],
            registrations: [null_mut(); MAX_RECVS],
            profiles: [null_mut(); MAX_RECVS],
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

/// The result of a call that succeeded.
pub fn outcome<T>(code: c_int, result: T) -> Outcome<T> {
    if code == SUCCESS { Ok(result) } else { Err(Failure::Code(code)) }
}

/// A length for the versions that count in ints.
pub fn int(length: usize) -> Outcome<c_int> {
    c_int::try_from(length).map_err(|_| Failure::Length { length, most: c_int::MAX as usize })
}

/// What the traits carry as a number is a pointer to the plugin.
pub fn pointer(number: u64) -> *mut c_void {
    with_exposed_provenance_mut(number as usize)
}

/// The other way.
pub fn number(pointer: *mut c_void) -> u64 {
    pointer.expose_provenance() as u64
}

/// Device numbers in an array of a version's size.
fn padded<const N: usize>(members: &[u32]) -> Outcome<[c_int; N]> {
    let mut devices = [0; N];
    if members.len() > N {
        return Err(Failure::Absent);
    }
    for (device, member) in devices.iter_mut().zip(members) {
        *device = int(*member as usize)?;
    }
    Ok(devices)
}
