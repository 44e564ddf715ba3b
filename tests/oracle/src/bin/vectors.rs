//! Writes the oracle's data for reductions into a file, for programs that are not written in Rust:
//! `vectors RANKS FILE`.
//!
//! The file begins with one line of JSON: `ranks`, `period` (elements after which all data repeat) and
//! `parts`, a list of `[type, reduction, kind, rank, offset, bytes]`. Types and reductions are NCCL's
//! numbers (5 is the pre-multiplied sum). An `input` is what `rank` puts in, `reduced` what must come out,
//! `tolerance` the double by which each element may differ (no such part: not at all), and `factor` the
//! element by which `rank` multiplies in a pre-multiplied sum. Offsets count from the byte after the line.

use std::io::Write;
use std::process::ExitCode;

use hawser_oracle::Data;
use hawser_oracle::data::PERIOD;
use hawser_types::{DataType, ReduceOp};
use serde_json::{Value, json};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (ranks, path) = match words.as_slice() {
        [ranks, path] => (ranks.parse().ok().filter(|ranks| (1..=1024).contains(ranks)), path),
        _ => (None, &String::new()),
    };
    let Some(ranks) = ranks else {
        eprintln!("usage: vectors RANKS FILE, with 1 to 1024 ranks");
        return ExitCode::from(2);
    };
    match write(ranks, path) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vectors: {path}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn write(ranks: u32, path: &str) -> std::io::Result<()> {
    let mut vectors = Vectors::default();
    for dtype in DataType::ALL {
        for op in ReduceOp::ALL {
            vectors.add(dtype, op, ranks);
        }
    }
    let header = json!({ "ranks": ranks, "period": PERIOD, "parts": vectors.parts });
    let mut file = std::fs::File::create(path)?;
    writeln!(file, "{header}")?;
    file.write_all(&vectors.bytes)
}

/// The parts of a file, and their bytes.
#[derive(Default)]
struct Vectors {
    parts: Vec<Value>,
    bytes: Vec<u8>,
}

impl Vectors {
    /// The inputs of all ranks, what they reduce to, and what else one has to know of a reduction.
    fn add(&mut self, dtype: DataType, op: ReduceOp, ranks: u32) {
        let data = Data { dtype, op: Some(op), ranks, seed: 0 };
        for rank in 0..ranks {
            self.part(dtype, op, "input", rank, data.input(rank, PERIOD).bytes());
            if op == ReduceOp::PreMulSum {
                self.part(dtype, op, "factor", rank, &data.factor(rank));
            }
        }
        let reduced = data.reduced(op, PERIOD);
        self.part(dtype, op, "reduced", 0, reduced.bytes());
        if !reduced.tolerance().is_empty() {
            let tolerance: Vec<u8> = reduced.tolerance().iter().flat_map(|t| t.to_le_bytes()).collect();
            self.part(dtype, op, "tolerance", 0, &tolerance);
        }
    }

    fn part(&mut self, dtype: DataType, op: ReduceOp, kind: &str, rank: u32, bytes: &[u8]) {
        self.parts.push(json!([dtype as u32, op as u32, kind, rank, self.bytes.len(), bytes.len()]));
        self.bytes.extend_from_slice(bytes);
    }
}
