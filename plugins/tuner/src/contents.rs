//! The contents of rule files: rules, and how they come about.

use crate::adaptive::{Adaptive, DEFAULT_BUDGET};
use crate::rule::{Problem, Rule};

/// The contents of a rule file, or of several.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Contents {
    /// Rules, in their order.
    pub rules: Vec<Rule>,
    /// The rules that name what adaptive mode does not try: for these calls, these ways.
    pub avoid: Vec<Rule>,
    /// The mode, which says how rules come about, if the file names one.
    pub mode: Option<Mode>,
    /// The share of operations that are trials, if the file says so.
    pub budget: Option<f64>,
    /// Old spellings in the files, and how they are written now.
    pub hints: Vec<Problem>,
}

/// The mode: how rules come about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// They are those of the files.
    Fixed,
    /// Others are tried and learned while the job runs.
    Adaptive,
}

impl Mode {
    /// Words in files.
    pub const NAMES: [(Self, &'static str); 2] = [(Self::Fixed, "fixed"), (Self::Adaptive, "adaptive")];
}

impl Contents {
    /// Several files in their order: the last word counts.
    pub fn join(all: Vec<Self>) -> Self {
        let mut joined = Self::default();
        for Self { rules, avoid, mode, budget, hints } in all {
            joined.rules.extend(rules);
            joined.avoid.extend(avoid);
            joined.hints.extend(hints);
            (joined.mode, joined.budget) = (mode.or(joined.mode), budget.or(joined.budget));
        }
        joined
    }

    /// Adaptive mode, if it is asked for.
    pub fn adaptive(&self) -> Option<Adaptive> {
        let budget = self.budget.unwrap_or(DEFAULT_BUDGET);
        (self.mode == Some(Mode::Adaptive)).then(|| Adaptive::with_budget(budget))
    }
}
