//! Reductions whose moves copy engines make, on the host device, through the same path as on GPUs.

use std::sync::Barrier;
use std::time::Duration;

use hawser_plan::{Collective, DataType, Executor, ReduceOp};
use hawser_runtime::{Comm, Config, group, unique_id};
use hawser_tests::oracle::Case;
use hawser_tests::process::{Ended, Process};
use hawser_tests::world::{self, on_host, on_hosts};

const RANK: &str = env!("CARGO_BIN_EXE_hawser-test-rank");
/// Slots of 4 KiB, so that there are many tiles.
const SMALL_SLOTS: (&str, &str) = ("NCCL_PSM_BUFFER_SIZE", "12K");
const LOG: [(&str, &str); 2] = [("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "INIT,COLL")];
const REDUCING: [Collective; 3] = [Collective::AllReduce, Collective::ReduceScatter, Collective::Reduce];

/// A file of rules that give all reductions to copy engines, whatever their size.
struct Rules(std::path::PathBuf);

impl Rules {
    fn new(test: &str) -> Self {
        let file = std::env::temp_dir().join(format!("hawser-reductions-{test}-{}.toml", std::process::id()));
        let rules = REDUCING.map(|collective| {
            let name = collective.name();
            format!("[[rule]]\nmatch.collective = \"{name}\"\nuse = {{ executor = \"dma\" }}\n")
        });
        std::fs::write(&file, rules.concat()).unwrap();
        Self(file)
    }

    fn setting(&self) -> (&str, &str) {
        ("HAWSER_RULES", self.0.to_str().unwrap())
    }
}

impl Drop for Rules {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn threads(hosts: &str, steps: &[&str], settings: &[(&str, &str)]) -> Ended {
    let all: Vec<(&str, &str)> = LOG.into_iter().chain(settings.iter().copied()).collect();
    Process::hosts(RANK, hosts, steps, &all).end()
}

/// Shares of the log's calls of a collective that copy engines moved.
fn moved(output: &str, collective: Collective) -> f64 {
    let named = format!(": {} ", collective.name());
    let lines: Vec<&str> =
        output.lines().filter(|line| line.contains(" op ") && line.contains(&named)).collect();
    assert!(!lines.is_empty(), "{output}");
    lines.iter().filter(|line| line.contains("AllPairs/copy_engine/Simple x ")).count() as f64
        / lines.len() as f64
}

/// All types by turns, all operations, no elements, one, odd ones, many tiles, in place and not, in any
/// alignment.
#[test]
fn results_are_right_in_threads() {
    if !on_host() {
        return;
    }
    let rules = Rules::new("threads");
    for (ranks, ctas, zero_copy) in [("aa", "2", "auto"), ("aaa", "1", "1"), ("aaaaa", "3", "0")] {
        let settings = [
            ("NCCL_PASS_SM", "1"),
            ("HAWSER_SM_FREE_CTAS", ctas),
            ("NCCL_ZERO_COPY", zero_copy),
            SMALL_SLOTS,
            rules.setting(),
        ];
        let ended = threads(ranks, &["matrix", "finalize", "destroy"], &settings);
        ended.expect_success();
        for collective in REDUCING {
            // All but those whose ranks have factors of their own.
            let share = moved(&ended.output, collective);
            assert!(share > 0.7 && share < 1.0, "{collective:?}: {share}");
        }
        let direct = ended.output.lines().filter(|line| line.contains("transfers direct"));
        assert_eq!(direct.count() > 0, zero_copy != "0");
        assert!(ended.output.contains("SM-light, with at most"), "{}", ended.output);
    }
}

#[test]
fn results_are_right_in_processes() {
    if !on_host() {
        return;
    }
    let (id, rules) = (unique_id().unwrap(), Rules::new("processes"));
    let start = |rank| {
        let settings = [("NCCL_PASS_SM", "1"), SMALL_SLOTS, rules.setting()];
        Process::rank(RANK, &id, (rank, 4), &["matrix", "mixed", "finalize", "destroy"], &settings)
    };
    let processes: Vec<Process> = (0..4).map(start).collect();
    processes.into_iter().for_each(|process| process.end().expect_success());
}

/// Nobody asks for it: large calls are moved by copy engines, all 12 types.
#[test]
fn large_calls_of_all_types_are_light() {
    if !on_host() {
        return;
    }
    let config = Config { sm_free: true, ..Config::default() };
    on_hosts("aaaa", &config, |comm| {
        for (turn, dtype) in DataType::ALL.into_iter().enumerate() {
            let (collective, op) = (REDUCING[turn % 3], ReduceOp::ALL[turn % 5]);
            let count = (1 << 20) / dtype.size() + 7 + turn;
            let case = Case { collective, dtype, op, ranks: 4, root: 2, count };
            world::run(comm, case, turn % 2 == 1, turn % 3).unwrap();
            let last = comm.last_decision().unwrap().unwrap();
            assert_eq!((last.route.executor, last.channels), (Executor::CopyEngine, 2), "{}", last.text);
        }
    });
}

/// Two communicators, crossed, and groups of reductions with moves.
#[test]
fn groups_and_communicators_mix() {
    if !on_host() {
        return;
    }
    let config = Config { sm_free: true, ..Config::default() };
    on_hosts("aaa", &config, |comm| {
        let other = comm.split(0, -(comm.rank() as i32), None).unwrap().unwrap();
        let plain = |collective| world::plain(collective, 3, 300_011);
        for round in 0..3 {
            group::start().unwrap();
            let all =
                [Collective::AllReduce, Collective::AllGather, Collective::Reduce, Collective::ReduceScatter]
                    .map(|collective| {
                        let first = world::issue(comm, plain(collective), false, round).unwrap();
                        [first, world::issue(&other, plain(collective), round == 1, 1).unwrap()]
                    });
            group::end().unwrap();
            let faults: Vec<String> = all.iter().flatten().filter_map(world::Issued::fault).collect();
            assert!(faults.is_empty(), "{faults:?}");
        }
        other.destroy().unwrap();
    });
}

#[test]
fn a_missing_peer_is_named_when_the_deadline_passes() {
    if !on_host() {
        return;
    }
    let (id, rules) = (unique_id().unwrap(), Rules::new("missing"));
    let start = |rank: u32| {
        let settings = [("NCCL_PASS_SM", "1"), ("HAWSER_OP_TIMEOUT", "1"), rules.setting()];
        let steps: &[&str] = if rank == 0 { &["all_reduce"] } else { &["sleep"] };
        Process::rank(RANK, &id, (rank, 2), steps, &settings)
    };
    let (first, mut second) = (start(0), start(1));
    first.end().expect_error("Timeout", &["copy engines waited for rank 1"]);
    second.kill();
}

#[test]
fn an_abort_ends_a_reduction_that_waits() {
    if !on_host() {
        return;
    }
    let (id, over) = (unique_id().unwrap(), Barrier::new(2));
    let run = |rank: u32| {
        let config = Config { sm_free: true, host: Some("a".into()), ..Config::default() };
        let comm = Comm::init(&[id], 2, rank, rank, config).unwrap();
        world::all_reduce(&comm, 300_000).unwrap();
        assert_eq!(comm.last_decision().unwrap().unwrap().route.executor, Executor::CopyEngine);
        if rank == 0 {
            let aborting = comm.clone();
            let thread = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(50));
                aborting.abort()
            });
            let error = world::all_reduce(&comm, 300_000).unwrap_err();
            assert!(error.text.contains("abort"), "{}", error.text);
            thread.join().unwrap().unwrap();
        }
        over.wait();
        let _ = comm.abort();
    };
    std::thread::scope(|scope| {
        scope.spawn(|| run(1));
        run(0);
    });
}

/// The communicator has little memory: slots are small, results right.
#[test]
fn a_small_pool_has_small_slots() {
    if !on_host() {
        return;
    }
    let rules = Rules::new("pool");
    let settings = [("NCCL_CUMEM_MAX_SIZE", "6MB"), ("NCCL_PASS_SM", "1"), rules.setting()];
    let ended = threads("aa", &["small", "destroy"], &settings);
    ended.expect_success();
    assert_eq!(moved(&ended.output, Collective::AllReduce), 1.0);
}

/// Between hosts kernels move and reduce, light all the same.
#[test]
fn between_hosts_kernels_do_it_all() {
    if !on_host() {
        return;
    }
    let settings = [("NCCL_PASS_SM", "1"), ("NCCL_NET", "Socket"), ("NCCL_SM_FREE_VERBOSE", "2")];
    let ended = threads("aabb", &["small", "destroy"], &settings);
    ended.expect_success();
    assert_eq!(moved(&ended.output, Collective::AllReduce), 0.0);
    for text in ["kernels of at most 2 CTAs, which move what they reduce", "between hosts kernels move"] {
        assert!(ended.output.contains(text), "{text}: {}", ended.output);
    }
}
