//! Constants of the cost model: ranks with different files use those of rank 0.

use std::path::PathBuf;

use hawser_runtime::unique_id;
use hawser_tests::process::{Ended, Process};
use hawser_tests::world::on_host;

/// Runs `steps` on one process per entry of `links`, which is its file's text; None = no file.
fn run(name: &str, links: &[Option<&str>], steps: &[&str]) -> Option<Vec<Ended>> {
    if !on_host() {
        return None;
    }
    let folder = std::env::temp_dir().join(format!("hawser-links-test-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let id = unique_id().unwrap();
    let start = |(rank, text): (usize, &Option<&str>)| {
        let file: PathBuf = folder.join(format!("{rank}.toml"));
        let mut settings = vec![("NCCL_DEBUG", "INFO"), ("XDG_CACHE_HOME", folder.to_str().unwrap())];
        if let Some(text) = text {
            std::fs::write(&file, text).unwrap();
            settings.push(("HAWSER_LINKS", file.to_str().unwrap()));
        }
        let place = (rank as u32, links.len() as u32);
        Process::rank(env!("CARGO_BIN_EXE_hawser-test-rank"), &id, place, steps, &settings)
    };
    let processes: Vec<Process> = links.iter().enumerate().map(start).collect();
    let ended = processes.into_iter().map(Process::end).collect();
    std::fs::remove_dir_all(folder).unwrap();
    Some(ended)
}

/// Hops that cost nothing, or nothing but hops: rings, or exchanges of all with all.
const RING: &str = "[Simple]\nhop_us = 0.0\nround_us = 0.0\n[link]\nall_to_all = 0.001\n";
const PAIRS: &str = "[Simple]\nhop_us = 1000.0\n";

#[test]
fn ranks_with_different_files_agree_on_that_of_rank_0() {
    let steps = ["small", "destroy"];
    let files = [Some(PAIRS), Some(RING), Some("no file of rank 0, so nobody reads it"), None];
    let Some(ended) = run("differ", &files, &steps) else { return };
    for ended in ended {
        ended.expect_success();
        assert!(ended.output.contains("0.toml (named by rank 0)"), "{}", ended.output);
    }
}

#[test]
fn a_broken_file_of_rank_0_is_an_error_on_all_ranks() {
    let files = [Some("[Simple]\nhop_us = fast\n"), None, Some(RING)];
    let Some(ended) = run("broken", &files, &["all_reduce"]) else { return };
    for ended in ended {
        ended.expect_error(
            "InvalidUsage",
            &["HAWSER_LINKS=", "0.toml", "line 2: Simple.hop_us = fast", "unset"],
        );
    }
}
