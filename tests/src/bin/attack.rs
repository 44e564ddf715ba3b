//! Attacks jobs for some minutes by all scenarios in turn (kills, stops, floods, forks, misuse, damaged
//! files); or kills so many ranks and says what became of the others (`--joins`: ranks that join by
//! `ncclCommGrow`), or stops ranks for 1 to 60 seconds
//! each, several jobs at a time, or measures floods.
//!
//! ```text
//! cargo run -p hawser-tests --bin attack -- --minutes 30 [--seed S]
//! cargo run -p hawser-tests --bin attack -- --kills N [--seed S]
//! cargo run -p hawser-tests --bin attack -- --joins N [--seed S]
//! cargo run -p hawser-tests --bin attack -- --stops 100 [--seed S]
//! cargo run -p hawser-tests --bin attack -- --flood ROUNDS [--strangers N] [--of-another-user N] [--nice N]
//! ```
//!
//! Every attack has a seed of its own: that given, the next one and so on, so that one that goes wrong can be
//! repeated with `--seed S --kills 1`, or with `--seed S --minutes 0` where scenarios are in turn. Ends with
//! 1 if a survivor hung or blamed another rank, or another attack did harm. Build all of the crate's programs
//! first (`cargo build -p hawser-tests`): ranks run `hawser-test-rank`, which lies beside this one.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use hawser_tests::attack::{Kill, Phase};
use hawser_tests::floods::{Flood, Outcome};
use hawser_tests::scenarios::Scenario;
use hawser_tests::stops::Stop;

/// The number of jobs with stopped ranks at a time: they wait for most of it.
const SIDE_BY_SIDE: usize = 10;

/// The time by which survivors should have ended. Kills that take longer are named.
const IN_TIME: Duration = Duration::from_secs(2);

/// The findings in one kind of kills.
#[derive(Default)]
struct Row {
    kills: u32,
    hangs: u32,
    wrong: u32,
    times: Vec<Duration>,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let value = |name: &str| {
        let at = args.iter().position(|arg| arg == name)?;
        args.get(at + 1)?.parse::<u64>().ok()
    };
    let minutes = value("--minutes").unwrap_or(1);
    let first = value("--seed").unwrap_or(1);
    let (kind, most): (fn(u64) -> Kill, _) = match (value("--kills"), value("--joins")) {
        (None, Some(joins)) => (Kill::of_a_newcomer, joins),
        (kills, _) => (Kill::of, kills.unwrap_or(u64::MAX)),
    };
    let binary = std::env::current_exe().expect("this program").with_file_name("hawser-test-rank");
    let binary = binary.to_str().expect("a path in UTF-8");
    if let Some(stops) = value("--stops") {
        return stop(binary, first, stops);
    }
    if let Some(rounds) = value("--flood") {
        let count = |name: &str, most: u32| value(name).map_or(most, |n| n.min(u64::from(most)) as u32);
        let flood = Flood {
            ranks: 4,
            files: 1024,
            from_strangers: count("--strangers", 10_000),
            from_another_user: count("--of-another-user", 1_000),
            nice: value("--nice").unwrap_or(0) as u32,
        };
        return floods(binary, flood, rounds);
    }
    if most == u64::MAX {
        return scenarios(binary, first, Duration::from_secs(60 * minutes));
    }
    let before = in_shm();
    let mut rows: BTreeMap<String, Row> = BTreeMap::new();
    for seed in (first..).take(usize::try_from(most).unwrap_or(usize::MAX)) {
        let kill = kind(seed);
        let outcome = kill.carry_out(binary);
        let hosts = if kill.hosts == 1 { "one host" } else { "hosts" };
        let row = rows.entry(format!("{hosts:<8} {}", name(&kill.phase))).or_default();
        row.kills += 1;
        row.hangs += u32::from(!outcome.hangs.is_empty());
        row.wrong += u32::from(!outcome.wrong.is_empty());
        row.times.push(outcome.last);
        if outcome.last > IN_TIME {
            println!("seed {seed}: {}: took {:.1} s", kill.words(), outcome.last.as_secs_f32());
        }
        for text in outcome.hangs.iter().chain(&outcome.wrong) {
            println!("seed {seed}: {}: HANGS OR BLAMES ANOTHER\n{text}", kill.words());
        }
    }
    let left = in_shm().saturating_sub(before);
    print(&rows);
    println!("files left in /dev/shm: {left}");
    let is_good = rows.values().all(|row| row.hangs + row.wrong == 0) && left == 0;
    ExitCode::from(u8::from(!is_good))
}

/// All scenarios in turn, a seed each from `first` on, for so long. Ends with 1 if one went wrong or left
/// something behind.
fn scenarios(binary: &str, first: u64, lasting: Duration) -> ExitCode {
    let (begin, before) = (Instant::now(), in_shm());
    let mut rows: BTreeMap<Scenario, [u32; 2]> = BTreeMap::new();
    for seed in first.. {
        let scenario = Scenario::of(seed);
        let [attacks, wrong] = rows.entry(scenario).or_default();
        *attacks += 1;
        if let Err(text) = scenario.carry_out(seed, binary) {
            *wrong += 1;
            println!("seed {seed}: {scenario:?}: WRONG: {text}");
        }
        if begin.elapsed() >= lasting {
            break;
        }
    }
    println!("{:<8} {:>8} {:>6}", "", "attacks", "wrong");
    rows.iter().for_each(|(scenario, [attacks, wrong])| {
        let name = format!("{scenario:?}");
        println!("{name:<8} {attacks:>8} {wrong:>6}");
    });
    let left = in_shm().saturating_sub(before);
    println!("files left in /dev/shm: {left}");
    let wrong: u32 = rows.values().map(|[_, wrong]| wrong).sum();
    ExitCode::from(u8::from(wrong > 0 || left > 0))
}

