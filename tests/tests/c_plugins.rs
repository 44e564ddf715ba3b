//! C plugins of every ABI version, loaded by the library and used by whole communicators: data are moved and
//! checked, operations tuned and watched. The plugins are those of the adapters' own tests.

use std::path::{Path, PathBuf};
use std::process::Command;

use hawser_tests::process::{Ended, Process};
use hawser_tests::world::on_host;

#[test]
fn nets_of_every_version_carry_all_collectives() {
    for version in 6..=12 {
        let net = compile(&["net_plugin"], version);
        let ended = run("aabb", &["small", "destroy"], &[("NCCL_NET_PLUGIN", &net), ("NCCL_NET", "Queue")]);
        ended.expect_lines(&[&format!("ncclNetPlugin_v{version}"), "Using network Queue on"]);
    }
}

#[test]
fn two_nets_at_once() {
    let nets = format!("{},{}", compile(&["net_plugin"], 7), compile(&["net_plugin"], 11));
    let ended = run("ab", &["small", "destroy"], &[("NCCL_NET_PLUGIN", &nets)]);
    ended.expect_lines(&["ncclNetPlugin_v7", "ncclNetPlugin_v11", "Using network Queue on"]);
}

#[test]
fn a_collnet_reduces() {
    for version in [6, 8, 9, 12] {
        let both = compile(&["net_plugin", "collnet_plugin"], version);
        let settings = [
            ("NCCL_NET_PLUGIN", both.as_str()),
            ("NCCL_COLLNET_ENABLE", "1"),
            ("NCCL_ALGO", "CollnetDirect"),
        ];
        let ended = run("aabb", &["all_reduce", "destroy"], &settings);
        ended.expect_lines(&[&format!("ncclCollNetPlugin_v{version}"), "CollNet/host/Simple"]);
    }
}

#[test]
fn tuners_and_profilers_of_every_version_tune_and_watch() {
    for (tuner, profiler) in [(2, 1), (3, 2), (4, 3), (5, 4), (6, 5), (6, 6)] {
        let (tuner, profiler) = (compile(&["tuner"], tuner), compile(&["profiler"], profiler));
        let steps = [
            "all_reduce".to_owned(),
            "destroy".to_owned(),
            format!("recorded={tuner}"),
            format!("recorded={profiler}"),
        ];
        let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
        let ended = run("aa", &steps, &[("NCCL_TUNER_PLUGIN", &tuner), ("NCCL_PROFILER_PLUGIN", &profiler)]);
        ended.expect_lines(&["tune ", "function=4", "init mask=", "finalize"]);
    }
}

#[test]
fn profilers_see_the_parts_of_collectives_that_copy_engines_run() {
    for version in [5, 6, 7] {
        let profiler = compile(&["profiler"], version);
        let recorded = format!("recorded={profiler}");
        let steps = ["call=all_gather/300000", "call=all_reduce/1000", "destroy", &recorded];
        let settings = [("NCCL_PASS_SM", "1"), ("NCCL_PROFILER_PLUGIN", &*profiler)];
        let Some(ended) = run("aaa", &steps, &settings).0 else { return };
        let events = events(&ended.output);
        // All versions know the collective itself.
        let is_gather = |event: &&Event| event.kind == 1 << 1 && event.text.contains("func=AllGather");
        let gathers: Vec<&Event> = events.iter().filter(is_gather).collect();
        assert_eq!(gathers.len(), 3, "{}", ended.output);
        let copied: Vec<&Event> = events.iter().filter(|event| event.kind == 1 << 12).collect();
        assert_eq!(copied.len(), if version < 6 { 0 } else { 3 }, "one for each rank: {}", ended.output);
        for coll in copied {
            let parent = |event: &&Event| event.handle == coll.parent;
            let call = events.iter().find(parent).expect("its call");
            assert!(call.kind == 1 << 9 && call.text.contains("func=AllGather"), "{call:?}");
            assert!(coll.text.contains("func=AllGather") && coll.text.contains("count=300000"), "{coll:?}");
            let parts: Vec<&Event> = events.iter().filter(|event| event.parent == coll.handle).collect();
            let kinds: Vec<u64> = parts.iter().map(|part| part.kind).collect();
            assert_eq!(kinds, [1 << 13, 1 << 14, 1 << 13], "ready, copies, complete");
            assert!(parts[0].text.contains("complete=0 ranks=3") && parts[2].text.contains("complete=1"));
            // Its own part, and those of the two others, of 1.2 MB each, here or there.
            let bytes = number(&parts[1].text, "bytes=");
            assert!(bytes >= 2 * 1_200_000 && number(&parts[1].text, "ops=") >= 2, "{:?}", parts[1]);
            let stops: Vec<usize> = parts.iter().map(|part| part.stopped.expect("a stop")).collect();
            assert!(stops.is_sorted() && stops[2] < coll.stopped.expect("a stop"), "one after the other");
            assert!(stops[0] < parts[1].started && stops[1] < parts[2].started);
        }
    }
}

