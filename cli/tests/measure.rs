//! `hawser measure` and `hawser explain`, as a user runs them, on the host device.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// `hawser` on the host device with a clean environment and this folder for caches.
fn hawser(cache: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hawser"));
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|n| n.starts_with("NCCL_") || n.starts_with("HAWSER_")) {
            command.env_remove(name);
        }
    }
    command.env("HAWSER_DEVICE", "host").env("HAWSER_INIT_TIMEOUT", "60").env("XDG_CACHE_HOME", cache);
    command.args(args);
    command
}

fn text(output: Output) -> String {
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{out}\n{error}", output.status);
    out + &error
}

fn refused(mut command: Command) -> String {
    let output = command.output().expect("run");
    assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("hawser-measure-test-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).expect("folder");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const QUICK: [&str; 9] = ["measure", "-b", "1K", "-e", "64K", "-f", "8", "-N", "1"];

#[test]
fn what_was_measured_is_used_from_then_on() {
    let folder = Folder::new("cache");
    let cache = &folder.0;
    let report = text(hawser(cache, &QUICK).output().expect("run"));
    let file = cache.join("hawser/links-host-cpu-2.toml");
    for words in
        ["1/4: Ring host/Simple", "one block", "host.fixed_us", "all_reduce: from", file.to_str().unwrap()]
    {
        assert!(report.contains(words), "{words}: {report}");
    }
    assert!(std::fs::read_to_string(&file).expect("the file").contains("link = \"host\""));
    let perf = ["perf", "all_reduce", "-b", "1K", "-e", "1K", "-t", "2", "--explain"];
    let used = text(hawser(cache, &perf).env("NCCL_DEBUG", "INFO").output().expect("run"));
    assert!(used.contains("links-host-cpu-2.toml (cached by rank 0)"), "{used}");
    let three = text(
        hawser(cache, &["perf", "all_reduce", "-b", "1K", "-e", "1K", "-t", "3"])
            .env("NCCL_DEBUG", "INFO")
            .output()
            .expect("run"),
    );
    assert!(!three.contains("by rank 0"), "{three}");
    let links =
        ["explain", "all_reduce", "--ranks", "2", "--device", "host", "--links", file.to_str().unwrap()];
    let table = text(hawser(cache, &links).output().expect("run"));
    assert!(table.contains("links-host-cpu-2.toml's constants"), "{table}");
    let other = refused(hawser(cache, &["explain", "all_reduce", "--links", file.to_str().unwrap()]));
    assert!(other.contains("is not for cuda:90 over nvlink"), "{other}");
}

#[test]
fn a_named_file_or_none() {
    let folder = Folder::new("named");
    let named = folder.0.join("below/links.toml");
    let mut args = [&QUICK[..], &["--dry-run"]].concat();
    let report = text(hawser(&folder.0, &args).output().expect("run"));
    assert!(
        report.contains("nothing written") && std::fs::read_dir(&folder.0).expect("folder").next().is_none()
    );
    args = [&QUICK[..], &["--out", named.to_str().unwrap()]].concat();
    let error = refused(hawser(&folder.0, &args));
    assert!(error.contains("there is no folder") && error.contains("mkdir -p"), "{error}");
    std::fs::create_dir(named.parent().unwrap()).expect("folder");
    args = [&QUICK[..], &["-g", "3", "--samples", "-o", named.to_str().unwrap()]].concat();
    let report = text(hawser(&folder.0, &args).output().expect("run"));
    assert!(report.contains("3 ranks on host CPU") && report.contains("ratio"), "{report}");
    assert!(std::fs::read_to_string(&named).expect("the file").contains("ranks = 3"));
    assert!(refused(hawser(&folder.0, &["measure", "-g", "1"])).contains("1 is not in 2..=16384"));
    let backwards = refused(hawser(&folder.0, &["measure", "-b", "1M", "-e", "1K"]));
    assert!(backwards.contains("-b 1048576 is larger than -e 1024"), "{backwards}");
}

#[test]
fn a_broken_file_is_refused_with_line_and_key() {
    let folder = Folder::new("broken");
    let file = folder.0.join("links.toml");
    std::fs::write(&file, "[link]\nwire_gbs = many\n").expect("write");
    let words = "line 2: link.wire_gbs = many: it must be a number of GB/s above 0";
    let mut perf = hawser(&folder.0, &["perf", "all_reduce", "-b", "8", "-e", "8", "-t", "2"]);
    perf.env("HAWSER_LINKS", &file);
    let error = refused(perf);
    assert!(error.contains(words) && error.contains("HAWSER_LINKS"), "{error}");
    let links = ["explain", "all_reduce", "--device", "host", "--links", file.to_str().unwrap()];
    assert!(refused(hawser(&folder.0, &links)).contains(words));
}
