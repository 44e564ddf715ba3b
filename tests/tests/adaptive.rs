//! Adaptive mode on host-device ranks: a floor that is slow on purpose is replaced, by all ranks at one
//! collective, with right results; what is not tried keeps the floor.

use std::collections::BTreeMap;
use std::sync::Mutex;

use hawser_plan::Collective;
use hawser_plugin::tuner::SettingsFile;
use hawser_runtime::comm::LastDecision;
use hawser_runtime::rules_update::{self, Switch};
use hawser_runtime::{Comm, Config, group};
use hawser_tests::deadline::Deadline;
use hawser_tests::skip::skipped;
use hawser_tests::world::{self, Issued, in_threads, issue, on_host, on_hosts, plain, rank_0_says};

/// Elements of the all-reduces.
const COUNT: usize = 10_000;

/// A floor in which everybody sends everything to everybody in small chunks: several times slower than
/// others.
fn files(mode: &str) -> Vec<SettingsFile> {
    let text = format!(
        "{mode}[[rule]]\nname = \"slow\"\nmatch.collective = [\"all_reduce\", \"reduce\"]\n\
         use = [{{ algorithm = \"one_shot\", channels = 1, chunk = 512 }}, {{ algorithm = \"tree\" }}]\n"
    );
    vec![SettingsFile { name: "slow.toml".into(), text }]
}

/// One thread drives all ranks, so that the scheduler of a busy machine does not decide how long an operation
/// takes.
#[test]
fn a_slow_floor_is_replaced_on_all_ranks_at_one_collective() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    let comms = Comm::init_all(&[0, 1, 2, 3]).unwrap();
    let round = |collective| {
        group::start().unwrap();
        let case = plain(collective, 4, COUNT);
        let issued: Vec<_> = comms.iter().map(|comm| issue(comm, case, false, 0).unwrap()).collect();
        group::end().unwrap();
        assert_eq!(issued.iter().find_map(Issued::fault), None);
        let decisions: Vec<LastDecision> =
            comms.iter().map(|comm| comm.last_decision().unwrap().unwrap()).collect();
        let what =
            |decision: &LastDecision| (decision.operation, decision.algorithm.clone(), decision.rule.clone());
        assert!(
            decisions.iter().all(|other| what(other) == what(&decisions[0])),
            "ranks differ: {decisions:?}"
        );
        (decisions[0].algorithm.clone(), decisions[0].rule.clone().unwrap_or_default())
    };
    let is_slow = |(_, rule): &(String, String)| rule.contains("\"slow\" (slow.toml:");
    comms[1].change_rules(&files("mode = \"adaptive\"\nbudget = 0.1\n")).unwrap();
    let mut seen = Vec::new();
    let (algorithm, rule) = loop {
        seen.push(round(Collective::AllReduce));
        if let Some(learned) = seen.last().filter(|(_, rule)| rule.contains("learned: ")) {
            break learned.clone();
        }
    };
    assert_ne!(algorithm, "OneShot");
    assert!(rule.contains("one_shot/host/simple took ") && rule.contains("(adaptive mode:"), "{rule}");
    let trials = seen.iter().filter(|(_, rule)| is_trial(rule)).count();
    assert!(trials >= 8 && trials <= seen.len() / 10 + 4, "{trials} of {}", seen.len());
    // Before the change, trials, and the floor.
    let others = seen.iter().skip(16).filter(|last| !is_trial(&last.1) && !is_slow(last)).count();
    assert_eq!(others, 1, "{seen:?}");
    let reduce = round(Collective::Reduce);
    assert!(is_slow(&reduce), "what ranks can leave early keeps the floor: {reduce:?}");
    let records: Vec<Vec<Switch>> = comms.iter().map(Comm::rule_changes).collect();
    for (rank, record) in records.iter().enumerate() {
        assert_eq!(record, &records[0], "rank {rank}");
        assert!(record.len() >= 2 && record.iter().all(|switch| switch.at == switch.begun), "{record:?}");
    }
    comms.iter().for_each(|comm| comm.destroy().unwrap());
}

