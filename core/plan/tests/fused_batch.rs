//! Batches: all ranks place the calls of a group alike, whatever their buffers and streams; launches of a
//! rank hold nothing that depends on each other; and what a kernel reads says the same as the arguments of
//! each call alone.

mod decisions;

use decisions::decided;
use hawser_kernels_abi::DeviceOp;
use hawser_plan::Scalar;
use hawser_plan::algo::ProgramKey;
use hawser_plan::executor::fused::batch::{
    self, BatchArgs, BatchOp, CUT, FusedBatch, Gathering, Member, NO_RANK, OPS, Place, SPREAD_DST, SPREAD_SRC,
};
use hawser_plan::executor::fused::{FusedArgs, FusedPlan, THREADS};
use hawser_plan::{Algorithm, Call, Collective, DataType, PlanConfig, ReduceOp, Route};
use proptest::prelude::*;

const PROGRAMS: [(Collective, Algorithm); 11] = [
    (Collective::AllReduce, Algorithm::OneShot),
    (Collective::AllReduce, Algorithm::AllPairs),
    (Collective::Broadcast, Algorithm::OneShot),
    (Collective::Broadcast, Algorithm::AllPairs),
    (Collective::Reduce, Algorithm::OneShot),
    (Collective::Reduce, Algorithm::AllPairs),
    (Collective::AllGather, Algorithm::AllPairs),
    (Collective::ReduceScatter, Algorithm::AllPairs),
    (Collective::AllToAll, Algorithm::Direct),
    (Collective::Gather, Algorithm::Direct),
    (Collective::Scatter, Algorithm::Direct),
];
const TYPES: [DataType; 4] = [DataType::Uint32, DataType::Float16, DataType::Float64, DataType::Float8e4m3];
const AREA: u64 = 1 << 40;

/// The facts that all ranks know of a call.
#[derive(Debug, Clone, Copy)]
struct Common {
    program: usize,
    count: u64,
    dtype: DataType,
    op: ReduceOp,
    root: u32,
    route: Route,
}

/// The part of it that one rank knows: offsets of its buffers in a few kilobytes, so that many overlap; and
/// its stream.
#[derive(Debug, Clone, Copy)]
struct Local {
    input: u64,
    output: u64,
    stream: u64,
}

fn common() -> impl Strategy<Value = Common> {
    let count = prop_oneof![4 => 1..200u64, 2 => 1..3000u64, 1 => 1..40_000u64];
    let op = prop_oneof![8 => Just(ReduceOp::Sum), 1 => Just(ReduceOp::Max), 1 => Just(ReduceOp::PreMulSum)];
    let route = prop_oneof![12 => Just(Route::FUSED_LL), 1 => Just(Route::FUSED_SIMPLE)];
    let dtype =
        prop_oneof![6 => Just(TYPES[0]), 1 => Just(TYPES[1]), 1 => Just(TYPES[2]), 1 => Just(TYPES[3])];
    (0..PROGRAMS.len(), count, dtype, op, 0..8u32, route).prop_map(
        |(program, count, dtype, op, root, route)| Common { program, count, dtype, op, root, route },
    )
}

fn local(apart: u64) -> impl Strategy<Value = Local> {
    let address = (0..apart).prop_map(|at| AREA + at * 1021);
    (address.clone(), address, prop_oneof![9 => Just(1u64), 1 => Just(2u64)])
        .prop_map(|(input, output, stream)| Local { input, output, stream })
}

impl Common {
    fn call(&self, ranks: u32, rank: u32, local: &Local) -> Call {
        let (collective, _) = PROGRAMS[self.program];
        let root = if collective.rooted() { self.root % ranks } else { 0 };
        let address = |some: bool, address| if some { address } else { 0 };
        Call {
            collective,
            count: self.count,
            dtype: self.dtype,
            op: if collective.reduces() { self.op } else { ReduceOp::Sum },
            scalar: Scalar::Immediate(3),
            root,
            input: address(collective.has_input(rank, root), local.input),
            output: address(collective.has_output(rank, root), local.output),
            gap: 0,
        }
    }

