//! Steps of training: what operations take side by side, and what their texts may say.

mod worlds;

use hawser_plan::{Collective, PlanConfig, choose};
use hawser_sim::step::{Alone, Kind, Part, Step, StepFile, Timeline, run, shares};
use hawser_sim::{Cluster, Options, Result, SimError, Twin};
use worlds::{cluster, settings};

/// The step of a text, each operation alone, and the timeline.
fn simulate(cluster: &Cluster, text: &str) -> Result<(Step, Vec<Alone>, Timeline)> {
    let step = StepFile::parse(text)?.step(cluster.topology.size())?;
    let whole = Twin::new(cluster);
    let alone: Vec<Alone> = step.ops.iter().map(|op| alone(cluster, &step, op.group, op.kind)).collect();
    let timeline = run(&step, &alone.iter().collect::<Vec<_>>(), whole.links(), &|| false)?;
    Ok((step, alone, timeline))
}

fn alone(cluster: &Cluster, step: &Step, group: usize, kind: Kind) -> Alone {
    let classes = &step.groups[group].classes;
    let collected = match kind {
        Kind::Compute { us, multiprocessors } => return Alone::computing(us, multiprocessors, classes),
        Kind::Collective(collected) => collected,
    };
    let twin = Twin::of_communicators(cluster, &step.groups[group].communicators).expect("one form");
    let config = settings(twin.topology());
    let call = collected.call(twin.topology().size());
    let decision = choose::choose(&call, twin.topology(), &config).expect("a decision");
    let prediction = twin.predict(&call, &decision, &config, &Options::default()).expect("a prediction");
    let share = twin.multiprocessors(&decision, &config);
    let multiprocessors = classes.iter().map(|class| (*class, share)).collect();
    let part = Part { us: prediction.us, links: prediction.used, multiprocessors };
    Alone { parts: vec![part], is_computing: false }
}

/// Begin and end of an operation, in µs.
fn span(step: &Step, timeline: &Timeline, name: &str) -> (f64, f64) {
    let at = step.ops.iter().position(|op| op.name == name).unwrap_or_else(|| panic!("no {name}"));
    (timeline.spans[at].start.us(), timeline.spans[at].end.us())
}

const PAIR: &str = "1 host of hgx-h200";

#[test]
fn operations_wait_for_their_stream_and_for_what_they_name() {
    let text = "
        [groups]
        tp = { size = 4 }
        [[op]]
        name = 'a'
        compute_us = 100
        multiprocessors = 0
        [[op]]
        name = 'sum'
        collective = 'all_reduce'
        bytes = '1M'
        group = 'tp'
        after = ['a']
        [[op]]
        name = 'b'
        compute_us = 300
        multiprocessors = 0
        [[op]]
        name = 'c'
        compute_us = 50
        multiprocessors = 0
        after = ['sum']
        [[op]]
        name = 'other'
        compute_us = 20
        multiprocessors = 0
        ranks = '0-3'
        stream = 'beside'
    ";
    let (step, alone, timeline) = simulate(&cluster(PAIR), text).unwrap();
    let span = |name| span(&step, &timeline, name);
    let sum = alone[1].us();
    assert!(sum > 1.0 && sum < 300.0, "{sum}");
    assert_eq!((span("a"), span("b"), span("other")), ((0.0, 100.0), (100.0, 400.0), (0.0, 20.0)));
    assert!(span("sum").0 == 100.0 && (span("sum").1 - 100.0 - sum).abs() < 1e-3, "{:?}", span("sum"));
    assert_eq!((span("c"), timeline.end.us()), ((400.0, 450.0), 450.0));
    // Ranks 0 to 3 belong to one group more than the others.
    let classes = shares(&step, &timeline);
    assert_eq!(classes.iter().map(|c| (c.rank, c.ranks)).collect::<Vec<_>>(), [(0, 4), (4, 4)]);
    for class in classes {
        assert_eq!((class.computing_us, class.exposed_us, class.idle_us), (450.0, 0.0, 0.0), "{class:?}");
        assert!((class.communicating_us - sum).abs() < 1e-3);
    }
}

