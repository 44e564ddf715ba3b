//! `NCCL_CHECK_MODE`: what ranks call differently is an error on all of them before anything runs, and
//! buffers that nobody can use are refused.

use hawser_tests::hangs::Hang;
use hawser_tests::process::{Ended, Process};
use hawser_tests::world::on_host;

const BINARY: &str = env!("CARGO_BIN_EXE_hawser-test-rank");
const GLOBAL: [(&str, &str); 1] = [("NCCL_CHECK_MODE", "DEBUG_GLOBAL")];
const LOCAL: [(&str, &str); 1] = [("NCCL_CHECK_MODE", "debug_local")];

/// Runs a rank for each list of steps to its end; `hosts` "hosts" take them in turns.
fn run(hosts: usize, steps: &[&str], settings: &[(&str, &str)]) -> Vec<Ended> {
    let (id, ranks) = (hawser_runtime::unique_id().expect("a unique id"), steps.len() as u32);
    let begin = |(rank, steps): (u32, &&str)| {
        let host = format!("host {}", rank as usize % hosts);
        let mut settings = settings.to_vec();
        if hosts > 1 {
            settings.push(("NCCL_HOSTID", &host));
        }
        let words: Vec<&str> = steps.split(' ').collect();
        Process::rank(BINARY, &id, (rank, ranks), &words, &settings)
    };
    let ranks: Vec<Process> = (0..).zip(steps).map(begin).collect();
    ranks.into_iter().map(Process::end).collect()
}

/// Three ranks of which the one in the middle calls something else: all say so, then go on as if nothing had
/// been.
#[track_caller]
fn check(hosts: usize, right: &str, wrong: &str, parts: &[&str]) {
    let [right, wrong] = [right, wrong].map(|call| format!("all_reduce ?call={call} all_reduce destroy"));
    let parts =
        [parts, &["operation 1 is not the same on all ranks: rank 1 called ", "than rank 0; rank 0 called "]];
    for rank in run(hosts, &[&right, &wrong, &right], &GLOBAL) {
        rank.expect_error("InvalidUsage", &parts.concat());
        rank.expect_success();
    }
}

#[test]
fn calls_that_differ_are_an_error_on_all_ranks_at_once() {
    if !on_host() {
        return;
    }
    let right = "all_reduce/1000";
    let named = "all_reduce(1000 x float, sum)";
    check(1, right, "all_gather/1000", &[named, "all_gather(1000 x float), another collective"]);
    check(1, right, "all_reduce/900000", &[named, "all_reduce(900000 x float, sum), another count"]);
    check(1, right, "all_reduce/0", &[named, "another count"]);
    check(1, right, "all_reduce/1000/double", &[named, "another type"]);
    check(1, right, "all_reduce/1000/float/max", &[named, "another reduction"]);
    let of_root = |root| format!("broadcast/1000/float/sum/{root}");
    check(1, &of_root(0), &of_root(2), &["broadcast(1000 x float, root 2), another root"]);
    check(3, right, "all_reduce/900000", &[named, "another count"]);
}

#[test]
fn a_rank_that_meets_the_others_elsewhere_is_named() {
    if !on_host() {
        return;
    }
    let ranks = run(1, &["call=all_reduce/1000", "?child=late"], &GLOBAL);
    let parts = ["rank 1 calls something else that ranks meet in (such as a split)"];
    ranks[0].expect_error("InvalidUsage", &parts);
    assert!(ranks[1].output.contains("error "), "the split fails as well: {}", ranks[1].output);
}

#[test]
fn a_rank_that_does_not_come_is_named_by_the_deadline() {
    if !on_host() {
        return;
    }
    let settings = [GLOBAL[0], ("HAWSER_OP_TIMEOUT", "1")];
    let mut ranks =
        Hang::start(BINARY, 1, &["call=all_reduce/1000", "sleep", "call=all_reduce/1000"], &settings);
    ranks.rank(0).wait_for_part("rank 0 waits for rank 1");
    ranks.rank(2).wait_for_part("ranks compare operation 0, all_reduce(1000 x float, sum)");
}

#[test]
fn what_is_right_stays_right() {
    if !on_host() {
        return;
    }
    let succeed = |arguments: &[&str], settings: &[(&str, &str)]| {
        let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        Process::start(BINARY, &arguments, settings).end().expect_success();
    };
    for settings in [GLOBAL, LOCAL] {
        succeed(&["hosts", "aab", "small", "mixed", "vectors", "finalize", "destroy"], &settings);
    }
}

#[test]
fn ranks_of_one_thread_compare_their_calls_too() {
    if !on_host() {
        return;
    }
    let arguments = ["together", "3"].map(str::to_owned);
    let mut process = Process::start(BINARY, &arguments, &GLOBAL);
    process.wait_for("all right");
    process
        .end()
        .expect_error("InvalidUsage", &["operation 1", "rank 2 called all_reduce(999 x float, sum)"]);
}

#[test]
fn buffers_that_nobody_can_use_are_refused() {
    if !on_host() {
        return;
    }
    let ranks = run(1, &["?unmapped ?unmapped=message all_reduce", "all_reduce"], &LOCAL);
    let parts = ["all_reduce: the receive buffer, 64 bytes at 0x40, begins where"];
    ranks[0].expect_error("InvalidArgument", &parts);
    let parts = ["send to rank 0: the buffer, 64 bytes at 0x7ffffffff000, begins where"];
    ranks[0].expect_error("InvalidArgument", &parts);
    ranks.iter().for_each(Ended::expect_success);
}

#[test]
fn a_call_that_fails_on_one_rank_is_an_error_on_all() {
    if !on_host() {
        return;
    }
    // Whichever rank it is: the hub of the comparison, or another one.
    for (at, hosts) in [(0, 1), (1, 1), (1, 3)] {
        let right = "all_reduce ?call=all_reduce/16 ?two all_reduce destroy";
        let wrong = "all_reduce ?unmapped ?two=unmapped all_reduce destroy";
        let steps: Vec<&str> = (0..3).map(|rank| if rank == at { wrong } else { right }).collect();
        for (rank, ended) in run(hosts, &steps, &GLOBAL).iter().enumerate() {
            let reason = "all_reduce: the receive buffer, 64 bytes at 0x40, begins where";
            if rank == at {
                ended.expect_error("InvalidArgument", &[reason]);
            } else {
                let failed = format!("it failed on rank {at}: ");
                for operation in
                    ["operation 1, all_reduce(16 x float, sum), does", "operation 2, all_reduce(16"]
                {
                    ended.expect_error("InvalidUsage", &[operation, &failed, reason]);
                }
            }
            // All go on with the same numbers.
            ended.expect_success();
        }
    }
}

#[test]
fn all_ranks_need_the_same_mode() {
    if !on_host() {
        return;
    }
    let id = hawser_runtime::unique_id().expect("a unique id");
    let begin =
        |(rank, mode)| Process::rank(BINARY, &id, (rank, 2), &["all_reduce"], &[("NCCL_CHECK_MODE", mode)]);
    let ranks: Vec<Process> = [(0, "DEFAULT"), (1, "DEBUG_GLOBAL")].map(begin).into_iter().collect();
    for rank in ranks {
        let parts = ["rank 1 compares calls (NCCL_CHECK_MODE=DEBUG_GLOBAL) and rank 0 does not"];
        rank.end().expect_error("InvalidUsage", &parts);
    }
}
