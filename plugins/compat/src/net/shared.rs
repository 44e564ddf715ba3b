//! The parts that the adapters of net and collnet plugins have in common: what is asked or done once per
//! plugin, registration, handles, and requests in flight.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hawser_plugin::net::{Handle, MAX_RECVS, MemoryKinds, NetProperties, Region, Registration, Request};
use hawser_plugin::{Error, ErrorKind, Log, Result, Subsys};
use rustc_hash::FxHashMap;

use super::abi::properties::PropertiesReader;
use super::abi::signatures::Devices;
use super::calls::{Failure, Memory, make_v_device, number, outcome, pointer};
use super::forms::MakeVDevice;
use super::properties::{MAX_DEVICES, import};
use crate::library::Library;

/// A loaded plugin: its name, its devices, and the library that must stay open for it.
pub struct Plugin {
    name: String,
    /// The plugin that errors name.
    label: String,
    state: Mutex<State>,
    _library: Option<Arc<Library>>,
}

/// The part of a plugin that is asked or done once in a process.
#[derive(Default)]
struct State {
    /// The result of `init`, for versions that have it once in a process. A failure is final, as with NCCL:
    /// few plugins survive a second attempt.
    init: Option<Result<()>>,
    /// Number of devices, those made since included.
    devices: Option<Result<u32>>,
    properties: FxHashMap<u32, NetProperties>,
}

