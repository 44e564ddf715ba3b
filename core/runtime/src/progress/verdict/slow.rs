//! A rank that keeps the others waiting again and again, though all goes on: an outlier of its peers.
//!
//! Only ranks of one host are compared: they share a clock.

use std::collections::BTreeMap;

use super::{Case, Cause, Finding, finding, seconds};
use crate::progress::report::{CommReport, ProcessReport};

/// The fewest operations that tell something.
const FEWEST: usize = 6;
/// The shortest time that counts as late, in milliseconds: the clock is coarse.
const LATE_MS: u64 = 20;
/// The times between two operations after which a job counts as standing still.
const PERIODS: u64 = 10;

/// A rank that is slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slow {
    /// The rank.
    pub rank: u32,
    /// The operations to which it came last.
    pub last: usize,
    /// The operations that were looked at.
    pub of: usize,
    /// The time that it came after the last of the others, as a median in milliseconds.
    pub late_ms: u64,
    /// The time from one operation to the next, likewise.
    pub period_ms: u64,
}

/// The moments at which ranks called an operation.
type Calls = Vec<(u64, u32)>;

/// The rank that comes last to nearly all operations of a communicator, if there is one on some host.
pub fn slow(comms: &BTreeMap<u32, (&ProcessReport, &CommReport)>) -> Option<Slow> {
    let mut hosts: BTreeMap<[u8; 16], Vec<&CommReport>> = BTreeMap::new();
    for (report, comm) in comms.values() {
        hosts.entry(report.machine).or_default().push(comm);
    }
    hosts.values().filter(|comms| comms.len() > 1).find_map(|comms| of_host(comms))
}

fn of_host(comms: &[&CommReport]) -> Option<Slow> {
    let mut by_number: BTreeMap<u64, Calls> = BTreeMap::new();
    for comm in comms {
        for operation in comm.operations.iter().filter(|operation| operation.what.is_collective()) {
            let at = comm.taken_ms.saturating_sub(operation.age_ms);
            by_number.entry(operation.number).or_default().push((at, comm.rank));
        }
    }
    let mut calls: Vec<Calls> = by_number.into_values().filter(|calls| calls.len() == comms.len()).collect();
    calls.iter_mut().for_each(|calls| calls.sort_unstable());
    if calls.len() < FEWEST {
        return None;
    }
    let last = |calls: &Calls| calls[calls.len() - 1];
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    for calls in &calls {
        *counts.entry(last(calls).1).or_default() += 1;
    }
    let (rank, count) = counts.into_iter().max_by_key(|(_, count)| *count)?;
    let of_rank = calls.iter().filter(|calls| last(calls).1 == rank);
    let late_ms = median(of_rank.map(|calls| last(calls).0 - calls[calls.len() - 2].0).collect())?;
    let periods = calls.windows(2).map(|pair| last(&pair[1]).0.saturating_sub(last(&pair[0]).0));
    let period_ms = median(periods.collect())?;
    let now = comms.iter().map(|comm| comm.taken_ms).max()?;
    let is_moving = now.saturating_sub(last(&calls[calls.len() - 1]).0) <= 1000 + PERIODS * period_ms;
    let is_outlier = count * 6 >= calls.len() * 5 && late_ms >= LATE_MS && late_ms * 10 >= period_ms * 3;
    let slow = Slow { rank, last: count, of: calls.len(), late_ms, period_ms };
    (is_moving && is_outlier).then_some(slow)
}

fn median(mut values: Vec<u64>) -> Option<u64> {
    values.sort_unstable();
    values.get(values.len() / 2).copied()
}

