//! A call of a collective in host memory: its buffers with guards around them, and what is wrong with a
//! result.

use hawser_types::{Collective, DataType, ReduceOp, Scalar};

use crate::data::{Data, Expected};
use crate::numbers::decode;

/// The operation of one test case.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// The collective that is called.
    pub collective: Collective,
    /// The type of the elements.
    pub dtype: DataType,
    /// The reduction, which counts only for collectives that reduce.
    pub op: ReduceOp,
    /// The number of ranks.
    pub ranks: u32,
    /// The root, which counts only for collectives that have one.
    pub root: u32,
    /// The elements per block (NCCL's count).
    pub count: usize,
}

/// A stretch of a rank's output.
struct Part {
    /// The source of the stretch.
    expected: Expected,
    /// The element of the source that the stretch begins with.
    first: usize,
}

impl Case {
    /// Elements of a rank's input (also where the rank's input is not read).
    pub fn input_len(&self) -> usize {
        self.collective.input_blocks(self.ranks) as usize * self.count
    }

    /// Elements of a rank's output.
    pub fn output_len(&self) -> usize {
        self.collective.output_blocks(self.ranks) as usize * self.count
    }

    /// The factor of `rank` in a pre-multiplied sum.
    pub fn scalar(&self, rank: u32) -> Scalar {
        self.data().scalar(rank)
    }

    fn data(&self) -> Data {
        let op = self.collective.reduces().then_some(self.op);
        Data { dtype: self.dtype, op, ranks: self.ranks, seed: 0 }
    }

    fn input(&self, rank: u32) -> Expected {
        self.data().input(rank, self.input_len() as u64)
    }

    /// The values that `rank` must get, in parts of `count` elements; none where the collective leaves its
    /// output alone.
    fn parts(&self, rank: u32) -> Vec<Part> {
        if !self.collective.has_output(rank, self.root) {
            return Vec::new();
        }
        let own = rank as usize * self.count;
        let reduced = || self.data().reduced(self.op, self.input_len() as u64);
        let of = |source: u32, first: usize| Part { expected: self.input(source), first };
        match self.collective {
            Collective::AllReduce | Collective::Reduce => vec![Part { expected: reduced(), first: 0 }],
            Collective::ReduceScatter => vec![Part { expected: reduced(), first: own }],
            Collective::Broadcast => vec![of(self.root, 0)],
            Collective::AllGather | Collective::Gather => (0..self.ranks).map(|r| of(r, 0)).collect(),
            Collective::AllToAll => (0..self.ranks).map(|r| of(r, own)).collect(),
            Collective::Scatter => vec![of(self.root, own)],
            Collective::SendRecv => Vec::new(),
        }
    }
}

/// A buffer at an address that is `shift` elements off a 64-byte boundary, with guard bytes on both sides.
pub struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

/// The value of guard bytes and of elements that nobody wrote.
const GUARD: u8 = 0xa5;
/// The number of guard bytes on each side.
const MARGIN: usize = 128;

impl Buffer {
    /// `len` bytes, `shift` bytes off alignment, filled with the guard pattern.
    pub fn new(len: usize, shift: usize) -> Self {
        let bytes = vec![GUARD; len + 2 * MARGIN + 64 + shift];
        let start = (bytes.as_ptr() as usize + MARGIN).next_multiple_of(64) - bytes.as_ptr() as usize + shift;
        Self { bytes, start, len }
    }

    /// The address of the first byte.
    pub fn addr(&self) -> u64 {
        self.bytes.as_ptr() as u64 + self.start as u64
    }

    /// The contents.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    /// The contents, to be filled.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let range = self.start..self.start + self.len;
        &mut self.bytes[range]
    }

    /// True if nothing was written around the contents.
    pub fn guards_hold(&self) -> bool {
        let around = self.bytes[..self.start].iter().chain(&self.bytes[self.start + self.len..]);
        around.into_iter().all(|b| *b == GUARD)
    }
}

/// One rank's buffers of a case.
pub struct RankBuffers {
    /// The buffer that is sent.
    pub input: Buffer,
    /// The buffer that is received; shares memory with `input` when in place.
    pub output: Buffer,
    /// True if both are one buffer, held in `output`.
    pub in_place: bool,
}

impl RankBuffers {
    /// Buffers with the input filled in. `shift` is in elements.
    pub fn new(case: &Case, rank: u32, in_place: bool, shift: usize) -> Self {
        let size = case.dtype.size();
        let longest = case.output_len().max(if in_place { case.input_len() } else { 0 });
        let mut input = Buffer::new(case.input_len() * size, shift * size);
        let mut output = Buffer::new(longest * size, shift * size);
        let to = if in_place { &mut output } else { &mut input };
        let offset = if in_place { in_place_offset(case, rank).0 } else { 0 };
        let range = offset * size..(offset + case.input_len()) * size;
        case.input(rank).repeat(0, &mut to.bytes_mut()[range]);
        Self { input, output, in_place }
    }

    /// (input address, output address) of the call.
    pub fn addresses(&self, case: &Case, rank: u32) -> (u64, u64) {
        if !self.in_place {
            return (self.input.addr(), self.output.addr());
        }
        let (input, output) = in_place_offset(case, rank);
        let size = case.dtype.size();
        (self.output.addr() + (input * size) as u64, self.output.addr() + (output * size) as u64)
    }

