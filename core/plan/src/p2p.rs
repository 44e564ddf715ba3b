//! Batches of point-to-point messages: which launches, blocks and lanes carry them.
//!
//! # Why no batch can deadlock
//! Every message has a key of three numbers, which both ends compute alike if they group alike:
//!
//! 1. the *pass*: its number among the messages between the same two ranks in the same direction;
//! 2. the *protocol*: a function of its size and of settings that are equal on all ranks;
//! 3. the *round*: `(receiver - sender) mod ranks`.
//!
//! On every rank, launches take the messages in ascending order of keys and run one after the other. The
//! messages of one key (at most one sent and one received) are always in one launch.
//!
//! Take the smallest key with an unfinished message. On every rank, all launches before the one that holds
//! this key hold smaller keys only, so they end. Then that launch runs, with all its blocks side by side. So
//! both ends of the message run, and it ends.
//!
//! The pass comes first in the key, so that messages of two ranks keep their order also where one end groups
//! what the other sends one by one. (There, a launch of several peers' messages may wait for one of them
//! longer than each alone would have to.)
//!
//! # Lanes
//! A launch never holds two messages of the same direction and peer, so no two blocks share a FIFO
//! end. Messages have lanes of their own, behind those of collectives: ranks may have the two in
//! different order, since neither waits for the other where slots are free. Messages to a lower rank
//! use the upper half of them, so a block that sends and a block that receives never share a lane
//! with the same peer either (a device keeps the counters of both directions together).

use crate::config::PlanConfig;
use crate::executor::copy_engine;
use crate::executor::fused::zero_copy;
use crate::executor::interpreter::cut;
use crate::executor::launch::LaunchPlan;
use crate::topology::Topology;
use hawser_kernels_abi::{
    Args, Block, DeviceOp, HAS_DST, HAS_SRC, INLINE_STEPS, KernelKey, MAX_BLOCKS, MAX_WORKS, NO_DEP, Step,
    Work, protocol_number,
};
use hawser_program::Buf;
use hawser_types::{DataType, DeviceKind, Link, PlanError, Result, Route};
use rustc_hash::FxHashMap;

/// One send or receive of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Message {
    /// The other rank.
    pub peer: u32,
    /// True: to the peer; false: from it.
    pub send: bool,
    /// Address of the buffer.
    pub addr: u64,
    /// Length in bytes; equal at both ends.
    pub bytes: u64,
}

/// The launches of one group on `rank`, in launch order. Empty if there is nothing to move.
///
/// # Errors
/// `InvalidArgument` for a peer that is no rank; `InvalidUsage` for messages to oneself that do
/// not pair up.
pub fn plan(
    messages: &[Message],
    rank: u32,
    ranks: u32,
    topology: &Topology,
    config: &PlanConfig,
) -> Result<Vec<LaunchPlan>> {
    if let Some(bad) = messages.iter().find(|m| m.peer >= ranks) {
        let what = if bad.send { "send to" } else { "receive from" };
        return Err(PlanError::argument(format!(
            "rank {rank}: {what} rank {}, which is not a rank of this communicator (0..{})",
            bad.peer,
            ranks - 1
        )));
    }
    let copies = own_copies(messages, rank)?;
    let remote = keyed(messages, rank, ranks, topology, config);
    let own =
        if by_copy_engines(topology, config) { Route::COPY_ENGINE } else { Route::simple(topology.device) };
    let mut launches = Launches { config, rank, topology, list: Vec::new(), used: Vec::new() };
    let route = remote.first().map_or(own, |(key, _)| key.route);
    for OwnCopy { from, to, bytes } in copies {
        let part = Part { peer: rank, send: false, recv: false, base: [from, to, 0], bytes };
        launches.add(route, &[part])?;
    }
    for group in remote.chunk_by(|a, b| a.0 == b.0) {
        let parts: Vec<Part> = group.iter().map(|(_, message)| Part::message(message)).collect();
        launches.add(group[0].0.route, &parts)?;
    }
    Ok(launches.list)
}

