//! The host executor: threads of the CPU follow the steps of a program, where ranks have no GPU.
//!
//! It takes what the interpreter's plans say (`executor/interpreter`) and differs in who runs them. So it has
//! no protocol with flags: threads of a CPU see data and counters in order.

use hawser_types::{Algorithm, Collective, DeviceKind, Executor, Result, Route};

use super::interpreter::{Lowered, estimate};
use super::query::{Decided, Grid, Load, Plan, PlanExecutor, Query, compile_steps};
use crate::config::PlanConfig;
use crate::decision::Outcome;
use crate::topology::Topology;

/// The executor of ranks that have no GPU.
#[derive(Debug)]
pub struct Host;

impl PlanExecutor for Host {
    fn executor(&self) -> Executor {
        Executor::Host
    }

    fn routes(&self) -> &'static [Route] {
        &[Route::HOST]
    }

    fn offers(&self, _collective: Collective, _algorithm: Algorithm, device: DeviceKind) -> bool {
        device == DeviceKind::Host
    }

    fn supports(&self, query: &Query<'_>) -> std::result::Result<(), String> {
        match query.topology.device {
            DeviceKind::Host => estimate::refused_slots(query).map_or(Ok(()), Err),
            DeviceKind::Cuda { .. } => Err("ranks have GPUs".to_string()),
        }
    }

    fn estimate(&self, query: &Query<'_>) -> Result<Outcome> {
        estimate::cheapest(query)
    }

    fn predict(&self, load: &Load<'_>, grid: Grid, topology: &Topology, config: &PlanConfig) -> f64 {
        estimate::predict(load, grid, topology, config)
    }

    fn advised(&self, query: &Query<'_>, best: Grid, blocks: u32) -> Result<u32> {
        estimate::advised(query, best, blocks)
    }

    /// A block is one thread.
    fn threads(&self, _query: &Query<'_>, _grid: Grid) -> u32 {
        1
    }

    fn compile(&self, decided: &Decided<'_>, program: Option<&Lowered>) -> Result<Plan> {
        compile_steps(decided, program, decided.config)
    }
}
