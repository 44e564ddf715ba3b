//! From the file's steps to a program: follows every value, so that each step knows what it reads and
//! completes.

use std::collections::VecDeque;
use std::rc::Rc;

use rustc_hash::FxHashMap;

use super::MOST_SLOTS;
use super::check::{per_block, root};
use super::fault::{Change, Class, ImportError, Result};
use super::fold::fold;
use super::lanes::Groups;
use super::memory::{Memory, Value};
use super::race;
use super::run::order;
use super::xml::{Algo, Kind, Pos, Step};
use hawser_program::limits::MAX_CHANNELS;
use hawser_program::verify::expected;
use hawser_program::{Buf, Dep, Op, Program, RankProgram, Ref, Shape};
use hawser_types::Collective;

/// A program and where its steps come from.
pub(super) struct Translated {
    pub program: Program,
    /// Place in the file by rank, channel and step.
    pub source: Vec<Vec<Vec<Pos>>>,
    /// Messages on the longest way to an output.
    pub hops: u32,
    /// The blocks that were folded, in words.
    pub folded: Option<Change>,
}

/// Slots with which an order of all steps is looked for, so that folded channels need few of them.
const DEPTHS: [u64; 5] = [1, 2, 8, MOST_SLOTS as u64, u64::MAX];

/// Translates a checked file.
pub(super) fn translate(algo: &Algo) -> Result<Translated> {
    let root = root(algo)?;
    let mut state = State::new(algo, root);
    let is_large = algo.gpus.iter().any(|gpu| gpu.blocks.len() > MAX_CHANNELS);
    let depths = if is_large { &DEPTHS[..] } else { &DEPTHS[DEPTHS.len() - 1..] };
    let mut orders = depths.iter().map(|depth| order(algo, *depth, u32::MAX));
    let order = orders.find_map(|order| order.ok()).map_or_else(|| order(algo, u64::MAX, u32::MAX), Ok)?;
    race::check(algo, root, &order)?;
    for (rank, block, step) in order {
        state.step(rank, block, &algo.gpus[rank].blocks[block].steps[step])?;
    }
    state.keep_outputs();
    let scratch = state.memories.iter().map(|memory| memory.scratch).max().unwrap_or(0);
    let shape = Shape {
        name: algo.name.clone(),
        collective: algo.collective,
        ranks: algo.ranks,
        root,
        per_block: per_block(algo),
        scratch,
    };
    let hops = state.check_outputs(&shape)?;
    let (mut ranks, mut source) = (state.ranks, state.source);
    let mut groups = Groups::new(algo);
    let blocks = ranks.iter().map(|rank| rank.channels.len()).max().unwrap_or(0);
    let folded = fold(&mut ranks, &mut groups, &state.channels).map(|places| {
        source = moved(&source, &places);
        let text = format!("{blocks} blocks of a gpu became {MAX_CHANNELS} at most, as a launch has");
        Change::new(algo.pos, text)
    });
    groups.color(&mut ranks);
    let most = ranks.iter().map(|rank| rank.channels.len()).max().unwrap_or(0);
    for rank in &mut ranks {
        rank.channels.resize_with(most, Default::default);
        rank.lanes.resize(most, 0);
        if rank.lanes.iter().copied().eq(0..most as u32) {
            rank.lanes.clear();
        }
    }
    Ok(Translated { program: Program { shape, ranks }, source, hops, folded })
}

/// The places in the file of the steps of a rank, by channel and step.
type Source = Vec<Vec<Pos>>;

/// The places in the file of all steps after they moved to other channels.
fn moved(source: &[Source], places: &[Vec<Vec<(u32, u32)>>]) -> Vec<Source> {
    let mut all = Vec::new();
    for (source, places) in source.iter().zip(places) {
        let steps = source.iter().flatten().zip(places.iter().flatten());
        let mut moved: Vec<((u32, u32), Pos)> = steps.map(|(pos, place)| (*place, *pos)).collect();
        moved.sort_unstable_by_key(|(place, _)| *place);
        let mut channels = Source::new();
        for ((channel, _), pos) in moved {
            channels.resize_with(channels.len().max(channel as usize + 1), Vec::new);
            channels[channel as usize].push(pos);
        }
        all.push(channels);
    }
    all
}

