//! Pictures of programs: one column per rank and channel, time runs down, arrows are transfers.

use std::fmt::Write;

use rustc_hash::FxHashMap;

use super::text::{op_name, ref_text};
use super::{Program, Step};

const WIDTH: usize = 150;
const HEIGHT: usize = 30;
const GAP: usize = 14;
const COLUMN: usize = WIDTH + 50;
const TOP: usize = 70;
/// Repetitions are drawn one by one up to this many boxes in all.
const MAX_BOXES: usize = 4000;

/// An SVG drawing of `program`: boxes are steps (repetitions one by one), placed in the row in which
/// they could run if every step took the same time; arrows go from a send to its receive. Steps that
/// never can run (a deadlock) are drawn in red below the others. Large programs are cut off, which
/// the picture says.
pub fn to_svg(program: &Program) -> String {
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
    let (boxes, arrows, end) = lay_out(&mut columns);
    let rows = boxes.iter().map(|b| b.row + 1).max().unwrap_or(0);
    let width = columns.len().max(1) * COLUMN + GAP;
    let height = TOP + rows * (HEIGHT + GAP) + GAP;
    let mut svg = head(program, width, height, end);
    for (index, column) in columns.iter().enumerate() {
        let x = GAP + index * COLUMN + WIDTH / 2;
        let _ = writeln!(
            svg,
            r#"<text x="{x}" y="55" class="head">rank {} · {}</text>"#,
            column.rank, column.channel
        );
    }
    for arrow in &arrows {
        let (from, to) = (&boxes[arrow.0], &boxes[arrow.1]);
        let rightward = to.column > from.column;
        let (x1, x2) = if rightward { (from.x() + WIDTH, to.x()) } else { (from.x(), to.x() + WIDTH) };
        let (y1, y2) = (from.y() + HEIGHT / 2, to.y() + HEIGHT / 2);
        let _ = writeln!(svg, r#"<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" marker-end="url(#tip)"/>"#);
    }
    for b in &boxes {
        let (x, y) = (b.x(), b.y());
        let (cx, y1, y2) = (x + WIDTH / 2, y + 12, y + 24);
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" class=\"{}\"/>\
             <text x=\"{cx}\" y=\"{y1}\">{}</text><text x=\"{cx}\" y=\"{y2}\">{}</text>",
            b.class, b.title, b.detail
        );
    }
    svg.push_str("</svg>\n");
    svg
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

fn head(program: &Program, width: usize, height: usize, end: End) -> String {
    let shape = &program.shape;
    let note = match end {
        End::Done => String::new(),
        End::Deadlock => " — red: never run, a deadlock".to_owned(),
        End::CutOff => format!(" — the first {MAX_BOXES} steps or so, the picture ends there"),
    };
    format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"
 viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="10" text-anchor="middle">
<style>rect{{stroke:#456;rx:4}}.move{{fill:#e8eef6}}.reduce{{fill:#fdf0d5}}.finish{{fill:#d8f0dc}}
.stuck{{fill:#f8d0d0}}line{{stroke:#789}}.head{{font-size:12px;font-weight:bold}}</style>
<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">
<path d="M0 0L8 4L0 8z" fill="#789"/></marker></defs>
<rect width="{width}" height="{height}" fill="#fff"/>
<text x="{GAP}" y="24" text-anchor="start" font-size="16">
{} — {} of {} ranks, root {}, {} chunks per block{note}</text>
"##,
        escape(&shape.name),
        shape.collective.name(),
        shape.ranks,
        shape.root,
        shape.per_block
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
