//! Ranks that sleep for random times, always below `HAWSER_HANG_AFTER`, for some minutes: prints how many
//! operations there were, how long the longest was open, and every verdict that came. Each is a false one.
//!
//! ```text
//! cargo run -p hawser-tests --bin soak -- --minutes 10 [--jobs 1] [--ranks 4] [--hosts 1] [--hang-after 3]
//!     [--seed 1]
//! ```
//!
//! Several jobs run side by side: each has a seed of its own, the one that is given and those after it, and
//! every second job has one host more. Ends with 1 if a verdict came or a rank failed. Build all of the
//! crate's programs first (`cargo build -p hawser-tests`): ranks run `hawser-test-rank`, which lies beside
//! this one.

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use hawser_tests::soak::{Findings, Soak};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let value = |name: &str, most: u64| {
        let at = args.iter().position(|arg| arg == name)?;
        args.get(at + 1)?.parse::<u64>().ok().map(|number| number.clamp(1, most))
    };
    let small = |name: &str, default: u64| value(name, 64).unwrap_or(default) as u32;
    let seed = value("--seed", u64::MAX).unwrap_or(1);
    let job = |number: u32| Soak {
        ranks: small("--ranks", 4),
        hosts: small("--hosts", 1) + number % 2,
        hang_after: small("--hang-after", 3),
        time: Duration::from_secs(60 * value("--minutes", 24 * 60).unwrap_or(1)),
        seed: seed.wrapping_add(u64::from(number)),
    };
    let jobs: Vec<Soak> = (0..small("--jobs", 1)).map(job).collect();
    let binary = std::env::current_exe().expect("this program").with_file_name("hawser-test-rank");
    let binary = binary.to_str().expect("a path in UTF-8");
    let findings: Vec<Findings> = thread::scope(|scope| {
        let running: Vec<_> = jobs.iter().map(|job| scope.spawn(|| job.carry_out(binary))).collect();
        running.into_iter().map(|job| job.join().expect("a job's findings")).collect()
    });
    for (job, found) in jobs.iter().zip(&findings) {
        found.wrong.iter().for_each(|text| println!("A VERDICT, OR A RANK THAT FAILED\n{text}"));
        println!("{}", line(job, found));
    }
    let wrong: usize = findings.iter().map(|found| found.wrong.len()).sum();
    println!(
        "{} jobs, {} minutes in all, {} operations: {wrong} ranks told a false verdict or failed",
        jobs.len(),
        jobs.iter().map(|job| job.time.as_secs()).sum::<u64>() / 60,
        findings.iter().map(|found| found.operations).sum::<u64>(),
    );
    ExitCode::from(u8::from(wrong > 0))
}

/// A line about a job.
fn line(job: &Soak, found: &Findings) -> String {
    format!(
        "seed {}, {} ranks on {} hosts for {:?}, HAWSER_HANG_AFTER={}: {} operations, the longest open for \
         {} ms; {} ranks told a false verdict or failed",
        job.seed,
        job.ranks,
        job.hosts,
        job.time,
        job.hang_after,
        found.operations,
        found.longest.as_millis(),
        found.wrong.len()
    )
}
