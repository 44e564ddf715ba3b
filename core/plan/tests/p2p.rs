//! Batches of sends and receives: launches agree between ranks, end, and move every byte.

mod machine;

use hawser_kernels_abi::{DeviceOp, MAX_BLOCKS, MAX_WORKS};
use hawser_plan::PlanErrorKind;
use hawser_plan::executor::launch::LaunchPlan;
use hawser_plan::p2p::{self, Message};
use hawser_plan::topology::{DeviceKind, Link};
use hawser_plan::{PlanConfig, Route, Routes, Topology};
use machine::{Launch, Machine};
use proptest::prelude::*;

fn topology(ranks: u32) -> Topology {
    Topology::single_host(ranks, DeviceKind::Cuda { sm: 90 }, Link::NvLink)
}

/// One message of a batch: (from, to, bytes).
type Traffic = Vec<(u32, u32, u64)>;

/// Lays out the buffers of a batch, plans all ranks, runs them and compares every byte.
fn run(ranks: u32, traffic: &Traffic, topology: &Topology, config: &PlanConfig) -> Vec<Vec<LaunchPlan>> {
    let mut memory: Vec<Vec<u8>> = vec![vec![0xee; 16]; ranks as usize];
    let mut messages: Vec<Vec<Message>> = vec![Vec::new(); ranks as usize];
    let mut expected = Vec::new();
    for (number, &(from, to, bytes)) in traffic.iter().enumerate() {
        let data: Vec<u8> = (0..bytes).map(|i| (i * 31 + number as u64 * 17 + 1) as u8).collect();
        let addr = memory[from as usize].len() as u64;
        memory[from as usize].extend(&data);
        messages[from as usize].push(Message { peer: to, send: true, addr, bytes });
        let addr = memory[to as usize].len() as u64;
        memory[to as usize].extend(vec![0u8; bytes as usize]);
        memory[to as usize].push(0xee);
        messages[to as usize].push(Message { peer: from, send: false, addr, bytes });
        expected.push((to as usize, addr as usize, data));
    }
    let plans: Vec<Vec<LaunchPlan>> =
        (0..ranks).map(|r| p2p::plan(&messages[r as usize], r, ranks, topology, config).unwrap()).collect();
    plans.iter().flatten().for_each(check_launch);
    let launches: Vec<Vec<Launch>> =
        plans.iter().map(|list| list.iter().cloned().map(Launch::inline).collect()).collect();
    let mut machine = Machine::new(memory, 2, config.slot_bytes);
    machine.run(&launches);
    for (rank, addr, data) in expected {
        assert!(machine.memory[rank][addr..addr + data.len()] == data, "rank {rank} address {addr}");
        assert_eq!(machine.memory[rank][addr + data.len()], 0xee, "wrote past the end");
    }
    plans
}

/// No two blocks share an end of a FIFO, nor a lane with the same peer.
fn check_launch(plan: &LaunchPlan) {
    assert_eq!(plan.kernel.op, DeviceOp::Copy);
    assert!(plan.args.n_blocks > 0);
    let mut used = Vec::new();
    for block in &plan.args.blocks[..usize::from(plan.args.n_blocks)] {
        let step = &plan.args.inline_steps[usize::from(block.first_step)];
        for peer in step.recv[..usize::from(step.n_recv)].iter().chain(&step.send[..usize::from(step.n_send)])
        {
            assert!(!used.contains(&(block.lane, *peer)), "lane {} peer {peer} twice", block.lane);
            used.push((block.lane, *peer));
        }
    }
}

#[test]
fn launches_stay_within_the_ctas_that_run_at_once() {
    for (max_ctas, bytes) in [(1, 9000), (2, 9000), (7, 70_000), (16, 70_000), (16, 3 << 20)] {
        let config = PlanConfig { max_ctas, ..PlanConfig::default() };
        let ranks = if bytes > 1 << 20 { 3 } else { 8 };
        let traffic = (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to, bytes))).collect();
        let plans = run(ranks, &traffic, &topology(ranks), &config);
        let most = plans.iter().flatten().map(|plan| u32::from(plan.args.n_blocks)).max().unwrap();
        // What is sent and what is received of a key are never parted.
        assert!(most <= max_ctas.max(2), "{most} blocks with {max_ctas} CTAs");
    }
}

