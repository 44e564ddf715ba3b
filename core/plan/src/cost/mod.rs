//! What a candidate costs: latency of its hops, bytes on the busiest link, work of its blocks.
//!
//! The formulas are here, the numbers in [`Constants`]: built-in ones, or those that `hawser measure` found on a machine
//! ([`crate::fit`]). A model never has to be right, only to order the candidates; `Why` prints what it said.

pub use crate::link_constants::{Constants, Path};

use crate::algo::ProgramKey;
use crate::config::PlanConfig;
use crate::imported::{Imported, kept};
use crate::topology::Topology;
use hawser_program::Buf;
use hawser_types::{Algorithm, Collective, DeviceKind, Protocol};

/// Threads per block.
pub fn threads(device: DeviceKind, protocol: Protocol) -> u32 {
    match (device, protocol) {
        (DeviceKind::Host, _) => 1,
        (_, Protocol::Ll) => 256,
        _ => 512,
    }
}

/// Predicted time in µs of a program for `bytes` bytes (the larger of input and output) in
/// `instances` instances of `channels` channels.
pub fn predict(
    key: &ProgramKey,
    channels: u32,
    protocol: Protocol,
    instances: u32,
    bytes: u64,
    topology: &Topology,
    config: &PlanConfig,
) -> f64 {
    let constants = &topology.constants;
    let path = constants.path(protocol);
    let traffic = traffic(key, bytes as f64, constants.all_to_all);
    let blocks = f64::from(instances * channels);
    let slot = f64::from(config.slot_bytes[protocol.slots()].max(1));
    let tiles = (traffic.chunk / f64::from(instances) / slot).ceil().max(1.0);
    let wire = traffic.out / (constants.wire() * traffic.share * path.wire_share);
    let work = traffic.streamed / (blocks * path.block());
    let waits = (tiles - 1.0) * traffic.waits * path.round_us;
    let fill = traffic.fill * (slot.min(traffic.chunk / f64::from(instances)) / path.block());
    let (far, far_hops) =
        if topology.hosts() > 1 { net(key, bytes as f64, tiles, topology) } else { (0.0, 0.0) };
    let moved = wire.max(work + waits).max(far);
    path.fixed_us + traffic.hops * path.hop_us + far_hops + fill + moved + blocks * path.block_us
}

/// Predicted time in µs of a reduction whose moves are made by copy engines and whose sums by `ctas` CTAs, from everybody to
/// everybody: one after the other, tile by tile.
pub fn predict_folds(
    key: &ProgramKey,
    ctas: u32,
    bytes: u64,
    topology: &Topology,
    config: &PlanConfig,
) -> f64 {
    /// Bytes that a CTA of a GPU reads in a µs: measured with one and two CTAs of an H200 (bench/README.md).
    const READS: f64 = 50e3;
    let path = topology.constants.path(Protocol::Dma);
    let traffic = traffic(key, bytes as f64, topology.constants.all_to_all);
    let wire = topology.constants.wire() * traffic.share * path.wire_share;
    let reads = match topology.device {
        DeviceKind::Host => path.block(),
        DeviceKind::Cuda { .. } => READS,
    };
    let slot = f64::from(config.slot_bytes[Protocol::Dma.slots()].max(1));
    let tiles = (traffic.chunk / slot).ceil().max(1.0);
    let hops = if key.collective == Collective::ReduceScatter { 2.0 } else { 3.0 };
    let folded = f64::from(key.ranks) * traffic.chunk / (f64::from(ctas) * reads);
    path.fixed_us + tiles * hops * path.hop_us + folded + traffic.out / wire
}

/// Predicted time in µs of an exchange kernel in `blocks` blocks that begin `rounds` times.
pub fn predict_exchange(
    key: &ProgramKey,
    protocol: Protocol,
    (blocks, rounds): (u32, u64),
    bytes: u64,
    topology: &Topology,
) -> f64 {
    let path = topology.constants.path(protocol);
    let out = traffic(key, bytes as f64, 1.0).out;
    let exchanges = exchanges(key);
    let share = program_share(key) * if protocol == Protocol::SymDirect { direct_share(key) } else { 1.0 };
    let wire = topology.constants.wire() * path.wire_share * share;
    let rate = wire.min(f64::from(blocks) * path.block());
    // While a round waits for its peers, the wire is still busy with the one before.
    let waits = (rounds as f64 - 1.0) * path.round_us * exchanges / share;
    path.fixed_us + path.hop_us * exchanges + (out / rate).max(waits) + f64::from(blocks) * path.block_us
}

