//! Resolving: from what a program asked for to launches that are ready to be submitted.
//!
//! A call whose form came before is a hit in the communicator's plan cache; the others are chosen, compiled
//! and connected first. Small collectives that follow each other share launches where all ranks agree that
//! they can ([`batch`]); all others get one each, in the order of the calls. The messages of a phase go
//! together, after the collectives, and one-sided operations come last.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hawser_base::error::{Error, Result};
use hawser_base::lock::lock;
use hawser_base::log::{self, Subsys};
use hawser_device::Stream;
use hawser_plan::executor::fused::FusedPlan;
use hawser_plan::executor::fused::batch::{self, FusedBatch, Gathering, Member, Place};
use hawser_plan::p2p::Message;
use hawser_plan::{Call, CallOptions};
use smallvec::{SmallVec, smallvec};

use crate::call_check;
use crate::comm_state::{CommState, Compiled};
use crate::executor::fused::FusedLaunch;
use crate::executor::{Events, Launch, Launches, Work};
use crate::op_number::MESSAGES;
use crate::phases::phases;
use crate::profiling::{GroupSpans, Span};
use crate::rma::RmaOp;
use crate::tuning::TimedOp;

/// One call of a group.
pub enum Item {
    /// A collective.
    Call(Call, CallOptions, Stream),
    /// A one-sided operation.
    OneSided(RmaOp, Stream),
    /// An event of the program that is recorded when the group's launches begin.
    Record(u64, Stream),
    /// A send or a receive, and how many nested groups had been closed before it.
    Message(Message, Stream, u32),
}

/// Resolves what a group has for one communicator; the launches are added behind those that are there.
///
/// All run on the first of the group's streams. As NCCL promises, the others join before the first launch and
/// go on after the last: a group is as if it were on each of them. Nothing is submitted here, so an error
/// leaves nothing half done.
///
/// # Errors
/// A call cannot be planned or connected, or the streams belong to different captures.
pub fn resolve(comm: &Arc<CommState>, items: &[Item], launches: &mut Launches) -> Result<()> {
    let streams = streams(items);
    let Some((&stream, others)) = streams.split_first() else { return Ok(()) };
    // Before anything has a number.
    if !others.is_empty() {
        check_captures(comm, &streams)?;
    }
    let first_launch = launches.len();
    let spans = GroupSpans::start(&comm.profiling, &*comm.device, stream)?;
    let mut collectives = Collectives::new(comm, stream, spans.as_ref(), launches);
    collectives.is_alone = items.len() == 1;
    for item in items {
        if let Item::Call(call, options, _) = item {
            collectives.add(call, *options)?;
        }
    }
    collectives.flush()?;
    for messages in phases(messages(items)) {
        comm.resolve_messages(messages, stream, spans.as_ref(), launches)?;
    }
    // What is put goes before all waits of the group.
    for is_wait in [false, true] {
        let ops: Vec<RmaOp> = one_sided(items).filter(|op| op.is_wait() == is_wait).cloned().collect();
        if !ops.is_empty() {
            let place = note_one_sided(comm, &ops);
            launches.push(Launch::new(comm, Work::OneSided(ops), place, stream));
        }
    }
    let record: Vec<u64> = recorded(items).collect();
    if !record.is_empty() {
        if launches.len() == first_launch {
            launches.push(Launch::new(comm, Work::Copies(SmallVec::new()), NOTHING, stream));
        }
        launches[first_launch].record = record;
    }
    if !others.is_empty()
        && let [first, ..] = &mut launches[first_launch..]
    {
        first.after = others.to_vec();
        if let Some(last) = launches.last_mut() {
            last.before = others.to_vec();
        }
    }
    Ok(())
}

/// The number and the place in the journal of a launch that runs no operation.
const NOTHING: (u64, u64) = (0, 0);

/// Notes one-sided operations in the journal, as messages: they have no numbers of their own.
fn note_one_sided(comm: &CommState, ops: &[RmaOp]) -> (u64, u64) {
    let number = MESSAGES | comm.next_batch.load(Ordering::Relaxed);
    let message = |peer, send, bytes| Message { peer, send, addr: 0, bytes };
    let messages: SmallVec<[Message; 2]> = ops
        .iter()
        .flat_map(|op| -> SmallVec<[Message; 2]> {
            match op {
                RmaOp::Signal { peer, put, .. } => {
                    smallvec![message(*peer, true, put.as_ref().map_or(0, |put| put.bytes))]
                }
                RmaOp::Wait(awaited) => awaited.iter().map(|of| message(of.peer, false, 0)).collect(),
            }
        })
        .collect();
    (number, comm.journal.call_messages(number, &messages))
}