#[test]
fn all_to_all_with_itself() {
    let config = PlanConfig { slot_bytes: [64, 240, 512], ..PlanConfig::default() };
    for ranks in [1, 2, 3, 8, 16] {
        let traffic =
            (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to, 1000 + u64::from(to)))).collect();
        let plans = run(ranks, &traffic, &topology(ranks), &config);
        let launches = (2 * (ranks as usize - 1) + 1).div_ceil(MAX_WORKS - 1).max(1);
        assert!(
            plans.iter().all(|list| list.len() <= launches),
            "{ranks} ranks: {} launches",
            plans[0].len()
        );
    }
}

#[test]
fn mixed_sizes_choose_protocols_and_still_end() {
    let sizes = [1u64, 7, 16 << 10, 100_000, 256 << 10, 300_000, 3 << 20];
    let config = PlanConfig::default();
    let mut traffic: Traffic = Vec::new();
    for (number, &bytes) in sizes.iter().chain(sizes.iter().rev()).enumerate() {
        let from = number as u32 % 3;
        traffic.push((from, (from + 1) % 3, bytes));
        traffic.push(((from + 2) % 3, from, sizes[(number + 3) % sizes.len()]));
    }
    let plans = run(3, &traffic, &topology(3), &config);
    let protocols: Vec<Route> = plans[0].iter().map(|plan| plan.kernel.route).collect();
    assert!(protocols.contains(&Route::LL) && protocols.contains(&Route::SIMPLE), "{protocols:?}");
}

/// One end sends one by one, large before small, what the other receives in a group.
#[test]
fn a_group_may_meet_single_calls() {
    let config = PlanConfig::default();
    let (topology, sizes) = (topology(2), [64u64 << 20, 4 << 10]);
    let message = |send: bool, number: usize| {
        let addr = if number == 0 { 0 } else { sizes[0] };
        Message { peer: u32::from(send), send, addr, bytes: sizes[number] }
    };
    let launches = |rank: u32, batches: &[Vec<Message>]| -> Vec<Launch> {
        let plans = batches.iter().flat_map(|batch| p2p::plan(batch, rank, 2, &topology, &config).unwrap());
        plans.map(Launch::inline).collect()
    };
    let sends = launches(0, &[vec![message(true, 0)], vec![message(true, 1)]]);
    let receives = launches(1, &[vec![message(false, 0), message(false, 1)]]);
    let bytes = (sizes[0] + sizes[1]) as usize;
    let data: Vec<u8> = (0..bytes).map(|i| (i * 7 + i / 251) as u8).collect();
    let mut machine = Machine::new(vec![data.clone(), vec![0; bytes]], 2, config.slot_bytes);
    machine.run(&[sends, receives]);
    assert!(machine.memory[1] == data);
}

#[test]
fn many_messages_to_one_peer_keep_their_order() {
    let traffic = (0..50).map(|i| (0, 1, 10 + i)).chain((0..50).map(|i| (1, 0, 60 - i))).collect();
    run(2, &traffic, &topology(2), &PlanConfig::default());
}

#[test]
fn few_lanes_are_enough() {
    let traffic: Traffic = vec![(0, 1, 5 << 20), (1, 0, 5 << 20), (0, 1, 3)];
    for lanes in [1, 2, 3, 4] {
        let plans = run(2, &traffic, &topology(2), &PlanConfig { lanes, ..PlanConfig::default() });
        let blocks = plans.iter().flatten().flat_map(|plan| &plan.args.blocks[..MAX_BLOCKS]);
        let (least, most) = (lanes, lanes + PlanConfig { lanes, ..PlanConfig::default() }.message_lanes());
        let used = blocks.take_while(|block| block.n_steps > 0);
        assert!(used.map(|block| u32::from(block.lane)).all(|lane| (least..most).contains(&lane)), "{lanes}");
    }
}

#[test]
fn empty_messages_are_skipped() {
    let traffic: Traffic = vec![(0, 1, 0), (1, 1, 0), (0, 1, 9), (1, 0, 0)];
    let plans = run(2, &traffic, &topology(2), &PlanConfig::default());
    assert_eq!(plans[0].len(), 1);
    assert!(run(2, &vec![(0, 1, 0)], &topology(2), &PlanConfig::default()).iter().all(Vec::is_empty));
}

#[test]
fn wrong_batches_are_refused() {
    let config = PlanConfig::default();
    let message = |peer, send, bytes| Message { peer, send, addr: 64, bytes };
    let plan = |messages: &[Message]| p2p::plan(messages, 1, 2, &topology(2), &config).unwrap_err();
    let error = plan(&[message(2, true, 8)]);
    assert_eq!(error.kind, PlanErrorKind::InvalidArgument);
    assert!(error.text.contains("rank 1: send to rank 2"), "{error}");
    let error = plan(&[message(1, true, 8)]);
    assert_eq!(error.kind, PlanErrorKind::InvalidUsage);
    assert!(error.text.contains("1 sends to itself but 0 receives"), "{error}");
    let error = plan(&[message(1, true, 8), message(1, false, 16)]);
    assert!(error.text.contains("8 bytes, the receive 16"), "{error}");
}

