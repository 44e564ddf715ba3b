//! `hawser adapt demo`: adaptive mode at work, from a slow floor through stress to recovery, as a picture.
//!
//! Four ranks of this process add up over and over, on the host device. Their rules have a floor that is slow
//! on purpose. The phases end when adaptive mode has decided: a better way is *learned*; one rank then begins
//! late in every operation, a *stress* that all others wait for, until the floor counts; when that rank keeps
//! up again, what was learned *returns*.

mod page;

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use hawser_plan::{Call, Collective, DataType, ReduceOp, Scalar};
use hawser_plugin::tuner::SettingsFile;
use hawser_runtime::comm::LastDecision;
use hawser_runtime::{Comm, Config, Stream, unique_id};
use serde::Serialize;

use crate::progress::Progress;
use crate::{files, output};

/// Operations between two looks at the phase, by all ranks at once.
const BATCH: usize = 20;
/// The lateness of the late rank, as a multiple of what operations take where the machine is busy, and its
/// limits in microseconds.
const LATE: f32 = 8.0;
const LATENESS: (f32, f32) = (3_000.0, 300_000.0);
/// Elements of the sums.
const ELEMENTS: usize = 10_000;
/// The time that a phase has until its decision has come.
const PATIENCE: Duration = Duration::from_secs(90);
/// The floor: everybody sends everything to everybody, in small pieces. Few ways are tried, so that it goes
/// quickly.
const RULES: &str = "mode = \"adaptive\"\nbudget = 0.1\n[[rule]]\nname = \"slow floor\"\n\
                     use = { algorithm = \"one_shot\", channels = 1, chunk = 512 }\n[[avoid]]\n\
                     use = [{ algorithm = \"one_shot\" }, { algorithm = \"tree\" }, \
                     { algorithm = \"knomial\" },\
                     { algorithm = \"double_ring\" }, { algorithm = \"halving_doubling\" },\
                     { algorithm = \"recursive_doubling\" }]\n";

/// Options of `hawser adapt`.
#[derive(Debug, Args)]
pub struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the loop on this machine's CPU: a slow floor, what is learned, stress, recovery
    #[command(after_help = "Examples:
  hawser adapt demo
  hawser adapt demo --seconds 60 -o demo.html

Exit codes: 0 if all three decisions came, 1 if one did not.")]
    Demo(Demo),
}

/// Options of `hawser adapt demo`.
#[derive(Debug, Args)]
pub struct Demo {
    /// The time that it should take; a phase whose decision does not come takes up to 90 s
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Number of ranks, each a thread
    #[arg(long, default_value_t = 4, value_parser = crate::ranks::ranks(2))]
    ranks: u32,
    /// The page, with the picture and the decisions as a table; FILE.svg: the picture alone
    #[arg(long, short = 'o', alias = "output", default_value = "hawser-adapt.html", value_name = "FILE")]
    out: PathBuf,
    /// Print phases and decisions as JSON
    #[arg(long)]
    json: bool,
}

/// The phases, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// From the floor to what is learned.
    Learn,
    /// One rank begins late.
    Stress,
    /// It keeps up again.
    Recover,
}

const PHASES: [Phase; 3] = [Phase::Learn, Phase::Stress, Phase::Recover];

/// An operation of rank 0.
#[derive(Debug, Clone)]
pub struct Sample {
    /// Seconds since the beginning.
    pub at: f64,
    /// The time that it took, in microseconds.
    pub us: f32,
    /// The source of its decision.
    pub kind: Kind,
}

/// The source of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The user's rule.
    Floor,
    /// A rule of adaptive mode.
    Learned,
    /// A trial.
    Trial,
}

/// A change of what decides operations that are no trials.
#[derive(Debug, Clone, Serialize)]
pub struct Change {
    /// Seconds since the beginning.
    pub at: f64,
    /// Number of the operation.
    pub operation: u64,
    /// The phase in which it happened.
    pub phase: Phase,
    /// The source of decisions from here on.
    pub kind: Kind,
    /// The algorithm from here on.
    pub algorithm: String,
    /// The rule, with its figures.
    pub rule: String,
}

/// All that happened.
#[derive(Debug, Default)]
pub struct Record {
    /// The operations.
    pub samples: Vec<Sample>,
    /// The changes.
    pub changes: Vec<Change>,
    /// The phases that were reached: the second at which each began, and whether its decision has come.
    pub phases: Vec<(Phase, f64, bool)>,
}

