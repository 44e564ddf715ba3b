//! The values in the chunks of a rank while a file is followed, and the buffer of a program that each chunk
//! is of.

use std::rc::Rc;

use super::check::chunks;
use super::xml::{Algo, Outputs, Pos};
use hawser_program::verify::add_up;
use hawser_program::{Buf, Ref};
use hawser_types::Collective;

/// A symbolic value.
#[derive(Debug, Clone)]
pub(super) struct Value {
    /// (rank, chunk of its input, how often), sorted.
    pub parts: Vec<(u32, u32, u32)>,
    /// The step that counted something twice, or mixed chunks.
    pub blame: Option<Pos>,
    /// Messages on the longest way to it.
    pub hops: u32,
}

impl Value {
    /// The combination of two values by the step at `pos`.
    pub fn with(&self, other: &Self, pos: Pos) -> Self {
        let mut parts = [self.parts.as_slice(), other.parts.as_slice()].concat();
        add_up(&mut parts);
        let twice = parts.iter().any(|part| part.2 > 1) || parts.iter().any(|part| part.1 != parts[0].1);
        let blame = self.blame.or(other.blame).or(twice.then_some(pos));
        Self { parts, blame, hops: self.hops.max(other.hops) }
    }

    /// True if every rank has contributed once.
    pub fn is_complete(&self, ranks: u32) -> bool {
        self.blame.is_none() && self.parts.len() == ranks as usize
    }
}

/// A place in the memory of a rank, as the file's author sees it: input and output may be the same.
#[derive(Debug, Default)]
struct Cell {
    /// Chunk of the user's input that lies here.
    input: Option<u32>,
    /// Chunk of the user's output that lies here.
    output: Option<u32>,
    /// Scratch of the file, or scratch that stands for a part of the input that the program overwrites.
    scratch: Option<u32>,
    value: Option<Rc<Value>>,
    is_written: bool,
    writer: Pos,
}

/// The memory of a rank.
///
/// Programs never write to the input: what a file writes there goes to the output, or to more scratch where
/// the output does not lie there. A place that was not written yet is read from the input, later from where
/// it was written. So a program is right in place and out of place, and the factor of a pre-multiplied sum is
/// applied once.
#[derive(Debug)]
pub(super) struct Memory {
    cells: Vec<Cell>,
    first_input: u32,
    first_output: u32,
    first_scratch: u32,
    /// Chunks of scratch in use.
    pub scratch: u32,
}

impl Memory {
    pub fn new(algo: &Algo, rank: u32, root: u32) -> Self {
        let (inputs, outputs) = (chunks(algo, Buf::Input), chunks(algo, Buf::Output));
        let own = rank * inputs.min(outputs);
        let is_root = rank == root;
        // Where output chunk 0 lies among the places of the input, and the other way round.
        let (first_input, first_output) = match algo.collective {
            _ if !algo.aliased => (0, inputs),
            Collective::AllGather => (own, 0),
            Collective::Gather if is_root => (own, 0),
            Collective::ReduceScatter => (0, own),
            Collective::Scatter if is_root => (0, own),
            Collective::Gather | Collective::Scatter => (0, inputs),
            _ => (0, 0),
        };
        let first_scratch = (first_input + inputs).max(first_output + outputs);
        let scratch = algo.gpus[rank as usize].used[2];
        let mut cells: Vec<Cell> = (0..first_scratch + scratch).map(|_| Cell::default()).collect();
        if algo.collective.has_input(rank, root) {
            for chunk in 0..inputs {
                let cell = &mut cells[(first_input + chunk) as usize];
                cell.input = Some(chunk);
                cell.value = Some(Rc::new(Value { parts: vec![(rank, chunk, 1)], blame: None, hops: 0 }));
            }
        }
        if algo.collective.has_output(rank, root) {
            (0..outputs).for_each(|chunk| cells[(first_output + chunk) as usize].output = Some(chunk));
        }
        for chunk in 0..scratch {
            cells[(first_scratch + chunk) as usize].scratch = Some(chunk);
        }
        Self { cells, first_input, first_output, first_scratch, scratch }
    }

    /// The number of places.
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// The place of a chunk.
    pub fn index(&self, buf: Buf, chunk: u32) -> usize {
        let first = match buf {
            Buf::Input => self.first_input,
            Buf::Output => self.first_output,
            Buf::Scratch => self.first_scratch,
        };
        (first + chunk) as usize
    }

    fn cell(&mut self, buf: Buf, chunk: u32) -> &mut Cell {
        let index = self.index(buf, chunk);
        &mut self.cells[index]
    }

    /// The value in a chunk, and the place where a program reads it; None = nobody wrote it.
    pub fn read(&mut self, buf: Buf, chunk: u32) -> Option<(Ref, Rc<Value>)> {
        let cell = self.cell(buf, chunk);
        let value = cell.value.clone()?;
        let at = match (cell.is_written, cell.output, cell.scratch) {
            (false, _, _) => Ref { buf: Buf::Input, chunk: cell.input? },
            (true, Some(chunk), _) => Ref { buf: Buf::Output, chunk },
            (true, None, scratch) => Ref { buf: Buf::Scratch, chunk: scratch? },
        };
        Some((at, value))
    }

    /// The place that a program writes a chunk to.
    pub fn place(&mut self, buf: Buf, chunk: u32) -> Ref {
        let next = self.scratch;
        let cell = self.cell(buf, chunk);
        if let Some(chunk) = cell.output {
            return Ref { buf: Buf::Output, chunk };
        }
        let chunk = *cell.scratch.get_or_insert(next);
        if chunk == next {
            self.scratch += 1;
        }
        Ref { buf: Buf::Scratch, chunk }
    }

    /// The step at `writer` has written a chunk.
    pub fn write(&mut self, buf: Buf, chunk: u32, value: Rc<Value>, writer: Pos) {
        let cell = self.cell(buf, chunk);
        (cell.value, cell.is_written, cell.writer) = (Some(value), true, writer);
    }

    /// Inputs that are outputs as they are and that nobody wrote, as (input chunk, output chunk).
    pub fn kept(&self) -> Vec<(u32, u32)> {
        let kept = |cell: &Cell| (!cell.is_written).then_some((cell.input?, cell.output?));
        self.cells.iter().filter_map(kept).collect()
    }

    /// Output chunk and the first contribution to it: whose input, and which chunk of that.
    pub fn moved(&self) -> Outputs {
        let first = |value: Rc<Value>| value.parts.first().map(|part| (part.0, part.1));
        self.outputs().into_iter().map(|(chunk, value, _)| (chunk, value.and_then(first))).collect()
    }

    /// Output chunk, value if any, and who wrote it.
    pub fn outputs(&self) -> Vec<(u32, Option<Rc<Value>>, Pos)> {
        let output = |cell: &Cell| Some((cell.output?, cell.value.clone(), cell.writer));
        self.cells.iter().filter_map(output).collect()
    }
}
