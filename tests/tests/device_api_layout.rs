//! The layouts of the device API against NVIDIA's headers, where these are.

use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::Command;

use hawser_runtime::gin::Form;
use hawser_runtime::gin::descriptor::{SHORT_WORDS, WORDS};
use hawser_runtime::lsa::layout::{
    Family, NETWORK_228, NetworkOffsets, Offsets, Strides, TablePart, WindowImage,
};
use hawser_tests::skip::skipped;

fn at(of: &str, field: &str, at: usize) -> String {
    format!("static_assert(offsetof({of}, {field}) == {at}, \"{field}\");\n")
}

fn size(of: &str, bytes: usize) -> String {
    format!("static_assert(sizeof({of}) == {bytes}, \"{of}\");\n")
}

/// A program that fails to compile unless the header's offsets are those of the library.
fn program(offsets: Offsets, window_bytes: usize, version: u32) -> String {
    let comm = |field: &str, offset: usize| at("ncclDevComm", field, offset);
    let window = |field: &str, offset: usize| at("ncclWindow_vidmem", field, offset);
    let mut text = String::from("#include <cstddef>\n#include <nccl.h>\n#include <nccl_device.h>\n");
    text += &size("ncclDevComm", offsets.bytes);
    text += &size("ncclWindow_vidmem", window_bytes);
    text += &size("ncclDevCommWindowTable", size_of::<TablePart>());
    let first = ["rank", "nRanks", "nRanks_rcp32", "lsaRank", "lsaSize", "lsaSize_rcp32", "windowTable"];
    for (number, field) in first.iter().enumerate() {
        text += &comm(field, offsets.head + 4 * number);
    }
    text += &comm("resourceWindow", offsets.resource_window);
    text += &comm("resourceWindow_inlined.lsaFlatBase", offsets.flat_base);
    text += &comm("resourceWindow_inlined.stride4G", offsets.stride);
    text += &comm("resourceWindow_inlined.mcOffset4K", offsets.stride + 4);
    text += &comm("lsaMultimem.mcBasePtr", offsets.lsa_barrier - 8);
    text += &comm("lsaBarrier", offsets.lsa_barrier);
    text += &comm("railGinBarrier", offsets.rail_barrier);
    text += &offsets.hybrid_barrier.map_or(String::new(), |at| comm("hybridLsaBarrier", at));
    text += &offsets.abort_flag.map_or(String::new(), |at| comm("abortFlag", at));
    text += &match offsets.network {
        Some(network) => network_program(network, version),
        None if version < 22900 => short_network_program(),
        None => String::new(),
    };
    text += &window("lsaFlatBase", offset_of!(WindowImage, flat_base));
    text += &window("lsaRank", offset_of!(WindowImage, lsa_rank));
    text += &window("worldRank", offset_of!(WindowImage, world_rank));
    text += &window("stride4G", offset_of!(WindowImage, stride_4g));
    text += &window("mcOffset4K", offset_of!(WindowImage, multicast_4k));
    text += &window("mcOffset4K", offset_of!(WindowImage, multicast_4k));
    text + &window("ginOffset4K", offset_of!(WindowImage, gin_4k))
}

/// The same for the network in kernels: its fields, its contexts, and descriptors of sixteen words.
fn network_program(network: NetworkOffsets, version: u32) -> String {
    let mut fields = vec![
        ("ginConnectionCount", network.connections),
        ("ginNetDeviceTypes", network.first_type),
        ("ginHandles", network.handle),
        ("ginSignalCount", network.signals),
        ("ginCounterCount", network.signals + 4),
        ("ginSignalShadows", network.shadows),
        ("ginContextCount", network.contexts),
    ];
    let is_first = version < 23005;
    if !is_first {
        fields.push(("hybridRailGinBarrier", network.hybrid[1]));
        fields.push(("worldGinBarrier", network.world_barrier));
    }
    match network.strides {
        Strides::Flags(at) if is_first => fields.push(("ginIsRailed", at)),
        Strides::Flags(at) => {
            fields.push(("hybridWorldGinBarrier", network.hybrid[0]));
            fields.extend([("ginConnectionsRailed", at), ("ginStrongLegacySignals", at + 1)]);
            fields.push(("ginContextsRailed", at + 2));
        }
        Strides::Numbers(at, reciprocal) => {
            fields.push(("hybridDenseGinBarrier", network.hybrid[0]));
            fields.extend([("ginConnectionStride", at), ("ginContextStride", at + 4)]);
            fields.extend([("ginStrongLegacySignals", at + 8), ("ginConnectionStride_rcp32", reciprocal)]);
        }
    }
    let mut text: String = fields.iter().map(|(field, offset)| at("ncclDevComm", field, *offset)).collect();
    text += "#include <nccl_device/gin/proxy/gin_proxy_device_host_common.h>\n";
    text += &size("ncclGinProxyGfd_t", 8 * WORDS);
    text += &context_program(version);
    text
}

