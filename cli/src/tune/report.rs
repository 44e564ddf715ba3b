//! The rule file with its evidence, and the plot of what was measured.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use hawser_tuner::range;
use hawser_tuner::write::quoted;
use serde_json::{Map, Value, json};

use super::bench::Way;
use super::decide::{Found, Tables, Times};
use crate::output::{self, Align};

/// A description of the machine and of the measurement.
pub struct CallAttributes<'a> {
    /// Name of the device, or of the cluster that was simulated.
    pub device: &'a str,
    /// The number of ranks.
    pub ranks: u32,
    /// The number of hosts.
    pub hosts: u32,
    /// The number of rounds.
    pub rounds: u32,
    /// Least gain in percent.
    pub gain: f64,
    /// The value of `MSCCL_XML_FILES` with which the rules find the programs that they name; may be empty.
    pub files: &'a str,
    /// Lines about the cluster and where its figures are from, if times are predicted; else none.
    pub simulated: &'a [String],
}

impl CallAttributes<'_> {
    /// The beginning of the rule file: what the times are.
    fn header(&self) -> String {
        let Self { device, ranks, hosts, rounds, gain, simulated, .. } = self;
        let version = env!("CARGO_PKG_VERSION");
        if simulated.is_empty() {
            return format!(
                "# Rules by hawser tune {version} for {ranks} ranks of one host on {device}, {}.\n\
                 # Every way was measured in {rounds} rounds (float, sums, out of place), in fewer if it \
                 took half as long again at all\n\
                 # sizes. A rule stands where a way was faster than what the cost model takes in all of them \
                 but the extreme fifth on either side, and by at least {gain} % in the median.\n\
                 # Sizes that were not measured have no rule. Times in µs: median, and half the width of the \
                 range in percent.\n\
                 version = 1\n",
                date()
            );
        }
        let lines: String =
            simulated.iter().map(|line| format!("#   {}\n", line.replace('\n', " "))).collect();
        format!(
            "# Rules by hawser tune {version} for {ranks} ranks of {hosts} hosts, {}.\n\
             # SIMULATED, not measured: the times are predictions of the plans on a cluster that is \
             described so:\n{lines}\
             # Each time is the median of {rounds} simulations (float, sums, out of place). A rule stands \
             where a way was faster than what the cost model takes by at least {gain} %.\n\
             # Sizes that were not simulated have no rule. hawser tune --check says on the machine itself \
             whether they hold.\n\
             version = 1\n",
            date()
        )
    }
}

/// The text of the rule file.
pub fn rule_file(tables: &Tables, found: &[Found], attributes: &CallAttributes<'_>) -> String {
    let CallAttributes { ranks, hosts, files, .. } = attributes;
    let mut text = attributes.header();
    if !files.is_empty() {
        let _ = writeln!(text, "# With the programs of MSCCL_XML_FILES={files}");
    }
    for rule in found {
        let Found { collective, bytes: (first, last), way, sizes } = rule;
        let table = &tables[collective];
        let bytes = range::text(&(*first..=*last), true);
        let _ = write!(
            text,
            "\n# {:>10}  {:>18}  {:>18}  {:>6}  instead of\n",
            "bytes", "cost model", way, "gain"
        );
        for size in sizes {
            let row = &table[size];
            if let (Some(default), Some(times)) = (row.default(), row.ways.get(way)) {
                let gain = (1.0 - times.median() / default.median()) * 100.0;
                let _ = writeln!(
                    text,
                    "# {size:>10}  {:>18}  {:>18}  {gain:>4.0} %  {}",
                    figure(default),
                    figure(times),
                    default.ran
                );
            }
        }
        let name = quoted(&format!("tuned {collective} {bytes}"));
        let _ = write!(
            text,
            "[[rule]]\nname = {name}\nmatch = {{ collective = \"{collective}\", bytes = \"{bytes}\", \
             ranks = {ranks}, hosts = {hosts} }}\n\
             use = {}\n",
            Way::action(way)
        );
    }
    for (collective, table) in tables {
        let covered =
            |size: &u64| found.iter().any(|f| f.collective == *collective && f.sizes.contains(size));
        let left: Vec<String> =
            table.keys().filter(|size| !covered(size)).map(|size| range::size(*size)).collect();
        if !left.is_empty() {
            let _ = write!(text, "\n# {collective}: nothing is surely better for {}\n", left.join(", "));
        }
    }
    text
}

