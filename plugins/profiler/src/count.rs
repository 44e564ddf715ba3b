//! The number of events of each kind, and the bytes that they were to move.

use std::fmt::Write;

use hawser_plugin::profiler::What;

use crate::describe::{KINDS, element_bytes, index};
use crate::record::Bytes;

/// More different functions than a host has.
const MOST_FUNCTIONS: usize = 64;
/// The name that all further ones share.
const OTHER: &str = "other";

/// Counters of a communicator.
#[derive(Default)]
pub struct Counts {
    kinds: [u64; KINDS.len()],
    /// Collectives and messages: number and bytes of this rank's buffer.
    functions: Vec<(String, u64, u64)>,
}

impl Counts {
    /// Counts an event.
    pub fn add(&mut self, what: &What<'_>) {
        self.kinds[index(what.kind())] += 1;
        let (What::Coll { func, count, datatype, .. }
        | What::P2p { func, count, datatype, .. }
        | What::CeColl { func, count, datatype, .. }) = *what
        else {
            return;
        };
        let bytes = count.saturating_mul(element_bytes(datatype));
        let is_full = self.functions.len() >= MOST_FUNCTIONS;
        // The first of few: comparing is quicker than any search.
        let mut find = |func: &str| {
            let found = self.functions.iter_mut().find(|(known, ..)| known == func);
            found.map(|(_, number, sum)| (*number, *sum) = (*number + 1, sum.saturating_add(bytes))).is_some()
        };
        if find(func) || is_full && find(OTHER) {
            return;
        }
        self.functions.push((if is_full { OTHER } else { func }.to_owned(), 1, bytes));
    }

    /// One line: `4 group, 3 coll; AllReduce 3 (1.2 MB)`.
    pub fn summary(&self) -> String {
        let kinds = KINDS.iter().zip(self.kinds).filter(|(_, count)| *count > 0);
        let kinds: Vec<String> = kinds.map(|((name, _), count)| format!("{count} {name}")).collect();
        let mut text = if kinds.is_empty() { "no events".to_owned() } else { kinds.join(", ") };
        let mut functions: Vec<_> = self.functions.iter().collect();
        functions.sort();
        for (at, (function, number, bytes)) in functions.into_iter().enumerate() {
            let before = if at == 0 { "; " } else { ", " };
            let _ = write!(text, "{before}{function} {number} ({})", Bytes(*bytes));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send<'a>(func: &'a str, count: u64, datatype: &'a str) -> What<'a> {
        What::P2p { func, buff: 0, datatype, count, peer: 0, channels: 0, group: None }
    }

    #[test]
    fn kinds_and_functions_are_summed() {
        let mut counts = Counts::default();
        assert_eq!(counts.summary(), "no events");
        counts.add(&What::Group);
        counts.add(&send("Send", 250, "ncclFloat64"));
        counts.add(&send("Send", 1000, "ncclBfloat16"));
        counts.add(&send("Recv", 5, "ncclFloat8e4m3"));
        assert_eq!(counts.summary(), "1 group, 3 p2p; Recv 1 (5 B), Send 2 (4.0 kB)");
        counts.add(&send("Send", u64::MAX, "ncclInt32"));
        assert!(counts.summary().contains("Send 3 (18446.7 PB)"));
    }

    #[test]
    fn functions_are_bounded() {
        let mut counts = Counts::default();
        (0..1000).for_each(|number| counts.add(&send(&format!("f{number}"), 1, "ncclInt8")));
        assert_eq!(counts.functions.len(), MOST_FUNCTIONS + 1);
        assert!(counts.summary().contains(&format!("other {} ", 1000 - MOST_FUNCTIONS)));
    }
}