/// The chunks of one transfer.
type Message = Vec<Rc<Value>>;

struct State<'a> {
    algo: &'a Algo,
    memories: Vec<Memory>,
    fifos: FxHashMap<(u32, u32, u32), VecDeque<Message>>,
    ranks: Vec<RankProgram>,
    source: Vec<Vec<Vec<Pos>>>,
    /// The channel of every step of a rank, in the order in which they were made.
    channels: Vec<Vec<u32>>,
    /// The last step that a step of the file became, by rank, block and step.
    last: FxHashMap<(usize, u32, u32), u32>,
    /// The steps that the next step of a block waits for, by rank and block.
    waits: FxHashMap<(usize, usize), Vec<Dep>>,
}

/// One chunk of a step.
struct Unit {
    op: Op,
    src: Option<Ref>,
    dst: Option<Ref>,
    finish: bool,
}

impl<'a> State<'a> {
    fn new(algo: &'a Algo, root: u32) -> Self {
        let channels = |gpu: &super::xml::Gpu| gpu.blocks.len().max(1);
        Self {
            algo,
            memories: (0..algo.ranks).map(|rank| Memory::new(algo, rank, root)).collect(),
            fifos: FxHashMap::default(),
            ranks: algo.gpus.iter().map(|gpu| RankProgram::with_channels(channels(gpu))).collect(),
            source: algo.gpus.iter().map(|gpu| vec![Vec::new(); channels(gpu)]).collect(),
            channels: vec![Vec::new(); algo.gpus.len()],
            last: FxHashMap::default(),
            waits: FxHashMap::default(),
        }
    }

    fn step(&mut self, rank: usize, block: usize, step: &Step) -> Result<()> {
        if let Some((on, number)) = step.dep {
            let awaited = self.last.get(&(rank, on, number)).copied().unwrap_or(0);
            self.waits.entry((rank, block)).or_default().push(Dep { channel: on, step: awaited });
        }
        if step.kind == Kind::Nop {
            return Ok(());
        }
        let (id, from, to, chan) = {
            let gpu = &self.algo.gpus[rank];
            let block = &gpu.blocks[block];
            (gpu.id, block.recv, block.send, block.chan)
        };
        let from = from.filter(|_| step.kind.receives());
        let to = to.filter(|_| step.kind.sends());
        let received = from.and_then(|from| self.fifos.get_mut(&(from, id, chan))?.pop_front());
        let (mut before, mut units, mut sent) = (Vec::new(), Vec::new(), Vec::new());
        for k in 0..step.count {
            let arrived = received.as_ref().and_then(|values| values.get(k as usize)).cloned();
            let (copied, unit, value) = self.unit(rank, step, k, arrived)?;
            before.extend(copied);
            units.push(unit);
            sent.push(value);
        }
        if let Some(to) = to {
            let sent =
                sent.iter().map(|value| Rc::new(Value { hops: value.hops + 1, ..Value::clone(value) }));
            self.fifos.entry((id, to, chan)).or_default().push_back(sent.collect());
        }
        let peers = |peer: Option<u32>| peer.into_iter().collect::<Vec<_>>();
        let mut after = self.waits.remove(&(rank, block)).unwrap_or_default();
        for run in runs(before).into_iter().chain(runs(units)) {
            let is_copy = matches!(run.op, Op::Copy | Op::Reduce);
            let ends = if is_copy { (Vec::new(), Vec::new()) } else { (peers(from), peers(to)) };
            let run =
                hawser_program::Step { recv: ends.0, send: ends.1, after: std::mem::take(&mut after), ..run };
            self.ranks[rank].channels[block].push(run);
            self.source[rank][block].push(step.pos);
            self.channels[rank].push(block as u32);
        }
        let last = self.ranks[rank].channels[block].steps.len() as u32 - 1;
        self.last.insert((rank, block as u32, step.number), last);
        Ok(())
    }

