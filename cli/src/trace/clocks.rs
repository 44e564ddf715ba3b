//! One clock for the traces of several hosts. Pure.
//!
//! The processes of a host share a clock (that since it started), so a trace's times are moved by one number
//! for each host. That number comes from collectives that both hosts took part in and in which every rank
//! needs every other: nobody ends before everybody has begun, which bounds the number from both sides, and
//! all end nearly together, so the median of the differences of their ends is the estimate. Where two hosts
//! have no such collective in common, their wall clocks are laid on each other.

use std::collections::{BTreeMap, VecDeque};

use super::read::Collective;

/// Collectives of a clock that are kept; of more, every second one is, then every fourth.
const MOST_KEPT: usize = 1 << 16;
/// The exponent of the power of two beyond which nothing is left out any more.
const MOST_THINNED: u32 = 40;

/// The collectives in which every rank needs all others.
const ALL_NEED_ALL: [&str; 4] = ["AllReduce", "AllGather", "ReduceScatter", "AlltoAll"];

/// The knowledge of a clock: that of a host, or that of a file which does not say where it comes from.
#[derive(Debug, Default)]
pub struct Clock {
    /// The host, or the file.
    pub name: String,
    /// The wall clock less this one, in nanoseconds.
    pub wall: Option<i64>,
    /// The collectives, by communicator and number.
    collectives: BTreeMap<(String, u64), Times>,
    /// Numbers that are multiples of a power of two are kept: its exponent.
    thinned: u32,
}

/// The times of a collective on the ranks of a host.
#[derive(Debug, Clone, Copy)]
struct Times {
    last_start: i64,
    first_end: i64,
    last_end: i64,
}

impl Times {
    fn add(&mut self, other: Self) {
        self.last_start = self.last_start.max(other.last_start);
        self.first_end = self.first_end.min(other.first_end);
        self.last_end = self.last_end.max(other.last_end);
    }
}

impl Clock {
    /// A clock of which no collective is known yet.
    pub fn new(name: String, wall: Option<i64>) -> Self {
        Self { name, wall, ..Self::default() }
    }

    /// Notes a collective of a rank.
    pub fn note(&mut self, comm: &str, collective: &Collective) {
        let Collective { number: Some(number), start, end, .. } = *collective else { return };
        let counts = collective.bytes > 0 && !collective.unfinished;
        if !counts || !ALL_NEED_ALL.contains(&&*collective.name) || !number.is_multiple_of(1 << self.thinned)
        {
            return;
        }
        let own = Times { last_start: start, first_end: end, last_end: end };
        let times = self.collectives.entry((comm.to_owned(), number)).or_insert(own);
        times.add(own);
        if self.collectives.len() > MOST_KEPT {
            self.thin(self.thinned + 1);
        }
    }

    /// Adds what was found in another file of the same host.
    pub fn add(&mut self, other: Self) {
        self.thin(other.thinned);
        for (key, own) in other.collectives {
            if key.1.is_multiple_of(1 << self.thinned) {
                self.collectives.entry(key).or_insert(own).add(own);
            }
        }
        while self.collectives.len() > MOST_KEPT && self.thinned < MOST_THINNED {
            self.thin(self.thinned + 1);
        }
    }

    fn thin(&mut self, to: u32) {
        if to > self.thinned && to <= MOST_THINNED {
            self.thinned = to;
            self.collectives.retain(|(_, number), _| number.is_multiple_of(1 << to));
        }
    }
}

/// The way in which a clock was laid on the first one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// It is the first one.
    First,
    /// By so many collectives in common; half of their ends lie within `spread` nanoseconds.
    Collectives {
        /// Their number.
        count: usize,
        /// The median distance of an end from the median.
        spread: i64,
    },
    /// By wall clocks.
    Wall,
    /// Not at all: nothing is known that two clocks have in common.
    Nothing,
}

/// The number by which a clock's times are moved, in nanoseconds, and where it comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shift {
    /// Nanoseconds to add.
    pub by: i64,
    /// Its source.
    pub how: How,
}

/// Lays all clocks on the first one.
pub fn align(clocks: &[Clock]) -> Vec<Shift> {
    let mut shifts: Vec<Option<Shift>> = vec![None; clocks.len()];
    let mut next = VecDeque::new();
    // Through collectives as far as they lead from the first one on, then by wall clocks.
    for start in 0..clocks.len() {
        if shifts[start].is_some() {
            continue;
        }
        shifts[start] = Some(match start {
            0 => Shift { by: 0, how: How::First },
            _ => by_wall(clocks, start),
        });
        next.push_back(start);
        while let Some(known) = next.pop_front() {
            let base = shifts[known].map_or(0, |shift| shift.by);
            for other in 0..clocks.len() {
                if shifts[other].is_none()
                    && let Some(shift) = by_collectives(&clocks[known], &clocks[other])
                {
                    shifts[other] = Some(Shift { by: base.saturating_add(shift.by), ..shift });
                    next.push_back(other);
                }
            }
        }
    }
    shifts.into_iter().map(|shift| shift.unwrap_or(Shift { by: 0, how: How::Nothing })).collect()
}

/// The shift by which the wall clocks of a clock and the first one agree.
fn by_wall(clocks: &[Clock], at: usize) -> Shift {
    match (clocks[0].wall, clocks[at].wall) {
        (Some(first), Some(own)) => Shift { by: own.saturating_sub(first), how: How::Wall },
        _ => Shift { by: 0, how: How::Nothing },
    }
}

