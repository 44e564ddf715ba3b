//! `hawser measure`: fits the cost model to this machine.
//!
//! Every algorithm and protocol that the ranks can have is forced in turn, in a process of its own (`hawser
//! perf` with `NCCL_ALGO` and `NCCL_PROTO`), so that one that hangs or dies takes nothing along. The times go
//! to [`hawser_plan::fit`]; what it finds goes into the file that communicators of this user read by
//! default.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use hawser_plan::cost::Constants;
use hawser_plan::fit::{Fit, Run, Sample, fit, runs};
use hawser_plan::topology::DeviceKind;
use hawser_plan::{Collective, DataType, PlanConfig, Topology};
use hawser_runtime::comm;
use serde_json::{Value, json};

use crate::explain;
use crate::files;
use crate::output::{self, Align, Table, print};
use crate::perf::Decided;
use crate::perf::options::{check_sizes, parse_size};
use crate::progress::Progress;
use crate::ranks::too_few;
use crate::subprocess::{self, Folder, Row, Sweep};

/// Measures collectives and fits the constants of the cost model to this machine.
#[derive(Debug, Args)]
pub struct Options {
    /// Ranks, each with a GPU of its own [default: all GPUs; 2 on the host device]
    #[arg(short = 'g', long = "ngpus", value_parser = crate::ranks::ranks(2))]
    gpus: Option<u32>,
    /// First size
    #[arg(short = 'b', long = "minbytes", default_value = "1K", value_parser = parse_size)]
    min_bytes: u64,
    /// Last size [default: 256M; 4M on the host device]
    #[arg(short = 'e', long = "maxbytes", value_parser = parse_size)]
    max_bytes: Option<u64>,
    /// Factor from size to size
    #[arg(
        short = 'f', long = "stepfactor", default_value_t = 8,
        value_parser = clap::value_parser!(u64).range(2..)
    )]
    factor: u64,
    /// How often everything is measured; the median counts
    #[arg(short = 'N', long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    cycles: u32,
    /// Milliseconds for one measurement at most
    #[arg(
        long, value_name = "MS", default_value_t = 20,
        value_parser = clap::value_parser!(u64).range(1..=10_000)
    )]
    point_ms: u64,
    /// File to write, instead of the one that communicators of this user read by default
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write no file
    #[arg(long)]
    dry_run: bool,
    /// Show every sample: measured and predicted times
    #[arg(long)]
    samples: bool,
    /// Print constants and samples as JSON
    #[arg(long, conflicts_with = "samples")]
    json: bool,
}

