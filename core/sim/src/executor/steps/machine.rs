//! The machine that runs programs: blocks, slots, credits, and their events.

mod costs;
mod crowd;

use std::ops::Range;

use hawser_kernels_abi::{NO_DEP, Place, Work};
use hawser_plan::Topology;

use self::crowd::{Crowd, Job};
use super::load::{Kind, Programs, SimStep};
use super::proxy::{NetTimes, Proxies, Stream};
use crate::engine::flows::Ending;
use crate::engine::{Events, Flows, Time};
use crate::error::{Result, SimError};
use crate::executor::run::{self, Engine, World};
use crate::executor::{Members, Outcome, Scene, launch, per_ps};
use crate::links::Way;

/// Share of the wire that is left to senders with one peer, by the cost model.
const ONE_PEER: f64 = 0.95;
/// The time in which a processor goes over from a thread that gives way to the next one, µs.
const SWITCH_US: f64 = 1.5;

/// Something that happens.
#[derive(Debug, Clone, Copy)]
enum Event {
    /// A rank begins an operation.
    Begin(u32),
    /// A flow arrives, unless it has become slower.
    Flow(Ending),
    /// The data of a step that crosses no link are in their places.
    Moved(u32),
    /// A block goes on.
    Free(u32),
    /// A slot is full, for who empties it.
    Full(u32),
    /// A slot is empty, for who fills it.
    Empty(u32),
    /// The sender's proxy has handed a message to the network: connection, and bytes.
    Sent(u32, u32),
    /// The threads that move a message have woken up: it goes on the wire.
    Away(u32, u32),
    /// The last byte of a message is at the other host.
    Received(u32, u32),
    /// A rank's thread begins its first operation.
    Start(u32),
    /// A thread has its processor.
    Turn(u32),
    /// A rank's proxy, which is a thread, has done what it had to do first.
    Handled(u32),
}

/// The cause for which a block cannot run its step.
#[derive(Debug, Clone, Copy)]
enum Awaited {
    /// A step of another channel: channel and step.
    Step(u16, u16),
    /// Data of a member.
    Data(u32),
    /// Room at a member.
    Room(u32),
}

impl Awaited {
    fn in_words(self, members: Members<'_>) -> String {
        match self {
            Self::Step(channel, step) => format!("step {step} of channel {channel}"),
            Self::Data(member) => format!("data of rank {}", members.of(member)),
            Self::Room(member) => format!("room at rank {}", members.of(member)),
        }
    }
}

/// The owner of a flow.
#[derive(Debug, Clone, Copy)]
enum Owner {
    Block(u32),
    Connection(u32, u32),
}

#[derive(Debug, Clone, Copy, Default)]
struct BlockState {
    place: Place,
    is_busy: bool,
    is_over: bool,
}

#[derive(Debug, Clone, Copy)]
struct ConnectionState {
    full: u32,
    empty: u32,
    sender: u32,
    receiver: u32,
}

struct Machine<'a> {
    programs: &'a Programs,
    topology: &'a Topology,
    scene: Scene<'a>,
    /// By kind of work: what it is, perhaps with fewer tiles than the call has.
    kinds: Vec<Kind>,
    /// By kind of work: times and rates of its route.
    times: Vec<Times>,
    net: NetTimes,
    events: Events<Event>,
    flows: Flows,
    owners: Vec<Option<Owner>>,
    way: Way,
    peers: Vec<u32>,
    blocks: Vec<BlockState>,
    connections: Vec<ConnectionState>,
    /// By connection: what it has on the wire, if it crosses the network.
    streams: Vec<Stream>,
    proxies: Proxies,
    ranks: Vec<RankState>,
    outcome: (Vec<Time>, u64, String),
    /// By rank: share of the wire that its sends within its host reach.
    wire_shares: Vec<f64>,
    /// The threads of ranks, where blocks have no multiprocessors of their own.
    crowd: Option<Crowd>,
    /// The time that a processor takes to go over to another thread.
    switch: Time,
}

/// The progress of a rank.
#[derive(Debug, Clone, Copy)]
struct RankState {
    /// Blocks of its launch that are not over; 0 between launches.
    left: u32,
    /// Operations that are over.
    operations: u32,
    /// The launch that runs, or runs next.
    launch: u32,
}

/// The times and rates of a route.
#[derive(Debug, Clone, Copy)]
struct Times {
    hop: Time,
    credit: Time,
    step: Time,
    wire_share: f64,
    /// Bytes per picosecond of a block.
    block: f64,
}

