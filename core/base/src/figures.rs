//! Figures of this process: what its rails carried, what its pools hold, what waits. They are counted where
//! things happen, and lie in memory that others may read ([`crate::readable_memory`]).
//!
//! ```
//! use hawser_base::figures;
//!
//! let sent = figures::sum("example_bytes_total", &[("rail", "eth0")]);
//! sent.add(5);
//! let all = figures::all();
//! assert!(all.iter().any(|found| found.name == "example_bytes_total" && found.value == 5));
//! ```

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hawser_plugin::host::Figure;

use crate::liveness::forked;
use crate::log::{self, Keeper};
use crate::readable_memory::{SLOT_WORDS, Slot};

/// The first word of a slot that holds figures.
const FORMAT: u64 = u64::from_le_bytes(*b"figures1");
/// Words of an entry: the value, the length of the text with [`SUM`], the text.
const ENTRY: usize = 16;
/// Bytes of the text: the name, then keys and values of labels, with zeros between them.
const TEXT: usize = 8 * (ENTRY - 2);
/// The bit of an entry whose figure only grows.
const SUM: u64 = 1 << 32;
/// The most figures of a process. Later ones share a value that nobody reads.
const MOST: usize = 512;

/// A figure that anybody may change. It stays as long as the process.
#[derive(Debug, Clone, Copy)]
pub struct Counter(&'static AtomicU64);

impl Counter {
    /// Adds to it.
    pub fn add(self, by: u64) {
        self.change(|value| {
            value.fetch_add(by, Ordering::Relaxed);
        });
    }

    /// Takes from it.
    pub fn take(self, by: u64) {
        self.change(|value| {
            value.fetch_sub(by, Ordering::Relaxed);
        });
    }

    /// Gives it a value.
    pub fn set(self, value: u64) {
        self.change(|place| place.store(value, Ordering::Relaxed));
    }

    /// A child of fork(2) does not have the memory.
    fn change(self, change: impl FnOnce(&AtomicU64)) {
        if !forked::is_child() {
            change(self.0);
        }
    }
}

/// A figure and its value at a moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    /// Its name, in Prometheus's style.
    pub name: String,
    /// Keys and values of its labels.
    pub labels: Vec<(String, String)>,
    /// True if it only grows.
    pub is_sum: bool,
    /// The value.
    pub value: u64,
}

#[derive(Default)]
struct Figures {
    /// Text, kind and place of each.
    known: Vec<(String, bool, &'static AtomicU64)>,
    /// The memory that others read, where the first figures lie.
    slot: Option<Slot>,
}

static FIGURES: Mutex<Figures> = Mutex::new(Figures { known: Vec::new(), slot: None });

/// The figure of a name and labels that only grows. Whoever asks again gets the same one.
pub fn sum(name: &str, labels: &[(&str, &str)]) -> Counter {
    lock().find(name, labels, true)
}

/// The same for a figure that rises and falls.
pub fn level(name: &str, labels: &[(&str, &str)]) -> Counter {
    lock().find(name, labels, false)
}

/// All figures of this process.
pub fn all() -> Vec<Reading> {
    if forked::is_child() {
        return Vec::new();
    }
    let read = |(text, is_sum, place): &(String, bool, &'static AtomicU64)| {
        reading(text, *is_sum, place.load(Ordering::Relaxed))
    };
    lock().known.iter().filter_map(read).collect()
}

/// All figures of this process as plugins get them.
fn for_plugins() -> Vec<Figure> {
    let of = |found: Reading| Figure::new(found.name, found.labels, found.value, found.is_sum);
    all().into_iter().map(of).collect()
}

/// The figures of another process, from a slot of its memory; none if it holds something else.
pub fn of_slot(words: &[u64; SLOT_WORDS]) -> Vec<Reading> {
    if words[0] != FORMAT {
        return Vec::new();
    }
    let read = |entry: &[u64]| {
        let length = (entry[1] & (SUM - 1)) as usize;
        let bytes: Vec<u8> = entry[2..].iter().flat_map(|word| word.to_le_bytes()).collect();
        let text = String::from_utf8_lossy(bytes.get(..length)?);
        reading(&text, entry[1] & SUM != 0, entry[0])
    };
    words[ENTRY..].chunks_exact(ENTRY).filter_map(read).collect()
}

impl Figures {
    fn find(&mut self, name: &str, labels: &[(&str, &str)], is_sum: bool) -> Counter {
        // What plugins count, and errors, are figures from the first one on.
        let add = |name: &str, labels: &[(&str, &str)], by| sum(name, labels).add(by);
        log::keep_figures(Keeper { add, all: for_plugins });
        let mut text = name.to_owned();
        for part in labels.iter().flat_map(|(key, value)| [key, value]) {
            text.push('\0');
            // A zero ends a part.
            text.extend(part.chars().filter(|letter| *letter != '\0'));
        }
        if let Some((_, _, place)) = self.known.iter().find(|(known, ..)| *known == text) {
            return Counter(place);
        }
        static NOBODYS: AtomicU64 = AtomicU64::new(0);
        if self.known.len() >= MOST || forked::is_child() {
            return Counter(&NOBODYS);
        }
        let place = self.place(&text, is_sum);
        self.known.push((text, is_sum, place));
        Counter(place)
    }

