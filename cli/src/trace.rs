//! `hawser trace`: says why nothing moves, and shows where the time went.

mod analysis;
mod clocks;
mod hang;
mod merge;
mod python;
pub mod read;
mod sources;
mod view;

use anyhow::Result;
use clap::{Args, Subcommand};

/// Options of `hawser trace`.
#[derive(Debug, Args)]
pub struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Say for each communicator which rank keeps the others waiting, why, and what to do
    #[command(after_help = "Examples:
  hawser trace hang
  hawser trace hang --pid 4711
  hawser trace hang --open --json | jq '.[].sentence'
  hawser trace hang --files progress/hawser-progress-*")]
    Hang(hang::Hang),
    /// Join the traces of several ranks and hosts into one, with one clock
    #[command(after_help = "Examples:
  hawser trace merge hawser-trace-*.json -o job.json      # then open job.json in ui.perfetto.dev

Files of one host share a clock. Between hosts, the ends of the same collectives are laid on each
other; where hosts have none in common, their wall clocks count, and without these nothing is moved.")]
    Merge(merge::Merge),
    /// Write a page with the timelines of all ranks, who waits for whom, and slow links
    #[command(after_help = "Examples:
  hawser trace view hawser-trace-*.json -o job.html
  hawser trace view job.json -o job.html --progress progress/hawser-progress-*

The page needs nothing but a browser. Traces of several hosts are laid on each other as by
`hawser trace merge`.")]
    View(view::View),
}

/// Runs `hawser trace`.
///
/// # Errors
/// There is nothing to look at, or it cannot be read or written.
pub fn run(options: &Options) -> Result<()> {
    match &options.command {
        Command::Hang(options) => hang::run(options),
        Command::Merge(options) => merge::run(options),
        Command::View(options) => view::run(options),
    }
}

/// Reads a file as `merge` and `view` do, for a fuzz target.
pub fn fuzz(path: &std::path::Path, to: &mut dyn std::io::Write) {
    // Files that are no traces are refused.
    let _ = (merge::fuzz(path, to), view::fuzz(path));
}
