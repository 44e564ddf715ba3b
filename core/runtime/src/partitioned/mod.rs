//! Partitioned collectives: their buffers are filled, and used, in partitions (ADR 34).
//!
//! ```text
//! init ─► start ─► ready(0) ready(2) ready(1) … ─► finish ─► start … ─► drop
//!                  wait(0) …                        (a round)
//! ```
//!
//! The words are those of MPI 4.0, chapter 4 (partitioned communication): a *partition* is a range of
//! elements of every block of the collective. A rank says of each of its partitions that it is **ready**:
//! the data to be sent are there. A partition goes on its way when all ranks have said so, and has
//! **arrived** when what the collective writes of it is there. Partitions go one after the other, in an
//! order that all ranks have alike, so one that is ready early may wait for another.
//!
//! A partitioned collective has a communicator of its own, a child of the one it was made for: what is called
//! on that one does not wait for partitions that are not ready.

mod calls;
mod lateness;
mod shape;
mod streams;
mod thread;

use std::sync::{Mutex, PoisonError};

use hawser_base::env;
use hawser_base::error::{Error, ErrorKind, Result};
use hawser_base::liveness::Identity;
use hawser_base::wait::Wait;
use hawser_device::Stream;
use rustc_hash::FxHashMap;

use crate::comm::{Comm, group};
use crate::comm_state::CommState;
use crate::record;
use lateness::Moments;
pub use shape::{MOST_PARTITIONS, Shape};
use streams::OnStreams;
use thread::OnThread;

/// A partitioned collective of one rank. Dropping it in the middle of a round aborts the round.
pub struct Partitioned {
    child: Comm,
    shape: Shape,
    round: Mutex<Round>,
    carrier: Box<dyn Carrier>,
}

/// The round that the host knows of. What devices mark is not in it.
struct Round {
    is_open: bool,
    marked: Vec<bool>,
    /// The order in which partitions go.
    order: Vec<u32>,
}

/// The words of a partitioned collective, which kernels may use: one `u32` for each partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Words {
    /// Address of the words that are counted up to [`Words::arrivals`] before a partition is ready.
    pub ready: u64,
    /// Address of the words that are 1 once a partition has arrived.
    pub arrived: u64,
    /// Number of times that a partition is counted before it is ready.
    pub arrivals: u32,
}

/// The way in which partitions are waited for and sent on a kind of device.
trait Carrier: Send + Sync {
    /// Makes and loads what rounds need, once all ranks have the collective. Waits for them.
    fn rehearse(&self) -> Result<()>;

    /// Refuses a round that might never end, before it begins.
    fn refuse_round(&self, _stream: Stream) -> Result<()> {
        Ok(())
    }

    /// Begins a round: no partition is ready or has arrived.
    fn start(&self, stream: Stream) -> Result<()>;

    /// A partition is ready once the work is over that is on the stream.
    fn ready(&self, partition: usize, stream: Stream) -> Result<()>;

    /// Work that is put on the stream from now on waits for a partition; on the host device the call waits.
    fn wait(&self, partition: usize, stream: Stream) -> Result<()>;

    /// The same for the end of the round.
    fn finish(&self, stream: Stream) -> Result<()>;

    /// True if a partition has arrived. Does not wait.
    fn has_arrived(&self, partition: usize) -> Result<bool>;

    /// The words of the partitions, which kernels may use from the next round on.
    fn words(&self) -> Words;

    /// The times at which the partitions of the last round were ready, where that is known. Does not wait.
    fn moments(&self) -> Moments;

    /// Lets the partitions go in another order from the next round on.
    fn reorder(&self, order: &[u32]);

    /// Waits until what is on streams of its own is over; the last round is finished. An error where that
    /// does not come: partitions were never marked.
    fn settle(&self) -> Result<()>;

    /// Ends a round that is not over, after the communicator was aborted.
    fn release(&self);
}

impl Partitioned {
    /// Makes a partitioned collective. All ranks of `comm` call it, with shapes that are alike but for the
    /// buffers and factors; it waits for them, also where `comm` does not block. Not in a group.
    ///
    /// # Errors
    /// `InvalidArgument` on all ranks where a rank's shape is wrong or another one than rank 0's, with that
    /// rank; `InvalidUsage` in a group, where the device's streams cannot wait for words, or where
    /// ranks of one process share a GPU and copy engines move data; otherwise as
    /// [`Comm::split`].
    pub fn init(comm: &Comm, shape: Shape) -> Result<Self> {
        Self::init_unless(comm, Ok(shape))
    }

    /// The same for a rank whose shape may be wrong already: the others hear of that instead of waiting.
    ///
    /// # Errors
    /// As [`Partitioned::init`]; on this rank the error that it passes.
    pub fn init_unless(comm: &Comm, shape: Result<Shape>) -> Result<Self> {
        refuse_group("hawserPartitionedInit")?;
        refuse_shared_queues(comm)?;
        let child = comm.split(0, comm.rank() as i32, None)?;
        let child = child.ok_or_else(|| Error::internal("a split with a color gave no communicator"))?;
        wait_for_child(&child)?;
        let made = Self::on(&child, shape);
        if made.is_err() {
            // All ranks fail.
            let _ = child.destroy();
        }
        made
    }

