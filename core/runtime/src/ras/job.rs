//! A job as RAS shows it: what processes answered, and what is known of those that did not. No input or
//! output here.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::census::{COLLECTIVES, ProcessCensus, ProcessKey, RankCensus};

/// The knowledge of a process about the ranks of one of its communicators.
#[derive(Debug, Clone)]
pub struct RosterOf {
    /// The communicator's number.
    pub comm_id: u64,
    /// The process of each rank, and the address or name of its host.
    pub members: Vec<(ProcessKey, String)>,
    /// The ranks that have left in peace.
    pub left: BTreeSet<u32>,
    /// The ranks whose process has died.
    pub died: BTreeSet<u32>,
}

/// All that was learned for one answer.
#[derive(Debug, Clone, Default)]
pub struct Evidence {
    /// The answers of processes.
    pub answers: Vec<ProcessCensus>,
    /// The communicators of the process that asked.
    pub rosters: Vec<RosterOf>,
    /// The time that it took.
    pub took: Duration,
    /// The questions that not all answered in time.
    pub timeouts: u32,
}

/// The state of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// Its processes, by node and number.
    pub processes: Vec<Process>,
    /// Its communicators, the largest first.
    pub comms: Vec<Communicator>,
    /// The time that asking took.
    pub took: Duration,
    /// The questions that not all answered in time.
    pub timeouts: u32,
}

/// A process of the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// The process.
    pub key: ProcessKey,
    /// The address of its host, or its name.
    pub node: String,
    /// The devices of its ranks; empty if it has not said.
    pub devices: BTreeSet<u32>,
    /// The knowledge of whether it is there.
    pub presence: Presence,
}

/// The knowledge of whether a process is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Presence {
    /// It has answered.
    Answered,
    /// It has left its communicators in peace.
    Left,
    /// It has not answered.
    Silent,
    /// It has died.
    Dead,
}

/// A communicator of the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Communicator {
    /// Its number.
    pub id: u64,
    /// The number of its ranks.
    pub size: u32,
    /// The ranks of which something is known, and their processes as places in [`Job::processes`].
    pub ranks: Vec<(usize, RankCensus)>,
    /// The other ranks.
    pub missing: Vec<Missing>,
}

/// A rank that has not told how it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missing {
    /// The rank.
    pub rank: u32,
    /// The place of its process in [`Job::processes`], if that is known.
    pub process: Option<usize>,
    /// The presence of its process; a process that has answered or left has no such rank any more.
    pub presence: Presence,
}

/// The stage of a rank's life, in the order in which a communicator is given the last one of its ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    /// Its process is there, and has no such rank.
    NoComm,
    /// It is up.
    Running,
    /// It has called `ncclCommFinalize`.
    Finalize,
    /// It was aborted.
    Abort,
}

impl Status {
    /// NCCL's word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::NoComm => "NOCOMM",
            Self::Running => "RUNNING",
            Self::Finalize => "FINALIZE",
            Self::Abort => "ABORT",
        }
    }

    /// The stage of a rank.
    pub fn of(rank: &RankCensus) -> Self {
        match (rank.is_aborted, rank.is_finalized) {
            (true, _) => Self::Abort,
            (_, true) => Self::Finalize,
            _ => Self::Running,
        }
    }
}

impl Job {
    /// Puts together what was learned.
    pub fn of(evidence: Evidence) -> Self {
        let Evidence { answers, rosters, took, timeouts } = evidence;
        let processes = processes(&answers, &rosters);
        let places: Places = processes.iter().enumerate().map(|(at, process)| (process.key, at)).collect();
        let mut ranks: BTreeMap<u64, BTreeMap<u32, (usize, RankCensus)>> = BTreeMap::new();
        for answer in answers {
            let Some(at) = places.get(&answer.process).copied() else { continue };
            for rank in answer.ranks {
                ranks.entry(rank.comm_id).or_default().insert(rank.rank, (at, rank));
            }
        }
        for roster in &rosters {
            ranks.entry(roster.comm_id).or_default();
        }
        let comm = |(id, ranks): (u64, BTreeMap<u32, (usize, RankCensus)>)| {
            let roster = rosters.iter().find(|roster| roster.comm_id == id);
            communicator(id, ranks, roster, (&processes, &places))
        };
        let mut comms: Vec<Communicator> = ranks.into_iter().map(comm).collect();
        comms.sort_by_key(|comm| std::cmp::Reverse(comm.size));
        Self { processes, comms, took, timeouts }
    }

    /// The places of the processes for which something holds.
    pub fn those(&self, presence: Presence) -> Vec<&Process> {
        self.processes.iter().filter(|process| process.presence == presence).collect()
    }
}