impl Case<'_> {
    /// A rank that is slow, where a moment alone would tell something else.
    pub(super) fn slow(&self, seen: &Finding) -> Option<Finding> {
        let slow = slow(&self.comms)?;
        let may_be = match seen.cause {
            Cause::NotCalled => seen.guilty == [slow.rank],
            Cause::NothingOpen | Cause::Lost | Cause::NotSubmitted => true,
            _ => false,
        };
        let text = format!(
            "{} is slow: it came last to {} of the last {} operations, {} after the others, where one \
             follows the other after {} (medians)",
            self.who(slow.rank),
            slow.last,
            slow.of,
            seconds(slow.late_ms),
            seconds(slow.period_ms)
        );
        let remedy = "what does that rank do between its calls (loading data, writing, a busy processor)?";
        may_be.then(|| finding(Cause::Slow, slow.rank, text, remedy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::operation::{Operation, Stage, What};
    use proptest::prelude::*;

    /// Ranks of one host that called operations at these moments, seen at a time.
    fn found(calls: &[Vec<u64>], now: u64) -> Option<Slow> {
        let what = What::Collective { collective: 0, dtype: 7, op: 0, count: 1, root: 0 };
        let operation = |(number, at): (usize, &u64)| Operation {
            sequence: number as u64 + 1,
            number: number as u64,
            what: what.clone(),
            stage: Stage::Done,
            age_ms: now - at,
            predicted_ns: 0,
            tag: 0,
        };
        let report = |(rank, calls): (usize, &Vec<u64>)| {
            let comm = CommReport {
                comm_id: 1,
                name: String::new(),
                rank: rank as u32,
                ranks: 3,
                world: rank as u32,
                is_exact: true,
                taken_ms: now,
                collectives: calls.len() as u64,
                queued: None,
                waits: Vec::new(),
                operations: calls.iter().enumerate().map(operation).collect(),
                stalls: Vec::new(),
            };
            ProcessReport {
                machine: [1; 16],
                host: "a".into(),
                pid: rank as u32,
                state: None,
                comms: vec![comm],
                joining: Vec::new(),
                neighbours: Vec::new(),
                losses: Vec::new(),
                figures: Vec::new(),
            }
        };
        let reports: Vec<ProcessReport> = calls.iter().enumerate().map(report).collect();
        slow(&reports.iter().map(|report| (report.comms[0].rank, (report, &report.comms[0]))).collect())
    }

    fn every(period: u64, late: u64) -> Vec<u64> {
        (0..10).map(|number| 10_000 + number * period + late).collect()
    }

    #[test]
    fn a_rank_that_is_always_last_is_slow() {
        let calls = [every(100, 0), every(100, 90), every(100, 4)];
        let slow = Slow { rank: 1, last: 10, of: 10, late_ms: 86, period_ms: 100 };
        assert_eq!(found(&calls, 11_000), Some(slow));
        assert_eq!(found(&calls, 13_500), None, "nothing moves any more: that is no slow rank");
    }

    #[test]
    fn who_is_hardly_late_or_seldom_is_not() {
        assert_eq!(found(&[every(10, 0), every(10, 8)], 10_100), None, "within the clock's grain");
        assert_eq!(found(&[every(500, 0), every(500, 40)], 14_600), None, "less than a third of the time");
        let mut turns = [every(100, 0), every(100, 0)];
        (0..10).for_each(|number| turns[number % 2][number] += 60);
        assert_eq!(found(&turns, 11_000), None, "in turns");
        assert_eq!(found(&[every(100, 0)], 11_000), None, "alone");
    }

    proptest! {
        #[test]
        fn random_lateness_blames_nobody_for_long(seed in proptest::collection::vec(0u64..80, 30)) {
            let of = |rank: usize| (0..10).map(move |at| (at, rank * 10 + at)).collect::<Vec<_>>();
            let at = |(number, index): (usize, usize)| 10_000 + 100 * number as u64 + seed[index];
            let calls: Vec<Vec<u64>> = (0..3).map(|rank| of(rank).into_iter().map(at).collect()).collect();
            if let Some(slow) = found(&calls, 11_100) {
                prop_assert!(slow.last * 6 >= slow.of * 5 && slow.late_ms >= LATE_MS);
            }
        }
    }
}
