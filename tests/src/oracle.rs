//! Test data and expected results, computed apart from the library.
//!
//! Values are small whole numbers chosen so that every intermediate result is exact in all 12 data
//! types, in any order of reduction: at most three ranks contribute to a sum, at most two factors of a
//! product differ from one. Only averages of floating-point types round, and are compared with a
//! tolerance of a few units in the last place.

use half::{bf16, f16};
use hawser_plan::{Collective, DataType, ReduceOp};

/// What one test case runs.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// Collective.
    pub collective: Collective,
    /// Element type.
    pub dtype: DataType,
    /// Reduction.
    pub op: ReduceOp,
    /// Number of ranks.
    pub ranks: u32,
    /// Root.
    pub root: u32,
    /// Elements per block (NCCL's count).
    pub count: usize,
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

    /// Element `i` of the input of `rank`.
    pub fn input(&self, rank: u32, i: usize) -> f64 {
        let (n, r) = (self.ranks as usize, rank as usize);
        let sign = if is_signed(self.dtype) && i.is_multiple_of(5) { -1.0 } else { 1.0 };
        if !self.collective.reduces() {
            return sign * ((i + 3 * r) % 8) as f64;
        }
        match self.op {
            ReduceOp::Prod => sign * if (i + r) % n < 2 { 2.0 } else { 1.0 },
            ReduceOp::Max | ReduceOp::Min => sign * ((i * 7 + r * 5) % 8) as f64,
            _ if (i + r) % n < 3 => sign * (1 + (i + r) % 2) as f64,
            _ => 0.0,
        }
    }

    /// The factor of a pre-multiplied sum.
    pub const FACTOR: f64 = 2.0;

    /// Element `i` of the output of `rank`; None where the collective leaves it alone.
    pub fn output(&self, rank: u32, i: usize) -> Option<f64> {
        let (count, r) = (self.count, rank as usize);
        let (block, at) = (i / count.max(1), i % count.max(1));
        if !self.collective.has_output(rank, self.root) {
            return None;
        }
        Some(match self.collective {
            Collective::AllReduce | Collective::Reduce => self.reduced(i),
            Collective::ReduceScatter => self.reduced(r * count + i),
            Collective::Broadcast => self.input(self.root, i),
            Collective::AllGather | Collective::Gather => self.input(block as u32, at),
            Collective::AllToAll => self.input(block as u32, r * count + at),
            Collective::Scatter => self.input(self.root, r * count + i),
            Collective::SendRecv => return None,
        })
    }

    fn reduced(&self, i: usize) -> f64 {
        let values = (0..self.ranks).map(|r| self.input(r, i));
        match self.op {
            ReduceOp::Sum => values.sum(),
            ReduceOp::PreMulSum => values.map(|v| v * Self::FACTOR).sum(),
            ReduceOp::Prod => values.product(),
            ReduceOp::Max => values.fold(f64::NEG_INFINITY, f64::max),
            ReduceOp::Min => values.fold(f64::INFINITY, f64::min),
            ReduceOp::Avg => {
                let mean = values.sum::<f64>() / f64::from(self.ranks);
                if self.dtype.is_float() { mean } else { mean.trunc() }
            }
        }
    }

    /// Whether `got` is right for element `i` of `rank`.
    pub fn accepts(&self, rank: u32, i: usize, got: f64) -> bool {
        let Some(want) = self.output(rank, i) else { return true };
        if self.op != ReduceOp::Avg || !self.collective.reduces() || !self.dtype.is_float() {
            return got == want;
        }
        // Each of up to three contributions is rounded, and so is each partial sum.
        let digits = match self.dtype {
            DataType::Float8e5m2 => 2,
            DataType::Float8e4m3 => 3,
            DataType::Bfloat16 => 7,
            DataType::Float16 => 10,
            DataType::Float32 => 23,
            _ => 52,
        };
        let smallest = match self.dtype {
            DataType::Float8e5m2 => 2f64.powi(-16),
            DataType::Float8e4m3 => 2f64.powi(-9),
            _ => 0.0,
        };
        (got - want).abs() <= 4.0 * (want.abs() * 2f64.powi(-digits) + smallest)
    }
}

fn is_signed(dtype: DataType) -> bool {
    !matches!(dtype, DataType::Uint8 | DataType::Uint32 | DataType::Uint64)
}

/// Bytes of a value that is exact in the type.
pub fn encode(dtype: DataType, x: f64) -> Vec<u8> {
    match dtype {
        DataType::Int8 => (x as i8).to_le_bytes().to_vec(),
        DataType::Uint8 => (x as u8).to_le_bytes().to_vec(),
        DataType::Int32 => (x as i32).to_le_bytes().to_vec(),
        DataType::Uint32 => (x as u32).to_le_bytes().to_vec(),
        DataType::Int64 => (x as i64).to_le_bytes().to_vec(),
        DataType::Uint64 => (x as u64).to_le_bytes().to_vec(),
        DataType::Float16 => f16::from_f64(x).to_le_bytes().to_vec(),
        DataType::Float32 => (x as f32).to_le_bytes().to_vec(),
        DataType::Float64 => x.to_le_bytes().to_vec(),
        DataType::Bfloat16 => bf16::from_f64(x).to_le_bytes().to_vec(),
        DataType::Float8e4m3 | DataType::Float8e5m2 => {
            // Small types: look the code up among all 256.
            let code = (0..=255u8).find(|c| decode(dtype, &[*c]) == x && (x != 0.0 || *c == 0));
            vec![code.unwrap_or(0x7f)]
        }
    }
}

