//! The page of `hawser adapt demo`: times of operations over time, and the decisions as a table.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{Change, Kind, Phase, Record, Sample};
use crate::svg::{self, COLOURS, escaped};

const SIZE: (f64, f64) = (1100.0, 460.0);
/// Left, top, width and height of the frame.
const FRAME: (f64, f64, f64, f64) = (80.0, 60.0, 980.0, 320.0);
/// Parts of the time, for each of which there is one mark of each kind.
const PARTS: f64 = 240.0;

/// The page: the picture, and the same as a table for those who do not see it.
pub fn html(record: &Record, ranks: u32) -> String {
    let mut rows = String::new();
    for change in &record.changes {
        let Change { at, operation, phase, algorithm, rule, kind } = change;
        let _ = writeln!(
            rows,
            "<tr><td>{at:.2}</td><td>{operation}</td><td>{}</td><td>{}: {}</td><td>{}</td></tr>",
            name(*phase),
            word(*kind),
            escaped(algorithm),
            escaped(rule)
        );
    }
    let description = sentences(record).join(" ");
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Adaptive mode</title>\n\
         <style>body{{font-family:sans-serif;max-width:1120px;margin:1em auto}}\
         td,th{{padding:.2em .6em;text-align:left;vertical-align:top}}\
         svg{{max-width:100%;height:auto}}</style></head>\n<body>\n{}\n<p>{}</p>\n\
         <table><caption>What decided, and from when on</caption>\n\
         <thead><tr><th scope=\"col\">s</th><th scope=\"col\">operation</th>\
         <th scope=\"col\">phase</th><th scope=\"col\">way</th><th scope=\"col\">rule</th></tr></thead>\n\
         <tbody>\n{rows}</tbody></table>\n\
         </body></html>\n",
        picture(record, ranks),
        escaped(&description)
    )
}

/// The same for a terminal.
pub fn text(record: &Record) -> String {
    sentences(record).iter().map(|line| format!("{line}\n")).collect()
}

/// The course of the demo, a sentence for each phase.
fn sentences(record: &Record) -> Vec<String> {
    let ends = record.phases.iter().skip(1).map(|(_, at, _)| *at).chain([f64::INFINITY]);
    let of_phase = |((phase, from, came), to): (&(Phase, f64, bool), f64)| {
        let median = |kind: Kind| {
            let is_meant = |s: &&Sample| s.kind == kind && (*from..to).contains(&s.at);
            middle(record.samples.iter().filter(is_meant).map(|s| s.us).collect())
        };
        let us = |kind| median(kind).map_or("none ran".to_owned(), |us| format!("{us:.0} \u{b5}s"));
        let (floor, learned) = (us(Kind::Floor), us(Kind::Learned));
        let last = record.changes.iter().rfind(|change| change.phase == *phase);
        let is_back = last.is_some_and(|change| change.kind == Kind::Learned);
        let outcome = match (phase, came) {
            (Phase::Learn, true) => "a better way was learned",
            (Phase::Learn, false) => "no better way was learned",
            (Phase::Stress, true) if is_back => {
                "one rank was late, and the floor counted until what was learned was seen to be no slower"
            }
            (Phase::Stress, true) => "one rank was late, and the floor counted",
            (Phase::Stress, false) => "one rank was late, and what was learned stayed",
            (Phase::Recover, true) => "all ranks kept up again, and what was learned came back",
            (Phase::Recover, false) => "all ranks kept up again, and what was learned did not come back",
        };
        format!(
            "{}, from {from:.1} s on: {outcome}; median of the floor {floor}, learned {learned}.",
            name(*phase)
        )
    };
    record.phases.iter().zip(ends).map(of_phase).collect()
}

