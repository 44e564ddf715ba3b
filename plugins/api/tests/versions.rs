//! Hosts and plugins of different 1.x versions of the interface, in both directions.
//!
//! The feature `next` adds to the ABI what a later version may add: a method, a kind of component, a field of
//! the manifest. Both generations are built into one target folder, so that only this crate is compiled
//! twice.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Folder of the examples; those of this version lie there already.
fn examples() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.ancestors().nth(2).unwrap().join("examples")
}

fn build_next() {
    let examples = examples();
    let profile = examples.parent().unwrap();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "--offline", "--package", "hawser-plugin", "--features", "next"]);
    build.args(["--example", "all_kinds_next", "--example", "describe_next"]);
    build.arg("--target-dir").arg(profile.parent().unwrap());
    if profile.ends_with("release") {
        build.arg("--release");
    }
    let output = build.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The output of a host about plugins, in a process of its own.
fn describe(host: &str, plugins: &[&str]) -> String {
    let paths = plugins.iter().map(|plugin| examples().join(plugin));
    let output = Command::new(examples().join(host)).args(paths).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{host} with {plugins:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn generations_mix_in_both_directions() {
    build_next();
    let (old, new) = ("liball_kinds.so", "liball_kinds_next.so");
    assert!([old, new].iter().all(|plugin| Path::exists(&examples().join(plugin))));

    let text = describe("describe", &[old]);
    assert!(text.ends_with("  env fixed\n"), "{text}");

    let text = describe("describe", &[new]);
    assert!(text.contains("  env fixed\n"), "an older host does not see the new method: {text}");
    assert!(text.contains("  net loopback\n"), "{text}");
    assert!(text.ends_with("  1 of kinds that this host does not know\n"), "{text}");

    let text = describe("describe_next", &[old]);
    assert!(text.ends_with("  env fixed, added 10\n"), "the host's own body runs: {text}");

    let text = describe("describe_next", &[new]);
    assert!(text.contains("  env fixed, added 11\n"), "{text}");

    for host in ["describe", "describe_next"] {
        for plugins in [[old, new, old], [new, old, new]] {
            let text = describe(host, &plugins);
            assert_eq!(text.matches("  tuner halver\n").count(), 3, "{host} {plugins:?}: {text}");
        }
    }
}
