//! The protocols: how a chunk travels between two ranks.

/// The way in which a chunk travels and its arrival is known (NCCL's names and numbers).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Protocol {
    /// Every word carries a flag beside its data: lowest latency, half the bandwidth.
    Ll = 0,
    /// Every line of 128 bytes carries a flag of 8: it needs lines that land whole (NVLink).
    Ll128 = 1,
    /// Plain data, then a counter or a flag: full bandwidth.
    Simple = 2,
}

impl Protocol {
    /// All protocols in the order of their numbers.
    pub const ALL: [Protocol; 3] = [Self::Ll, Self::Ll128, Self::Simple];

    /// The name in texts and files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ll => "LL",
            Self::Ll128 => "LL128",
            Self::Simple => "Simple",
        }
    }
}
