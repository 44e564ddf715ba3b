//! Large clusters: what a simulation costs grows with the steps of the programs, not faster.

mod worlds;

use hawser_plan::Collective;
use hawser_sim::Options;
use worlds::{cluster, predict};

/// Events of an all-reduce of 1 MiB, by ranks.
fn events(hosts: u32) -> f64 {
    let cluster = cluster(&format!("{hosts} hosts of hgx-h200, rail-optimised, 2:1"));
    let (decision, prediction) =
        predict(&cluster, Collective::AllReduce, 1 << 20, &Options::default()).expect("a prediction");
    assert!(prediction.us > f64::from(decision.predicted_us) / 4.0, "{decision}: {prediction:?}");
    prediction.events as f64 / f64::from(cluster.topology.size())
}

#[test]
fn thousands_of_ranks_cost_no_more_per_rank_than_hundreds() {
    let (few, many) = (events(32), events(381));
    assert!(many < few * 1.2, "{few} events per rank of 256 ranks, {many} of 3048");
}
