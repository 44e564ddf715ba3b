//! One validated call: what the user asked for. After [`Call::validate`] nobody checks again.

use crate::error::{PlanError, Result};

/// Element types, with NCCL's numbers (`ncclDataType_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(i32)]
#[allow(missing_docs)] // the names say it
pub enum DataType {
    Int8 = 0,
    Uint8 = 1,
    Int32 = 2,
    Uint32 = 3,
    Int64 = 4,
    Uint64 = 5,
    Float16 = 6,
    Float32 = 7,
    Float64 = 8,
    Bfloat16 = 9,
    Float8e4m3 = 10,
    Float8e5m2 = 11,
}

impl DataType {
    /// All types in the order of their numbers.
    pub const ALL: [DataType; 12] = [
        Self::Int8,
        Self::Uint8,
        Self::Int32,
        Self::Uint32,
        Self::Int64,
        Self::Uint64,
        Self::Float16,
        Self::Float32,
        Self::Float64,
        Self::Bfloat16,
        Self::Float8e4m3,
        Self::Float8e5m2,
    ];

    /// The type with NCCL's number `value`.
    pub fn from_raw(value: i32) -> Option<Self> {
        Self::ALL.get(usize::try_from(value).ok()?).copied()
    }

    /// Bytes per element.
    pub const fn size(self) -> usize {
        match self {
            Self::Int8 | Self::Uint8 | Self::Float8e4m3 | Self::Float8e5m2 => 1,
            Self::Float16 | Self::Bfloat16 => 2,
            Self::Int32 | Self::Uint32 | Self::Float32 => 4,
            Self::Int64 | Self::Uint64 | Self::Float64 => 8,
        }
    }

    /// Whether the type is a floating-point one.
    pub const fn is_float(self) -> bool {
        matches!(
            self,
            Self::Float16
                | Self::Float32
                | Self::Float64
                | Self::Bfloat16
                | Self::Float8e4m3
                | Self::Float8e5m2
        )
    }

    /// The name that nccl-tests prints and accepts (`int8`, `half`, `f8e4m3`, …).
    pub const fn name(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
            Self::Uint8 => "uint8",
            Self::Int32 => "int32",
            Self::Uint32 => "uint32",
            Self::Int64 => "int64",
            Self::Uint64 => "uint64",
            Self::Float16 => "half",
            Self::Float32 => "float",
            Self::Float64 => "double",
            Self::Bfloat16 => "bfloat16",
            Self::Float8e4m3 => "f8e4m3",
            Self::Float8e5m2 => "f8e5m2",
        }
    }
}

/// Reductions. The first five have NCCL's numbers (`ncclRedOp_t`); `PreMulSum` stands for every
/// handle made by `ncclRedOpCreatePreMulSum`, whose factor travels in [`Call::scalar`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // the names say it
pub enum ReduceOp {
    Sum,
    Prod,
    Max,
    Min,
    Avg,
    PreMulSum,
}

impl ReduceOp {
    /// All reductions.
    pub const ALL: [ReduceOp; 6] = [Self::Sum, Self::Prod, Self::Max, Self::Min, Self::Avg, Self::PreMulSum];

    /// The name that nccl-tests prints and accepts.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Max => "max",
            Self::Min => "min",
            Self::Avg => "avg",
            Self::PreMulSum => "mulsum",
        }
    }
}

/// The factor of a pre-multiplied sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scalar {
    /// Known now: bits of an `f32` (for half, float, bfloat16 and fp8), of an `f64` (double) or the
    /// sign- or zero-extended 64-bit integer.
    Immediate(u64),
    /// Address of one element of the call's data type, read by the device when the operation runs.
    Device(u64),
}

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

    /// Whether values are combined on the way.
    pub const fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::Reduce | Self::ReduceScatter)
    }

    /// Whether the call names a root.
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

    /// Whether `rank` reads an input buffer at all (only the root of broadcast and scatter does).
    pub const fn has_input(self, rank: u32, root: u32) -> bool {
        !matches!(self, Self::Broadcast | Self::Scatter) || rank == root
    }

    /// Whether `rank` gets an output at all (only the root of reduce and gather does).
    pub const fn has_output(self, rank: u32, root: u32) -> bool {
        !matches!(self, Self::Reduce | Self::Gather) || rank == root
    }
}

/// A collective call after validation. Buffers are opaque addresses: only a device looks behind them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// Which collective.
    pub collective: Collective,
    /// NCCL's count argument: elements per block (see [`Collective::input_blocks`]).
    pub count: u64,
    /// Element type.
    pub dtype: DataType,
    /// Reduction; `Sum` where nothing is reduced.
    pub op: ReduceOp,
    /// Factor of `PreMulSum`.
    pub scalar: Scalar,
    /// Root rank; 0 where there is none.
    pub root: u32,
    /// Address of the input buffer, 0 where this rank has none.
    pub input: u64,
    /// Address of the output buffer, 0 where this rank has none.
    pub output: u64,
}

impl Call {
    /// Checks what can be checked without a device: root, overflow, null buffers, op and type.
    pub fn validate(&self, ranks: u32, rank: u32) -> Result<()> {
        let name = self.collective.name();
        if self.root >= ranks {
            return Err(PlanError::argument(format!(
                "{name}: root {} is not a rank of this communicator (0..{})",
                self.root,
                ranks - 1
            )));
        }
        let blocks = u64::from(self.collective.input_blocks(ranks).max(self.collective.output_blocks(ranks)));
        let bytes = self.count.checked_mul(blocks).and_then(|n| n.checked_mul(self.dtype.size() as u64));
        if bytes.is_none_or(|b| b > i64::MAX as u64) {
            return Err(PlanError::argument(format!(
                "{name}: count {} of {} in {blocks} blocks exceeds the address space",
                self.count,
                self.dtype.name()
            )));
        }
        if self.count == 0 {
            return Ok(());
        }
        if self.collective.has_input(rank, self.root) && self.input == 0 {
            return Err(PlanError::argument(format!("{name}: send buffer is NULL on rank {rank}")));
        }
        if self.collective.has_output(rank, self.root) && self.output == 0 {
            return Err(PlanError::argument(format!("{name}: receive buffer is NULL on rank {rank}")));
        }
        Ok(())
    }

    /// Bytes of one block of `count` elements.
    pub fn block_bytes(&self) -> u64 {
        self.count * self.dtype.size() as u64
    }

    /// Bytes that decide the choice: the larger of input and output (nccl-tests' size).
    pub fn total_bytes(&self, ranks: u32) -> u64 {
        self.block_bytes()
            * u64::from(self.collective.input_blocks(ranks).max(self.collective.output_blocks(ranks)))
    }
}
