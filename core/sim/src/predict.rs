//! From a call and a decision about it to the time that it takes.

use hawser_plan::{Call, Decision, PlanConfig, Topology};
use hawser_types::Executor;

use crate::cluster::Cluster;
use crate::engine::{Random, Time};
use crate::error::{Result, SimError};
use crate::executor::{Outcome, Scene, exchange, overlaps, per_ps, steps};
use crate::links::{Links, Name};

/// The way in which calls are simulated.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// The seed of everything that is drawn: equal seeds give equal traces.
    pub seed: u64,
    /// Steps that are run at most; of a call with more, the time of a part is carried on.
    pub most_steps: u64,
    /// True if a trace is kept. Nothing is carried on then.
    pub is_traced: bool,
    /// Asked now and then: true ends the simulation.
    pub stop: &'a dyn Fn() -> bool,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self { seed: 0, most_steps: MOST_STEPS, is_traced: false, stop: &|| false }
    }
}

/// Steps that are run at most unless somebody says otherwise: some seconds.
pub const MOST_STEPS: u64 = 4_000_000;
/// Operations that follow each other where they overlap.
const OVERLAPPING: u32 = 5;

/// The prediction of a call.
#[derive(Debug, Clone, PartialEq)]
pub struct Prediction {
    /// The time of an operation in µs.
    pub us: f64,
    /// The number of events that happened.
    pub events: u64,
    /// True if a part of the call was run, and its time carried on.
    pub is_carried_on: bool,
    /// The link that was busiest, if any was used, and the share of the time for which it was.
    pub busiest: Option<(Name, f64)>,
    /// The trace; empty unless one was wanted.
    pub trace: String,
}

/// A cluster that calls are simulated on.
#[derive(Debug)]
pub struct Twin<'a> {
    cluster: &'a Cluster,
    links: Links<'a>,
}

impl<'a> Twin<'a> {
    /// The twin of a cluster.
    pub fn new(cluster: &'a Cluster) -> Self {
        Self { cluster, links: Links::new(cluster) }
    }

    /// The job as the planner sees it.
    pub fn topology(&self) -> &Topology {
        &self.cluster.topology
    }

    /// The links of the cluster.
    pub fn links(&self) -> &Links<'a> {
        &self.links
    }

    /// Runs a call as it was decided.
    ///
    /// # Errors
    /// `NotSimulated` for decisions for copy engines, `Interrupted` if the caller asked to stop, `Plan` and
    /// `Stuck` for programs that cannot be.
    pub fn predict(
        &self,
        call: &Call,
        decision: &Decision,
        config: &PlanConfig,
        options: &Options<'_>,
    ) -> Result<Prediction> {
        let topology = self.topology();
        if call.count == 0 {
            return Ok(Prediction::of(0.0));
        }
        if topology.size() == 1 {
            let path = topology.constants.path(decision.route);
            let copy =
                call.block_bytes() as f64 / (per_ps(path.block_gbs) * f64::from(decision.channels.max(1)));
            return Ok(Prediction::of(path.fixed_us + copy / 1e6));
        }
        let starts = self.starts(options.seed);
        // Within a host, launches follow each other as slowly as one operation takes.
        let is_ahead = overlaps(&decision.key) && topology.hosts() > 1;
        let operations = if is_ahead { OVERLAPPING } else { 1 };
        let scene = Scene {
            links: &self.links,
            starts: &starts,
            operations,
            is_traced: options.is_traced,
            stop: options.stop,
        };
        match decision.route.executor {
            Executor::Fused => {
                let outcome = exchange::run(call, decision, (topology, config), scene)?;
                Ok(self.prediction(outcome, false))
            }
            Executor::Interpreter | Executor::Host => self.by_steps(call, decision, config, (scene, options)),
            Executor::CopyEngine => Err(SimError::NotSimulated(decision.to_string())),
        }
    }

    /// Runs steps: all of them, or as many as are allowed.
    fn by_steps(
        &self,
        call: &Call,
        decision: &Decision,
        config: &PlanConfig,
        (scene, options): (Scene<'_>, &Options<'_>),
    ) -> Result<Prediction> {
        let topology = self.topology();
        let programs = steps::Programs::new(call, decision, (topology, config), &self.links)?;
        let (all, slices) = (programs.work.tiles, programs.work.slices.max(1));
        let of_group = programs.executions(slices) * u64::from(scene.operations);
        let groups = u64::from(all.div_ceil(slices));
        let affordable = options.most_steps.checked_div(of_group).unwrap_or(groups).max(2);
        if groups <= affordable.max(3) || options.is_traced {
            return Ok(self.prediction(steps::run(&programs, all, topology, scene)?, false));
        }
        // A pipeline that is full takes equally long for each further group of tiles.
        let (many, few) = (affordable as u32, (affordable as u32 / 2).max(1));
        let first = self.prediction(steps::run(&programs, few * slices, topology, scene)?, false);
        let second = self.prediction(steps::run(&programs, many * slices, topology, scene)?, true);
        let of_group = (second.us - first.us) / f64::from(many - few);
        // The last group may be a part of one.
        let work = &programs.work;
        let whole = work.instance as f64 / (f64::from(work.tile) * f64::from(slices));
        let us = second.us + of_group * (whole - f64::from(many)).max(0.0);
        Ok(Prediction { us, events: first.events + second.events, ..second })
    }

    /// The moments at which ranks begin.
    fn starts(&self, seed: u64) -> Vec<Time> {
        let mut random = Random::new(seed);
        let skew = self.cluster.start_skew_us;
        (0..self.topology().size()).map(|_| Time::from_us(random.unit() * skew)).collect()
    }

    fn prediction(&self, outcome: Outcome, is_carried_on: bool) -> Prediction {
        let (first, last) = (outcome.ended[0], outcome.ended[outcome.ended.len() - 1]);
        let us = match outcome.ended.len() {
            1 => last.us(),
            several => (last - first).us() / (several - 1) as f64,
        };
        let share =
            |link: u32| outcome.flows.moved(link) / (self.links.speed(link) * 1e-3 * last.ps() as f64);
        let used = (0..self.links.count()).map(|link| (link, share(link))).filter(|(_, share)| *share > 0.0);
        let busiest = used.fold(None, |best: Option<(u32, f64)>, next| match best {
            Some(best) if best.1 >= next.1 => Some(best),
            _ => Some(next),
        });
        let busiest = busiest.map(|(link, share)| (self.links.name(link), share));
        Prediction { us, events: outcome.events, is_carried_on, busiest, trace: outcome.trace }
    }
}

impl Prediction {
    fn of(us: f64) -> Self {
        Self { us, events: 0, is_carried_on: false, busiest: None, trace: String::new() }
    }
}
