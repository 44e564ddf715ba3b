//! The end of a communicator that nobody holds any more: its launches are waited for, then its memory goes.

use std::thread;
use std::time::{Duration, Instant};

use hawser_base::log;

use super::CommState;
use super::deferred_free::Remains;

/// The time for which an aborted communicator waits for its stream before it gives its memory up.
const AFTER_ABORT: Duration = Duration::from_secs(2);

/// The time after an abort in which kernels of replays may still look at the communicator's memory.
const REPLAYS: Duration = Duration::from_millis(100);

impl Drop for CommState {
    fn drop(&mut self) {
        // The others need not wait for this rank to change rules.
        if let (Some(served), Some(net)) = (&self.participant, &self.net) {
            if !net.has_sent_all() {
                served.participant().stays();
            }
            served.participant().leave();
        } else {
            drop(self.participant.take());
        }
        // Streams may still come to one-sided operations: they are released from now on.
        if let Some(ops) = self.stream_ops.get() {
            ops.close();
        }
        if let Some(watch) = self.stream_watch.get() {
            watch.close();
        }
        if let Some(network) = self.kernel_network.get() {
            network.close();
        }
        // Kernels may still be on their way: memory is unmapped only when the stream has passed them.
        self.settle();
        if self.copy_engines.as_ref().is_some_and(|copy_engines| !copy_engines.close()) {
            self.leak("the words of its copy engines cannot be set");
        }
        if self.peer_memory.control.is_aborted() {
            let memory = (self.net.take(), self.take_memory());
            self.remains = Remains::new(memory, self.peer_memory.control.clone());
        }
    }
}

impl CommState {
    /// Waits until launches are over, for a while only after an abort.
    fn settle(&mut self) {
        let end = match self.order.end(&*self.device) {
            Ok(Some(end)) => end,
            Ok(None) => return self.settle_replays(),
            Err(error) => {
                return self.leak(&format!("what is on its streams cannot be waited for ({error})"));
            }
        };
        let mut aborted: Option<Instant> = None;
        while self.device.is_idle(end.stream).is_ok_and(|idle| !idle) {
            if self.abort.is_raised() {
                self.peer_memory.control.abort();
            }
            self.peer_memory.control.abort_if_failed();
            if let Some(copy_engines) = &self.copy_engines {
                copy_engines.release();
            }
            if let Some(watch) = self.stream_watch.get() {
                watch.release();
            }
            if self.peer_memory.control.is_aborted()
                && aborted.get_or_insert_with(Instant::now).elapsed() > AFTER_ABORT
            {
                return self.leak("its stream is stuck in other work after an abort");
            }
            thread::sleep(Duration::from_micros(50));
        }
        self.settle_replays();
    }

    /// Nobody knows of replays whose order is the program's. After an abort their kernels leave within this
    /// time.
    fn settle_replays(&self) {
        if self.peer_memory.control.is_aborted() && self.order.has_unknown_replays() {
            thread::sleep(REPLAYS);
        }
    }

    /// Keeps all memory that work on a stream may still use, and goes on releasing its waits.
    fn leak(&mut self, why: &str) {
        log::warn(&format!(
            "{} rank {}: {why}: the communicator's memory stays allocated",
            self.name, self.rank
        ));
        if let Some(net) = self.net.take() {
            net.leak();
        }
        std::mem::forget((self.take_memory(), self.peer_memory.control.clone()));
    }

    /// All memory that work on a stream may use, and what releases its waits.
    fn take_memory(&mut self) -> impl Send + use<> {
        // The images of steps are the programs'.
        let programs = self.programs.get_mut().map(std::mem::take);
        let scratch = self.scratch.get_mut().map(std::mem::take);
        let words = (self.stream_ops.take(), self.stream_watch.take(), self.rma.words());
        let windows = self.lsa.take_memory();
        (
            self.copy_engines.take(),
            programs.ok(),
            scratch.ok(),
            words,
            windows,
            self.peer_memory.take_memory(),
        )
    }
}