/// Runs `hawser measure`.
///
/// # Errors
/// The device, a run or the file failed.
pub fn run(options: &Options) -> Result<()> {
    let is_host = hawser_device::is_host();
    let ranks = options.gpus.unwrap_or_else(|| if is_host { 2 } else { hawser_device::count() });
    check_sizes(options.min_bytes, last(options, is_host))?;
    if ranks < 2 {
        bail!(
            "there is {} here, and a cost model needs at least 2 ranks; HAWSER_DEVICE=host takes the CPU",
            too_few(ranks)
        );
    }
    let ordinals: Vec<u32> = (0..ranks).collect();
    let name = hawser_device::open(0)?.caps().name.clone();
    let (topology, plan_config) = comm::outlook(&ordinals)?;
    let out = destination(options, &name, ranks)?;
    let start =
        Topology { constants: Constants::builtin(topology.device, topology.link), ..topology.clone() };
    let bench = Bench { options, is_host, topology: start, plan_config: plain(&plan_config) };
    let runs = runs(&bench.topology, &bench.plan_config)?;
    let say = |text: &str| if options.json { Ok(()) } else { print(text) };
    say(&format!("# {ranks} ranks on {name}, {} over {}\n", topology.device, topology.link.name()))?;
    let progress = Progress::new(runs.len() as u64, "runs");
    let mut samples = Vec::new();
    for (number, run) in (1..).zip(&runs) {
        let blocks = if run.max_ctas == bench.plan_config.max_ctas { "" } else { ", one block" };
        let what = format!("{} {}{blocks}", run.algorithm.name(), run.route.name());
        progress.suspend(|| say(&format!("# {number}/{}: {what}\n", runs.len())))?;
        samples.extend(bench.measure(run).with_context(|| what)?);
        progress.inc();
    }
    progress.end();
    let found = fit(&samples, &bench.topology, &bench.plan_config);
    let verdict = bench.verdict(&topology.constants, &found, &samples);
    // The default place keeps what chooses better; a new file gets it, whichever it is.
    let out = out.filter(|out| verdict.fitted_is_better() || options.out.is_some() || !out.exists());
    if options.json {
        output::print_json(&bench.json(&topology.constants, (&found, &verdict), &samples, out.as_deref()))?;
    } else {
        print(&(bench.report(&topology.constants, &found, &samples)? + &format!("{verdict}\n")))?;
    }
    match out {
        Some(path) => {
            let text = if verdict.fitted_is_better() {
                file(&found.constants, &bench.topology, &name, &fitted_note(&found))
            } else {
                file(&topology.constants, &bench.topology, &name, KEPT_NOTE)
            };
            write(options, &path, &text)?;
            say(&format!("# written: {}\n", path.display()))
        }
        None if options.dry_run => say("# nothing written (--dry-run)\n"),
        None => say("# nothing written: what was in use stays\n"),
    }
}

/// Writes the file of constants. The folder of the default place is made.
fn write(options: &Options, path: &Path, text: &str) -> Result<()> {
    if options.out.is_none()
        && let Some(folder) = path.parent()
    {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    }
    files::write(path, text)
}

/// The last size to measure.
fn last(options: &Options, is_host: bool) -> u64 {
    options.max_bytes.unwrap_or(if is_host { 4 << 20 } else { 256 << 20 })
}

/// The file to write, which is found out before anything is measured.
fn destination(options: &Options, device: &str, ranks: u32) -> Result<Option<PathBuf>> {
    if options.dry_run {
        return Ok(None);
    }
    if let Some(path) = &options.out {
        files::check_place(path)?;
    }
    let path = options.out.clone().or_else(|| comm::cache_file(device, ranks));
    path.map(Some).ok_or_else(|| {
        anyhow!(
            "neither XDG_CACHE_HOME nor HOME is an absolute path: name a file with --out, or use --dry-run"
        )
    })
}

/// The settings without what the user forces or limits: everything is forced here in turn.
fn plain(plan_config: &PlanConfig) -> PlanConfig {
    PlanConfig { algorithms: [None; 8], routes: [None; 8], min_ctas: 1, ..plan_config.clone() }
}

/// The job that measures.
struct Bench<'a> {
    options: &'a Options,
    is_host: bool,
    /// With the built-in constants, which the runs have too.
    topology: Topology,
    plan_config: PlanConfig,
}

