//! Runs a plan: an order in which its operations can happen, and whether signals, barriers, semaphores and
//! packets order everything that two threadblocks do to a chunk.
//!
//! Signals and semaphores count. Which release an acquire has waited for is certain only where the count
//! leaves no other choice: the m-th acquire of a threadblock has seen a release if all others together could
//! not have let it through.

use std::rc::Rc;

use rustc_hash::FxHashMap;

use super::op::{Act, Move, Op, Place};
use super::plan::{Channel, Plan, Wire, named};
use crate::fault::{Class, ImportError, Result};
use crate::memory::Memory;
use hawser_program::Buf;

/// The place of an operation: rank, threadblock, operation.
pub(super) type At = (usize, usize, usize);

/// Most threadblocks times operations.
const MOST_ORDERS: u64 = 1 << 28;

/// The number of operations of every threadblock that are known to be over.
type Clock = Rc<Vec<u32>>;

/// The counters of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Counter {
    /// The `nth` channel of a kind from one rank to another.
    Signal(u32, u32, Wire, u32),
    /// A semaphore of a rank.
    Semaphore(u32, u32),
}

/// Releases of a counter.
#[derive(Default)]
struct Releases {
    first: u64,
    /// By threadblock: how many there will be, and when those happened that did.
    by: FxHashMap<usize, (u64, Vec<Clock>)>,
    taken: u64,
}

/// The latest uses of a chunk, as threadblock and number of its operation.
#[derive(Default, Clone)]
struct Uses {
    write: Option<(usize, u32)>,
    reads: Vec<(usize, u32)>,
    packet: Option<Clock>,
}