    /// Chunk `k` of a step: the copy that must come first if any, the step, and its value.
    fn unit(
        &mut self,
        rank: usize,
        step: &Step,
        k: u32,
        arrived: Option<Rc<Value>>,
    ) -> Result<(Option<Unit>, Unit, Rc<Value>)> {
        let chunk = |offset: i64| offset as u32 + k;
        let memory = &mut self.memories[rank];
        let undefined = |(buf, offset): (Buf, i64)| {
            let name = ["input", "output", "scratch"][buf as usize];
            let text = format!(
                "{} reads chunk {} of the {name}, which nobody wrote",
                step.kind.name(),
                chunk(offset)
            );
            ImportError::new(Class::Undefined, step.pos, text)
        };
        let src = match step.kind.reads() {
            true => Some(memory.read(step.src.0, chunk(step.src.1)).ok_or_else(|| undefined(step.src))?),
            false => None,
        };
        let old = match step.kind {
            Kind::Re => Some(memory.read(step.dst.0, chunk(step.dst.1)).ok_or_else(|| undefined(step.dst))?),
            _ => None,
        };
        let dst = step.kind.writes().then(|| memory.place(step.dst.0, chunk(step.dst.1)));
        let operands = arrived.iter().chain(src.iter().map(|(_, v)| v)).chain(old.iter().map(|(_, v)| v));
        let combined = operands.cloned().reduce(|a, b| Rc::new(a.with(&b, step.pos)));
        let value =
            combined.ok_or_else(|| ImportError::new(Class::Mismatch, step.pos, "nothing arrives here"))?;
        if dst.is_some() {
            memory.write(step.dst.0, chunk(step.dst.1), value.clone(), step.pos);
        }
        let (op, src_ref) = (op(step.kind), src.map(|(at, _)| at));
        let finish = step.kind.reduces() && value.is_complete(self.algo.ranks);
        let moved = old.zip(dst).filter(|((old, _), dst)| old != dst);
        let before =
            moved.map(|((old, _), dst)| Unit { op: Op::Copy, src: Some(old), dst: Some(dst), finish: false });
        Ok((before, Unit { op, src: src_ref, dst, finish }, value))
    }

    /// Inputs that are outputs where they lie: a call out of place wants them copied.
    fn keep_outputs(&mut self) {
        if self.algo.collective.reduces() {
            return;
        }
        for (rank, memory) in self.memories.iter().enumerate() {
            let unit = |(input, output): (u32, u32)| Unit {
                op: Op::Copy,
                src: Some(Ref { buf: Buf::Input, chunk: input }),
                dst: Some(Ref { buf: Buf::Output, chunk: output }),
                finish: false,
            };
            for run in runs(memory.kept().into_iter().map(unit).collect()) {
                self.ranks[rank].channels[0].push(run);
                self.source[rank][0].push(self.algo.gpus[rank].pos);
                self.channels[rank].push(0);
            }
        }
    }

    /// Checks what every rank has in the end; returns the most hops.
    fn check_outputs(&self, shape: &Shape) -> Result<u32> {
        let mut hops = 0;
        for (rank, memory) in (0..).zip(&self.memories) {
            let gpu = self.algo.gpus[rank as usize].pos;
            self.check_moved(rank, memory)?;
            for (chunk, value, writer) in memory.outputs() {
                if shape.collective == Collective::SendRecv {
                    hops = hops.max(value.map_or(0, |value| value.hops));
                    continue;
                }
                let at = if writer == Pos::default() { gpu } else { writer };
                let parts = value.as_ref().map_or(&[][..], |value| &value.parts);
                let (sources, wanted) = expected(shape, rank, chunk);
                let wrong = |class, at, what: String| {
                    let text = format!("chunk {chunk} of the output of gpu {rank} {what}");
                    Err(ImportError::new(class, at, text))
                };
                let blame = value.as_ref().and_then(|value| value.blame).unwrap_or(at);
                if let Some(part) = parts.iter().find(|part| part.2 > 1) {
                    let what = format!(
                        "holds the contribution of rank {} {} times, added again here",
                        part.0, part.2
                    );
                    return wrong(Class::DoubleCount, blame, what);
                }
                if let Some(part) = parts.iter().find(|part| part.1 != wanted || !sources.contains(&part.0)) {
                    let what =
                        format!("holds chunk {} of rank {}, which does not belong there", part.1, part.0);
                    return wrong(Class::WrongResult, blame, what);
                }
                if let Some(missing) =
                    sources.clone().find(|source| !parts.iter().any(|part| part.0 == *source))
                {
                    return wrong(
                        Class::WrongResult,
                        at,
                        format!("lacks the contribution of rank {missing}"),
                    );
                }
                hops = hops.max(value.map_or(0, |value| value.hops));
            }
        }
        Ok(hops)
    }