/// True if copy engines carry messages: rules are not asked about them.
fn by_copy_engines(topology: &Topology, config: &PlanConfig) -> bool {
    config.pass_sm > 0 && copy_engine::has_staging(topology, config)
}

/// The least message that may land where the receiver wants it, where ranks reach each other's buffers in any
/// case, and where that takes windows: without any, 2 MiB took 1.1 times as long, 8 MiB 1.02 (4 H100).
const LEAST_LANDING: [u64; 2] = [4 << 20, 8 << 20];

/// The protocol of a message: equal at both ends because sizes and settings are. Whether the sender reaches
/// the receiver's buffer is not asked here: the ends tell each other ([`Work::landing`]). Over NVLink a block
/// of LL moves up to 16 KiB in less time than the other protocols take to begin (2 H200: 128 KiB in 12 blocks
/// take 5.5 µs, with LL128 7.0).
pub fn route(bytes: u64, is_far: bool, topology: &Topology, config: &PlanConfig) -> Route {
    const SMALL: u64 = 16 << 10;
    if by_copy_engines(topology, config) {
        return Route::COPY_ENGINE;
    }
    let DeviceKind::Cuda { sm } = topology.device else { return Route::HOST };
    let usable = |p: Route| u64::from(config.slot_bytes[p.slots()]) >= 128;
    let is_one_slot = bytes <= u64::from(config.slot_bytes[Route::LL.slots()]);
    if is_far {
        return if is_one_slot && usable(Route::LL) { Route::LL } else { Route::SIMPLE };
    }
    let (ll, ll128) = match topology.link {
        Link::NvLink if sm >= 70 => {
            ((u64::from(most_blocks(topology, config)) * SMALL).min(128 << 10), 256 << 10)
        }
        Link::NvLink | Link::Pcie | Link::HostMemory => (SMALL, 0),
    };
    // Where there are several hosts, slots of LL are as small as networks want them.
    let has_small_slots = topology.hosts() > 1;
    if bytes <= ll && usable(Route::LL) && (is_one_slot || !has_small_slots) {
        Route::LL
    } else if bytes <= ll128 && usable(Route::LL128) {
        Route::LL128
    } else if bytes >= LEAST_LANDING[usize::from(!topology.direct)]
        && zero_copy::is_possible(topology, config)
    {
        Route::LANDING
    } else {
        Route::SIMPLE
    }
}

/// Blocks that carry a message of `bytes` bytes in each direction: equal at both ends. Small messages
/// get as many as let a rank exchange one with every peer in a single launch.
pub fn instances(bytes: u64, is_far: bool, topology: &Topology, config: &PlanConfig) -> u32 {
    if is_far {
        // As many connections as bring anything over TCP.
        return (bytes.div_ceil(1 << 20).clamp(1, 4) as u32).min(most_each_way(topology, config));
    }
    let most = most_blocks(topology, config);
    let wanted = match (route(bytes, is_far, topology, config), bytes) {
        // A piece for each thread.
        (Route::LL, _) => bytes.div_ceil(2 << 10).clamp(1, u64::from(most)) as u32,
        (_, ..=0x8_0000) => bytes.div_ceil(16 << 10).clamp(1, u64::from(most)) as u32,
        (_, ..=0x20_0000) => most.max(4),
        _ => 12,
    };
    wanted.min(most_each_way(topology, config))
}

/// Most blocks of a message, so that one that is sent and one that is received stay within the CTAs of a
/// launch.
fn most_each_way(topology: &Topology, config: &PlanConfig) -> u32 {
    let ctas = if topology.device == DeviceKind::Host { config.max_ctas } else { config.max_ctas / 2 };
    ctas.min(config.message_lanes() / 2).max(1)
}

/// Blocks of a small message, so that a rank may exchange one with every peer in a single launch.
fn most_blocks(topology: &Topology, config: &PlanConfig) -> u32 {
    let share = (MAX_BLOCKS as u32 / (2 * topology.size().saturating_sub(1).max(1))).clamp(1, 12);
    share.min(most_each_way(topology, config))
}

