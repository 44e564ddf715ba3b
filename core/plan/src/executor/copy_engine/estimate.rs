//! The executor of copy engines as the chooser sees it.

use hawser_types::{Algorithm, Collective, DeviceKind, Executor, Result, Route};

use super::reduce_kernel::ctas;
use super::staging::LANES;
use super::support::{is_known, refused};
use super::tiles::config_for;
use crate::algo;
use crate::config::PlanConfig;
use crate::cost;
use crate::decision::Outcome;
use crate::executor::interpreter::{Lowered, packing};
use crate::executor::query::{Decided, Grid, Load, Plan, PlanExecutor, Query, compile_steps};
use crate::topology::Topology;

/// The executor whose moves need no multiprocessors.
#[derive(Debug)]
pub struct CopyEngine;

impl PlanExecutor for CopyEngine {
    fn executor(&self) -> Executor {
        Executor::CopyEngine
    }

    fn routes(&self) -> &'static [Route] {
        &[Route::COPY_ENGINE]
    }

    /// Moves are listed with the reason where their program's channels wait for each other; reductions are
    /// not.
    fn offers(&self, collective: Collective, algorithm: Algorithm, _device: DeviceKind) -> bool {
        !collective.reduces() || is_known(collective, algorithm)
    }

    fn supports(&self, query: &Query<'_>) -> std::result::Result<(), String> {
        refused(query.call, &query.key, query.topology, query.config).map_or(Ok(()), Err)
    }

    fn estimate(&self, query: &Query<'_>) -> Result<Outcome> {
        let Query { ref key, route, topology, config, .. } = *query;
        let bytes = query.bytes();
        let config = config_for(key, bytes, topology, config);
        match packing(key, algo::channels(key)?, &config) {
            Err(error) => return Ok(Outcome::Filtered(error.into_text())),
            // One block runs all channels, so that ranks go through their peers in the same order.
            Ok(packing) if packing.blocks > LANES => {
                let reason = format!("its steps need {} blocks, copy engines run one", packing.blocks);
                return Ok(Outcome::Filtered(reason));
            }
            Ok(_) => {}
        }
        let load = Load { key, route, bytes };
        let us = match key.collective.reduces() {
            true => cost::predict_reduction(key, ctas(&config), bytes, topology, &config),
            false => self.predict(&load, Grid { instances: LANES, channels: 1 }, topology, &config),
        };
        Ok(Outcome::Predicted { us: us as f32, instances: LANES, channels: 1 })
    }

    fn predict(&self, load: &Load<'_>, grid: Grid, topology: &Topology, config: &PlanConfig) -> f64 {
        let Grid { instances, channels } = grid;
        cost::predict(load.key, channels, load.route, instances, load.bytes, topology, config)
    }

    fn advised(&self, _query: &Query<'_>, best: Grid, blocks: u32) -> Result<u32> {
        Ok(blocks.clamp(1, best.instances))
    }

    fn threads(&self, query: &Query<'_>, _grid: Grid) -> u32 {
        cost::threads(query.topology.device, query.route)
    }

    fn compile(&self, decided: &Decided<'_>, program: Option<&Lowered>) -> Result<Plan> {
        let Decided { call, decision, topology, config, .. } = *decided;
        let config = config_for(&decision.key, call.total_bytes(topology.size()), topology, config);
        compile_steps(decided, program, &config)
    }
}
