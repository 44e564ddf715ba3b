//! Launches without a kernel on the host device, through the same path as on GPUs: `NCCL_PASS_SM`.

use std::time::Duration;

use hawser_plan::{Collective, Executor};
use hawser_runtime::{Config, unique_id};
use hawser_tests::process::Process;
use hawser_tests::world::{self, on_host, on_hosts};

const RANK: &str = env!("CARGO_BIN_EXE_hawser-test-rank");
/// Slots of 4 KiB, so that messages have many tiles.
const SMALL_SLOTS: (&str, &str) = ("NCCL_PSM_BUFFER_SIZE", "12K");
const LOG: [(&str, &str); 2] = [("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "INIT,COLL")];

/// Ranks of one process, a letter for the host of each.
fn threads(hosts: &str, steps: &[&str], settings: &[(&str, &str)]) -> hawser_tests::process::Ended {
    let all: Vec<(&str, &str)> = LOG.into_iter().chain(settings.iter().copied()).collect();
    Process::hosts(RANK, hosts, steps, &all).end()
}

/// Lines of the log about calls of a collective.
fn calls<'a>(output: &'a str, collective: &str) -> Vec<&'a str> {
    let named = format!(": {collective} ");
    output.lines().filter(|line| line.contains(" op ") && line.contains(&named)).collect()
}

/// All collectives that only move data went by copy engines.
fn expect_copied(output: &str) {
    for collective in ["all_gather", "alltoall", "broadcast", "gather", "scatter"] {
        let lines = calls(output, collective);
        assert!(!lines.is_empty(), "{collective}");
        let are_copied = lines.iter().all(|line| line.contains("/copy_engine/Simple x "));
        assert!(are_copied, "{collective}: {lines:?}");
    }
}

#[test]
fn moves_go_by_copy_engines_with_right_results_and_small_reductions_by_kernels() {
    if !on_host() {
        return;
    }
    for ranks in ["aa", "aaa", "aaaaa"] {
        let ended = threads(ranks, &["matrix", "finalize", "destroy"], &[("NCCL_PASS_SM", "1"), SMALL_SLOTS]);
        ended.expect_success();
        expect_copied(&ended.output);
        // One of them has more than 1 MiB.
        let reduced = calls(&ended.output, "all_reduce");
        let large = reduced.iter().filter(|line| line.contains("AllPairs/copy_engine/Simple x 2"));
        assert_eq!(large.count(), ranks.len(), "{reduced:?}");
        assert!(
            reduced.iter().all(|line| line.contains("/host/Simple x ") || line.contains("300007 x float:"))
        );
        assert!(ended.output.contains("SM_FREE"), "told at bring-up");
        // Threads reach each other's buffers.
        let direct = ended.output.lines().filter(|line| line.contains("transfers direct"));
        assert!(direct.clone().any(|line| !line.contains(": 0 of ")), "some transfers are direct");
    }
    // The same through staging alone.
    for ranks in ["aa", "aaaa"] {
        let staged = [("NCCL_PASS_SM", "1"), ("NCCL_ZERO_COPY", "0"), SMALL_SLOTS];
        let ended = threads(ranks, &["matrix", "finalize", "destroy"], &staged);
        ended.expect_success();
        assert!(!ended.output.contains("transfers direct"), "staged");
    }
    let without = threads("aa", &["small", "destroy"], &[]);
    without.expect_success();
    assert!(!without.output.contains("/copy_engine/Simple") && !without.output.contains("SM_FREE"));
}

#[test]
fn processes_share_staging() {
    if !on_host() {
        return;
    }
    let id = unique_id().unwrap();
    let start = |rank| {
        let settings = [("NCCL_PASS_SM", "1"), SMALL_SLOTS];
        Process::rank(RANK, &id, (rank, 3), &["matrix", "finalize", "destroy"], &settings)
    };
    let processes: Vec<Process> = (0..3).map(start).collect();
    processes.into_iter().for_each(|process| process.end().expect_success());
}

