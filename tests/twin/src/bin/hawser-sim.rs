//! Runs worlds that break, by seed: see `docs/simulate.md`.
//!
//! ```text
//! hawser-sim --seed S [--worlds N | --minutes M] [--jobs J] [--shrink]     worlds of S, S + 1, …
//! hawser-sim --seed S [--without 3,7] [--trace]                            one world
//! hawser-sim --seed S --after F [--trace]                                  one world behind those before it
//! hawser-sim --seed S --worlds N --plant NAME --first                       until a planted bug is found
//! hawser-sim --case NAME [--trace]                                         one in which a bug was found
//! hawser-sim --world W --seed S [--worlds N]                               the world of W by other turns
//! ```
//!
//! With `--real-time`, threads run as the kernel lets them and waits take their time.
//!
//! Worlds run in processes of their own, 64 in each, one after the other. Ends with 1 if an invariant broke;
//! the line says how to see it again: the world alone, or behind those of its process, which leave behind
//! threads and caches, and which `--after` names by the first.

use std::collections::BTreeSet;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hawser_twin::cases;
use hawser_twin::holdings::resident_kib;
use hawser_twin::loopback::stand_apart;
use hawser_twin::run::{run, warm_up};
use hawser_twin::shrink::{arguments, shrink};
use hawser_twin::turns;
use hawser_twin::world::{Part, World};

/// The variable that tells a child which of several at a time it is.
const JOB: &str = "HAWSER_TWIN_JOB";

/// Worlds that one process runs.
const BATCH: u64 = 64;

/// Resident memory that the second half of a batch may add, in KiB.
const GROWTH: usize = 40_000;

/// The settings of all worlds.
const SETTINGS: [(&str, &str); 11] = [
    ("HAWSER_DEVICE", "host"),
    ("HAWSER_OP_TIMEOUT", "20"),
    ("HAWSER_INIT_TIMEOUT", "20"),
    ("HAWSER_RULES_TIMEOUT", "20"),
    ("HAWSER_HEARTBEAT", "5"),
    ("HAWSER_HANG_AFTER", "0"),
    ("HAWSER_PUT_NET", "1000"),
    ("HAWSER_RUNTIME_DIR", "none"),
    ("NCCL_RAS_ENABLE", "0"),
    ("NCCL_SOCKET_IFNAME", "lo"),
    ("MALLOC_ARENA_MAX", "2"),
];

/// Seeds that are alike modulo so many have the same settings of their own, so they share processes.
const STRIDE: u64 = 8;

/// The settings that worlds have beside those of all.
const OWN_SETTINGS: [Option<(&str, &str)>; STRIDE as usize] = [
    None,
    Some(("NCCL_BUFFSIZE", "16384")),
    Some(("HAWSER_CHECKSUM", "1")),
    Some(("NCCL_SHM_DISABLE", "1")),
    None,
    Some(("NCCL_BUFFSIZE", "65536")),
    Some(("NCCL_CHECK_MODE", "DEBUG_GLOBAL")),
    Some(("NCCL_RUNTIME_CONNECT", "0")),
];

/// The settings of a seed's world beside those of all.
fn own_setting(seed: u64) -> Option<(&'static str, &'static str)> {
    OWN_SETTINGS[(seed % STRIDE) as usize]
}

struct Wanted {
    seed: u64,
    worlds: u64,
    time: Option<Duration>,
    jobs: u64,
    stride: u64,
    /// The first world of the process, of those that came before.
    after: Option<u64>,
    without: BTreeSet<Part>,
    case: Option<String>,
    world: Option<u64>,
    plant: Option<String>,
    first: bool,
    trace: bool,
    shrink: bool,
    real_time: bool,
}

fn main() -> ExitCode {
    let wanted = match wanted() {
        Ok(wanted) => wanted,
        Err(text) => {
            eprintln!("hawser-sim: {text}");
            return ExitCode::from(2);
        }
    };
    // The settings are read once, at the start of a process.
    let is_child = std::env::var_os("HAWSER_TWIN_CHILD").is_some();
    match (is_child, wanted.worlds == 1 && wanted.time.is_none()) {
        (true, _) => batch(&wanted),
        (false, true) => {
            let mut arguments = match wanted.after {
                None => arguments(wanted.seed, &wanted.without),
                Some(first) => one_after_the_other(first, (wanted.seed - first) / STRIDE + 1),
            };
            arguments.extend(wanted.passed_on());
            arguments.extend(wanted.trace.then(|| "--trace".to_owned()));
            let status = child(wanted.world_of(wanted.seed), &arguments).status();
            let failed = !status.is_ok_and(|status| status.success());
            if failed && wanted.shrink {
                show_smaller(wanted.seed, &wanted.without);
            }
            ExitCode::from(u8::from(failed))
        }
        (false, false) => many(&wanted),
    }
}

