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
        ended.expect_lines(&[&format!("ncclNetPlugin_v{version}"), "net Queue on"]);
    }
}

#[test]
fn two_nets_at_once() {
    let nets = format!("{},{}", compile(&["net_plugin"], 7), compile(&["net_plugin"], 11));
    let ended = run("ab", &["small", "destroy"], &[("NCCL_NET_PLUGIN", &nets)]);
    ended.expect_lines(&["ncclNetPlugin_v7", "ncclNetPlugin_v11", "net Queue on"]);
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
