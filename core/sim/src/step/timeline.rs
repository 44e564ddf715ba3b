//! The time at which each operation runs, beside others, and what links carry meanwhile.

use super::ops::Step;
use crate::engine::flows::{Ending, Found, LinkId};
use crate::engine::{Events, FlowId, Flows, Hop, Time};
use crate::error::{Result, SimError};
use crate::links::{Links, Name};

/// The pace of computing by that of a collective's kernel, each compared with itself alone, where both want
/// more multiprocessors than there are: blocks of a kernel wait for those of a GEMM to end. So the time of a
/// GEMM is predicted within a tenth, that of the collective within a factor of 1.8 (measured on 2 and 4 H200:
/// `core/sim/tests/step.rs`).
const PACE_OF_COMPUTING: f64 = 2.0;

/// The course of an operation where nothing else runs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Alone {
    /// A part for each set of communicators of one form; one for computing.
    pub parts: Vec<Part>,
    /// True if it is computing.
    pub is_computing: bool,
}

/// The course of communicators of one form, or of ranks that compute.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Part {
    /// The time in µs.
    pub us: f64,
    /// The links that are used, each with the share of that time.
    pub links: Vec<(LinkId, f64)>,
    /// By class of ranks ([`Step::classes`]): the share of their GPUs' multiprocessors that it takes.
    pub multiprocessors: Vec<(usize, f64)>,
}

impl Alone {
    /// An operation that takes a time, and nothing else.
    pub fn of(us: f64) -> Self {
        Self { parts: vec![Part { us, ..Part::default() }], is_computing: false }
    }

    /// Computing of classes of ranks that takes a share of their multiprocessors.
    pub fn computing(us: f64, share: f64, classes: &[usize]) -> Self {
        let multiprocessors = classes.iter().filter(|_| share > 0.0).map(|class| (*class, share)).collect();
        Self { parts: vec![Part { us, multiprocessors, ..Part::default() }], is_computing: true }
    }

    /// The time in µs.
    pub fn us(&self) -> f64 {
        self.parts.iter().map(|part| part.us).fold(0.0, f64::max)
    }

    fn pace(&self) -> f64 {
        if self.is_computing { PACE_OF_COMPUTING } else { 1.0 }
    }
}

/// The time of an operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Span {
    /// The beginning.
    pub start: Time,
    /// The end.
    pub end: Time,
}

impl Span {
    /// The length in µs.
    pub fn us(&self) -> f64 {
        (self.end - self.start).us()
    }
}

/// The use of links from a moment on.
#[derive(Debug, Clone, PartialEq)]
pub struct Moment {
    /// The moment.
    pub at: Time,
    /// By kind of link ([`Name::KINDS`]): the mean use of all links of the kind, and that of the busiest, as
    /// shares of their capacity.
    pub uses: [(f32, f32); Name::KINDS.len()],
}

/// A step as it runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Timeline {
    /// The time of each operation.
    pub spans: Vec<Span>,
    /// The use of links, from moment to moment; the last one is the end.
    pub moments: Vec<Moment>,
    /// By link: the time for which it would have been full, had it carried all that it did at once.
    pub busy: Vec<Time>,
    /// The end of the last operation.
    pub end: Time,
}

#[derive(Debug, Clone, Copy)]
enum Event {
    /// An operation begins.
    Begin(usize),
    /// A part of an operation that uses links may be over.
    Flow(Ending),
    /// A part that uses none is over.
    Done(usize),
}

struct Runner<'a> {
    step: &'a Step,
    alone: &'a [&'a Alone],
    links: &'a Links<'a>,
    events: Events<Event>,
    flows: Flows,
    /// The operation and the part of each flow.
    owners: Vec<(usize, usize)>,
    /// The flows that are under way.
    under_way: Vec<FlowId>,
    /// By operation: what it waits for, or parts that are not over.
    left: Vec<usize>,
    /// By operation: those that wait for it.
    waiting: Vec<Vec<usize>>,
    /// The links that are used now, and how much.
    used: Vec<(LinkId, f64)>,
    /// By link, between computations: its use.
    scratch: Vec<f64>,
    /// The moment up to which it is added up what links have carried.
    counted: Time,
    /// By kind: its links.
    of_kind: [u32; Name::KINDS.len()],
    timeline: Timeline,
}

/// Runs a step whose operations take what they take alone, one entry for each.
///
/// # Errors
/// `Interrupted` if the caller asked to stop; `Stuck` for operations that wait in a circle.
pub fn run(step: &Step, alone: &[&Alone], links: &Links<'_>, stop: &dyn Fn() -> bool) -> Result<Timeline> {
    let mut runner = Runner::new(step, alone, links);
    runner.record();
    while runner.events.advance() {
        if stop() {
            return Err(SimError::Interrupted);
        }
        runner.count();
        loop {
            while let Some(event) = runner.events.take_now() {
                runner.happen(event);
            }
            let Runner { events, flows, .. } = &mut runner;
            flows.settle(events.now(), |at, ending| events.add(at, Event::Flow(ending)));
            match runner.events.take_now() {
                Some(event) => runner.happen(event),
                None => break,
            }
        }
        runner.record();
    }
    let end = Moment { at: runner.timeline.end, uses: Default::default() };
    if runner.timeline.moments.last().is_none_or(|last| last.at < end.at) {
        runner.timeline.moments.push(end);
    }
    match runner.left.iter().position(|left| *left > 0) {
        None => Ok(runner.timeline),
        Some(op) => {
            let waits = format!("operation {} waits for one that does not end", step.ops[op].name);
            Err(SimError::Stuck { us: runner.events.now().us(), waits })
        }
    }
}

