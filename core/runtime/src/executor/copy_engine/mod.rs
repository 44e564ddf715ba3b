//! The executor of copy engines: launches whose moves need no kernel.
//! [`hawser_plan::executor::copy_engine`] says what they do.
//!
//! A launch puts copies and operations on words on the caller's stream; where staging is used, what comes
//! goes over a stream of the communicator, which is forked and joined. Nothing waits on the host. `watch.rs`
//! ends launches that are aborted or late.
//!
//! **At most two streams.** A GPU looks after two queues that wait for words at once; a third one gets its
//! turn when the time slice of another is over. Measured on two H200 (two processes, no library, 16 MiB each
//! way): everything on one stream takes 65 µs, on two 70 µs, on three that wait for each other's events
//! 2,000 µs.

pub mod events;
pub mod host;
mod latch;
mod rendezvous;
mod ring;
mod watch;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hawser_base::error::{Error, Result};
use hawser_base::lock::lock;
use hawser_base::log::{self, Subsys};
use hawser_device::{Device, MemoryOp, OwnedStream, Stream, StreamWords};
use hawser_kernels_abi::Step;
use hawser_plan::executor::copy_engine::{
    Bases, COPIES, Command, Counters, Direct, Emitter, INTER_NODE_SENDS, LANES, Leg, STREAMS, Way, What,
};
use hawser_plan::executor::launch::LaunchPlan;

use crate::stream_order::{Order, Turn};
use crate::transport::control::Control;
use crate::transport::net::Stage;
use events::{CopyEvents, batch_of};
use rendezvous::CopyRequest;
use watch::Watched;
pub use watch::wait_for_launches;

pub use rendezvous::{Latches, Rendezvous};

/// More launches than a group has on the host device.
const MOST_IN_GROUP: u32 = 4096;
/// The longest that a launch waits for those who receive from it.
const MOST_PATIENCE: Duration = Duration::from_micros(500);

/// Says whether the network takes a transfer with another host from the user's buffer, or puts it there.
pub type Lends<'a> = &'a dyn Fn(&Leg) -> Result<bool>;

/// The state that a communicator's launches for copy engines share.
pub struct CopyEngines {
    bases: Bases,
    rendezvous: Option<Rendezvous>,
    /// Slots that the network carries, where there are several hosts.
    stage: Option<Arc<Stage>>,
    control: Arc<Control>,
    state: Mutex<State>,
    watched: Option<Arc<Watched>>,
}

#[derive(Default)]
struct State {
    counters: Counters,
    /// Launches on the host device; wraps.
    launches: u32,
    /// One for eager launches and one for each capture that goes on, which a stream belongs to until its end.
    seconds: Vec<(Option<u64>, OwnedStream)>,
}

/// The name and rank that errors of a launch say.
#[derive(Clone, Copy)]
pub struct Who<'a> {
    /// The name of the communicator.
    pub name: &'a str,
    /// This rank.
    pub rank: u32,
    /// Number of the operation.
    pub op_number: u64,
}

impl CopyEngines {
    /// With everybody's staging. On a GPU, launches are watched from now on.
    pub fn new(
        bases: Bases,
        (rendezvous, stage): (Option<Rendezvous>, Option<Arc<Stage>>),
        device: &Arc<dyn Device>,
        control: &Arc<Control>,
        is_host: bool,
    ) -> Result<Self> {
        let watched = match is_host {
            true => None,
            false => Some(Watched::start(device.clone(), control.clone(), &bases, stage.clone())?),
        };
        Ok(Self { bases, rendezvous, stage, control: control.clone(), state: Mutex::default(), watched })
    }

    /// All commands of a launch by stream, for the host device.
    pub fn commands(
        &self,
        device: &dyn Device,
        (plan, steps): (&LaunchPlan, &[Step]),
        lends: Lends<'_>,
    ) -> Result<[Vec<What>; STREAMS as usize]> {
        let mut emitter = self.emitter(plan, steps, lends)?;
        let mut commands = Vec::new();
        if let Some(arrival) = self.arrive(device, &emitter, plan, false)? {
            // What the other ranks of a thread have to say they have not said yet.
            self.agree(device, arrival, &mut emitter, Duration::ZERO, &mut commands)?;
        }
        let mut state = lock(&self.state)?;
        state.launches = state.launches.wrapping_add(1);
        let mut queues = [const { Vec::new() }; STREAMS as usize];
        while emitter.round(&mut state.counters, &mut commands) {}
        commands.iter().for_each(|command| queues[command.stream as usize].push(command.what));
        Ok(queues)
    }

