//! Rule files steer what runs: seen in the log of ranks on the host device, whose results are checked too.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use hawser_plan::algo::{self, ProgramKey};
use hawser_plan::imported;
use hawser_plan::topology::{DeviceKind, Link};
use hawser_plan::{Algorithm, Collective, PlanConfig, Topology};
use hawser_plugin::tuner::SettingsFile;
use hawser_program::text::to_text;
use hawser_runtime::tuning::{CallAttributes, Tuners};
use hawser_runtime::{Stream, unique_id};
use hawser_tests::oracle::RankBuffers;
use hawser_tests::process::{Ended, Process};
use hawser_tests::world::{self, call, in_threads, on_host, plain};
use hawser_tuner::RuleTuner;
use hawser_tuner::files::RuleFile;

const RANK: &str = env!("CARGO_BIN_EXE_hawser-test-rank");

/// A file of its own, with this ending.
fn file(ending: &str, text: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = format!("rules_{}_{}.{ending}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().expect("a plain path").to_owned()
}

/// Ranks of one process, a letter for the host of each. The process did all steps, so results were right.
fn run(hosts: &str, steps: &[&str], settings: &[(&str, &str)]) -> String {
    let mut all = vec![("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "COLL,TUNING")];
    all.extend(settings);
    let ended = Process::hosts(RANK, hosts, steps, &all).end();
    ended.expect_success();
    ended.output
}

/// The decision that ran: `Ring/host/Simple x 2` and the like, of the only operation.
fn ran(output: &str) -> &str {
    let what = "all_reduce 5000 x float: ";
    let mut all = output.lines().filter_map(|line| line.split_once(what)).map(|(_, ran)| ran);
    let first = all.next().unwrap_or_else(|| panic!("no operation in:\n{output}"));
    assert!(all.all(|other| other == first), "ranks differ:\n{output}");
    first
}

#[test]
fn a_rule_changes_the_algorithm_that_runs() {
    if !on_host() {
        return;
    }
    let default = run("aaaa", &["all_reduce", "destroy"], &[]);
    for (name, algorithm) in
        [("ring", "Ring"), ("tree", "Tree"), ("OneShot", "OneShot"), ("all_pairs", "AllPairs")]
    {
        let rules = file(
            "toml",
            &format!("[[rule]]\nmatch.collective = \"all_reduce\"\nuse = {{ algorithm = \"{name}\" }}\n"),
        );
        let output = run("aaaa", &["all_reduce", "destroy"], &[("HAWSER_RULES", &rules)]);
        assert!(ran(&output).starts_with(&format!("{algorithm}/host/Simple x ")), "{output}");
        let place = format!("advice of tuner hawser-rules: rule at {rules}:1:1");
        assert!(output.contains(&place) && !default.contains("advice of"), "{output}");
    }
}

#[test]
fn channels_and_chunks_are_followed_with_right_results() {
    if !on_host() {
        return;
    }
    let with = |channels: u32| {
        let text =
            format!("[[rule]]\nuse = {{ algorithm = \"ring\", channels = {channels}, chunk = 512 }}\n");
        file("toml", &text)
    };
    for channels in [1, 2] {
        let output = run("aaa", &["all_reduce", "small", "destroy"], &[("HAWSER_RULES", &with(channels))]);
        let wanted = format!("all_reduce 5000 x float: Ring/host/Simple x {channels}");
        assert_eq!(output.lines().filter(|line| line.contains(&wanted)).count(), 3, "{output}");
    }
    // Between hosts a chunk is a message.
    let output = run("aabb", &["all_reduce", "destroy"], &[("HAWSER_RULES", &with(1))]);
    assert!(ran(&output).starts_with("Ring/host/Simple x 1"), "{output}");
}

#[test]
fn conditions_and_chains_decide_which_rule_counts() {
    if !on_host() {
        return;
    }
    let rules = file(
        "toml",
        "[[rule]]\nmatch = { data_type = \"half\" }\nuse = { algorithm = \"ring\" }\n\
         [[rule]]\n\
         match = { ranks = 4, ranks_per_host = 2, op = \"sum\", data_type = \"float\", bytes = \"20000\" }\n\
         use = [{ algorithm = \"nvls\" }, { algorithm = \"hierarchical\" }, { algorithm = \"tree\" }]\n\
         [[rule]]\nuse = { algorithm = \"one_shot\" }\n",
    );
    let ran_on = |hosts: &str| {
        let output = run(hosts, &["all_reduce", "destroy"], &[("HAWSER_RULES", &rules)]);
        ran(&output).split('/').next().unwrap_or_default().to_owned()
    };
    assert_eq!(ran_on("aabb"), "Hierarchical");
    assert_eq!(ran_on("aaaa"), "OneShot", "four ranks per host");
}

#[test]
fn rules_also_count_for_what_nccl_asks_no_tuner_about() {
    if !on_host() {
        return;
    }
    for (name, algorithm) in [("bruck", "Bruck"), ("pairwise", "Pairwise"), ("direct", "Direct")] {
        let text = format!("[[rule]]\nmatch.collective = \"alltoall\"\nuse = {{ algorithm = \"{name}\" }}\n");
        let output = run("aaa", &["small", "destroy"], &[("HAWSER_RULES", &file("toml", &text))]);
        let lines: Vec<&str> = output.lines().filter(|line| line.contains(": alltoall ")).collect();
        let wanted = format!(": {algorithm}/host/Simple");
        assert!(!lines.is_empty() && lines.iter().all(|line| line.contains(&wanted)), "{output}");
    }
}

#[test]
fn rules_decide_between_the_users_programs_and_algorithms() {
    if !on_host() {
        return;
    }
    let mut program = algo::program(&ProgramKey::new(Collective::AllReduce, Algorithm::Tree, 4, 0)).unwrap();
    program.shape.name = "mine".into();
    let plan = file("plan", &to_text(&program));
    let ran_by = |rules: &str| {
        let rules = file("toml", rules);
        let settings = [("MSCCL_XML_FILES", plan.as_str()), ("HAWSER_RULES", &rules)];
        let output = run("aaaa", &["all_reduce", "destroy"], &settings);
        (ran(&output).split('/').next().unwrap_or_default().to_owned(), output.contains("advice of"))
    };
    assert_eq!(ran_by(""), ("OneShot".into(), false), "without rules a program has to be the cheapest");
    assert_eq!(ran_by("[[rule]]\nuse = { algorithm = \"ring\" }"), ("Ring".into(), true));
    let chain = "[[rule]]\nuse = [{ program = \"yours\" }, { program = \"mine\", protocol = \"simple\" }]";
    assert_eq!(ran_by(chain), ("mine".into(), true));
}

/// Offline: what is chosen for an all-reduce of four ranks, where the user brought a program.
#[test]
fn a_rule_takes_a_program_that_the_user_brought() {
    let key = ProgramKey::new(Collective::AllReduce, Algorithm::Tree, 4, 0);
    let mut program = algo::program(&key).unwrap();
    program.shape.name = "mine".into();
    let brought = imported::keep(imported::read(&to_text(&program)).unwrap(), 3);
    let plan_config = PlanConfig {
        imports: vec![brought],
        slot_bytes: [0, 0, 32 << 10],
        lanes: 8,
        ..PlanConfig::default()
    };
    let topology = Topology::single_host(4, DeviceKind::Host, Link::HostMemory);
    let chosen = |rules: &str| {
        let tuner = RuleTuner::new(vec![RuleFile::named(file("toml", rules))]);
        let tuners = Tuners::of(&tuner, &topology, &plan_config, None).unwrap();
        let call = call(&plain(Collective::AllReduce, 4, 1000), 0, (16, 16));
        tuners.choose(&call, CallAttributes::default(), &topology, &plan_config).unwrap().choice
    };
    let mine = chosen("[[rule]]\nuse = [{ program = \"yours\" }, { program = \"mine\" }]");
    assert!(
        mine.key.algorithm == Algorithm::Imported(brought) && mine.why.decided.contains("rule at"),
        "{}",
        mine.why
    );
    let ring = chosen("[[rule]]\nuse = [{ program = \"yours\" }, { algorithm = \"ring\" }]");
    assert_eq!(ring.key.algorithm, Algorithm::Ring);
}

#[test]
fn nccls_csv_file_counts_too() {
    if !on_host() {
        return;
    }
    let rules = file("conf", "allreduce,0,-1,tree,simple,1,-1,-1\n");
    for variable in ["NCCL_TUNER_CONFIG_FILE", "HAWSER_RULES"] {
        let output = run("aa", &["all_reduce", "destroy"], &[(variable, &rules)]);
        assert!(ran(&output).starts_with("Tree/host/Simple"), "{variable}: {output}");
    }
}

#[test]
fn why_is_written_once_per_call() {
    if !on_host() {
        return;
    }
    let rules = file(
        "toml",
        "[[rule]]\nname = \"trees\"\nuse = [{ algorithm = \"pat\" }, { algorithm = \"tree\" }]\n",
    );
    let steps = ["all_reduce", "all_reduce", "destroy"];
    let settings = [("HAWSER_RULES", rules.as_str()), ("HAWSER_EXPLAIN", "1"), ("NCCL_DEBUG", "VERSION")];
    let output = run("aaa", &steps, &settings);
    let lines: Vec<&str> =
        output.lines().filter_map(|line| line.split_once("NCCL EXPLAIN ")).map(|(_, text)| text).collect();
    let count = |part: &str| lines.iter().filter(|line| line.contains(part)).count();
    assert_eq!(count("rank 0: all_reduce of 20000 bytes on 3 ranks"), 1, "{output}");
    for part in [
        "Ring               host/Simple",
        "fused kernels are for GPUs",
        &format!(
            "decided: Tree with host/Simple in 1 × 2 blocks of 1 threads is what tuner hawser-rules: rule \
             \"trees\" ({rules}:1:1) orders"
        ),
        &format!("  tuner hawser-rules: rule \"trees\" ({rules}:1:1)"),
        "pat: impossible here",
        "tree: takes tree/host/simple",
        "1 of 1 rules in",
    ] {
        assert!(count(part) > 0, "{part} is not in\n{output}");
    }
    let all = run("aaa", &steps, &[("HAWSER_EXPLAIN", "all")]);
    assert_eq!(all.matches("NCCL EXPLAIN communicator world, rank ").count(), 3, "{all}");
    assert!(!run("aaa", &steps, &[]).contains("EXPLAIN"));
}

/// Ranks in processes of their own, each with these rules; how each ended.
fn ranks(rules: &[Option<&str>]) -> Vec<Ended> {
    let (id, count) = (unique_id().unwrap(), rules.len() as u32);
    let start = |(rank, rules): (u32, &Option<&str>)| {
        let settings: Vec<(&str, &str)> = rules.iter().map(|rules| ("HAWSER_RULES", *rules)).collect();
        Process::rank(RANK, &id, (rank, count), &["all_reduce", "destroy"], &settings)
    };
    let all: Vec<Process> = (0..).zip(rules).map(start).collect();
    all.into_iter().map(Process::end).collect()
}

#[test]
fn ranks_with_other_rules_are_told_who_has_which() {
    if !on_host() {
        return;
    }
    let tree = file("toml", "[[rule]]\nuse = { algorithm = \"tree\" }\n");
    let ring = file("toml", "[[rule]]\nuse = { algorithm = \"ring\" }\n");
    for (rules, parts) in [
        (
            [Some(tree.as_str()), Some(ring.as_str()), Some(tree.as_str())],
            [
                format!("ranks 0, 2: 1 of 1 rules in {tree}; rank 1: 1 of 1 rules in {ring}"),
                "HAWSER_RULES".into(),
            ],
        ),
        (
            [None, Some(&ring), None],
            [format!("ranks 0, 2: no rules; rank 1: 1 of 1 rules in {ring}"), "tuner hawser-rules".into()],
        ),
    ] {
        for ended in ranks(&rules) {
            let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
            ended.expect_error("InvalidUsage", &parts);
        }
    }
    // The same rules in another file, written in another way, are no difference.
    let same = file("toml", "# as the other\n[[rule]]\nuse = [{ algorithm = \"Tree\" }]\n");
    ranks(&[Some(&tree), Some(&same)]).iter().for_each(Ended::expect_success);
    // A name is one: a call may ask for the rule by it.
    let named = file("toml", "[[rule]]\nname = \"x\"\nuse = { algorithm = \"tree\" }\n");
    for ended in ranks(&[Some(&tree), Some(&named)]) {
        ended.expect_error("InvalidUsage", &["rules of tuner hawser-rules differ between ranks"]);
    }
}

#[test]
fn a_broken_file_fails_all_ranks_with_its_place() {
    if !on_host() {
        return;
    }
    let tree = file("toml", "[[rule]]\nuse = { algorithm = \"tree\" }\n");
    let broken = file("toml", "[[rule]]\nuse = { algoritm = \"tree\" }\n");
    for ended in ranks(&[Some(&tree), Some(&broken)]) {
        assert!(!ended.status.success());
        for part in [
            "error InvalidUsage: ",
            "rank 1: tuner hawser-rules: the rule file",
            &format!("{broken}:2:9: use has no key \"algoritm\"; did you mean \"algorithm\"?"),
        ] {
            assert!(ended.output.contains(part), "no {part} in\n{}", ended.output);
        }
    }
    for ended in ranks(&[Some("/nonexistent.toml"), Some("/nonexistent.toml")]) {
        ended.expect_error(
            "InvalidUsage",
            &["rank 0 (and 1 more ranks)", "/nonexistent.toml", "there is no such file"],
        );
    }
}

/// Windows that all ranks have: both buffers have to lie in them.
#[test]
fn a_rule_for_registered_buffers_looks_at_windows() {
    if !on_host() {
        return;
    }
    let text = "[[rule]]\nmatch.registered = true\nuse = { algorithm = \"tree\" }\n\
                [[rule]]\nuse = { algorithm = \"ring\" }\n";
    let files = [SettingsFile { name: "windows.toml".into(), text: text.into() }];
    in_threads(3, |comm| {
        if comm.rank() == 2 {
            comm.change_rules(&files).unwrap();
        }
        // The change counts from the 16th collective at the latest: the margin after the first one.
        (0..64).for_each(|_| world::all_reduce(comm, 10).unwrap());
        let case = plain(Collective::AllReduce, 3, 1000);
        let buffers = RankBuffers::new(&case, comm.rank(), false, 0);
        let (input, output) = buffers.addresses(&case, comm.rank());
        let ran = || {
            comm.collective(call(&case, comm.rank(), (input, output)), Stream(0)).unwrap();
            assert_eq!(buffers.fault(&case, comm.rank()), None);
            comm.last_decision().unwrap().unwrap().algorithm
        };
        assert_eq!(ran(), "Ring");
        comm.add_window(input, 4000).unwrap();
        assert_eq!(ran(), "Ring", "the output is in no window");
        comm.add_window(output, 4000).unwrap();
        assert_eq!(ran(), "Tree");
        comm.remove_window(input, 4000);
        assert_eq!(ran(), "Ring");
    });
}
