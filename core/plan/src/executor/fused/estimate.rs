//! The executor of fused kernels as the chooser sees it.

use hawser_types::{Algorithm, Collective, DeviceKind, Executor, Result, Route};

use super::FusedPlan;
use super::grid::{grid, longest_part, most_blocks, rounds};
use super::support::{is_known, refused};
use crate::algo::ProgramKey;
use crate::config::PlanConfig;
use crate::cost;
use crate::decision::Outcome;
use crate::executor::interpreter::Lowered;
use crate::executor::query::{Decided, Grid, Load, Plan, PlanExecutor, Query};
use crate::topology::Topology;

/// The executor that runs a whole call in one kernel.
#[derive(Debug)]
pub struct Fused;

impl PlanExecutor for Fused {
    fn executor(&self) -> Executor {
        Executor::Fused
    }

    fn routes(&self) -> &'static [Route] {
        &[Route::FUSED_LL, Route::FUSED_LL128, Route::FUSED_SIMPLE, Route::ZERO_COPY]
    }

    fn offers(&self, collective: Collective, algorithm: Algorithm, _device: DeviceKind) -> bool {
        is_known(collective, algorithm)
    }

    fn supports(&self, query: &Query<'_>) -> std::result::Result<(), String> {
        refused(query.call, &query.key, query.route, query.topology).map_or(Ok(()), Err)
    }

    fn estimate(&self, query: &Query<'_>) -> Result<Outcome> {
        let Query { ref key, route, topology, config, .. } = *query;
        let bytes = query.bytes();
        let max_ctas = most_blocks(route).min(config.most_ctas(key.collective));
        let instances = grid(route, key.ranks, longest_of(key, bytes), max_ctas).0;
        let load = Load { key, route, bytes };
        let us = self.predict(&load, Grid { instances, channels: 1 }, topology, config) as f32;
        Ok(Outcome::Predicted { us, instances, channels: 1 })
    }

    fn predict(&self, load: &Load<'_>, grid_of: Grid, topology: &Topology, _config: &PlanConfig) -> f64 {
        let Load { key, route, bytes } = *load;
        let most = longest_of(key, bytes);
        let (blocks, threads, tile) = grid(route, key.ranks, most, grid_of.instances);
        let rounds = rounds(route, most, blocks, threads, tile);
        cost::predict_fused(key, route, (blocks, rounds), bytes, topology)
    }

    fn advised(&self, _query: &Query<'_>, best: Grid, blocks: u32) -> Result<u32> {
        Ok(blocks.clamp(1, best.instances))
    }

    fn threads(&self, query: &Query<'_>, grid_of: Grid) -> u32 {
        let most = longest_of(&query.key, query.bytes());
        grid(query.route, query.key.ranks, most, grid_of.instances).1
    }

    fn runs_steps(&self) -> bool {
        false
    }

    fn compile(&self, decided: &Decided<'_>, _program: Option<&Lowered>) -> Result<Plan> {
        let Decided { call, decision, rank, topology, config } = *decided;
        let plan = FusedPlan::new(call, decision, rank, topology.size(), config);
        Ok(Plan::Fused(Box::new(plan)))
    }
}

/// Bytes of the longest part of an exchange that moves `bytes` (the larger of input and output).
fn longest_of(key: &ProgramKey, bytes: u64) -> u64 {
    let blocks = key.collective.input_blocks(key.ranks).max(key.collective.output_blocks(key.ranks));
    longest_part(key.collective, key.algorithm, bytes / u64::from(blocks.max(1)), key.ranks)
}
