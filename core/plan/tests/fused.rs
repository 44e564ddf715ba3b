//! Exchanges of all ranks, played on numbers: what arrives must be what the collective means.

mod decisions;

use std::collections::BTreeMap;

use decisions::decided;
use hawser_kernels_abi::{COUNTER_BYTES, FAR_TOLD, FAR_WORDS};
use hawser_plan::Scalar;
use hawser_plan::algo::ProgramKey;
use hawser_plan::choose::{Decision, choose};
use hawser_plan::executor::copy_engine;
use hawser_plan::executor::fused::zero_copy;
use hawser_plan::executor::fused::{self, Area, FusedArgs, FusedPlan, OWN, REDUCE, SAME, SECOND};
use hawser_plan::layout::Part;
use hawser_plan::topology::{DeviceKind, Link};
use hawser_plan::{Algorithm, Call, Collective, DataType, Executor, PlanConfig, ReduceOp, Route, Topology};
use proptest::prelude::*;

const SYM: [Route; 3] = [Route::FUSED_LL, Route::FUSED_LL128, Route::FUSED_SIMPLE];
/// Addresses of the buffers of rank 0; each rank has its own megabytes.
const INPUT: u64 = 1 << 40;
const OUTPUT: u64 = 1 << 50;
const RANK_BYTES: u64 = 1 << 30;

fn choice(collective: Collective, algorithm: Algorithm, ranks: u32, root: u32, route: Route) -> Decision {
    decided(ProgramKey::new(collective, algorithm, ranks, root), route, 64, 512)
}

fn call(collective: Collective, count: u64, root: u32, rank: u32, in_place: bool) -> Call {
    let output = OUTPUT + u64::from(rank) * RANK_BYTES;
    let block = count * 4;
    let input = match (in_place, collective) {
        (false, _) => INPUT + u64::from(rank) * RANK_BYTES,
        (true, Collective::AllGather | Collective::Gather) => output + u64::from(rank) * block,
        (true, _) => output,
    };
    // In place, blocks that come out alone lie at this rank's place of the input.
    let output = match (in_place, collective) {
        (true, Collective::ReduceScatter | Collective::Scatter) => output + u64::from(rank) * block,
        _ => output,
    };
    Call {
        collective,
        count,
        dtype: DataType::Int32,
        op: ReduceOp::Sum,
        scalar: Scalar::Immediate(0),
        root,
        input: if collective.has_input(rank, root) { input } else { 0 },
        output: if collective.has_output(rank, root) { output } else { 0 },
        gap: 0,
    }
}

/// Memory by element address: a rank's contribution is a power of 1,000 so that sums show who took part.
type Memory = BTreeMap<u64, i64>;

fn value(rank: u32, element: u64) -> i64 {
    1000i64.pow(rank % 6) * (1 + (element % 7) as i64) + i64::from(rank)
}

struct Machine {
    memory: Memory,
    args: Vec<FusedArgs>,
}

impl Machine {
    fn read(&self, address: u64, bytes: u64) -> Vec<i64> {
        (0..bytes / 4)
            .map(|i| *self.memory.get(&(address + 4 * i)).expect("memory that was written"))
            .collect()
    }

    fn write(&mut self, address: u64, values: &[i64]) {
        assert_ne!(address, 0);
        for (at, value) in (address..).step_by(4).zip(values) {
            self.memory.insert(at, *value);
        }
    }

