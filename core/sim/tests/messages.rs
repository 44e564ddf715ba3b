//! Groups of messages: launched as the library launches them, and never faster than the links.

mod worlds;

use hawser_plan::p2p::Message;
use hawser_plan::vector::{self, Parts, Vector};
use hawser_plan::{Call, Collective, DataType, algo};
use hawser_sim::{Options, Prediction, Twin};
use worlds::{cluster, settings};

/// The messages of an all-to-all of `bytes` bytes for each peer.
fn all_to_all(rank: u32, ranks: u32, bytes: u64) -> Vec<Message> {
    let counts = vec![bytes; ranks as usize];
    let parts = Parts { counts: &counts, displs: None };
    let vector = Vector::AllToAll { input: 1 << 20, sends: parts, output: 1 << 60, recvs: parts };
    vector.messages(DataType::Uint8, rank, ranks).expect("messages")
}

fn exchange(text: &str, bytes: u64, options: &Options<'_>) -> Prediction {
    let cluster = cluster(text);
    let ranks = cluster.topology.size();
    let config = settings(&cluster.topology);
    let twin = Twin::new(&cluster);
    twin.predict_messages(&|rank| all_to_all(rank, ranks, bytes), true, &config, options)
        .expect("a prediction")
}

#[test]
fn a_period_stands_for_all() {
    for (text, bytes) in [
        ("6 hosts of hgx-h200", 64 << 10),
        ("8 hosts of cpu", 3 << 20),
        ("64 hosts of cpu, leaf-spine, 2:1", 4 << 10),
    ] {
        let few = exchange(text, bytes, &Options::default());
        let all = exchange(text, bytes, &Options { is_whole: true, ..Options::default() });
        println!("{text}: {} µs by {} events, {} by {}", few.us, few.events, all.us, all.events);
        assert!(few.events * 2 <= all.events, "{text}: {} of {}", few.events, all.events);
        assert!((few.us / all.us - 1.0).abs() < 0.01, "{text}: {} and {} µs", few.us, all.us);
    }
}

#[test]
fn messages_are_no_faster_than_links() {
    // 8 hosts of 8 GPUs, 400 Gb/s each: 56 peers on other hosts.
    let prediction = exchange("8 hosts of hgx-h200", 4 << 20, &Options::default());
    let least = 56.0 * f64::from(4 << 20) / 50e3;
    assert!(prediction.us > least && prediction.us < 4.0 * least, "{} µs, least {least}", prediction.us);
    assert!(prediction.busiest.is_some_and(|(_, share)| share > 0.25 && share <= 1.0));
}

#[test]
fn one_that_sends_to_nobody_takes_no_time_of_links() {
    let cluster = cluster("2 hosts of hgx-h200");
    let config = settings(&cluster.topology);
    // Rank 0 sends to rank 9, and nobody else does anything.
    let messages = |rank: u32| match rank {
        0 => vec![Message { peer: 9, send: true, addr: 1 << 20, bytes: 1 << 20 }],
        9 => vec![Message { peer: 0, send: false, addr: 1 << 20, bytes: 1 << 20 }],
        _ => Vec::new(),
    };
    let twin = Twin::new(&cluster);
    let prediction =
        twin.predict_messages(&messages, false, &config, &Options::default()).expect("a prediction");
    assert!(prediction.us > f64::from(1 << 20) / 50e3, "{}", prediction.us);
    // A message that nobody takes.
    let lost = |rank: u32| if rank == 0 { messages(0) } else { Vec::new() };
    let error = twin.predict_messages(&lost, false, &config, &Options::default());
    assert!(error.is_ok() || error.unwrap_err().to_string().contains("rank 0"));
}

/// More ranks than the program of an all-to-all serves: the library carries it by messages.
#[test]
fn all_to_all_of_16384_ranks_is_messages() {
    let cluster = cluster("2048 hosts of hgx-h200");
    let ranks = cluster.topology.size();
    assert!(ranks == algo::MAX_RANKS && ranks > algo::most_ranks(Collective::AllToAll));
    let config = settings(&cluster.topology);
    let call = Call {
        input: 1 << 20,
        output: 1 << 60,
        ..worlds::call(Collective::AllToAll, 64 << 20, &cluster.topology)
    };
    let counts = vec![call.count; ranks as usize];
    let vector = vector::of_many_ranks(&call, &counts).expect("messages");
    let messages = |rank| vector.messages(call.dtype, rank, ranks).expect("messages");
    let prediction = Twin::new(&cluster)
        .predict_messages(&messages, true, &config, &Options::default())
        .expect("a prediction");
    println!("{} µs, {} events", prediction.us, prediction.events);
    let least = (1.0 - 8.0 / f64::from(ranks)) * f64::from(64 << 20) / 50e3;
    assert!(prediction.us > least, "{} µs, least {least}", prediction.us);
}
