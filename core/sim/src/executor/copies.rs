//! The executor of copy engines: streams of each rank that wait for words, copy, set words, and combine.
//!
//! The commands are those that the real executor puts out ([`Emitter`]), with addresses that say whose memory
//! they are in. Between processes of a host each transfer goes straight from user buffer to user buffer,
//! pushed by its sender, as where receivers are called in time; in one process it goes through staging, as
//! the library does unless it is told otherwise. Between hosts it goes through slots that the network carries
//! (`slots`).

use std::collections::VecDeque;
use std::sync::Arc;

use hawser_kernels_abi::Step;
use hawser_plan::executor::copy_engine::inter_node::{End, InterNodeEnds};
use hawser_plan::executor::copy_engine::{
    Bases, Command, Counters, DEPTH, Emitter, Leg, READ_GBS, STREAMS, Staging, Way, What,
};
use hawser_plan::executor::launch::{LaunchPlan, device_op};
use hawser_plan::executor::{self, Decided, Plan, interpreter};
use hawser_plan::p2p::{self, Message};
use hawser_plan::{Call, Decision, PlanConfig, Topology, algo};
use hawser_types::{Link, Route};
use rustc_hash::{FxHashMap, FxHashSet};

use super::run::{self, Engine, World};
use super::slots::{self, Move, Slots};
use super::steps::proxy::Fed;
use super::{Outcome, Scene, launch};
use crate::engine::flows::Ending;
use crate::engine::{Events, Flows, Time};
use crate::error::{Result, SimError};
use crate::links;

/// Bytes on an NVLink for a byte that a copy engine moves, where a byte that a kernel stores is one: 364 GB/s
/// of stores and 389 GB/s of copies go over the same link (bench/README.md).
const NVLINK_WEIGHT: f64 = 0.935;
/// GB/s of a copy within a GPU: 128 MiB take 87 µs on an H200, of which 16 are its start (bench/README.md).
const LOCAL_GBS: f64 = 1890.0;
/// Commands of a tile (a wait, a copy, a word), which together take the time of a hop.
const COMMANDS_OF_A_TILE: f64 = 3.0;
/// Bytes from word to word.
const WORD_BYTES: usize = 16;

/// The bits of an address below its rank's number, counted from 1.
const RANK_BITS: u32 = 44;
/// The places of a rank's output and staging. Its input comes first.
const OUTPUT: u64 = 1 << 42;
const STAGING: u64 = 1 << 43;

#[derive(Debug, Clone, Copy)]
enum Event {
    /// A rank begins an operation.
    Begin(u32),
    /// A stream has begun its command: what it does takes place.
    Act(u32),
    /// A stream is through with its command.
    Over(u32),
    /// A copy or a message arrives, unless it has become slower.
    Flow(Ending),
    /// A slot between hosts goes on.
    Slot(Move),
}

/// The owner of a flow.
#[derive(Debug, Clone, Copy)]
enum Owner {
    /// The stream that copies.
    Stream(u32),
    /// The slot whose message it is.
    Slot(slots::Key),
}

/// The commands of a stream.
#[derive(Debug, Default)]
struct Queue {
    left: VecDeque<What>,
    current: Option<What>,
}

struct Engines<'a> {
    scene: Scene<'a>,
    /// The time of a command, besides what it moves.
    command: Time,
    /// The time of a launch.
    launch: Time,
    /// Bytes on a link for a byte that is copied.
    weight: f64,
    /// By member.
    launches: Vec<Vec<Launch>>,
    counters: Vec<Counters>,
    /// [`STREAMS`] of each member.
    queues: Vec<Queue>,
    /// Commands of each member's operation that are not over.
    pending: Vec<usize>,
    operations: Vec<u32>,
    /// Words that are set, and the streams that wait for others.
    set: FxHashSet<Word>,
    waiting: FxHashMap<Word, u32>,
    /// By flow.
    owners: Vec<Owner>,
    slots: Slots,
    way: links::Way,
    events: Events<Event>,
    flows: Flows,
    ended: Vec<Time>,
    count: u64,
    trace: String,
}

/// A word: the number of its communicator, and its address, which ranks of other communicators have too.
type Word = (u32, u64);

/// A launch of a member.
struct Launch {
    plan: LaunchPlan,
    steps: Vec<Step>,
    bases: Bases,
    /// Transfers that go straight, and their ways.
    legs: Vec<(Leg, Way)>,
    /// The slots that it shares with ranks of other hosts.
    ends: Arc<InterNodeEnds>,
}

