//! The protocols: how a chunk travels between two ranks.

/// How a chunk travels and how its arrival is known (NCCL's names).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Protocol {
    /// 4 bytes of data and 4 of flag per 8-byte word: lowest latency, half the bandwidth.
    Ll = 0,
    /// 120 bytes of data and 8 of flag per 128-byte line: needs lines that land whole (NVLink).
    Ll128 = 1,
    /// Plain data, then a counter: full bandwidth.
    Simple = 2,
    /// A fused kernel over symmetric staging : words of 8 bytes of data between two flags.
    SymLl = 3,
    /// A fused kernel: lines of 120 bytes of data and 8 of flag (NVLink).
    SymLl128 = 4,
    /// A fused kernel: tiles of plain data, then a flag per warp.
    SymSimple = 5,
    /// Copy engines and stream memory operations, no kernel .
    Dma = 6,
    /// A fused kernel: data go straight between the buffers of one process .
    SymDirect = 7,
}

impl Protocol {
    /// All protocols in the order of their numbers.
    pub const ALL: [Protocol; 8] = [
        Self::Ll,
        Self::Ll128,
        Self::Simple,
        Self::SymLl,
        Self::SymLl128,
        Self::SymSimple,
        Self::Dma,
        Self::SymDirect,
    ];

    /// Which of the three slot sizes of the settings its slots are; staging has the size that the planner of copy engines puts there.
    pub const fn slots(self) -> usize {
        match self {
            Self::Ll => 0,
            Self::Ll128 => 1,
            Self::Simple | Self::SymLl | Self::SymLl128 | Self::SymSimple | Self::Dma | Self::SymDirect => 2,
        }
    }

    /// Whether a fused kernel does it in exchanges, without FIFOs.
    pub const fn is_exchange(self) -> bool {
        matches!(self, Self::SymLl | Self::SymLl128 | Self::SymSimple | Self::SymDirect)
    }

    /// Name in `NCCL_PROTO`, texts and files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ll => "LL",
            Self::Ll128 => "LL128",
            Self::Simple => "Simple",
            Self::SymLl => "SymLL",
            Self::SymLl128 => "SymLL128",
            Self::SymSimple => "SymSimple",
            Self::Dma => "DMA",
            Self::SymDirect => "SymDirect",
        }
    }
}