#[test]
fn small_messages_are_small_for_each_block() {
    let config = PlanConfig::default();
    // 2 ranks exchange one message in 12 blocks, 8 ranks one with each other rank in 4, 64 ranks in one.
    for (ranks, most) in [(2, 128 << 10), (8, 64 << 10), (64, 16 << 10)] {
        let topology = topology(ranks);
        assert_eq!(p2p::route(most, false, &topology, &config), Route::LL);
        assert_ne!(p2p::route(most + 1, false, &topology, &config), Route::LL);
        let blocks = u64::from(p2p::instances(most, false, &topology, &config));
        assert!(most.div_ceil(blocks) <= 16 << 10, "{ranks} ranks: {blocks} blocks");
        assert_eq!(p2p::instances(2 << 10, false, &topology, &config), 1);
    }
}

#[test]
fn messages_of_one_slot_cross_networks_with_ll() {
    let topology = Topology::of_hosts(4, 1, DeviceKind::Cuda { sm: 90 }, Link::NvLink);
    let with_ll = |bytes| PlanConfig { slot_bytes: [bytes, 0, 512 << 10], ..PlanConfig::default() };
    let route = |bytes, slot| p2p::route(bytes, true, &topology, &with_ll(slot));
    assert_eq!([1, 512].map(|bytes| route(bytes, 512)), [Route::LL; 2]);
    assert_eq!((route(513, 512), route(1, 0)), (Route::SIMPLE, Route::SIMPLE));
    // Between GPUs of one of the hosts too: these slots are small.
    let hosts = Topology::of_hosts(8, 4, DeviceKind::Cuda { sm: 90 }, Link::NvLink);
    let near = |bytes| p2p::route(bytes, false, &hosts, &with_ll(512));
    assert_eq!((near(512), near(513)), (Route::LL, Route::SIMPLE));
}

#[test]
fn large_messages_between_gpus_of_a_host_are_offered_a_landing() {
    let large = |topology: &Topology, config: &PlanConfig| p2p::route(64 << 20, false, topology, config);
    let gpus = |sm, link| Topology::single_host(4, DeviceKind::Cuda { sm }, link);
    let config = PlanConfig::default();
    let topology = gpus(90, Link::NvLink);
    let process = Topology { direct: true, ..topology.clone() };
    for (topology, least) in [(&topology, 8 << 20), (&process, 4 << 20)] {
        let routes = [least, least - 1].map(|bytes| p2p::route(bytes, false, topology, &config));
        assert_eq!(routes, [Route::LANDING, Route::SIMPLE]);
    }
    for other in [gpus(80, Link::NvLink), gpus(90, Link::Pcie), gpus(90, Link::HostMemory)] {
        assert_eq!(large(&other, &config), Route::SIMPLE);
    }
    let hosts = Topology::of_hosts(8, 4, DeviceKind::Cuda { sm: 90 }, Link::NvLink);
    assert_eq!(large(&hosts, &config), Route::SIMPLE);
    let staged = PlanConfig { routes: [Some(Routes::that(|route| !route.zero_copy)); 8], ..config };
    assert_eq!(large(&topology, &staged), Route::SIMPLE);
}

#[test]
fn the_host_and_host_memory_have_no_ll128() {
    let config = PlanConfig::default();
    for bytes in [1, 20_000, 200_000, 1 << 24] {
        let host = Topology::single_host(2, DeviceKind::Host, Link::HostMemory);
        assert_eq!(p2p::route(bytes, false, &host, &config), Route::HOST);
        for link in [Link::Pcie, Link::HostMemory] {
            let topology = Topology::single_host(2, DeviceKind::Cuda { sm: 90 }, link);
            assert_ne!(p2p::route(bytes, false, &topology, &config), Route::LL128);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn random_batches_end_and_move_every_byte(
        ranks in 1u32..9,
        raw in proptest::collection::vec((
            0u32..8,
            0u32..8,
            prop_oneof![0u64..2000, 15_000u64..20_000, 60_000u64..140_000, 200_000u64..300_000],
        ), 0..40),
        lanes in 1u32..25,
    ) {
        let traffic = raw.into_iter().map(|(from, to, bytes)| (from % ranks, to % ranks, bytes)).collect();
        run(ranks, &traffic, &topology(ranks), &PlanConfig { lanes, ..PlanConfig::default() });
    }
}
