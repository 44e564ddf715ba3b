//! The chooser: what it picks, what it refuses, and that it explains itself.

use std::collections::HashMap;

use hawser_kernels_abi::MAX_BLOCKS;
use hawser_msccl::{Window, to_xml};
use hawser_plan::PlanErrorKind;
use hawser_plan::Scalar;
use hawser_plan::algo;
use hawser_plan::choose::{self, Advice, Candidate, Outcome, choose};
use hawser_plan::config::{NET_LL_BYTES, NET_SLOT_BYTES, OWN_NIC_SLOT_BYTES};
use hawser_plan::executor::fused::FusedPlan;
use hawser_plan::executor::interpreter::{bind, lower};
use hawser_plan::executor::launch::device_op;
use hawser_plan::imported;
use hawser_plan::topology::{DeviceKind, Link};
use hawser_plan::vector;
use hawser_plan::{
    Algorithm, Call, Collective, DataType, Decision, Executor, Measured, PlanConfig, ReduceOp, Route,
    Topology,
};

const GPU: DeviceKind = DeviceKind::Cuda { sm: 90 };

fn call(collective: Collective, count: u64) -> Call {
    Call {
        collective,
        count,
        dtype: DataType::Float32,
        op: ReduceOp::Sum,
        scalar: Scalar::Immediate(0),
        root: 0,
        input: 16,
        output: 16,
        gap: 0,
    }
}

fn pick(collective: Collective, count: u64, topology: &Topology, config: &PlanConfig) -> Decision {
    choose(&call(collective, count), topology, config).unwrap()
}

#[test]
fn small_takes_few_hops_and_large_takes_bandwidth() {
    let topology = Topology::single_host(8, GPU, Link::NvLink);
    let config = PlanConfig::default();
    let small = pick(Collective::AllReduce, 2, &topology, &config);
    assert_eq!((small.key.algorithm, small.route), (Algorithm::OneShot, Route::FUSED_LL));
    let large = pick(Collective::AllReduce, 256 << 20, &topology, &config);
    assert!(matches!(large.route, Route::SIMPLE | Route::FUSED_SIMPLE), "{:?}", large.route);
    assert!(large.instances >= 8 && small.instances <= 2, "{} and {}", large.instances, small.instances);
    assert_eq!(pick(Collective::AllGather, 64, &topology, &config).key.algorithm, Algorithm::AllPairs);
}

#[test]
fn every_choice_can_be_bound() {
    let topologies = [
        (GPU, Link::NvLink),
        (GPU, Link::Pcie),
        (GPU, Link::HostMemory),
        (DeviceKind::Host, Link::HostMemory),
    ];
    let mut settings = vec![PlanConfig::default(), PlanConfig { max_ctas: 1, ..PlanConfig::default() }];
    settings.push(PlanConfig { min_ctas: 32, ..PlanConfig::default() });
    settings.push(PlanConfig { lanes: 1, ..PlanConfig::default() });
    settings.push(PlanConfig { lanes: 9, ..PlanConfig::default() });
    for (device, link) in topologies {
        for ranks in [1, 2, 3, 8, 9, 64, 100, 1024, algo::MAX_RANKS] {
            let topology = Topology::single_host(ranks, device, link);
            for collective in Collective::ALL {
                for count in [0, 1, 1000, 1 << 20] {
                    for config in &settings {
                        check_bound(&call(collective, count), &topology, config);
                    }
                }
            }
        }
    }
}

