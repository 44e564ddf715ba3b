//! OpTimings of operations, for those who learn from them: taken where they are launched, collected by the
//! thread that serves changes of rules (`rules_update/learn.rs`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hawser_base::error::Result;
use hawser_device::{Device, Moment, Stream};
use hawser_plan::{Call, Topology};
use hawser_plugin::tuner::{Decision, Function};

use super::call_attributes::CallAttributes;
use super::tuner_bridge;
use super::tuners::TunedDecision;

/// OpTimings that wait to be collected, at most: whoever hangs has no use for more.
const MOST_OPEN: usize = 256;

/// The operation that a time belongs to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ran {
    /// The collective.
    pub function: Function,
    /// Bytes of the larger of send and receive side.
    pub bytes: u64,
    /// The decision that ran.
    pub decision: Decision,
    /// True if it was for a trial.
    pub trial: bool,
}

/// The times of a communicator on this rank.
pub struct OpTimings {
    device: Arc<dyn Device>,
    is_wanted: AtomicBool,
    open: Mutex<Vec<Open>>,
}

/// A time that is not known yet.
struct Open {
    number: u64,
    ran: Ran,
    from: Moment,
    to: Moment,
}

/// A time that is known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Taken {
    /// Of which collective.
    pub number: u64,
    /// The operation that was timed.
    pub ran: Ran,
    /// The time that it took on this rank, with the waiting for others.
    pub time: Duration,
}

/// An operation that is to be timed.
#[derive(Clone)]
pub struct TimedOp {
    times: Arc<OpTimings>,
    number: u64,
    ran: Ran,
}

impl OpTimings {
    /// Makes a list without times.
    pub fn new(device: &Arc<dyn Device>, is_wanted: bool) -> Arc<Self> {
        let (device, is_wanted) = (device.clone(), AtomicBool::new(is_wanted));
        Arc::new(Self { device, is_wanted, open: Mutex::default() })
    }

    /// True if rules that count want them.
    pub fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::Acquire)
    }

    /// Other rules count.
    pub fn want(&self, is_wanted: bool) {
        self.is_wanted.store(is_wanted, Ordering::Release);
    }

    /// The times that are known by now.
    pub fn take(&self) -> Vec<Taken> {
        let mut taken = Vec::new();
        self.lock().retain(|open| match self.device.between(&open.from, &open.to) {
            Ok(Some(time)) => {
                taken.push(Taken { number: open.number, ran: open.ran, time });
                false
            }
            Ok(None) => true,
            // A device that cannot tell has no times.
            Err(_) => false,
        });
        taken
    }

    fn put(&self, open: Open) {
        let mut all = self.lock();
        if all.len() < MOST_OPEN {
            all.push(open);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TimedOp {
    /// A collective with this choice; None for one that nobody learns from.
    pub fn new(
        times: &Arc<OpTimings>,
        (call, topology): (&Call, &Topology),
        (chosen, attributes): (&TunedDecision, CallAttributes),
        number: u64,
    ) -> Option<Self> {
        let (function, decision) = tuner_bridge::in_terms(call.collective, &chosen.choice)?;
        let (bytes, trial) = (call.total_bytes(topology.size()), attributes.trial.is_some());
        Some(Self { times: times.clone(), number, ran: Ran { function, bytes, decision, trial } })
    }

    /// The number of the collective.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The moment before it; None where the device has no clock.
    pub fn begin(&self, stream: Stream) -> Option<Moment> {
        self.times.device.moment(stream).ok()
    }

    /// It is on its stream.
    pub fn end(self, from: Option<Moment>, stream: Stream) {
        if let Some((from, to)) = from.zip(self.times.device.moment(stream).ok()) {
            self.times.put(Open { number: self.number, ran: self.ran, from, to });
        }
    }

    /// Takes the time of what `launch` puts on a stream, if it is to be taken.
    pub fn around<T>(
        timed: Option<Box<Self>>,
        stream: Stream,
        launch: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let Some(timed) = timed else { return launch() };
        let from = timed.begin(stream);
        let launched = launch()?;
        timed.end(from, stream);
        Ok(launched)
    }
}