fn wanted() -> Result<Wanted, String> {
    let mut wanted = Wanted {
        seed: 1,
        worlds: 1,
        time: None,
        jobs: 1,
        stride: 1,
        after: None,
        without: BTreeSet::new(),
        case: None,
        world: None,
        plant: None,
        first: false,
        trace: false,
        shrink: false,
        real_time: false,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let mut number = || {
            let text = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
            text.parse::<u64>().map_err(|_| format!("{name} {text}: not a number"))
        };
        match name.as_str() {
            "--seed" => wanted.seed = number()?,
            "--worlds" => wanted.worlds = number()?.max(1),
            "--minutes" => wanted.time = Some(Duration::from_secs(60 * number()?.clamp(1, 10_000))),
            "--after" => wanted.after = Some(number()?),
            "--stride" => wanted.stride = number()?.max(1),
            "--jobs" => wanted.jobs = number()?.clamp(1, 256),
            "--without" => {
                let text = arguments.next().ok_or("--without needs numbers of parts")?;
                let parts: Result<_, _> = text.split(',').map(str::parse).collect();
                wanted.without = parts.map_err(|_| format!("--without {text}: not numbers"))?;
            }
            "--world" => wanted.world = Some(number()?),
            "--case" => wanted.case = Some(arguments.next().ok_or("--case needs a name")?),
            "--plant" => wanted.plant = Some(arguments.next().ok_or("--plant needs a name")?),
            "--first" => wanted.first = true,
            "--trace" => wanted.trace = true,
            "--shrink" => wanted.shrink = true,
            "--real-time" => wanted.real_time = true,
            other => return Err(format!("{other} is not known: see docs/simulate.md")),
        }
    }
    if let Some(first) = wanted.after
        && (first > wanted.seed || first % STRIDE != wanted.seed % STRIDE)
    {
        return Err(format!("--after {first}: no world of the process of {}", wanted.seed));
    }
    Ok(wanted)
}

#[cfg(feature = "planted")]
use hawser_runtime::planted::plant;

#[cfg(not(feature = "planted"))]
fn plant(_name: &str) -> bool {
    false
}

impl Wanted {
    /// The seed of the world that runs by the turns of a seed; 0 for a case.
    fn world_of(&self, seed: u64) -> u64 {
        self.case.as_ref().map_or(self.world.unwrap_or(seed), |_| 0)
    }

    /// The arguments that children get as they are.
    fn passed_on(&self) -> impl Iterator<Item = String> {
        let plant = self.plant.iter().flat_map(|name| ["--plant".to_owned(), name.clone()]);
        let case = self.case.iter().flat_map(|name| ["--case".to_owned(), name.clone()]);
        let world = self.world.iter().flat_map(|world| ["--world".to_owned(), world.to_string()]);
        let flags = [(self.first, "--first"), (self.real_time, "--real-time")];
        let flags = flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag.to_owned());
        plant.chain(case).chain(world).chain(flags).collect::<Vec<_>>().into_iter()
    }
}

fn child(seed: u64, arguments: &[String]) -> Command {
    let program = std::env::current_exe().expect("the path of this program");
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let is_setting = |name: &str| ["NCCL_", "HAWSER_"].iter().any(|start| name.starts_with(start));
        if name.to_str().is_some_and(is_setting) && name != "NCCL_DEBUG" {
            command.env_remove(name);
        }
    }
    command.args(arguments).envs(SETTINGS).envs(own_setting(seed)).env("HAWSER_TWIN_CHILD", "1");
    command
}

/// Runs worlds in this process, and prints what is wrong and a last line of figures.
fn batch(wanted: &Wanted) -> ExitCode {
    let (mut steps, mut errors, mut failed) = (0, 0, 0);
    if let Some(name) = &wanted.plant
        && !plant(name)
    {
        println!("FINDING no bug {name} can be planted here: build with --features planted");
        return ExitCode::from(2);
    }
    if let Err(error) = stand_apart() {
        println!("FINDING a loopback interface of this process: {error}");
        return ExitCode::from(2);
    }
    if !wanted.real_time {
        let job = std::env::var(JOB).ok().and_then(|job| job.parse().ok());
        turns::begin(wanted.seed, job.unwrap_or(0));
    }
    let mut half = None;
    if let Err(error) = warm_up() {
        println!("FINDING the communicator before all worlds: {error}");
        return ExitCode::from(1);
    }
    for number in 0..wanted.worlds {
        let seed = wanted.seed.wrapping_add(number.wrapping_mul(wanted.stride));
        println!("world {seed}");
        let world = match &wanted.case {
            None => World::draw(wanted.world_of(seed), &wanted.without),
            Some(name) => match cases::world(name) {
                Some(world) => world,
                None => {
                    println!("FINDING no case is called {name}");
                    return ExitCode::from(2);
                }
            },
        };
        if wanted.trace {
            println!("{world:#?}");
        }
        turns::reseed(seed);
        let outcome = run(&world);
        if wanted.trace {
            outcome.trace.iter().for_each(|line| println!("{line}"));
        }
        outcome.findings.iter().for_each(|text| println!("FINDING {text}"));
        (steps, errors) = (steps + outcome.steps, errors + outcome.errors);
        failed += u64::from(!outcome.findings.is_empty());
        if outcome.hangs || wanted.first && failed > 0 {
            return ExitCode::from(1);
        }
        if number == wanted.worlds / 2 {
            half = Some(resident_kib());
        }
    }
    let grown = half.map_or(0, |before| resident_kib().saturating_sub(before));
    if wanted.worlds >= BATCH && grown > GROWTH {
        println!("FINDING leak: {} worlds added {grown} KiB of memory", wanted.worlds / 2);
        failed += 1;
    }
    println!("figures {} {steps} {errors}", wanted.worlds);
    ExitCode::from(u8::from(failed > 0))
}