/// Share of the wire's rate that a program reaches, and of the speed of its rounds. Where the root has more to do than the others, its part of the second
/// exchange waits for theirs; where every rank combines all of the data, tiles wait for that.
fn program_share(key: &ProgramKey) -> f64 {
    match (key.algorithm, key.collective) {
        (Algorithm::AllPairs, Collective::Broadcast) => 0.85,
        (Algorithm::AllPairs, Collective::Reduce) => 0.6,
        (Algorithm::OneShot, Collective::AllReduce) => 0.83,
        _ => 1.0,
    }
}

/// What ways without staging gain where tiles are said to have their share of the wire: set so that both meet where they did when
/// measured on two GPUs (`bench/`), between 4 and 64 MiB. What is combined gains nothing, it seems, where many read from many: kernels
/// pull 312 GB/s on eight GPUs, NCCL reaches 347.
fn direct_share(key: &ProgramKey) -> f64 {
    use Collective::{AllGather, AllReduce, AllToAll, Gather, ReduceScatter, Scatter};
    match key.collective {
        AllToAll => 1.3,
        AllReduce | ReduceScatter if key.ranks > 2 => 0.89,
        AllReduce | AllGather | ReduceScatter | Scatter => 1.08,
        Gather => 0.93,
        _ => 0.95,
    }
}

/// Exchanges of a program.
fn exchanges(key: &ProgramKey) -> f64 {
    use Collective::{AllReduce, Broadcast, Reduce};
    let two =
        key.algorithm == Algorithm::AllPairs && matches!(key.collective, AllReduce | Broadcast | Reduce);
    if two { 2.0 } else { 1.0 }
}

/// Megabits per second of a network that does not say.
const NET_MBPS: u32 = 25_000;

/// What the network adds: µs for the bytes out of the busiest host and the hops of all tiles, and µs for the
/// hops and messages of the first tile.
fn net(key: &ProgramKey, bytes: f64, tiles: f64, topology: &Topology) -> (f64, f64) {
    let (n, hosts) = (f64::from(key.ranks), f64::from(topology.hosts()));
    let local = f64::from(topology.places().1);
    let far = (n - local).max(1.0);
    let ring = bytes * (n - 1.0) / n;
    // All ranks of a host send a share of their bytes to every far rank.
    // Many senders to one receiver do not fill its link.
    let pairs = bytes * local * far / n / if hosts > 2.0 { 0.85 } else { 1.0 };
    let levels = hosts.log2().ceil();
    let (out, hops) = match (key.algorithm, key.collective) {
        (Algorithm::Ring, Collective::AllReduce) => (2.0 * ring, 2.0 * hosts),
        (Algorithm::Ring, Collective::Broadcast | Collective::Reduce) => (bytes, hosts - 1.0),
        (Algorithm::Ring, _) => (ring, hosts),
        (Algorithm::Tree, Collective::AllReduce) => (2.0 * bytes, 2.0 * levels),
        (Algorithm::Tree, _) => (bytes, levels),
        (Algorithm::OneShot, Collective::AllReduce) => (bytes * local * far, 1.0),
        (Algorithm::OneShot, _) => (bytes * far, 1.0),
        (Algorithm::AllPairs, Collective::AllReduce) => (2.0 * pairs, 2.0),
        (Algorithm::AllPairs, _) => (pairs, 1.0),
        (Algorithm::Direct, Collective::AllToAll) => (pairs, 1.0),
        (Algorithm::Direct, _) => (bytes * far / n, 1.0),
        (Algorithm::CollNet, _) => (bytes, 1.0),
        (Algorithm::Hierarchical, _) if hosts == 2.0 => (bytes, 1.0),
        (Algorithm::Hierarchical, _) => (2.0 * bytes * (hosts - 1.0) / hosts, 2.0 * (hosts - 1.0)),
        (Algorithm::RecursiveDoubling, _) => (bytes * local * levels, levels),
        (Algorithm::HalvingDoubling, _) => (2.0 * bytes * local, 2.0 * levels),
        (Algorithm::Bruck, _) => (pairs * levels, levels),
        (Algorithm::Pairwise, _) => (pairs, far),
        (Algorithm::Knomial, _) => (bytes * levels, levels),
        (Algorithm::Pat, _) => (ring * local, levels),
        (Algorithm::Imported(program), _) => {
            let traffic = imported(kept(program), bytes);
            (traffic.out * local, traffic.hops)
        }
    };
    let mbps = if topology.net_mbps == 0 { NET_MBPS } else { topology.net_mbps };
    // A megabit per second is an eighth of a byte per µs.
    let waits = (tiles - 1.0) * hops * topology.constants.net_round_us;
    let Constants { net_hop_us, net_message_us, .. } = topology.constants;
    let begin = match key.collective {
        // Ranks do not wait for those behind them, so calls that follow one another overlap: what the busiest
        // rank has to do counts more than how long one call takes. The weights fit Ring, Knomial, OneShot and
        // Tree on 4 and 8 hosts.
        Collective::Broadcast | Collective::Reduce => {
            hops * net_hop_us / 3.0 + 2.0 * busiest(key, far, levels) * net_message_us
        }
        _ => hops * net_hop_us + more_messages(key, far) * net_message_us,
    };
    (out / (f64::from(mbps) / 8.0) + waits, begin)
}