    fn plan(&self, ranks: u32, rank: u32, local: &Local, config: &PlanConfig) -> (Call, FusedPlan) {
        let call = self.call(ranks, rank, local);
        let (collective, algorithm) = PROGRAMS[self.program];
        let key = ProgramKey::new(collective, algorithm, ranks, call.root);
        let choice = decided(key, self.route, 64, 512);
        let mut plan = FusedPlan::new(&call, &choice, rank, ranks, config);
        let areas: Vec<u64> = (1..=u64::from(ranks)).map(|r| r << 32).collect();
        plan.connect(&areas, 7 << 20, 9 << 20);
        (call, plan)
    }
}

/// The arguments that a kernel makes of an operation: `kernels/cuda/exchange_bundle.cuh`, said once more.
fn expanded(args: &BatchArgs, op: &BatchOp) -> FusedArgs {
    let (rank, ranks) = (usize::from(args.rank), usize::from(args.ranks));
    let is_cut = op.shape & CUT != 0;
    let mut whole = FusedArgs {
        to: args.to,
        mine: args.mine,
        comm: args.comm,
        epochs: args.epochs,
        done: args.done,
        scalar: op.scalar,
        op_number: op.op_number,
        most: u64::from(op.part).next_multiple_of(16),
        least: u64::MAX,
        divisor: ranks as u32,
        rank: args.rank,
        ranks: args.ranks,
        flow: op.flow,
        ..FusedArgs::default()
    };
    for p in 0..ranks {
        let is_skipped = p == usize::from(op.skipped);
        let place = (p - usize::from(op.skipped != NO_RANK && p > usize::from(op.skipped))) as u64;
        let at = if is_skipped { 0 } else { place * u64::from(op.part) };
        let left = u64::from(op.total).saturating_sub(at).min(op.part.into());
        let len = if is_skipped { 0 } else { if is_cut { left } else { op.part.into() } };
        let k = (p + ranks - rank) % ranks;
        let offset = |bit| if op.shape & bit != 0 { at } else { 0 };
        whole.src[k] = op.input + offset(SPREAD_SRC);
        (whole.src_len[k], whole.len[p]) = (len, len);
        whole.dst[p] = if op.has_dst >> p & 1 == 1 { op.output + offset(SPREAD_DST) } else { 0 };
        if !is_skipped {
            whole.least = whole.least.min(len);
        }
    }
    whole
}

/// The same but for what kernels of words do not read: what is beyond the ranks, and the tile.
fn comparable(mut args: FusedArgs) -> FusedArgs {
    let ranks = usize::from(args.ranks);
    args.src[ranks..].fill(0);
    (args.tile, args.flags_at) = (0, 0);
    args
}

/// The plan of a rank for a group: for each batch of at least two calls their indices, places and threads,
/// and its launches.
#[derive(Debug)]
struct Planned {
    batches: Vec<(Vec<usize>, Vec<Place>, u32)>,
    launches: Vec<(Vec<usize>, FusedBatch)>,
}

fn planned(group: &[(Call, FusedPlan)], streams: &[u64], config: &PlanConfig) -> Planned {
    let mut all = Planned { batches: Vec::new(), launches: Vec::new() };
    let mut index = 0;
    while index < group.len() {
        let mut gathering = Gathering::default();
        let mut end = index;
        while end < group.len() && gathering.take(&group[end].1, config) {
            end += 1;
        }
        let range = index..end.max(index + 1);
        index = range.end;
        if range.len() < 2 {
            continue;
        }
        let plans: Vec<&FusedPlan> = group[range.clone()].iter().map(|(_, plan)| plan).collect();
        let (places, threads) = batch::places(&plans, config);
        let members: Vec<Member> =
            range.clone().map(|i| Member::new(&group[i].1, &group[i].0, streams[i])).collect();
        for cut in batch::cut(&members) {
            let ops: Vec<_> = cut
                .clone()
                .map(|at| {
                    let (call, plan) = &group[range.start + at];
                    let number = 100 + (range.start + at) as u64;
                    let bound = plan.bind(call.input, call.output, plan.scalar(), number);
                    (plan, bound, call, places[at].clone())
                })
                .collect();
            let launch = FusedBatch::new(&ops, threads);
            for (op, (_, bound, ..)) in launch.args.ops.iter().zip(&ops) {
                assert_eq!(comparable(expanded(&launch.args, op)), comparable(*bound));
            }
            all.launches.push((cut.map(|at| range.start + at).collect(), launch));
        }
        all.batches.push((range.collect(), places, threads));
    }
    all
}

