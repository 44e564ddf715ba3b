//! Launches for copy engines, on simulated ranks: streams that progress in any order, and devices that run all streams of a
//! rank as one; hosts whose proxies carry slots whenever they like.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use hawser_plan::algo::{rank_program, shape};
use hawser_plan::call::Scalar;
use hawser_plan::choose::{self, Outcome, choose};
use hawser_plan::dma::far::{self, End, Far, WORDS};
use hawser_plan::dma::{self, Bases, Counters, DEPTH, Direct, Emitter, Leg, STREAMS, Staging, Way, What};
use hawser_plan::exchange::ExchangePlan;
use hawser_plan::lower::{LaunchPlan, bind, device_op, lower};
use hawser_plan::p2p::{self, Message};
use hawser_plan::world::{DeviceKind, Link, World};
use hawser_plan::{Call, Collective, DataType, Knobs, Protocol, ReduceOp};
use proptest::prelude::*;

/// Slots of 4 KiB.
fn settings() -> Knobs {
    Knobs { pass_sm: 1, staging_bytes: 3 * 4096, ..Knobs::default() }
}

fn world(ranks: u32) -> World {
    World::single_host(ranks, DeviceKind::Cuda { sm: 90 }, Link::NvLink)
}

/// Hosts of so many ranks each.
fn hosts(ranks: u32, per_host: u32) -> World {
    World::of_hosts(ranks, per_host, DeviceKind::Cuda { sm: 90 }, Link::NvLink)
}

/// Memory of all ranks: rank r's byte i has the address (r + 1) << 32 | i. User buffers come first, staging at `STAGING`,
/// slots that the network carries at `FAR`.
struct Machine {
    world: World,
    memory: Vec<Vec<u8>>,
    bases: Vec<Bases>,
    far: Vec<Arc<Far>>,
    wires: Vec<Wire>,
    counters: Vec<Counters>,
}

/// A slot that the network carries, and its words at either end.
struct Wire {
    from: (End, u32),
    to: (End, u32),
    /// The receiver's slot is free for a message.
    is_posted: bool,
}

const STAGING: u64 = 1 << 25;
const FAR: u64 = 1 << 26;
/// Output buffers.
const OUTPUT: u64 = 1 << 23;

fn address(rank: u32, at: u64) -> u64 {
    (u64::from(rank) + 1) << 32 | at
}

impl Machine {
    fn new(ranks: u32) -> Self {
        Self::on(world(ranks))
    }

    fn on(world: World) -> Self {
        let ranks = world.size();
        let (places, local) = world.places();
        let layout = Staging::new(local, &settings());
        let slot = far::slot_bytes(&world, &settings());
        let end_bytes = u64::from(DEPTH) * (WORDS + slot);
        let bytes = FAR + 2 * u64::from(ranks) * end_bytes;
        let mut memory: Vec<Vec<u8>> = (0..ranks).map(|_| vec![0; bytes as usize]).collect();
        let (at, bytes) = layout.free_words();
        for rank in &mut memory {
            for word in (0..bytes).step_by(16) {
                rank[(STAGING + at + word) as usize] = 1;
            }
        }
        let base = |rank: u32, peer: u32| if world.is_far(rank, peer) { 0 } else { address(peer, STAGING) };
        let bases = (0..ranks).map(|rank| {
            let staging = (0..ranks).map(|peer| base(rank, peer)).collect();
            Bases { rank, staging, places: places.clone(), layout }
        });
        let end = |rank: u32, peer: u32, send: bool| {
            let words = address(rank, FAR + u64::from(2 * peer + u32::from(send)) * end_bytes);
            End { words, slots: words + u64::from(DEPTH) * WORDS, stride: slot }
        };
        let (mut far, mut wires) = (vec![Far::default(); ranks as usize], Vec::new());
        for (from, to) in
            (0..ranks * ranks).map(|i| (i / ranks, i % ranks)).filter(|(a, b)| world.is_far(*a, *b))
        {
            let (out, into) = (end(from, to, true), end(to, from, false));
            far[from as usize].add(to, true, out);
            far[to as usize].add(from, false, into);
            for slot in 0..DEPTH {
                memory[from as usize][(out.ready(slot) & 0xffff_ffff) as usize] = 1;
                wires.push(Wire { from: (out, slot), to: (into, slot), is_posted: true });
            }
        }
        let (bases, far) = (bases.collect(), far.into_iter().map(Arc::new).collect());
        Self { world, memory, bases, far, wires, counters: vec![Counters::default(); ranks as usize] }
    }