/// The outcome of worlds in processes of their own, counted by all threads.
#[derive(Default)]
struct Tally {
    /// The number of the next batch.
    next: AtomicU64,
    worlds: AtomicU64,
    steps: AtomicU64,
    errors: AtomicU64,
    failed: AtomicU64,
}

/// Runs batches in processes of their own until all worlds or the time are over.
fn many(wanted: &Wanted) -> ExitCode {
    let (begin, tally) = (Instant::now(), Tally::default());
    let work = |job: u64| {
        while !(wanted.first && tally.failed.load(Ordering::Relaxed) > 0)
            && wanted.time.is_none_or(|time| begin.elapsed() < time)
        {
            match next_batch(wanted, tally.next.fetch_add(1, Ordering::Relaxed)) {
                Some((_, 0)) => {}
                Some((seed, worlds)) => run_batch(wanted, (job, seed, worlds), &tally),
                None => break,
            }
        }
    };
    std::thread::scope(|scope| (0..wanted.jobs).for_each(|job| drop(scope.spawn(move || work(job)))));
    let Tally { worlds, steps, errors, failed, .. } = tally;
    let [worlds, steps, errors, failed] = [worlds, steps, errors, failed].map(AtomicU64::into_inner);
    println!(
        "{worlds} worlds from seed {} in {:.0} s: {steps} steps, {errors} errors that faults explain, \
         {failed} worlds with findings",
        wanted.seed,
        begin.elapsed().as_secs_f64()
    );
    ExitCode::from(u8::from(failed > 0))
}

/// The first seed of a batch and its number of worlds, which may be 0; None once all worlds are given out.
/// Seeds come in blocks, of each of which a process takes those that are alike.
fn next_batch(wanted: &Wanted, number: u64) -> Option<(u64, u64)> {
    let block = wanted.seed.saturating_add((number / STRIDE).saturating_mul(STRIDE * BATCH));
    let last = if wanted.time.is_some() { u64::MAX } else { wanted.worlds };
    let end = block.saturating_add(STRIDE * BATCH).min(wanted.seed.saturating_add(last));
    let seed = block + number % STRIDE;
    (block < end).then(|| (seed, end.saturating_sub(seed).div_ceil(STRIDE)))
}

/// Runs worlds from `seed` on in a process of their own, counts what they came to, and prints findings.
fn run_batch(wanted: &Wanted, (job, seed, worlds): (u64, u64, u64), tally: &Tally) {
    let mut command = child(wanted.world_of(seed), &one_after_the_other(seed, worlds));
    command.args(wanted.passed_on()).env(JOB, job.to_string());
    let output = command.stderr(Stdio::null()).output().expect("this program starts again");
    let add = |to: &AtomicU64, by: u64| to.fetch_add(by, Ordering::Relaxed);
    let (mut at, mut was_failed) = (seed, None);
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        if let Some(seed) = line.strip_prefix("world ") {
            at = seed.parse().unwrap_or(at);
            add(&tally.worlds, 1);
        } else if let Some(numbers) = line.strip_prefix("figures ") {
            let mut numbers = numbers.split(' ').filter_map(|n| n.parse::<u64>().ok()).skip(1);
            add(&tally.steps, numbers.next().unwrap_or(0));
            add(&tally.errors, numbers.next().unwrap_or(0));
        } else if line.starts_with("FINDING") && was_failed != Some(at) {
            was_failed = Some(at);
            add(&tally.failed, 1);
            report(wanted, (at, seed), line);
        }
    }
    if !output.status.success() && was_failed.is_none() {
        add(&tally.failed, 1);
        report(wanted, (at, seed), &format!("FINDING the process ended with {}", output.status));
    }
}

/// The arguments of a process that runs worlds from a seed on.
fn one_after_the_other(first: u64, worlds: u64) -> Vec<String> {
    let [stride, first, count] = [STRIDE, first, worlds].map(|number| number.to_string());
    ["--stride".to_owned(), stride, "--seed".to_owned(), first, "--worlds".to_owned(), count].into()
}

/// Prints the one line by which a world is seen again, and what it takes if it does not fail alone.
fn report(wanted: &Wanted, (seed, first): (u64, u64), finding: &str) {
    let commit = Command::new("git").args(["rev-parse", "--short", "HEAD"]).output();
    let commit = commit.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let commit = commit.unwrap_or_default();
    println!("{finding}\n  commit {commit}: hawser-sim --seed {seed}, or --seed {seed} --after {first}");
    if wanted.shrink {
        show_smaller(seed, &wanted.without);
    }
}

fn show_smaller(seed: u64, without: &BTreeSet<Part>) {
    println!("  smaller: hawser-sim {}", arguments(seed, &shrink(seed, without)).join(" "));
}
