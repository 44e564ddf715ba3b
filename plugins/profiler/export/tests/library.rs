//! The built library, opened as a host opens it.

use std::path::PathBuf;
use std::process::Command;

use hawser_compat::library::Library;
use hawser_compat::profiler::from_library;
use hawser_plugin::profiler::{Event, EventMask, ProfilerConfig, What};
use hawser_plugin::{Component, Log};
use serde_json::Value;

/// Cargo builds the library before this test, into the same folder.
fn built() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("libnccl_profiler_hawser.so")
}

#[test]
fn the_library_writes_a_trace() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace-%r.json");
    // SAFETY: only this thread and std read the environment here, std under its own lock.
    unsafe { std::env::set_var("HAWSER_PROFILER_FILE", &file) };
    // SAFETY: as above.
    unsafe { std::env::set_var("NCCL_PROFILE_EVENT_MASK", "0x40") };
    let found = from_library(&Library::open(&built()).unwrap()).unwrap().unwrap();
    assert_eq!((found.symbol, found.plugin.name()), ("ncclProfiler_v7", "hawser"));
    let context = found.plugin.open(&ProfilerConfig::new(1, 8, 3, Log::silent())).unwrap();
    assert_eq!(context.mask(), EventMask::KERNEL_CH);
    let start = |parent, what| context.start(&Event { parent, rank: 3, what, tag: 0 }).unwrap();
    let group = start(None, What::Group);
    let kernel = start(Some(group), What::KernelCh { channel: 5, timer: 1 });
    context.stop(kernel);
    context.stop(group);
    drop(context);

    let text = std::fs::read_to_string(folder.path().join("trace-3.json")).unwrap();
    let trace: Vec<Value> = serde_json::from_str(&text).unwrap();
    let begin = |category| trace.iter().find(|line| line["cat"] == category && line["ph"] == "b").unwrap();
    assert_eq!(begin("kernel_ch")["args"]["channel"], 5);
    assert_eq!(begin("kernel_ch")["args"]["parent"], begin("group")["args"]["event"]);
}

#[test]
fn the_library_is_a_rust_plugin_too() {
    let library = hawser_plugin::abi::load(&built()).unwrap();
    let [Component::Profiler(profiler)] = &library.components[..] else {
        panic!("a profiler and nothing else")
    };
    assert_eq!(profiler.name(), "hawser-trace");
}

#[test]
fn the_library_exports_nccls_names_and_hawsers() {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(built()).output();
    let output = output.unwrap_or_else(|e| panic!("nm does not run ({e}): install binutils"));
    let text = String::from_utf8_lossy(&output.stdout);
    let mut names: Vec<&str> = text.lines().filter_map(|line| line.split(' ').next_back()).collect();
    names.sort_unstable();
    let own = "_1as_0lib_1header_0root_bmodule_bloader";
    assert_eq!(names, [own, "ncclProfiler_v4", "ncclProfiler_v5", "ncclProfiler_v6", "ncclProfiler_v7"]);
}
