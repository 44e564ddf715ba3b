//! Fewer and larger steps, as far as the verifier agrees.
//!
//! Files are written for runtimes that send neighbouring chunks as one; here every chunk is a step of its
//! own. Where all transfers move whole groups of chunks, a group becomes one chunk, and what several blocks
//! did for a chunk of the group each (local sums, as a rule), one of them does for all. Then waits are moved
//! to the first step that needs them, so that fewer steps only wait. What comes out is proved like the file
//! itself, else it is left as it was.

use super::MOST_SLOTS;
use hawser_program::verify::verify;
use hawser_program::{Buf, Channel, Dep, Op, Program, RankProgram, Ref, Step};
use hawser_types::Collective;
use rustc_hash::FxHashMap;

/// Steps of a channel from which on nothing is tried: it takes times that grow with their square, and no
/// device takes so many.
const MOST_STEPS: usize = 8192;

/// The better program of the same meaning, and the slots that it needs; None: there is none.
pub(super) fn optimise(program: &Program, right_in_place: bool) -> Option<(Program, u32)> {
    let is_right = |program: &Program| {
        let verdict = verify(program, MOST_SLOTS, false).ok()?;
        (!right_in_place || verify(program, MOST_SLOTS, true).is_ok()).then_some(verdict.min_depth)
    };
    let mut channels = program.ranks.iter().flat_map(|rank| &rank.channels);
    if channels.any(|channel| channel.steps.len() > MOST_STEPS) {
        return None;
    }
    let factors = (2..=program.shape.per_block).rev();
    let coarse = factors.filter_map(|factor| coarsened(program, factor)).find_map(|coarse| {
        let depth = is_right(&coarse)?;
        Some((coarse, depth))
    });
    let base = coarse.as_ref().map_or(program, |(coarse, _)| coarse);
    let sunk = sunk(base);
    match is_right(&sunk).filter(|_| sunk != *base) {
        Some(depth) => Some((sunk, depth)),
        None => coarse,
    }
}

/// The program with groups of `factor` chunks as chunks, if its steps keep to groups.
fn coarsened(program: &Program, factor: u32) -> Option<Program> {
    let shape = &program.shape;
    if !shape.per_block.is_multiple_of(factor) || !shape.scratch.is_multiple_of(factor) {
        return None;
    }
    let ranks: Vec<RankProgram> =
        program.ranks.iter().map(|rank| coarse_rank(rank, factor)).collect::<Option<_>>()?;
    let mut coarse = Program { shape: shape.clone(), ranks };
    coarse.shape.per_block /= factor;
    coarse.shape.scratch /= factor;
    Some(coarse)
}

/// The fates of a step.
enum Fate {
    /// It moves whole groups.
    Wide(Step),
    /// It works on one chunk of a group, which is the first one or another one.
    Part(Step, bool),
}

fn fate(step: &Step, factor: u32) -> Option<Fate> {
    let refs = || step.src.into_iter().chain(step.dst);
    let group = |reference: Option<Ref>| reference.map(|r| Ref { chunk: r.chunk / factor, ..r });
    let (src, dst) = (group(step.src), group(step.dst));
    let follows = step.times == 1 || step.stride == 1;
    if step.times.is_multiple_of(factor) && follows && refs().all(|r| r.chunk.is_multiple_of(factor)) {
        let times = step.times / factor;
        let stride = if times == 1 { 0 } else { 1 };
        return Some(Fate::Wide(Step { src, dst, times, stride, ..step.clone() }));
    }
    let at = refs().next()?.chunk % factor;
    let is_local = matches!(step.op, Op::Copy | Op::Reduce);
    let is_part = is_local && step.times == 1 && refs().all(|r| r.chunk % factor == at);
    is_part.then(|| Fate::Part(Step { src, dst, ..step.clone() }, at == 0))
}

/// The name by which a part of a group is known: operation, operands, whether it completes the value.
type Name = (Op, Option<Ref>, Option<Ref>, bool);

fn coarse_rank(rank: &RankProgram, factor: u32) -> Option<RankProgram> {
    // New place of every old step; parts that are dropped point to the one that works for them.
    let mut places: FxHashMap<(u32, u32), (u32, u32)> = FxHashMap::default();
    let mut workers: FxHashMap<Name, (u32, u32)> = FxHashMap::default();
    let mut dropped: FxHashMap<(u32, u32), Name> = FxHashMap::default();
    let mut channels: Vec<Vec<(u32, Step)>> = Vec::new();
    for (channel, steps) in (0..).zip(&rank.channels) {
        let mut kept: Vec<(u32, Step)> = Vec::new();
        for (number, step) in (0..).zip(&steps.steps) {
            let place = (channel, kept.len() as u32);
            match fate(step, factor)? {
                Fate::Wide(wide) => kept.push((number, wide)),
                Fate::Part(part, is_first) => {
                    let name = (part.op, part.src, part.dst, part.finish);
                    if !is_first {
                        dropped.insert((channel, number), name);
                        continue;
                    }
                    if workers.insert(name, place).is_some() {
                        return None;
                    }
                    kept.push((number, part));
                }
            }
            places.insert((channel, number), place);
        }
        channels.push(kept);
    }
    for (old, name) in &dropped {
        places.insert(*old, *workers.get(name)?);
    }
    let finish = |(channel, kept): (u32, Vec<(u32, Step)>)| -> Option<Channel> {
        let mut steps = Vec::new();
        let mut before = 0;
        for (number, mut step) in kept {
            let own = step.after.iter().map(|dep| (dep.channel, dep.step));
            // What was dropped just before happened in this order; now somebody else does it.
            let gone = (before..number).map(|number| (channel, number));
            let gone = gone.filter(|old| dropped.contains_key(old));
            let awaited: Option<Vec<(u32, u32)>> =
                own.chain(gone).map(|old| places.get(&old).copied()).collect();
            step.after = joined(awaited?.into_iter().filter(|(other, _)| *other != channel));
            before = number + 1;
            steps.push(step);
        }
        Some(Channel { steps })
    };
    let channels = (0..).zip(channels).map(finish).collect::<Option<_>>()?;
    Some(RankProgram { channels, lanes: rank.lanes.clone(), runs: rank.runs.clone() })
}