    fn word(&mut self, addr: u64) -> &mut [u8; 4] {
        self.at(addr, 4).first_chunk_mut().unwrap()
    }

    /// What a proxy does about a slot; whether it did anything.
    fn carry(&mut self, index: usize) -> bool {
        let Wire { from: (out, a), to: (into, b), is_posted } = self.wires[index];
        if !is_posted {
            // Emptied: another message may come.
            let emptied = std::mem::take(self.word(into.told(b))) != [0; 4];
            self.wires[index].is_posted = emptied;
            return emptied;
        }
        let told = u32::from_le_bytes(std::mem::take(self.word(out.told(a))));
        if told == 0 {
            return false;
        }
        let data = self.at(out.data(a), u64::from(told - 1)).to_vec();
        self.at(into.data(b), data.len() as u64).copy_from_slice(&data);
        for word in [out.ready(a), into.ready(b)] {
            assert_eq!(
                std::mem::replace(self.word(word), [1, 0, 0, 0]),
                [0; 4],
                "a slot that nobody has taken"
            );
        }
        self.wires[index].is_posted = false;
        true
    }

    fn at(&mut self, addr: u64, bytes: u64) -> &mut [u8] {
        let (rank, at) = ((addr >> 32) as usize - 1, (addr & 0xffff_ffff) as usize);
        &mut self.memory[rank][at..at + bytes as usize]
    }

