//! Buffers that are registered go between hosts without staging: from user memory to user memory by copy
//! engines and the net plugin.

use hawser_plan::Collective;
use hawser_runtime::unique_id;
use hawser_tests::process::{Ended, Process};
use hawser_tests::world::on_host;

const RANK: &str = env!("CARGO_BIN_EXE_hawser-test-rank");
const COPIES: (&str, &str) = ("NCCL_PASS_SM", "1");
/// Slots of 4 KiB, so that messages have many tiles.
const SMALL_SLOTS: (&str, &str) = ("NCCL_PSM_BUFFER_SIZE", "12K");

fn run(hosts: &str, steps: &[&str], settings: &[(&str, &str)]) -> Ended {
    let all: Vec<(&str, &str)> = [COPIES].into_iter().chain(settings.iter().copied()).collect();
    Process::hosts(RANK, hosts, steps, &all).end()
}

/// For each collective the bytes that rails sent, and those that were sent and received without staging.
fn moved(ended: &Ended) -> Vec<(String, u64, u64)> {
    ended.expect_success();
    let line = |line: &str| {
        let mut words = line.strip_prefix("moved ")?.split(' ');
        let name = words.next()?.to_owned();
        Some((name, words.next()?.parse().ok()?, words.next()?.parse().ok()?))
    };
    let all: Vec<_> = ended.output.lines().filter_map(line).collect();
    let moves = Collective::ALL.into_iter().filter(|collective| !collective.reduces());
    assert_eq!(all.len(), moves.filter(|collective| *collective != Collective::SendRecv).count(), "{all:?}");
    all
}

/// No byte of any collective that moves is staged at either end, whatever the hosts and the net, and results
/// are right, of short calls and of reductions too.
#[test]
fn what_is_registered_goes_between_hosts_unstaged() {
    if !on_host() {
        return;
    }
    let encrypted = ("HAWSER_WIRE", "encrypt");
    for (hosts, settings) in [
        ("ab", &[("NCCL_NET", "test")][..]),
        ("abc", &[("NCCL_NET", "test"), SMALL_SLOTS]),
        ("aabb", &[("NCCL_NET", "test"), ("NCCL_ALGO", "Ring")]),
        ("abcd", &[("NCCL_NET", "Socket")]),
        ("aab", &[("NCCL_NET", "Socket"), SMALL_SLOTS]),
        ("ab", &[("NCCL_NET", "Socket"), encrypted]),
    ] {
        let ended =
            run(hosts, &["registered", "unstaged", "vectors", "mixed", "finalize", "destroy"], settings);
        for (name, sent, unstaged) in moved(&ended) {
            assert!(
                sent > 0 && unstaged == 2 * sent,
                "{hosts} {settings:?} {name}: {unstaged} of {sent} twice"
            );
        }
    }
}

/// Not where it is turned off, and not with checksums, which need bytes of their own.
#[test]
fn all_is_staged_where_it_has_to_be() {
    if !on_host() {
        return;
    }
    for setting in [("NCCL_LOCAL_REGISTER", "0"), ("HAWSER_CHECKSUM", "1")] {
        let ended = run("aab", &["registered", "unstaged", "destroy"], &[setting, ("NCCL_NET", "test")]);
        for (name, sent, unstaged) in moved(&ended) {
            assert!(sent > 0 && unstaged == 0, "{setting:?} {name}: {unstaged} of {sent}");
        }
    }
}

/// Each end decides for itself: one that stages talks to one that does not.
#[test]
fn ends_may_differ() {
    if !on_host() {
        return;
    }
    let id = unique_id().unwrap();
    let start = |rank: u32| {
        let host = ["left", "middle", "right"][rank as usize];
        let registers = ("NCCL_LOCAL_REGISTER", if rank == 1 { "0" } else { "1" });
        let settings = [COPIES, ("NCCL_HOSTID", host), ("NCCL_NET", "Socket"), registers];
        Process::rank(
            RANK,
            &id,
            (rank, 3),
            &["registered", "small", "mixed", "finalize", "destroy"],
            &settings,
        )
    };
    let processes: Vec<Process> = (0..3).map(start).collect();
    processes.into_iter().for_each(|process| process.end().expect_success());
}

/// A buffer is the program's again when its call has failed, or was aborted: what comes later is not written
/// there.
#[test]
fn a_buffer_of_a_failed_call_is_not_written_any_more() {
    if !on_host() {
        return;
    }
    for (step, kind, deadline) in [("given-up", "Timeout", "1"), ("given-up-aborted", "Aborted", "0")] {
        for net in ["test", "Socket"] {
            let settings = [("NCCL_NET", net), ("HAWSER_OP_TIMEOUT", deadline)];
            let ended = run("ab", &[step], &settings);
            ended.expect_error(kind, &["rank"]);
            let kept = ended.output.lines().filter_map(|line| line.strip_prefix("kept ")).collect::<Vec<_>>();
            assert_eq!(kept.len(), 1, "{net}: {}", ended.output);
        }
    }
}

/// A net that breaks in the middle of such calls is an error on all ranks.
#[test]
fn a_net_that_breaks_is_an_error_everywhere() {
    if !on_host() {
        return;
    }
    let settings = [("NCCL_NET", "test"), SMALL_SLOTS];
    let ended = run("abc", &["break=2000", "?registered", "?registered"], &settings);
    ended.expect_error("System", &["sending through the test net", "110", "failed sending to rank"]);
    let errors = ended.output.lines().filter(|line| line.starts_with("error ")).count();
    assert_eq!(errors, 6, "three ranks, twice each:\n{}", ended.output);
}
