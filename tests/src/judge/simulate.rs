//! Runs the blocks of all ranks on numbers, one chunk at a time, and finds what goes wrong in any order.
//!
//! Blocks have no branches, so one order in which everything happens stands for all of them as long as no
//! two uses of a cell, one of which writes, are unordered. Each block has a **vector clock**: how far each
//! other block is known to be. Messages and steps that others wait for carry it. A use that the clock does
//! not know to be over is a race.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use super::file::{Block, File, Memory, Step};
use super::promise::{self, Layout};
use super::{Rules, Way};

/// Progress of every block that is known.
type Clock = Rc<Vec<u32>>;

/// A chunk on its way.
struct Message {
    number: u64,
    clock: Clock,
    /// The place of the chunk in its step, and the chunks of that step.
    of: (usize, usize),
}

/// One chunk of a rank, and who used it last.
struct Cell {
    number: Option<u64>,
    /// The last writer and when.
    written: Option<(usize, u32)>,
    /// Those that have read since, and when last.
    read: Vec<(usize, u32)>,
}

/// A block while it runs.
struct State {
    clock: Vec<u32>,
    step: usize,
    /// Chunks of the step that are done.
    chunk: usize,
    /// True if the step has waited already.
    has_waited: bool,
    /// Steps that told others that they are over, with the clock of that moment.
    told: Vec<(usize, Clock)>,
}

/// The ends of a connection.
type Wire = (usize, usize, usize);

struct World<'a> {
    file: &'a File,
    layouts: Vec<Layout>,
    cells: Vec<Vec<Cell>>,
    /// Number of the first block of every rank.
    first: Vec<usize>,
    states: Vec<State>,
    wires: HashMap<Wire, VecDeque<Message>>,
    slots: usize,
    /// True for cells of the input that must stay.
    keeps_input: bool,
}

/// Runs a file in one way; returns the numbers in the outputs of all ranks.
pub fn run(file: &File, way: Way, rules: Rules) -> Result<Vec<Vec<Option<u64>>>, String> {
    one_block_per_end(file)?;
    let layouts: Vec<Layout> = (0..file.ranks).map(|rank| Layout::of(file, rank, way)).collect();
    let fresh = |number| Cell { number, written: None, read: Vec::new() };
    let cells = layouts.iter().enumerate();
    let cells = cells.map(|(rank, layout)| promise::before(file, rank, layout).into_iter().map(fresh));
    let cells = cells.map(Iterator::collect).collect();
    let mut first = Vec::new();
    let blocks = file.gpus.iter().fold(0, |sum, gpu| {
        first.push(sum);
        sum + gpu.blocks.len()
    });
    let new = |_| State { clock: vec![0; blocks], step: 0, chunk: 0, has_waited: false, told: Vec::new() };
    let mut world = World {
        file,
        layouts,
        cells,
        first,
        states: (0..blocks).map(new).collect(),
        wires: HashMap::new(),
        slots: rules.slots.unwrap_or(usize::MAX),
        keeps_input: rules.keeps_input && way == Way::Apart,
    };
    world.until_nothing_moves()?;
    world.look_at_the_end()?;
    Ok((0..file.ranks).map(|rank| world.output(rank)).collect())
}

/// No two blocks of a rank send to, or receive from, one peer on one channel: chunks would mix.
fn one_block_per_end(file: &File) -> Result<(), String> {
    let mut ends: HashMap<(bool, Wire), usize> = HashMap::new();
    for (rank, gpu) in file.gpus.iter().enumerate() {
        for block in &gpu.blocks {
            if block.to == Some(rank) || block.from == Some(rank) {
                return Err(format!("rank {rank} talks to itself"));
            }
            let sends = block.steps.iter().any(|step| step.sends);
            let receives = block.steps.iter().any(|step| step.receives);
            let out = block.to.filter(|_| sends).map(|to| (true, (rank, to, block.channel)));
            let back = block.from.filter(|_| receives).map(|from| (false, (from, rank, block.channel)));
            for end in out.into_iter().chain(back) {
                let count = ends.entry(end).or_default();
                *count += 1;
                if *count > 1 {
                    return Err(format!("two blocks of rank {rank} share one end of {:?}", end.1));
                }
            }
        }
    }
    Ok(())
}

