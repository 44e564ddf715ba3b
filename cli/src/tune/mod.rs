//! `hawser tune`: measures what can run on this machine, and writes a rule file for where something is surely
//! faster than what the cost model takes.
//!
//! Everything is measured in rounds, each by a process of its own (`hawser perf`) in which every way has a
//! communicator and a rule that forces it; they take turns at every size, so that a drift of the machine
//! meets all ways alike. What was measured is kept in a file beside the rules until they are written: after
//! an interruption the same command goes on with the next round.
//!
//! | file | holds |
//! |---|---|
//! | `bench` | ways to run, one measurement |
//! | `simulated` | times that the twin predicts, in place of measurements |
//! | `programs` | the programs of a folder: which are right and fit |
//! | `state` | what was measured so far, kept over an interruption |
//! | `decide` | which way is surely faster where: pure |
//! | `report` | the rule file with its evidence |
//! | `plot` | the plot |

mod bench;
mod decide;
mod plot;
mod programs;
mod report;
mod simulated;
mod state;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use hawser_plan::Collective;
use hawser_runtime::comm;
use hawser_tuner::files::RuleFile;

use crate::files;
use crate::output::{self, print};
use crate::perf::options::{check_sizes, parse_size};
use crate::progress::Progress;
use crate::ranks::too_few;
use bench::{Bench, Sample, Way};
use programs::Programs;
use state::State;

/// With fewer rounds nothing can be sure.
const FEWEST_ROUNDS: u32 = 3;

/// Finds rules for this machine.
#[derive(Debug, Args)]
pub struct Options {
    /// Collectives, by NCCL's names
    #[arg(
        default_value = "all_reduce,all_gather,reduce_scatter", value_delimiter = ',',
        value_parser = collective
    )]
    collectives: Vec<Collective>,
    /// Ranks, each with a GPU of its own [default: all GPUs; 2 on the host device]
    #[arg(short = 'g', long = "ngpus", value_parser = crate::ranks::ranks(2))]
    gpus: Option<u32>,
    /// First size
    #[arg(short = 'b', long = "minbytes", default_value = "1K", value_parser = parse_size)]
    min_bytes: u64,
    /// Last size [default: 256M; 1M on the host device]
    #[arg(short = 'e', long = "maxbytes", value_parser = parse_size)]
    max_bytes: Option<u64>,
    /// Factor from size to size
    #[arg(
        short = 'f', long = "stepfactor", default_value_t = 4,
        value_parser = clap::value_parser!(u64).range(2..)
    )]
    factor: u64,
    /// How often everything is measured; with fewer than 3 nothing can be sure
    #[arg(short = 'N', long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(3..=100))]
    rounds: u32,
    /// Numbers of channels to try besides the cost model's own
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1024))]
    channels: Vec<u32>,
    /// Least gain worth a rule, in percent
    #[arg(long, default_value_t = 5.0, value_parser = percent)]
    gain: f64,
    /// Programs to measure as well: every XML and .plan of this folder and of those in it is proved, and
    /// those that fit are measured beside the built-in algorithms
    #[arg(long, value_name = "FOLDER")]
    programs: Option<PathBuf>,
    /// Milliseconds for one measurement at most
    #[arg(
        long, value_name = "MS", default_value_t = 20,
        value_parser = clap::value_parser!(u64).range(1..=10_000)
    )]
    point_ms: u64,
    /// Measure nothing, and find rules for this cluster by predicted times: a file (docs/simulate.md), or a
    /// sentence such as "64 hosts of hgx-h200, rail-optimised, 2:1"
    #[arg(
        long, value_name = "CLUSTER",
        conflicts_with_all = ["gpus", "programs", "point_ms", "within"]
    )]
    simulate: Option<String>,
    /// The rule file to write
    #[arg(short = 'o', long, default_value = "hawser-rules.toml")]
    out: PathBuf,
    /// The plot of times and winners, as SVG [default: the rule file's name with .svg]
    #[arg(long)]
    plot: Option<PathBuf>,
    /// Begin no further round that would not end within so many seconds; three are measured anyway
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    within: Option<u64>,
    /// Measure this rule file beside the cost model instead, and fail where it is surely slower
    #[arg(long, value_name = "RULES")]
    check: Option<PathBuf>,
    /// Print what was measured and found as JSON
    #[arg(long)]
    json: bool,
    /// Forget what an interrupted run has measured
    #[arg(long)]
    restart: bool,
    /// Write over a rule file that is there
    #[arg(long)]
    force: bool,
    /// Stop after so many rounds, as an interruption would
    #[arg(long, hide = true)]
    stop_after: Option<u32>,
}

