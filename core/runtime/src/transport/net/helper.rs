//! Threads that wait for an operation and move its slots meanwhile.

use super::Net;
use crate::proxy::shielded_sweep;

/// A thread that moves the slots of a communicator in place of the proxy.
pub struct Helper<'a>(&'a Net);

impl<'a> Helper<'a> {
    /// The calling thread, from now on.
    pub fn new(net: &'a Net) -> Self {
        net.task.help();
        net.task.launched();
        Self(net)
    }

    /// One look at everything; whether anything moved.
    pub fn sweep(&self) -> bool {
        shielded_sweep(&*self.0.task).unwrap_or(false)
    }

    /// True if everything that the device wrote has been sent.
    pub fn is_drained(&self) -> bool {
        self.0.task.is_drained()
    }
}

impl Drop for Helper<'_> {
    fn drop(&mut self) {
        if self.0.task.leave() {
            self.0.proxy.wake();
        }
    }
}
