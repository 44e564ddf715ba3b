//! Options that are numbers of ranks.

use clap::builder::RangedI64ValueParser;
use hawser_plan::algo::MAX_RANKS;

/// Reads a number of ranks, or of what makes ranks, from `least` on.
pub fn ranks(least: i64) -> RangedI64ValueParser<u32> {
    RangedI64ValueParser::new().range(least..=i64::from(MAX_RANKS))
}
