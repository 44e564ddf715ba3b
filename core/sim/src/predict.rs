//! From a call and a decision about it to the time that it takes.

use std::borrow::Cow;

use hawser_plan::p2p::Message;
use hawser_plan::{Call, Decision, PlanConfig, Topology};
use hawser_types::Executor;

use crate::cluster::Cluster;
use crate::engine::flows::LinkId;
use crate::engine::{Random, Time};
use crate::error::{Result, wrong};
use crate::executor::{Members, Outcome, Scene, copies, exchange, orbits, overlaps, per_ps, steps};
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
    /// True if every rank acts, also where few stand for all ([`crate::executor::orbits`]). A trace is always
    /// of all.
    pub is_whole: bool,
    /// Asked now and then: true ends the simulation.
    pub stop: &'a dyn Fn() -> bool,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self { seed: 0, most_steps: MOST_STEPS, is_traced: false, is_whole: false, stop: &|| false }
    }
}

/// Steps that are run at most unless somebody says otherwise: some seconds.
pub const MOST_STEPS: u64 = 4_000_000;
/// A step that is repeated so often may be run fewer times, and its time carried on.
const LONG: u32 = 128;
/// Repetitions that are run at least then: the first ones differ from the others.
const FEWEST_TIMES: u32 = 64;
/// Tiles that are run of a call at least, if it has as many.
const FEWEST_TILES: u32 = 3;
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
    /// All links that were used, each with the share of the time for which it was.
    pub used: Vec<(LinkId, f64)>,
    /// The trace; empty unless one was wanted.
    pub trace: String,
}

/// A cluster that calls are simulated on.
#[derive(Debug)]
pub struct Twin<'a> {
    cluster: &'a Cluster,
    links: Links<'a>,
    /// A communicator, as the planner sees it.
    topology: Cow<'a, Topology>,
    /// The same with the constants that times are predicted with.
    timed: Cow<'a, Topology>,
    /// The ranks of the communicators that call at the same time, one communicator after the other.
    ranks: Vec<u32>,
    /// The ranks that stand for all, and the links that stand for all links, if the cluster repeats itself.
    period: Option<(u32, Links<'a>)>,
}

impl<'a> Twin<'a> {
    /// The twin of a cluster, whose ranks are one communicator.
    pub fn new(cluster: &'a Cluster) -> Self {
        let ranks = (0..cluster.topology.size()).collect();
        let period = orbits::period(cluster).map(|ranks| (ranks, Links::of_period(cluster, ranks)));
        let topology = Cow::Borrowed(&cluster.topology);
        let timed = timed(cluster, &topology);
        Self { cluster, links: Links::new(cluster), topology, timed, ranks, period }
    }

    /// The twin of communicators of a cluster that call at the same time, and share its links. The ranks of
    /// each are those of the cluster, in order; their forms are equal ([`Cluster::form`]).
    ///
    /// # Errors
    /// `Cluster` for ranks that the cluster has not, ranks that are there twice, and unequal forms.
    pub fn of_communicators(cluster: &'a Cluster, communicators: &[Vec<u32>]) -> Result<Self> {
        let first = communicators.first().filter(|ranks| !ranks.is_empty());
        let first = first.ok_or_else(|| wrong("there is no communicator", "name ranks"))?;
        let mut seen = vec![false; cluster.topology.ranks.len()];
        for &rank in communicators.iter().flatten() {
            match seen.get_mut(rank as usize) {
                None => {
                    let what = format!("the cluster has no rank {rank}");
                    return Err(wrong(what, format!("its ranks are 0 to {}", seen.len() - 1)));
                }
                Some(true) => {
                    let what = format!("rank {rank} is in two places");
                    return Err(wrong(what, "name each rank once: a rank runs one operation at a time here"));
                }
                Some(seen) => *seen = true,
            }
        }
        let form = cluster.form(first);
        if communicators.iter().any(|ranks| cluster.form(ranks) != form) {
            return Err(wrong("communicators of several forms", "simulate those of one form together"));
        }
        let topology = Cow::Owned(cluster.topology_of(first));
        let timed = timed(cluster, &topology);
        let (links, ranks) = (Links::new(cluster), communicators.concat());
        Ok(Self { cluster, links, topology, timed, ranks, period: None })
    }

