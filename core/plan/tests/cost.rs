//! The cost model: its constants as text, what it says of growing sizes, and how it is fitted to measured
//! times.

use hawser_plan::PlanErrorKind;
use hawser_plan::choose::choose;
use hawser_plan::cost::Constants;
use hawser_plan::fit::{Sample, fit, runs};
use hawser_plan::topology::{DeviceKind, Link};
use hawser_plan::{Call, Collective, DataType, Decision, PlanConfig, Route, Topology};

const GPU: DeviceKind = DeviceKind::Cuda { sm: 90 };
const MACHINES: [(DeviceKind, Link); 4] =
    [(GPU, Link::NvLink), (GPU, Link::Pcie), (GPU, Link::HostMemory), (DeviceKind::Host, Link::HostMemory)];

fn pick(collective: Collective, bytes: u64, topology: &Topology) -> Decision {
    let ranks = topology.size();
    let call = Call::of_bytes(collective, bytes, DataType::Float32, 0, ranks);
    choose(&call, topology, &PlanConfig::default()).unwrap()
}

/// Names and values that differ by more than `tolerance`.
fn differences(a: &Constants, b: &Constants, tolerance: f64) -> Vec<String> {
    let pairs = a.named().into_iter().zip(b.named());
    let far = pairs.filter(|((_, a), (_, b))| (a / b).ln().abs() > tolerance);
    far.map(|((name, a), (_, b))| format!("{name}: {a} and {b}")).collect()
}

#[test]
fn constants_survive_their_text() {
    for (device, link) in MACHINES {
        let mut constants = Constants::builtin(device, link);
        assert_eq!(Constants::parse("", device, link).unwrap(), Some(constants));
        constants.wire_gbs /= 3.0;
        constants.paths[4].round_us = 0.0;
        let text = constants.text(device, link);
        assert_eq!(Constants::parse(&text, device, link).unwrap(), Some(constants), "{text}");
    }
}

#[test]
fn a_text_may_say_little_and_is_for_its_machine_only() {
    let builtin = Constants::builtin(GPU, Link::NvLink);
    let text = "# a remark\n\n[SymLL] # words\n  hop_us=2.5 # µs\n[ link ]\nwire_gbs = 4e2\n";
    let got = Constants::parse(text, GPU, Link::NvLink).unwrap().unwrap();
    assert_eq!((got.path(Route::FUSED_LL).hop_us, got.wire_gbs), (2.5, 400.0));
    assert_eq!(differences(&got, &builtin, 1e-9).len(), 2);
    for (text, is_for_this) in [
        ("device = \"cuda:90\"\nlink = \"nvlink\"\nranks = 8\n", true),
        ("link = \"pcie\"", false),
        ("device = \"cuda:100\"", false),
        ("device = \"host\"\n[link]\nwire_gbs = 1", false),
    ] {
        assert_eq!(Constants::parse(text, GPU, Link::NvLink).unwrap().is_some(), is_for_this, "{text}");
    }
}

#[test]
fn sections_of_earlier_versions_are_read() {
    let text = "[Simple]\nhop_us = 7\n[DMA]\nhop_us = 8\n[SymDirect]\nhop_us = 9\n";
    let gpu = Constants::parse(text, GPU, Link::NvLink).unwrap().unwrap();
    let hops = [Route::SIMPLE, Route::COPY_ENGINE, Route::ZERO_COPY].map(|route| gpu.path(route).hop_us);
    assert_eq!(hops, [7.0, 8.0, 9.0]);
    let host = Constants::parse(text, DeviceKind::Host, Link::HostMemory).unwrap().unwrap();
    assert_eq!(host.path(Route::HOST).hop_us, 7.0);
    let error = Constants::parse("[Simple]\nhop_us = x", DeviceKind::Host, Link::HostMemory).unwrap_err();
    assert!(error.text.contains("line 2: Simple.hop_us = x"), "errors have the words of the text: {error}");
}

#[test]
fn what_is_wrong_in_a_text_is_named() {
    for (text, words) in [
        ("wire_gbs = 3", "line 1: wire_gbs is not known; known are device, link and ranks"),
        ("[link]\n\nwire = 3", "line 3: link.wire is not known; known are wire_gbs, all_to_all"),
        ("[fused.LL]\nhop_us = fast", "line 2: fused.LL.hop_us = fast: it must be a number of µs"),
        ("[LL]\nhop_us = -1", "line 2: LL.hop_us = -1"),
        ("[LL]\nhop_us = nan", "LL.hop_us = nan"),
        ("[LL]\nhop_us = inf", "LL.hop_us = inf"),
        ("[LL]\nblock_gbs = 0", "above 0"),
        ("[link]\nall_to_all = 1.5", "at most 1"),
        (
            "[LL64]",
            "line 1: [LL64] is no section; known are link, net, interpreter.LL, interpreter.LL128, \
             interpreter.Simple, fused.LL",
        ),
        ("[LL]\nhop_us 3", "line 2: \"hop_us 3\" is no key = value"),
        ("[LL]\nhop_us = 3\n[interpreter.LL]\nhop_us = 4", "line 4: interpreter.LL.hop_us is there twice"),
        ("[interpreter.LL]\nhop_us = 3\n[LL]\nhop_us = 4", "line 4: LL.hop_us is there twice"),
        ("[Simple]\nhop = 7", "line 2: Simple.hop is not known; known are fixed_us, hop_us"),
    ] {
        let error = Constants::parse(text, GPU, Link::NvLink).unwrap_err();
        assert_eq!(error.kind, PlanErrorKind::InvalidUsage);
        assert!(error.text.contains(words), "{text:?}: {error}");
    }
}

