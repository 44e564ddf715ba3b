//! The signals of a rank: how often each was raised, and how many raises waits have taken.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::words::{SignalWord, SignalWords};
use super::{Awaited, Signal};

/// The counters of one rank, by the rank that raises them.
#[derive(Default)]
pub struct Counters {
    by_signal: FxHashMap<(u32, Signal), Counter>,
    /// The rank itself and the words of its team, once they are shared.
    words: Option<(u32, Arc<SignalWords>)>,
}

/// A signal of one rank.
#[derive(Default)]
struct Counter {
    /// The number of raises that were told so far, by messages or in this process.
    told: u64,
    /// The number that its word has counted to, where there is one: it has those that were told before.
    in_word: u64,
    /// The number of raises that waits have taken, or will take.
    taken: u64,
    /// Raises that belong into the word, which this rank does not share yet.
    early: u32,
}

impl Counters {
    /// From now on the ranks of the team raise the words of this rank.
    pub fn share(&mut self, rank: u32, words: Arc<SignalWords>) {
        self.words = Some((rank, words));
        for ((from, signal), counter) in &mut self.by_signal {
            let word = self.words.as_ref().and_then(|(rank, words)| words.word(*rank, *from, *signal));
            if let Some(word) = word {
                (0..std::mem::take(&mut counter.early)).for_each(|_| word.count());
            }
        }
    }

    /// True if a rank raises words here.
    pub fn has_words_of(&self, peer: u32) -> bool {
        self.words.as_ref().is_some_and(|(_, words)| words.covers(peer))
    }

    /// A raise was told.
    pub fn tell(&mut self, from: u32, signal: Signal) {
        self.by_signal.entry((from, signal)).or_default().told += 1;
    }

    /// A raise was told that belongs into the word.
    pub fn count(&mut self, from: u32, signal: Signal) {
        match self.word(from, signal) {
            Some(word) => word.count(),
            None => self.by_signal.entry((from, signal)).or_default().early += 1,
        }
    }

    /// The raises so far.
    pub fn raised(&mut self, from: u32, signal: Signal) -> u64 {
        let word = self.word(from, signal);
        let counter = self.by_signal.entry((from, signal)).or_default();
        let Some(word) = word else { return counter.told };
        counter.in_word += u64::from(word.load().wrapping_sub(counter.in_word as u32));
        counter.in_word
    }

    /// Gives a wait its share. Answers the number of raises that there have to be for it.
    pub fn take(&mut self, one: &Awaited) -> u64 {
        let counter = self.by_signal.entry((one.peer, one.signal)).or_default();
        counter.taken += one.count;
        counter.taken
    }

    /// The word that a rank raises here, if they are shared.
    pub fn word(&self, from: u32, signal: Signal) -> Option<SignalWord> {
        let (rank, words) = self.words.as_ref()?;
        words.word(*rank, from, signal)
    }
}

#[cfg(test)]
mod tests {
    use hawser_device::host::HostDevice;
    use hawser_device::{HeapKind, SharedMemory};

    use super::super::Limits;
    use super::*;

    /// Words begin with the raises that were told before, since the rank that raises them writes so.
    #[test]
    fn words_count_on_from_what_was_told() {
        let (device, limits) = (HostDevice::beside().unwrap(), Limits { signals: 1, contexts: 1 });
        let signal = Signal { index: 0, context: 0 };
        let one = |count| Awaited { peer: 1, signal, count };
        let mut counters = Counters::default();
        counters.tell(1, signal);
        counters.tell(1, signal);
        assert_eq!((counters.raised(1, signal), counters.take(&one(1))), (2, 1));
        counters.count(1, signal);
        let memory = (0..2).map(|_| device.alloc_heap(64, HeapKind::Host).unwrap()).collect();
        let words = Arc::new(SignalWords::new(&device, 0, limits, memory).unwrap());
        let word = words.word(0, 1, signal).unwrap();
        // The other rank shares them first, and raises once more by a message.
        word.store(2);
        counters.share(0, words.clone());
        assert!(counters.has_words_of(1) && !counters.has_words_of(2));
        assert_eq!((counters.raised(1, signal), counters.take(&one(2))), (3, 3));
        // Words wrap, and what was counted goes on.
        word.store(u32::MAX);
        assert_eq!(counters.raised(1, signal), u64::from(u32::MAX));
        word.count();
        word.count();
        assert_eq!(counters.raised(1, signal), u64::from(u32::MAX) + 2);
        // Ranks outside of the team still tell.
        counters.tell(2, signal);
        assert_eq!(counters.raised(2, signal), 1);
    }
}