fn check_bound(call: &Call, topology: &Topology, config: &PlanConfig) {
    let ranks = topology.size();
    if ranks > algo::most_ranks(call.collective) {
        return;
    }
    let direct = algo::ProgramKey::new(call.collective, Algorithm::Direct, ranks, 0);
    // Some hundred ranks have eight channels, too long for one block, that have peers in common.
    let needs_lanes = || algo::channels(&direct).is_ok_and(|channels| channels > config.lanes);
    if call.collective == Collective::AllToAll && ranks > 100 && needs_lanes() && !algo::shares_lanes(&direct)
    {
        assert!(choose(call, topology, config).unwrap_err().text.contains("FIFO lanes"));
        return;
    }
    let choice = choose(call, topology, config).unwrap();
    assert_eq!(choice, choose(call, topology, config).unwrap());
    if choice.route.is_fused() {
        let plan = FusedPlan::new(call, &choice, ranks - 1, ranks, config);
        assert!(plan.blocks <= config.max_ctas && plan.blocks >= 1);
        assert_eq!(plan.threads, choice.threads);
        return;
    }
    let shape = algo::shape(&choice.key).unwrap();
    for rank in [0, ranks / 2, ranks - 1] {
        let program = algo::rank_program(&choice.key, rank).unwrap();
        let lowered = lower(&shape, &program, device_op(call)).unwrap();
        let plan = bind(&lowered, call, &choice, ranks, config).unwrap();
        let blocks = &plan.args.blocks[..usize::from(plan.args.n_blocks)];
        assert!(
            blocks.len() <= MAX_BLOCKS && blocks.iter().all(|block| u32::from(block.lane) < config.lanes)
        );
        assert_eq!(blocks.is_empty(), call.count == 0);
        assert_eq!(plan.args.n_inline > 0, lowered.steps.len() <= plan.args.inline_steps.len());
        let work = &plan.args.works[0];
        let tile_bytes = work.tile * plan.kernel.dtype.size() as u32;
        assert!(tile_bytes <= config.slot_bytes[choice.route.slots()]);
        if config.max_ctas == 1 {
            let least = if ranks <= 100 { 1 } else { algo::channels(&choice.key).unwrap() };
            assert!(blocks.len() as u32 <= least, "{} blocks of {:?}", blocks.len(), choice.key);
        }
    }
}

#[test]
fn settings_filter_and_are_named() {
    let topology = Topology::single_host(8, GPU, Link::NvLink);
    let config = PlanConfig { algorithms: PlanConfig::parse_algo("Tree").unwrap(), ..PlanConfig::default() };
    assert_eq!(pick(Collective::AllReduce, 1 << 20, &topology, &config).key.algorithm, Algorithm::Tree);
    let error = choose(&call(Collective::AllGather, 8), &topology, &config).unwrap_err();
    assert_eq!(error.kind, PlanErrorKind::InvalidUsage);
    assert!(error.text.contains("left out by NCCL_ALGO"), "{error}");
    let config = PlanConfig { routes: PlanConfig::parse_proto("LL128").unwrap(), ..PlanConfig::default() };
    assert_eq!(pick(Collective::AllReduce, 1 << 20, &topology, &config).route, Route::LL128);
    let pcie = Topology::single_host(8, GPU, Link::Pcie);
    let error = choose(&call(Collective::AllReduce, 8), &pcie, &config).unwrap_err();
    assert!(error.text.contains("NCCL_PROTO") && error.text.contains("NVLink only"), "{error}");
    let old = Topology::single_host(8, DeviceKind::Cuda { sm: 61 }, Link::NvLink);
    assert!(choose(&call(Collective::AllReduce, 8), &old, &config).unwrap_err().text.contains("sm_70"));
}

/// Programs that no GPU has measured are for those who name them.
#[test]
fn what_nobody_measured_is_taken_by_name_only() {
    for ranks in [2, 4, 8, 16, 64] {
        let topology = Topology::single_host(ranks, GPU, Link::NvLink);
        for collective in Collective::ALL {
            for power in 0..31 {
                let choice = pick(collective, 1 << power, &topology, &PlanConfig::default());
                assert_eq!(
                    algo::measured(choice.key.algorithm),
                    Measured::Everywhere,
                    "2^{power} on {ranks}"
                );
            }
        }
    }
    let topology = Topology::single_host(8, GPU, Link::NvLink);
    for (list, collective, algorithm) in [
        ("allreduce:halvingdoubling", Collective::AllReduce, Algorithm::HalvingDoubling),
        ("allreduce:RecursiveDoubling", Collective::AllReduce, Algorithm::RecursiveDoubling),
        ("pat", Collective::AllGather, Algorithm::Pat),
        ("pat", Collective::ReduceScatter, Algorithm::Pat),
        ("alltoall:bruck", Collective::AllToAll, Algorithm::Bruck),
        ("alltoall:pairwise", Collective::AllToAll, Algorithm::Pairwise),
        ("knomial", Collective::Broadcast, Algorithm::Knomial),
        ("knomial,ring", Collective::Reduce, Algorithm::Ring),
    ] {
        let config =
            PlanConfig { algorithms: PlanConfig::parse_algo(list).unwrap(), ..PlanConfig::default() };
        assert_eq!(pick(collective, 1 << 20, &topology, &config).key.algorithm, algorithm, "{list}");
    }
}

