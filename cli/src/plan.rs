//! `hawser plan`: prints, verifies and draws programs, from a file or from a generator's name.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, Subcommand};
use hawser_plan::algo::{self, ProgramKey};
use hawser_plan::ir::{Buf, draw, text, verify};
use hawser_plan::{Collective, Knobs, Program};

/// Options of `hawser plan`.
#[derive(Debug, Args)]
pub struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Names of the built-in programs
    List,
    /// Print a program as text, with what the verifier says
    Show(Which),
    /// Only verify it
    Verify(Which),
}

/// Which program.
#[derive(Debug, Args)]
struct Which {
    /// A .plan file, or the name of a built-in program (see `hawser plan list`)
    program: String,
    /// Ranks of a built-in program
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1024))]
    ranks: u32,
    /// Root of a built-in program
    #[arg(long, default_value_t = 0)]
    root: u32,
    /// Ranks per host, for programs that know hosts; 0 = the program's own choice
    #[arg(long, default_value_t = 0)]
    per_host: u32,
    /// Draw it into this file
    #[arg(long)]
    svg: Option<PathBuf>,
}

/// Runs `hawser plan`. Returns whether the program is right.
///
/// # Errors
/// The program does not exist or does not parse, or a file cannot be written.
pub fn run(options: &Options) -> Result<bool> {
    let mut out = std::io::stdout().lock();
    let (which, show) = match &options.command {
        Command::List => {
            print(&mut out, &list());
            return Ok(true);
        }
        Command::Show(which) => (which, true),
        Command::Verify(which) => (which, false),
    };
    let program = load(which)?;
    if show {
        print(&mut out, &text::to_text(&program));
    }
    if let Some(path) = &which.svg {
        std::fs::write(path, draw::to_svg(&program))
            .with_context(|| format!("cannot write {}", path.display()))?;
        print(&mut out, &format!("# drawn into {}\n", path.display()));
    }
    let (report, ok) = verdicts(&program);
    print(&mut out, &report);
    Ok(ok)
}

/// A reader that went away (`| head`) is no error.
fn print(out: &mut impl Write, text: &str) {
    let _ = out.write_all(text.as_bytes());
}

fn list() -> String {
    let mut text = String::new();
    for collective in Collective::ALL {
        for algorithm in algo::algorithms(collective) {
            let most = algo::max_ranks(collective, *algorithm);
            text += &format!("{:24} up to {most} ranks\n", algo::name(collective, *algorithm));
        }
    }
    text
}

fn load(which: &Which) -> Result<Program> {
    if let Some((collective, algorithm)) = algo::find(&which.program) {
        if which.root >= which.ranks {
            bail!("--root {} is not one of {} ranks", which.root, which.ranks);
        }
        let key = ProgramKey::new(collective, algorithm, which.ranks, which.root);
        let key = ProgramKey { per_host: which.per_host, ..key };
        return Ok(algo::program(&key)?);
    }
    let path = Path::new(&which.program);
    if !path.exists() {
        bail!("{} is neither a file nor a built-in program; `hawser plan list` names those", which.program);
    }
    let source = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    text::from_text(&source).map_err(|error| anyhow!("{}:{error}", path.display()))
}

/// What the verifier says about both uses of the buffers, and whether the program is right.
fn verdicts(program: &Program) -> (String, bool) {
    let shape = &program.shape;
    let depth = Knobs::default().depth;
    let chunks = |buf| shape.chunks(buf);
    let mut report = format!(
        "# {}: {} on {} ranks, root {}, chunks: {} input, {} output, {} scratch\n",
        shape.name,
        shape.collective.name(),
        shape.ranks,
        shape.root,
        chunks(Buf::Input),
        chunks(Buf::Output),
        chunks(Buf::Scratch)
    );
    let mut ok = true;
    for (in_place, name) in [(false, "out of place"), (true, "in place")] {
        let line = match verify::verify(program, depth, in_place) {
            Ok(verdict) => format!(
                "right: {} steps, needs {} of {depth} FIFO slots, {}, {}",
                verdict.steps,
                verdict.min_depth,
                if verdict.bitwise_equal {
                    "equal to the last bit on all ranks"
                } else {
                    "ranks may differ in rounding"
                },
                if verdict.deterministic { "deterministic" } else { "order may differ from run to run" }
            ),
            Err(fault) => {
                ok = false;
                format!("WRONG: {fault}")
            }
        };
        report += &format!("# {name:13} {line}\n");
    }
    (report, ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn which(program: &str, ranks: u32, root: u32) -> Which {
        Which { program: program.into(), ranks, root, per_host: 0, svg: None }
    }

    #[test]
    fn every_listed_program_loads_and_is_right() {
        let names: Vec<String> =
            list().lines().map(|l| l.split_whitespace().next().unwrap_or("").to_owned()).collect();
        assert!(names.contains(&"ring_all_reduce".to_owned()) && names.len() > 10, "{names:?}");
        for name in names {
            let program = load(&which(&name, 3, 0)).unwrap_or_else(|e| panic!("{name}: {e}"));
            let (report, ok) = verdicts(&program);
            assert!(ok, "{report}");
        }
    }

    #[test]
    fn a_broken_program_is_called_wrong() {
        let mut program = load(&which("ring_all_reduce", 3, 0)).expect("a program");
        program.ranks[1].channels[0].steps.pop();
        let (report, ok) = verdicts(&program);
        assert!(!ok && report.contains("WRONG"), "{report}");
    }

    #[test]
    fn unknown_names_and_roots_are_refused() {
        let error = load(&which("ring_all_redoce", 4, 0)).expect_err("unknown").to_string();
        assert!(error.contains("plan list"), "{error}");
        assert!(load(&which("ring_broadcast", 4, 4)).is_err());
    }
}
