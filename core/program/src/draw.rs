//! Pictures of programs. Few ranks: one column per rank and channel, time runs down, arrows are transfers.
//! Many ranks: a matrix of who sends how much to whom.

mod html;
mod matrix;

use std::fmt::Write;

use rustc_hash::FxHashMap;

use super::text::{op_name, ref_text};
use super::{Program, Step};
pub use html::to_html;

const WIDTH: usize = 150;
const HEIGHT: usize = 30;
const GAP: usize = 14;
const COLUMN: usize = WIDTH + 50;
const TOP: usize = 96;
/// Repetitions are drawn one by one up to this many boxes in all.
const MAX_BOXES: usize = 4000;
/// More columns than a screen shows side by side.
const MAX_COLUMNS: usize = 16;

/// Colours of ranks, which people who see red and green alike tell apart too.
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b27d00", "#3d9ad1", "#7a5195", "#6f6f00"];

/// The kinds of boxes, as the legend names them.
const KINDS: [(&str, &str, &str); 4] = [
    ("move", "#e8eef6", "moves data"),
    ("reduce", "#fdf0d5", "reduces"),
    ("finish", "#d8f0dc", "finishes a value"),
    ("stuck", "#f8d0d0", "never runs (deadlock)"),
];

/// An SVG drawing of `program`: boxes are steps (repetitions one by one), placed in the row in which
/// they could run if every step took the same time; arrows go from a send to its receive, in the colour of
/// the sender. Steps that never can run (a deadlock) are drawn in red below the others. Large programs are
/// cut off, which the picture says; those of many ranks are drawn as a matrix.
pub fn to_svg(program: &Program) -> String {
    let mut columns = columns(program);
    if columns.len() > MAX_COLUMNS {
        return matrix::to_svg(program);
    }
    let (boxes, arrows, end) = lay_out(&mut columns);
    let rows = boxes.iter().map(|b| b.row + 1).max().unwrap_or(0);
    // The title and the legend need their width.
    let width = (columns.len().max(1) * COLUMN + GAP).max(760);
    let height = TOP + rows * (HEIGHT + GAP) + GAP;
    let note = match end {
        End::Done => String::new(),
        End::Deadlock => " Red boxes never run: a deadlock.".to_owned(),
        End::CutOff => format!(" Only the first {MAX_BOXES} steps or so are shown: the picture ends there."),
    };
    let text = format!(
        "Time runs down; a row is a step. Arrows go from a send to its receive, in the colour of the \
         sender.{note}"
    );
    let mut svg = opening(program, (width, height), "steps in the order in which they can run", &text);
    legend(&mut svg, end);
    for (index, column) in columns.iter().enumerate() {
        let x = GAP + index * COLUMN + WIDTH / 2;
        let _ = writeln!(
            svg,
            r#"<text x="{x}" y="{}" class="head" fill="{}">rank {} · channel {}</text>"#,
            TOP - 12,
            colour(column.rank),
            column.rank,
            column.channel
        );
    }
    for (from, to) in &arrows {
        arrow(&mut svg, &columns, (*from, &boxes[*from]), (*to, &boxes[*to]));
    }
    for (number, step) in boxes.iter().enumerate() {
        draw_box(&mut svg, &columns, number, step);
    }
    svg.push_str("</svg>\n");
    svg
}

fn columns(program: &Program) -> Vec<Column<'_>> {
    let mut columns = Vec::new();
    for (rank, rank_program) in program.ranks.iter().enumerate() {
        for (channel, steps) in rank_program.channels.iter().enumerate() {
            if !steps.steps.is_empty() {
                columns.push(Column {
                    rank: rank as u32,
                    channel: channel as u32,
                    lane: rank_program.lane(channel as u32),
                    steps: &steps.steps,
                    next: (0, 0),
                });
            }
        }
    }
    columns
}

fn colour(rank: u32) -> &'static str {
    COLOURS[rank as usize % COLOURS.len()]
}

