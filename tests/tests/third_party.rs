//! Plugins of others, as binaries that are given by path: `HAWSER_TEST_...` names a library that was built
//! elsewhere, and a test whose variable is not set is skipped. What was tried, in which version, and how it
//! was built: `docs/plugins-tested.md`.
//!
//! Ranks are processes, so that every plugin is loaded as a program would load it. What a plugin needs
//! besides (`LD_LIBRARY_PATH`, `FI_PROVIDER` ...) is passed on; settings that begin with `NCCL_` are the
//! test's.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use hawser_runtime::unique_id;
use hawser_tests::process::{Ended, Process};
use hawser_tests::skip::skipped;
use hawser_tests::world::on_host;

/// Google's fastsocket: `accept` waits for the peer's `connect`, `test` for its `accept`, and no size is ever
/// written.
#[test]
fn fastsocket_carries_all_collectives() {
    let Some(plugin) = plugin("HAWSER_TEST_FASTSOCKET") else { return };
    carries_all_collectives(&plugin, "FastSocket");
}

/// Over libfabric's tcp provider unless `FI_PROVIDER` says otherwise.
#[test]
fn aws_ofi_carries_all_collectives() {
    let Some(plugin) = plugin("HAWSER_TEST_AWS_OFI") else { return };
    carries_all_collectives(&plugin, "Libfabric");
}

/// The example has no devices.
#[test]
fn the_example_net_is_passed_over_or_refused() {
    let Some(plugin) = plugin("HAWSER_TEST_NCCL_EXAMPLE_NET") else { return };
    is_passed_over_or_refused(&plugin, "Plugin");
}

/// Rules for two algorithms that would not be chosen without it.
#[test]
fn the_example_tuner_decides() {
    let Some(plugin) = plugin("HAWSER_TEST_NCCL_EXAMPLE_TUNER") else { return };
    let folder = Folder::new("tuner");
    let rules = folder.path("rules.conf");
    for (word, algorithm) in [("tree", "Tree"), ("ring", "Ring")] {
        std::fs::write(&rules, format!("allreduce,0,4294967295,{word},simple,2,2,4,-1,-1\n")).unwrap();
        let settings = [
            ("NCCL_TUNER_PLUGIN", plugin.as_str()),
            ("NCCL_TUNER_CONFIG_FILE", &rules),
            ("NCCL_NET", "Socket"),
        ];
        for ended in job(4, &["all_reduce", "destroy"], &log("TUNING,COLL", &settings)) {
            ended.expect_success();
            has_line(&ended, &["Initializing tuner for 2 nodes, 4 ranks"]);
            has_line(&ended, &["allreduce of 20000 bytes", "advice of tuner Example"]);
            has_line(&ended, &[&format!("all_reduce 5000 x float: {algorithm}/host/Simple x 2")]);
        }
    }
}

/// A tuner of version 4 that always wants one ring.
#[test]
fn the_basic_tuner_decides() {
    let Some(plugin) = plugin("HAWSER_TEST_NCCL_BASIC_TUNER") else { return };
    let settings = [("NCCL_TUNER_PLUGIN", plugin.as_str()), ("NCCL_NET", "Socket")];
    for ended in job(4, &["all_reduce", "destroy"], &log("TUNING,COLL", &settings)) {
        ended.expect_success();
        has_line(&ended, &["allreduce of 20000 bytes", "advice of tuner Basic"]);
        has_line(&ended, &["all_reduce 5000 x float: Ring/host/Simple x 1"]);
    }
}

/// Net and tuner in one library, named by the net's variable: the net is passed over, the tuner is found all
/// the same.
#[test]
fn the_mixed_plugin_gives_its_tuner() {
    let Some(plugin) = plugin("HAWSER_TEST_NCCL_MIXED") else { return };
    is_passed_over_or_refused(&plugin, "Plugin");
    let settings = [("NCCL_NET_PLUGIN", plugin.as_str())];
    for ended in job(4, &["all_reduce", "destroy"], &log("TUNING,COLL", &settings)) {
        ended.expect_success();
        has_line(&ended, &["allreduce of 20000 bytes", "advice of tuner Plugin"]);
        has_line(&ended, &["all_reduce 5000 x float: Ring/host/Simple x 1"]);
    }
}