    /// Both exchanges, all ranks in step: a rank writes what is its own before it looks at what came.
    fn run(&mut self) {
        let n = self.args.len();
        let mut sent: Vec<Vec<Option<Vec<i64>>>> = vec![vec![None; n]; n];
        for a in self.args.clone() {
            let rank = usize::from(a.rank);
            for k in (1..n).filter(|k| a.flow.send1 >> k & 1 == 1) {
                assert!(a.flow.form & SAME == 0 || a.src[k] == a.src[0]);
                let to = (rank + k) % n;
                assert_eq!(a.src_len[k], a.len[to]);
                sent[rank][to] = Some(self.read(a.src[k], a.src_len[k]));
            }
        }
        let mut values: Vec<Option<Vec<i64>>> = vec![None; n];
        for a in self.args.clone() {
            let rank = usize::from(a.rank);
            for p in (0..n).filter(|p| a.flow.keep >> p & 1 == 1) {
                let k = (p + n - rank) % n;
                let kept = self.read(a.src[k], a.src_len[k]);
                self.write(a.dst[p], &kept);
            }
            let received = (0..n).filter(|p| a.flow.recv1 >> p & 1 == 1);
            if a.flow.form & REDUCE == 0 {
                for p in received {
                    let data = sent[p][rank].clone().expect("data that was sent");
                    assert_eq!(data.len() as u64 * 4, a.len[rank]);
                    self.write(a.dst[p], &data);
                }
                continue;
            }
            let mut operands: Vec<Vec<i64>> =
                received.map(|p| sent[p][rank].clone().expect("data that was sent")).collect();
            if a.flow.form & OWN != 0 {
                operands.push(self.read(a.src[0], a.src_len[0]));
            }
            let sum = operands.into_iter().reduce(|x, y| x.iter().zip(&y).map(|(x, y)| x + y).collect());
            if let Some(sum) = &sum
                && a.dst[rank] != 0
            {
                self.write(a.dst[rank], sum);
            }
            values[rank] = sum;
        }
        for a in self.args.clone().into_iter().filter(|a| a.flow.form & SECOND != 0) {
            let rank = usize::from(a.rank);
            for p in (0..n).filter(|p| a.flow.recv2 >> p & 1 == 1) {
                assert!(
                    self.args[p].flow.send2 >> ((rank + n - p) % n) & 1 == 1,
                    "{p} sends {rank} its value"
                );
                let value = values[p].clone().expect("a value");
                assert_eq!(value.len() as u64 * 4, a.len[p]);
                self.write(a.dst[p], &value);
            }
        }
    }
}

/// The way of zero_copy, one rank after the other: what a rank reads from others it takes when its turn
/// comes, and what it writes it writes then. So it must not matter who is first.
fn run_direct(machine: &mut Machine, order: &[usize]) {
    let (args, n) = (machine.args.clone(), machine.args.len());
    for &rank in order {
        let a = args[rank];
        assert!(a.direct & zero_copy::TRY != 0 && a.direct == args[0].direct);
        assert_eq!(a.flow.form & REDUCE, args[0].flow.form & REDUCE, "all read or all write");
        let k_of = |p: usize| (p + n - rank) % n;
        for p in (0..n).filter(|p| a.flow.keep >> p & 1 == 1) {
            let kept = machine.read(a.src[k_of(p)], a.src_len[k_of(p)]);
            machine.write(a.dst[p], &kept);
        }
        if a.flow.form & REDUCE == 0 && a.direct & zero_copy::PULL != 0 {
            for p in (0..n).filter(|p| a.flow.recv1 >> p & 1 == 1) {
                let k = (n - k_of(p)) % n;
                assert!(args[p].flow.send1 >> k & 1 == 1 && args[p].src_len[k] == a.len[rank]);
                let data = machine.read(args[p].src[k], a.len[rank]);
                machine.write(a.dst[p], &data);
            }
            continue;
        }
        if a.flow.form & REDUCE == 0 {
            for k in (1..n).filter(|k| a.flow.send1 >> k & 1 == 1) {
                let to = args[(rank + k) % n];
                assert!(to.flow.recv1 >> rank & 1 == 1 && to.len[usize::from(to.rank)] == a.src_len[k]);
                let data = machine.read(a.src[k], a.src_len[k]);
                machine.write(to.dst[rank], &data);
            }
            continue;
        }
        let own = u8::from(a.flow.form & OWN != 0) << rank;
        let operands: Vec<Vec<i64>> = (0..n)
            .filter(|p| (a.flow.recv1 | own) >> p & 1 == 1)
            .map(|p| {
                let k = (n - k_of(p)) % n;
                assert!(p == rank || args[p].flow.send1 >> k & 1 == 1, "{p} has data for {rank}");
                assert_eq!(args[p].src_len[k], a.len[rank]);
                machine.read(args[p].src[k], a.len[rank])
            })
            .collect();
        let Some(sum) = operands.into_iter().reduce(|x, y| x.iter().zip(&y).map(|(x, y)| x + y).collect())
        else {
            continue;
        };
        for k in (1..n).filter(|k| a.flow.form & SECOND != 0 && a.flow.send2 >> k & 1 == 1) {
            let to = args[(rank + k) % n];
            assert!(to.flow.recv2 >> rank & 1 == 1 && to.len[rank] == a.len[rank]);
            machine.write(to.dst[rank], &sum);
        }
        if a.dst[rank] != 0 && a.flow.keep >> rank & 1 == 0 {
            machine.write(a.dst[rank], &sum);
        }
    }
}