/// The shift of `other` onto `base` by the collectives of both; None if there are none, or if they
/// contradict each other: of some traces only the beginnings of collectives are true.
fn by_collectives(base: &Clock, other: &Clock) -> Option<Shift> {
    let (mut least, mut most) = (i64::MIN, i64::MAX);
    let mut ends = Vec::new();
    for (key, of_other) in &other.collectives {
        let Some(of_base) = base.collectives.get(key) else { continue };
        least = least.max(of_base.last_start.saturating_sub(of_other.first_end));
        most = most.min(of_base.first_end.saturating_sub(of_other.last_start));
        ends.push(of_base.last_end.saturating_sub(of_other.last_end));
    }
    let count = ends.len();
    let median_end = median(&mut ends)?;
    if least > most {
        return None;
    }
    let by = median_end.clamp(least, most);
    let mut distances: Vec<i64> = ends.iter().map(|end| (end - by).abs()).collect();
    Some(Shift { by, how: How::Collectives { count, spread: median(&mut distances)? } })
}

fn median(values: &mut [i64]) -> Option<i64> {
    values.sort_unstable();
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn collective(number: u64, start: i64, end: i64) -> Collective {
        Collective {
            process: 1,
            number: Some(number),
            name: "AllReduce".into(),
            bytes: 4,
            datatype: String::new(),
            root: 0,
            start,
            end,
            unfinished: false,
        }
    }

    fn clock(wall: Option<i64>, comm: &str, collectives: &[(u64, i64, i64)]) -> Clock {
        let mut clock = Clock { wall, ..Clock::default() };
        collectives.iter().for_each(|(n, start, end)| clock.note(comm, &collective(*n, *start, *end)));
        clock
    }

    #[test]
    fn ends_of_collectives_are_laid_on_each_other() {
        let a = clock(Some(0), "x", &[(0, 100, 200), (1, 300, 400), (2, 500, 610)]);
        let b = clock(Some(77), "x", &[(1, 1300, 1395), (2, 1490, 1600), (3, 9000, 9001)]);
        let shifts = align(&[a, b]);
        assert_eq!(shifts[0], Shift { by: 0, how: How::First });
        assert_eq!(shifts[1].by, -990);
        assert!(matches!(shifts[1].how, How::Collectives { count: 2, .. }), "{shifts:?}");
    }

    #[test]
    fn a_way_over_a_third_host_is_found_and_wall_clocks_are_the_rest() {
        let a = clock(Some(5), "x", &[(0, 0, 10)]);
        let b = clock(None, "y", &[(0, 500, 510)]);
        let mut c = clock(Some(0), "x", &[(0, 1000, 1010)]);
        c.note("y", &collective(0, 2000, 2010));
        let d = clock(Some(25), "z", &[(0, 1, 2)]);
        let e = clock(None, "", &[]);
        let shifts = align(&[a, b, c, d, e]);
        assert_eq!(shifts.iter().map(|shift| shift.by).collect::<Vec<_>>(), [0, 500, -1000, 20, 0]);
        assert_eq!((shifts[3].how, shifts[4].how), (How::Wall, How::Nothing));
    }

    #[test]
    fn collectives_that_contradict_each_other_count_for_nothing() {
        let a = clock(Some(0), "x", &[(0, 0, 1), (1, 100, 101)]);
        let b = clock(Some(9), "x", &[(0, 0, 1), (1, 900, 901)]);
        assert_eq!(align(&[a, b])[1], Shift { by: 9, how: How::Wall });
    }

    #[test]
    fn what_is_kept_is_bounded_and_still_in_common() {
        let many: Vec<_> = (0..200_000).map(|n| (n, n as i64 * 10, n as i64 * 10 + 5)).collect();
        let (a, b) = (clock(None, "x", &many), clock(None, "x", &many[..70_000]));
        assert!(a.collectives.len() <= MOST_KEPT && b.collectives.len() <= MOST_KEPT);
        assert!(
            matches!(align(&[a, b])[1], Shift { by: 0, how: How::Collectives { count, .. } } if count > 9_000)
        );
    }

    proptest! {
        /// Whatever the ranks' lateness, nobody ends before all have begun.
        #[test]
        fn causes_come_before_effects(
            shift in -1_000_000_000_i64..1_000_000_000,
            late in proptest::collection::vec((0_i64..500, 0_i64..500, 1_i64..50, 1_i64..50), 1..40),
        ) {
            let mut hosts = [Vec::new(), Vec::new()];
            for (n, (a, b, end_a, end_b)) in late.iter().enumerate() {
                let (at, begun) = (n as i64 * 10_000, *a.max(b));
                hosts[0].push((n as u64, at + a, at + begun + end_a));
                hosts[1].push((n as u64, at + b - shift, at + begun + end_b - shift));
            }
            let found = align(&[clock(None, "x", &hosts[0]), clock(None, "x", &hosts[1])])[1].by;
            prop_assert!((found - shift).abs() <= 600);
            for (a, b) in hosts[0].iter().zip(&hosts[1]) {
                prop_assert!(b.2 + found >= a.1 && a.2 >= b.1 + found);
            }
        }
    }
}