/// A profiler of others: how it is told what to write and where, and what it has to have written of two
/// all-reduces of 5000 floats on four ranks.
struct Watcher {
    variable: &'static str,
    settings: fn(&Folder) -> Vec<(&'static str, String)>,
    check: fn(&Folder, &[Ended]),
}

/// NCCL's example writes a trace when a communicator ends.
const EXAMPLE: Watcher = Watcher {
    variable: "HAWSER_TEST_NCCL_EXAMPLE_PROFILER",
    settings: |folder| {
        vec![
            ("NCCL_PROFILE_EVENT_MASK", "4095".into()),
            ("NCCL_PROFILE_DUMP_FILE", folder.path("trace")),
            ("NCCL_ALGO", "Ring".into()),
        ]
    },
    check: expect_traces,
};

/// NCCL's inspector works with a CUDA driver only. Without one it says so and gets no context, and the job
/// goes on.
const INSPECTOR: Watcher = Watcher {
    variable: "HAWSER_TEST_NCCL_INSPECTOR",
    settings: |folder| {
        vec![
            ("NCCL_INSPECTOR_ENABLE", "1".into()),
            ("NCCL_INSPECTOR_DUMP_DIR", folder.path("")),
            ("NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS", "500".into()),
        ]
    },
    check: expect_lines,
};

/// Google's CoMMA, written in Rust: a profiler of version 4, which has no events for calls.
const COMMA: Watcher = Watcher {
    variable: "HAWSER_TEST_COMMA",
    settings: |folder| {
        vec![
            ("NCCL_PROFILER_USE_GPUVIZ", "false".into()),
            ("NCCL_PROFILER_LATENCY_FILE", folder.path("latency-%p.txt")),
            ("NCCL_ALGO", "Ring".into()),
        ]
    },
    check: expect_latencies,
};

#[test]
fn the_example_profiler_sees_everything() {
    watch(&[EXAMPLE]);
}

#[test]
fn the_inspector_sees_operations_or_stands_aside() {
    watch(&[INSPECTOR]);
}

#[test]
fn comma_sees_operations() {
    watch(&[COMMA]);
}

/// Each sees as much as alone, whichever comes first.
#[test]
fn profilers_see_everything_two_at_a_time() {
    for pair in [[EXAMPLE, INSPECTOR], [COMMA, EXAMPLE], [INSPECTOR, COMMA]] {
        watch(&pair);
    }
}

/// Has these profilers watch a job side by side, and looks at what each has written.
fn watch(watchers: &[Watcher]) {
    let plugins: Option<Vec<String>> = watchers.iter().map(|watcher| plugin(watcher.variable)).collect();
    let Some(plugins) = plugins else { return };
    let folders: Vec<Folder> = watchers.iter().map(|watcher| Folder::new(watcher.variable)).collect();
    let mut settings = vec![("NCCL_PROFILER_PLUGIN", plugins.join(",")), ("NCCL_NET", "Socket".into())];
    for (watcher, folder) in watchers.iter().zip(&folders) {
        settings.extend((watcher.settings)(folder));
    }
    let settings: Vec<(&str, &str)> = settings.iter().map(|(name, value)| (*name, &**value)).collect();
    let all = job(4, &["all_reduce", "all_reduce", "destroy"], &log("INIT,PROFILE", &settings));
    for ended in &all {
        ended.expect_success();
        for plugin in &plugins {
            has_line(ended, &["profiler plugin ", plugin, "by ncclProfiler_v"]);
        }
    }
    for (watcher, folder) in watchers.iter().zip(&folders) {
        (watcher.check)(folder, &all);
    }
}

/// Expects calls, operations, channels and what the proxy moved in the traces of the example.
fn expect_traces(folder: &Folder, _: &[Ended]) {
    let (mut sends, mut receives) = (0, 0);
    for rank in 0..4 {
        let trace = folder.read(&format!("_{rank}.json"));
        let count = |parts: &[&str]| trace.lines().filter(|l| parts.iter().all(|p| l.contains(p))).count();
        let pairs = |name: &str, category: &str| {
            let [begun, ended] = ["b", "e"].map(|end| {
                count(&[&format!("\"name\": \"{name}\", \"cat\": \"{category}\", \"ph\": \"{end}\"")])
            });
            assert_eq!(begun, ended, "{name} of rank {rank}:\n{trace}");
            begun
        };
        for (name, category) in [("Group API", "GROUP_API"), ("AllReduce", "COLL_API"), ("AllReduce", "COLL")]
        {
            assert_eq!(pairs(name, category), 2, "{name} of rank {rank}:\n{trace}");
        }
        let what = ["\"Count\": 5000", "\"ncclFloat32\"", "\"RING\"", "\"SIMPLE\""];
        assert_eq!(count(&what), 2, "operations of rank {rank}:\n{trace}");
        assert!(pairs("KernelCh", "GPU") >= 2, "channels of rank {rank}:\n{trace}");
        sends += pairs("ProgressSend", "PROXY");
        receives += pairs("ProgressRecv", "PROXY");
        assert_eq!(count(&["\"ProgressSend\"", "\"transSize\": 0}"]), 0, "bytes of rank {rank}:\n{trace}");
    }
    assert!(sends >= 4, "{sends} sends over the network, expected two between either two hosts");
    assert_eq!(sends, receives);
}

/// Expects each operation with its size in the log of the inspector, or the reason why it stands aside.
fn expect_lines(folder: &Folder, all: &[Ended]) {
    if all[0].output.contains("Failed to load CUDA driver library") {
        all.iter().for_each(|ended| {
            has_line(ended, &["Inspector Init Failed", "Inspector encountered CUDA error"])
        });
        return;
    }
    for rank in 0..4 {
        let lines = folder.read(".log");
        let own = |line: &&str| line.contains(&format!("\"rank\":{rank},\"n_ranks\":4,\"nnodes\":2"));
        let seen =
            |line: &str| line.contains("\"AllReduce\"") && line.contains("\"coll_msg_size_bytes\":20000");
        assert!(lines.lines().filter(own).any(seen), "nothing of rank {rank}:\n{lines}");
    }
}

/// Expects each operation, with what the proxy did for it, in the files of CoMMA.
fn expect_latencies(folder: &Folder, _: &[Ended]) {
    let lines = folder.read(".txt");
    for rank in 0..4 {
        let rank = format!("\"rank\":{rank},");
        let parts = [
            &rank,
            "\"all_reduce\"",
            "{\"size\":20000}",
            "\"algo\":\"ring\"",
            "\"proto\":\"SIMPLE\"",
            "child_dur",
        ];
        let found = lines.lines().filter(|line| parts.iter().all(|part| line.contains(part))).count();
        assert_eq!(found, 2, "operations of {rank} with what the proxy did:\n{lines}");
    }
}

/// The path that a variable gives; None, and a line that says so, if the test cannot run.
fn plugin(variable: &str) -> Option<String> {
    if !on_host() {
        return None;
    }
    let path = std::env::var(variable).ok().filter(|path| !path.is_empty());
    if path.is_none() {
        skipped(format_args!("{variable} is not set; give it the path of the plugin's library"));
    }
    path
}

/// Runs `ranks` ranks, half of them on either of two hosts.
fn job(ranks: u32, steps: &[&str], settings: &[(&str, &str)]) -> Vec<Ended> {
    let id = unique_id().unwrap();
    let start = |rank| {
        let host = if rank < ranks / 2 { "left" } else { "right" };
        let settings = [&[("NCCL_HOSTID", host)], settings].concat();
        Process::rank(env!("CARGO_BIN_EXE_hawser-test-rank"), &id, (rank, ranks), steps, &settings)
    };
    let processes: Vec<Process> = (0..ranks).map(start).collect();
    processes.into_iter().map(Process::end).collect()
}

/// Settings, and log lines of these subsystems.
fn log<'a>(subsystems: &'a str, settings: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    [&[("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", subsystems)], settings].concat()
}