    /// Begins a launch behind everything of the communicator and of `stream`.
    pub fn begin<'a>(
        &'a self,
        device: &'a dyn Device,
        order: &'a Order,
        (plan, steps): (&'a LaunchPlan, &'a [Step]),
        (stream, events): (Stream, Option<CopyEvents>),
        (who, lends): (Who<'_>, Lends<'_>),
    ) -> Result<Emission<'a>> {
        let words = device.needs_stream_words()?;
        let turn = order.begin(device, stream)?;
        let streams = [stream, self.second(device, turn.capture)?];
        let is_captured = device.stream_state(stream)?.capture.is_some();
        let emitter = self.emitter(plan, steps, lends)?;
        let arrival = self.arrive(device, &emitter, plan, is_captured)?;
        if let Some(watched) = &self.watched {
            let first = watched.begin(who, peers(plan, steps), turn.done == 0)?;
            first.map_or(Ok(()), |op| words.memory_ops(stream, &[op]))?;
        }
        let pending = Vec::new();
        let (is_serial, is_forked) = (plan.reduces(), false);
        Ok(Emission {
            copy_engines: self,
            device,
            words,
            order,
            emitter,
            arrival,
            streams,
            is_serial,
            is_forked,
            turn,
            pending,
            events,
        })
    }

    fn emitter<'a>(
        &'a self,
        plan: &'a LaunchPlan,
        steps: &'a [Step],
        lends: Lends<'_>,
    ) -> Result<Emitter<'a>> {
        let far = self.stage.as_ref().map(|stage| stage.ends()).unwrap_or_default();
        let mut emitter = Emitter::new(plan, steps, &self.bases, far);
        if let Some(peer) = emitter.missing() {
            return Err(Error::internal(format!("no slots for rank {peer} of another host")));
        }
        let legs = emitter.far_legs();
        let all = legs.len();
        let mut straight = Vec::new();
        for leg in legs {
            if lends(&leg)? {
                straight.push(leg);
            }
        }
        if all > 0 {
            log::info(Subsys::Coll, || {
                let (rank, op, some) =
                    (self.bases.rank, crate::op_number::op(plan.args.op_number), straight.len());
                format!("SM_FREE rank {rank} {op}: {some} of {all} transfers with other hosts unstaged")
            });
        }
        emitter.go_straight(straight.into_iter());
        Ok(emitter)
    }

    /// Tells peers where this rank receives. None: nothing is direct.
    fn arrive<'a>(
        &'a self,
        device: &dyn Device,
        emitter: &Emitter<'_>,
        plan: &LaunchPlan,
        is_captured: bool,
    ) -> Result<Option<Arrival<'a>>> {
        let Some(rendezvous) = self.rendezvous.as_ref().filter(|_| plan.direct != Direct::No) else {
            return Ok(None);
        };
        let is_pushed = plan.direct.is_pushed();
        let (number, over) = match &self.watched {
            Some(watched) => watched.next(),
            // On the host device a group's launches are over when the call is.
            None => {
                let number = lock(&self.state)?.launches.wrapping_add(1);
                (number, number.wrapping_sub(MOST_IN_GROUP))
            }
        };
        let request = CopyRequest { is_captured, is_pushed, number, over, control: &self.control };
        let legs = emitter.legs();
        let receive = |leg: &Leg| match leg.send {
            true => Ok(Way::Staged),
            false => rendezvous.meet(device, leg, &request, Instant::now()),
        };
        let ways = legs.iter().map(receive).collect::<Result<_>>()?;
        Ok(Some(Arrival { rendezvous, request, legs, ways, op_number: plan.args.op_number }))
    }

    /// Meets those who receive from this rank, who get `patience` in all to come first.
    fn agree(
        &self,
        device: &dyn Device,
        arrival: Arrival<'_>,
        emitter: &mut Emitter<'_>,
        patience: Duration,
        commands: &mut Vec<Command>,
    ) -> Result<()> {
        let Arrival { rendezvous, request, legs, mut ways, op_number } = arrival;
        let until = Instant::now() + patience;
        for (leg, way) in legs.iter().zip(&mut ways).filter(|(leg, _)| leg.send) {
            *way = rendezvous.meet(device, leg, &request, until)?;
        }
        log::info(Subsys::Coll, || {
            let count = |is: fn(&Leg, &Way) -> bool| legs.iter().zip(&ways).filter(|(l, w)| is(l, w)).count();
            let direct = count(|_, way| *way != Way::Staged);
            let pulled = count(|leg, way| !leg.send && matches!(way, Way::Second { .. }));
            let (rank, op) = (self.bases.rank, crate::op_number::op(op_number));
            format!("SM_FREE rank {rank} {op}: {direct} of {} transfers direct, {pulled} pulled", ways.len())
        });
        emitter.agree(&legs, &ways, commands);
        Ok(())
    }

    /// The latches of buffers that launches of the host device copy from and to; None: all is staged.
    pub fn latches(&self) -> Option<&Latches> {
        self.rendezvous.as_ref().map(Rendezvous::latches)
    }

    /// Releases launches of an aborted communicator.
    pub fn release(&self) {
        if let Some(watched) = &self.watched {
            watched.release();
        }
    }

    /// The staging of this rank goes: nothing is written there any more. Launches in replayed graphs are over
    /// or released. False: something is still on its way there.
    pub fn close(&self) -> bool {
        self.watched.as_ref().is_none_or(|watched| watched.close())
    }

    /// The stream beside the caller's. One whose capture is over serves the next.
    fn second(&self, device: &dyn Device, capture: Option<u64>) -> Result<Stream> {
        let mut state = lock(&self.state)?;
        if let Some((_, own)) = state.seconds.iter().find(|(of, _)| *of == capture) {
            return Ok(own.stream);
        }
        let is_free =
            |own: &OwnedStream| device.stream_state(own.stream).is_ok_and(|now| now.capture.is_none());
        if let Some((of, own)) = state.seconds.iter_mut().find(|(of, own)| of.is_some() && is_free(own)) {
            *of = capture;
            return Ok(own.stream);
        }
        let own = device.urgent_stream()?;
        let stream = own.stream;
        state.seconds.push((capture, own));
        Ok(stream)
    }
}