impl Plugin {
    /// `kind` is for messages: "net plugin".
    pub fn new(kind: &str, symbol: &str, name: String, library: Option<Arc<Library>>) -> Self {
        let place =
            library.as_ref().map_or(String::new(), |library| format!(" of {}", library.path().display()));
        let label = format!("{kind} '{name}' ({symbol}{place})");
        Self { name, label, state: Mutex::default(), _library: library }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `init`: each time if it makes contexts, else once.
    pub fn init(
        &self,
        contexts: bool,
        call: impl FnOnce() -> std::result::Result<*mut c_void, Failure>,
    ) -> Result<*mut c_void> {
        let call = || call().map_err(|failure| self.error("init", failure));
        if contexts {
            return call();
        }
        let mut state = self.state();
        state.init.get_or_insert_with(|| call().map(|_| ())).clone()?;
        Ok(std::ptr::null_mut())
    }

    /// Number of devices. The plugin is asked once.
    ///
    /// # Safety
    /// `ask` may be called: `init` succeeded.
    pub unsafe fn devices(&self, ask: Devices) -> Result<u32> {
        let count = || {
            let mut claimed = 0;
            // SAFETY: the caller's promise; the pointer is valid for the call.
            let code = unsafe { ask(&raw mut claimed) };
            outcome(code, ()).map_err(|failure| self.error("devices", failure))?;
            let count = u32::try_from(claimed).ok().filter(|count| *count <= MAX_DEVICES);
            count.ok_or_else(|| {
                self.broken("devices", format!("says {claimed} devices, 0 to {MAX_DEVICES} are possible"))
            })
        };
        self.state().devices.get_or_insert_with(count).clone()
    }

    /// The number of one of `devices` devices, for C.
    pub fn device(&self, device: u32, devices: u32) -> Result<c_int> {
        if device < devices {
            return Ok(device as c_int);
        }
        let text = format!("{}: there is no device {device}, only {devices}", self.label);
        Err(Error::new(ErrorKind::InvalidArgument, text))
    }

    /// The properties of one of `devices` devices. Each is asked for once; what had to be replaced is logged.
    pub fn properties(
        &self,
        reader: &PropertiesReader,
        device: u32,
        devices: u32,
        log: &Log,
    ) -> Result<NetProperties> {
        let number = self.device(device, devices)?;
        let mut state = self.state();
        if let Some(known) = state.properties.get(&device) {
            return Ok(known.clone());
        }
        let raw = reader.read(number);
        let raw = raw.map_err(|code| self.error("getProperties", Failure::Code(code)))?;
        // SAFETY: a plugin's strings are terminated and live as long as the plugin.
        let (properties, replaced) = unsafe { import(&raw, device, devices) };
        if !replaced.is_empty() {
            let text = format!("{}: device {device}: replaced {}", self.label, replaced.join(", "));
            log.info(Subsys::NET, text);
        }
        state.properties.insert(device, properties.clone());
        Ok(properties)
    }

    /// Makes a virtual device of some of `devices` devices; from then on it counts.
    ///
    /// # Safety
    /// `make` may be called: `init` succeeded.
    pub unsafe fn make_virtual(
        &self,
        make: Option<&dyn MakeVDevice>,
        members: &[u32],
        devices: u32,
    ) -> Result<u32> {
        if members.is_empty() {
            return Err(Error::new(ErrorKind::InvalidArgument, "a virtual device needs members"));
        }
        members.iter().try_for_each(|member| self.device(*member, devices).map(|_| ()))?;
        let mut state = self.state();
        let made = match make {
            // SAFETY: the members exist; the caller promises the rest.
            Some(make) => unsafe { make_v_device(make, members) },
            None => Err(Failure::Absent),
        };
        let call = || format!("makeVDevice of {} devices", members.len());
        let made = made.map_err(|failure| self.error(&call(), failure))?;
        let device = u32::try_from(made).ok().filter(|device| *device < MAX_DEVICES);
        let device = device
            .ok_or_else(|| self.broken("makeVDevice", format!("made device {made}, which cannot be")))?;
        state.devices = Some(Ok(devices.max(device + 1)));
        Ok(device)
    }

    /// Registers memory of any kind.
    ///
    /// # Safety
    /// `connection` is open and of this plugin; the memory stays valid until it is deregistered.
    pub unsafe fn register(
        &self,
        memory: &Memory,
        connection: *mut c_void,
        region: &Region,
    ) -> Result<Registration> {
        let (addr, bytes) = (region.addr, region.bytes);
        let made = match (region.kind, region.dmabuf) {
            (MemoryKinds::HOST | MemoryKinds::CUDA, _) => {
                // SAFETY: the caller's promise.
                let made = unsafe { memory.register(connection, addr, bytes, region.kind.0 as c_int) };
                made.map_err(|failure| self.error("regMr", failure))
            }
            (MemoryKinds::DMABUF, Some(descriptor)) => {
                // NCCL names the kind of memory, not the way to it.
                let kind = MemoryKinds::CUDA.0 as c_int;
                // SAFETY: the caller's promise.
                let made = unsafe { memory.register_dma_buf(connection, (addr, bytes), kind, descriptor) };
                made.map_err(|failure| self.error("regMrDmaBuf", failure))
            }
            (MemoryKinds(kind), _) => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "cannot register memory of kind {kind}: name one kind, and DMA-BUF with its descriptor"
                ),
            )),
        };
        Ok(Registration(number(made?)))
    }

    /// Inverse of `register`.
    ///
    /// # Safety
    /// `connection` is open and of this plugin, and made the registration.
    pub unsafe fn deregister(
        &self,
        memory: &Memory,
        connection: *mut c_void,
        registration: Registration,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        let code = unsafe { (memory.deregister)(connection, pointer(registration.0)) };
        outcome(code, ()).map_err(|failure| self.error("deregMr", failure))
    }

    /// A call that failed.
    pub fn error(&self, call: &str, failure: Failure) -> Error {
        failure.error(&format!("{}: {call}", self.label))
    }

    /// A call that succeeded and gave nonsense.
    pub fn broken(&self, call: &str, text: impl std::fmt::Display) -> Error {
        Error::internal(format!("{}: {call} {text}; this is a bug of the plugin", self.label))
    }

    /// Logs the failure of a call whose result nobody waits for.
    pub fn log_failure(&self, log: &Log, call: &str, code: c_int) {
        if let Err(failure) = outcome(code, ()) {
            log.info(Subsys::NET, self.error(call, failure).into_text());
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An object of a plugin's: only its own functions look into it.
pub struct Object(pub *mut c_void);

// SAFETY: NCCL uses a plugin's objects from several threads of its own; the traits serialise calls where NCCL
// does.
unsafe impl Send for Object {}
// SAFETY: as above; contexts are used by several threads at once.
unsafe impl Sync for Object {}

/// A handle where a plugin may keep the state of a connection on its way: it has its own memory, which stays
/// where it is, aligned for whatever struct the plugin sees in it.
#[repr(C, align(64))]
pub struct HandleBuffer(UnsafeCell<Handle>);

impl HandleBuffer {
    pub fn new(handle: &Handle) -> Self {
        Self(UnsafeCell::new(*handle))
    }

    pub fn address(&self) -> *mut c_void {
        self.0.get().cast()
    }

    pub fn bytes(&mut self) -> &Handle {
        self.0.get_mut()
    }
}

/// The requests of a connection that are not over, so that no other number ever reaches the plugin as a
/// pointer.
pub struct InFlight {
    /// Requests that the plugin can hold. More are refused with "not now"; some plugins fail instead.
    limit: usize,
    /// Oldest first.
    flights: VecDeque<Flight>,
}

/// A request in flight.
pub struct Flight {
    request: Request,
    /// Bytes per segment; none of a flush.
    pub bytes: [usize; MAX_RECVS],
}

impl InFlight {
    pub fn new(limit: usize) -> Self {
        Self { limit, flights: VecDeque::new() }
    }

    pub fn is_full(&self) -> bool {
        self.flights.len() >= self.limit
    }

    /// Keeps what a call began; NULL was "not now".
    pub fn began(
        &mut self,
        request: *mut c_void,
        lengths: impl IntoIterator<Item = usize>,
    ) -> Option<Request> {
        if request.is_null() {
            return None;
        }
        let request = Request(number(request));
        let mut bytes = [0; MAX_RECVS];
        bytes.iter_mut().zip(lengths).for_each(|(bytes, length)| *bytes = length);
        self.flights.push_back(Flight { request, bytes });
        Some(request)
    }

    /// Asks by `test` whether a request is over; then it is forgotten and returned. `sizes` comes in as what
    /// counts if the plugin writes nothing.
    pub fn test(
        &mut self,
        request: Request,
        sizes: &mut [c_int; MAX_RECVS],
        test: impl FnOnce(*mut c_void, *mut c_int, *mut c_int) -> Result<()>,
    ) -> Result<Option<Flight>> {
        let Some(at) = self.flights.iter().position(|flight| flight.request == request) else {
            return Err(Error::internal(format!("test: request {:#x} is not in flight", request.0)));
        };
        let mut done = 0;
        test(pointer(request.0), &raw mut done, sizes.as_mut_ptr())?;
        Ok(if done != 0 { self.flights.remove(at) } else { None })
    }
}

/// Bytes that were sent, by what the plugin wrote. NCCL does not look at the size of a send, so plugins are
/// careless with it: what cannot be is not believed. The ABI's sizes are ints: of more than they can say they
/// say nothing.
pub fn believed(said: c_int, posted: usize) -> usize {
    let said = usize::try_from(said).ok().filter(|said| *said <= posted && posted <= c_int::MAX as usize);
    said.unwrap_or(posted)
}
