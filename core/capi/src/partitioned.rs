//! Our own functions for partitioned collectives (`hawser.h`): buffers that are filled and used in parts.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use hawser_plan::{Call, Collective, ReduceOp, Scalar};
use hawser_runtime::partitioned::{MOST_PARTITIONS, Partitioned, Shape};
use hawser_runtime::{Error, Result, Stream};
use rustc_hash::{FxBuildHasher, FxHashMap};

use crate::args::{self, In, Out, Plain};
use crate::config;
use crate::handle::{CommPtr, Handle};
use crate::types::NcclCollConfig;

/// Magic number of `hawserPartitionedConfig_t`.
pub const MAGIC: c_uint = 0x5450_5748;

/// `hawserPartitionedConfig_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    collective: *const c_char,
    sendbuff: *const c_void,
    recvbuff: *const c_void,
    count: usize,
    datatype: c_int,
    op: c_int,
    root: c_int,
    partitions: c_uint,
    counts: *const usize,
    order: *const c_uint,
    arrivals: c_uint,
    reserved: c_uint,
    config: *const NcclCollConfig,
}

// SAFETY: integers and raw pointers behind NCCL's header.
unsafe impl Plain for Config {}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Config>() == 96);

/// `hawserPartitionedWords_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Words {
    ready: *const c_void,
    arrived: *const c_void,
    arrivals: c_uint,
    partitions: c_uint,
}

/// A `hawserPartitioned_t` as it comes from C: a number that is never used twice, not an address.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct PartitionedPtr(*const c_void);

/// A partitioned collective and the number of its partitions.
type Entry = (Arc<Partitioned>, c_uint);

/// The partitioned collectives that are alive.
static TABLE: RwLock<FxHashMap<usize, Entry>> = RwLock::new(FxHashMap::with_hasher(FxBuildHasher));

hawser_api! {
    /// Makes a partitioned collective.
    fn hawserPartitionedInit(config: In<Config>, comm: CommPtr, partitioned: Out<PartitionedPtr>) {
        let handle = comm.ready()?;
        let shape = partitioned.check("partitioned").and_then(|()| {
            config.read_versioned("config", Config::UNSET, MAGIC).and_then(|given| given.shape(&handle))
        });
        let partitions = shape.as_ref().map_or(0, |shape| shape.counts.len() as c_uint);
        let made = handle.name(Partitioned::init_unless(&handle.comm, shape))?;
        partitioned.set("partitioned", PartitionedPtr::publish(made, partitions))
    }

    /// Begins a round.
    fn hawserPartitionedStart(partitioned: PartitionedPtr, stream: *const c_void) {
        partitioned.get()?.0.start(Stream(stream as u64))
    }

    /// A partition of this rank's input is ready when the work on the stream is over.
    fn hawserPartitionedReady(partitioned: PartitionedPtr, partition: c_uint, stream: *const c_void) {
        partitioned.get()?.0.ready(partition, Stream(stream as u64))
    }

    /// Work that is put on the stream from now on waits for a partition of the output.
    fn hawserPartitionedWait(partitioned: PartitionedPtr, partition: c_uint, stream: *const c_void) {
        partitioned.get()?.0.wait(partition, Stream(stream as u64))
    }

    /// Tells without waiting whether a partition of the output has arrived.
    fn hawserPartitionedArrived(partitioned: PartitionedPtr, partition: c_uint, arrived: Out<c_int>) {
        arrived.check("arrived")?;
        arrived.set("arrived", partitioned.get()?.0.has_arrived(partition)?.into())
    }

    /// Ends a round: what is put on the stream from now on waits for all partitions.
    fn hawserPartitionedFinish(partitioned: PartitionedPtr, stream: *const c_void) {
        partitioned.get()?.0.finish(Stream(stream as u64))
    }

    /// Lets partitions go in the order in which they were ready in the last round.
    fn hawserPartitionedLearn(partitioned: PartitionedPtr, order: Out<c_uint>) {
        let learned = partitioned.get()?.0.learn()?;
        if order.is_null() { Ok(()) } else { order.set_all("order", learned) }
    }

    /// Gives the words by which kernels mark partitions of their input and see those of the output.
    fn hawserPartitionedWords(partitioned: PartitionedPtr, words: Out<Words>) {
        let (object, partitions) = partitioned.get()?;
        let at = object.words();
        let (ready, arrived) = (at.ready as *const c_void, at.arrived as *const c_void);
        words.set("words", Words { ready, arrived, arrivals: at.arrivals, partitions })
    }

    /// Frees a partitioned collective; in the middle of a round it is aborted.
    fn hawserPartitionedFree(partitioned: PartitionedPtr) {
        let removed = TABLE.write().unwrap_or_else(PoisonError::into_inner).remove(&(partitioned.0 as usize));
        // What it waits for at its end must not hold the table. Other threads may be in calls of it.
        removed.map(|(object, _)| object.abort_round()).ok_or_else(|| partitioned.unknown())
    }
}

