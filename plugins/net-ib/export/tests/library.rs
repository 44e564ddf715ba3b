//! The built library, opened as hosts open it on this machine, with InfiniBand or without.

use std::path::PathBuf;
use std::process::Command;

use hawser_compat::library::Library;
use hawser_compat::net::from_library;
use hawser_plugin::net::NetConfig;
use hawser_plugin::{Component, Log};

/// Cargo builds the library before this test, into the same folder.
fn built() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("libnccl_net_hawser_ib.so")
}

/// Without a device the library loads, its net opens, and has no devices: the host goes on to the next net.
#[test]
fn it_declines_cleanly_or_has_devices() {
    let found = from_library(&Library::open(&built()).unwrap()).unwrap().unwrap();
    assert_eq!((found.symbol, found.plugin.name()), ("ncclNetPlugin_v12", "HawserIB"));
    let context = found.plugin.open(&NetConfig::new(1, Log::silent())).unwrap();
    let devices = context.devices().unwrap();
    let fabric = std::fs::read_dir("/sys/class/infiniband").map_or(0, Iterator::count);
    assert!(fabric > 0 || devices == 0, "{devices} devices out of nothing");
    for device in 0..devices {
        assert!(context.properties(device).unwrap().speed_mbps > 0);
    }
    assert!(context.properties(devices).is_err());
}

#[test]
fn the_library_is_a_rust_plugin_too() {
    let library = hawser_plugin::abi::load(&built()).unwrap();
    let [Component::Net(net)] = &library.components[..] else { panic!("it holds a net and nothing else") };
    assert_eq!(net.name(), "HawserIB");
}

#[test]
fn it_needs_no_verbs_library_and_exports_the_plugins_names_only() {
    let run = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).arg(built()).output();
        let output = output.unwrap_or_else(|e| panic!("{program} does not run ({e}): install binutils"));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let needed = run("readelf", &["-d"]);
    assert!(needed.contains("libc.so.6") && !needed.contains("ibverbs"), "{needed}");
    let text = run("nm", &["-D", "--defined-only"]);
    let mut names: Vec<&str> = text.lines().filter_map(|line| line.split(' ').next_back()).collect();
    names.sort_unstable();
    let nccls = ["10", "11", "12", "8", "9"].map(|version| format!("ncclNetPlugin_v{version}"));
    let (ours, theirs) = names.split_first().unwrap();
    assert_eq!(
        (*ours, theirs),
        ("_1as_0lib_1header_0root_bmodule_bloader", &nccls.each_ref().map(String::as_str)[..])
    );
}

/// The C harness, compiled against each version's table, drives the library. Where there are devices that is
/// traffic with every byte checked (`tests/lab` does it with soft-RoCE), elsewhere it shows that the library
/// declines.
#[test]
fn a_c_program_drives_it_through_every_version() {
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let fabric = std::fs::read_dir("/sys/class/infiniband").map_or(0, Iterator::count);
    for version in 8..=12 {
        let program =
            std::env::temp_dir().join(format!("hawser-ib-harness-{}-{version}", std::process::id()));
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
        let compiled = Command::new(&compiler)
            .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", &format!("-DVERSION={version}")])
            .args([here.join("tests/harness.c").as_os_str(), "-I".as_ref()])
            .arg(here.join("../../compat/tests/c"))
            .args(["-o".as_ref(), program.as_os_str(), "-ldl".as_ref()])
            .status();
        assert!(compiled.is_ok_and(|status| status.success()), "{compiler} does not compile the harness");
        let run = Command::new(&program).arg(built()).env("NCCL_SOCKET_IFNAME", "=lo").output().unwrap();
        let _ = std::fs::remove_file(&program);
        let text = String::from_utf8_lossy(&run.stdout).into_owned();
        let ending = if fabric > 0 { "passed on" } else { "declined" };
        assert!(
            run.status.success() && text.contains(&format!("harness v{version}: HawserIB {ending}")),
            "{text}"
        );
        assert!(fabric > 0 || text.contains("log: ") && text.contains("IB: off: "), "{text}");
    }
}
