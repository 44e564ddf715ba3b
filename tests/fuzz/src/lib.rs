//! The functions that fuzzers call: one for each parser and wire format that a stranger or a file reaches.
//!
//! Each takes any bytes, and panics only if the library does, or if what was read does not come back when
//! it is written and read again. `fuzz/` runs them under libFuzzer; the test of this crate runs each over
//! its corpus and over some thousand mutations of it, on the stable toolchain.

pub mod mutate;

use hawser_plan::cost::Constants;
use hawser_plan::topology::{DeviceKind, Link};
use hawser_plugin::net::HANDLE_BYTES;
use hawser_program::text;
use hawser_runtime::UniqueId;
use hawser_tuner::{csv, range, schema};

/// A function for a fuzzer.
pub struct Target {
    /// The name of the target, of its file in `fuzz/fuzz_targets` and of its folder in `fuzz/corpus`.
    pub name: &'static str,
    /// Reads the bytes with the library's parser.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: [Target; 24] = [
    Target { name: "unique_id", run: unique_id },
    Target { name: "bootstrap", run: hawser_runtime::bootstrap::fuzzing::frame },
    Target { name: "one_sided", run: hawser_runtime::rma::fuzzing::message },
    Target { name: "ras_session", run: hawser_runtime::ras::fuzzing::session },
    Target { name: "rules_update", run: hawser_runtime::rules_update::fuzzing::message },
    Target { name: "rules_pack", run: hawser_runtime::rules_update::fuzzing::content },
    Target { name: "settings_file", run: settings_file },
    Target { name: "socket_frame", run: hawser_net_socket::fuzzing::frame },
    Target { name: "socket_handshake", run: socket_handshake },
    Target { name: "ib_wire", run: hawser_net_ib::fuzzing::message },
    Target { name: "ib_handshake", run: ib_handshake },
    Target { name: "rules_toml", run: rules_toml },
    Target { name: "rules_csv", run: rules_csv },
    Target { name: "msccl_xml", run: msccl_xml },
    Target { name: "mscclpp_json", run: mscclpp_json },
    Target { name: "plan_text", run: plan_text },
    Target { name: "cluster_file", run: cluster_file },
    Target { name: "nccl_topology", run: nccl_topology },
    Target { name: "journal", run: hawser_runtime::progress::fuzzing::slot },
    Target { name: "link_constants", run: link_constants },
    Target { name: "rules_import", run: rules_import },
    Target { name: "trace_json", run: hawser_cli::fuzzing::trace },
    Target { name: "elf_head", run: hawser_cli::fuzzing::elf_head },
    Target { name: "metrics_request", run: hawser_profiler::fuzzing::request },
];

/// Runs the target of this name.
///
/// # Panics
/// There is none, or the target found a fault.
pub fn run(name: &str, bytes: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    (target.unwrap_or_else(|| panic!("no fuzz target is called {name}")).run)(bytes);
}

/// The bytes of an array: cut, or filled up with zeros.
fn fitted<const N: usize>(bytes: &[u8]) -> [u8; N] {
    std::array::from_fn(|at| bytes.get(at).copied().unwrap_or(0))
}

fn as_text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

fn unique_id(bytes: &[u8]) {
    let bytes = fitted::<{ UniqueId::LEN }>(bytes);
    if let Ok(id) = UniqueId::from_bytes(&bytes) {
        assert_eq!(UniqueId::from_bytes(&id.to_bytes()).map(|again| again.to_bytes()), Ok(id.to_bytes()));
    }
}

fn settings_file(bytes: &[u8]) {
    if let Some(text) = as_text(bytes) {
        hawser_base::env::fuzz_settings_file(text);
    }
}

fn cluster_file(bytes: &[u8]) {
    let Some(text) = as_text(bytes) else { return };
    // A step names what a cluster has; either may be read from the same bytes.
    if let Ok(step) = hawser_sim::step::StepFile::parse(text) {
        let _ = step.step(16);
    }
    let _ = hawser_sim::File::parse(text).and_then(|file| hawser_sim::Cluster::new(&file, None));
}

fn nccl_topology(bytes: &[u8]) {
    let Some(text) = as_text(bytes) else { return };
    if let Ok(found) = hawser_sim::cluster::nccl::host(text) {
        let hosts = vec![hawser_sim::cluster::HostsFile::default().over(found)];
        // What cannot be is refused, never taken for something else.
        let _ = hawser_sim::Cluster::new(&hawser_sim::File { hosts, ..hawser_sim::File::default() }, None);
    }
}

fn socket_handshake(bytes: &[u8]) {
    hawser_net_socket::fuzzing::handle(&fitted::<HANDLE_BYTES>(bytes));
    hawser_net_socket::fuzzing::handshake(bytes);
}

fn ib_handshake(bytes: &[u8]) {
    hawser_net_ib::fuzzing::handle(&fitted::<HANDLE_BYTES>(bytes));
    hawser_net_ib::fuzzing::handshake(bytes);
}

fn rules_toml(bytes: &[u8]) {
    let Some(text) = as_text(bytes) else { return };
    match schema::contents("fuzz.toml", text) {
        Ok(contents) => drop(hawser_tuner::lint::lint(&contents.rules)),
        Err(problems) => assert!(!problems.is_empty(), "refused without a reason"),
    }
    let _ = (range::parse(text, true), range::parse(text, false));
}

fn rules_csv(bytes: &[u8]) {
    if let Some(text) = as_text(bytes)
        && let Err(bad) = csv::parse(text)
    {
        assert!(!bad.is_empty(), "refused without a reason");
    }
}

fn rules_import(bytes: &[u8]) {
    if let Some(text) = as_text(bytes) {
        hawser_cli::fuzzing::rules_import(text);
    }
}

fn msccl_xml(bytes: &[u8]) {
    if let Some(text) = as_text(bytes) {
        let _ = (hawser_msccl::head(text), hawser_msccl::read(text).map(drop));
    }
}

fn mscclpp_json(bytes: &[u8]) {
    if let Some(text) = as_text(bytes) {
        let _ = hawser_msccl::read_mscclpp(text).map(drop);
    }
}

fn plan_text(bytes: &[u8]) {
    let Some(program) = as_text(bytes).and_then(|source| text::from_text(source).ok()) else { return };
    let again = text::from_text(&text::to_text(&program));
    assert_eq!(again.as_ref(), Ok(&program), "a program does not survive being written");
}

fn link_constants(bytes: &[u8]) {
    let Some(text) = as_text(bytes) else { return };
    let (device, link) = (DeviceKind::Cuda { sm: 90 }, Link::NvLink);
    let Ok(Some(constants)) = Constants::parse(text, device, link) else { return };
    let again = Constants::parse(&constants.text(device, link), device, link);
    assert!(matches!(again, Ok(Some(_))), "constants do not survive being written: {again:?}");
}