/// Returns the findings as a table for the terminal.
pub fn summary(tables: &Tables, found: &[Found]) -> String {
    let mut table = output::Table::new([
        ("collective", Align::Left),
        ("size", Align::Right),
        ("cost model µs", Align::Right),
        ("winner µs", Align::Right),
        ("way", Align::Left),
    ]);
    for (collective, sizes) in tables {
        for (size, row) in sizes {
            let Some(default) = row.default() else { continue };
            let rule = found.iter().find(|f| f.collective == *collective && f.sizes.contains(size));
            let times = rule.and_then(|rule| row.ways.get(&rule.way));
            let (winner, way) = match (times, rule) {
                (Some(times), Some(rule)) => (figure(times), rule.way.as_str()),
                _ => ("-".to_owned(), "-"),
            };
            table.row([collective.clone(), output::size(*size), figure(default), winner, way.to_owned()]);
        }
    }
    table.lines().join("\n") + "\n"
}

/// The findings as a record.
pub fn json(tables: &Tables, found: &[Found]) -> Value {
    let rules = found.iter().map(|Found { collective, bytes, way, .. }| {
        json!({ "collective": collective, "bytes": [bytes.0, bytes.1], "way": way })
    });
    let rows = tables.iter().flat_map(|(collective, sizes)| {
        sizes.iter().map(move |(bytes, row)| {
            let ways = row.ways.iter().map(|(way, times)| {
                (
                    way.clone(),
                    json!({ "median_us": times.median(), "spread": times.spread(), "ran": times.ran }),
                )
            });
            json!({ "collective": collective, "bytes": bytes, "ways": ways.collect::<Map<_, _>>() })
        })
    });
    json!({ "rules": rules.collect::<Vec<_>>(), "rows": rows.collect::<Vec<_>>() })
}

/// The cost model beside a rule file, and at how many sizes the rules are surely slower, by at least `gain`.
pub fn comparison(tables: &Tables, gain: f64) -> (String, usize) {
    let mut slower = 0;
    let mut table = output::Table::new([
        ("collective", Align::Left),
        ("size", Align::Right),
        ("cost model µs", Align::Right),
        ("rules µs", Align::Right),
        ("ratio", Align::Right),
        ("what the rules ran", Align::Left),
        ("", Align::Left),
    ]);
    for (collective, sizes) in tables {
        for (size, row) in sizes {
            let (Some(default), Some(rules)) = (row.default(), row.ways.get("rules")) else { continue };
            let is_slower =
                default.surely_faster_than(rules) && default.median() <= rules.median() * (1.0 - gain);
            slower += usize::from(is_slower);
            table.row([
                collective.clone(),
                output::size(*size),
                figure(default),
                figure(rules),
                format!("{:.2}", rules.median() / default.median()),
                rules.ran.clone(),
                if is_slower { "SLOWER" } else { "" }.to_owned(),
            ]);
        }
    }
    (table.lines().join("\n") + "\n", slower)
}

fn figure(times: &Times) -> String {
    format!("{:.2} ± {:.0} %", times.median(), times.spread() * 100.0)
}

/// Today in UTC.
fn date() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (year, month, day) = civil(seconds / 86_400);
    format!("{year}-{month:02}-{day:02}")
}

