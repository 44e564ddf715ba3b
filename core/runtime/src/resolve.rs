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
use hawser_plan::{Call, CallOptions, Class};
use smallvec::{SmallVec, smallvec};

use crate::call_check;
use crate::comm_state::{CommState, Compiled, Reached};
use crate::executor::fused::FusedLaunch;
use crate::executor::{Events, Launch, Launches, Work};
use crate::op_number::MESSAGES;
use crate::phases::phases;
use crate::profiling::{CollectiveSpans, GroupSpans, OneSidedCall, Span, Transfer};
use crate::rma::RmaOp;
use crate::tuning::TimedOp;

/// One call of a group.
pub enum Item {
    /// A collective, with the options of this call if it has any.
    Call(Call, Option<Box<CallOptions>>, Stream),
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
    if let [Item::Call(call, options, stream)] = items {
        return resolve_alone(comm, (call, options.as_deref()), *stream, launches);
    }
    let Content { streams, has_calls, has_messages, has_others } = Content::of(items);
    let Some((&stream, others)) = streams.split_first() else { return Ok(()) };
    // Before anything has a number.
    if !others.is_empty() {
        check_captures(comm, &streams)?;
    }
    let first_launch = launches.len();
    let spans = GroupSpans::start(&comm.profiling, &*comm.device, stream)?;
    let spans = spans.as_ref();
    if has_calls {
        resolve_collectives(comm, items, (stream, spans), launches)?;
    }
    if has_messages {
        for messages in phases(messages(items)) {
            comm.resolve_messages(messages, stream, spans, launches)?;
        }
    }
    if has_others {
        resolve_one_sided(comm, items, (stream, spans), launches);
        resolve_records(comm, items, stream, (first_launch, launches));
    }
    if !others.is_empty()
        && let [first, ..] = &mut launches[first_launch..]
    {
        first.around_mut().after = others.to_vec();
        if let Some(last) = launches.last_mut() {
            last.around_mut().before = others.to_vec();
        }
    }
    Ok(())
}

/// Resolves a call that is the whole group, as most are: it has a launch of its own, on its stream.
fn resolve_alone(
    comm: &Arc<CommState>,
    (call, options): (&Call, Option<&CallOptions>),
    stream: Stream,
    launches: &mut Launches,
) -> Result<()> {
    let spans = GroupSpans::start(&comm.profiling, &*comm.device, stream)?;
    let mut collectives = Collectives { comm, stream, spans: spans.as_ref(), launches };
    match collectives.resolve(call, options)? {
        Some(resolved) => collectives.launch_alone(resolved),
        None => Ok(()),
    }
}

/// The kinds of calls in a group: most groups have one kind, on one stream.
#[derive(Default)]
struct Content {
    /// The streams, each once, in the order of the calls.
    streams: SmallVec<[Stream; 4]>,
    has_calls: bool,
    has_messages: bool,
    /// There are one-sided operations, or events to be recorded.
    has_others: bool,
}

impl Content {
    fn of(items: &[Item]) -> Self {
        let mut content = Self::default();
        for item in items {
            let (stream, has) = match item {
                Item::Call(_, _, stream) => (stream, &mut content.has_calls),
                Item::Message(_, stream, _) => (stream, &mut content.has_messages),
                Item::OneSided(_, stream) | Item::Record(_, stream) => (stream, &mut content.has_others),
            };
            *has = true;
            if !content.streams.contains(stream) {
                content.streams.push(*stream);
            }
        }
        content
    }
}

fn resolve_collectives(
    comm: &Arc<CommState>,
    items: &[Item],
    (stream, spans): (Stream, Option<&Arc<GroupSpans>>),
    launches: &mut Launches,
) -> Result<()> {
    let mut collectives = Collectives { comm, stream, spans, launches };
    let mut waiting = Waiting::default();
    for item in items {
        if let Item::Call(call, options, _) = item {
            collectives.add(call, options.as_deref(), &mut waiting)?;
        }
    }
    collectives.flush(&mut waiting)
}

/// Makes the launches of one-sided operations. Puts go before all waits of the group.
fn resolve_one_sided(
    comm: &Arc<CommState>,
    items: &[Item],
    (stream, spans): (Stream, Option<&Arc<GroupSpans>>),
    launches: &mut Launches,
) {
    for is_wait in [false, true] {
        let ops: Vec<RmaOp> = one_sided(items).filter(|op| op.is_wait() == is_wait).cloned().collect();
        if !ops.is_empty() {
            let place = note_one_sided(comm, &ops);
            let events = spans.map(|spans| Events {
                group: spans.clone(),
                operations: ops.iter().flat_map(|op| spans.one_sided(&as_event(op), stream)).collect(),
                copied: None,
            });
            launches.push(Launch { events, ..Launch::new(comm, Work::OneSided(ops), place, stream) });
        }
    }
}