fn check(collective: Collective, algorithm: Algorithm, ranks: u32, root: u32, count: u64, in_place: bool) {
    let lengths = (count, 0);
    let route = SYM[(count % 3) as usize];
    check_with(route, collective, algorithm, ranks, root, lengths, in_place);
    if (collective, algorithm) != (Collective::AllReduce, Algorithm::OneShot) {
        check_with(Route::ZERO_COPY, collective, algorithm, ranks, root, lengths, in_place);
    }
}

fn check_with(
    route: Route,
    collective: Collective,
    algorithm: Algorithm,
    ranks: u32,
    root: u32,
    (count, gap): (u64, u64),
    in_place: bool,
) {
    let call = |collective, count, root, rank, in_place| Call {
        gap,
        ..call(collective, count, root, rank, in_place)
    };
    let chosen = choice(collective, algorithm, ranks, root, route);
    let mut machine = Machine { memory: Memory::new(), args: Vec::new() };
    for rank in 0..ranks {
        let call = call(collective, count, root, rank, in_place);
        let plan = FusedPlan::new(&call, &chosen, rank, ranks, &PlanConfig::default());
        assert!(plan.blocks >= 1 && plan.threads.is_multiple_of(32) && plan.threads <= fused::THREADS);
        machine.args.push(plan.bind(call.input, call.output, 0, 0));
        if call.input != 0 {
            for block in 0..u64::from(collective.input_blocks(ranks)) {
                let data: Vec<i64> = (0..count).map(|i| value(rank, block * count + i)).collect();
                machine.write(call.input + block * call.step_bytes(), &data);
            }
        }
    }
    let order: Vec<usize> = (0..ranks as usize).map(|i| (i * 5 + count as usize) % ranks as usize).collect();
    match route {
        Route::ZERO_COPY if ranks != 5 => run_direct(&mut machine, &order),
        Route::ZERO_COPY => run_direct(&mut machine, &[4, 2, 0, 1, 3]),
        _ => machine.run(),
    }
    for rank in 0..ranks {
        let call = call(collective, count, root, rank, in_place);
        if call.output == 0 {
            continue;
        }
        let wanted = meaning(collective, ranks, root, rank, count);
        for (block, wanted) in wanted.chunks(count as usize).enumerate() {
            let at = call.output + block as u64 * call.step_bytes();
            let got = machine.read(at, count * 4);
            let what = format!("{collective:?} {algorithm:?} rank {rank} of {ranks}, root {root}, {count}");
            assert_eq!(got, wanted, "{what}, block {block}");
            let behind = at + count * 4..at + call.step_bytes();
            assert!(machine.memory.range(behind).next().is_none(), "{what}: block {block} is too long");
        }
    }
}