impl Bench<'_> {
    /// Makes one run.
    fn measure(&self, run: &Run) -> Result<Vec<Sample>> {
        let sweep = Sweep {
            collectives: &run.collectives,
            names: &[],
            ranks: self.topology.size(),
            bytes: (self.options.min_bytes, last(self.options, self.is_host)),
            factor: self.options.factor,
            cycles: self.options.cycles,
            point_ms: self.options.point_ms,
            is_host: self.is_host,
        };
        let rows = subprocess::perf(&Folder::new()?, &sweep, &[], |command| force(run, command))?;
        self.samples(run, &rows)
    }

    /// The medians of a run's cycles.
    fn samples(&self, run: &Run, rows: &[Row]) -> Result<Vec<Sample>> {
        let mut times: BTreeMap<(&str, u64), Vec<f64>> = BTreeMap::new();
        for row in rows.iter().filter(|row| row.count > 0) {
            times.entry((row.collective.as_str(), row.count)).or_default().push(row.out_of_place.time);
        }
        let mut samples = Vec::new();
        for ((name, count), mut times) in times {
            times.sort_by(f64::total_cmp);
            let us = times[times.len() / 2];
            let collective =
                Collective::from_name(name).with_context(|| format!("{name} is no collective"))?;
            let sample = run.sample(collective, count, us, &self.topology, &self.plan_config)?;
            let sample = sample.with_context(|| format!("{name} of {count} floats is not possible so"))?;
            let row = rows.iter().find(|row| (row.collective.as_str(), row.count) == (name, count));
            check(row.and_then(|row| row.decision.as_ref()), &sample)?;
            if us > 0.0 {
                samples.push(sample);
            }
        }
        Ok(samples)
    }

    /// The verdict on the constants in use and the fitted ones: how well they choose among what was measured.
    fn verdict(&self, old: &Constants, found: &Fit, samples: &[Sample]) -> Verdict {
        let loss = |constants: &Constants| {
            let topology = Topology { constants: *constants, ..self.topology.clone() };
            mean(&self.losses(&topology, samples))
        };
        Verdict { in_use: loss(old), fitted: loss(&found.constants) }
    }

    /// The report as a record.
    fn json(
        &self,
        old: &Constants,
        (found, verdict): (&Fit, &Verdict),
        samples: &[Sample],
        out: Option<&Path>,
    ) -> Value {
        let constants = old
            .named()
            .into_iter()
            .zip(found.constants.named())
            .map(|((name, old), (_, new))| json!({ "name": name, "in_use": old, "fitted": new }));
        let samples = samples.iter().map(|sample| {
            json!({
                "collective": sample.key.collective.name(), "bytes": sample.bytes,
                "algorithm": sample.key.algorithm.name(), "route": sample.route.name(), "us": sample.us
            })
        });
        json!({
            "ranks": self.topology.size(),
            "device": self.topology.device.to_string(),
            "link": self.topology.link.name(),
            "constants": constants.collect::<Vec<_>>(),
            "samples": samples.collect::<Vec<_>>(),
            "median_error": { "built_in": found.error_before - 1.0, "fitted": found.error - 1.0 },
            "mean_loss": { "in_use": verdict.in_use / 100.0, "fitted": verdict.fitted / 100.0 },
            "kept": if verdict.fitted_is_better() { "fitted" } else { "in_use" },
            "file": out.map(|path| path.display().to_string()),
        })
    }

    /// Old and new constants, errors, regrets, switch-over points.
    fn report(&self, old: &Constants, found: &Fit, samples: &[Sample]) -> Result<String> {
        let mut table = Table::new([
            ("constant", Align::Left),
            ("in use", Align::Right),
            ("fitted", Align::Right),
            ("", Align::Left),
        ]);
        let is_measured = |name: &str| {
            let section = name.rsplit_once('.').map_or("", |(section, _)| section);
            section == "link" || samples.iter().any(|s| hawser_plan::cost::section(s.route) == section)
        };
        let pairs = old.named().into_iter().zip(found.constants.named());
        for ((name, old), (_, new)) in pairs.filter(|((name, _), _)| is_measured(name)) {
            let mark = if (new / old).ln().abs() > 0.02 { "" } else { "same" };
            table.row([name.to_string(), format!("{old:.4}"), format!("{new:.4}"), mark.to_owned()]);
        }
        let mut text = "#\n".to_owned() + &table.lines().join("\n") + "\n";
        let topology = Topology { constants: found.constants, ..self.topology.clone() };
        let _ = writeln!(text, "#\n# {} samples; predicted times are off by", samples.len());
        let _ =
            writeln!(text, "#   built-in constants: {:.1} % (median)", (found.error_before - 1.0) * 100.0);
        let _ = writeln!(text, "#   fitted constants:   {:.1} %", (found.error - 1.0) * 100.0);
        if self.options.samples {
            text += &self.sample_lines(&topology, samples);
        }
        text += &self.regrets(&topology, samples);
        for collective in [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter] {
            let _ = writeln!(text, "#\n# {}: from these sizes on (in use, then fitted)", collective.name());
            for constants in [*old, found.constants] {
                let topology = Topology { constants, ..self.topology.clone() };
                let changes = explain::changes(
                    collective,
                    (8, 8 << 30),
                    DataType::Float32,
                    &topology,
                    &self.plan_config,
                )?;
                for line in explain::table_of(&changes) {
                    let _ = writeln!(text, "{line}");
                }
                text += "#\n";
            }
        }
        Ok(text)
    }

    fn sample_lines(&self, topology: &Topology, samples: &[Sample]) -> String {
        let mut table = Table::new([
            ("sample", Align::Left),
            ("measured µs", Align::Right),
            ("predicted µs", Align::Right),
            ("ratio", Align::Right),
        ]);
        for sample in samples {
            let predicted = sample.predicted_us(topology, &self.plan_config);
            let ratio = predicted / sample.us;
            table.row([
                title(sample),
                format!("{:.1}", sample.us),
                format!("{predicted:.1}"),
                format!("{ratio:.2}"),
            ]);
        }
        "#\n".to_owned() + &table.lines().join("\n") + "\n"
    }

    /// For every size: how much slower what the model takes is than the fastest that was measured.
    fn regrets(&self, topology: &Topology, samples: &[Sample]) -> String {
        let mut table = Table::new([
            ("collective", Align::Left),
            ("size", Align::Right),
            ("lost %", Align::Right),
            ("to", Align::Left),
        ]);
        let losses = self.losses(topology, samples);
        for Loss { taken, fastest } in &losses {
            let to = if taken == fastest {
                "-".into()
            } else {
                format!("{} instead of {}", way(taken), way(fastest))
            };
            let lost = (taken.us / fastest.us - 1.0) * 100.0;
            table.row([
                taken.key.collective.name().to_owned(),
                output::size(taken.bytes),
                format!("{lost:.1}"),
                to,
            ]);
        }
        let mut text = "#\n".to_owned() + &table.lines().join("\n") + "\n";
        let (fitted, builtin) = (mean(&losses), mean(&self.losses(&self.topology, samples)));
        let _ = writeln!(text, "# mean loss: fitted {fitted:.1} %, built-in {builtin:.1} %");
        text
    }

    fn losses<'s>(&self, topology: &Topology, samples: &'s [Sample]) -> Vec<Loss<'s>> {
        let mut groups: BTreeMap<(&str, u64), Vec<&Sample>> = BTreeMap::new();
        for sample in samples {
            let group = groups.entry((sample.key.collective.name(), sample.bytes)).or_default();
            // Small sizes run alike with one block and with the most.
            match group.iter_mut().find(|other| way(other) == way(sample)) {
                Some(other) if other.us <= sample.us => {}
                Some(other) => *other = sample,
                None => group.push(sample),
            }
        }
        let us = |s: &Sample| s.predicted_us(topology, &self.plan_config);
        let loss = |group: &Vec<&'s Sample>| {
            let taken = group.iter().copied().min_by(|a, b| us(a).total_cmp(&us(b)))?;
            let fastest = group.iter().copied().min_by(|a, b| a.us.total_cmp(&b.us))?;
            Some(Loss { taken, fastest })
        };
        groups.values().filter_map(loss).collect()
    }
}