/// Runs a call of copy engines.
///
/// # Errors
/// `Stuck` for streams that wait in a circle, `Interrupted` if the caller asked to stop.
pub fn run(
    call: &Call,
    decision: &Decision,
    (topology, timed, config): (&Topology, &Topology, &PlanConfig),
    scene: Scene<'_>,
) -> Result<Outcome> {
    let of_member = |member| {
        let rank = scene.members.rank(member);
        let launch = Launch::of_call(call, decision, rank, (topology, config))?;
        Ok(vec![launch])
    };
    let launches = (0..scene.members.count()).map(of_member).collect::<Result<_>>()?;
    carry_out(launches, (topology, timed), scene)
}

/// Runs a group of messages, which every rank has by its number, on copy engines.
///
/// # Errors
/// As of a call, and messages that cannot be.
pub fn run_messages(
    messages: &dyn Fn(u32) -> Vec<Message>,
    (topology, timed, config): (&Topology, &Topology, &PlanConfig),
    scene: Scene<'_>,
) -> Result<Outcome> {
    let of_member = |member| {
        let rank = scene.members.rank(member);
        let placed = placed(rank, messages(rank));
        let plans = p2p::plan(&placed, rank, scene.members.each, topology, config)?;
        Ok(plans.into_iter().map(|plan| Launch::of_messages(plan, rank, (topology, config))).collect())
    };
    let launches = (0..scene.members.count()).map(of_member).collect::<Result<_>>()?;
    carry_out(launches, (topology, timed), scene)
}

/// Runs the launches of all members, one after the other each.
fn carry_out(
    mut launches: Vec<Vec<Launch>>,
    (topology, timed): (&Topology, &Topology),
    scene: Scene<'_>,
) -> Result<Outcome> {
    if !topology.direct {
        meet(&mut launches, scene.members.each);
    }
    let mut engines = Engines::new(launches, timed, scene);
    engines.weight = if topology.link == Link::NvLink { NVLINK_WEIGHT } else { 1.0 };
    for (member, start) in (0..scene.members.count()).zip(scene.starts) {
        engines.events.add(*start + engines.launch_time(member), Event::Begin(member));
    }
    run::run(&mut engines)?;
    if let Some(member) = engines.operations.iter().position(|done| *done < scene.operations) {
        let waits = format!("a stream of rank {} waits for a word", scene.members.of(member as u32));
        return Err(SimError::Stuck { us: engines.events.now().us(), waits });
    }
    let Engines { ended, count, flows, trace, .. } = engines;
    Ok(Outcome { ended, events: count, flows, trace })
}

/// The start of a rank's memory.
fn memory(rank: u32) -> u64 {
    (u64::from(rank) + 1) << RANK_BITS
}

/// The rank in whose memory an address is.
fn owner(addr: u64) -> u32 {
    (addr >> RANK_BITS) as u32 - 1
}

/// The messages of a rank with addresses of its own: what it sends in its input, what it receives in its
/// output.
fn placed(rank: u32, messages: Vec<Message>) -> Vec<Message> {
    let (mut sent, mut received) = (memory(rank), memory(rank) + OUTPUT);
    let place = |message: Message| {
        let end = if message.send { &mut sent } else { &mut received };
        let addr = *end;
        *end += message.bytes;
        Message { addr, ..message }
    };
    messages.into_iter().map(place).collect()
}

impl Launch {
    fn of_call(
        call: &Call,
        decision: &Decision,
        rank: u32,
        (topology, config): (&Topology, &PlanConfig),
    ) -> Result<Self> {
        let call = &Call { input: memory(rank), output: memory(rank) + OUTPUT, ..*call };
        let program = algo::rank_program(&decision.key, rank)?;
        let lowered = interpreter::lower(&algo::shape(&decision.key)?, &program, device_op(call))?;
        let decided = Decided { call, decision, rank, topology, config };
        let compiled = executor::of(decision.route.executor).compile(&decided, Some(&lowered))?;
        let Plan::Steps(plan) = compiled else {
            return Err(SimError::NotSimulated(format!("{decision}: a plan without steps")));
        };
        Ok(Self::new(plan, lowered.steps, rank, (topology, config)))
    }

    fn of_messages(plan: LaunchPlan, rank: u32, context: (&Topology, &PlanConfig)) -> Self {
        let steps = plan.args.inline_steps.to_vec();
        Self::new(plan, steps, rank, context)
    }

