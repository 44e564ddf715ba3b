//! The data that every rank puts in, and those that must come out, worked out from the definition alone.
//!
//! Data repeat with a prime period, so a gigabyte costs as much thought as a few thousand elements
//! and no power of two moves a chunk onto an equal one. Where nothing is reduced the data are random
//! bits. Where values are combined they are chosen so that every partial result in every order is
//! exact in the element type: integers wrap, floats are small whole numbers (or powers of two for
//! products), and where the type is too narrow only a window of ranks, which moves with the index,
//! contributes. Only a floating-point average over ranks that are no power of two has a tolerance.

use hawser_types::{DataType, ReduceOp, Scalar};

use crate::numbers::{Number, decode, digits, encode};

/// Elements after which data repeat.
pub const PERIOD: u64 = 6151;

/// One data set: all ranks' inputs of one operation.
#[derive(Debug, Clone, Copy)]
pub struct Data {
    /// Element type.
    pub dtype: DataType,
    /// The reduction, None where data are only moved.
    pub op: Option<ReduceOp>,
    /// Number of ranks.
    pub ranks: u32,
    /// Data sets with different seeds differ.
    pub seed: u64,
}

/// The data that a stretch of output must hold.
pub struct Expected {
    dtype: DataType,
    /// One period, encoded.
    bytes: Vec<u8>,
    /// By how much each element may differ; empty = not at all.
    tolerance: Vec<f64>,
}

impl Data {
    /// Writes elements `0..` of `rank`'s input over all of `out`, which holds whole elements.
    pub fn fill(&self, rank: u32, out: &mut [u8]) {
        self.input(rank, (out.len() / self.dtype.size()) as u64).repeat(0, out);
    }

    /// `rank`'s input as an expectation, enough of it for buffers of `elements` elements.
    pub fn input(&self, rank: u32, elements: u64) -> Expected {
        let size = self.dtype.size();
        let mut bytes = vec![0; elements.min(PERIOD) as usize * size];
        for (i, out) in bytes.chunks_exact_mut(size).enumerate() {
            match self.op {
                None => out.copy_from_slice(&self.random(rank, i as u64).to_le_bytes()[..size]),
                Some(op) => encode(self.dtype, self.value(op, rank, i as u64), out),
            }
        }
        Expected { dtype: self.dtype, bytes, tolerance: Vec::new() }
    }

    /// All ranks' inputs combined by `op`, enough of it for buffers of `elements` elements.
    pub fn reduced(&self, op: ReduceOp, elements: u64) -> Expected {
        let size = self.dtype.size();
        let mut bytes = vec![0; elements.min(PERIOD) as usize * size];
        let mut tolerance = Vec::new();
        let exact = op != ReduceOp::Avg || !self.dtype.is_float() || self.ranks.is_power_of_two();
        for (i, out) in bytes.chunks_exact_mut(size).enumerate() {
            let inputs = (0..self.ranks).map(|rank| (rank, self.value(op, rank, i as u64)));
            if self.dtype.is_float() {
                let inputs: Vec<_> = inputs.map(|(rank, v)| (rank, float(v))).collect();
                encode(self.dtype, Number::Float(self.combine_floats(op, &inputs)), out);
                if !exact {
                    tolerance.push(self.average_tolerance(&inputs));
                }
            } else {
                let inputs: Vec<_> = inputs.map(|(rank, v)| (rank, int(v))).collect();
                encode(self.dtype, Number::Int(self.combine_ints(op, &inputs)), out);
            }
        }
        Expected { dtype: self.dtype, bytes, tolerance }
    }

    /// The factor of `rank` in a pre-multiplied sum, as the planner takes it.
    pub fn scalar(&self, rank: u32) -> Scalar {
        let factor = premul_factor(rank);
        Scalar::Immediate(match self.dtype {
            DataType::Float64 => (factor as f64).to_bits(),
            _ if self.dtype.is_float() => u64::from((factor as f32).to_bits()),
            _ => factor as u64,
        })
    }

    /// The factor of `rank` in a pre-multiplied sum as one element.
    pub fn factor(&self, rank: u32) -> Vec<u8> {
        let mut bytes = vec![0; self.dtype.size()];
        encode(self.dtype, Number::Int(premul_factor(rank)), &mut bytes);
        bytes
    }

