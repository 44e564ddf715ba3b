//! Areas: the memory of a rank that its peers' fused kernels write into.

use hawser_kernels_abi::fused::{RANKS, THREADS};
use hawser_types::{DeviceKind, Link, Protocol, Route, Routes};

use crate::config::PlanConfig;
use crate::topology::Topology;

/// Bytes of a slot: a word of 16 bytes for each thread; eight rows of four lines; a tile, if there are
/// [`RANKS`].
pub(super) const SLOT: [u64; 3] = [8 << 10, 4 << 10, 8 << 10];
/// Most blocks by protocol: each has slots of its own. A block fills a multiprocessor, and kernels of several
/// communicators must find room side by side, in whatever order they come: three of 44 blocks fit into 132
/// multiprocessors.
pub(super) const BLOCKS: [u32; 3] = [32, 32, TILE_BLOCKS];
/// Most blocks of kernels with tiles, and of zero copy.
pub const TILE_BLOCKS: u32 = 44;
/// Warps of a block at most.
pub(super) const WARPS: u64 = THREADS as u64 / 32;
/// Bytes of the flags of a warp: four for each rank.
pub(super) const UNIT_FLAGS: u64 = 32;
/// Bytes that a block or warp keeps from launch to launch: its epoch, and the ranks whose flags it has not
/// looked at.
const COUNT_BYTES: u64 = 8;
/// Bytes of a line: what a rank tells a peer's block, twice by parity.
const LINE_BYTES: u64 = 32;
/// Bytes of lines, and of the flags behind them, of an area.
const LINES_BYTES: u64 = TILE_BLOCKS as u64 * RANKS as u64 * (2 * LINE_BYTES + 4);

/// The places of the protocols' slots in an area. Every rank has one area, which its peers write into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Area {
    /// Offset of the slots by protocol.
    pub slots: [u64; 3],
    /// Offset of the flags of Simple.
    pub flags: u64,
    /// Offset of the lines by which blocks with zero copy meet.
    pub lines: u64,
    /// Bytes of an area.
    pub bytes: u64,
    /// Offset of the counters by protocol in the rank's private memory; those of zero copy follow.
    pub epochs: [u64; 3],
    /// Bytes of the counters.
    pub epoch_bytes: u64,
}

impl Area {
    /// The areas of `ranks` ranks.
    pub fn new(ranks: u32) -> Self {
        let units = |i: usize| u64::from(BLOCKS[i]) * WARPS;
        let ranks = u64::from(ranks);
        // Two parities; the slots of words are laid out for the most ranks, so that offsets are constants.
        let words = u64::from(BLOCKS[0]) * 2 * RANKS as u64 * SLOT[0];
        let lines = units(1) * 2 * ranks * SLOT[1];
        let tiles = units(2) * 2 * ranks * slot(2, ranks);
        let flags = words + lines + tiles;
        let end = flags + units(2) * UNIT_FLAGS;
        let counters = [u64::from(BLOCKS[0]), units(1), units(2)].map(|units| units * COUNT_BYTES);
        Self {
            slots: [0, words, words + lines],
            flags,
            lines: end,
            bytes: end + LINES_BYTES,
            epochs: [0, counters[0], counters[0] + counters[1]],
            epoch_bytes: counters.iter().sum::<u64>() + u64::from(TILE_BLOCKS) * COUNT_BYTES,
        }
    }

    /// The same without what Simple uses, with or without zero copy: a third of it.
    pub fn without_tiles(self) -> Self {
        Self { bytes: self.slots[2], ..self }
    }
}

/// True if the settings let some call take one of these routes.
pub(super) fn is_allowed(config: &PlanConfig, routes: &Routes) -> bool {
    let allowed = |some: &Option<Routes>| some.unwrap_or(Routes::ALL);
    config.routes.iter().any(|some| allowed(some).iter().any(|route| routes.contains(route)))
}

/// The routes that use areas.
pub fn area_routes() -> Routes {
    Routes::that(Route::is_fused)
}

/// The routes that use the larger part of an area ([`Area::without_tiles`]).
pub fn tile_routes() -> Routes {
    Routes::that(|route| route.is_fused() && route.protocol == Protocol::Simple)
}

/// The areas of the ranks of `topology`, if the settings let some call be an exchange.
pub fn area(topology: &Topology, config: &PlanConfig) -> Option<Area> {
    let wanted = is_allowed(config, &area_routes());
    let area = (wanted && refused_topology(topology).is_none()).then(|| Area::new(topology.size()))?;
    Some(if is_allowed(config, &tile_routes()) { area } else { area.without_tiles() })
}

/// The reason why the ranks of a topology have no areas, if so.
pub(super) fn refused_topology(topology: &Topology) -> Option<String> {
    match (topology.device, topology.link) {
        (DeviceKind::Host, _) => Some("fused kernels are for GPUs".into()),
        _ if topology.hosts() > 1 => Some("fused kernels are for the ranks of one host".into()),
        _ if !(2..=RANKS as u32).contains(&topology.size()) => {
            Some(format!("fused kernels are for 2 to {RANKS} ranks"))
        }
        (DeviceKind::Cuda { sm }, _) if sm < 90 => {
            Some(format!("exchange kernels need sm_90, this is sm_{sm}"))
        }
        (_, Link::HostMemory) => Some("fused kernels need peer access between GPUs".into()),
        _ => None,
    }
}

/// Bytes of a slot where there are `ranks` ranks. Larger tiles wait less often for peers; few ranks have room
/// for them.
pub(super) fn slot(index: usize, ranks: u64) -> u64 {
    match (index, ranks) {
        (2, ..=2) => 4 * SLOT[2],
        (2, ..=4) => 2 * SLOT[2],
        _ => SLOT[index],
    }
}

/// Position of a protocol among those that have slots: zero copy has those of Simple.
pub(super) fn index(route: Route) -> usize {
    match route {
        Route::FUSED_LL => 0,
        Route::FUSED_LL128 => 1,
        _ => 2,
    }
}
