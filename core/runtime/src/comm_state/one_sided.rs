//! One-sided operations: on the host device they are carried out in the calling thread, for GPUs by a thread
//! of the communicator (`stream_ops.rs`).

use std::time::Instant;

use hawser_base::env;
use hawser_base::error::{Error, ErrorKind, Result};
use hawser_base::wait::Wait;

use super::CommState;
use super::put_ways::Way;
use crate::rma::{Awaited, Put, RmaOp, Signal};

impl CommState {
    /// Carries out a one-sided operation to its end. A put is over when the bytes are on their way: the
    /// buffer that they came from may change.
    ///
    /// # Errors
    /// `Aborted`, `Timeout`, or `Remote` with the rank that is to blame; `Remote` where windows or signals of
    /// the peer do not fit.
    pub fn one_sided(&self, op: &RmaOp) -> Result<()> {
        match op {
            RmaOp::Signal { peer, put, signal } => {
                self.put_and_signal(*peer, put.as_ref(), *signal).map_err(|error| self.bootstrap.blame(error))
            }
            RmaOp::Wait(awaited) => self
                .rma
                .exposed()
                .take(awaited, |one, missing, since| self.may_wait_for_signal(one, missing, since)),
        }
    }

    fn put_and_signal(&self, peer: u32, put: Option<&Put>, signal: Signal) -> Result<()> {
        let wait = Wait::new(self.abort.clone(), env::settings().op_timeout);
        let Some(near) = self.rma.near(peer)? else {
            if let Some(put) = put {
                self.put_elsewhere(peer, put, &wait)?;
            }
            return self.rma.raise(&self.bootstrap, peer, signal, &wait);
        };
        if let Some(put) = put {
            let began = Instant::now();
            let what = || {
                format!(
                    "rank {} puts into window {} of rank {peer}, which it has not registered yet",
                    self.rank, put.window
                )
            };
            let to = near.place((put.window, put.offset, put.bytes), || self.may_wait(peer, began, what))?;
            Way::Memory.count(put.bytes);
            let copied = self.rma.exposed().copy_into(&near, (to, put.from, put.bytes), self.is_load_store);
            near.leave_place();
            copied?;
        }
        self.rma.raise(&self.bootstrap, peer, signal, &wait)
    }

    /// Fails if a wait for `peer`, in which nothing has come since a moment, may not go on.
    pub(super) fn may_wait(&self, peer: u32, since: Instant, what: impl Fn() -> String) -> Result<()> {
        if self.peer_memory.control.is_aborted() || self.abort.is_raised() {
            let aborted = || Error::new(ErrorKind::Aborted, format!("aborted while {}", what()));
            return Err(self.peer_memory.control.fault().cloned().unwrap_or_else(aborted));
        }
        if let Some(limit) = env::settings().op_timeout.filter(|limit| since.elapsed() >= *limit) {
            let text = format!("deadline of {limit:?} passed while {}", what());
            return Err(Error::new(ErrorKind::Timeout, text)
                .remedy("look at that rank, or raise HAWSER_OP_TIMEOUT")
                .with_peer(peer));
        }
        self.bootstrap.roster().check(peer, since, false).map_err(|error| error.context(what()))
    }

    /// Fails if a wait for a signal may not go on, of which so many raises have been missing since a moment.
    pub(super) fn may_wait_for_signal(&self, one: &Awaited, missing: u64, since: Instant) -> Result<()> {
        self.may_wait(one.peer, since, || self.sentence(one, missing))
    }

    fn sentence(&self, one: &Awaited, missing: u64) -> String {
        let Awaited { peer, signal: Signal { index, context }, count } = one;
        format!(
            "rank {} waits for signal {index} of context {context} of rank {peer} ({missing} of {count} are \
             missing)",
            self.rank
        )
    }
}
