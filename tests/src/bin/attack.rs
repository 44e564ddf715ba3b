//! Kills ranks at random moments for some minutes, and says what became of the others; or stops ranks for 1
//! to 60 seconds each, several jobs at a time.
//!
//! ```text
//! cargo run -p hawser-tests --bin attack -- --minutes 30 [--seed S] [--kills N]
//! cargo run -p hawser-tests --bin attack -- --stops 100 [--seed S]
//! ```
//!
//! Every kill has a seed of its own: that given, the next one and so on, so that one that goes wrong can be
//! repeated with `--seed S --kills 1`. Ends with 1 if a survivor hung or blamed another rank. Build all of
//! the crate's programs first (`cargo build -p hawser-tests`): ranks run `hawser-test-rank`, which lies
//! beside this one.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use hawser_tests::attack::{Kill, Phase};
use hawser_tests::stops::Stop;

/// The number of jobs with stopped ranks at a time: they wait for most of it.
const SIDE_BY_SIDE: usize = 10;

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
    let (first, most) = (value("--seed").unwrap_or(1), value("--kills").unwrap_or(u64::MAX));
    let binary = std::env::current_exe().expect("this program").with_file_name("hawser-test-rank");
    let binary = binary.to_str().expect("a path in UTF-8");
    if let Some(stops) = value("--stops") {
        return stop(binary, first, stops);
    }
    let end = Instant::now() + Duration::from_secs(60 * minutes);
    let before = in_shm();
    let mut rows: BTreeMap<String, Row> = BTreeMap::new();
    for seed in (first..).take(usize::try_from(most).unwrap_or(usize::MAX)) {
        if most == u64::MAX && Instant::now() >= end {
            break;
        }
        let kill = Kill::of(seed);
        let outcome = kill.carry_out(binary);
        let hosts = if kill.hosts == 1 { "one host" } else { "hosts" };
        let row = rows.entry(format!("{hosts:<8} {}", name(&kill.phase))).or_default();
        row.kills += 1;
        row.hangs += u32::from(!outcome.hangs.is_empty());
        row.wrong += u32::from(!outcome.wrong.is_empty());
        row.times.push(outcome.last);
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

fn name(phase: &Phase) -> String {
    match phase {
        Phase::Meeting => "meeting".into(),
        Phase::Met => "met".into(),
        Phase::Init(_) => "init".into(),
        Phase::Calls(step) => step.trim_start_matches("loop=").into(),
        Phase::Splits => "split".into(),
        Phase::Shrinks => "shrinks".into(),
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
