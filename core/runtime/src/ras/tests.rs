//! From the answers of processes to what clients read.

use std::collections::BTreeSet;
use std::time::Duration;

use hawser_plan::Collective;
use serde_json::Value;

use super::census::{COLLECTIVES, ProcessCensus, ProcessKey, RankCensus};
use super::job::{Evidence, Job, Presence, RosterOf};
use super::{json, text};

const WORLD: u64 = 0xabc0;

fn key(process: u32) -> ProcessKey {
    // Two processes on each host.
    ProcessKey { machine: [process as u8 / 2; 16], pid: 100 + process }
}

fn node(process: u32) -> String {
    format!("10.0.0.{}", process / 2)
}

fn rank(comm_id: u64, size: u32, rank: u32, all_reduces: u64) -> RankCensus {
    let mut counts = [0; COLLECTIVES];
    counts[Collective::AllReduce as usize] = all_reduces;
    RankCensus {
        comm_id,
        size,
        rank,
        device: rank % 2,
        counts,
        async_error: 0,
        is_finalized: false,
        is_aborted: false,
    }
}

/// Four processes that are ranks of one communicator, and have called so many all-reduces.
fn evidence(counts: [u64; 4]) -> Evidence {
    let answer = |(process, count): (u32, u64)| ProcessCensus {
        process: key(process),
        node: node(process),
        ranks: vec![rank(WORLD, 4, process, count)],
    };
    let members = (0..4).map(|process| (key(process), node(process))).collect();
    let roster = RosterOf { comm_id: WORLD, members, left: BTreeSet::new(), died: BTreeSet::new() };
    Evidence {
        answers: (0..).zip(counts).map(answer).collect(),
        rosters: vec![roster],
        took: Duration::from_millis(12),
        timeouts: 0,
    }
}

fn json_of(job: &Job) -> Value {
    serde_json::from_str(&json::status(job)).expect("JSON")
}

#[test]
fn a_job_that_works() {
    let job = Job::of(evidence([7; 4]));
    let text = text::status(&job, false);
    let lines = [
        "      2          2            1          4        4",
        "Communicators... (0.012s)",
        "    0         1         2         2         4         4   RUNNING      OK",
    ];
    for line in lines {
        assert!(text.lines().any(|found| found == line), "no line {line:?} in:\n{text}");
    }
    assert!(text.ends_with("Errors\n======\n\nWarnings\n========\n\n"), "{text}");
    let json = json_of(&job);
    let comm = &json["communicators"][0];
    assert_eq!(
        (&json["communicators_count"], &comm["hash"], &comm["size"]),
        (&1.into(), &"0xabc0".into(), &4.into())
    );
    assert_eq!((&comm["ranks_count"], &comm["missing_ranks_count"]), (&4.into(), &0.into()));
    let third = &comm["ranks"][2];
    assert_eq!(
        (&third["host"], &third["pid"], &third["cuda_dev"]),
        (&"10.0.0.1".into(), &102.into(), &0.into())
    );
    assert_eq!(third["status"]["abort_flag"], Value::Bool(false));
    assert_eq!(third["collective_counts"]["AllReduce"], 7);
    assert_eq!(third["collective_counts"]["Broadcast"], 0);
    assert_eq!(json["ras"]["collection_time_sec"], 0.012);
}

#[test]
fn a_rank_that_is_behind_is_named() {
    let job = Job::of(evidence([8, 8, 7, 8]));
    let text = text::status(&job, false);
    for part in [
        "RUNNING  MISMATCH",
        "#0-0 (000000000000abc0) MISMATCH",
        "different AllReduce operation counts",
        "3 ranks have launched up to operation 8",
        "1 rank has launched up to operation 7",
        "Rank 2 -- GPU 0 managed by process 102 on node 10.0.0.1",
    ] {
        assert!(text.contains(part), "no {part:?} in:\n{text}");
    }
    assert!(!text.contains("Rank 0 --"), "{text}");
}