#[test]
fn worlds_with_other_constants_have_other_digests() {
    let topology = Topology::single_host(8, GPU, Link::NvLink);
    let mut other = topology.clone();
    for index in 0..6 {
        other.constants.paths[index].hop_us *= 1.01;
        assert_ne!(topology.digest(), other.digest());
        other.constants = topology.constants;
    }
    assert_eq!(topology.digest(), other.digest());
}

#[test]
fn constants_decide() {
    let mut topology = Topology::single_host(8, GPU, Link::NvLink);
    assert!(pick(Collective::AllReduce, 1 << 10, &topology).route.is_fused());
    for path in &mut topology.constants.paths[3..] {
        path.fixed_us = 1e6;
    }
    assert!(!pick(Collective::AllReduce, 1 << 10, &topology).route.is_fused());
}

#[test]
fn more_bytes_never_take_less_time() {
    for (device, link) in MACHINES {
        for ranks in [2, 3, 4, 8, 16] {
            let topology = Topology::single_host(ranks, device, link);
            for collective in Collective::ALL {
                let mut before = 0.0;
                for power in 7..34 {
                    let choice = pick(collective, 1 << power, &topology);
                    let us = choice.predicted_us;
                    assert!(us > 0.97 * before, "{before} µs, then {us} µs: {}", choice.why);
                    before = us;
                }
            }
        }
    }
}

/// The times that `truth` predicts for every run of `topology`, at sizes as `hawser measure` takes them.
fn synthetic(truth: &Constants, topology: &Topology, noise: f64) -> Vec<Sample> {
    let config = PlanConfig::default();
    let there = Topology { constants: *truth, ..topology.clone() };
    let mut samples = Vec::new();
    for run in runs(topology, &config).unwrap() {
        for &collective in &run.collectives {
            for power in (8..27).step_by(3) {
                let blocks =
                    collective.input_blocks(topology.size()).max(collective.output_blocks(topology.size()));
                let count = (1u64 << power) / u64::from(blocks);
                let sample = run.sample(collective, count, 1.0, topology, &config).unwrap().unwrap();
                let us = sample.predicted_us(&there, &config);
                let sign = if samples.len() % 2 == 0 { 1.0 } else { -1.0 };
                samples.push(Sample { us: us * (1.0 + sign * noise), ..sample });
            }
        }
    }
    samples
}

/// Constants far from the built-in ones.
fn elsewhere(topology: &Topology) -> Constants {
    let mut truth = topology.constants;
    truth.wire_gbs *= 0.45;
    truth.all_to_all *= 0.8;
    // Copy engines are measured where they are asked for only.
    for (index, path) in truth.paths.iter_mut().enumerate().take(Route::COPY_ENGINE.index()) {
        path.fixed_us *= if index < 3 { 0.6 } else { 1.7 };
        path.hop_us *= 1.6 - 0.2 * index as f64;
        path.block_gbs *= if index % 2 == 0 { 1.4 } else { 0.7 };
        path.wire_share *= if index < 3 { 1.0 } else { 0.9 };
    }
    truth
}

#[test]
fn a_fit_finds_the_constants_behind_the_times() {
    for ranks in [2, 4, 8] {
        let topology = Topology::single_host(ranks, GPU, Link::NvLink);
        let truth = elsewhere(&topology);
        let samples = synthetic(&truth, &topology, 0.0);
        let found = fit(&samples, &topology, &PlanConfig::default());
        assert!(found.error_before > 1.1 && found.error < 1.005, "{ranks} ranks: {found:?}");
        let mut wrong = differences(&found.constants, &truth, 0.05);
        // What never decides about a time cannot be seen in it.
        // Of the last one rows decide, not the wire.
        let unseen = ["round_us", "block_gbs", "block_us", "fused.LL128.wire_share"];
        wrong.retain(|text| !unseen.iter().any(|name| text.contains(name)));
        assert!(wrong.is_empty(), "{ranks} ranks: {wrong:#?}");
    }
}

#[test]
fn a_fit_bears_noise_and_a_wild_sample() {
    let topology = Topology::single_host(8, GPU, Link::NvLink);
    let truth = elsewhere(&topology);
    let mut samples = synthetic(&truth, &topology, 0.03);
    samples[20].us *= 30.0;
    let found = fit(&samples, &topology, &PlanConfig::default());
    assert!(found.error < 1.05, "{found:?}");
    let there = |constants: &Constants| Topology { constants: *constants, ..topology.clone() };
    for collective in Collective::ALL {
        for power in 8..32 {
            let want = pick(collective, 1 << power, &there(&truth)).predicted_us;
            let got = pick(collective, 1 << power, &there(&found.constants)).predicted_us;
            assert!((got / want).ln().abs() < 0.12, "{collective:?} 2^{power}: {got} for {want} µs");
        }
    }
}

#[test]
fn what_was_not_measured_stays() {
    let topology = Topology::single_host(4, DeviceKind::Host, Link::HostMemory);
    assert!(runs(&topology, &PlanConfig::default()).unwrap().iter().all(|run| run.route == Route::HOST));
    let nothing = fit(&[], &topology, &PlanConfig::default());
    assert_eq!((nothing.constants, nothing.error), (topology.constants, 1.0));
    let mut truth = topology.constants;
    truth.paths[Route::HOST.index()].fixed_us *= 2.0;
    let found = fit(&synthetic(&truth, &topology, 0.0), &topology, &PlanConfig::default()).constants;
    assert_eq!((found.paths[0], found.paths[5]), (topology.constants.paths[0], topology.constants.paths[5]));
    assert!((found.paths[2].fixed_us / truth.paths[2].fixed_us - 1.0).abs() < 0.05, "{found:?}");
}
