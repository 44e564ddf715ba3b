//! The picture of a step: what runs when, and how much of the links is used meanwhile.

use std::fmt::Write as _;

use hawser_sim::links::Name;
use hawser_sim::step::{Kind, Op};

use super::report::Report;
use crate::svg::{self, Axes, COLOURS, escaped};

const WIDTH: f64 = 1180.0;
const LEFT: f64 = 150.0;
const TOP: f64 = 50.0;
/// Width of the frames, and height of that of links.
const FRAME: (f64, f64) = (760.0, 260.0);
/// The height of a stream, and of what is drawn of it.
const LANE: (f64, f64) = (22.0, 16.0);
/// Most streams that are drawn.
const MOST_LANES: usize = 40;
/// The colour of computing.
const COMPUTING: &str = "#b8b8b8";
/// Parts of the time, each with a mean of its own: four pixels wide, so that short operations in a long step
/// are a line and not a blot.
const PARTS: usize = 190;
/// Height of a line of the legend, and the most operations that it names.
const LINE: f64 = 14.0;
const MOST_NAMES: usize = 24;
/// Shares of two kinds of links that differ by less everywhere are one line.
const ALIKE: f64 = 0.005;

/// A stream of some ranks.
type Lane = (String, u32);

/// The picture.
pub fn svg(report: &Report<'_>) -> String {
    let lanes = lanes(report);
    let shown = lanes.len().min(MOST_LANES);
    let names = names(report);
    // The heading, computing, the operations, and how many are not named.
    let lines = 2 + names.len().min(MOST_NAMES) + usize::from(names.len() > MOST_NAMES);
    let under = TOP + (LANE.0 * shown as f64).max(LINE * lines as f64);
    let height = under + 40.0 + FRAME.1 + 60.0;
    let (size, us) = (report.cluster.topology.size(), report.us());
    let title = format!("hawser simulate: a step of {size} ranks, {:.3} ms", us / 1000.0);
    let exposed = report.shares().first().map_or(0.0, |shares| shares.exposed_us);
    let slowest = report.slowest().map_or("No link is used.".to_owned(), |slowest| {
        format!(
            "The slowest link is {}, used for {:.1} % of the step.",
            slowest.busiest,
            slowest.most * 100.0
        )
    });
    let description = format!("Exposed communication takes {exposed:.1} µs of {us:.1} µs. {slowest}");
    let mut text = svg::begin((WIDTH, height), LEFT, &title, &description);
    let (unit, per) = if us >= 10_000.0 { ("ms", 1000.0) } else { ("µs", 1.0) };
    let frame = (LEFT, under + 40.0, FRAME.0, FRAME.1);
    let axes = Axes::over_time(frame, us / per, &[100.0]);
    for (op, span) in report.step.ops.iter().zip(&report.timeline.spans) {
        let Some(at) = lanes.iter().take(shown).position(|lane| *lane == lane_of(report, op)) else {
            continue;
        };
        let x = |us: f64| axes.x_of_time(us / per);
        let (from, to) = (x(span.start.us()), x(span.end.us()));
        let _ = writeln!(
            text,
            "<rect x=\"{from:.1}\" y=\"{:.0}\" width=\"{:.1}\" height=\"{}\" fill=\"{}\" stroke=\"white\" \
             stroke-width=\"0.5\"><title>{}: {:.1} µs from {:.1} µs on</title></rect>",
            TOP + LANE.0 * at as f64,
            (to - from).max(1.0),
            LANE.1,
            colour(&names, op),
            escaped(&op.name),
            span.us(),
            span.start.us()
        );
    }
    for (at, (stream, rank)) in lanes.iter().take(shown).enumerate() {
        let is_only = lanes.iter().filter(|lane| lane.0 == *stream).count() == 1;
        let name = if is_only { stream.clone() } else { format!("{stream}, rank {rank}") };
        let _ = writeln!(
            text,
            "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\" font-size=\"10\">{}</text>",
            LEFT - 8.0,
            TOP + LANE.0 * at as f64 + 12.0,
            escaped(&name)
        );
    }
    let curves = curves(report);
    links(&curves, us / per, &axes, &mut text);
    axes.draw_over_time(&mut text, &format!("time in {unit}"), "use of links in %");
    legend(&names, &curves, lanes.len() - shown, under, &mut text);
    text + "</svg>\n"
}

/// The stream of an operation, and the first rank that runs it.
fn lane_of(report: &Report<'_>, op: &Op) -> Lane {
    let communicators = &report.step.groups[op.group].communicators;
    (op.stream.clone(), communicators.iter().flatten().copied().min().unwrap_or(0))
}

/// The streams, in the order in which they come.
fn lanes(report: &Report<'_>) -> Vec<Lane> {
    let mut lanes: Vec<Lane> = Vec::new();
    for op in &report.step.ops {
        let lane = lane_of(report, op);
        if !lanes.contains(&lane) {
            lanes.push(lane);
        }
    }
    lanes
}

/// The names of collectives, each of which has a colour.
fn names<'a>(report: &'a Report<'_>) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for op in report.step.ops.iter().filter(|op| matches!(op.kind, Kind::Collective(_))) {
        if !names.contains(&op.name.as_str()) {
            names.push(&op.name);
        }
    }
    names
}

