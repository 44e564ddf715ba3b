//! Simulated ranks with copy engines: streams that progress in any order, and devices that run all streams of
//! a rank as one; hosts whose proxies carry slots whenever they like.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use hawser_kernels_abi::Step;
use hawser_plan::PlanConfig;
use hawser_plan::executor::copy_engine::inter_node::{
    self, End, InterNodeEnds, STRAIGHT, STRAIGHT_AT, WORDS,
};
use hawser_plan::executor::copy_engine::{
    Bases, Command, Counters, DEPTH, Direct, Emitter, Leg, ReduceKernel, STREAMS, Staging, Way, What,
};
use hawser_plan::executor::launch::LaunchPlan;
use hawser_plan::topology::{DeviceKind, Link, Topology};

/// Slots of 4 KiB.
pub fn settings() -> PlanConfig {
    PlanConfig { pass_sm: 1, staging_bytes: 3 * 4096, ..PlanConfig::default() }
}

pub fn topology(ranks: u32) -> Topology {
    Topology::single_host(ranks, DeviceKind::Cuda { sm: 90 }, Link::NvLink)
}

/// Hosts of so many ranks each.
pub fn hosts(ranks: u32, per_host: u32) -> Topology {
    Topology::of_hosts(ranks, per_host, DeviceKind::Cuda { sm: 90 }, Link::NvLink)
}

/// Memory of all ranks: rank r's byte i has the address (r + 1) << 32 | i. User buffers come first, staging
/// at `STAGING`, slots that the network carries at `FAR`.
pub struct Machine {
    pub topology: Topology,
    pub memory: Vec<Vec<u8>>,
    pub bases: Vec<Bases>,
    pub inter_node: Vec<Arc<InterNodeEnds>>,
    wires: Vec<Wire>,
    /// Bytes that went between hosts without a slot, at the sender and at the receiver.
    pub straight: [u64; 2],
    /// The network reaches all users' buffers; else two of three.
    pub reaches_all: bool,
    pub counters: Vec<Counters>,
}

/// A slot that the network carries, and its words at either end.
pub struct Wire {
    from: (End, u32),
    to: (End, u32),
    /// The place and bytes of what the receiver's proxy receives next.
    posted: Option<(u64, u64)>,
    /// It receives what is asked for, no earlier.
    asks: bool,
}

pub const STAGING: u64 = 1 << 25;
pub const FAR: u64 = 1 << 26;
/// Output buffers.
pub const OUTPUT: u64 = 1 << 23;

pub fn address(rank: u32, at: u64) -> u64 {
    (u64::from(rank) + 1) << 32 | at
}

impl Machine {
    pub fn new(ranks: u32) -> Self {
        Self::on(topology(ranks))
    }

    /// Proxies receive into every slot that is free.
    pub fn on(topology: Topology) -> Self {
        Self::asking(topology, 0)
    }

