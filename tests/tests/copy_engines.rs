//! Launches without a kernel on the host device, through the same path as on GPUs: `NCCL_PASS_SM`.

use hawser_plan::Collective;
use hawser_runtime::{Config, unique_id};
use hawser_tests::process::Process;
use hawser_tests::world::{self, on_host, on_hosts};

const RANK: &str = env!("CARGO_BIN_EXE_hawser-test-rank");
/// Slots of 4 KiB, so that messages have many tiles.
const SMALL_SLOTS: (&str, &str) = ("NCCL_PSM_BUFFER_SIZE", "12K");
const LOG: [(&str, &str); 2] = [("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "INIT,COLL")];

/// Ranks of one process, a letter for the host of each.
fn threads(hosts: &str, steps: &[&str], settings: &[(&str, &str)]) -> hawser_tests::process::Ended {
    let mut args = vec!["hosts".to_owned(), hosts.to_owned()];
    args.extend(steps.iter().map(|s| (*s).to_owned()));
    let all: Vec<(&str, &str)> = LOG.into_iter().chain(settings.iter().copied()).collect();
    Process::start(RANK, &args, &all).end()
}

/// Lines of the log about calls of a collective.
fn calls<'a>(output: &'a str, collective: &str) -> Vec<&'a str> {
    let named = format!(": {collective} ");
    output.lines().filter(|line| line.contains(" op ") && line.contains(&named)).collect()
}

#[test]
fn moves_go_by_copy_engines_with_right_results_and_reductions_by_kernels() {
    if !on_host() {
        return;
    }
    for ranks in ["aa", "aaa", "aaaaa"] {
        let ended = threads(ranks, &["matrix", "finalize", "destroy"], &[("NCCL_PASS_SM", "1"), SMALL_SLOTS]);
        ended.expect_success();
        for collective in ["all_gather", "alltoall", "broadcast", "gather", "scatter"] {
            let lines = calls(&ended.output, collective);
            assert!(!lines.is_empty(), "{collective}");
            assert!(lines.iter().all(|line| line.contains("/DMA x ")), "{collective}: {lines:?}");
        }
        let reduced = calls(&ended.output, "all_reduce");
        assert!(!reduced.is_empty() && reduced.iter().all(|line| line.contains("/Simple x ")));
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
    assert!(!without.output.contains("/DMA") && !without.output.contains("SM_FREE"));
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
    // Two hosts: kernels and the network, unless copy engines are a must.
    let between = threads("ab", &["small", "destroy"], &[("NCCL_PASS_SM", "1")]);
    between.expect_success();
    assert!(!between.output.contains("/DMA"), "{}", between.output);
    let must = threads("ab", &["small"], &[("NCCL_PASS_SM", "2")]);
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
        lines.iter().filter(|line| line.contains("/DMA")).count() as f64 / lines.len() as f64
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
            seen.lock().unwrap().push(comm.last_decision().unwrap().unwrap().executor);
        });
        seen.into_inner().unwrap()
    };
    assert_eq!((ran(true), ran(false)), (vec!["dma"; 2], vec!["host"; 2]));
}
