//! Launches for copy engines, on simulated ranks.

mod copies;

use std::collections::HashMap;
use std::sync::Arc;

use copies::{Machine, OUTPUT, address, blocks_at_once, hosts, meet, settings, topology};
use hawser_plan::Scalar;
use hawser_plan::algo::{rank_program, shape};
use hawser_plan::choose::{self, Outcome, choose};
use hawser_plan::executor::copy_engine::{self, Bases, Counters, Direct, Emitter, Staging, Way, What};
use hawser_plan::executor::fused::FusedPlan;
use hawser_plan::executor::interpreter::{bind, lower};
use hawser_plan::executor::launch::device_op;
use hawser_plan::p2p::{self, Message};
use hawser_plan::topology::{DeviceKind, Link, Topology};
use hawser_plan::{Call, Collective, DataType, PlanConfig, ReduceOp, Route};
use proptest::prelude::*;

/// The byte at offset `i` of a rank's input.
fn pattern(seed: u64, rank: u32, i: u64) -> u8 {
    (seed ^ (u64::from(rank) * 31) ^ (i * 7) ^ (i >> 8)) as u8
}

fn collective(
    machine: &mut Machine,
    collective: Collective,
    config: &PlanConfig,
    bytes: u64,
    (alias, direct): (bool, bool),
    seed: u64,
) {
    let (topology, ranks) = (machine.topology.clone(), machine.topology.size());
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
            gap: 0,
        };
        for i in 0..u64::from(ins) * bytes {
            machine.memory[rank as usize][i as usize] = pattern(seed, rank, i);
        }
        machine.memory[rank as usize][OUTPUT as usize..][..(u64::from(outs) * bytes) as usize].fill(0xee);
        let choice = choose(&call, &topology, config).unwrap();
        assert_eq!(choice.route, Route::COPY_ENGINE, "{}", choice.why);
        let program = rank_program(&choice.key, rank).unwrap();
        let lowered = lower(&shape(&choice.key).unwrap(), &program, device_op(&call)).unwrap();
        let staged = copy_engine::config_for(&choice.key, call.total_bytes(ranks), &topology, config);
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
    let input = |rank: u32, block: u64, i: u64| pattern(seed, rank, block * bytes + i);
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
        ranks in 2u32..6,
        per_host in 1u32..6,
        kinds in prop::collection::vec((0usize..5, 1u64..60_000), 1..4),
        alias: bool, direct: bool, ring: bool, asks in 0u64..64, seed: u64
    ) {
        let mut machine = Machine::asking(hosts(ranks, per_host), asks);
        let mut config = settings();
        if ring {
            config.algorithms = PlanConfig::parse_algo("Ring").unwrap();
        }
        for (kind, bytes) in kinds {
            collective(&mut machine, MOVES[kind], &config, bytes, (alias, direct), seed);
        }
    }

    #[test]
    fn messages_end_right_whatever_streams_do(
        ranks in 2u32..6,
        per_host in 1u32..6,
        list in prop::collection::vec((0u32..6, 0u32..6, 0u64..70_000), 1..12),
        alias: bool,
        direct: bool,
        asks in 0u64..64,
        seed: u64,
    ) {
        let (topology, config) = (hosts(ranks, per_host), settings());
        let mut machine = Machine::asking(topology.clone(), asks);
        let mut messages = vec![Vec::new(); ranks as usize];
        let (mut used, mut checks) = (vec![0u64; ranks as usize], Vec::new());
        for (number, (from, to, bytes)) in list.into_iter().enumerate() {
            let (from, to) = (from % ranks, to % ranks);
            let (src, dst) = (used[from as usize], used[to as usize] + if from == to { bytes } else { 0 });
            used[from as usize] = src + bytes;
            used[to as usize] = dst + bytes;
            for i in 0..bytes {
                let byte = ((number as u64 * 91) ^ i ^ (i >> 8)) as u8;
                machine.memory[from as usize][(src + i) as usize] = byte;
            }
            messages[from as usize].push(Message { peer: to, send: true, addr: address(from, src), bytes });
            messages[to as usize].push(Message { peer: from, send: false, addr: address(to, dst), bytes });
            checks.push((number, address(to, dst), bytes));
        }
        let launches: Vec<Vec<_>> = (0..ranks)
            .map(|rank| {
                let plans = p2p::plan(&messages[rank as usize], rank, ranks, &topology, &config).unwrap();
                plans
                    .into_iter()
                    .map(|plan| {
                        assert_eq!(plan.kernel.route, Route::COPY_ENGINE);
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

/// No byte goes through a slot, at neither end, where the network reaches all buffers.
#[test]
fn what_the_network_reaches_needs_no_slots() {
    let bytes = 10 * 4096;
    for (what, ring, messages) in [
        (Collective::AllGather, false, 6),
        (Collective::AllGather, true, 6),
        (Collective::AllToAll, false, 6),
        (Collective::Broadcast, false, 2),
        (Collective::Gather, false, 2),
        (Collective::Scatter, false, 2),
    ] {
        for seed in 0..8 {
            let mut machine = Machine::asking(hosts(3, 1), u64::MAX);
            machine.reaches_all = true;
            let mut config = settings();
            if ring {
                config.algorithms = PlanConfig::parse_algo("Ring").unwrap();
            }
            collective(&mut machine, what, &config, bytes, (seed & 1 == 1, false), seed);
            assert_eq!(machine.straight, [messages * bytes; 2], "{what:?} {seed}");
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
        gap: 0,
    };
    let strict = PlanConfig { pass_sm: 2, ..settings() };
    // Nobody reduces without multiprocessors: what must is light, and no error.
    let reduced = choose(&call(Collective::AllReduce), &topology(16), &strict).unwrap();
    assert_ne!(reduced.route, Route::COPY_ENGINE);
    let apart = Topology::single_host(4, DeviceKind::Cuda { sm: 90 }, Link::HostMemory);
    let error = choose(&call(Collective::AllGather), &apart, &strict).unwrap_err();
    assert!(error.text.contains("peer access") && error.text.contains("NCCL_PASS_SM=1"), "{}", error.text);
    let lenient = choose(&call(Collective::AllGather), &apart, &settings()).unwrap();
    assert_ne!(lenient.route, Route::COPY_ENGINE);
    // Ranks that are all on hosts of their own need no peer access.
    let alone = Topology::of_hosts(4, 1, DeviceKind::Cuda { sm: 90 }, Link::HostMemory);
    assert_eq!(choose(&call(Collective::AllGather), &alone, &strict).unwrap().route, Route::COPY_ENGINE);
    let off = choose(&call(Collective::AllGather), &topology(4), &PlanConfig::default()).unwrap();
    assert!(off.why.to_string().contains("NCCL_PASS_SM=1"));
}

/// Reductions beside copy engines keep few multiprocessors, by every candidate and in what is launched.
#[test]
fn reductions_are_light() {
    for (collective, ctas) in [Collective::AllReduce, Collective::ReduceScatter, Collective::Reduce]
        .into_iter()
        .flat_map(|c| [(c, 1), (c, 2), (c, 5)])
    {
        let config = PlanConfig { reducing_ctas: ctas, ..settings() };
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
                gap: 0,
            };
            let topology = topology(ranks);
            for candidate in choose::candidates(&call, &topology, &config).unwrap() {
                if let Outcome::Predicted { instances, channels, .. } = candidate.outcome {
                    assert!(instances * channels <= ctas, "{candidate} with {ranks} ranks");
                }
            }
            let choice = choose(&call, &topology, &config).unwrap();
            // Not the root, which has nothing to combine.
            let program = rank_program(&choice.key, 1).unwrap();
            let lowered = lower(&shape(&choice.key).unwrap(), &program, device_op(&call)).unwrap();
            let large = ranks <= 9 && call.total_bytes(ranks) >= 1 << 20;
            assert_eq!(choice.route == Route::COPY_ENGINE, large, "{}", choice.why);
            let blocks = if choice.route.is_fused() {
                FusedPlan::new(&call, &choice, 1, ranks, &config).blocks
            } else if choice.route == Route::COPY_ENGINE {
                let config =
                    copy_engine::config_for(&choice.key, call.total_bytes(ranks), &topology, &config);
                let plan = bind(&lowered, &call, &choice, ranks, &config).unwrap();
                let (places, layout) = ((0..ranks).collect(), Staging::new(ranks, &config));
                let bases = Bases { rank: 1, staging: vec![1 << 40; ranks as usize], places, layout };
                let mut emitter = Emitter::new(&plan, &lowered.steps, &bases, Arc::default());
                let (mut counters, mut commands) = (Counters::default(), Vec::new());
                while emitter.round(&mut counters, &mut commands) {}
                assert_eq!(blocks_at_once(&commands), ctas);
                ctas
            } else {
                bind(&lowered, &call, &choice, ranks, &config).unwrap().args.n_blocks.into()
            };
            assert!(blocks <= ctas, "{blocks} blocks: {}", choice.why);
        }
    }
}

#[test]
fn staging_fits_its_budget() {
    for local in 2..=64 {
        let staging = Staging::new(local, &PlanConfig::default());
        assert!(staging.bytes() <= (226 << 20), "{local}: {}", staging.bytes());
        assert!(staging.slot_bytes.is_multiple_of(4 << 10));
    }
    for local in [2, 4, 8] {
        let slot = Staging::new(local, &PlanConfig::default()).slot_bytes;
        assert!(3 * slot >= (256 << 20) / u64::from(local), "one tile for a part of 256 MiB: {local} {slot}");
    }
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
    let (topology, config) = (topology(ranks), settings());
    let call = Call {
        collective: Collective::AllToAll,
        count: 50_000,
        dtype: DataType::Uint8,
        op: ReduceOp::Sum,
        scalar: Scalar::Immediate(0),
        root: 0,
        input: 0,
        output: 0,
        gap: 0,
    };
    let choice = choose(&call, &topology, &config).unwrap();
    let (mut board, mut copied) = (HashMap::new(), HashMap::new());
    for rank in 0..ranks {
        let call = Call { input: address(rank, 0), output: address(rank, OUTPUT), ..call };
        let lowered =
            lower(&shape(&choice.key).unwrap(), &rank_program(&choice.key, rank).unwrap(), device_op(&call))
                .unwrap();
        let staged = copy_engine::config_for(&choice.key, call.total_bytes(ranks), &topology, &config);
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
            if let What::Copy { dst, src, bytes, .. } = command.what {
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

/// Streams that wait would hold all queues: kernels do it, and the line says what to set.
#[test]
fn few_queues_leave_nothing_to_copy_engines() {
    let few = Topology { queues: 3, ..topology(2) };
    assert!(!copy_engine::has_staging(&few, &settings()));
    let reason = copy_engine::refused_topology(&few, &settings()).unwrap();
    assert!(reason.contains("CUDA_DEVICE_MAX_CONNECTIONS leaves 3"), "{reason}");
    assert!(copy_engine::has_staging(&Topology { queues: 4, ..few }, &settings()));
}

/// A captured launch that one end replays as often as the other calls it.
#[test]
fn between_hosts_one_end_may_replay_what_the_other_calls() {
    let (topology, config) = (hosts(2, 1), settings());
    let machine = Machine::on(topology.clone());
    let message =
        |rank: u32| Message { peer: 1 - rank, send: rank == 0, addr: address(rank, 0), bytes: 4 * 4096 + 17 };
    let commands = |machine: &Machine, rank: u32, counters: &mut Counters| {
        let plan = p2p::plan(&[message(rank)], rank, 2, &topology, &config).unwrap().remove(0);
        let steps = plan.args.inline_steps.to_vec();
        let mut emitter = Emitter::new(
            &plan,
            &steps,
            &machine.bases[rank as usize],
            machine.inter_node[rank as usize].clone(),
        );
        let mut commands = Vec::new();
        while emitter.round(counters, &mut commands) {}
        commands
    };
    let mut counters = [Counters::default(), Counters::default()];
    let first = commands(&machine, 0, &mut counters[0]);
    let received: Vec<_> = (0..3).map(|_| commands(&machine, 1, &mut counters[1])).collect();
    assert!(received.iter().all(|again| *again == received[0]), "each call is like the first");
    assert_eq!(commands(&machine, 0, &mut counters[0]), first);
    let told = |c: &&copy_engine::Command| matches!(c.what, What::Tell { .. });
    assert_eq!(first.iter().filter(told).count(), 5);
}
