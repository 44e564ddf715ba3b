//! The outcome as a table, as JSON, and as a picture.

use std::fmt::Write as _;

use anyhow::{Context, Result};
use hawser_device::size_text;
use hawser_plan::DataType;
use serde::Serialize;

use super::Options;
use super::contender::{Figures, median};
use super::contest::Score;
use crate::files;
use crate::output::print;
use crate::perf::collective::Test;
use crate::svg::{self, COLOURS, escaped};

/// The machine and the engine that all contenders ran on.
pub struct About {
    /// Name of the GPUs.
    pub device: String,
    /// The engine that multiplied.
    pub gemm: String,
}

/// A contender's figures for one operation: medians over rounds.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Line {
    contender: String,
    library: String,
    version: String,
    collective: String,
    bytes: u64,
    ctas: Option<u32>,
    /// µs of a GEMM, alone and beside transfers.
    gemm_us: [f64; 2],
    /// µs of a transfer, alone and beside GEMMs.
    transfer_us: [f64; 2],
    /// GB/s on the bus, likewise.
    busbw: [f64; 2],
    /// By how much GEMMs take longer: median, least and most of the rounds, in percent.
    gemm_slower: [f64; 3],
    /// The same of transfers.
    transfer_slower: [f64; 3],
    /// Watts of a GPU: GEMM, transfer, both.
    watts: Option<[f64; 3]>,
}

/// Prints the table, and writes the files that the options name.
///
/// # Errors
/// A file cannot be written.
pub fn write(options: &Options, scores: &[Score], about: &About) -> Result<()> {
    let lines = lines(options, scores);
    let json = options.json.then_some(None).into_iter().chain(options.json_file.as_deref().map(Some));
    if !options.json {
        print(&table(options, scores, &lines, about))?;
    }
    for path in json {
        let document = serde_json::json!({
            "config": {
                "ranks": options.ranks(),
                "processes": options.processes.is_some(),
                "device": about.device,
                "gemm": about.gemm,
                "side": options.side(),
                "rounds": options.rounds,
                "window_ms": options.window_ms,
            },
            "results": lines,
        });
        let text = serde_json::to_string_pretty(&document).context("the results as JSON")?;
        match path {
            Some(path) => files::write(path, &(text + "\n"))?,
            None => print(&(text + "\n"))?,
        }
    }
    if let Some(path) = &options.plot {
        let picture = picture(options, scores, &lines, about);
        files::write(path, &picture)?;
    }
    Ok(())
}

fn lines(options: &Options, scores: &[Score]) -> Vec<Line> {
    let tests = options.collective.0.iter();
    let line = |test: &Test| {
        let of_score = |score: &Score| {
            let all = score.rounds.iter().flatten();
            let own: Vec<&Figures> = all.filter(|figures| figures.collective == test.name()).collect();
            (!own.is_empty()).then(|| summary(options, *test, score, &own))
        };
        scores.iter().filter_map(of_score).collect::<Vec<_>>()
    };
    tests.flat_map(line).collect()
}

