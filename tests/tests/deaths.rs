//! Ranks that die, stop or leave: everybody else learns it by default settings, and who it was.

use std::time::Duration;

use hawser_runtime::{UniqueId, unique_id};
use hawser_tests::attack::{Kill, MEETING, Phase};
use hawser_tests::process::Process;
use hawser_tests::world::on_host;

const BINARY: &str = env!("CARGO_BIN_EXE_hawser-test-rank");

fn rank(id: &UniqueId, place: (u32, u32), steps: &[&str], settings: &[(&str, &str)]) -> Process {
    Process::rank(BINARY, id, place, steps, settings)
}

#[track_caller]
fn kill(ranks: u32, victim: u32, hosts: u32, phase: Phase) {
    if !on_host() {
        return;
    }
    let kill = Kill { ranks, victim, hosts, phase, after: Duration::from_millis(5), has_children: false };
    let outcome = kill.carry_out(BINARY);
    assert!(outcome.hangs.is_empty(), "{}: survivors hang:\n{}", kill.words(), outcome.hangs.join("\n"));
    assert!(outcome.wrong.is_empty(), "{}: wrong:\n{}", kill.words(), outcome.wrong.join("\n"));
}

#[test]
fn a_rank_dies_in_a_loop_of_all_reduces_on_one_host() {
    kill(3, 1, 1, Phase::Calls("loop=all_reduce".into()));
}

#[test]
fn rank_0_dies_in_a_loop_of_broadcasts_on_one_host() {
    kill(3, 0, 1, Phase::Calls("loop=broadcast".into()));
}

#[test]
fn a_rank_dies_in_a_ring_of_messages() {
    kill(4, 2, 1, Phase::Calls("ring".into()));
}

#[test]
fn a_rank_dies_in_a_loop_of_puts() {
    kill(4, 2, 1, Phase::Calls("put-loop".into()));
    kill(3, 0, 3, Phase::Calls("put-loop".into()));
}

#[test]
fn a_rank_dies_between_hosts() {
    kill(4, 1, 2, Phase::Calls("loop=all_reduce".into()));
}

#[test]
fn rank_0_dies_between_hosts() {
    kill(3, 0, 3, Phase::Calls("loop=all_gather".into()));
}

#[test]
fn a_rank_dies_in_splits() {
    kill(4, 3, 1, Phase::Splits);
    kill(4, 0, 2, Phase::Splits);
}

#[test]
fn a_rank_dies_in_shrinks() {
    kill(4, 2, 1, Phase::Shrinks);
    kill(4, 0, 2, Phase::Shrinks);
}

#[test]
fn a_rank_dies_while_ranks_join() {
    kill(4, 2, 1, Phase::Grows);
    kill(3, 0, 1, Phase::Grows);
    kill(4, 1, 2, Phase::Grows);
}

/// The old ranks all learn that the growth has failed and who died, go on with their communicator, and grow
/// it by another rank.
#[test]
fn a_new_rank_dies_while_it_joins() {
    for (hosts, newcomers, step) in
        [(1, 1, "agreement"), (1, 2, MEETING), (1, 2, "ready"), (4, 1, "transport")]
    {
        kill(3, 3, hosts, Phase::Joins { newcomers, step });
    }
}

#[test]
fn a_rank_dies_in_bring_up() {
    kill(4, 2, 1, Phase::Init("transport"));
    kill(4, 0, 2, Phase::Init("agreement"));
}

#[test]
fn a_rank_dies_where_all_meet() {
    kill(4, 1, 1, Phase::Meeting);
}

/// It has no connection yet whose end would tell the others.
#[test]
fn a_rank_dies_between_the_meeting_and_its_first_connection() {
    for hosts in [1, 3] {
        kill(3, 1, hosts, Phase::Met);
        kill(3, 0, hosts, Phase::Met);
        kill(3, 2, hosts, Phase::Met);
    }
}

#[test]
fn a_rank_dies_while_the_others_destroy() {
    kill(3, 1, 1, Phase::Destroy);
    kill(3, 0, 3, Phase::Destroy);
}

/// Neither a killed rank nor survivors that end without destroying leave their sockets for rules behind.
#[test]
fn sockets_for_rules_go_with_their_processes() {
    if !on_host() {
        return;
    }
    let folder = std::env::temp_dir().join(format!("hawser-deaths-{}", std::process::id()));
    let settings = [("HAWSER_RUNTIME_DIR", folder.to_str().unwrap())];
    let id = unique_id().unwrap();
    let start = |r: u32| rank(&id, (r, 3), &["mark", "loop=all_reduce"], &settings);
    let mut all: Vec<Process> = (0..3).map(start).collect();
    all.iter_mut().for_each(|process| process.wait_for("mark"));
    let sockets = || {
        std::fs::read_dir(&folder)
            .unwrap()
            .flatten()
            .filter(|e| e.path().extension().is_some_and(|ending| ending == "rules"))
    };
    let has_all = (0..1000).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        sockets().count() == 3
    });
    assert!(has_all, "each process has a socket");
    all.remove(1).kill();
    all.into_iter().for_each(|process| drop(process.end()));
    let left = std::fs::read_dir(&folder).unwrap().count();
    assert_eq!(left, 0, "sockets are left");
    std::fs::remove_dir(folder).unwrap();
}

