//! A job as text for people, in the form of NCCL's client `ncclras`: the same headings, columns and key
//! words, by which programs find their way.

use std::collections::BTreeMap;
use std::fmt::Write;

use hawser_base::library::NCCL_VERSION;

use super::job::{Communicator, Job, Presence, Process, Status};
use super::json::COLLECTIVE_NAMES;

/// The most ranks of a group that are named one by one where the client wants no more.
const FEW: usize = 10;

/// The state of a job; `is_verbose`: more groups of ranks are named one by one.
pub fn status(job: &Job, is_verbose: bool) -> String {
    let (major, minor, patch) = NCCL_VERSION;
    let mut text = format!(
        "NCCL version {major}.{minor}.{patch} by Hawser {}\nCUDA runtime version 0, driver version 0\n\n",
        env!("CARGO_PKG_VERSION")
    );
    summary(&mut text, job);
    let groups = groups(job);
    let _ = writeln!(text, "\nCommunicators... ({:.3}s)\n=============\n", job.took.as_secs_f64());
    table(&mut text, job, &groups);
    text += "\nErrors\n======\n\n";
    absent(&mut text, job, is_verbose);
    for (name, comm) in named(&groups) {
        errors(&mut text, job, &name, comm, is_verbose);
    }
    text += "Warnings\n========\n\n";
    if job.timeouts > 0 {
        let _ = writeln!(
            text,
            "TIMEOUT\n  Encountered {} while gathering communicator data\n",
            counted(job.timeouts as usize, "communication timeout")
        );
    }
    for (name, comm) in named(&groups).into_iter().filter(|(_, comm)| comm.is_mismatched()) {
        mismatch(&mut text, job, &name, comm, is_verbose);
    }
    text
}

/// The numbers of nodes, processes and GPUs.
fn summary(text: &mut String, job: &Job) {
    let mut nodes: BTreeMap<[u8; 16], usize> = BTreeMap::new();
    for process in &job.processes {
        *nodes.entry(process.key.machine).or_default() += 1;
    }
    let gpus = |process: &Process| process.devices.len().max(1);
    let total: usize = job.processes.iter().map(gpus).sum();
    let per_node = range(nodes.values().copied());
    let per_process = range(job.processes.iter().map(gpus));
    let _ = writeln!(
        text,
        "Job summary\n===========\n\n  Nodes  Processes         GPUs  Processes     GPUs\n\
         (total)   per node  per process    (total)  (total)\n\
         {:7}  {per_node:>9}  {per_process:>11}  {:9}  {total:7}",
        nodes.len(),
        job.processes.len()
    );
}

/// A number, or the least and the most of several.
fn range(numbers: impl Iterator<Item = usize> + Clone) -> String {
    match (numbers.clone().min().unwrap_or(0), numbers.max().unwrap_or(0)) {
        (least, most) if least == most => most.to_string(),
        (least, most) => format!("{least}-{most}"),
    }
}

/// The traits by which communicators share a line of the table.
type Traits = (std::cmp::Reverse<u32>, std::cmp::Reverse<usize>, Option<Status>, String);

/// Communicators of the same size, nodes, stage and faults.
type Groups<'a> = BTreeMap<Traits, Vec<&'a Communicator>>;

fn groups(job: &Job) -> Groups<'_> {
    let mut groups = Groups::new();
    for comm in &job.comms {
        let nodes = comm.per_node(&job.processes).len();
        let last = comm.statuses().last().copied();
        let traits = (std::cmp::Reverse(comm.size), std::cmp::Reverse(nodes), last, faults(comm));
        groups.entry(traits).or_default().push(comm);
    }
    groups
}

/// NCCL's words for what is wrong with a communicator.
fn faults(comm: &Communicator) -> String {
    let found = [
        (comm.unheard().next().is_some(), "INCOMPLETE"),
        (comm.has_failed(), "ERROR"),
        (comm.is_mismatched(), "MISMATCH"),
    ];
    let words: Vec<&str> = found.into_iter().filter(|(is, _)| *is).map(|(_, word)| word).collect();
    if words.is_empty() { "OK".into() } else { words.join(",") }
}

