//! Reproducible reductions (`HAWSER_REPRODUCIBLE`, ADR 29): the order that a call declares, and which
//! programs and executors keep it.
//!
//! The order is a function of the level and the number of ranks alone. Each operand is multiplied first,
//! where the operation has a factor, and rounded to the data type; integers need no order, since sums,
//! products and extremes of them have the same bits in any.

use hawser_program::verify::Order;
use hawser_types::{Call, Executor, ReduceOp};

use crate::algo::{self, Needs};
use crate::executor::Query;
pub use crate::executor::order::declared;
use crate::executor::order::{is_in_one_step, leaves};

/// The highest level.
pub const MOST: u8 = 2;

/// The reason why a way to run a call is out because it does not keep the declared order, if so.
pub(crate) fn refused(query: &Query<'_>) -> Option<String> {
    let Query { call, key, route, config, .. } = query;
    let level = config.reproducible;
    let declared = declared(call, key.ranks, level)?;
    let because = |why: &str| Some(format!("reproducible, level {level}: {why}"));
    if route.executor == Executor::CopyEngine {
        return because("copy engines promise no order of a sum");
    }
    if algo::needs(key.algorithm) == Needs::ReducingNetwork {
        return because("the network promises no order of a sum");
    }
    // Fused kernels and threads of the host combine all operands at once, along the tree that they are told.
    match route.executor {
        Executor::Fused => return None,
        Executor::Host if is_in_one_step(key, &declared) => return None,
        _ => {}
    }
    leaves(key, &declared).and_then(|why| because(&why))
}

/// The declared order of a call in words, for `explain` and logs.
pub fn describe(call: &Call, ranks: u32, level: u8) -> Option<String> {
    let declared = declared(call, ranks, level)?;
    let (dtype, tree) = (call.dtype.name(), declared.order.tree(ranks));
    let rounds = match (declared.is_narrow, declared.order) {
        (false, _) => format!("in {dtype}"),
        (true, Order::Ranks) => format!("in float, rounded to {dtype} at the end"),
        (true, Order::Nested) => format!("in float, each pair rounded to {dtype}"),
    };
    let factor = match call.op {
        ReduceOp::Avg => format!("; each operand times 1/{ranks} first"),
        ReduceOp::PreMulSum => "; each operand times its rank's factor first".to_string(),
        _ => String::new(),
    };
    Some(format!("level {level}: {tree} {rounds}{factor}"))
}
