//! The types of the elements of a buffer, and the ways to combine them.

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

    /// True if the type is a floating-point one.
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

/// The reductions. The first five have NCCL's numbers (`ncclRedOp_t`); `PreMulSum` stands for every handle
/// made by `ncclRedOpCreatePreMulSum`, whose factor travels in [`crate::Call::scalar`].
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