/// By block: the numbers of the operations that it runs, in order.
fn orders(planned: &Planned) -> Vec<Vec<u64>> {
    let mut orders = vec![Vec::new(); batch::MOST_BLOCKS];
    for (_, launch) in &planned.launches {
        for block in 0..launch.blocks as usize {
            let todo = launch.args.todo[block];
            let numbers = (0..OPS).filter(|i| todo >> i & 1 == 1).map(|i| launch.args.ops[i].op_number);
            orders[usize::from(launch.args.first) + block].extend(numbers);
        }
    }
    orders
}

/// Bytes that a call reads and writes on a rank, by what its collective means.
fn buffers(call: &Call, ranks: u32) -> [std::ops::Range<u64>; 2] {
    let bytes = |blocks: u32| u64::from(blocks) * call.count * call.dtype.size() as u64;
    let range = |at: u64, bytes: u64| if at == 0 { 0..0 } else { at..at + bytes };
    [
        range(call.input, bytes(call.collective.input_blocks(ranks))),
        range(call.output, bytes(call.collective.output_blocks(ranks))),
    ]
}

fn touch(a: &std::ops::Range<u64>, b: &std::ops::Range<u64>) -> bool {
    a.start.max(b.start) < a.end.min(b.end)
}

/// No launch takes more blocks than the settings allow, those for reductions if it has one.
fn check_blocks(group: &[(Call, FusedPlan)], planned: &Planned, config: &PlanConfig) {
    for (indices, launch) in &planned.launches {
        let most = indices.iter().map(|&i| config.most_ctas(group[i].0.collective)).min().unwrap();
        assert!(launch.blocks <= most, "{} blocks of {most}: {indices:?}", launch.blocks);
    }
}

fn check_launches(group: &[(Call, FusedPlan)], streams: &[u64], ranks: u32, planned: &Planned) {
    for (indices, launch) in &planned.launches {
        assert!(launch.threads.is_multiple_of(32) && launch.threads <= THREADS && launch.blocks >= 1);
        assert!(u32::from(launch.args.first) + launch.blocks <= batch::MOST_BLOCKS as u32);
        assert_eq!(usize::from(launch.args.n_ops), indices.len());
        for (n, &i) in indices.iter().enumerate() {
            let (call, plan) = &group[i];
            assert_eq!(streams[i], streams[indices[0]]);
            let blocks = launch.args.todo.iter().filter(|todo| **todo >> n & 1 == 1).count() as u64;
            let room = blocks * u64::from(launch.threads) * 8;
            assert!(plan.args().most <= room && room - plan.args().most < u64::from(launch.threads) * 8);
            if launch.kernel.op != DeviceOp::Copy {
                let size = launch.kernel.dtype.size() as u64;
                assert!((call.input | call.output).is_multiple_of(size), "pieces of whole elements");
                assert!((call.count * call.dtype.size() as u64).is_multiple_of(size));
                assert!(
                    plan.kernel.op == DeviceOp::Copy
                        || plan.kernel.symbol() + "_bundle" == launch.kernel.symbol()
                );
            }
            for &j in indices.iter().take(n) {
                let ([input, output], [earlier_in, earlier_out]) =
                    (buffers(call, ranks), buffers(&group[j].0, ranks));
                let meets = touch(&output, &earlier_out)
                    || touch(&input, &earlier_out)
                    || touch(&output, &earlier_in);
                assert!(!meets, "{j} and {i} use each other's buffers");
            }
        }
    }
}

