//! What the planner may know of the job and the machine. Equal on all ranks.

use crate::knobs::Digest;

/// The kind of device that runs the steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    /// The CPU: buffers are host memory.
    Host,
    /// An NVIDIA GPU with this compute capability (90 for sm_90).
    Cuda {
        /// Ten times major plus minor.
        sm: u32,
    },
}

/// What joins two ranks of one host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Link {
    /// Loads and stores over NVLink.
    NvLink,
    /// Loads and stores over PCIe.
    Pcie,
    /// Staging in host memory.
    HostMemory,
    /// A network plugin between hosts (not offered yet).
    Net,
}

/// One rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankInfo {
    /// Index of the host, dense from 0 in order of first rank.
    pub host: u32,
    /// PCI bus id of the device, or its index as text on the host device.
    pub device: String,
}

/// The job as the planner sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct World {
    /// One entry per rank.
    pub ranks: Vec<RankInfo>,
    /// The device kind, the same on all ranks (the weakest one if they differ).
    pub device: DeviceKind,
    /// The slowest link between any two ranks.
    pub link: Link,
}

impl World {
    /// A world of `ranks` ranks on one host, for tests, `hawser plan` and offline questions.
    pub fn single_host(ranks: u32, device: DeviceKind, link: Link) -> Self {
        let ranks = (0..ranks).map(|r| RankInfo { host: 0, device: r.to_string() }).collect();
        Self { ranks, device, link }
    }

    /// Number of ranks.
    pub fn size(&self) -> u32 {
        self.ranks.len() as u32
    }

    /// A number that differs when worlds differ; compared between ranks at init.
    pub fn digest(&self) -> u64 {
        let mut digest = Digest::new();
        digest.add(self.ranks.len() as u64);
        for rank in &self.ranks {
            digest.add(u64::from(rank.host));
            digest.add(rank.device.len() as u64);
            digest.add_bytes(rank.device.as_bytes());
        }
        digest.add(match self.device {
            DeviceKind::Host => 0,
            DeviceKind::Cuda { sm } => 1 + u64::from(sm),
        });
        digest.add(self.link as u64);
        digest.value()
    }
}
