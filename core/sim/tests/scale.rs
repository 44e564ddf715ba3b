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

/// Few ranks that stand for all take as long as all of them, but for messages that come at the same time.
#[test]
fn a_period_stands_for_all() {
    for (text, collective, bytes) in [
        ("16 hosts of hgx-h200", Collective::AllToAll, 8 << 20),
        ("16 hosts of hgx-h200", Collective::AllGather, 4 << 20),
        ("16 hosts of hgx-h200", Collective::ReduceScatter, 64 << 20),
        ("8 hosts of dgx-a100", Collective::AllReduce, 256 << 20),
        ("64 hosts of hgx-h100, rail-optimised, 4:1", Collective::AllGather, 1 << 20),
        ("64 hosts of cpu, leaf-spine, 2:1", Collective::AllToAll, 1 << 20),
        (
            "[[hosts]]\ncount = 16\npreset = \"hgx-h200\"\n[fabric]\nswitch_gbps = 2000\n",
            Collective::AllGather,
            64 << 20,
        ),
    ] {
        let cluster = cluster(text);
        let options = Options { most_steps: u64::MAX, ..Options::default() };
        let (decision, few) = predict(&cluster, collective, bytes, &options).expect("a prediction");
        let options = Options { is_whole: true, ..options };
        let (_, all) = predict(&cluster, collective, bytes, &options).expect("a prediction");
        println!("{text}: {decision}: {} µs by {} events, {} by {}", few.us, few.events, all.us, all.events);
        assert!(few.events * 2 <= all.events, "{text}: {decision}: {} of {}", few.events, all.events);
        assert!((few.us / all.us - 1.0).abs() < 0.01, "{text}: {decision}: {} and {} µs", few.us, all.us);
        let shares = |used: &[(u32, f64)]| used.iter().map(|(_, share)| share).sum::<f64>();
        let (some, whole) = (shares(&few.used), shares(&all.used));
        assert!(few.used.len() == all.used.len(), "{text}: {} and {} links", few.used.len(), all.used.len());
        assert!((some / whole - 1.0).abs() < 0.01, "{text}: {decision}: links {some} and {whole}");
    }
}

/// An all-to-all is predicted for as many ranks as one program serves. Blocks of no whole packs go straight,
/// whatever the number of ranks.
#[test]
fn all_to_all_of_thousands_of_ranks() {
    let mut before = 0.0;
    for hosts in [128, 256, 1008] {
        let cluster = cluster(&format!("{hosts} hosts of hgx-h200"));
        let ranks = u64::from(cluster.topology.size());
        let (decision, prediction) =
            predict(&cluster, Collective::AllToAll, ranks * 4100, &Options::default()).expect("a prediction");
        println!("{ranks} ranks: {decision}: {} µs, {} events", prediction.us, prediction.events);
        let per_rank = prediction.us / ranks as f64;
        assert!(before == 0.0 || (0.8..1.25).contains(&(per_rank / before)), "{ranks}: {per_rank}, {before}");
        before = per_rank;
    }
}
