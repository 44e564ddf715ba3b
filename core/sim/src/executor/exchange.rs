//! The executor of exchanges: a kernel in which everybody writes to everybody, once or twice.
//!
//! What goes where is what the real executor compiles ([`FusedPlan`]). A call that the grid does not hold at
//! once goes in pieces: while one is combined, the next is on its way.

use hawser_plan::executor::fused::{FusedPlan, SECOND, rounds};
use hawser_plan::{Call, Decision, PlanConfig, Topology};
use hawser_types::Route;

use super::run::{self, Engine, World};
use super::{Outcome, Scene, launch, per_ps};
use crate::engine::flows::Ending;
use crate::engine::{Events, Flows, Time};
use crate::error::{Result, SimError};
use crate::links::Way;

/// Pieces of a call at most: more of them change little.
const MOST_PIECES: u32 = 8;

/// Share of the wire's rate that is left where values are combined on their way.
const REDUCING: f64 = 0.9;

#[derive(Debug, Clone, Copy)]
enum Event {
    /// A rank begins an operation.
    Begin(u32),
    /// A flow arrives, unless it has become slower.
    Flow(Ending),
    /// Data are there for a rank: the piece, and the exchange that it belongs to.
    Arrived(u32, u32, u8),
    /// A rank has no more to wait for.
    End(u32),
}

/// The owner of a flow: sender, receiver, piece and exchange.
type Owner = (u32, u32, u32, u8);

struct Kernels<'a> {
    plans: Vec<FusedPlan>,
    topology: &'a Topology,
    scene: Scene<'a>,
    /// Share of the wire that the kernels' payload reaches.
    share: f64,
    route: Route,
    pieces: u32,
    /// The least time of a kernel: its hops, and its rounds after the first.
    least: Time,
    events: Events<Event>,
    flows: Flows,
    /// The links of the ranks' blocks, behind those of the cluster.
    blocks: u32,
    owners: Vec<Owner>,
    way: Way,
    ranks: Vec<RankState>,
    outcome: (Vec<Time>, u64, String),
}

#[derive(Debug, Default, Clone)]
struct RankState {
    begun: Time,
    operations: u32,
    /// By piece: sends of this rank that are under way, for both exchanges.
    sending: Vec<[u32; 2]>,
    /// By piece: data that have come, for both exchanges. They may come before the rank has begun.
    arrived: Vec<[u32; 2]>,
    /// By piece: whether the first and the second exchange have begun.
    started: Vec<[bool; 2]>,
    is_running: bool,
}

/// Runs a call by kernels.
///
/// # Errors
/// `Stuck` for kernels that wait in a circle, `Interrupted` if the caller asked to stop.
pub fn run(
    call: &Call,
    decision: &Decision,
    (topology, config): (&Topology, &PlanConfig),
    scene: Scene<'_>,
) -> Result<Outcome> {
    let members = scene.members;
    let plan = |member| FusedPlan::new(call, decision, members.rank(member), members.each, config);
    let plans: Vec<FusedPlan> = (0..members.count()).map(plan).collect();
    let mut kernels = Kernels::new(plans, decision, topology, scene);
    for (rank, start) in (0..members.count()).zip(scene.starts) {
        kernels.events.add(*start + kernels.launch(rank), Event::Begin(rank));
    }
    run::run(&mut kernels)?;
    if let Some(rank) = kernels.ranks.iter().position(|rank| rank.operations < scene.operations) {
        let waits = format!("rank {} waits for data that nobody sends", members.of(rank as u32));
        return Err(SimError::Stuck { us: kernels.events.now().us(), waits });
    }
    let (ended, events, trace) = kernels.outcome;
    Ok(Outcome { ended, events, flows: kernels.flows, trace })
}

impl<'a> Kernels<'a> {
    fn new(plans: Vec<FusedPlan>, decision: &Decision, topology: &'a Topology, scene: Scene<'a>) -> Self {
        let path = topology.constants.path(decision.route);
        let route = decision.route;
        let rounds = plans
            .iter()
            .map(|plan| rounds(route, plan.args.most, plan.blocks, plan.threads, plan.args.tile))
            .max()
            .unwrap_or(1);
        let pieces = match route {
            Route::ZERO_COPY => MOST_PIECES,
            _ => rounds.clamp(1, u64::from(MOST_PIECES)) as u32,
        };
        let pattern = if decision.key.collective.reduces() { REDUCING } else { 1.0 };
        let exchanges = if plans.iter().any(|plan| plan.args.flow.form & SECOND != 0) { 2.0 } else { 1.0 };
        let least = exchanges * (path.hop_us + (rounds as f64 - 1.0) * path.round_us / pattern);
        let blocks = scene.links.count();
        let of_blocks = plans.iter().map(|plan| per_ps(f64::from(plan.blocks) * path.block_gbs));
        let state = RankState {
            sending: vec![[0; 2]; pieces as usize],
            arrived: vec![[0; 2]; pieces as usize],
            started: vec![[false; 2]; pieces as usize],
            ..RankState::default()
        };
        Self {
            topology,
            scene,
            share: path.wire_share * pattern,
            route,
            pieces,
            least: Time::from_us(least),
            events: Events::default(),
            flows: Flows::new(scene.links.capacities().chain(of_blocks)),
            blocks,
            owners: Vec::new(),
            way: Way::default(),
            ranks: vec![state; plans.len()],
            outcome: (vec![Time::ZERO; scene.operations as usize], 0, String::new()),
            plans,
        }
    }

