//! The messages of a group on one communicator: from sends and receives to launches.
//!
//! Programs repeat their exchanges. The launch of a small batch is kept, so that the same batch with other buffers is not
//! planned again, and where only a GPU has to be told goes to its stream at once (`now.rs`).

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use hawser_plan::Protocol;
use hawser_plan::lower::LaunchPlan;
use hawser_plan::p2p::{self, Message};
use rustc_hash::FxHashMap;

use super::last::Batch;
use super::profiling::{GroupSpans, Span};
use super::state::{CommState, MESSAGES, lock};
use crate::device::Stream;
use crate::error::Result;
use crate::exec::{Events, Launch, Work};
use crate::transport::net::ConnectionKey;

/// Most messages of a batch that is kept.
pub const FEW: usize = 16;
/// Most batches that a communicator keeps, of 4 KiB each.
const MOST_KEPT: usize = 64;

/// Launches of batches that came before.
#[derive(Default)]
pub struct Batches(FxHashMap<Box<[Line]>, Arc<Mutex<Kept>>>);

/// A message without its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Line {
    peer: u32,
    send: bool,
    bytes: u64,
}

/// A batch without its addresses.
pub struct Kept {
    plan: LaunchPlan,
    /// Work and base where the address of each message belongs; None for those without bytes.
    places: Vec<Option<(usize, usize)>>,
    batch: Batch,
}

impl CommState {
    /// What is kept of a batch of at most `FEW` messages, if it came before.
    pub fn kept_messages<'m>(
        &self,
        messages: impl Iterator<Item = &'m Message>,
    ) -> Result<Option<Arc<Mutex<Kept>>>> {
        let (lines, count) = lines(messages);
        Ok(lock(&self.batches)?.0.get(&lines[..count]).cloned())
    }

    /// Puts these messages on a stream, as the batch that they are one of; for a GPU without a network.
    pub fn put_messages<'m>(
        &self,
        kept: &Mutex<Kept>,
        messages: impl Iterator<Item = &'m Message>,
        stream: Stream,
    ) -> Result<()> {
        let mut kept = lock(kept)?;
        let number = self.next_batch();
        self.announce(kept.batch, number)?;
        kept.bind(messages);
        let LaunchPlan { kernel, args, threads, .. } = &mut kept.plan;
        args.op_number = number;
        self.order.put(&*self.device, stream, args.n_blocks.into(), |done| {
            args.done = done;
            self.device.launch(*kernel, args, *threads, stream)
        })
    }

    /// Plans a group's messages, on `stream`.
    pub fn plan_messages(
        self: &Arc<Self>,
        messages: &[Message],
        stream: Stream,
        spans: &Arc<GroupSpans>,
    ) -> Result<Vec<Launch>> {
        let number = self.next_batch();
        if let Some(copies) = self.own_messages(messages)? {
            self.announce(Batch::of_copies(messages), number)?;
            let launch = Launch::new(self, Work::Own(copies), stream);
            return Ok(vec![launch]);
        }
        let plans = match self.kept(messages)? {
            Some(plan) => vec![plan],
            None => p2p::plan(messages, self.rank, self.topology.size(), &self.topology, &self.plan_config)?,
        };
        if let Some(batch) = Batch::of(messages, &plans) {
            self.announce(batch, number)?;
        }
        let watched = |m: &Message| Some((m.peer, m.send, spans.message(m, stream)?));
        let events: Vec<(u32, bool, Arc<Span>)> = messages.iter().filter_map(watched).collect();
        let event = |key: ConnectionKey| {
            let found = events.iter().find(|(peer, send, _)| (*peer, *send) == (key.peer, key.send));
            found.map(|(_, _, event)| event)
        };
        let complete = |plan: LaunchPlan| {
            self.connect(&plan, &plan.args.inline_steps)?;
            if !events.is_empty() && !spans.is_captured {
                self.expect(&plan, &plan.args.inline_steps, event);
            }
            let launch = self.complete(plan, None, number, stream)?;
            let operations = events.iter().map(|(_, _, event)| event.clone()).collect();
            let events = Events { group: Some(spans.clone()), operations };
            Ok(Launch { events, ..launch })
        };
        plans.into_iter().map(complete).collect()
    }

    fn next_batch(&self) -> u64 {
        MESSAGES | self.next_batch.fetch_add(1, Ordering::Relaxed)
    }

    /// Says that a batch runs.
    fn announce(&self, batch: Batch, number: u64) -> Result<()> {
        self.sm_free.messages(self, batch.bytes, number, batch.protocol == Protocol::Dma);
        lock(&self.choices)?.bounds.batch(number & !MESSAGES, batch);
        Ok(())
    }

    /// The launch of a small batch, if one is enough; kept from the first time on.
    fn kept(&self, messages: &[Message]) -> Result<Option<LaunchPlan>> {
        if messages.len() > FEW {
            return Ok(None);
        }
        let (mut batches, (lines, count)) = (lock(&self.batches)?, lines(messages.iter()));
        let lines = &lines[..count];
        if !batches.0.contains_key(lines) {
            let Some(kept) = self.plan_to_keep(messages)? else { return Ok(None) };
            if batches.0.len() >= MOST_KEPT {
                batches.0.clear();
            }
            batches.0.insert(lines.into(), Arc::new(Mutex::new(kept)));
        }
        let Some(kept) = batches.0.get(lines) else { return Ok(None) };
        let mut kept = lock(kept)?;
        kept.bind(messages.iter());
        Ok(Some(kept.plan.clone()))
    }

    /// Plans a batch with the numbers of messages for addresses, to see where they belong.
    fn plan_to_keep(&self, messages: &[Message]) -> Result<Option<Kept>> {
        let numbered: Vec<Message> =
            (1..).zip(messages).map(|(number, message)| Message { addr: number, ..*message }).collect();
        let mut plans =
            p2p::plan(&numbered, self.rank, self.topology.size(), &self.topology, &self.plan_config)?;
        let (Some(batch), Some(mut plan), true) =
            (Batch::of(messages, &plans), plans.pop(), plans.is_empty())
        else {
            return Ok(None);
        };
        if plan.kernel.protocol == Protocol::Dma {
            return Ok(None);
        }
        let place = |message: &Message| {
            let at = |base: &[u64; 3]| base.iter().position(|addr| *addr == message.addr);
            plan.args.works.iter().enumerate().find_map(|(work, w)| Some((work, at(&w.base)?)))
        };
        let places = numbered.iter().map(place).collect();
        self.fill(&mut plan.args, false);
        Ok(Some(Kept { plan, places, batch }))
    }
}