    /// A communicator as the planner sees it.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The links of the cluster.
    pub fn links(&self) -> &Links<'a> {
        &self.links
    }

    /// Runs a call as it was decided.
    ///
    /// # Errors
    /// `Interrupted` if the caller asked to stop, `Plan` and `Stuck` for programs that cannot be.
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
            // Nothing leaves the rank.
            let path = self.timed.constants.path(decision.route);
            let copy =
                call.block_bytes() as f64 / (per_ps(path.block_gbs) * f64::from(decision.channels.max(1)));
            return Ok(Prediction::of(path.fixed_us + copy / 1e6));
        }
        let starts = self.starts(options.seed);
        let is_symmetric = orbits::is_symmetric(&decision.key);
        // Within a host, launches follow each other as slowly as one operation takes, unless ranks take turns
        // on processors: one goes on to the next operation while others are in this one.
        let is_ahead = overlaps(&decision.key) && topology.hosts() > 1 || self.links.are_crowded();
        let operations = if is_ahead { OVERLAPPING } else { 1 };
        let ranks = topology.size();
        let blocks = call.collective.input_blocks(ranks) + call.collective.output_blocks(ranks);
        let buffers = call.block_bytes() * u64::from(blocks);
        let scene = Scene { buffers, ..self.scene(is_symmetric, (&starts, operations), options) };
        match decision.route.executor {
            Executor::Fused => {
                let outcome = exchange::run(call, decision, (topology, config), scene)?;
                Ok(self.prediction(scene.links, outcome, false))
            }
            Executor::Interpreter | Executor::Host => self.by_steps(call, decision, config, (scene, options)),
            Executor::CopyEngine => {
                // No period of ranks stands for all: the streams of a host meet.
                let scene = Scene { buffers, ..self.scene(false, (&starts, operations), options) };
                let outcome = copies::run(call, decision, (topology, &self.timed, config), scene)?;
                Ok(self.prediction(scene.links, outcome, false))
            }
        }
    }

    /// The share of a GPU's multiprocessors that the kernels of a call take; 0 without GPUs. Beside copy
    /// engines only kernels that combine take any. Between hosts it is 0 as well: blocks are few and mostly
    /// wait for the network, and nobody has measured what computing beside them costs.
    pub fn multiprocessors(&self, decision: &Decision, config: &PlanConfig) -> f64 {
        let blocks = match decision.route.executor {
            _ if self.topology.hosts() > 1 => 0,
            Executor::Host => 0,
            Executor::CopyEngine if decision.key.collective.reduces() => config.reducing_ctas.max(1),
            Executor::CopyEngine => 0,
            Executor::Interpreter | Executor::Fused => decision.channels,
        };
        let of_gpu = self.cluster.host(self.links.host_of(self.ranks[0])).multiprocessors;
        if of_gpu == 0 { 0.0 } else { (f64::from(blocks) / f64::from(of_gpu)).min(1.0) }
    }

    /// Runs a group of messages that every rank has by its number, as the library launches them. With
    /// `is_symmetric` the messages of a rank are those of the rank before it, with all peers moved on by one
    /// round the end.
    ///
    /// # Errors
    /// As [`Twin::predict`].
    pub fn predict_messages(
        &self,
        messages: &dyn Fn(u32) -> Vec<Message>,
        is_symmetric: bool,
        config: &PlanConfig,
        options: &Options<'_>,
    ) -> Result<Prediction> {
        let starts = self.starts(options.seed);
        if config.pass_sm > 0 {
            let scene = self.scene(false, (&starts, 1), options);
            let outcome = copies::run_messages(messages, (self.topology(), &self.timed, config), scene)?;
            return Ok(self.prediction(scene.links, outcome, false));
        }
        let scene = self.scene(is_symmetric, (&starts, 1), options);
        let programs =
            steps::Programs::of_messages(messages, (self.topology(), config), (scene.links, scene.members))?;
        let outcome = steps::run(&programs, u32::MAX, &self.timed, scene)?;
        Ok(self.prediction(scene.links, outcome, false))
    }

    /// The surroundings of a run: those of a period where it stands for all.
    fn scene<'s>(
        &'s self,
        is_symmetric: bool,
        (starts, operations): (&'s [Time], u32),
        options: &Options<'s>,
    ) -> Scene<'s> {
        let is_of_few = is_symmetric && !options.is_whole && !options.is_traced;
        let period = self.period.as_ref().filter(|_| is_of_few);
        let all = self.ranks.len() as u32;
        let (acting, links) = period.map_or((all, &self.links), |(ranks, links)| (*ranks, links));
        Scene {
            links,
            members: Members { ranks: &self.ranks, each: self.topology().size(), acting },
            starts,
            operations,
            buffers: u64::MAX,
            is_traced: options.is_traced,
            stop: options.stop,
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
        let context = (self.topology(), config);
        let programs = steps::Programs::new(call, decision, context, (scene.links, scene.members))?;
        let of_all = |tiles| programs.executions(tiles) * u64::from(scene.operations);
        let fewest = FEWEST_TILES.min(programs.work().tiles).max(1);
        let (most, needed) = (programs.most_times(), of_all(fewest));
        if needed <= options.most_steps || most < LONG || options.is_traced {
            return self.by_tiles(&programs, (scene, options));
        }
        // A ring goes round: every repetition takes as long as the one before it.
        let affordable = (u64::from(most) * options.most_steps / needed.max(1)) as u32;
        let many = affordable.clamp(FEWEST_TIMES, most);
        let (Some(short), Some(shorter)) = (programs.shortened(many), programs.shortened(many / 2)) else {
            return self.by_tiles(&programs, (scene, options));
        };
        let first = self.by_tiles(&shorter, (scene, options))?;
        let second = self.by_tiles(&short, (scene, options))?;
        let each = (second.us - first.us) / f64::from(many - many / 2);
        let us = second.us + each * f64::from(most - many);
        Ok(Prediction { us, events: first.events + second.events, is_carried_on: true, ..second })
    }

    /// Runs all tiles of programs, or as many as are allowed.
    fn by_tiles(
        &self,
        programs: &steps::Programs,
        (scene, options): (Scene<'_>, &Options<'_>),
    ) -> Result<Prediction> {
        let topology = &*self.timed;
        let (all, slices) = (programs.work().tiles, programs.work().slices.max(1));
        let of_group = programs.executions(slices) * u64::from(scene.operations);
        let groups = u64::from(all.div_ceil(slices));
        let affordable = options.most_steps.checked_div(of_group).unwrap_or(groups).max(2);
        if groups <= affordable.max(3) || options.is_traced {
            return Ok(self.prediction(scene.links, steps::run(programs, all, topology, scene)?, false));
        }
        // A pipeline that is full takes equally long for each further group of tiles.
        let (many, few) = (affordable as u32, (affordable as u32 / 2).max(1));
        let run = |groups: u32| steps::run(programs, groups * slices, topology, scene);
        let first = self.prediction(scene.links, run(few)?, false);
        let second = self.prediction(scene.links, run(many)?, true);
        let of_group = (second.us - first.us) / f64::from(many - few);
        // The last group may be a part of one.
        let work = programs.work();
        let whole = work.instance as f64 / (f64::from(work.tile) * f64::from(slices));
        let us = second.us + of_group * (whole - f64::from(many)).max(0.0);
        Ok(Prediction { us, events: first.events + second.events, ..second })
    }

    /// The moments at which members begin.
    fn starts(&self, seed: u64) -> Vec<Time> {
        let mut random = Random::new(seed);
        let skew = self.cluster.start_skew_us;
        (0..self.ranks.len()).map(|_| Time::from_us(random.unit() * skew)).collect()
    }

    fn prediction(&self, links: &Links<'_>, outcome: Outcome, is_carried_on: bool) -> Prediction {
        let (first, last) = (outcome.ended[0], outcome.ended[outcome.ended.len() - 1]);
        let us = match outcome.ended.len() {
            1 => last.us(),
            several => (last - first).us() / (several - 1) as f64,
        };
        let share = |link: u32| {
            let moved = outcome.flows.moved(links.image(link));
            moved / (links.speed(link) * 1e-3 * last.ps() as f64)
        };
        let used = (0..self.links.count()).map(|link| (link, share(link))).filter(|(_, share)| *share > 0.0);
        let used: Vec<(LinkId, f64)> = used.collect();
        let busiest = used.iter().fold(None, |best: Option<&(u32, f64)>, next| match best {
            Some(best) if best.1 >= next.1 => Some(best),
            _ => Some(next),
        });
        let busiest = busiest.map(|(link, share)| (self.links.name(*link), *share));
        Prediction { us, events: outcome.events, is_carried_on, busiest, used, trace: outcome.trace }
    }
}

/// A topology of the cluster with the constants that times are predicted with.
fn timed<'a>(cluster: &Cluster, topology: &Cow<'a, Topology>) -> Cow<'a, Topology> {
    match topology.constants == cluster.times {
        true => topology.clone(),
        false => Cow::Owned(Topology { constants: cluster.times, ..(**topology).clone() }),
    }
}

impl Prediction {
    fn of(us: f64) -> Self {
        Self { us, events: 0, is_carried_on: false, busiest: None, used: Vec::new(), trace: String::new() }
    }
}
