//! Partitions on GPUs: a stream of the collective's own carries each partition, and writes the word that says
//! that it has arrived. The host waits for nothing.
//!
//! * **Marked by the host.** `ready` puts the partitions on the stream whose turn it is, behind events of the
//!   streams that filled them. So no stream waits for what nobody has put on a stream yet.
//! * **Marked by kernels**, once the program has asked for the words, and in rounds that are captured: the
//!   whole round is put on the stream at its start, and the stream waits for the word of each partition.
//!   While it waits, the driver may refuse to load a kernel or to map memory until it goes on, and it goes on
//!   only when a partition is marked. So everything that rounds need is made before the first one: each
//!   partition is rehearsed when the collective is made.
//!
//! Every round begins with words of 0, written on the stream of the program. So rounds may be captured in
//! graphs: no number of a round is in a launch.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use hawser_base::env;
use hawser_base::error::{Error, Result};
use hawser_base::lock::lock;
use hawser_base::wait::Wait;
use hawser_device::{Device, Event, Memory, MemoryOp, Moment, OwnedStream, Stream};

use super::calls::{self, Range, Way, carry_out};
use super::lateness::Moments;
use super::shape::{self, Shape};
use super::{Carrier, Words, refuse_group};
use crate::comm::Comm;

/// Bytes of a word.
const WORD: u64 = 4;

/// A partitioned collective of a GPU.
pub struct OnStreams {
    child: Comm,
    device: Arc<dyn Device>,
    shape: Shape,
    /// By partition.
    ways: Vec<Way>,
    order: Mutex<Vec<(usize, Range)>>,
    marks: Mutex<Marks>,
    /// Kernels may mark partitions: the program has asked for the words.
    are_words_used: AtomicBool,
    round: Mutex<Round>,
    /// The stream that carries partitions: of the highest priority, so that partitions pass what computes.
    stream: OwnedStream,
    /// The words of what is ready, those of what has arrived, and as many zeros as both.
    words: Memory,
    /// The memory of the rehearsal, until it is over.
    scratch: Mutex<Option<Memory>>,
    /// Ranks of one process share the GPU.
    shares_queues: bool,
}

/// The times at which the last round began and its partitions were ready; nothing of a round that is
/// captured.
#[derive(Default)]
struct Marks {
    begun: Option<Moment>,
    ready: Vec<Option<Moment>>,
}

/// The round under way.
struct Round {
    /// The whole round is on the stream, which waits for the words.
    waits_for_words: bool,
    /// Partitions that are on the stream, in the order in which they go.
    gone: usize,
    partitions: Vec<Marked>,
}

/// A partition that the host marks.
struct Marked {
    /// Behind what fills it, once it is marked.
    filled: Event,
    /// Behind its arrival, once it is on the stream.
    arrived: Event,
    is_filled: bool,
    is_gone: bool,
}

impl OnStreams {
    /// Takes the stream and the words of a partitioned collective.
    ///
    /// # Errors
    /// There is no memory, or the driver refused.
    pub fn new(child: &Comm, device: Arc<dyn Device>, shape: &Shape) -> Result<Self> {
        let _context = device.enter()?;
        let words = device.alloc(4 * WORD * shape.counts.len() as u64)?;
        let stream = device.urgent_stream()?;
        let (order, ways) = (shape.in_order(&shape.order()), shape.ways(child)?);
        let scratch = |(partition, range): &(usize, Range)| {
            let part = (*range, ways[*partition]);
            calls::rehearsal_bytes(&shape.call, part, child.ranks()).iter().sum::<u64>()
        };
        let scratch = device.alloc(order.iter().map(scratch).max().unwrap_or(0).max(1))?;
        let (order, scratch) = (Mutex::new(order), Mutex::new(Some(scratch)));
        let events = device.needs_graphs()?;
        let marked = |_| {
            let (filled, arrived) = (events.event()?, events.event()?);
            Ok(Marked { filled, arrived, is_filled: false, is_gone: false })
        };
        let partitions = shape.counts.iter().map(marked).collect::<Result<_>>()?;
        let round = Mutex::new(Round { waits_for_words: false, gone: 0, partitions });
        let (child, shape, marks) = (child.clone(), shape.clone(), Mutex::default());
        let are_words_used = AtomicBool::new(false);
        let shares_queues = super::share_queues(&*child.state()?);
        Ok(Self {
            child,
            device,
            shape,
            ways,
            order,
            marks,
            are_words_used,
            round,
            stream,
            words,
            scratch,
            shares_queues,
        })
    }