/// A launch that has said where it receives.
struct Arrival<'a> {
    rendezvous: &'a Rendezvous,
    request: CopyRequest<'a>,
    legs: Vec<Leg>,
    /// Of the sends nothing is known yet.
    ways: Vec<Way>,
    op_number: u64,
}

impl Arrival<'_> {
    /// The time that peers may take to say where they receive: a fraction of what the sends take. Small ones
    /// do not wait.
    fn patience(&self) -> Duration {
        /// Bytes that a link moves in a nanosecond, times four.
        const BYTES_PER_NS: u64 = 4 * 350;
        const LEAST: u64 = 1 << 20;
        let bytes: u64 = self.legs.iter().filter(|leg| leg.send).map(|leg| leg.bytes).sum();
        if bytes < LEAST {
            Duration::ZERO
        } else {
            Duration::from_nanos(bytes / BYTES_PER_NS).min(MOST_PATIENCE)
        }
    }
}

/// A launch that is being put on its streams.
pub struct Emission<'a> {
    copy_engines: &'a CopyEngines,
    device: &'a dyn Device,
    words: &'a dyn StreamWords,
    order: &'a Order,
    emitter: Emitter<'a>,
    /// Until the first round.
    arrival: Option<Arrival<'a>>,
    /// The caller's and the communicator's.
    streams: [Stream; 2],
    /// All is on the caller's stream, but for large copies within the rank.
    is_serial: bool,
    /// The second stream has forked from the first.
    is_forked: bool,
    turn: Turn,
    /// Operations on words, by stream, that wait for the next copy, to go in batches. None of any stream is
    /// put off beyond a copy: streams may share a hardware queue, where what comes later would wait behind
    /// what it releases.
    pending: Vec<(usize, MemoryOp)>,
    /// The events that profilers see, if one watches.
    events: Option<CopyEvents>,
}