/// The values that a rank must get.
fn meaning(collective: Collective, ranks: u32, root: u32, rank: u32, count: u64) -> Vec<i64> {
    use Collective as C;
    let all = 0..u64::from(ranks) * count;
    let sum = |i: u64| (0..ranks).map(|r| value(r, i)).sum::<i64>();
    let (own, count_64) = (u64::from(rank), count.max(1));
    match collective {
        C::AllReduce | C::Reduce => (0..count).map(sum).collect(),
        C::ReduceScatter => (own * count..(own + 1) * count).map(sum).collect(),
        C::Broadcast => (0..count).map(|i| value(root, i)).collect(),
        C::AllGather | C::Gather => all.map(|i| value((i / count_64) as u32, i % count_64)).collect(),
        C::AllToAll => all.map(|i| value((i / count_64) as u32, own * count + i % count_64)).collect(),
        C::Scatter => (own * count..(own + 1) * count).map(|i| value(root, i)).collect(),
        C::SendRecv => Vec::new(),
    }
}

fn programs() -> Vec<(Collective, Algorithm)> {
    use Algorithm::{AllPairs, Direct, OneShot};
    use Collective as C;
    vec![
        (C::AllReduce, OneShot),
        (C::AllReduce, AllPairs),
        (C::Broadcast, OneShot),
        (C::Broadcast, AllPairs),
        (C::Reduce, OneShot),
        (C::Reduce, AllPairs),
        (C::AllGather, AllPairs),
        (C::ReduceScatter, AllPairs),
        (C::AllToAll, Direct),
        (C::Gather, Direct),
        (C::Scatter, Direct),
    ]
}

#[test]
fn every_exchange_does_what_its_collective_means() {
    for (collective, algorithm) in programs() {
        for ranks in 2..=8 {
            for root in if collective.rooted() { vec![0, ranks / 2, ranks - 1] } else { vec![0] } {
                for count in [1, 3, 4, 31, 100, 1001] {
                    let can = collective != Collective::AllToAll;
                    (0..=u8::from(can))
                        .for_each(|p| check(collective, algorithm, ranks, root, count, p == 1));
                }
            }
        }
    }
}

#[test]
fn blocks_that_lie_apart_are_found() {
    for (collective, algorithm) in programs() {
        for ranks in [2, 3, 8] {
            let blocks = collective.input_blocks(ranks).max(collective.output_blocks(ranks));
            for lengths in [(1, 1), (100, 7), (1001, 3000)] {
                for route in [SYM[0], SYM[2], Route::ZERO_COPY] {
                    if blocks > 1 {
                        check_with(route, collective, algorithm, ranks, ranks - 1, lengths, false);
                    }
                }
            }
        }
    }
    let topology =
        Topology { direct: true, ..Topology::single_host(2, DeviceKind::Cuda { sm: 90 }, Link::NvLink) };
    let config = PlanConfig::default();
    for collective in [Collective::ReduceScatter, Collective::AllGather, Collective::AllToAll] {
        let apart = Call { gap: 4, ..call(collective, 1 << 20, 0, 0, false) };
        let decision = choose(&apart, &topology, &config).unwrap();
        assert_eq!(decision.route.executor, Executor::Fused, "{collective:?}");
        let plan = FusedPlan::new(&apart, &decision, 0, 2, &config);
        let used = |blocks: u64| (blocks << 22) + (blocks - 1) * 16;
        let inputs = u64::from(collective.input_blocks(2));
        if decision.route == Route::ZERO_COPY {
            let [(_, input), (_, output)] = plan.to_reach(16, 32).unwrap();
            assert_eq!((input, output), (used(inputs), used(u64::from(collective.output_blocks(2)))));
        }
        // Nobody else serves them.
        let forced = PlanConfig { routes: PlanConfig::parse_proto("interpreter").unwrap(), ..config.clone() };
        let error = choose(&apart, &topology, &forced).unwrap_err().to_string();
        assert!(error.contains("only fused kernels serve blocks that lie apart"), "{error}");
    }
}