/// The last awaited step of every channel.
fn joined(awaited: impl Iterator<Item = (u32, u32)>) -> Vec<Dep> {
    let mut after: Vec<Dep> = Vec::new();
    for (channel, step) in awaited {
        match after.iter_mut().find(|dep| dep.channel == channel) {
            Some(dep) => dep.step = dep.step.max(step),
            None => after.push(Dep { channel, step }),
        }
    }
    after
}

/// The program with every wait at the first step that uses what the awaited channel has used until then.
fn sunk(program: &Program) -> Program {
    let mut sunk = program.clone();
    let collective = program.shape.collective;
    for (rank, new) in program.ranks.iter().zip(&mut sunk.ranks) {
        for (channel, new) in rank.channels.iter().zip(&mut new.channels) {
            new.steps.iter_mut().for_each(|step| step.after.clear());
            for (number, step) in channel.steps.iter().enumerate() {
                for &dep in &step.after {
                    let there = &rank.channels[dep.channel as usize].steps[..=dep.step as usize];
                    // Whether a chunk is written there.
                    let mut used: FxHashMap<Ref, bool> = FxHashMap::default();
                    for (chunk, wrote) in there.iter().flat_map(|step| uses(step, collective)) {
                        *used.entry(chunk).or_default() |= wrote;
                    }
                    let meets = |step: &Step| {
                        let mut mine = uses(step, collective).into_iter();
                        mine.any(|(chunk, writes)| used.get(&chunk).is_some_and(|wrote| writes || *wrote))
                    };
                    let at = channel.steps[number..].iter().position(meets).map_or(number, |by| number + by);
                    let known = new.steps[at].after.iter().map(|dep| (dep.channel, dep.step));
                    new.steps[at].after =
                        joined(known.chain([(dep.channel, dep.step)]).collect::<Vec<_>>().into_iter());
                }
            }
        }
    }
    sunk
}

/// The chunks that a step reads and writes. Where calls in place lay input over output chunk by chunk, both
/// are one.
fn uses(step: &Step, collective: Collective) -> Vec<(Ref, bool)> {
    let laid_over = matches!(collective, Collective::AllReduce | Collective::Reduce | Collective::Broadcast);
    let place = |reference: Ref| match reference.buf {
        Buf::Input if laid_over => Ref { buf: Buf::Output, ..reference },
        _ => reference,
    };
    let moved = |reference: Ref, i: u32| {
        place(Ref { chunk: step.chunk_at(reference.chunk, i, u32::MAX), ..reference })
    };
    let src = (0..step.times).filter_map(|i| Some((moved(step.src?, i), false)));
    src.chain((0..step.times).filter_map(|i| Some((moved(step.dst?, i), true)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_program::Shape;
    use hawser_program::build::{copy, input, output, recv, reduce, scratch, send};

    /// Two ranks: everything to the other, two blocks add a half each, which one can do for both.
    fn halves() -> Program {
        let rank = |me: u32| {
            let peer = 1 - me;
            let talk = vec![send(input(0), vec![peer]).repeat(2, 1), recv(peer, scratch(0)).repeat(2, 1)];
            let add = |c: u32| Channel {
                steps: vec![copy(input(c), output(c)).after(0, 1), reduce(scratch(c), output(c)).finish()],
            };
            RankProgram {
                channels: vec![Channel { steps: talk }, add(0), add(1)],
                lanes: Vec::new(),
                runs: Vec::new(),
            }
        };
        let shape = Shape {
            name: "halves".into(),
            collective: Collective::AllReduce,
            ranks: 2,
            root: 0,
            per_block: 2,
            scratch: 2,
        };
        Program { shape, ranks: vec![rank(0), rank(1)] }
    }

    #[test]
    fn groups_become_chunks_and_waits_sink() {
        let program = halves();
        assert_eq!(verify(&program, MOST_SLOTS, true).map(|v| v.min_depth), Ok(2));
        let (better, depth) = optimise(&program, true).unwrap();
        assert_eq!((better.shape.per_block, better.shape.scratch, depth), (1, 1, 1));
        let channels = &better.ranks[0].channels;
        assert_eq!(channels[0].steps, [send(input(0), vec![1]), recv(1, scratch(0))]);
        // In place the copy writes what the other block has sent, so the wait stays there.
        let sum = [copy(input(0), output(0)).after(0, 1), reduce(scratch(0), output(0)).finish()];
        assert_eq!(channels[1].steps, sum);
        assert!(channels[2].steps.is_empty());
    }

    #[test]
    fn what_does_not_keep_to_groups_is_left() {
        let mut program = halves();
        for rank in &mut program.ranks {
            let talk = &mut rank.channels[0].steps;
            let first = talk.remove(0);
            let peer = first.send.clone();
            talk.splice(0..0, [send(input(0), peer.clone()), send(input(1), peer)]);
            let adds = rank.channels[1..].iter_mut().flat_map(|channel| &mut channel.steps);
            adds.flat_map(|step| &mut step.after).for_each(|dep| dep.step = 2);
        }
        assert!(verify(&program, MOST_SLOTS, true).is_ok());
        assert_eq!(optimise(&program, true), None);
    }
}