#[test]
fn collectives_over_the_same_links_take_longer_together() {
    // One NIC for all ranks of a host, which is full.
    let cluster = cluster("[[hosts]]\ncount = 4\npreset = \"hgx-h200\"\nnics = 1\npcie_switches = 1\n");
    let text = |both: bool, first: &str| {
        let second = "[[op]]\nname = 'y'\ncollective = 'all_gather'\nbytes = '256M'\nstream = 's'\n";
        format!(
            "[groups]\n{first}\n[[op]]\nname = 'x'\ncollective = 'all_gather'\nbytes = '256M'\ngroup = \
             'g'\n{}",
            if both { second } else { "" }
        )
    };
    let far = "g = { stride = 1 }";
    let (_, alone, timeline) = simulate(&cluster, &text(false, far)).unwrap();
    assert!((timeline.end.us() - alone[0].us()).abs() < 0.01, "nothing is beside it");
    let (_, alone, timeline) = simulate(&cluster, &text(true, far)).unwrap();
    let (one, both) = (alone[0].us(), timeline.end.us());
    assert!(both > one * 1.3 && both <= one * 2.001, "alone {one} µs, side by side {both} µs");
    // No link carries more than it can.
    let end = timeline.end.us();
    assert!(timeline.busy.iter().all(|busy| busy.us() <= end * (1.0 + 1e-6)));
    let most = timeline.moments.iter().flat_map(|m| m.uses).map(|(_, most)| most).fold(0.0, f32::max);
    assert!(most > 0.9 && most <= 1.0 + 1e-6, "{most}");
}

#[test]
fn communicators_side_by_side_share_what_they_share() {
    // Eight communicators, each with a rank on every host: by rails, each has its own NIC; with one NIC for
    // all ranks of a host, they share it.
    let us = |nics: u32| {
        let cluster = cluster(&format!(
            "[[hosts]]\ncount = 4\npreset = \"hgx-h200\"\nnics = {nics}\npcie_switches = {nics}\n"
        ));
        let text = "[groups]\ndp = { stride = 8 }\n\
                    [[op]]\ncollective = 'reduce_scatter'\nbytes = '64M'\ngroup = 'dp'";
        simulate(&cluster, text).unwrap().2.end.us()
    };
    let (rails, shared) = (us(8), us(1));
    assert!(shared > rails * 6.0, "{rails} µs on rails, {shared} µs over one NIC");
    // One communicator alone takes as long as eight on eight rails.
    let cluster = cluster("4 hosts of hgx-h200");
    let text = "[groups]\none = { ranks = '0,8,16,24' }\n\
                [[op]]\ncollective = 'reduce_scatter'\nbytes = '64M'\ngroup = 'one'";
    let one = simulate(&cluster, text).unwrap().2.end.us();
    assert!((one / rails - 1.0).abs() < 0.01, "{one} µs alone, {rails} µs beside others");
}

#[test]
fn exposed_communication_is_what_computing_does_not_hide() {
    let text = "
        [[block]]
        repeat = 3
        [[block.op]]
        name = 'backward'
        compute_us = 500
        multiprocessors = 0
        [[block.op]]
        name = 'sum'
        collective = 'all_reduce'
        bytes = '256M'
        after = ['backward']
    ";
    let (step, alone, timeline) = simulate(&cluster(PAIR), text).unwrap();
    assert_eq!(step.ops.len(), 6);
    let sum = alone[1].us();
    assert!(sum > 500.0, "the network is the slower one: {sum} µs");
    let shares = shares(&step, &timeline);
    let [all] = shares[..] else { panic!("{shares:?}") };
    assert_eq!((all.ranks, all.computing_us, all.idle_us), (8, 1500.0, 0.0));
    assert!((timeline.end.us() - 500.0 - 3.0 * sum).abs() < 0.01);
    assert!((all.exposed_us - (3.0 * sum - 1000.0)).abs() < 0.01, "{all:?}");
}

#[test]
fn who_asks_to_stop_is_heard() {
    let step = StepFile::parse("[[op]]\ncompute_us = 5").unwrap().step(8).unwrap();
    let cluster = cluster(PAIR);
    let outcome = run(&step, &[&Alone::of(5.0)], Twin::new(&cluster).links(), &|| true);
    assert!(matches!(outcome, Err(SimError::Interrupted)), "{outcome:?}");
}

#[test]
fn communicators_that_cannot_be_are_refused() {
    let cluster = cluster("[[hosts]]\nranks = 4\n[[hosts]]\nranks = 2\n");
    for (ranks, words) in [
        (vec![], "no communicator"),
        (vec![vec![0, 6]], "no rank 6"),
        (vec![vec![0, 1], vec![1, 2]], "rank 1 is in two places"),
        (vec![vec![0, 1], vec![3, 4]], "several forms"),
    ] {
        let error = Twin::of_communicators(&cluster, &ranks).unwrap_err().to_string();
        assert!(error.contains(words), "{ranks:?}: {error}");
    }
}

