//! The calls that fused kernels can do, and the reasons why not others.

use hawser_kernels_abi::{DeviceOp, KernelKey};
use hawser_types::{Algorithm, Call, Collective, DataType, Link, Route};

use super::area::refused_topology;
use super::zero_copy;
use crate::algo::{self, ProgramKey};
use crate::executor::launch::device_op;
use crate::topology::Topology;

/// True if the program of a family is exchanges, for a collective.
pub fn is_known(collective: Collective, algorithm: Algorithm) -> bool {
    algo::generator(collective, algorithm).is_some_and(|generator| generator.exchanges > 0)
}

/// True if there are fused kernels for an operation on a type: those that training and inference call all the
/// time. Each takes seconds to compile and kilobytes of the library.
pub fn has_kernel(op: DeviceOp, dtype: DataType) -> bool {
    use DataType::{
        Bfloat16, Float8e4m3, Float8e5m2, Float16, Float32, Float64, Int32, Int64, Uint32, Uint64,
    };
    match op {
        DeviceOp::Copy => true,
        DeviceOp::Sum => match dtype {
            Int32 | Uint32 | Int64 | Uint64 | Float16 | Bfloat16 | Float32 | Float64 | Float8e4m3
            | Float8e5m2 => true,
            DataType::Int8 | DataType::Uint8 => false,
        },
        DeviceOp::PreMulSum | DeviceOp::Max => matches!(dtype, Float16 | Bfloat16 | Float32),
        DeviceOp::Prod | DeviceOp::Min | DeviceOp::SumDiv => false,
    }
}

/// True if a kernel of one order of additions has a variant for the nested tree. Kernels of LL and LL128 do
/// both, and integers have the same bits in any order.
pub fn has_nested_kernel(key: &KernelKey) -> bool {
    let is_route = matches!(key.route, Route::FUSED_SIMPLE | Route::ZERO_COPY);
    is_route && key.op != DeviceOp::Copy && key.dtype.is_float() && has_kernel(key.op, key.dtype)
}

/// The reason why data of a call go through staging: what is against zero_copy by every algorithm, or that
/// another way was preferred.
pub fn why_staged(call: &Call, topology: &Topology) -> String {
    let algorithms = [Algorithm::Direct, Algorithm::AllPairs];
    let mut reason = None;
    for algorithm in algorithms.into_iter().filter(|one| is_known(call.collective, *one)) {
        let key = ProgramKey::new(call.collective, algorithm, topology.size(), call.root);
        match refused(call, &key, Route::ZERO_COPY, topology) {
            None => return "another way costs less, or was asked for".to_owned(),
            Some(why) => reason = Some(why),
        }
    }
    reason.unwrap_or_else(|| "no fused kernel runs it".to_owned())
}

/// The reason why a call has no fused kernel of `route` by the program `key` in this topology, if so.
pub fn refused(call: &Call, key: &ProgramKey, route: Route, topology: &Topology) -> Option<String> {
    if let Some(reason) = refused_topology(topology) {
        return Some(reason);
    }
    if !has_kernel(device_op(call), call.dtype) {
        return Some(format!("no fused kernel reduces {} by {}", call.dtype.name(), call.op.name()));
    }
    if route == Route::FUSED_LL128 && topology.link != Link::NvLink {
        return Some("LL128 needs lines that land whole: NVLink only".into());
    }
    if !is_known(key.collective, key.algorithm) {
        return Some("its steps are no exchanges".into());
    }
    if route == Route::ZERO_COPY { zero_copy::refused(call, key, topology) } else { None }
}
