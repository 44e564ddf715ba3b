//! Partitions on the host device: a thread carries them out, since operations are over there when the call
//! returns.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

use hawser_base::env;
use hawser_base::error::{Error, Result};
use hawser_base::wait::{AbortFlag, Wait};
use hawser_device::Stream;

use super::calls::{Range, Way, carry_out};
use super::lateness::Moments;
use super::shape::Shape;
use super::{Carrier, Words};
use crate::comm::Comm;

/// A partitioned collective of the host device.
pub struct OnThread {
    shared: Arc<Shared>,
    shape: Shape,
    /// Begins rounds; dropping it ends the thread.
    rounds: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The state that the program's threads and the one that carries partitions share.
struct Shared {
    rank: u32,
    abort: AbortFlag,
    arrivals: u32,
    /// Counted up by the program, whose kernels elsewhere do the same.
    ready: Box<[AtomicU32]>,
    /// 1 once a partition has arrived.
    arrived: Box<[AtomicU32]>,
    /// The time at which the round began, and the microseconds since then at which partitions were marked by
    /// calls; 0 for those that were not.
    begun: Mutex<Instant>,
    marked: Box<[AtomicU64]>,
    order: Mutex<Vec<(usize, Range)>>,
    failure: Mutex<Option<Error>>,
}

impl OnThread {
    /// Starts the thread of a partitioned collective.
    ///
    /// # Errors
    /// The system has no more threads.
    pub fn new(child: &Comm, shape: &Shape) -> Result<Self> {
        let words = || shape.counts.iter().map(|_| AtomicU32::new(0)).collect();
        let shared = Arc::new(Shared {
            rank: child.rank(),
            abort: child.state()?.abort.clone(),
            arrivals: shape.arrivals,
            ready: words(),
            arrived: words(),
            begun: Mutex::new(Instant::now()),
            marked: shape.counts.iter().map(|_| AtomicU64::new(0)).collect(),
            order: Mutex::new(shape.in_order(&shape.order())),
            failure: Mutex::default(),
        });
        let ways = shape.ways(child)?;
        let (begin, rounds) = channel::<()>();
        let work = {
            let (shared, child, shape) = (shared.clone(), child.clone(), shape.clone());
            move || {
                while rounds.recv().is_ok() {
                    let carried = shared.carry_round(&child, &shape, &ways);
                    if let Err(error) = carried {
                        return shared.fail(error);
                    }
                }
            }
        };
        let thread = Builder::new().name("hawser-parts".into()).spawn(work).map_err(|error| {
            Error::system("starting a thread for a partitioned collective", error)
                .remedy("raise the limit on threads (ulimit -u)")
        })?;
        Ok(Self { shared, shape: shape.clone(), rounds: Some(begin), thread: Some(thread) })
    }
}

impl Carrier for OnThread {
    /// The thread that carries partitions waits for them itself, so nothing has to be there before.
    fn rehearse(&self) -> Result<()> {
        Ok(())
    }

    fn start(&self, _: Stream) -> Result<()> {
        self.shared.check()?;
        for word in self.shared.ready.iter().chain(&self.shared.arrived) {
            word.store(0, Ordering::Release);
        }
        self.shared.marked.iter().for_each(|moment| moment.store(0, Ordering::Relaxed));
        *self.shared.begun.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        let begun = self.rounds.as_ref().is_some_and(|rounds| rounds.send(()).is_ok());
        if begun { Ok(()) } else { self.shared.check().and(Err(Error::internal("the thread has ended"))) }
    }

    fn ready(&self, partition: usize, _: Stream) -> Result<()> {
        self.shared.check()?;
        let begun = *self.shared.begun.lock().unwrap_or_else(PoisonError::into_inner);
        let moment = begun.elapsed().as_micros() as u64;
        self.shared.marked[partition].store(moment.max(1), Ordering::Relaxed);
        self.shared.ready[partition].store(self.shared.arrivals, Ordering::Release);
        Ok(())
    }

    fn wait(&self, partition: usize, _: Stream) -> Result<()> {
        let arrived = || match self.shared.arrived[partition].load(Ordering::Acquire) {
            0 => self.shared.check().err().map(Err),
            _ => Some(Ok(())),
        };
        let waits = || format!("rank {} waits for partition {partition} to arrive", self.shared.rank);
        self.shared.wait().until(arrived, waits)?
    }

    fn finish(&self, stream: Stream) -> Result<()> {
        (0..self.shared.arrived.len()).try_for_each(|partition| self.wait(partition, stream))
    }

    fn has_arrived(&self, partition: usize) -> Result<bool> {
        self.shared.check()?;
        Ok(self.shared.arrived[partition].load(Ordering::Acquire) != 0)
    }

    fn words(&self) -> Words {
        Words {
            ready: self.shared.ready.as_ptr() as u64,
            arrived: self.shared.arrived.as_ptr() as u64,
            arrivals: self.shared.arrivals,
        }
    }

    fn moments(&self) -> Moments {
        let moments = self.shared.marked.iter().map(|moment| moment.load(Ordering::Relaxed));
        moments.map(|moment| (moment > 0).then_some(moment)).collect()
    }

    fn reorder(&self, order: &[u32]) {
        let order = self.shape.in_order(order);
        *self.shared.order.lock().unwrap_or_else(PoisonError::into_inner) = order;
    }

    fn settle(&self) -> Result<()> {
        Ok(())
    }

    fn release(&self) {}
}

impl Drop for OnThread {
    /// The communicator is destroyed or aborted before: the thread waits for nothing any more.
    fn drop(&mut self) {
        drop(self.rounds.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Carries the partitions of one round, each when it is ready.
    fn carry_round(&self, child: &Comm, shape: &Shape, ways: &[Way]) -> Result<()> {
        let order = self.order.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for (partition, range) in &order {
            let is_ready = || {
                let count = self.ready[*partition].load(Ordering::Acquire);
                (count >= self.arrivals).then_some(())
            };
            let waits = || format!("rank {} waits until its partition {partition} is ready", self.rank);
            self.wait().until(is_ready, waits)?;
            let (part, options) = ((*range, ways[*partition]), shape.options.as_deref());
            carry_out(child, &shape.call, part, options, Stream::default())?;
            self.arrived[*partition].store(1, Ordering::Release);
        }
        Ok(())
    }

    /// A wait that ends with the communicator.
    fn wait(&self) -> Wait {
        Wait::new(self.abort.clone(), env::settings().op_timeout)
    }

    fn check(&self) -> Result<()> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone().map_or(Ok(()), Err)
    }

    fn fail(&self, error: Error) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }
}
