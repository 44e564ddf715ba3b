//! A rank that waits for others in init, before there is a communicator and a journal of it: what it waits
//! for, in words that other processes of the user may read.

use hawser_base::readable_memory::{SLOT_WORDS, Slot};

use std::sync::atomic::{Ordering, fence};

use serde::{Deserialize, Serialize};

use super::journal::now_ms;

/// The first word of a slot that holds such a note; that of a journal is 1.
pub const IN_USE: u64 = 2;
/// The most ranks that are named.
const RANKS: usize = 16;
/// The words that the text of a note takes.
const NOTE_WORDS: usize = 32;

/// The words of a slot.
mod word {
    pub const MEETING: usize = 1;
    /// Rank, and the number of ranks above it.
    pub const RANK_OF_RANKS: usize = 2;
    pub const SINCE: usize = 3;
    /// Odd while the rest is being written.
    pub const VERSION: usize = 4;
    pub const MISSING: usize = 5;
    pub const RANKS: usize = 6;
    pub const NOTE: usize = RANKS + super::RANKS;
}

/// A rank in init. Others see it until this is dropped.
pub struct Joining {
    slot: Slot,
}

/// The content of the slot of a [`Joining`] at a moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoiningReport {
    /// A number that only ranks of the same meeting have in common.
    pub meeting: u64,
    /// The rank.
    pub rank: u32,
    /// The number of ranks.
    pub ranks: u32,
    /// Milliseconds since it began to wait.
    pub age_ms: u64,
    /// The number of ranks that have not come.
    pub missing: u32,
    /// The first of them.
    pub named: Vec<u32>,
    /// A sentence about strangers that came instead; empty if none did.
    pub note: String,
}

impl Joining {
    /// A rank that begins to wait.
    pub fn new(meeting: u64, rank: u32, ranks: u32) -> Self {
        let joining = Self { slot: Slot::new() };
        let words = joining.slot.words();
        words[word::MEETING].store(meeting, Ordering::Relaxed);
        words[word::RANK_OF_RANKS].store(u64::from(rank) | u64::from(ranks) << 32, Ordering::Relaxed);
        words[word::SINCE].store(now_ms(), Ordering::Relaxed);
        words[0].store(IN_USE, Ordering::Release);
        joining
    }

    /// Notes how many ranks are missing, the first of them, and what is said of strangers.
    pub fn note(&self, missing: u32, named: &[u32], note: &str) {
        let words = self.slot.words();
        words[word::VERSION].fetch_add(1, Ordering::Relaxed);
        fence(Ordering::Release);
        words[word::MISSING].store(missing.into(), Ordering::Relaxed);
        for (at, word) in words[word::RANKS..][..RANKS].iter().enumerate() {
            let rank = named.get(at).map_or(u64::MAX, |rank| u64::from(*rank));
            word.store(rank, Ordering::Relaxed);
        }
        let mut bytes = [0; 8 * NOTE_WORDS];
        let length = note.floor_char_boundary(bytes.len());
        bytes[..length].copy_from_slice(&note.as_bytes()[..length]);
        for (word, part) in words[word::NOTE..].iter().zip(bytes.chunks_exact(8)) {
            let mut eight = [0; 8];
            eight.copy_from_slice(part);
            word.store(u64::from_le_bytes(eight), Ordering::Relaxed);
        }
        words[word::VERSION].fetch_add(1, Ordering::Release);
    }

    /// Reads what the slot says now.
    pub fn report(&self) -> Option<JoiningReport> {
        let words = self.slot.words().each_ref().map(|word| word.load(Ordering::Relaxed));
        JoiningReport::new(&words[..], now_ms())
    }
}

impl JoiningReport {
    /// Reads the words of a slot; `None` for another kind of slot, or one that is being written.
    pub fn new(words: &[u64], now_ms: u64) -> Option<Self> {
        if words.len() != SLOT_WORDS || words[0] != IN_USE || words[word::VERSION] % 2 == 1 {
            return None;
        }
        let is_noted = words[word::VERSION] > 0;
        let named = words[word::RANKS..][..RANKS].iter().filter_map(|word| u32::try_from(*word).ok());
        let note: Vec<u8> =
            words[word::NOTE..][..NOTE_WORDS].iter().flat_map(|word| word.to_le_bytes()).collect();
        let note = String::from_utf8_lossy(&note);
        Some(Self {
            meeting: words[word::MEETING],
            rank: words[word::RANK_OF_RANKS] as u32,
            ranks: (words[word::RANK_OF_RANKS] >> 32) as u32,
            age_ms: now_ms.saturating_sub(words[word::SINCE]),
            missing: words[word::MISSING] as u32,
            named: if is_noted { named.collect() } else { Vec::new() },
            note: note.trim_end_matches('\0').chars().filter(|letter| !letter.is_control()).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_rank_says_for_whom_it_waits() {
        let joining = Joining::new(7, 2, 40);
        let report = joining.report().expect("a report");
        assert_eq!((report.meeting, report.rank, report.ranks, report.named.len()), (7, 2, 40, 0));
        let many: Vec<u32> = (3..40).collect();
        joining.note(37, &many, "a caller");
        joining.note(2, &[1, 5], "ein Störer");
        let report = joining.report().expect("a report");
        assert_eq!((report.missing, &report.named[..], &*report.note), (2, &[1, 5][..], "ein Störer"));
        joining.note(37, &many, "");
        let report = joining.report().expect("a report");
        assert_eq!((report.missing, &report.named[..], &*report.note), (37, &many[..16], ""));
    }

    proptest! {
        #[test]
        fn any_words_are_some_report_or_none(seed in proptest::collection::vec(any::<u64>(), 64)) {
            let mut words = vec![0; SLOT_WORDS];
            words[..64].copy_from_slice(&seed);
            words[0] = IN_USE;
            let report = JoiningReport::new(&words, 5);
            prop_assert_eq!(report.is_some(), words[word::VERSION].is_multiple_of(2));
        }
    }
}