#[test]
fn areas_fit_their_slots() {
    let config = PlanConfig::default();
    for ranks in 2..=8 {
        let area = Area::new(ranks);
        for route in SYM {
            for power in 0..34 {
                let most = 16u64 << power;
                let (blocks, threads, tile) = fused::grid(route, ranks, most, config.max_ctas);
                let rounds = fused::rounds(route, most, blocks, threads, tile);
                assert!(rounds >= 1 && blocks >= 1, "{route:?} {most}");
                let units = u64::from(blocks * threads / 32);
                let (slot, ranks) = (8192, u64::from(ranks));
                match route {
                    Route::FUSED_LL => assert!(u64::from(blocks) * 2 * 8 * slot <= area.slots[1]),
                    Route::FUSED_LL128 => {
                        assert!(tile.is_multiple_of(480) && tile / 480 <= 8 && tile > 0);
                        assert!(area.slots[1] + units * 2 * ranks * slot / 2 <= area.slots[2]);
                    }
                    _ => {
                        let slot = u64::from(tile).max(8192);
                        let most_units = u64::from(config.max_ctas.min(44)) * 16;
                        let largest = [32, 16, 16, 8, 8, 8, 8][ranks as usize - 2] * 1024;
                        assert_eq!(rounds, most.div_ceil(most_units * largest), "as few as full slots make");
                        assert!(tile.is_multiple_of(512) && (512..=32768).contains(&tile));
                        assert!(area.slots[2] + units * 2 * ranks * slot <= area.flags);
                        assert!(area.flags + units * 32 <= area.bytes);
                    }
                }
            }
        }
    }
}

/// The kernels know the sizes of slots and flags by constants of their own.
#[test]
fn the_kernels_count_with_the_same_numbers() {
    let header = include_str!("../../../kernels/cuda/plan.h");
    let number = |name: &str| -> u64 {
        let rest = header.split(&format!("{name} = ")).nth(1).expect(name);
        rest.split(';').next().unwrap().parse().expect(name)
    };
    let (area, ranks, blocks, tile_blocks, warps) = (Area::new(8), 8, 32, 44, 16);
    let slots = |at: usize, end: u64, units: u64| (end - area.slots[at]) / (units * 2 * ranks);
    assert_eq!(number("HAWSER_EXCHANGE_RANKS"), fused::RANKS as u64);
    assert_eq!(number("HAWSER_WORD_SLOT"), slots(0, area.slots[1], blocks));
    assert_eq!(number("HAWSER_LINE_SLOT"), slots(1, area.slots[2], blocks * warps));
    assert_eq!(number("HAWSER_TILE_SLOT"), slots(2, area.flags, tile_blocks * warps));
    let exchange = include_str!("../../../kernels/cuda/exchange.cuh");
    let by_ranks =
        "ranks <= 2 ? 4 * HAWSER_TILE_SLOT : ranks <= 4 ? 2 * HAWSER_TILE_SLOT : HAWSER_TILE_SLOT;";
    assert!(exchange.contains(by_ranks), "tile_slot is what the next lines say");
    for (ranks, times) in [(2, 4), (3, 2), (4, 2), (5, 1), (7, 1)] {
        let area = Area::new(ranks);
        let slot = (area.flags - area.slots[2]) / (tile_blocks * warps * 2 * u64::from(ranks));
        assert_eq!(slot, times * number("HAWSER_TILE_SLOT"), "{ranks} ranks");
    }
    assert_eq!(number("HAWSER_COUNTER_BYTES"), COUNTER_BYTES);
    assert_eq!(number("HAWSER_FAR_TOLD"), FAR_TOLD);
    assert!(header.contains("HAWSER_FAR_WORDS = HAWSER_FAR_TOLD + 8192;") && FAR_WORDS == FAR_TOLD + 8192);
    assert_eq!(number("HAWSER_UNIT_FLAGS"), (area.lines - area.flags) / (tile_blocks * warps));
    assert_eq!(number("HAWSER_TILE_UNITS"), tile_blocks * warps);
    assert_eq!(
        number("HAWSER_TILE_UNITS"),
        (area.epoch_bytes - area.epochs[2]) / number("HAWSER_COUNT_BYTES") - tile_blocks
    );
    assert_eq!(number("HAWSER_DIRECT_BLOCKS"), tile_blocks);
    assert_eq!(number("HAWSER_BULK_SHARED"), u64::from(copy_engine::reduce_kernel::SHARED_BYTES));
    // A line for each parity and a flag, of every rank and block.
    let of_rank = (area.bytes - area.lines) / (tile_blocks * ranks);
    assert_eq!(of_rank, 2 * number("HAWSER_DIRECT_LINE") + 4);
    for (name, bit) in [("TRY", zero_copy::TRY), ("READY", zero_copy::READY), ("PULL", zero_copy::PULL)] {
        assert_eq!(number(&format!("HAWSER_DIRECT_{name}")), u64::from(bit), "{name}");
    }
    let forms = [("FOLD", REDUCE), ("OWN", OWN), ("SECOND", SECOND), ("SAME", SAME)];
    let more = [("SCALE", fused::SCALE), ("DIVIDE", fused::DIVIDE), ("ALIGNED", fused::ALIGNED)];
    for (name, bit) in forms.into_iter().chain(more).chain([("EIGHTS", fused::EIGHTS)]) {
        assert_eq!(number(&format!("HAWSER_{name}")), u64::from(bit), "{name}");
    }
}

