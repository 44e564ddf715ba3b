//! The plot of what was measured: for each collective times and bus bandwidth by size, and who wins where.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use hawser_plan::DataType;

use super::decide::{Found, Row, Table, Tables};
use super::report::CallAttributes;
use crate::perf::collective::Test;
use crate::svg::{self, Axes, COLOURS, Scale, escaped};

const WIDTH: f64 = 1180.0;
const PANEL: f64 = 350.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 50.0;
/// Width and height of the frame of one kind of figures, and the space between two.
const FRAME: (f64, f64) = (380.0, 230.0);
const BETWEEN: f64 = 80.0;
/// The line of the cost model's own choice.
const DEFAULT: &str = "stroke=\"black\" stroke-width=\"2\" stroke-dasharray=\"5 3\"";
const OTHER: &str = "stroke=\"#c8c8c8\" stroke-width=\"1\"";

/// The plot: for each collective a panel of times and one of bus bandwidth, and a band that shows the winner
/// by size.
pub fn svg(tables: &Tables, found: &[Found], attributes: &CallAttributes<'_>) -> String {
    let height = TOP + PANEL * tables.len() as f64;
    let CallAttributes { device, ranks, rounds, simulated, .. } = attributes;
    let how = if simulated.is_empty() { format!("medians of {rounds} rounds") } else { "simulated".into() };
    let title = format!("hawser tune: {ranks} ranks on {device}, {how}");
    let rules = found.iter().map(|f| {
        let (first, last) = f.bytes;
        format!("{} from {first} to {last} bytes: {}.", f.collective, f.way)
    });
    let winners: Vec<String> = rules.collect();
    let description = match winners.is_empty() {
        true => "Nothing is surely faster than what the cost model takes.".to_owned(),
        false => format!("Surely faster than what the cost model takes: {}", winners.join(" ")),
    };
    let mut text = svg::begin((WIDTH, height), LEFT, &title, &description);
    for (at, (collective, table)) in tables.iter().enumerate() {
        let own: Vec<&Found> = found.iter().filter(|f| f.collective == *collective).collect();
        let panel = Panel { collective, table, found: own, ranks: *ranks };
        panel.draw(&mut text, TOP + PANEL * at as f64);
    }
    text + "</svg>\n"
}

/// The figures of a collective.
struct Panel<'a> {
    collective: &'a str,
    table: &'a Table,
    found: Vec<&'a Found>,
    ranks: u32,
}

