//! `hawser simulate`: a step of training on a cluster that is not here.
//!
//! Each collective of the step is predicted alone, as `hawser perf --simulate` does, with all communicators
//! that call it at the same time; then operations run side by side and share links (`hawser_sim::step`).
//!
//! | file | holds |
//! |---|---|
//! | `recorded` | steps from traces of the profiler plugin |
//! | `alone` | the times of collectives alone |
//! | `report` | what is printed |
//! | `picture` | the picture |

mod alone;
mod picture;
mod recorded;
mod report;

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use anyhow::{Context, Result, bail};
use clap::Args;
use hawser_sim::step::{self, Step, StepFile};
use hawser_sim::{Cluster, SimError, Twin};

use crate::{cluster, files, interrupt, output};
use alone::Times;
use recorded::Recorded;
use report::Report;

/// Options of `hawser simulate`.
#[derive(Debug, Args)]
pub struct Options {
    /// A step (TOML, docs/simulate.md), or traces of the profiler plugin (JSON)
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The cluster: a file, or a sentence such as "64 hosts of hgx-h200, rail-optimised, 2:1" [default: the
    /// one that the step names]
    #[arg(long, value_name = "CLUSTER")]
    cluster: Option<String>,
    /// The picture to write: what runs when, and the use of links over time, as SVG
    #[arg(short, long, alias = "output", value_name = "OUT")]
    out: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Seed of what is drawn: equal seeds give equal times
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// The most collectives that are taken from a trace: of more, the last ones
    #[arg(
        long, default_value_t = 2000, value_name = "COUNT",
        value_parser = clap::value_parser!(u32).range(1..=10_000)
    )]
    most: u32,
}

/// Runs `hawser simulate`.
///
/// # Errors
/// A file cannot be read or understood or written, the step cannot be on this cluster, or Ctrl-C: then what
/// is done is printed.
pub fn run(options: &Options) -> Result<()> {
    if let Some(path) = &options.out {
        files::check_place(path)?;
    }
    let (cluster, step, notes) = read(options)?;
    let stop = interrupt::flag()?;
    if !options.json {
        let lines = cluster.origins.iter().chain(&notes);
        output::print(&lines.map(|line| format!("# {line}\n")).collect::<String>())?;
    }
    let stop = || stop.load(Ordering::Relaxed);
    let mut times = Times::new(&cluster, options.seed, &stop);
    let is_whole = times.find(&step)?;
    let timeline = if is_whole { timeline(&cluster, &step, &times, &stop)? } else { None };
    let Some(timeline) = timeline else {
        let text = report::unfinished(&step, &times);
        let (done, all) = times.progress(&step);
        output::print(&text)?;
        bail!(
            "interrupted: the times alone of {done} of {all} collectives are known, that of the step is not"
        );
    };
    let links = hawser_sim::links::Links::new(&cluster);
    let report = Report {
        cluster: &cluster,
        step: &step,
        times: &times,
        timeline: &timeline,
        links: &links,
        notes: &notes,
    };
    if let Some(path) = &options.out {
        files::write(path, &picture::svg(&report))?;
    }
    match options.json {
        true => output::print_json(&report.json()),
        false => output::print(&report.text(options.out.as_deref())),
    }
}

/// Lets the operations run side by side; None if the user has interrupted it.
fn timeline(
    cluster: &Cluster,
    step: &Step,
    times: &Times<'_>,
    stop: &dyn Fn() -> bool,
) -> Result<Option<step::Timeline>> {
    let twin = Twin::new(cluster);
    let alone: Vec<&step::Alone> = times.of_ops(step)?;
    match step::run(step, &alone, twin.links(), stop) {
        Err(SimError::Interrupted) => Ok(None),
        outcome => Ok(Some(outcome?)),
    }
}

/// Reads the step and its cluster, and says what is to be known about them.
fn read(options: &Options) -> Result<(Cluster, Step, Vec<String>)> {
    let is_trace = |path: &&PathBuf| path.extension().is_some_and(|end| end.eq_ignore_ascii_case("json"));
    let traces = options.files.iter().filter(is_trace).count();
    if traces == options.files.len() {
        let named = options.cluster.as_deref();
        let name =
            named.context("a trace does not say on which cluster to run it: name one with --cluster")?;
        let cluster = cluster::read(name)?;
        let Recorded { step, notes } = recorded::step(&options.files, &cluster, options.most as usize)?;
        return Ok((cluster, step, notes));
    }
    let [path] = &options.files[..] else {
        bail!("name one step, or the traces (*.json) of one job");
    };
    let name = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
    let file = StepFile::parse(&text).with_context(|| name.to_string())?;
    let cluster = match (&options.cluster, &file.cluster) {
        (Some(named), _) => cluster::read(named)?,
        (None, Some(named)) => cluster::read(&beside(path, named))?,
        (None, None) => bail!(
            "{name} does not say on which cluster: write cluster = \"…\" there, or name one with --cluster"
        ),
    };
    let step = file.step(cluster.topology.size()).with_context(|| name.to_string())?;
    Ok((cluster, step, Vec::new()))
}

/// The file of a cluster beside that of a step; a sentence as it is.
fn beside(step: &Path, cluster: &str) -> String {
    let place = step.parent().unwrap_or(Path::new("")).join(cluster);
    if place.is_file() { place.to_string_lossy().into_owned() } else { cluster.to_owned() }
}

/// Reads a file as a trace that is run again on two ranks, for a fuzz target.
pub fn fuzz_recorded(path: &std::path::Path) {
    static CLUSTER: std::sync::LazyLock<Option<Cluster>> = std::sync::LazyLock::new(|| {
        let file = hawser_sim::File::parse("[[hosts]]\ncount = 1\npreset = \"cpu\"\nranks = 2\n").ok()?;
        Cluster::new(&file, None).ok()
    });
    let cluster = CLUSTER.as_ref().unwrap_or_else(|| panic!("two ranks of a host are a cluster"));
    // Files that are no traces are refused.
    let _ = recorded::step(&[path.to_owned()], cluster, 100);
}
