//! The test of the tester: each bug that is planted is found. `cargo test -p hawser-twin --features planted`
//! builds the runtime with them, which takes its time, so CI does that every night only.
#![cfg(feature = "planted")]

use std::process::Command;

use hawser_runtime::planted::Bug;

/// The worlds within which each is found.
const WORLDS: &str = "10000";

#[test]
fn each_planted_bug_is_found() {
    let mut missed = Vec::new();
    for (_, name) in Bug::ALL {
        let arguments = ["--seed", "1", "--worlds", WORLDS, "--jobs", "2", "--first", "--plant", name];
        let output = Command::new(env!("CARGO_BIN_EXE_hawser-sim")).args(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        println!("{name}: {text}");
        if output.status.success() || !text.contains("FINDING") {
            missed.push(name);
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}
