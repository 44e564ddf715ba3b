//! `hawser perf`: measures collectives and checks their results.
//!
//! ```text
//! options ─► launcher (who am I) ─► control (processes meet) ─► run ─► worker (a thread) ─► report
//!                                                    rank (one rank: buffers, oracle) ┘
//!                                                     └► library (linked, or a libnccl.so.2)
//! ```
//! [`overlap`] measures them beside GEMMs, [`simulate`] predicts them on clusters that are not here.

mod barrier;
pub mod collective;
mod control;
mod launcher;
mod library;
mod meeting;
pub mod options;
mod overlap;
mod rank;
mod report;
mod run;
mod simulate;
mod worker;

pub use library::Decided;
pub use options::Options;

use anyhow::{Result, anyhow};
use clap::{Args, Subcommand};

/// The command line: operations with options, or a measurement of another kind.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Perf {
    #[command(subcommand)]
    kind: Option<Kind>,
    #[command(flatten)]
    options: Option<Options>,
}

#[derive(Subcommand)]
enum Kind {
    /// Measure what a collective and a GEMM on the same GPUs cost each other, and compare
    #[command(after_help = "Examples:
  hawser perf overlap all_reduce --plot overlap.svg
  hawser perf overlap all_gather -b 64M --library /usr/lib/x86_64-linux-gnu/libnccl.so.2")]
    Overlap(overlap::Options),
}

/// Runs `hawser perf`. Returns whether all results were right.
///
/// # Errors
/// Options, bring-up or an operation failed.
pub fn run(perf: &Perf) -> Result<bool> {
    match (&perf.kind, &perf.options) {
        (Some(Kind::Overlap(options)), _) => overlap::run(options),
        (None, Some(options)) => match &options.simulate {
            Some(cluster) => simulate::run(options, cluster),
            None => run::run(options),
        },
        (None, None) => Err(anyhow!("perf needs the name of an operation")),
    }
}
