//! The `.plan` text form: stable, one line per step, made for diffs.
//!
//! ```text
//! hawser-plan 1
//! name ring_all_reduce
//! collective all_reduce
//! ranks 2
//! root 0
//! per_block 2
//! scratch 0
//!
//! rank 0
//!   channel 0
//!     send src in:0 to 1
//!     recv_reduce_copy_send from 1 src in:1 order 1 dst out:1 to 1 finish
//!     recv from 1 dst out:0
//! ```
//!
//! A step is an operation and clauses in any order: `from RANK,…`, `src BUF:CHUNK`, `order N`,
//! `dst BUF:CHUNK`, `to RANK,…`, `times N`, `stride N`, `finish`, `after CHANNEL.STEP,…`. Buffers are `in`,
//! `out` and `scratch`. `channel 3 lane 0` is a channel whose FIFOs are not those of its number, `channel 3
//! run 8` one whose chunks are runs of eight. `#` begins a comment. Ranks and channels come in ascending
//! order.

use std::fmt::Write;
use std::str::FromStr;

use super::{Buf, Channel, Dep, Op, Program, RankProgram, Ref, Shape, Step};
use hawser_types::Collective;
use hawser_types::{PlanError, Result};

const MAGIC: &str = "hawser-plan";
const VERSION: u32 = 1;

/// Prints a program. [`from_text`] gives it back unchanged if its name is one line without `#` and
/// without blanks at its ends.
pub fn to_text(program: &Program) -> String {
    let shape = &program.shape;
    let mut text = format!(
        "{MAGIC} {VERSION}\nname {}\ncollective {}\nranks {}\nroot {}\nper_block {}\nscratch {}\n",
        shape.name,
        shape.collective.name(),
        shape.ranks,
        shape.root,
        shape.per_block,
        shape.scratch
    );
    for (rank, rank_program) in program.ranks.iter().enumerate() {
        let _ = write!(text, "\nrank {rank}\n");
        for (number, channel) in rank_program.channels.iter().enumerate() {
            let lane = rank_program.lane(number as u32);
            let named = if lane == number as u32 { String::new() } else { format!(" lane {lane}") };
            let run = rank_program.run(number as u32);
            let counted = if run == 1 { String::new() } else { format!(" run {run}") };
            let _ = writeln!(text, "  channel {number}{named}{counted}");
            for step in &channel.steps {
                let _ = writeln!(text, "    {}", step_text(step));
            }
        }
    }
    text
}

/// One step as its line, without indentation.
pub fn step_text(step: &Step) -> String {
    let mut text = match step.op {
        Op::Native(id) => format!("native {id}"),
        op => op_name(op).to_string(),
    };
    let mut clause = |name: &str, value: String| {
        let _ = write!(text, " {name}{}{value}", if value.is_empty() { "" } else { " " });
    };
    if !step.recv.is_empty() {
        clause("from", join(&step.recv));
    }
    if let Some(src) = step.src {
        clause("src", ref_text(src));
    }
    if step.order != 0 {
        clause("order", step.order.to_string());
    }
    if let Some(dst) = step.dst {
        clause("dst", ref_text(dst));
    }
    if !step.send.is_empty() {
        clause("to", join(&step.send));
    }
    if step.times != 1 {
        clause("times", step.times.to_string());
    }
    if step.stride != 0 {
        clause("stride", step.stride.to_string());
    }
    if step.finish {
        clause("finish", String::new());
    }
    if !step.after.is_empty() {
        let list: Vec<String> =
            step.after.iter().map(|dep| format!("{}.{}", dep.channel, dep.step)).collect();
        clause("after", list.join(","));
    }
    text
}

/// Reads a program. Only the form is checked: see [`super::verify`] for the meaning.
///
/// # Errors
/// `BadProgram` that begins with `line:column:` of the first thing that is not understood.
pub fn from_text(text: &str) -> Result<Program> {
    let mut lines = text.lines().enumerate().map(|(number, line)| Line::new(number + 1, line));
    let mut lines = lines.by_ref().filter(|line| !line.words.is_empty()).peekable();
    let end = text.lines().count() + 1;
    let mut header = |name: &str| match lines.next() {
        Some(mut line) => {
            line.keyword(name)?;
            Ok(line)
        }
        None => Err(error(end, 1, format!("the text ends where \"{name}\" should come"))),
    };
    let mut line = header(MAGIC)?;
    let version: u32 = line.last_number("version")?;
    if version != VERSION {
        return Err(error(
            line.number,
            1,
            format!("version {version} is unknown, this reads version {VERSION}"),
        ));
    }
    let line = header("name")?;
    let name = line.rest();
    let mut line = header("collective")?;
    let (column, word) = line.word("a collective")?;
    let collective = Collective::from_name(word)
        .ok_or_else(|| error(line.number, column, format!("unknown collective \"{word}\"")))?;
    line.end()?;
    let mut number = |name: &str| header(name)?.last_number(name);
    let (ranks, root, per_block, scratch) =
        (number("ranks")?, number("root")?, number("per_block")?, number("scratch")?);
    let shape = Shape { name, collective, ranks, root, per_block, scratch };
    let mut programs: Vec<RankProgram> = Vec::new();
    for line in lines {
        body_line(line, &mut programs)?;
    }
    Ok(Program { shape, ranks: programs })
}