#[test]
fn worlds_without_exchanges_say_why() {
    let key = ProgramKey::new(Collective::AllReduce, Algorithm::OneShot, 4, 0);
    let call = call(Collective::AllReduce, 8, 0, 0, false);
    let gpu = |sm| DeviceKind::Cuda { sm };
    let cases = [
        (Topology::single_host(4, DeviceKind::Host, Link::HostMemory), "for GPUs"),
        (Topology::single_host(9, gpu(90), Link::NvLink), "2 to 8 ranks"),
        (Topology::of_hosts(4, 2, gpu(90), Link::NvLink), "one host"),
        (Topology::single_host(4, gpu(80), Link::NvLink), "sm_90"),
        (Topology::single_host(4, gpu(90), Link::HostMemory), "peer access"),
        (Topology::single_host(4, gpu(90), Link::Pcie), "NVLink only"),
    ];
    for (topology, part) in cases {
        let reason = fused::refused(&call, &key, Route::FUSED_LL128, &topology).unwrap();
        assert!(reason.contains(part), "{reason}");
    }
    let topology = Topology::single_host(4, gpu(90), Link::NvLink);
    assert!(SYM.iter().all(|p| fused::refused(&call, &key, *p, &topology).is_none()));
    let rare = Call { op: ReduceOp::Prod, ..call };
    assert!(fused::refused(&rare, &key, Route::FUSED_LL, &topology).unwrap().contains("int32 by prod"));
}