/// Messages to and from other hosts that the busiest rank of a program with a root has for a tile.
fn busiest(key: &ProgramKey, far: f64, levels: f64) -> f64 {
    match key.algorithm {
        Algorithm::OneShot | Algorithm::Direct => far,
        Algorithm::AllPairs => 2.0 * far,
        Algorithm::Knomial => levels,
        Algorithm::Tree => 6.0,
        _ => 2.0,
    }
}

/// Messages to and from other hosts that the busiest rank of a program has for the first tile beside one each
/// way for each hop; `far` is the number of ranks on other hosts.
fn more_messages(key: &ProgramKey, far: f64) -> f64 {
    match (key.algorithm, key.collective) {
        (Algorithm::AllPairs, Collective::AllReduce) => 4.0 * (far - 1.0),
        (Algorithm::OneShot | Algorithm::AllPairs | Algorithm::Direct, _) => 2.0 * (far - 1.0),
        _ => 0.0,
    }
}

/// What a rank of a program does with `bytes` bytes.
#[derive(Debug, Clone, Copy)]
struct Traffic {
    /// Hops that follow one another for the first tile.
    hops: f64,
    /// Hops that every further tile waits for.
    waits: f64,
    /// Tiles' times until the last rank of a pipeline has its first tile.
    fill: f64,
    /// Bytes out of (or into) the busiest rank.
    out: f64,
    /// Share of the wire's rate that the pattern reaches.
    share: f64,
    /// Bytes that the busiest rank's blocks send, receive or combine.
    streamed: f64,
    /// Bytes of a chunk.
    chunk: f64,
}

fn traffic(key: &ProgramKey, bytes: f64, all_to_all: f64) -> Traffic {
    let n = f64::from(key.ranks);
    let others = n - 1.0;
    let part = bytes * others / n;
    let chain = chain(bytes, n);
    let ring = Traffic {
        hops: others,
        waits: others,
        fill: 0.0,
        out: part,
        streamed: part,
        chunk: bytes / n,
        ..chain
    };
    let pairs = Traffic { hops: 1.0, waits: 1.0, share: all_to_all, streamed: part, ..ring };
    match (key.algorithm, key.collective) {
        _ if key.ranks == 1 => Traffic { hops: 0.0, waits: 0.0, out: 0.0, ..chain },
        (Algorithm::Ring, Collective::AllReduce) => {
            let hops = 2.0 * others;
            Traffic { hops, waits: hops, out: 2.0 * part, streamed: 2.0 * part, ..ring }
        }
        (Algorithm::Ring, Collective::Broadcast | Collective::Reduce) => chain,
        (Algorithm::Ring, Collective::ReduceScatter) => Traffic { streamed: 1.2 * part, ..ring },
        (Algorithm::Ring, _) => ring,
        (Algorithm::Tree, _) => tree(key, chain),
        (Algorithm::Hierarchical | Algorithm::CollNet, _) => hierarchical(key, bytes, &pairs),
        (Algorithm::OneShot, Collective::AllReduce) => {
            Traffic { out: bytes * others, streamed: 1.6 * bytes * others, chunk: bytes, ..pairs }
        }
        (Algorithm::OneShot, _) => {
            let out = bytes * others;
            Traffic { out, share: chain.share, streamed: out, chunk: bytes, ..pairs }
        }
        (Algorithm::AllPairs, Collective::AllReduce) => {
            // Every step of a block costs about a hop, whether it waits or not.
            Traffic { hops: 2.0 * n - 1.0, waits: 2.0, out: 2.0 * part, streamed: 2.0 * part, ..pairs }
        }
        (Algorithm::AllPairs, Collective::Broadcast | Collective::Reduce) => {
            // All of it leaves the root, or comes to it; every other rank passes on its share.
            Traffic {
                hops: others + 1.0,
                waits: 2.0,
                out: bytes,
                streamed: 2.0 * bytes,
                chunk: bytes / others,
                ..pairs
            }
        }
        (Algorithm::AllPairs, Collective::ReduceScatter) => Traffic { hops: others, ..pairs },
        (Algorithm::Direct, Collective::AllToAll) => Traffic { streamed: 2.0 * part, ..pairs },
        (Algorithm::AllPairs | Algorithm::Direct, _) => pairs,
        (Algorithm::Imported(program), _) => imported(kept(program), bytes),
        _ => unmeasured(key, bytes, &pairs),
    }
}

