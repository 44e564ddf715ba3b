//! Areas: the memory of a rank that its peers' fused kernels write into.

use hawser_kernels_abi::fused::{RANKS, THREADS};
use hawser_types::{DeviceKind, Link, Protocol};

use crate::config::{PlanConfig, protocol_bit};
use crate::topology::Topology;

/// Bytes of a slot: a word of 16 bytes for each thread; eight rows of four lines; a tile, if there are [`RANKS`].
pub(super) const SLOT: [u64; 3] = [8 << 10, 4 << 10, 8 << 10];
/// Most blocks by protocol: each has slots of its own. A block fills a multiprocessor, and kernels of several communicators
/// must find room side by side, in whatever order they come: three of 44 blocks fit into 132 multiprocessors.
pub(super) const BLOCKS: [u32; 3] = [32, 32, TILE_BLOCKS];
/// Those of SymSimple and SymDirect.
pub const TILE_BLOCKS: u32 = 44;
/// Warps of a block at most.
pub(super) const WARPS: u64 = THREADS as u64 / 32;
/// Bytes of the flags of a warp: four for each rank.
pub(super) const UNIT_FLAGS: u64 = 32;
/// Bytes of a line: what a rank tells a peer's block, twice by parity.
const LINE_BYTES: u64 = 32;
/// Bytes of lines, and of the flags behind them, of an area.
const LINES_BYTES: u64 = TILE_BLOCKS as u64 * RANKS as u64 * (2 * LINE_BYTES + 4);

/// Where the slots of the protocols lie in an area. Every rank has one area, which its peers write into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Area {
    /// Offset of the slots by protocol.
    pub slots: [u64; 3],
    /// Offset of the flags of SymSimple.
    pub flags: u64,
    /// Offset of the lines of SymDirect.
    pub lines: u64,
    /// Bytes of an area.
    pub bytes: u64,
    /// Offset of the counters by protocol in the rank's private memory; those of SymDirect follow.
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
        let counters = [u64::from(BLOCKS[0]) * 4, units(1) * 4, units(2) * 4];
        Self {
            slots: [0, words, words + lines],
            flags,
            lines: end,
            bytes: end + LINES_BYTES,
            epochs: [0, counters[0], counters[0] + counters[1]],
            epoch_bytes: counters.iter().sum::<u64>() + u64::from(TILE_BLOCKS) * 4,
        }
    }

    /// The same without what SymSimple and SymDirect use: a third of it.
    pub fn without_tiles(self) -> Self {
        Self { bytes: self.slots[2], ..self }
    }
}

/// Which protocols of fused kernels some call may use, as bits of [`PlanConfig::protocols`].
fn allowed(config: &PlanConfig) -> u8 {
    config.protocols.iter().fold(0, |all, mask| all | mask.unwrap_or(u8::MAX)) & area_bits()
}

/// The bits of the protocols that are so.
fn bits(is: impl Fn(Protocol) -> bool) -> u8 {
    Protocol::ALL.into_iter().filter(|p| is(*p)).fold(0, |all, p| all | protocol_bit(p))
}

/// The protocols that use areas.
pub fn area_bits() -> u8 {
    bits(Protocol::is_exchange)
}

/// The protocols that use the larger part of an area ([`Area::without_tiles`]).
pub fn tile_bits() -> u8 {
    bits(|protocol| matches!(protocol, Protocol::SymSimple | Protocol::SymDirect))
}

/// The areas of the ranks of `topology`, if the settings let some call be an exchange.
pub fn area(topology: &Topology, config: &PlanConfig) -> Option<Area> {
    let allowed = allowed(config);
    let area = (allowed != 0 && refused_topology(topology).is_none()).then(|| Area::new(topology.size()))?;
    Some(if allowed & tile_bits() == 0 { area.without_tiles() } else { area })
}

/// Why the ranks of a topology have no areas, if so.
pub(super) fn refused_topology(topology: &Topology) -> Option<String> {
    match (topology.device, topology.link) {
        (DeviceKind::Host, _) => Some("the host device has the Simple protocol only".into()),
        _ if topology.hosts() > 1 => Some("exchanges are for the ranks of one host".into()),
        _ if !(2..=RANKS as u32).contains(&topology.size()) => {
            Some(format!("exchanges are for 2 to {RANKS} ranks"))
        }
        (DeviceKind::Cuda { sm }, _) if sm < 90 => {
            Some(format!("exchange kernels need sm_90, this is sm_{sm}"))
        }
        (_, Link::HostMemory) => Some("exchanges need peer access between GPUs".into()),
        _ => None,
    }
}

/// Bytes of a slot where there are `ranks` ranks. Larger tiles wait less often for peers; few ranks have room for them.
pub(super) fn slot(index: usize, ranks: u64) -> u64 {
    match (index, ranks) {
        (2, ..=2) => 4 * SLOT[2],
        (2, ..=4) => 2 * SLOT[2],
        _ => SLOT[index],
    }
}

/// Position of a protocol among those that have slots: SymDirect has those of SymSimple.
pub(super) fn index(protocol: Protocol) -> usize {
    match protocol {
        Protocol::SymLl => 0,
        Protocol::SymLl128 => 1,
        _ => 2,
    }
}
