//! The kinds of devices, and what joins two of them.

use std::fmt;

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

impl fmt::Display for DeviceKind {
    /// `host` or `cuda:90`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::Cuda { sm } => write!(f, "cuda:{sm}"),
        }
    }
}

impl DeviceKind {
    /// Ten times major plus minor of a GPU's compute capability; 0 for the CPU.
    pub fn sm(self) -> u32 {
        match self {
            Self::Host => 0,
            Self::Cuda { sm } => sm,
        }
    }

    /// Inverse of [`DeviceKind::sm`].
    pub fn from_sm(sm: u32) -> Self {
        if sm == 0 { Self::Host } else { Self::Cuda { sm } }
    }

    /// Inverse of `to_string`.
    pub fn from_name(name: &str) -> Option<Self> {
        match name.strip_prefix("cuda:") {
            Some(sm) => sm.parse().ok().map(|sm| Self::Cuda { sm }),
            None => (name == "host").then_some(Self::Host),
        }
    }
}

/// The kind of link that joins two ranks of one host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Link {
    /// Loads and stores over NVLink.
    NvLink,
    /// Loads and stores over PCIe.
    Pcie,
    /// Staging in host memory.
    HostMemory,
}

impl Link {
    /// All links, the fastest first.
    pub const ALL: [Link; 3] = [Self::NvLink, Self::Pcie, Self::HostMemory];

    /// Name in options and files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NvLink => "nvlink",
            Self::Pcie => "pcie",
            Self::HostMemory => "host",
        }
    }

    /// Inverse of [`Link::name`].
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|link| link.name() == name)
    }
}
