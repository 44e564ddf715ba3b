//! Every generator is proved for 1 to 64 ranks, out of place and in place.

use hawser_plan::algo::{self, ProgramKey};
use hawser_plan::{Algorithm, Collective};
use hawser_program::verify::{Declared, MOST_IN_RANK_ORDER, Order, keeps_order, verify};

/// Slots per FIFO on every device.
const DEPTH: u32 = 4;

fn prove(collective: Collective, algorithm: Algorithm) {
    let most = algo::max_ranks(collective, algorithm).min(64);
    for ranks in 1..=most {
        let mut roots = if collective.rooted() { vec![0, ranks / 2, ranks - 1] } else { vec![0] };
        roots.dedup();
        for root in roots {
            let key = ProgramKey::new(collective, algorithm, ranks, root);
            let program = algo::program(&key).unwrap();
            assert!(program.ranks.iter().all(|r| r.channels.len() as u32 == algo::channels(&key).unwrap()));
            for in_place in [false, true] {
                let verdict = verify(&program, DEPTH, in_place).unwrap_or_else(|fault| {
                    panic!(
                        "{} of {ranks} ranks, root {root}, in place {in_place}: {fault}",
                        program.shape.name
                    )
                });
                assert!(
                    verdict.bitwise_equal && verdict.deterministic,
                    "{} of {ranks} ranks",
                    program.shape.name
                );
                assert!(verdict.min_depth <= 2, "{} of {ranks} ranks: {verdict:?}", program.shape.name);
            }
        }
    }
}

/// Every generator of the registry, a test for each collective.
macro_rules! proofs {
    ($($name:ident: $collective:ident;)*) => {
        $(#[test]
        fn $name() {
            for &algorithm in algo::algorithms(Collective::$collective) {
                prove(Collective::$collective, algorithm);
            }
        })*

        #[test]
        fn every_collective_is_proved() {
            assert_eq!([$(Collective::$collective),*], Collective::ALL);
        }
    };
}

proofs! {
    all_reduce: AllReduce;
    reduce: Reduce;
    broadcast: Broadcast;
    all_gather: AllGather;
    reduce_scatter: ReduceScatter;
    all_to_all: AllToAll;
    gather: Gather;
    scatter: Scatter;
}

/// The orders that programs are said to keep are those that they keep; for up to 16 ranks and every level
/// some program keeps the order, whatever the type.
/// Programs whose channels share lanes where there are few: proved with a single lane for all of them. An
/// all-to-all has such channels from 1,018 ranks on, which is more than a proof takes: that no two of a rank
/// have a peer in common is looked at there.
#[test]
fn channels_without_common_peers_share_a_lane() {
    let shared = [Collective::Gather, Collective::Scatter];
    for (ranks, collective) in (2..=64).flat_map(|ranks| shared.map(|c| (ranks, c))) {
        let key = ProgramKey::new(collective, Algorithm::Direct, ranks, ranks - 1);
        assert!(algo::shares_lanes(&key));
        let mut program = algo::program(&key).unwrap();
        for rank in &mut program.ranks {
            rank.lanes = vec![0; rank.channels.len()];
        }
        let verdict = verify(&program, DEPTH, false).unwrap_or_else(|fault| panic!("{key:?}: {fault}"));
        assert!(verdict.min_depth <= 2, "{key:?}: {verdict:?}");
    }
    let all_to_all = |ranks| ProgramKey::new(Collective::AllToAll, Algorithm::Direct, ranks, 0);
    assert!(!algo::shares_lanes(&all_to_all(1017)));
    for ranks in [1018, 1024, 2047, 2048, algo::most_ranks(Collective::AllToAll)] {
        let key = all_to_all(ranks);
        assert!(algo::shares_lanes(&key));
        for rank in [0, 1, ranks / 2, ranks - 1] {
            let channels = algo::rank_program(&key, rank).unwrap().channels;
            let mut owners = vec![None; ranks as usize];
            for (number, channel) in channels.iter().enumerate() {
                for peer in channel.steps.iter().flat_map(|step| step.send.iter().chain(&step.recv)) {
                    let owner = owners[*peer as usize].get_or_insert(number);
                    assert_eq!(*owner, number, "two channels of rank {rank} of {ranks} talk to {peer}");
                }
            }
        }
    }
}

