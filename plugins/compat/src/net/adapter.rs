//! A table of NCCL's behind our traits: plugin and context. Connections are in [`super::connection`].

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use hawser_plugin::net::{
    Connector, Flows, Handle, Listener, NetAttributes, NetConfig, NetContext, NetProperties,
};
use hawser_plugin::{Log, Net, Result};

use super::abi::{Attributes, CommAttributes, NO_TRAFFIC_CLASS};
use super::calls::Calls;
use super::connection;
use super::shared::{Object, Plugin};
use crate::logger;

/// A net plugin of NCCL's.
pub struct Adapter(Arc<Loaded>);

/// A plugin and its calls.
pub struct Loaded {
    pub calls: Calls,
    /// Declared last, so dropped last: the functions lie in its library.
    pub plugin: Plugin,
}

impl Adapter {
    /// A plugin by its table.
    pub fn new(calls: Calls, plugin: Plugin) -> Self {
        Self(Arc::new(Loaded { calls, plugin }))
    }
}

impl Net for Adapter {
    fn name(&self) -> &str {
        self.0.plugin.name()
    }

    fn open(&self, config: &NetConfig) -> Result<Box<dyn NetContext>> {
        let calls = &self.0.calls;
        let traffic_class = config.traffic_class.unwrap_or(NO_TRAFFIC_CLASS);
        let object = self.0.plugin.init(calls.has_contexts(), || {
            let (logger, profiler) =
                (logger::for_plugins(&config.log), config.profiler.unwrap_or(no_profiler));
            // SAFETY: the callbacks are functions of this program or of the host's.
            unsafe { calls.init(config.comm_id, traffic_class, logger, profiler) }
        })?;
        let (object, log) = (Object(object), config.log.clone());
        Ok(Box::new(OpenAdapter(Arc::new(Context { object, traffic_class, log, loaded: self.0.clone() }))))
    }
}

/// A plugin prepared for a communicator. Connections hold it, so it is finalised after the last one is
/// closed.
pub struct Context {
    pub object: Object,
    pub traffic_class: c_int,
    pub log: Log,
    pub loaded: Arc<Loaded>,
}

impl Context {
    /// Number of devices.
    pub fn devices(&self) -> Result<u32> {
        // SAFETY: `init` succeeded, or there would be no context.
        unsafe { self.loaded.plugin.devices(self.loaded.calls.devices) }
    }

    /// The properties of a device.
    pub fn properties(&self, device: u32) -> Result<NetProperties> {
        let devices = self.devices()?;
        self.loaded.plugin.properties(&self.loaded.calls.properties, device, devices, &self.log)
    }

    /// Logs the failure of a call whose result nobody waits for.
    pub fn log_failure(&self, call: &str, code: c_int) {
        self.loaded.plugin.log_failure(&self.log, call, code);
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if let Some(finalize) = self.loaded.calls.finalize {
            // SAFETY: `init` gave this context, nothing uses it any more.
            self.log_failure("finalize", unsafe { finalize(self.object.0) });
        }
    }
}

struct OpenAdapter(Arc<Context>);

impl NetContext for OpenAdapter {
    fn devices(&self) -> Result<u32> {
        self.0.devices()
    }

    fn properties(&self, device: u32) -> Result<NetProperties> {
        self.0.properties(device)
    }

    fn listen(&self, device: u32) -> Result<(Handle, Box<dyn Listener>)> {
        connection::listen(&self.0, device)
    }

    fn connect(&self, device: u32, handle: &Handle) -> Result<Box<dyn Connector>> {
        connection::connect(&self.0, device, handle)
    }

    fn make_virtual(&self, members: &[u32]) -> Result<u32> {
        let (loaded, devices) = (&self.0.loaded, self.0.devices()?);
        // SAFETY: `init` succeeded.
        unsafe { loaded.plugin.make_virtual(loaded.calls.make_v_device.as_deref(), members, devices) }
    }

    fn set_attributes(&self, attributes: &NetAttributes) -> Result<()> {
        let [op, algo, proto] = attributes.what;
        let raw = Attributes { send: flows(attributes.send), recv: flows(attributes.recv), op, algo, proto };
        // SAFETY: the context is open.
        let set = unsafe { self.0.loaded.calls.set_net_attr(self.0.object.0, raw) };
        set.map_err(|failure| self.0.loaded.plugin.error("setNetAttr", failure))
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