/// A faster prediction that is not believed is told beside the one that is taken.
#[test]
fn what_is_passed_over_is_said() {
    let topology = Topology::of_hosts(32, 8, GPU, Link::NvLink);
    let choice = pick(Collective::AllReduce, 256, &topology, &PlanConfig::default());
    let faster = choice.why.candidates.iter().filter(|c| c.us().is_some_and(|us| us < choice.predicted_us));
    assert!(faster.clone().all(|c| !c.is_measured) && faster.count() > 0, "{}", choice.why);
    for part in
        ["of what was measured on such machines; RecursiveDoubling with ", "not measured on such machines"]
    {
        assert!(choice.why.to_string().contains(part), "{}", choice.why);
    }
}

#[test]
fn ranks_with_nics_of_their_own_send_side_by_side() {
    let us = |algorithm: Algorithm, net_mbps: u32, rank_mbps: u32| {
        let topology = Topology { net_mbps, rank_mbps, ..Topology::of_hosts(32, 8, GPU, Link::NvLink) };
        let call = Call::of_bytes(Collective::AllReduce, 256 << 20, DataType::Float32, 0, 32);
        let all = choose::candidates(&call, &topology, &PlanConfig::default()).unwrap();
        let us = |c: &choose::Candidate| if c.algorithm == algorithm { c.us() } else { None };
        all.iter().filter_map(us).fold(f32::MAX, f32::min)
    };
    let (shared, own) =
        (|algorithm| us(algorithm, 25_000, 25_000), |algorithm| us(algorithm, 200_000, 25_000));
    // Every rank of a host sends a part across.
    let (one, eight) = (shared(Algorithm::Hierarchical), own(Algorithm::Hierarchical));
    assert!(eight < one / 3.0 && eight > one / 8.0, "{one} µs by one NIC, {eight} µs by eight");
    // A ring leaves a host by one rank, whose NIC is not faster for that.
    assert_eq!(shared(Algorithm::Ring), own(Algorithm::Ring));
    // What is not known of ranks is taken for the host's.
    assert_eq!(us(Algorithm::Hierarchical, 25_000, 0), shared(Algorithm::Hierarchical));
}