/// Runs programs for `tiles` tiles of each kind of work, if it has as many.
///
/// # Errors
/// `Stuck` for programs that wait in a circle, `Interrupted` if the caller asked to stop.
pub fn run(programs: &Programs, tiles: u32, topology: &Topology, scene: Scene<'_>) -> Result<Outcome> {
    let mut machine = Machine::new(programs, tiles, topology, scene);
    for (rank, start) in (0..scene.members.count()).zip(scene.starts) {
        match machine.crowd {
            Some(_) => machine.events.add(*start, Event::Start(rank)),
            None => machine.events.add(*start + machine.launch_of(rank), Event::Begin(rank)),
        }
    }
    run::run(&mut machine)?;
    machine.check_ended()?;
    let (ended, events, trace) = machine.outcome;
    Ok(Outcome { ended, events, flows: machine.flows, trace })
}

impl<'a> Machine<'a> {
    fn new(programs: &'a Programs, tiles: u32, topology: &'a Topology, scene: Scene<'a>) -> Self {
        let constants = &topology.constants;
        let times = |kind: &Kind| {
            let path = constants.path(kind.route);
            Times {
                hop: Time::from_us(path.hop_us),
                credit: Time::from_us(path.hop_us / 2.0),
                step: Time::from_us(path.round_us.min(path.hop_us)),
                wire_share: path.wire_share,
                block: per_ps(path.block_gbs),
            }
        };
        let shortened = |kind: &Kind| {
            let work = Work { tiles: tiles.min(kind.work.tiles), ..kind.work };
            Kind { work, ..*kind }
        };
        let first_launch = &programs.first_launch;
        let at_first = |rank: u32| RankState {
            left: 0,
            operations: 0,
            launch: first_launch.get(rank as usize).copied().unwrap_or(0),
        };
        let instances = programs.instances;
        let at = |(block, next): (u32, u32), instance: u32| block + next * instance;
        let connections = programs.connections.iter().flat_map(|connection| {
            (0..instances).map(move |instance| ConnectionState {
                full: 0,
                empty: programs.depth,
                sender: at(connection.sender, instance),
                receiver: at(connection.receiver, instance),
            })
        });
        let is_far = programs.connections.iter().any(|connection| connection.is_far);
        let streams = if is_far { programs.connections.len() * instances as usize } else { 0 };
        Self {
            programs,
            topology,
            scene,
            kinds: programs.kinds.iter().map(shortened).collect(),
            times: programs.kinds.iter().map(times).collect(),
            net: NetTimes::new(constants),
            events: Events::default(),
            flows: Flows::new(scene.links.capacities()),
            owners: Vec::new(),
            way: Way::default(),
            peers: Vec::new(),
            blocks: vec![BlockState::default(); programs.blocks.len()],
            connections: connections.collect(),
            streams: (0..streams).map(|_| Stream::default()).collect(),
            proxies: Proxies::new(scene.members.count()),
            ranks: (0..scene.members.count()).map(at_first).collect(),
            outcome: (vec![Time::ZERO; scene.operations as usize], 0, String::new()),
            wire_shares: wire_shares(programs, topology, scene),
            crowd: Crowd::new(scene, topology.device),
            switch: Time::from_us(SWITCH_US),
        }
    }

    fn launch_of(&self, rank: u32) -> Time {
        let blocks = self.blocks_of_launch(rank);
        let Some(first) = self.programs.blocks.get(blocks.start as usize) else { return Time::ZERO };
        let path = self.topology.constants.path(self.programs.kinds[usize::from(first.kind)].route);
        launch(path, blocks.len() as u32)
    }

    /// A rank begins a launch: all its blocks do.
    fn begin(&mut self, rank: u32) {
        let blocks = self.blocks_of_launch(rank);
        if blocks.is_empty() || self.kind_of(blocks.start).work.tiles == 0 {
            self.end_launch(rank);
        } else {
            self.ranks[rank as usize].left = blocks.len() as u32;
            for block in blocks.clone() {
                self.blocks[block as usize] = BlockState::default();
            }
            if self.crowd.is_none() {
                blocks.for_each(|block| self.attempt(block));
            }
        }
        if self.crowd.is_some() {
            self.turn(rank);
        }
    }

    /// The blocks of the launch that a rank runs, or runs next.
    fn blocks_of_launch(&self, rank: u32) -> Range<u32> {
        let launch = self.ranks[rank as usize].launch;
        match launch < self.programs.first_launch[rank as usize + 1] {
            true => self.programs.launches[launch as usize]..self.programs.launches[launch as usize + 1],
            false => 0..0,
        }
    }

    fn kind_of(&self, block: u32) -> &Kind {
        &self.kinds[usize::from(self.programs.blocks[block as usize].kind)]
    }

