//! `hawser rules apply` and `list`: the rules of processes that run, changed through their sockets.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use hawser_plugin::tuner::SettingsFile;
use hawser_runtime::rules_update::Outcome;
use hawser_runtime::rules_update::client::{self, Process};
use hawser_tuner::files::RuleFile;

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

/// Processes and their communicators.
///
/// # Errors
/// The process that is named cannot be asked.
pub fn list(who: &Who) -> Result<String> {
    let mut text = String::new();
    for process in find(who)? {
        let job = if process.job.is_empty() { String::new() } else { format!(", job {}", process.job) };
        let _ = writeln!(text, "process {}{job}", process.pid);
        for c in &process.communicators {
            let _ = writeln!(
                text,
                "  {:16}  {:20}  rank {:>4} of {:<4}  {} collectives begun",
                c.id, c.name, c.rank, c.ranks, c.begun
            );
        }
    }
    if text.is_empty() {
        text.push_str("no process of this user on this host has a communicator of more than one rank\n");
    }
    Ok(text)
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
    let processes = find(&options.who)?;
    let chosen = choose(&processes, options.communicator.as_deref());
    if chosen.is_empty() {
        bail!("there is no such communicator of more than one rank; hawser rules list shows what is there");
    }
    let (mut text, mut right) = (String::new(), true);
    for (pid, ids) in chosen {
        let limit = Duration::from_secs(options.timeout);
        let answers = client::apply(pid, &ids, &files, limit).unwrap_or_else(|error| {
            // What became of the others is told all the same.
            let _ = writeln!(text, "process {pid}: {error}");
            right = false;
            Vec::new()
        });
        for answer in answers {
            let (id, name) = (answer.id, answer.name);
            let what = match &answer.outcome {
                Outcome::Changed(at) => format!("changed from collective {at} on, on all ranks"),
                Outcome::Unchanged(why) => format!("unchanged on all ranks: {why}"),
                Outcome::Unknown(why) => format!("not known what became of it: {why}"),
            };
            right &= matches!(answer.outcome, Outcome::Changed(_));
            let _ = writeln!(text, "communicator {name} ({id}): {what}");
        }
    }
    Ok((text, right))
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

/// The processes that are meant; those that have ended meanwhile are left out unless they were named.
fn find(who: &Who) -> Result<Vec<Process>> {
    if let Some(pid) = who.pid {
        return Ok(vec![client::list(pid).map_err(|error| anyhow::anyhow!("{error}"))?]);
    }
    let there = client::processes().map_err(|error| anyhow::anyhow!("{error}"))?;
    let mut all: Vec<Process> = there.into_iter().filter_map(|pid| client::list(pid).ok()).collect();
    all.sort_by_key(|process| process.pid);
    all.retain(|process| !process.communicators.is_empty());
    all.retain(|process| who.job.as_ref().is_none_or(|job| process.job == *job));
    Ok(all)
}

/// Which process is asked for which communicators: each once, by the lowest rank that is here.
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
