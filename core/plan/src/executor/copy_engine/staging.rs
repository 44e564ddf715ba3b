//! Staging: the memory through which copy engines move what cannot go straight from user buffer to user
//! buffer.

use crate::config::PlanConfig;

/// Streams in each direction, and staging lanes per peer. A second lane would take half of the slots' memory,
/// and larger slots are faster.
pub const LANES: u32 = 1;
/// Slots of a lane.
pub const DEPTH: u32 = 3;
/// Staging of a rank, unless the user says otherwise: the slots of a peer take its part of a reduction of 256
/// MiB, so that one kernel does it (2, 4 and 8 ranks).
pub(super) const STAGING_BYTES: u64 = 225 << 20;
/// Largest and smallest slot.
pub(super) const MOST_SLOT: u64 = 48 << 20;
pub(super) const LEAST_SLOT: u64 = 4 << 10;
/// Bytes from word to word.
pub(super) const WORD: u64 = 16;
/// Words of direct transfers with a peer: "first" and "done", for what goes there and for what comes from
/// there.
pub(super) const DIRECT_WORDS: u64 = 4;
/// Alignment of slots.
pub(super) const PAGE: u64 = 64 << 10;

/// The places of staging in a rank's heap, from its start on.
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
    pub(super) fn slot(&self, owner: u32, at: At) -> u64 {
        self.slots_at() + self.index(owner, at) * self.slot_bytes
    }

    /// Offset of the word that says that a slot is full.
    pub(super) fn full(&self, owner: u32, at: At) -> u64 {
        self.index(owner, at) * WORD
    }

    /// Offset of the word that says, in the heap of place `owner`, that its slot at place `peer` is free.
    pub(super) fn free(&self, owner: u32, at: At) -> u64 {
        (self.slots() + self.index(owner, at)) * WORD
    }

    /// Offset of the words of direct transfers between place `owner` and place `peer`, as `owner` has them.
    pub(super) fn direct(&self, owner: u32, peer: u32, owner_sends: bool) -> u64 {
        let peer = u64::from(if peer > owner { peer - 1 } else { peer });
        let first = 2 * self.slots() + peer * DIRECT_WORDS + if owner_sends { 0 } else { 2 };
        first * WORD
    }

    pub(super) fn slots(&self) -> u64 {
        u64::from(LANES * DEPTH) * u64::from(self.local.max(2) - 1)
    }

    pub(super) fn slots_at(&self) -> u64 {
        self.word_bytes().next_multiple_of(PAGE)
    }

    pub(super) fn index(&self, owner: u32, at: At) -> u64 {
        let peer = if at.peer > owner { at.peer - 1 } else { at.peer };
        u64::from((at.lane * (self.local.max(2) - 1) + peer) * DEPTH + at.slot)
    }
}

/// A slot of a lane between two places.
#[derive(Debug, Clone, Copy)]
pub(super) struct At {
    pub(super) lane: u32,
    pub(super) peer: u32,
    pub(super) slot: u32,
}

/// The staging of all ranks as one rank knows it: addresses by rank as its device sees them; 0 on other
/// hosts.
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
    pub(super) sent: Vec<u32>,
    pub(super) taken: Vec<u32>,
}

impl Counters {
    pub(super) fn next(list: &mut Vec<u32>, peer: u32, lane: u32) -> u32 {
        let index = (peer * LANES + lane) as usize;
        if list.len() <= index {
            list.resize(index + 1, 0);
        }
        let slot = list[index];
        list[index] = (slot + 1) % DEPTH;
        slot
    }
}
