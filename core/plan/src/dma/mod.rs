//! Launches whose moves need no kernel: copy engines move slots of **staging** memory, stream memory operations tell of them.
//!
//! The steps are those of any program of moves; the sends of a lane share a stream, and so do its receives. A
//! slot has two words: `full`, in the memory of its owner, set by the peer that filled it, and `free`, in the memory of
//! that peer, set by the owner that has emptied it. Whoever waits for a word clears it, so a replayed graph finds the words
//! as it left them. Commands come out in rounds, the sends of a round before its receives: a device that runs all its
//! streams one after the other in that order still gets to the end. Between hosts both words and slots are this rank's own,
//! and the proxy is the peer ([`far`]). Reductions have steps that combine: by few multiprocessors ([`fold`]).

mod direct;
mod emit;
pub mod far;
pub mod fold;

use crate::algo::{self, ProgramKey};
use crate::call::{Call, Collective};
use crate::choose::protocol_bit;
use crate::config::{Algorithm, PlanConfig, Protocol};
use crate::topology::{DeviceKind, Link, Topology};

pub use direct::{Direct, Leg, Way};
pub use emit::{COPIES, Command, Emitter, FAR_SENDS, STREAMS, What};
pub use fold::{Fold, FoldArgs};

/// Streams in each direction, and staging lanes per peer. A second lane would take half of the slots' memory, and larger slots are
/// faster.
pub const LANES: u32 = 1;
/// Slots of a lane.
pub const DEPTH: u32 = 3;
/// Staging of a rank, unless the user says otherwise: the slots of a peer take its part of a reduction of 256 MiB, so that one
/// kernel does it (2, 4 and 8 ranks).
const STAGING_BYTES: u64 = 225 << 20;
/// Two for a launch, and others go on beside it.
const LEAST_QUEUES: u32 = 4;
/// Largest and smallest slot.
const MOST_SLOT: u64 = 48 << 20;
const LEAST_SLOT: u64 = 4 << 10;
/// Largest tile of a move.
const MOST_TILE: u64 = 32 << 20;
/// Bytes from word to word.
const WORD: u64 = 16;
/// Words of direct transfers with a peer: "first" and "done", for what goes there and for what comes from there.
const DIRECT_WORDS: u64 = 4;
/// Alignment of slots.
const PAGE: u64 = 64 << 10;

/// Whether ranks have staging: `NCCL_PASS_SM` or a rule asks for it, and copy engines can do something.
pub fn has_staging(topology: &Topology, config: &PlanConfig) -> bool {
    let bit = protocol_bit(Protocol::Dma);
    let wanted = config.protocols.iter().any(|mask| mask.is_none_or(|mask| mask & bit != 0));
    wanted && refused_topology(topology, config).is_none()
}

/// Why copy engines can do nothing for a communicator, if so.
pub fn refused_topology(topology: &Topology, config: &PlanConfig) -> Option<String> {
    match topology.link {
        _ if config.pass_sm == 0 && !config.copy_engines => {
            Some("copy engines are used with NCCL_PASS_SM=1, or where a rule asks for them".into())
        }
        _ if topology.size() < 2 => Some("there is one rank only".into()),
        _ if topology.queues < LEAST_QUEUES => Some(format!(
            "streams that wait for a copy hold the GPU's queues, of which CUDA_DEVICE_MAX_CONNECTIONS leaves {}: {LEAST_QUEUES} are needed, 32 are best",
            topology.queues
        )),
        Link::HostMemory if topology.device != DeviceKind::Host && topology.places().1 > 1 => {
            Some("copy engines need peer access between the GPUs of a host".into())
        }
        _ => None,
    }
}

/// Why copy engines cannot do the moves of a program, if so.
pub fn refused(call: &Call, key: &ProgramKey, topology: &Topology, config: &PlanConfig) -> Option<String> {
    if let Some(reason) = refused_topology(topology, config) {
        return Some(reason);
    }
    if key.collective.reduces() {
        return fold::refused(call, key, topology);
    }
    (!is_known(key)).then(|| "its channels wait for each other".into())
}

/// Programs whose channels do not wait for each other.
fn is_known(key: &ProgramKey) -> bool {
    use Collective::{AllGather, AllToAll, Broadcast, Gather, Scatter};
    matches!(
        (key.algorithm, key.collective),
        (Algorithm::Ring, AllGather | Broadcast)
            | (Algorithm::AllPairs, AllGather)
            | (Algorithm::Direct, AllToAll | Gather | Scatter)
    )
}

/// The settings under which a program is bound to a call of `bytes` bytes ([`Call::total_bytes`]).
pub fn config_for(key: &ProgramKey, bytes: u64, topology: &Topology, config: &PlanConfig) -> PlanConfig {
    if !key.collective.reduces() {
        return self::config(config, topology, part(key, bytes));
    }
    let blocks = key.collective.input_blocks(key.ranks).max(key.collective.output_blocks(key.ranks));
    let per_block = algo::shape(key).map_or(1, |shape| shape.per_block.max(1));
    let part = bytes / u64::from(blocks.max(1)) / u64::from(per_block);
    let room = u64::from(DEPTH) * Staging::new(topology.places().1, config).slot_bytes;
    with_tiles(config, fold::tile(part, room))
}

/// The settings under which programs are bound to calls that give each peer `bytes` bytes.
pub fn config(config: &PlanConfig, topology: &Topology, bytes: u64) -> PlanConfig {
    let near = match topology.places().1 {
        1 => MOST_TILE,
        local => Staging::new(local, config).slot_bytes,
    };
    let slot = if topology.hosts() > 1 { far::slot_bytes(topology, config).min(near) } else { near };
    with_tiles(config, tile(bytes).min(slot))
}

