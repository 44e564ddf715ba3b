//! `hawser tune` on the host device: an interrupted run goes on, and what it writes is a rule file.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn hawser(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hawser"));
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|n| n.starts_with("NCCL_") || n.starts_with("HAWSER_")) {
            command.env_remove(name);
        }
    }
    command.env("HAWSER_DEVICE", "host").env("XDG_CACHE_HOME", folder).current_dir(folder);
    command.args(args).output().expect("run")
}

fn told(output: Output) -> (bool, String) {
    let all = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&all).into_owned())
}

#[test]
fn an_interrupted_run_goes_on_and_writes_rules() {
    let folder = Folder(std::env::temp_dir().join(format!("hawser-tune-{}", std::process::id())));
    let folder = &folder.0;
    std::fs::create_dir_all(folder).unwrap();
    let small = ["tune", "all_reduce,broadcast", "-g", "3", "-b", "1K", "-e", "4K", "-f", "4", "-N", "3"];
    let small = [&small[..], &["--point-ms", "1", "-o", "found.toml"]].concat();
    let tune = |more: &[&str]| told(hawser(folder, &[&small[..], more].concat()));
    let file = |name: &str| folder.join(name);

    let (right, text) = tune(&["--stop-after", "1"]);
    assert!(!right && text.contains("stopped after 1 rounds; the same command goes on"), "{text}");
    assert!(file("found.toml.tuning.json").exists() && !file("found.toml").exists());
    let (right, text) = told(hawser(folder, &[&small[..], &["-e", "32K"]].concat()));
    assert!(!right, "{text}");
    let other = ["tune", "all_reduce", "-g", "3", "-N", "3", "-o", "found.toml"];
    let (right, text) = told(hawser(folder, &other));
    assert!(!right && text.contains("measured something else") && text.contains("--restart"), "{text}");

    let (right, text) = tune(&["--gain", "0"]);
    assert!(right && text.contains("# going on after 1 rounds of an interrupted run"), "{text}");
    assert!(text.contains("\nall_reduce ") && text.contains("\nbroadcast "), "{text}");
    assert!(!file("found.toml.tuning.json").exists());
    let rules = std::fs::read_to_string(file("found.toml")).unwrap();
    let attributes = "for 3 ranks of one host on host CPU";
    assert!(rules.contains(attributes) && rules.contains("in 3 rounds"), "{rules}");
    let svg = std::fs::read_to_string(file("found.svg")).unwrap();
    assert!(svg.starts_with("<svg ") && svg.contains("<polyline"), "{svg}");
    let (right, text) = told(hawser(folder, &["rules", "check", "--strict", "found.toml"]));
    assert!(right, "{text}\n{rules}");
    // Where it found something, that is what runs then.
    if let Some(action) = rules.lines().find_map(|line| line.strip_prefix("use = { algorithm = ")) {
        assert!(action.contains("protocol = \"simple\""), "{rules}");
    }

    // Beside the cost model; whoever is faster, the table says what ran.
    std::fs::write(file("tree.toml"), "[[rule]]\nuse = { algorithm = \"tree\" }\n").unwrap();
    let check = ["tune", "all_reduce", "-g", "3", "-b", "4K", "-e", "4K", "--point-ms", "1", "--within", "1"];
    let (_, text) = told(hawser(folder, &[&check[..], &["--check", "tree.toml"]].concat()));
    assert!(text.contains("what the rules ran") && text.contains("Tree/host/Simple x"), "{text}");
    let (right, text) = told(hawser(folder, &["tune", "all_reduce", "-g", "3", "--check", "absent.toml"]));
    assert!(!right && text.contains("cannot read absent.toml"), "{text}");

    let (right, text) = tune(&[]);
    assert!(!right && text.contains("found.toml is there already") && text.contains("--force"), "{text}");
    let (right, text) = told(hawser(folder, &["tune", "sendrecv", "-o", "x.toml"]));
    assert!(!right && text.contains("no collective that rules are asked about"), "{text}");
}