/// Lets a run take its algorithm and protocol, whatever the model says.
fn force(run: &Run, command: &mut Command) {
    let lists = |word: &str| {
        run.collectives.iter().fold(String::new(), |all, c| format!("{all};{}:{word}", c.name()))
    };
    command
        .env("NCCL_ALGO", lists(run.algorithm.name()))
        .env("NCCL_PROTO", lists(run.route.name()))
        .env("NCCL_MIN_CTAS", "1")
        .env("NCCL_MAX_CTAS", run.max_ctas.to_string())
        .env("HAWSER_LINKS", "none");
}

/// Mean losses in percent of what a model chooses against the fastest that was measured.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Verdict {
    /// By the constants that communicators have now.
    in_use: f64,
    /// By the fitted ones.
    fitted: f64,
}

impl Verdict {
    /// True if the fitted constants choose no worse: they are from this machine as it is now.
    fn fitted_is_better(&self) -> bool {
        self.fitted <= self.in_use
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { in_use, fitted } = self;
        write!(f, "# what they choose loses to the fastest: in use {in_use:.1} %, fitted {fitted:.1} %: ")?;
        match self.fitted_is_better() {
            true => f.write_str("the fitted constants are taken"),
            false => f.write_str("the constants in use are kept; measure again on an idle machine"),
        }
    }
}