#[test]
fn declared_orders_are_kept() {
    let collectives = [Collective::AllReduce, Collective::ReduceScatter, Collective::Reduce];
    for (ranks, collective) in (2..=64).flat_map(|ranks| collectives.map(|collective| (ranks, collective))) {
        let roots = if collective.rooted() { vec![0, ranks - 1] } else { vec![0] };
        for (root, is_narrow, order) in roots.iter().flat_map(|&root| {
            [false, true]
                .into_iter()
                .flat_map(move |narrow| [Order::Ranks, Order::Nested].map(move |order| (root, narrow, order)))
        }) {
            let declared = Declared { order, ranks, is_narrow, commutes: false };
            let mut keepers = 0;
            for &algorithm in algo::algorithms(collective) {
                let key = ProgramKey::new(collective, algorithm, ranks, root);
                if ranks > algo::max_ranks(collective, algorithm) || !algo::keeps(&key, &declared) {
                    continue;
                }
                keepers += 1;
                if (order == Order::Nested || ranks <= MOST_IN_RANK_ORDER)
                    && let Ok(program) = algo::program(&key)
                {
                    keeps_order(&program, &declared)
                        .unwrap_or_else(|fault| panic!("{} of {ranks}: {fault}", program.shape.name));
                }
            }
            let is_asked = ranks <= MOST_IN_RANK_ORDER || order == Order::Nested;
            assert!(keepers > 0 || !is_asked || ranks > 60, "{collective:?} of {ranks}: {declared:?}");
        }
    }
}

/// A ring adds up every chunk from another rank on, and says where it leaves the order.
#[test]
fn other_orders_are_named_with_their_place() {
    let key = ProgramKey::new(Collective::AllReduce, Algorithm::Ring, 4, 0);
    let declared = Declared { order: Order::Nested, ranks: 4, is_narrow: false, commutes: true };
    let fault = keeps_order(&algo::program(&key).unwrap(), &declared).unwrap_err().to_string();
    assert!(fault.starts_with("other order: rank 2 channel 0 step 1 combines rank 1 with"), "{fault}");
    let key = ProgramKey::new(Collective::AllReduce, Algorithm::OneShot, 4, 0);
    let narrow = Declared { order: Order::Nested, is_narrow: true, ..declared };
    let fault = keeps_order(&algo::program(&key).unwrap(), &narrow).unwrap_err().to_string();
    assert!(fault.contains("ranks 0 to 1 with rank 2"), "{fault}");
}

/// The network adds up the shares of the hosts; it counts as one more rank for each place on a host.
#[test]
fn collnet_all_reduce() {
    for (hosts, per_host) in [(2, 1), (3, 1), (2, 2), (4, 3), (2, 8), (16, 4), (9, 7)] {
        let key = ProgramKey::new(Collective::AllReduce, Algorithm::CollNet, hosts * per_host, 0);
        let key = ProgramKey { per_host, ..key };
        let program = algo::program(&key).unwrap();
        assert_eq!(program.ranks.len() as u32, hosts * per_host + per_host);
        for in_place in [false, true] {
            let verdict = verify(&program, DEPTH, in_place)
                .unwrap_or_else(|fault| panic!("{hosts} hosts of {per_host}, in place {in_place}: {fault}"));
            assert!(verdict.bitwise_equal && verdict.min_depth <= 2, "{verdict:?}");
        }
    }
}

/// A hierarchy over other hosts than it would choose by itself.
#[test]
fn hierarchies_of_given_hosts() {
    for (hosts, per_host) in [(2, 1), (4, 1), (2, 9), (3, 4), (8, 2), (15, 8)] {
        let key = ProgramKey::new(Collective::AllReduce, Algorithm::Hierarchical, hosts * per_host, 0);
        let program = algo::program(&ProgramKey { per_host, ..key }).unwrap();
        for in_place in [false, true] {
            let verdict = verify(&program, DEPTH, in_place)
                .unwrap_or_else(|fault| panic!("{hosts} hosts of {per_host}, in place {in_place}: {fault}"));
            assert!(verdict.bitwise_equal && verdict.min_depth <= 2, "{verdict:?}");
        }
    }
    for (hosts, per_host) in [(16, 8), (1, 4), (2, 10)] {
        let key = ProgramKey::new(Collective::AllReduce, Algorithm::Hierarchical, hosts * per_host, 0);
        assert!(algo::program(&ProgramKey { per_host, ..key }).is_err(), "{hosts} hosts of {per_host}");
    }
}