fn carries_all_collectives(plugin: &str, name: &str) {
    let mut settings = log("INIT", &[("NCCL_NET_PLUGIN", plugin), ("NCCL_NET", name)]);
    if std::env::var_os("FI_PROVIDER").is_none() {
        settings.push(("FI_PROVIDER", "tcp"));
    }
    for ended in job(4, &["matrix", "finalize", "destroy"], &settings) {
        ended.expect_success();
        has_line(&ended, &[&format!("Using network {name} on "), "from host memory"]);
        // What aws-ofi-nccl says of a connection that is closed with receives posted.
        assert!(!ended.output.contains("inflight requests"), "{}", ended.output);
    }
}

/// The next net is taken; if this one is demanded by its name, the error says why it cannot be.
fn is_passed_over_or_refused(plugin: &str, name: &str) {
    for ended in job(2, &["all_reduce", "destroy"], &log("INIT,NET", &[("NCCL_NET_PLUGIN", plugin)])) {
        ended.expect_success();
        has_line(&ended, &[&format!("net {name} cannot be used"), "0 devices"]);
        has_line(&ended, &["Using network Socket on "]);
    }
    for ended in job(2, &["all_reduce"], &[("NCCL_NET_PLUGIN", plugin), ("NCCL_NET", name)]) {
        ended.expect_error("InvalidUsage", &["none can be used", name, "0 devices"]);
    }
}