    fn combine_ints(&self, op: ReduceOp, inputs: &[(u32, i128)]) -> i128 {
        let values = inputs.iter().map(|(_, v)| *v);
        match op {
            ReduceOp::Sum => values.fold(0, i128::wrapping_add),
            ReduceOp::Prod => values.fold(1, i128::wrapping_mul),
            ReduceOp::Max => values.max().unwrap_or(0),
            ReduceOp::Min => values.min().unwrap_or(0),
            ReduceOp::Avg => values.fold(0, i128::wrapping_add) / i128::from(self.ranks),
            ReduceOp::PreMulSum => inputs
                .iter()
                .fold(0, |sum: i128, (rank, v)| sum.wrapping_add(v.wrapping_mul(premul_factor(*rank)))),
        }
    }

    fn combine_floats(&self, op: ReduceOp, inputs: &[(u32, f64)]) -> f64 {
        let values = inputs.iter().map(|(_, v)| *v);
        match op {
            ReduceOp::Sum => values.sum(),
            ReduceOp::Prod => values.product(),
            ReduceOp::Max => values.fold(f64::NEG_INFINITY, f64::max),
            ReduceOp::Min => values.fold(f64::INFINITY, f64::min),
            ReduceOp::Avg => values.sum::<f64>() / f64::from(self.ranks),
            ReduceOp::PreMulSum => inputs.iter().map(|(rank, v)| v * premul_factor(*rank) as f64).sum(),
        }
    }

    /// Rounding of the reciprocal, of every product and sum, of the result, and of our own encoding,
    /// relative to the sum of magnitudes.
    fn average_tolerance(&self, inputs: &[(u32, f64)]) -> f64 {
        let magnitude: f64 = inputs.iter().map(|(_, v)| v.abs()).sum();
        let contributions = inputs.iter().filter(|(_, v)| *v != 0.0).count() as f64;
        let rounding = 2f64.powi(-(digits(self.dtype) as i32));
        (contributions + 4.0) * rounding * magnitude / f64::from(self.ranks)
    }

    /// `rank`'s element `i` (< [`PERIOD`]) for a reduction by `op`.
    fn value(&self, op: ReduceOp, rank: u32, i: u64) -> Number {
        let random = self.random(rank, i);
        if !self.dtype.is_float() {
            return Number::Int(self.int_value(op, rank, i, random));
        }
        Number::Float(match op {
            ReduceOp::Max | ReduceOp::Min => self.any_float(random),
            ReduceOp::Prod => {
                let sign = if random & 1 == 0 { 1.0 } else { -1.0 };
                let factor = if random & 2 == 0 { 2.0 } else { 0.5 };
                sign * if self.contributes(rank, i, product_window(self.dtype)) { factor } else { 1.0 }
            }
            ReduceOp::Sum | ReduceOp::PreMulSum => {
                let budget = if op == ReduceOp::Sum { whole(self.dtype) } else { whole(self.dtype) / 2 };
                self.small(rank, i, random, budget / 2, budget) as f64
            }
            ReduceOp::Avg => {
                let (window, budget) = average_spread(self.dtype);
                let scale =
                    if self.dtype == DataType::Float8e4m3 { log2(self.ranks).saturating_sub(6) } else { 0 };
                self.small(rank, i, random, window, budget) as f64 * 2f64.powi(scale as i32)
            }
        })
    }

    fn int_value(&self, op: ReduceOp, rank: u32, i: u64, random: u64) -> i128 {
        let mut bytes = [0; 8];
        match op {
            ReduceOp::Avg => {
                // The sum must not wrap: where it is divided, the width of the sum would matter.
                let bits = self.dtype.size() as u32 * 8 - u32::from(self.signed());
                let budget = 1i64 << bits.min(40);
                let v = i128::from(self.small(rank, i, random, budget / 2, budget - 1));
                return if self.signed() { v } else { v.abs() };
            }
            ReduceOp::Prod => encode(self.dtype, Number::Int(i128::from(random | 1)), &mut bytes),
            _ => encode(self.dtype, Number::Int(i128::from(random)), &mut bytes),
        }
        int(decode(self.dtype, &bytes[..self.dtype.size()]))
    }

    /// A whole number, not 0, with random sign, if `rank` contributes to element `i`, else 0. At most
    /// `window` ranks contribute, and the sum of their magnitudes is at most `budget`.
    fn small(&self, rank: u32, i: u64, random: u64, window: i64, budget: i64) -> i64 {
        let window = window.min(i64::from(self.ranks)).max(1);
        if !self.contributes(rank, i, window as u64) {
            return 0;
        }
        let magnitude = 1 + ((random >> 1) % (budget / window).max(1) as u64) as i64;
        if random & 1 == 0 { magnitude } else { -magnitude }
    }

