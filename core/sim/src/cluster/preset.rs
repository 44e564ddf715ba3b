//! Kinds of hosts that are known by name.

use hawser_types::{DeviceKind, Link};

/// A kind of host.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Preset {
    /// The name in cluster files.
    pub name: &'static str,
    /// The origin of its figures.
    pub origin: &'static str,
    /// The device of every rank.
    pub device: DeviceKind,
    /// The link between the ranks of a host.
    pub link: Link,
    /// Ranks of a host.
    pub ranks: u32,
    /// GB/s of a rank's way to its peers; None = as the cost model's constants say.
    pub wire_gbs: Option<f64>,
    /// The number of PCIe switches.
    pub pcie_switches: u32,
    /// GB/s of a PCIe way.
    pub pcie_gbs: f64,
    /// GB/s of the host's memory.
    pub memory_gbs: f64,
    /// MiB of the caches that its processors share.
    pub cache_mib: f64,
    /// The number of processors.
    pub processors: u32,
    /// The multiprocessors of a GPU; 0 without GPUs.
    pub multiprocessors: u32,
    /// The number of NICs.
    pub nics: u32,
    /// Gb/s of a NIC.
    pub nic_gbps: f64,
    /// True if NICs read and write the memory of GPUs.
    pub gpu_direct: bool,
}

const HGX_H200: Preset = Preset {
    name: "hgx-h200",
    origin: "NVLink measured on H200 (core/plan), PCIe 5 and NICs by data sheet",
    device: DeviceKind::Cuda { sm: 90 },
    link: Link::NvLink,
    ranks: 8,
    wire_gbs: None,
    pcie_switches: 8,
    pcie_gbs: 55.0,
    memory_gbs: 400.0,
    cache_mib: 32.0,
    processors: 112,
    multiprocessors: 132,
    nics: 8,
    nic_gbps: 400.0,
    gpu_direct: true,
};

/// All presets.
pub const PRESETS: [Preset; 4] = [
    HGX_H200,
    Preset { name: "hgx-h100", origin: "as hgx-h200, whose NVLink is the same", ..HGX_H200 },
    Preset {
        name: "dgx-a100",
        origin: "data sheet: NVLink 3 taken for as good a share of its 300 GB/s as an H200 reaches of 450, \
                 PCIe 4",
        device: DeviceKind::Cuda { sm: 80 },
        wire_gbs: Some(243.0),
        pcie_switches: 4,
        pcie_gbs: 25.0,
        memory_gbs: 300.0,
        cache_mib: 32.0,
        processors: 128,
        multiprocessors: 108,
        nic_gbps: 200.0,
        ..HGX_H200
    },
    Preset {
        name: "cpu",
        origin: "a host without GPUs: one rank, one NIC",
        device: DeviceKind::Host,
        link: Link::HostMemory,
        ranks: 1,
        wire_gbs: None,
        pcie_switches: 0,
        pcie_gbs: 25.0,
        memory_gbs: 40.0,
        cache_mib: 32.0,
        processors: 16,
        multiprocessors: 0,
        nics: 1,
        nic_gbps: 25.0,
        gpu_direct: false,
    },
];

impl Preset {
    /// The preset of a name.
    pub fn of(name: &str) -> Option<&'static Self> {
        PRESETS.iter().find(|preset| preset.name == name)
    }

    /// The names of all presets, for messages.
    pub fn names() -> String {
        PRESETS.map(|preset| preset.name).join(", ")
    }
}