/// The order of messages, the first field first; equal at both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    /// Its number among the messages between the same ranks in the same direction.
    pass: u32,
    /// The executor and the protocol.
    route: Route,
    /// Receiver minus sender, modulo the number of ranks.
    round: u32,
}

/// A piece of work: a message, or a copy between two messages to oneself.
#[derive(Debug, Clone, Copy)]
struct Part {
    /// The other rank; this one for a copy.
    peer: u32,
    /// True for a message to the peer.
    send: bool,
    /// True for a message from the peer.
    recv: bool,
    /// Addresses of input, output and scratch, as [`Work::base`] has them.
    base: [u64; 3],
    /// Length in bytes.
    bytes: u64,
}

impl Part {
    fn message(message: &Message) -> Self {
        let base = if message.send { [message.addr, 0, 0] } else { [0, message.addr, 0] };
        Self { peer: message.peer, send: message.send, recv: !message.send, base, bytes: message.bytes }
    }

    /// The step that does it: a copy, a send, or a receive.
    fn step(&self) -> Step {
        let (src_buf, dst_buf) = (Buf::Input as u8, Buf::Output as u8);
        let mut step = Step { after_channel: NO_DEP, times: 1, src_buf, dst_buf, ..Step::default() };
        if !self.recv {
            step.flags |= HAS_SRC;
        }
        if !self.send {
            step.flags |= HAS_DST;
        }
        if self.send {
            step.n_send = 1;
            step.send[0] = self.peer as u16;
        }
        if self.recv {
            step.n_recv = 1;
            step.recv[0] = self.peer as u16;
        }
        step
    }
}

/// Messages to others, sorted by key.
fn keyed(
    messages: &[Message],
    rank: u32,
    ranks: u32,
    topology: &Topology,
    config: &PlanConfig,
) -> Vec<(Key, Message)> {
    let mut seen: FxHashMap<(u32, bool), u32> = FxHashMap::default();
    let mut keyed: Vec<(Key, Message)> = messages
        .iter()
        .filter(|m| m.peer != rank && m.bytes > 0)
        .map(|&message| {
            let route = route(message.bytes, topology.is_far(rank, message.peer), topology, config);
            let count = seen.entry((message.peer, message.send)).or_default();
            let pass = *count;
            *count += 1;
            let (from, to) = if message.send { (rank, message.peer) } else { (message.peer, rank) };
            (Key { pass, route, round: (to + ranks - from) % ranks }, message)
        })
        .collect();
    keyed.sort_by_key(|(key, message)| (*key, message.send));
    keyed
}

/// A copy between two messages to oneself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnCopy {
    /// Address that is sent from.
    pub from: u64,
    /// Address that is received into.
    pub to: u64,
    /// Length in bytes, above 0.
    pub bytes: u64,
}

/// Pairs the k-th send to oneself with the k-th receive from oneself. What is sent to where it lies needs no
/// copy.
///
/// # Errors
/// `InvalidUsage` if they do not pair up, or a pair differs in length.
pub fn own_copies(messages: &[Message], rank: u32) -> Result<Vec<OwnCopy>> {
    let own = |send: bool| messages.iter().filter(move |m| m.peer == rank && m.send == send);
    let (sends, recvs) = (own(true).count(), own(false).count());
    if sends != recvs {
        return Err(PlanError::usage(format!(
            "rank {rank}: {sends} sends to itself but {recvs} receives from itself in one group: \
             put each pair into the same group"
        )));
    }
    let mut copies = Vec::new();
    for (number, (from, to)) in own(true).zip(own(false)).enumerate() {
        if from.bytes != to.bytes {
            return Err(PlanError::usage(format!(
                "rank {rank}: send {number} to itself has {} bytes, the receive {}: make them equal",
                from.bytes, to.bytes
            )));
        }
        if from.bytes > 0 && from.addr != to.addr {
            copies.push(OwnCopy { from: from.addr, to: to.addr, bytes: from.bytes });
        }
    }
    Ok(copies)
}