    fn on(child: &Comm, shape: Result<Shape>) -> Result<Self> {
        let state = child.state()?;
        let made = shape.and_then(|shape| {
            shape.check(child.ranks(), child.rank())?;
            let carrier: Box<dyn Carrier> = match state.device.stream_words() {
                _ if state.device.kernels().is_none() => Box::new(OnThread::new(child, &shape)?),
                Some(_) => Box::new(OnStreams::new(child, state.device.clone(), &shape)?),
                None => return Err(shape::without_words()),
            };
            Ok((shape, carrier))
        });
        let wait = Wait::new(state.abort.clone(), Some(env::settings().join_timeout()));
        let agreed = shape::agree(&state.bootstrap, made.as_ref().map(|(shape, _)| shape), &wait);
        let (shape, carrier) = made?;
        agreed?;
        // The others are in it too, and must not wait for this rank.
        carrier.rehearse().inspect_err(|_| drop(child.abort()))?;
        let marked = vec![false; shape.counts.len()];
        let round = Mutex::new(Round { is_open: false, marked, order: shape.order() });
        Ok(Self { child: child.clone(), shape, round, carrier })
    }

    /// Begins a round, behind what is on the stream: from now on partitions may become ready. The round
    /// before has to be finished, and what uses its output has to be on its way before.
    ///
    /// # Errors
    /// `InvalidUsage` in a group, in the middle of a round, or in a capture where ranks of one process share
    /// a GPU; why the communicator has failed.
    pub fn start(&self, stream: Stream) -> Result<()> {
        refuse_group("hawserPartitionedStart")?;
        self.child.check_ready()?;
        let mut round = self.round.lock().unwrap_or_else(PoisonError::into_inner);
        if round.is_open {
            return Err(self.usage("the round before is not finished", "call hawserPartitionedFinish first"));
        }
        self.carrier.refuse_round(stream)?;
        // Also where it fails: streams may wait for partitions already, and only an abort ends that.
        round.is_open = true;
        round.marked.fill(false);
        self.carrier.start(stream)
    }

    /// A partition of this rank's input is ready once the work is over that is on the stream.
    ///
    /// # Errors
    /// `InvalidArgument`: there is no such partition; `InvalidUsage`: no round has begun, or the partition
    /// is ready already.
    pub fn ready(&self, partition: u32, stream: Stream) -> Result<()> {
        let index = self.index(partition)?;
        {
            let mut round = self.in_round()?;
            if std::mem::replace(&mut round.marked[index], true) {
                let text = format!("partition {partition} is ready already");
                return Err(self.usage(&text, "say so once in a round, or begin the next one"));
            }
        }
        self.carrier.ready(index, stream)
    }

    /// Work that is put on the stream from now on waits until a partition has arrived; on the host device the
    /// call waits.
    ///
    /// # Errors
    /// As [`Partitioned::ready`]; on the host device why the partition does not come.
    pub fn wait(&self, partition: u32, stream: Stream) -> Result<()> {
        let index = self.index(partition)?;
        drop(self.in_round()?);
        self.carrier.wait(index, stream)
    }

    /// Ends the round: what is put on the stream from now on waits until all partitions have arrived; on the
    /// host device the call waits.
    ///
    /// # Errors
    /// `InvalidUsage`: no round has begun, or, on GPUs, a partition is not ready that no kernel can mark
    /// (the communicator is aborted then, since others wait for it); on the host device why a partition does
    /// not come. The round is over in any case.
    pub fn finish(&self, stream: Stream) -> Result<()> {
        drop(self.in_round()?);
        let finished = self.carrier.finish(stream).map_err(|error| match error.kind {
            ErrorKind::InvalidUsage => {
                let _ = self.child.abort();
                error.on_rank(self.child.rank(), "partitioned collective")
            }
            _ => error,
        });
        self.round.lock().unwrap_or_else(PoisonError::into_inner).is_open = false;
        finished
    }

    /// True if a partition of the round has arrived. Does not wait for it.
    ///
    /// # Errors
    /// As [`Partitioned::wait`].
    pub fn has_arrived(&self, partition: u32) -> Result<bool> {
        let index = self.index(partition)?;
        drop(self.in_round()?);
        self.carrier.has_arrived(index)
    }

