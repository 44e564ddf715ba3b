//! Slots for copy engines whose other end is on another host: page-locked host memory, since a copy within a
//! GPU would be made by multiprocessors, and one between GPU and host by a copy engine.
//!
//! A direction between two ranks is a piece with [`DEPTH`] slots, each carried by a link of its own: "lanes"
//! behind those of the FIFOs.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hawser_base::error::Result;
use hawser_device::Device;
use hawser_plan::executor::copy_engine::DEPTH;
use hawser_plan::executor::copy_engine::inter_node::{End, InterNodeEnds, WORDS};
use rustc_hash::FxHashMap;

use super::arena::{Arena, Piece};
use super::end::ConnectionKey;
use super::fifo::{Fifo, PAGE, WordsOf};

/// The slots of one communicator.
pub struct Stage {
    slot_bytes: u64,
    /// Bytes in front of each slot, for records of checksums.
    lead: u64,
    /// Lanes of FIFOs.
    lanes: u32,
    asks: bool,
    state: Mutex<State>,
}

struct State {
    arena: Arena,
    pieces: FxHashMap<(u32, bool), Piece>,
    ends: Arc<InterNodeEnds>,
}

impl Stage {
    /// Slots of that many bytes with `lead` bytes in front of each, where FIFOs have so many lanes; the first
    /// memory is there. `asks`: streams ask for what they receive, since it may land in users' buffers.
    pub fn new(device: &dyn Device, (slot_bytes, lead): (u64, u32), lanes: u32, asks: bool) -> Result<Self> {
        let lead = u64::from(lead);
        let slots = (slot_bytes + lead) * u64::from(DEPTH);
        let arena = Arena::with_pieces(device, (PAGE, slots), false, 2)?;
        let ends = Arc::new(InterNodeEnds::new(asks));
        let state = Mutex::new(State { arena, pieces: FxHashMap::default(), ends });
        Ok(Self { slot_bytes, lead, lanes, asks, state })
    }

    /// The key of the link of a slot.
    pub fn key(lanes: u32, peer: u32, send: bool, slot: u32) -> ConnectionKey {
        ConnectionKey { lane: lanes + slot, peer, send }
    }

    /// The slot that a link carries; None if it carries a FIFO.
    pub fn slot_of(&self, key: ConnectionKey) -> Option<u32> {
        key.lane.checked_sub(self.lanes).filter(|slot| *slot < DEPTH)
    }

    /// The FIFO of a slot; makes the memory of its direction if need be.
    pub fn fifo(&self, device: &dyn Device, key: ConnectionKey, slot: u32) -> Result<Fifo> {
        let mut state = self.lock();
        let direction = (key.peer, key.send);
        let piece = match state.pieces.get(&direction) {
            Some(piece) => *piece,
            None => {
                let piece = state.arena.take(device)?;
                let stride = self.slot_bytes + self.lead;
                let end = End { words: piece.page_addr, slots: piece.slots + self.lead, stride };
                state.pieces.insert(direction, piece);
                Arc::make_mut(&mut state.ends).add(key.peer, key.send, end);
                piece
            }
        };
        let of = match (key.send, self.asks) {
            (true, _) => WordsOf::Sender,
            (false, false) => WordsOf::Receiver,
            (false, true) => WordsOf::AskingReceiver,
        };
        Ok(Fifo::of_words(piece, slot, (self.slot_bytes, self.lead), of))
    }

    /// The keys of the links between this rank and a peer in one direction.
    pub fn keys(&self, peer: u32, send: bool) -> impl Iterator<Item = ConnectionKey> {
        let lanes = self.lanes;
        (0..DEPTH).map(move |slot| Self::key(lanes, peer, send, slot))
    }

    /// True if what goes between hosts may lie in users' buffers.
    pub fn asks(&self) -> bool {
        self.asks
    }

    /// The directions that have slots.
    pub fn ends(&self) -> Arc<InterNodeEnds> {
        self.lock().ends.clone()
    }

    /// Sets all words that streams wait for: the communicator is aborted, and what they move is worthless.
    pub fn release(&self) {
        for piece in self.lock().pieces.values() {
            for slot in 0..u64::from(DEPTH) {
                // SAFETY: the page lives as long as the arena; its words are only touched as atomics, and by
                // streams.
                let word = unsafe { &*piece.page.add((slot * WORDS) as usize).cast::<AtomicU32>() };
                word.store(1, Ordering::Release);
            }
        }
    }

    /// Host memory held, in bytes.
    pub fn bytes(&self) -> u64 {
        self.lock().arena.bytes()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_device::host::HostDevice;

    #[test]
    fn directions_share_a_piece_and_release_sets_all_they_wait_for() {
        [0, 128].into_iter().for_each(directions_share_a_piece);
    }

    fn directions_share_a_piece(lead: u32) {
        let device = HostDevice::beside().unwrap();
        let stage = Stage::new(&device, (8192, lead), 24, false).unwrap();
        // SAFETY: words of pages that live as long as the stage.
        let word = |addr: u64| unsafe { &*(addr as *const AtomicU32) }.load(Ordering::Acquire);
        assert_eq!(stage.slot_of(ConnectionKey { lane: 23, peer: 1, send: true }), None);
        for (peer, send) in [(1, true), (1, false), (2, true)] {
            for slot in 0..DEPTH {
                let key = Stage::key(24, peer, send, slot);
                assert_eq!(stage.slot_of(key), Some(slot));
                let fifo = stage.fifo(&device, key, slot).unwrap();
                let end = *stage.ends().end(peer, send).unwrap();
                // On the CPU both see the same addresses.
                assert_eq!((fifo.slot_address(0), fifo.slot_bytes()), (end.data(slot), 8192));
                assert_eq!((word(end.ready(slot)), word(end.told(slot))), (u32::from(send), 0));
            }
        }
        assert!(stage.ends().end(2, false).is_none() && stage.bytes() >= 4 * 3 * 8192);
        stage.release();
        for (peer, send) in [(1, true), (1, false), (2, true)] {
            let end = *stage.ends().end(peer, send).unwrap();
            assert!((0..DEPTH).all(|slot| word(end.ready(slot)) == 1 && word(end.told(slot)) == 0));
        }
    }
}