/// The choice of a model for one size, and the fastest one that was measured.
struct Loss<'s> {
    taken: &'s Sample,
    fastest: &'s Sample,
}

/// Mean loss in percent.
fn mean(losses: &[Loss]) -> f64 {
    let sum: f64 = losses.iter().map(|loss| loss.taken.us / loss.fastest.us - 1.0).sum();
    100.0 * sum / losses.len().max(1) as f64
}

/// Checks that the run did what was asked for, in as many blocks as the planner says here.
fn check(decision: Option<&Decided>, sample: &Sample) -> Result<()> {
    let (instances, channels) = sample.grid;
    let is_same =
        |d: &Decided| d.is(sample.key.algorithm, sample.route) && d.channels == instances * channels;
    if !decision.is_some_and(is_same) {
        let ran = decision.map_or_else(|| "nothing known".to_owned(), Decided::to_string);
        let rule = decision.and_then(|d| d.rule.as_deref()).map_or_else(String::new, |r| format!(" by {r}"));
        bail!(
            "{}: {ran}{rule} ran instead: a tuner or an env plugin decides; unset NCCL_TUNER_PLUGIN and \
             NCCL_ENV_PLUGIN",
            title(sample)
        );
    }
    Ok(())
}

fn title(sample: &Sample) -> String {
    format!("{} {} {}", sample.key.collective.name(), output::size(sample.bytes), way(sample))
}

fn way(sample: &Sample) -> String {
    let blocks = sample.grid.0 * sample.grid.1;
    format!("{} {} in {blocks}", sample.key.algorithm.name(), sample.route.name())
}

/// The line of a file about fitted constants.
fn fitted_note(found: &Fit) -> String {
    format!("Median error of predicted times: {:.1} %.", (found.error - 1.0) * 100.0)
}

/// The line of a file about constants that a measurement has left as they were.
const KEPT_NOTE: &str = "Those that were in use: they chose better than what was fitted.";

