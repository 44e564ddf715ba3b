//! The key of a kernel: operation, type, and executor with protocol.

use hawser_types::{DataType, Route};

/// The operation of a kernel on values. `Copy` moves bytes of any type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeviceOp {
    /// No reduction.
    Copy,
    /// A sum.
    Sum,
    /// A product.
    Prod,
    /// The largest value.
    Max,
    /// The smallest value.
    Min,
    /// Sum of pre-multiplied inputs; averages of floating-point types too (factor 1/ranks).
    PreMulSum,
    /// Sum divided by the number of ranks at the end: averages of integers.
    SumDiv,
}

/// The variant of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Variant {
    /// It runs one program or exchange.
    One,
    /// It runs several exchanges ([`crate::fused::BatchArgs`]).
    Batch,
    /// It runs one exchange, and combines along the nested tree ([`crate::fused::NESTED`]) in registers that
    /// a kernel for both orders would not have. On the host device, threads that combine the operands of each
    /// step along that tree.
    Nested,
}

impl Variant {
    /// All variants.
    pub const ALL: [Self; 3] = [Self::One, Self::Batch, Self::Nested];
}

/// The key of a kernel that runs a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KernelKey {
    /// The operation on values.
    pub op: DeviceOp,
    /// Element type (`Uint8` for `Copy`).
    pub dtype: DataType,
    /// The executor and the protocol of the launch.
    pub route: Route,
    /// The variant.
    pub variant: Variant,
}

impl KernelKey {
    /// A kernel of one program or exchange.
    pub const fn new(op: DeviceOp, dtype: DataType, route: Route) -> Self {
        Self { op, dtype, route, variant: Variant::One }
    }

    /// The kernel's symbol, `hawser_<op>_<type>_<protocol>`, such as `hawser_sum_f16_ll128`; `_bundle`
    /// follows where it runs several exchanges, `_nested` where it combines along the tree. Sums, products
    /// and pre-multiplied sums of integers do not depend on the sign and share the unsigned kernel.
    pub fn symbol(&self) -> String {
        if self.route == Route::LANDING {
            return "hawser_copy_u8_simple_landing".into();
        }
        // One kernel does both: zero copy is a strategy that its arguments ask for.
        let route = if self.route == Route::ZERO_COPY { Route::FUSED_SIMPLE } else { self.route };
        let mut route = route.old_name().to_ascii_lowercase();
        route.push_str(match self.variant {
            Variant::One => "",
            Variant::Batch => "_bundle",
            Variant::Nested => "_nested",
        });
        let (op, signed) = match self.op {
            DeviceOp::Copy => return format!("hawser_copy_u8_{route}"),
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
        format!("hawser_{op}_{dtype}_{route}")
    }
}

/// The number of a route in [`crate::Args::protocol`], as the compiled kernels and devices read it: LL 0,
/// LL128 1, Simple 2 for the interpreter, 3 to 5 and 7 for fused kernels, 6 for copy engines.
pub fn protocol_number(route: Route) -> u8 {
    // The host device reads what the interpreter reads on a GPU.
    let of_kernels = if route == Route::HOST { Route::SIMPLE } else { route };
    of_kernels.index() as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_kernels() {
        let numbers =
            [Route::LL, Route::LL128, Route::SIMPLE, Route::FUSED_LL, Route::COPY_ENGINE, Route::ZERO_COPY];
        assert_eq!(numbers.map(protocol_number), [0, 1, 2, 3, 6, 7]);
        assert_eq!(protocol_number(Route::HOST), protocol_number(Route::SIMPLE));
        assert_eq!(protocol_number(Route::LANDING), protocol_number(Route::SIMPLE));
    }
}
