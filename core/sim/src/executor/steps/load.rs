//! From a decision to the programs of all ranks, as the real executor compiles them, in a form that takes
//! little memory.

use hawser_kernels_abi::{ACC_DST, DeviceOp, HAS_DST, HAS_SRC, NO_DEP, SIGNAL, Step, Work};
use hawser_plan::executor::launch::{LaunchPlan, device_op};
use hawser_plan::executor::{self, Decided, Plan, interpreter};
use hawser_plan::p2p::{self, Message};
use hawser_plan::{Call, Decision, PlanConfig, Topology, algo};
use hawser_types::{Result, Route};

use super::names::Names;
use crate::executor::Members;
use crate::links::Links;

/// The programs of all members. Where this says rank, it is the number of a member.
#[derive(Debug, Clone)]
pub struct Programs {
    /// The blocks, rank after rank.
    pub blocks: Vec<Block>,
    /// The steps of all ranks. Instances share them.
    pub steps: Vec<SimStep>,
    /// The connections that steps use: received from, then sent to on the host, then sent to on others.
    pub peers: Vec<u32>,
    /// The connections of one instance.
    pub connections: Vec<Connection>,
    /// The copies of the program.
    pub instances: u32,
    /// The kinds of work that blocks do. A program has one; messages have one for each length.
    pub kinds: Vec<Kind>,
    /// Slots of a connection.
    pub depth: u32,
    /// The launches of all ranks, rank after rank: the first block of each, and the end of the last one.
    pub launches: Vec<u32>,
    /// By rank: its first launch, and the end of the last rank's. A program is one launch; those of messages
    /// follow each other.
    pub first_launch: Vec<u32>,
    /// True if every connection has a slot for each tile that ever crosses it: no sender waits for room.
    pub has_room_for_all: bool,
}

/// A kind of work.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Kind {
    /// Tiles and slices, equal on all ranks.
    pub work: Work,
    /// Bytes of an element of that work.
    pub element: u64,
    /// The route that runs it.
    pub route: Route,
}

impl Kind {
    /// The first work of a launch, whatever its addresses.
    fn of(plan: &LaunchPlan, work: &Work) -> Self {
        let element = if plan.kernel.op == DeviceOp::Copy { 1 } else { plan.kernel.dtype.size() as u64 };
        Self { work: Work { base: [0; 3], ..*work }, element, route: plan.kernel.route }
    }

    /// Bytes of a tile: what sender and receiver move, whatever the buffers hold.
    pub fn tile_bytes(&self, tile: u32) -> u64 {
        let before = u64::from(tile) * u64::from(self.work.tile);
        u64::from(self.work.tile).min(self.work.instance.saturating_sub(before)) * self.element
    }
}

/// A block of a rank.
#[derive(Debug, Clone, Copy)]
pub struct Block {
    /// The rank.
    pub rank: u32,
    /// The first of its steps.
    pub first: u32,
    /// The number of its steps.
    pub count: u16,
    /// The copy of the program that it runs.
    pub instance: u16,
    /// The channel that it runs.
    pub channel: u16,
    /// Its kind of work, a place in [`Programs::kinds`].
    pub kind: u16,
}

/// A step of a block.
#[derive(Debug, Clone, Copy)]
pub struct SimStep {
    /// Its first connection.
    pub peers: u32,
    /// The number of times that it runs.
    pub times: u32,
    /// Slots that it takes.
    pub recv: u8,
    /// Slots that it fills on the same host.
    pub near: u8,
    /// Slots that it fills for other hosts.
    pub far: u8,
    /// The values that it reads, those of slots among them.
    pub reads: u8,
    /// The places that it writes to, slots and the own buffer.
    pub writes: u8,
    /// The channel and the step that it waits for; the channel is [`NO_DEP`] if none.
    pub after: (u16, u16),
    /// True if other channels wait for it.
    pub signals: bool,
}

/// A FIFO of one instance.
#[derive(Debug, Clone, Copy)]
pub struct Connection {
    /// The rank that fills it.
    pub from: u32,
    /// The rank that empties it.
    pub to: u32,
    /// The rank that acts for that one.
    pub actor: u32,
    /// Its lane.
    pub lane: u8,
    /// True if it crosses the network.
    pub is_far: bool,
    /// The filling block of the first instance, and how many blocks on that of the next one is.
    pub sender: (u32, u32),
    /// The same of the emptying block.
    pub receiver: (u32, u32),
}

impl Connection {
    /// One that nobody uses.
    pub const UNUSED: Self = Self {
        from: u32::MAX,
        to: u32::MAX,
        actor: 0,
        lane: 0,
        is_far: true,
        sender: (0, 0),
        receiver: (0, 0),
    };

