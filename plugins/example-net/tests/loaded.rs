//! The same suite on the library, as hosts load it.

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, OnceLock};

use hawser_plugin::{Component, Net};

hawser_plugin_testkit::net_suite!(loaded());

fn loaded() -> Arc<dyn Net> {
    static BUILT: OnceLock<()> = OnceLock::new();
    let program = std::env::current_exe().unwrap();
    let profile = program.ancestors().nth(2).unwrap();
    BUILT.get_or_init(|| build(profile));
    let library = hawser_plugin::abi::load(&profile.join("libhawser_example_net.so")).unwrap();
    match library.components.into_iter().next() {
        Some(Component::Net(net)) => net,
        _ => panic!("the library holds a net and nothing else"),
    }
}

/// Cargo builds the library itself for nobody's tests.
fn build(profile: &Path) {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "--offline", "--lib", "--target-dir"]).arg(profile.parent().unwrap());
    if profile.ends_with("release") {
        build.arg("--release");
    }
    let output = build.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