    fn new(
        plan: LaunchPlan,
        steps: Vec<Step>,
        rank: u32,
        (topology, config): (&Topology, &PlanConfig),
    ) -> Self {
        let (places, local) = topology.places();
        let host = |rank: u32| topology.ranks[rank as usize].host;
        let start = |peer: u32| if host(peer) == host(rank) { memory(peer) + STAGING } else { 0 };
        let staging = (0..topology.size()).map(start).collect();
        let mut ends = InterNodeEnds::default();
        for step in &steps {
            let sends = step.send[..usize::from(step.n_send)].iter().map(|peer| (u32::from(*peer), true));
            let recvs = step.recv[..usize::from(step.n_recv)].iter().map(|peer| (u32::from(*peer), false));
            for (peer, send) in sends.chain(recvs).filter(|(peer, _)| host(*peer) != host(rank)) {
                ends.add(peer, send, slots::end(memory(rank), peer, send));
            }
        }
        let bases = Bases { rank, staging, places, layout: Staging::new(local, config) };
        Self { plan, steps, bases, legs: Vec::new(), ends: Arc::new(ends) }
    }

    fn emitter(&self) -> Emitter<'_> {
        Emitter::new(&self.plan, &self.steps, &self.bases, self.ends.clone())
    }

    /// The way of a transfer that both ends have come to.
    fn way_of(&self, leg: &Leg) -> Way {
        if self.bases.staging[leg.peer as usize] == 0 { Way::Staged } else { Way::First }
    }

    /// The ends of what it sends to other hosts.
    fn sends_to_other_hosts(&self) -> impl Iterator<Item = End> {
        self.ends.all().filter(|(_, send, _)| *send).map(|(_, _, end)| end)
    }

    /// The commands of one operation.
    fn commands(&self, counters: &mut Counters) -> Vec<Command> {
        let (mut emitter, mut commands) = (self.emitter(), Vec::new());
        if !self.legs.is_empty() {
            let (legs, ways): (Vec<Leg>, Vec<Way>) = self.legs.iter().copied().unzip();
            emitter.agree(&legs, &ways, &mut commands);
        }
        while emitter.round(counters, &mut commands) {}
        commands
    }
}

/// Lets both ends of each transfer that may go straight meet: receivers came first, so senders push. `each`:
/// the ranks of a communicator.
fn meet(launches: &mut [Vec<Launch>], each: u32) {
    let mut receivers: FxHashMap<(u32, u32), VecDeque<Leg>> = FxHashMap::default();
    let first_of = |member: usize| member as u32 - member as u32 % each;
    for (member, list) in launches.iter_mut().enumerate() {
        for launch in list {
            let legs = launch.emitter().legs();
            launch.legs = legs.into_iter().map(|leg| (leg, launch.way_of(&leg))).collect();
            for (leg, _) in launch.legs.iter().filter(|(leg, way)| !leg.send && *way == Way::First) {
                let pair = (first_of(member) + leg.peer, member as u32);
                receivers.entry(pair).or_default().push_back(*leg);
            }
        }
    }
    for (member, list) in launches.iter_mut().enumerate() {
        let legs = list.iter_mut().flat_map(|launch| &mut launch.legs);
        for (leg, way) in legs.filter(|(leg, way)| leg.send && *way == Way::First) {
            let pair = (member as u32, first_of(member) + leg.peer);
            let end = receivers.get_mut(&pair).and_then(VecDeque::pop_front);
            *way = end.map_or(Way::Staged, |end| Way::Second { addr: end.addr, bytes: end.bytes });
        }
    }
}

impl<'a> Engines<'a> {
    fn new(launches: Vec<Vec<Launch>>, timed: &Topology, scene: Scene<'a>) -> Self {
        let path = timed.constants.path(Route::COPY_ENGINE);
        let mut set = FxHashSet::default();
        for (member, list) in (0..).zip(&launches) {
            let Some(Launch { bases: Bases { rank, layout, .. }, .. }) = list.first() else { continue };
            let (at, bytes) = layout.free_words();
            let words = (0..bytes).step_by(WORD_BYTES).map(|word| memory(*rank) + STAGING + at + word);
            set.extend(words.map(|addr| (member / scene.members.each, addr)));
            for end in list.iter().flat_map(|launch| launch.sends_to_other_hosts()) {
                set.extend((0..DEPTH).map(|slot| (member / scene.members.each, end.ready(slot))));
            }
        }
        let count = launches.len();
        Self {
            command: Time::from_us(path.hop_us / COMMANDS_OF_A_TILE),
            launch: launch(path, 1),
            weight: 1.0,
            counters: vec![Counters::default(); count],
            queues: (0..count * STREAMS as usize).map(|_| Queue::default()).collect(),
            pending: vec![0; count],
            operations: vec![0; count],
            set,
            waiting: FxHashMap::default(),
            owners: Vec::new(),
            slots: Slots::new(count as u32, &timed.constants),
            way: links::Way::default(),
            events: Events::default(),
            flows: Flows::new(scene.links.capacities()),
            ended: vec![Time::ZERO; scene.operations as usize],
            count: 0,
            trace: String::new(),
            launches,
            scene,
        }
    }

