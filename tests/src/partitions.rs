//! Partitioned collectives whose inputs are filled bit by bit, checked against the oracle.

use std::time::Duration;

use hawser_runtime::partitioned::{Partitioned, Shape};
use hawser_runtime::{Comm, Error, Result, Stream};

use crate::oracle::case::in_place_offset;
use crate::oracle::{Case, RankBuffers};
use crate::soak::Random;
use crate::world::call;

/// The byte of input that is not there yet.
const NOT_THERE: u8 = 0x5a;

/// A partitioned collective of a rank in host memory.
pub struct Rank {
    case: Case,
    rank: u32,
    counts: Vec<u64>,
    buffers: RankBuffers,
    /// The whole input.
    input: Vec<u8>,
    partitioned: Partitioned,
}

impl Rank {
    /// Makes it, with partitions of these lengths in this order. Collective.
    ///
    /// # Errors
    /// The library's.
    pub fn new(comm: &Comm, case: Case, in_place: bool, counts: &[u64], order: &[u32]) -> Result<Self> {
        let rank = comm.rank();
        let buffers = RankBuffers::new(&case, rank, in_place, 1);
        let shape = Shape {
            call: call(&case, rank, buffers.addresses(&case, rank)),
            counts: counts.to_vec(),
            order: order.to_vec(),
            arrivals: 1,
            options: None,
        };
        let partitioned = Partitioned::init(comm, shape)?;
        let input = RankBuffers::new(&case, rank, false, 0).input.bytes().to_vec();
        Ok(Self { case, rank, counts: counts.to_vec(), buffers, input, partitioned })
    }

    /// A round in which partitions become ready in a random order and are waited for in another one.
    ///
    /// # Errors
    /// The library's; `Internal` with the difference when the result is wrong.
    pub fn round(&mut self, random: &mut Random) -> Result<()> {
        let partitions = self.counts.len() as u32;
        self.empty();
        self.partitioned.start(Stream::default())?;
        for partition in shuffled(partitions, random) {
            if random.below(3) == 0 {
                std::thread::sleep(Duration::from_micros(random.below(300)));
            }
            self.fill(partition as usize);
            self.partitioned.ready(partition, Stream::default())?;
        }
        for partition in shuffled(partitions, random) {
            self.partitioned.wait(partition, Stream::default())?;
            if !self.partitioned.has_arrived(partition)? {
                return Err(Error::internal(format!("partition {partition} has arrived and has not")));
            }
        }
        self.partitioned.finish(Stream::default())?;
        self.buffers.fault(&self.case, self.rank).map_or(Ok(()), |text| Err(Error::internal(text)))
    }

    /// The library's object.
    pub fn partitioned(&self) -> &Partitioned {
        &self.partitioned
    }

    /// Takes the input away.
    fn empty(&mut self) {
        let (first, bytes) = (self.first_byte(), self.input.len());
        self.sent()[first..first + bytes].fill(NOT_THERE);
    }

    /// Fills in the input of one partition.
    pub fn fill(&mut self, partition: usize) {
        let size = self.case.dtype.size();
        let before = self.counts[..partition].iter().sum::<u64>() as usize;
        let (offset, bytes) = (before * size, self.counts[partition] as usize * size);
        let (first, block) = (self.first_byte(), self.case.count * size);
        for start in (0..self.input.len()).step_by(block.max(1)) {
            let from = start + offset;
            let part = self.input[from..from + bytes].to_vec();
            self.sent()[first + from..first + from + bytes].copy_from_slice(&part);
        }
    }

    fn first_byte(&self) -> usize {
        let elements = if self.buffers.in_place { in_place_offset(&self.case, self.rank).0 } else { 0 };
        elements * self.case.dtype.size()
    }

    fn sent(&mut self) -> &mut [u8] {
        let RankBuffers { input, output, in_place } = &mut self.buffers;
        if *in_place { output.bytes_mut() } else { input.bytes_mut() }
    }
}

/// Random lengths that add up to `count`, some of them 0.
pub fn lengths(count: u64, partitions: u32, random: &mut Random) -> Vec<u64> {
    let mut cuts: Vec<u64> = (1..partitions).map(|_| random.below(count + 1)).collect();
    cuts.push(count);
    cuts.sort_unstable();
    let mut before = 0;
    cuts.into_iter().map(|cut| cut - std::mem::replace(&mut before, cut)).collect()
}

/// The numbers below `count` in a random order.
pub fn shuffled(count: u32, random: &mut Random) -> Vec<u32> {
    let mut numbers: Vec<u32> = (0..count).collect();
    for left in (1..numbers.len()).rev() {
        numbers.swap(left, random.below(left as u64 + 1) as usize);
    }
    numbers
}