fn file(constants: &Constants, topology: &Topology, name: &str, note: &str) -> String {
    let kind = if topology.device == DeviceKind::Host { "CPU threads" } else { "GPUs" };
    format!(
        "# Constants of Hawser's cost model for {} {kind} ({name}), by hawser measure {}.\n\
         # {note} Times in µs, rates in GB/s. Lines may be left out.\n\
         ranks = {}\n{}",
        topology.size(),
        env!("CARGO_PKG_VERSION"),
        topology.size(),
        constants.text(topology.device, topology.link)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::subprocess::Time;
    use clap::Parser;
    use hawser_plan::topology::Link;
    use hawser_plan::{Algorithm, Route, Routes};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn options() -> Options {
        Line::parse_from(["measure"]).options
    }

    fn bench(options: &Options) -> Bench<'_> {
        let topology = Topology::single_host(4, DeviceKind::Cuda { sm: 90 }, Link::NvLink);
        Bench { options, is_host: false, topology, plan_config: PlanConfig::default() }
    }

    fn run() -> Run {
        let collectives = vec![Collective::AllReduce, Collective::AllGather];
        Run { algorithm: Algorithm::AllPairs, route: Route::FUSED_LL, max_ctas: 8, collectives }
    }

    fn decided(algorithm: Algorithm, rule: Option<&str>) -> Decided {
        Decided {
            algorithm: algorithm.name().into(),
            executor: "fused".into(),
            protocol: "LL".into(),
            zero_copy: false,
            channels: 1,
            predicted_us: 1.0,
            rule: rule.map(str::to_owned),
        }
    }

    fn row(time: f64, decision: &Decided) -> Row {
        let decision = Some(decision.clone());
        let out_of_place = Time { time };
        Row {
            communicator: None,
            collective: "all_reduce".into(),
            size: 4096,
            count: 1024,
            out_of_place,
            decision,
        }
    }

    #[test]
    fn medians_of_what_was_asked_for_become_samples() {
        let options = options();
        let bench = bench(&options);
        let right = &decided(Algorithm::AllPairs, None);
        let rows = [row(5.0, right), row(90.0, right), row(4.0, right)];
        let samples = bench.samples(&run(), &rows).unwrap();
        assert_eq!(samples.len(), 1);
        assert_eq!((samples[0].us, samples[0].bytes, samples[0].grid), (5.0, 4096, (1, 1)));
        let wrong = &decided(Algorithm::Ring, Some("tuner x"));
        let error = bench.samples(&run(), &[row(5.0, wrong)]).unwrap_err().to_string();
        assert!(error.contains("by tuner x") && error.contains("NCCL_TUNER_PLUGIN"), "{error}");
    }

    #[test]
    fn the_better_constants_are_kept_and_told() {
        let better = Verdict { in_use: 3.0, fitted: 1.5 };
        assert!(better.fitted_is_better() && better.to_string().ends_with("fitted constants are taken"));
        let worse = Verdict { in_use: 3.0, fitted: 4.0 };
        assert!(!worse.fitted_is_better());
        assert!(worse.to_string().contains("in use 3.0 %, fitted 4.0 %: the constants in use are kept"));
        assert!(Verdict { in_use: 3.0, fitted: 3.0 }.fitted_is_better(), "they are of today");
    }

    #[test]
    fn a_run_is_forced_by_variables() {
        let mut command = Command::new("hawser");
        force(&run(), &mut command);
        let value = |name: &str| {
            command
                .get_envs()
                .find(|(n, _)| *n == name)
                .and_then(|(_, v)| Some(v?.to_str()?.to_owned()))
                .unwrap()
        };
        let (algo, proto) =
            (PlanConfig::parse_algo(&value("NCCL_ALGO")), PlanConfig::parse_proto(&value("NCCL_PROTO")));
        let only = Routes::that(|route| route == Route::FUSED_LL);
        // Of Collective::ALL, all_reduce is the first, reduce the second.
        assert_eq!((proto.unwrap()[0], algo.unwrap()[1]), (Some(only), None));
        assert_eq!((value("NCCL_MAX_CTAS").as_str(), value("HAWSER_LINKS").as_str()), ("8", "none"));
    }

    #[test]
    fn the_file_is_what_communicators_read() {
        let topology = Topology::single_host(8, DeviceKind::Cuda { sm: 90 }, Link::NvLink);
        let mut constants = topology.constants;
        constants.wire_gbs = 123.456;
        let found = Fit { constants, error_before: 2.0, error: 1.05 };
        let text = file(&found.constants, &topology, "NVIDIA H200", &fitted_note(&found));
        assert_eq!(
            Constants::parse(&text, topology.device, topology.link).unwrap(),
            Some(constants),
            "{text}"
        );
        assert!(text.contains("5.0 %") && text.contains("ranks = 8"), "{text}");
        assert_eq!(Constants::parse(&text, topology.device, Link::Pcie).unwrap(), None);
    }
}