/// Runs `hawser tune`.
///
/// # Errors
/// The device, a measurement or a file failed, or a rule file is there already.
pub fn run(options: &Options) -> Result<()> {
    if let Some(cluster) = &options.simulate {
        check_sizes(options.min_bytes, bench::last(options, false))?;
        return simulated::run(options, cluster);
    }
    let is_host = hawser_device::is_host();
    let ranks = options.gpus.unwrap_or_else(|| if is_host { 2 } else { hawser_device::count() });
    check_sizes(options.min_bytes, bench::last(options, is_host))?;
    if ranks < 2 {
        bail!(
            "there is {} here, and rules are for at least 2 ranks; HAWSER_DEVICE=host takes the CPU",
            too_few(ranks)
        );
    }
    if let Some(rules) = &options.check {
        return check(options, is_host, ranks, rules);
    }
    check_outputs(options)?;
    let out = &options.out;
    let name = hawser_device::open(0)?.caps().name.clone();
    let (topology, plan_config) = comm::outlook(&(0..ranks).collect::<Vec<_>>())?;
    let programs = brought(options, ranks)?;
    let bench = Bench::new(options, is_host, (&topology, &plan_config), &programs)?;
    let mut state = State::open(&state_file(out), &bench.question(&name), options.restart)?;
    let say = |text: &str| if options.json { Ok(()) } else { print(text) };
    say(&format!("# {ranks} ranks on {name}, {} ways, {} rounds\n", bench.ways().len(), options.rounds))?;
    say(&left_out(&programs))?;
    if state.rounds() > 0 {
        say(&format!("# going on after {} rounds of an interrupted run\n", state.rounds()))?;
    }
    let rounds = measure(options, &bench, &mut state)?;
    let tables = decide::tables(state.samples());
    let found = decide::rules(&tables, options.gain / 100.0);
    let files = programs.files(decide::programs(&tables, &found).iter().map(String::as_str));
    let attributes = report::CallAttributes {
        device: &name,
        ranks,
        hosts: 1,
        rounds,
        gain: options.gain,
        files: &files,
        simulated: &[],
    };
    let mut text = report::rule_file(&tables, &found, &attributes);
    if let Some(warning) = noise(&tables) {
        eprintln!("hawser: warning: {warning}");
        text = format!("# WARNING: {warning}\n{text}");
    }
    // What is written has to be what the library reads.
    RuleFile::named(out).parse(&text).context("the rules that were found cannot be read: a bug")?;
    files::write(out, &text)?;
    let plot = options.plot.clone().unwrap_or_else(|| out.with_extension("svg"));
    files::write(&plot, &plot::svg(&tables, &found, &attributes))?;
    state.remove();
    if options.json {
        return output::print_json(&report::json(&tables, &found));
    }
    print(&report::summary(&tables, &found))?;
    let rules = output::counted(found.len(), "rule");
    print(&format!("# written: {} ({rules}), {}\n", out.display(), plot.display()))
}

/// Checks that the rules and the picture can be written where they are to be.
fn check_outputs(options: &Options) -> Result<()> {
    let out = &options.out;
    if out.exists() && !options.force {
        bail!(
            "{} is there already: name another file with --out, or write over it with --force",
            out.display()
        );
    }
    files::check_place(out)?;
    options.plot.as_deref().map_or(Ok(()), files::check_place)
}

/// The programs of the folder that was named, proved.
fn brought(options: &Options, ranks: u32) -> Result<Programs> {
    match &options.programs {
        Some(folder) => Programs::below(folder, &options.collectives, ranks),
        None => Ok(Programs::default()),
    }
}

/// The files of the folder that are not measured, in lines.
fn left_out(programs: &Programs) -> String {
    if !programs.are_asked_for() {
        return String::new();
    }
    let (refused, others) = programs.left_out();
    let lines: String = refused.iter().map(|text| format!("# left out: {text}\n")).collect();
    format!(
        "{lines}# {} programs are measured, {others} are for other collectives or numbers of ranks, {} are \
         wrong\n",
        programs.names().count(),
        refused.len()
    )
}

/// A sentence about a machine that was too busy for rules that can be relied on.
fn noise(tables: &decide::Tables) -> Option<String> {
    let part = decide::noisy_part(tables);
    (part > MOST_NOISE).then(|| {
        format!(
            "at {:.0} % of the sizes the same choice took times that differ by more than {:.0} % from \
             round to round: this machine is busy, and another run may find other rules; run again when it \
             is idle, with more --rounds or a longer --point-ms",
            part * 100.0,
            decide::NOISE * 200.0
        )
    })
}