/// Inside hosts, across, inside again.
fn hierarchical(key: &ProgramKey, bytes: f64, pairs: &Traffic) -> Traffic {
    let local = f64::from(key.per_host.max(1));
    let inside = 2.0 * bytes * (local - 1.0) / local;
    // What crosses is sent and folded by the blocks, unless the network folds it.
    let crossing = if key.algorithm == Algorithm::CollNet { bytes } else { 2.0 * bytes } / local;
    let streamed = 1.2 * inside + crossing;
    Traffic { hops: 2.0, waits: 3.0, out: inside, streamed, chunk: bytes / f64::from(key.ranks), ..*pairs }
}

/// A program that the user brought: what its busiest rank does.
fn imported(program: &Imported, bytes: f64) -> Traffic {
    let shape = &program.program.shape;
    let chunks = shape.chunks(Buf::Input).max(shape.chunks(Buf::Output));
    let chunk = bytes / f64::from(chunks.max(1));
    let hops = f64::from(program.traffic.hops);
    let (out, streamed) = (program.traffic.out as f64 * chunk, program.traffic.moved as f64 * chunk);
    Traffic { hops, waits: hops, fill: 0.0, out, share: 0.8, streamed, chunk }
}

/// Programs that no GPU has run for a measurement: by their form alone.
fn unmeasured(key: &ProgramKey, bytes: f64, pairs: &Traffic) -> Traffic {
    let n = f64::from(key.ranks);
    let levels = n.log2().ceil();
    let (hops, out, chunk) = match key.algorithm {
        Algorithm::RecursiveDoubling => (levels, bytes * levels, bytes),
        Algorithm::HalvingDoubling => (2.0 * levels, 2.0 * pairs.out, bytes / n),
        Algorithm::Bruck => (levels, pairs.out * levels / 2.0, bytes / n),
        Algorithm::Pairwise => (n - 1.0, pairs.out, bytes / n),
        Algorithm::Knomial => (levels, bytes * levels, bytes),
        _ => (levels, pairs.out, bytes / n),
    };
    Traffic { hops, waits: hops, fill: 0.0, out, streamed: 2.0 * out, chunk, ..*pairs }
}

/// Everything passes through every rank.
fn chain(bytes: f64, ranks: f64) -> Traffic {
    Traffic {
        hops: ranks - 1.0,
        waits: 1.0,
        fill: (ranks - 2.0).max(0.0),
        out: bytes,
        share: 0.95,
        streamed: bytes,
        chunk: bytes,
    }
}

/// Halves through two trees; an all-reduce goes up and down before the next tile starts.
fn tree(key: &ProgramKey, chain: Traffic) -> Traffic {
    let bytes = chain.out;
    let depth = f64::from(key.ranks.max(2).ilog2()) + 1.0;
    let chunk = bytes / 2.0;
    if key.collective == Collective::AllReduce {
        let hops = 2.0 * depth;
        return Traffic {
            hops,
            waits: hops,
            fill: hops,
            out: 2.0 * bytes,
            streamed: 3.0 * bytes,
            chunk,
            ..chain
        };
    }
    Traffic { hops: depth, fill: depth - 1.0, share: 0.9, streamed: 2.0 * bytes, chunk, ..chain }
}
