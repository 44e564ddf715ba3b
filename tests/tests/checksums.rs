//! Checksums of what crosses the network: changed data end the communicator with an error that says where.

use hawser_runtime::unique_id;
use hawser_tests::process::{Ended, Process};
use hawser_tests::world::on_host;

const RANK: &str = env!("CARGO_BIN_EXE_hawser-test-rank");
const ON: (&str, &str) = ("HAWSER_CHECKSUM", "1");
/// Copy engines move what they can, over slots of 4 KiB.
const COPIES: [(&str, &str); 2] = [("NCCL_PASS_SM", "1"), ("NCCL_PSM_BUFFER_SIZE", "12K")];

/// Ranks in threads of one process, whose net is the tests' own.
fn run(hosts: &str, steps: &[&str], settings: &[(&str, &str)]) -> Ended {
    let log = [("NCCL_NET", "test"), ("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "INIT")];
    let all: Vec<(&str, &str)> = log.into_iter().chain(settings.iter().copied()).collect();
    Process::hosts(RANK, hosts, steps, &all).end()
}

#[test]
fn results_are_right_with_checksums() {
    if !on_host() {
        return;
    }
    for (hosts, settings) in [("aabb", &[ON][..]), ("abc", &[ON, COPIES[0], COPIES[1]])] {
        let ended = run(hosts, &["small", "vectors", "mixed", "puts", "finalize", "destroy"], settings);
        ended.expect_success();
        assert!(ended.output.contains("from host memory, with checksums"), "{}", ended.output);
    }
}

/// The same fault passes as a wrong result without checksums, so that it is a real one.
#[test]
fn a_changed_bit_is_an_error_that_names_peer_lane_and_nic() {
    if !on_host() {
        return;
    }
    // Slots of FIFOs, and those of copy engines.
    for (step, more) in [("?again", &[][..]), ("?gathers", &COPIES)] {
        let without = run("ab", &["flip", step], more);
        assert!(without.output.contains("wrong result"), "{}", without.output);
        let settings: Vec<_> = [ON].iter().chain(more).copied().collect();
        let with = run("ab", &["flip", step], &settings);
        assert!(!with.output.contains("wrong result"), "{}", with.output);
        let line = with.output.lines().find(|line| line.contains("changed on the way")).unwrap_or_default();
        // Either of the two NICs may carry the first message.
        let named = [" failed receiving from rank ", "slot ", " of lane ", "through test", "NCCL_IB_HCA"];
        assert!(named.iter().all(|part| line.contains(part)), "{}", with.output);
    }
}

#[test]
fn ranks_that_differ_are_refused() {
    if !on_host() {
        return;
    }
    let id = unique_id().unwrap();
    let start = |rank: u32| {
        let settings = [
            ("NCCL_HOSTID", ["a", "b"][rank as usize]),
            ("NCCL_NET", "Socket"),
            ("HAWSER_CHECKSUM", ["0", "1"][rank as usize]),
        ];
        Process::rank(RANK, &id, (rank, 2), &["all_reduce"], &settings)
    };
    let processes = [0, 1].map(start);
    for ended in processes.map(Process::end) {
        let text = "rank 0 has no checksums for what crosses the network and rank 1 checksums";
        assert!(!ended.status.success() && ended.output.contains(text), "{}", ended.output);
        assert!(ended.output.contains("HAWSER_CHECKSUM"), "{}", ended.output);
    }
}
