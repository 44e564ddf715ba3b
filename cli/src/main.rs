//! `hawser`: measures and checks collectives, shows programs and choices, examines the machine.

mod doctor;
mod explain;
mod numbers;
mod oracle;
mod perf;
mod plan;

use std::process::ExitCode;

// Built-in plugins: named here, or the linker would leave them out.
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
    Perf(Box<perf::Options>),
    /// Show, verify or draw a program
    Plan(plan::Options),
    /// Show which algorithm is chosen for which size, and why
    Explain(explain::Options),
    /// Say what this machine offers, what is missing and how to get it
    Doctor,
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Perf(options) => perf::run(&options),
        Command::Plan(options) => plan::run(&options),
        Command::Explain(options) => explain::run(&options).map(|()| true),
        Command::Doctor => {
            doctor::run();
            Ok(true)
        }
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("hawser: {error:#}");
            ExitCode::FAILURE
        }
    }
}