/// Fails the test unless a line has all these parts.
#[track_caller]
fn has_line(ended: &Ended, parts: &[&str]) {
    let found = ended.output.lines().any(|line| parts.iter().all(|part| line.contains(part)));
    assert!(found, "no line with {parts:?}:\n{}", ended.output);
}

/// A folder for what plugins read and write. Removed in the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        // Tests of one process run side by side.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let (process, number) = (std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(format!("hawser-third-party-{process}-{number}-{name}"));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    /// The files whose names end so, one after the other.
    fn read(&self, ending: &str) -> String {
        let files = std::fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path());
        let wanted = files.filter(|path| path.display().to_string().ends_with(ending));
        wanted.map(|path| std::fs::read_to_string(path).unwrap()).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// NVIDIA's client of RAS reads a job, in both forms.
#[test]
fn ncclras_reads_a_job() {
    let Some(client) = plugin("HAWSER_TEST_NCCLRAS") else { return };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("its address").port().to_string();
    drop(listener);
    let address = format!("127.0.0.1:{port}");
    let settings = [("NCCL_RAS_ADDR", &*address)];
    let mut job = Process::hosts(
        env!("CARGO_BIN_EXE_hawser-test-rank"),
        "aab",
        &["all_reduce", "mark", "sleep"],
        &settings,
    );
    (0..3).for_each(|_| job.wait_for("mark"));
    let ask = |more: &[&str]| {
        let asked =
            Command::new(&client).args(["-h", "127.0.0.1", "-p", &port, "-t", "5"]).args(more).output();
        let asked = asked.expect("the client runs");
        let said = String::from_utf8_lossy(&asked.stdout).into_owned();
        assert!(asked.status.success(), "{said}{}", String::from_utf8_lossy(&asked.stderr));
        said
    };
    let text = ask(&["-v"]);
    assert!(text.contains("Job summary") && text.contains("RUNNING      OK"), "{text}");
    let json: serde_json::Value = serde_json::from_str(&ask(&["-f", "json"])).expect("JSON");
    let ranks = json["communicators"][0]["ranks"].as_array().expect("ranks");
    assert!(
        ranks.len() == 3 && ranks.iter().all(|rank| rank["collective_counts"]["AllReduce"] == 1),
        "{json}"
    );
}
