//! The messages of a group on one communicator: from sends and receives to launches.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use hawser_base::error::Result;
use hawser_base::lock::lock;
use hawser_device::Stream;
use hawser_plan::Route;
use hawser_plan::executor::launch::LaunchPlan;
use hawser_plan::p2p::{self, Message};
use hawser_plan::topology::DeviceKind;

use crate::comm_state::CommState;
use crate::comm_state::plan_cache::{BatchForm, BatchSummary, KeptBatch};
use crate::executor::interpreter::BatchLaunch;
use crate::executor::{Events, Launch, Launches, Work};
use crate::op_number::MESSAGES;
use crate::phases::Phase;
use crate::profiling::{GroupSpans, Span};
use crate::transport::net::ConnectionKey;

impl CommState {
    /// Resolves messages that run side by side, on `stream`; the launches are added behind those that are
    /// there.
    ///
    /// # Errors
    /// A message cannot be sent as it is, or no connection can be made.
    pub fn resolve_messages(
        self: &Arc<Self>,
        messages: Phase,
        stream: Stream,
        spans: Option<&Arc<GroupSpans>>,
        launches: &mut Launches,
    ) -> Result<()> {
        let number = MESSAGES | self.next_batch.fetch_add(1, Ordering::Relaxed);
        let place = (number, self.journal.call_messages(number, &messages));
        if let Some(copies) = self.own_messages(&messages)? {
            self.announce(BatchSummary::of_copies(&messages, self.topology.device), number)?;
            if !copies.is_empty() {
                launches.push(Launch::new(self, Work::Copies(copies), place, stream));
            }
            return Ok(());
        }
        let kept = self.kept_batch(&messages)?;
        if let Some(kept) = &kept
            && self.submits_at_once()
        {
            self.announce(lock(kept)?.summary, number)?;
            let batch = BatchLaunch { kept: kept.clone(), messages };
            launches.push(Launch::new(self, Work::Batch(batch), place, stream));
            return Ok(());
        }
        let plans = match kept {
            Some(kept) => vec![lock(&kept)?.bind(&messages).clone()],
            None => p2p::plan(&messages, self.rank, self.topology.size(), &self.topology, &self.plan_config)?,
        };
        if let Some(summary) = BatchSummary::of(&messages, &plans) {
            self.announce(summary, number)?;
        }
        let events = MessageEvents::start(&messages, stream, spans);
        for plan in plans {
            launches.push(self.launch_messages(plan, place, stream, spans, &events)?);
        }
        Ok(())
    }

    /// Makes the launch of a plan for messages, which is connected first.
    fn launch_messages(
        self: &Arc<Self>,
        plan: LaunchPlan,
        place: (u64, u64),
        stream: Stream,
        spans: Option<&Arc<GroupSpans>>,
        events: &MessageEvents,
    ) -> Result<Launch> {
        self.connect(&plan, &plan.args.inline_steps)?;
        if spans.is_some_and(|spans| !spans.is_captured) && !events.0.is_empty() {
            self.expect(&plan, &plan.args.inline_steps, |key| events.find(key));
        }
        let mut plan = self.complete(plan, None, place.0)?;
        self.enter_landings(&mut plan, place.0)?;
        let work = Work::of_plan(plan, None);
        let mut launch = Launch::new(self, work, place, stream);
        launch.events = spans.map(|spans| {
            let operations = events.0.iter().map(|(_, _, event)| event.clone()).collect();
            Events::new(spans, operations)
        });
        Ok(launch)
    }

    /// True if a kept batch needs nothing but its addresses: a GPU without a network, while no profiler
    /// watches.
    fn submits_at_once(&self) -> bool {
        self.net.is_none() && self.profiling.is_idle() && self.device.kernels().is_some()
    }

    /// Says that a batch runs.
    fn announce(&self, mut batch: BatchSummary, number: u64) -> Result<()> {
        if batch.route == Route::LANDING && !self.reaches_memory() {
            batch.route = Route::SIMPLE;
        }
        self.sm_free.messages(self, batch.bytes, number, batch.route == Route::COPY_ENGINE);
        lock(&self.choices)?.cache.note_batch(number & !MESSAGES, batch);
        Ok(())
    }

    /// The launch of a small batch, if one launch is enough; kept from the first time on.
    fn kept_batch(&self, messages: &[Message]) -> Result<Option<Arc<Mutex<KeptBatch>>>> {
        let Some(form) = BatchForm::of(messages) else { return Ok(None) };
        if let Some(kept) = lock(&self.choices)?.cache.find_batch(&form) {
            return Ok(Some(kept));
        }
        let Some(batch) = self.plan_to_keep(messages)? else { return Ok(None) };
        Ok(Some(lock(&self.choices)?.cache.keep_batch(&form, batch)))
    }

    /// Plans a batch with the numbers of messages for addresses, to see where they belong.
    fn plan_to_keep(&self, messages: &[Message]) -> Result<Option<KeptBatch>> {
        let numbered: Vec<Message> =
            (1..).zip(messages).map(|(number, message)| Message { addr: number, ..*message }).collect();
        let mut plans =
            p2p::plan(&numbered, self.rank, self.topology.size(), &self.topology, &self.plan_config)?;
        let (Some(summary), Some(mut plan), true) =
            (BatchSummary::of(messages, &plans), plans.pop(), plans.is_empty())
        else {
            return Ok(None);
        };
        if plan.kernel.route == Route::COPY_ENGINE {
            return Ok(None);
        }
        let place = |message: &Message| {
            let at = |base: &[u64; 3]| base.iter().position(|addr| *addr == message.addr);
            plan.args.works.iter().enumerate().find_map(|(work, w)| Some((work, at(&w.base)?)))
        };
        let places = numbered.iter().map(place).collect();
        self.fill(&mut plan.args, false);
        self.reach_fifos()?;
        if let Some(kernels) = self.device.kernels() {
            kernels.prepare(plan.kernel)?;
        }
        Ok(Some(KeptBatch { plan, places, summary }))
    }
}

/// The profiler events of messages: peer, whether it is sent, and the event.
struct MessageEvents(Vec<(u32, bool, Arc<Span>)>);

impl MessageEvents {
    /// Starts the events that profilers want.
    fn start(messages: &[Message], stream: Stream, spans: Option<&Arc<GroupSpans>>) -> Self {
        let event = |message: &Message| Some((message.peer, message.send, spans?.message(message, stream)?));
        Self(messages.iter().filter_map(event).collect())
    }

    /// The event of the messages that use a connection.
    fn find(&self, key: ConnectionKey) -> Option<&Arc<Span>> {
        let found = self.0.iter().find(|(peer, send, _)| (*peer, *send) == (key.peer, key.send));
        found.map(|(_, _, event)| event)
    }
}

impl BatchSummary {
    /// Messages of a rank that is alone.
    fn of_copies(messages: &[Message], device: DeviceKind) -> Self {
        let bytes = messages.iter().map(|message| message.bytes).sum();
        Self { messages: messages.len(), bytes, route: Route::simple(device), channels: 0 }
    }

    /// Messages that these plans carry; None if nothing is to be carried.
    fn of(messages: &[Message], plans: &[LaunchPlan]) -> Option<Self> {
        Some(Self {
            messages: messages.len(),
            bytes: messages.iter().map(|message| message.bytes).sum(),
            route: plans.first()?.kernel.route,
            channels: plans.iter().map(|plan| u32::from(plan.args.n_blocks)).sum(),
        })
    }
}
