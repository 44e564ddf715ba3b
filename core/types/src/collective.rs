//! The collectives, and the form of their buffers.

/// Collectives of the API. `SendRecv` is a batch of point-to-point calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // the names say it
pub enum Collective {
    AllReduce,
    Reduce,
    Broadcast,
    AllGather,
    ReduceScatter,
    AllToAll,
    Gather,
    Scatter,
    SendRecv,
}

impl Collective {
    /// All collectives that have programs of their own.
    pub const ALL: [Collective; 8] = [
        Self::AllReduce,
        Self::Reduce,
        Self::Broadcast,
        Self::AllGather,
        Self::ReduceScatter,
        Self::AllToAll,
        Self::Gather,
        Self::Scatter,
    ];

    /// Snake-case name (`all_reduce`), as in nccl-tests' program names.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::Reduce => "reduce",
            Self::Broadcast => "broadcast",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllToAll => "alltoall",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::SendRecv => "sendrecv",
        }
    }

    /// Inverse of [`Collective::name`].
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().chain([Self::SendRecv]).find(|c| c.name() == name)
    }

    /// True if values are combined on the way.
    pub const fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::Reduce | Self::ReduceScatter)
    }

    /// True if the call names a root.
    pub const fn rooted(self) -> bool {
        matches!(self, Self::Reduce | Self::Broadcast | Self::Gather | Self::Scatter)
    }

    /// Blocks of `count` elements in the input buffer of a topology of `ranks` (NCCL's `count` argument).
    pub const fn input_blocks(self, ranks: u32) -> u32 {
        match self {
            Self::ReduceScatter | Self::AllToAll | Self::Scatter => ranks,
            _ => 1,
        }
    }

    /// Blocks of `count` elements in the output buffer.
    pub const fn output_blocks(self, ranks: u32) -> u32 {
        match self {
            Self::AllGather | Self::AllToAll | Self::Gather => ranks,
            _ => 1,
        }
    }

    /// True if `rank` reads an input buffer at all (only the root of broadcast and scatter does).
    pub const fn has_input(self, rank: u32, root: u32) -> bool {
        !matches!(self, Self::Broadcast | Self::Scatter) || rank == root
    }

    /// True if `rank` gets an output at all (only the root of reduce and gather does).
    pub const fn has_output(self, rank: u32, root: u32) -> bool {
        !matches!(self, Self::Reduce | Self::Gather) || rank == root
    }
}