/// The value of an element.
pub fn decode(dtype: DataType, bytes: &[u8]) -> f64 {
    fn at<const N: usize>(bytes: &[u8]) -> [u8; N] {
        bytes[..N].try_into().expect("an element")
    }
    match dtype {
        DataType::Int8 => f64::from(bytes[0] as i8),
        DataType::Uint8 => f64::from(bytes[0]),
        DataType::Int32 => f64::from(i32::from_le_bytes(at(bytes))),
        DataType::Uint32 => f64::from(u32::from_le_bytes(at(bytes))),
        DataType::Int64 => i64::from_le_bytes(at(bytes)) as f64,
        DataType::Uint64 => u64::from_le_bytes(at(bytes)) as f64,
        DataType::Float16 => f16::from_le_bytes(at(bytes)).to_f64(),
        DataType::Float32 => f64::from(f32::from_le_bytes(at(bytes))),
        DataType::Float64 => f64::from_le_bytes(at(bytes)),
        DataType::Bfloat16 => bf16::from_le_bytes(at(bytes)).to_f64(),
        DataType::Float8e4m3 => small_float(bytes[0], 4, 3),
        DataType::Float8e5m2 => small_float(bytes[0], 5, 2),
    }
}

fn small_float(code: u8, exponent_bits: i32, mantissa_bits: i32) -> f64 {
    let sign = if code >> 7 == 0 { 1.0 } else { -1.0 };
    let bias = (1 << (exponent_bits - 1)) - 1;
    let exponent = i32::from(code >> mantissa_bits) & ((1 << exponent_bits) - 1);
    let mantissa = f64::from(code & ((1 << mantissa_bits) - 1)) / f64::from(1 << mantissa_bits);
    let all_ones = exponent == (1 << exponent_bits) - 1;
    if all_ones && (mantissa_bits == 2 || code & 7 == 7) {
        return if mantissa == 0.0 { sign * f64::INFINITY } else { f64::NAN };
    }
    match exponent {
        0 => sign * mantissa * 2f64.powi(1 - bias),
        e => sign * (1.0 + mantissa) * 2f64.powi(e - bias),
    }
}

/// A buffer at an address that is `shift` elements off a 64-byte boundary, with guard bytes on both sides.
pub struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

/// What guard bytes and untouched elements hold.
const GUARD: u8 = 0xa5;
/// Guard bytes on each side.
const MARGIN: usize = 128;

impl Buffer {
    /// `len` bytes, `shift` bytes off alignment, filled with the guard pattern.
    pub fn new(len: usize, shift: usize) -> Self {
        let bytes = vec![GUARD; len + 2 * MARGIN + 64 + shift];
        let start = (bytes.as_ptr() as usize + MARGIN).next_multiple_of(64) - bytes.as_ptr() as usize + shift;
        Self { bytes, start, len }
    }

    /// Address of the first byte.
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

    /// Whether nothing was written around the contents.
    pub fn guards_hold(&self) -> bool {
        let around = self.bytes[..self.start].iter().chain(&self.bytes[self.start + self.len..]);
        around.into_iter().all(|b| *b == GUARD)
    }
}

/// One rank's buffers of a case.
pub struct RankBuffers {
    /// What is sent.
    pub input: Buffer,
    /// What is received; shares memory with `input` when in place.
    pub output: Buffer,
    /// Both are one buffer, held in `output`.
    pub in_place: bool,
}

impl RankBuffers {
    /// Buffers with the input filled in. `shift` is in elements.
    pub fn new(case: &Case, rank: u32, in_place: bool, shift: usize) -> Self {
        let size = case.dtype.size();
        let mut input = Buffer::new(case.input_len() * size, shift * size);
        let mut output = Buffer::new(
            case.output_len().max(if in_place { case.input_len() } else { 0 }) * size,
            shift * size,
        );
        let to = if in_place { &mut output } else { &mut input };
        let offset = if in_place { in_place_offset(case, rank).0 } else { 0 };
        for i in 0..case.input_len() {
            let at = (offset + i) * size;
            to.bytes_mut()[at..at + size].copy_from_slice(&encode(case.dtype, case.input(rank, i)));
        }
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
        let size = case.dtype.size();
        let offset = if self.in_place { in_place_offset(case, rank).1 } else { 0 };
        for i in 0..case.output_len() {
            let at = (offset + i) * size;
            let got = decode(case.dtype, &self.output.bytes()[at..at + size]);
            if !case.accepts(rank, i, got) {
                let want = case.output(rank, i);
                return Some(format!(
                    "{case:?} rank {rank} in place {}: element {i} is {got}, expected {want:?}",
                    self.in_place
                ));
            }
        }
        None
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

    #[test]
    fn values_are_exact_in_every_type() {
        for dtype in DataType::ALL {
            for x in [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 10.0, 12.0] {
                assert_eq!(decode(dtype, &encode(dtype, x)), x, "{dtype:?}");
            }
        }
    }

    #[test]
    fn wrong_results_are_seen() {
        let case = Case {
            collective: Collective::AllReduce,
            dtype: DataType::Float32,
            op: ReduceOp::Sum,
            ranks: 3,
            root: 0,
            count: 4,
        };
        let buffers = RankBuffers::new(&case, 0, false, 0);
        assert!(buffers.fault(&case, 0).is_some(), "an untouched output must not pass");
        let mut all = RankBuffers::new(&case, 0, false, 1);
        for i in 0..4 {
            let value = encode(case.dtype, (0..3).map(|r| case.input(r, i)).sum());
            all.output.bytes_mut()[i * 4..i * 4 + 4].copy_from_slice(&value);
        }
        assert_eq!(all.fault(&case, 0), None);
    }
}