/// A one-sided operation as profilers are told of it.
fn as_event(op: &RmaOp) -> OneSidedCall {
    match op {
        RmaOp::Signal { peer, put: Some(put), .. } => OneSidedCall {
            func: "PutSignal",
            datatype: "ncclInt8",
            transfers: smallvec![Transfer { peer: *peer, buff: put.from, count: put.bytes }],
        },
        RmaOp::Signal { peer, put: None, .. } => OneSidedCall {
            func: "Signal",
            datatype: "",
            transfers: smallvec![Transfer { peer: *peer, buff: 0, count: 0 }],
        },
        RmaOp::Wait(awaited) => OneSidedCall {
            func: "WaitSignal",
            datatype: "",
            transfers: awaited
                .iter()
                .map(|of| Transfer { peer: of.peer, buff: 0, count: of.count })
                .collect(),
        },
    }
}

/// Lets the first launch of the group record the program's events.
fn resolve_records(
    comm: &Arc<CommState>,
    items: &[Item],
    stream: Stream,
    (first_launch, launches): (usize, &mut Launches),
) {
    let record: Vec<u64> = recorded(items).collect();
    if record.is_empty() {
        return;
    }
    if launches.len() == first_launch {
        launches.push(Launch::new(comm, Work::Copies(SmallVec::new()), NOTHING, stream));
    }
    launches[first_launch].around_mut().record = record;
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
}

/// Calls that share a launch with what may come next.
#[derive(Default)]
struct Waiting<'i> {
    calls: Vec<Resolved<'i>>,
    gathering: Gathering,
}

/// A call that is compiled and has its number.
struct Resolved<'i> {
    compiled: Arc<Compiled>,
    call: &'i Call,
    number: u64,
    /// Its place in the journal.
    sequence: u64,
    /// Its class.
    class: Class,
    event: Option<Arc<Span>>,
    /// The event of a collective that copy engines run.
    copied: Option<Arc<Span>>,
    /// The timing of the call, where it has a launch of its own: one of several tells nothing about each.
    timed: Option<Box<TimedOp>>,
    /// The places of its buffers that are lent to a graph.
    lent: Option<Reached>,
}

impl Resolved<'_> {
    /// The plan, if a fused kernel runs the call.
    fn fused(&self) -> Option<&Arc<FusedPlan>> {
        match &*self.compiled {
            Compiled::Fused(plan, _) => Some(plan),
            Compiled::Steps(..) => None,
        }
    }
}

