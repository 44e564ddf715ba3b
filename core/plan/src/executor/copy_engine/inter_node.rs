//! Staging between hosts: slots in this rank's own memory, whose other end the network carries.
//!
//! A direction between two ranks of different hosts has [`DEPTH`] slots at either end. Slot `i` of the sender
//! becomes slot `i` of the receiver, over a connection of its own, so slots depend on nothing but themselves.
//! A slot has two words that the CPU reaches too: the stream waits for `ready` and clears it, and writes
//! `told` when it has filled or emptied the slot; the proxy does the reverse. Every launch begins with the
//! first slot, so one end may replay what the other calls anew.
//!
//! Where the network reaches users' buffers that are registered, a tile needs no slot: the stream tells the
//! proxy where the bytes are ([`STRAIGHT`]), or where they are to land. For that the proxy has to wait until
//! the stream **asks** for a tile ([`InterNodeEnds::asks`]); elsewhere it receives into every slot that is
//! free. Each end decides for itself: the messages are the same.

use super::command::What;
use super::staging::{DEPTH, LEAST_SLOT};
use crate::config::PlanConfig;
use crate::topology::Topology;
use rustc_hash::FxHashMap;

/// Host memory that the slots of a rank may take when it talks to everybody.
const BYTES: u64 = 384 << 20;
/// Largest slot: while one is on the wire the next is being copied, and both should begin soon.
const MOST_SLOT: u64 = 4 << 20;
/// Bytes of a slot's words: a cache line each.
pub const WORDS: u64 = 128;
/// The distance of `told` from `ready` in bytes.
pub const TOLD: u64 = 64;

/// The distance from `told` of the address of a tile that lies in a user's buffer, in two halves.
pub const STRAIGHT_AT: u64 = 8;
/// The bit of `told` that says that the tile lies there.
pub const STRAIGHT: u32 = 1 << 31;

/// Bytes of a slot that the network carries. A function of what all ranks agree on.
pub fn slot_bytes(topology: &Topology, config: &PlanConfig) -> u64 {
    let slots = 2 * u64::from(DEPTH) * u64::from(topology.size().max(2) - 1);
    let wanted = match config.staging_bytes {
        0 => BYTES / slots,
        per_peer => per_peer / u64::from(DEPTH),
    };
    let slot = 1 << wanted.clamp(LEAST_SLOT, MOST_SLOT).ilog2();
    u64::min(slot, config.message_bytes)
}

/// The slots of one direction between this rank and one of another host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// Address of the words as the device sees it.
    pub words: u64,
    /// Address of the slots.
    pub slots: u64,
    /// Bytes from slot to slot.
    pub stride: u64,
}

impl End {
    /// The word that the stream waits for: the slot is free to fill, or full.
    pub fn ready(&self, slot: u32) -> u64 {
        self.words + u64::from(slot) * WORDS
    }

    /// The word by which the stream tells that it is through with a slot: 1 and the bytes that it put there.
    /// That of a receiver asks for a message where streams ask.
    pub fn told(&self, slot: u32) -> u64 {
        self.ready(slot) + TOLD
    }

    /// The words by which the stream tells that a slot's message comes from a user's buffer, or goes there,
    /// without the slot: `addr` and bytes of the tile.
    pub fn straight(&self, slot: u32, addr: u64, bytes: u64) -> [What; 3] {
        let told = self.told(slot);
        [
            What::Tell { addr: told + STRAIGHT_AT, value: addr as u32 },
            What::Tell { addr: told + STRAIGHT_AT + 4, value: (addr >> 32) as u32 },
            What::Tell { addr: told, value: STRAIGHT | (1 + bytes as u32) },
        ]
    }

    /// The words by which the stream asks for the next message of a slot: to the slot, or to a `place` of so
    /// many bytes in a user's buffer.
    pub fn ask(&self, slot: u32, place: Option<(u64, u64)>) -> Vec<What> {
        match place {
            Some((addr, bytes)) => self.straight(slot, addr, bytes).to_vec(),
            None => vec![What::Tell { addr: self.told(slot), value: 1 }],
        }
    }

    /// The slot.
    pub fn data(&self, slot: u32) -> u64 {
        self.slots + u64::from(slot) * self.stride
    }
}

/// The ends that exist, by the other rank and whether this one sends.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InterNodeEnds {
    ends: FxHashMap<(u32, bool), End>,
    asks: bool,
}

impl InterNodeEnds {
    /// No ends yet. `asks`: the proxy receives a message when the stream asks for it, no earlier.
    pub fn new(asks: bool) -> Self {
        Self { ends: FxHashMap::default(), asks }
    }

    /// True if streams ask for what they receive.
    pub fn asks(&self) -> bool {
        self.asks
    }

    /// Adds an end.
    pub fn add(&mut self, peer: u32, send: bool, end: End) {
        self.ends.insert((peer, send), end);
    }

    /// The ends: the other rank, whether this one sends, and the end.
    pub fn all(&self) -> impl Iterator<Item = (u32, bool, End)> {
        self.ends.iter().map(|((peer, send), end)| (*peer, *send, *end))
    }

    /// An end, if it exists.
    pub fn end(&self, peer: u32, send: bool) -> Option<&End> {
        self.ends.get(&(peer, send))
    }
}

/// The number of a launch's tiles that pass through a slot, if `tiles` of them go between two ranks.
pub fn passes(tiles: u64, slot: u32) -> u64 {
    let depth = u64::from(DEPTH);
    (tiles + depth - 1 - u64::from(slot)) / depth
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_types::{DeviceKind, Link};

    #[test]
    fn slots_fit_the_budget_the_setting_and_the_message() {
        let topology = |ranks| Topology::of_hosts(ranks, 8, DeviceKind::Cuda { sm: 90 }, Link::NvLink);
        let config = PlanConfig { pass_sm: 1, ..PlanConfig::default() };
        assert_eq!(slot_bytes(&topology(16), &config), 4 << 20);
        let step = if cfg!(miri) { 127 } else { 1 };
        for ranks in (2..=256).step_by(step) {
            let slot = slot_bytes(&topology(ranks), &config);
            assert!(slot.is_power_of_two() && slot * 6 * u64::from(ranks - 1) <= BYTES, "{ranks}: {slot}");
        }
        assert_eq!(
            slot_bytes(&topology(16), &PlanConfig { staging_bytes: 12 << 10, ..config.clone() }),
            4 << 10
        );
        assert_eq!(slot_bytes(&topology(16), &PlanConfig { message_bytes: 1536, ..config }), 1536);
    }

    #[test]
    fn every_tile_passes_through_one_slot() {
        for tiles in 0..20 {
            assert_eq!((0..DEPTH).map(|slot| passes(tiles, slot)).sum::<u64>(), tiles);
            assert!(passes(tiles, 0) >= passes(tiles, DEPTH - 1));
        }
    }
}
