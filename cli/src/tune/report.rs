//! The rule file with its evidence, and the plot of what was measured.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use hawser_tuner::range;
use hawser_tuner::write::quoted;
use serde_json::{Map, Value, json};

use super::bench::Way;
use super::decide::{Found, Table, Tables, Times};
use crate::output::{self, Align};
use crate::svg::{self, COLOURS, escaped};

/// A description of the machine and of the measurement.
pub struct CallAttributes<'a> {
    /// Name of the device.
    pub device: &'a str,
    /// The number of ranks.
    pub ranks: u32,
    /// The number of rounds.
    pub rounds: u32,
    /// Least gain in percent.
    pub gain: f64,
}

/// The text of the rule file.
pub fn rule_file(tables: &Tables, found: &[Found], attributes: &CallAttributes<'_>) -> String {
    let CallAttributes { device, ranks, rounds, gain } = attributes;
    let mut text = format!(
        "# Rules by hawser tune {} for {ranks} ranks of one host on {device}, {}.\n\
         # Every way was measured in {rounds} rounds (float, sums, out of place), in fewer if it took half \
         as long again at all\n\
         # sizes. A rule stands where a way was faster than what the cost model takes in all of them but the \
         extreme fifth on either side, and by at least {gain} % in the median.\n\
         # Sizes that were not measured have no rule. Times in µs: median, and half the width of the range \
         in percent.\n\
         version = 1\n",
        env!("CARGO_PKG_VERSION"),
        date()
    );
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
             ranks = {ranks}, hosts = 1 }}\n\
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

const WIDTH: f64 = 900.0;
const PANEL: f64 = 340.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 230.0;
const TOP: f64 = 50.0;
const BAND: f64 = 26.0;

/// The plot: a panel for each collective with the times of all ways, and a band that shows the winner by
/// size.
pub fn svg(tables: &Tables, found: &[Found], attributes: &CallAttributes<'_>) -> String {
    let height = TOP + PANEL * tables.len() as f64;
    let title = format!(
        "hawser tune: {} ranks on {}, medians of {} rounds",
        attributes.ranks, attributes.device, attributes.rounds
    );
    let mut text = svg::begin((WIDTH, height), LEFT, &title);
    for (at, (collective, table)) in tables.iter().enumerate() {
        let own: Vec<&Found> = found.iter().filter(|f| f.collective == *collective).collect();
        panel(&mut text, TOP + PANEL * at as f64, collective, table, &own);
    }
    text + "</svg>\n"
}

/// From sizes and times to places.
struct Scale {
    x: (f64, f64),
    y: (f64, f64),
    top: f64,
}

impl Scale {
    fn new(table: &Table, top: f64) -> Option<Self> {
        let medians = table.values().flat_map(|row| row.ways.values()).map(|times| times.median().ln());
        let (low, high) = medians.fold((f64::MAX, f64::MIN), |(low, high), y| (low.min(y), high.max(y)));
        let (first, last) = (*table.keys().next()?, *table.keys().next_back()?);
        let wide =
            |low: f64, high: f64| if high - low < 1e-6 { (low - 0.5, high + 0.5) } else { (low, high) };
        let (x, y) = (wide((first as f64).ln(), (last as f64).ln()), wide(low, high));
        Some(Self { x, y, top })
    }

    fn x(&self, bytes: u64) -> f64 {
        let part = ((bytes as f64).ln() - self.x.0) / (self.x.1 - self.x.0);
        LEFT + part.clamp(0.0, 1.0) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, us: f64) -> f64 {
        let part = (us.ln() - self.y.0) / (self.y.1 - self.y.0);
        self.top + (1.0 - part) * (PANEL - BAND - 70.0)
    }
}

