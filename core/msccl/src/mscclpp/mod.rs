//! MSCCL++'s JSON plans: [`read`] imports them in the present dialect and in that before MSCCL++ 0.8.
//!
//! Such plans put data into the memory of other ranks and tell them by signals; programs here send and
//! receive. So a plan is read (`json`, `plan`, `op`), run with its signals, barriers, semaphores and packets,
//! which finds an order of all operations or what is not ordered (`run`), its moves are put together
//! (`gather`), and written as a file of MSCCL's that moves the same (`emit`), which is proved like any
//! other. What a plan of no known collective has to compute is what it moves (`follow`); the file is held
//! against that.

mod emit;
mod follow;
mod gather;
mod json;
mod op;
mod plan;
mod run;

use super::fault::Result;
use super::memory::Memory;
use super::{Import, check, finish};
use hawser_types::Collective;
use plan::named;

/// Reads a plan and proves its program.
///
/// # Errors
/// The first fault, with its class, line and column, and the operation where there is one.
pub fn read(text: &str) -> Result<Import> {
    let mut plan = plan::read(text)?;
    check::check(&mut plan.algo)?;
    let memory = |rank| Memory::new(&plan.algo, rank, 0);
    let memories: Vec<Memory> = (0..plan.algo.ranks).map(memory).collect();
    let order = run::run(&plan, &memories)?;
    if plan.algo.collective == Collective::SendRecv {
        plan.algo.moved = Some(follow::follow(&plan, &order)?);
    }
    let blocks = plan.ranks.iter().flat_map(|rank| &rank.blocks);
    let places: Vec<_> = blocks.flatten().map(|op| (op.pos, op.place.clone())).collect();
    let jobs = gather::gather(&plan, &memories, &order);
    let algo = emit::emit(plan, &memories, &jobs);
    finish(algo).map_err(|error| {
        let place = places.iter().find(|(pos, _)| (pos.line, pos.column) == (error.line, error.column));
        place.map_or(error.clone(), |(_, place)| named(error, place))
    })
}
