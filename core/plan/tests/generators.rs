//! Every generator is proved for 1 to 64 ranks, out of place and in place.

use hawser_plan::algo::{self, ProgramKey};
use hawser_plan::{Algorithm, Collective};
use hawser_program::verify::verify;

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