/// Kills by seed, a few of what `attack` does for as long as it is told.
#[test]
fn some_random_kills() {
    if !on_host() {
        return;
    }
    for seed in 1..=6 {
        let kill = Kill::of(seed);
        let outcome = kill.carry_out(BINARY);
        let texts = [outcome.hangs, outcome.wrong].concat();
        assert!(texts.is_empty(), "seed {seed}, {}:\n{}", kill.words(), texts.join("\n"));
    }
}

/// A child holds the connections of its dead parent open.
#[test]
fn a_rank_with_a_child_dies() {
    if !on_host() {
        return;
    }
    for (victim, hosts) in [(1, 1), (1, 3), (0, 3)] {
        let (phase, after) = (Phase::Calls("loop=all_reduce".into()), Duration::from_millis(5));
        let kill = Kill { ranks: 3, victim, hosts, phase, after, has_children: true };
        let outcome = kill.carry_out(BINARY);
        let texts = [outcome.hangs, outcome.wrong].concat();
        assert!(texts.is_empty(), "{}:\n{}", kill.words(), texts.join("\n"));
    }
}

/// A growth that begins when the others know of a death, while a child of the dead rank holds its connections
/// open.
#[test]
fn a_growth_after_a_death_names_the_dead() {
    if !on_host() {
        return;
    }
    let id = unique_id().unwrap();
    let start = |r: u32, steps| rank(&id, (r, 3), steps, &[("NCCL_HOSTID", ["a", "b", "c"][r as usize])]);
    let mut dies = start(1, &["all_reduce", "fork", "mark", "sleep"]);
    let steps: &[&str] = &["all_reduce", "fork", "mark", "pause=3000", "grow-once"];
    let mut others = [0, 2].map(|r| start(r, steps));
    others.iter_mut().for_each(|process| process.wait_for("mark"));
    dies.wait_for("mark");
    let child = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", dies.id())).unwrap();
    dies.kill();
    let ended = others.map(Process::end);
    let is_held = holds_files(&child);
    ended.iter().for_each(|ended| ended.expect_error("Remote", &["rank 1 (process", "has died"]));
    assert!(is_held && !child.is_empty(), "they waited until child {child} let go of the connections");
}

/// True if a process has open files. One that ends closes them before it is gone.
fn holds_files(pid: &str) -> bool {
    let files = std::fs::read_dir(format!("/proc/{}/fd", pid.trim()));
    files.is_ok_and(|mut files| files.next().is_some())
}

/// A shrink that keeps a dead rank, while a child of that rank holds its listener open: nobody answers there.
#[test]
fn a_shrink_that_keeps_a_dead_rank_names_it() {
    if !on_host() {
        return;
    }
    let id = unique_id().unwrap();
    let start = |r: u32, steps| rank(&id, (r, 3), steps, &[]);
    let mut dies = start(0, &["all_reduce", "fork", "mark", "sleep"]);
    let mut is_left_out = start(1, &["all_reduce", "mark", "sleep"]);
    let mut shrinks = start(2, &["all_reduce", "mark", "pause=3000", "survive=1"]);
    [&mut dies, &mut is_left_out, &mut shrinks].into_iter().for_each(|process| process.wait_for("mark"));
    let child = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", dies.id())).unwrap();
    dies.kill();
    let ended = shrinks.end();
    let is_held = holds_files(&child);
    ended.expect_error("Remote", &["rank 0 (process", "has died"]);
    assert!(is_held && !child.is_empty(), "it waited until child {child} let go of the listener");
}

/// A child is refused, frees nothing of its parent's, and changes no result of it.
#[test]
fn a_forked_child_that_calls_is_refused_and_harms_nothing() {
    if !on_host() {
        return;
    }
    for hosts in [["a", "a"], ["a", "b"]] {
        let id = unique_id().unwrap();
        let steps = ["all_reduce", "fork-calls", "all_reduce", "small", "destroy"];
        let start = |r: u32| rank(&id, (r, 2), &steps, &[("NCCL_HOSTID", hosts[r as usize])]);
        [0, 1].map(start).into_iter().for_each(|process| process.end().expect_success());
    }
}