/// Runs `hawser adapt`; true if all decisions came.
///
/// # Errors
/// There is no host device, a communicator fails, or the page cannot be written.
pub fn run(options: &Options) -> Result<bool> {
    let Command::Demo(demo) = &options.command;
    if !hawser_device::is_host() {
        bail!("the demo runs on the host device: HAWSER_DEVICE=host hawser adapt demo");
    }
    files::check_place(&demo.out)?;
    let waiting = Progress::waiting("adaptive mode on the host device");
    let record = play(demo)?;
    waiting.end();
    let name = demo.out.display();
    let is_picture = demo.out.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("svg"));
    let write = if is_picture { page::picture } else { page::html };
    files::write(&demo.out, &write(&record, demo.ranks))?;
    let right = record.phases.len() == PHASES.len() && record.phases.iter().all(|(.., came)| *came);
    if demo.json {
        let phases = record
            .phases
            .iter()
            .map(|(phase, at, came)| serde_json::json!({ "phase": phase, "at": at, "decision_came": came }));
        let value = serde_json::json!({
            "phases": phases.collect::<Vec<_>>(), "changes": record.changes,
            "operations": record.samples.len(), "page": demo.out,
        });
        output::print_json(&value)?;
    } else {
        output::print(&(page::text(&record) + &format!("the picture is in {name}\n")))?;
    }
    Ok(right)
}

