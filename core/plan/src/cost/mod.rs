//! The cost of a candidate: latency of its hops, bytes on the busiest link, work of its blocks.
//!
//! The formulas are here, the numbers in [`Constants`]: built-in ones, or those that `hawser measure` found
//! on a machine ([`crate::fit`]). A model never has to be right, only to order the candidates; `Why` prints
//! what it said.

pub use crate::link_constants::{Constants, Path, section};

use crate::algo::{self, Across, Load, NetTraffic, ProgramKey, Traffic};
use crate::config::PlanConfig;
use crate::executor::copy_engine::READ_GBS;
use crate::imported::{Imported, kept};
use crate::topology::Topology;
use hawser_program::Buf;
use hawser_types::{Algorithm, Collective, DeviceKind, Route};

/// Threads per block.
pub fn threads(device: DeviceKind, route: Route) -> u32 {
    match (device, route) {
        (DeviceKind::Host, _) => 1,
        (_, Route::LL) => 256,
        _ => 512,
    }
}

/// Predicted time in µs of a program for `bytes` bytes (the larger of input and output) in
/// `instances` instances of `channels` channels.
pub fn predict(
    key: &ProgramKey,
    channels: u32,
    route: Route,
    instances: u32,
    bytes: u64,
    topology: &Topology,
    config: &PlanConfig,
) -> f64 {
    let constants = &topology.constants;
    let path = constants.path(route);
    let traffic = traffic(key, bytes as f64, constants.all_to_all);
    let blocks = f64::from(instances * channels);
    let slot = f64::from(config.slot_bytes[route.slots()].max(1));
    let tiles = (traffic.chunk / f64::from(instances) / slot).ceil().max(1.0);
    let wire = traffic.out / (constants.wire() * traffic.share * path.wire_share);
    let work = traffic.streamed / (blocks * path.block());
    let waits = (tiles - 1.0) * traffic.waits * path.round_us;
    let tile_us = slot.min(traffic.chunk / f64::from(instances)) / path.block();
    let fill = traffic.fill * tile_us;
    let (far, far_hops) = match topology.hosts() {
        1 => (0.0, 0.0),
        _ => net(key, route, (bytes as f64, tiles, tile_us), topology),
    };
    let moved = wire.max(work + waits).max(far);
    path.fixed_us + traffic.hops * path.hop_us + far_hops + fill + moved + blocks * path.block_us
}

/// Predicted time in µs of a reduction whose moves are made by copy engines and whose sums by `ctas` CTAs,
/// from everybody to everybody: one after the other, tile by tile.
pub fn predict_reduction(
    key: &ProgramKey,
    ctas: u32,
    bytes: u64,
    topology: &Topology,
    config: &PlanConfig,
) -> f64 {
    let path = topology.constants.path(Route::COPY_ENGINE);
    let traffic = traffic(key, bytes as f64, topology.constants.all_to_all);
    let wire = topology.constants.wire() * traffic.share * path.wire_share;
    let reads = match topology.device {
        DeviceKind::Host => path.block(),
        DeviceKind::Cuda { .. } => READ_GBS * 1e3,
    };
    let slot = f64::from(config.slot_bytes[Route::COPY_ENGINE.slots()].max(1));
    let tiles = (traffic.chunk / slot).ceil().max(1.0);
    let hops = if key.collective == Collective::ReduceScatter { 2.0 } else { 3.0 };
    let reduced = f64::from(key.ranks) * traffic.chunk / (f64::from(ctas) * reads);
    path.fixed_us + tiles * hops * path.hop_us + reduced + traffic.out / wire
}

/// Predicted time in µs of a fused kernel in `blocks` blocks that begin `rounds` times.
pub fn predict_fused(
    key: &ProgramKey,
    route: Route,
    (blocks, rounds): (u32, u64),
    bytes: u64,
    topology: &Topology,
) -> f64 {
    let path = topology.constants.path(route);
    let out = traffic(key, bytes as f64, 1.0).out;
    let exchanges = exchanges(key);
    let share = program_share(key) * if route == Route::ZERO_COPY { direct_share(key) } else { 1.0 };
    let wire = topology.constants.wire() * path.wire_share * share;
    let rate = wire.min(f64::from(blocks) * path.block());
    // While a round waits for its peers, the wire is still busy with the one before.
    let waits = (rounds as f64 - 1.0) * path.round_us * exchanges / share;
    path.fixed_us + path.hop_us * exchanges + (out / rate).max(waits) + f64::from(blocks) * path.block_us
}

/// Share of the wire's rate that a program reaches, and of the speed of its rounds. Where the root has more
/// to do than the others, its part of the second exchange waits for theirs; where every rank combines all of
/// the data, tiles wait for that.
fn program_share(key: &ProgramKey) -> f64 {
    match (key.algorithm, key.collective) {
        (Algorithm::AllPairs, Collective::Broadcast) => 0.85,
        (Algorithm::AllPairs, Collective::Reduce) => 0.6,
        (Algorithm::OneShot, Collective::AllReduce) => 0.83,
        _ => 1.0,
    }
}

