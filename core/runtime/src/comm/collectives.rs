//! The collectives of a group on one communicator: from calls to launches.
//!
//! Small ones that follow each other share launches where all ranks agree that they can ([`bundle`]); all others get
//! one each, in the order of the calls.

use std::sync::Arc;

use hawser_plan::Call;
use hawser_plan::exchange::ExchangePlan;
use hawser_plan::exchange::bundle::{self, BundleLaunch, Gathering, Member, Place};

use super::op_timing::TimedOp;
use super::profiling::{GroupSpans, Span};
use super::state::{CommState, Compiled, exchange_launch};
use super::tuners::Chosen;
use crate::device::Stream;
use crate::error::Result;
use crate::exec::{Events, Launch, Work};
use crate::log::{self, Subsys};

/// Plans the calls of a group as they come; nothing is launched.
pub struct Collectives<'a> {
    state: &'a Arc<CommState>,
    spans: &'a Arc<GroupSpans>,
    launches: Vec<Launch>,
    /// Collectives that share launches with what may come next.
    waiting: Vec<Planned>,
    gathering: Gathering,
}

/// A call whose choice is made.
struct Planned {
    bound: Arc<Compiled>,
    call: Call,
    stream: Stream,
    number: u64,
    event: Option<Arc<Span>>,
    /// How it is timed, where it has a launch of its own: one of several tells nothing about each.
    timed: Option<TimedOp>,
}

impl Planned {
    /// The plan, if a fused kernel runs the call.
    fn exchange(&self) -> Option<&ExchangePlan> {
        match &*self.bound {
            Compiled::Exchange(plan, _) => Some(plan),
            Compiled::Steps(..) => None,
        }
    }
}

impl<'a> Collectives<'a> {
    /// None yet.
    pub fn new(state: &'a Arc<CommState>, spans: &'a Arc<GroupSpans>) -> Self {
        Self { state, spans, launches: Vec::new(), waiting: Vec::new(), gathering: Gathering::default() }
    }

    /// Plans the next call; one without elements needs no launch. `number`: that of [`CommState::launch_now`].
    pub fn add(&mut self, call: &Call, stream: Stream, number: Option<u64>) -> Result<()> {
        let state = self.state;
        let number = number.map_or_else(|| state.begin(), Ok)?;
        if call.count == 0 {
            return Ok(());
        }
        let (bound, timed) = state.bound(call, stream, number)?;
        let (Chosen { choice, .. }, blocks) = bound.chosen();
        state.log_call(call, choice, blocks, number);
        let chosen = (choice.key.algorithm.name(), choice.protocol.name(), blocks);
        let event = self.spans.collective(call, stream, number, chosen);
        let planned = Planned { bound, call: *call, stream, number, event, timed };
        if !self.gather(&planned) {
            self.flush()?;
            if !self.gather(&planned) {
                return self.launch_alone(&planned);
            }
        }
        self.waiting.push(planned);
        Ok(())
    }

    /// All launches, in order.
    pub fn finish(mut self) -> Result<Vec<Launch>> {
        self.flush()?;
        Ok(self.launches)
    }

    /// Whether a call shares launches with those that wait. All ranks answer alike.
    fn gather(&mut self, planned: &Planned) -> bool {
        planned.exchange().is_some_and(|plan| self.gathering.take(plan, &self.state.plan_config))
    }

    /// Plans the launches of the calls that wait.
    fn flush(&mut self) -> Result<()> {
        self.gathering = Gathering::default();
        let waiting = std::mem::take(&mut self.waiting);
        match &waiting[..] {
            [] => Ok(()),
            [alone] => self.launch_alone(alone),
            _ => {
                self.launch_bundle(&waiting);
                Ok(())
            }
        }
    }

    fn launch_alone(&mut self, planned: &Planned) -> Result<()> {
        let &Planned { ref bound, ref call, stream, number, ref event, ref timed } = planned;
        let mut launch = match &**bound {
            Compiled::Steps(plan, loaded, _) => {
                let mut plan = plan.clone();
                (plan.args.works[0].base[0], plan.args.works[0].base[1]) = (call.input, call.output);
                if let Some(event) = event
                    && !self.spans.is_captured
                {
                    self.state.expect(&plan, loaded.steps(), |_| Some(event));
                }
                self.state.complete(plan, Some(loaded), number, stream)?
            }
            Compiled::Exchange(plan, _) => {
                let direct = self.state.reach(plan, call, number)?;
                let launch = Box::new(exchange_launch(plan, call, number, direct));
                Launch::new(self.state, Work::Exchange(plan.kernel, launch), stream)
            }
        };
        launch.events.group = Some(self.spans.clone());
        launch.events.operations = event.iter().cloned().collect();
        launch.timed = timed.clone();
        self.launches.push(launch);
        Ok(())
    }

    /// Puts calls that have been gathered into as few launches as this rank can.
    fn launch_bundle(&mut self, calls: &[Planned]) {
        let pairs: Vec<(&ExchangePlan, &Planned)> =
            calls.iter().filter_map(|planned| Some((planned.exchange()?, planned))).collect();
        let plans: Vec<&ExchangePlan> = pairs.iter().map(|(plan, _)| *plan).collect();
        let (places, threads) = bundle::places(&plans, &self.state.plan_config);
        let member =
            |(plan, planned): &(&ExchangePlan, &Planned)| Member::new(plan, &planned.call, planned.stream.0);
        let members: Vec<Member> = pairs.iter().map(member).collect();
        for range in bundle::cut(&members) {
            let (pairs, places) = (&pairs[range.clone()], &places[range]);
            let ops: Vec<_> = pairs.iter().zip(places).map(|(pair, place)| operation(*pair, place)).collect();
            let launch = BundleLaunch::new(&ops, threads);
            let (first, last) = (pairs[0].1.number, pairs[pairs.len() - 1].1.number);
            log::info(Subsys::Coll, || {
                let (name, rank, blocks) = (&self.state.name, self.state.rank, launch.blocks);
                format!("{name} rank {rank} op {first} to {last}: one launch of {blocks} x {threads}")
            });
            let mut launch = Launch::new(self.state, Work::Bundle(Box::new(launch)), pairs[0].1.stream);
            let operations = pairs.iter().filter_map(|(_, planned)| planned.event.clone()).collect();
            launch.events = Events { group: Some(self.spans.clone()), operations };
            self.launches.push(launch);
        }
    }
}

/// What [`BundleLaunch::new`] takes of a call.
fn operation<'p>(
    (plan, planned): (&'p ExchangePlan, &'p Planned),
    place: &Place,
) -> (&'p ExchangePlan, hawser_plan::exchange::ExchangeArgs, &'p Call, Place) {
    let call = &planned.call;
    (plan, plan.bind(call.input, call.output, plan.scalar(), planned.number), call, place.clone())
}
