//! Ranks that sleep for random times, always below `HAWSER_HANG_AFTER`, for some minutes: prints how many
//! operations there were, how long the longest was open, and every verdict that came. Each is a false one.
//!
//! ```text
//! cargo run -p hawser-tests --bin soak -- --minutes 10 [--ranks 4] [--hosts 1] [--hang-after 3] [--seed 1]
//! ```
//!
//! Ends with 1 if a verdict came or a rank failed. Build all of the crate's programs first (`cargo build -p
//! hawser-tests`): ranks run `hawser-test-rank`, which lies beside this one.

use std::process::ExitCode;
use std::time::Duration;

use hawser_tests::soak::Soak;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let value = |name: &str, most: u64| {
        let at = args.iter().position(|arg| arg == name)?;
        args.get(at + 1)?.parse::<u64>().ok().map(|number| number.clamp(1, most))
    };
    let small = |name: &str, default: u64| value(name, 64).unwrap_or(default) as u32;
    let soak = Soak {
        ranks: small("--ranks", 4),
        hosts: small("--hosts", 1),
        hang_after: small("--hang-after", 3),
        time: Duration::from_secs(60 * value("--minutes", 24 * 60).unwrap_or(1)),
        seed: value("--seed", u64::MAX).unwrap_or(1),
    };
    let binary = std::env::current_exe().expect("this program").with_file_name("hawser-test-rank");
    let findings = soak.carry_out(binary.to_str().expect("a path in UTF-8"));
    findings.wrong.iter().for_each(|text| println!("A VERDICT, OR A RANK THAT FAILED\n{text}"));
    println!(
        "{} ranks on {} hosts for {:?}, HAWSER_HANG_AFTER={}: {} operations, the longest open for {} ms; \
         {} ranks told a false verdict or failed",
        soak.ranks,
        soak.hosts,
        soak.time,
        soak.hang_after,
        findings.operations,
        findings.longest.as_millis(),
        findings.wrong.len()
    );
    ExitCode::from(u8::from(!findings.wrong.is_empty()))
}
