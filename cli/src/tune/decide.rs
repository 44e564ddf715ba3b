//! Decides from measured times which way is surely faster than the default, and for which sizes.
//!
//! A difference is sure when the slower end of the one lies below the faster end of the other, after a fifth
//! of the rounds was left out on either side, and when the median gains at least what was asked for. Of the
//! ways that are so, the fastest counts; where another is as fast within the noise and wins for the next
//! smaller size, that one: fewer, larger ranges.

use std::collections::{BTreeMap, BTreeSet};

use super::bench::{Sample, Way};

/// The times of one way for one size.
#[derive(Debug, Clone, PartialEq)]
pub struct Times {
    /// Microseconds, sorted.
    us: Vec<f64>,
    /// The choice that ran.
    pub ran: String,
}

impl Times {
    /// The middle one; of two the larger.
    pub fn median(&self) -> f64 {
        self.us[self.us.len() / 2]
    }

    /// Fastest and slowest without a fifth on either side.
    pub fn range(&self) -> (f64, f64) {
        let out = self.us.len() / 5;
        (self.us[out], self.us[self.us.len() - 1 - out])
    }

    /// Half the width of the range, as a part of the median.
    pub fn spread(&self) -> f64 {
        let (low, high) = self.range();
        (high - low) / 2.0 / self.median()
    }

    /// Returns whether these times are surely shorter than the other ones.
    pub fn surely_faster_than(&self, other: &Self) -> bool {
        self.us.len() >= 3 && other.us.len() >= 3 && self.range().1 < other.range().0
    }
}

/// The times of all ways for one size.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Row {
    /// By way.
    pub ways: BTreeMap<String, Times>,
}

impl Row {
    /// The default's times.
    pub fn default(&self) -> Option<&Times> {
        self.ways.get("default")
    }
}

/// Sizes of a collective.
pub type Table = BTreeMap<u64, Row>;

/// Rows by collective.
pub type Tables = BTreeMap<String, Table>;

/// A way for a range of sizes.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// The collective.
    pub collective: String,
    /// First and last size, both taken in.
    pub bytes: (u64, u64),
    /// The way that is faster.
    pub way: String,
    /// The sizes that were measured in it.
    pub sizes: Vec<u64>,
}

/// Puts samples in order.
pub fn tables<'a>(samples: impl Iterator<Item = (&'a str, &'a Sample)>) -> Tables {
    let mut tables = Tables::new();
    for (way, sample) in samples {
        let row = tables.entry(sample.collective.clone()).or_default().entry(sample.bytes).or_default();
        let times = row.ways.entry(way.to_owned()).or_insert(Times { us: Vec::new(), ran: String::new() });
        times.us.push(sample.us);
        times.us.sort_by(f64::total_cmp);
        times.ran.clone_from(&sample.ran);
    }
    tables
}

/// The part of the sizes at which the times of the cost model's own choice differ by more than [`NOISE`] from
/// round to round. Where it is large, another run may well find other rules.
pub fn noisy_part(tables: &Tables) -> f64 {
    let spreads =
        || tables.values().flat_map(|table| table.values()).filter_map(Row::default).map(Times::spread);
    spreads().filter(|spread| *spread > NOISE).count() as f64 / spreads().count().max(1) as f64
}

/// The spread above which times are called noisy: half of the range, as a part of the median.
pub const NOISE: f64 = 0.15;

/// The factor by which a way that is not measured again is slower than the default at all sizes.
const HOPELESS: f64 = 1.5;

/// True if a way took so much longer than the default wherever it was measured that further rounds would
/// change nothing.
pub fn is_hopeless<'a>(samples: impl Iterator<Item = (&'a str, &'a Sample)>, way: &str) -> bool {
    let (mut default, mut own) = (BTreeMap::new(), BTreeMap::new());
    for (of, sample) in samples {
        let key = (sample.collective.as_str(), sample.bytes);
        if of == "default" {
            let most: &mut f64 = default.entry(key).or_insert(sample.us);
            *most = most.max(sample.us);
        } else if of == way {
            let least: &mut f64 = own.entry(key).or_insert(sample.us);
            *least = least.min(sample.us);
        }
    }
    let is_slow =
        |(key, us): (&(&str, u64), &f64)| default.get(key).is_some_and(|most| *us > HOPELESS * most);
    !own.is_empty() && own.iter().all(is_slow)
}