/// Rails are taken where ranks have NICs of their own, and NCCL's words mean them there; where ranks share
/// one, what has been measured comes first.
#[test]
fn rails_need_nics_of_their_own() {
    let own =
        Topology { net_mbps: 3_200_000, rank_mbps: 400_000, ..Topology::of_hosts(512, 8, GPU, Link::NvLink) };
    let shared = Topology { net_mbps: 400_000, rank_mbps: 400_000, ..own.clone() };
    let config =
        PlanConfig { slot_bytes: [NET_LL_BYTES, 0, OWN_NIC_SLOT_BYTES], lanes: 16, ..PlanConfig::default() };
    let takes = |collective, count, topology: &Topology, config: &PlanConfig| {
        pick(collective, count, topology, config).key.algorithm
    };
    for count in [1 << 10, 1 << 20, 256 << 20] {
        for collective in [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter] {
            let taken = takes(collective, count, &own, &config);
            // Small all-reduces have fewer hops by pairs of ranks, which were measured between hosts.
            let is_small = collective == Collective::AllReduce && count == 1 << 10;
            let is_right = match is_small {
                true => taken == Algorithm::RecursiveDoubling,
                false => matches!(taken, Algorithm::RailRing | Algorithm::RailTree),
            };
            assert!(is_right, "{collective:?} {count}: {taken:?}");
            let taken = takes(collective, count, &shared, &config);
            assert!(
                !matches!(taken, Algorithm::RailRing | Algorithm::RailTree),
                "{collective:?} {count}: {taken:?}"
            );
        }
    }
    // Small blocks go by relays, long ones and those of no whole packs straight.
    for (count, relayed) in [(4, true), (64 << 10, true), (65 << 10, false), (5, false)] {
        let taken = takes(Collective::AllToAll, count, &own, &config);
        assert_eq!(taken == Algorithm::RailRelay, relayed, "{count}: {taken:?}");
        let without = PlanConfig { relays: false, ..config.clone() };
        for (topology, config) in [(&shared, &config), (&own, &without)] {
            assert_ne!(takes(Collective::AllToAll, count, topology, config), Algorithm::RailRelay);
        }
    }
    for (word, rails, flat) in
        [("Ring", Algorithm::RailRing, Algorithm::Ring), ("Tree", Algorithm::RailTree, Algorithm::Tree)]
    {
        let config = PlanConfig { algorithms: PlanConfig::parse_algo(word).unwrap(), ..config.clone() };
        assert_eq!(takes(Collective::AllReduce, 64 << 20, &own, &config), rails);
        assert_eq!(takes(Collective::AllReduce, 64 << 20, &shared, &config), flat);
    }
    // A tree needs a lane for each direction of a rail, a ring only what there is.
    let few = PlanConfig { lanes: 8, ..config };
    let trees = PlanConfig { algorithms: PlanConfig::parse_algo("Tree").unwrap(), ..few.clone() };
    assert_eq!(takes(Collective::AllReduce, 1 << 20, &own, &trees), Algorithm::Tree);
    assert_eq!(takes(Collective::AllReduce, 256 << 20, &own, &few), Algorithm::RailRing);
}

#[test]
fn one_rank_copies_whatever_the_settings() {
    let algorithms = PlanConfig::parse_algo("Tree").unwrap();
    let config =
        PlanConfig { algorithms, routes: PlanConfig::parse_proto("LL").unwrap(), ..PlanConfig::default() };
    let choice = pick(Collective::AllGather, 100, &Topology::single_host(1, GPU, Link::NvLink), &config);
    assert_eq!(choice.route, Route::SIMPLE);
}

#[test]
fn the_host_device_takes_simple_and_one_or_two_instances() {
    let topology = Topology::single_host(4, DeviceKind::Host, Link::HostMemory);
    for power in 0..24 {
        let choice = pick(Collective::AllReduce, 1 << power, &topology, &PlanConfig::default());
        assert_eq!(choice.route, Route::HOST);
        assert!(choice.instances <= if power <= 14 { 1 } else { 2 });
    }
}

#[test]
fn why_lists_every_candidate() {
    let topology = Topology::single_host(64, GPU, Link::Pcie);
    let choice = pick(Collective::AllReduce, 1000, &topology, &PlanConfig::default());
    // Two of them can be exchanges too, and one may be moved by copy engines.
    let families = algo::algorithms(Collective::AllReduce).len();
    assert_eq!(choice.why.candidates.len(), families * 3 + 2 * 4 + 1);
    let text = choice.why.to_string();
    for part in [
        "OneShot",
        "offered up to 9 ranks",
        "NVLink only",
        "decided:",
        "µs",
        "all_reduce of 4000 bytes on 64",
    ] {
        assert!(text.contains(part), "{part:?} is missing in\n{text}");
    }
    let measured = choice.why.candidates.iter().filter(|candidate| candidate.is_measured);
    let best = measured.filter_map(|candidate| match candidate.outcome {
        Outcome::Predicted { us, .. } => Some(us),
        Outcome::Filtered(_) => None,
    });
    assert_eq!(best.fold(f32::MAX, f32::min), choice.predicted_us);
}