#[test]
fn direct_exchanges_say_what_they_cannot_do() {
    let mut topology = Topology::single_host(4, DeviceKind::Cuda { sm: 90 }, Link::NvLink);
    let refused = |topology: &Topology, call: &Call, algorithm| {
        let key = ProgramKey::new(call.collective, algorithm, 4, 0);
        fused::refused(call, &key, Route::ZERO_COPY, topology)
    };
    let sum = call(Collective::AllReduce, 1 << 20, 0, 0, false);
    let gather = |count| call(Collective::AllGather, count, 0, 0, false);
    assert!(refused(&topology, &sum, Algorithm::AllPairs).unwrap().contains("one process"));
    topology.direct = true;
    assert_eq!(refused(&topology, &sum, Algorithm::AllPairs), None);
    assert_eq!(refused(&topology, &gather(1 << 20), Algorithm::AllPairs), None);
    let average = Call { op: ReduceOp::Avg, dtype: DataType::Float32, ..sum };
    assert_eq!(refused(&topology, &average, Algorithm::AllPairs), None);
    let scaled = Call { op: ReduceOp::PreMulSum, dtype: DataType::Float32, ..sum };
    let cases = [
        (sum, Algorithm::OneShot, "in place"),
        (scaled, Algorithm::AllPairs, "factor of its own"),
        (gather((1 << 20) + 1), Algorithm::AllPairs, "no multiple of 16"),
        (gather(1 << 10), Algorithm::AllPairs, "parts of 4096 bytes"),
        (Call { op: ReduceOp::Prod, ..sum }, Algorithm::AllPairs, "no fused kernel"),
        (sum, Algorithm::Ring, "no exchanges"),
    ];
    for (call, algorithm, part) in cases {
        let reason = refused(&topology, &call, algorithm).unwrap();
        assert!(reason.contains(part), "{reason}");
    }
}

#[test]
fn large_calls_of_one_process_go_direct() {
    let apart = Topology::single_host(2, DeviceKind::Cuda { sm: 90 }, Link::NvLink);
    let direct = Topology { direct: true, ..apart.clone() };
    let pick = |topology: &Topology, collective, bytes: u64, config: &PlanConfig| {
        let blocks = collective_blocks(collective, 2);
        choose(&call(collective, bytes / 4 / blocks, 0, 0, false), topology, config).unwrap()
    };
    let plain = PlanConfig::default();
    use Collective::{AllGather, AllReduce, AllToAll, Broadcast, Gather, Reduce, ReduceScatter, Scatter};
    for collective in [AllReduce, ReduceScatter, AllGather, AllToAll, Broadcast, Reduce, Gather, Scatter] {
        let large = pick(&direct, collective, 256 << 20, &plain);
        assert_eq!(large.route, Route::ZERO_COPY, "{}", large.why);
        assert!(large.instances <= fused::TILE_BLOCKS);
        assert_ne!(pick(&direct, collective, 256 << 10, &plain).route, Route::ZERO_COPY);
        assert_ne!(pick(&apart, collective, 256 << 20, &plain).route, Route::ZERO_COPY);
        let without =
            PlanConfig { routes: PlanConfig::parse_proto("^symdirect").unwrap(), ..PlanConfig::default() };
        assert_ne!(pick(&direct, collective, 256 << 20, &without).route, Route::ZERO_COPY);
        let few = pick(&direct, collective, 256 << 20, &PlanConfig { max_ctas: 3, ..PlanConfig::default() });
        assert!(few.route != Route::ZERO_COPY || few.instances == 3, "{}", few.why);
    }
    let four =
        Topology { direct: true, ..Topology::single_host(4, DeviceKind::Cuda { sm: 90 }, Link::NvLink) };
    assert_eq!(pick(&four, AllGather, 256 << 20, &plain).route, Route::ZERO_COPY);
    for combined in [AllReduce, ReduceScatter] {
        assert_eq!(pick(&four, combined, 256 << 20, &plain).route, Route::FUSED_SIMPLE);
    }
    assert!(zero_copy::is_wanted(&apart, &plain, &[7, 7]) && !zero_copy::is_wanted(&apart, &plain, &[7, 8]));
    let without =
        PlanConfig { routes: PlanConfig::parse_proto("^symdirect").unwrap(), ..PlanConfig::default() };
    assert!(!zero_copy::is_wanted(&apart, &without, &[7, 7]));
    let staged = Topology::single_host(2, DeviceKind::Cuda { sm: 90 }, Link::HostMemory);
    assert!(!zero_copy::is_wanted(&staged, &plain, &[7, 7]));
}

