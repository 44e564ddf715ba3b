//! The moves of a plan of no known collective: nothing else says what it is for.

use super::op::{Act, Op, Place};
use super::plan::{Plan, named};
use super::run::At;
use crate::fault::{Class, ImportError, Result};
use crate::memory::Memory;
use crate::xml::Outputs;

/// Works out what every rank has in its output after all operations, in an order in which they can happen.
///
/// # Errors
/// An operation combines values, or reads what nobody wrote.
pub(super) fn follow(plan: &Plan, order: &[At]) -> Result<Vec<Outputs>> {
    let mut memories: Vec<Memory> =
        (0..plan.algo.ranks).map(|rank| Memory::new(&plan.algo, rank, 0)).collect();
    for &(rank, block, number) in order {
        let op = &plan.ranks[rank].blocks[block][number];
        let Act::Data { moves, .. } = &op.act else { continue };
        for one in moves {
            let [from] = one.from.as_slice() else {
                let text = "combines values: a plan that stands for no collective only moves them";
                return Err(named(ImportError::new(Class::Collective, op.pos, text), &op.place));
            };
            copy(&mut memories, op, from, &one.to)?;
        }
    }
    Ok(memories.iter().map(Memory::moved).collect())
}

fn copy(memories: &mut [Memory], op: &Op, from: &Place, to: &[Place]) -> Result<()> {
    let mut values = Vec::new();
    for chunk in from.first..from.first + from.count {
        let Some((_, value)) = memories[from.rank as usize].read(from.buf, chunk) else {
            let name = ["input", "output", "scratch"][from.buf as usize];
            let text = format!("reads chunk {chunk} of the {name} of gpu {}, which nobody wrote", from.rank);
            return Err(named(ImportError::new(Class::Undefined, op.pos, text), &op.place));
        };
        values.push(value);
    }
    for place in to {
        for (chunk, value) in (place.first..).zip(&values) {
            memories[place.rank as usize].write(place.buf, chunk, value.clone(), op.pos);
        }
    }
    Ok(())
}
