//! `hawser rules apply` and `list`: the rules of processes that run, changed through their sockets.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use hawser_plugin::tuner::SettingsFile;
use hawser_runtime::rules_update::Outcome;
use hawser_runtime::rules_update::client::{self, Process};
use hawser_tuner::files::RuleFile;

use crate::output::{Align, Table};
use crate::progress::Progress;

/// Options of `hawser rules apply`.
#[derive(Debug, Args)]
pub struct Options {
    /// Rule files, in this order, in place of all rules that count now
    #[arg(required_unless_present = "none", conflicts_with = "none")]
    files: Vec<PathBuf>,
    /// No rules: the cost model decides everything
    #[arg(long)]
    none: bool,
    #[command(flatten)]
    who: Who,
    /// Only communicators with this name; * and ? stand for any letters
    #[arg(long)]
    communicator: Option<String>,
    /// How long to wait for the outcome, in seconds
    #[arg(long, default_value_t = 120)]
    timeout: u64,
    /// Print the outcomes as JSON
    #[arg(long)]
    json: bool,
}

/// The processes that are meant.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub struct Who {
    /// The process with this number, on this host
    #[arg(long)]
    pid: Option<u32>,
    /// All processes of this user on this host that have HAWSER_JOB (or SLURM_JOB_ID) so
    #[arg(long)]
    job: Option<String>,
}

/// Processes and their communicators, as a table or as JSON.
///
/// # Errors
/// The process that is named cannot be asked.
pub fn list(who: &Who, json: bool) -> Result<String> {
    let waiting = Progress::waiting("asking processes");
    let Found { processes, silent } = find(who)?;
    waiting.end();
    if json {
        let processes: Vec<_> = processes.iter().map(of_process).collect();
        let silent = silent.iter().map(|Silent { pid, why }| serde_json::json!({ "pid": pid, "why": why }));
        let silent: Vec<_> = silent.collect();
        let value = serde_json::json!({ "processes": processes, "silent": silent });
        return Ok(serde_json::to_string_pretty(&value).context("the list as JSON")? + "\n");
    }
    let mut table = Table::new([
        ("process", Align::Right),
        ("job", Align::Left),
        ("communicator", Align::Left),
        ("name", Align::Left),
        ("rank", Align::Right),
        ("ranks", Align::Right),
        ("collectives begun", Align::Right),
    ]);
    for process in &processes {
        let job = if process.job.is_empty() { "-" } else { &process.job };
        for c in &process.communicators {
            table.row([
                process.pid.to_string(),
                job.to_owned(),
                c.id.clone(),
                c.name.clone(),
                c.rank.to_string(),
                c.ranks.to_string(),
                c.begun.to_string(),
            ]);
        }
    }
    let mut text = match processes.is_empty() {
        true => {
            "no process of this user on this host has a communicator of more than one rank that answers\n"
                .to_owned()
        }
        false => table.lines().join("\n") + "\n",
    };
    for Silent { pid, why } in &silent {
        let _ = writeln!(text, "process {pid} {why}");
    }
    Ok(text)
}

fn of_process(process: &Process) -> serde_json::Value {
    let communicators = process.communicators.iter().map(|c| {
        serde_json::json!({
            "id": c.id, "name": c.name, "rank": c.rank, "ranks": c.ranks, "collectives_begun": c.begun
        })
    });
    serde_json::json!({
        "pid": process.pid, "job": process.job, "communicators": communicators.collect::<Vec<_>>()
    })
}

/// Changes the rules; says what became of each communicator, and whether all have changed.
///
/// # Errors
/// A file cannot be used, or nobody is there to be asked.
pub fn apply(options: &Options) -> Result<(String, bool)> {
    let files = read(&options.files)?;
    if options.who.pid.is_none() && options.who.job.is_none() {
        bail!("whose rules? Give --pid or --job; hawser rules list shows what is there");
    }
    let waiting = Progress::waiting("asking processes");
    let Found { processes, silent } = find(&options.who)?;
    let chosen = choose(&processes, options.communicator.as_deref());
    if chosen.is_empty() {
        bail!("there is no such communicator of more than one rank; hawser rules list shows what is there");
    }
    let mut outcomes: Vec<(u32, Option<String>, String, bool)> = silent
        .into_iter()
        .map(|Silent { pid, why }| (pid, None, format!("process {pid} {why}"), true))
        .collect();
    for (pid, ids) in chosen {
        let limit = Duration::from_secs(options.timeout);
        waiting.say(format!("process {pid} changes its rules"));
        let answers = client::apply(pid, &ids, &files, limit).unwrap_or_else(|error| {
            // What became of the others is told all the same.
            outcomes.push((pid, None, format!("process {pid}: {error}"), false));
            Vec::new()
        });
        for answer in answers {
            let what = match &answer.outcome {
                Outcome::Changed(at) => format!("changed from collective {at} on, on all ranks"),
                Outcome::Unchanged(why) => format!("unchanged on all ranks: {why}"),
                Outcome::Unknown(why) => format!("not known what became of it: {why}"),
            };
            let text = format!("communicator {} ({}): {what}", answer.name, answer.id);
            outcomes.push((pid, Some(answer.id), text, matches!(answer.outcome, Outcome::Changed(_))));
        }
    }
    waiting.end();
    let right = outcomes.iter().all(|(.., right)| *right);
    if options.json {
        let outcomes = outcomes.iter().map(|(pid, id, text, right)| {
            let changed = id.is_some() && *right;
            serde_json::json!({ "pid": pid, "communicator": id, "text": text, "changed": changed })
        });
        let outcomes: Vec<_> = outcomes.collect();
        return Ok((serde_json::to_string_pretty(&outcomes).context("outcomes as JSON")? + "\n", right));
    }
    Ok((outcomes.iter().map(|(_, _, text, _)| text.clone() + "\n").collect(), right))
}

