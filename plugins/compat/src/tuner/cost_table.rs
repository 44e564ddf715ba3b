//! NCCL's cost table: predicted microseconds per algorithm and protocol, -1 = impossible.
//!
//! Plugins get it as `float**`, but it is one contiguous `float[7][3]`, not an array of row pointers.

use std::ffi::c_int;

use hawser_plugin::tuner::{Algorithm, Candidate, Decision, Executor, Protocol, Status};

/// Rows: NCCL's algorithms, tree to PAT. Our own ones (from 64 on) have no row.
pub(super) const ALGORITHMS: usize = 7;
/// Columns: LL, LL128, Simple.
pub(super) const PROTOCOLS: usize = 3;
const IMPOSSIBLE: f32 = -1.0;

/// The time that is added to one that nobody has compared with a measured one: plugins know no such thing,
/// and those that take the lowest time should leave it alone.
const UNMEASURED_US: f32 = 1e6;

/// The table.
#[derive(Debug, Clone, PartialEq)]
#[repr(transparent)]
pub(super) struct CostTable([[f32; PROTOCOLS]; ALGORITHMS]);

impl CostTable {
    /// The table of a list of candidates. Cells that no candidate has are impossible, and so are those of
    /// candidates that the settings hold back. Of two candidates with one cell the faster one counts.
    pub(super) fn of(candidates: &[Candidate<'_>]) -> Self {
        let mut table = Self([[IMPOSSIBLE; PROTOCOLS]; ALGORITHMS]);
        for candidate in candidates {
            let Some(((algorithm, protocol), us)) = cell_of(candidate).zip(shown(candidate)) else {
                continue;
            };
            let cell = &mut table.0[algorithm][protocol];
            if *cell < 0.0 || us < *cell {
                *cell = us;
            }
        }
        table
    }

    /// The pointer for a plugin's parameter `float**`.
    pub(super) fn as_c(&mut self) -> *mut *mut f32 {
        self.0.as_mut_ptr().cast()
    }

    /// True if a cell's combination can be chosen.
    pub(super) fn is_possible(&self, algorithm: Algorithm, protocol: Protocol) -> bool {
        self.0[algorithm.0 as usize][protocol as usize] >= 0.0
    }

    /// Makes a combination that a plugin named the cheapest one. Numbers that are no combination, and
    /// impossible ones, change nothing.
    pub(super) fn choose(&mut self, algorithm: c_int, protocol: c_int) {
        let (Ok(algorithm), Ok(protocol)) = (usize::try_from(algorithm), usize::try_from(protocol)) else {
            return;
        };
        let cell = self.0.get_mut(algorithm).and_then(|row| row.get_mut(protocol));
        if let Some(cell) = cell.filter(|cell| **cell >= 0.0) {
            *cell = 0.0;
        }
    }

    /// Takes over what a plugin changed. `before` is the table that it got. A cell that it set to 0 is an
    /// order: plugins write that for what they want, and mean no time.
    pub(super) fn apply(&self, before: &Self, candidates: &mut [Candidate<'_>]) -> Applied {
        let mut order = None;
        for (place, candidate) in candidates.iter_mut().enumerate() {
            let Some((algorithm, protocol)) = cell_of(candidate) else { continue };
            if shown(candidate).is_none() {
                continue;
            }
            let (old, new) = (before.0[algorithm][protocol], self.0[algorithm][protocol]);
            if old.to_bits() == new.to_bits() || !new.is_finite() {
                continue;
            }
            match new {
                0.0 => order = order.or(Some(place)),
                us if us < 0.0 => candidate.leave_out(),
                us => candidate.estimate(us),
            }
        }
        let mut cells = self.0.iter().flatten().zip(before.0.iter().flatten());
        let is_odd = cells.any(|(new, old)| !new.is_finite() || (*old < 0.0 && *new >= 0.0));
        Applied { order, is_odd }
    }
}

/// The outcome of a table that a plugin changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Applied {
    /// The first candidate whose cell the plugin set to 0.
    pub(super) order: Option<usize>,
    /// True if something was no time and is therefore left as it was: not a number, infinite, or a
    /// combination that was impossible.
    pub(super) is_odd: bool,
}

/// The time that plugins see of a candidate; None if they see it as impossible.
fn shown(candidate: &Candidate<'_>) -> Option<f32> {
    let us = match candidate.status {
        Status::Predicted => candidate.us,
        Status::Unmeasured => candidate.us + UNMEASURED_US,
        _ => return None,
    };
    (us >= 0.0).then_some(us)
}

/// Row and column of a candidate. NCCL's tables know neither fused kernels nor copy engines.
pub(super) fn cell_of(candidate: &Candidate<'_>) -> Option<(usize, usize)> {
    let Decision { algorithm, executor, protocol, .. } = candidate.decision;
    let runs_steps = matches!(executor, Executor::Interpreter | Executor::Host);
    (runs_steps && (algorithm.0 as usize) < ALGORITHMS).then_some((algorithm.0 as usize, protocol as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(algorithm: Algorithm, protocol: Protocol, us: f32) -> Candidate<'static> {
        Candidate::predicted(Decision::new(algorithm, Executor::Interpreter, protocol), us)
    }

    fn some() -> Vec<Candidate<'static>> {
        let refused = Decision::new(Algorithm::PAT, Executor::Interpreter, Protocol::Simple);
        let mut fused = candidate(Algorithm::RING, Protocol::Ll, 1.0);
        fused.decision.executor = Executor::Fused;
        let mut held = candidate(Algorithm::TREE, Protocol::Simple, 1.0);
        held.status = Status::HeldBack { why: "a setting", is_measured: true };
        let mut unmeasured = candidate(Algorithm::TREE, Protocol::Ll128, 1.0);
        unmeasured.status = Status::Unmeasured;
        vec![
            candidate(Algorithm::RING, Protocol::Simple, 10.0),
            candidate(Algorithm::TREE, Protocol::Ll, 5.0),
            Candidate::refused(refused, "many ranks"),
            candidate(Algorithm::ONE_SHOT, Protocol::Ll, 2.0),
            candidate(Algorithm::NVLS, Protocol::Simple, f32::NAN),
            fused,
            held,
            unmeasured,
        ]
    }

    #[test]
    fn a_cell_is_where_nccl_has_it() {
        let mut table = CostTable::of(&some());
        let base = table.as_c().cast::<f32>();
        // SAFETY: the table has 21 cells.
        let flat = unsafe { std::slice::from_raw_parts(base, ALGORITHMS * PROTOCOLS) };
        let mut expected = [-1.0; 21];
        (expected[5], expected[0], expected[1]) = (10.0, 5.0, 1_000_001.0); // 1 * 3 + 2, 0 * 3 + 0, 0 * 3 + 1
        assert_eq!(flat, expected);
    }

    #[test]
    fn an_untouched_table_changes_nothing() {
        let (mut list, before) = (some(), CostTable::of(&some()));
        assert_eq!(before.clone().apply(&before, &mut list), Applied { order: None, is_odd: false });
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
        table.0[0][1] = 7.0;
        assert_eq!(table.apply(&before, &mut list), Applied { order: Some(1), is_odd: false });
        let possible: Vec<bool> = list.iter().map(Candidate::is_possible).collect();
        assert_eq!(possible, [false, true, false, true, true, true, true, true]);
        assert_eq!(list[7], candidate(Algorithm::TREE, Protocol::Ll128, 7.0), "the plugin vouches for it");
        assert_eq!(format!("{:?}", &list[3..7]), format!("{:?}", &some()[3..7]));
    }

    #[test]
    fn garbage_is_noticed_and_left_out() {
        for (algorithm, garbage) in
            [(1, f32::NAN), (1, f32::INFINITY), (1, f32::NEG_INFINITY), (6, 0.0), (3, f32::NAN)]
        {
            let (mut list, before) = (some(), CostTable::of(&some()));
            let mut table = before.clone();
            table.0[algorithm][2] = garbage;
            assert!(table.apply(&before, &mut list).is_odd, "{garbage}");
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
        assert_eq!(table.apply(&before, &mut list).order, Some(0));
        assert_eq!(list, twice, "an order is no time");
        table.0[1][0] = 2.0;
        assert_eq!(table.apply(&before, &mut list).order, None);
        assert_eq!(list.map(|candidate| candidate.us), [2.0, 2.0]);
    }
}
