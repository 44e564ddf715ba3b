//! The verifier: runs all ranks of a program symbolically and says what it proved, or the first fault.
//!
//! Channels are processes of a Kahn network: they block on empty and full FIFOs only, so every
//! order of execution gives the same values, and one order proves all. A step is taken as atomic:
//! it starts when all its slots have arrived and all its receivers have room, which is the
//! strictest reading a device can have of it. The work is done in three passes:
//!
//! 1. `form`: operands, peers, bounds, dependencies;
//! 2. `schedule`: an order of all steps at the given FIFO depth, or the deadlock;
//! 3. `values`: who contributed what to every chunk, in which order of reduction; reads of undefined
//!    data; accesses of two channels that no message or dependency orders.
//!
//! A value is a multiset of contributions (source rank, input chunk), a `finished` mark, and a hash
//! of the expression that made it: equal hashes mean equal bits. [`keeps_order`] follows the same run and
//! compares
//! every combination with a declared tree over ranks ([`Order`]). Inputs count as **raw**: reading
//! them applies the factor of a pre-multiplied sum, reading anything else does not, so a program that
//! reads an input after it was overwritten in place is wrong even if the data were right.

mod fault;
mod form;
mod order;
mod schedule;
mod values;

pub use fault::{At, Fault};
pub use order::{Declared, MOST_IN_RANK_ORDER, Order};
pub use values::{add_up, expected};

use super::Program;

/// The result of a proof: figures of a program that is right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// All ranks that compute the same value compute it in the same order: equal to the last bit.
    pub bitwise_equal: bool,
    /// FIFO slots needed.
    pub min_depth: u32,
    /// Steps of all ranks, repetitions counted.
    pub steps: u64,
    /// Two runs are equal to the last bit. Holds for every program without native steps, since
    /// operands are folded in the order of the step and never in the order of arrival.
    pub deterministic: bool,
    /// True unless the program is of no known collective and some chunk of an input comes to another chunk of
    /// an output: the last chunk of a call may be shorter.
    pub keeps_places: bool,
}

/// Proves that `program` computes its collective with FIFOs of `depth` slots, for every size.
///
/// `in_place` lays input and output over each other as the NCCL API defines it (block `rank` of the
/// larger buffer for all-gather, reduce-scatter, gather and scatter). All-to-all has no in-place
/// form and is checked out of place. A program of `sendrecv` is one that its user calls by name: nothing says
/// what it has to compute, so bounds, races, reads of undefined data and deadlocks are what is checked.
///
/// # Errors
/// The first fault found.
pub fn verify(program: &Program, depth: u32, in_place: bool) -> Result<Verdict, Fault> {
    form::check(program)?;
    let mut min_depth = 1;
    let order = loop {
        match schedule::run(program, min_depth) {
            Ok(order) => break order,
            Err(fault) if min_depth >= depth => return Err(too_deep(program, depth, fault)),
            Err(_) => min_depth += 1,
        }
    };
    let (bitwise_equal, keeps_places) = values::check(program, &order, in_place)?;
    let steps = order.len() as u64;
    Ok(Verdict { bitwise_equal, min_depth, steps, deterministic: true, keeps_places })
}

/// Proves that a program which is right combines the values of every element along a declared tree, whatever
/// the size and wherever the element lies.
///
/// # Errors
/// The first step that leaves the tree, or the fault of a program that is not right.
pub fn keeps_order(program: &Program, declared: &Declared) -> Result<(), Fault> {
    form::check(program)?;
    values::check_tree(program, &schedule::run(program, DEEPEST)?, declared)
}

/// Most slots with which a program is tried that runs with no fewer.
const DEEPEST: u32 = 1 << 20;

/// The fault of a program that does not run with `depth` slots: with enough of them it may.
fn too_deep(program: &Program, depth: u32, fault: Fault) -> Fault {
    let runs = |depth: u32| schedule::run(program, depth).is_ok();
    if !matches!(fault, Fault::Deadlock { .. }) || !runs(DEEPEST) {
        return fault;
    }
    let (mut low, mut high) = (depth, DEEPEST);
    while low + 1 < high {
        let middle = low.midpoint(high);
        if runs(middle) { high = middle } else { low = middle }
    }
    Fault::TooDeep { depth, needed: high }
}