fn colour(names: &[&str], op: &Op) -> &'static str {
    match op.kind {
        Kind::Compute { .. } => COMPUTING,
        Kind::Collective(_) => {
            let at = names.iter().position(|name| *name == op.name).unwrap_or(0);
            COLOURS[at % COLOURS.len()]
        }
    }
}

/// Use of links over the time.
struct Curve {
    name: String,
    mean: Vec<f64>,
    most: Vec<f64>,
}

/// The curves of the kinds of links that are used. Kinds that are used alike, as the two directions of a link
/// often are, share one: they would lie on each other.
fn curves(report: &Report<'_>) -> Vec<Curve> {
    let is_used = |kind: &usize| report.timeline.moments.iter().any(|moment| moment.uses[*kind].1 > 0.0);
    let alike = |one: &[f64], other: &[f64]| one.iter().zip(other).all(|(a, b)| (a - b).abs() < ALIKE);
    let mut curves: Vec<Curve> = Vec::new();
    for kind in (0..Name::KINDS.len()).filter(is_used) {
        let (mean, most) = averaged(report, kind);
        let name = Name::KINDS[kind];
        match curves.iter_mut().find(|curve| alike(&curve.mean, &mean) && alike(&curve.most, &most)) {
            Some(same) => same.name += &format!(", {name}"),
            None => curves.push(Curve { name: name.to_owned(), mean, most }),
        }
    }
    curves
}

/// The lines of links: for each curve the mean of all, and the busiest one of each moment.
fn links(curves: &[Curve], end: f64, axes: &Axes, text: &mut String) {
    let part = end / PARTS as f64;
    for (at, Curve { name, mean, most }) in curves.iter().enumerate() {
        let colour = COLOURS[at % COLOURS.len()];
        let mut line = |shares: &[f64], stroke: &str, name: &str| {
            let points =
                shares.iter().enumerate().map(|(at, share)| ((at as f64 + 0.5) * part, share * 100.0));
            axes.line_over_time(text, &points.collect::<Vec<_>>(), stroke, name);
        };
        let thin = format!("stroke=\"{colour}\" stroke-width=\"1\" stroke-dasharray=\"3 2\"");
        line(most, &thin, &format!("{name}: the busiest of each moment"));
        line(mean, &format!("stroke=\"{colour}\" stroke-width=\"2\""), &format!("{name}: mean of all"));
    }
}

/// Mean use and use of the busiest link of a kind in equal parts of the step.
fn averaged(report: &Report<'_>, kind: usize) -> (Vec<f64>, Vec<f64>) {
    let (mut mean, mut most) = (vec![0.0; PARTS], vec![0.0; PARTS]);
    let whole = report.timeline.end.ps().max(1) as f64;
    let place = |ps: u64| ps as f64 / whole * PARTS as f64;
    for pair in report.timeline.moments.windows(2) {
        let (from, to) = (place(pair[0].at.ps()), place(pair[1].at.ps()));
        let uses = pair[0].uses[kind];
        for part in from as usize..(to.ceil() as usize).min(PARTS) {
            let length = (to.min(part as f64 + 1.0) - from.max(part as f64)).max(0.0);
            mean[part] += f64::from(uses.0) * length;
            most[part] += f64::from(uses.1) * length;
        }
    }
    (mean, most)
}

fn legend(names: &[&str], curves: &[Curve], left_out: usize, under: f64, text: &mut String) {
    let x = LEFT + FRAME.0 + 20.0;
    let mut entry = |y: f64, colour: &str, name: &str| {
        let _ = writeln!(
            text,
            "<rect x=\"{x:.0}\" y=\"{:.0}\" width=\"12\" height=\"10\" fill=\"{colour}\"/>\
             <text x=\"{:.0}\" y=\"{y:.0}\" font-size=\"11\">{}</text>",
            y - 9.0,
            x + 18.0,
            escaped(name)
        );
    };
    let operations = names.iter().take(MOST_NAMES).enumerate();
    let all = std::iter::once((COMPUTING, "computing"))
        .chain(operations.map(|(at, name)| (COLOURS[at % COLOURS.len()], *name)));
    for (at, (colour, name)) in all.enumerate() {
        entry(TOP + 10.0 + LINE * (at + 1) as f64, colour, name);
    }
    let top = under + 64.0;
    for (at, curve) in curves.iter().enumerate() {
        entry(top + LINE * at as f64, COLOURS[at % COLOURS.len()], &curve.name);
    }
    let mut words = vec![
        (TOP + 10.0, "operations:".to_owned()),
        (top - LINE, "links:".to_owned()),
        (top + LINE * curves.len() as f64 + 6.0, "solid: mean of all links".to_owned()),
        (top + LINE * (curves.len() + 1) as f64 + 6.0, "dashed: the busiest link".to_owned()),
    ];
    if names.len() > MOST_NAMES {
        let y = TOP + 10.0 + LINE * (MOST_NAMES + 2) as f64;
        words.push((y, format!("and {} more", names.len() - MOST_NAMES)));
    }
    if left_out > 0 {
        let y = top + LINE * (curves.len() + 2) as f64 + 6.0;
        words.push((y, format!("{left_out} streams are not shown")));
    }
    for (y, words) in words {
        let _ = writeln!(text, "<text x=\"{x:.0}\" y=\"{y:.0}\" font-size=\"10\">{words}</text>");
    }
}