impl Kept {
    /// Fills in the addresses.
    fn bind<'m>(&mut self, messages: impl Iterator<Item = &'m Message>) {
        for (message, place) in messages.zip(&self.places) {
            if let Some((work, base)) = *place {
                self.plan.args.works[work].base[base] = message.addr;
            }
        }
    }
}

impl Batch {
    /// Messages of a rank that is alone.
    fn of_copies(messages: &[Message]) -> Self {
        let bytes = messages.iter().map(|message| message.bytes).sum();
        Self { messages: messages.len(), bytes, protocol: Protocol::Simple, channels: 0 }
    }

    fn of(messages: &[Message], plans: &[LaunchPlan]) -> Option<Self> {
        Some(Self {
            messages: messages.len(),
            bytes: messages.iter().map(|message| message.bytes).sum(),
            protocol: plans.first()?.kernel.protocol,
            channels: plans.iter().map(|plan| u32::from(plan.args.n_blocks)).sum(),
        })
    }
}

/// What a batch is known by, and how many of the lines count: one for each message.
fn lines<'m>(messages: impl Iterator<Item = &'m Message>) -> ([Line; FEW], usize) {
    let (mut lines, mut count) = ([Line::default(); FEW], 0);
    for (line, &Message { peer, send, bytes, .. }) in lines.iter_mut().zip(messages) {
        *line = Line { peer, send, bytes };
        count += 1;
    }
    (lines, count)
}