    /// The first thing that is wrong, if any.
    pub fn fault(&self, case: &Case, rank: u32) -> Option<String> {
        if !self.output.guards_hold() || !self.input.guards_hold() {
            return Some(format!("{case:?} rank {rank}: bytes around a buffer were overwritten"));
        }
        let bytes = case.count * case.dtype.size();
        let start = if self.in_place { in_place_offset(case, rank).1 * case.dtype.size() } else { 0 };
        let parts = case.parts(rank);
        let faulty = parts.iter().enumerate().find_map(|(block, part)| {
            let got = &self.output.bytes()[start + block * bytes..start + (block + 1) * bytes];
            part.fault(case, block * case.count, got)
        });
        faulty.map(|text| format!("{case:?} rank {rank} in place {}: {text}", self.in_place))
    }
}

impl Part {
    /// The fault of a stretch of output that begins at element `at`.
    fn fault(&self, case: &Case, at: usize, got: &[u8]) -> Option<String> {
        let first = self.first as u64;
        if self.expected.count_wrong(first, got) == 0 {
            return None;
        }
        let size = case.dtype.size();
        let mut elements = got.chunks_exact(size).enumerate();
        let is_wrong =
            |(i, element): &(usize, &[u8])| self.expected.count_wrong(first + *i as u64, element) > 0;
        let (i, element) = elements.find(is_wrong)?;
        let mut wanted = [0; 8];
        self.expected.repeat(first + i as u64, &mut wanted[..size]);
        let (got, wanted) = (decode(case.dtype, element), decode(case.dtype, &wanted[..size]));
        Some(format!("element {} is {got:?}, expected {wanted:?}", at + i))
    }
}

/// Offsets in elements of input and output within the one buffer of an in-place call.
pub fn in_place_offset(case: &Case, rank: u32) -> (usize, usize) {
    let own = rank as usize * case.count;
    match case.collective {
        Collective::AllGather => (own, 0),
        Collective::ReduceScatter => (0, own),
        Collective::Gather if rank == case.root => (own, 0),
        Collective::Scatter if rank == case.root => (0, own),
        _ => (0, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::{Number, encode};

    fn case(collective: Collective, count: usize) -> Case {
        Case { collective, dtype: DataType::Float32, op: ReduceOp::Sum, ranks: 3, root: 1, count }
    }

    /// Writes what must come out, by the definition of the collective.
    fn carry_out(case: &Case, rank: u32, buffers: &mut RankBuffers, inputs: &[RankBuffers]) {
        let (size, own) = (case.dtype.size(), rank as usize * case.count);
        let element = |r: u32, i: usize| inputs[r as usize].input.bytes()[i * size..][..size].to_vec();
        let sum = |i: usize| {
            let values = (0..case.ranks).map(|r| match decode(case.dtype, &element(r, i)) {
                Number::Float(value) => value,
                Number::Int(value) => value as f64,
            });
            let mut out = vec![0; size];
            encode(case.dtype, Number::Float(values.sum()), &mut out);
            out
        };
        for i in 0..case.output_len() {
            let (block, at) = ((i / case.count) as u32, i % case.count);
            let value = match case.collective {
                Collective::AllReduce | Collective::Reduce => sum(i),
                Collective::ReduceScatter => sum(own + i),
                Collective::Broadcast => element(case.root, i),
                Collective::AllGather | Collective::Gather => element(block, at),
                Collective::AllToAll => element(block, own + at),
                _ => element(case.root, own + i),
            };
            buffers.output.bytes_mut()[i * size..(i + 1) * size].copy_from_slice(&value);
        }
    }

    #[test]
    fn right_results_pass_and_wrong_ones_are_seen() {
        for collective in Collective::ALL {
            for count in [1, 17, 7000] {
                let case = case(collective, count);
                let inputs: Vec<_> = (0..3).map(|r| RankBuffers::new(&case, r, false, r as usize)).collect();
                for rank in (0..3).filter(|rank| collective.has_output(*rank, case.root)) {
                    let mut buffers = RankBuffers::new(&case, rank, false, 1);
                    assert!(buffers.fault(&case, rank).is_some(), "{collective:?}: an untouched output");
                    carry_out(&case, rank, &mut buffers, &inputs);
                    assert_eq!(buffers.fault(&case, rank), None);
                    let last = buffers.output.bytes().len() - 1;
                    buffers.output.bytes_mut()[last] ^= 0x40;
                    let fault = buffers.fault(&case, rank).unwrap();
                    assert!(fault.contains(&format!("element {} is", case.output_len() - 1)), "{fault}");
                }
            }
        }
    }

    #[test]
    fn bytes_around_a_buffer_are_guarded() {
        let case = case(Collective::Broadcast, 5);
        let mut buffers = RankBuffers::new(&case, 0, true, 3);
        let at = buffers.output.start + buffers.output.len;
        buffers.output.bytes[at] = 0;
        assert!(buffers.fault(&case, 0).unwrap().contains("overwritten"));
    }
}