    /// A member's streams get the commands of its next operation.
    fn begin(&mut self, member: u32) {
        let at = member as usize;
        let counters = &mut self.counters[at];
        let commands: Vec<Command> =
            self.launches[at].iter().flat_map(|launch| launch.commands(counters)).collect();
        self.pending[at] = commands.len();
        for Command { stream, what } in commands {
            self.queues[at * STREAMS as usize + stream as usize].left.push_back(what);
        }
        for stream in 0..STREAMS {
            self.go_on(member * STREAMS + stream);
        }
        if self.pending[at] == 0 {
            self.end(member);
        }
    }

    /// A stream begins its next command, if it has one and need not wait.
    fn go_on(&mut self, queue: u32) {
        let communicator = self.communicator(queue / STREAMS);
        let Queue { left, current } = &mut self.queues[queue as usize];
        let Some(what) = left.front().filter(|_| current.is_none()) else { return };
        if let What::Await { addr, .. } = what {
            let word = (communicator, *addr);
            if !self.set.remove(&word) {
                self.waiting.insert(word, queue);
                return;
            }
        }
        *current = left.pop_front();
        self.events.add(self.events.now() + self.command, Event::Act(queue));
    }

    /// The current command of a stream takes place.
    fn act(&mut self, queue: u32) {
        let Some(what) = self.queues[queue as usize].current else { return };
        let now = self.events.now();
        match what {
            What::Await { .. } => self.over(queue),
            What::Set { addr } => {
                self.over(queue);
                self.set((self.communicator(queue / STREAMS), addr));
            }
            What::Tell { addr, value } => {
                self.over(queue);
                self.tell(queue / STREAMS, addr, value - 1);
            }
            What::Copy { dst, src, bytes, .. } => self.copy(queue, (src, dst), bytes),
            What::Reduce(reduce) => {
                let bytes = reduce.args.bytes as f64 * f64::from(reduce.args.n);
                let gbs = f64::from(reduce.blocks) * READ_GBS;
                self.events.add(now + Time::from_us(bytes / (gbs * 1e3)), Event::Over(queue));
            }
        }
    }

    /// A word is set: who waits for it goes on.
    fn set(&mut self, word: Word) {
        self.set.insert(word);
        if let Some(other) = self.waiting.remove(&word) {
            self.go_on(other);
        }
    }

    /// A stream of a member tells the proxy of a slot that it has filled or emptied.
    fn tell(&mut self, member: u32, addr: u64, bytes: u32) {
        let (now, first) = (self.events.now(), self.scene.members.first(member));
        let Some((key, sends)) = Slots::told_at(addr, member, first) else { return };
        let operation = self.operations[member as usize] + 1;
        if sends {
            let at = self.slots.fill(key, (bytes.into(), self.fed(key)), operation, now);
            self.events.add(at, Event::Slot(Move::Sent(key)));
        } else if let Some(bytes) = self.slots.emptied(key) {
            self.wake(key, bytes);
        }
    }

    /// A slot goes on on its way.
    fn slot(&mut self, step: Move) {
        let now = self.events.now();
        match step {
            Move::Sent(key) => {
                if let Some(bytes) = self.slots.sent(key) {
                    self.wake(key, bytes);
                }
            }
            Move::Away(key, bytes) => self.send(key, bytes),
            Move::Received(key) => {
                let operation = self.operations[key.1 as usize] + 1;
                let at = self.slots.received(key, self.fed(key), operation, now);
                self.events.add(at, Event::Slot(Move::Taken(key)));
            }
            Move::Taken((from, to, slot)) => self.give_back((to, from, false), slot),
        }
    }

    /// The way of a slot's message, if threads feed it.
    fn fed(&self, (from, to, _): slots::Key) -> Option<Fed> {
        let members = self.scene.members;
        Fed::of(self.scene.links, (members.of(from), members.of(to)))
    }

    /// The message of a slot goes on the wire once somebody moves it.
    fn wake(&mut self, key: slots::Key, bytes: u64) {
        let wake = self.fed(key).map_or(Time::ZERO, |fed| fed.wake(bytes));
        self.events.add(self.events.now() + wake, Event::Slot(Move::Away(key, bytes)));
    }

