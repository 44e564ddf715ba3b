//! Small versions of the attack's scenarios, by fixed seeds; `attack --minutes 30` draws others. Kills are in
//! `deaths.rs`, floods in `floods.rs`.

use hawser_tests::scenarios::Scenario;
use hawser_tests::world::on_host;

#[track_caller]
fn attack(scenario: Scenario, seeds: std::ops::Range<u64>) {
    if !on_host() {
        return;
    }
    for seed in seeds {
        let outcome = scenario.carry_out(seed, env!("CARGO_BIN_EXE_hawser-test-rank"));
        assert_eq!(outcome, Ok(()), "{scenario:?} of seed {seed}");
    }
}

#[test]
fn ranks_that_are_stopped_go_on() {
    attack(Scenario::Stop, 1..3);
}

#[test]
fn forked_children_that_call_harm_nothing() {
    attack(Scenario::Fork, 1..4);
}

#[test]
fn wrong_calls_of_several_threads_are_errors_and_harm_nothing() {
    attack(Scenario::Misuse, 1..4);
}

#[test]
fn damaged_files_are_errors_or_left_out() {
    attack(Scenario::File, 1..25);
}