/// Year, month and day of a number of days since 1970.
fn civil(days: u64) -> (u64, u64, u64) {
    // Years that begin in March have their leap day at the end.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::tune::bench::Sample;
    use crate::tune::decide;

    /// Times of two ways at three sizes, and what follows.
    pub(in crate::tune) fn measured() -> (Tables, Vec<Found>) {
        let sample =
            |bytes, us| Sample { collective: "all_reduce".into(), bytes, us, ran: "Ring/LL x 1x2".into() };
        let mut samples = Vec::new();
        for round in 0..5 {
            let late = f64::from(round) / 10.0;
            for (bytes, a, b) in [(1 << 10, 10.0, 8.0), (1 << 12, 12.0, 9.0), (1 << 14, 20.0, 30.0)] {
                samples.push(("default", sample(bytes, a + late)));
                samples.push(("AllPairs/fused/LL/4", sample(bytes, b + late)));
            }
        }
        let tables = decide::tables(samples.iter().map(|(way, sample)| (*way, sample)));
        let found = decide::rules(&tables, 0.05);
        (tables, found)
    }

    fn attributes() -> CallAttributes<'static> {
        CallAttributes {
            device: "<H200>",
            ranks: 8,
            hosts: 1,
            rounds: 5,
            gain: 5.0,
            files: "",
            simulated: &[],
        }
    }

    #[test]
    fn the_file_says_what_was_measured_and_is_read_back() {
        let (tables, found) = measured();
        let text = rule_file(&tables, &found, &attributes());
        let (default, winner) = ("10.20 ± 1 %", "8.20 ± 1 %");
        let evidence = format!("# {:>10}  {default:>18}  {winner:>18}  {:>4} %  Ring/LL x 1x2\n", 1024, 20);
        for part in [
            "for 8 ranks of one host on <H200>, 20",
            &evidence,
            "match = { collective = \"all_reduce\", bytes = \"1K..8K\", ranks = 8, hosts = 1 }\n\
             use = { algorithm = \"all_pairs\", executor = \"fused\", protocol = \"ll\", channels = 4 }\n",
            "# all_reduce: nothing is surely better for 16K\n",
        ] {
            assert!(text.contains(part), "no {part} in\n{text}");
        }
        let rules = hawser_tuner::files::RuleFile::named("x.toml").parse(&text).unwrap();
        assert_eq!(rules.len(), 1);
        assert_eq!(rules[0].name.as_deref(), Some("tuned all_reduce 1K..8K"));
        let summary = summary(&tables, &found);
        assert!(summary.contains("AllPairs/fused/LL/4") && summary.lines().count() == 4, "{summary}");
    }

    #[test]
    fn rules_that_are_surely_slower_are_told() {
        let sample =
            |bytes, us| Sample { collective: "all_reduce".into(), bytes, us, ran: "Tree/LL x 1x2".into() };
        let mut samples = Vec::new();
        for round in 0..5 {
            let late = f64::from(round);
            // Faster, slower for sure, slower within the noise, slower by less than is asked for.
            for (bytes, default, rules) in
                [(8, 20.0, 15.0), (64, 20.0, 30.0), (512, 20.0, 22.0), (4096, 500.0, 510.0)]
            {
                samples.push(("default", sample(bytes, default + late)));
                samples.push(("rules", sample(bytes, rules + late)));
            }
        }
        let tables = decide::tables(samples.iter().map(|(way, sample)| (*way, sample)));
        let (text, slower) = comparison(&tables, 0.05);
        assert_eq!((slower, text.matches("SLOWER").count(), text.lines().count()), (1, 1, 5), "{text}");
        let row = text.lines().find(|line| line.contains("SLOWER")).unwrap();
        assert!(row.contains(" 64 B ") && row.contains("1.45") && row.contains("Tree/LL x 1x2"), "{text}");
    }

    #[test]
    fn days_are_dates() {
        assert_eq!((civil(0), civil(19_782), civil(20_778)), ((1970, 1, 1), (2024, 2, 29), (2026, 11, 21)));
    }
}