/// The messages among the calls of a group, each with the number of nested groups that had been closed before
/// it.
fn messages(items: &[Item]) -> impl Iterator<Item = (Message, u32)> + Clone {
    items.iter().filter_map(|item| match item {
        Item::Message(message, _, nested) => Some((*message, *nested)),
        Item::Call(..) | Item::OneSided(..) | Item::Record(..) => None,
    })
}

/// The one-sided operations among the calls of a group.
fn one_sided(items: &[Item]) -> impl Iterator<Item = &RmaOp> {
    items.iter().filter_map(|item| match item {
        Item::OneSided(op, _) => Some(op),
        Item::Call(..) | Item::Message(..) | Item::Record(..) => None,
    })
}

/// The events of the program that the group records.
fn recorded(items: &[Item]) -> impl Iterator<Item = u64> {
    items.iter().filter_map(|item| if let Item::Record(event, _) = item { Some(*event) } else { None })
}

/// The streams of a group, each once, in the order of the calls.
fn streams(items: &[Item]) -> SmallVec<[Stream; 4]> {
    let mut streams = SmallVec::new();
    for item in items {
        let (Item::Call(_, _, stream)
        | Item::Message(_, stream, _)
        | Item::OneSided(_, stream)
        | Item::Record(_, stream)) = item;
        if !streams.contains(stream) {
            streams.push(*stream);
        }
    }
    streams
}

/// Streams of a group that are not all captured into one graph, or none of them, cannot be joined.
fn check_captures(comm: &CommState, streams: &[Stream]) -> Result<()> {
    let capture = |stream: Stream| comm.device.stream_state(stream).map(|state| state.capture);
    let first = capture(streams[0])?;
    for stream in &streams[1..] {
        if capture(*stream)? != first {
            let text =
                "the streams of a communicator in a group must all be captured into the same graph, or none";
            let remedy = "close the group before the capture begins or ends";
            return Err(Error::invalid_usage(text).remedy(remedy));
        }
    }
    Ok(())
}

/// Resolves the collectives of a group as they come.
struct Collectives<'a> {
    comm: &'a Arc<CommState>,
    stream: Stream,
    spans: Option<&'a Arc<GroupSpans>>,
    launches: &'a mut Launches,
    /// True if the group is one call, which shares no launch.
    is_alone: bool,
    /// Calls that share a launch with what may come next.
    waiting: SmallVec<[Resolved; 1]>,
    gathering: Gathering,
}

/// A call that is compiled and has its number.
struct Resolved {
    compiled: Arc<Compiled>,
    call: Call,
    number: u64,
    /// Its place in the journal.
    sequence: u64,
    event: Option<Arc<Span>>,
    /// How the call is timed, where it has a launch of its own: one of several tells nothing about each.
    timed: Option<TimedOp>,
}

impl Resolved {
    /// The plan, if a fused kernel runs the call.
    fn fused(&self) -> Option<&Arc<FusedPlan>> {
        match &*self.compiled {
            Compiled::Fused(plan, _) => Some(plan),
            Compiled::Steps(..) => None,
        }
    }
}

impl<'a> Collectives<'a> {
    fn new(
        comm: &'a Arc<CommState>,
        stream: Stream,
        spans: Option<&'a Arc<GroupSpans>>,
        launches: &'a mut Launches,
    ) -> Self {
        let (waiting, gathering) = (SmallVec::new(), Gathering::default());
        Self { comm, stream, spans, launches, is_alone: false, waiting, gathering }
    }

    /// Resolves the next call; one without elements needs no launch.
    fn add(&mut self, call: &Call, options: CallOptions) -> Result<()> {
        let (comm, stream) = (self.comm, self.stream);
        let number = comm.begin()?;
        let sequence = comm.journal.call(number, call);
        if call_check::compares() && comm.topology.size() > 1 {
            call_check::compare(comm, call, number)?;
        }
        if call.count == 0 {
            return Ok(());
        }
        if comm.is_alone(call) {
            return self.copy(call, (number, sequence));
        }
        let (compiled, timed) = comm.compiled(call, options, stream, number)?;
        let (chosen, blocks) = compiled.chosen();
        let choice = &chosen.choice;
        comm.log_call(call, choice, blocks, number);
        let names = (choice.key.algorithm.name(), choice.route, blocks);
        let tagged = (call, options.tag);
        let event = self.spans.and_then(|spans| spans.collective(tagged, stream, number, names));
        let resolved = Resolved { compiled, call: *call, number, sequence, event, timed };
        if self.is_alone {
            return self.launch_alone(resolved);
        }
        // Launches are shared by the communicator's settings: a call with its own has one for itself.
        if !options.is_default() {
            self.flush()?;
            return self.launch_alone(resolved);
        }
        if !self.gather(&resolved) {
            self.flush()?;
            if !self.gather(&resolved) {
                return self.launch_alone(resolved);
            }
        }
        self.waiting.push(resolved);
        Ok(())
    }

