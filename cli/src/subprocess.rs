//! Runs `hawser perf` in a process of its own, so that a run that hangs or dies takes nothing along.

use std::hash::{BuildHasher, RandomState};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hawser_plan::Collective;
use serde::Deserialize;

use crate::perf::Decided;

/// Deadline of `hawser perf`'s waits, in seconds. It is killed after so long for each communicator, and once
/// more.
const RUN_SECONDS: u64 = 120;

/// Beginnings of the variables by which launchers tell a process its place.
const LAUNCHERS: [&str; 7] = ["RANK", "WORLD_SIZE", "LOCAL_", "OMPI_", "PMI", "SLURM_", "HAWSER_PROCESS"];

/// A measurement that is to be made: out of place, with floats, without checks.
pub struct Sweep<'a> {
    /// The collectives to measure.
    pub collectives: &'a [Collective],
    /// Communicators of these names take turns; empty = one without a name.
    pub names: &'a [String],
    /// The number of ranks, each of which is a thread.
    pub ranks: u32,
    /// First and last size in bytes.
    pub bytes: (u64, u64),
    /// The factor from one size to the next.
    pub factor: u64,
    /// The number of times that all sizes are measured.
    pub cycles: u32,
    /// Milliseconds of a measurement at most.
    pub point_ms: u64,
    /// True if ranks are threads of the CPU.
    pub is_host: bool,
}

/// One result of a measurement.
#[derive(Deserialize)]
pub struct Row {
    /// The name of the communicator, if several took turns.
    pub communicator: Option<String>,
    /// The collective's name in snake case.
    pub collective: String,
    /// Bytes of the larger of input and output.
    pub size: u64,
    /// Elements; 0 = nothing was measured.
    pub count: u64,
    /// The time of an operation out of place.
    pub out_of_place: Time,
    /// The decision by which it ran.
    pub decision: Option<Decided>,
}

/// The time of an operation.
#[derive(Deserialize)]
pub struct Time {
    /// µs of an operation.
    pub time: f64,
}

#[derive(Deserialize)]
struct Document {
    results: Vec<Row>,
}

/// Runs a sweep. Variables that begin with one of `without` are not handed on; `prepare` sets others.
///
/// # Errors
/// The run could not be started, failed, took too long or left no results.
pub fn perf(
    folder: &Folder,
    sweep: &Sweep<'_>,
    without: &[&str],
    prepare: impl FnOnce(&mut Command),
) -> Result<Vec<Row>> {
    let json = folder.path().join("run.json");
    let mut command = command(sweep, &json, without)?;
    prepare(&mut command);
    let mut child = command.spawn().context("cannot start this program again")?;
    let turns = sweep.names.len().max(1) as u64;
    let status = wait(&mut child, Duration::from_secs((1 + turns) * RUN_SECONDS))?;
    if !status.success() {
        bail!("hawser perf ended with {status}; its reason is above");
    }
    let text = std::fs::read(&json).context("hawser perf left no results")?;
    let document: Document = serde_json::from_slice(&text).context("hawser perf's results")?;
    Ok(document.results)
}

fn command(sweep: &Sweep<'_>, json: &Path, without: &[&str]) -> Result<Command> {
    let mut command = alone(without)?;
    let names: Vec<&str> = sweep.collectives.iter().map(|c| c.name()).collect();
    let (first, last) = sweep.bytes;
    let words = [
        format!("perf {} -t {} -g 1 -c 0 -w 1 -n 20", names.join(","), sweep.ranks),
        format!("-b {} -e {last} -f {} -N {}", first.min(last), sweep.factor, sweep.cycles),
        format!("--point-ms {} --skip-in-place --explain -T {RUN_SECONDS}", sweep.point_ms),
        // Calls one by one would measure how fast this program calls.
        if sweep.is_host { String::new() } else { "-G 10".into() },
    ];
    command.args(words.iter().flat_map(|w| w.split_whitespace())).arg("-J").arg(json);
    if !sweep.names.is_empty() {
        command.arg("--names").arg(sweep.names.join(","));
    }
    command.stdin(Stdio::null()).stdout(Stdio::null());
    Ok(command)
}

/// This program, not as a part of a larger job, and without variables that begin with one of `without`.
///
/// # Errors
/// Its path is not known.
pub fn alone(without: &[&str]) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
    for (name, _) in std::env::vars_os() {
        let begins = |prefix: &&str| name.to_str().is_some_and(|name| name.starts_with(*prefix));
        if LAUNCHERS.iter().chain(without).any(begins) {
            command.env_remove(name);
        }
    }
    Ok(command)
}

/// Waits for a child, which is killed when it takes too long.
///
/// # Errors
/// It took too long.
pub fn wait(child: &mut Child, limit: Duration) -> Result<ExitStatus> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for hawser perf")? {
            return Ok(status);
        }
        if Instant::now() >= deadline {
            // It may have ended just now, which is as good.
            let _ = child.kill();
            let _ = child.wait();
            bail!("hawser perf did not end within {limit:?}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A folder of this user only, removed when dropped.
pub struct Folder(PathBuf);

impl Folder {
    /// Makes a folder of a new name.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn new() -> Result<Self> {
        let word = RandomState::new().hash_one(std::process::id());
        let name = format!("hawser-measure-{}-{word:x}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let made = std::fs::DirBuilder::new().mode(0o700).create(&path);
        made.with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self(path))
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_becomes_words() {
        let mut sweep = Sweep {
            collectives: &[Collective::AllReduce, Collective::AllGather],
            names: &[],
            ranks: 4,
            bytes: (1 << 20, 4096),
            factor: 8,
            cycles: 3,
            point_ms: 20,
            is_host: false,
        };
        let args = |sweep: &Sweep<'_>| -> Vec<String> {
            let command = command(sweep, Path::new("/x.json"), &[]).unwrap();
            command.get_args().filter_map(|a| a.to_str()).map(str::to_owned).collect()
        };
        let on_gpus = args(&sweep);
        assert!(on_gpus.starts_with(&["perf", "all_reduce,all_gather", "-t", "4"].map(String::from)));
        assert!(on_gpus.contains(&"-G".into()) && on_gpus.ends_with(&["-J", "/x.json"].map(String::from)));
        let first = on_gpus.iter().position(|word| word == "-b").unwrap();
        assert_eq!(on_gpus[first + 1], "4096", "the first size is no larger than the last");
        sweep.is_host = true;
        assert!(!args(&sweep).contains(&"-G".into()));
        let names = ["a/b".to_owned(), "c".to_owned()];
        sweep.names = &names;
        assert!(args(&sweep).ends_with(&["--names", "a/b,c"].map(String::from)));
    }
}