    /// The proxies of the ranks whose bits are set in `asks` receive what streams ask for.
    pub fn asking(topology: Topology, asks: u64) -> Self {
        let asks = |rank: u32| asks >> rank & 1 == 1;
        let ranks = topology.size();
        let (places, local) = topology.places();
        let layout = Staging::new(local, &settings());
        let slot = inter_node::slot_bytes(&topology, &settings());
        let end_bytes = u64::from(DEPTH) * (WORDS + slot);
        let bytes = FAR + 2 * u64::from(ranks) * end_bytes;
        let mut memory: Vec<Vec<u8>> = (0..ranks).map(|_| vec![0; bytes as usize]).collect();
        let (at, bytes) = layout.free_words();
        for rank in &mut memory {
            for word in (0..bytes).step_by(16) {
                rank[(STAGING + at + word) as usize] = 1;
            }
        }
        let base =
            |rank: u32, peer: u32| if topology.is_far(rank, peer) { 0 } else { address(peer, STAGING) };
        let bases = (0..ranks).map(|rank| {
            let staging = (0..ranks).map(|peer| base(rank, peer)).collect();
            Bases { rank, staging, places: places.clone(), layout }
        });
        let end = |rank: u32, peer: u32, send: bool| {
            let words = address(rank, FAR + u64::from(2 * peer + u32::from(send)) * end_bytes);
            End { words, slots: words + u64::from(DEPTH) * WORDS, stride: slot }
        };
        let mut inter_node: Vec<_> = (0..ranks).map(|rank| InterNodeEnds::new(asks(rank))).collect();
        let mut wires = Vec::new();
        for (from, to) in
            (0..ranks * ranks).map(|i| (i / ranks, i % ranks)).filter(|(a, b)| topology.is_far(*a, *b))
        {
            let (out, into) = (end(from, to, true), end(to, from, false));
            inter_node[from as usize].add(to, true, out);
            inter_node[to as usize].add(from, false, into);
            for slot in 0..DEPTH {
                memory[from as usize][(out.ready(slot) & 0xffff_ffff) as usize] = 1;
                let posted = (!asks(to)).then_some((into.data(slot), u64::MAX));
                wires.push(Wire { from: (out, slot), to: (into, slot), posted, asks: asks(to) });
            }
        }
        let (bases, inter_node) = (bases.collect(), inter_node.into_iter().map(Arc::new).collect());
        Self {
            topology,
            memory,
            bases,
            inter_node,
            wires,
            straight: [0; 2],
            reaches_all: false,
            counters: vec![Counters::default(); ranks as usize],
        }
    }

    pub fn word(&mut self, addr: u64) -> &mut [u8; 4] {
        self.at(addr, 4).first_chunk_mut().unwrap()
    }

    /// Does what a proxy does about a slot; true if it did anything.
    pub fn carry(&mut self, index: usize) -> bool {
        let Wire { from: (out, a), to: (into, b), posted, .. } = self.wires[index];
        let Some((to, room)) = posted else {
            // Emptied, or asked for: another message may come.
            let asked = self.told(into, b);
            self.wires[index].posted = asked.map(|(place, _)| place.unwrap_or((into.data(b), u64::MAX)));
            return asked.is_some();
        };
        let Some((place, bytes)) = self.told(out, a) else { return false };
        let (from, bytes) = place.unwrap_or((out.data(a), bytes));
        assert!(bytes <= room, "a message of {bytes} bytes for {room}");
        self.straight[0] += if place.is_some() { bytes } else { 0 };
        self.straight[1] += if to == into.data(b) { 0 } else { bytes };
        let data = self.at(from, bytes).to_vec();
        self.at(to, bytes).copy_from_slice(&data);
        for word in [out.ready(a), into.ready(b)] {
            assert_eq!(
                std::mem::replace(self.word(word), [1, 0, 0, 0]),
                [0; 4],
                "a slot that nobody has taken"
            );
        }
        self.wires[index].posted = None;
        true
    }

    /// Takes what a stream has told of a slot: the place and bytes in a user's buffer, if it is there, and
    /// the bytes.
    fn told(&mut self, end: End, slot: u32) -> Option<(Option<(u64, u64)>, u64)> {
        let told = u32::from_le_bytes(std::mem::take(self.word(end.told(slot))));
        let bytes = u64::from((told & !STRAIGHT).checked_sub(1)?);
        if told & STRAIGHT == 0 {
            return Some((None, bytes));
        }
        let at = end.told(slot) + STRAIGHT_AT;
        let half = |word: [u8; 4]| u64::from(u32::from_le_bytes(word));
        let low = half(std::mem::take(self.word(at)));
        let addr = low | half(std::mem::take(self.word(at + 4))) << 32;
        Some((Some((addr, bytes)), bytes))
    }

    pub fn at(&mut self, addr: u64, bytes: u64) -> &mut [u8] {
        let (rank, at) = ((addr >> 32) as usize - 1, (addr & 0xffff_ffff) as usize);
        &mut self.memory[rank][at..at + bytes as usize]
    }

