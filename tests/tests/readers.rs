//! Readers that others wrote: SGLang's and Ray's of RAS, Prometheus's `promtool`, Catapult's trace viewer.
//! `HAWSER_TEST_...` names the file, and a test whose variable is not set is skipped. The scripts of
//! `tests/readers` run them as their files stand; which versions were tried, and where they come from:
//! `docs/plugins-tested.md`.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use hawser_tests::deadline::LIMIT;
use hawser_tests::hangs::Hang;
use hawser_tests::process::Process;
use hawser_tests::skip::skipped;
use hawser_tests::world::on_host;
use serde_json::{Value, json};

const BINARY: &str = env!("CARGO_BIN_EXE_hawser-test-rank");
/// Rank 1 has called one all-reduce less than the others.
const LATE: [&str; 3] = ["all_reduce all_reduce", "all_reduce sleep", "all_reduce all_reduce"];

#[test]
fn sglangs_reader_sees_who_is_late_and_who_does_not_answer() {
    let Some([reader]) = files(["HAWSER_TEST_SGLANG_RAS"]) else { return };
    let address = free_address();
    let mut job = Hang::start(BINARY, 1, &LATE, &[("NCCL_RAS_ADDR", &address)]);
    let ask = |polls| ask(&["sglang", &reader, &address, polls]);
    let late = all_answer("SUSPECT", json!({ "AllReduce": 1 }));
    until("two calls of rank 0", || ask("1"), |found| *found == late);
    job.rank(1).signal("STOP");
    until("rank 1 silent", || ask("2"), |found| without_one(found, "SUSPECT", 1, 0));
    job.rank(1).signal("CONT");
    until("rank 1 back", || ask("2"), |found| *found == late);
}

#[test]
fn sglangs_reader_sees_that_all_is_well_who_is_dead_and_that_nobody_is_left() {
    let Some([reader]) = files(["HAWSER_TEST_SGLANG_RAS"]) else { return };
    let address = free_address();
    let steps = ["all_reduce sleep"; 3];
    let mut job = Hang::start(BINARY, 1, &steps, &[("NCCL_RAS_ADDR", &address)]);
    let ask = |polls| ask(&["sglang", &reader, &address, polls]);
    let well = all_answer("HEALTHY", json!({}));
    until("all is well", || ask("3"), |found| *found == well);
    job.rank(1).kill();
    until("rank 1 dead", || ask("2"), |found| without_one(found, "DEAD", 1, 1));
    drop(job);
    until("nobody", || ask("1"), |found| found["answered"] == false);
}

/// Returns what SGLang's reader finds where all three ranks answer.
fn all_answer(state: &str, divergence: Value) -> Value {
    json!({
        "answered": true, "fresh": true, "state": state, "ranks": 3, "unresponsive": 0, "dead": 0,
        "divergence": [divergence],
    })
}

/// True if it finds this state, and that one of three ranks does not answer or is dead.
fn without_one(found: &Value, state: &str, unresponsive: u32, dead: u32) -> bool {
    (&found["state"], &found["ranks"]) == (&state.into(), &2.into())
        && (&found["unresponsive"], &found["dead"]) == (&unresponsive.into(), &dead.into())
}

#[test]
fn rays_reader_sees_a_communicator_whose_ranks_disagree() {
    let Some([reader, client]) = files(["HAWSER_TEST_RAY_RAS", "HAWSER_TEST_NCCLRAS"]) else { return };
    for (steps, healthy, skew) in [(LATE, false, 1), (["all_reduce sleep"; 3], true, 0)] {
        let address = free_address();
        let _job = Hang::start(BINARY, 1, &steps, &[("NCCL_RAS_ADDR", &address)]);
        let is_it = |found: &Value| {
            found["healthy"] == healthy
                && found["mismatched"] == skew
                && found["skews"][0]["AllReduce"] == skew
                && found["skews"][0]["AllGather"] == 0
                && found["states"] == json!([["RUNNING", "RUNNING", "RUNNING"]])
        };
        until("what Ray looks for", || ask(&["ray", &reader, &address, &client]), is_it);
    }
}