#[test]
fn silent_and_dead_processes_are_told_apart() {
    let mut found = evidence([7; 4]);
    found.answers.drain(2..);
    found.rosters[0].died.insert(3);
    found.timeouts = 1;
    let job = Job::of(found);
    assert_eq!((job.those(Presence::Silent).len(), job.those(Presence::Dead).len()), (1, 1));
    let text = text::status(&job, false);
    for part in [
        "RUNNING  INCOMPLETE",
        "INCOMPLETE\n  Missing communicator data from 1 job process\n  Process 102 on node 10.0.0.1\n",
        "DEAD\n  1 job process is considered dead\n  Process 103 on node 10.0.0.1\n",
        "Missing communicator data from 2 ranks\n  Rank 2 -- process 102 on node 10.0.0.1\n  Rank 3 --",
        "TIMEOUT\n  Encountered 1 communication timeout while",
    ] {
        assert!(text.contains(part), "no {part:?} in:\n{text}");
    }
    let comm = &json_of(&job)["communicators"][0];
    assert_eq!((&comm["ranks_count"], &comm["missing_ranks_count"]), (&2.into(), &2.into()));
    let of = |at: usize| &comm["missing_ranks"][at];
    assert_eq!(of(0)["status"], serde_json::json!({ "unresponsive": true, "considered_dead": false }));
    assert_eq!(of(1)["status"], serde_json::json!({ "unresponsive": true, "considered_dead": true }));
    assert_eq!((&of(1)["rank"], &of(1)["pid"]), (&3.into(), &103.into()));
}

#[test]
fn who_has_left_is_not_missed() {
    // Rank 3 has destroyed the communicator; its process is there and answers for another one.
    let mut found = evidence([7; 4]);
    found.answers[3].ranks = vec![rank(0xdef, 1, 0, 1)];
    found.rosters[0].left.insert(3);
    let job = Job::of(found);
    let text = text::status(&job, false);
    for part in
        ["MISMATCH", "Communicator ranks have different status", "1 rank has status NOCOMM\n  Rank 3 -- "]
    {
        assert!(text.contains(part), "no {part:?} in:\n{text}");
    }
    assert!(!text.contains("INCOMPLETE"), "{text}");
    let missing = &json_of(&job)["communicators"][0]["missing_ranks"][0];
    assert_eq!(missing["status"], serde_json::json!({ "unresponsive": false, "considered_dead": false }));
    // Now its process has gone.
    let mut found = evidence([7; 4]);
    found.answers.pop();
    found.rosters[0].left.insert(3);
    let job = Job::of(found);
    assert_eq!(job.processes.len(), 3);
    assert!(!text::status(&job, true).contains("INCOMPLETE"));
}

#[test]
fn communicators_of_others_are_shown_and_ranks_that_failed() {
    let mut found = evidence([7; 4]);
    // Processes 2 and 3 have one that the process that asks has not, and a rank of it failed.
    found.answers[2].ranks.push(RankCensus { async_error: 6, ..rank(5, 3, 0, 9) });
    found.answers[3].ranks.push(rank(5, 3, 1, 9));
    let job = Job::of(found.clone());
    assert_eq!(
        job.comms.iter().map(|comm| (comm.id, comm.missing.len())).collect::<Vec<_>>(),
        [(WORLD, 0), (5, 1)]
    );
    let text = text::status(&job, false);
    for part in
        ["ERROR,MISMATCH", "Asynchronous errors on 1 rank", "process 102 on node 10.0.0.1: Remote process"]
    {
        assert!(text.contains(part), "no {part:?} in:\n{text}");
    }
    // Where a process is silent, a rank that nobody has may be its.
    found.answers.remove(0);
    let comm = &json_of(&Job::of(found))["communicators"][1];
    assert_eq!(
        (&comm["missing_ranks"][0]["pid"], &comm["missing_ranks"][0]["host"]),
        (&(-1).into(), &"unknown".into())
    );
    assert_eq!(comm["missing_ranks"][0]["status"]["unresponsive"], Value::Bool(true));
}

#[test]
fn nothing_is_something_too() {
    let job = Job::of(Evidence::default());
    assert!(text::status(&job, true).contains("No communicator data collected!"));
    assert_eq!(json_of(&job)["communicators"], serde_json::json!([]));
}

#[test]
fn events_have_the_form_of_nccl() {
    let event: Value = serde_json::from_str(&json::event("PEER_DEAD", ("10.0.0.1", 7), "")).expect("JSON");
    assert_eq!((&event["group"], &event["event"]), (&"LIFECYCLE".into(), &"PEER_DEAD".into()));
    assert_eq!(
        event["peer"],
        serde_json::json!({ "host": "10.0.0.1", "pid": 7, "cuda_devs": [], "nvml_devs": [] })
    );
}