impl<'a> Runner<'a> {
    fn new(step: &'a Step, alone: &'a [&'a Alone], links: &'a Links<'a>) -> Self {
        let count = links.count();
        let mut runner = Self {
            step,
            alone,
            links,
            events: Events::default(),
            // Capacities are shares here: of its links, an operation uses shares too. The multiprocessors of
            // a class of ranks are one more link, behind those of the cluster.
            flows: Flows::new((0..count as usize + step.classes.len()).map(|_| 1.0)),
            owners: Vec::new(),
            under_way: Vec::new(),
            left: step.ops.iter().map(|op| op.after.len()).collect(),
            waiting: vec![Vec::new(); step.ops.len()],
            used: Vec::new(),
            scratch: vec![0.0; count as usize],
            counted: Time::ZERO,
            of_kind: [0; Name::KINDS.len()],
            timeline: Timeline {
                spans: vec![Span::default(); step.ops.len()],
                moments: Vec::new(),
                busy: vec![Time::ZERO; count as usize],
                end: Time::ZERO,
            },
        };
        (0..count).for_each(|link| runner.of_kind[links.name(link).kind()] += 1);
        for (at, op) in step.ops.iter().enumerate() {
            op.after.iter().for_each(|before| runner.waiting[*before].push(at));
            if op.after.is_empty() {
                runner.is_ready(at);
            }
        }
        runner
    }

    /// Nothing holds an operation back any more.
    fn is_ready(&mut self, op: usize) {
        // Until it has begun, it is not over.
        self.left[op] = 1;
        let at = self.events.now() + Time::from_us(self.step.ops[op].delay_us);
        self.events.add(at, Event::Begin(op));
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Begin(op) => self.begin(op),
            Event::Done(op) => self.part_is_over(op),
            Event::Flow(ending) => match self.flows.look(self.events.now(), &ending) {
                Found::Nothing => {}
                Found::Later(at) => self.events.add(at, event),
                Found::Arrived => {
                    self.flows.end(ending.flow);
                    self.under_way.retain(|flow| *flow != ending.flow);
                    self.part_is_over(self.owners[ending.flow as usize].0);
                }
            },
        }
    }

    fn begin(&mut self, op: usize) {
        let now = self.events.now();
        self.timeline.spans[op].start = now;
        let alone = self.alone[op];
        self.left[op] = alone.parts.len().max(1);
        if alone.parts.is_empty() {
            self.events.add(now, Event::Done(op));
        }
        // Flows that share a link are equally fast. One that is to be faster has less to move, and each byte
        // of it weighs more.
        let pace = alone.pace();
        for (place, Part { us, links, multiprocessors }) in alone.parts.iter().enumerate() {
            let length = Time::from_us(*us);
            let of_class =
                multiprocessors.iter().map(|(class, share)| (self.links.count() + *class as u32, *share));
            let way: Vec<Hop> = links
                .iter()
                .copied()
                .chain(of_class)
                .map(|(link, share)| Hop { link, weight: share * pace })
                .collect();
            if way.is_empty() || length == Time::ZERO {
                self.events.add(now + length, Event::Done(op));
                continue;
            }
            let flow = self.flows.begin(now, length.ps() as f64 / pace, 1.0 / pace, &way);
            if self.owners.len() <= flow as usize {
                self.owners.resize(flow as usize + 1, (0, 0));
            }
            self.owners[flow as usize] = (op, place);
            self.under_way.push(flow);
        }
    }

    fn part_is_over(&mut self, op: usize) {
        self.left[op] -= 1;
        if self.left[op] > 0 {
            return;
        }
        let now = self.events.now();
        self.timeline.spans[op].end = now;
        self.timeline.end = self.timeline.end.max(now);
        for next in std::mem::take(&mut self.waiting[op]) {
            self.left[next] -= 1;
            if self.left[next] == 0 {
                self.is_ready(next);
            }
        }
    }

    /// Adds up what links have carried since the last moment.
    fn count(&mut self) {
        let length = self.events.now() - self.counted;
        self.counted = self.events.now();
        for (link, share) in &self.used {
            let busy = &mut self.timeline.busy[*link as usize];
            *busy = *busy + length.stretched(*share);
        }
    }

    /// Writes down how much of the links is used from now on.
    fn record(&mut self) {
        self.used.clear();
        for &flow in &self.under_way {
            let (op, place) = self.owners[flow as usize];
            let rate = self.flows.rate(flow);
            for (link, weight) in &self.alone[op].parts[place].links {
                let use_of = &mut self.scratch[*link as usize];
                if *use_of == 0.0 {
                    self.used.push((*link, 0.0));
                }
                *use_of += weight * rate;
            }
        }
        let mut uses = [(0.0, 0.0f64); Name::KINDS.len()];
        for (link, share) in &mut self.used {
            *share = std::mem::take(&mut self.scratch[*link as usize]);
            let (sum, most) = &mut uses[self.links.name(*link).kind()];
            (*sum, *most) = (*sum + *share, most.max(*share));
        }
        let of_kind = self.of_kind;
        let share = |kind: usize| {
            let (sum, most): (f64, f64) = uses[kind];
            ((sum / f64::from(of_kind[kind].max(1))) as f32, most as f32)
        };
        let moment = Moment { at: self.events.now(), uses: std::array::from_fn(share) };
        match self.timeline.moments.last_mut() {
            Some(last) if last.at == moment.at => *last = moment,
            Some(last) if last.uses == moment.uses => {}
            _ => self.timeline.moments.push(moment),
        }
    }
}
