//! The state that all connections of a context share: settings, log and threads.

use std::sync::Arc;

use hawser_plugin::Log;
use rustix::io::Errno;

use crate::config::Settings;
use crate::pool::Pool;
use crate::ready::Ready;
use crate::service::Service;

/// The shared state of one context. The context stops the threads; connections may outlive it, without being
/// of use.
pub(crate) struct Shared {
    /// The settings of the plugin.
    pub settings: Settings,
    /// The host's log.
    pub log: Log,
    /// The thread that accepts, dials and watches.
    pub service: Arc<Service>,
    /// The threads that move long messages.
    pub pool: Pool,
    /// The sockets that have something to read.
    pub ready: Arc<Ready>,
}

impl Shared {
    /// # Errors
    /// The kernel has no descriptors or threads left.
    pub fn open(settings: Settings, traffic_class: Option<i32>, log: Log) -> Result<Arc<Self>, Errno> {
        let service = Service::start(settings.socket_options(traffic_class), log.clone())?;
        let pool =
            Pool::new(settings.threads, settings.spin, settings.help).inspect_err(|_| service.stop())?;
        let ready = Ready::new().inspect_err(|_| service.stop())?;
        Ok(Arc::new(Self { settings, log, service, pool, ready }))
    }

    /// Ends all threads.
    pub fn close(&self) {
        self.service.stop();
        self.pool.stop();
    }
}