/// Rails of all splits into hosts of up to 64 ranks, and of a few larger ones. What crosses hosts stays on
/// the rail of its channel.
#[test]
fn rails_of_given_hosts() {
    let small = (2..=32).flat_map(|hosts| (2..=64 / hosts).map(move |per_host| (hosts, per_host)));
    for (hosts, per_host) in small.chain([(16, 8), (3, 16), (40, 4)]) {
        for (collective, algorithm) in [
            (Collective::AllReduce, Algorithm::RailRing),
            (Collective::AllGather, Algorithm::RailRing),
            (Collective::ReduceScatter, Algorithm::RailRing),
            (Collective::AllReduce, Algorithm::RailTree),
        ] {
            let key = ProgramKey::new(collective, algorithm, hosts * per_host, 0);
            let program = algo::program(&ProgramKey { per_host, ..key }).unwrap();
            for (rank, own) in (0..).zip(&program.ranks) {
                for (channel, steps) in (0..).zip(&own.channels) {
                    let rail = channel % per_host;
                    let peers = steps.steps.iter().flat_map(|step| step.send.iter().chain(&step.recv));
                    let mut far = peers.filter(|peer| **peer / per_host != rank / per_host);
                    assert!(far.all(|peer| [peer % per_host, rank % per_host] == [rail; 2]), "{key:?}");
                }
            }
            for in_place in [false, true] {
                let verdict = verify(&program, DEPTH, in_place).unwrap_or_else(|fault| {
                    panic!("{algorithm:?}, {hosts} hosts of {per_host}, in place {in_place}: {fault}")
                });
                assert!(verdict.bitwise_equal && verdict.min_depth <= 2, "{key:?}: {verdict:?}");
            }
        }
    }
    for per_host in [1, 5, 12] {
        let key = ProgramKey::new(Collective::AllReduce, Algorithm::RailRing, 12, 0);
        assert!(algo::program(&ProgramKey { per_host, ..key }).is_err(), "12 ranks, {per_host} per host");
    }
}

/// All-to-all by relays, for all splits into hosts of up to 64 ranks and a few larger ones: a rank has one
/// message for every other host, which stays on its rail and carries the blocks of a whole host.
#[test]
fn relays_of_given_hosts() {
    let small = (2..=32).flat_map(|hosts| (2..=64 / hosts).map(move |per_host| (hosts, per_host)));
    for (hosts, per_host) in small.chain([(16, 8), (3, 16), (40, 4)]) {
        let key = ProgramKey::new(Collective::AllToAll, Algorithm::RailRelay, hosts * per_host, 0);
        let program = algo::program(&ProgramKey { per_host, ..key }).unwrap();
        for (rank, own) in (0..).zip(&program.ranks) {
            let mut far = Vec::new();
            for (channel, steps) in (0..).zip(&own.channels) {
                let sent = steps.steps.iter().flat_map(|step| &step.send);
                for &peer in sent.filter(|peer| **peer / per_host != rank / per_host) {
                    assert_eq!((peer % per_host, own.run(channel)), (rank % per_host, per_host));
                    far.push(peer / per_host);
                }
            }
            far.sort_unstable();
            let others: Vec<u32> = (0..hosts).filter(|host| *host != rank / per_host).collect();
            assert_eq!(far, others, "{hosts} hosts of {per_host}, rank {rank}");
        }
        let verdict = verify(&program, DEPTH, false)
            .unwrap_or_else(|fault| panic!("{hosts} hosts of {per_host}: {fault}"));
        assert!(verdict.min_depth <= 2, "{hosts} hosts of {per_host}: {verdict:?}");
    }
    let large = ProgramKey::new(Collective::AllToAll, Algorithm::RailRelay, 16 * 242, 0);
    let error = algo::shape(&ProgramKey { per_host: 16, ..large }).unwrap_err();
    assert!(error.text.contains("242 hosts of 16 ranks, at most 241"), "{error}");
}