/// The texts of files that can be used as rules.
fn read(paths: &[PathBuf]) -> Result<Vec<SettingsFile>> {
    let read = |path: &PathBuf| {
        let name = path.display().to_string();
        let file = RuleFile::named(path);
        // All faults are told here, before any rank is bothered.
        file.read()?;
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
        Ok(SettingsFile { name, text })
    };
    paths.iter().map(read).collect()
}

/// The processes that were asked.
struct Found {
    /// Those that answered and have communicators.
    processes: Vec<Process>,
    /// Those that are there and did not answer.
    silent: Vec<Silent>,
}

/// A process that is there and did not answer.
struct Silent {
    pid: u32,
    why: String,
}

/// The processes that are meant; those that have ended meanwhile are left out unless they were named.
fn find(who: &Who) -> Result<Found> {
    if let Some(pid) = who.pid {
        let processes = vec![client::list(pid, PATIENCE).map_err(|error| match is_stopped(pid) {
            true => anyhow::anyhow!("process {pid} {STOPPED}"),
            false => anyhow::anyhow!("{error}"),
        })?];
        return Ok(Found { processes, silent: Vec::new() });
    }
    let there = client::processes().map_err(|error| anyhow::anyhow!("{error}"))?;
    let ask = |pid: u32| match is_stopped(pid) {
        true => Err(Silent { pid, why: STOPPED.to_owned() }),
        false => client::list(pid, PATIENCE)
            .map_err(|error| Silent { pid, why: format!("does not answer: {error}") }),
    };
    // All at once: one that hangs holds up nobody.
    let answers: Vec<_> = std::thread::scope(|scope| {
        let asked: Vec<_> = there.into_iter().map(|pid| scope.spawn(move || ask(pid))).collect();
        asked.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    let mut found = Found { processes: Vec::new(), silent: Vec::new() };
    for answer in answers {
        match answer {
            Ok(process) => found.processes.push(process),
            Err(silent) => found.silent.push(silent),
        }
    }
    found.processes.sort_by_key(|process| process.pid);
    found.processes.retain(|process| !process.communicators.is_empty());
    found.processes.retain(|process| who.job.as_ref().is_none_or(|job| process.job == *job));
    found.silent.sort_by_key(|silent| silent.pid);
    found.silent.retain(|silent| Path::new(&format!("/proc/{}", silent.pid)).exists());
    Ok(found)
}

/// The time that a process may take to answer. It has a thread that does nothing else.
const PATIENCE: Duration = Duration::from_secs(2);

const STOPPED: &str = "is stopped and cannot answer: kill -CONT lets it go on";

/// True if a process was stopped by a signal or a debugger, so that asking it is of no use.
fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 't']))
}

/// The processes to be asked, each with its communicators: each communicator once, by the lowest rank that is
/// here.
fn choose(processes: &[Process], pattern: Option<&str>) -> BTreeMap<u32, Vec<String>> {
    let mut lowest: BTreeMap<&str, (u32, u32)> = BTreeMap::new();
    for process in processes {
        for c in &process.communicators {
            let wanted = pattern.is_none_or(|pattern| hawser_tuner::matches_glob(pattern, &c.name));
            let best = lowest.get(c.id.as_str()).is_none_or(|(rank, _)| c.rank < *rank);
            if wanted && best {
                lowest.insert(&c.id, (c.rank, process.pid));
            }
        }
    }
    let mut chosen: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for (id, (_, pid)) in lowest {
        chosen.entry(pid).or_default().push(id.to_owned());
    }
    chosen
}

#[cfg(test)]
mod tests {
    use hawser_runtime::rules_update::client::Communicator;

    use super::*;

    #[test]
    fn each_communicator_is_asked_once_by_its_lowest_rank() {
        let comm = |id: &str, name: &str, rank| {
            let (id, name) = (id.to_owned(), name.to_owned());
            Communicator { id, name, rank, ranks: 4, begun: 0 }
        };
        let process = |pid, communicators| Process { pid, job: String::new(), communicators };
        let all = [
            process(10, vec![comm("a", "world", 2), comm("a", "world", 3), comm("b", "tp1", 0)]),
            process(11, vec![comm("a", "world", 0), comm("c", "dp", 1)]),
        ];
        let chosen = |pattern| choose(&all, pattern).into_iter().collect::<Vec<_>>();
        assert_eq!(chosen(None), [(10, vec!["b".into()]), (11, vec!["a".into(), "c".into()])]);
        assert_eq!(chosen(Some("tp*")), [(10, vec!["b".to_owned()])]);
        assert!(chosen(Some("x")).is_empty());
    }
}