    /// Runs one launch sequence per rank to its end; chance chooses who is called next, and who goes on.
    /// `alias`: one queue per rank. `direct`: launches may copy from user buffer to user buffer.
    pub fn run(
        &mut self,
        launches: &[Vec<(LaunchPlan, Vec<Step>)>],
        (alias, direct): (bool, bool),
        seed: u64,
    ) {
        let mut state = seed | 1;
        let mut chance = |below: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % below
        };
        let per_rank = if alias { 1 } else { STREAMS as usize };
        let mut queues: Vec<VecDeque<Entry>> = vec![VecDeque::new(); launches.len() * per_rank];
        let mut left: Vec<VecDeque<_>> = launches.iter().map(|list| list.iter().collect()).collect();
        let mut board: HashMap<(u32, u32), VecDeque<(bool, Offer)>> = HashMap::new();
        while left.iter().any(|list| !list.is_empty()) {
            let rank = chance(left.len());
            let Some((plan, steps)) = left[rank].pop_front() else { continue };
            let mut commands = Vec::new();
            let mut emitter = Emitter::new(plan, steps, &self.bases[rank], self.inter_node[rank].clone());
            assert_eq!(emitter.missing(), None);
            let far = emitter.far_legs();
            emitter.go_straight(far.into_iter().filter(|_| self.reaches_all || chance(3) > 0));
            if direct {
                let legs = emitter.legs();
                let ways: Vec<Way> = legs
                    .iter()
                    .map(|leg| match self.topology.is_far(rank as u32, leg.peer) {
                        true => Way::Staged,
                        false => meet(&mut board, rank as u32, (leg, plan.direct), chance(4) == 0),
                    })
                    .collect();
                emitter.agree(&legs, &ways, &mut commands);
            }
            while emitter.round(&mut self.counters[rank], &mut commands) {}
            assert!(blocks_at_once(&commands) <= plan.ctas, "{} CTAs", blocks_at_once(&commands));
            if plan.reduces() && !alias {
                join(&mut queues[rank * per_rank..][..per_rank]);
            }
            for command in commands {
                let stream = if alias { 0 } else { command.stream as usize };
                queues[rank * per_rank + stream].push_back(Entry::Do(command.what));
            }
        }
        assert!(board.values().all(VecDeque::is_empty), "a leg without its other end");
        self.obey_all(&mut queues, per_rank, &mut chance);
        while (0..self.wires.len()).any(|wire| self.carry(wire)) {}
        self.check_words();
    }

    /// Runs the queues to their end, `per_rank` of each rank.
    fn obey_all(
        &mut self,
        queues: &mut [VecDeque<Entry>],
        per_rank: usize,
        chance: &mut impl FnMut(usize) -> usize,
    ) {
        let (mut stuck, mut obeyed) = (0, vec![0; queues.len()]);
        while queues.iter().any(|queue| !queue.is_empty()) {
            if !self.wires.is_empty() {
                let wire = chance(self.wires.len());
                self.carry(wire);
            }
            let index = chance(queues.len());
            let Some(&entry) = queues[index].front() else { continue };
            let done = match entry {
                Entry::After(stream, count) => obeyed[index / per_rank * per_rank + stream] >= count,
                Entry::Do(what) => self.obey(what, (index / per_rank) as u32),
            };
            stuck = if done { 0 } else { stuck + 1 };
            assert!(stuck < 100_000, "nobody goes on");
            if done {
                queues[index].pop_front();
                obeyed[index] += 1;
            }
        }
    }

    /// Carries out a command of a rank; false if it has to wait.
    pub fn obey(&mut self, what: What, rank: u32) -> bool {
        match what {
            What::Await { addr, peer } => {
                assert_eq!((addr >> 32) as u32 - 1, rank, "waits for own memory");
                assert_ne!(peer, rank);
                let word = self.at(addr, 1);
                std::mem::take(&mut word[0]) == 1
            }
            What::Set { addr } => {
                assert_eq!(std::mem::replace(&mut self.at(addr, 1)[0], 1), 0, "a word is set twice");
                true
            }
            What::Tell { addr, value } => {
                assert_eq!((addr >> 32) as u32 - 1, rank, "tells its own proxy");
                let before = std::mem::replace(self.word(addr), value.to_le_bytes());
                assert_eq!(before, [0; 4], "a slot is told twice");
                true
            }
            What::Copy { dst, src, bytes, .. } => {
                let data = self.at(src, bytes).to_vec();
                self.at(dst, bytes).copy_from_slice(&data);
                true
            }
            What::Reduce(reduce) => {
                assert_eq!((reduce.args.to >> 32) as u32 - 1, rank, "combines in its own memory");
                self.combine(&reduce);
                true
            }
        }
    }

    /// Not a sum but what tells the order of the operands.
    fn combine(&mut self, reduce: &ReduceKernel) {
        let args = &reduce.args;
        let from = &args.from[..usize::from(args.n)];
        let operands: Vec<Vec<u8>> = from.iter().map(|addr| self.at(*addr, args.bytes).to_vec()).collect();
        for (i, byte) in self.at(args.to, args.bytes).iter_mut().enumerate() {
            *byte = operands.iter().fold(0, |all, operand| combined(all, operand[i]));
        }
    }

    /// Everything is free again.
    pub fn check_words(&self) {
        let value = |addr: u64| self.memory[(addr >> 32) as usize - 1][(addr & 0xffff_ffff) as usize];
        for Wire { from: (out, a), to: (into, b), posted, asks } in &self.wires {
            let words = [out.ready(*a), out.told(*a), into.ready(*b), into.told(*b)].map(value);
            assert!(posted.is_none() == *asks && words == [1, 0, 0, 0], "{words:?}");
        }
        let layout = self.bases[0].layout;
        let (at, bytes) = layout.free_words();
        for rank in &self.memory {
            let word = |i: u64| rank[(STAGING + i) as usize];
            assert!(
                (0..at).step_by(16).all(|i| word(i) == 0)
                    && (at..at + bytes).step_by(16).all(|i| word(i) == 1)
                    && (at + bytes..layout.word_bytes()).step_by(16).all(|i| word(i) == 0)
            );
        }
    }
}