/// The rules: for every collective the ranges in which a way is surely faster by at least `gain` (0.05 = 5
/// %).
pub fn rules(tables: &Tables, gain: f64) -> Vec<Found> {
    let mut found: Vec<Found> = Vec::new();
    for (collective, table) in tables {
        let mut last: Option<&String> = None;
        let winners = winners(table, gain);
        for (at, (bytes, way)) in winners.iter().enumerate() {
            if let Some(way) = way {
                // Half way, on the scale of sizes, to where something else was measured.
                let start = if at == 0 { *bytes } else { between(winners[at - 1].0, *bytes) };
                let end = winners.get(at + 1).map_or(*bytes, |(next, _)| between(*bytes, *next) - 1);
                match found.last_mut() {
                    Some(range) if last == Some(way) && range.collective == *collective => {
                        range.bytes.1 = end;
                        range.sizes.push(*bytes);
                    }
                    _ => found.push(Found {
                        collective: collective.clone(),
                        bytes: (start, end),
                        way: way.clone(),
                        sizes: vec![*bytes],
                    }),
                }
            }
            last = way.as_ref();
        }
    }
    found
}

/// Two sizes of a collective, next to each other, for which different ways win.
#[derive(Debug, Clone, PartialEq)]
pub struct Edge {
    /// The collective.
    pub collective: String,
    /// The two sizes.
    pub bytes: (u64, u64),
    /// The size half way, where a rule begins or ends unless it is looked at.
    pub middle: u64,
}

/// The edges of rules whose two sizes are more than this factor apart: what wins in between is not known.
pub fn edges(tables: &Tables, gain: f64, factor: f64) -> Vec<Edge> {
    let mut edges = Vec::new();
    for (collective, table) in tables {
        for pair in winners(table, gain).windows(2) {
            let [(low, before), (high, after)] = pair else { continue };
            if before != after && *high as f64 > *low as f64 * factor {
                let (collective, bytes) = (collective.clone(), (*low, *high));
                edges.push(Edge { collective, bytes, middle: between(*low, *high) });
            }
        }
    }
    edges
}

/// By size: the way that is worth a rule, if any.
fn winners(table: &Table, gain: f64) -> Vec<(u64, Option<String>)> {
    let mut last: Option<String> = None;
    let of = |(bytes, row): (&u64, &Row)| {
        last = winner(row, gain, last.as_deref());
        (*bytes, last.clone())
    };
    table.iter().map(of).collect()
}

/// The programs of the user's that rules take, or that the cost model takes where no rule stands.
pub fn programs(tables: &Tables, found: &[Found]) -> BTreeSet<String> {
    let by_rule = found.iter().filter_map(|rule| Way::program_of(&rule.way)).map(str::to_owned);
    let rows = tables.values().flat_map(|table| table.values());
    let measured = |row: &Row| -> Vec<String> {
        let ran = row.default().map_or("", |times| &times.ran);
        let names = row.ways.keys().filter_map(|way| Way::program_of(way));
        names.filter(|name| ran.starts_with(&format!("{name}/"))).map(str::to_owned).collect()
    };
    by_rule.chain(rows.flat_map(measured)).collect()
}

/// The way that is worth a rule for a size, if any.
fn winner(row: &Row, gain: f64, last: Option<&str>) -> Option<String> {
    let default = row.default()?;
    let is_worth = |times: &Times| {
        times.surely_faster_than(default) && times.median() <= default.median() * (1.0 - gain)
    };
    let worth: Vec<(&String, &Times)> = row.ways.iter().filter(|(_, times)| is_worth(times)).collect();
    let (fastest, best) = worth.iter().min_by(|a, b| a.1.median().total_cmp(&b.1.median()))?;
    let same =
        worth.iter().find(|(way, times)| Some(way.as_str()) == last && !best.surely_faster_than(times));
    Some(same.map_or(*fastest, |(way, _)| *way).clone())
}

