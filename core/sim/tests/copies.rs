//! Calls that copy engines carry.

mod worlds;

use hawser_plan::p2p::Message;
use hawser_plan::{Collective, PlanConfig, Route};
use hawser_sim::{Cluster, Options, Prediction, SimError, Twin};
use worlds::{cluster, predict_with};

const MOVES: [Collective; 5] = [
    Collective::AllGather,
    Collective::AllToAll,
    Collective::Broadcast,
    Collective::Gather,
    Collective::Scatter,
];

/// Processes of one host, whose transfers go straight, or threads of one process, whose transfers are staged.
fn host(ranks: u32, is_staged: bool) -> Cluster {
    cluster(&format!("one_process = {is_staged}\n[[hosts]]\npreset = \"hgx-h200\"\nranks = {ranks}\n"))
}

fn settings() -> PlanConfig {
    PlanConfig { pass_sm: 1, ..PlanConfig::default() }
}

/// Predicted µs of a call that copy engines carry.
fn us(cluster: &Cluster, collective: Collective, bytes: u64) -> f64 {
    let (decision, prediction) =
        predict_with(cluster, &settings(), collective, bytes, &Options::default()).expect("a prediction");
    assert_eq!(decision.route, Route::COPY_ENGINE, "{decision}");
    prediction.us
}

/// Bytes that leave the busiest rank for each byte of a call.
fn share(collective: Collective, ranks: u32) -> f64 {
    if collective == Collective::Broadcast { 1.0 } else { f64::from(ranks - 1) / f64::from(ranks) }
}

/// Bus bandwidth in GB/s at 256 MiB and 1 GiB on H200 (bench/README.md, 2026-11-22 and after), in the order
/// of [`MOVES`]; 0 where nobody measured.
#[test]
fn large_calls_take_what_was_measured() {
    let tables = [
        (2, true, [(303., 331.), (298., 330.), (345., 355.), (340., 360.), (338., 355.)]),
        (2, false, [(342., 376.), (344., 376.), (380., 392.), (355., 385.), (365., 388.)]),
        (4, false, [(0., 380.), (0., 377.), (0., 337.), (398., 393.), (0., 409.)]),
    ];
    for (ranks, is_staged, table) in tables {
        for (collective, (middle, large)) in MOVES.into_iter().zip(table) {
            for (bytes, measured) in [(256u64 << 20, middle), (1 << 30, large)] {
                let cluster = host(ranks, is_staged);
                let busbw = bytes as f64 * share(collective, ranks) / us(&cluster, collective, bytes) / 1e3;
                let ratio = busbw / measured;
                println!(
                    "{ranks} ranks, staged {is_staged}, {collective:?}, {bytes} B: {busbw:.0} of {measured}"
                );
                assert!(measured == 0.0 || (0.88..1.09).contains(&ratio), "{ratio}");
            }
        }
    }
}

/// Small calls: µs of 64 KiB and 1 MiB through staging on 2 H200, measured between 22 and 49.
#[test]
fn small_calls_take_what_their_commands_take() {
    let cluster = host(2, true);
    for collective in MOVES {
        for bytes in [64 << 10, 1 << 20] {
            let us = us(&cluster, collective, bytes);
            assert!((22.0..49.0).contains(&us), "{collective:?} of {bytes} bytes: {us} µs");
        }
    }
}

#[test]
fn every_call_ends_and_none_is_faster_than_the_links() {
    for (ranks, is_staged) in (2..=8).flat_map(|ranks| [(ranks, false), (ranks, true)]) {
        let cluster = host(ranks, is_staged);
        for collective in Collective::ALL {
            for bytes in [256, 3 << 20, 40_000_000] {
                let (decision, prediction) =
                    predict_with(&cluster, &settings(), collective, bytes, &Options::default())
                        .unwrap_or_else(|e| panic!("{ranks} ranks, {collective:?} of {bytes} bytes: {e}"));
                let least = bytes as f64 * share(collective, ranks) / 400e3;
                let moves = decision.route == Route::COPY_ENGINE && !collective.reduces();
                assert!(!moves || prediction.us > least, "{decision}: {} µs", prediction.us);
            }
        }
    }
}

#[test]
fn a_reduction_waits_for_the_blocks_that_combine() {
    let cluster = host(4, false);
    let of = |reducing_ctas| {
        let config = PlanConfig { reducing_ctas, ..settings() };
        let (decision, prediction) =
            predict_with(&cluster, &config, Collective::AllReduce, 256 << 20, &Options::default()).unwrap();
        assert_eq!(decision.route, Route::COPY_ENGINE);
        prediction.us
    };
    let (few, many) = (of(1), of(4));
    // Four values of a quarter each, at 50 GB/s for a block.
    assert!(few > 5_300.0 && many < few / 2.0, "{few} µs, {many} µs");
}

