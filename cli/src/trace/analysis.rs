//! The analysis of the time of a job: who came last, who waited, which links were slow. Pure.

use std::collections::BTreeMap;

use serde::Serialize;

/// An operation of a rank in a timeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bar {
    /// The function's name.
    pub name: String,
    /// The number of a collective on its communicator; None for messages.
    pub number: Option<u64>,
    /// The bytes of this rank's buffer.
    pub bytes: u64,
    /// The beginning, in nanoseconds of the common clock.
    pub start: i64,
    /// The end, likewise.
    pub end: i64,
    /// Nanoseconds at the beginning in which not all ranks had begun yet.
    pub wait: i64,
    /// Its communicator was closed before it was over.
    pub unfinished: bool,
}

/// The timeline of a rank of a communicator.
#[derive(Debug, Default)]
pub struct Timeline {
    /// The communicator's place among all.
    pub comm: usize,
    /// The rank.
    pub rank: u32,
    /// The operations, in the order of their ends.
    pub bars: Vec<Bar>,
}

/// A rank, and how much the others wait for it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Lateness {
    /// The place of its timeline.
    pub timeline: usize,
    /// Collectives that were compared.
    pub of: usize,
    /// Those to which it came last.
    pub last: usize,
    /// Microseconds by which it came after the first rank: the median.
    pub late_us: f64,
    /// Milliseconds by which all collectives would have begun earlier without it.
    pub cost_ms: f64,
}

/// Collectives of one function and size.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Kind {
    /// The communicator's place among all.
    pub comm: usize,
    /// The function's name.
    pub name: String,
    /// The bytes of a rank's buffer.
    pub bytes: u64,
    /// Their number, each counted once.
    pub count: usize,
    /// The median time from the last rank's beginning to the last end, in microseconds.
    pub time_us: f64,
    /// The longest of these times.
    pub longest_us: f64,
    /// The share of the ranks' time in which not all had begun.
    pub waiting: f64,
}

/// The findings about a job.
#[derive(Debug, Default, PartialEq, Serialize)]
pub struct Findings {
    /// Ranks, the one that costs most first.
    pub ranks: Vec<Lateness>,
    /// Functions and sizes, the one that takes most time first.
    pub kinds: Vec<Kind>,
}

/// The most rows of a table.
const MOST_ROWS: usize = 64;

/// A collective by communicator and number.
type Key = (usize, u64);

/// Fills in how long each bar waits, and finds out who is waited for.
pub fn analyse(timelines: &mut [Timeline]) -> Findings {
    let mut calls: BTreeMap<Key, Vec<(usize, usize)>> = BTreeMap::new();
    for (line, timeline) in timelines.iter().enumerate() {
        for (at, bar) in timeline.bars.iter().enumerate() {
            if let Some(number) = bar.number {
                calls.entry((timeline.comm, number)).or_default().push((line, at));
            }
        }
    }
    let mut ranks_of: BTreeMap<usize, usize> = BTreeMap::new();
    timelines.iter().for_each(|timeline| *ranks_of.entry(timeline.comm).or_default() += 1);
    let mut late: BTreeMap<usize, Tally> = BTreeMap::new();
    let mut kinds: BTreeMap<(usize, String, u64), Vec<Times>> = BTreeMap::new();
    for ((comm, _), bars) in calls {
        // Only where all ranks that are seen took part: else the first is not known.
        if bars.len() < 2 || ranks_of.get(&comm) != Some(&bars.len()) {
            continue;
        }
        let mut starts: Vec<(i64, usize)> =
            bars.iter().map(|(line, at)| (timelines[*line].bars[*at].start, *line)).collect();
        starts.sort_unstable();
        let (first, last) = (starts[0].0, starts[starts.len() - 1]);
        let second_last = starts[starts.len() - 2].0;
        for (start, line) in &starts {
            let tally = late.entry(*line).or_default();
            tally.late.push(start - first);
            if *line == last.1 && last.0 > second_last {
                tally.last += 1;
                tally.cost += last.0 - second_last;
            }
        }
        let mut times = Times { time: 0, waiting: 0, total: 0 };
        for (line, at) in &bars {
            let bar = &mut timelines[*line].bars[*at];
            bar.wait = (last.0.min(bar.end) - bar.start).max(0);
            times.waiting += bar.wait;
            times.total += bar.end - bar.start;
            times.time = times.time.max(bar.end - last.0);
        }
        let (line, at) = bars[0];
        let bar = &timelines[line].bars[at];
        kinds.entry((comm, bar.name.clone(), bar.bytes)).or_default().push(times);
    }
    Findings { ranks: latenesses(late), kinds: kinds_of(kinds) }
}