/// The geometric mean, to a whole number of 256 bytes where sizes are that large.
fn between(a: u64, b: u64) -> u64 {
    let middle = ((a as f64) * (b as f64)).sqrt() as u64;
    if a >= 512 { (middle & !255).clamp(a + 1, b) } else { middle.clamp(a + 1, b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(us: &[f64]) -> Times {
        let mut us = us.to_vec();
        us.sort_by(f64::total_cmp);
        Times { us, ran: String::new() }
    }

    #[test]
    fn what_is_slow_at_all_sizes_is_hopeless() {
        let sample = |bytes, us| Sample { collective: "all_reduce".into(), bytes, us, ran: String::new() };
        let measured = [
            ("default", 8, 10.0),
            ("default", 64, 20.0),
            ("a", 8, 16.0),
            ("a", 64, 31.0),
            ("b", 8, 90.0),
            ("b", 64, 25.0),
        ];
        let samples: Vec<_> = measured.iter().map(|(way, bytes, us)| (*way, sample(*bytes, *us))).collect();
        let ask = |way| is_hopeless(samples.iter().map(|(way, sample)| (*way, sample)), way);
        assert!(ask("a") && !ask("b") && !ask("default") && !ask("never measured"));
    }

    type Ways<'a> = &'a [(&'a str, &'a [f64])];

    fn table(rows: &[(u64, Ways<'_>)]) -> Tables {
        let row = |ways: Ways<'_>| Row {
            ways: ways.iter().map(|(way, us)| ((*way).to_owned(), times(us))).collect(),
        };
        let table = rows.iter().map(|(bytes, ways)| (*bytes, row(ways))).collect();
        [("all_reduce".to_owned(), table)].into()
    }

    const TEN: &[f64] = &[10.0, 10.1, 9.9, 10.2, 9.8];
    const EIGHT: &[f64] = &[8.0, 8.1, 7.9, 8.2, 7.8];

    #[test]
    fn only_what_is_sure_and_worth_it_becomes_a_rule() {
        let one = |ways: Ways<'_>| rules(&table(&[(1024, ways)]), 0.05).pop().map(|found| found.way);
        assert_eq!(one(&[("default", TEN), ("a", EIGHT)]), Some("a".into()));
        assert_eq!(one(&[("default", EIGHT), ("a", TEN)]), None, "slower");
        // Faster in the median, but the ranges overlap.
        assert_eq!(
            one(&[("default", &[10.0, 8.0, 12.0, 9.0, 7.0]), ("a", &[7.5, 8.2, 6.0, 6.5, 11.0])]),
            None
        );
        // Surely faster, but by 2 %.
        assert_eq!(one(&[("default", TEN), ("a", &[9.79, 9.7, 9.7, 9.78, 9.7])]), None);
        // One round that was disturbed takes nothing away; two do.
        assert_eq!(one(&[("default", TEN), ("a", &[8.0, 8.0, 8.0, 8.0, 90.0])]), Some("a".into()));
        assert_eq!(one(&[("default", TEN), ("a", &[8.0, 8.0, 8.0, 90.0, 90.0])]), None);
        // Two rounds are not enough for anything.
        assert_eq!(one(&[("default", &[10.0, 10.0]), ("a", &[1.0, 1.0])]), None);
        assert_eq!(one(&[("a", EIGHT)]), None, "nothing to compare with");
    }

    #[test]
    fn a_busy_machine_is_told_from_an_idle_one() {
        let busy: &[f64] = &[10.0, 14.0, 9.0, 22.0, 10.0];
        let part = |times: [&[f64]; 3]| {
            let rows: Vec<Vec<(&str, &[f64])>> =
                times.iter().map(|us| vec![("default", *us), ("a", busy)]).collect();
            let rows: Vec<(u64, Ways<'_>)> =
                (10..).zip(&rows).map(|(at, ways)| (1 << at, &ways[..])).collect();
            noisy_part(&table(&rows))
        };
        assert_eq!((part([TEN, EIGHT, TEN]), part([busy, busy, busy])), (0.0, 1.0));
        assert!((part([TEN, busy, TEN]) - 1.0 / 3.0).abs() < 1e-9);
        assert_eq!(noisy_part(&Tables::new()), 0.0);
    }

    #[test]
    fn ranges_join_and_end_half_way() {
        let b: &[f64] = &[8.05, 8.1, 7.9, 8.2, 7.8];
        let found = rules(
            &table(&[
                (1024, &[("default", TEN), ("a", EIGHT), ("b", b)]),
                // b is a little faster, but not surely: a goes on.
                (4096, &[("default", TEN), ("a", EIGHT), ("b", &[7.9, 8.0, 7.8, 8.1, 7.7])]),
                (16384, &[("default", TEN), ("a", TEN), ("b", b)]),
                (65536, &[("default", TEN), ("a", TEN), ("b", TEN)]),
                (262144, &[("default", TEN), ("b", EIGHT)]),
            ]),
            0.05,
        );
        let short: Vec<_> = found.iter().map(|f| (f.way.as_str(), f.bytes, f.sizes.len())).collect();
        assert_eq!(
            short,
            [("a", (1024, 8191), 2), ("b", (8192, 32767), 1), ("b", (131_072, 262_144), 1)],
            "nothing is said of sizes outside those that were measured"
        );
    }

    #[test]
    fn edges_are_where_the_winner_changes() {
        let tables = table(&[
            (1024, &[("default", TEN), ("a", EIGHT)]),
            (4096, &[("default", TEN), ("a", EIGHT)]),
            (16384, &[("default", TEN), ("a", TEN)]),
            (20000, &[("default", TEN), ("a", EIGHT)]),
        ]);
        let edge = Edge { collective: "all_reduce".into(), bytes: (4096, 16384), middle: 8192 };
        assert_eq!(edges(&tables, 0.05, 1.25), [edge], "the last two are near each other");
        assert_eq!(edges(&tables, 0.05, 1.2).len(), 2);
        assert_eq!(edges(&tables, 0.5, 1.0), [], "nothing is worth a rule");
    }

    #[test]
    fn the_figures_of_a_row() {
        let times = times(&[5.0, 1.0, 2.0, 3.0, 100.0]);
        assert_eq!((times.median(), times.range()), (3.0, (2.0, 5.0)));
        assert_eq!(times.spread(), 0.5);
    }
}
