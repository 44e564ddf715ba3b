//! Entry point for a fuzz target: journals of another process, which may have written anything.

use hawser_base::figures;
use hawser_base::liveness::Identity;
use hawser_base::readable_memory::SLOT_WORDS;

use super::joining::JoiningReport;
use super::journal::View;
use super::report::ProcessReport;
use crate::record;

/// Reads bytes as a slot of the memory of journals, and makes the report of a process with it.
pub fn slot(bytes: &[u8]) {
    let mut words = vec![0; SLOT_WORDS];
    for (word, part) in words.iter_mut().zip(bytes.chunks(8)) {
        let mut eight = [0; 8];
        eight[..part.len()].copy_from_slice(part);
        *word = u64::from_le_bytes(eight);
    }
    // In the middle of all times, so that some lie ahead.
    let now_ms = 1 << 20;
    let joining = JoiningReport::new(&words, now_ms).into_iter().collect();
    let views = View::new(&words, now_ms).into_iter().collect();
    let identity = Identity::decode(&[1; Identity::LEN]);
    let figures = <&[u64; SLOT_WORDS]>::try_from(&words[..]).map_or_else(|_| Vec::new(), figures::of_slot);
    let report = ProcessReport { joining, figures, ..ProcessReport::of_journals(&identity, views) };
    record::encode(&report);
}