/// The gain of ways without staging where tiles are said to have their share of the wire: set so that both
/// meet where they did when measured on two GPUs (`bench/`), between 4 and 64 MiB. What is combined gains
/// nothing, it seems, where many read from many: kernels pull 312 GB/s on eight GPUs, NCCL reaches 347.
fn direct_share(key: &ProgramKey) -> f64 {
    use Collective::{AllGather, AllReduce, AllToAll, Gather, ReduceScatter, Scatter};
    match key.collective {
        AllToAll => 1.3,
        AllReduce | ReduceScatter if key.ranks > 2 => 0.89,
        AllReduce => 0.94,
        AllGather | ReduceScatter | Scatter => 1.08,
        Gather => 0.93,
        _ => 0.95,
    }
}

/// Exchanges of a program.
fn exchanges(key: &ProgramKey) -> f64 {
    algo::generator(key.collective, key.algorithm).map_or(1.0, |generator| f64::from(generator.exchanges))
}

/// Megabits per second of a network that does not say.
const NET_MBPS: u32 = 25_000;

/// The time that the network adds: µs for the bytes out of the busiest host and the hops of all tiles, and µs
/// for the hops and messages of the first tile. A block moves a tile in `tile_us`.
fn net(
    key: &ProgramKey,
    route: Route,
    (bytes, tiles, tile_us): (f64, f64, f64),
    topology: &Topology,
) -> (f64, f64) {
    // Flags travel with the data.
    let on_wire = if route == Route::LL { 2.0 } else { 1.0 };
    let across = Across {
        key: *key,
        bytes: bytes * on_wire,
        hosts: f64::from(topology.hosts()),
        local: f64::from(topology.places().1),
    };
    let NetTraffic { out, out_of_rank, hops, waits, passes, busiest, more_messages } = net_traffic(&across);
    let of_host = if topology.net_mbps == 0 { NET_MBPS } else { topology.net_mbps };
    let of_rank = if topology.rank_mbps == 0 { of_host } else { topology.rank_mbps };
    // A megabit per second is an eighth of a byte per µs.
    let us = |bytes: f64, mbps: u32| bytes / (f64::from(mbps) / 8.0);
    let moved = us(out, of_host).max(us(out_of_rank, of_rank));
    let passed = if topology.has_own_nics() { passes * tile_us } else { 0.0 };
    let waits = (tiles - 1.0) * waits * (topology.constants.net_round_us + passed);
    let Constants { net_hop_us, net_message_us, .. } = topology.constants;
    let begin = match key.collective {
        // Ranks do not wait for those behind them, so calls that follow one another overlap: what the busiest
        // rank has to do counts more than how long one call takes. The weights fit Ring, Knomial, OneShot and
        // Tree on 4 and 8 hosts.
        Collective::Broadcast | Collective::Reduce => {
            hops * net_hop_us / 3.0 + 2.0 * busiest * net_message_us
        }
        _ => hops * (net_hop_us + passed) + more_messages * net_message_us,
    };
    (moved + waits, begin)
}

/// The traffic of a program between hosts.
fn net_traffic(across: &Across) -> NetTraffic {
    let ProgramKey { collective, algorithm, .. } = across.key;
    match (algorithm, algo::generator(collective, algorithm)) {
        (_, Some(generator)) => (generator.across)(across),
        (Algorithm::Imported(program), _) => {
            let traffic = brought(kept(program), across.bytes);
            NetTraffic::new(traffic.out * across.local, traffic.hops).over(across.local)
        }
        _ => NetTraffic::new(across.bytes, 1.0),
    }
}

/// The traffic of the busiest rank of a program of `bytes` bytes.
fn traffic(key: &ProgramKey, bytes: f64, all_to_all: f64) -> Traffic {
    let load = Load { key: *key, bytes, all_to_all };
    match (key.algorithm, algo::generator(key.collective, key.algorithm)) {
        _ if key.ranks == 1 => Traffic { hops: 0.0, waits: 0.0, out: 0.0, ..load.chain() },
        (_, Some(generator)) => (generator.traffic)(&load),
        (Algorithm::Imported(program), _) => brought(kept(program), bytes),
        _ => load.pairs(),
    }
}

/// A program that the user brought: what its busiest rank does.
fn brought(program: &Imported, bytes: f64) -> Traffic {
    let shape = &program.program.shape;
    let chunks = shape.chunks(Buf::Input).max(shape.chunks(Buf::Output));
    let chunk = bytes / f64::from(chunks.max(1));
    let hops = f64::from(program.traffic.hops);
    let (out, streamed) = (program.traffic.out as f64 * chunk, program.traffic.moved as f64 * chunk);
    Traffic { hops, waits: hops, fill: 0.0, out, share: 0.8, streamed, chunk }
}