fn arrow(svg: &mut String, columns: &[Column<'_>], from: (usize, &Boxed), to: (usize, &Boxed)) {
    let rightward = to.1.column > from.1.column;
    let (x1, x2) = if rightward { (from.1.x() + WIDTH, to.1.x()) } else { (from.1.x(), to.1.x() + WIDTH) };
    let (y1, y2) = (from.1.y() + HEIGHT / 2, to.1.y() + HEIGHT / 2);
    let rank = columns[from.1.column].rank;
    let _ = writeln!(
        svg,
        "<line class=\"arrow\" data-from=\"{}\" data-to=\"{}\" x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" \
         y2=\"{y2}\" stroke=\"{}\" marker-end=\"url(#tip{})\"/>",
        from.0,
        to.0,
        colour(rank),
        rank as usize % COLOURS.len()
    );
}

fn draw_box(svg: &mut String, columns: &[Column<'_>], number: usize, step: &Boxed) {
    let (x, y) = (step.x(), step.y());
    let (cx, y1, y2) = (x + WIDTH / 2, y + 12, y + 24);
    let Boxed { class, title, detail, .. } = step;
    let rank = columns[step.column].rank;
    let _ = writeln!(
        svg,
        "<g class=\"step\" data-step=\"{number}\"><title>rank {rank}, row {}: {title} {detail}</title>\
         <rect x=\"{x}\" y=\"{y}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" class=\"{class}\"/>\
         <text x=\"{cx}\" y=\"{y1}\">{title}</text><text x=\"{cx}\" y=\"{y2}\">{detail}</text></g>",
        step.row
    );
}

fn legend(svg: &mut String, end: End) {
    let shown = if end == End::Deadlock { KINDS.len() } else { KINDS.len() - 1 };
    for (at, (_, fill, name)) in KINDS[..shown].iter().enumerate() {
        let x = GAP + at * 150;
        let _ = writeln!(
            svg,
            "<path d=\"M{x} 54h14v14h-14z\" fill=\"{fill}\" stroke=\"#456\"/>\
             <text x=\"{}\" y=\"65\" text-anchor=\"start\">{name}</text>",
            x + 20
        );
    }
}

struct Column<'a> {
    rank: u32,
    channel: u32,
    lane: u32,
    steps: &'a [Step],
    next: (usize, u32),
}

impl<'a> Column<'a> {
    fn current(&self) -> Option<&'a Step> {
        self.steps.get(self.next.0)
    }

    fn advance(&mut self) {
        let done = self.current().is_none_or(|step| self.next.1 + 1 >= step.times);
        self.next = if done { (self.next.0 + 1, 0) } else { (self.next.0, self.next.1 + 1) };
    }
}

struct Boxed {
    column: usize,
    row: usize,
    class: &'static str,
    title: String,
    detail: String,
}

impl Boxed {
    fn new(column: usize, row: usize, step: &Step, repetition: u32, stuck: bool) -> Self {
        let class = match (stuck, step.finish) {
            (true, _) => "stuck",
            (_, true) => "finish",
            _ if !step.recv.is_empty() && step.src.is_some() => "reduce",
            _ => "move",
        };
        let times =
            if step.times > 1 { format!(" {}/{}", repetition + 1, step.times) } else { String::new() };
        let named = |reference: super::Ref| {
            let mut text = ref_text(reference);
            if step.times > 1 && step.stride != 0 {
                let _ = write!(text, "{:+}", i64::from(step.stride) * i64::from(repetition));
            }
            text
        };
        let refs: Vec<String> = [step.src.map(named), step.dst.map(|dst| format!("→ {}", named(dst)))]
            .into_iter()
            .flatten()
            .collect();
        Self { column, row, class, title: format!("{}{times}", op_name(step.op)), detail: refs.join(" ") }
    }

    fn x(&self) -> usize {
        GAP + self.column * COLUMN
    }

    fn y(&self) -> usize {
        TOP + self.row * (HEIGHT + GAP)
    }
}

/// The way in which the steps of a drawing end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// All have run.
    Done,
    /// Some never can run.
    Deadlock,
    /// There are more than a picture holds.
    CutOff,
}

