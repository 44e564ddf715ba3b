//! The state of both ends of a connection beside their sockets: alive, failed or closed.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use hawser_plugin::{Error, Log, Result, Subsys};

const ALIVE: u8 = 0;
const CLOSED: u8 = 1;
const FAILED: u8 = 2;

/// State of a connection. The first failure stays; a closed connection no longer fails.
#[derive(Debug)]
pub(crate) struct Link {
    /// The host's log.
    pub log: Log,
    /// For errors and logs: what this is and with whom.
    pub name: String,
    state: AtomicU8,
    error: OnceLock<Error>,
    /// The peer has said goodbye.
    left: AtomicBool,
}

impl Link {
    pub fn new(log: Log, name: String) -> Self {
        Self { log, name, state: AtomicU8::new(ALIVE), error: OnceLock::new(), left: AtomicBool::new(false) }
    }

    /// # Errors
    /// Why the connection failed.
    pub fn check(&self) -> Result<()> {
        if self.state.load(Ordering::Acquire) != FAILED {
            return Ok(());
        }
        Err(self.error.get().cloned().unwrap_or_else(|| Error::internal("the connection failed")))
    }

    /// Memory of the host must not be touched any more.
    pub fn is_dead(&self) -> bool {
        self.state.load(Ordering::Acquire) != ALIVE
    }

    /// Tells whether the host has dropped this end.
    pub fn is_closed(&self) -> bool {
        self.state.load(Ordering::Acquire) == CLOSED
    }

    /// The connection is of no use any more.
    pub fn fail(&self, error: Error) {
        let error = error.context(&self.name);
        let text = error.text.clone();
        if self.is_dead() || self.error.set(error).is_err() {
            return;
        }
        let old = self.state.compare_exchange(ALIVE, FAILED, Ordering::AcqRel, Ordering::Acquire);
        if old.is_ok() {
            self.log.info(Subsys::NET, format!("Socket: {text}"));
        }
    }

    /// The host has dropped its end.
    pub fn close(&self) {
        let _ = self.state.compare_exchange(ALIVE, CLOSED, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Notes that the peer has said goodbye.
    pub fn set_left(&self) {
        self.left.store(true, Ordering::Release);
    }

    /// Tells whether the peer has said goodbye.
    pub fn has_left(&self) -> bool {
        self.left.load(Ordering::Acquire)
    }

    /// Writes a line to the host's log.
    pub fn info(&self, text: impl std::fmt::Display) {
        self.log.info(Subsys::NET, format!("Socket: {}: {text}", self.name));
    }

    /// A line about what is lost while the rest goes on.
    pub fn stress(&self, text: impl std::fmt::Display) {
        self.log.stress(format!("Socket: {}: {text}", self.name));
    }

    /// Adds to a count that the host keeps of an interface.
    pub fn count(&self, interface: &str, what: &str, by: u64) {
        self.log.count("Socket", interface, what, by);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_stays_and_names_the_connection() {
        let link = Link::new(Log::silent(), "sender to 10.0.0.1".into());
        assert!(link.check().is_ok() && !link.is_dead());
        link.fail(Error::remote("gone"));
        link.fail(Error::internal("later"));
        link.close();
        assert_eq!(link.check(), Err(Error::remote("sender to 10.0.0.1: gone")));
        assert!(link.is_dead() && !link.is_closed());
    }

    #[test]
    fn a_closed_connection_does_not_fail() {
        let link = Link::new(Log::silent(), String::new());
        link.close();
        link.fail(Error::remote("gone"));
        assert!(link.check().is_ok() && link.is_dead() && link.is_closed());
    }
}
