//! The time for which ranks compute, communicate and wait.

use super::ops::{Kind, Step};
use super::timeline::Timeline;
use crate::engine::Time;

/// The time of ranks of one class in a step, in µs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Shares {
    /// The first of them.
    pub rank: u32,
    /// Their number.
    pub ranks: u32,
    /// The time in which they compute.
    pub computing_us: f64,
    /// The time in which a collective of theirs runs.
    pub communicating_us: f64,
    /// The part of that in which they do not compute.
    pub exposed_us: f64,
    /// The time in which they do neither.
    pub idle_us: f64,
}

/// The times of all classes of ranks.
pub fn shares(step: &Step, timeline: &Timeline) -> Vec<Shares> {
    let of_class = |(class, (rank, ranks)): (usize, &(u32, u32))| {
        let mut turns: Vec<(Time, i32, i32)> = Vec::new();
        for (op, span) in step.ops.iter().zip(&timeline.spans) {
            if step.groups[op.group].classes.contains(&class) {
                let (computing, communicating) = match op.kind {
                    Kind::Compute { .. } => (1, 0),
                    Kind::Collective(_) => (0, 1),
                };
                turns.push((span.start, computing, communicating));
                turns.push((span.end, -computing, -communicating));
            }
        }
        let mut shares = Shares { rank: *rank, ranks: *ranks, ..Shares::default() };
        turns.sort_unstable_by_key(|turn| turn.0);
        let (mut last, mut running) = (Time::ZERO, (0, 0));
        for (at, computing, communicating) in turns {
            add(&mut shares, running, (at - last).us());
            (last, running) = (at, (running.0 + computing, running.1 + communicating));
        }
        add(&mut shares, (0, 0), (timeline.end - last).us());
        shares
    };
    step.classes.iter().enumerate().map(of_class).collect()
}

/// Adds a time in which so many operations of either kind run.
fn add(shares: &mut Shares, (computing, communicating): (i32, i32), us: f64) {
    if computing > 0 {
        shares.computing_us += us;
    }
    if communicating > 0 {
        shares.communicating_us += us;
    }
    match (computing > 0, communicating > 0) {
        (false, true) => shares.exposed_us += us,
        (false, false) => shares.idle_us += us,
        _ => {}
    }
}