fn panel(text: &mut String, top: f64, collective: &str, table: &Table, found: &[&Found]) {
    let Some(scale) = Scale::new(table, top + 20.0) else { return };
    let _ =
        writeln!(text, "<text x=\"{LEFT}\" y=\"{:.0}\" font-weight=\"bold\">{collective}</text>", top + 8.0);
    let mut ways: Vec<&str> = found.iter().map(|f| f.way.as_str()).collect();
    ways.sort_unstable();
    ways.dedup();
    let colour = |way: &str| ways.iter().position(|w| *w == way).map(|at| COLOURS[at % COLOURS.len()]);
    let all: std::collections::BTreeSet<&str> =
        table.values().flat_map(|row| row.ways.keys()).map(String::as_str).collect();
    // What wins and the default are drawn last, above the others.
    let (plain, marked): (Vec<&str>, Vec<&str>) =
        all.into_iter().partition(|way| colour(way).is_none() && *way != "default");
    for way in plain.into_iter().chain(marked) {
        let stroke = match way {
            "default" => "stroke=\"black\" stroke-width=\"2\" stroke-dasharray=\"5 3\"".to_owned(),
            _ => match colour(way) {
                Some(colour) => format!("stroke=\"{colour}\" stroke-width=\"2.5\""),
                None => "stroke=\"#c8c8c8\" stroke-width=\"1\"".to_owned(),
            },
        };
        let point = |(bytes, row): (&u64, &super::decide::Row)| {
            row.ways.get(way).map(|times| format!("{:.1},{:.1}", scale.x(*bytes), scale.y(times.median())))
        };
        let points: Vec<String> = table.iter().filter_map(point).collect();
        let _ = writeln!(
            text,
            "<polyline fill=\"none\" {stroke} points=\"{}\"><title>{}</title></polyline>",
            points.join(" "),
            escaped(way)
        );
    }
    axes(text, &scale, table);
    band(text, &scale, found, &colour);
    let mut y = top + 30.0;
    let entries = ways.iter().map(|way| (*way, colour(way).unwrap_or("black")));
    for (way, colour) in
        entries.chain([("what the cost model takes (dashed)", "black"), ("others", "#a0a0a0")])
    {
        let x = WIDTH - RIGHT + 16.0;
        let _ = writeln!(text, "<text x=\"{x:.0}\" y=\"{y:.0}\" fill=\"{colour}\">{}</text>", escaped(way));
        y += 17.0;
    }
}

fn axes(text: &mut String, scale: &Scale, table: &Table) {
    let bottom = scale.top + PANEL - BAND - 70.0;
    let right = WIDTH - RIGHT;
    let _ = writeln!(
        text,
        "<path d=\"M{LEFT} {:.0}V{bottom:.0}H{right:.0}\" fill=\"none\" stroke=\"black\"/>",
        scale.top
    );
    for bytes in table.keys() {
        let (x, y) = (scale.x(*bytes), bottom + BAND + 18.0);
        let size = range::size(*bytes);
        let _ = writeln!(
            text,
            "<text x=\"{x:.1}\" y=\"{y:.0}\" text-anchor=\"middle\" font-size=\"10\">{size}</text>"
        );
    }
    for part in [0.0, 0.25, 0.5, 0.75, 1.0] {
        let us = (scale.y.0 + part * (scale.y.1 - scale.y.0)).exp();
        let (x, y) = (LEFT - 6.0, scale.y(us));
        let us = if us < 10.0 { format!("{us:.1}") } else { format!("{us:.0}") };
        let _ = writeln!(
            text,
            "<text x=\"{x:.0}\" y=\"{:.1}\" text-anchor=\"end\" font-size=\"10\">{us} µs</text>",
            y + 3.0
        );
    }
}

/// The winner by size.
fn band<'c>(text: &mut String, scale: &Scale, found: &[&Found], colour: &impl Fn(&str) -> Option<&'c str>) {
    let y = scale.top + PANEL - BAND - 64.0;
    let width = WIDTH - LEFT - RIGHT;
    let _ =
        writeln!(text, "<rect x=\"{LEFT}\" y=\"{y:.0}\" width=\"{width}\" height=\"14\" fill=\"#eeeeee\"/>");
    for Found { bytes: (first, last), way, .. } in found {
        let (x, end) = (scale.x(*first), scale.x(*last));
        let _ = writeln!(
            text,
            "<rect x=\"{x:.1}\" y=\"{y:.0}\" width=\"{:.1}\" height=\"14\" \
                fill=\"{}\"><title>{}</title></rect>",
            (end - x).max(3.0),
            colour(way).unwrap_or("black"),
            escaped(way)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::bench::Sample;
    use crate::tune::decide;

    fn measured() -> (Tables, Vec<Found>) {
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
        CallAttributes { device: "<H200>", ranks: 8, rounds: 5, gain: 5.0 }
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
    fn the_plot_has_a_line_per_way_and_the_winners() {
        let (tables, found) = measured();
        let text = svg(&tables, &found, &attributes());
        assert_eq!((text.matches("<polyline").count(), text.matches("height=\"14\"").count()), (2, 2));
        assert!(text.contains("&lt;H200>") && !text.contains("NaN") && !text.contains("inf"), "{text}");
        // One size, one time.
        let one = [("default", Sample { collective: "x".into(), bytes: 8, us: 1.0, ran: String::new() })];
        let tables = decide::tables(one.iter().map(|(way, sample)| (*way, sample)));
        let text = svg(&tables, &[], &attributes());
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    }

    #[test]
    fn days_are_dates() {
        assert_eq!((civil(0), civil(19_782), civil(20_778)), ((1970, 1, 1), (2024, 2, 29), (2026, 11, 21)));
    }
}
