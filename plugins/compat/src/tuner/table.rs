//! NCCL's cost table: predicted microseconds per algorithm and protocol, -1 = impossible.
//!
//! Plugins get it as `float**`, but it is one contiguous `float[7][3]`, not an array of row pointers.

use std::ffi::c_int;

use hawser_plugin::tuner::{Algorithm, Candidate, Protocol};

/// Rows: NCCL's algorithms, tree to PAT. Our own ones (from 64 on) have no row.
pub(super) const ALGORITHMS: usize = 7;
/// Columns: LL, LL128, Simple.
pub(super) const PROTOCOLS: usize = 3;
const IMPOSSIBLE: f32 = -1.0;

/// The table.
#[derive(Debug, Clone, PartialEq)]
#[repr(transparent)]
pub(super) struct CostTable([[f32; PROTOCOLS]; ALGORITHMS]);

impl CostTable {
    /// The table of a list of candidates. Cells that no candidate has are impossible. Of two candidates with one cell
    /// the faster one counts.
    pub(super) fn of(candidates: &[Candidate]) -> Self {
        let mut table = Self([[IMPOSSIBLE; PROTOCOLS]; ALGORITHMS]);
        for candidate in candidates.iter().filter(|candidate| is_possible(candidate.us)) {
            let Some((algorithm, protocol)) = cell_of(candidate) else { continue };
            let cell = &mut table.0[algorithm][protocol];
            if *cell < 0.0 || candidate.us < *cell {
                *cell = candidate.us;
            }
        }
        table
    }

    /// What a plugin's parameter `float**` gets.
    pub(super) fn as_c(&mut self) -> *mut *mut f32 {
        self.0.as_mut_ptr().cast()
    }

    /// Whether a cell's combination can be chosen.
    pub(super) fn is_possible(&self, algorithm: Algorithm, protocol: Protocol) -> bool {
        self.0[algorithm.0 as usize][protocol as usize] >= 0.0
    }

    /// Makes a combination that a plugin named the cheapest one. Numbers that are no combination, and impossible ones,
    /// change nothing.
    pub(super) fn choose(&mut self, algorithm: c_int, protocol: c_int) {
        let (Ok(algorithm), Ok(protocol)) = (usize::try_from(algorithm), usize::try_from(protocol)) else {
            return;
        };
        let cell = self.0.get_mut(algorithm).and_then(|row| row.get_mut(protocol));
        if let Some(cell) = cell.filter(|cell| **cell >= 0.0) {
            *cell = 0.0;
        }
    }

    /// Takes over what a plugin changed. `before` is the table that it got. True if something was no time and is
    /// therefore left as it was: not a number, infinite, or a combination that was impossible.
    pub(super) fn apply(&self, before: &Self, candidates: &mut [Candidate]) -> bool {
        for candidate in candidates.iter_mut().filter(|candidate| is_possible(candidate.us)) {
            let Some((algorithm, protocol)) = cell_of(candidate) else { continue };
            let (old, new) = (before.0[algorithm][protocol], self.0[algorithm][protocol]);
            if old.to_bits() == new.to_bits() || !new.is_finite() {
                continue;
            }
            candidate.us = if new < 0.0 { IMPOSSIBLE } else { new };
        }
        let cells = self.0.iter().flatten().zip(before.0.iter().flatten());
        cells.into_iter().any(|(new, old)| !new.is_finite() || (*old < 0.0 && *new >= 0.0))
    }
}

/// Times below 0 and what is no number stand for "impossible".
fn is_possible(us: f32) -> bool {
    us >= 0.0
}

fn cell_of(candidate: &Candidate) -> Option<(usize, usize)> {
    let algorithm = candidate.algorithm.0 as usize;
    (algorithm < ALGORITHMS).then_some((algorithm, candidate.protocol as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(algorithm: Algorithm, protocol: Protocol, us: f32) -> Candidate {
        Candidate { algorithm, protocol, us }
    }

    fn some() -> Vec<Candidate> {
        vec![
            candidate(Algorithm::RING, Protocol::Simple, 10.0),
            candidate(Algorithm::TREE, Protocol::Ll, 5.0),
            candidate(Algorithm::PAT, Protocol::Simple, -1.0),
            candidate(Algorithm::ONE_SHOT, Protocol::Ll, 2.0),
            candidate(Algorithm::NVLS, Protocol::Simple, f32::NAN),
        ]
    }

    #[test]
    fn a_cell_is_where_nccl_has_it() {
        let mut table = CostTable::of(&some());
        let base = table.as_c().cast::<f32>();
        // SAFETY: the table has 21 cells.
        let flat = unsafe { std::slice::from_raw_parts(base, ALGORITHMS * PROTOCOLS) };
        let mut expected = [-1.0; 21];
        (expected[5], expected[0]) = (10.0, 5.0); // 1 * 3 + 2, 0 * 3 + 0
        assert_eq!(flat, expected);
    }

    #[test]
    fn an_untouched_table_changes_nothing() {
        let (mut list, before) = (some(), CostTable::of(&some()));
        assert!(!before.clone().apply(&before, &mut list));
        assert_eq!(format!("{list:?}"), format!("{:?}", some()));
    }

    #[test]
    fn only_possible_cells_change() {
        let (mut list, before) = (some(), CostTable::of(&some()));
        let mut table = before.clone();
        table.choose(0, 0);
        table.choose(6, 2); // impossible
        for (algorithm, protocol) in [(-1, 0), (0, -1), (7, 0), (0, 3), (c_int::MAX, c_int::MIN), (64, 0)] {
            table.choose(algorithm, protocol);
        }
        table.0[1][2] = -3.5;
        assert!(!table.apply(&before, &mut list));
        let us: Vec<f32> = list.iter().map(|candidate| candidate.us).collect();
        assert_eq!(us[..4], [-1.0, 0.0, -1.0, 2.0]);
    }

    #[test]
    fn garbage_is_noticed_and_left_out() {
        for (algorithm, garbage) in
            [(1, f32::NAN), (1, f32::INFINITY), (1, f32::NEG_INFINITY), (6, 0.0), (3, f32::NAN)]
        {
            let (mut list, before) = (some(), CostTable::of(&some()));
            let mut table = before.clone();
            table.0[algorithm][2] = garbage;
            assert!(table.apply(&before, &mut list), "{garbage}");
            assert_eq!(format!("{list:?}"), format!("{:?}", some()), "{garbage}");
        }
    }

    #[test]
    fn two_candidates_of_one_cell_keep_their_times_until_the_cell_changes() {
        let twice =
            [candidate(Algorithm::RING, Protocol::Ll, 7.0), candidate(Algorithm::RING, Protocol::Ll, 3.0)];
        let before = CostTable::of(&twice);
        let mut list = twice;
        before.clone().apply(&before, &mut list);
        assert_eq!(list, twice);
        let mut table = before.clone();
        table.choose(1, 0);
        table.apply(&before, &mut list);
        assert_eq!(list.map(|candidate| candidate.us), [0.0, 0.0]);
    }
}
