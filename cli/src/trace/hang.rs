//! `hawser trace hang`: says why nothing moves.
//!
//! A process that can answer is asked, and asks the ranks on other hosts. Processes that are stopped are read
//! through their journals (`/proc/PID/fd`), without their help.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use hawser_runtime::progress::process_state::ProcessState;
use hawser_runtime::progress::reader;
use hawser_runtime::progress::report::ProcessReport;
use hawser_runtime::progress::verdict::{Evidence, Verdict, of_meetings, verdict};
use hawser_runtime::rules_update::client;
use serde::Serialize;

use super::python::{self, Python};
use crate::output;
use crate::progress::Progress;

/// The time that a process may take to say what job it belongs to.
const ANSWER: Duration = Duration::from_secs(1);

/// Options of `hawser trace hang`. Without any, all processes of this user on this host are looked at.
#[derive(Debug, Args)]
pub struct Hang {
    /// Only the communicators of this process
    #[arg(long)]
    pid: Option<u32>,
    /// Only those of processes of this job (`HAWSER_JOB`, else Slurm's job)
    #[arg(long, conflicts_with = "pid")]
    job: Option<String>,
    /// Files of `HAWSER_PROGRESS_DIR`, also of processes that have ended
    #[arg(long, conflicts_with_all = ["pid", "job"], num_args = 1.., value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Only communicators with something open
    #[arg(long)]
    open: bool,
    /// Print a JSON list, with a line for every rank
    #[arg(long)]
    json: bool,
}

/// Runs `hawser trace hang`.
///
/// # Errors
/// There is nothing to look at, or it cannot be read.
pub fn run(options: &Hang) -> Result<()> {
    let waiting = Progress::waiting("asking processes");
    let mut verdicts =
        if options.files.is_empty() { of_processes(options)? } else { of_files(&options.files)? };
    if options.open {
        verdicts.retain(|verdict| !verdict.guilty.is_empty());
    }
    // Files are those of other times, or of the dead.
    let here = if options.files.is_empty() { reports_here() } else { Vec::new() };
    let with_python = |verdict| {
        let python = python::of_guilty(&verdict, &here);
        Told { verdict, python }
    };
    let told: Vec<Told> = verdicts.into_iter().map(with_python).collect();
    waiting.end();
    if options.json {
        return output::print_json(&told);
    }
    let texts: Vec<String> = told.iter().map(|told| told.text() + "\n").collect();
    output::print(&texts.concat())
}

/// A verdict, and what Python does in the processes that it blames.
#[derive(Serialize)]
struct Told {
    #[serde(flatten)]
    verdict: Verdict,
    python: Vec<Python>,
}

impl Told {
    fn text(&self) -> String {
        let python: String = self.python.iter().map(Python::text).collect();
        self.verdict.text() + &python
    }
}

/// Reads the journals of this user's processes on this host.
fn reports_here() -> Vec<ProcessReport> {
    reader::processes().into_iter().filter_map(|pid| reader::read(pid).ok()).collect()
}

/// The verdicts on the communicators of processes that live.
fn of_processes(options: &Hang) -> Result<Vec<Verdict>> {
    let pids = wanted(options)?;
    let reports = reports_here();
    let of = |pid: u32| reports.iter().find(|report| report.pid == pid);
    let mut open: BTreeSet<u64> = pids.iter().filter_map(|pid| of(*pid)).flat_map(comms).collect();
    let mut verdicts = Vec::new();
    // Whoever shares one of the communicators may be asked, first of all those that are named.
    let mut others: Vec<u32> = reports.iter().map(|report| report.pid).collect();
    others.retain(|pid| !pids.contains(pid));
    for pid in pids.iter().copied().chain(others) {
        let shares = of(pid).is_some_and(|report| comms(report).any(|comm| open.contains(&comm)));
        if !shares || !can_answer(pid) {
            continue;
        }
        let Ok(answers) = client::hang(pid) else { continue };
        for answer in answers {
            if let Ok(comm_id) = u64::from_str_radix(&answer.comm_id, 16)
                && open.remove(&comm_id)
            {
                verdicts.push(answer);
            }
        }
    }
    verdicts.extend(open.into_iter().map(|comm_id| judge(comm_id, &reports)));
    let asked = reports.iter().filter(|report| pids.contains(&report.pid));
    let meetings: BTreeSet<u64> =
        asked.flat_map(|report| &report.joining).map(|joining| joining.meeting).collect();
    let is_wanted =
        |verdict: &Verdict| meetings.iter().any(|meeting| verdict.comm_id == format!("{meeting:016x}"));
    verdicts.extend(of_meetings(&reports).into_iter().filter(is_wanted));
    if verdicts.is_empty() {
        bail!("these processes have no communicator of more than one rank");
    }
    Ok(verdicts)
}

/// The processes whose communicators are asked for.
fn wanted(options: &Hang) -> Result<Vec<u32>> {
    if let Some(pid) = options.pid {
        reader::read(pid)?;
        return Ok(vec![pid]);
    }
    let mut pids = reader::processes();
    if let Some(job) = &options.job {
        let is_of_job = |pid: &u32| client::list(*pid, ANSWER).is_ok_and(|process| process.job == *job);
        pids.retain(|pid| can_answer(*pid) && is_of_job(pid));
    }
    if pids.is_empty() {
        bail!("no process of this user on this host uses this library");
    }
    Ok(pids)
}

/// The numbers of a process's communicators of more than one rank.
fn comms(report: &ProcessReport) -> impl Iterator<Item = u64> {
    report.comms.iter().filter(|comm| comm.ranks > 1).map(|comm| comm.comm_id)
}

fn can_answer(pid: u32) -> bool {
    ProcessState::of(pid).is_some_and(|state| !state.is_stopped() && !state.is_held() && !state.is_over())
}

/// The verdict by journals alone.
fn judge(comm_id: u64, reports: &[ProcessReport]) -> Verdict {
    verdict(&Evidence { comm_id, reports: reports.to_vec(), ..Evidence::default() })
}

/// The verdicts on what files of journals tell.
pub fn of_files(files: &[PathBuf]) -> Result<Vec<Verdict>> {
    let read = |path: &PathBuf| read_file(path);
    let reports: Vec<ProcessReport> = files.iter().map(read).collect::<Result<_>>()?;
    let ids: BTreeSet<u64> = reports.iter().flat_map(comms).collect();
    let of_comms = ids.into_iter().map(|comm_id| judge(comm_id, &reports));
    Ok(of_comms.chain(of_meetings(&reports)).collect())
}

fn read_file(path: &Path) -> Result<ProcessReport> {
    reader::read_file(path).with_context(|| format!("{}", path.display()))
}
