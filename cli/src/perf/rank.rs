//! One rank: its communicator, its buffers, what it puts in and what it finds.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hawser_device::{Device, Graph, Memory, OwnedStream};
use hawser_oracle::{Data, Expected};
use hawser_plan::{Call, Collective, DataType, ReduceOp};
use hawser_runtime::Stream;

use super::collective::{Geometry, Segment, Source, Test};
use super::library::Communicator;

/// Untouched bytes on both sides of a buffer.
const GUARD: u64 = 512;
/// Allocations are multiples of this, as those of frameworks are. What is not a multiple of 64 KiB is mapped
/// by other processes with small pages, through which copy engines reach 285 instead of 380 GB/s (H200).
const PAGE: u64 = 2 << 20;
/// The byte that guards hold, and that a receive buffer holds before an operation.
const PATTERN: u8 = 0xa5;

/// One operation on all ranks.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// The operation.
    pub test: Test,
    /// Element type.
    pub dtype: DataType,
    /// Reduction, if it reduces.
    pub op: Option<ReduceOp>,
    /// Root; 0 where there is none.
    pub root: u32,
    /// The numbers of elements that are sent and received.
    pub geometry: Geometry,
    /// Number of ranks.
    pub ranks: u32,
    /// True if input and output share a buffer.
    pub in_place: bool,
}

/// The faults that a check found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Findings {
    /// Wrong elements of the receive buffer.
    pub wrong: u64,
    /// Bytes changed outside of it.
    pub outside: u64,
}

/// The buffers that operations read and write.
struct Buffers {
    send: Memory,
    recv: Memory,
}

/// One rank of this thread.
pub struct Rank {
    /// Its communicator.
    pub comm: Box<dyn Communicator>,
    /// Its number in the communicator.
    rank: u32,
    device: Arc<dyn Device>,
    stream: OwnedStream,
    buffers: Rc<Buffers>,
    /// Bytes for operations in either.
    room: u64,
    unalign: u64,
}

impl Case {
    fn data(&self, seed: u64) -> Data {
        Data { dtype: self.dtype, op: self.op, ranks: self.ranks, seed }
    }

    fn bytes(&self, elements: u64) -> u64 {
        elements * self.dtype.size() as u64
    }

    /// Bytes of the one buffer of a run in place.
    fn shared_bytes(&self) -> u64 {
        self.bytes(self.geometry.send.max(self.geometry.recv))
    }

    /// The offset in buffers of `room` bytes at which operation `turn` of a group begins: each has a stretch
    /// of its own, as long as there are any.
    fn shift(&self, turn: u32, room: u64) -> u64 {
        let stride = stretch(self.shared_bytes());
        u64::from(turn) % (room / stride).max(1) * stride
    }
}

/// Bytes from an operation of a group to the next one in the buffers.
pub fn stretch(bytes: u64) -> u64 {
    bytes.max(1).next_multiple_of(512)
}

impl Rank {
    /// Allocates buffers of `bytes` bytes for operations, and a stream.
    ///
    /// # Errors
    /// The device has no memory left or refused a stream.
    pub fn new(
        comm: Box<dyn Communicator>,
        rank: u32,
        device: Arc<dyn Device>,
        bytes: u64,
        unalign: u64,
    ) -> Result<Self> {
        let total = (bytes + 2 * GUARD + unalign * 8).next_multiple_of(PAGE);
        let alloc = || match comm.window(total)? {
            Some(memory) => Ok(memory),
            None => device
                .alloc_as_user(total)
                .with_context(|| format!("rank {rank}: no memory for {bytes} bytes; lower the size")),
        };
        let buffers = Rc::new(Buffers { send: alloc()?, recv: alloc()? });
        let stream = device.stream().with_context(|| format!("rank {rank}: no stream"))?;
        Ok(Self { comm, rank, device, stream, buffers, room: bytes, unalign })
    }

    /// Registers both buffers with the communicator.
    ///
    /// # Errors
    /// The library reports a failure.
    pub fn register(&self) -> Result<()> {
        let Buffers { send, recv } = &*self.buffers;
        [send, recv].into_iter().try_for_each(|memory| self.comm.register(memory.addr, memory.bytes))
    }

    /// Another communicator of the same rank, with the same buffers and a stream of its own.
    ///
    /// # Errors
    /// The device refused a stream.
    pub fn beside(&self, comm: Box<dyn Communicator>) -> Result<Self> {
        let (rank, device, buffers) = (self.rank, Arc::clone(&self.device), Rc::clone(&self.buffers));
        let stream = device.stream().with_context(|| format!("rank {rank}: no stream"))?;
        Ok(Self { comm, rank, device, stream, buffers, room: self.room, unalign: self.unalign })
    }

