//! `hawser perf -p` that is killed takes its processes with it.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// More than any step takes, on a slow machine too.
const LIMIT: Duration = Duration::from_secs(60);

/// Asks until there is an answer.
fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + LIMIT;
    loop {
        if let Some(found) = ask() {
            return found;
        }
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The processes that a process has started.
fn children(pid: u32) -> Vec<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().map(|word| word.parse().unwrap()).collect()
}

/// True if a process runs; one that has ended and that nobody has asked about does not.
fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

#[test]
fn processes_end_with_the_one_that_started_them() {
    let mut job = Command::new(env!("CARGO_BIN_EXE_hawser"))
        .args(["perf", "all_reduce", "-p", "2", "-g", "1", "-b", "4K", "-e", "4K", "-n", "100000000"])
        .env("HAWSER_DEVICE", "host")
        .env("HAWSER_RUNTIME_DIR", "none")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let started = until("both processes start", || Some(children(job.id())).filter(|all| all.len() == 2));
    // As soon as they have begun to be this program, and not a copy of the one that starts them.
    let is_program = |pid: &u32| {
        let words = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        String::from_utf8_lossy(&words).contains("HAWSER_PROCESS_STARTED_BY=")
    };
    until("both run the program", || started.iter().all(is_program).then_some(()));
    job.kill().unwrap();
    job.wait().unwrap();
    until("both have ended", || started.iter().all(|pid| !runs(*pid)).then_some(()));
}
