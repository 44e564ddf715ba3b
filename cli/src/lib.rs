//! `hawser`: measures and checks collectives, shows programs and choices, fits the cost model, finds and
//! changes rules, examines the machine.
//!
//! ```sh
//! hawser doctor                                        # what this machine offers
//! HAWSER_DEVICE=host hawser perf all_reduce -t 4 -b 8 -e 1M -f 2   # measure and check, on the CPU
//! hawser explain all_reduce --ranks 8                  # which algorithm runs at which size, and why
//! ```

mod adapt;
mod cluster;
mod doctor;
mod exec;
mod explain;
mod files;
pub mod fuzzing;
mod interrupt;
mod lint;
mod measure;
mod output;
mod pages;
mod perf;
mod plan;
mod progress;
mod ranks;
#[cfg(test)]
mod reference;
mod rules;
mod simulate;
mod subprocess;
mod svg;
mod top;
mod trace;
mod tune;

use std::process::ExitCode;
use std::sync::LazyLock;

// Built-in plugins: named here, or the linker would leave them out.
use hawser_net_ib as _;
use hawser_net_socket as _;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Collectives for GPUs and CPUs: measure, explain, examine
#[derive(Parser)]
#[command(name = "hawser", version = VERSION.as_str(), about, max_term_width = 100, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

const EXIT_CODES: &str = "Exit codes:
  0  all is right
  1  something is wrong: a result, a rule, a program, a finding of doctor; or a command failed
  2  the command line cannot be understood
  hawser exec ends as the program that it runs; 126 and 127 if that cannot be run or is not found";

/// The text for a person who has typed `hawser` for the first time.
const FIRST_STEPS: &str = "Hawser: collectives for GPUs and CPUs, in place of NCCL

What to do first:
  hawser doctor                               what this machine offers, and what is missing
  hawser perf all_reduce -b 8 -e 64M -f 4     measure and check (HAWSER_DEVICE=host: on the CPU)
  hawser exec -- python train.py              run a program with this library
  hawser explain all_reduce --ranks 8         what runs at which size, and why

Then:
  hawser measure                              let the cost model know this machine
  hawser tune                                 find rules that are faster here
  hawser help COMMAND                         options and examples of a command
";