#[derive(Default)]
struct Tally {
    late: Vec<i64>,
    last: usize,
    cost: i64,
}

struct Times {
    time: i64,
    waiting: i64,
    total: i64,
}

fn latenesses(late: BTreeMap<usize, Tally>) -> Vec<Lateness> {
    let one = |(timeline, mut tally): (usize, Tally)| Lateness {
        timeline,
        of: tally.late.len(),
        last: tally.last,
        late_us: micros(median(&mut tally.late)),
        cost_ms: micros(tally.cost) / 1000.0,
    };
    let mut ranks: Vec<Lateness> = late.into_iter().map(one).collect();
    ranks.sort_by(|a, b| b.cost_ms.total_cmp(&a.cost_ms));
    ranks.truncate(MOST_ROWS);
    ranks
}

fn kinds_of(kinds: BTreeMap<(usize, String, u64), Vec<Times>>) -> Vec<Kind> {
    let one = |((comm, name, bytes), all): ((usize, String, u64), Vec<Times>)| {
        let mut times: Vec<i64> = all.iter().map(|times| times.time).collect();
        let (waiting, total) =
            all.iter().fold((0, 0), |sum, times| (sum.0 + times.waiting, sum.1 + times.total));
        let longest_us = micros(times.iter().copied().max().unwrap_or(0));
        let time_us = micros(median(&mut times));
        let waiting = waiting as f64 / (total as f64).max(1.0);
        Kind { comm, name, bytes, count: all.len(), time_us, longest_us, waiting }
    };
    let mut kinds: Vec<Kind> = kinds.into_iter().map(one).collect();
    kinds.sort_by(|a, b| (b.time_us * b.count as f64).total_cmp(&(a.time_us * a.count as f64)));
    kinds.truncate(MOST_ROWS);
    kinds
}

fn median(values: &mut [i64]) -> i64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

fn micros(nanoseconds: i64) -> f64 {
    nanoseconds as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rank that all-reduces every 100 us, so late, and ends when all have begun and 10 us have passed.
    fn timeline(rank: u32, late: i64, latest: i64) -> Timeline {
        let bar = |number: u64| {
            let at = number as i64 * 100_000;
            Bar {
                name: "AllReduce".into(),
                number: Some(number),
                bytes: 4096,
                start: at + late,
                end: at + latest + 10_000,
                wait: 0,
                unfinished: false,
            }
        };
        Timeline { comm: 0, rank, bars: (0..10).map(bar).collect() }
    }

    #[test]
    fn the_rank_that_all_wait_for_costs_most() {
        let mut job = [timeline(0, 0, 30_000), timeline(1, 30_000, 30_000), timeline(2, 1_000, 30_000)];
        let found = analyse(&mut job);
        let worst = &found.ranks[0];
        assert_eq!((worst.timeline, worst.of, worst.last), (1, 10, 10));
        assert!((worst.late_us - 30.0).abs() < 1e-9 && (worst.cost_ms - 0.29).abs() < 1e-9, "{worst:?}");
        assert_eq!(job[0].bars[3].wait, 30_000);
        assert_eq!(job[1].bars[3].wait, 0);
        let kind = &found.kinds[0];
        assert_eq!((&*kind.name, kind.bytes, kind.count), ("AllReduce", 4096, 10));
        assert!((kind.time_us - 10.0).abs() < 1e-9 && (kind.longest_us - 10.0).abs() < 1e-9);
        assert!((kind.waiting - 59.0 / 89.0).abs() < 1e-9, "{kind:?}");
    }

    #[test]
    fn collectives_that_are_not_seen_on_all_ranks_are_left_out() {
        let mut job = [timeline(0, 0, 0), timeline(1, 5_000, 5_000)];
        job[1].bars.truncate(4);
        let found = analyse(&mut job);
        assert_eq!(found.ranks[0].of, 4);
        assert_eq!(analyse(&mut [timeline(0, 0, 0)]), Findings::default(), "alone");
    }
}
