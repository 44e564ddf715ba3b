//! From what a plan moves to blocks that send and receive, in the terms of MSCCL's files.
//!
//! A put is a send here and a receive at the peer, a read of remote memory is a send of the peer. Signals,
//! barriers and flags are not kept: a message carries its data, and what uses a chunk on one rank in several
//! blocks waits as the data demand. All blocks do their steps in one order that was found possible, so none
//! of them can wait for ever. A rank has a block for each pair of peers: instances make more of them for
//! large sizes.

use std::collections::{BTreeMap, BTreeSet};

use super::gather::Job;
use super::op::{Move, Place};
use super::plan::Plan;
use crate::memory::Memory;
use crate::xml::{Algo, Block, Kind, Pos, Step};
use hawser_program::Buf;

/// The file that moves the same.
pub(super) fn emit(plan: Plan, memories: &[Memory], jobs: &[Job]) -> Algo {
    let mut ranks: Vec<Rank<'_>> = memories.iter().map(Rank::new).collect();
    for (rank, peers) in peers(memories.len(), jobs).into_iter().enumerate() {
        ranks[rank].make_blocks(&peers, plan.algo.gpus[rank].pos);
    }
    for &Job { rank, block, pos, ref moved } in jobs {
        Writer { ranks: &mut ranks, rank, block, pos }.one(moved);
    }
    let mut algo = plan.algo;
    for (gpu, rank) in algo.gpus.iter_mut().zip(ranks) {
        gpu.blocks = rank.blocks;
    }
    algo
}

/// Whom each rank sends to and receives from.
fn peers(ranks: usize, jobs: &[Job]) -> Vec<[BTreeSet<u32>; 2]> {
    let mut peers = vec![[BTreeSet::new(), BTreeSet::new()]; ranks];
    for job in jobs {
        let me = job.rank as u32;
        let ways = job.moved.from.iter().map(|place| (place.rank, me));
        let ways = ways.chain(job.moved.to.iter().map(|place| (me, place.rank)));
        for (from, to) in ways.filter(|(from, to)| from != to) {
            peers[from as usize][0].insert(to);
            peers[to as usize][1].insert(from);
        }
    }
    peers
}

/// The latest steps that wrote and read a chunk, as block and step.
#[derive(Default, Clone)]
struct Uses {
    write: Option<(usize, u32)>,
    reads: Vec<(usize, u32)>,
}

/// The part of a rank that is written so far.
struct Rank<'a> {
    memory: &'a Memory,
    blocks: Vec<Block>,
    /// The block that sends to a peer, and that which receives from it.
    senders: BTreeMap<u32, usize>,
    receivers: BTreeMap<u32, usize>,
    uses: Vec<Uses>,
    /// Steps of every block that a block knows to be over, now and after each of its steps.
    known: Vec<Vec<u32>>,
    after: Vec<Vec<Vec<u32>>>,
}

impl<'a> Rank<'a> {
    fn new(memory: &'a Memory) -> Self {
        Self {
            memory,
            blocks: Vec::new(),
            senders: BTreeMap::new(),
            receivers: BTreeMap::new(),
            uses: vec![Uses::default(); memory.len()],
            known: Vec::new(),
            after: Vec::new(),
        }
    }

    /// A block for each peer that is sent to and received from; peers of one direction share a block by two.
    fn make_blocks(&mut self, [out, back]: &[BTreeSet<u32>; 2], pos: Pos) {
        let both = out.intersection(back).map(|peer| (Some(*peer), Some(*peer)));
        let mut pairs: Vec<(Option<u32>, Option<u32>)> = both.collect();
        let (mut to, mut from) = (out.difference(back), back.difference(out));
        loop {
            let pair = (to.next().copied(), from.next().copied());
            if pair == (None, None) && !pairs.is_empty() {
                break;
            }
            pairs.push(pair);
        }
        for (index, (send, recv)) in pairs.iter().copied().enumerate() {
            send.map(|peer| self.senders.insert(peer, index));
            recv.map(|peer| self.receivers.insert(peer, index));
            self.blocks.push(Block { pos, id: index as u32, send, recv, chan: 0, steps: Vec::new() });
        }
        self.known = vec![vec![0; pairs.len()]; pairs.len()];
        self.after = vec![Vec::new(); pairs.len()];
    }

    /// Adds a step, behind waits for what other blocks do to the chunks that it uses.
    fn push(&mut self, index: usize, kind: Kind, src: Operand, dst: Operand, count: u32, pos: Pos) {
        let cells = |(buf, first): Operand| {
            let first = self.memory.index(buf, first);
            first..first + count as usize
        };
        let reads: Vec<usize> = if kind.reads() { cells(src).collect() } else { Vec::new() };
        let writes: Vec<usize> = if kind.writes() { cells(dst).collect() } else { Vec::new() };
        let mut awaited: BTreeMap<usize, u32> = BTreeMap::new();
        let mut wait = |&(block, step): &(usize, u32)| {
            let last = awaited.entry(block).or_insert(step);
            *last = step.max(*last);
        };
        reads.iter().chain(&writes).for_each(|cell| self.uses[*cell].write.iter().for_each(&mut wait));
        writes.iter().for_each(|cell| self.uses[*cell].reads.iter().for_each(&mut wait));
        let waits = self.learn(index, awaited);
        if waits.is_empty() && self.fuse(index, kind, src, count) {
            return;
        }
        let add = |steps: &mut Vec<Step>, kind, count, dep| {
            let number = steps.len() as u32;
            let (src, dst) = (place(src), place(dst));
            steps.push(Step { pos, number, kind, src, dst, count, dep, has_dep: false });
        };
        for (block, step) in &waits {
            self.blocks[*block].steps[*step as usize].has_dep = true;
        }
        let steps = &mut self.blocks[index].steps;
        let last = waits.split_last().map(|(last, nops)| {
            nops.iter().for_each(|(block, step)| add(steps, Kind::Nop, 0, Some((*block as u32, *step))));
            (last.0 as u32, last.1)
        });
        add(steps, kind, count, last);
        let number = steps.len() as u32 - 1;
        self.known[index][index] = number + 1;
        let nops = steps.len() - self.after[index].len();
        self.after[index].extend(std::iter::repeat_n(self.known[index].clone(), nops));
        for cell in reads {
            let readers = &mut self.uses[cell].reads;
            readers.retain(|(block, _)| *block != index);
            readers.push((index, number));
        }
        writes
            .iter()
            .for_each(|cell| self.uses[*cell] = Uses { write: Some((index, number)), reads: Vec::new() });
    }

