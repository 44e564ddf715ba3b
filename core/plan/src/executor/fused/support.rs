//! What fused kernels can do.

use hawser_kernels_abi::DeviceOp;
use hawser_types::{Algorithm, Call, DataType, Link, Protocol};

use super::area::refused_topology;
use super::zero_copy;
use crate::algo::ProgramKey;
use crate::executor::launch::device_op;
use crate::topology::Topology;

/// Whether programs of a family can be exchanges.
pub const fn is_known(algorithm: Algorithm) -> bool {
    matches!(algorithm, Algorithm::OneShot | Algorithm::AllPairs | Algorithm::Direct)
}

/// Whether there are exchange kernels for an operation on a type: those that training and inference call all the time.
/// Each takes seconds to compile and kilobytes of the library.
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

/// Why a call has no exchange kernel of `protocol` by the program `key` in this topology, if so.
pub fn refused(call: &Call, key: &ProgramKey, protocol: Protocol, topology: &Topology) -> Option<String> {
    if let Some(reason) = refused_topology(topology) {
        return Some(reason);
    }
    if !has_kernel(device_op(call), call.dtype) {
        return Some(format!("no fused kernel reduces {} by {}", call.dtype.name(), call.op.name()));
    }
    if protocol == Protocol::SymLl128 && topology.link != Link::NvLink {
        return Some("SymLL128 needs lines that land whole: NVLink only".into());
    }
    if !is_known(key.algorithm) {
        return Some("its steps are no exchanges".into());
    }
    if protocol == Protocol::SymDirect { zero_copy::refused(call, key, topology) } else { None }
}