    fn step_of(&self, block: u32) -> &'a SimStep {
        let first = self.programs.blocks[block as usize].first;
        &self.programs.steps[(first + self.blocks[block as usize].place.step) as usize]
    }

    /// The connection of a step, at a place of its list, as the block's instance has it.
    fn connection_of(&self, block: u32, step: &SimStep, place: u32) -> u32 {
        let base = self.programs.peers[(step.peers + place) as usize];
        base * self.programs.instances + u32::from(self.programs.blocks[block as usize].instance)
    }

    /// Starts the block's step if everything that it needs is there; a thread does so in its turn.
    fn attempt(&mut self, block: u32) {
        if !self.can_run(block) {
            return;
        }
        match self.crowd {
            Some(_) => self.wake(self.programs.blocks[block as usize].rank),
            None => self.start(block),
        }
    }

    /// True if everything that the block's step needs is there.
    fn can_run(&self, block: u32) -> bool {
        let state = self.blocks[block as usize];
        // Between operations, a rank's blocks do not look.
        let rank = self.programs.blocks[block as usize].rank;
        let has_begun = self.ranks[rank as usize].left > 0 && self.blocks_of_launch(rank).contains(&block);
        has_begun && !state.is_busy && !state.is_over && self.awaited(block).is_none()
    }

    /// Starts the block's step.
    fn start(&mut self, block: u32) {
        let step = self.step_of(block);
        let (recv, sends) = (u32::from(step.recv), u32::from(step.near) + u32::from(step.far));
        for place in 0..recv {
            let connection = self.connection_of(block, step, place);
            self.connections[connection as usize].full -= 1;
        }
        for place in recv..recv + sends {
            let connection = self.connection_of(block, step, place);
            self.connections[connection as usize].empty -= 1;
        }
        self.blocks[block as usize].is_busy = true;
        self.move_data(block, step);
    }

    /// Names what the block waits for; None if it can run its step.
    fn awaited(&self, block: u32) -> Option<Awaited> {
        let step = self.step_of(block);
        if step.after.0 != NO_DEP && !self.dependency_met(block, step) {
            return Some(Awaited::Step(step.after.0, step.after.1));
        }
        let (recv, sends) = (u32::from(step.recv), u32::from(step.near) + u32::from(step.far));
        let of =
            |connection: u32| &self.programs.connections[(connection / self.programs.instances) as usize];
        for place in 0..recv + sends {
            let connection = self.connection_of(block, step, place);
            let state = &self.connections[connection as usize];
            if place < recv && state.full == 0 {
                return Some(Awaited::Data(of(connection).from));
            }
            if place >= recv && state.empty == 0 {
                return Some(Awaited::Room(of(connection).to));
            }
        }
        None
    }

    /// True if the step of another channel that this one waits for is over, as the interpreters see it.
    fn dependency_met(&self, block: u32, step: &SimStep) -> bool {
        let own = self.programs.blocks[block as usize];
        let mut blocks = self.blocks_of_launch(own.rank);
        let is_awaited = |other: &u32| {
            let other = self.programs.blocks[*other as usize];
            other.instance == own.instance && other.channel == step.after.0
        };
        let Some(other) = blocks.find(is_awaited) else { return true };
        let state = self.blocks[other as usize];
        let awaited = self.programs.blocks[other as usize].first + u32::from(step.after.1);
        let times = self.programs.steps[awaited as usize].times;
        let slices = self.kind_of(block).work.slices.max(1);
        // Channels of another work, whose tiles are not these, have one tile.
        let is_same = self.programs.blocks[other as usize].kind == own.kind;
        let mine = if is_same { self.blocks[block as usize].place.tile } else { 0 };
        let (at, wanted) = (state.place, u32::from(step.after.1));
        let target = (mine / slices, wanted, times - 1, mine % slices);
        let is_past = (at.tile / slices, at.step, at.repetition, at.tile % slices) > target;
        state.is_over || is_past
    }

    /// Streams the tile of a step.
    fn move_data(&mut self, block: u32, step: &SimStep) {
        let plan = self.programs.blocks[block as usize];
        let bytes = self.kind_of(block).tile_bytes(self.blocks[block as usize].place.tile) as f64;
        let times = self.times[usize::from(plan.kind)];
        let passes = self.passes(plan.rank, step);
        let limit = times.block / passes;
        let near = u32::from(step.near);
        if near == 0 || bytes == 0.0 {
            let at = self.events.now() + Time::from_ps((bytes / limit).ceil() as u64);
            self.events.add(at, Event::Moved(block));
            return;
        }
        self.peers.clear();
        for place in u32::from(step.recv)..u32::from(step.recv) + near {
            let base = self.programs.peers[(step.peers + place) as usize];
            self.peers.push(self.scene.members.of(self.programs.connections[base as usize].to));
        }
        let weight = 1.0 / (times.wire_share * self.wire_shares[plan.rank as usize]);
        let from = self.scene.members.of(plan.rank);
        self.scene.links.near((from, self.scene.buffers), &self.peers, weight, &mut self.way);
        let flow = self.flows.begin(self.events.now(), bytes, limit, self.way.hops());
        self.own(flow, Owner::Block(block));
    }

    fn own(&mut self, flow: u32, owner: Owner) {
        if self.owners.len() <= flow as usize {
            self.owners.resize(flow as usize + 1, None);
        }
        self.owners[flow as usize] = Some(owner);
    }

    /// The data of a step are where they belong: slots change hands.
    fn moved(&mut self, block: u32) {
        let step = self.step_of(block);
        let plan = self.programs.blocks[block as usize];
        let (times, net) = (self.times[usize::from(plan.kind)], self.net);
        let bytes = self.kind_of(block).tile_bytes(self.blocks[block as usize].place.tile);
        let now = self.events.now() + self.first_lines(plan.rank, step, bytes, times.hop);
        let (recv, near, far) = (u32::from(step.recv), u32::from(step.near), u32::from(step.far));
        let credits = if self.programs.has_room_for_all { 0 } else { recv };
        for place in 0..credits {
            let connection = self.connection_of(block, step, place);
            let is_far = self.is_far(connection);
            let back = if is_far { net.wire + net.further } else { times.credit };
            self.events.add(now + back, Event::Empty(connection));
        }
        for place in recv..recv + near {
            let full = Event::Full(self.connection_of(block, step, place));
            self.events.add(now + times.hop, full);
        }
        for place in recv + near..recv + near + far {
            let connection = self.connection_of(block, step, place);
            let rank = self.programs.blocks[block as usize].rank;
            let operation = self.ranks[rank as usize].operations + 1;
            let is_first = self.streams[connection as usize].is_first_sent(operation);
            // No tile is longer than a slot.
            let length = self.of_message((rank, connection), net.of_proxy(is_first), bytes, false);
            self.for_proxy(rank, Job::Send(connection, bytes as u32), length);
        }
        self.events.add(now + times.step, Event::Free(block));
    }

    fn is_far(&self, connection: u32) -> bool {
        self.programs.connections[(connection / self.programs.instances) as usize].is_far
    }

    /// Puts a message of a connection on the wire.
    fn send(&mut self, connection: u32, bytes: u64) {
        let plan = self.programs.connections[(connection / self.programs.instances) as usize];
        let members = self.scene.members;
        let (from, to) = (members.of(plan.from), members.of(plan.to));
        self.scene.links.far(from, to, plan.lane.into(), &mut self.way);
        let (on_wire, limit) = match self.fed(connection).is_some_and(|fed| fed.is_copied(bytes)) {
            true => (1.0, f64::INFINITY),
            false => ((bytes as f64).max(1.0), self.scene.links.of_connection(from, to)),
        };
        let flow = self.flows.begin(self.events.now(), on_wire, limit, self.way.hops());
        self.own(flow, Owner::Connection(connection, bytes as u32));
    }

    /// A message is at the receiver's host: its proxy tells the block.
    fn received(&mut self, connection: u32, bytes: u32) {
        let to = self.programs.connections[(connection / self.programs.instances) as usize].actor;
        let operation = self.ranks[to as usize].operations + 1;
        let is_first = self.streams[connection as usize].is_first_taken(operation);
        let length = self.of_message((to, connection), self.net.of_proxy(is_first), bytes.into(), true);
        self.for_proxy(to, Job::Take(connection), length);
    }

    /// The block goes on to its next tile, repetition or step.
    fn advance(&mut self, block: u32) {
        let step = self.step_of(block);
        let plan = self.programs.blocks[block as usize];
        let work = self.kinds[usize::from(plan.kind)].work;
        let state = &mut self.blocks[block as usize];
        state.place.advance(&work, step.times, u32::from(plan.count));
        state.is_over = state.place.tile >= work.tiles;
        if step.signals {
            let of_instance = |other: &u32| {
                self.programs.blocks[*other as usize].instance == plan.instance && *other != block
            };
            let others: Vec<u32> = self.blocks_of_launch(plan.rank).filter(of_instance).collect();
            others.into_iter().for_each(|other| self.attempt(other));
        }
        if !self.blocks[block as usize].is_over {
            if self.crowd.is_none() {
                self.attempt(block);
            }
            return;
        }
        let left = &mut self.ranks[plan.rank as usize].left;
        *left -= 1;
        if *left == 0 {
            self.end_launch(plan.rank);
        }
    }

    /// A rank has ended a launch: it begins the next one, of this operation or of another.
    fn end_launch(&mut self, rank: u32) {
        let now = self.events.now();
        let launches = &self.programs.first_launch[rank as usize..];
        let (first, end) = (launches[0], launches[1]);
        let state = &mut self.ranks[rank as usize];
        (state.left, state.launch) = (0, state.launch + 1);
        if state.launch >= end {
            (state.operations, state.launch) = (state.operations + 1, first);
            let ended = &mut self.outcome.0[state.operations as usize - 1];
            *ended = now.max(*ended);
        }
        // A thread that is a rank launches in its turn.
        if self.ranks[rank as usize].operations < self.scene.operations && self.crowd.is_none() {
            let next = now + self.launch_of(rank);
            self.events.add(next, Event::Begin(rank));
        }
    }

    /// Checks that every rank has ended.
    fn check_ended(&self) -> Result<()> {
        let is_late = |rank: &u32| self.ranks[*rank as usize].operations < self.scene.operations;
        let Some(rank) = (0..self.scene.members.count()).find(is_late) else { return Ok(()) };
        let stuck = self.blocks_of_launch(rank).find(|block| !self.blocks[*block as usize].is_over);
        let waits = stuck.map_or("nothing".into(), |block| {
            let place = self.blocks[block as usize].place;
            let what =
                self.awaited(block).map_or("nothing".into(), |awaited| awaited.in_words(self.scene.members));
            format!(
                "channel {} in step {} for {what}",
                self.programs.blocks[block as usize].channel, place.step
            )
        });
        Err(SimError::Stuck {
            us: self.events.now().us(),
            waits: format!("rank {} waits in {waits}", self.scene.members.of(rank)),
        })
    }
}