#[test]
fn what_cannot_be_is_refused_or_goes_another_way() {
    if !on_host() {
        return;
    }
    // Programs that copy engines cannot run: kernels, unless copy engines are a must.
    let tree = [("NCCL_ALGO", "Broadcast:Tree"), ("NCCL_PASS_SM", "1")];
    let lenient = threads("ab", &["small", "destroy"], &tree);
    lenient.expect_success();
    assert!(calls(&lenient.output, "broadcast").iter().all(|line| line.contains("/host/Simple x ")));
    let must = threads("ab", &["small"], &[tree[0], ("NCCL_PASS_SM", "2")]);
    must.expect_error("InvalidUsage", &["NCCL_PASS_SM=2", "cannot run without multiprocessors"]);
    // Ranks that differ in the setting.
    let id = unique_id().unwrap();
    let start = |rank: u32| {
        let settings = [("NCCL_PASS_SM", if rank == 0 { "1" } else { "0" })];
        Process::rank(RANK, &id, (rank, 2), &["small"], &settings)
    };
    let processes: Vec<Process> = (0..2).map(start).collect();
    for process in processes {
        process.end().expect_error("InvalidUsage", &["rank"]);
    }
}

#[test]
fn a_missing_peer_is_named_when_the_deadline_passes() {
    if !on_host() {
        return;
    }
    let id = unique_id().unwrap();
    let start = |rank: u32| {
        let settings = [("NCCL_PASS_SM", "1"), ("HAWSER_OP_TIMEOUT", "1")];
        let steps: &[&str] = if rank == 0 { &["small"] } else { &["sleep"] };
        Process::rank(RANK, &id, (rank, 2), steps, &settings)
    };
    let (first, mut second) = (start(0), start(1));
    first.end().expect_error("Timeout", &["rank 1"]);
    second.kill();
}

