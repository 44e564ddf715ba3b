//! Executors: how a program runs. Each has a folder with an implementation of [`PlanExecutor`], and a line in
//! [`EXECUTORS`].

pub mod copy_engine;
pub mod fused;
pub mod host;
pub mod interpreter;
pub mod launch;
pub mod query;

use hawser_types::Executor;

pub use query::{Decided, Grid, Load, Plan, PlanExecutor, Query};

/// All executors, in the order in which ties are decided.
pub static EXECUTORS: [&dyn PlanExecutor; 4] =
    [&interpreter::Interpreter, &fused::Fused, &copy_engine::CopyEngine, &host::Host];

/// The executor of a name.
pub fn of(executor: Executor) -> &'static dyn PlanExecutor {
    EXECUTORS.into_iter().find(|known| known.executor() == executor).unwrap_or(EXECUTORS[0])
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
