//! Third pass: what every chunk holds, and who touched it when.

use std::collections::VecDeque;
use std::rc::Rc;

use rustc_hash::FxHashMap;

use super::fault::{At, Fault};
use super::form::chunks_on;
use super::order::Declared;
use crate::{Buf, Op, Program, Ref, Shape, Step};
use hawser_types::Collective;

/// Follows `order` and checks every read, access and output. Returns whether ranks that compute the
/// same value compute it in the same order, and whether a program of no known collective writes to chunks of
/// the output only what lies in the same chunk of an input.
pub(super) fn check(program: &Program, order: &[At], in_place: bool) -> Result<(bool, bool), Fault> {
    let mut run = Run::new(program, in_place);
    for &at in order {
        run.step(at)?;
    }
    Ok((run.outputs()?, !run.changes_places))
}

/// Follows `order` and checks that every output is combined along a declared tree.
pub(super) fn check_tree(program: &Program, order: &[At], declared: &Declared) -> Result<(), Fault> {
    let mut run = Run::new(program, false);
    run.declared = Some(*declared);
    for &at in order {
        run.step(at)?;
    }
    run.outputs()?;
    match run.is_declared() {
        true => Ok(()),
        false => run.departure.map_or(Ok(()), Err),
    }
}

/// A symbolic value.
#[derive(Debug, Clone)]
struct Value {
    /// The inputs that it is the sum of.
    parts: Vec<Part>,
    /// An input as the user gave it.
    raw: bool,
    finished: bool,
    /// Hash of the expression: equal means equal to the last bit.
    hash: u64,
    /// The node of the declared tree that it is: the first rank below it, and the one behind the last. None
    /// if it is none.
    node: Option<(u32, u32)>,
}

/// The same input chunk of neighbouring ranks, the same number of times. Most values are sums over
/// neighbours, so few of these say what hundreds of ranks gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    /// The first source rank, and the one behind the last.
    sources: (u32, u32),
    chunk: u32,
    count: u32,
}

/// One access: which process, at which count of its clock, where.
#[derive(Debug, Clone, Copy)]
struct Access {
    process: usize,
    count: u32,
    at: At,
}

/// A chunk of memory.
#[derive(Debug, Default)]
struct Cell {
    value: Option<Rc<Value>>,
    write: Option<Access>,
    /// Reads since the last write, one per process.
    reads: Vec<Access>,
}

type Clock = Rc<Vec<u32>>;
/// A message: the values of a run of chunks, and what its sender knew.
type Slot = (Vec<Rc<Value>>, Clock);

struct Run<'a> {
    program: &'a Program,
    channels: usize,
    in_place: bool,
    /// Cells per rank: input, output, scratch, one after the other.
    cells: Vec<Vec<Cell>>,
    fifos: FxHashMap<(u32, u32, u32), VecDeque<Slot>>,
    /// Vector clocks per process; empty when no rank has two channels.
    clocks: Vec<Clock>,
    /// Clocks at the end of steps that others wait for; None before.
    ended: FxHashMap<(usize, u32), Option<Clock>>,
    /// The tree that values are compared with, if any.
    declared: Option<Declared>,
    /// The first step whose value is no node of that tree.
    departure: Option<Fault>,
    /// A program of no known collective has written what lies in another chunk of an input.
    changes_places: bool,
}

impl<'a> Run<'a> {
    fn new(program: &'a Program, in_place: bool) -> Self {
        let shape = &program.shape;
        let channels = program.ranks[0].channels.len();
        let concurrent =
            program.ranks.iter().any(|r| r.channels.iter().filter(|c| !c.steps.is_empty()).count() > 1);
        let processes = if concurrent { program.ranks.len() * channels } else { 0 };
        let mut ended = FxHashMap::default();
        for (rank, steps) in program.ranks.iter().enumerate() {
            let steps = steps.channels.iter().flat_map(|channel| &channel.steps);
            for dep in steps.flat_map(|step| &step.after) {
                ended.insert((rank * channels + dep.channel as usize, dep.step), None);
            }
        }
        let total =
            [Buf::Input, Buf::Output, Buf::Scratch].iter().map(|&b| shape.chunks(b) as usize).sum::<usize>();
        let mut run = Self {
            program,
            channels,
            in_place,
            cells: program.ranks.iter().map(|_| (0..total).map(|_| Cell::default()).collect()).collect(),
            fifos: FxHashMap::default(),
            clocks: (0..processes).map(|_| Rc::new(vec![0; processes])).collect(),
            ended,
            declared: None,
            departure: None,
            changes_places: false,
        };
        for rank in 0..shape.ranks {
            for chunk in 0..chunks_on(shape, Buf::Input, rank) {
                let hash = mix(mix(1, u64::from(rank)), u64::from(chunk));
                let parts = vec![Part { sources: (rank, rank + 1), chunk, count: 1 }];
                let node = Some((rank, rank + 1));
                let value = Value { parts, raw: true, finished: false, hash, node };
                let cell = run.cell_of(rank, Buf::Input, chunk);
                run.cells[rank as usize][cell].value = Some(Rc::new(value));
            }
        }
        run
    }

