//! The moves of a plan in an order in which they can happen, with moves of neighbouring chunks as one.
//!
//! Threadblocks share out the chunks of a buffer; here instances do that for all programs alike, and few
//! large moves are better than many small ones. A move is kept back until one comes that uses its chunks
//! otherwise; until then it grows by moves that do the same to the chunks that follow.

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;

use super::op::{Act, Move, Place};
use super::plan::Plan;
use super::run::At;
use crate::memory::Memory;
use crate::xml::Pos;
use hawser_program::Buf;

/// A move of a rank's threadblock.
pub(super) struct Job {
    pub rank: usize,
    pub block: usize,
    pub pos: Pos,
    pub moved: Move,
}

/// All moves.
pub(super) fn gather(plan: &Plan, memories: &[Memory], order: &[At]) -> Vec<Job> {
    let touched = memories.iter().map(|memory| vec![Touched::default(); memory.len()]).collect();
    let mut state =
        State { memories, touched, kept: Vec::new(), open: FxHashMap::default(), done: Vec::new() };
    for &(rank, block, number) in order {
        let op = &plan.ranks[rank].blocks[block][number];
        let Act::Data { moves, .. } = &op.act else { continue };
        for one in moves {
            state.add(Job { rank, block, pos: op.pos, moved: one.clone() });
        }
    }
    (0..state.kept.len()).for_each(|id| state.finish(id));
    state.done
}

/// The moves that are kept back and use a chunk.
#[derive(Default, Clone)]
struct Touched {
    writer: Option<usize>,
    readers: Vec<usize>,
}

/// The rank that moves; rank, buffer and first chunk of every source and target of a move that would follow.
type Next = (usize, Vec<(u32, Buf, u32)>, Vec<(u32, Buf, u32)>);

struct State<'a> {
    memories: &'a [Memory],
    touched: Vec<Vec<Touched>>,
    kept: Vec<Option<Job>>,
    /// Kept moves by what would follow them.
    open: FxHashMap<Next, usize>,
    done: Vec<Job>,
}

impl State<'_> {
    fn add(&mut self, job: Job) {
        let mut before = BTreeSet::new();
        for (place, writes) in operands(&job.moved) {
            for cell in self.cells(place) {
                let touched = &self.touched[place.rank as usize][cell];
                before.extend(touched.writer);
                before.extend(touched.readers.iter().filter(|_| writes));
            }
        }
        before.into_iter().for_each(|id| self.finish(id));
        let grown = self.open.remove(&next(&job, false));
        let id = grown.unwrap_or(self.kept.len());
        for (place, writes) in operands(&job.moved) {
            for cell in self.cells(place) {
                let touched = &mut self.touched[place.rank as usize][cell];
                match writes {
                    true => touched.writer = Some(id),
                    false => touched.readers.push(id),
                }
            }
        }
        match grown.and_then(|id| self.kept[id].as_mut()) {
            Some(kept) => {
                let own = kept.moved.from.iter_mut().chain(&mut kept.moved.to);
                let more = job.moved.from.iter().chain(&job.moved.to);
                own.zip(more).for_each(|(own, more)| own.count += more.count);
            }
            None => self.kept.push(Some(job)),
        }
        if let Some(kept) = &self.kept[id] {
            self.open.insert(next(kept, true), id);
        }
    }

    /// A kept move happens now.
    fn finish(&mut self, id: usize) {
        let Some(job) = self.kept[id].take() else { return };
        for (place, _) in operands(&job.moved) {
            for cell in self.cells(place) {
                let touched = &mut self.touched[place.rank as usize][cell];
                touched.readers.retain(|reader| *reader != id);
                touched.writer = touched.writer.filter(|writer| *writer != id);
            }
        }
        let key = next(&job, true);
        if self.open.get(&key) == Some(&id) {
            self.open.remove(&key);
        }
        self.done.push(job);
    }

    fn cells(&self, place: &Place) -> std::ops::Range<usize> {
        let first = self.memories[place.rank as usize].index(place.buf, place.first);
        first..first + place.count as usize
    }
}

/// All operands, and whether they are written.
fn operands(one: &Move) -> impl Iterator<Item = (&Place, bool)> {
    let reads = one.from.iter().map(|place| (place, false));
    reads.chain(one.to.iter().map(|place| (place, true)))
}

/// The operations at which operands of a move begin, or end.
fn next(job: &Job, end: bool) -> Next {
    let of = |places: &[Place]| {
        let at = |place: &Place| (place.rank, place.buf, place.first + if end { place.count } else { 0 });
        places.iter().map(at).collect()
    };
    (job.rank, of(&job.moved.from), of(&job.moved.to))
}