    /// Destroys the communicator, then frees buffers and stream.
    ///
    /// # Errors
    /// The library reports a failure.
    pub fn close(self) -> Result<()> {
        self.comm.destroy()
    }

    /// Fills the buffers for a run of `case`.
    ///
    /// # Errors
    /// A copy to the device failed.
    pub fn prepare(&self, case: &Case, seed: u64) -> Result<()> {
        self.device.upload(self.region(&self.buffers.recv, case), &self.recv_image(case, seed))?;
        if !case.in_place {
            self.device.upload(self.region(&self.buffers.send, case), &self.send_image(case, seed))?;
        }
        Ok(())
    }

    /// Compares the buffers after a run of `case` with what belongs there.
    ///
    /// # Errors
    /// A copy from the device failed.
    pub fn check(&self, case: &Case, seed: u64) -> Result<Findings> {
        let mut findings = Findings::default();
        let recv = self.download(
            &self.buffers.recv,
            case,
            if case.in_place { case.shared_bytes() } else { case.bytes(case.geometry.recv) },
        )?;
        if case.test.has_output(self.rank, case.root) {
            let (guard, end) = (GUARD as usize, recv.len() - GUARD as usize);
            let is_changed = |b: &&u8| **b != PATTERN;
            findings.outside += recv[..guard].iter().chain(&recv[end..]).filter(is_changed).count() as u64;
            let output =
                if case.in_place { case.test.in_place_offsets(self.rank, case.geometry.count).1 } else { 0 };
            findings.wrong += self.count_wrong(case, seed, &recv[guard + case.bytes(output) as usize..end]);
        } else {
            findings.outside += difference(&recv, &self.recv_image(case, seed));
        }
        if !case.in_place {
            let send = self.download(&self.buffers.send, case, case.bytes(case.geometry.send))?;
            findings.outside += difference(&send, &self.send_image(case, seed));
        }
        Ok(findings)
    }

    /// Puts the operation on the device; [`Test::Hypercube`] is started step by step instead. `turn`: which
    /// one of its group; what is checked is number 0.
    ///
    /// # Errors
    /// The library reports a failure.
    pub fn start(&self, case: &Case, turn: u32) -> Result<()> {
        let shift = case.shift(turn, self.room);
        match case.test {
            Test::One(Collective::SendRecv) => {
                let (input, output) = self.addresses(case);
                let (input, output) = (input + shift, output + shift);
                let bytes = case.bytes(case.geometry.count);
                self.comm.send(input, bytes, (self.rank + 1) % case.ranks, self.stream())?;
                self.comm.recv(output, bytes, (self.rank + case.ranks - 1) % case.ranks, self.stream())?;
            }
            Test::One(_) => {
                if let Some(mut call) = self.call(case) {
                    (call.input, call.output) = (call.input + shift, call.output + shift);
                    self.comm.collective(&call, self.stream())?;
                }
            }
            Test::Hypercube => {}
        }
        Ok(())
    }

    /// Step `step` of the hypercube: ranks that differ in that bit exchange all they have.
    ///
    /// # Errors
    /// The library reports a failure.
    pub fn start_hypercube(&self, case: &Case, step: u32) -> Result<()> {
        let (input, output) = self.addresses(case);
        let block = case.bytes(case.geometry.count);
        let at = |rank: u32| output + u64::from(rank) * block;
        let peer = self.rank ^ (1 << step);
        if step == 0 {
            // The own block moves into place beside the first exchange, which reads the original.
            if input != at(self.rank) {
                self.comm.send(input, block, self.rank, self.stream())?;
                self.comm.recv(at(self.rank), block, self.rank, self.stream())?;
            }
            if case.ranks > 1 {
                self.comm.send(input, block, peer, self.stream())?;
                self.comm.recv(at(peer), block, peer, self.stream())?;
            }
            return Ok(());
        }
        let mine = self.rank >> step << step;
        self.comm.send(at(mine), block << step, peer, self.stream())?;
        self.comm.recv(at(mine ^ (1 << step)), block << step, peer, self.stream())?;
        Ok(())
    }

    /// From now on this thread records what is started instead of running it.
    ///
    /// # Errors
    /// The device refused it.
    pub fn begin_capture(&self) -> Result<()> {
        self.device
            .needs_graphs()
            .and_then(|graphs| graphs.begin_capture(self.stream()))
            .with_context(|| format!("rank {}", self.rank))
    }

    /// Ends the recording; also if something that was started failed.
    ///
    /// # Errors
    /// A recorded call does not fit a graph.
    pub fn end_capture(&self) -> Result<Graph> {
        self.device
            .needs_graphs()
            .and_then(|graphs| graphs.end_capture(self.stream()))
            .with_context(|| format!("rank {}", self.rank))
    }