/// Runs the ranks through all phases.
fn play(demo: &Demo) -> Result<Record> {
    let id = unique_id().map_err(|error| anyhow::anyhow!("{error}"))?;
    let stage = Stage {
        began: Instant::now(),
        share: Duration::from_secs(demo.seconds.into()) / PHASES.len() as u32,
        record: Mutex::default(),
        comms: Mutex::default(),
    };
    let outcome = std::thread::scope(|scope| {
        let of_rank = |rank: u32| {
            let stage = &stage;
            scope.spawn(move || {
                let comm = Comm::init(&[id], demo.ranks, rank, rank, Config::default())?;
                stage.comms.lock().unwrap_or_else(PoisonError::into_inner).push(comm.clone());
                stage.rank(&comm, demo.ranks).inspect_err(|_| stage.abort())?;
                comm.destroy()
            })
        };
        let ranks: Vec<_> = (0..demo.ranks).map(of_rank).collect();
        let ended = ranks.into_iter().map(|rank| rank.join());
        ended.map(|ended| ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect::<Vec<_>>()
    });
    outcome.into_iter().collect::<Result<Vec<()>, _>>().map_err(|error| anyhow::anyhow!("{error}"))?;
    Ok(stage.record.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// All that the ranks have in common.
struct Stage {
    began: Instant,
    /// The part of the time that a phase has.
    share: Duration,
    record: Mutex<Record>,
    comms: Mutex<Vec<Comm>>,
}

impl Stage {
    /// Plays one rank, until rank 0 says that it is over.
    fn rank(&self, comm: &Comm, ranks: u32) -> hawser_runtime::Result<()> {
        if comm.rank() == 0 {
            let files = [SettingsFile { name: "demo.toml".into(), text: RULES.into() }];
            comm.change_rules(&files)?;
        }
        let mut buffers = Buffers::new();
        let mut director = Director::new(self.began);
        let (mut phase, mut late) = (Some(Phase::Learn), Duration::ZERO);
        while let Some(now) = phase {
            for _ in 0..BATCH {
                if now == Phase::Stress && comm.rank() + 1 == ranks {
                    std::thread::sleep(late);
                }
                let from = Instant::now();
                buffers.add_up(comm)?;
                if comm.rank() == 0 {
                    let us = from.elapsed().as_secs_f32() * 1e6;
                    director.ran(us, comm.last_decision()?, &mut self.lock());
                }
            }
            // All ranks hear from rank 0 what comes next.
            let next = (comm.rank() == 0).then(|| director.next(self.share, &mut self.lock()));
            let place = |phase| PHASES.iter().position(|other| *other == phase).unwrap_or(PHASES.len());
            let lateness = director.lateness(&self.lock());
            let told = buffers.tell(comm, [next.flatten().map_or(PHASES.len(), place) as f32, lateness])?;
            (phase, late) = (PHASES.get(told[0] as usize).copied(), Duration::from_secs_f32(told[1] / 1e6));
        }
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One rank has failed: the others do not wait for it.
    fn abort(&self) {
        let comms = self.comms.lock().unwrap_or_else(PoisonError::into_inner);
        comms.iter().for_each(|comm| drop(comm.abort()));
    }
}

/// Rank 0's view: which phase it is, and when it is over.
struct Director {
    began: Instant,
    phase: Phase,
    since: Instant,
    /// The source of decisions now, and its rule.
    kind: Kind,
    rule: String,
    /// The floor has counted in this phase.
    has_fallen: bool,
}

impl Director {
    fn new(began: Instant) -> Self {
        Self {
            began,
            phase: Phase::Learn,
            since: began,
            kind: Kind::Floor,
            rule: String::new(),
            has_fallen: false,
        }
    }

    /// Writes an operation down.
    fn ran(&mut self, us: f32, last: Option<LastDecision>, record: &mut Record) {
        let Some(last) = last else { return };
        if record.phases.is_empty() {
            record.phases.push((Phase::Learn, 0.0, false));
        }
        let at = self.began.elapsed().as_secs_f64();
        let (algorithm, rule) = (last.algorithm, last.rule.unwrap_or_default());
        let kind = match () {
            () if rule.contains("a trial of adaptive mode") => Kind::Trial,
            () if rule.contains("learned: ") => Kind::Learned,
            () => Kind::Floor,
        };
        record.samples.push(Sample { at, us, kind });
        if kind != Kind::Trial && (kind, &rule) != (self.kind, &self.rule) {
            (self.kind, self.rule) = (kind, rule.clone());
            self.has_fallen |= kind == Kind::Floor;
            let operation = last.operation;
            record.changes.push(Change { at, operation, phase: self.phase, kind, algorithm, rule });
        }
    }

    /// The microseconds by which the late rank is late: many times what operations take before that.
    fn lateness(&self, record: &Record) -> f32 {
        let calm = record.samples.iter().filter(|sample| sample.kind == Kind::Learned);
        let mut last: Vec<f32> = calm.take(200).map(|sample| sample.us).collect();
        last.sort_by(f32::total_cmp);
        let long = last.get(last.len() * 19 / 20).copied().unwrap_or_default();
        (LATE * long).clamp(LATENESS.0, LATENESS.1)
    }

    /// The phase that comes next; None when it is over.
    fn next(&mut self, share: Duration, record: &mut Record) -> Option<Phase> {
        // What was learned may come back under stress, where it is no slower than the floor then.
        let came = if self.phase == Phase::Stress { self.has_fallen } else { self.kind == Kind::Learned };
        let elapsed = self.since.elapsed();
        if let Some((.., has_come)) = record.phases.last_mut() {
            *has_come = came;
        }
        if elapsed < share || !came && elapsed < share.max(PATIENCE) {
            return Some(self.phase);
        }
        let at = PHASES.iter().position(|phase| *phase == self.phase)?;
        // Without the decision of this phase the next one has nothing to show.
        let next = PHASES.get(at + 1).copied().filter(|_| came)?;
        (self.phase, self.since, self.has_fallen) = (next, Instant::now(), false);
        record.phases.push((next, self.began.elapsed().as_secs_f64(), false));
        Some(next)
    }
}

/// The memory of a rank.
struct Buffers {
    input: Vec<f32>,
    output: Vec<f32>,
}

impl Buffers {
    fn new() -> Self {
        Self { input: vec![1.0; ELEMENTS], output: vec![0.0; ELEMENTS] }
    }

    fn call(&mut self, collective: Collective, count: usize) -> Call {
        let (input, output) = (self.input.as_ptr() as u64, self.output.as_mut_ptr() as u64);
        let (dtype, op, scalar) = (DataType::Float32, ReduceOp::Sum, Scalar::Immediate(0));
        Call { collective, count: count as u64, dtype, op, scalar, root: 0, input, output, gap: 0 }
    }

    /// An operation of the demo, which has to be right.
    fn add_up(&mut self, comm: &Comm) -> hawser_runtime::Result<()> {
        comm.collective(self.call(Collective::AllReduce, ELEMENTS), Stream(0))?;
        let sum = comm.ranks() as f32;
        match self.output.iter().position(|element| *element != sum) {
            Some(at) => {
                let text = format!("element {at} of the sum is {}, not {sum}", self.output[at]);
                Err(hawser_runtime::Error::internal(text))
            }
            None => Ok(()),
        }
    }

    /// Tells all ranks two numbers of rank 0.
    fn tell(&mut self, comm: &Comm, numbers: [f32; 2]) -> hawser_runtime::Result<[f32; 2]> {
        self.input[..2].copy_from_slice(&numbers);
        let told = comm.collective(self.call(Collective::Broadcast, 2), Stream(0));
        self.input[..2].fill(1.0);
        told.map(|()| [self.output[0], self.output[1]])
    }
}