/// A line after the header: a rank, a channel or a step.
fn body_line(mut line: Line<'_>, ranks: &mut Vec<RankProgram>) -> Result<()> {
    let place = line.number;
    match line.words.first() {
        Some((_, "rank")) => {
            line.keyword("rank")?;
            expect_index(place, "rank", line.last_number("rank")?, ranks.len())?;
            ranks.push(RankProgram::default());
        }
        Some(&(column, "channel")) => {
            line.keyword("channel")?;
            let rank =
                ranks.last_mut().ok_or_else(|| error(place, column, "a channel before any rank".into()))?;
            let number = line.number_of("channel")?;
            expect_index(place, "channel", number, rank.channels.len())?;
            let (lane, run) = (line.clause("lane")?, line.clause("run")?);
            line.end()?;
            if lane.is_some() && rank.lanes.is_empty() {
                rank.lanes.extend(0..number);
            }
            if lane.is_some() || !rank.lanes.is_empty() {
                rank.lanes.push(lane.unwrap_or(number));
            }
            if run.is_some() && rank.runs.is_empty() {
                rank.runs.resize(number as usize, 1);
            }
            if run.is_some() || !rank.runs.is_empty() {
                rank.runs.push(run.unwrap_or(1));
            }
            rank.channels.push(Channel::default());
        }
        _ => {
            let column = line.words.first().map_or(1, |(column, _)| *column);
            let channel = ranks.last_mut().and_then(|rank| rank.channels.last_mut());
            let channel = channel.ok_or_else(|| error(place, column, "a step before any channel".into()))?;
            channel.steps.push(step(line)?);
        }
    }
    Ok(())
}

fn expect_index(line: usize, what: &str, found: u32, expected: usize) -> Result<()> {
    if found as usize == expected {
        return Ok(());
    }
    Err(error(line, 1, format!("{what} {found} where {what} {expected} should come")))
}

fn step(mut line: Line<'_>) -> Result<Step> {
    let (column, word) = line.word("a step")?;
    let op = match word {
        "native" => Op::Native(line.number_of("native")?),
        _ => *OPS
            .iter()
            .find(|op| op_name(**op) == word)
            .ok_or_else(|| error(line.number, column, format!("unknown operation \"{word}\"")))?,
    };
    let mut step = Step::new(op);
    let mut seen = Vec::new();
    while let Some((column, clause)) = line.next_word() {
        if seen.contains(&clause) {
            return Err(error(line.number, column, format!("\"{clause}\" comes twice")));
        }
        seen.push(clause);
        match clause {
            "from" => step.recv = line.list("ranks", number_at)?,
            "to" => step.send = line.list("ranks", number_at)?,
            "src" => step.src = Some(line.reference()?),
            "dst" => step.dst = Some(line.reference()?),
            "order" => step.order = line.number_of("order")?,
            "times" => step.times = line.number_of("times")?,
            "stride" => step.stride = line.number_of("stride")?,
            "finish" => step.finish = true,
            "after" => step.after = line.list("CHANNEL.STEP", dep_at)?,
            _ => return Err(error(line.number, column, format!("unknown clause \"{clause}\""))),
        }
    }
    Ok(step)
}

/// A line's words with their columns.
struct Line<'a> {
    number: usize,
    words: Vec<(usize, &'a str)>,
    next: usize,
    length: usize,
    text: &'a str,
}

impl<'a> Line<'a> {
    fn new(number: usize, line: &'a str) -> Self {
        let text = line.split('#').next().unwrap_or("");
        let mut words = Vec::new();
        let mut start = None;
        for (at, c) in text.char_indices().chain([(text.len(), ' ')]) {
            match (start, c.is_whitespace()) {
                (None, false) => start = Some(at),
                (Some(from), true) => {
                    words.push((text[..from].chars().count() + 1, &text[from..at]));
                    start = None;
                }
                _ => {}
            }
        }
        Self { number, words, next: 0, length: text.trim_end().chars().count(), text }
    }

