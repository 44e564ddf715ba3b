//! The question whether launches of a communicator are under way, for threads that must not get stuck on it.
//!
//! A copy between a GPU and pageable memory that waits for a launch holds a lock of the driver for as long,
//! and nobody makes a stream meanwhile. So the stream that is put behind the launches is made with the
//! communicator, and a thread of its own asks: who gets no answer in time takes the launches for under way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::{Duration, Instant};

use hawser_base::error::Result;
use hawser_device::{Device, OwnedStream};

use super::CommState;

/// The time that the driver may take to answer.
const LIMIT: Duration = Duration::from_millis(50);
/// The time in which a GPU sees that a stream has nothing to wait for: some turns of processes that share it.
const MOMENT: Duration = Duration::from_millis(20);
/// The pause between two looks meanwhile.
const PAUSE: Duration = Duration::from_millis(1);

/// Asks the driver of a GPU whether launches are under way.
pub struct BusyProbe {
    /// A stream for nothing else; None where no kernels are launched.
    stream: Option<OwnedStream>,
    /// The sequence number of the last operation that the stream was put behind.
    behind: AtomicU64,
    question: Question,
}

impl BusyProbe {
    /// A probe of launches on this device.
    pub fn new(device: &dyn Device) -> Result<Self> {
        let stream = device.kernels().map(|_| device.stream()).transpose()?;
        Ok(Self { stream, behind: AtomicU64::new(0), question: Question::default() })
    }
}

impl CommState {
    /// True if launches are on their way, or may be: nobody tells of replays whose order is the program's,
    /// a driver that does not answer waits for something, and a GPU that many processes share may not have
    /// come to it yet. The journal learns what was over at the last question in any case. Always false on
    /// the host device.
    pub fn has_launches(self: &Arc<Self>) -> bool {
        if self.busy_probe.stream.is_none() {
            return false;
        }
        let state = self.clone();
        self.busy_probe.question.put(LIMIT, move || state.asks_driver()).unwrap_or(true)
    }

    fn asks_driver(&self) -> bool {
        let is_behind = || -> Result<bool> {
            let Some(own) = &self.busy_probe.stream else { return Ok(false) };
            // What it was put behind before is not over: nothing more is put on it.
            if !self.device.is_idle(own.stream)? {
                return Ok(true);
            }
            // What was there when it was asked the last time is over, but for what graphs may run again.
            if !self.order.has_captures() {
                self.journal.done(self.busy_probe.behind.load(Ordering::Relaxed));
            }
            self.busy_probe.behind.store(self.journal.last_submitted(), Ordering::Relaxed);
            Ok(self.order.follow(&*self.device, own.stream)? && !self.is_idle_soon(own)?)
        };
        is_behind().unwrap_or(false) || self.order.has_unknown_replays()
    }

    /// True if what was put on a stream just now is over within a moment, which the GPU needs to see that
    /// there is nothing to wait for.
    fn is_idle_soon(&self, own: &OwnedStream) -> Result<bool> {
        let until = Instant::now() + MOMENT;
        loop {
            if self.device.is_idle(own.stream)? {
                return Ok(true);
            }
            if Instant::now() >= until {
                return Ok(false);
            }
            thread::sleep(PAUSE);
        }
    }
}

/// A question whose answer may not come.
#[derive(Default)]
struct Question {
    /// True while a thread waits for the answer.
    is_put: Arc<AtomicBool>,
}

impl Question {
    /// Puts the question in a thread of its own. None: no answer within `limit`, or that to an earlier one
    /// has not come yet.
    fn put(&self, limit: Duration, question: impl FnOnce() -> bool + Send + 'static) -> Option<bool> {
        if self.is_put.swap(true, Ordering::AcqRel) {
            return None;
        }
        let (sender, answer) = sync_channel(1);
        let is_put = self.is_put.clone();
        let ask = move || {
            let answer = question();
            is_put.store(false, Ordering::Release);
            // Nobody may wait any more.
            let _ = sender.send(answer);
        };
        if thread::Builder::new().name("hawser-busy".into()).spawn(ask).is_err() {
            self.is_put.store(false, Ordering::Release);
            return None;
        }
        answer.recv_timeout(limit).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_without_answer_holds_nobody_up_and_is_not_put_twice() {
        let (question, patient) = (Question::default(), Duration::from_secs(60));
        assert_eq!(question.put(patient, || true), Some(true));
        assert_eq!(question.put(patient, || false), Some(false));
        let (release, released) = sync_channel::<()>(0);
        let stuck = move || released.recv().is_ok();
        assert_eq!(question.put(Duration::from_millis(1), stuck), None);
        let never = || -> bool { panic!("a second question while the first is open") };
        assert_eq!(question.put(patient, never), None);
        release.send(()).unwrap();
        while question.is_put.load(Ordering::Acquire) {
            thread::yield_now();
        }
        assert_eq!(question.put(patient, || true), Some(true));
    }
}
