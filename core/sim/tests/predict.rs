//! Checks of what must be true of every prediction.

mod worlds;

use hawser_plan::{Collective, Route};
use hawser_sim::{Options, SimError};
use worlds::{cluster, only, predict, predict_with};

const CLUSTERS: [&str; 6] = [
    "1 host of hgx-h200",
    "3 hosts of cpu",
    "2 hosts of hgx-h200",
    "4 hosts of dgx-a100, leaf-spine, 2:1",
    "[[hosts]]\npreset = \"hgx-h200\"\nlink = \"pcie\"\nranks = 4\n",
    "[[hosts]]\nranks = 4\n[[hosts]]\nranks = 1\n",
];

#[test]
fn every_collective_ends_on_every_cluster() {
    for text in CLUSTERS {
        let cluster = cluster(text);
        for collective in Collective::ALL {
            for bytes in [0, 8, 64 << 10, 3 << 20] {
                let (_, prediction) = predict(&cluster, collective, bytes, &Options::default())
                    .unwrap_or_else(|e| panic!("{text}: {collective:?} of {bytes} bytes: {e}"));
                let us = prediction.us;
                assert!(us.is_finite() && us >= 0.0, "{text} {collective:?} {bytes}: {us} µs");
            }
        }
    }
}

#[test]
fn one_seed_has_one_trace() {
    let text = "start_skew_us = 5\ncluster = \"2 hosts of dgx-a100\"";
    let cluster = cluster(text);
    let trace = |seed| {
        let options = Options { seed, is_traced: true, ..Options::default() };
        predict(&cluster, Collective::AllReduce, 1 << 20, &options).unwrap().1.trace
    };
    let first = trace(7);
    assert!(first.len() > 10_000 && first == trace(7));
    assert_ne!(first, trace(8));
}

#[test]
fn who_asks_to_stop_is_heard() {
    let cluster = cluster("2 hosts of hgx-h200");
    let options = Options { stop: &|| true, ..Options::default() };
    let outcome = predict(&cluster, Collective::AllReduce, 64 << 20, &options);
    assert!(matches!(outcome, Err(SimError::Interrupted)), "{outcome:?}");
}

#[test]
fn a_part_that_is_carried_on_comes_near_the_whole() {
    let cluster = cluster("4 hosts of cpu");
    let config = only(&cluster.topology, "Ring", Route::HOST);
    for collective in [Collective::AllReduce, Collective::Broadcast] {
        let us = |most_steps| {
            let options = Options { most_steps, is_whole: true, ..Options::default() };
            let (_, prediction) = predict_with(&cluster, &config, collective, 64 << 20, &options).unwrap();
            (prediction.us, prediction.is_carried_on)
        };
        let ((whole, no), (part, yes)) = (us(u64::MAX), us(500));
        assert!(!no && yes && (part / whole - 1.0).abs() < 0.02, "{collective:?}: {whole} and {part} µs");
    }
}

#[test]
fn rings_that_are_carried_on_come_near_whole_ones() {
    let cluster = cluster("40 hosts of hgx-h200, rail-optimised, 2:1");
    let config = only(&cluster.topology, "Ring", Route::SIMPLE);
    for (collective, bytes) in [
        (Collective::AllReduce, 8 << 20),
        (Collective::AllGather, 256 << 20),
        (Collective::ReduceScatter, 64 << 10),
    ] {
        let us = |most_steps| {
            let options = Options { most_steps, is_whole: true, ..Options::default() };
            let (_, prediction) = predict_with(&cluster, &config, collective, bytes, &options).unwrap();
            (prediction.us, prediction.is_carried_on, prediction.events)
        };
        let ((whole, no, all), (part, yes, few)) = (us(u64::MAX), us(20_000));
        assert!(!no && yes && few < all / 2, "{collective:?}: {few} of {all} events");
        assert!((part / whole - 1.0).abs() < 0.03, "{collective:?}: {whole} and {part} µs");
    }
}

/// Bytes that must come into a host of `local` of the ranks, whatever the program.
fn least_in(collective: Collective, bytes: f64, ranks: f64, local: f64) -> f64 {
    let (others, hosts) = (1.0 - local / ranks, (ranks / local).max(1.0));
    match collective {
        Collective::AllReduce => 2.0 * bytes * (hosts - 1.0) / hosts,
        Collective::AllGather => bytes * others,
        Collective::ReduceScatter => bytes * local / ranks,
        Collective::AllToAll => bytes * local * others,
        _ => 0.0,
    }
}

#[test]
fn nothing_is_faster_than_the_links() {
    for text in CLUSTERS.into_iter().chain(["8 hosts of hgx-h100, rail-optimised, 4:1"]) {
        let cluster = cluster(text);
        let (ranks, hosts) = (cluster.topology.size(), cluster.hosts.len() as u32);
        for collective in Collective::ALL {
            for bytes in [4 << 10, 1 << 20, 32 << 20] {
                let (decision, prediction) =
                    predict(&cluster, collective, bytes, &Options::default()).unwrap();
                let context =
                    format!("{text}: {collective:?} of {bytes} bytes by {decision}: {prediction:?}");
                if let Some((link, share)) = prediction.busiest {
                    assert!(share <= 1.0 + 1e-9, "{link} is used for {share} of the time; {context}");
                }
                if hosts > 1 && ranks.is_multiple_of(hosts) {
                    let host = cluster.host(0);
                    let gbs = host.nic_gbps / 8.0 * f64::from(host.nics);
                    let least = least_in(collective, bytes as f64, ranks.into(), host.ranks.into());
                    assert!(prediction.us >= least / (gbs * 1e3), "{context}");
                }
            }
        }
    }
}

#[test]
fn more_bandwidth_and_less_latency_never_harm_a_ring() {
    let us = |nic_gbps: u32, hop_us: u32| {
        let text =
            format!("[[hosts]]\ncount = 4\nnic_gbps = {nic_gbps}\n[constants.net]\nhop_us = {hop_us}\n");
        let cluster = cluster(&text);
        let config = only(&cluster.topology, "Ring", Route::HOST);
        let options = Options::default();
        predict_with(&cluster, &config, Collective::AllReduce, 4 << 20, &options).unwrap().1.us
    };
    assert!(us(10, 20) > us(25, 20) && us(25, 20) > us(100, 20));
    assert!(us(25, 40) > us(25, 20));
}

/// A rank of the host device is one thread, which always works for a block that can go on: several blocks are
/// no slower than one. Four ranks of two processors take turns, so they take twice as long as on their own.
#[test]
fn threads_take_turns_on_processors_and_run_all_their_blocks() {
    let us = |algorithm: &str, processors: u32| {
        let text = format!("one_process = true\n[[hosts]]\nranks = 4\nprocessors = {processors}\n");
        let cluster = cluster(&text);
        let config = only(&cluster.topology, algorithm, Route::simple(cluster.topology.device));
        let predicted = predict_with(&cluster, &config, Collective::AllToAll, 1 << 20, &Options::default());
        let (decision, prediction) = predicted.expect("a prediction");
        (decision.channels, prediction.us)
    };
    let ((blocks, direct), (_, pairwise)) = (us("direct", 2), us("pairwise", 2));
    assert!(blocks > 1, "{blocks} blocks");
    assert!(direct < 1.1 * pairwise, "{direct} µs and {pairwise} µs");
    let (_, alone) = us("direct", 4);
    assert!((1.7..2.3).contains(&(direct / alone)), "{direct} µs and {alone} µs");
}
