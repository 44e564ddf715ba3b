//! Connections between hosts that are encrypted (`HAWSER_WIRE=encrypt`): all works as without, and what
//! cannot be protected is refused.

use hawser_runtime::unique_id;
use hawser_tests::process::{Ended, Process};
use hawser_tests::world::on_host;

const RANK: &str = env!("CARGO_BIN_EXE_hawser-test-rank");
const ON: (&str, &str) = ("HAWSER_WIRE", "encrypt");
const TCP: (&str, &str) = ("NCCL_NET", "Socket");

/// Ranks in threads of one process.
fn run(hosts: &str, steps: &[&str], settings: &[(&str, &str)]) -> Ended {
    let log = [("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "INIT,NET")];
    let all: Vec<(&str, &str)> = log.into_iter().chain(settings.iter().copied()).collect();
    Process::hosts(RANK, hosts, steps, &all).end()
}

#[test]
fn results_are_right_when_all_is_encrypted() {
    if !on_host() {
        return;
    }
    let copies = [("NCCL_PASS_SM", "1"), ("NCCL_PSM_BUFFER_SIZE", "12K")];
    for (hosts, more) in [("aabb", &[][..]), ("abc", &copies), ("ab", &[("HAWSER_CHECKSUM", "1")])] {
        let settings: Vec<_> = [ON, TCP].iter().chain(more).copied().collect();
        let ended = run(hosts, &["small", "vectors", "puts", "mixed", "finalize", "destroy"], &settings);
        ended.expect_success();
        assert!(ended.output.contains(", encrypted"), "{}", ended.output);
    }
}

#[test]
fn a_net_that_cannot_encrypt_is_refused_with_a_remedy() {
    if !on_host() {
        return;
    }
    let ended = run("ab", &["all_reduce"], &[ON, ("NCCL_NET", "test")]);
    let text = "the net test cannot protect what it sends, and HAWSER_WIRE=encrypt asks for it";
    assert!(!ended.status.success() && ended.output.contains(text), "{}", ended.output);
    assert!(ended.output.contains("NCCL_NET=Socket"), "{}", ended.output);
    // Within one host nothing is sent.
    run("aa", &["all_reduce", "destroy"], &[ON, ("NCCL_NET", "test")]).expect_success();
}

#[test]
fn ranks_that_differ_are_refused() {
    if !on_host() {
        return;
    }
    // The root runs in this process, which has no setting.
    let id = unique_id().unwrap();
    let start = |rank: u32| {
        let settings = [
            ("NCCL_HOSTID", ["a", "b"][rank as usize]),
            TCP,
            ("HAWSER_WIRE", ["plain", "encrypt"][rank as usize]),
        ];
        Process::rank(RANK, &id, (rank, 2), &["all_reduce"], &settings)
    };
    let processes = [0, 1].map(start);
    for ended in processes.map(Process::end) {
        let text = "rank 1 has HAWSER_WIRE=encrypt, the process that made the unique id has plain";
        assert!(!ended.status.success() && ended.output.contains(text), "{}", ended.output);
    }
}