    /// A place for a value: in the memory that others read, if there is room.
    fn place(&mut self, text: &str, is_sum: bool) -> &'static AtomicU64 {
        let words = self.slot.get_or_insert_with(Slot::new).words();
        words[0].store(FORMAT, Ordering::Release);
        let free = |entry: &&[AtomicU64]| entry[1].load(Ordering::Relaxed) == 0;
        let entry = words[ENTRY..].chunks_exact(ENTRY).find(free);
        let Some(entry) = entry.filter(|_| text.len() <= TEXT) else {
            return Box::leak(Box::new(AtomicU64::new(0)));
        };
        for (word, part) in entry[2..].iter().zip(text.as_bytes().chunks(8)) {
            let mut eight = [0; 8];
            eight[..part.len()].copy_from_slice(part);
            word.store(u64::from_le_bytes(eight), Ordering::Relaxed);
        }
        let kind = if is_sum { SUM } else { 0 };
        entry[1].store(text.len() as u64 | kind, Ordering::Release);
        &entry[0]
    }
}

/// The reading of an entry; None for a text that is none.
fn reading(text: &str, is_sum: bool, value: u64) -> Option<Reading> {
    let mut parts = text.split('\0').map(str::to_owned);
    let name = parts.next().filter(|name| !name.is_empty())?;
    let mut labels = Vec::new();
    while let Some(key) = parts.next() {
        labels.push((key, parts.next()?));
    }
    Some(Reading { name, labels, is_sum, value })
}

fn lock() -> MutexGuard<'static, Figures> {
    FIGURES.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(figures: &Figures) -> [u64; SLOT_WORDS] {
        let words = figures.slot.as_ref().unwrap().words();
        std::array::from_fn(|at| words[at].load(Ordering::Relaxed))
    }

    #[test]
    fn a_figure_is_one_for_all_who_name_it_and_can_be_read() {
        let mut figures = Figures::default();
        figures.find("a_total", &[("net", "IB"), ("rail", "mlx5_0")], true).add(3);
        figures.find("a_total", &[("net", "IB"), ("rail", "mlx5_0")], true).add(4);
        let depth = figures.find("depth", &[], false);
        depth.add(9);
        depth.take(2);
        let found = of_slot(&copy(&figures));
        let labels = [("net", "IB"), ("rail", "mlx5_0")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        let first = Reading { name: "a_total".into(), labels: labels.into(), is_sum: true, value: 7 };
        let second = Reading { name: "depth".into(), labels: Vec::new(), is_sum: false, value: 7 };
        assert_eq!(found, [first, second]);
    }

    #[test]
    fn figures_without_room_are_counted_and_not_shown() {
        let mut figures = Figures::default();
        figures.find(&"long".repeat(100), &[], true).add(1);
        (0..2 * MOST).for_each(|number| figures.find(&format!("f{number}"), &[], true).add(1));
        assert_eq!(figures.known.len(), MOST);
        assert_eq!(of_slot(&copy(&figures)).len(), SLOT_WORDS / ENTRY - 1);
    }

    #[test]
    fn a_slot_of_nonsense_has_no_figures() {
        assert!(of_slot(&[0; SLOT_WORDS]).is_empty());
        let mut words = [u64::MAX; SLOT_WORDS];
        words[0] = FORMAT;
        assert!(of_slot(&words).is_empty());
    }

    #[test]
    fn what_a_net_counts_is_a_figure_that_profilers_see() {
        let log = crate::log::for_plugins();
        sum("the_first", &[]).add(1);
        log.count("counting", "eth1", "losses", 2);
        log.count("counting", "eth1", "losses", 1);
        let labels = [("net", "counting"), ("rail", "eth1")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        let found: Vec<Figure> = log.figures().into_iter().filter(|found| found.labels == labels).collect();
        assert_eq!(found, [Figure::new("rail_losses_total".into(), labels.into(), 3, true)]);
        crate::log::error(&crate::error::Error::internal("counted"));
        assert!(log.figures().iter().any(|found| found.name == "errors_total" && found.value > 0));
    }
}