/// The picture alone, as SVG.
pub fn picture(record: &Record, ranks: u32) -> String {
    let title = format!("hawser adapt demo: {ranks} ranks, times of operations on rank 0");
    let (left, top, width, height) = FRAME;
    let mut text = svg::begin(SIZE, left, &title, &sentences(record).join(" "));
    let end = record.samples.last().map_or(1.0, |sample| sample.at.max(1e-3));
    let marks = marks(record, end);
    let all = || marks.iter().map(|mark| f64::from(mark.us).max(0.1));
    let low = all().fold(f64::MAX, f64::min).log10().floor();
    let high = all().fold(f64::MIN, f64::max).log10().ceil().max(low + 1.0);
    let x = |at: f64| left + at / end * width;
    let y = |us: f64| top + (high - us.max(0.1).log10()) / (high - low) * height;
    for (at, (phase, from, _)) in record.phases.iter().enumerate() {
        let to = record.phases.get(at + 1).map_or(end, |(_, to, _)| *to);
        let fill = if *phase == Phase::Stress { "#f6e3d4" } else { "#f4f4f4" };
        let _ = writeln!(
            text,
            "<rect x=\"{:.1}\" y=\"{top}\" width=\"{:.1}\" height=\"{height}\" fill=\"{fill}\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\" font-weight=\"bold\">{}</text>",
            x(*from),
            (x(to) - x(*from)).max(0.0),
            x(*from) + 4.0,
            top - 8.0,
            name(*phase)
        );
    }
    let mut power = low;
    while power <= high {
        let (place, us) = (y(10_f64.powf(power)), 10_f64.powf(power));
        let (value, unit) = match us {
            us if us >= 1e6 => (us / 1e6, "s"),
            us if us >= 1e3 => (us / 1e3, "ms"),
            us => (us, "µs"),
        };
        let _ = writeln!(
            text,
            "<line x1=\"{left}\" x2=\"{:.1}\" y1=\"{place:.1}\" y2=\"{place:.1}\" stroke=\"#c8c8c8\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{value} {unit}</text>",
            left + width,
            left - 6.0,
            place + 4.0
        );
        power += 1.0;
    }
    for at in svg::round_ticks(end) {
        let (place, below) = (x(at), top + height + 18.0);
        let _ = writeln!(
            text,
            "<path d=\"M{place:.1} {:.1}v4\" stroke=\"black\"/>\
             <text x=\"{place:.1}\" y=\"{below}\" text-anchor=\"middle\">{at} s</text>",
            top + height
        );
    }
    marks.iter().for_each(|mark| shape(&mut text, mark.kind, x(mark.at), y(f64::from(mark.us))));
    for (at, kind) in [Kind::Floor, Kind::Learned, Kind::Trial].into_iter().enumerate() {
        let (place, below) = (left + 20.0 + 260.0 * at as f64, SIZE.1 - 30.0);
        shape(&mut text, kind, place, below - 4.0);
        let _ = writeln!(text, "<text x=\"{:.1}\" y=\"{below}\">{}</text>", place + 12.0, word(kind));
    }
    text + "</svg>"
}

/// The median of the operations of a kind in a part of the time.
struct Mark {
    at: f64,
    us: f32,
    kind: Kind,
}

fn marks(record: &Record, end: f64) -> Vec<Mark> {
    let mut parts: BTreeMap<(u8, u64), Vec<&Sample>> = BTreeMap::new();
    for sample in &record.samples {
        let part = (sample.at / end * PARTS) as u64;
        parts.entry((sample.kind as u8, part)).or_default().push(sample);
    }
    let mark = |samples: Vec<&Sample>| {
        let us = middle(samples.iter().map(|sample| sample.us).collect())?;
        let first = samples.first()?;
        Some(Mark { at: first.at, us, kind: first.kind })
    };
    parts.into_values().filter_map(mark).collect()
}

/// A mark whose shape says as much as its colour.
fn shape(text: &mut String, kind: Kind, x: f64, y: f64) {
    let _ = match kind {
        Kind::Floor => writeln!(
            text,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"6\" height=\"6\" fill=\"{}\"/>",
            x - 3.0,
            y - 3.0,
            COLOURS[1]
        ),
        Kind::Learned => {
            writeln!(text, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{}\"/>", COLOURS[0])
        }
        Kind::Trial => writeln!(
            text,
            "<path d=\"M{:.1} {:.1}l6 6m0 -6l-6 6\" stroke=\"{}\" fill=\"none\"/>",
            x - 3.0,
            y - 3.0,
            COLOURS[2]
        ),
    };
}

fn middle(mut all: Vec<f32>) -> Option<f32> {
    all.sort_by(f32::total_cmp);
    all.get(all.len() / 2).copied()
}

fn name(phase: Phase) -> &'static str {
    match phase {
        Phase::Learn => "Slow loop",
        Phase::Stress => "Stress",
        Phase::Recover => "Recovery",
    }
}

fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::Floor => "the floor",
        Kind::Learned => "what was learned",
        Kind::Trial => "trials",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_says_in_words_what_it_shows() {
        let sample = |at: f64, us, kind| Sample { at, us, kind };
        let record = Record {
            samples: vec![
                sample(0.1, 900.0, Kind::Floor),
                sample(1.5, 30.0, Kind::Learned),
                sample(1.6, 50.0, Kind::Trial),
            ],
            changes: vec![Change {
                at: 1.4,
                operation: 70,
                phase: Phase::Learn,
                kind: Kind::Learned,
                algorithm: "Ring".into(),
                rule: "learned: <a> & \"b\"".into(),
            }],
            phases: vec![(Phase::Learn, 0.0, true), (Phase::Stress, 2.0, false)],
        };
        let page = html(&record, 4);
        for part in [
            "role=\"img\"",
            "<desc id=\"text\">Slow loop, from 0.0 s on: a better way was learned; median of the floor 900",
            "learned: &lt;a> &amp; &quot;b&quot;",
            "Stress, from 2.0 s on: one rank was late, and what was learned stayed",
        ] {
            assert!(page.contains(part), "{part} is not in {page}");
        }
        assert!(html(&Record::default(), 2).contains("</svg>"), "nothing happened");
        assert!(picture(&record, 4).starts_with("<svg"), "a file of its own");
        let back = Change { at: 3.0, phase: Phase::Stress, ..record.changes[0].clone() };
        let record = Record { changes: vec![back], phases: vec![(Phase::Stress, 2.0, true)], ..record };
        assert!(text(&record).contains("the floor counted until what was learned"), "{}", text(&record));
    }
}