    /// Index of a chunk's cell; in place, input and output share cells.
    fn cell_of(&self, rank: u32, buf: Buf, chunk: u32) -> usize {
        let shape = &self.program.shape;
        let own = rank * shape.per_block;
        let input_at = |chunk: u32| chunk as usize;
        let output_at = |chunk: u32| shape.chunks(Buf::Input) as usize + chunk as usize;
        match (buf, shape.collective) {
            (Buf::Scratch, _) => output_at(shape.chunks(Buf::Output)) + chunk as usize,
            (Buf::Input, Collective::AllGather) if self.in_place => output_at(own + chunk),
            (Buf::Input, Collective::Gather) if self.in_place && rank == shape.root => output_at(own + chunk),
            (Buf::Input, _) => input_at(chunk),
            (Buf::Output, Collective::ReduceScatter) if self.in_place => input_at(own + chunk),
            (Buf::Output, Collective::Scatter) if self.in_place && rank == shape.root => {
                input_at(own + chunk)
            }
            (Buf::Output, Collective::AllReduce | Collective::Reduce | Collective::Broadcast)
                if self.in_place =>
            {
                input_at(chunk)
            }
            (Buf::Output, _) => output_at(chunk),
        }
    }

    fn step(&mut self, at: At) -> Result<(), Fault> {
        let step =
            &self.program.ranks[at.rank as usize].channels[at.channel as usize].steps[at.step as usize];
        let process = at.rank as usize * self.channels + at.channel as usize;
        let run = self.program.ranks[at.rank as usize].run(at.channel);
        let received = self.receive(at, step, process, run)?;
        self.tick(at, step, process);
        let values = (0..run).map(|place| self.chunk(at, step, (run, place), &received));
        let values = values.collect::<Result<Vec<_>, Fault>>()?;
        let clock = self.clocks.get(process).cloned().unwrap_or_default();
        let lane = self.program.ranks[at.rank as usize].lane(at.channel);
        for &peer in &step.send {
            let key = (lane, at.rank, peer);
            self.fifos.entry(key).or_default().push_back((values.clone(), Rc::clone(&clock)));
        }
        if at.repetition + 1 == step.times
            && let Some(ended) = self.ended.get_mut(&(process, at.step))
        {
            *ended = Some(clock);
        }
        Ok(())
    }

    /// Carries out a step for the chunk at a place of a run. The value that it computes.
    fn chunk(
        &mut self,
        at: At,
        step: &Step,
        (run, place): (u32, u32),
        received: &[Vec<Rc<Value>>],
    ) -> Result<Rc<Value>, Fault> {
        let process = at.rank as usize * self.channels + at.channel as usize;
        let moved = |reference| self.moved(step, reference, at, (run, place));
        let (src, dst) = (step.src.map(moved), step.dst.map(moved));
        let local = src.map(|src| self.read(at, process, src)).transpose()?;
        let value = match (step.op, dst) {
            (Op::Reduce, Some(dst)) => {
                let old = self.read(at, process, dst)?;
                self.combine(at, std::iter::once(old).chain(local).collect(), step.finish)?
            }
            _ => {
                let mut operands: Vec<_> =
                    received.iter().map(|slot| Rc::clone(&slot[place as usize])).collect();
                if let Some(local) = local {
                    operands.insert((step.order as usize).min(operands.len()), local);
                }
                self.combine(at, operands, step.finish)?
            }
        };
        if let Some(dst) = dst.filter(|&dst| !self.copies_onto_itself(at, step, src, dst)) {
            self.write(at, process, dst, &value)?;
        }
        Ok(value)
    }

