//! The built library, opened as hosts open it.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use hawser_compat::library::Library;
use hawser_compat::net::from_library;
use hawser_plugin::{Component, Net};

/// Cargo builds the library before this test, into the same folder.
fn built() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("libnccl_net_hawser_socket.so")
}

fn through_nccls_tables() -> Arc<dyn Net> {
    let found = from_library(&Library::open(&built()).unwrap()).unwrap().unwrap();
    assert_eq!((found.symbol, found.plugin.name()), ("ncclNetPlugin_v12", "HawserSocket"));
    found.plugin
}

/// NCCL's codes have no "unsupported".
mod through_c {
    hawser_plugin_testkit::net_suite!(
        super::through_nccls_tables(),
        known_failures: ["other_memory_is_refused"]
    );
}

#[test]
fn the_library_is_a_rust_plugin_too() {
    let library = hawser_plugin::abi::load(&built()).unwrap();
    let [Component::Net(net)] = &library.components[..] else { panic!("it holds a net and nothing else") };
    assert_eq!(net.name(), "HawserSocket");
}

#[test]
fn the_library_exports_the_plugins_names_only() {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(built()).output();
    let output = output.unwrap_or_else(|e| panic!("nm does not run ({e}): install binutils"));
    let text = String::from_utf8_lossy(&output.stdout);
    let mut names: Vec<&str> = text.lines().filter_map(|line| line.split(' ').next_back()).collect();
    names.sort_unstable();
    let nccls = ["10", "11", "12", "8", "9"].map(|version| format!("ncclNetPlugin_v{version}"));
    let (ours, theirs) = names.split_first().unwrap();
    assert_eq!(
        (*ours, theirs),
        ("_1as_0lib_1header_0root_bmodule_bloader", &nccls.each_ref().map(String::as_str)[..])
    );
}