    /// Runs one launch sequence per rank to its end; chance chooses who is called next, and who goes on. `alias`: one queue per
    /// rank. `direct`: launches may copy from user buffer to user buffer.
    fn run(
        &mut self,
        launches: &[Vec<(LaunchPlan, Vec<hawser_plan::device_plan::Step>)>],
        (alias, direct): (bool, bool),
        seed: u64,
    ) {
        let mut state = seed | 1;
        let mut chance = |below: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % below
        };
        let per_rank = if alias { 1 } else { STREAMS as usize };
        let mut queues: Vec<VecDeque<What>> = vec![VecDeque::new(); launches.len() * per_rank];
        let ends: HashMap<usize, u32> =
            (0..queues.len()).map(|queue| (queue, (queue / per_rank) as u32)).collect();
        let mut left: Vec<VecDeque<_>> = launches.iter().map(|list| list.iter().collect()).collect();
        let mut board: HashMap<(u32, u32), VecDeque<(bool, Offer)>> = HashMap::new();
        while left.iter().any(|list| !list.is_empty()) {
            let rank = chance(left.len());
            let Some((plan, steps)) = left[rank].pop_front() else { continue };
            let mut commands = Vec::new();
            let mut emitter = Emitter::new(plan, steps, &self.bases[rank], self.far[rank].clone());
            assert_eq!(emitter.missing(), None);
            if direct {
                let legs = emitter.legs();
                let ways: Vec<Way> = legs
                    .iter()
                    .map(|leg| match self.world.is_far(rank as u32, leg.peer) {
                        true => Way::Staged,
                        false => meet(&mut board, rank as u32, (leg, plan.direct), chance(4) == 0),
                    })
                    .collect();
                emitter.agree(&legs, &ways, &mut commands);
            }
            while emitter.round(&mut self.counters[rank], &mut commands) {}
            for command in commands {
                let stream = if alias { 0 } else { command.stream as usize };
                queues[rank * per_rank + stream].push_back(command.what);
            }
        }
        assert!(board.values().all(VecDeque::is_empty), "a leg without its other end");
        let mut stuck = 0;
        while queues.iter().any(|queue| !queue.is_empty()) {
            if !self.wires.is_empty() {
                let wire = chance(self.wires.len());
                self.carry(wire);
            }
            let index = chance(queues.len());
            let Some(&what) = queues[index].front() else { continue };
            let done = self.obey(what, ends[&index]);
            stuck = if done { 0 } else { stuck + 1 };
            assert!(stuck < 100_000, "nobody goes on");
            if done {
                queues[index].pop_front();
            }
        }
        while (0..self.wires.len()).any(|wire| self.carry(wire)) {}
        self.check_words();
    }

    /// Carries out a command of a rank; false if it has to wait.
    fn obey(&mut self, what: What, rank: u32) -> bool {
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
            What::Copy { dst, src, bytes } => {
                let data = self.at(src, bytes).to_vec();
                self.at(dst, bytes).copy_from_slice(&data);
                true
            }
        }
    }

    /// Everything is free again.
    fn check_words(&self) {
        let value = |addr: u64| self.memory[(addr >> 32) as usize - 1][(addr & 0xffff_ffff) as usize];
        for Wire { from: (out, a), to: (into, b), is_posted } in &self.wires {
            let words = [out.ready(*a), out.told(*a), into.ready(*b), into.told(*b)].map(value);
            assert!(*is_posted && words == [1, 0, 0, 0], "{words:?}");
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

/// An end that was called first: its address and bytes, or None for staging.
type Offer = Option<(u64, u64)>;

/// What a leg's end gets when it is called.
fn meet(
    board: &mut HashMap<(u32, u32), VecDeque<(bool, Offer)>>,
    rank: u32,
    (leg, direct): (&Leg, Direct),
    staged: bool,
) -> Way {
    let is_chain = direct == Direct::Chain;
    let staged = staged || is_chain && leg.send;
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

fn collective(
    machine: &mut Machine,
    collective: Collective,
    knobs: &Knobs,
    bytes: u64,
    (alias, direct): (bool, bool),
    seed: u64,
) {
    let (world, ranks) = (machine.world.clone(), machine.world.size());
    let root = (seed % u64::from(ranks)) as u32;
    let (ins, outs) = (collective.input_blocks(ranks), collective.output_blocks(ranks));
    let mut launches = Vec::new();
    for rank in 0..ranks {
        let call = Call {
            collective,
            count: bytes,
            dtype: DataType::Uint8,
            op: ReduceOp::Sum,
            scalar: Scalar::Immediate(0),
            root,
            input: address(rank, 0),
            output: address(rank, OUTPUT),
        };
        for i in 0..u64::from(ins) * bytes {
            machine.memory[rank as usize][i as usize] =
                (seed ^ (u64::from(rank) * 31) ^ (i * 7) ^ (i >> 8)) as u8;
        }
        machine.memory[rank as usize][OUTPUT as usize..][..(u64::from(outs) * bytes) as usize].fill(0xee);
        let choice = choose(&call, &world, knobs).unwrap();
        assert_eq!(choice.protocol, Protocol::Dma, "{}", choice.why);
        let lowered =
            lower(&shape(&choice.key).unwrap(), &rank_program(&choice.key, rank).unwrap(), device_op(&call))
                .unwrap();
        let staged = dma::knobs(knobs, &world, dma::part(&choice.key, call.total_bytes(ranks)));
        let mut plan = bind(&lowered, &call, &choice, ranks, &staged).unwrap();
        // As large calls do.
        let in_step = matches!(collective, Collective::AllGather | Collective::AllToAll)
            && plan.direct == Direct::Free
            && ranks > 2;
        if in_step && seed & 2 != 0 {
            plan.direct = Direct::LockStep;
        }
        launches.push(vec![(plan, lowered.steps)]);
    }
    machine.run(&launches, (alias, direct), seed);
    let input = |rank: u32, block: u64, i: u64| {
        let i = block * bytes + i;
        (seed ^ (u64::from(rank) * 31) ^ (i * 7) ^ (i >> 8)) as u8
    };
    for rank in 0..ranks {
        for block in 0..u64::from(outs) {
            let expected = |i: u64| match collective {
                Collective::AllGather => input(block as u32, 0, i),
                Collective::AllToAll => input(block as u32, u64::from(rank), i),
                Collective::Broadcast => input(root, 0, i),
                Collective::Gather if rank == root => input(block as u32, 0, i),
                Collective::Scatter => input(root, u64::from(rank), i),
                _ => 0xee,
            };
            let got = machine.at(address(rank, OUTPUT + block * bytes), bytes).to_vec();
            let wrong = (0..bytes).find(|&i| got[i as usize] != expected(i));
            assert_eq!(wrong, None, "{collective:?} rank {rank} of {ranks} block {block} bytes {bytes}");
        }
    }
}

const MOVES: [Collective; 5] = [
    Collective::AllGather,
    Collective::AllToAll,
    Collective::Broadcast,
    Collective::Gather,
    Collective::Scatter,
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn collectives_end_right_whatever_streams_do(
        ranks in 2u32..6, per_host in 1u32..6, kinds in prop::collection::vec((0usize..5, 1u64..60_000), 1..4),
        alias: bool, direct: bool, ring: bool, seed: u64
    ) {
        let mut machine = Machine::on(hosts(ranks, per_host));
        let mut knobs = settings();
        if ring {
            knobs.algorithms = Knobs::parse_algo("Ring").unwrap();
        }
        for (kind, bytes) in kinds {
            collective(&mut machine, MOVES[kind], &knobs, bytes, (alias, direct), seed);
        }
    }

    #[test]
    fn messages_end_right_whatever_streams_do(
        ranks in 2u32..6,
        per_host in 1u32..6,
        list in prop::collection::vec((0u32..6, 0u32..6, 0u64..70_000), 1..12),
        alias: bool,
        direct: bool,
        seed: u64,
    ) {
        let (world, knobs) = (hosts(ranks, per_host), settings());
        let mut machine = Machine::on(world.clone());
        let mut messages = vec![Vec::new(); ranks as usize];
        let (mut used, mut checks) = (vec![0u64; ranks as usize], Vec::new());
        for (number, (from, to, bytes)) in list.into_iter().enumerate() {
            let (from, to) = (from % ranks, to % ranks);
            let (src, dst) = (used[from as usize], used[to as usize] + if from == to { bytes } else { 0 });
            used[from as usize] = src + bytes;
            used[to as usize] = dst + bytes;
            for i in 0..bytes {
                machine.memory[from as usize][(src + i) as usize] = ((number as u64 * 91) ^ i ^ (i >> 8)) as u8;
            }
            messages[from as usize].push(Message { peer: to, send: true, addr: address(from, src), bytes });
            messages[to as usize].push(Message { peer: from, send: false, addr: address(to, dst), bytes });
            checks.push((number, address(to, dst), bytes));
        }
        let launches: Vec<Vec<_>> = (0..ranks)
            .map(|rank| {
                let plans = p2p::plan(&messages[rank as usize], rank, ranks, &world, &knobs).unwrap();
                plans
                    .into_iter()
                    .map(|plan| {
                        assert_eq!(plan.kernel.protocol, Protocol::Dma);
                        let steps = plan.args.inline_steps.to_vec();
                        (plan, steps)
                    })
                    .collect()
            })
            .collect();
        machine.run(&launches, (alias, direct), seed);
        for (number, addr, bytes) in checks {
            let got = machine.at(addr, bytes).to_vec();
            let right = (0..bytes).all(|i| got[i as usize] == ((number as u64 * 91) ^ i ^ (i >> 8)) as u8);
            prop_assert!(right, "message {}", number);
        }
    }
}

#[test]
fn a_chain_takes_many_tiles_at_once() {
    for (ranks, seed) in [(3, 2), (4, 7)] {
        for alias in [false, true] {
            collective(
                &mut Machine::new(ranks),
                Collective::Broadcast,
                &settings(),
                4 << 20,
                (alias, true),
                seed,
            );
        }
    }
}

#[test]
fn reductions_and_worlds_without_staging_take_other_ways() {
    let call = |collective| Call {
        collective,
        count: 1 << 20,
        dtype: DataType::Float32,
        op: ReduceOp::Sum,
        scalar: Scalar::Immediate(0),
        root: 0,
        input: 0,
        output: 0,
    };
    let strict = Knobs { pass_sm: 2, ..settings() };
    let reduced = choose(&call(Collective::AllReduce), &world(4), &strict).unwrap();
    assert_ne!(reduced.protocol, Protocol::Dma);
    let apart = World::single_host(4, DeviceKind::Cuda { sm: 90 }, Link::HostMemory);
    let error = choose(&call(Collective::AllGather), &apart, &strict).unwrap_err();
    assert!(error.text.contains("peer access") && error.text.contains("NCCL_PASS_SM=1"), "{}", error.text);
    let lenient = choose(&call(Collective::AllGather), &apart, &settings()).unwrap();
    assert_ne!(lenient.protocol, Protocol::Dma);
    // Ranks that are all on hosts of their own need no peer access.
    let alone = World::of_hosts(4, 1, DeviceKind::Cuda { sm: 90 }, Link::HostMemory);
    assert_eq!(choose(&call(Collective::AllGather), &alone, &strict).unwrap().protocol, Protocol::Dma);
    let off = choose(&call(Collective::AllGather), &world(4), &Knobs::default()).unwrap();
    assert!(off.why.to_string().contains("NCCL_PASS_SM=1"));
}

/// What reduces beside copy engines keeps few multiprocessors, by every candidate and in what is launched.
#[test]
fn reductions_are_light() {
    for (collective, ctas) in [Collective::AllReduce, Collective::ReduceScatter, Collective::Reduce]
        .into_iter()
        .flat_map(|c| [(c, 1), (c, 2), (c, 5)])
    {
        let knobs = Knobs { reducing_ctas: ctas, ..settings() };
        for (ranks, count) in
            [2, 3, 8, 16].into_iter().flat_map(|r| [1u64, 5000, 1 << 20, 1 << 28].map(|n| (r, n)))
        {
            let call = Call {
                collective,
                count,
                dtype: DataType::Float32,
                op: ReduceOp::Sum,
                scalar: Scalar::Immediate(0),
                root: 0,
                input: 0,
                output: 1 << 40,
            };
            let world = world(ranks);
            for candidate in choose::candidates(&call, &world, &knobs).unwrap() {
                if let Outcome::Predicted { instances, channels, .. } = candidate.outcome {
                    assert!(instances * channels <= ctas, "{candidate} with {ranks} ranks");
                }
            }
            let choice = choose(&call, &world, &knobs).unwrap();
            let blocks = if choice.protocol.is_exchange() {
                ExchangePlan::new(&call, &choice, 0, ranks, &knobs).blocks
            } else {
                let program = rank_program(&choice.key, 0).unwrap();
                let lowered = lower(&shape(&choice.key).unwrap(), &program, device_op(&call)).unwrap();
                bind(&lowered, &call, &choice, ranks, &knobs).unwrap().args.n_blocks.into()
            };
            assert!(blocks <= ctas, "{blocks} blocks: {}", choice.why);
        }
    }
}

#[test]
fn staging_fits_its_budget() {
    for local in 2..=64 {
        let staging = Staging::new(local, &Knobs::default());
        assert!(staging.bytes() <= (193 << 20), "{local}: {}", staging.bytes());
        assert!(staging.slot_bytes.is_power_of_two());
    }
    assert_eq!(Staging::new(8, &Knobs::default()).slot_bytes, 8 << 20);
    assert_eq!(Staging::new(2, &Knobs::default()).slot_bytes, 32 << 20);
}

#[test]
fn what_is_direct_touches_no_staging() {
    let ranks = 4;
    let mut machine = Machine::new(ranks);
    let staging: Vec<std::ops::Range<u64>> = machine
        .bases
        .iter()
        .map(|b| {
            let base = b.staging[b.rank as usize];
            base + b.layout.word_bytes()..base + b.layout.bytes()
        })
        .collect();
    let (world, knobs) = (world(ranks), settings());
    let call = Call {
        collective: Collective::AllToAll,
        count: 50_000,
        dtype: DataType::Uint8,
        op: ReduceOp::Sum,
        scalar: Scalar::Immediate(0),
        root: 0,
        input: 0,
        output: 0,
    };
    let choice = choose(&call, &world, &knobs).unwrap();
    let (mut board, mut copied) = (HashMap::new(), HashMap::new());
    for rank in 0..ranks {
        let call = Call { input: address(rank, 0), output: address(rank, OUTPUT), ..call };
        let lowered =
            lower(&shape(&choice.key).unwrap(), &rank_program(&choice.key, rank).unwrap(), device_op(&call))
                .unwrap();
        let staged = dma::knobs(&knobs, &world, dma::part(&choice.key, call.total_bytes(ranks)));
        let plan = bind(&lowered, &call, &choice, ranks, &staged).unwrap();
        assert_eq!(plan.direct, Direct::Free);
        let mut emitter = Emitter::new(&plan, &lowered.steps, &machine.bases[rank as usize], Arc::default());
        let (legs, mut commands) = (emitter.legs(), Vec::new());
        assert_eq!(legs.len(), 2 * (ranks as usize - 1));
        let ways: Vec<Way> =
            legs.iter().map(|leg| meet(&mut board, rank, (leg, plan.direct), false)).collect();
        emitter.agree(&legs, &ways, &mut commands);
        while emitter.round(&mut machine.counters[rank as usize], &mut commands) {}
        for command in commands {
            if let What::Copy { dst, src, bytes } = command.what {
                let is_staged = |at: u64| staging.iter().any(|range| range.contains(&at));
                assert!(!is_staged(dst) && !is_staged(src), "{:#x} from {:#x}", dst, src);
                *copied.entry((src >> 32, dst >> 32)).or_insert(0) += bytes;
            }
        }
    }
    // Each pair of ranks and direction once, whoever copied, and what stays.
    assert_eq!(copied.len(), 16);
    assert!(copied.values().all(|bytes| *bytes == 50_000), "{copied:?}");
}

/// A captured launch that one end replays as often as the other calls it.
#[test]
fn between_hosts_one_end_may_replay_what_the_other_calls() {
    let (world, knobs) = (hosts(2, 1), settings());
    let machine = Machine::on(world.clone());
    let message =
        |rank: u32| Message { peer: 1 - rank, send: rank == 0, addr: address(rank, 0), bytes: 4 * 4096 + 17 };
    let commands = |machine: &Machine, rank: u32, counters: &mut Counters| {
        let plan = p2p::plan(&[message(rank)], rank, 2, &world, &knobs).unwrap().remove(0);
        let steps = plan.args.inline_steps.to_vec();
        let mut emitter =
            Emitter::new(&plan, &steps, &machine.bases[rank as usize], machine.far[rank as usize].clone());
        let mut commands = Vec::new();
        while emitter.round(counters, &mut commands) {}
        commands
    };
    let mut counters = [Counters::default(), Counters::default()];
    let first = commands(&machine, 0, &mut counters[0]);
    let received: Vec<_> = (0..3).map(|_| commands(&machine, 1, &mut counters[1])).collect();
    assert!(received.iter().all(|again| *again == received[0]), "each call is like the first");
    assert_eq!(commands(&machine, 0, &mut counters[0]), first);
    let told = |c: &&hawser_plan::dma::Command| matches!(c.what, What::Tell { .. });
    assert_eq!(first.iter().filter(told).count(), 5);
}