impl World<'_> {
    fn until_nothing_moves(&mut self) -> Result<(), String> {
        loop {
            let mut moved = false;
            for rank in 0..self.file.ranks {
                for block in 0..self.file.gpus[rank].blocks.len() {
                    while self.advance(rank, block)? {
                        moved = true;
                    }
                }
            }
            if !moved {
                return Ok(());
            }
        }
    }

    /// Does one chunk of the next step of a block, if it can.
    fn advance(&mut self, rank: usize, at: usize) -> Result<bool, String> {
        let file = self.file;
        let block = &file.gpus[rank].blocks[at];
        let me = self.first[rank] + at;
        let Some(step) = block.steps.get(self.states[me].step) else { return Ok(false) };
        if !self.states[me].has_waited {
            if let Some((on, number)) = step.waits {
                if on >= file.gpus[rank].blocks.len() {
                    return Err(format!("rank {rank} block {at} waits for block {on}, which is not there"));
                }
                let other = &self.states[self.first[rank] + on];
                let Some((_, clock)) = other.told.iter().find(|(told, _)| *told >= number) else {
                    return Ok(false);
                };
                let clock = clock.clone();
                merge(&mut self.states[me].clock, &clock);
            }
            self.states[me].has_waited = true;
        }
        if step.count > 0
            && !self.move_chunk(rank, block, me, step).map_err(|text| {
                format!("rank {rank} block {at} step {} ({}): {text}", self.states[me].step, step.word)
            })?
        {
            return Ok(false);
        }
        let state = &mut self.states[me];
        state.chunk += 1;
        if state.chunk >= step.count {
            state.clock[me] += 1;
            if step.tells {
                state.told.push((state.step, Rc::new(state.clock.clone())));
            }
            (state.step, state.chunk, state.has_waited) = (state.step + 1, 0, false);
        }
        Ok(true)
    }

    /// Returns false if the step has to wait for a message or for room.
    fn move_chunk(&mut self, rank: usize, block: &Block, me: usize, step: &Step) -> Result<bool, String> {
        let chunk = self.states[me].chunk;
        let out = block.to.filter(|_| step.sends).map(|to| (rank, to, block.channel));
        if let Some(out) = out
            && self.wires.get(&out).map_or(0, VecDeque::len) >= self.slots
        {
            return Ok(false);
        }
        let mut value = None;
        if step.receives {
            let wire = (block.from.expect("was checked"), rank, block.channel);
            let Some(message) = self.wires.get_mut(&wire).and_then(VecDeque::pop_front) else {
                return Ok(false);
            };
            if message.of != (chunk, step.count) {
                let ((k, n), m) = (message.of, step.count);
                return Err(format!("chunk {chunk} of {m} is received where {k} of {n} was sent"));
            }
            merge(&mut self.states[me].clock, &message.clock);
            value = Some(message.number);
        }
        self.states[me].clock[me] += 1;
        if let Some((memory, first)) = step.reads {
            let read = self.read(rank, me, (memory, first + chunk))?;
            value = Some(value.map_or(read, |value: u64| value.wrapping_add(read)));
        }
        if let Some((memory, first)) = step.writes {
            if step.adds && !step.receives {
                let old = self.read(rank, me, (memory, first + chunk))?;
                value = value.map(|value| value.wrapping_add(old));
            }
            if !self.is_onto_itself(rank, step) {
                self.write(rank, me, (memory, first + chunk), value)?;
            }
        }
        if let (Some(out), Some(number)) = (out, value) {
            let clock = Rc::new(self.states[me].clock.clone());
            self.wires.entry(out).or_default().push_back(Message { number, clock, of: (chunk, step.count) });
        }
        Ok(true)
    }

    /// In place, a copy of input to output may find its bytes there already: it changes nothing.
    fn is_onto_itself(&self, rank: usize, step: &Step) -> bool {
        let cell = |place: Option<(Memory, usize)>| place.map(|place| self.layouts[rank].cell(place));
        !step.receives && !step.adds && cell(step.reads) == cell(step.writes)
    }

    fn read(&mut self, rank: usize, me: usize, place: (Memory, usize)) -> Result<u64, String> {
        let clock = &self.states[me].clock;
        let cell = &mut self.cells[rank][self.layouts[rank].cell(place)];
        if let Some((writer, when)) = cell.written
            && clock[writer] < when
        {
            return Err(format!("{place:?} is read while another block writes it"));
        }
        match cell.read.iter_mut().find(|(reader, _)| *reader == me) {
            Some((_, when)) => *when = clock[me],
            None => cell.read.push((me, clock[me])),
        }
        cell.number.ok_or_else(|| format!("{place:?} is read and nobody wrote it"))
    }

    fn write(
        &mut self,
        rank: usize,
        me: usize,
        place: (Memory, usize),
        number: Option<u64>,
    ) -> Result<(), String> {
        if self.keeps_input && place.0 == Memory::Input {
            return Err(format!("{place:?} is written, which belongs to the caller"));
        }
        let clock = &self.states[me].clock;
        let cell = &mut self.cells[rank][self.layouts[rank].cell(place)];
        if cell.written.iter().chain(&cell.read).any(|(other, when)| clock[*other] < *when) {
            return Err(format!("{place:?} is written while another block uses it"));
        }
        (cell.number, cell.written) = (number, Some((me, clock[me])));
        cell.read.clear();
        Ok(())
    }

    fn output(&self, rank: usize) -> Vec<Option<u64>> {
        let cell = |chunk| &self.cells[rank][self.layouts[rank].cell((Memory::Output, chunk))];
        (0..self.file.sizes().1).map(|chunk| cell(chunk).number).collect()
    }

    /// Every block has ended, nothing is on its way, and outputs are as promised.
    fn look_at_the_end(&self) -> Result<(), String> {
        for (rank, gpu) in self.file.gpus.iter().enumerate() {
            for (at, block) in gpu.blocks.iter().enumerate() {
                let state = &self.states[self.first[rank] + at];
                if let Some(step) = block.steps.get(state.step) {
                    return Err(format!(
                        "rank {rank} block {at} stands for ever before step {} ({})",
                        state.step, step.word
                    ));
                }
            }
        }
        if let Some((wire, _)) = self.wires.iter().find(|(_, messages)| !messages.is_empty()) {
            return Err(format!("what was sent over {wire:?} is never received"));
        }
        for rank in 0..self.file.ranks {
            let output = self.output(rank);
            for (chunk, wanted) in promise::after(self.file, rank).into_iter().enumerate() {
                if output[chunk] != Some(wanted) {
                    return Err(format!(
                        "chunk {chunk} of the output of rank {rank} is not what it should be"
                    ));
                }
            }
        }
        Ok(())
    }
}

fn merge(clock: &mut [u32], other: &[u32]) {
    clock.iter_mut().zip(other).for_each(|(mine, other)| *mine = (*mine).max(*other));
}