/// `promtool check metrics` prints what its linter does not like, and takes only what Prometheus can parse.
#[test]
fn promtool_has_nothing_to_say_of_a_jobs_figures() {
    let Some([promtool]) = files(["HAWSER_TEST_PROMTOOL"]) else { return };
    let file = "HAWSER_METRICS_FILE";
    let Some(figures) = watched_job("prom", &[("HAWSER_PROFILER_FILE", "none")], file) else { return };
    let checked = Command::new(&promtool).args(["check", "metrics"]).stdin(open(&figures)).output();
    let checked = checked.expect("promtool runs");
    let text = std::fs::read_to_string(&figures).expect("figures");
    std::fs::remove_file(&figures).expect("figures");
    let said = [checked.stdout, checked.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(checked.status.success() && said.iter().all(String::is_empty), "{said:?}");
    for figure in ["hawser_operation_seconds_count", "hawser_rail_sent_bytes_total", "hawser_pool_used_bytes"]
    {
        assert!(text.contains(figure), "no {figure}:\n{text}");
    }
}

/// Catapult's viewer is that of `chrome://tracing`: it has warnings for slices that overlap in a thread, and
/// for ends without a beginning.
#[test]
fn catapults_viewer_finds_every_slice_of_a_trace() {
    let Some([viewer]) = files(["HAWSER_TEST_TRACE_VIEWER"]) else { return };
    // All kinds but steps of proxies, their thread and plugins of nets.
    let mask = [("NCCL_PROFILE_EVENT_MASK", "3919")];
    let Some(trace) = watched_job("json", &mask, "HAWSER_PROFILER_FILE") else { return };
    let lines: Vec<Value> = serde_json::from_reader(open(&trace)).expect("a trace");
    let found = read("trace_viewer.py", &[&viewer, trace.to_str().expect("a path in UTF-8")]);
    std::fs::remove_file(&trace).expect("a trace");
    let count = |phase: &str| -> Value {
        let mut counts = BTreeMap::<&str, u64>::new();
        for line in lines.iter().filter(|line| line["ph"] == phase) {
            *counts.entry(line["cat"].as_str().expect("a category")).or_default() += 1;
        }
        json!(counts)
    };
    assert_eq!((&found["slices"], &found["async"]), (&count("X"), &count("b")));
    let kinds = ["coll", "group", "kernel_ch", "proxy_op"];
    assert!(kinds.iter().all(|kind| found["async"][kind].as_u64() > Some(0)), "{found}");
    assert_eq!(count("b"), count("e"), "nothing is open at the end");
    assert_eq!(found["processes"], 4, "each communicator has a name");
    assert_eq!(found["warnings"], json!([]));
}

/// Runs four ranks on two hosts, in one process, with the profiler plugin, which is told where to write by a
/// variable. Gives the path; None, and a line that says so, if the plugin was not built.
fn watched_job(ending: &str, settings: &[(&str, &str)], variable: &str) -> Option<PathBuf> {
    // It is there where the whole workspace was built, as by `make test`.
    let plugin = std::env::current_exe().expect("this test").with_file_name("libnccl_profiler_hawser.so");
    if !plugin.exists() {
        skipped(format_args!("{} was not built", plugin.display()));
        return None;
    }
    let file = std::env::temp_dir().join(format!("hawser-readers-{}.{ending}", std::process::id()));
    let text = |path: &Path| path.to_str().expect("a path in UTF-8").to_owned();
    let (plugin, path) = (text(&plugin), text(&file));
    let own = [("NCCL_PROFILER_PLUGIN", &*plugin), (variable, &path)];
    let steps = ["all_reduce", "matrix", "destroy"];
    Process::hosts(BINARY, "aabb", &steps, &[settings, &own].concat()).end().expect_success();
    Some(file)
}

/// A file as a program reads it.
fn open(path: &Path) -> File {
    File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The files that variables name; None, and a line that says so, if one is missing.
fn files<const N: usize>(variables: [&str; N]) -> Option<[String; N]> {
    if !on_host() {
        return None;
    }
    let missing = variables.into_iter().find(|name| std::env::var(name).map_or(true, |path| path.is_empty()));
    if let Some(name) = missing {
        skipped(format_args!("{name} is not set; docs/plugins-tested.md says which file it names"));
        return None;
    }
    Some(variables.map(|name| std::env::var(name).expect("looked at above")))
}

/// Runs a reader of RAS and returns what it finds.
#[track_caller]
fn ask(words: &[&str]) -> Value {
    read("ras.py", words)
}

/// Runs a script of `tests/readers` and returns what it prints.
#[track_caller]
fn read(script: &str, words: &[&str]) -> Value {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("readers").join(script);
    let output = Command::new("python3").arg(script).args(words).output().expect("python3");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_str(&text).expect("JSON")
}

/// Asks until the answer is the one that is wanted: ranks need some time to get there.
#[track_caller]
fn until(what: &str, ask: impl Fn() -> Value, is_it: impl Fn(&Value) -> bool) {
    let until = Instant::now() + LIMIT;
    loop {
        let found = ask();
        if is_it(&found) {
            return;
        }
        assert!(Instant::now() < until, "not {what}: {found}");
    }
}

/// An address that nobody listens at.
fn free_address() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its address").to_string()
}