/// Lets every column run one step per row if its slots have arrived; FIFOs have no limit here.
fn lay_out(columns: &mut [Column<'_>]) -> (Vec<Boxed>, Vec<(usize, usize)>, End) {
    let mut fifos: FxHashMap<(u32, u32, u32), std::collections::VecDeque<usize>> = FxHashMap::default();
    let (mut boxes, mut arrows) = (Vec::new(), Vec::new());
    let mut row = 0;
    while boxes.len() < MAX_BOXES {
        let mut sent = Vec::new();
        let mut moved = false;
        let ends: FxHashMap<(u32, u32), usize> =
            columns.iter().map(|c| ((c.rank, c.channel), c.next.0)).collect();
        for (index, column) in columns.iter_mut().enumerate() {
            let Some(step) = column.current() else { continue };
            let key = |peer: u32| (column.lane, peer, column.rank);
            let arrived =
                step.recv.iter().all(|&peer| fifos.get(&key(peer)).is_some_and(|fifo| !fifo.is_empty()));
            let awaited = |dep: &super::Dep| {
                ends.get(&(column.rank, dep.channel)).is_none_or(|&n| n > dep.step as usize)
            };
            if !arrived || !step.after.iter().all(awaited) {
                continue;
            }
            let number = boxes.len();
            for &peer in &step.recv {
                arrows.extend(
                    fifos.get_mut(&key(peer)).and_then(|fifo| fifo.pop_front()).map(|from| (from, number)),
                );
            }
            sent.extend(step.send.iter().map(|&peer| ((column.lane, column.rank, peer), number)));
            boxes.push(Boxed::new(index, row, step, column.next.1, false));
            column.advance();
            moved = true;
        }
        for (key, number) in sent {
            fifos.entry(key).or_default().push_back(number);
        }
        if !moved {
            break;
        }
        row += 1;
    }
    if columns.iter().all(|column| column.current().is_none()) {
        return (boxes, arrows, End::Done);
    }
    if boxes.len() >= MAX_BOXES {
        return (boxes, arrows, End::CutOff);
    }
    for (index, column) in columns.iter().enumerate() {
        if let Some(step) = column.current() {
            boxes.push(Boxed::new(index, row, step, column.next.1, true));
        }
    }
    (boxes, arrows, End::Deadlock)
}

/// The beginning of a picture: what it is, for eyes and for screen readers.
fn opening(program: &Program, (width, height): (usize, usize), what: &str, text: &str) -> String {
    let shape = &program.shape;
    let title =
        format!("{}: {} of {} ranks, {what}", escape(&shape.name), shape.collective.name(), shape.ranks);
    let text = format!("Root {}, {} chunks per block. {text}", shape.root, shape.per_block);
    let fills: String = KINDS.map(|(class, fill, _)| format!(".{class}{{fill:{fill}}}")).concat();
    let tips: String = (0..)
        .zip(COLOURS)
        .map(|(at, colour)| {
            format!(
                "<marker id=\"tip{at}\" viewBox=\"0 0 8 8\" refX=\"8\" refY=\"4\" markerWidth=\"7\" \
                 markerHeight=\"7\" orient=\"auto\"><path d=\"M0 0L8 4L0 8z\" fill=\"{colour}\"/></marker>"
            )
        })
        .collect();
    format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"
 viewBox="0 0 {width} {height}" role="img" aria-labelledby="what text" font-family="sans-serif" font-size="10"
 text-anchor="middle">
<title id="what">{title}</title>
<desc id="text">{text}</desc>
<style>.step rect{{stroke:#456;rx:4}}{fills}.arrow{{opacity:.55}}
.head{{font-size:12px;font-weight:bold}}</style>
<defs>{tips}</defs>
<rect width="{width}" height="{height}" fill="#fff"/>
<text x="{GAP}" y="24" text-anchor="start" font-size="16">{title}</text>
<text x="{GAP}" y="42" text-anchor="start" font-size="11" fill="#333">{text}</text>
"##
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