#[test]
fn large_worlds_are_planned_per_rank() {
    for ranks in [1024, 2048, algo::MAX_RANKS] {
        for collective in Collective::ALL {
            let mut planned = 0;
            for &algorithm in algo::algorithms(collective) {
                let root = 1000 * u32::from(collective.rooted());
                let key = algo::ProgramKey::new(collective, algorithm, ranks, root);
                let shape = match algo::shape(&key) {
                    Ok(shape) => shape,
                    Err(error) => {
                        assert!(error.text.contains("1 to"), "{error}");
                        continue;
                    }
                };
                planned += 1;
                for rank in [0, 1, 511, 1000, ranks - 1] {
                    let program = algo::rank_program(&key, rank).unwrap();
                    let lowered = lower(&shape, &program, device_op(&call(collective, 1))).unwrap();
                    assert!(lowered.steps.len() < usize::from(u16::MAX));
                }
            }
            let is_messages = ranks > algo::most_ranks(collective);
            assert!(planned > 0 || is_messages, "{collective:?} of {ranks} ranks");
            let counts = vec![3; ranks as usize];
            let messages = vector::of_many_ranks(&call(collective, 3), &counts);
            assert_eq!(messages.is_some(), is_messages && collective != Collective::SendRecv);
        }
    }
}