impl<'a> World<'a> for Machine<'a> {
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
            Event::Begin(rank) => self.begin(rank),
            Event::Flow(ending) => {
                self.flows.end(ending.flow);
                match self.owners[ending.flow as usize].take() {
                    Some(Owner::Block(block)) => self.moved(block),
                    Some(Owner::Connection(connection, bytes)) => {
                        let at = self.events.now() + self.net.wire;
                        self.events.add(at, Event::Received(connection, bytes));
                        if let Some(bytes) = self.streams[connection as usize].next() {
                            self.send(connection, bytes);
                        }
                    }
                    None => {}
                }
            }
            Event::Moved(block) => self.moved(block),
            Event::Free(block) => {
                self.blocks[block as usize].is_busy = false;
                self.advance(block);
                if self.crowd.is_some() {
                    self.turn(self.programs.blocks[block as usize].rank);
                }
            }
            Event::Full(connection) => {
                let state = &mut self.connections[connection as usize];
                state.full += 1;
                let block = state.receiver;
                self.attempt(block);
            }
            Event::Empty(connection) => {
                let state = &mut self.connections[connection as usize];
                state.empty += 1;
                let block = state.sender;
                self.attempt(block);
            }
            Event::Sent(connection, bytes) => {
                if self.streams[connection as usize].hand_over(bytes.into()) {
                    let wake = self.fed(connection).map_or(Time::ZERO, |fed| fed.wake(bytes.into()));
                    self.events.add(self.events.now() + wake, Event::Away(connection, bytes));
                }
            }
            Event::Away(connection, bytes) => self.send(connection, bytes.into()),
            Event::Received(connection, bytes) => self.received(connection, bytes),
            Event::Start(rank) => self.wake(rank),
            Event::Turn(thread) => self.turn(thread),
            Event::Handled(rank) => self.handled(rank),
        }
    }
}

/// The share of the wire that the sends of each rank within its host reach: less for those with several
/// peers.
fn wire_shares(programs: &Programs, topology: &Topology, scene: Scene<'_>) -> Vec<f64> {
    let Scene { members, .. } = scene;
    let ranks = members.count() as usize;
    let (mut peer, mut shares): (Vec<Option<u32>>, Vec<f64>) = (vec![None; ranks], vec![ONE_PEER; ranks]);
    for connection in programs.connections.iter().filter(|connection| !connection.is_far) {
        let first = peer[connection.from as usize].get_or_insert(connection.to);
        if *first != connection.to && members.each > 2 {
            shares[connection.from as usize] = topology.constants.all_to_all;
        }
    }
    shares
}
