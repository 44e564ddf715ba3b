//! Ranks whose process has no descriptors left, and descriptors that are given back early. The tests run in
//! processes of their own: the limit is the process's, and other tests open descriptors too.

use super::tests::{in_threads, patient, settings};
use super::*;
use hawser_base::error::ErrorKind;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::read_dir;
use std::time::Duration;

/// Runs the test of this name again in a process of its own. Returns true in that process: the test is the
/// only one there, since it was asked for by its exact name.
fn is_alone(test: &str) -> bool {
    if std::env::args().any(|word| word == "--exact") {
        return true;
    }
    let name = format!("bootstrap::shortage_tests::{test}");
    let run = std::process::Command::new(std::env::current_exe().unwrap())
        .args([&name, "--exact", "--nocapture", "--test-threads=1"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&run.stdout);
    let errors = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success() && text.contains("1 passed"), "{text}\n{errors}");
    false
}

fn open_files() -> usize {
    read_dir("/proc/self/fd").unwrap().count()
}

fn world_of(nranks: u32) -> Vec<Bootstrap> {
    let id = UniqueId::create(&settings()).unwrap();
    in_threads(nranks, |rank| Bootstrap::join(&[id], rank, nranks, &settings(), &patient()).unwrap())
}

#[test]
fn a_rank_without_descriptors_blames_nobody() {
    if !is_alone("a_rank_without_descriptors_blames_nobody") {
        return;
    }
    let world = world_of(3);
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = |files: u64| setrlimit(Resource::Nofile, Rlimit { current: Some(files), maximum }).unwrap();
    // Every number below the limit is taken.
    let mut taken = Vec::new();
    limit(open_files() as u64 + 20);
    while let Ok(file) = std::fs::File::open("/dev/null") {
        taken.push(file);
    }
    let soon = Wait::new(AbortFlag::new(), Some(Duration::from_secs(5)));
    world[2].watch.look_for(1, &soon);
    let error = world[2].send(1, 7, b"rope", &soon).unwrap_err();
    assert_eq!(error.kind, ErrorKind::System, "{error}");
    drop(taken);
    assert!(world[2].roster().is_quiet(), "nobody has left");
    world[2].send(1, 7, b"rope", &patient()).unwrap();
    assert_eq!(world[1].recv(2, 7, &patient()).unwrap(), b"rope");
}

#[test]
fn who_takes_no_descriptors_has_one_open_file_less() {
    if !is_alone("who_takes_no_descriptors_has_one_open_file_less") {
        return;
    }
    let world = world_of(4);
    let before = open_files();
    world.iter().for_each(Bootstrap::take_no_descriptors);
    let is_less = || (open_files() == before - 4).then_some(());
    patient().until(is_less, || "the listeners for descriptors stay open").unwrap();
    in_threads(4, |rank| world[rank as usize].barrier(&patient()).unwrap());
}