/// Blocks of an all-to-all share lanes where there are fewer: whatever the distance, both of its ends have it
/// on the same lane, and no two blocks of a rank talk to the same peer there.
#[test]
fn large_exchanges_share_lanes() {
    let config = PlanConfig { lanes: 8, ..PlanConfig::default() };
    for ranks in [1024, 2048, algo::most_ranks(Collective::AllToAll)] {
        let topology = Topology::of_hosts(ranks, 8, GPU, Link::NvLink);
        for collective in [Collective::AllToAll, Collective::Gather, Collective::Scatter] {
            let call = call(collective, 1);
            let choice = choose(&call, &topology, &config).unwrap();
            let shape = algo::shape(&choice.key).unwrap();
            // By distance: the lane.
            let mut lane_of: HashMap<u32, u8> = HashMap::new();
            for rank in [0, 1, 777, ranks - 1] {
                let program = algo::rank_program(&choice.key, rank).unwrap();
                let lowered = lower(&shape, &program, device_op(&call)).unwrap();
                let plan = bind(&lowered, &call, &choice, ranks, &config).unwrap();
                // A block counts the slots of both ways to a peer on its lane.
                let mut owners: HashMap<(u8, u16), u8> = HashMap::new();
                for block in &plan.args.blocks[..usize::from(plan.args.n_blocks)] {
                    assert!(u32::from(block.lane) < config.lanes);
                    for step in &lowered.steps[block.first_step.into()..][..block.n_steps.into()] {
                        let ends = [
                            (&step.send[..step.n_send.into()], true),
                            (&step.recv[..step.n_recv.into()], false),
                        ];
                        for (&peer, is_sent) in ends
                            .iter()
                            .flat_map(|(peers, sends)| peers.iter().map(move |peer| (peer, *sends)))
                        {
                            let owner = *owners.entry((block.lane, peer)).or_insert(block.channel);
                            assert_eq!(owner, block.channel, "two blocks of rank {rank} talk to {peer}");
                            let (from, to) = if is_sent { (rank, peer.into()) } else { (peer.into(), rank) };
                            let lane = *lane_of.entry((to + ranks - from) % ranks).or_insert(block.lane);
                            assert_eq!(lane, block.lane, "{collective:?}: rank {from} to {to} of {ranks}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn hosts_get_the_simple_protocol_and_may_get_hierarchies() {
    let topology = Topology::of_hosts(8, 4, GPU, Link::NvLink);
    let choice = pick(Collective::AllReduce, 64 << 20, &topology, &PlanConfig::default());
    assert_eq!(choice.route, Route::SIMPLE);
    assert_eq!((choice.key.algorithm, choice.key.per_host), (Algorithm::Hierarchical, 4));
    let mut odd = Topology::of_hosts(7, 4, GPU, Link::NvLink);
    let choice = pick(Collective::AllReduce, 64 << 20, &odd, &PlanConfig::default());
    assert_ne!(choice.key.algorithm, Algorithm::Hierarchical);
    assert!(choice.why.to_string().contains("hosts differ in ranks"));
    odd.ranks.swap(0, 6);
    assert_eq!(odd.per_host(), None);
    assert_eq!(Topology::single_host(8, GPU, Link::NvLink).hosts(), 1);
}

/// LL saves a fence and a look at host memory, but takes twice the bytes. LL128's lines land whole in no
/// network, and networks that reduce know nothing of flags.
#[test]
fn small_calls_cross_networks_with_ll_where_it_has_slots() {
    let with_ll = |bytes| PlanConfig { slot_bytes: [bytes, 0, NET_SLOT_BYTES], ..PlanConfig::default() };
    for topology in [Topology::of_hosts(4, 1, GPU, Link::Pcie), Topology::of_hosts(8, 4, GPU, Link::NvLink)] {
        for collective in [Collective::AllReduce, Collective::Broadcast, Collective::AllGather] {
            let route = |bytes, config: &PlanConfig| pick(collective, bytes, &topology, config).route;
            assert_eq!(route(64, &with_ll(NET_LL_BYTES)), Route::LL);
            assert_eq!(route(64, &with_ll(0)), Route::SIMPLE);
            assert_eq!(route(16 << 20, &with_ll(NET_LL_BYTES)), Route::SIMPLE);
        }
    }
    let mut topology = Topology::of_hosts(4, 1, GPU, Link::Pcie);
    topology.collnet = u64::MAX;
    let call = call(Collective::AllReduce, 64);
    let config = PlanConfig { slot_bytes: [NET_LL_BYTES, 15 << 10, NET_SLOT_BYTES], ..PlanConfig::default() };
    for candidate in choose::candidates(&call, &topology, &config).unwrap() {
        let is_refused = matches!(candidate.outcome, Outcome::Filtered(_));
        let is_of_network = candidate.algorithm == Algorithm::CollNet;
        if candidate.route == Route::LL128 || candidate.route == Route::LL && is_of_network {
            assert!(is_refused, "{candidate}");
        }
    }
}

#[test]
fn advice_beats_the_cost_model_but_not_what_is_impossible() {
    let (topology, config) = (Topology::single_host(8, GPU, Link::NvLink), PlanConfig::default());
    let call = call(Collective::AllReduce, 1 << 24);
    let candidates = choose::candidates(&call, &topology, &config).unwrap();
    let at =
        |a: Algorithm, p: Route| candidates.iter().position(|c| c.algorithm == a && c.route == p).unwrap();
    let times = vec![Some(9.0); candidates.len()];
    let mut advice = Advice { source: "tuner x".into(), order: None, us: times, blocks: Some(4) };
    advice.us[at(Algorithm::Tree, Route::SIMPLE)] = Some(2.0);
    advice.us[at(Algorithm::Hierarchical, Route::SIMPLE)] = Some(1.0);
    let choice = choose::decide(&call, &topology, &config, candidates.clone(), Some(&advice)).unwrap();
    assert_eq!((choice.key.algorithm, choice.route), (Algorithm::Tree, Route::SIMPLE));
    assert_eq!(choice.instances, 2, "a tree has two channels");
    assert!(choice.why.decided.contains("tuner x"));
    assert_eq!(choice.predicted_us, 2.0);
    advice.order = Some(at(Algorithm::Ring, Route::SIMPLE));
    let ring = choose::decide(&call, &topology, &config, candidates.clone(), Some(&advice)).unwrap();
    assert_eq!(ring.key.algorithm, Algorithm::Ring);
    assert!(ring.predicted_us > 9.0, "an order is no estimate");
    let order = Some(at(Algorithm::Hierarchical, Route::SIMPLE));
    let nothing = Advice { order, us: vec![None; candidates.len()], ..advice };
    let own = choose::decide(&call, &topology, &config, candidates, Some(&nothing)).unwrap();
    assert_eq!(own, choose(&call, &topology, &config).unwrap());
}

/// Candidates that do not keep a declared order are out, with the reason, whatever rules or settings say.
#[test]
fn declared_orders_leave_what_keeps_them() {
    let hosts = Topology::single_host(8, GPU, Link::NvLink);
    let at_level = |reproducible| PlanConfig { reproducible, ..PlanConfig::default() };
    let float = call(Collective::AllReduce, 1 << 22);
    let one_step = [Algorithm::OneShot, Algorithm::AllPairs];
    for (level, kept) in [(1, &one_step), (2, &[Algorithm::RecursiveDoubling, Algorithm::Nested])] {
        let decision = pick(float.collective, float.count, &hosts, &at_level(level));
        let possible = decision.why.candidates.iter().filter(|candidate| candidate.us().is_some());
        // Fused kernels combine along the order that they are told.
        let is_told = |candidate: &Candidate| {
            candidate.route.executor == Executor::Fused && one_step.contains(&candidate.algorithm)
        };
        let keeps = |candidate: &Candidate| kept.contains(&candidate.algorithm) || is_told(candidate);
        assert!(possible.clone().all(keeps) && possible.clone().any(is_told), "{}", decision.why);
        assert!(possible.count() > 1, "{}", decision.why);
        assert_eq!(decision.route.executor, Executor::Fused, "{}", decision.why);
        let text = decision.why.to_string();
        assert!(text.contains(&format!("declared order, level {level}: (")), "{text}");
        assert!(
            text.contains(&format!("reproducible, level {level}: it combines in another order")),
            "{text}"
        );
        let rings = PlanConfig { algorithms: PlanConfig::parse_algo("ring").unwrap(), ..at_level(level) };
        let error = choose(&float, &hosts, &rings).unwrap_err().into_text();
        assert!(error.contains("HAWSER_REPRODUCIBLE"), "{error}");
        // Integers have the same bits in any order.
        assert!(choose(&Call { dtype: DataType::Int32, ..float }, &hosts, &rings).is_ok());
    }
}

/// A program of a user's is compared with the order: it may run, or the step that leaves the tree is named.
#[test]
fn programs_of_users_are_proved_to_keep_the_order() {
    let topology = Topology::single_host(4, GPU, Link::NvLink);
    for (at, algorithm, refused) in [
        (10, Algorithm::RecursiveDoubling, ["combines rank 2 with rank 3", ""]),
        (11, Algorithm::Ring, ["combines rank 1 with rank 2", "combines rank 1 with rank 2"]),
    ] {
        let key = algo::ProgramKey::new(Collective::AllReduce, algorithm, 4, 0);
        let window = Window { protocol: hawser_plan::Protocol::Simple, bytes: (0, u64::MAX) };
        let xml = to_xml(&algo::program(&key).unwrap(), &window).unwrap();
        let mine = imported::keep(imported::read(&xml).unwrap(), at);
        for (level, part) in (1..).zip(refused) {
            let config = PlanConfig { imports: vec![mine], reproducible: level, ..PlanConfig::default() };
            let decision = pick(Collective::AllReduce, 4096, &topology, &config);
            let own = &decision.why.candidates[0];
            assert_eq!(own.us().is_some(), part.is_empty(), "{}", decision.why);
            assert!(own.to_string().contains(part), "{own}");
            let ints = call(Collective::AllReduce, 4096);
            let ints = choose(&Call { dtype: DataType::Int64, ..ints }, &topology, &config).unwrap();
            assert!(ints.why.candidates[0].us().is_some(), "{}", ints.why);
        }
    }
}

/// Programs of users compete by predicted cost where they fit; `Why` says what kept them out elsewhere.
#[test]
fn programs_of_users_compete_by_cost() {
    let key = algo::ProgramKey::new(Collective::AllReduce, Algorithm::RecursiveDoubling, 8, 0);
    let window = Window { protocol: hawser_plan::Protocol::Ll, bytes: (1024, 65_536) };
    let xml = to_xml(&algo::program(&key).unwrap(), &window).unwrap();
    let mine =
        imported::keep(imported::read(&xml.replace("recursivedoubling_all_reduce", "mine")).unwrap(), 0);
    let config = PlanConfig { imports: vec![mine], ..PlanConfig::default() };
    let topology = Topology::single_host(8, GPU, Link::NvLink);
    let algorithms = PlanConfig::parse_algo_with("tree,mine", &["mine".to_owned()]).unwrap();
    let with = PlanConfig { algorithms, ..config.clone() };
    for (count, fits) in [(255, false), (256, true), (16_384, true), (16_385, false)] {
        // Fused kernels do such sizes in less time.
        let choice = pick(Collective::AllReduce, count, &topology, &config);
        assert_ne!(choice.key.algorithm, Algorithm::Imported(mine), "{}", choice.why);
        let own = choice.why.candidates.iter().find(|c| c.algorithm == Algorithm::Imported(mine)).unwrap();
        assert_eq!(own.us().is_some_and(|us| us >= choice.predicted_us), fits, "{}", choice.why);
        // A tree takes longer.
        let choice = pick(Collective::AllReduce, count, &topology, &with);
        assert_eq!(choice.key.algorithm == Algorithm::Imported(mine), fits, "{}", choice.why);
        let reason = if fits { "is predicted fastest" } else { "made for 1024 bytes to 65536 bytes" };
        assert!(choice.why.to_string().contains(reason), "{}", choice.why);
        assert!(!fits || choice.route == Route::LL, "the protocol of its file: {}", choice.why);
    }
    let reason = |topology: &Topology, config: &PlanConfig, collective| {
        pick(collective, 4096, topology, config).why.to_string()
    };
    let other = Topology::single_host(4, GPU, Link::NvLink);
    assert!(reason(&other, &config, Collective::AllReduce).contains("made for 8 ranks"));
    assert!(!reason(&topology, &config, Collective::AllGather).contains("mine"));
    let algorithms = PlanConfig::parse_algo("tree").unwrap();
    let without = PlanConfig { algorithms, ..config.clone() };
    assert!(reason(&topology, &without, Collective::AllReduce).contains("left out by NCCL_ALGO"));
    // The protocol of the file is not there: another one is taken.
    let simple = PlanConfig { routes: PlanConfig::parse_proto("Simple").unwrap(), ..with };
    let choice = pick(Collective::AllReduce, 4096, &topology, &simple);
    assert_eq!((choice.key.algorithm, choice.route), (Algorithm::Imported(mine), Route::SIMPLE));
    assert_ne!(config.digest(), PlanConfig::default().digest());
}

/// The sentence calls nothing the fastest that a listed candidate beats; then it names that and says why.
#[test]
fn the_sentence_never_calls_fastest_what_a_candidate_beats() {
    let (mut beaten, mut fastest) = (0, 0);
    for (device, link) in [(GPU, Link::NvLink), (GPU, Link::Pcie), (DeviceKind::Host, Link::HostMemory)] {
        for (ranks, hosts) in [(2, 1), (8, 1), (32, 4), (16, 16), (24, 3)] {
            let topology = Topology::of_hosts(ranks, ranks / hosts, device, link);
            for collective in Collective::ALL {
                for count in [1, 256, 4096, 1 << 20] {
                    let choice = pick(collective, count, &topology, &PlanConfig::default());
                    let text = choice.why.to_string();
                    let quickest = choice.why.candidates.iter().min_by(|a, b| {
                        let [a, b] = [a, b].map(|c| c.us().unwrap_or(f32::INFINITY));
                        a.total_cmp(&b)
                    });
                    let Some(quickest) = quickest.filter(|c| c.us().is_some()) else { continue };
                    let decided = text.lines().find(|line| line.contains("decided:")).unwrap();
                    if quickest.us() < Some(choice.predicted_us) {
                        beaten += 1;
                        assert!(!decided.contains("is predicted fastest:"), "{text}");
                        assert!(decided.contains(quickest.algorithm.name()), "{text}");
                        assert!(
                            ["was not, and runs only if", "is held back"]
                                .iter()
                                .any(|why| decided.contains(why)),
                            "{text}"
                        );
                    } else {
                        fastest += 1;
                        assert!(decided.contains("is predicted fastest:"), "{text}");
                    }
                }
            }
        }
    }
    assert!(beaten > 20 && fastest > 100, "{beaten} and {fastest}");
}