impl Emission<'_> {
    /// Puts the next round on the streams; false when there is none left.
    pub fn round(&mut self) -> Result<bool> {
        let mut commands = Vec::new();
        if let Some(arrival) = self.arrival.take() {
            let patience = arrival.patience();
            self.copy_engines.agree(self.device, arrival, &mut self.emitter, patience, &mut commands)?;
            self.is_serial |= self.emitter.is_direct();
        }
        let more = self.emitter.round(&mut lock(&self.copy_engines.state)?.counters, &mut commands);
        self.tell_batch(&commands);
        for command in commands {
            let index = self.stream(&command)?;
            match command.what {
                What::Await { addr, .. } => {
                    let ops = [MemoryOp::Wait { addr }, MemoryOp::Write { addr, value: 0 }];
                    self.pending.extend(ops.map(|op| (index, op)));
                }
                What::Set { addr } => self.pending.push((index, MemoryOp::Write { addr, value: 1 })),
                What::Tell { addr, value } => self.pending.push((index, MemoryOp::Write { addr, value })),
                What::Copy { dst, src, bytes, .. } => {
                    self.flush()?;
                    self.device.copy(self.streams[index], dst, src, bytes)?;
                }
                What::Reduce(reduce) => {
                    self.flush()?;
                    self.device.needs_kernels()?.reduce(&reduce, self.streams[index])?;
                }
            }
        }
        Ok(more)
    }

    /// Tells profilers of a round that moves data.
    fn tell_batch(&mut self, commands: &[Command]) {
        let Some(events) = &mut self.events else { return };
        let (ops, bytes) = batch_of(commands.iter().map(|command| &command.what));
        if ops > 0 {
            let waits = commands.iter().any(|command| matches!(command.what, What::Await { .. }));
            events.batch(ops, bytes, waits);
        }
    }

    /// Joins the streams.
    pub fn finish(mut self) -> Result<()> {
        if let Some(events) = &mut self.events {
            events.complete();
        }
        self.flush()?;
        if self.is_forked {
            self.device.order(self.streams[1], self.streams[0])?;
        }
        let is_captured = self.turn.done == 0;
        let count = MemoryOp::Write { addr: self.turn.done, value: self.turn.before.wrapping_add(1) };
        let count = Some(count).filter(|_| !is_captured);
        let last = self.copy_engines.watched.as_ref().and_then(|watched| watched.end(is_captured));
        let ops: Vec<MemoryOp> = [count, last].into_iter().flatten().collect();
        if !ops.is_empty() {
            self.words.memory_ops(self.streams[0], &ops)?;
        }
        self.order.finish(self.device, &self.turn, 1)
    }

    /// Returns the number of the stream that a command is put on. Commands come in an order in which one
    /// stream could do them all.
    fn stream(&mut self, command: &Command) -> Result<usize> {
        /// Copies within a rank below this are over before another stream has begun.
        const LARGE: u64 = 1 << 20;
        let is_second = match command.what {
            What::Copy { bytes, .. } if command.stream == COPIES && self.is_serial => bytes >= LARGE,
            _ => !self.is_serial && command.stream >= LANES && command.stream != INTER_NODE_SENDS,
        };
        // Before the first stream waits for anything: what the second does may be what a peer waits for.
        if (is_second || !self.is_serial) && !std::mem::replace(&mut self.is_forked, true) {
            self.device.fork(self.streams[0], self.streams[1])?;
        }
        Ok(usize::from(is_second))
    }

    /// Puts the operations on words on their streams, in their order.
    fn flush(&mut self) -> Result<()> {
        for batch in self.pending.chunk_by(|a, b| a.0 == b.0) {
            let ops: Vec<MemoryOp> = batch.iter().map(|(_, op)| *op).collect();
            self.words.memory_ops(self.streams[batch[0].0], &ops)?;
        }
        self.pending.clear();
        Ok(())
    }
}

/// The ranks that a launch exchanges data with.
fn peers(plan: &LaunchPlan, steps: &[Step]) -> Vec<u32> {
    let blocks = plan.args.blocks[..usize::from(plan.args.n_blocks)].iter();
    let used = blocks.flat_map(|b| steps.iter().skip(b.first_step.into()).take(b.n_steps.into()));
    let of_step =
        |s: &Step| [s.recv[..s.n_recv.into()].to_vec(), s.send[..s.n_send.into()].to_vec()].concat();
    let mut peers = Vec::new();
    for peer in used.flat_map(of_step).map(u32::from) {
        if let Err(at) = peers.binary_search(&peer) {
            peers.insert(at, peer);
        }
    }
    peers
}
