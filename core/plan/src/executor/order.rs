//! The order in which a call combines, where a level declares one (ADR 29).

use hawser_kernels_abi::DeviceOp;
use hawser_program::verify::{Declared, MOST_IN_RANK_ORDER, Order};
use hawser_types::{Algorithm, Call, DataType};

use super::launch::device_op;
use crate::algo::{self, ProgramKey};
use crate::imported;

/// The order in which a call combines, if its bits depend on one and a level asks for it.
pub fn declared(call: &Call, ranks: u32, level: u8) -> Option<Declared> {
    let depends = call.collective.reduces() && call.dtype.is_float() && ranks > 1;
    let order = Order::of(level, ranks).filter(|_| depends)?;
    let commutes = matches!(device_op(call), DeviceOp::Sum | DeviceOp::Prod | DeviceOp::PreMulSum);
    Some(Declared { order, ranks, is_narrow: is_narrow(call.dtype), commutes })
}

/// The reason why a program does not combine in a declared order when each of its steps combines operands one
/// after the other, if so.
pub fn leaves(key: &ProgramKey, declared: &Declared) -> Option<String> {
    match key.algorithm {
        Algorithm::Imported(program) => imported::other_order(program, declared),
        _ => (!algo::keeps(key, declared)).then(|| "it combines in another order".to_string()),
    }
}

/// True if a program combines the operands of all ranks in one step, in the order of ranks: then who runs the
/// step can follow any tree over ranks. A program that rounds nothing but the whole does so.
pub fn is_in_one_step(key: &ProgramKey, declared: &Declared) -> bool {
    let in_turn = Declared { order: Order::Ranks, is_narrow: true, commutes: false, ..*declared };
    declared.ranks <= MOST_IN_RANK_ORDER && leaves(key, &in_turn).is_none()
}

/// True for types that are combined in a wider one.
fn is_narrow(dtype: DataType) -> bool {
    dtype.is_float() && dtype.size() < size_of::<f32>()
}
