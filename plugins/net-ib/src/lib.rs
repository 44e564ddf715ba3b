//! Net plugin over InfiniBand and RoCE: `NCCL_NET=IB`.
//!
//! A connection uses several **rails**: pairs of queue pairs on any HCAs of both ends. The receiver posts its buffers to
//! the sender, which cuts messages into chunks and writes each one, by RDMA with an immediate, over the rail that is idle
//! first. When a rail fails both ends fence it, and what the receiver does not have goes over the others; it comes back
//! when probes say so. `docs/net-ib.md` tells what that survives.
//!
//! | module | is about |
//! |---|---|
//! | `config`, `port`, `address` | settings, ports of HCAs, where listeners are dialled |
//! | `proto` | the connection as a state machine, and its rules: no I/O |
//! | `verbs` | libibverbs behind a trait, and a test double |
//! | `handle`, `hello`, `side` | the handle, the authenticated handshake, the TCP connection beside the rails |
//! | `lane`, `conn`, `keeper` | queue pairs, what drives the state machine, the thread that helps |
//! | `context`, `ends` | the plugin interface |

mod address;
mod config;
mod conn;
mod context;
mod ends;
mod handle;
mod hello;
mod keeper;
mod lane;
mod port;
mod proto;
mod side;
mod stats;
mod verbs;

use std::sync::Arc;

use hawser_plugin::net::{NetConfig, NetContext};
use hawser_plugin::{Net, Result};

pub use config::{Pairing, Settings};
pub use stats::{Stats, stats};
#[doc(hidden)]
pub use verbs::soft;

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
        let (settings, complaints) = match &self.settings {
            Some(settings) => (settings.clone(), Vec::new()),
            None => Settings::from_environment(),
        };
        for complaint in complaints {
            config.log.warn(format!("IB: {complaint}"));
        }
        Ok(Box::new(context::IbContext::open(settings, config, &*self.verbs)?))
    }
}