fn is_trial(rule: &str) -> bool {
    rule.contains("a trial of adaptive mode")
}

/// Trials are the same operations on all ranks, four in a row, and none without the mode.
#[test]
fn trials_are_the_same_operations_on_all_ranks() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    let trials = Mutex::new(BTreeMap::<u32, Vec<u64>>::new());
    in_threads(3, |comm| {
        if comm.rank() == 0 {
            comm.change_rules(&files("mode = \"adaptive\"\nbudget = 0.05\n")).unwrap();
        }
        let mut own = Vec::new();
        for _ in 0..400 {
            world::all_reduce(comm, 100).unwrap();
            let decision = comm.last_decision().unwrap().unwrap();
            if decision.rule.as_deref().is_some_and(is_trial) {
                own.push(decision.operation);
            }
        }
        trials.lock().unwrap().insert(comm.rank(), own);
    });
    let trials = trials.into_inner().unwrap();
    let first = &trials[&0];
    assert!(trials.values().all(|own| own == first), "{trials:?}");
    // Four in a row, in each of four periods.
    let windows: Vec<&[u64]> = first.chunks_exact(4).collect();
    assert!(windows.iter().all(|window| window[3] == window[0] + 3), "{first:?}");
    let rounds: Vec<u64> = windows.iter().map(|window| window[0] / 80).collect();
    assert!(first.len() >= 12 && rounds.is_sorted_by(|a, b| a < b), "{first:?}");
}

/// The demo's stress truly acts on the job, on one host: it changes what runs, and what was learned comes
/// back when it is over.
#[test]
fn the_demos_stress_changes_the_decision() {
    let test = std::env::current_exe().expect("the path of this test");
    let tool = test.parent().and_then(std::path::Path::parent).expect("target/PROFILE/deps").join("hawser");
    if !tool.exists() {
        return skipped("target/PROFILE/hawser is not built: cargo build -p hawser-cli");
    }
    let page = std::env::temp_dir().join(format!("hawser-adapt-{}.html", std::process::id()));
    let mut command = std::process::Command::new(tool);
    command.args(["adapt", "demo", "--seconds", "3", "--json", "-o"]).arg(&page);
    let output = command.env("HAWSER_DEVICE", "host").output().unwrap();
    let [said, errors] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    assert!(output.status.success(), "{said}{errors}");
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    let changes = said["changes"].as_array().unwrap();
    let is_there = |phase: &str, kind: &str| {
        changes.iter().any(|change| change["phase"] == phase && change["kind"] == kind)
    };
    assert!(is_there("learn", "learned") && is_there("stress", "floor"), "{said}");
    assert!(is_there("recover", "learned") || is_there("stress", "learned"), "{said}");
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(html.contains("role=\"img\"") && html.contains("<caption>"), "{html}");
    std::fs::remove_file(page).unwrap();
}

/// The news of a lost rail, from a net, reaches rank 0 from any rank: the floor counts, without trials, for
/// all.
#[test]
fn a_lost_rail_brings_the_floor() {
    if !on_host() {
        return;
    }
    let _deadline = Deadline::start();
    on_hosts("aab", &Config::default(), |comm| {
        let mut has_tried = false;
        if comm.rank() == 0 {
            comm.change_rules(&files("mode = \"adaptive\"\nbudget = 0.1\n")).unwrap();
        }
        let all_reduce = || {
            world::all_reduce(comm, 100).unwrap();
            comm.last_decision().unwrap().unwrap().rule.as_deref().is_some_and(is_trial)
        };
        while !rank_0_says(comm, has_tried).unwrap() {
            (0..40).for_each(|_| has_tried |= all_reduce());
        }
        // The ranks of this process are told alike; the first that tells decides.
        rules_update::stressed("a rail is lost");
        let before = comm.rule_changes().len();
        while !rank_0_says(comm, comm.rule_changes().len() > before).unwrap() {
            all_reduce();
        }
        (0..100).for_each(|_| assert!(!all_reduce(), "a trial under stress"));
    });
}