    /// The steps that a block must wait for and does not know to be over yet.
    fn learn(&mut self, index: usize, awaited: BTreeMap<usize, u32>) -> Vec<(usize, u32)> {
        let mut waits = Vec::new();
        // What was done last knows most.
        let mut awaited: Vec<(usize, u32)> =
            awaited.into_iter().filter(|(block, _)| *block != index).collect();
        awaited.sort_by_key(|&(block, step)| {
            std::cmp::Reverse(self.after[block][step as usize].iter().sum::<u32>())
        });
        for (block, step) in awaited {
            if self.known[index][block] > step {
                continue;
            }
            let told = self.after[block][step as usize].clone();
            self.known[index].iter_mut().zip(told).for_each(|(mine, told)| *mine = (*mine).max(told));
            waits.push((block, step));
        }
        waits
    }

    /// Sends what the step before has just received and kept together with it.
    fn fuse(&mut self, index: usize, kind: Kind, src: Operand, count: u32) -> bool {
        let Some(last) = self.blocks[index].steps.last_mut() else { return false };
        let fused = match (kind, last.kind) {
            (Kind::S, Kind::R) => Kind::Rcs,
            (Kind::S, Kind::Rrc) => Kind::Rrcs,
            _ => return false,
        };
        let is_same = last.dst == place(src) && last.count == count;
        if is_same {
            last.kind = fused;
        }
        is_same
    }
}

/// Buffer and first chunk.
type Operand = (Buf, u32);

fn place((buf, first): Operand) -> (Buf, i64) {
    (buf, i64::from(first))
}

/// Writes the moves of an operation of a rank's threadblock.
struct Writer<'a, 'b> {
    ranks: &'a mut [Rank<'b>],
    rank: usize,
    block: usize,
    pos: Pos,
}

impl Writer<'_, '_> {
    fn one(&mut self, one: &Move) {
        let me = self.rank as u32;
        let [from, to] = [&one.from[..], &one.to[..]];
        match (from, to) {
            // Nothing is kept here: the value goes from where it lies.
            ([from], to) if from.rank == me => to.iter().for_each(|to| self.copy(from, to)),
            ([from], [to]) => self.copy(from, to),
            (from, to) => {
                let Some(kept) = to.iter().find(|to| to.rank == me) else { return };
                self.sum(from, kept);
                to.iter().filter(|to| *to != kept).for_each(|to| self.copy(kept, to));
            }
        }
    }

    /// Copies from here to anywhere, or from a peer to here.
    fn copy(&mut self, from: &Place, to: &Place) {
        let (src, dst) = (operand(from), operand(to));
        if from.rank != to.rank {
            self.send(from, to.rank);
            self.receive(Kind::R, from.rank, to.rank, dst, dst, to.count);
        } else if src != dst {
            self.local(Kind::Cpy, src, dst, to.count);
        }
    }

    /// The sum of all sources at `kept`, which is here.
    fn sum(&mut self, from: &[Place], kept: &Place) {
        let (me, dst, count) = (kept.rank, operand(kept), kept.count);
        let memory = self.ranks[self.rank].memory;
        let cell = |place: &Place| memory.index(place.buf, place.first);
        let mut from: Vec<&Place> = from.iter().collect();
        // What is added to must not be overwritten first, and the first operand is here.
        from.sort_by_key(|place| (place.rank != me, cell(place) != cell(kept)));
        let Some((first, rest)) = from.split_first() else { return };
        let mut sum = operand(first);
        for place in rest {
            if place.rank != me {
                self.send(place, me);
                self.receive(Kind::Rrc, place.rank, me, sum, dst, count);
            } else {
                if sum != dst {
                    self.local(Kind::Cpy, sum, dst, count);
                }
                self.local(Kind::Re, operand(place), dst, count);
            }
            sum = dst;
        }
        if sum != dst {
            self.local(Kind::Cpy, sum, dst, count);
        }
    }

    fn send(&mut self, from: &Place, to: u32) {
        let rank = &mut self.ranks[from.rank as usize];
        if let Some(&block) = rank.senders.get(&to) {
            let src = operand(from);
            rank.push(block, Kind::S, src, src, from.count, self.pos);
        }
    }

    fn receive(&mut self, kind: Kind, from: u32, to: u32, src: Operand, dst: Operand, count: u32) {
        let rank = &mut self.ranks[to as usize];
        if let Some(&block) = rank.receivers.get(&from) {
            rank.push(block, kind, src, dst, count, self.pos);
        }
    }

    /// Steps without a peer: threadblocks share them out among the blocks.
    fn local(&mut self, kind: Kind, src: Operand, dst: Operand, count: u32) {
        let rank = &mut self.ranks[self.rank];
        let block = self.block % rank.blocks.len();
        rank.push(block, kind, src, dst, count, self.pos);
    }
}

fn operand(place: &Place) -> Operand {
    (place.buf, place.first)
}