    fn ready_word(&self, partition: usize) -> u64 {
        self.words.addr + WORD * partition as u64
    }

    fn arrived_word(&self, partition: usize) -> u64 {
        self.ready_word(self.shape.counts.len() + partition)
    }

    fn write(&self, stream: Stream, addr: u64, value: u32) -> Result<()> {
        self.device.needs_stream_words()?.memory_ops(stream, &[MemoryOp::Write { addr, value }])
    }

    /// Everything put on a stream from now on waits until a word has counted to a value.
    fn await_word(&self, stream: Stream, addr: u64, value: u32) -> Result<()> {
        let can = self.device.needs_stream_words()?.wait_value(stream, addr, value)?;
        if can { Ok(()) } else { Err(shape::without_words()) }
    }

    /// The moment when what is on a stream is over; None in a capture.
    fn moment(&self, stream: Stream) -> Result<Option<Moment>> {
        if self.is_captured(stream)? { Ok(None) } else { self.device.moment(stream).map(Some) }
    }

    fn is_captured(&self, stream: Stream) -> Result<bool> {
        Ok(self.device.stream_state(stream)?.capture.is_some())
    }

    /// Puts all partitions of a round on the stream of this collective, each behind its word.
    fn put_behind_words(&self) -> Result<()> {
        for (partition, range) in &lock(&self.order)?.clone() {
            self.await_word(self.stream.stream, self.ready_word(*partition), self.shape.arrivals)?;
            self.put(*partition, *range)?;
        }
        Ok(())
    }

    /// Puts the partitions on the stream that are marked and whose turn it is.
    fn put_marked(&self, round: &mut Round) -> Result<()> {
        let (own, order) = (self.stream.stream, lock(&self.order)?.clone());
        for (partition, range) in &order[round.gone..] {
            let marked = &mut round.partitions[*partition];
            if !marked.is_filled {
                return Ok(());
            }
            self.device.needs_graphs()?.wait_event(own, &marked.filled, false)?;
            self.put(*partition, *range)?;
            self.device.needs_graphs()?.record_event(own, &marked.arrived)?;
            marked.is_gone = true;
            round.gone += 1;
        }
        Ok(())
    }

    /// Puts a partition on the stream, and the word that it has arrived.
    fn put(&self, partition: usize, range: Range) -> Result<()> {
        let (own, options) = (self.stream.stream, self.shape.options.as_deref());
        carry_out(&self.child, &self.shape.call, (range, self.ways[partition]), options, own)?;
        self.write(own, self.arrived_word(partition), 1)
    }
}

impl Carrier for OnStreams {
    fn rehearse(&self) -> Result<()> {
        let _context = self.device.enter()?;
        let Some(scratch) = lock(&self.scratch)?.take() else { return Ok(()) };
        let (own, options) = (self.stream.stream, self.shape.options.as_deref());
        let wait = Wait::new(self.child.state()?.abort.clone(), Some(env::settings().join_timeout()));
        for (partition, range) in &lock(&self.order)?.clone() {
            let part = (*range, self.ways[*partition]);
            calls::rehearse(&self.child, &self.shape.call, part, options, (scratch.addr, own))?;
            self.settle()?;
            // Where ranks share a GPU, to load the next kernel is to wait for those that run there, which may
            // wait for a rank whose launch waits for the loading.
            self.child.state()?.bootstrap.all_gather(&[], &wait)?;
        }
        Ok(())
    }

    /// Graphs, where ranks of one process share a GPU: what one graph waits for may lie behind a wait of
    /// another, since the driver gives their branches a few queues of the process.
    fn refuse_round(&self, stream: Stream) -> Result<()> {
        let _context = self.device.enter()?;
        if !self.shares_queues || !self.is_captured(stream)? {
            return Ok(());
        }
        let text = "hawserPartitionedStart in a capture: ranks of one process share a GPU, where graphs of \
                    both could wait for each other";
        let remedy = "let each rank be a process, or start rounds without a graph";
        Err(Error::invalid_usage(text).remedy(remedy))
    }