/// The same of 2.28, with descriptors of eight words.
fn short_network_program() -> String {
    let network = NETWORK_228;
    let fields = [
        ("ginContextCount", network.contexts),
        ("ginTypes", network.types),
        ("ginHandles", network.handles),
        ("ginSignalBase", network.signals - 4),
        ("ginSignalCount", network.signals),
        ("ginCounterBase", network.counters - 4),
        ("ginCounterCount", network.counters),
        ("ginSignalShadows", network.shadows),
    ];
    let mut text: String = fields.iter().map(|(field, offset)| at("ncclDevComm", field, *offset)).collect();
    text += "#include <nccl_device/gin/proxy/gin_proxy_device_host_common.h>\n";
    text += &size("ncclGinProxyGfd_t", 8 * SHORT_WORDS);
    text + &context_program(22809)
}

/// The context of a version.
fn context_program(version: u32) -> String {
    let form = match version {
        ..23005 => Form::Bare,
        23005..23200 => Form::Counted,
        _ => Form::Promising,
    };
    let mut text = size("ncclGinProxyGpuCtx_t", form.bytes());
    let context = ["queues", "pis", "cis", "counters", "signals"];
    for (number, field) in context.iter().enumerate() {
        text += &at("ncclGinProxyGpuCtx_t", field, 8 + 8 * number);
    }
    if form != Form::Bare {
        for (number, field) in ["signalOffsets", "lastIssuedGet", "lastVisibleGet"].iter().enumerate() {
            text += &at("ncclGinProxyGpuCtx_t", field, 48 + 8 * number);
        }
    }
    text
}

/// The version that `nccl.h` of a folder says.
fn version_in(folder: &Path) -> u32 {
    let text = std::fs::read_to_string(folder.join("nccl.h")).expect("nccl.h");
    let line = text.lines().find(|line| line.contains("#define NCCL_VERSION_CODE")).expect("a version code");
    line.split_whitespace().last().and_then(|word| word.parse().ok()).expect("a number")
}

/// Compiles a program: true if the compiler takes it, and its messages.
fn compiles(folder: &Path, cuda: &Path, version: u32, program: &str) -> (bool, String) {
    let source = std::env::temp_dir().join(format!("layout-{}-{version}.cc", std::process::id()));
    std::fs::write(&source, program).expect("writing a source");
    let mut compiler = Command::new("c++");
    compiler.args(["-std=c++17", "-w", "-fsyntax-only"]);
    compiler.arg("-I").arg(folder).arg("-I").arg(cuda).arg(&source);
    let output = compiler.output().expect("a C++ compiler");
    std::fs::remove_file(&source).expect("removing a source");
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// With `HAWSER_TEST_NCCL_HEADERS` set to folders (`:` between them) that hold NVIDIA's `nccl.h` and
/// `nccl_device.h`, and `HAWSER_TEST_CUDA_INCLUDE` to CUDA's, the compiler compares the layouts with theirs.
#[test]
fn layouts_are_those_of_nvidias_headers() {
    let asked = ["HAWSER_TEST_NCCL_HEADERS", "HAWSER_TEST_CUDA_INCLUDE"].map(std::env::var_os);
    let [Some(folders), Some(cuda)] = asked else {
        return skipped("HAWSER_TEST_NCCL_HEADERS and HAWSER_TEST_CUDA_INCLUDE name no headers");
    };
    for folder in std::env::split_paths(&folders) {
        let (version, cuda) = (version_in(&folder), PathBuf::from(&cuda));
        let family = Family::of(version).expect("a version whose layout is known");
        let window_bytes = match family {
            Family::V228 | Family::V229 => 72,
            Family::V230 if version < 23004 => 72,
            Family::V230 => 88,
            Family::V232 => 96,
        };
        let compare =
            |offsets: Offsets| compiles(&folder, &cuda, version, &program(offsets, window_bytes, version));
        let (is_right, errors) = compare(family.offsets());
        assert!(is_right, "{version}: {errors}");
        // The comparison can fail.
        let wrong = Offsets { lsa_barrier: family.offsets().lsa_barrier + 8, ..family.offsets() };
        assert!(!compare(wrong).0, "{version}");
        println!("{version}: as in the headers");
    }
}