fn summary(options: &Options, test: Test, score: &Score, rounds: &[&Figures]) -> Line {
    let middle = |of: &dyn Fn(&Figures) -> f64| {
        let all: Vec<f64> = rounds.iter().map(|figures| of(figures)).collect();
        median(&all).unwrap_or(f64::NAN)
    };
    let spread = |of: &dyn Fn(&Figures) -> [f64; 2]| {
        let slower = |figures: &Figures| (of(figures)[1] / of(figures)[0] - 1.0) * 100.0;
        let all = || rounds.iter().map(|figures| slower(figures));
        [middle(&slower), all().fold(f64::INFINITY, f64::min), all().fold(f64::NEG_INFINITY, f64::max)]
    };
    let geometry = test.geometry(options.bytes(), DataType::Bfloat16, options.ranks());
    let transfer = [0, 1].map(|i| middle(&|figures| figures.transfer[i]));
    let busbw =
        transfer.map(|seconds| test.bandwidth(geometry, DataType::Bfloat16, options.ranks(), seconds).1);
    let has_watts = rounds.iter().all(|figures| figures.watts.is_some());
    let watts = |i: usize| middle(&|figures| figures.watts.map_or(f64::NAN, |watts| watts[i]));
    Line {
        contender: score.contender.name.to_owned(),
        library: score.contender.what.clone(),
        version: score.version.clone(),
        collective: test.name().to_owned(),
        bytes: options.bytes(),
        ctas: rounds.iter().find_map(|figures| figures.ctas),
        gemm_us: [0, 1].map(|i| middle(&|figures| figures.gemm[i]) * 1e6),
        transfer_us: transfer.map(|seconds| seconds * 1e6),
        busbw,
        gemm_slower: spread(&|figures| figures.gemm),
        transfer_slower: spread(&|figures| figures.transfer),
        watts: has_watts.then(|| [0, 1, 2].map(watts)),
    }
}

fn title(options: &Options, about: &About) -> String {
    format!(
        "{} ranks ({}) on {}, GEMM {}³ by {}, operations of {}, medians of {} rounds",
        options.ranks(),
        if options.processes.is_some() { "processes" } else { "threads" },
        about.device,
        options.side(),
        about.gemm,
        size_text(options.bytes()),
        options.rounds
    )
}

fn table(options: &Options, scores: &[Score], lines: &[Line], about: &About) -> String {
    let mut text = format!("# overlap: {}\n", title(options, about));
    for score in scores {
        let (name, what, version) = (score.contender.name, &score.contender.what, &score.version);
        match &score.failure {
            Some(failure) => writeln!(text, "# {name}: {what}: FAILED: {failure}"),
            None => writeln!(text, "# {name}: {what} ({version})"),
        }
        .unwrap_or_default();
    }
    let head = "contender   CTAs   GEMM µs  beside   slower % [least .. most]   transfer µs    beside   \
        slower % [least .. most]  busbw  beside  watts GEMM, transfer, both";
    for (at, line) in lines.iter().enumerate() {
        if at == 0 || lines[at - 1].collective != line.collective {
            let _ = writeln!(text, "#\n# {}\n# {head}", line.collective);
        }
        let ctas = line.ctas.map_or("?".to_owned(), |ctas| ctas.to_string());
        let slower = |[middle, least, most]: [f64; 3]| format!("{middle:+7.1} [{least:+6.1} .. {most:+6.1}]");
        let watts = line.watts.map_or("-".to_owned(), |watts| watts.map(|w| format!("{w:.0}")).join(" "));
        let _ = writeln!(
            text,
            "{:<12} {ctas:>4} {:>9.1} {:>9.1} {}  {:>9.1} {:>9.1} {} {:>6.1} {:>6.1}  {watts}",
            line.contender,
            line.gemm_us[0],
            line.gemm_us[1],
            slower(line.gemm_slower),
            line.transfer_us[0],
            line.transfer_us[1],
            slower(line.transfer_slower),
            line.busbw[0],
            line.busbw[1],
        );
    }
    text
}

const WIDTH: f64 = 900.0;
const LEFT: f64 = 150.0;
const RIGHT: f64 = 72.0;
const TOP: f64 = 70.0;
const BAR: f64 = 13.0;
const GAP: f64 = 12.0;

