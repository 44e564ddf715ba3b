//! Some worlds that seeds draw, and those in which bugs were found. `HAWSER_TEST_WORLDS` says how many.

use std::process::Command;

use hawser_twin::cases::CASES;

/// Worlds that take some ten seconds on two processors.
const WORLDS: &str = "400";

fn simulate(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_hawser-sim")).args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "hawser-sim {arguments:?}:\n{text}{error}");
    text.into_owned()
}

#[test]
fn worlds_of_many_seeds_keep_what_is_promised() {
    let worlds = std::env::var("HAWSER_TEST_WORLDS").unwrap_or_else(|_| WORLDS.to_owned());
    simulate(&["--seed", "1", "--worlds", &worlds, "--jobs", "2"]);
}

#[test]
fn what_was_found_stays_mended() {
    for (name, what) in CASES {
        println!("{name}: {what}");
        // In several orders of turns, since few of them showed it.
        (1..=12).for_each(|seed| _ = simulate(&["--case", name, "--seed", &seed.to_string()]));
    }
}

/// A world that could not be cut down, as its seed draws it today: a rank died in the middle of a change
/// of rules, and others blamed rank 0, which had told them of that before anybody knew of the death.
#[test]
fn who_dies_in_the_middle_of_a_change_of_rules_is_named() {
    simulate(&["--seed", "2021986"]);
}

/// Worlds as their seeds draw them today, in which a rank was stopped while another one died:
///
/// * one died between its hello to the root and the table of addresses, and nobody got the table then;
/// * all others told the one that was stopped of broken connections, and were blamed for them.
#[test]
fn who_dies_while_the_centre_is_stopped_is_named() {
    ["40009689", "40063209"].iter().for_each(|seed| _ = simulate(&["--seed", seed]));
}

/// Worlds as their seeds draw them today, beside a host or rank that dies:
///
/// * the rank that passes news on was stopped, and who heard of a broken connection from a third one blamed
///   that one;
/// * a split that ended by its parent's error looked for a rank by its number in the parent, and panicked;
/// * a rank whose communicator had failed waited two seconds for each window that it took back.
#[test]
fn worlds_with_deaths_that_were_found_stay_mended() {
    ["3001874", "3011274", "90109051"].iter().for_each(|seed| _ = simulate(&["--seed", seed]));
}

/// The trace has the moment of each step, so it differs as soon as one turn does.
#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in (1..=12).chain(DEATHS.map(|(seed, _)| seed)) {
        let trace = || simulate(&["--seed", &seed.to_string(), "--trace"]);
        let first = trace();
        assert!(first.contains(" us] init: "), "{first}");
        assert_eq!(first, trace(), "seed {seed}");
    }
}

/// Threads and caches that worlds leave behind are in the next one's way, and always in the same way.
#[test]
fn worlds_of_one_process_come_again_one_after_the_other() {
    for (seed, after) in [("101", "5"), ("97", "1")] {
        let trace = || simulate(&["--seed", seed, "--after", after, "--trace"]);
        let first = trace();
        assert_eq!(first.matches("\nworld ").count(), 12, "{first}");
        assert_eq!(first, trace(), "seed {seed} after {after}");
    }
    let output =
        Command::new(env!("CARGO_BIN_EXE_hawser-sim")).args(["--seed", "9", "--after", "2"]).output();
    let text = String::from_utf8_lossy(&output.unwrap().stderr).into_owned();
    assert!(text.contains("--after 2: no world of the process of 9"), "{text}");
}

/// Worlds in which something dies, and what their traces say of that.
const DEATHS: [(u64, &str); 3] = [(92, "Process"), (327, "Host"), (96, "Switch(Silent)")];

#[test]
fn processes_hosts_and_switches_die_and_survivors_are_told() {
    for (seed, what) in DEATHS {
        let trace = simulate(&["--seed", &seed.to_string(), "--trace"]);
        assert!(trace.contains(what) && trace.contains(" ends: ranks ["), "seed {seed}: {trace}");
    }
    // All but the last have survivors that wait for the dead.
    for (seed, _) in &DEATHS[..2] {
        let trace = simulate(&["--seed", &seed.to_string(), "--trace"]);
        assert!(trace.contains(": Remote: ") && trace.contains(" has died "), "seed {seed}: {trace}");
    }
}

/// Each rank is a process of its own: one of a host of five dies, and one that joins eight others.
#[test]
fn one_rank_of_a_host_dies_and_the_others_go_on() {
    let worlds = [
        ("108", ["hosts: \"aaaaa\"", "Process ends: ranks [1]", ": Remote: ", " has died "]),
        ("288", ["victims: Joiner", "Process ends: ranks [8]", "Grow: Remote: ", " has died "]),
    ];
    for (seed, texts) in worlds {
        let trace = simulate(&["--seed", seed, "--trace"]);
        assert!(trace.contains("is_apart: true"), "seed {seed}: {trace}");
        texts.iter().for_each(|text| assert!(trace.contains(text), "seed {seed}: no {text}: {trace}"));
    }
}

/// Threads that the kernel schedules, and waits that take their time.
#[test]
fn worlds_in_real_time() {
    simulate(&["--seed", "1", "--worlds", "16", "--jobs", "2", "--real-time"]);
}