impl PartitionedPtr {
    fn publish(made: Partitioned, partitions: c_uint) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        TABLE.write().unwrap_or_else(PoisonError::into_inner).insert(number, (Arc::new(made), partitions));
        Self(std::ptr::without_provenance(number))
    }

    fn get(self) -> Result<Entry> {
        let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
        table.get(&(self.0 as usize)).cloned().ok_or_else(|| self.unknown())
    }

    fn unknown(self) -> Error {
        Error::invalid_argument(format!("{:?} is no partitioned collective", self.0))
            .remedy("pass what hawserPartitionedInit stored, and not after hawserPartitionedFree")
    }
}

impl Config {
    const UNSET: Self = Self {
        size: 0,
        magic: MAGIC,
        version: 0,
        collective: std::ptr::null(),
        sendbuff: std::ptr::null(),
        recvbuff: std::ptr::null(),
        count: 0,
        datatype: 0,
        op: 0,
        root: 0,
        partitions: 1,
        counts: std::ptr::null(),
        order: std::ptr::null(),
        arrivals: 1,
        reserved: 0,
        config: std::ptr::null(),
    };

    fn shape(&self, handle: &Handle) -> Result<Shape> {
        let partitions = self.partitions as usize;
        if !(1..=MOST_PARTITIONS).contains(&partitions) {
            let text = format!("{partitions} partitions: 1 to {MOST_PARTITIONS} are possible");
            return Err(Error::invalid_argument(text).remedy("set config.partitions"));
        }
        let counts = match In::inside(self.counts) {
            given if given.is_null() => equal_parts(self.count as u64, self.partitions),
            given => given.read_all("config.counts", partitions)?.into_iter().map(|n| n as u64).collect(),
        };
        let order = match In::inside(self.order) {
            given if given.is_null() => Vec::new(),
            given => given.read_all("config.order", partitions)?,
        };
        let (options, event) = config::read_call(In::inside(self.config), handle)?;
        if event.is_some() {
            let text = "launchCompletionEvent is of one launch, and a partitioned collective has many";
            return Err(Error::invalid_usage(text).remedy("leave it NULL"));
        }
        Ok(Shape { call: self.call(handle)?, counts, order, arrivals: self.arrivals, options })
    }

    fn call(&self, handle: &Handle) -> Result<Call> {
        let name = In::inside(self.collective).text().ok_or_else(|| args::null("config.collective"))?;
        let collective = Collective::from_name(&name).ok_or_else(|| {
            Error::invalid_argument(format!("config.collective: {name} is no collective")).remedy(
                "use all_reduce, reduce, broadcast, all_gather, reduce_scatter, alltoall, gather or scatter",
            )
        })?;
        let (ranks, rank) = (handle.comm.ranks(), handle.comm.rank());
        let dtype = args::data_type(self.datatype)?;
        let none = (ReduceOp::Sum, Scalar::Immediate(0));
        let (op, scalar) = if collective.reduces() { handle.ops.find(self.op, dtype)? } else { none };
        let root = args::rank("config.root", self.root, ranks)?;
        let root = if collective.rooted() { root } else { 0 };
        // A buffer that this rank does not use may be anything.
        let input = if collective.has_input(rank, root) { self.sendbuff as u64 } else { 0 };
        let output = if collective.has_output(rank, root) { self.recvbuff as u64 } else { 0 };
        Ok(Call { collective, count: self.count as u64, dtype, op, scalar, root, input, output, gap: 0 })
    }
}

/// Lengths that differ by at most one element.
fn equal_parts(count: u64, partitions: c_uint) -> Vec<u64> {
    let all = u64::from(partitions);
    (0..all).map(|part| count / all + u64::from(part < count % all)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_parts_differ_by_one_element_at_most() {
        assert_eq!(equal_parts(10, 4), [3, 3, 2, 2]);
        assert_eq!(equal_parts(2, 3), [1, 1, 0]);
        assert_eq!(equal_parts(0, 2), [0, 0]);
    }
}
