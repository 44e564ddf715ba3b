//! The executor of the interpreter as the chooser sees it.

use hawser_types::{Algorithm, Collective, Executor, Protocol, Result, Route};

use super::{Lowered, packing, refused_runs};
use crate::algo;
use crate::config::PlanConfig;
use crate::cost;
use crate::decision::Outcome;
use crate::executor::query::{Decided, Grid, Load, Plan, PlanExecutor, Query, compile_steps};
use crate::topology::{DeviceKind, Link, Topology};

/// Numbers of instances that are tried.
const INSTANCES: [u32; 7] = [1, 2, 4, 8, 12, 16, 24];
/// A chunk is not cut into pieces smaller than this.
const USEFUL_BYTES: u64 = 2 << 10;
/// Over a network, a chunk is not cut into pieces smaller than this, nor into more pieces than
/// [`NET_INSTANCES`]: measured over TCP, where one connection at a time is fastest up to a few MiB, and four
/// are from 16 MiB on.
const NET_USEFUL_BYTES: u64 = 1 << 20;
/// The same where ranks have NICs of their own, which a block does not keep busy: by the twin.
const OWN_NIC_USEFUL_BYTES: u64 = 128 << 10;
/// Most pieces of a chunk that goes over a network.
const NET_INSTANCES: u32 = 4;
/// Above this size the host device runs two instances.
const HOST_SPLIT_BYTES: u64 = 64 << 10;

/// The executor that follows a program's steps, block by block.
#[derive(Debug)]
pub struct Interpreter;

impl PlanExecutor for Interpreter {
    fn executor(&self) -> Executor {
        Executor::Interpreter
    }

    fn routes(&self) -> &'static [Route] {
        &[Route::LL, Route::LL128, Route::SIMPLE]
    }

    fn offers(&self, _collective: Collective, _algorithm: Algorithm, device: DeviceKind) -> bool {
        device != DeviceKind::Host
    }

    fn supports(&self, query: &Query<'_>) -> std::result::Result<(), String> {
        let Query { route, topology, .. } = *query;
        if let Some(reason) = refused_slots(query) {
            return Err(reason);
        }
        match (route.protocol, topology.device, topology.link) {
            (_, DeviceKind::Host, _) => Err("ranks have no GPU".to_string()),
            (Protocol::Simple, _, _) => Ok(()),
            _ if query.key.algorithm == Algorithm::CollNet => {
                Err("networks that reduce take the Simple protocol only".to_string())
            }
            (Protocol::Ll128, ..) if topology.hosts() > 1 => {
                Err("LL128 needs lines that land whole: none between hosts".to_string())
            }
            (Protocol::Ll128, DeviceKind::Cuda { sm }, _) if sm < 70 => {
                Err(format!("LL128 needs sm_70, this is sm_{sm}"))
            }
            (Protocol::Ll128, _, Link::Pcie | Link::HostMemory) => {
                Err("LL128 needs lines that land whole: NVLink only".to_string())
            }
            _ => Ok(()),
        }
    }

    fn estimate(&self, query: &Query<'_>) -> Result<Outcome> {
        cheapest(query)
    }

    fn predict(&self, load: &Load<'_>, grid: Grid, topology: &Topology, config: &PlanConfig) -> f64 {
        predict(load, grid, topology, config)
    }

    fn advised(&self, query: &Query<'_>, best: Grid, blocks: u32) -> Result<u32> {
        advised(query, best, blocks)
    }

    fn threads(&self, query: &Query<'_>, grid: Grid) -> u32 {
        let usual = cost::threads(query.topology.device, query.route);
        let bytes_per_block = query.bytes() / u64::from(grid.instances * grid.channels);
        if query.route == Route::LL && bytes_per_block > 4096 { usual * 2 } else { usual }
    }

    fn compile(&self, decided: &Decided<'_>, program: Option<&Lowered>) -> Result<Plan> {
        compile_steps(decided, program, decided.config)
    }
}

/// The reason why a protocol has no slots to move data through, if so.
pub fn refused_slots(query: &Query<'_>) -> Option<String> {
    let is_away = query.config.slot_bytes[query.route.slots()] < 128;
    is_away.then(|| "its FIFO slots are configured away".to_string())
}

/// The cheapest grid of a program that is run step by step, and its time.
///
/// # Errors
/// A program that cannot be made: a bug of this crate.
pub fn cheapest(query: &Query<'_>) -> Result<Outcome> {
    let Query { key, route, topology, config, .. } = *query;
    let bytes = query.bytes();
    let packing = match packing(&key, algo::channels(&key)?, config) {
        Ok(packing) => packing,
        Err(error) => return Ok(Outcome::Filtered(error.into_text())),
    };
    let block = query.call.count * query.call.dtype.size() as u64;
    if algo::run(&key) > 1
        && let Some(reason) = refused_runs(block, route, config)
    {
        return Ok(Outcome::Filtered(reason));
    }
    let channels = packing.blocks;
    let most = config.most_ctas(key.collective);
    if channels > most && most < config.max_ctas {
        let reason = format!("needs {channels} CTAs, HAWSER_SM_FREE_CTAS allows {most}");
        return Ok(Outcome::Filtered(reason));
    }
    let limit = packing.most_instances.min((most / channels).max(1));
    let limit = match topology.device {
        DeviceKind::Host if bytes <= HOST_SPLIT_BYTES => 1,
        DeviceKind::Host => limit.min(2),
        DeviceKind::Cuda { .. } if topology.hosts() > 1 => limit.min(NET_INSTANCES),
        DeviceKind::Cuda { .. } => limit,
    };
    let useful_bytes = match topology.hosts() {
        1 => USEFUL_BYTES,
        _ if topology.has_own_nics() => OWN_NIC_USEFUL_BYTES,
        _ => NET_USEFUL_BYTES,
    };
    let chunk = bytes / u64::from(algo::shape(&key)?.per_block);
    let useful = u64::from(limit).min(chunk.div_ceil(useful_bytes).max(1)) as u32;
    let least = config.min_ctas.div_ceil(channels).min(limit);
    let limit = useful.max(least);
    let load = Load { key: &key, route, bytes };
    let mut best: Option<(f32, u32)> = None;
    for instances in INSTANCES.into_iter().map(|i| i.clamp(least, limit)) {
        let us = predict(&load, Grid { instances, channels }, topology, config) as f32;
        if best.is_none_or(|(cheapest, _)| us < cheapest) {
            best = Some((us, instances));
        }
    }
    let (us, instances) = best.unwrap_or((f32::MAX, 1));
    Ok(Outcome::Predicted { us, instances, channels })
}

/// The predicted time in µs of a program that is run step by step in a given grid.
pub fn predict(load: &Load<'_>, grid: Grid, topology: &Topology, config: &PlanConfig) -> f64 {
    let Grid { instances, channels } = grid;
    cost::predict(load.key, channels, load.route, instances, load.bytes, topology, config)
}

/// The copies of a program where a tuner asks for so many blocks.
///
/// # Errors
/// As [`cheapest`].
pub fn advised(query: &Query<'_>, best: Grid, blocks: u32) -> Result<u32> {
    let Query { call, key, config, .. } = *query;
    let most = packing(&key, algo::channels(&key)?, config)?.most_instances;
    let room = (config.most_ctas(call.collective) / best.channels).max(1);
    Ok(blocks.div_ceil(best.channels).clamp(1, most.min(room)))
}