/// The part of noisy sizes from which on the user is warned.
const MOST_NOISE: f64 = 0.25;

/// Measures a rule file and the cost model in turns.
fn check(options: &Options, is_host: bool, ranks: u32, rules: &Path) -> Result<()> {
    let text = std::fs::read_to_string(rules).with_context(|| format!("cannot read {}", rules.display()))?;
    let parsed =
        RuleFile::named(rules).parse(&text).with_context(|| format!("{} cannot be used", rules.display()))?;
    let rules = std::path::absolute(rules).context("the rule file's path")?;
    let mut programs = brought(options, ranks)?;
    let named = parsed.iter().flat_map(|rule| &rule.chain).filter_map(|action| action.program.clone());
    programs.keep(&named.collect());
    let bench = Bench::of_rules(options, is_host, ranks, &rules, &programs);
    let mut samples: Vec<(String, Sample)> = Vec::new();
    let (begin, mut took) = (Instant::now(), Duration::ZERO);
    let progress = Progress::new(u64::from(options.rounds), "rounds");
    for round in 0..options.rounds {
        if is_late(options, round, begin, took) {
            break;
        }
        let started = Instant::now();
        // Nobody is always first.
        for at in 0..bench.ways().len() {
            let way = &bench.ways()[(at + round as usize) % bench.ways().len()];
            let measured = bench.measure(&[way]).with_context(|| format!("measuring {way}"))?;
            let pairs =
                |(name, found): (String, Vec<Sample>)| found.into_iter().map(move |s| (name.clone(), s));
            samples.extend(measured.into_iter().flat_map(pairs));
        }
        progress.inc();
        took = started.elapsed();
    }
    progress.end();
    let tables = decide::tables(samples.iter().map(|(way, sample)| (way.as_str(), sample)));
    let (text, slower) = report::comparison(&tables, options.gain / 100.0);
    if let Some(warning) = noise(&tables) {
        eprintln!("hawser: warning: {warning}");
    }
    match options.json {
        true => output::print_json(&report::json(&tables, &[]))?,
        false => print(&text)?,
    }
    match slower {
        0 => Ok(()),
        _ => bail!("the rules are surely slower than the cost model at {slower} sizes"),
    }
}

/// Returns whether another round would end after `--within`.
fn is_late(options: &Options, round: u32, begin: Instant, took: Duration) -> bool {
    let limit = options.within.map(Duration::from_secs);
    round >= FEWEST_ROUNDS && limit.is_some_and(|limit| begin.elapsed() + took > limit)
}

/// Measures the rounds that are not measured yet. Returns how many there are then.
fn measure(options: &Options, bench: &Bench<'_>, state: &mut State) -> Result<u32> {
    let bar = Progress::new(u64::from(options.rounds), "rounds");
    bar.set(u64::from(state.rounds()));
    let (begin, mut took, before) = (Instant::now(), Duration::ZERO, state.rounds());
    for round in before..options.rounds {
        if is_late(options, round, begin, took) {
            break;
        }
        if options.stop_after == Some(round - before) {
            bail!("stopped after {} rounds; the same command goes on from here", round - before);
        }
        let started = Instant::now();
        let hopeful = |way: &&Way| !decide::is_hopeless(state.samples(), &way.to_string());
        let mut ways: Vec<&Way> = bench.ways().iter().filter(hopeful).collect();
        bar.say(format!("of {} ways", ways.len()));
        // Nobody is always first.
        let first = round as usize % ways.len().max(1);
        ways.rotate_left(first);
        let measured = bench.measure(&ways).with_context(|| format!("measuring round {}", round + 1))?;
        state.add(measured)?;
        bar.inc();
        took = started.elapsed();
    }
    bar.end();
    Ok(state.rounds())
}

/// Returns the file where measurements are kept until the rules are written.
fn state_file(out: &Path) -> PathBuf {
    let mut name = out.as_os_str().to_owned();
    name.push(".tuning.json");
    name.into()
}

fn collective(text: &str) -> Result<Collective, String> {
    let known = Collective::from_name(text).filter(|c| *c != Collective::SendRecv);
    let all = || Collective::ALL.map(Collective::name).join(", ");
    known.ok_or_else(|| format!("{text} is no collective that rules are asked about; known are {}", all()))
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| (0.0..=90.0).contains(number));
    number.ok_or_else(|| "it must be between 0 and 90".to_owned())
}