    /// Combines operands, and notes the node of the declared tree that the value is.
    fn combine(&mut self, at: At, operands: Vec<Rc<Value>>, finish: bool) -> Result<Rc<Value>, Fault> {
        let joined = match &self.declared {
            Some(declared) if operands.len() > 1 => {
                declared.join(operands.iter().map(|operand| operand.node)).map(Some)
            }
            _ => return combine(at, operands, finish),
        };
        let mut value = combine(at, operands, finish)?;
        Rc::make_mut(&mut value).node = joined.unwrap_or_else(|what| {
            self.departure.get_or_insert(Fault::OtherOrder { at, what });
            None
        });
        Ok(value)
    }

    /// True if every output is the whole declared tree.
    fn is_declared(&self) -> bool {
        let shape = &self.program.shape;
        (0..shape.ranks).all(|rank| {
            (0..chunks_on(shape, Buf::Output, rank)).all(|chunk| {
                let cell = &self.cells[rank as usize][self.cell_of(rank, Buf::Output, chunk)];
                cell.value.as_ref().is_some_and(|value| value.node == Some((0, shape.ranks)))
            })
        })
    }

    /// In place, a copy of a chunk may find it where it belongs: the same bytes are no write.
    fn copies_onto_itself(&self, at: At, step: &Step, src: Option<Ref>, dst: Ref) -> bool {
        let cell = |reference: Ref| self.cell_of(at.rank, reference.buf, reference.chunk);
        // Reading an input of a reduction applies its factor: what is written differs from what was read.
        let plain = !self.program.shape.collective.reduces() && !step.finish;
        let copies = matches!(step.op, Op::Copy | Op::CopySend) && plain;
        copies && src.is_some_and(|src| cell(src) == cell(dst))
    }

    /// Takes one slot per peer, of so many chunks each; the clocks of the senders join ours.
    fn receive(
        &mut self,
        at: At,
        step: &Step,
        process: usize,
        run: u32,
    ) -> Result<Vec<Vec<Rc<Value>>>, Fault> {
        let mut all = Vec::with_capacity(step.recv.len());
        let lane = self.program.ranks[at.rank as usize].lane(at.channel);
        for &peer in &step.recv {
            let slot = self.fifos.get_mut(&(lane, peer, at.rank)).and_then(VecDeque::pop_front);
            let Some((values, clock)) = slot else { continue };
            if values.len() != run as usize {
                let what = format!("takes a run of {run} chunks, rank {peer} sends {}", values.len());
                return Err(Fault::BadStep { at, what });
            }
            all.push(values);
            self.join(process, &clock);
        }
        Ok(all)
    }

    fn tick(&mut self, at: At, step: &Step, process: usize) {
        if self.clocks.is_empty() {
            return;
        }
        for dep in &step.after {
            let awaited = at.rank as usize * self.channels + dep.channel as usize;
            if let Some(clock) = self.ended.get(&(awaited, dep.step)).cloned().flatten() {
                self.join(process, &clock);
            }
        }
        Rc::make_mut(&mut self.clocks[process])[process] += 1;
    }

    fn join(&mut self, process: usize, other: &Clock) {
        if let Some(clock) = self.clocks.get_mut(process) {
            let clock = Rc::make_mut(clock);
            clock.iter_mut().zip(other.iter()).for_each(|(mine, &theirs)| *mine = theirs.max(*mine));
        }
    }

    /// The chunk of a reference, at a place of a run.
    fn moved(&self, step: &Step, reference: Ref, at: At, (run, place): (u32, u32)) -> Ref {
        let chunks = self.program.shape.chunks(reference.buf) / run;
        let chunk = step.chunk_at(reference.chunk, at.repetition, chunks) * run + place;
        Ref { chunk, ..reference }
    }

    /// True if `earlier` happened before what `process` does now.
    fn ordered(&self, earlier: &Access, process: usize) -> bool {
        earlier.process == process || self.clocks[process][earlier.process] >= earlier.count
    }

    fn access(&self, at: At, process: usize) -> Access {
        Access { process, count: self.clocks[process][process], at }
    }