#[test]
fn bad_steps_are_errors_that_say_what_to_write() {
    let sum = "[[op]]\ncollective = 'all_reduce'\nbytes = 8\n";
    for (text, words) in [
        ("", "no operations"),
        ("[[op]", "line 1"),
        ("[[op]]\ncompute = 5", "line 2"),
        ("[[op]]", "neither collective nor compute_us"),
        ("[[op]]\ncompute_us = -1", "compute_us = -1"),
        ("[[op]]\ncompute_us = nan", "compute_us = NaN"),
        ("[[op]]\ncompute_us = 1\nbytes = 8", "are for collectives"),
        ("[[op]]\ncompute_us = 1\nranks = '0-8'", "no rank 8"),
        ("[[op]]\ncompute_us = 1\nranks = '3-1'", "not understood"),
        ("[[op]]\ncompute_us = 1\nranks = [1, 1]", "rank 1 is named twice"),
        ("[[op]]\ncompute_us = 1\nranks = []", "no ranks are named"),
        ("[[op]]\ncompute_us = 1\nafter = ['x']", "no operation \"x\" stands above"),
        ("[[op]]\ncollective = 'all_reduce'", "has no bytes"),
        ("[[op]]\ncollective = 'all_reduce'\nbytes = '8 apples'", "is no size"),
        ("[[op]]\ncollective = 'sum'\nbytes = 8", "known are all_reduce"),
        ("[[op]]\ncollective = 'sendrecv'\nbytes = 8", "is not known"),
        ("[[op]]\ncollective = 'all_reduce'\nbytes = 8\ntype = 'int4'", "known are int8"),
        ("[[op]]\ncollective = 'all_reduce'\nbytes = 8\nroot = 1", "has no root"),
        ("[[op]]\ncollective = 'broadcast'\nbytes = 8\nroot = 8", "has no root 8"),
        ("[[op]]\ncollective = 'all_reduce'\nbytes = 8\ngroup = 'tp'", "no group \"tp\""),
        ("[[op]]\ncollective = 'all_reduce'\nbytes = 8\ncompute_us = 1", "make two operations"),
        ("[groups]\ntp = { size = 3 }\n[[op]]\ncompute_us = 1", "group tp: 8 ranks are no whole number of 3"),
        ("[groups]\ntp = { size = 0 }\n[[op]]\ncompute_us = 1", "8 ranks are no whole number of 0"),
        ("[groups]\nall = { size = 2 }\n[[op]]\ncompute_us = 1", "there is a group all already"),
        ("[[block]]\nrepeat = 0\n[[block.op]]\ncompute_us = 1", "does nothing"),
        ("[[block]]\nrepeat = 20001\n[[block.op]]\ncompute_us = 1", "more than 20000 operations"),
        (&format!("{sum}[[block]]\n[[block.op]]\ncompute_us = 1"), "both say what is done"),
    ] {
        let outcome = StepFile::parse(text).and_then(|file| file.step(8));
        let error = outcome.err().unwrap_or_else(|| panic!("{text} is taken")).to_string();
        assert!(error.contains(words), "{text}: {error}");
    }
}

/// The measured times are those of a GEMM and of a collective of 256 MiB beside each other, by their times
/// alone (2 and 4 H200, `hawser perf overlap`, bench/README.md), for kernels of so many blocks.
#[test]
fn a_gemm_and_a_kernel_share_multiprocessors() {
    let contests = [
        ("send/recv", 44.0, 1.149, 2.41),
        ("all-reduce", 44.0, 1.24, 1.61),
        ("all-reduce", 2.0, 1.021, 1.92),
        ("all-reduce", 2.0, 1.073, 1.44),
        ("all-reduce", 2.0, 1.018, 1.73),
        ("send/recv by copy engines", 0.0, 1.039, 1.047),
        ("all-gather by copy engines", 0.0, 1.044, 1.066),
    ];
    let cluster = cluster(PAIR);
    let text = "
        [[op]]
        name = 'gemm'
        compute_us = 1000
        [[op]]
        name = 'moves'
        collective = 'all_reduce'
        bytes = '1M'
    ";
    let step = StepFile::parse(text).unwrap().step(8).unwrap();
    let links = Twin::new(&cluster);
    let run = |gemm_us, moves_us, share| {
        let multiprocessors = vec![(0, share)];
        let part = Part { us: moves_us, links: vec![(0, 1.0)], multiprocessors };
        let moves = Alone { parts: vec![part], is_computing: false };
        let gemm = Alone::computing(gemm_us, 1.0, &[0]);
        run(&step, &[&gemm, &moves], links.links(), &|| false).unwrap().spans
    };
    for (name, blocks, measured_gemm, measured_moves) in contests {
        let share = blocks / 132.0;
        // Each wholly beside the other one.
        let gemm = run(1000.0, 100_000.0, share)[0].us() / 1000.0;
        let moves = run(100_000.0, 1000.0, share)[1].us() / 1000.0;
        println!(
            "{name}, {blocks} blocks: GEMM {gemm:.3} ({measured_gemm}), moves {moves:.2} ({measured_moves})"
        );
        assert!((0.9..1.1).contains(&(gemm / measured_gemm)), "{name}: {gemm}");
        assert!((0.55..1.8).contains(&(moves / measured_moves)), "{name}: {moves}");
    }
}

