//! The values that every rank begins with and must end with: numbers drawn for every chunk, and their sums.

use super::Way;
use super::file::{File, Kind, Memory};

/// The memory of a rank as cells in a row, and where its buffers begin in it.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    input: usize,
    output: usize,
    scratch: usize,
    pub cells: usize,
}

impl Layout {
    /// In place, one buffer lies within the other as NCCL says: at the part of the rank, or at its beginning.
    pub fn of(file: &File, rank: usize, way: Way) -> Self {
        let (inputs, outputs) = file.sizes();
        let part = rank * file.part;
        let (input, output) = match (way, file.kind) {
            (Way::Apart, _) => (0, inputs),
            (_, Kind::AllGather) => (part, 0),
            (_, Kind::ReduceScatter) => (0, part),
            (_, Kind::Gather) if rank == file.root => (part, 0),
            (_, Kind::Scatter) if rank == file.root => (0, part),
            // A rank that only gives, or only gets, has one buffer.
            (_, Kind::Gather | Kind::Scatter) => (0, inputs),
            _ => (0, 0),
        };
        let scratch = (input + inputs).max(output + outputs);
        Self { input, output, scratch, cells: scratch + file.gpus[rank].scratch }
    }

    /// The cell of a chunk.
    pub fn cell(&self, (memory, chunk): (Memory, usize)) -> usize {
        chunk
            + match memory {
                Memory::Input => self.input,
                Memory::Output => self.output,
                Memory::Scratch => self.scratch,
            }
    }
}

/// The number that chunk `chunk` of the input of `rank` stands for. Numbers add up modulo 2^64, so a sum
/// tells (but for one in 2^64) which chunks were added, and how often.
pub fn number(rank: usize, chunk: usize) -> u64 {
    // The finalizer of SplitMix64.
    let mut z = ((rank as u64) << 32 | chunk as u64).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The rank and the chunk that a number stands for.
pub fn origin(file: &File, wanted: u64) -> Option<(usize, usize)> {
    let all = (0..file.ranks).flat_map(|rank| (0..file.sizes().0).map(move |chunk| (rank, chunk)));
    all.into_iter().find(|&(rank, chunk)| number(rank, chunk) == wanted)
}

/// The cells of a rank before the first step.
pub fn before(file: &File, rank: usize, layout: &Layout) -> Vec<Option<u64>> {
    let mut cells = vec![None; layout.cells];
    let gives = match file.kind {
        Kind::Broadcast | Kind::Scatter => rank == file.root,
        _ => true,
    };
    let chunks = if gives { file.sizes().0 } else { 0 };
    for chunk in 0..chunks {
        cells[layout.cell((Memory::Input, chunk))] = Some(number(rank, chunk));
    }
    cells
}

/// The chunks of the output of a rank after the last step; none where the collective leaves it alone.
pub fn after(file: &File, rank: usize) -> Vec<u64> {
    let sum = |chunk| (0..file.ranks).fold(0_u64, |sum, rank| sum.wrapping_add(number(rank, chunk)));
    let (part, own) = (file.part, rank * file.part);
    let all = || (0..file.ranks * part).map(|at| (at / part, at % part));
    match file.kind {
        Kind::Custom => Vec::new(),
        Kind::Reduce | Kind::Gather if rank != file.root => Vec::new(),
        Kind::AllReduce | Kind::Reduce => (0..part).map(sum).collect(),
        Kind::ReduceScatter => (own..own + part).map(sum).collect(),
        Kind::Broadcast => (0..part).map(|chunk| number(file.root, chunk)).collect(),
        Kind::Scatter => (own..own + part).map(|chunk| number(file.root, chunk)).collect(),
        Kind::AllGather | Kind::Gather => all().map(|(of, chunk)| number(of, chunk)).collect(),
        Kind::AllToAll => all().map(|(of, chunk)| number(of, own + chunk)).collect(),
    }
}
