//! Executors: how a program runs. Each has a folder with an implementation of [`PlanExecutor`], and a line in
//! [`EXECUTORS`].

pub mod copy_engine;
pub mod fused;
pub mod host;
pub mod interpreter;
pub mod launch;
pub mod order;
pub mod query;

use hawser_types::{Executor, Result};

use crate::algo;
use launch::device_op;

pub use query::{Decided, Grid, Load, Plan, PlanExecutor, Query};

/// All executors, in the order in which ties are decided.
pub static EXECUTORS: [&dyn PlanExecutor; 4] =
    [&interpreter::Interpreter, &fused::Fused, &copy_engine::CopyEngine, &host::Host];

/// The executor of a name.
pub fn of(executor: Executor) -> &'static dyn PlanExecutor {
    EXECUTORS.into_iter().find(|known| known.executor() == executor).unwrap_or(EXECUTORS[0])
}

/// The blocks in which a rank would run a call as decided, without running it.
///
/// # Errors
/// As [`PlanExecutor::compile`].
pub fn blocks(decided: &Decided<'_>) -> Result<u8> {
    let Decided { call, decision, rank, .. } = *decided;
    let (executor, key) = (of(decision.route.executor), &decision.key);
    let lowered = match executor.runs_steps() {
        true => {
            Some(interpreter::lower(&algo::shape(key)?, &algo::rank_program(key, rank)?, device_op(call))?)
        }
        false => None,
    };
    Ok(executor.compile(decided, lowered.as_ref())?.blocks())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_types::Route;

    #[test]
    fn every_route_has_its_executor() {
        for executor in Executor::ALL {
            assert_eq!(of(executor).executor(), executor);
        }
        for route in Route::ALL {
            assert!(of(route.executor).routes().contains(&route), "{route:?}");
        }
        let routes = EXECUTORS.iter().map(|executor| executor.routes().len()).sum::<usize>();
        assert_eq!(routes, Route::ALL.len());
    }
}