    fn start(&self, stream: Stream) -> Result<()> {
        let _context = self.device.enter()?;
        self.device.order(self.stream.stream, stream)?;
        let words = 2 * self.shape.counts.len();
        let zeros = self.ready_word(words);
        self.device.copy(stream, self.ready_word(0), zeros, WORD * words as u64)?;
        let ready = self.shape.counts.iter().map(|_| None).collect();
        let begun = self.moment(stream)?;
        let mut round = lock(&self.round)?;
        round.waits_for_words = begun.is_none() || self.are_words_used.load(Ordering::Acquire);
        round.gone = 0;
        round.partitions.iter_mut().for_each(|marked| (marked.is_filled, marked.is_gone) = (false, false));
        *lock(&self.marks)? = Marks { begun, ready };
        self.device.fork(stream, self.stream.stream)?;
        if round.waits_for_words { self.put_behind_words() } else { Ok(()) }
    }

    fn ready(&self, partition: usize, stream: Stream) -> Result<()> {
        let _context = self.device.enter()?;
        let mut round = lock(&self.round)?;
        if round.waits_for_words {
            self.write(stream, self.ready_word(partition), self.shape.arrivals)?;
        } else {
            refuse_group("hawserPartitionedReady")?;
            self.device.needs_graphs()?.record_event(stream, &round.partitions[partition].filled)?;
            round.partitions[partition].is_filled = true;
            self.put_marked(&mut round)?;
        }
        lock(&self.marks)?.ready[partition] = self.moment(stream)?;
        Ok(())
    }

    fn wait(&self, partition: usize, stream: Stream) -> Result<()> {
        let _context = self.device.enter()?;
        let marked = &lock(&self.round)?.partitions[partition];
        if marked.is_gone {
            return self.device.needs_graphs()?.wait_event(stream, &marked.arrived, false);
        }
        self.await_word(stream, self.arrived_word(partition), 1)
    }

    fn finish(&self, stream: Stream) -> Result<()> {
        let _context = self.device.enter()?;
        let round = lock(&self.round)?;
        let unmarked = || round.partitions.iter().position(|marked| !marked.is_filled);
        if !round.waits_for_words
            && let Some(partition) = unmarked()
        {
            let text = format!("partition {partition} is not ready at the end of the round");
            let remedy = "call hawserPartitionedReady for each partition, or, where kernels mark them, \
                          hawserPartitionedWords before the round";
            return Err(Error::invalid_usage(text).remedy(remedy));
        }
        self.device.order(self.stream.stream, stream)
    }

    fn has_arrived(&self, partition: usize) -> Result<bool> {
        let _context = self.device.enter()?;
        let mut word = [0; WORD as usize];
        self.device.download(self.arrived_word(partition), &mut word)?;
        Ok(u32::from_le_bytes(word) != 0)
    }

    fn words(&self) -> Words {
        self.are_words_used.store(true, Ordering::Release);
        let (ready, arrived) = (self.ready_word(0), self.arrived_word(0));
        Words { ready, arrived, arrivals: self.shape.arrivals }
    }

    fn moments(&self) -> Moments {
        let Ok(marks) = lock(&self.marks) else { return Vec::new() };
        let since = |moment: &Option<Moment>| {
            let time = self.device.between(marks.begun.as_ref()?, moment.as_ref()?).ok()??;
            Some(time.as_micros() as u64)
        };
        marks.ready.iter().map(since).collect()
    }

    fn reorder(&self, order: &[u32]) {
        if let Ok(mut kept) = lock(&self.order) {
            *kept = self.shape.in_order(order);
        }
    }

    fn settle(&self) -> Result<()> {
        let wait = Wait::new(self.child.state()?.abort.clone(), env::settings().op_timeout);
        let is_over = || match self.device.is_idle(self.stream.stream) {
            Ok(false) => None,
            Ok(true) => Some(Ok(())),
            Err(error) => Some(Err(error)),
        };
        wait.until(is_over, || "the partitions of the last round")?
    }

    /// Every partition counts as ready, so that the stream ends: launches of an aborted communicator end by
    /// themselves.
    fn release(&self) {
        let partitions = 0..self.shape.counts.len();
        let value = self.shape.arrivals;
        let all = partitions.map(|index| MemoryOp::Write { addr: self.ready_word(index), value });
        let all: Vec<MemoryOp> = all.collect();
        if let (Ok(_context), Ok(words)) = (self.device.enter(), self.device.needs_stream_words()) {
            let _ = words.memory_ops_apart(&all);
            // The words are freed next.
            let _ = self.device.synchronize(self.stream.stream);
        }
    }
}
