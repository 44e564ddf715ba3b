//! A table of NCCL's behind our traits: plugin and context. Connections are in [`super::connection`].

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hawser_plugin::net::{
    Connector, Flows, Handle, Listener, NetAttributes, NetConfig, NetContext, NetProperties,
};
use hawser_plugin::{Error, ErrorKind, Log, Net, Result, Subsys};

use super::abi::{Attributes, CommAttributes, NO_TRAFFIC_CLASS};
use super::calls::{Calls, Failure};
use super::connection;
use super::properties::{MAX_DEVICES, import};
use crate::library::Library;
use crate::logger;

/// A net plugin of NCCL's.
pub struct Adapter(Arc<Plugin>);

impl Adapter {
    /// A plugin by its table. `library` is what must stay open for it.
    pub fn new(symbol: &'static str, name: String, calls: Calls, library: Option<Arc<Library>>) -> Self {
        let place =
            library.as_ref().map_or(String::new(), |library| format!(" of {}", library.path().display()));
        let label = format!("net plugin '{name}' ({symbol}{place})");
        let state = Mutex::new(State::default());
        Self(Arc::new(Plugin { calls, name, label, state, _library: library }))
    }
}

impl Net for Adapter {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn open(&self, config: &NetConfig) -> Result<Box<dyn NetContext>> {
        let traffic_class = config.traffic_class.unwrap_or(NO_TRAFFIC_CLASS);
        let object = Object(self.0.init(config, traffic_class)?);
        let context = Context { plugin: self.0.clone(), object, traffic_class, log: config.log.clone() };
        Ok(Box::new(OpenAdapter(Arc::new(context))))
    }
}

/// What all contexts of a plugin share.
pub struct Plugin {
    pub calls: Calls,
    name: String,
    /// Who an error is about.
    label: String,
    state: Mutex<State>,
    /// Declared last, so dropped last: the functions lie in it.
    _library: Option<Arc<Library>>,
}

/// What is asked or done once per plugin.
#[derive(Default)]
struct State {
    /// How `init` ended, for versions that have it once per process. A failure is final, as with NCCL: few plugins
    /// survive a second attempt.
    init: Option<Result<()>>,
    /// Number of devices, those made since included.
    devices: Option<Result<u32>>,
    properties: HashMap<u32, NetProperties>,
}

impl Plugin {
    /// Prepares the plugin for a communicator and returns its context.
    fn init(&self, config: &NetConfig, traffic_class: c_int) -> Result<*mut c_void> {
        let call = || {
            let (logger, profiler) =
                (logger::for_plugins(&config.log), config.profiler.unwrap_or(no_profiler));
            // SAFETY: the callbacks are functions of this program.
            let made = unsafe { self.calls.init(config.comm_id, traffic_class, logger, profiler) };
            made.map_err(|failure| self.error("init", failure))
        };
        if self.calls.has_contexts() {
            return call();
        }
        let mut state = self.state();
        state.init.get_or_insert_with(|| call().map(|_| ())).clone()?;
        Ok(std::ptr::null_mut())
    }

    /// Number of devices. The plugin is asked once.
    fn devices(&self) -> Result<u32> {
        let mut state = self.state();
        let count = || {
            // SAFETY: `init` succeeded, or there would be no context to ask through.
            let claimed =
                unsafe { self.calls.devices() }.map_err(|failure| self.error("devices", failure))?;
            let count = u32::try_from(claimed).ok().filter(|count| *count <= MAX_DEVICES);
            count.ok_or_else(|| {
                self.broken("devices", format!("says {claimed} devices, 0 to {MAX_DEVICES} are possible"))
            })
        };
        state.devices.get_or_insert_with(count).clone()
    }

    /// The number of an existing device, for C.
    pub fn device(&self, device: u32) -> Result<c_int> {
        let devices = self.devices()?;
        if device < devices {
            return Ok(device as c_int);
        }
        let text = format!("{}: there is no device {device}, only {devices}", self.label);
        Err(Error::new(ErrorKind::InvalidArgument, text))
    }

