//! Net plugin over InfiniBand and RoCE: `NCCL_NET=IB`.
//!
//! A connection uses several **rails**: pairs of queue pairs on any HCAs of both ends. The receiver posts its
//! buffers to the sender, which cuts messages into chunks and writes each one, by RDMA with an immediate,
//! over the rail that is idle first. When a rail fails both ends fence it, and what the receiver does not
//! have goes over the others; it comes back when probes say so. `docs/net-ib.md` tells what that survives.
//!
//! | module | is about |
//! |---|---|
//! | `config`, `port`, `link_state` | settings, ports of HCAs and their links |
//! | `proto` | the connection as a state machine, and its rules: no I/O |
//! | `verbs` | libibverbs behind a trait, and a test double |
//! | `handshake`, `control_channel` | what the handshake tells, the TCP connection beside the rails |
//! | `pairs`, `rail_qp` | pairs of ports, the queue pairs of rails |
//! | `machine`, `conn`, `clock`, `progress_thread` | drivers of the state machines, the thread that helps |
//! | `flush` | GPU memory: makes what arrived visible |
//! | `stats`, `profile` | counters, and events for profilers |
//! | `context`, `endpoint` | the plugin interface |
//!
//! ```
//! use hawser_net_ib::IbNet;
//! use hawser_plugin::{Log, Net};
//! use hawser_plugin::net::NetConfig;
//!
//! let net = IbNet::new();
//! match net.open(&NetConfig::new(1, Log::silent())) {
//!     Ok(context) => println!("{} has {:?} devices", net.name(), context.devices()),
//!     Err(error) => println!("no InfiniBand here: {error}"),
//! }
//! ```

mod clock;
mod config;
mod conn;
mod context;
mod control_channel;
mod endpoint;
mod flush;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod handshake;
mod link_state;
mod machine;
mod pairs;
mod port;
mod profile;
mod progress_thread;
mod proto;
mod rail_qp;
mod stats;
mod verbs;

use std::sync::Arc;

use hawser_plugin::net::{NetConfig, NetContext};
use hawser_plugin::{BuiltIn, Component, Error, ErrorKind, Net, Result, Subsys};

pub use config::{Pairing, Regard, Settings, regard};
pub use stats::{Latency, RailStats, Stats, rails, stats};
#[doc(hidden)]
pub use verbs::soft;

hawser_plugin::inventory::submit! {
    BuiltIn { name: "ib", priority: 50, make: || Component::Net(Arc::new(IbNet::new())) }
}

/// The plugin.
#[derive(Clone)]
pub struct IbNet {
    settings: Option<Settings>,
    verbs: Arc<dyn verbs::Verbs>,
}

impl IbNet {
    /// On the machine's devices, with the settings of the environment, read whenever it is opened.
    pub fn new() -> Self {
        Self { settings: None, verbs: Arc::new(verbs::real::Machine) }
    }

    /// With these settings.
    pub fn with_settings(settings: Settings) -> Self {
        Self { settings: Some(settings), ..Self::new() }
    }

    /// On the devices of a test double.
    #[doc(hidden)]
    pub fn on_soft(settings: Settings, host: soft::Host) -> Self {
        Self { settings: Some(settings), verbs: Arc::new(host) }
    }
}

impl IbNet {
    /// As [`Net::open`], but where there is no device that can be used it says why in an INFO line and gives
    /// a context without devices. That is what NCCL expects of a plugin that declines.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn open_anyway(&self, config: &NetConfig) -> Result<Box<dyn NetContext>> {
        let (settings, complaints) = self.settings();
        match context::find(&settings, &*self.verbs) {
            Ok(ports) => self.open_ports(config, settings, complaints, ports),
            Err(why) => {
                config.log.info(Subsys::NET, format!("IB: off: {why}"));
                Ok(Box::new(context::IbContext::empty()))
            }
        }
    }

    fn settings(&self) -> (Settings, Vec<String>) {
        match &self.settings {
            Some(settings) => (settings.clone(), Vec::new()),
            None => Settings::from_environment(),
        }
    }

    fn open_ports(
        &self,
        config: &NetConfig,
        settings: Settings,
        complaints: Vec<String>,
        ports: Vec<Arc<port::Port>>,
    ) -> Result<Box<dyn NetContext>> {
        for complaint in complaints {
            config.log.warn(format!("IB: {complaint}"));
        }
        Ok(Box::new(context::IbContext::open(settings, config, ports)?))
    }
}

impl Default for IbNet {
    fn default() -> Self {
        Self::new()
    }
}

impl Net for IbNet {
    fn name(&self) -> &str {
        "IB"
    }

    fn open(&self, config: &NetConfig) -> Result<Box<dyn NetContext>> {
        let (settings, complaints) = self.settings();
        let ports = context::find(&settings, &*self.verbs);
        let ports = ports.map_err(|why| Error::new(ErrorKind::Unsupported, why))?;
        self.open_ports(config, settings, complaints, ports)
    }
}