/// Stops ranks, by so many seeds from `first` on. Ends with 1 if a job failed or left something behind.
fn stop(binary: &str, first: u64, stops: u64) -> ExitCode {
    let before = in_shm();
    let seeds: Vec<u64> = (first..first + stops).collect();
    let mut failures = 0;
    for some in seeds.chunks(SIDE_BY_SIDE) {
        let run = |seed: &u64| (*seed, Stop::of(*seed).carry_out(binary));
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let jobs: Vec<_> = some.iter().map(|seed| scope.spawn(move || run(seed))).collect();
            jobs.into_iter().map(|job| job.join().expect("a job says what failed")).collect()
        });
        for (seed, outcome) in outcomes {
            println!(
                "seed {seed}: {}: {}",
                Stop::of(seed).words(),
                outcome.as_ref().map_or("FAILED", |()| "ok")
            );
            if let Err(text) = outcome {
                failures += 1;
                println!("{text}");
            }
        }
    }
    let left = in_shm().saturating_sub(before);
    println!("{stops} stops, {failures} failures; files left in /dev/shm: {left}");
    ExitCode::from(u8::from(failures > 0 || left > 0))
}

/// Runs a job without a flood and under one, in turns. Ends with 1 if a rank failed, or one of the program's
/// own files could not be opened.
fn floods(binary: &str, flood: Flood, rounds: u64) -> ExitCode {
    let quiet = Flood { from_strangers: 0, from_another_user: 0, ..flood };
    println!("{flood:?}");
    println!(
        "{:<8} {:>10} {:>6} {:>12} {:>8} {:>7} {:>6}",
        "", "init ms", "ports", "connections", "opened", "failed", "lines"
    );
    let mut inits = [vec![], vec![]];
    let mut is_good = true;
    for _ in 0..rounds {
        for (at, (name, flood)) in [("quiet", quiet), ("flooded", flood)].into_iter().enumerate() {
            match flood.carry_out(binary) {
                Ok(Outcome { init, ports, connections, opened, failed, lines }) => {
                    let init = 1e3 * init.as_secs_f64();
                    println!(
                        "{name:<8} {init:>10.1} {ports:>6} {connections:>12} {opened:>8} {failed:>7} {lines}"
                    );
                    inits[at].push(init);
                    is_good &= failed == 0;
                }
                Err(text) => {
                    println!("{name}: A RANK FAILED\n{text}");
                    is_good = false;
                }
            }
        }
    }
    let [quiet, flooded] = inits.map(|mut inits| {
        inits.sort_by(f64::total_cmp);
        inits.get(inits.len() / 2).copied().unwrap_or(f64::NAN)
    });
    println!("init, median: {quiet:.1} ms, flooded {flooded:.1} ms: {:.2} times", flooded / quiet);
    ExitCode::from(u8::from(!is_good))
}

fn name(phase: &Phase) -> String {
    match phase {
        Phase::Meeting => "meeting".into(),
        Phase::Met => "met".into(),
        Phase::Init(_) => "init".into(),
        Phase::Calls(step) => step.trim_start_matches("loop=").into(),
        Phase::Splits => "split".into(),
        Phase::Shrinks => "shrinks".into(),
        Phase::Grows => "grows".into(),
        Phase::Joins { step, .. } => format!("joins, {step}"),
        Phase::Destroy => "destroy".into(),
    }
}

fn print(rows: &BTreeMap<String, Row>) {
    println!(
        "{:<26} {:>6} {:>6} {:>6} {:>10} {:>10}",
        "phase", "kills", "hangs", "wrong", "median s", "longest s"
    );
    let mut sum = Row::default();
    for (name, row) in rows {
        line(name, row);
        sum.kills += row.kills;
        sum.hangs += row.hangs;
        sum.wrong += row.wrong;
        sum.times.extend(&row.times);
    }
    line("all", &sum);
}

fn line(name: &str, row: &Row) {
    let mut times: Vec<f32> = row.times.iter().map(Duration::as_secs_f32).collect();
    times.sort_by(f32::total_cmp);
    let (median, longest) = (times.get(times.len() / 2).unwrap_or(&0.0), times.last().unwrap_or(&0.0));
    println!("{name:<26} {:>6} {:>6} {:>6} {median:>10.2} {longest:>10.2}", row.kills, row.hangs, row.wrong);
}

/// Files in `/dev/shm`, in folders too.
fn in_shm() -> usize {
    fn count(folder: &std::path::Path) -> usize {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|e| if e.path().is_dir() { count(&e.path()) } else { 1 }).sum()
    }
    count(std::path::Path::new("/dev/shm"))
}
