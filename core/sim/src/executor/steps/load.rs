//! From a decision to the programs of all ranks, as the real executor compiles them, in a form that takes
//! little memory.

use hawser_kernels_abi::{ACC_DST, DeviceOp, HAS_SRC, NO_DEP, SIGNAL, Step, Work};
use hawser_plan::executor::launch::{LaunchPlan, device_op};
use hawser_plan::executor::{self, Decided, Plan, interpreter};
use hawser_plan::{Call, Decision, PlanConfig, Topology, algo};
use hawser_types::{Result, Route};
use rustc_hash::FxHashMap;

use crate::links::Links;

/// The programs of all ranks.
#[derive(Debug)]
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
    /// Tiles and slices, equal on all ranks.
    pub work: Work,
    /// Bytes of an element of that work.
    pub element: u64,
    /// The route that runs them.
    pub route: Route,
    /// Slots of a connection.
    pub depth: u32,
    /// By rank: its first block, and the end of the last rank's.
    pub first_block: Vec<u32>,
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
    /// Its lane.
    pub lane: u8,
    /// True if it crosses the network.
    pub is_far: bool,
    /// The filling block of the first instance, and how many blocks on that of the next one is.
    pub sender: (u32, u32),
    /// The same of the emptying block.
    pub receiver: (u32, u32),
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
        links: &Links<'_>,
    ) -> Result<Self> {
        let mut loader = Loader {
            links,
            by_name: FxHashMap::default(),
            programs: Self {
                blocks: Vec::new(),
                steps: Vec::new(),
                peers: Vec::new(),
                connections: Vec::new(),
                instances: 1,
                work: Work::default(),
                element: 1,
                route: decision.route,
                depth: config.depth.max(1),
                first_block: vec![0],
            },
        };
        let shape = algo::shape(&decision.key)?;
        let executor = executor::of(decision.route.executor);
        for rank in 0..topology.size() {
            let program = algo::rank_program(&decision.key, rank)?;
            let lowered = interpreter::lower(&shape, &program, device_op(call))?;
            let decided = Decided { call, decision, rank, topology, config };
            if let Plan::Steps(plan) = executor.compile(&decided, Some(&lowered))? {
                loader.add(rank, &plan, &lowered.steps);
            }
        }
        Ok(loader.programs)
    }

    /// Steps that all blocks run for a number of tiles.
    pub fn executions(&self, tiles: u32) -> u64 {
        let of = |block: &Block| -> u64 {
            let steps = &self.steps[block.first as usize..block.first as usize + usize::from(block.count)];
            steps.iter().map(|step| u64::from(step.times)).sum()
        };
        self.blocks.iter().map(of).sum::<u64>() * u64::from(tiles)
    }

    /// Bytes of a tile: what sender and receiver move, whatever the buffers hold.
    pub fn tile_bytes(&self, tile: u32) -> u64 {
        let before = u64::from(tile) * u64::from(self.work.tile);
        u64::from(self.work.tile).min(self.work.instance.saturating_sub(before)) * self.element
    }
}

struct Loader<'a> {
    links: &'a Links<'a>,
    /// Connections by lane, sender and receiver.
    by_name: FxHashMap<(u8, u32, u32), u32>,
    programs: Programs,
}

impl Loader<'_> {
    /// Adds a rank: its steps once, its blocks for every instance.
    fn add(&mut self, rank: u32, plan: &LaunchPlan, steps: &[Step]) {
        let used = &plan.args.blocks[..usize::from(plan.args.n_blocks)];
        let first_step = self.programs.steps.len() as u32;
        let first_block = self.programs.blocks.len() as u32;
        let of_instance = used.iter().filter(|block| block.instance == 0).count() as u32;
        for (number, block) in (0..).zip(used) {
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
            });
            if block.instance == 0 {
                for step in &steps[range] {
                    self.add_step(rank, block.lane, (first_block + number, of_instance), step);
                }
            }
            self.programs.instances = self.programs.instances.max(u32::from(block.instance) + 1);
        }
        if !used.is_empty() {
            self.programs.work = plan.args.works[0];
            let is_copy = plan.kernel.op == DeviceOp::Copy;
            self.programs.element = if is_copy { 1 } else { plan.kernel.dtype.size() as u64 };
        }
        debug_assert!(first_step as usize <= self.programs.steps.len());
        self.programs.first_block.push(self.programs.blocks.len() as u32);
    }

    fn add_step(&mut self, rank: u32, lane: u8, block: (u32, u32), step: &Step) {
        let peers = self.programs.peers.len() as u32;
        let recv = &step.recv[..usize::from(step.n_recv)];
        let send = &step.send[..usize::from(step.n_send)];
        for &peer in recv {
            let connection = self.connection(lane, u32::from(peer), rank);
            self.programs.connections[connection as usize].receiver = block;
            self.programs.peers.push(connection);
        }
        let is_far = |links: &Links<'_>, peer: u16| links.host_of(u32::from(peer)) != links.host_of(rank);
        let mut counts = [0, 0];
        for far in [false, true] {
            for &peer in send.iter().filter(|peer| is_far(self.links, **peer) == far) {
                let connection = self.connection(lane, rank, u32::from(peer));
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
            after: if step.after_channel == NO_DEP {
                (NO_DEP, 0)
            } else {
                (step.after_channel, step.after_step)
            },
            signals: step.flags & SIGNAL != 0,
        });
    }

    fn connection(&mut self, lane: u8, from: u32, to: u32) -> u32 {
        let connections = &mut self.programs.connections;
        let next = connections.len() as u32;
        *self.by_name.entry((lane, from, to)).or_insert_with(|| {
            let is_far = self.links.host_of(from) != self.links.host_of(to);
            connections.push(Connection { from, to, lane, is_far, sender: (0, 0), receiver: (0, 0) });
            next
        })
    }
}