    /// Puts everything in `graph` on the device.
    ///
    /// # Errors
    /// The device refused it.
    pub fn launch(&self, graph: &Graph) -> Result<()> {
        self.device
            .needs_graphs()
            .and_then(|graphs| graphs.launch_graph(graph, self.stream()))
            .with_context(|| format!("rank {}", self.rank))
    }

    /// Polls until everything that was started is over, as nccl-tests does.
    ///
    /// # Errors
    /// What the device or the communicator reports; or it took longer than `timeout`.
    pub fn synchronize(&self, timeout: Duration) -> Result<()> {
        let begun = Instant::now();
        while !self.device.is_idle(self.stream()).with_context(|| format!("rank {}", self.rank))? {
            self.comm.healthy()?;
            if begun.elapsed() > timeout {
                let seconds = timeout.as_secs();
                bail!(
                    "rank {}: an operation did not end within {seconds} s (-T sets this deadline)",
                    self.rank
                );
            }
            std::thread::yield_now();
        }
        self.comm.healthy()
    }

    /// The call of `case` on this rank; None if it consists of several.
    pub fn call(&self, case: &Case) -> Option<Call> {
        let (input, output) = self.addresses(case);
        let mut call = case.test.call(case.geometry.count, case.dtype, case.op, case.root)?;
        (call.input, call.output) = (input, output);
        if call.op == ReduceOp::PreMulSum {
            call.scalar = case.data(0).scalar(self.rank);
        }
        Some(call)
    }

    /// Returns the stream that operations are put on.
    pub fn stream(&self) -> Stream {
        self.stream.stream
    }

    fn addresses(&self, case: &Case) -> (u64, u64) {
        let recv = self.region(&self.buffers.recv, case) + GUARD;
        if !case.in_place {
            return (self.region(&self.buffers.send, case) + GUARD, recv);
        }
        let (input, output) = case.test.in_place_offsets(self.rank, case.geometry.count);
        (recv + case.bytes(input), recv + case.bytes(output))
    }

    /// First byte of the guard before a buffer.
    fn region(&self, memory: &Memory, case: &Case) -> u64 {
        memory.addr + case.bytes(self.unalign)
    }

    fn download(&self, memory: &Memory, case: &Case, bytes: u64) -> Result<Vec<u8>> {
        let mut image = vec![0; (bytes + 2 * GUARD) as usize];
        self.device.download(self.region(memory, case), &mut image)?;
        Ok(image)
    }

    fn send_image(&self, case: &Case, seed: u64) -> Vec<u8> {
        self.image(case, seed, case.bytes(case.geometry.send), Some(0))
    }

    fn recv_image(&self, case: &Case, seed: u64) -> Vec<u8> {
        if case.in_place {
            let (input, _) = case.test.in_place_offsets(self.rank, case.geometry.count);
            self.image(case, seed, case.shared_bytes(), Some(input))
        } else {
            self.image(case, seed, case.bytes(case.geometry.recv), None)
        }
    }

    /// A buffer of `bytes` bytes with its guards, and this rank's input from element `input` on.
    fn image(&self, case: &Case, seed: u64, bytes: u64, input: Option<u64>) -> Vec<u8> {
        let mut image = vec![PATTERN; (bytes + 2 * GUARD) as usize];
        if let Some(input) = input.filter(|_| case.test.has_input(self.rank, case.root)) {
            let first = (GUARD + case.bytes(input)) as usize;
            let length = case.bytes(case.geometry.send) as usize;
            case.data(seed).fill(self.rank, &mut image[first..first + length]);
        }
        image
    }

    fn count_wrong(&self, case: &Case, seed: u64, output: &[u8]) -> u64 {
        let mut rest = output;
        let mut wrong = 0;
        for segment in case.test.expected(self.rank, case.ranks, case.root, case.geometry.count) {
            let (piece, next) = rest.split_at(case.bytes(segment.elements) as usize);
            wrong += expectation(case, seed, &segment).count_wrong(segment.first, piece);
            rest = next;
        }
        wrong
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        // After a failure operations may still wait for other ranks on the stream and in the buffers.
        self.comm.abort();
    }
}

fn expectation(case: &Case, seed: u64, segment: &Segment) -> Expected {
    let data = case.data(seed);
    match segment.source {
        Source::Rank(rank) => data.input(rank, case.geometry.send),
        Source::All => data.reduced(case.op.unwrap_or(ReduceOp::Sum), case.geometry.send),
    }
}

fn difference(a: &[u8], b: &[u8]) -> u64 {
    if a == b { 0 } else { a.iter().zip(b).filter(|(a, b)| a != b).count() as u64 }
}
