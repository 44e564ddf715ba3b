//! Net plugin over TCP: `NCCL_NET=Socket`.
//!
//! A connection has one **control** socket and several **data** sockets. The receiver announces its posted
//! receives on the control socket; short messages come back inside it, the shortest also before their
//! receive is announced. Long ones are cut into chunks that take whichever data socket has room, and are
//! read straight into the posted buffers. A few threads per context drive the data sockets of all its
//! connections; one more accepts, dials and watches. Sockets prove the secret of the handle before a byte
//! is believed, and are dialled again when they are lost, without losing a byte.
//!
//! | module | is about |
//! |---|---|
//! | `config`, `device` | settings, and the devices that interfaces are |
//! | `greeting`, `frame` | what is on the wire: pure parsers |
//! | `stream`, `control` | records that survive their socket |
//! | `queue`, `tx`, `tx_dial`, `tx_pipe` | the sending end: work, connection, dials, a data socket |
//! | `table`, `rx`, `rx_pipe` | the receiving end |
//! | `inbound`, `outbound`, `path` | handshakes and ways |
//! | `ready` | which sockets have something to read |
//! | `service`, `pool` | the threads |
//! | `cpu_contention`, `path_health` | whether threads find processors, whether paths are alive |
//! | `context`, `endpoint` | the plugin interface |
//!
//! A program that links this crate has the net among its plugins; another may open it itself:
//!
//! ```
//! use hawser_net_socket::SocketNet;
//! use hawser_plugin::{Log, Net};
//! use hawser_plugin::net::NetConfig;
//!
//! let net = SocketNet::new();
//! // A machine without an interface that is up has no device.
//! if let Ok(context) = net.open(&NetConfig::new(1, Log::silent())) {
//!     println!("{} has {:?} devices", net.name(), context.devices());
//! }
//! ```
//!
//! The rules that keep threads and peers in step are numbered in `stream`, `queue`, `table`, `tx`, `rx`,
//! `pool` and `service`.

mod config;
mod context;
mod control;
mod cpu_contention;
mod device;
mod endpoint;
mod fault;
mod frame;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod greeting;
mod inbound;
mod link;
#[cfg(test)]
mod matching;
mod outbound;
mod path;
mod path_health;
mod pool;
mod queue;
mod ready;
mod region;
mod rx;
mod rx_pipe;
mod service;
mod shared;
mod stats;
mod stream;
mod sys;
mod table;
mod tx;
mod tx_dial;
mod tx_pipe;

use std::sync::Arc;

use hawser_plugin::net::{NetConfig, NetContext};
use hawser_plugin::{BuiltIn, Component, Net, Result};

pub use config::{Help, Settings};
#[doc(hidden)]
pub use fault::{connections, cut};
#[doc(hidden)]
pub use stats::{Stats, stats};

hawser_plugin::inventory::submit! {
    BuiltIn { name: "socket", priority: 100, make: || Component::Net(Arc::new(SocketNet::new())) }
}

/// The plugin.
#[derive(Debug, Clone, Default)]
pub struct SocketNet {
    settings: Option<Settings>,
}

impl SocketNet {
    /// With the settings of the environment, read whenever it is opened.
    pub fn new() -> Self {
        Self::default()
    }

    /// With these settings.
    pub fn with_settings(settings: Settings) -> Self {
        Self { settings: Some(settings) }
    }
}

impl Net for SocketNet {
    fn name(&self) -> &str {
        "Socket"
    }

    fn open(&self, config: &NetConfig) -> Result<Box<dyn NetContext>> {
        let (settings, complaints) = match &self.settings {
            Some(settings) => (settings.clone(), Vec::new()),
            None => Settings::from_environment(),
        };
        for complaint in complaints {
            config.log.warn(format!("Socket: {complaint}"));
        }
        Ok(Box::new(context::SocketContext::open(settings, config)?))
    }
}
