//! Slots for copy engines whose other end is on another host: page-locked host memory, since a copy within a GPU would be
//! made by multiprocessors, and one between GPU and host by a copy engine.
//!
//! A direction between two ranks is a piece with [`DEPTH`] slots, each carried by a link of its own: "lanes" behind those of the
//! FIFOs.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hawser_plan::dma::DEPTH;
use hawser_plan::dma::far::{End, Far, WORDS};

use super::arena::{Arena, Piece};
use super::fifo::Fifo;
use super::link::Need;
use crate::device::Device;
use crate::error::Result;

/// The slots of one communicator.
pub struct Stage {
    slot_bytes: u64,
    /// Lanes of FIFOs.
    lanes: u32,
    state: Mutex<State>,
}

struct State {
    arena: Arena,
    pieces: HashMap<(u32, bool), Piece>,
    ends: Arc<Far>,
}

impl Stage {
    /// Slots of that many bytes, where FIFOs have so many lanes; the first memory is there.
    pub fn new(device: &dyn Device, slot_bytes: u64, lanes: u32) -> Result<Self> {
        let arena = Arena::with_pieces(device, slot_bytes * u64::from(DEPTH), false, 2)?;
        let state = Mutex::new(State { arena, pieces: HashMap::new(), ends: Arc::default() });
        Ok(Self { slot_bytes, lanes, state })
    }

    /// What a link of slot `slot` is called.
    pub fn need(lanes: u32, peer: u32, send: bool, slot: u32) -> Need {
        Need { lane: lanes + slot, peer, send }
    }

    /// The slot that a link carries; None if it carries a FIFO.
    pub fn slot_of(&self, need: Need) -> Option<u32> {
        need.lane.checked_sub(self.lanes)
    }

    /// The FIFO of a slot; makes the memory of its direction if need be.
    pub fn fifo(&self, device: &dyn Device, need: Need, slot: u32) -> Result<Fifo> {
        let mut state = self.lock();
        let key = (need.peer, need.send);
        let piece = match state.pieces.get(&key) {
            Some(piece) => *piece,
            None => {
                let piece = state.arena.take(device)?;
                let end = End { words: piece.page_addr, slots: piece.slots, stride: self.slot_bytes };
                state.pieces.insert(key, piece);
                Arc::make_mut(&mut state.ends).add(need.peer, need.send, end);
                piece
            }
        };
        Ok(Fifo::of_words(piece, slot, self.slot_bytes, need.send))
    }

    /// The directions that have slots.
    pub fn ends(&self) -> Arc<Far> {
        self.lock().ends.clone()
    }

    /// Sets all words that streams wait for: the communicator is aborted, and what they move is worthless.
    pub fn release(&self) {
        for piece in self.lock().pieces.values() {
            for slot in 0..u64::from(DEPTH) {
                // SAFETY: the page lives as long as the arena; its words are only touched as atomics, and by streams.
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