#[test]
fn a_rule_gives_single_calls_to_copy_engines_or_takes_them_away() {
    if !on_host() {
        return;
    }
    let file = std::env::temp_dir().join(format!("hawser-executor-{}.toml", std::process::id()));
    let rules = |text: &str| std::fs::write(&file, text).unwrap();
    let path = file.to_str().unwrap();
    let run = |pass_sm| {
        let settings = [("HAWSER_RULES", path), ("NCCL_PASS_SM", pass_sm), SMALL_SLOTS];
        let ended = threads("aaa", &["small", "destroy"], &settings);
        ended.expect_success();
        ended.output
    };
    let by_copies = |output: &str, collective| {
        let lines = calls(output, collective);
        assert!(!lines.is_empty(), "{output}");
        lines.iter().filter(|line| line.contains("/copy_engine/Simple")).count() as f64 / lines.len() as f64
    };
    rules("[[rule]]\nmatch.collective = \"all_gather\"\nuse = { executor = \"dma\" }\n");
    let output = run("0");
    assert!(output.contains("SM_FREE world rank 0: for rules that ask for it: all_gather"), "{output}");
    assert_eq!((by_copies(&output, "all_gather"), by_copies(&output, "broadcast")), (1.0, 0.0));
    rules(
        "[[rule]]\nmatch = { collective = \"all_gather\", bytes = \"..4K\" }\nuse = { executor = \"sm\" }\n",
    );
    let output = run("1");
    let share = by_copies(&output, "all_gather");
    assert!(share > 0.0 && share < 1.0 && by_copies(&output, "broadcast") == 1.0, "{share}: {output}");
    assert_eq!(by_copies(&run("2"), "all_gather"), 1.0, "what insists on copy engines is not softened");
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn a_communicator_may_ask_for_itself() {
    if !on_host() {
        return;
    }
    let ran = |sm_free| {
        let config = Config { sm_free, ..Config::default() };
        let seen = std::sync::Mutex::new(Vec::new());
        on_hosts("aa", &config, |comm| {
            world::run(comm, world::plain(Collective::AllGather, 2, 10_000), false, 0).unwrap();
            seen.lock().unwrap().push(comm.last_decision().unwrap().unwrap().route.executor);
        });
        seen.into_inner().unwrap()
    };
    assert_eq!((ran(true), ran(false)), (vec![Executor::CopyEngine; 2], vec![Executor::Host; 2]));
}

/// Hosts of several shapes, over a net that is as awkward as its contract allows; and as must, through
/// staging alone, over TCP.
#[test]
fn moves_between_hosts_go_by_copy_engines_and_the_net() {
    if !on_host() {
        return;
    }
    let steps = ["matrix", "vectors", "mixed", "finalize", "destroy"];
    for (hosts, net) in
        [("ab", "test"), ("aabb", "test"), ("abab", "test"), ("abcaa", "test"), ("aab", "Socket")]
    {
        let settings = [("NCCL_PASS_SM", "1"), ("NCCL_NET", net), SMALL_SLOTS];
        let ended = threads(hosts, &steps, &settings);
        ended.expect_success();
        expect_copied(&ended.output);
        let reduced = calls(&ended.output, "all_reduce");
        assert!(!reduced.is_empty() && reduced.iter().all(|line| line.contains("/host/Simple x ")));
        let told = format!("by copy engines, between hosts by net {net} from slots of 4 KiB in host memory");
        let told = if hosts == "ab" {
            told
        } else {
            told.replace("engines,", "engines, staging 0 MiB in slots of 4 KiB,")
        };
        assert!(ended.output.contains(&told), "{told}:\n{}", ended.output);
    }
    let staged = [("NCCL_PASS_SM", "2"), ("NCCL_ZERO_COPY", "0"), ("NCCL_ALGO", "Ring"), SMALL_SLOTS];
    let ended = threads("aabb", &["small", "mixed", "destroy"], &staged);
    ended.expect_success();
    assert!(
        calls(&ended.output, "all_gather").iter().all(|line| line.contains(": Ring/copy_engine/Simple x "))
    );
}

#[test]
fn processes_on_two_hosts_move_without_kernels() {
    if !on_host() {
        return;
    }
    let id = unique_id().unwrap();
    let start = |rank: u32| {
        let host = ["left", "right"][rank as usize / 2];
        let settings = [("NCCL_PASS_SM", "1"), ("NCCL_HOSTID", host), ("NCCL_NET", "Socket")];
        Process::rank(RANK, &id, (rank, 4), &["small", "mixed", "finalize", "destroy"], &settings)
    };
    let processes: Vec<Process> = (0..4).map(start).collect();
    processes.into_iter().for_each(|process| process.end().expect_success());
}

#[test]
fn a_peer_on_another_host_may_be_missing() {
    if !on_host() {
        return;
    }
    let id = unique_id().unwrap();
    let start = |rank: u32, steps: &[&str]| {
        let host = ["left", "right"][rank as usize];
        let net = ("NCCL_NET", "Socket");
        let settings = [("NCCL_PASS_SM", "1"), ("NCCL_HOSTID", host), net, ("HAWSER_OP_TIMEOUT", "1")];
        Process::rank(RANK, &id, (rank, 2), steps, &settings)
    };
    // Until the deadline.
    let (first, mut second) = (start(0, &["gathers"]), start(1, &["sleep"]));
    first.end().expect_error("Timeout", &["rank 1"]);
    second.kill();
    // Until it is aborted.
    let id = unique_id().unwrap();
    let start = |rank: u32, steps: &[&str]| {
        let host = ["left", "right"][rank as usize];
        let settings = [("NCCL_PASS_SM", "1"), ("NCCL_HOSTID", host), ("NCCL_NET", "Socket")];
        Process::rank(RANK, &id, (rank, 2), steps, &settings)
    };
    let (mut first, mut second) = (start(0, &["abort-on-stdin", "mark", "gathers"]), start(1, &["sleep"]));
    first.wait_for("mark");
    // It makes its buffers first: whoever is faster, it ends.
    std::thread::sleep(Duration::from_millis(500));
    first.tell("now");
    // In the middle of a transfer, or before the first one.
    let ended = first.end();
    let mut errors = ended.output.lines().filter(|line| line.starts_with("error "));
    assert!(!ended.status.success() && errors.any(|line| line.contains("aborted")), "{}", ended.output);
    second.kill();
}

/// A fault that the plugin cannot mend ends the communicator on all ranks, with the cause.
#[test]
fn a_net_that_breaks_ends_copies_everywhere() {
    if !on_host() {
        return;
    }
    let settings = [("NCCL_NET", "test"), ("NCCL_PASS_SM", "1")];
    let ended = threads("abcd", &["small", "break", "?gathers", "?gathers"], &settings);
    ended.expect_error("System", &["sending through the test net", "110", "failed sending to rank"]);
    let errors = ended.output.lines().filter(|line| line.starts_with("error ")).count();
    assert_eq!(errors, 8, "four ranks, twice each:\n{}", ended.output);
}