#[derive(Subcommand)]
enum Command {
    /// Measure a collective and check its results (nccl-tests' options and columns)
    Perf(Box<perf::Perf>),
    /// Show, verify or draw a program
    #[command(after_help = "Examples:
  hawser plan list
  hawser plan show ring_all_reduce --ranks 8 --svg ring.svg
  hawser plan verify mine.xml")]
    Plan(plan::Options),
    /// Say what is wrong or unusual in program files, as a compiler would
    #[command(after_help = "Examples:
  hawser lint *.xml
  hawser lint --strict mine.xml theirs.json
  hawser lint --sarif *.xml > programs.sarif

Exit codes: 0 if no file has an error (with --strict: nor a warning), 1 if one has.")]
    Lint(lint::Options),
    /// Show which algorithm is chosen for which size, and why
    #[command(after_help = "Examples:
  hawser explain all_reduce --ranks 8
  hawser explain all_gather --ranks 16 --hosts 2 --bytes 1M
  hawser explain all_reduce --rules mine.toml --changes --json")]
    Explain(explain::Options),
    /// Check, explain, lay out and import rule files; change the rules of processes that run
    #[command(after_help = "Examples:
  hawser rules check mine.toml
  hawser rules list
  hawser rules apply mine.toml --job night")]
    Rules(rules::Options),
    /// Measure this machine, so that algorithms are chosen by its own figures
    #[command(after_help = "Examples:
  hawser measure
  hawser measure -g 4 -e 64M -o links.toml
  HAWSER_DEVICE=host hawser measure --dry-run --samples")]
    Measure(measure::Options),
    /// Find rules for this machine: measure what can run, and write down what is surely faster
    #[command(after_help = "Examples:
  hawser tune
  hawser tune all_reduce -b 1K -e 64M -o rules.toml
  hawser tune all_reduce --check rules.toml")]
    Tune(tune::Options),
    /// Predict a step of training on a cluster that is not here: its time, and what hides what
    #[command(after_help = "Examples:
  hawser simulate step.toml -o step.svg
  hawser simulate step.toml --cluster '64 hosts of hgx-h200, rail-optimised, 2:1' --json
  hawser simulate hawser-trace-*.json --cluster cluster.toml

How to write a step: docs/simulate.md. A recorded trace is one of Hawser's profiler plugin.")]
    Simulate(simulate::Options),
    /// Watch adaptive mode at work: a slow floor, what is learned, stress, recovery
    #[command(after_help = "Examples:
  hawser adapt demo
  hawser adapt demo --seconds 60 -o demo.html")]
    Adapt(adapt::Options),
    /// Say why nothing moves: which rank keeps the others waiting, and in what; join traces
    #[command(after_help = "Examples:
  hawser trace hang
  hawser trace hang --pid 4711
  hawser trace hang --open --json
  hawser trace merge hawser-trace-*.json -o job.json
  hawser trace view hawser-trace-*.json -o job.html")]
    Trace(trace::Options),
    /// Show the communicators and ranks of this host, live
    #[command(after_help = "Examples:
  hawser top
  hawser top --pid 4711 --every 0.5
  hawser top --files progress/hawser-progress-* --once
  hawser top --json | jq '.comms[].verdict.sentence'")]
    Top(top::Options),
    /// Say what this machine offers, what is missing and how to get it
    #[command(after_help = "Examples:
  hawser doctor
  hawser doctor --net
  hawser doctor --json | jq .problems

Exit codes: 0 if no problem was found, 1 if there is one (marked with !!).")]
    Doctor(doctor::Options),
    /// Run a program with this library in place of any other NCCL
    Exec(exec::Options),
    /// Write man pages into a folder, for packages
    #[command(hide = true, after_help = "Examples:\n  hawser man /usr/share/man/man1")]
    Man(pages::Man),
    /// Print completions for a shell, for packages
    #[command(hide = true, after_help = "Examples:\n  hawser completions bash > hawser.bash")]
    Completions(pages::Completions),
}

/// Runs the program with the arguments of the process.
pub fn main() -> ExitCode {
    let Some(command) = Cli::parse().command else {
        return output::print(FIRST_STEPS).map_or_else(|error| failed(&error), |()| ExitCode::SUCCESS);
    };
    let outcome = match command {
        Command::Exec(options) => exec::run(&options),
        other => run(other).map(|right| if right { ExitCode::SUCCESS } else { ExitCode::FAILURE }),
    };
    outcome.unwrap_or_else(|error| failed(&error))
}

/// Runs a command. Returns whether all is right.
fn run(command: Command) -> Result<bool> {
    match command {
        Command::Perf(options) => perf::run(&options),
        Command::Plan(options) => plan::run(&options),
        Command::Lint(options) => lint::run(&options),
        Command::Explain(options) => explain::run(&options).map(|()| true),
        Command::Rules(options) => rules::run(&options),
        Command::Measure(options) => measure::run(&options).map(|()| true),
        Command::Tune(options) => tune::run(&options).map(|()| true),
        Command::Simulate(options) => simulate::run(&options).map(|()| true),
        Command::Adapt(options) => adapt::run(&options),
        Command::Trace(options) => trace::run(&options).map(|()| true),
        Command::Top(options) => top::run(&options).map(|()| true),
        Command::Doctor(options) => doctor::run(&options),
        Command::Exec(options) => exec::run(&options).map(|code| code == ExitCode::SUCCESS),
        Command::Man(options) => pages::man(&options).map(|()| true),
        Command::Completions(options) => pages::completions(&options).map(|()| true),
    }
}

/// Tells what went wrong.
fn failed(error: &anyhow::Error) -> ExitCode {
    eprintln!("{} {error:#}", output::styled_for_errors(output::BAD, "hawser:"));
    ExitCode::FAILURE
}

/// The version of the tool, the commit that it was built from, and the version of NCCL's interface.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let (major, minor, patch) = hawser_base::library::NCCL_VERSION;
    let (own, commit) = (env!("CARGO_PKG_VERSION"), env!("HAWSER_COMMIT"));
    format!("{own} (commit {commit}, NCCL API {major}.{minor}.{patch})")
});