/// The processes of the answers and of the rosters, without those that have left.
fn processes(answers: &[ProcessCensus], rosters: &[RosterOf]) -> Vec<Process> {
    let mut found: BTreeMap<ProcessKey, Process> = BTreeMap::new();
    for roster in rosters {
        for (rank, (key, node)) in (0..).zip(&roster.members) {
            let presence = match (roster.died.contains(&rank), roster.left.contains(&rank)) {
                (true, _) => Presence::Dead,
                (_, true) => Presence::Left,
                _ => Presence::Silent,
            };
            let new = Process { key: *key, node: node.clone(), devices: BTreeSet::new(), presence };
            let process = found.entry(*key).or_insert(new);
            process.presence = process.presence.max(presence);
        }
    }
    for answer in answers {
        let (key, node) = (answer.process, answer.node.clone());
        let new = Process { key, node, devices: BTreeSet::new(), presence: Presence::Answered };
        let process = found.entry(key).or_insert(new);
        if process.presence != Presence::Dead {
            process.presence = Presence::Answered;
        }
        process.devices.extend(answer.ranks.iter().map(|rank| rank.device));
    }
    let mut processes: Vec<Process> =
        found.into_values().filter(|process| process.presence != Presence::Left).collect();
    processes.sort_by(|a, b| (&a.node, a.key).cmp(&(&b.node, b.key)));
    processes
}

/// The places of processes in the list of all.
type Places = BTreeMap<ProcessKey, usize>;

fn communicator(
    id: u64,
    ranks: BTreeMap<u32, (usize, RankCensus)>,
    roster: Option<&RosterOf>,
    (processes, places): (&[Process], &Places),
) -> Communicator {
    let said = ranks.values().map(|(_, rank)| rank.size).max().unwrap_or(0);
    let size = roster.map_or(said, |roster| roster.members.len() as u32);
    // Of a communicator of others nobody here knows whose a missing rank is.
    let is_all_there = processes.iter().all(|process| process.presence == Presence::Answered);
    let otherwise = if is_all_there { Presence::Answered } else { Presence::Silent };
    let missing = |rank: u32| {
        let member = roster.and_then(|roster| roster.members.get(rank as usize));
        let process = member.and_then(|(key, _)| places.get(key).copied());
        let left = if member.is_some() { Presence::Left } else { otherwise };
        let presence = process.map_or(left, |at| processes[at].presence);
        Missing { rank, process, presence }
    };
    // A number of ranks that nobody can have is a lie of the wire.
    let known = (0..size.min(hawser_plan::algo::MAX_RANKS)).filter(|rank| !ranks.contains_key(rank));
    let missing = known.map(missing).collect();
    Communicator { id, size, ranks: ranks.into_values().collect(), missing }
}

impl Communicator {
    /// The stages of its ranks.
    pub fn statuses(&self) -> BTreeSet<Status> {
        let absent = self.missing.iter().filter(|missing| missing.has_no_comm()).map(|_| Status::NoComm);
        self.ranks.iter().map(|(_, rank)| Status::of(rank)).chain(absent).collect()
    }

    /// The ranks whose processes have not answered.
    pub fn unheard(&self) -> impl Iterator<Item = &Missing> {
        self.missing.iter().filter(|missing| !missing.has_no_comm())
    }

    /// True if ranks have called one collective different numbers of times, or are in different stages.
    pub fn is_mismatched(&self) -> bool {
        self.statuses().len() > 1 || (0..COLLECTIVES).any(|at| self.counts_of(at).len() > 1)
    }

    /// True if something has failed on a rank.
    pub fn has_failed(&self) -> bool {
        self.ranks.iter().any(|(_, rank)| rank.async_error != 0)
    }

    /// The ranks by how often each has called a collective.
    pub fn counts_of(&self, collective: usize) -> BTreeMap<u64, Vec<u32>> {
        let mut by_count: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        for (_, rank) in &self.ranks {
            by_count.entry(rank.counts[collective]).or_default().push(rank.rank);
        }
        by_count
    }

    /// The ranks that answered, per node.
    pub fn per_node(&self, processes: &[Process]) -> BTreeMap<[u8; 16], u32> {
        let mut nodes = BTreeMap::new();
        for (at, _) in &self.ranks {
            *nodes.entry(processes[*at].key.machine).or_default() += 1;
        }
        nodes
    }
}

impl Missing {
    /// True if its process is there, or left in peace: the communicator is over for it.
    pub fn has_no_comm(&self) -> bool {
        matches!(self.presence, Presence::Answered | Presence::Left)
    }
}
