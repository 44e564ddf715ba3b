//! The memory pool under communicators of the host device: its limit, its lines, and what it refuses.

use hawser_runtime::unique_id;
use hawser_tests::process::{Ended, Process};
use hawser_tests::world::on_host;

const RANK: &str = env!("CARGO_BIN_EXE_hawser-test-rank");

/// Two ranks on one host, in threads of a process with these settings.
fn pair(steps: &[&str], settings: &[(&str, &str)]) -> Process {
    Process::hosts(RANK, "aa", steps, settings)
}

fn ended(steps: &[&str], settings: &[(&str, &str)]) -> Ended {
    pair(steps, settings).end()
}

/// The number before ` MiB` behind a word in the lines of a device's pool.
fn figures(ended: &Ended, word: &str) -> Vec<f64> {
    let lines = ended.output.lines().filter(|line| line.contains("MEMORY_POOL host device 0:"));
    let figure = |line: &str| line.split_once(&format!("{word} "))?.1.split_once(" MiB")?.0.parse().ok();
    lines.map(|line| figure(line).unwrap_or_else(|| panic!("no {word} in {line}"))).collect()
}

const EVENTS: [(&str, &str); 2] = [("NCCL_CUMEM_MONITOR", "1"), ("NCCL_CUMEM_MONITOR_INTERVAL", "0")];

#[test]
fn a_communicator_fits_its_limit_and_still_computes() {
    if !on_host() {
        return;
    }
    let free = ended(&["small", "destroy"], &EVENTS);
    free.expect_success();
    let usual = figures(&free, "peak").into_iter().fold(0.0, f64::max);
    assert!(usual >= 4.0, "{}", free.output);
    // Less than it would take: fewer lanes, smaller slots, the same results. Copy engines' staging gives way
    // too.
    for pass_sm in ["0", "1"] {
        let settings = [("NCCL_CUMEM_MAX_SIZE", "6MB"), ("NCCL_PASS_SM", pass_sm)];
        let tight = ended(&["small", "destroy"], &[&EVENTS[..], &settings].concat());
        tight.expect_success();
        let peak = figures(&tight, "peak").into_iter().fold(0.0, f64::max);
        assert!(peak <= 6.0 && peak < usual, "{peak} of {usual} MiB:\n{}", tight.output);
    }
}

#[test]
fn all_memory_goes_back_when_a_communicator_goes() {
    if !on_host() {
        return;
    }
    let id = unique_id().unwrap();
    let ranks = [0, 1].map(|rank| Process::rank(RANK, &id, (rank, 2), &["small", "destroy"], &EVENTS));
    for rank in ranks {
        let ended = rank.end();
        ended.expect_success();
        assert_eq!(figures(&ended, "committed").last(), Some(&0.0), "{}", ended.output);
    }
}

#[test]
fn a_limit_that_is_too_small_is_named_on_all_ranks() {
    if !on_host() {
        return;
    }
    let refused = ended(&["small"], &[("NCCL_CUMEM_MAX_SIZE", "1MB")]);
    refused.expect_error("InvalidUsage", &["2 ranks", "NCCL_CUMEM_MAX_SIZE leaves 1 MiB"]);
    // Only one rank has the limit: all of them learn of it.
    let id = unique_id().unwrap();
    let settings = [("NCCL_CUMEM_MAX_SIZE", "1MB")];
    let poor = Process::rank(RANK, &id, (0, 2), &["small"], &settings);
    let rich = Process::rank(RANK, &id, (1, 2), &["small"], &[]);
    for process in [poor, rich] {
        process.end().expect_error("InvalidUsage", &["NCCL_CUMEM_MAX_SIZE leaves 1 MiB"]);
    }
}

#[test]
fn preallocated_memory_is_there_at_once_and_stays() {
    if !on_host() {
        return;
    }
    let settings = [("NCCL_CUMEM_POOL_SIZE", "64MB"), ("NCCL_CUMEM_PREALLOC", "1")];
    let ended = ended(&["mark", "small", "destroy"], &[&EVENTS[..], &settings].concat());
    ended.expect_success();
    let committed = figures(&ended, "committed");
    assert!(committed.iter().any(|mib| (64.0..66.0).contains(mib)), "{committed:?}");
    let (_, after) = ended.output.rsplit_once("mark\n").expect("the mark");
    assert!(
        !after.lines().any(|line| line.contains("host device 0") && line.contains("(growth)")),
        "{after}"
    );
}

#[test]
fn the_monitor_writes_a_line_at_every_interval() {
    if !on_host() {
        return;
    }
    let settings = [("NCCL_CUMEM_MONITOR", "1"), ("NCCL_CUMEM_MONITOR_INTERVAL", "100ms")];
    let mut process = pair(&["mark", "sleep"], &settings);
    for _ in 0..3 {
        process.wait_for_part("(interval)");
    }
}

#[test]
fn values_that_mean_nothing_are_refused_with_the_accepted_form() {
    if !on_host() {
        return;
    }
    let settings = [("NCCL_CUMEM_MAX_SIZE", "lots"), ("NCCL_CUMEM_GROWTH_FACTOR", "9")];
    let parts = ["NCCL_CUMEM_MAX_SIZE=lots", "512MB", "NCCL_CUMEM_GROWTH_FACTOR=9", "1.0 to 8.0"];
    ended(&["small"], &settings).expect_error("InvalidUsage", &parts);
}

#[test]
fn copy_engines_are_forbidden_by_name_and_told_about_when_asked() {
    if !on_host() {
        return;
    }
    let all = |settings: &[(&str, &str)]| ended(&["small", "small", "destroy"], settings);
    let told = all(&[("NCCL_PASS_SM", "1"), ("NCCL_SM_FREE_VERBOSE", "1")]);
    told.expect_success();
    let parts = [
        ("all_gather", "copy engines, slots"),
        ("all_reduce", "kernels of at most 2 CTAs: kernels are faster below 1 MiB"),
    ];
    for (what, how) in parts {
        let mut lines = told.output.lines().filter(|line| line.contains("SM_FREE"));
        assert!(lines.any(|line| line.contains(what) && line.contains(how)), "{what}:\n{}", told.output);
    }
    let lines =
        |ended: &Ended| ended.output.lines().filter(|line| line.contains("SM_FREE world rank 0")).count();
    let every = all(&[("NCCL_PASS_SM", "1"), ("NCCL_SM_FREE_VERBOSE", "2")]);
    assert!(lines(&every) > lines(&told), "{} and {}", lines(&every), lines(&told));
    let never = all(&[("NCCL_PASS_SM", "1"), ("NCCL_DMA_ENABLE", "0"), ("NCCL_SM_FREE_VERBOSE", "1")]);
    never.expect_success();
    assert!(!never.output.contains("copy engines, slots"), "{}", never.output);
    all(&[("NCCL_PASS_SM", "2"), ("NCCL_DMA_ENABLE", "0")])
        .expect_error("InvalidUsage", &["NCCL_DMA_ENABLE=0 forbids"]);
}
