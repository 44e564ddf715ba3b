//! Where staging lies in the heaps of the ranks of a host.

use super::{DEPTH, LANES, LEAST_SLOT, MOST_SLOT, WORD};
use crate::knobs::Knobs;

/// Staging of a rank, unless the user says otherwise.
const STAGING_BYTES: u64 = 192 << 20;
/// Words of direct transfers with a peer: "first" and "done", for what goes there and for what comes from there.
const DIRECT_WORDS: u64 = 4;
/// Alignment of slots.
const PAGE: u64 = 64 << 10;

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
    pub fn new(local: u32, knobs: &Knobs) -> Self {
        let slots = u64::from(LANES * DEPTH) * u64::from(local.max(2) - 1);
        let wanted = match knobs.staging_bytes {
            0 => STAGING_BYTES / slots,
            per_peer => per_peer / u64::from(LANES * DEPTH),
        };
        let slot = wanted.clamp(LEAST_SLOT, MOST_SLOT);
        Self { local, slot_bytes: 1 << slot.ilog2() }
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
pub(super) struct At {
    /// Lane.
    pub(super) lane: u32,
    /// Place of the peer.
    pub(super) peer: u32,
    /// Number of the slot.
    pub(super) slot: u32,
}