/// A panel for each operation: by how much GEMM and transfer take longer, bars for each contender.
fn picture(options: &Options, scores: &[Score], lines: &[Line], about: &About) -> String {
    let panel = |count: usize| 34.0 + count as f64 * (2.0 * BAR + GAP) + 16.0;
    let of_test =
        |test: &Test| lines.iter().filter(|line| line.collective == test.name()).collect::<Vec<_>>();
    let panels: Vec<Vec<&Line>> = options.collective.0.iter().map(of_test).collect();
    let height =
        TOP + panels.iter().map(|lines| panel(lines.len())).sum::<f64>() + 18.0 * scores.len() as f64 + 10.0;
    let mut text = svg::begin(
        (WIDTH, height),
        20.0,
        "GEMM beside transfers: how much longer each takes",
        "Bars: by how many percent a GEMM and a transfer take longer side by side than alone, medians; \
         lines: least and most of the rounds.",
    );
    let _ = writeln!(text, "<text x=\"20\" y=\"44\">{}</text>", escaped(&title(options, about)));
    let most = lines.iter().flat_map(|line| [line.gemm_slower[2], line.transfer_slower[2]]);
    let most = most.fold(10.0, f64::max);
    let scale = (WIDTH - LEFT - RIGHT) / most;
    let mut top = TOP;
    for lines in &panels {
        axis(&mut text, (top, panel(lines.len())), most, scale);
        bars(&mut text, top, lines, scale);
        top += panel(lines.len());
    }
    top += 10.0;
    for score in scores {
        let (name, what, version) = (score.contender.name, &score.contender.what, &score.version);
        let state = if score.failure.is_some() { "failed" } else { version };
        let _ = writeln!(
            text,
            "<text x=\"20\" y=\"{top:.0}\">{name}: {} ({})</text>",
            escaped(what),
            escaped(state)
        );
        top += 18.0;
    }
    text + "</svg>\n"
}

/// Lines at round numbers of percent, for one operation.
fn axis(text: &mut String, (top, height): (f64, f64), most: f64, scale: f64) {
    let (first, last) = (top + 20.0, top + height - 24.0);
    let _ = writeln!(
        text,
        "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\" font-size=\"10\">percent longer</text>",
        LEFT - 8.0,
        last + 12.0
    );
    for tick in svg::round_ticks(most) {
        let x = LEFT + tick * scale;
        let _ = writeln!(
            text,
            "<path d=\"M{x:.1} {first:.0}V{last:.0}\" stroke=\"#dddddd\"/><text x=\"{x:.1}\" y=\"{:.0}\" \
             text-anchor=\"middle\" font-size=\"10\">{tick}</text>",
            last + 12.0
        );
    }
}

fn bars(text: &mut String, top: f64, lines: &[&Line], scale: f64) {
    let Some(first) = lines.first() else { return };
    let _ = writeln!(
        text,
        "<text x=\"20\" y=\"{:.0}\" font-weight=\"bold\">{}</text>\
         <text x=\"{LEFT}\" y=\"{:.0}\" fill=\"{}\">GEMM</text><text x=\"{:.0}\" y=\"{:.0}\" \
                   fill=\"{}\">transfer</text>",
        top + 14.0,
        first.collective,
        top + 14.0,
        COLOURS[0],
        LEFT + 60.0,
        top + 14.0,
        COLOURS[1]
    );
    let mut y = top + 24.0;
    for line in lines {
        let ctas = line.ctas.map_or("? CTAs".to_owned(), |ctas| format!("{ctas} CTAs"));
        let _ = writeln!(
            text,
            "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">{}, {ctas}</text>",
            LEFT - 8.0,
            y + BAR + 4.0,
            escaped(&line.contender)
        );
        for (slower, colour) in [(line.gemm_slower, COLOURS[0]), (line.transfer_slower, COLOURS[1])] {
            let [middle, least, most] = slower.map(|percent| percent.max(0.0) * scale);
            let _ = writeln!(
                text,
                "<rect x=\"{LEFT}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{colour}\"/>\
                 <path d=\"M{:.1} {:.1}H{:.1}\" stroke=\"black\"/><text x=\"{:.1}\" y=\"{:.1}\" \
                           font-size=\"10\">{:+.1} %</text>",
                middle.max(1.0),
                BAR - 1.0,
                LEFT + least,
                y + BAR / 2.0,
                LEFT + most,
                LEFT + most.max(1.0) + 5.0,
                y + BAR - 3.0,
                slower[0]
            );
            y += BAR;
        }
        y += GAP;
    }
}