impl Panel<'_> {
    fn draw(&self, text: &mut String, top: f64) {
        let _ = writeln!(
            text,
            "<text x=\"{LEFT}\" y=\"{:.0}\" font-weight=\"bold\">{}</text>",
            top + 8.0,
            escaped(self.collective)
        );
        let (width, height) = FRAME;
        let frame = |at: f64| (LEFT + at * (width + BETWEEN), top + 20.0, width, height);
        let time = |_: u64, us: f64| us;
        let bus = |bytes: u64, us: f64| self.busbw(bytes, us);
        self.lines(text, frame(0.0), Scale::Logarithmic, "time in µs", &time);
        self.lines(text, frame(1.0), Scale::Linear, "bus bandwidth in GB/s", &bus);
        self.legend(text, top + 30.0);
    }

    /// GB/s on the bus.
    fn busbw(&self, bytes: u64, us: f64) -> f64 {
        let Some(test) = Test::from_name(self.collective) else { return 0.0 };
        let geometry = test.geometry(bytes, DataType::Float32, self.ranks);
        test.bandwidth(geometry, DataType::Float32, self.ranks, us / 1e6).1
    }

    fn lines(
        &self,
        text: &mut String,
        frame: (f64, f64, f64, f64),
        scale: Scale,
        name: &str,
        figure: &dyn Fn(u64, f64) -> f64,
    ) {
        let sizes: Vec<u64> = self.table.keys().copied().collect();
        let of_row = |(bytes, row): (&u64, &Row)| -> Vec<f64> {
            row.ways.values().map(|times| figure(*bytes, times.median())).collect()
        };
        let all: Vec<f64> = self.table.iter().flat_map(of_row).collect();
        let Some(axes) = Axes::new(frame, &sizes, &all, scale) else { return };
        axes.draw(text, &sizes, name);
        for way in self.ways_in_order() {
            let point = |(bytes, row): (&u64, &Row)| {
                row.ways.get(way).map(|times| (*bytes, figure(*bytes, times.median())))
            };
            let points: Vec<(u64, f64)> = self.table.iter().filter_map(point).collect();
            axes.line(text, &points, &self.stroke(way), way);
        }
        if scale == Scale::Logarithmic {
            self.band(text, &axes);
        }
    }

    /// All ways; what wins and the default are drawn last, above the others.
    fn ways_in_order(&self) -> Vec<&str> {
        let all: BTreeSet<&str> =
            self.table.values().flat_map(|row| row.ways.keys()).map(String::as_str).collect();
        let is_marked = |way: &&str| self.colour(way).is_some() || *way == "default";
        let (marked, plain): (Vec<&str>, Vec<&str>) = all.into_iter().partition(is_marked);
        plain.into_iter().chain(marked).collect()
    }

    fn winners(&self) -> Vec<&str> {
        let all: BTreeSet<&str> = self.found.iter().map(|f| f.way.as_str()).collect();
        all.into_iter().collect()
    }

    fn colour(&self, way: &str) -> Option<&'static str> {
        self.winners().iter().position(|w| *w == way).map(|at| COLOURS[at % COLOURS.len()])
    }

    fn stroke(&self, way: &str) -> String {
        match self.colour(way) {
            _ if way == "default" => DEFAULT.to_owned(),
            Some(colour) => format!("stroke=\"{colour}\" stroke-width=\"2.5\""),
            None => OTHER.to_owned(),
        }
    }

    /// The winner by size, below the times.
    fn band(&self, text: &mut String, axes: &Axes) {
        let (left, top, width, height) = axes.frame;
        let y = top + height + 40.0;
        let _ = writeln!(
            text,
            "<rect x=\"{left}\" y=\"{y:.0}\" width=\"{width}\" height=\"14\" fill=\"#eeeeee\"/>\
             <text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\" font-size=\"10\">winner</text>",
            left - 6.0,
            y + 11.0
        );
        for Found { bytes: (first, last), way, .. } in &self.found {
            let (x, end) = (axes.x(*first), axes.x(*last));
            let _ = writeln!(
                text,
                "<rect x=\"{x:.1}\" y=\"{y:.0}\" width=\"{:.1}\" height=\"14\" fill=\"{}\">\
                 <title>{}</title></rect>",
                (end - x).max(3.0),
                self.colour(way).unwrap_or("black"),
                escaped(way)
            );
        }
    }

    fn legend(&self, text: &mut String, top: f64) {
        let x = LEFT + 2.0 * FRAME.0 + BETWEEN + 16.0;
        let own = self.winners().into_iter().map(|way| (way.to_owned(), self.stroke(way)));
        let rest = [("the cost model's choice", DEFAULT), ("other ways (point at one)", OTHER)];
        let rest = rest.map(|(name, stroke)| (name.to_owned(), stroke.to_owned()));
        for (at, (name, stroke)) in own.chain(rest).enumerate() {
            let y = top + 17.0 * at as f64;
            let _ = writeln!(
                text,
                "<path d=\"M{x:.0} {:.0}h24\" {stroke}/><text x=\"{:.0}\" y=\"{y:.0}\">{}</text>",
                y - 4.0,
                x + 30.0,
                escaped(&name)
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::bench::Sample;
    use crate::tune::decide;

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
    fn the_plot_has_lines_units_and_the_winners() {
        let (tables, found) = crate::tune::report::tests::measured();
        let text = svg(&tables, &found, &attributes());
        assert_eq!((text.matches("<polyline").count(), text.matches("height=\"14\"").count()), (4, 2));
        for part in ["&lt;H200>", "time in µs", "bus bandwidth in GB/s", ">size<", ">winner<", "<desc id="] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(text.contains("the cost model&#39;s") || text.contains("the cost model's choice"), "{text}");
        // One size, one time.
        let one = [("default", Sample { collective: "x".into(), bytes: 8, us: 1.0, ran: String::new() })];
        let tables = decide::tables(one.iter().map(|(way, sample)| (*way, sample)));
        for text in [text, svg(&tables, &[], &attributes())] {
            assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        }
    }
}