    /// Makes the launch of a call that is a copy, since there is no other rank. In place nothing is left to
    /// be done.
    fn copy(&mut self, call: &Call, (number, sequence): (u64, u64)) -> Result<()> {
        lock(&self.comm.choices)?.cache.note_copy(number, call);
        log::info(Subsys::Coll, || {
            let (name, rank) = (&self.comm.name, self.comm.rank);
            let what = format!("{} {} x {}", call.collective.name(), call.count, call.dtype.name());
            format!("{name} rank {rank} op {number}: {what}: a copy, there is no other rank")
        });
        if let Some(copy) = self.comm.own_copy(call) {
            let place = (number, sequence);
            self.launches.push(Launch::new(self.comm, Work::Copies(smallvec![copy]), place, self.stream));
        }
        Ok(())
    }

    /// True if a call shares a launch with those that wait. All ranks answer alike.
    fn gather(&mut self, resolved: &Resolved) -> bool {
        resolved.fused().is_some_and(|plan| self.gathering.take(plan, &self.comm.plan_config))
    }

    /// Makes the launches of the calls that wait.
    fn flush(&mut self) -> Result<()> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        self.gathering = Gathering::default();
        let mut waiting = std::mem::take(&mut self.waiting);
        match waiting.len() {
            1 => waiting.pop().map_or(Ok(()), |alone| self.launch_alone(alone)),
            _ => {
                self.launch_together(&waiting);
                Ok(())
            }
        }
    }

    fn launch_alone(&mut self, resolved: Resolved) -> Result<()> {
        let Resolved { compiled, call, number, sequence, event, timed } = resolved;
        let work = match &*compiled {
            Compiled::Steps(plan, program, _) => {
                let mut plan = plan.clone();
                (plan.args.works[0].base[0], plan.args.works[0].base[1]) = (call.input, call.output);
                if let Some((event, spans)) = event.as_ref().zip(self.spans)
                    && !spans.is_captured
                {
                    self.comm.expect(&plan, program.steps(), |_| Some(event));
                }
                Work::of_plan(self.comm.complete(plan, Some(program), number)?, Some(program))
            }
            Compiled::Fused(plan, _) => {
                let reach = self.comm.reach(plan, &call, number)?;
                Work::Fused(FusedLaunch { plan: plan.clone(), call, reach })
            }
        };
        let mut launch = Launch::new(self.comm, work, (number, sequence), self.stream);
        launch.events.group = self.spans.cloned();
        launch.events.operations.extend(event);
        launch.timed = timed;
        self.launches.push(launch);
        Ok(())
    }

    /// Puts calls that were gathered into as few launches as this rank can.
    fn launch_together(&mut self, calls: &[Resolved]) {
        let pairs: Vec<(&FusedPlan, &Resolved)> =
            calls.iter().filter_map(|resolved| Some((&**resolved.fused()?, resolved))).collect();
        let plans: Vec<&FusedPlan> = pairs.iter().map(|(plan, _)| *plan).collect();
        let (places, threads) = batch::places(&plans, &self.comm.plan_config);
        let stream = self.stream;
        let member = |(plan, resolved): &(&FusedPlan, &Resolved)| Member::new(plan, &resolved.call, stream.0);
        let members: Vec<Member> = pairs.iter().map(member).collect();
        for range in batch::cut(&members) {
            let (pairs, places) = (&pairs[range.clone()], &places[range]);
            let ops: Vec<_> = pairs.iter().zip(places).map(|(pair, place)| operation(*pair, place)).collect();
            let launch = FusedBatch::new(&ops, threads);
            let (first, last) = (pairs[0].1.number, pairs[pairs.len() - 1].1.number);
            log::info(Subsys::Coll, || {
                let (name, rank, blocks) = (&self.comm.name, self.comm.rank, launch.blocks);
                format!("{name} rank {rank} op {first} to {last}: one launch of {blocks} x {threads}")
            });
            let place = (first, pairs[pairs.len() - 1].1.sequence);
            let mut launch = Launch::new(self.comm, Work::FusedBatch(Box::new(launch)), place, stream);
            let operations = pairs.iter().filter_map(|(_, resolved)| resolved.event.clone()).collect();
            launch.events = Events { group: self.spans.cloned(), operations };
            self.launches.push(launch);
        }
    }
}

/// The parts of a call that [`FusedBatch::new`] takes.
fn operation<'p>(
    (plan, resolved): (&'p FusedPlan, &'p Resolved),
    place: &Place,
) -> (&'p FusedPlan, hawser_plan::executor::fused::FusedArgs, &'p Call, Place) {
    let call = &resolved.call;
    (plan, plan.bind(call.input, call.output, plan.scalar(), resolved.number), call, place.clone())
}
