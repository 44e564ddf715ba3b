//! The counters of signals where the ranks of a load-store team share them: words in memory of the host,
//! which these ranks and the streams of their GPUs read and write.
//!
//! Each rank has a word for each rank of the team, context and signal. It holds the number of raises so far,
//! which wraps, and only the rank that raises it writes it: its streams write numbers, and its threads and
//! graphs, which do not know the number, count it up. A wait compares it with the number that there has to
//! be.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use hawser_base::error::{Error, Result};
use hawser_device::{Device, Memory};

use super::{Limits, Signal};

/// Most bytes of words that a rank shares; communicators with more signals send messages.
const MOST_BYTES: u64 = 16 << 20;

/// The words of all ranks of a team, as this rank has mapped them.
pub struct SignalWords {
    /// Rank of the team's first one in the communicator.
    first: u32,
    limits: Limits,
    /// By rank of the team: the words that others raise there.
    by_rank: Vec<Segment>,
}

/// The words of one rank.
struct Segment {
    memory: Memory,
    /// The address in this process.
    host: u64,
}

/// A word as this process and its device reach it, which keeps the memory.
#[derive(Clone)]
pub struct SignalWord {
    words: Arc<SignalWords>,
    place: Place,
}

/// The place of a word: the rank of the team whose word it is, and the offset there.
#[derive(Clone, Copy)]
pub struct Place(usize, u64);

impl SignalWord {
    /// The words that it is from, which this does not keep, and its place in them.
    pub fn apart(&self) -> (Weak<SignalWords>, Place) {
        (Arc::downgrade(&self.words), self.place)
    }

    /// The address for streams of the device.
    pub fn addr(&self) -> u64 {
        let Place(row, offset) = self.place;
        self.words.by_rank[row].memory.addr + offset
    }

    /// The number that it holds.
    pub fn load(&self) -> u32 {
        self.get().load(Ordering::Acquire)
    }

    /// Sets it.
    pub fn store(&self, value: u32) {
        self.get().store(value, Ordering::Release);
    }

    /// Counts a raise.
    pub fn count(&self) {
        self.get().fetch_add(1, Ordering::AcqRel);
    }

    fn get(&self) -> &AtomicU32 {
        let Place(row, offset) = self.place;
        let at = (self.words.by_rank[row].host + offset) as *const AtomicU32;
        // SAFETY: a multiple of 4 inside memory that `words` keeps; all who reach it use atomics, or
        // operations of streams on words.
        unsafe { &*at }
    }
}

impl SignalWords {
    /// The bytes of one rank's words in a team of so many; None if they are too many to be shared.
    pub fn bytes(ranks: u32, limits: Limits) -> Option<u64> {
        let words =
            u64::from(limits.signals).checked_mul(limits.contexts.into())?.checked_mul(ranks.into())?;
        words.checked_mul(size_of::<u32>() as u64).filter(|bytes| (1..=MOST_BYTES).contains(bytes))
    }

    /// The words of the ranks from `first` on, each in memory of [`SignalWords::bytes`] bytes that is zero.
    ///
    /// # Errors
    /// `Internal`: the memory is not the host's, or too small.
    pub fn new(device: &dyn Device, first: u32, limits: Limits, memory: Vec<Memory>) -> Result<Self> {
        let bytes = Self::bytes(memory.len() as u32, limits);
        let segment = |memory: Memory| {
            let host =
                device.host_address(&memory).filter(|_| bytes.is_some_and(|most| most <= memory.bytes));
            let host =
                host.ok_or_else(|| Error::internal("words of signals in memory that cannot hold them"))?;
            Ok(Segment { memory, host })
        };
        let by_rank = memory.into_iter().map(segment).collect::<Result<_>>()?;
        Ok(Self { first, limits, by_rank })
    }

    /// True if a rank of the communicator shares its words.
    pub fn covers(&self, rank: u32) -> bool {
        self.row(rank).is_some()
    }

    /// The word of a signal that rank `from` raises at rank `at`; None if one of them is not of the team or
    /// there is no such signal.
    pub fn word(self: &Arc<Self>, at: u32, from: u32, signal: Signal) -> Option<SignalWord> {
        let (row, from) = (self.row(at)?, self.row(from)?);
        let Limits { signals, contexts } = self.limits;
        if signal.index >= signals || signal.context >= contexts {
            return None;
        }
        let (signals, contexts) = (signals as usize, contexts as usize);
        let word = (from * contexts + signal.context as usize) * signals + signal.index as usize;
        Some(SignalWord { words: self.clone(), place: Place(row, (word * size_of::<u32>()) as u64) })
    }

    /// The word at a place of these.
    pub fn at(self: Arc<Self>, place: Place) -> SignalWord {
        SignalWord { words: self, place }
    }

    fn row(&self, rank: u32) -> Option<usize> {
        rank.checked_sub(self.first).map(|row| row as usize).filter(|row| *row < self.by_rank.len())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use hawser_device::HeapKind;
    use hawser_device::SharedMemory;
    use hawser_device::host::HostDevice;

    use super::*;

    #[test]
    fn each_signal_of_each_pair_has_a_word_of_its_own() {
        let (device, limits) = (HostDevice::beside().unwrap(), Limits { signals: 3, contexts: 2 });
        let bytes = SignalWords::bytes(2, limits).unwrap();
        assert_eq!(bytes, 2 * 3 * 2 * 4);
        let memory = (0..2).map(|_| device.alloc_heap(bytes, HeapKind::Host).unwrap()).collect();
        let words = Arc::new(SignalWords::new(&device, 4, limits, memory).unwrap());
        let signals = (0..3).flat_map(|index| (0..2).map(move |context| Signal { index, context }));
        let mut seen = BTreeSet::new();
        for (at, from) in [(4, 4), (4, 5), (5, 4), (5, 5)] {
            for signal in signals.clone() {
                let word = words.word(at, from, signal).unwrap();
                assert!(seen.insert(word.addr()), "{at} {from} {signal:?}");
                word.count();
                word.store(word.load() + 1);
                assert_eq!(word.load(), 2);
            }
        }
        let first = Signal { index: 0, context: 0 };
        assert!(words.covers(4) && words.covers(5) && !words.covers(3) && !words.covers(6));
        assert!(words.word(4, 6, first).is_none() && words.word(3, 4, first).is_none());
        assert!(words.word(4, 5, Signal { index: 3, context: 0 }).is_none());
        assert!(words.word(4, 5, Signal { index: 0, context: 2 }).is_none());
    }

    #[test]
    fn too_many_words_are_not_shared() {
        assert!(SignalWords::bytes(8, Limits { signals: 1 << 20, contexts: 1 }).is_none());
        assert!(SignalWords::bytes(8, Limits { signals: u32::MAX, contexts: u32::MAX }).is_none());
        assert!(SignalWords::bytes(8, Limits { signals: 0, contexts: 1 }).is_none());
    }
}
