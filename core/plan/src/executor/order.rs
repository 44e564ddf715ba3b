//! The order in which a call combines, where a level declares one (ADR 29).

use hawser_kernels_abi::DeviceOp;
use hawser_program::verify::{Declared, Order};
use hawser_types::{Call, DataType};

use super::launch::device_op;

/// The order in which a call combines, if its bits depend on one and a level asks for it.
pub fn declared(call: &Call, ranks: u32, level: u8) -> Option<Declared> {
    let depends = call.collective.reduces() && call.dtype.is_float() && ranks > 1;
    let order = Order::of(level, ranks).filter(|_| depends)?;
    let commutes = matches!(device_op(call), DeviceOp::Sum | DeviceOp::Prod | DeviceOp::PreMulSum);
    Some(Declared { order, ranks, is_narrow: is_narrow(call.dtype), commutes })
}

/// True for types that are combined in a wider one.
fn is_narrow(dtype: DataType) -> bool {
    dtype.is_float() && dtype.size() < size_of::<f32>()
}