    fn read(&mut self, at: At, process: usize, reference: Ref) -> Result<Rc<Value>, Fault> {
        let cell = self.cell_of(at.rank, reference.buf, reference.chunk);
        if !self.clocks.is_empty() {
            let access = self.access(at, process);
            let write = self.cells[at.rank as usize][cell].write;
            if let Some(other) = write.filter(|write| !self.ordered(write, process)) {
                return Err(Fault::Race { at, other: other.at, reference });
            }
            let reads = &mut self.cells[at.rank as usize][cell].reads;
            reads.retain(|read| read.process != process);
            reads.push(access);
        }
        let Some(value) = &self.cells[at.rank as usize][cell].value else {
            return Err(Fault::UndefinedRead { at, reference });
        };
        match (reference.buf, value.raw) {
            (Buf::Input, true) => {
                let read = Value { raw: false, ..Value::clone(value) };
                Ok(Rc::new(read))
            }
            (Buf::Input, false) if self.program.shape.collective.reduces() => {
                Err(Fault::OverwrittenInput { at, reference })
            }
            (_, true) if self.program.shape.collective.reduces() => {
                Err(Fault::UndefinedRead { at, reference })
            }
            _ => Ok(Rc::clone(value)),
        }
    }

    fn write(&mut self, at: At, process: usize, reference: Ref, value: &Rc<Value>) -> Result<(), Fault> {
        let index = self.cell_of(at.rank, reference.buf, reference.chunk);
        if self.program.shape.collective == Collective::SendRecv && reference.buf == Buf::Output {
            self.changes_places |= value.parts.iter().any(|part| part.chunk != reference.chunk);
        }
        let access = (!self.clocks.is_empty()).then(|| self.access(at, process));
        let cell = &self.cells[at.rank as usize][index];
        if access.is_some() {
            let mut earlier = cell.write.iter().chain(&cell.reads);
            if let Some(other) = earlier.find(|earlier| !self.ordered(earlier, process)) {
                return Err(Fault::Race { at, other: other.at, reference });
            }
        }
        self.cells[at.rank as usize][index] =
            Cell { value: Some(Rc::clone(value)), write: access, reads: Vec::new() };
        Ok(())
    }

    fn outputs(&self) -> Result<bool, Fault> {
        let shape = &self.program.shape;
        if shape.collective == Collective::SendRecv {
            // Nothing says what a program of no known collective has to compute.
            return Ok(true);
        }
        let mut hashes: FxHashMap<u32, u64> = FxHashMap::default();
        let mut equal = true;
        for rank in 0..shape.ranks {
            for chunk in 0..chunks_on(shape, Buf::Output, rank) {
                let cell = &self.cells[rank as usize][self.cell_of(rank, Buf::Output, chunk)];
                let hash = check_output(shape, rank, chunk, cell.value.as_deref())?;
                if shape.collective == Collective::AllReduce {
                    equal &= *hashes.entry(chunk).or_insert(hash) == hash;
                }
            }
        }
        Ok(equal)
    }
}

/// Checks one output chunk and returns the hash of its expression.
fn check_output(shape: &Shape, rank: u32, chunk: u32, value: Option<&Value>) -> Result<u64, Fault> {
    let (sources, source_chunk) = expected(shape, rank, chunk);
    let empty = Value { parts: Vec::new(), raw: false, finished: true, hash: 0, node: None };
    let value = value.unwrap_or(&empty);
    // The first of them by source and chunk.
    let wrong =
        value.parts.iter().filter_map(|part| Some((part.first_wrong(&sources, source_chunk)?, *part)));
    if let Some((source, part)) = wrong.min_by_key(|(source, part)| (*source, part.chunk)) {
        return Err(match part.chunk != source_chunk || !sources.contains(&source) {
            true => Fault::WrongContribution { rank, chunk, source, source_chunk: part.chunk },
            false => Fault::DoubleCount { rank, chunk, source, count: part.count },
        });
    }
    // What is left is of these sources, each once; neighbours are one part.
    let source = match value.parts.first() {
        Some(part) if part.sources.0 == sources.start => part.sources.1,
        _ => sources.start,
    };
    if source < sources.end {
        return Err(Fault::Missing { rank, chunk, source });
    }
    if shape.collective.reduces() && (value.raw || !value.finished) {
        return Err(Fault::NotFinished { rank, chunk });
    }
    Ok(value.hash)
}

/// The ranks that contribute to an output chunk, and the chunk of their input.
pub fn expected(shape: &Shape, rank: u32, chunk: u32) -> (std::ops::Range<u32>, u32) {
    let all = 0..shape.ranks;
    let only = |source: u32| source..source + 1;
    let block = chunk / shape.per_block;
    let inner = chunk % shape.per_block;
    let own = rank * shape.per_block + inner;
    match shape.collective {
        Collective::AllReduce | Collective::Reduce => (all, chunk),
        Collective::Broadcast => (only(shape.root), chunk),
        Collective::AllGather | Collective::Gather => (only(block), inner),
        Collective::ReduceScatter => (all, own),
        Collective::AllToAll => (only(block), own),
        Collective::Scatter => (only(shape.root), own),
        Collective::SendRecv => (0..0, 0),
    }
}

