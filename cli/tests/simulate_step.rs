//! `hawser simulate` and `hawser tune --simulate`, as a user runs them.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use hawser_plugin::profiler::{Event, EventMask, ProfilerConfig, ProfilerContext, What};
use hawser_plugin::{Log, Profiler};
use hawser_profiler::{Settings, TraceProfiler};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// `hawser` with a clean environment.
fn hawser(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hawser"));
    for (name, _) in std::env::vars_os() {
        if ["NCCL_", "HAWSER_"].iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    command.env("HAWSER_DEVICE", "host").current_dir(folder).args(args);
    command
}

fn run(folder: &Path, args: &[&str]) -> Output {
    hawser(folder, args).output().unwrap_or_else(|e| panic!("{args:?}: {e}"))
}

/// Standard output of a run that must succeed.
fn text(folder: &Path, args: &[&str]) -> String {
    let output = run(folder, args);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {}\n{error}", output.status);
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Standard error of a run that must fail.
fn error(folder: &Path, args: &[&str]) -> String {
    let output = run(folder, args);
    assert_eq!(output.status.code(), Some(1), "{args:?}: {}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn json(folder: &Path, args: &[&str]) -> Value {
    serde_json::from_str(&text(folder, args)).expect("JSON")
}

const STEP: &str = "
    cluster = '2 hosts of hgx-h200'
    [groups]
    dp = { stride = 8 }
    [[block]]
    repeat = 4
    [[block.op]]
    name = 'backward <1>'
    compute_us = 900
    multiprocessors = 0
    [[block.op]]
    name = 'gradients'
    collective = 'all_reduce'
    bytes = '64M'
    group = 'dp'
    after = ['backward <1>']
";

fn folder(step: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("step.toml"), step).unwrap();
    folder
}

#[test]
fn a_step_has_a_time_exposed_communication_and_a_picture() {
    let folder = folder(STEP);
    let folder = folder.path();
    let printed = text(folder, &["simulate", "step.toml", "-o", "step.svg"]);
    for part in [
        "step of 16 ranks: ",
        "every rank: computing 3600.0 µs",
        "exposed",
        "slowest link: ",
        "8 × 2",
        "64 MiB",
    ] {
        assert!(printed.contains(part), "no {part} in\n{printed}");
    }
    let svg = std::fs::read_to_string(folder.join("step.svg")).unwrap();
    for part in [
        "<title id=\"what\">hawser simulate: a step of 16 ranks",
        "<desc id=\"text\">Exposed communication",
        "time in µs",
        "use of links in %",
        "backward &lt;1>",
        ">NIC out",
        "dashed: the busiest link",
    ] {
        assert!(svg.contains(part), "no {part} in\n{svg}");
    }
    assert_eq!(svg.matches(" µs from ").count(), 8, "eight operations are drawn");
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");

    let found = json(folder, &["simulate", "step.toml", "--json"]);
    let us = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{found}"));
    let (step, exposed) = (us(&found["us"]), us(&found["exposed_us"]));
    let alone = us(&found["operations"][1]["alone_us"]);
    assert_eq!(found["operations"][1]["times"], 4);
    // Four sums follow each other from the first part's end on, or only the last one is seen.
    let expected = if alone > 900.0 { 900.0 + 4.0 * alone } else { 3600.0 + alone };
    assert!((step / expected - 1.0).abs() < 1e-3, "{step} instead of {expected} µs");
    assert!((exposed - (step - 3600.0)).abs() < 0.01, "{exposed} of {step}");
    // Alone it is what perf predicts for one of the communicators, whose rails are its own.
    let perf = ["perf", "all_reduce", "-b", "64M", "-e", "64M", "--json", "--simulate", "pair.toml"];
    std::fs::write(
        folder.join("pair.toml"),
        "[[hosts]]\ncount = 2\npreset = 'hgx-h200'\nranks = 1\nnics = 1\npcie_switches = 1\n",
    )
    .unwrap();
    let pair = json(folder, &perf);
    let time = us(&pair["results"][0]["out_of_place"]["time"]);
    assert!((alone / time - 1.0).abs() < 0.02, "{alone} µs side by side, {time} µs alone");
}

#[test]
fn the_example_is_simulated() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/simulate");
    let found = json(&example, &["simulate", "step.toml", "--json"]);
    assert_eq!(found["ranks"], 128);
    let computing = 80.0 * (700.0 + 1300.0 + 20.0 + 2600.0 + 1400.0) + 4000.0;
    let us = found["us"].as_f64().unwrap();
    assert!(us > computing && us < 4.0 * computing, "{us} µs, of which {computing} µs are computed");
    assert!(found["slowest_link"].is_string(), "{}", found["slowest_link"]);
}

#[test]
fn bad_steps_and_missing_clusters_are_errors_that_name_them() {
    let folder = folder("[[op]]\ncompute_us = 1\n");
    let folder = folder.path();
    let write = |text: &str| std::fs::write(folder.join("step.toml"), text).unwrap();
    assert!(error(folder, &["simulate", "step.toml"]).contains("does not say on which cluster"));
    let cluster = ["--cluster", "2 hosts of cpu"];
    assert!(text(folder, &[&["simulate", "step.toml"], &cluster[..]].concat()).contains("no link is used"));
    write("[[op]]\ncompute_us = 1\nranks = '0-2'\n");
    let told = error(folder, &[&["simulate", "step.toml"], &cluster[..]].concat());
    assert!(told.contains("step.toml: operation compute: the cluster has no rank 2"), "{told}");
    write("cluster = 'none.toml'\n[[op]]\ncompute_us = 1\n");
    assert!(error(folder, &["simulate", "step.toml"]).contains("none.toml"));
    assert!(error(folder, &["simulate", "absent.toml"]).contains("cannot read absent.toml"));
    assert!(error(folder, &["simulate", "step.toml", "-o", "no/such.svg"]).contains("no folder"));
    assert!(error(folder, &["simulate", "a.json"]).contains("--cluster"));
    std::fs::write(folder.join("a.json"), "[]").unwrap();
    assert!(error(folder, &[&["simulate", "a.json"], &cluster[..]].concat()).contains("name no ranks"));
}

#[test]
fn an_interrupt_leaves_what_is_done() {
    let mut step = "cluster = '16 hosts of hgx-h200'\n".to_owned();
    step += "[[op]]\nname = 'first'\ncollective = 'all_reduce'\nbytes = '4K'\n";
    for mib in 1..2000 {
        step += &format!("[[op]]\ncollective = 'all_gather'\nbytes = '{mib}M'\n");
    }
    let folder = folder(&step);
    let mut child = hawser(folder.path(), &["simulate", "step.toml"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let first = lines.next().expect("a line about the cluster");
    assert!(first.starts_with("# 16 hosts of hgx-h200"), "{first}");
    std::thread::sleep(Duration::from_secs(2));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let rest: Vec<String> = lines.collect();
    let mut error = String::new();
    child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{error}");
    let (_, counts) =
        error.split_once("interrupted: the times alone of ").unwrap_or_else(|| panic!("{error}"));
    let done: usize = counts.split(' ').next().unwrap().parse().expect("a number");
    assert!(counts.contains(" of 2000 collectives") && done < 2000, "{error}");
    let is_row = |line: &&String| line.starts_with("first ") || line.starts_with("all_gather ");
    assert_eq!(rest.iter().filter(is_row).count(), done, "{rest:?}");
}

/// A job of two ranks that sums 1 MiB every 5 ms, as the profiler plugin records it.
fn traces(folder: &Path) -> [PathBuf; 2] {
    let settings = Settings {
        mask: EventMask(EventMask::COLL.0),
        file: Some(folder.join("rank%r.json").to_str().unwrap().to_owned()),
        ..Settings::default()
    };
    let profiler = TraceProfiler::new(settings);
    let open = |rank| profiler.open(&ProfilerConfig::new(0xabc, 2, rank, Log::silent())).unwrap();
    let ranks: [Box<dyn ProfilerContext>; 2] = [open(0), open(1)];
    for seq in 0..5 {
        let what = || What::Coll {
            seq,
            func: "AllReduce",
            send: 0x1000,
            recv: 0x2000,
            count: 1 << 19,
            root: 0,
            datatype: "ncclBfloat16",
            channels: 0,
            warps: 16,
            algo: "RING",
            proto: "SIMPLE",
            group: None,
        };
        for rank in &ranks {
            let event = rank.start(&Event { parent: None, rank: 0, what: what(), tag: 0 }).expect("an event");
            rank.stop(event);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(ranks);
    [0, 1].map(|rank| folder.join(format!("rank{rank}.json")))
}

#[test]
fn a_recorded_trace_is_run_again() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = traces(folder.path()).map(|path| path.to_str().unwrap().to_owned());
    let args = ["simulate", &first, &second, "--cluster"];
    let found = json(folder.path(), &[&args[..], &["2 hosts of cpu", "--json"]].concat());
    let operation = &found["operations"][0];
    assert_eq!((&operation["times"], &operation["bytes"]), (&5.into(), &(1 << 20).into()), "{operation}");
    assert_eq!(operation["collective"], "all_reduce");
    let alone = operation["alone_us"].as_f64().unwrap();
    // Four pauses of at least 5 ms lie between them.
    assert!(found["us"].as_f64().unwrap() > 20_000.0 + 5.0 * alone - 1.0, "{}", found["us"]);
    assert!((found["exposed_us"].as_f64().unwrap() - 5.0 * alone).abs() < 0.1, "{found}");
    let last = json(folder.path(), &[&args[..], &["2 hosts of cpu", "--json", "--most", "2"]].concat());
    assert_eq!(last["operations"][0]["times"], 2);
    assert!(last["notes"][0].as_str().unwrap().contains("of 5 collectives the last 2"), "{}", last["notes"]);
    let told = error(folder.path(), &[&args[..], &["4 hosts of cpu"]].concat());
    assert!(told.contains("of a job of 2 ranks, and the cluster has 4"), "{told}");
}

#[test]
fn rules_of_a_simulated_cluster_beat_the_cost_model_there() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    // Ranks share a NIC: there the cost model takes only what was measured so, and rules take the rest.
    let cluster = "cluster.toml";
    let text_of_cluster = "[[hosts]]\ncount = 3\npreset = \"dgx-a100\"\nnics = 1\npcie_switches = 1\n";
    std::fs::write(folder.join(cluster), text_of_cluster).unwrap();
    let asked = ["tune", "all_reduce,all_gather", "-b", "4K", "-e", "4M", "-f", "32", "--simulate", cluster];
    let asked =
        |more: &[&str]| -> Vec<String> { asked.iter().chain(more).map(|word| (*word).to_owned()).collect() };
    let run_with = |more: &[&str]| {
        let words = asked(more);
        run(folder, &words.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let stopped = run_with(&["-o", "rules.toml", "--stop-after", "2"]);
    let told = String::from_utf8_lossy(&stopped.stderr).into_owned();
    assert!(told.contains("interrupted after 2 of 6 sizes; the same command goes on"), "{told}");
    let output = run_with(&["-o", "rules.toml"]);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    assert!(printed.contains("# going on after 2 of 6 sizes"), "{printed}");
    let rules = std::fs::read_to_string(folder.join("rules.toml")).unwrap();
    for part in
        ["# SIMULATED, not measured", "dgx-a100", "for 24 ranks of 3 hosts", "ranks = 24, hosts = 3 }"]
    {
        assert!(rules.contains(part), "no {part} in\n{rules}");
    }
    assert!(folder.join("rules.svg").exists() && !folder.join("rules.toml.tuning.json").exists());
    text(folder, &["rules", "check", "--strict", "rules.toml"]);

    let output = run_with(&["--check", "rules.toml", "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let checked: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let times =
        |row: &Value, way: &str| row["ways"][way]["median_us"].as_f64().unwrap_or_else(|| panic!("{row}"));
    let rows = checked["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 6);
    let gains: Vec<f64> = rows.iter().map(|row| 1.0 - times(row, "rules") / times(row, "default")).collect();
    assert!(gains.iter().all(|gain| *gain > -1e-9), "no size is slower: {gains:?}");
    assert!(gains.iter().any(|gain| *gain > 0.05), "one is faster: {gains:?}\n{rules}");

    // A rule that is slower is told.
    std::fs::write(folder.join("slow.toml"), "[[rule]]\nuse = { algorithm = \"ring\" }\n").unwrap();
    let slow = run_with(&["--check", "slow.toml"]);
    assert!(!slow.status.success(), "{}", String::from_utf8_lossy(&slow.stdout));
    assert!(String::from_utf8_lossy(&slow.stderr).contains("the rules are slower"));
}

/// A rule begins and ends between two sizes that were simulated. Where these are far apart, the way could be
/// slower there.
#[test]
fn rules_of_a_simulated_cluster_are_no_slower_between_the_sizes_that_were_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let asked = ["tune", "all_gather", "-b", "4M", "-e", "64M", "--simulate", "4 hosts of hgx-h200"];
    let run_with = |more: &[&str]| run(folder, &[&asked, more].concat());
    let output = run_with(&["-f", "16", "-o", "rules.toml"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = run_with(&["-f", "2", "--check", "rules.toml", "--json"]);
    let checked: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let rows = checked["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 5);
    for row in rows {
        let times = ["rules", "default"].map(|way| row["ways"][way]["median_us"].as_f64().expect("a time"));
        assert!(times[0] <= times[1] * (1.0 + 1e-9), "{row}");
    }
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