    /// A file that is made from a plan moves what the plan moves.
    fn check_moved(&self, rank: u32, memory: &Memory) -> Result<()> {
        let Some(moved) = self.algo.moved.as_ref().map(|moved| &moved[rank as usize]) else { return Ok(()) };
        let Some(((chunk, found), _)) =
            memory.moved().into_iter().zip(moved).find(|(found, moved)| found != *moved)
        else {
            return Ok(());
        };
        let text = format!(
            "chunk {chunk} of the output of gpu {rank} would hold {found:?} after the import, not what \
             the plan moves there"
        );
        Err(ImportError::new(Class::WrongResult, self.algo.gpus[rank as usize].pos, text))
    }
}

fn op(kind: Kind) -> Op {
    match kind {
        Kind::S => Op::Send,
        Kind::R => Op::Recv,
        Kind::Rcs => Op::RecvCopySend,
        Kind::Rrc => Op::RecvReduceCopy,
        Kind::Rrs => Op::RecvReduceSend,
        Kind::Rrcs => Op::RecvReduceCopySend,
        Kind::Cpy | Kind::Nop => Op::Copy,
        Kind::Re => Op::Reduce,
    }
}

/// Joins chunks that follow one another into repeated steps, without peers.
fn runs(units: Vec<Unit>) -> Vec<hawser_program::Step> {
    let mut steps: Vec<hawser_program::Step> = Vec::new();
    let follows = |first: Option<Ref>, next: Option<Ref>, by: u32| match (first, next) {
        (None, None) => true,
        (Some(first), Some(next)) => first.buf == next.buf && first.chunk + by == next.chunk,
        _ => false,
    };
    for unit in units {
        if let Some(last) = steps.last_mut()
            && (last.op, last.finish) == (unit.op, unit.finish)
            && follows(last.src, unit.src, last.times)
            && follows(last.dst, unit.dst, last.times)
        {
            (last.times, last.stride) = (last.times + 1, 1);
            continue;
        }
        // What arrived is the first operand, as in every kernel that runs these files.
        let order =
            u32::from(matches!(unit.op, Op::RecvReduceCopy | Op::RecvReduceSend | Op::RecvReduceCopySend));
        let step = hawser_program::Step {
            src: unit.src,
            dst: unit.dst,
            finish: unit.finish,
            order,
            ..hawser_program::Step::new(unit.op)
        };
        steps.push(step);
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_program::build::{copy, input, output, reduce, scratch};

    #[test]
    fn chunks_that_follow_one_another_are_one_step() {
        let unit = |op, src, dst, finish| Unit { op, src: Some(src), dst: Some(dst), finish };
        let found = runs(vec![
            unit(Op::Copy, input(4), output(0), false),
            unit(Op::Copy, input(5), output(1), false),
            unit(Op::Copy, output(6), output(2), false),
            unit(Op::Reduce, scratch(0), output(3), false),
            unit(Op::Reduce, scratch(1), output(4), true),
        ]);
        let wanted = [
            copy(input(4), output(0)).repeat(2, 1),
            copy(output(6), output(2)),
            reduce(scratch(0), output(3)),
            reduce(scratch(1), output(4)).finish(),
        ];
        assert_eq!(found, wanted);
    }
}