/// The others learn at once that a rank cannot join, also those that come later.
#[test]
fn a_rank_that_cannot_join_tells_the_others() {
    if !on_host() {
        return;
    }
    for late in [0, 2] {
        let id = unique_id().unwrap();
        let start = |r: u32, settings: &[(&str, &str)]| rank(&id, (r, 3), &["all_reduce"], settings);
        let early = (late == 2).then(|| start(0, &[]));
        let failing = start(1, &[("NCCL_ZERO_COPY", "perhaps")]).end();
        failing.expect_error("InvalidUsage", &["NCCL_ZERO_COPY"]);
        for process in early.into_iter().chain((late..3).step_by(2).map(|r| start(r, &[]))) {
            process.end().expect_error("InvalidUsage", &["rank 1 could not join", "NCCL_ZERO_COPY"]);
        }
    }
}

/// A stopped process is not dead, on shared memory and between hosts: the job goes on.
#[test]
fn a_stopped_rank_is_not_dead() {
    if !on_host() {
        return;
    }
    for hosts in [["a", "a", "a"], ["a", "b", "b"]] {
        let id = unique_id().unwrap();
        let start = |r: u32| {
            let settings = [("NCCL_HOSTID", hosts[r as usize]), ("HAWSER_HEARTBEAT", "2")];
            rank(&id, (r, 3), &["mark", "rounds", "destroy"], &settings)
        };
        let mut all: Vec<Process> = (0..3).map(start).collect();
        all.iter_mut().for_each(|process| process.wait_for("mark"));
        all[1].signal("STOP");
        // Longer than the heartbeat, which the kernel answers for the stopped process.
        std::thread::sleep(Duration::from_secs(4));
        all[1].signal("CONT");
        all[0].tell("on");
        all[0].wait_for("on");
        all[0].tell("stop");
        all.into_iter().for_each(|process| process.end().expect_success());
    }
}

/// A wait for a rank that has destroyed its communicator ends with an error that names it; what it sent
/// before still comes, and others go on.
#[test]
fn a_wait_for_a_rank_that_left_in_peace() {
    if !on_host() {
        return;
    }
    for host in [["a", "a", "a"], ["a", "b", "c"]] {
        let id = unique_id().unwrap();
        let start = |r: u32, steps| rank(&id, (r, 3), steps, &[("NCCL_HOSTID", host[r as usize])]);
        let leaves = start(1, &["all_reduce", "send=0", "destroy", "sleep"]);
        let other = start(2, &["all_reduce", "send=0", "recv=0", "destroy"]);
        let waits = start(0, &["all_reduce", "recv=2", "recv=1", "?recv=1", "send=2", "destroy"]).end();
        waits.expect_error("Remote", &["rank 1 (process", "has left the communicator"]);
        drop(leaves);
        drop(other);
    }
}

/// Data that fit into staging are sent whether or not its receivers ever come, as NCCL does it.
#[test]
fn small_data_are_sent_whether_or_not_their_receivers_come() {
    if !on_host() {
        return;
    }
    for host in [["a", "a", "a"], ["a", "b", "c"]] {
        let sends = [
            "call=broadcast/16/float/sum/0",
            "call=scatter/16/float/sum/0",
            "call=gather/16/float/sum/1",
            "send=1",
        ];
        for send in sends {
            let id = unique_id().unwrap();
            let start =
                |r: u32, steps: &[&str]| rank(&id, (r, 3), steps, &[("NCCL_HOSTID", host[r as usize])]);
            let _never_come = [1, 2].map(|r| start(r, &["all_reduce", "sleep"]));
            start(0, &["all_reduce", send, "mark", "sleep"]).wait_for("mark");
        }
    }
}

/// Rank 0 passes news on. After it has left another rank does: the death of one is known to the others, also
/// to one that only waits for a third.
#[test]
fn news_pass_after_rank_0_has_left() {
    if !on_host() {
        return;
    }
    for host in [["a", "a", "a", "a"], ["a", "b", "c", "d"]] {
        let id = unique_id().unwrap();
        let start = |r: u32, steps| rank(&id, (r, 4), steps, &[("NCCL_HOSTID", host[r as usize])]);
        let leaves = start(0, &["all_reduce", "destroy", "sleep"]);
        let mut dies = start(2, &["all_reduce", "mark", "sleep"]);
        let waits = [start(1, &["all_reduce", "?recv=3"]), start(3, &["all_reduce", "?recv=2"])];
        dies.wait_for("mark");
        // Nothing says when the others have noticed that rank 0 has left: this is longer than it takes.
        std::thread::sleep(Duration::from_millis(800));
        dies.kill();
        for process in waits {
            process.end().expect_error("Remote", &["rank 2 (process"]);
        }
        drop(leaves);
    }
}