    fn next_word(&mut self) -> Option<(usize, &'a str)> {
        let word = self.words.get(self.next).copied();
        self.next += usize::from(word.is_some());
        word
    }

    fn word(&mut self, what: &str) -> Result<(usize, &'a str)> {
        let (line, column) = (self.number, self.length + 1);
        self.next_word().ok_or_else(|| error(line, column, format!("{what} is missing")))
    }

    fn keyword(&mut self, name: &str) -> Result<()> {
        let (column, word) = self.word(name)?;
        if word == name {
            return Ok(());
        }
        Err(error(self.number, column, format!("\"{word}\" where \"{name}\" should come")))
    }

    fn number_of<T: FromStr>(&mut self, what: &str) -> Result<T> {
        let (column, word) = self.word(what)?;
        word.parse()
            .map_err(|_| error(self.number, column, format!("\"{word}\" is not a number that {what} can be")))
    }

    fn last_number(&mut self, what: &str) -> Result<u32> {
        let number = self.number_of(what)?;
        self.end()?;
        Ok(number)
    }

    /// The number of a clause, if that comes next.
    fn clause(&mut self, name: &str) -> Result<Option<u32>> {
        if self.words.get(self.next).is_none_or(|(_, word)| *word != name) {
            return Ok(None);
        }
        self.keyword(name)?;
        self.number_of(name).map(Some)
    }

    fn end(&mut self) -> Result<()> {
        match self.next_word() {
            None => Ok(()),
            Some((column, word)) => Err(error(self.number, column, format!("\"{word}\" is too much"))),
        }
    }

    /// Returns the text after the first word.
    fn rest(&self) -> String {
        self.text.trim().split_once(char::is_whitespace).map_or("", |(_, rest)| rest.trim()).to_string()
    }

    fn reference(&mut self) -> Result<Ref> {
        let (column, word) = self.word("BUF:CHUNK")?;
        let parsed = word.split_once(':').and_then(|(buf, chunk)| {
            let buf = *BUFS.iter().find(|b| buf_name(**b) == buf)?;
            Some(Ref { buf, chunk: chunk.parse().ok()? })
        });
        parsed.ok_or_else(|| {
            error(self.number, column, format!("\"{word}\" is no chunk: write in:N, out:N or scratch:N"))
        })
    }

    fn list<T>(&mut self, what: &str, parse: fn(&str) -> Option<T>) -> Result<Vec<T>> {
        let (mut column, word) = self.word(what)?;
        let mut list = Vec::new();
        for item in word.split(',') {
            let parsed = parse(item);
            list.push(
                parsed.ok_or_else(|| error(self.number, column, format!("\"{item}\" is none of {what}")))?,
            );
            column += item.chars().count() + 1;
        }
        Ok(list)
    }
}

fn number_at(text: &str) -> Option<u32> {
    text.parse().ok()
}

fn dep_at(text: &str) -> Option<Dep> {
    let (channel, step) = text.split_once('.')?;
    Some(Dep { channel: channel.parse().ok()?, step: step.parse().ok()? })
}

fn error(line: usize, column: usize, what: String) -> PlanError {
    PlanError::program(format!("{line}:{column}: {what}"))
}

const OPS: [Op; 9] = [
    Op::Copy,
    Op::Reduce,
    Op::Send,
    Op::CopySend,
    Op::Recv,
    Op::RecvCopySend,
    Op::RecvReduceSend,
    Op::RecvReduceCopy,
    Op::RecvReduceCopySend,
];

/// Name of an operation in texts and pictures.
pub const fn op_name(op: Op) -> &'static str {
    match op {
        Op::Copy => "copy",
        Op::Reduce => "reduce",
        Op::Send => "send",
        Op::CopySend => "copy_send",
        Op::Recv => "recv",
        Op::RecvCopySend => "recv_copy_send",
        Op::RecvReduceSend => "recv_reduce_send",
        Op::RecvReduceCopy => "recv_reduce_copy",
        Op::RecvReduceCopySend => "recv_reduce_copy_send",
        Op::Native(_) => "native",
    }
}

const BUFS: [Buf; 3] = [Buf::Input, Buf::Output, Buf::Scratch];

const fn buf_name(buf: Buf) -> &'static str {
    match buf {
        Buf::Input => "in",
        Buf::Output => "out",
        Buf::Scratch => "scratch",
    }
}

/// `in:3`.
pub fn ref_text(reference: Ref) -> String {
    format!("{}:{}", buf_name(reference.buf), reference.chunk)
}

fn join(list: &[u32]) -> String {
    list.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}