fn collective_blocks(collective: Collective, ranks: u32) -> u64 {
    collective.input_blocks(ranks).max(collective.output_blocks(ranks)).into()
}

#[test]
fn the_reason_for_staging_is_that_of_the_call() {
    let mut topology = Topology::single_host(4, DeviceKind::Cuda { sm: 90 }, Link::NvLink);
    let gather = |count| call(Collective::AllGather, count, 0, 0, false);
    assert!(fused::why_staged(&gather(1 << 20), &topology).contains("ncclCommWindowRegister"));
    topology.direct = true;
    assert!(fused::why_staged(&gather(1 << 20), &topology).contains("costs less"));
    assert!(fused::why_staged(&gather(1 << 10), &topology).contains("too small"));
    let product = Call { op: ReduceOp::Prod, ..call(Collective::AllReduce, 1 << 20, 0, 0, false) };
    assert!(fused::why_staged(&product, &topology).contains("no fused kernel"));
}

#[test]
fn direct_launches_know_their_buffers() {
    let plan = |collective, rank, route| {
        let chosen = choice(collective, Algorithm::AllPairs, 4, 0, route);
        FusedPlan::new(&call(collective, 1 << 20, 0, rank, false), &chosen, rank, 4, &PlanConfig::default())
    };
    let gather = plan(Collective::AllGather, 1, Route::ZERO_COPY);
    assert_eq!(gather.to_reach(16, 32), Some([(16, 4 << 20), (32, 16 << 20)]));
    assert_eq!((gather.blocks, gather.threads), (43, 512));
    assert_eq!(gather.args().direct, zero_copy::TRY);
    assert_eq!(gather.kernel.symbol(), "hawser_copy_u8_symsimple");
    let reduce = plan(Collective::Reduce, 1, Route::ZERO_COPY);
    assert_eq!(reduce.to_reach(16, 0), Some([(16, 4 << 20), (0, 0)]), "only the root has an output");
    let transpose = plan(Collective::AllToAll, 1, Route::ZERO_COPY);
    assert!(transpose.to_reach(16, 32).is_some());
    assert_eq!(transpose.to_reach(16, 16), None, "blocks would be overwritten before they are sent");
    let tiles = plan(Collective::AllGather, 1, Route::FUSED_SIMPLE);
    assert_eq!((tiles.to_reach(16, 32), tiles.bind(16, 32, 0, 0).direct), (None, 0));
}

#[test]
fn addresses_are_filled_in() {
    let chosen = choice(Collective::AllReduce, Algorithm::AllPairs, 4, 0, Route::FUSED_SIMPLE);
    let call = call(Collective::AllReduce, 64, 0, 1, false);
    let mut plan = FusedPlan::new(&call, &chosen, 1, 4, &PlanConfig::default());
    plan.connect(&[1 << 30, 2 << 30, 3 << 30, 4 << 30], 1 << 20, 77);
    let args = plan.bind(4096, 8192, 5, 6);
    assert_eq!((args.comm, args.op_number, args.scalar), (77, 6, 5));
    assert_eq!((plan.part(), args.mine), (Part::Tiles, 2 << 30));
    assert_eq!(args.to[3], (1 << 30) + 16384, "rank 0 is three after rank 1");
    assert_eq!((args.src[0], args.dst[1], args.src[3], args.dst[0]), (4096 + 64, 8192 + 64, 4096, 8192));
    assert_ne!(args.flow.form & fused::ALIGNED, 0);
    assert_eq!(plan.bind(4100, 8192, 0, 0).flow.form & fused::ALIGNED, 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn any_count(
        which in 0..11usize, ranks in 2..=8u32, root in 0..8u32, count in 1..3000u64, in_place: bool
    ) {
        let (collective, algorithm) = programs()[which];
        let root = if collective.rooted() { root % ranks } else { 0 };
        check(collective, algorithm, ranks, root, count, in_place && collective != Collective::AllToAll);
    }
}
