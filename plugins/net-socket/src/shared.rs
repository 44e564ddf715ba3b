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
    pub settings: Settings,
    pub log: Log,
    pub service: Arc<Service>,
    pub pool: Pool,
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

    pub fn close(&self) {
        self.service.stop();
        self.pool.stop();
    }
}