/// Fills launches one after the other.
struct Launches<'a> {
    config: &'a PlanConfig,
    rank: u32,
    topology: &'a Topology,
    list: Vec<LaunchPlan>,
    /// The peer and the direction (true: to it) of each work of the last launch.
    used: Vec<(u32, bool)>,
}

impl Launches<'_> {
    /// Adds parts that have to be in one launch.
    fn add(&mut self, route: Route, parts: &[Part]) -> Result<()> {
        let mut cuts = Vec::new();
        for part in parts {
            let mut work = Work {
                base: part.base,
                count: part.bytes,
                per_block: 1,
                chunks: [1, 1, 0],
                ..Work::default()
            };
            let n = self.cut(&mut work, part, route)?;
            work.slices = 1;
            cuts.push((work, n));
        }
        let blocks: usize = cuts.iter().map(|&(_, n)| n as usize).sum();
        let is_ctas = route != Route::COPY_ENGINE && self.topology.device != DeviceKind::Host;
        let ctas = if is_ctas { self.config.max_ctas as usize } else { MAX_BLOCKS };
        let fits = self.list.last().is_some_and(|last| {
            last.kernel.route == route
                && usize::from(last.args.n_blocks) + blocks <= MAX_BLOCKS.min(ctas)
                && self.used.len() + parts.len() <= MAX_WORKS.min(INLINE_STEPS)
                && !parts.iter().any(|p| p.peer != self.rank && self.meets(p))
        });
        if !fits {
            self.used.clear();
            self.list.push(self.empty(route));
        }
        let Some(launch) = self.list.last_mut() else { return Ok(()) };
        let first_of_key = self.used.len() as u8;
        for (part, (work, n)) in parts.iter().zip(cuts) {
            let index = self.used.len() as u8;
            launch.args.works[usize::from(index)] = work;
            launch.args.inline_steps[usize::from(index)] = part.step();
            launch.args.n_inline = index + 1;
            self.used.push((part.peer, part.send));
            // Messages to a lower rank, at both ends: see "Lanes".
            let downward = if part.send { part.peer < self.rank } else { part.peer > self.rank };
            let shares_lanes = route == Route::COPY_ENGINE;
            let first_lane = match downward {
                _ if shares_lanes => 0,
                false => self.config.lanes,
                true => self.config.lanes + self.config.message_lanes() / 2,
            };
            for instance in 0..n {
                let lane = if part.send || part.recv { first_lane + instance } else { 0 } as u8;
                launch.args.blocks[usize::from(launch.args.n_blocks)] = Block {
                    first_step: u16::from(index),
                    n_steps: 1,
                    lane,
                    instance: instance as u16,
                    work: index,
                    // Copy engines begin what has one key together.
                    channel: if shares_lanes { first_of_key } else { index },
                };
                launch.args.n_blocks += 1;
            }
        }
        Ok(())
    }

    /// Cuts a part's work into tiles and blocks; returns the number of blocks.
    fn cut(&self, work: &mut Work, part: &Part, route: Route) -> Result<u32> {
        if route == Route::COPY_ENGINE {
            let staged = copy_engine::config(self.config, self.topology, part.bytes);
            return cut(work, copy_engine::LANES, route, 1, &staged);
        }
        let is_far = self.topology.is_far(self.rank, part.peer);
        cut(work, instances(part.bytes, is_far, self.topology, self.config), route, 1, self.config)
    }

    /// True if a part would share an end of a FIFO with the last launch.
    fn meets(&self, part: &Part) -> bool {
        self.used.contains(&(part.peer, part.send))
    }

    /// A launch without works.
    fn empty(&self, route: Route) -> LaunchPlan {
        let kernel = KernelKey::new(DeviceOp::Copy, DataType::Uint8, route);
        let threads = crate::cost::threads(self.topology.device, route);
        let args = Box::new(Args { protocol: protocol_number(route), ..Args::default() });
        LaunchPlan { args, kernel, threads, scratch_bytes: 0, direct: copy_engine::Direct::Free, ctas: 0 }
    }
}
