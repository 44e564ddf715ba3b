//! Numbers of ranks: options, and what is said where there are too few.

use clap::builder::RangedI64ValueParser;
use hawser_plan::algo::MAX_RANKS;

/// Reads a number of ranks, or of what makes ranks, from `least` on.
pub fn ranks(least: i64) -> RangedI64ValueParser<u32> {
    RangedI64ValueParser::new().range(least..=i64::from(MAX_RANKS))
}

/// The GPUs of a machine that has fewer than two, as a sentence names them.
pub fn too_few(gpus: u32) -> &'static str {
    match gpus {
        0 => "no GPU",
        _ => "one GPU",
    }
}
