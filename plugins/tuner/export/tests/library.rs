//! The built library, opened as a host opens it.

use std::path::PathBuf;
use std::process::Command;

use hawser_compat::library::Library;
use hawser_compat::tuner::from_library;
use hawser_plugin::Log;
use hawser_plugin::tuner::{
    Algorithm, Candidate, Decision, Executor, Function, Protocol, Question, TunerConfig,
};

/// Cargo builds the library before this test, into the same folder.
fn built() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("libnccl_tuner_hawser.so")
}

#[test]
fn the_library_tunes_by_the_rules_of_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules");
    std::fs::write(&file, "allreduce,0,-1,tree,ll,7,-1,-1\n").unwrap();
    // SAFETY: only this thread and std read the environment here, std under its own lock.
    unsafe { std::env::set_var("NCCL_TUNER_CONFIG_FILE", &file) };
    let found = from_library(&Library::open(&built()).unwrap()).unwrap().unwrap();
    assert_eq!((found.symbol, found.plugin.name()), ("ncclTunerPlugin_v6", "hawser"));
    let context = found.plugin.open(&TunerConfig::new(1, 8, 1, Log::silent())).unwrap();
    let tree = Decision::new(Algorithm::TREE, Executor::Interpreter, Protocol::Ll);
    let mut list = [Candidate::predicted(tree, 9.0)];
    let answer = context.tune(&Question::new(Function::AllReduce, 1 << 20), &mut list).unwrap();
    assert_eq!((answer.order, answer.channels), (Some(0), Some(7)));
}

#[test]
fn the_library_exports_nccls_names_only() {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(built()).output();
    let output = output.unwrap_or_else(|e| panic!("nm does not run ({e}): install binutils"));
    let text = String::from_utf8_lossy(&output.stdout);
    let mut names: Vec<&str> = text.lines().filter_map(|line| line.split(' ').next_back()).collect();
    names.sort_unstable();
    assert_eq!(names, ["ncclTunerPlugin_v4", "ncclTunerPlugin_v5", "ncclTunerPlugin_v6"]);
}