/// An event as the C profiler wrote it down.
#[derive(Debug)]
struct Event {
    kind: u64,
    parent: String,
    handle: String,
    text: String,
    /// The lines of its start and of its stop.
    started: usize,
    stopped: Option<usize>,
}

/// The events that the C profiler wrote down. Every rank prints all that was written up to then.
fn events(recorded: &str) -> Vec<Event> {
    let mut lines: Vec<&str> = Vec::new();
    for line in recorded.lines().filter(|line| line.starts_with("start ") || line.starts_with("stop ")) {
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    let of = |(started, line): (usize, &&str)| {
        let (text, handle) = line.strip_prefix("start ")?.rsplit_once(" -> ")?;
        let stop = format!("stop {handle}");
        let stopped = lines.iter().position(|line| *line == stop);
        let parent = text.split("parent=").nth(1)?.split(' ').next()?;
        let (kind, parent, handle) = (number(text, "type="), parent.to_owned(), handle.to_owned());
        Some(Event { kind, parent, handle, text: text.to_owned(), started, stopped })
    };
    lines.iter().enumerate().filter_map(of).collect()
}

/// The number behind a word of a line.
fn number(text: &str, word: &str) -> u64 {
    let digits = text.split(word).nth(1).and_then(|rest| rest.split(' ').next());
    digits.and_then(|digits| digits.parse().ok()).unwrap_or_else(|| panic!("no {word} in {text}"))
}

/// Runs ranks of these hosts as threads of one process.
fn run(hosts: &str, steps: &[&str], settings: &[(&str, &str)]) -> Checked {
    if !on_host() {
        return Checked(None);
    }
    let mut all = vec![("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "ALL")];
    all.extend(settings);
    let ended = Process::hosts(env!("CARGO_BIN_EXE_hawser-test-rank"), hosts, steps, &all).end();
    ended.expect_success();
    Checked(Some(ended))
}

struct Checked(Option<Ended>);

impl Checked {
    #[track_caller]
    fn expect_lines(&self, parts: &[&str]) {
        let Some(ended) = &self.0 else { return };
        for part in parts {
            assert!(ended.output.contains(part), "no '{part}' in:\n{}", ended.output);
        }
    }
}

/// A plugin of `plugins/compat/tests/c`, compiled for an ABI version into a file of its own.
fn compile(sources: &[&str], version: u32) -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plugins/compat/tests/c");
    let to = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("{}_v{version}_{number}.so", sources.join("_")));
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let output = Command::new(&compiler)
        .args(["-std=gnu11", "-O1", "-shared", "-fPIC"])
        .arg(format!("-DVERSION={version}"))
        .args(sources.iter().map(|source| folder.join(format!("{source}.c"))))
        .arg("-o")
        .arg(&to)
        .output()
        .unwrap_or_else(|e| panic!("{compiler} does not run ({e}): install a C compiler or set CC"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    to.to_str().expect("a plain path").to_owned()
}