fn check(ranks: u32, group: &[Common], locals: &[Vec<Local>], config: &PlanConfig) {
    let mut first: Option<Planned> = None;
    for rank in 0..ranks {
        let locals = &locals[rank as usize];
        // Reductions want whole elements; what only moves may lie anywhere.
        let local = |(common, local): (&Common, &Local)| {
            let odd = if PROGRAMS[common.program].0.reduces() { local.input % 8 } else { 0 };
            let odd_out = if PROGRAMS[common.program].0.reduces() { local.output % 8 } else { 0 };
            Local { input: local.input - odd, output: local.output - odd_out, stream: local.stream }
        };
        let locals: Vec<Local> = group.iter().zip(locals).map(local).collect();
        let plans: Vec<(Call, FusedPlan)> = group
            .iter()
            .zip(&locals)
            .map(|(common, local)| common.plan(ranks, rank, local, config))
            .collect();
        let streams: Vec<u64> = locals.iter().map(|local| local.stream).collect();
        let planned = planned(&plans, &streams, config);
        check_launches(&plans, &streams, ranks, &planned);
        check_blocks(&plans, &planned, config);
        let launched: usize = planned.launches.iter().map(|(indices, _)| indices.len()).sum();
        assert_eq!(launched, planned.batches.iter().map(|(indices, ..)| indices.len()).sum::<usize>());
        match &first {
            None => first = Some(planned),
            Some(of_first) => {
                assert_eq!(planned.batches, of_first.batches, "rank {rank} and rank 0 place calls alike");
                assert_eq!(
                    orders(&planned),
                    orders(of_first),
                    "rank {rank} and rank 0 have one order in each block"
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn ranks_agree_and_launches_are_sound(
        ranks in 2..=8u32,
        group in prop::collection::vec(common(), 1..90),
        locals in prop::collection::vec(
            prop::collection::vec(prop_oneof![1 => local(40), 8 => local(1 << 20)], 90), 8
        ),
        max_ctas in prop_oneof![3 => Just(64u32), 1 => 1..32u32],
        (pass_sm, reducing_ctas) in prop_oneof![2 => Just((0, 2)), 1 => (Just(1), 1..9u32)],
    ) {
        let config = PlanConfig { max_ctas, pass_sm, reducing_ctas, ..PlanConfig::default() };
        check(ranks, &group, &locals, &config);
    }
}

fn many(n: usize, count: u64) -> Vec<Common> {
    let (op, dtype, route) = (ReduceOp::Sum, DataType::Uint32, Route::FUSED_LL);
    vec![Common { program: 0, count, dtype, op, root: 0, route }; n]
}

/// Buffers that lie apart.
fn apart(n: usize) -> Vec<Local> {
    let at = |i: usize| AREA + ((i as u64) << 24);
    (0..n).map(|i| Local { input: at(2 * i), output: at(2 * i + 1), stream: 1 }).collect()
}

fn group_of(commons: &[Common], locals: &[Local], config: &PlanConfig) -> (Vec<(Call, FusedPlan)>, Vec<u64>) {
    let plans = commons.iter().zip(locals).map(|(common, local)| common.plan(4, 1, local, config)).collect();
    (plans, locals.iter().map(|local| local.stream).collect())
}

fn planned_of(group: &[(Call, FusedPlan)], streams: &[u64], config: &PlanConfig) -> usize {
    planned(group, streams, config).launches.len()
}

#[test]
fn sixty_four_small_calls_are_one_launch() {
    let config = PlanConfig::default();
    for count in [1, 16, 500, 4000] {
        let (group, streams) = group_of(&many(64, count), &apart(64), &config);
        let planned = planned(&group, &streams, &config);
        assert_eq!(planned.launches.len(), 1, "{count}");
        let launch = &planned.launches[0].1;
        assert_eq!((launch.args.n_ops, launch.args.rank, launch.args.ranks), (64, 1, 4));
        assert_eq!(launch.kernel.symbol(), "hawser_sum_u32_symll_bundle");
    }
    let (group, streams) = group_of(&many(65, 16), &apart(65), &config);
    assert_eq!(planned(&group, &streams, &config).launches.len(), 1, "the 65th goes alone");
}

#[test]
fn groups_of_reductions_beside_copy_engines_are_light() {
    let config = PlanConfig { pass_sm: 1, reducing_ctas: 2, ..PlanConfig::default() };
    let (group, streams) = group_of(&many(64, 100), &apart(64), &config);
    let planned = planned(&group, &streams, &config);
    assert!(!planned.launches.is_empty() && planned.launches.iter().all(|(_, launch)| launch.blocks <= 2));
    // A move that needs ten blocks is none of them.
    let mut commons = many(3, 100);
    (commons[1].program, commons[1].count) = (6, 10_000);
    let (group, streams) = group_of(&commons, &apart(3), &config);
    assert_eq!(planned_of(&group, &streams, &config), 0);
    commons.swap(1, 2);
    let (group, streams) = group_of(&commons, &apart(3), &config);
    assert_eq!(planned_of(&group, &streams, &config), 1);
}

#[test]
fn moves_share_launches_with_reductions_of_their_size() {
    let config = PlanConfig::default();
    let mut commons = many(4, 100);
    // All-gather and all-to-all of the same size, then an all-gather of bytes, which is a batch's beginning
    // of its own.
    (commons[1].program, commons[2].program) = (6, 8);
    let (group, streams) = group_of(&commons, &apart(4), &config);
    let together = planned(&group, &streams, &config);
    assert_eq!(together.launches.iter().map(|(i, _)| i.clone()).collect::<Vec<_>>(), [vec![0, 1, 2, 3]]);
    assert_eq!(together.launches[0].1.kernel.op, DeviceOp::Sum);
    commons[2].dtype = DataType::Uint8;
    let (group, streams) = group_of(&commons, &apart(4), &config);
    let split = planned(&group, &streams, &config);
    assert_eq!(split.batches.iter().map(|(i, ..)| i.clone()).collect::<Vec<_>>(), [vec![0, 1]], "{split:?}");
}

#[test]
fn what_depends_on_each_other_is_cut_on_this_rank_only() {
    let config = PlanConfig::default();
    let commons = many(4, 100);
    let launches = |change: fn(&mut Vec<Local>)| {
        let mut locals = apart(4);
        change(&mut locals);
        let (group, streams) = group_of(&commons, &locals, &config);
        let planned = planned(&group, &streams, &config);
        assert_eq!(planned.batches.len(), 1);
        planned.launches.into_iter().map(|(indices, _)| indices).collect::<Vec<_>>()
    };
    assert_eq!(launches(|_| ()), [vec![0, 1, 2, 3]]);
    assert_eq!(launches(|l| l[1].input = l[0].input), [vec![0, 1, 2, 3]], "two may read the same");
    assert_eq!(launches(|l| l[2].input = l[0].output + 396), [vec![0, 1], vec![2, 3]]);
    assert_eq!(launches(|l| l[2].output = l[1].input), [vec![0, 1], vec![2, 3]]);
    assert_eq!(launches(|l| l[3].output = l[0].output), [vec![0, 1, 2], vec![3]]);
    assert_eq!(launches(|l| l[1].stream = 9), [vec![0], vec![1], vec![2, 3]]);
    assert_eq!(launches(|l| l[2].input = l[0].output + 400), [vec![0, 1, 2, 3]]);
}

#[test]
fn what_has_no_batch_stays_alone() {
    let config = PlanConfig::default();
    let launches = |commons: &[Common], config: &PlanConfig| {
        let (group, streams) = group_of(commons, &apart(commons.len()), config);
        planned(&group, &streams, config).launches.len()
    };
    let tiles = |common: &Common| Common { route: Route::FUSED_SIMPLE, ..*common };
    assert_eq!(launches(&many(4, 100), &config), 1);
    assert_eq!(launches(&many(4, 100).iter().map(tiles).collect::<Vec<_>>(), &config), 0);
    assert_eq!(launches(&many(4, 100_000), &config), 0, "more than one round of all blocks");
    assert_eq!(launches(&many(4, 100), &PlanConfig { fuse: false, ..PlanConfig::default() }), 0);
}

/// The kernels know sizes and bits by constants of their own.
#[test]
fn the_kernels_count_with_the_same_numbers() {
    let header = include_str!("../../../kernels/cuda/plan.h");
    let number = |name: &str| -> u64 {
        let rest = header.split(&format!("{name} = ")).nth(1).expect(name);
        rest.split(';').next().unwrap().parse().expect(name)
    };
    assert_eq!(number("HAWSER_BUNDLE_OPS"), OPS as u64);
    assert_eq!(number("HAWSER_BUNDLE_BLOCKS"), batch::MOST_BLOCKS as u64);
    for (name, bit) in [("SPREAD_SRC", SPREAD_SRC), ("SPREAD_DST", SPREAD_DST), ("CUT", CUT)] {
        assert_eq!(number(&format!("HAWSER_{name}")), u64::from(bit), "{name}");
    }
}
