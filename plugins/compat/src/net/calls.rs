//! The calls of a net table in one form for all versions: what a version lacks is left out or refused here,
//! and nowhere else. What differs between versions in a function that all have is in `forms`.

use std::ffi::{c_int, c_void};
use std::ptr::{null_mut, with_exposed_provenance_mut};

use hawser_plugin::host::NetProfiler;
use hawser_plugin::net::Segment;
use hawser_plugin::{Error, ErrorKind};

use super::abi::properties::PropertiesReader;
use super::abi::signatures::*;
use super::abi::{Attributes, CommConfig};
use super::forms::{Accept, Connect, Group, Init, Irecv, Isend, Listen, MakeVDevice, Reach, RegMr, Start};
use crate::common::{SUCCESS, failure};
use crate::logger::Logger;

/// A table of any version. Required entries are there; what may be absent is an `Option`.
#[allow(missing_docs)] // NCCL's functions
pub struct Calls {
    /// Requests that the plugin can hold per connection.
    pub max_requests: usize,
    pub init: Box<dyn Init>,
    pub devices: Devices,
    pub properties: PropertiesReader,
    pub listen: Box<dyn Listen>,
    pub connect: Box<dyn Connect>,
    pub accept: Box<dyn Accept>,
    pub memory: Memory,
    pub isend: Box<dyn Isend>,
    pub irecv: Box<dyn Irecv>,
    pub iflush: Option<Iflush>,
    pub test: Test,
    pub close_send: Close,
    pub close_recv: Close,
    pub close_listen: Close,
    pub irecv_consumed: Option<IrecvConsumed>,
    pub make_v_device: Option<Box<dyn MakeVDevice>>,
    /// Only with contexts, and then always.
    pub finalize: Option<Close>,
    pub set_net_attr: Option<SetNetAttr>,
}

/// The functions that register memory.
#[allow(missing_docs)] // NCCL's functions
pub struct Memory {
    pub register: Box<dyn RegMr>,
    pub register_dma_buf: Option<RegMrDmaBuf>,
    pub deregister: DeregMr,
}

/// The reason why a call did not happen or went wrong.
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

/// The result of a call.
pub type Outcome<T> = std::result::Result<T, Failure>;

/// The entry may be called when `calls` came from a table that keeps its version's contract, and the objects
/// that are passed came from the same table and are open. All methods below share this and say only what
/// comes on top.
impl Calls {
    /// True if each communicator has a context of its own.
    pub fn has_contexts(&self) -> bool {
        self.init.makes_context()
    }

    /// True if `irecv` may be told that its completion is optional.
    pub fn has_optional_completion(&self) -> bool {
        self.irecv.knows_optional_completion()
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
        let (out, config) = (&raw mut context, &raw mut config);
        let start = Start { context: out, comm_id, config, logger, profiler };
        // SAFETY: the pointers are valid for the call, the callbacks for ever.
        let code = unsafe { self.init.call(&start) };
        outcome(code, context)
    }

    /// The sending end, NULL if it is not there yet.
    ///
    /// # Safety
    /// See the impl block; `handle` points to 128 writable bytes that are the same at each attempt, as
    /// plugins keep their state there.
    pub unsafe fn connect(
        &self,
        context: *mut c_void,
        device: c_int,
        traffic_class: c_int,
        handle: *mut c_void,
    ) -> Outcome<*mut c_void> {
        let mut sender = null_mut();
        let mut offload = null_mut(); // NULL: not wanted
        let mut config = CommConfig { traffic_class };
        let (out, offload, config) = (&raw mut sender, &raw mut offload, &raw mut config);
        let reach = Reach { context, device, config, handle, out, offload };
        // SAFETY: the pointers are valid for the call.
        let code = unsafe { self.connect.call(&reach) };
        outcome(code, sender)
    }

    /// The receiving end, NULL if the sender is not there yet.
    ///
    /// # Safety
    /// See the impl block.
    pub unsafe fn accept(&self, listener: *mut c_void) -> Outcome<*mut c_void> {
        let mut receiver = null_mut();
        let mut offload = null_mut(); // NULL: not wanted
        // SAFETY: the pointers are valid for the call.
        let code = unsafe { self.accept.call(listener, &raw mut receiver, &raw mut offload) };
        outcome(code, receiver)
    }

    /// Begins to send. NULL: not now.
    ///
    /// # Safety
    /// See the impl block; the segment lies in its registered memory until the request is done.
    pub unsafe fn isend(&self, connection: *mut c_void, segment: &Segment) -> Outcome<*mut c_void> {
        let mut request = null_mut();
        // SAFETY: the caller vouches for the memory.
        let code = unsafe { self.isend.call(connection, segment, &raw mut request) }?;
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
        // SAFETY: the caller vouches for the memory.
        let code = unsafe { self.irecv.call(connection, &mut group, &raw mut request) }?;
        outcome(code, request)
    }

    /// Begins to flush. NULL: nothing to wait for.
    ///
    /// # Safety
    /// As [`Calls::irecv`].
    pub unsafe fn iflush(&self, connection: *mut c_void, segments: &[Segment]) -> Outcome<*mut c_void> {
        let Some(iflush) = self.iflush else { return Ok(null_mut()) };
        let mut group = Group::new(segments);
        // A flush orders all of a buffer with the GPU, whatever length is named, so a cut length loses
        // nothing.
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

/// Makes a listener; NULL if the plugin breaks its contract. `handle` is filled in.
///
/// # Safety
/// As with [`Calls`]; `handle` points to 128 writable bytes.
pub unsafe fn make_listener(
    listen: &dyn Listen,
    context: *mut c_void,
    device: c_int,
    handle: *mut c_void,
) -> Outcome<*mut c_void> {
    let mut listener = null_mut();
    // SAFETY: the pointers are valid for the call.
    let code = unsafe { listen.call(context, device, handle, &raw mut listener) };
    outcome(code, listener)
}

/// Makes a virtual device and returns its number, as the plugin says.
///
/// # Safety
/// As with [`Calls`].
pub unsafe fn make_v_device(make: &dyn MakeVDevice, members: &[u32]) -> Outcome<c_int> {
    let mut device = -1;
    // SAFETY: the pointer is valid for the call.
    let code = unsafe { make.call(members, &raw mut device) }?;
    outcome(code, device)
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
        let (data, out) = (pointer(addr), &raw mut registration);
        // SAFETY: the caller vouches for the memory.
        let code = unsafe { self.register.call(connection, (data, bytes), kind, out) }?;
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

/// The result of a call that succeeded.
pub fn outcome<T>(code: c_int, result: T) -> Outcome<T> {
    if code == SUCCESS { Ok(result) } else { Err(Failure::Code(code)) }
}

/// A length for the versions that count in ints.
pub fn int(length: usize) -> Outcome<c_int> {
    c_int::try_from(length).map_err(|_| Failure::Length { length, most: c_int::MAX as usize })
}

/// The pointer that a plugin knows, from the number that the traits carry.
pub fn pointer(number: u64) -> *mut c_void {
    with_exposed_provenance_mut(number as usize)
}

/// The other way.
pub fn number(pointer: *mut c_void) -> u64 {
    pointer.expose_provenance() as u64
}

/// Device numbers in an array of a version's size.
pub fn padded<const N: usize>(members: &[u32]) -> Outcome<[c_int; N]> {
    let mut devices = [0; N];
    if members.len() > N {
        return Err(Failure::Absent);
    }
    for (device, member) in devices.iter_mut().zip(members) {
        *device = int(*member as usize)?;
    }
    Ok(devices)
}
