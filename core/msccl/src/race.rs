//! The check that everything which two blocks do to a chunk is ordered: by the order within blocks, by
//! dependencies, by messages.

use std::collections::VecDeque;
use std::rc::Rc;

use rustc_hash::FxHashMap;

use super::fault::{Class, ImportError, Result};
use super::memory::Memory;
use super::run::Place;
use super::xml::{Algo, Pos};

/// The knowledge of a block: the number of steps of every block that are over.
type Clock = Rc<Vec<u32>>;

/// The latest uses of a chunk, as block, number of its step, and place in the file.
#[derive(Default, Clone)]
struct Uses {
    write: Option<(usize, u32, Pos)>,
    reads: Vec<(usize, u32, Pos)>,
}

/// Follows `order`, one order in which the steps can run.
pub(super) fn check(algo: &Algo, root: u32, order: &[Place]) -> Result<()> {
    let mut first = Vec::new();
    let mut blocks = 0;
    for gpu in &algo.gpus {
        first.push(blocks);
        blocks += gpu.blocks.len();
    }
    let memories: Vec<Memory> = (0..algo.ranks).map(|rank| Memory::new(algo, rank, root)).collect();
    let mut uses: Vec<Vec<Uses>> =
        memories.iter().map(|memory| vec![Uses::default(); memory.len()]).collect();
    let mut clocks: Vec<Clock> = (0..blocks).map(|_| Rc::new(vec![0; blocks])).collect();
    let mut fifos: FxHashMap<(u32, u32, u32), VecDeque<Clock>> = FxHashMap::default();
    let mut ends: FxHashMap<(usize, u32), Clock> = FxHashMap::default();
    for &(rank, block, number) in order {
        let (gpu, me) = (&algo.gpus[rank], first[rank] + block);
        let tb = &gpu.blocks[block];
        let step = &tb.steps[number];
        let awaited =
            step.dep.and_then(|(on, number)| ends.get(&(first[rank] + on as usize, number)).cloned());
        let from = tb.recv.filter(|_| step.kind.receives());
        let arrived = from.and_then(|from| fifos.get_mut(&(from, gpu.id, tb.chan))?.pop_front());
        let clock = Rc::make_mut(&mut clocks[me]);
        for other in awaited.iter().chain(&arrived) {
            clock.iter_mut().zip(other.iter()).for_each(|(mine, theirs)| *mine = (*mine).max(*theirs));
        }
        clock[me] += 1;
        let clock = clocks[me].clone();
        let now = (me, clock[me], step.pos);
        let is_ordered = |&(block, count, _): &(usize, u32, Pos)| block == me || clock[block] >= count;
        let operands = [(step.kind.reads(), false, step.src), (step.kind.writes(), true, step.dst)];
        for (_, writes, (buf, offset)) in operands.into_iter().filter(|(used, ..)| *used) {
            for chunk in offset as u32..offset as u32 + step.count {
                let uses = &mut uses[rank][memories[rank].index(buf, chunk)];
                let readers = if writes { uses.reads.as_slice() } else { &[] };
                if let Some((_, _, other)) = uses.write.iter().chain(readers).find(|use_| !is_ordered(use_)) {
                    return Err(race(
                        step.pos,
                        *other,
                        gpu.id,
                        ["input", "output", "scratch"][buf as usize],
                        chunk,
                    ));
                }
                if writes {
                    *uses = Uses { write: Some(now), reads: Vec::new() };
                } else {
                    uses.reads.retain(|(block, ..)| *block != me);
                    uses.reads.push(now);
                }
            }
        }
        if let Some(to) = tb.send.filter(|_| step.kind.sends()) {
            fifos.entry((gpu.id, to, tb.chan)).or_default().push_back(clock.clone());
        }
        if step.has_dep {
            ends.insert((me, step.number), clock);
        }
    }
    Ok(())
}

fn race(one: Pos, two: Pos, gpu: u32, buf: &str, chunk: u32) -> ImportError {
    let (first, last) = (one.min(two), one.max(two));
    let text = format!(
        "uses chunk {chunk} of the {buf} of gpu {gpu}, as line {} does, and nothing orders the \
         two: let one wait for the other",
        first.line
    );
    ImportError::new(Class::Race, last, text)
}