    /// Lets partitions go in the order in which they were ready in the last round, on whichever rank was
    /// last: what is late is sent last. All ranks call it, between two rounds. Partitions of which a rank
    /// does not know when they were ready (kernels marked them, or the round was captured) keep their
    /// places. Graphs keep the order that they were captured with; on GPUs the round has to be over, not
    /// just finished. Returns the new order.
    ///
    /// # Errors
    /// `InvalidUsage` in a group or in the middle of a round; another rank did not answer.
    pub fn learn(&self) -> Result<Vec<u32>> {
        refuse_group("hawserPartitionedLearn")?;
        let state = self.child.state()?;
        let before = {
            let round = self.round.lock().unwrap_or_else(PoisonError::into_inner);
            if round.is_open {
                return Err(self.usage("the round is not finished", "call hawserPartitionedFinish first"));
            }
            round.order.clone()
        };
        let wait = Wait::new(state.abort.clone(), Some(env::settings().join_timeout()));
        let mine = record::encode(&self.carrier.moments());
        let all = record::decode_all(&state.bootstrap.all_gather(&mine, &wait)?, "list of moments")?;
        let order = lateness::order_of(&all, &before);
        self.carrier.reorder(&order);
        self.round.lock().unwrap_or_else(PoisonError::into_inner).order.clone_from(&order);
        Ok(order)
    }

    /// The words by which kernels mark partitions, and see them arrive. From the next round on, streams wait
    /// for these words instead of the calls of the host.
    pub fn words(&self) -> Words {
        self.carrier.words()
    }

    /// Aborts the communicator if a round is not over, or if it has failed: waits of other threads end.
    pub fn abort_round(&self) {
        let is_open = self.round.lock().unwrap_or_else(PoisonError::into_inner).is_open;
        if is_open || self.child.async_error().is_some() {
            let _ = self.child.abort();
            self.carrier.release();
        }
    }

    /// The communicator of the partitioned collective, to ask what became of it.
    pub fn communicator(&self) -> &Comm {
        &self.child
    }

    fn index(&self, partition: u32) -> Result<usize> {
        let (index, all) = (partition as usize, self.shape.counts.len());
        if index < all {
            return Ok(index);
        }
        let text = format!("partition {partition} is none of the {all} partitions (0..{})", all - 1);
        Err(Error::invalid_argument(text).on_rank(self.child.rank(), "partitioned collective"))
    }

    fn in_round(&self) -> Result<std::sync::MutexGuard<'_, Round>> {
        let round = self.round.lock().unwrap_or_else(PoisonError::into_inner);
        if round.is_open {
            return Ok(round);
        }
        drop(round);
        Err(self.usage("no round has begun", "call hawserPartitionedStart first"))
    }

    fn usage(&self, text: &str, remedy: &str) -> Error {
        let error = Error::invalid_usage(text.to_owned()).remedy(remedy);
        error.on_rank(self.child.rank(), "partitioned collective")
    }
}

impl Drop for Partitioned {
    /// A round that is not over is aborted; else the communicator is destroyed, which waits for what is on
    /// its streams.
    fn drop(&mut self) {
        self.abort_round();
        if self.child.async_error().is_some() {
            return;
        }
        if self.carrier.settle().is_ok() {
            let _ = self.child.destroy();
        } else {
            let _ = self.child.abort();
            self.carrier.release();
        }
    }
}

/// Refuses copy engines where ranks of one process share a GPU, on all ranks alike.
///
/// Whoever waits for a partition, a stream or a graph, holds one of the queues that the GPU has for the
/// process. With the streams of copy engines there are more streams than queues, so what one rank waits for
/// may lie behind a wait of another.
fn refuse_shared_queues(comm: &Comm) -> Result<()> {
    let state = comm.state()?;
    if state.copy_engines.is_none() || !share_queues(&state) {
        return Ok(());
    }
    let text = format!(
        "hawserPartitionedInit: rank {} of {}: ranks of one process share a GPU, and copy engines move data: \
         streams that wait for partitions could hold up the copies that they wait for",
        comm.rank(),
        comm.ranks()
    );
    Err(Error::invalid_usage(text).remedy("let each rank be a process, or set NCCL_PASS_SM=0"))
}

/// True if two ranks of one process share a GPU. All ranks answer alike.
fn share_queues(state: &CommState) -> bool {
    if state.device.kernels().is_none() {
        return false;
    }
    let members = state.bootstrap.roster().members();
    let mut on_gpus: FxHashMap<(u32, &str), Vec<&Identity>> = FxHashMap::default();
    state.topology.ranks.iter().zip(members).any(|(rank, member)| {
        let others = on_gpus.entry((rank.host, &rank.device)).or_default();
        let is_shared = others.iter().any(|other| other.is_same_process(member));
        others.push(member);
        is_shared
    })
}

/// Refuses a call in an open group: what it puts on streams cannot wait for the group's end.
fn refuse_group(call: &str) -> Result<()> {
    if group::depth() == 0 {
        return Ok(());
    }
    let error = Error::invalid_usage(format!("{call} in a group")).remedy("call it outside of groups");
    group::record(&error);
    Err(error)
}

/// Waits for the bring-up of a child whose parent does not block.
fn wait_for_child(child: &Comm) -> Result<()> {
    // The bring-up has deadlines of its own.
    let wait = Wait::new(hawser_base::wait::AbortFlag::new(), None);
    let is_over = || match child.async_error() {
        Some(error) if error.kind == ErrorKind::InProgress => None,
        Some(error) => Some(Err(error)),
        None => Some(Ok(())),
    };
    wait.until(is_over, || "bring-up of the communicator of a partitioned collective")?
}

#[cfg(test)]
mod tests;
