//! The picture of a program with many ranks: who sends how much to whom, and the steps of one rank.
//!
//! A square for each pair of ranks, or of groups of ranks where there are very many; beside it the steps of
//! rank 0 as they stand in the program, repetitions in one line.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::{escape, opening};
use crate::text::{op_name, ref_text};
use crate::{Program, Step};

/// The side of the matrix, in pixels.
const SIDE: usize = 640;
const LEFT: usize = 70;
const TOP: usize = 96;
/// Most squares along a side.
const MOST: usize = 128;
/// Most steps that are listed.
const MOST_LINES: usize = 38;
/// From few slots to many.
const SHADES: [&str; 5] = ["#c6dbef", "#9ecae1", "#6baed6", "#3182bd", "#08519c"];

/// Draws the matrix.
pub fn to_svg(program: &Program) -> String {
    let ranks = program.ranks.len();
    let group = ranks.div_ceil(MOST);
    let pairs = pairs(program, group);
    let most = pairs.values().copied().max().unwrap_or(1);
    let lines = steps_of_first(program);
    let width = LEFT + SIDE + 420;
    let height = TOP + SIDE + 96;
    let text = format!(
        "{} slots in all; the darkest square has {most}. A square is what {} sends to another in the whole \
         program.",
        pairs.values().sum::<u64>(),
        if group == 1 { "a rank".to_owned() } else { format!("a group of {group} ranks") }
    );
    let mut svg = opening(program, (width, height), "who sends how much to whom", &text);
    axes(&mut svg, ranks);
    squares(&mut svg, ranks, group, &pairs, most);
    legend(&mut svg, most);
    let x = LEFT + SIDE + 40;
    let _ =
        writeln!(svg, r#"<text x="{x}" y="{TOP}" class="head" text-anchor="start">Steps of rank 0</text>"#);
    for (at, line) in lines.iter().enumerate() {
        let y = TOP + 20 + at * 16;
        let _ = writeln!(
            svg,
            r#"<text x="{x}" y="{y}" font-family="monospace" font-size="11" text-anchor="start">{}</text>"#,
            escape(line)
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// Slots from group to group.
fn pairs(program: &Program, group: usize) -> BTreeMap<(usize, usize), u64> {
    let mut pairs = BTreeMap::new();
    for (rank, own) in program.ranks.iter().enumerate() {
        for step in own.channels.iter().flat_map(|channel| &channel.steps) {
            for peer in &step.send {
                let pair = (rank / group, *peer as usize / group);
                *pairs.entry(pair).or_default() += u64::from(step.times.max(1));
            }
        }
    }
    pairs
}

/// The step between ranks that are named: a power of two, so that at most nine are.
pub(super) fn tick(ranks: usize) -> usize {
    ranks.div_ceil(9).next_power_of_two()
}

fn axes(svg: &mut String, ranks: usize) {
    let bottom = TOP + SIDE;
    let middle = LEFT + SIDE / 2;
    let _ = writeln!(
        svg,
        r##"<rect x="{LEFT}" y="{TOP}" width="{SIDE}" height="{SIDE}" fill="#f7f7f7" stroke="#444"/>
<text x="{middle}" y="{}" font-size="13">receiving rank</text>
<text transform="translate(22 {}) rotate(-90)" font-size="13">sending rank</text>"##,
        bottom + 40,
        TOP + SIDE / 2
    );
    for rank in (0..ranks).step_by(tick(ranks)) {
        let at = (2 * rank + 1) * SIDE / (2 * ranks);
        let _ = writeln!(
            svg,
            r##"<path d="M{x} {bottom}v5M{LEFT} {y}h-5" stroke="#444"/><text x="{x}" y="{}">{rank}</text>
<text x="{}" y="{}" text-anchor="end">{rank}</text>"##,
            bottom + 18,
            LEFT - 8,
            TOP + at + 4,
            x = LEFT + at,
            y = TOP + at
        );
    }
}

fn squares(svg: &mut String, ranks: usize, group: usize, pairs: &BTreeMap<(usize, usize), u64>, most: u64) {
    let count = ranks.div_ceil(group);
    let side = SIDE as f64 / count as f64;
    let name = |at: usize| match group {
        1 => format!("rank {at}"),
        _ => format!("ranks {} to {}", at * group, ((at + 1) * group).min(ranks) - 1),
    };
    for ((from, to), slots) in pairs {
        let (x, y) = (LEFT as f64 + *to as f64 * side, TOP as f64 + *from as f64 * side);
        let gap = if side > 6.0 { 1.0 } else { 0.0 };
        let _ = writeln!(
            svg,
            "<rect class=\"cell\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{w:.1}\" height=\"{w:.1}\" fill=\"{}\">\
             <title>{} sends {slots} slots to {}</title></rect>",
            shade(*slots, most),
            name(*from),
            name(*to),
            w = side - gap
        );
    }
}

/// The shade for so many slots.
fn shade(slots: u64, most: u64) -> &'static str {
    SHADES[((slots * SHADES.len() as u64).div_ceil(most.max(1)) as usize).clamp(1, SHADES.len()) - 1]
}

fn legend(svg: &mut String, most: u64) {
    let y = TOP + SIDE + 62;
    let _ = writeln!(svg, r#"<text x="{LEFT}" y="{}" text-anchor="start">slots sent, up to</text>"#, y + 12);
    // Few slots need no five shades.
    let steps = most.clamp(1, SHADES.len() as u64);
    for step in 1..=steps {
        let (x, slots) = (LEFT + 40 + step as usize * 80, most * step / steps);
        let _ = writeln!(
            svg,
            "<path d=\"M{x} {y}h16v16h-16z\" fill=\"{}\" stroke=\"#444\"/>\
             <text x=\"{}\" y=\"{}\" text-anchor=\"start\">{slots}</text>",
            shade(slots, most),
            x + 22,
            y + 12
        );
    }
}

/// The steps of rank 0, a line each.
fn steps_of_first(program: &Program) -> Vec<String> {
    let Some(first) = program.ranks.first() else { return Vec::new() };
    let mut lines = Vec::new();
    for (channel, steps) in first.channels.iter().enumerate().filter(|(_, steps)| !steps.steps.is_empty()) {
        lines.push(format!("channel {channel}"));
        lines.extend(steps.steps.iter().map(|step| format!("  {}", line(step))));
    }
    if lines.len() > MOST_LINES {
        let left = lines.len() - MOST_LINES + 1;
        lines.truncate(MOST_LINES - 1);
        lines.push(format!("  and {left} more lines: hawser plan show prints them"));
    }
    lines
}

fn line(step: &Step) -> String {
    let list = |peers: &[u32]| match peers {
        [] => String::new(),
        [peer] => peer.to_string(),
        [first, .., last] => format!("{first}..{last} ({})", peers.len()),
    };
    let mut text = op_name(step.op).to_owned();
    for (word, peers) in [("from", &step.recv), ("to", &step.send)] {
        if !peers.is_empty() {
            let _ = write!(text, " {word} {}", list(peers));
        }
    }
    for (word, operand) in [("", step.src), ("→ ", step.dst)] {
        if let Some(operand) = operand {
            let _ = write!(text, " {word}{}", ref_text(operand));
        }
    }
    if step.times > 1 {
        let _ = write!(text, "  × {}", step.times);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_powers_of_two_and_few() {
        assert_eq!([1, 8, 9, 16, 64, 1024].map(tick), [1, 1, 1, 2, 8, 128]);
        assert!((1usize..=1024).all(|ranks| ranks.div_ceil(tick(ranks)) <= 9));
    }

    #[test]
    fn shades_grow_with_slots() {
        assert_eq!((shade(1, 100), shade(100, 100), shade(3, 3)), (SHADES[0], SHADES[4], SHADES[4]));
        assert_eq!(shade(50, 100), SHADES[2]);
    }
}