    fn contributes(&self, rank: u32, i: u64, window: u64) -> bool {
        (u64::from(rank) + i + self.seed) % u64::from(self.ranks) < window
    }

    /// Any finite float of moderate size.
    fn any_float(&self, random: u64) -> f64 {
        let limit = whole(self.dtype) as u64;
        let magnitude = ((random >> 3) % (limit + 1)) as f64 * 2f64.powi(-((random >> 1 & 3) as i32));
        if random & 1 == 0 { magnitude } else { -magnitude }
    }

    fn signed(&self) -> bool {
        matches!(self.dtype, DataType::Int8 | DataType::Int32 | DataType::Int64)
    }

    /// splitmix64's finisher over (seed, rank, index).
    fn random(&self, rank: u32, i: u64) -> u64 {
        let mut z = (self.seed << 48) ^ (u64::from(rank) << 32) ^ i;
        for _ in 0..2 {
            z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^= z >> 31;
        }
        z
    }
}

impl Expected {
    /// One period of elements (fewer if fewer were asked for), as they lie in memory.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// By how much each element of the period may differ; empty if not at all.
    pub fn tolerance(&self) -> &[f64] {
        &self.tolerance
    }

    /// Elements of `actual` that differ from elements `first..` of what is expected.
    pub fn count_wrong(&self, first: u64, actual: &[u8]) -> u64 {
        let size = self.dtype.size();
        let mut wrong = 0;
        let mut rest = actual;
        let mut at = self.offset(first);
        while !rest.is_empty() {
            let length = rest.len().min(self.bytes.len() - at);
            let (piece, next) = rest.split_at(length);
            if piece != &self.bytes[at..at + length] {
                let pairs = piece.chunks_exact(size).enumerate();
                wrong += pairs.filter(|(i, element)| !self.agrees(at / size + i, element)).count() as u64;
            }
            rest = next;
            at = 0;
        }
        wrong
    }

    /// Writes elements `first..` over all of `out`.
    pub fn repeat(&self, first: u64, out: &mut [u8]) {
        let mut at = self.offset(first);
        let mut rest = out;
        while !rest.is_empty() {
            let length = rest.len().min(self.bytes.len() - at);
            let (piece, next) = rest.split_at_mut(length);
            piece.copy_from_slice(&self.bytes[at..at + length]);
            rest = next;
            at = 0;
        }
    }

    /// Byte offset of element `first` in the period. A shorter period covers the whole buffer.
    fn offset(&self, first: u64) -> usize {
        (first % PERIOD) as usize * self.dtype.size()
    }

    fn agrees(&self, i: usize, actual: &[u8]) -> bool {
        let size = self.dtype.size();
        let wanted = &self.bytes[i * size..(i + 1) * size];
        if wanted == actual {
            return true;
        }
        match (decode(self.dtype, wanted), decode(self.dtype, actual)) {
            (Number::Float(wanted), Number::Float(actual)) if !wanted.is_nan() => {
                let tolerance = self.tolerance.get(i).copied().unwrap_or(0.0);
                (wanted - actual).abs() <= tolerance
            }
            _ => false,
        }
    }
}

/// Whole numbers up to this one are exact in a floating-point type (bounded for comfort).
fn whole(dtype: DataType) -> i64 {
    1 << digits(dtype).min(40)
}

/// Factors of two that a product may collect on its way before it leaves the type's normal range.
fn product_window(dtype: DataType) -> u64 {
    match dtype {
        DataType::Float8e4m3 => 6,
        DataType::Float8e5m2 | DataType::Float16 => 12,
        _ => 100,
    }
}

/// Ranks that contribute to an average, and the bound of their sum: the fewer, the sharper the check.
fn average_spread(dtype: DataType) -> (i64, i64) {
    match dtype {
        DataType::Float8e5m2 => (1, 4),
        DataType::Float8e4m3 => (2, 4),
        _ => (4, 64),
    }
}

/// Depends on the rank, as the API allows, and is exact in every type.
fn premul_factor(rank: u32) -> i128 {
    1 + i128::from(rank % 2)
}

fn log2(ranks: u32) -> u32 {
    ranks.next_power_of_two().trailing_zeros()
}

fn float(value: Number) -> f64 {
    match value {
        Number::Float(v) => v,
        Number::Int(v) => v as f64,
    }
}

fn int(value: Number) -> i128 {
    match value {
        Number::Int(v) => v,
        Number::Float(v) => v as i128,
    }
}

#[cfg(test)]
mod tests;