/// Tiles of so many bytes. One block runs all channels, so that ranks go through their peers in the same order.
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

/// Bytes of a part that a call of a program gives each peer; less along a chain, whose later ranks wait for the first tile.
pub fn part(key: &ProgramKey, bytes: u64) -> u64 {
    let part = bytes / algo::shape(key).map_or(1, |shape| u64::from(shape.per_block.max(1)));
    match (key.algorithm, key.ranks) {
        (Algorithm::Ring, 3..) => part / u64::from(key.ranks - 2),
        _ => part,
    }
}

/// The tile with which a message is fastest: each costs about 8 µs (measured: copies and stream memory operations take
/// turns), and the first and the last of them are alone on their way. Largest where a slot takes no more.
fn tile(bytes: u64) -> u64 {
    /// Bytes that a link moves in the time that a tile costs.
    const COST: u64 = 3 << 20;
    bytes.saturating_mul(COST).isqrt().max(LEAST_SLOT).next_multiple_of(LEAST_SLOT).min(MOST_TILE)
}

/// Where staging lies in a rank's heap, from its start on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Staging {
    /// Ranks of the largest host.
    pub local: u32,
    /// Bytes of a slot.
    pub slot_bytes: u64,
}

impl Staging {
    /// For hosts of at most `local` ranks.
    pub fn new(local: u32, config: &PlanConfig) -> Self {
        let slots = u64::from(LANES * DEPTH) * u64::from(local.max(2) - 1);
        let wanted = match config.staging_bytes {
            0 => STAGING_BYTES / slots,
            per_peer => per_peer / u64::from(LANES * DEPTH),
        };
        let unit = if wanted < PAGE { LEAST_SLOT } else { PAGE };
        Self { local, slot_bytes: (wanted / unit * unit).clamp(LEAST_SLOT, MOST_SLOT) }
    }

    /// The setting that halves the slots; None if they are as small as `least` already.
    pub fn halved(&self, least: u64) -> Option<u64> {
        (self.slot_bytes > least.max(LEAST_SLOT)).then(|| self.slot_bytes / 2 * u64::from(LANES * DEPTH))
    }

    /// Bytes of it all.
    pub fn bytes(&self) -> u64 {
        self.slots_at() + self.slots() * self.slot_bytes
    }

    /// Bytes of the words, which lie first: `full`, then `free`, then those of direct transfers.
    pub fn word_bytes(&self) -> u64 {
        (2 * self.slots() + DIRECT_WORDS * u64::from(self.local.max(2) - 1)) * WORD
    }

    /// Offset and bytes of the `free` words: all are 1 at first, the `full` ones 0.
    pub fn free_words(&self) -> (u64, u64) {
        (self.slots() * WORD, self.slots() * WORD)
    }

    /// Offset of a slot that place `peer`, as place `owner` counts it, fills.
    fn slot(&self, owner: u32, at: At) -> u64 {
        self.slots_at() + self.index(owner, at) * self.slot_bytes
    }

    /// Offset of the word that says that a slot is full.
    fn full(&self, owner: u32, at: At) -> u64 {
        self.index(owner, at) * WORD
    }

    /// Offset of the word that says, in the heap of place `owner`, that its slot at place `peer` is free.
    fn free(&self, owner: u32, at: At) -> u64 {
        (self.slots() + self.index(owner, at)) * WORD
    }

    /// Offset of the words of direct transfers between place `owner` and place `peer`, as `owner` has them.
    fn direct(&self, owner: u32, peer: u32, owner_sends: bool) -> u64 {
        let peer = u64::from(if peer > owner { peer - 1 } else { peer });
        let first = 2 * self.slots() + peer * DIRECT_WORDS + if owner_sends { 0 } else { 2 };
        first * WORD
    }

    fn slots(&self) -> u64 {
        u64::from(LANES * DEPTH) * u64::from(self.local.max(2) - 1)
    }

    fn slots_at(&self) -> u64 {
        self.word_bytes().next_multiple_of(PAGE)
    }

    fn index(&self, owner: u32, at: At) -> u64 {
        let peer = if at.peer > owner { at.peer - 1 } else { at.peer };
        u64::from((at.lane * (self.local.max(2) - 1) + peer) * DEPTH + at.slot)
    }
}

/// A slot of a lane between two places.
#[derive(Debug, Clone, Copy)]
struct At {
    lane: u32,
    peer: u32,
    slot: u32,
}

/// What a rank knows of everybody's staging: addresses by rank as its device sees them; 0 on other hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bases {
    /// This rank.
    pub rank: u32,
    /// By rank.
    pub staging: Vec<u64>,
    /// Place on its host by rank.
    pub places: Vec<u32>,
    /// The layout.
    pub layout: Staging,
}

/// Slots that a rank has filled and emptied so far, by peer and lane; kept from launch to launch.
#[derive(Debug, Clone, Default)]
pub struct Counters {
    sent: Vec<u32>,
    taken: Vec<u32>,
}

impl Counters {
    fn next(list: &mut Vec<u32>, peer: u32, lane: u32) -> u32 {
        let index = (peer * LANES + lane) as usize;
        if list.len() <= index {
            list.resize(index + 1, 0);
        }
        let slot = list[index];
        list[index] = (slot + 1) % DEPTH;
        slot
    }
}