    /// True if somebody uses it.
    pub fn is_used(&self) -> bool {
        self.from != u32::MAX
    }
}

impl Programs {
    /// Loads the programs for a call that steps run.
    ///
    /// # Errors
    /// A program that cannot be made or does not fit the settings.
    pub fn new(
        call: &Call,
        decision: &Decision,
        (topology, config): (&Topology, &PlanConfig),
        (links, members): (&Links<'_>, Members<'_>),
    ) -> Result<Self> {
        let mut loader = Loader::new(links, members, config);
        let shape = algo::shape(&decision.key)?;
        let executor = executor::of(decision.route.executor);
        for member in 0..members.count() {
            let rank = members.rank(member);
            let program = algo::rank_program(&decision.key, rank)?;
            let lowered = interpreter::lower(&shape, &program, device_op(call))?;
            let decided = Decided { call, decision, rank, topology, config };
            if let Plan::Steps(plan) = executor.compile(&decided, Some(&lowered))? {
                loader.add(member, &plan, &lowered.steps);
            }
            loader.end_of_rank();
        }
        Ok(loader.programs)
    }

    /// Loads the launches of a group of messages, which every rank has by its number.
    ///
    /// # Errors
    /// Messages that cannot be.
    pub fn of_messages(
        messages: &dyn Fn(u32) -> Vec<Message>,
        (topology, config): (&Topology, &PlanConfig),
        (links, members): (&Links<'_>, Members<'_>),
    ) -> Result<Self> {
        let mut loader = Loader::new(links, members, config);
        for member in 0..members.count() {
            let rank = members.rank(member);
            for plan in p2p::plan(&messages(rank), rank, members.each, topology, config)? {
                loader.add_messages(member, &plan, config.lanes as u8);
            }
            loader.end_of_rank();
        }
        let used = loader.programs.connections.iter().filter(|connection| connection.is_used()).count();
        let programs = &mut loader.programs;
        // One message on each connection, and all its tiles fit.
        let fits = |kind: &Kind| kind.work.tiles <= programs.depth;
        programs.has_room_for_all = used * 2 == programs.peers.len() && programs.kinds.iter().all(fits);
        Ok(loader.programs)
    }

    /// Tiles and slices of a program.
    pub fn work(&self) -> Work {
        self.kinds.first().map_or_else(Work::default, |kind| kind.work)
    }

    /// Steps that all blocks run for a number of tiles.
    pub fn executions(&self, tiles: u32) -> u64 {
        let of = |block: &Block| -> u64 {
            let steps = &self.steps[block.first as usize..block.first as usize + usize::from(block.count)];
            steps.iter().map(|step| u64::from(step.times)).sum()
        };
        self.blocks.iter().map(of).sum::<u64>() * u64::from(tiles)
    }

    /// The number of times that the step runs which is repeated most.
    pub fn most_times(&self) -> u32 {
        self.steps.iter().map(|step| step.times).max().unwrap_or(0)
    }

    /// The same programs, in which no step runs more than `most` times; None if somebody would then wait for
    /// what nobody sends.
    pub fn shortened(&self, most: u32) -> Option<Self> {
        // Who waits for a repetition of another channel would wait for one that does not come.
        if self.steps.iter().any(|step| step.after.0 != NO_DEP) {
            return None;
        }
        let mut short = self.clone();
        short.steps.iter_mut().for_each(|step| step.times = step.times.min(most));
        let mut slots: Vec<i64> = vec![0; short.connections.len()];
        for step in short.steps.iter() {
            let (recv, all) = (u32::from(step.recv), u32::from(step.recv + step.near + step.far));
            for place in 0..all {
                let filled = if place < recv { -1 } else { 1 };
                let connection = short.peers[(step.peers + place) as usize];
                slots[connection as usize] += filled * i64::from(step.times);
            }
        }
        slots.iter().all(|left| *left == 0).then_some(short)
    }
}

struct Loader<'a> {
    links: &'a Links<'a>,
    members: Members<'a>,
    names: Names,
    programs: Programs,
}

impl<'a> Loader<'a> {
    fn new(links: &'a Links<'a>, members: Members<'a>, config: &PlanConfig) -> Self {
        let programs = Programs {
            blocks: Vec::new(),
            steps: Vec::new(),
            peers: Vec::new(),
            connections: Vec::new(),
            instances: 1,
            kinds: Vec::new(),
            depth: config.depth.max(1),
            launches: vec![0],
            first_launch: vec![0],
            has_room_for_all: false,
        };
        Self { links, members, names: Names::new(members), programs }
    }

    /// All launches of a rank are there.
    fn end_of_rank(&mut self) {
        self.programs.first_launch.push(self.programs.launches.len() as u32 - 1);
    }

