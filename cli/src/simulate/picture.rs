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
/// Parts of the time, each with a mean of its own.
const PARTS: usize = 760;

/// A stream of some ranks.
type Lane = (String, u32);

/// The picture.
pub fn svg(report: &Report<'_>) -> String {
    let lanes = lanes(report);
    let shown = lanes.len().min(MOST_LANES);
    let under = TOP + LANE.0 * shown as f64;
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
    let names = names(report);
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
    links(report, &axes, per, &mut text);
    axes.draw_over_time(&mut text, &format!("time in {unit}"), "use of links in %");
    legend(report, &names, lanes.len() - shown, under, &mut text);
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

/// The kinds of links that are used, by their places.
fn kinds(report: &Report<'_>) -> Vec<usize> {
    let is_used = |kind: &usize| report.timeline.moments.iter().any(|moment| moment.uses[*kind].1 > 0.0);
    (0..Name::KINDS.len()).filter(is_used).collect()
}

/// The lines of links: for each kind the mean of all, and the busiest one of each moment.
fn links(report: &Report<'_>, axes: &Axes, per: f64, text: &mut String) {
    for (at, kind) in kinds(report).into_iter().enumerate() {
        let (mean, most) = averaged(report, kind);
        let colour = COLOURS[at % COLOURS.len()];
        let mut line = |shares: &[f64], stroke: &str, name: &str| {
            let part = report.us() / per / PARTS as f64;
            let points =
                shares.iter().enumerate().map(|(at, share)| ((at as f64 + 0.5) * part, share * 100.0));
            axes.line_over_time(text, &points.collect::<Vec<_>>(), stroke, name);
        };
        let name = Name::KINDS[kind];
        let thin = format!("stroke=\"{colour}\" stroke-width=\"1\" stroke-dasharray=\"3 2\"");
        line(&most, &thin, &format!("{name}: the busiest of each moment"));
        line(&mean, &format!("stroke=\"{colour}\" stroke-width=\"2\""), &format!("{name}: mean of all"));
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

fn legend(report: &Report<'_>, names: &[&str], left_out: usize, under: f64, text: &mut String) {
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
    // Above the links: as many operations as there is room for beside the streams, one at least.
    let room = (((under - TOP) / 14.0) as usize).max(1);
    let all = std::iter::once((COMPUTING, "computing"))
        .chain(names.iter().enumerate().map(|(at, name)| (COLOURS[at % COLOURS.len()], *name)));
    for (at, (colour, name)) in all.take(room).enumerate() {
        entry(TOP + 10.0 + 14.0 * at as f64, colour, name);
    }
    let top = under + 50.0;
    let kinds = kinds(report);
    for (at, kind) in kinds.iter().enumerate() {
        entry(top + 15.0 * at as f64, COLOURS[at % COLOURS.len()], Name::KINDS[*kind]);
    }
    let mut words = vec!["solid: mean of all links".to_owned(), "dashed: the busiest link".to_owned()];
    if left_out > 0 {
        words.push(format!("{left_out} streams are not shown"));
    }
    for (at, words) in words.iter().enumerate() {
        let y = top + 15.0 * (kinds.len() + at) as f64 + 6.0;
        let _ = writeln!(text, "<text x=\"{x:.0}\" y=\"{y:.0}\" font-size=\"10\">{words}</text>");
    }
}