/// A ring of messages: what each rank sends has the whole link.
#[test]
fn messages_follow_each_other() {
    for (is_staged, measured) in [(true, 344.0), (false, 387.0)] {
        let cluster = host(2, is_staged);
        let twin = Twin::new(&cluster);
        let ring = |rank: u32| {
            let of = |send| Message { peer: 1 - rank, send, addr: 1 << 20, bytes: 1 << 30 };
            vec![of(true), of(false)]
        };
        let prediction = twin.predict_messages(&ring, false, &settings(), &Options::default()).unwrap();
        let busbw = f64::from(1 << 30) / prediction.us / 1e3;
        println!("staged {is_staged}: {busbw:.0} of {measured}");
        assert!((0.92..1.08).contains(&(busbw / measured)), "{busbw}");
        let many =
            |rank: u32| ring(rank).repeat(20).into_iter().map(|m| Message { bytes: 100_000, ..m }).collect();
        let many = twin.predict_messages(&many, false, &settings(), &Options::default()).unwrap();
        assert!(many.us > 20.0 * 9.0, "{} µs", many.us);
    }
}

/// A message that nobody takes is told of.
#[test]
fn a_stream_that_waits_for_ever_is_named() {
    let cluster = host(2, true);
    let lost = |rank: u32| {
        let message = Message { peer: 1, send: true, addr: 1 << 20, bytes: 1 << 30 };
        if rank == 0 { vec![message] } else { Vec::new() }
    };
    let outcome = Twin::new(&cluster).predict_messages(&lost, false, &settings(), &Options::default());
    let Err(SimError::Stuck { waits, .. }) = outcome else { panic!("{outcome:?}") };
    assert!(waits.contains("rank 0"), "{waits}");
}

#[test]
fn communicators_side_by_side_have_words_of_their_own() {
    let cluster = host(4, true);
    let pairs = Twin::of_communicators(&cluster, &[vec![0, 1], vec![2, 3]]).unwrap();
    let alone = Twin::of_communicators(&cluster, &[vec![0, 1]]).unwrap();
    let [pairs, alone] = [pairs, alone].map(|twin| {
        let call = worlds::call(Collective::AllGather, 64 << 20, twin.topology());
        let decision = hawser_plan::choose::choose(&call, twin.topology(), &settings()).unwrap();
        assert_eq!(decision.route, Route::COPY_ENGINE);
        twin.predict(&call, &decision, &settings(), &Options::default()).unwrap().us
    });
    assert_eq!(pairs, alone);
}

/// Hosts of two GPUs and two NICs of 100 Gb/s each.
fn hosts(count: u32) -> Cluster {
    let host = "preset = \"hgx-h200\"\nranks = 2\nnics = 2\nnic_gbps = 100";
    cluster(&format!("[[hosts]]\ncount = {count}\n{host}\n"))
}

/// Large calls take little longer than their busiest NIC at 12.5 GB/s.
#[test]
fn between_hosts_the_nics_are_the_limit() {
    for count in [2, 3, 4] {
        let (cluster, ranks) = (hosts(count), u64::from(2 * count));
        for collective in MOVES {
            for bytes in [1 << 10, 1 << 20, 256 << 20] {
                let (decision, Prediction { us, busiest, .. }) =
                    predict_with(&cluster, &settings(), collective, bytes, &Options::default()).unwrap();
                assert_eq!(decision.route, Route::COPY_ENGINE, "{decision}");
                // Both ranks of a host share nothing: its broadcast enters by one NIC.
                let blocks = if collective == Collective::Broadcast { ranks } else { ranks - 2 };
                let least = (bytes / ranks * blocks) as f64 / 12.5e3;
                println!("{count} hosts, {collective:?} of {bytes} bytes: {us:.1} of {least:.1} µs");
                assert!(busiest.is_some_and(|(_, share)| share < 1.0001), "{busiest:?}");
                // Of operations that overlap it is the time from one end to the next, on whichever rank.
                assert!(us > 0.97 * least, "{collective:?}");
                assert!(bytes < 256 << 20 || us < 1.15 * least, "{collective:?}");
            }
        }
    }
}

/// The ring of messages over hosts: every slot that is filled is emptied, in each of several operations.
#[test]
fn messages_go_from_host_to_host() {
    let cluster = hosts(2);
    let ring = |rank: u32| {
        let of = |peer, send| Message { peer, send, addr: 1 << 20, bytes: 64 << 20 };
        vec![of((rank + 1) % 4, true), of((rank + 3) % 4, false)]
    };
    let outcome = Twin::new(&cluster).predict_messages(&ring, false, &settings(), &Options::default());
    let (us, least) = (outcome.unwrap().us, f64::from(64 << 20) / 12.5e3);
    assert!((1.0..1.15).contains(&(us / least)), "{us} of {least} µs");
}