/// Operations with data, in an order in which they can happen.
///
/// # Errors
/// They wait for each other for ever, or nothing orders two uses of a chunk.
pub(super) fn run(plan: &Plan, memories: &[Memory]) -> Result<Vec<At>> {
    let mut state = State::new(plan, memories)?;
    loop {
        let mut moved = false;
        for block in 0..state.blocks.len() {
            while state.advance(block)? {
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    state.finish()?;
    state.arrived_in_time()?;
    Ok(state.order)
}

struct State<'a> {
    plan: &'a Plan,
    memories: &'a [Memory],
    /// Rank and threadblock of each threadblock.
    blocks: Vec<(usize, usize)>,
    next: Vec<usize>,
    clocks: Vec<Clock>,
    counters: FxHashMap<Counter, Releases>,
    /// Acquires of a threadblock.
    acquires: FxHashMap<(Counter, usize), u64>,
    /// For how many threadblocks a barrier is, and who waits there.
    barriers: FxHashMap<(usize, u32), (usize, Vec<usize>)>,
    uses: Vec<Vec<Uses>>,
    order: Vec<At>,
}

impl<'a> State<'a> {
    fn new(plan: &'a Plan, memories: &'a [Memory]) -> Result<Self> {
        let of_rank =
            |(rank, it): (usize, &super::plan::Rank)| (0..it.blocks.len()).map(move |block| (rank, block));
        let blocks: Vec<(usize, usize)> = plan.ranks.iter().enumerate().flat_map(of_rank).collect();
        let ops: usize = plan.ranks.iter().flat_map(|rank| &rank.blocks).map(Vec::len).sum();
        if blocks.len() as u64 * ops as u64 > MOST_ORDERS {
            let text = format!("too large to follow: {} threadblocks, {ops} operations", blocks.len());
            return Err(ImportError::new(Class::Limit, plan.algo.pos, text));
        }
        let mut counters: FxHashMap<Counter, Releases> = FxHashMap::default();
        for (index, &(rank, block)) in blocks.iter().enumerate() {
            for op in &plan.ranks[rank].blocks[block] {
                for counter in releases(rank, op) {
                    counters.entry(counter).or_default().by.entry(index).or_default().0 += 1;
                }
            }
        }
        for (rank, it) in (0..).zip(&plan.ranks) {
            for (id, &first) in (0..).zip(&it.semaphores) {
                counters.entry(Counter::Semaphore(rank, id)).or_default().first = u64::from(first);
            }
        }
        Ok(Self {
            plan,
            memories,
            next: vec![0; blocks.len()],
            clocks: (0..blocks.len()).map(|_| Rc::new(vec![0; blocks.len()])).collect(),
            blocks,
            counters,
            acquires: FxHashMap::default(),
            barriers: FxHashMap::default(),
            uses: memories.iter().map(|memory| vec![Uses::default(); memory.len()]).collect(),
            order: Vec::new(),
        })
    }

    fn op(&self, index: usize) -> Option<&'a Op> {
        let (rank, block) = self.blocks[index];
        self.plan.ranks[rank].blocks[block].get(self.next[index])
    }

    /// Runs the next operation of a threadblock if it can.
    fn advance(&mut self, index: usize) -> Result<bool> {
        let Some(op) = self.op(index) else { return Ok(false) };
        let (rank, block) = self.blocks[index];
        if let Act::Barrier { id, of } = op.act {
            return self
                .meet(index, (rank, id), of as usize)
                .map_err(|text| named(ImportError::new(Class::Mismatch, op.pos, text), &op.place));
        }
        if self.obstacle(index, op).is_some() {
            return Ok(false);
        }
        for counter in acquires(rank, op) {
            self.acquire(index, counter);
        }
        if let Act::Data { moves, .. } = &op.act {
            self.read_packets(index, moves);
        }
        Rc::make_mut(&mut self.clocks[index])[index] += 1;
        if let Act::Data { moves, .. } = &op.act {
            moves
                .iter()
                .try_for_each(|one| self.data(index, one))
                .map_err(|(class, text)| named(ImportError::new(class, op.pos, text), &op.place))?;
            self.order.push((rank, block, self.next[index]));
        }
        for counter in releases(rank, op) {
            let clock = self.clocks[index].clone();
            self.counters.entry(counter).or_default().by.entry(index).or_default().1.push(clock);
        }
        self.next[index] += 1;
        Ok(true)
    }

    /// The reason why an operation waits, if it does.
    fn obstacle(&self, index: usize, op: &Op) -> Option<String> {
        let (rank, _) = self.blocks[index];
        let wanted = acquires(rank, op);
        for counter in &wanted {
            let there = self.counters.get(counter).map_or(0, |counter| counter.available());
            if there < wanted.iter().filter(|other| *other == counter).count() as u64 {
                return Some(match counter {
                    Counter::Signal(from, ..) => format!("a signal of gpu {from}"),
                    Counter::Semaphore(_, id) => format!("semaphore {id}"),
                });
            }
        }
        let Act::Data { moves, .. } = &op.act else { return None };
        let packets = moves.iter().flat_map(|one| &one.from).filter(|place| place.packet);
        for place in packets {
            for cell in self.cells(place).into_iter().flatten() {
                if self.uses[place.rank as usize][cell].packet.is_none() {
                    return Some(format!("packets of chunk {} of its scratch", place.first));
                }
            }
        }
        None
    }

    /// A threadblock comes to a barrier; true if it is the last.
    fn meet(&mut self, index: usize, barrier: (usize, u32), of: usize) -> std::result::Result<bool, String> {
        let (known, waiting) = self.barriers.entry(barrier).or_insert((of, Vec::new()));
        if *known != of {
            return Err(format!(
                "barrier {} is for {of} threadblocks here and for {known} elsewhere",
                barrier.1
            ));
        }
        if !waiting.contains(&index) {
            waiting.push(index);
        }
        if waiting.len() < of {
            return Ok(false);
        }
        let all = std::mem::take(waiting);
        let mut joined = self.clocks[index].as_ref().clone();
        all.iter().for_each(|other| join(&mut joined, &self.clocks[*other]));
        for other in all {
            let mut clock = joined.clone();
            clock[other] += 1;
            self.clocks[other] = Rc::new(clock);
            self.next[other] += 1;
        }
        Ok(true)
    }

    fn acquire(&mut self, index: usize, counter: Counter) {
        let own = self.acquires.entry((counter, index)).or_default();
        *own += 1;
        let Some(releases) = self.counters.get_mut(&counter) else { return };
        releases.taken += 1;
        let total: u64 = releases.by.values().map(|(total, _)| total).sum();
        let clock = Rc::make_mut(&mut self.clocks[index]);
        for (mine, done) in releases.by.values() {
            // Without release j of this threadblock and what follows it, there would be this many.
            let certain = (*own + mine).saturating_sub(releases.first + total);
            if let Some(seen) = done.get((certain as usize).wrapping_sub(1)) {
                join(clock, seen);
            }
        }
    }

    fn read_packets(&mut self, index: usize, moves: &[Move]) {
        for place in moves.iter().flat_map(|one| &one.from).filter(|place| place.packet) {
            let mut last: Option<Clock> = None;
            for cell in self.cells(place).into_iter().flatten() {
                let written = self.uses[place.rank as usize][cell].packet.clone();
                if let Some(written) =
                    written.filter(|new| !last.as_ref().is_some_and(|last| Rc::ptr_eq(last, new)))
                {
                    let clock = Rc::make_mut(&mut self.clocks[index]);
                    join(clock, &written);
                    last = Some(written);
                }
            }
        }
    }

    /// Looks at everything that a move reads and writes.
    fn data(&mut self, index: usize, one: &Move) -> std::result::Result<(), (Class, String)> {
        let reads = one.from.iter().map(|place| (place, false));
        for (place, writes) in reads.chain(one.to.iter().map(|place| (place, true))) {
            let name = ["input", "output", "scratch"][place.buf as usize];
            let Some(cells) = self.cells(place) else {
                let text = format!(
                    "uses chunks {} to {} of the {name} of gpu {}, which has fewer",
                    place.first,
                    place.first + place.count - 1,
                    place.rank
                );
                return Err((Class::Bounds, text));
            };
            let clock = &self.clocks[index];
            for cell in cells {
                let uses = &mut self.uses[place.rank as usize][cell];
                let readers = if writes { uses.reads.as_slice() } else { &[] };
                let is_ordered = |&(block, count): &(usize, u32)| block == index || clock[block] >= count;
                if let Some(&(other, _)) = uses.write.iter().chain(readers).find(|use_| !is_ordered(use_)) {
                    let (rank, block) = self.blocks[other];
                    let text = format!(
                        "uses chunks from {} of the {name} of gpu {}, as gpu {rank} threadblock {block} \
                         does, and nothing \
                         orders the two: a signal, a barrier or a semaphore is missing",
                        place.first, place.rank
                    );
                    return Err((Class::Race, text));
                }
                let now = (index, clock[index]);
                if !writes {
                    uses.reads.retain(|(block, _)| *block != index);
                    uses.reads.push(now);
                    continue;
                }
                if place.packet && uses.packet.is_some() {
                    let text = format!(
                        "writes packets to chunk {} of the {name} of gpu {} again: readers cannot tell them \
                         apart",
                        place.first, place.rank
                    );
                    return Err((Class::Race, text));
                }
                *uses =
                    Uses { write: Some(now), reads: Vec::new(), packet: place.packet.then(|| clock.clone()) };
            }
        }
        Ok(())
    }

    /// Cells of a place, None if it is not all there.
    fn cells(&self, place: &Place) -> Option<std::ops::Range<usize>> {
        let has = match place.buf {
            Buf::Scratch => self.plan.algo.gpus[place.rank as usize].used[2],
            buf => crate::check::chunks(&self.plan.algo, buf),
        };
        let end = place.first.checked_add(place.count).filter(|end| *end <= has)?;
        let memory = &self.memories[place.rank as usize];
        Some(memory.index(place.buf, place.first)..memory.index(place.buf, end))
    }

    fn finish(&self) -> Result<()> {
        let stuck: Vec<(&Op, String)> = (0..self.blocks.len())
            .filter_map(|index| {
                let op = self.op(index)?;
                let barrier =
                    matches!(op.act, Act::Barrier { .. }).then(|| "the others at the barrier".to_owned());
                Some((op, barrier.or_else(|| self.obstacle(index, op))?))
            })
            .collect();
        let Some((first, _)) = stuck.first() else { return Ok(()) };
        let who = stuck.iter().take(4).map(|(op, waits)| format!("{} waits for {waits}", op.place));
        let more = if stuck.len() > 4 { format!("; and {} more", stuck.len() - 4) } else { String::new() };
        let text = format!("nothing can go on: {}{more}", who.collect::<Vec<_>>().join("; "));
        Err(ImportError::new(Class::Deadlock, first.pos, text))
    }

    /// A kernel must not end before what others put into its buffers is there.
    fn arrived_in_time(&self) -> Result<()> {
        for (rank, memory) in self.memories.iter().enumerate() {
            let mut end = vec![0; self.blocks.len()];
            let own = self.blocks.iter().zip(&self.clocks).filter(|((of, _), _)| *of == rank);
            own.for_each(|(_, clock)| join(&mut end, clock));
            for (chunk, ..) in memory.outputs() {
                let uses = &self.uses[rank][memory.index(Buf::Output, chunk)];
                if let Some((writer, _)) = uses.write.filter(|(writer, count)| end[*writer] < *count) {
                    let (from, block) = self.blocks[writer];
                    let text = format!(
                        "gpu {from} threadblock {block} writes chunk {chunk} of the output of gpu {rank}, \
                         which does not wait \
                         for it and may end before"
                    );
                    return Err(ImportError::new(Class::Race, self.plan.algo.gpus[rank].pos, text));
                }
            }
        }
        Ok(())
    }
}

impl Releases {
    fn available(&self) -> u64 {
        let done: usize = self.by.values().map(|(_, done)| done.len()).sum();
        (self.first + done as u64).saturating_sub(self.taken)
    }
}

fn join(mine: &mut [u32], other: &[u32]) {
    mine.iter_mut().zip(other).for_each(|(mine, other)| *mine = (*mine).max(*other));
}

/// The counters that an operation waits for.
fn acquires(rank: usize, op: &Op) -> Vec<Counter> {
    match &op.act {
        Act::Wait(channels) => {
            channels.iter().map(|c| Counter::Signal(c.peer, rank as u32, c.wire, c.nth)).collect()
        }
        Act::Acquire(ids) => ids.iter().map(|id| Counter::Semaphore(rank as u32, *id)).collect(),
        _ => Vec::new(),
    }
}

/// The counters that an operation releases when it is over.
fn releases(rank: usize, op: &Op) -> Vec<Counter> {
    let signal = |c: &Channel| Counter::Signal(rank as u32, c.peer, c.wire, c.nth);
    match &op.act {
        Act::Signal(channels) | Act::Data { signals: channels, .. } => channels.iter().map(signal).collect(),
        Act::Release(ids) => ids.iter().map(|id| Counter::Semaphore(rank as u32, *id)).collect(),
        _ => Vec::new(),
    }
}
