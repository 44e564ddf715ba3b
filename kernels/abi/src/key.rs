//! Which kernel runs a launch.

use hawser_types::{DataType, Protocol};

/// What a kernel does to the values. `Copy` moves bytes of any type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeviceOp {
    /// No reduction.
    Copy,
    /// Sum.
    Sum,
    /// Product.
    Prod,
    /// Maximum.
    Max,
    /// Minimum.
    Min,
    /// Sum of pre-multiplied inputs; averages of floating-point types too (factor 1/ranks).
    PreMulSum,
    /// Sum divided by the number of ranks at the end: averages of integers.
    SumDiv,
}

/// Which kernel runs a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KernelKey {
    /// Operation.
    pub op: DeviceOp,
    /// Element type (`Uint8` for `Copy`).
    pub dtype: DataType,
    /// Protocol.
    pub protocol: Protocol,
    /// It runs several exchanges ([`crate::fused::BundleArgs`]).
    pub bundle: bool,
}

impl KernelKey {
    /// A kernel of one program or exchange.
    pub const fn new(op: DeviceOp, dtype: DataType, protocol: Protocol) -> Self {
        Self { op, dtype, protocol, bundle: false }
    }

    /// The kernel's symbol, `hawser_<op>_<type>_<protocol>`, such as `hawser_sum_f16_ll128`; `_bundle` follows where it
    /// runs several exchanges.
    /// Sums, products and pre-multiplied sums of integers do not depend on the sign and share the unsigned kernel.
    pub fn symbol(&self) -> String {
        // One kernel does both: SymDirect is a way that its arguments ask for.
        let protocol = if self.protocol == Protocol::SymDirect { Protocol::SymSimple } else { self.protocol };
        let mut protocol = protocol.name().to_ascii_lowercase();
        if self.bundle {
            protocol.push_str("_bundle");
        }
        let (op, signed) = match self.op {
            DeviceOp::Copy => return format!("hawser_copy_u8_{protocol}"),
            DeviceOp::Sum => ("sum", false),
            DeviceOp::Prod => ("prod", false),
            DeviceOp::Max => ("max", true),
            DeviceOp::Min => ("min", true),
            DeviceOp::PreMulSum => ("premul", false),
            DeviceOp::SumDiv => ("sumdiv", true),
        };
        let dtype = match (self.dtype, signed) {
            (DataType::Int8, true) => "i8",
            (DataType::Int8 | DataType::Uint8, _) => "u8",
            (DataType::Int32, true) => "i32",
            (DataType::Int32 | DataType::Uint32, _) => "u32",
            (DataType::Int64, true) => "i64",
            (DataType::Int64 | DataType::Uint64, _) => "u64",
            (DataType::Float16, _) => "f16",
            (DataType::Float32, _) => "f32",
            (DataType::Float64, _) => "f64",
            (DataType::Bfloat16, _) => "bf16",
            (DataType::Float8e4m3, _) => "e4m3",
            (DataType::Float8e5m2, _) => "e5m2",
        };
        format!("hawser_{op}_{dtype}_{protocol}")
    }
}
