//! `hawser`: measures and checks collectives, shows programs and choices, fits the cost model, finds and
//! changes rules, examines the machine.
//!
//! ```sh
//! hawser doctor                                        # what this machine offers
//! HAWSER_DEVICE=host hawser perf all_reduce -t 4 -b 8 -e 1M -f 2   # measure and check, on the CPU
//! hawser explain all_reduce --ranks 8                  # which algorithm runs at which size, and why
//! ```

mod doctor;
mod exec;
mod explain;
mod files;
mod measure;
mod output;
mod perf;
mod plan;
mod rules;
mod subprocess;
mod svg;
mod tune;

use std::process::ExitCode;

// Built-in plugins: named here, or the linker would leave them out.
use hawser_net_ib as _;
use hawser_net_socket as _;

use clap::{Parser, Subcommand};

/// Collectives for GPUs and CPUs: measure, explain, examine.
#[derive(Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure a collective and check its results (nccl-tests' options and columns)
    Perf(Box<perf::Perf>),
    /// Show, verify or draw a program
    Plan(plan::Options),
    /// Show which algorithm is chosen for which size, and why
    Explain(explain::Options),
    /// Check, explain, lay out and import rule files; change the rules of processes that run
    Rules(rules::Options),
    /// Measure this machine, so that algorithms are chosen by its own figures
    Measure(measure::Options),
    /// Find rules for this machine: measure what can run, and write down what is surely faster
    Tune(tune::Options),
    /// Say what this machine offers, what is missing and how to get it
    Doctor(doctor::Options),
    /// Run a program with this library in place of any other NCCL
    Exec(exec::Options),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Exec(options) => return exec::run(&options).unwrap_or_else(|error| failed(&error)),
        Command::Perf(options) => perf::run(&options),
        Command::Plan(options) => plan::run(&options),
        Command::Explain(options) => explain::run(&options).map(|()| true),
        Command::Rules(options) => rules::run(&options),
        Command::Measure(options) => measure::run(&options).map(|()| true),
        Command::Tune(options) => tune::run(&options).map(|()| true),
        Command::Doctor(options) => doctor::run(&options),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => failed(&error),
    }
}

/// Tells what went wrong.
fn failed(error: &anyhow::Error) -> ExitCode {
    eprintln!("hawser: {error:#}");
    ExitCode::FAILURE
}
