//! The order in which the steps of a file can run, with FIFOs of some depth.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::fault::{Class, ImportError, Result};
use super::xml::{Algo, Step};

/// The place of a step: rank, block, step.
pub(super) type Place = (usize, usize, usize);

/// Runs all steps with FIFOs of `depth` slots, a transfer of `cnt` chunks taking as many slots as pieces of
/// `fused` chunks. Returns the order in which steps were begun.
pub(super) fn order(algo: &Algo, depth: u64, fused: u32) -> Result<Vec<Place>> {
    let mut state = State::new(algo, depth, fused);
    let mut queue: VecDeque<usize> = (0..state.blocks.len()).collect();
    let mut is_queued = vec![true; state.blocks.len()];
    while let Some(block) = queue.pop_front() {
        is_queued[block] = false;
        let mut moved = false;
        while state.advance(block) {
            moved = true;
        }
        if !moved {
            continue;
        }
        for other in state.neighbours(block) {
            if !std::mem::replace(&mut is_queued[other], true) {
                queue.push_back(other);
            }
        }
    }
    state.finish()
}

/// A block on its way: the next step, and how many of its slots have been received and sent.
struct At {
    rank: usize,
    block: usize,
    step: usize,
    slots: u32,
}

struct State<'a> {
    algo: &'a Algo,
    depth: u64,
    fused: u32,
    blocks: Vec<At>,
    /// Index in `blocks` of the first block of each rank.
    first: Vec<usize>,
    fifos: FxHashMap<(u32, u32, u32), u64>,
    order: Vec<Place>,
}

impl<'a> State<'a> {
    fn new(algo: &'a Algo, depth: u64, fused: u32) -> Self {
        let (mut blocks, mut first) = (Vec::new(), Vec::new());
        for (rank, gpu) in algo.gpus.iter().enumerate() {
            first.push(blocks.len());
            blocks.extend((0..gpu.blocks.len()).map(|block| At { rank, block, step: 0, slots: 0 }));
        }
        Self {
            algo,
            depth,
            fused: fused.max(1),
            blocks,
            first,
            fifos: FxHashMap::default(),
            order: Vec::new(),
        }
    }

    /// The other blocks of the rank and those of its peers: whom a step can let go on.
    fn neighbours(&self, index: usize) -> impl Iterator<Item = usize> + use<> {
        let at = &self.blocks[index];
        let block = &self.algo.gpus[at.rank].blocks[at.block];
        let ranks = [Some(at.rank as u32), block.send, block.recv].into_iter().flatten();
        let of = |rank: u32| {
            let first = self.first[rank as usize];
            first..first + self.algo.gpus[rank as usize].blocks.len()
        };
        ranks.map(of).collect::<Vec<_>>().into_iter().flatten().filter(move |other| *other != index)
    }

    fn step(&self, index: usize) -> Option<&'a Step> {
        let at = &self.blocks[index];
        self.algo.gpus[at.rank].blocks[at.block].steps.get(at.step)
    }

    /// The reason why a block waits, if it does.
    fn obstacle(&self, index: usize, step: &Step) -> Option<String> {
        let at = &self.blocks[index];
        let gpu = &self.algo.gpus[at.rank];
        let block = &gpu.blocks[at.block];
        if let Some((on, number)) = step.dep
            && self.blocks[self.first[at.rank] + on as usize].step <= number as usize
        {
            return Some(format!("step {number} of tb {on}"));
        }
        let slots = |from: u32, to: u32| self.fifos.get(&(from, to, block.chan)).copied().unwrap_or(0);
        if let Some(from) = block.recv.filter(|_| step.kind.receives())
            && slots(from, gpu.id) == 0
        {
            return Some(format!("data of rank {from}"));
        }
        let to = block.send.filter(|_| step.kind.sends())?;
        (slots(gpu.id, to) >= self.depth).then(|| format!("room in the FIFO to rank {to}"))
    }

    /// Runs the next transmission of a block if it can.
    fn advance(&mut self, index: usize) -> bool {
        let Some(step) = self.step(index) else { return false };
        if self.obstacle(index, step).is_some() {
            return false;
        }
        let at = &self.blocks[index];
        let gpu = &self.algo.gpus[at.rank];
        let block = &gpu.blocks[at.block];
        if at.slots == 0 {
            self.order.push((at.rank, at.block, at.step));
        }
        if let Some(from) = block.recv.filter(|_| step.kind.receives()) {
            *self.fifos.entry((from, gpu.id, block.chan)).or_default() -= 1;
        }
        if let Some(to) = block.send.filter(|_| step.kind.sends()) {
            *self.fifos.entry((gpu.id, to, block.chan)).or_default() += 1;
        }
        let at = &mut self.blocks[index];
        at.slots += 1;
        if at.slots >= step.count.div_ceil(self.fused) {
            (at.step, at.slots) = (at.step + 1, 0);
        }
        true
    }

    fn finish(self) -> Result<Vec<Place>> {
        let stuck = (0..self.blocks.len()).filter_map(|index| {
            let step = self.step(index)?;
            Some((index, step, self.obstacle(index, step)?))
        });
        let stuck: Vec<_> = stuck.collect();
        let Some(&(_, first, _)) = stuck.first() else { return Ok(self.order) };
        let who = stuck.iter().take(4).map(|(index, step, waits)| {
            let at = &self.blocks[*index];
            format!("gpu {} tb {} step {} waits for {waits}", at.rank, at.block, step.number)
        });
        let who: Vec<String> = who.collect();
        let more = if stuck.len() > 4 { format!("; and {} more", stuck.len() - 4) } else { String::new() };
        Err(ImportError::new(
            Class::Deadlock,
            first.pos,
            format!("nothing can go on: {}{more}", who.join("; ")),
        ))
    }
}

/// FIFOs of a runtime: slots, and bytes of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fifos {
    /// Transmissions in flight.
    pub slots: u32,
    /// Bytes of one.
    pub bytes: u64,
}

/// The largest call (bytes of the larger buffer) that a program survives with these FIFOs, where a runtime
/// sends as many chunks of a step at once as fit a slot; None = every size, `Some(0)` = none.
pub(super) fn safe_bytes(algo: &Algo, fifos: Fifos) -> Option<u64> {
    let steps = algo.gpus.iter().flat_map(|gpu| &gpu.blocks).flat_map(|block| &block.steps);
    let widest = steps.map(|step| step.count).max().unwrap_or(1).max(1);
    let safe = |fused: u32| order(algo, u64::from(fifos.slots), fused).is_ok();
    if safe(1) {
        return None;
    }
    // The more fit a slot the fewer slots it takes: halve the interval.
    let (mut low, mut high) = (1, widest);
    if !safe(high) {
        return Some(0);
    }
    while low + 1 < high {
        let middle = low.midpoint(high);
        if safe(middle) { high = middle } else { low = middle }
    }
    Some(fifos.bytes / u64::from(high) * u64::from(algo.chunks))
}