    fn launch(&self, rank: u32) -> Time {
        launch(self.topology.constants.path(self.route), self.plans[rank as usize].blocks)
    }

    /// Starts what a rank can start, and ends what is over.
    fn look(&mut self, rank: u32) {
        let at = rank as usize;
        if !self.ranks[at].is_running {
            return;
        }
        for piece in 0..self.pieces {
            let place = piece as usize;
            let is_through =
                |state: &RankState, place: usize| state.started[place][0] && state.sending[place][0] == 0;
            let may_begin = piece == 0 || is_through(&self.ranks[at], place - 1);
            if !self.ranks[at].started[place][0] {
                if !may_begin {
                    break;
                }
                self.start(rank, piece, 0);
            }
            let flow = self.plans[at].args.flow;
            let state = &self.ranks[at];
            let has_first = state.arrived[place][0] >= flow.recv1.count_ones();
            if has_first && !state.started[place][1] && is_through(state, place) {
                self.start(rank, piece, 1);
            }
        }
        let flow = self.plans[at].args.flow;
        let state = &self.ranks[at];
        let is_over = |place: usize| {
            state.started[place][1]
                && state.sending[place] == [0, 0]
                && state.arrived[place][1] >= flow.recv2.count_ones()
        };
        if (0..self.pieces as usize).all(is_over) {
            self.ranks[at].is_running = false;
            let end = self.ranks[at].begun + self.least;
            self.events.add(end, Event::End(rank));
        }
    }

    /// Begins an exchange of a piece: a flow to every peer that gets something.
    fn start(&mut self, rank: u32, piece: u32, exchange: u8) {
        let at = rank as usize;
        self.ranks[at].started[piece as usize][usize::from(exchange)] = true;
        let (flow, members) = (self.plans[at].args.flow, self.scene.members);
        let sends = if exchange == 0 { flow.send1 } else { flow.send2 };
        for k in (0..members.each).filter(|k| sends >> k & 1 == 1) {
            let args = &self.plans[at].args;
            let bytes =
                if exchange == 0 { args.src_len[k as usize] } else { args.len[members.rank(rank) as usize] };
            let bytes = (bytes as f64 / f64::from(self.pieces)).max(1.0);
            let to = members.first(rank) + (members.rank(rank) + k) % members.each;
            let from = (members.of(rank), self.scene.buffers);
            self.scene.links.near(from, &[members.of(to)], 1.0 / self.share, &mut self.way);
            self.way.through(self.blocks + rank, 1.0);
            let id = self.flows.begin(self.events.now(), bytes, f64::INFINITY, self.way.hops());
            if self.owners.len() <= id as usize {
                self.owners.resize(id as usize + 1, (0, 0, 0, 0));
            }
            self.owners[id as usize] = (rank, to, piece, exchange);
            self.ranks[at].sending[piece as usize][usize::from(exchange)] += 1;
        }
    }

    /// A rank's kernel is over: the next operation begins.
    fn end(&mut self, rank: u32) {
        let now = self.events.now();
        let flow = self.plans[rank as usize].args.flow;
        let state = &mut self.ranks[rank as usize];
        state.operations += 1;
        // What has come too early belongs to the next operation.
        for arrived in &mut state.arrived {
            arrived[0] -= flow.recv1.count_ones();
            arrived[1] -= flow.recv2.count_ones();
        }
        state.started.fill([false; 2]);
        let done = state.operations;
        let ended = &mut self.outcome.0[done as usize - 1];
        *ended = now.max(*ended);
        if done < self.scene.operations {
            self.events.add(now + self.launch(rank), Event::Begin(rank));
        }
    }
}

impl<'a> World<'a> for Kernels<'a> {
    type Event = Event;

    fn engine(&mut self) -> Engine<'_, 'a, Event> {
        let Self { events, flows, scene, outcome: (_, count, trace), .. } = self;
        Engine { events, flows, count, trace, scene: *scene }
    }

    fn of_flow(ending: Ending) -> Event {
        Event::Flow(ending)
    }

    fn flow_of(event: &Event) -> Option<Ending> {
        if let Event::Flow(ending) = event { Some(*ending) } else { None }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Begin(rank) => {
                let state = &mut self.ranks[rank as usize];
                (state.begun, state.is_running) = (self.events.now(), true);
                self.look(rank);
            }
            Event::Flow(ending) => {
                self.flows.end(ending.flow);
                let (from, to, piece, exchange) = self.owners[ending.flow as usize];
                self.ranks[from as usize].sending[piece as usize][usize::from(exchange)] -= 1;
                let hop = Time::from_us(self.topology.constants.path(self.route).hop_us);
                self.events.add(self.events.now() + hop, Event::Arrived(to, piece, exchange));
                self.look(from);
            }
            Event::Arrived(rank, piece, exchange) => {
                self.ranks[rank as usize].arrived[piece as usize][usize::from(exchange)] += 1;
                self.look(rank);
            }
            Event::End(rank) => self.end(rank),
        }
    }
}