/// Computing that leaves multiprocessors free is not held up, nor holds anything up.
#[test]
fn computing_says_what_it_takes() {
    let text = |share: &str| {
        format!(
            "[[op]]\nname = 'a'\ncompute_us = 1000\n{share}\n[[op]]\nname = 'sum'\n\
             collective = 'all_reduce'\nbytes = '64M'\n"
        )
    };
    let cluster = cluster(PAIR);
    let times = |share: &str| {
        let (step, alone, timeline) = simulate(&cluster, &text(share)).unwrap();
        let length = |name| span(&step, &timeline, name).1 - span(&step, &timeline, name).0;
        (length("a"), length("sum") / alone[1].us())
    };
    let (whole, beside) = times("");
    assert!(whole > 1005.0 && beside > 1.5, "{whole} µs, {beside}");
    let (whole, beside) = times("multiprocessors = 0.0");
    assert!((whole - 1000.0).abs() < 1e-3 && (beside - 1.0).abs() < 1e-6, "{whole} µs, {beside}");
    let wrong = StepFile::parse(&text("multiprocessors = 2.0")).unwrap().step(8).unwrap_err();
    assert!(wrong.to_string().contains("from 0 to 1"), "{wrong}");
}

#[test]
fn kernels_take_their_blocks_and_copy_engines_none() {
    let share = |text: &str, pass_sm| {
        let cluster = cluster(text);
        let config = PlanConfig { pass_sm, ..settings(&cluster.topology) };
        let twin = Twin::new(&cluster);
        let call = worlds::call(Collective::AllGather, 64 << 20, twin.topology());
        let decision = choose::choose(&call, twin.topology(), &config).unwrap();
        (twin.multiprocessors(&decision, &config), f64::from(decision.channels))
    };
    let (kernels, blocks) = share(PAIR, 0);
    assert!(kernels > 0.01 && kernels == blocks / 132.0, "{kernels}, {blocks} blocks");
    assert_eq!(share("[[hosts]]\npreset = \"hgx-h200\"\nmultiprocessors = 66\n", 0).0, blocks / 66.0);
    assert_eq!([share(PAIR, 1).0, share("2 hosts of hgx-h200", 0).0, share("1 host of cpu", 0).0], [0.0; 3]);
}

/// Eight parts of a reduce-scatter, which the last rank fills in another order than the others. In the order
/// in which parts are ready on the last rank that has them (what `hawserPartitionedLearn` takes), the first
/// one goes when half of the work is done, instead of all.
#[test]
fn parts_that_are_late_go_last() {
    let cluster = cluster(PAIR);
    let us = |order: [usize; 8]| {
        let mut text = String::new();
        for (ranks, parts) in [("0-6", [0, 1, 2, 3, 4, 5, 6, 7]), ("7", [7, 6, 5, 4, 3, 2, 1, 0])] {
            for part in parts {
                text += &format!(
                    "[[op]]\nname = '{ranks} fill {part}'\ncompute_us = 100\nmultiprocessors = 0\n\
                     ranks = '{ranks}'\n"
                );
            }
        }
        for part in order {
            text += &format!(
                "[[op]]\nname = 'part {part}'\ncollective = 'reduce_scatter'\nbytes = '16M'\n\
                 after = ['0-6 fill {part}', '7 fill {part}']\n"
            );
        }
        let (_, alone, timeline) = simulate(&cluster, &text).unwrap();
        (timeline.end.us(), alone[16].us())
    };
    let (as_made, part) = us([0, 1, 2, 3, 4, 5, 6, 7]);
    let (learned, _) = us([3, 4, 2, 5, 1, 6, 0, 7]);
    println!("{as_made} µs in the order of parts, {learned} in the one that was learned, a part {part}");
    assert!((as_made - (800.0 + 8.0 * part)).abs() < 1.0 && (learned - (500.0 + 8.0 * part)).abs() < 1.0);
}