impl Collectives<'_> {
    /// Resolves the next call; one without elements, or that is a copy, needs nothing more.
    #[inline]
    fn resolve<'i>(&mut self, call: &'i Call, options: Option<&CallOptions>) -> Result<Option<Resolved<'i>>> {
        let (comm, stream) = (self.comm, self.stream);
        let number = comm.begin()?;
        let tag = options.map_or(0, |options| options.tag);
        let sequence = comm.journal.call(number, call, tag);
        if call_check::compares() && comm.topology.size() > 1 {
            let class = options.and_then(|options| options.class).or(comm.class.get());
            call_check::compare(comm, (call, class), number)?;
        }
        if call.count == 0 {
            return Ok(None);
        }
        if comm.is_alone(call) {
            return self.copy(call, (number, sequence)).map(|()| None);
        }
        let (compiled, timed, lent) = comm.compiled_for_stream(call, options, stream, number)?;
        let (chosen, blocks) = compiled.chosen();
        let choice = &chosen.choice;
        let said = options.and_then(|options| options.class).or(chosen.class);
        let class = comm.class_on(said, stream);
        comm.log_call(call, (choice, class), blocks, number);
        let predicted_ns = (f64::from(choice.predicted_us) * 1000.0) as u64;
        comm.journal.planned(sequence, predicted_ns);
        let of_call = |spans: &Arc<GroupSpans>| {
            let names = (choice.key.algorithm.name(), choice.route, blocks);
            let tagged = (call, tag);
            spans.collective(tagged, stream, number, names, predicted_ns)
        };
        let CollectiveSpans { event, copied } = self.spans.map(of_call).unwrap_or_default();
        Ok(Some(Resolved { compiled, call, number, sequence, class, event, copied, timed, lent }))
    }

    /// Resolves the next call of several: it waits for others, or gets its launch.
    fn add<'i>(
        &mut self,
        call: &'i Call,
        options: Option<&CallOptions>,
        waiting: &mut Waiting<'i>,
    ) -> Result<()> {
        let Some(resolved) = self.resolve(call, options)? else { return Ok(()) };
        // Launches are shared by the communicator's settings: a call with its own has one for itself.
        if options.is_some_and(|options| !options.is_default()) {
            self.flush(waiting)?;
            return self.launch_alone(resolved);
        }
        if !self.gather(&resolved, waiting) {
            self.flush(waiting)?;
            if !self.gather(&resolved, waiting) {
                return self.launch_alone(resolved);
            }
        }
        waiting.calls.push(resolved);
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
    fn gather(&self, resolved: &Resolved<'_>, waiting: &mut Waiting<'_>) -> bool {
        resolved.fused().is_some_and(|plan| waiting.gathering.take(plan, &self.comm.plan_config))
    }

    /// Makes the launches of the calls that wait.
    fn flush(&mut self, waiting: &mut Waiting<'_>) -> Result<()> {
        let Waiting { mut calls, .. } = std::mem::take(waiting);
        match calls.len() {
            0 => Ok(()),
            1 => calls.pop().map_or(Ok(()), |alone| self.launch_alone(alone)),
            _ => {
                self.launch_together(&calls);
                Ok(())
            }
        }
    }

    fn launch_alone(&mut self, resolved: Resolved<'_>) -> Result<()> {
        let Resolved { compiled, call, number, sequence, class, event, copied, timed, lent } = resolved;
        let work = match &*compiled {
            Compiled::Steps(plan, program, _) => {
                let mut plan = plan.clone();
                plan.set_base(0, call.input);
                plan.set_base(1, call.output);
                if let Some((event, spans)) = event.as_ref().zip(self.spans)
                    && !spans.is_captured
                {
                    self.comm.expect(&plan, program.steps(), |_| Some(event));
                }
                Work::of_plan(self.comm.complete(plan, Some(program), number)?, Some(program))
            }
            Compiled::Fused(plan, _) => {
                let reach = match lent {
                    Some(reached) => reached,
                    None => self.comm.reach(plan, call, number)?,
                };
                let buffers = (call.input, call.output);
                Work::Fused(FusedLaunch { plan: plan.clone(), buffers, reach })
            }
        };
        let mut launch = Launch::new(self.comm, work, (number, sequence), self.stream);
        (launch.timed, launch.class) = (timed, class);
        if let Some(spans) = self.spans {
            let mut events = Events::new(spans, Vec::from_iter(event));
            events.copied = copied;
            launch.events = Some(events);
        }
        self.launches.push(launch);
        Ok(())
    }

    /// Puts calls that were gathered into as few launches as this rank can.
    fn launch_together(&mut self, calls: &[Resolved<'_>]) {
        let pairs: Vec<(&FusedPlan, &Resolved<'_>)> =
            calls.iter().filter_map(|resolved| Some((&**resolved.fused()?, resolved))).collect();
        let plans: Vec<&FusedPlan> = pairs.iter().map(|(plan, _)| *plan).collect();
        let (places, threads) = batch::places(&plans, &self.comm.plan_config);
        let stream = self.stream;
        let member =
            |(plan, resolved): &(&FusedPlan, &Resolved<'_>)| Member::new(plan, resolved.call, stream.0);
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
            launch.class = pairs.iter().map(|(_, resolved)| resolved.class).max().unwrap_or_default();
            launch.events = self.spans.map(|spans| {
                let operations = pairs.iter().filter_map(|(_, resolved)| resolved.event.clone()).collect();
                Events::new(spans, operations)
            });
            self.launches.push(launch);
        }
    }
}

/// The parts of a call that [`FusedBatch::new`] takes.
fn operation<'p>(
    (plan, resolved): (&'p FusedPlan, &'p Resolved<'p>),
    place: &Place,
) -> (&'p FusedPlan, hawser_plan::executor::fused::FusedArgs, &'p Call, Place) {
    let call = resolved.call;
    (plan, plan.bind(call.input, call.output, plan.scalar(), resolved.number), call, place.clone())
}
