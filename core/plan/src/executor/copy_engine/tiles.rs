//! The settings under which programs are compiled for copy engines: how much goes in one copy.

use hawser_types::Algorithm;

use super::staging::{DEPTH, LANES, LEAST_SLOT, Staging};
use super::{inter_node, reduce_kernel};
use crate::algo::{self, ProgramKey};
use crate::config::PlanConfig;
use crate::topology::Topology;

/// Largest tile of a move.
const MOST_TILE: u64 = 32 << 20;

/// The settings under which a program is bound to a call of `bytes` bytes ([`crate::Call::total_bytes`]).
pub fn config_for(key: &ProgramKey, bytes: u64, topology: &Topology, config: &PlanConfig) -> PlanConfig {
    if !key.collective.reduces() {
        return self::config(config, topology, part(key, bytes));
    }
    let blocks = key.collective.input_blocks(key.ranks).max(key.collective.output_blocks(key.ranks));
    let per_block = algo::shape(key).map_or(1, |shape| shape.per_block.max(1));
    let part = bytes / u64::from(blocks.max(1)) / u64::from(per_block);
    let room = u64::from(DEPTH) * Staging::new(topology.places().1, config).slot_bytes;
    with_tiles(config, reduce_kernel::tile(part, room))
}

/// The settings under which programs are bound to calls that give each peer `bytes` bytes.
pub fn config(config: &PlanConfig, topology: &Topology, bytes: u64) -> PlanConfig {
    let near = match topology.places().1 {
        1 => MOST_TILE,
        local => Staging::new(local, config).slot_bytes,
    };
    let slot = if topology.hosts() > 1 { inter_node::slot_bytes(topology, config).min(near) } else { near };
    with_tiles(config, tile(bytes).min(slot))
}

/// Tiles of so many bytes. One block runs all channels, so that ranks go through their peers in the same
/// order.
fn with_tiles(config: &PlanConfig, tile: u64) -> PlanConfig {
    PlanConfig {
        slot_bytes: [0, 0, tile as u32],
        depth: DEPTH,
        lanes: LANES,
        min_ctas: 1,
        max_ctas: LANES,
        ..config.clone()
    }
}

/// Bytes of a part that a call of a program gives each peer; less along a chain, whose later ranks wait for
/// the first tile.
pub fn part(key: &ProgramKey, bytes: u64) -> u64 {
    let part = bytes / algo::shape(key).map_or(1, |shape| u64::from(shape.per_block.max(1)));
    match (key.algorithm, key.ranks) {
        (Algorithm::Ring, 3..) => part / u64::from(key.ranks - 2),
        _ => part,
    }
}

/// The tile with which a message is fastest: each costs about 8 µs (measured: copies and stream memory
/// operations take turns), and the first and the last of them are alone on their way. Largest where a slot
/// takes no more.
pub(super) fn tile(bytes: u64) -> u64 {
    /// Bytes that a link moves in the time that a tile costs.
    const COST: u64 = 3 << 20;
    bytes.saturating_mul(COST).isqrt().max(LEAST_SLOT).next_multiple_of(LEAST_SLOT).min(MOST_TILE)
}