/// Communicators with the names that the table gives them.
fn named<'a>(groups: &Groups<'a>) -> Vec<(String, &'a Communicator)> {
    let of_group = |(group, comms): (usize, &Vec<&'a Communicator>)| {
        let comms: Vec<&'a Communicator> = comms.clone();
        let name =
            move |(at, comm): (usize, &'a Communicator)| (format!("#{group}-{at} ({:016x})", comm.id), comm);
        comms.into_iter().enumerate().map(name).collect::<Vec<_>>()
    };
    groups.values().enumerate().flat_map(of_group).collect()
}

fn table(text: &mut String, job: &Job, groups: &Groups<'_>) {
    if groups.is_empty() {
        *text += "No communicator data collected!\n";
        return;
    }
    *text += "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors\n    \
              #  in group  per comm  per node  per comm  in group\n";
    for (group, ((size, nodes, status, faults), comms)) in groups.iter().enumerate() {
        let per_node: Vec<usize> = comms
            .iter()
            .flat_map(|comm| comm.per_node(&job.processes).into_values())
            .map(|count| count as usize)
            .collect();
        let per_node = range(per_node.into_iter());
        let mut devices: Vec<(usize, u32)> =
            comms.iter().flat_map(|comm| comm.ranks.iter().map(|(at, rank)| (*at, rank.device))).collect();
        devices.sort_unstable();
        devices.dedup();
        let status = status.map_or("INIT", Status::name);
        let _ = writeln!(
            text,
            "{group:5}  {:8}  {:8}  {per_node:>8}  {:8}  {:8}  {status:>8}  {faults:>6}",
            comms.len(),
            nodes.0,
            size.0,
            devices.len()
        );
    }
}

/// The processes that did not answer, and those that have died.
fn absent(text: &mut String, job: &Job, is_verbose: bool) {
    let silent = job.those(Presence::Silent);
    if !silent.is_empty() {
        let _ = writeln!(text, "INCOMPLETE\n  Missing communicator data from {}", processes(silent.len()));
        list(text, &silent, is_verbose);
    }
    let dead = job.those(Presence::Dead);
    if !dead.is_empty() {
        let are = if dead.len() == 1 { "is" } else { "are" };
        let _ = writeln!(text, "DEAD\n  {} {are} considered dead", processes(dead.len()));
        list(text, &dead, is_verbose);
    }
}

fn list(text: &mut String, processes: &[&Process], is_verbose: bool) {
    if is_verbose || processes.len() <= FEW {
        for process in processes {
            let _ =
                writeln!(text, "  Process {} on node {}{}", process.key.pid, process.node, managing(process));
        }
    }
    text.push('\n');
}

fn managing(process: &Process) -> String {
    let devices: Vec<String> = process.devices.iter().map(u32::to_string).collect();
    match devices.len() {
        0 => String::new(),
        1 => format!(" managing GPU {}", devices[0]),
        _ => format!(" managing GPUs {}", devices.join(",")),
    }
}

/// Writes what is missing of a communicator, and what has failed.
fn errors(text: &mut String, job: &Job, name: &str, comm: &Communicator, is_verbose: bool) {
    let unheard: Vec<_> = comm.unheard().collect();
    if !unheard.is_empty() {
        let ranks = counted(unheard.len(), "rank");
        let _ = writeln!(text, "{name} INCOMPLETE\n  Missing communicator data from {ranks}");
        if is_verbose || unheard.len() <= FEW {
            for missing in unheard {
                let process = missing.process.map(|at| &job.processes[at]);
                let who = process.map_or_else(
                    || "[process information not found]".into(),
                    |process| format!("process {} on node {}", process.key.pid, process.node),
                );
                let _ = writeln!(text, "  Rank {} -- {who}", missing.rank);
            }
        }
        text.push('\n');
    }
    let failed = || comm.ranks.iter().filter(|(_, rank)| rank.async_error != 0);
    if failed().next().is_some() {
        let ranks = counted(failed().count(), "rank");
        let _ = writeln!(text, "{name} ERROR\n  Asynchronous errors on {ranks}");
        for (_, rank) in failed().take(if is_verbose { usize::MAX } else { FEW }) {
            let line = rank_line(job, comm, rank.rank);
            let _ = writeln!(text, "{line}: {}", result_name(rank.async_error));
        }
        text.push('\n');
    }
}

/// Writes where ranks of a communicator differ.
fn mismatch(text: &mut String, job: &Job, name: &str, comm: &Communicator, is_verbose: bool) {
    let _ = writeln!(text, "{name} MISMATCH");
    let mut by_status: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for (_, rank) in &comm.ranks {
        by_status.entry(Status::of(rank).name()).or_default().push(rank.rank);
    }
    for missing in comm.missing.iter().filter(|missing| missing.has_no_comm()) {
        by_status.entry(Status::NoComm.name()).or_default().push(missing.rank);
    }
    if by_status.len() > 1 {
        *text += "  Communicator ranks have different status\n";
        let groups = by_status.into_iter().map(|(status, ranks)| (format!("status {status}"), ranks));
        shares(text, job, comm, groups.collect(), is_verbose);
    }
    for (at, collective) in COLLECTIVE_NAMES.iter().map(|(collective, name)| (*collective as usize, name)) {
        let by_count = comm.counts_of(at);
        if by_count.len() > 1 {
            let _ = writeln!(text, "  Communicator ranks have different {collective} operation counts");
            let groups = by_count.into_iter();
            let groups = groups.map(|(count, ranks)| (format!("launched up to operation {count}"), ranks));
            shares(text, job, comm, groups.collect(), is_verbose);
        }
    }
    text.push('\n');
}

/// Groups of ranks that differ, the largest first; the members of small ones by name.
fn shares(
    text: &mut String,
    job: &Job,
    comm: &Communicator,
    groups: Vec<(String, Vec<u32>)>,
    is_verbose: bool,
) {
    let mut groups = groups;
    groups.sort_by_key(|(_, ranks)| std::cmp::Reverse(ranks.len()));
    for (what, ranks) in groups {
        let have = if ranks.len() == 1 { "has" } else { "have" };
        let _ = writeln!(text, "  {} {have} {what}", counted(ranks.len(), "rank"));
        let is_outlier = match is_verbose {
            _ if ranks.len() == 1 => true,
            true => ranks.len() * 2 < comm.size as usize,
            false => ranks.len() <= FEW && ranks.len() * 4 <= comm.size as usize,
        };
        if is_outlier {
            for rank in ranks {
                let _ = writeln!(text, "{}", rank_line(job, comm, rank));
            }
        }
    }
}

fn rank_line(job: &Job, comm: &Communicator, rank: u32) -> String {
    let found = comm.ranks.iter().find(|(_, known)| known.rank == rank);
    let missing =
        || comm.missing.iter().find(|missing| missing.rank == rank).and_then(|missing| missing.process);
    let device = found.map(|(_, rank)| format!("GPU {} managed by ", rank.device)).unwrap_or_default();
    match found.map(|(at, _)| *at).or_else(missing).map(|at| &job.processes[at]) {
        Some(process) => {
            format!("  Rank {rank} -- {device}process {} on node {}", process.key.pid, process.node)
        }
        None => format!("  Rank {rank} -- [process information not found]"),
    }
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn processes(count: usize) -> String {
    format!("{count} job process{}", if count == 1 { "" } else { "es" })
}

/// The name of a code of `ncclResult_t`.
fn result_name(code: u8) -> &'static str {
    match code {
        1 => "Unhandled CUDA error",
        2 => "System error",
        3 => "Internal error",
        4 => "Invalid argument",
        5 => "Invalid usage",
        6 => "Remote process error",
        7 => "Operation in progress",
        _ => "Unexpected error",
    }
}