    /// The message of a slot goes on the wire.
    fn send(&mut self, key: slots::Key, bytes: u64) {
        let ((from, to, slot), members) = (key, self.scene.members);
        let (from, to, links) = (members.of(from), members.of(to), self.scene.links);
        links.far_by_slots(from, to, slot, &mut self.way);
        let (on_wire, limit) = match Fed::of(links, (from, to)).is_some_and(|fed| fed.is_copied(bytes)) {
            true => (1.0, f64::INFINITY),
            false => (bytes as f64, links.of_connection(from, to)),
        };
        let id = self.flows.begin(self.events.now(), on_wire, limit, self.way.hops());
        self.own(id, Owner::Slot(key));
    }

    /// The message of a slot has left the wire: the slot of its sender is free.
    fn left(&mut self, key: slots::Key) {
        let (from, to, slot) = key;
        let at = self.slots.left(self.events.now());
        self.events.add(at, Event::Slot(Move::Received(key)));
        self.give_back((from, to, true), slot);
    }

    /// The proxy sets the word of a member's end of a slot: it is free to fill, or full.
    fn give_back(&mut self, (member, peer, send): (u32, u32, bool), slot: u32) {
        let members = self.scene.members;
        let end = slots::end(memory(members.rank(member)), members.rank(peer), send);
        self.set((self.communicator(member), end.ready(slot)));
    }

    fn own(&mut self, flow: u32, owner: Owner) {
        if self.owners.len() <= flow as usize {
            self.owners.resize(flow as usize + 1, owner);
        }
        self.owners[flow as usize] = owner;
    }

    /// A stream copies: within its GPU, or over the links.
    fn copy(&mut self, queue: u32, (src, dst): (u64, u64), bytes: u64) {
        let (now, members) = (self.events.now(), self.scene.members);
        let (from, to) = (owner(src), owner(dst));
        let rank = members.of(queue / STREAMS);
        let is_slot = from == to && (slots::is_slot(src) || slots::is_slot(dst));
        if is_slot && self.scene.links.to_slot(rank, slots::is_slot(dst), &mut self.way) {
            let id = self.flows.begin(now, bytes as f64, f64::INFINITY, self.way.hops());
            self.own(id, Owner::Stream(queue));
            return;
        }
        if from == to || bytes == 0 {
            let us = bytes as f64 / (LOCAL_GBS * 1e3);
            self.events.add(now + Time::from_us(us), Event::Over(queue));
            return;
        }
        let first = members.first(queue / STREAMS);
        let (from, to) = (members.of(first + from), members.of(first + to));
        self.scene.links.near((from, self.scene.buffers), &[to], self.weight, &mut self.way);
        let id = self.flows.begin(now, bytes as f64, f64::INFINITY, self.way.hops());
        self.own(id, Owner::Stream(queue));
    }

    /// A stream is through with its command.
    fn over(&mut self, queue: u32) {
        self.queues[queue as usize].current = None;
        let member = queue / STREAMS;
        self.pending[member as usize] -= 1;
        self.go_on(queue);
        if self.pending[member as usize] == 0 {
            self.end(member);
        }
    }

    /// A member's operation is over: the next one begins.
    fn end(&mut self, member: u32) {
        let now = self.events.now();
        let done = &mut self.operations[member as usize];
        *done += 1;
        let ended = &mut self.ended[*done as usize - 1];
        *ended = now.max(*ended);
        if *done < self.scene.operations {
            self.events.add(now + self.launch_time(member), Event::Begin(member));
        }
    }

    /// The time that all launches of a member take besides what they move.
    fn launch_time(&self, member: u32) -> Time {
        let launches = &self.launches[member as usize];
        Time::from_us(self.launch.us() * launches.len().max(1) as f64)
    }

    /// The number of a member's communicator.
    fn communicator(&self, member: u32) -> u32 {
        member / self.scene.members.each
    }
}

impl<'a> World<'a> for Engines<'a> {
    type Event = Event;

    fn engine(&mut self) -> Engine<'_, 'a, Event> {
        let Self { events, flows, scene, count, trace, .. } = self;
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
            Event::Begin(member) => self.begin(member),
            Event::Act(queue) => self.act(queue),
            Event::Over(queue) => self.over(queue),
            Event::Flow(ending) => {
                self.flows.end(ending.flow);
                match self.owners[ending.flow as usize] {
                    Owner::Stream(queue) => self.over(queue),
                    Owner::Slot(key) => self.left(key),
                }
            }
            Event::Slot(step) => self.slot(step),
        }
    }
}