/// Lets all streams of a rank wait for what each of them has had: a launch begins when the one before is
/// over.
fn join(queues: &mut [VecDeque<Entry>]) {
    let before: Vec<usize> = queues.iter().map(VecDeque::len).collect();
    for queue in queues {
        queue.extend(before.iter().enumerate().map(|(stream, &count)| Entry::After(stream, count)));
    }
}

/// An entry of a queue.
#[derive(Clone, Copy)]
enum Entry {
    Do(What),
    /// Wait until so many entries of another queue of the rank are over.
    After(usize, usize),
}

/// The value of the operands so far, and of one more.
pub fn combined(all: u8, next: u8) -> u8 {
    all.wrapping_mul(31).wrapping_add(next)
}

/// The most blocks that a launch's streams may have under way at the same time.
pub fn blocks_at_once(commands: &[Command]) -> u32 {
    let mut most = [0; STREAMS as usize];
    for command in commands {
        if let What::Reduce(reduce) = command.what {
            let most = &mut most[command.stream as usize];
            *most = reduce.blocks.max(*most);
        }
    }
    most.iter().sum()
}

/// An end that was called first: its address and bytes, or None for staging.
pub type Offer = Option<(u64, u64)>;

/// Returns what a leg's end gets when it is called.
pub fn meet(
    board: &mut HashMap<(u32, u32), VecDeque<(bool, Offer)>>,
    rank: u32,
    (leg, direct): (&Leg, Direct),
    staged: bool,
) -> Way {
    let staged = staged || direct.is_pushed() && leg.send;
    let pair = if leg.send { (rank, leg.peer) } else { (leg.peer, rank) };
    let waiting = board.entry(pair).or_default();
    match waiting.front() {
        Some((send, _)) if *send != leg.send => match waiting.pop_front() {
            Some((_, Some((addr, bytes)))) => Way::Second { addr, bytes },
            _ => Way::Staged,
        },
        _ => {
            waiting.push_back((leg.send, (!staged).then_some((leg.addr, leg.bytes))));
            if staged { Way::Staged } else { Way::First }
        }
    }
}