/// Folds operands from the left.
fn combine(at: At, operands: Vec<Rc<Value>>, finish: bool) -> Result<Rc<Value>, Fault> {
    let reduced = operands.len() > 1;
    if operands.iter().any(|operand| operand.finished) && (reduced || finish) {
        return Err(Fault::FinishedTwice { at });
    }
    let mut operands = operands.into_iter();
    let Some(mut first) = operands.next() else {
        return Err(Fault::BadStep { at, what: "has no operand".to_string() });
    };
    if !reduced && !finish {
        return Ok(first);
    }
    let value = Rc::make_mut(&mut first);
    for operand in operands {
        value.parts.extend(&operand.parts);
        // Addition of two floating-point numbers commutes to the last bit.
        value.hash = mix(value.hash.min(operand.hash), value.hash.max(operand.hash));
    }
    if reduced {
        add_parts_up(&mut value.parts);
    }
    value.finished |= finish;
    if reduced {
        // The result of a step is rounded to the data type; sums within a step are not.
        value.hash = mix(value.hash, 2);
    }
    Ok(first)
}

impl Part {
    /// The first source that does not belong into a sum over `sources` of their chunk `chunk`, each once.
    fn first_wrong(&self, sources: &std::ops::Range<u32>, chunk: u32) -> Option<u32> {
        let (first, end) = self.sources;
        let is_wrong = self.chunk != chunk || self.count > 1 || first < sources.start;
        if is_wrong { Some(first) } else { (end > sources.end).then(|| first.max(sources.end)) }
    }
}

/// Sorts parts by their first source and chunk, and adds up what comes from the same sources.
fn add_parts_up(parts: &mut Vec<Part>) {
    // A sweep over the ends of all parts of a chunk: the count changes at each.
    let ends = parts.iter().flat_map(|part| {
        let Part { sources: (first, end), chunk, count } = *part;
        [(chunk, first, i64::from(count)), (chunk, end, -i64::from(count))]
    });
    let mut ends: Vec<(u32, u32, i64)> = ends.collect();
    ends.sort_unstable();
    parts.clear();
    let mut count = 0;
    for (at, &(chunk, source, change)) in ends.iter().enumerate() {
        count += change;
        let Some(&(_, next, _)) = ends.get(at + 1).filter(|next| count > 0 && next.1 > source) else {
            continue;
        };
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        match parts
            .last_mut()
            .filter(|last| (last.chunk, last.count, last.sources.1) == (chunk, count, source))
        {
            Some(last) => last.sources.1 = next,
            None => parts.push(Part { sources: (source, next), chunk, count }),
        }
    }
    parts.sort_unstable_by_key(|part| (part.sources.0, part.chunk));
}

/// Sorts parts of a value (source rank, chunk of its input, count) and adds equal ones up.
pub fn add_up(parts: &mut Vec<(u32, u32, u32)>) {
    parts.sort_unstable();
    parts.dedup_by(|later, kept| {
        let same = (later.0, later.1) == (kept.0, kept.1);
        if same {
            kept.2 = kept.2.saturating_add(later.2);
        }
        same
    });
}

fn mix(a: u64, b: u64) -> u64 {
    let mut x = a.rotate_left(25) ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^= x >> 30;
    x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^= x >> 27;
    x = x.wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_say_what_single_sources_say(
            pieces in proptest::collection::vec((0u32..12, 1u32..6, 0u32..3, 1u32..3), 0..12)
        ) {
            let (mut parts, mut single) = (Vec::new(), Vec::new());
            for (first, length, chunk, count) in pieces {
                parts.push(Part { sources: (first, first + length), chunk, count });
                single.extend((first..first + length).map(|source| (source, chunk, count)));
            }
            add_parts_up(&mut parts);
            add_up(&mut single);
            let spread = parts.iter().flat_map(|part| {
                (part.sources.0..part.sources.1).map(|source| (source, part.chunk, part.count))
            });
            let mut spread: Vec<(u32, u32, u32)> = spread.collect();
            spread.sort_unstable();
            prop_assert_eq!(spread, single);
        }
    }
}
