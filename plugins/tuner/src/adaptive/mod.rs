//! Adaptive mode: choices that are measured again while a job runs, over a floor that is never left without
//! proof.
//!
//! The **floor** is what would run anyway: the rules of the files, else the cost model. Everything else
//! follows from three things:
//!
//! * **Trials.** [`WINDOW`] operations in a row, drawn by their numbers, run another candidate than usual
//!   ([`Adaptive::trial`], [`pick`]); of every `period` operations one is for a trial. That is a pure
//!   function of the operation's number, the call and what all ranks have agreed on, so ranks need not talk
//!   for it, and the budget cannot be exceeded.
//! * **The slow loop** ([`Policy`]), on rank 0 only, compares what operations of a trial cost the job with
//!   those just before them, by class of calls (collective and power of two of bytes). What is clearly better
//!   becomes a rule, what is hopeless is not tried again for a while, and a rule that is not better than the
//!   floor any more goes: every second trial is of the floor from then on. Such a change is a text
//!   ([`Learning`]) that all ranks take at one operation, or none does.
//! * **The fast loop** ([`Policy`] too) sees stress: operations far over their usual times, a rank that is
//!   late, or what the host tells. Then the floor counts and what was learned is suspended, until it has been
//!   calm for a time that doubles when stress returns, or trials show that what was learned is better under
//!   that stress as well. Such a stress is ordinary for the job, and takes twice as long to be one again.
//!
//! Only collectives that no rank can leave before all have begun are tried ([`is_tried`]): for those the
//! shortest time of all ranks is that of the operation, without the waiting for late ranks.

mod learner;
mod policy;
#[cfg(test)]
mod tests;
mod times;

pub use learner::{Learning, describe, is_learned, is_suspended};
pub use policy::{Class, Policy, Table, Way};

use hawser_plugin::tuner::{Candidate, Function, Question};

use crate::rule::Rule;

/// Share of operations that are trials, if the file does not say.
pub const DEFAULT_BUDGET: f64 = 0.01;
/// The largest share.
pub const MOST_BUDGET: f64 = 0.1;
/// Operations in a row that are one trial. What a way leaves to the next operation counts for it that way.
pub const WINDOW: u64 = 4;
/// Candidates that take turns, at most.
const TURNS: u64 = 16;
/// Trials that differ: where something was learned, every second one is for the floor. Each is planned once
/// for every kind of call.
const TRIALS: u64 = 2 * TURNS;
/// Candidates that the cost model takes for so many times slower than the best one are not tried.
const REACH: f32 = 4.0;

/// Adaptive mode as rules ask for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Adaptive {
    /// Of so many operations one is a trial; 0 = none, times are measured only.
    pub period: u64,
}

impl Adaptive {
    /// With a share of operations for trials, 0 to [`MOST_BUDGET`].
    pub fn with_budget(budget: f64) -> Self {
        let period = if budget > 0.0 { (1.0 / budget.min(MOST_BUDGET)).ceil() as u64 } else { 0 };
        Self { period }
    }

    /// The trial that an operation is for, if it is for one. Of [`WINDOW`] periods one window is for a trial,
    /// drawn by its number, so that no class of calls is left out because calls repeat. Before it come at
    /// least as many operations that are for none, to compare.
    #[inline]
    pub fn trial(self, operation: u64) -> Option<u32> {
        let length = self.period * WINDOW;
        let round = operation.checked_div(length)?;
        let first = WINDOW + scramble(round) % (length - 2 * WINDOW + 1);
        let within = operation % length;
        (first..first + WINDOW).contains(&within).then_some((round % TRIALS) as u32)
    }
}

/// True if a collective is tried and measured: no rank can end it before all have begun.
pub fn is_tried(function: Function) -> bool {
    use Function::{AllGather, AllReduce, AllToAll, ReduceScatter};
    matches!(function, AllReduce | AllGather | ReduceScatter | AllToAll)
}

/// The candidate that a trial takes, by its place: those that may be tried take turns, of more than 16 the
/// cheapest. None = nothing may.
pub fn pick(trial: u32, question: &Question, candidates: &[Candidate<'_>], avoid: &[Rule]) -> Option<usize> {
    if !is_tried(question.function) {
        return None;
    }
    let is_avoided = |candidate: &Candidate<'_>| {
        let named = |rule: &&Rule| rule.chain.iter().any(|action| action.way.takes(candidate));
        avoid.iter().filter(|rule| rule.when.fits_call(question).is_ok()).any(|rule| named(&rule))
    };
    let best = candidates.iter().filter_map(price).fold(f32::INFINITY, f32::min);
    let may = |candidate: &Candidate<'_>| {
        price(candidate).is_some_and(|us| us <= best * REACH) && !is_avoided(candidate)
    };
    let all = || candidates.iter().enumerate().filter(|(_, candidate)| may(candidate));
    let is_before = |(a, one): (usize, &Candidate<'_>), (b, other): (usize, &Candidate<'_>)| {
        let prices = price(one).partial_cmp(&price(other));
        prices.is_some_and(|order| order.then(a.cmp(&b)).is_lt())
    };
    let turn = trial as usize % all().count().min(TURNS as usize).max(1);
    let is_its_turn =
        |&one: &(usize, &Candidate<'_>)| all().filter(|other| is_before(*other, one)).count() == turn;
    all().find(is_its_turn).map(|(at, _)| at)
}

/// The cost model's time of a candidate that is possible and that the settings want.
fn price(candidate: &Candidate<'_>) -> Option<f32> {
    (candidate.is_offered() && candidate.us >= 0.0).then_some(candidate.us)
}

/// splitmix64's last step: numbers that follow one another give ones that do not.
fn scramble(number: u64) -> u64 {
    let z = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