    /// The number of a kind of work.
    fn kind(&mut self, kind: Kind) -> u16 {
        let kinds = &mut self.programs.kinds;
        let at = kinds.iter().position(|known| *known == kind).unwrap_or_else(|| {
            kinds.push(kind);
            kinds.len() - 1
        });
        at as u16
    }

    /// Adds a launch of messages: each block has one step. A message is a connection, which has the lane of
    /// its copy; that those to lower ranks have other ones makes no difference to links.
    fn add_messages(&mut self, rank: u32, plan: &LaunchPlan, first_lane: u8) {
        for block in &plan.args.blocks[..usize::from(plan.args.n_blocks)] {
            let kind = self.kind(Kind::of(plan, &plan.args.works[usize::from(block.work)]));
            let (number, first) = (self.programs.blocks.len() as u32, self.programs.steps.len() as u32);
            let channel = u16::from(block.channel);
            self.programs.blocks.push(Block { rank, first, count: 1, instance: 0, channel, kind });
            let step = &plan.args.inline_steps[usize::from(block.first_step)];
            self.add_step(rank, first_lane + block.instance as u8, (number, 0), step);
        }
        self.programs.launches.push(self.programs.blocks.len() as u32);
    }

    /// Adds a rank: its steps once, its blocks for every instance.
    fn add(&mut self, rank: u32, plan: &LaunchPlan, steps: &[Step]) {
        let used = &plan.args.blocks[..usize::from(plan.args.n_blocks)];
        let first_block = self.programs.blocks.len() as u32;
        let of_instance = used.iter().filter(|block| block.instance == 0).count() as u32;
        for (number, block) in (0..).zip(used) {
            let kind = self.kind(Kind::of(plan, &plan.args.works[usize::from(block.work)]));
            let range =
                usize::from(block.first_step)..usize::from(block.first_step) + usize::from(block.n_steps);
            self.programs.blocks.push(Block {
                rank,
                first: if block.instance == 0 {
                    self.programs.steps.len() as u32
                } else {
                    self.programs.blocks[(first_block + number % of_instance.max(1)) as usize].first
                },
                count: u16::from(block.n_steps),
                instance: block.instance,
                channel: u16::from(block.channel),
                kind,
            });
            if block.instance == 0 {
                for step in &steps[range] {
                    self.add_step(rank, block.lane, (first_block + number, of_instance), step);
                }
            }
            self.programs.instances = self.programs.instances.max(u32::from(block.instance) + 1);
        }
        self.programs.launches.push(self.programs.blocks.len() as u32);
    }

    fn add_step(&mut self, rank: u32, lane: u8, block: (u32, u32), step: &Step) {
        let peers = self.programs.peers.len() as u32;
        let first = self.members.first(rank);
        let recv = &step.recv[..usize::from(step.n_recv)];
        let send = &step.send[..usize::from(step.n_send)];
        for &peer in recv {
            let connection = self.connection(lane, first + u32::from(peer), rank);
            self.programs.connections[connection as usize].receiver = block;
            self.programs.peers.push(connection);
        }
        let mut counts = [0, 0];
        for far in [false, true] {
            for peer in send.iter().map(|peer| first + u32::from(*peer)) {
                if self.is_far(rank, peer) != far {
                    continue;
                }
                let connection = self.connection(lane, rank, peer);
                self.programs.connections[connection as usize].sender = block;
                self.programs.peers.push(connection);
                counts[usize::from(far)] += 1;
            }
        }
        let local = u8::from(step.flags & HAS_SRC != 0) + u8::from(step.flags & ACC_DST != 0);
        self.programs.steps.push(SimStep {
            peers,
            times: step.times,
            recv: step.n_recv,
            near: counts[0],
            far: counts[1],
            reads: step.n_recv + local,
            writes: step.n_send + u8::from(step.flags & HAS_DST != 0),
            after: if step.after_channel == NO_DEP {
                (NO_DEP, 0)
            } else {
                (step.after_channel, step.after_step)
            },
            signals: step.flags & SIGNAL != 0,
        });
    }

    /// True if two members are on different hosts.
    fn is_far(&self, a: u32, b: u32) -> bool {
        self.links.host_of(self.members.of(a)) != self.links.host_of(self.members.of(b))
    }

    fn connection(&mut self, lane: u8, from: u32, to: u32) -> u32 {
        let (from, to) = self.members.seen_by_actor(from, to);
        let connections = &mut self.programs.connections;
        let number = self.names.number((lane, from, to), connections);
        if !connections[number as usize].is_used() {
            let (is_far, actor) = (self.is_far(from, to), self.members.actor(to));
            self.programs.connections[number as usize] =
                Connection { from, to, actor, lane, is_far, ..Connection::UNUSED };
        }
        number
    }
}
