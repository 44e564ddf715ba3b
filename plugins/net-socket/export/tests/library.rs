//! The built library, opened as a host opens it.

use std::path::PathBuf;
use std::process::Command;

use hawser_compat::library::Library;
use hawser_compat::net::from_library;
use hawser_plugin::Log;
use hawser_plugin::net::NetConfig;

/// Cargo builds the library before this test, into the same folder.
fn built() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("libnccl_net_hawser_socket.so")
}

#[test]
fn the_library_has_devices_and_listens() {
    let found = from_library(&Library::open(&built()).unwrap()).unwrap().unwrap();
    assert_eq!((found.symbol, found.plugin.name()), ("ncclNetPlugin_v12", "HawserSocket"));
    let context = found.plugin.open(&NetConfig::new(1, Log::silent())).unwrap();
    assert!(context.devices().unwrap() > 0);
    let (handle, listener) = context.listen(0).unwrap();
    assert!(handle.iter().any(|byte| *byte != 0));
    drop(listener);
}

#[test]
fn the_library_exports_nccls_names_only() {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(built()).output();
    let output = output.unwrap_or_else(|e| panic!("nm does not run ({e}): install binutils"));
    let text = String::from_utf8_lossy(&output.stdout);
    let mut names: Vec<&str> = text.lines().filter_map(|line| line.split(' ').next_back()).collect();
    names.sort_unstable();
    let expected: Vec<String> = [10, 11, 12, 8, 9].iter().map(|v| format!("ncclNetPlugin_v{v}")).collect();
    assert_eq!(names, expected);
}