    /// What a device is. Each is asked for once; what had to be replaced is logged.
    pub fn properties(&self, device: u32, log: &Log) -> Result<NetProperties> {
        let number = self.device(device)?;
        let devices = self.devices()?;
        let mut state = self.state();
        if let Some(known) = state.properties.get(&device) {
            return Ok(known.clone());
        }
        let raw = self.calls.properties.read(number);
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

    /// Makes a virtual device; from then on it counts.
    fn make_virtual(&self, members: &[u32]) -> Result<u32> {
        if members.is_empty() {
            return Err(Error::new(ErrorKind::InvalidArgument, "a virtual device needs members"));
        }
        for member in members {
            self.device(*member)?;
        }
        let mut state = self.state();
        // SAFETY: the members exist, and `init` succeeded.
        let made = unsafe { self.calls.make_v_device(members) };
        let made = made.map_err(|failure| {
            let what = format!("makeVDevice of {} devices", members.len());
            self.error(&what, failure)
        })?;
        let device = u32::try_from(made).ok().filter(|device| *device < MAX_DEVICES);
        let device = device
            .ok_or_else(|| self.broken("makeVDevice", format!("made device {made}, which cannot be")))?;
        let count = state.devices.clone().unwrap_or(Ok(0)).unwrap_or(0);
        state.devices = Some(Ok(count.max(device + 1)));
        Ok(device)
    }

    /// A call that failed.
    pub fn error(&self, call: &str, failure: Failure) -> Error {
        failure.error(&format!("{}: {call}", self.label))
    }

    /// A call that succeeded and gave nonsense.
    pub fn broken(&self, call: &str, text: impl std::fmt::Display) -> Error {
        Error::internal(format!("{}: {call} {text}; this is a bug of the plugin", self.label))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A plugin prepared for a communicator. Connections hold it, so it is finalised after the last one is closed.
pub struct Context {
    pub plugin: Arc<Plugin>,
    pub object: Object,
    pub traffic_class: c_int,
    pub log: Log,
}

impl Context {
    /// Logs what cannot be returned.
    pub fn log_failure(&self, call: &str, code: c_int) {
        if code != 0 {
            self.log.info(Subsys::NET, self.plugin.error(call, Failure::Code(code)).text);
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if let Some(finalize) = self.plugin.calls.finalize {
            // SAFETY: `init` gave this context, nothing uses it any more.
            self.log_failure("finalize", unsafe { finalize(self.object.0) });
        }
    }
}

/// An object of a plugin's: only its own functions look into it.
pub struct Object(pub *mut c_void);

// SAFETY: NCCL uses a plugin's objects from several threads of its own; the traits serialise calls where NCCL does.
unsafe impl Send for Object {}
// SAFETY: as above; contexts are used by several threads at once.
unsafe impl Sync for Object {}

struct OpenAdapter(Arc<Context>);

impl NetContext for OpenAdapter {
    fn devices(&self) -> Result<u32> {
        self.0.plugin.devices()
    }

    fn properties(&self, device: u32) -> Result<NetProperties> {
        self.0.plugin.properties(device, &self.0.log)
    }

    fn listen(&self, device: u32) -> Result<(Handle, Box<dyn Listener>)> {
        connection::listen(&self.0, device)
    }

    fn connect(&self, device: u32, handle: &Handle) -> Result<Box<dyn Connector>> {
        connection::connect(&self.0, device, handle)
    }

    fn make_virtual(&self, members: &[u32]) -> Result<u32> {
        self.0.plugin.make_virtual(members)
    }

    fn set_attributes(&self, attributes: &NetAttributes) -> Result<()> {
        let [op, algo, proto] = attributes.what;
        let raw = Attributes { send: flows(attributes.send), recv: flows(attributes.recv), op, algo, proto };
        // SAFETY: the context is open.
        let set = unsafe { self.0.plugin.calls.set_net_attr(self.0.object.0, raw) };
        set.map_err(|failure| self.0.plugin.error("setNetAttr", failure))
    }
}

fn flows(flows: Flows) -> CommAttributes {
    CommAttributes {
        max_peers: flows.max_peers,
        min_peers: flows.min_peers,
        max_flows: flows.max_flows,
        min_flows: flows.min_flows,
    }
}

/// For plugins that report network events without asking whether anybody listens: nobody does.
unsafe extern "C" fn no_profiler(
    event: *mut *mut c_void,
    kind: c_int,
    _parent: *mut c_void,
    _plugin: i64,
    _payload: *mut c_void,
) -> c_int {
    const START: c_int = 0;
    if kind == START && !event.is_null() {
        // SAFETY: NCCL's contract: the event's place is writable.
        unsafe { *event = std::ptr::null_mut() };
    }
    0
}
