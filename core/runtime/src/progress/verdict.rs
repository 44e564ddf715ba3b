//! From the reports of all ranks to one sentence that names who is to blame. Pure: the same reports give the
//! same verdict.
//!
//! Whoever waits is no cause. From a rank that waits, the way leads to the rank that it waits for, through
//! other communicators too, until somebody is reached who waits for nobody: that rank is to blame. A circle
//! is a verdict of its own. Before that come the things that explain all others: calls with one number that
//! differ, and ranks that have ended or are stopped.

mod meetings;
mod nets;
mod rails;
pub mod rows;
mod slow;
mod waiting;

use std::collections::BTreeMap;

pub use self::meetings::of_meetings;
use self::rows::{Row, rows};
use serde::{Deserialize, Serialize};

use super::operation::{Operation, Stage, Waits, What, seconds};
use super::process_state::ProcessState;
use super::report::{CommReport, Loss, ProcessReport};
use crate::op_number::{MESSAGES, operation as number_text};

/// The facts that are known when a verdict is asked for.
#[derive(Debug, Clone, Default)]
pub struct Evidence {
    /// The communicator in question.
    pub comm_id: u64,
    /// The process of each rank, as far as it is known.
    pub members: BTreeMap<u32, Member>,
    /// The ranks that have left, died or failed.
    pub gone: Vec<Gone>,
    /// The answers of the others.
    pub reports: Vec<ProcessReport>,
}

/// A rank that has left, died or failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gone {
    /// The rank.
    pub rank: u32,
    /// The kind of its end.
    pub end: HowGone,
    /// A sentence about it.
    pub how: String,
}

/// The kinds of ends of a rank, those first that explain others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum HowGone {
    /// Its process or host ended.
    Died,
    /// It failed, perhaps because of another rank.
    Failed(Option<u32>),
    /// Nothing is there any more where it listened: it has left, or died.
    OutOfReach,
    /// It left in peace: what it had to do for the others may be done.
    Left,
}

/// The process of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its host.
    pub host: String,
    /// Its process.
    pub pid: u32,
}

/// The reason why nothing moves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// The communicator's number, in hexadecimal digits.
    pub comm_id: String,
    /// Its name.
    pub name: String,
    /// The number of its ranks.
    pub ranks: u32,
    /// The kind of reason.
    pub cause: Cause,
    /// The ranks that are to blame.
    pub guilty: Vec<u32>,
    /// One sentence for people.
    pub sentence: String,
    /// The advice what to do.
    pub remedy: String,
    /// A line for every rank.
    pub rows: Vec<Row>,
}

/// The kinds of reasons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// No operation is open.
    NothingOpen,
    /// A rank has died, failed or left.
    Gone,
    /// A process is stopped by a signal.
    Stopped,
    /// A debugger holds a process.
    Debugger,
    /// A process waits for a disk or a driver, perhaps because memory is swapped.
    Uninterruptible,
    /// A rank does not answer.
    Silent,
    /// Ranks called different things with one number.
    Mismatch,
    /// A rank has not called what the others wait in.
    NotCalled,
    /// A rank has called it in a group that it has not ended.
    GroupOpen,
    /// Ranks wait for each other in different communicators.
    OtherOrder,
    /// Ranks wait for each other's messages.
    MessagesCross,
    /// A rank has called, and is still planning or connecting.
    NotSubmitted,
    /// A kernel that was submitted does not answer: it has not begun, or moves data.
    KernelSilent,
    /// Ranks of one operation wait for each other: what was sent did not come.
    Lost,
    /// A net plugin does not carry out what a rank has asked it for.
    NetSilent,
    /// A net has lost a rail, and what was sent over it does not come.
    RailDown,
    /// All goes on, but a rank keeps the others waiting in nearly all operations.
    Slow,
    /// Ranks have not come to init.
    MissingAtInit,
}

/// The verdict on the communicator in question.
pub fn verdict(evidence: &Evidence) -> Verdict {
    let case = Case::new(evidence);
    let finding = case.judge();
    let known = case.comms.values().next();
    let reported = known.map_or(0, |(_, comm)| comm.ranks);
    let ranks = reported.max(evidence.members.len() as u32);
    Verdict {
        comm_id: format!("{:016x}", evidence.comm_id),
        name: known.map_or_else(String::new, |(_, comm)| comm.name.clone()),
        ranks,
        cause: finding.cause,
        guilty: finding.guilty,
        sentence: finding.sentence,
        remedy: finding.remedy.to_owned(),
        rows: rows(evidence, ranks),
    }
}

struct Finding {
    cause: Cause,
    guilty: Vec<u32>,
    sentence: String,
    remedy: &'static str,
}

/// A rank of a communicator.
type Node = (u64, u32);

struct Case<'a> {
    evidence: &'a Evidence,
    /// The ranks of the communicator in question that have answered.
    comms: BTreeMap<u32, (&'a ProcessReport, &'a CommReport)>,
}

impl<'a> Case<'a> {
    fn new(evidence: &'a Evidence) -> Self {
        let of_report = |report: &'a ProcessReport| {
            let asked = report.comms.iter().filter(|comm| comm.comm_id == evidence.comm_id);
            asked.map(move |comm| (comm.rank, (report, comm)))
        };
        Self { evidence, comms: evidence.reports.iter().flat_map(of_report).collect() }
    }

    fn judge(&self) -> Finding {
        let finding = self.judge_ranks();
        let losses = self.losses();
        rails::with_losses(finding, &losses, |rank| self.who(rank))
    }

    /// The losses of nets that may have to do with what is open, by rank.
    fn losses(&self) -> Vec<(u32, &'a Loss)> {
        let open = self.comms.values().filter_map(|(_, comm)| comm.open());
        let oldest = open.map(|operation| operation.age_ms).max().unwrap_or(0);
        let recent = |loss: &&Loss| loss.age_ms <= oldest.saturating_add(rails::BEFORE_MS);
        let of_rank = |(rank, (report, _)): (&u32, &(&'a ProcessReport, &'a CommReport))| {
            let (rank, report) = (*rank, *report);
            report.losses.iter().filter(recent).map(move |loss| (rank, loss)).collect::<Vec<_>>()
        };
        self.comms.iter().flat_map(of_rank).collect()
    }

    fn judge_ranks(&self) -> Finding {
        let is_stuck = |(_, (_, comm)): &(&u32, &(&ProcessReport, &CommReport))| comm.open().is_some();
        let says_so = self.comms.iter().filter(is_stuck).find(|(_, (_, comm))| !comm.waits.is_empty());
        let stuck = says_so.or_else(|| self.comms.iter().find(is_stuck));
        let is_open = stuck.is_some() || self.comms.values().any(|(_, comm)| comm.queued.is_some());
        // First of all: a rank whose call was another one may be through with it, and have left.
        if let Some(finding) = self.mismatch() {
            return finding;
        }
        if let Some(finding) = self.absent(is_open) {
            return finding;
        }
        let finding = match stuck {
            Some((rank, _)) => self.follow(*rank),
            None => self.nothing_open(),
        };
        self.slow(&finding).unwrap_or(finding)
    }

    /// Ranks that have gone, are stopped or do not answer.
    fn absent(&self, is_open: bool) -> Option<Finding> {
        let gone = self.evidence.gone.iter().filter(|gone| gone.end < HowGone::OutOfReach && is_open);
        // Others fail because one has died.
        if let Some(gone) = gone.min_by_key(|gone| (gone.end, gone.rank)) {
            return Some(self.gone(self.behind(gone)));
        }
        let states = self.evidence.members.keys().filter_map(|rank| Some((*rank, self.state_of(*rank)?)));
        let mut states: Vec<(u32, ProcessState)> = states.collect();
        states
            .extend(self.comms.iter().filter_map(|(rank, (report, _))| Some((*rank, report.state.clone()?))));
        if let Some((rank, _)) = states.iter().find(|(_, state)| state.is_stopped()) {
            let text = format!("{} is stopped by a signal", self.who(*rank));
            return Some(finding(Cause::Stopped, *rank, text, "continue it: kill -CONT PID"));
        }
        if let Some((rank, state)) = states.iter().find(|(_, state)| state.is_held()) {
            let text =
                format!("{} is held by the debugger that is process {}", self.who(*rank), state.tracer);
            return Some(finding(Cause::Debugger, *rank, text, "let it go on, or detach"));
        }
        let silent: Vec<u32> = self.silent().collect();
        let first = *silent.first()?;
        let state = states.iter().find(|(rank, _)| *rank == first).map(|(_, state)| state);
        match state {
            Some(state) if state.letter == 'D' => {
                let (who, swapped) = (self.who(first), state.swapped_text());
                let text = format!("{who} waits for a disk or a driver and does not answer{swapped}");
                let remedy = "is memory swapped, a file system stuck, or the GPU lost? see dmesg";
                Some(finding(Cause::Uninterruptible, first, text, remedy))
            }
            Some(state) if state.is_over() => {
                let text = format!("{} has ended", self.who(first));
                Some(finding(Cause::Gone, first, text, "see what that process wrote last"))
            }
            _ if is_open => {
                let names: Vec<String> = silent.iter().take(8).map(|rank| self.who(*rank)).collect();
                let more =
                    if silent.len() > 8 { format!(" and {} more", silent.len() - 8) } else { String::new() };
                let verb = if silent.len() == 1 { "does" } else { "do" };
                let sentence = format!("{}{more} {verb} not answer", names.join(", "));
                let remedy =
                    "look at these processes and their hosts: are they there, and can they be reached?";
                Some(Finding { cause: Cause::Silent, guilty: silent, sentence, remedy })
            }
            _ => None,
        }
    }

    /// The rank because of which a rank has failed: one that left, or aborted, while the other waited for it.
    fn behind(&self, gone: &'a Gone) -> &'a Gone {
        let HowGone::Failed(Some(cause)) = gone.end else { return gone };
        let is_it = |other: &&Gone| other.end >= HowGone::OutOfReach && other.rank == cause;
        self.evidence.gone.iter().find(is_it).unwrap_or(gone)
    }

    /// A rank that others wait for, and that is not there any more.
    fn gone(&self, gone: &Gone) -> Finding {
        let remedy = "see what that process wrote last; ncclCommShrink goes on without it";
        finding(Cause::Gone, gone.rank, format!("{}: {}", self.who(gone.rank), gone.how), remedy)
    }

    /// The ranks that should have answered and have not.
    fn silent(&self) -> impl Iterator<Item = u32> {
        let is_gone = |rank: &u32| self.evidence.gone.iter().any(|gone| gone.rank == *rank);
        let silent = self.evidence.members.keys().filter(move |rank| !self.comms.contains_key(rank));
        silent.filter(move |rank| !is_gone(rank)).copied()
    }

    /// The word of processes of the same host on a rank's process.
    fn state_of(&self, rank: u32) -> Option<ProcessState> {
        let asked = |report: &&ProcessReport| {
            report.comms.first().is_some_and(|comm| comm.comm_id == self.evidence.comm_id)
        };
        let neighbours = self.evidence.reports.iter().filter(asked).flat_map(|report| &report.neighbours);
        let seen = neighbours.into_iter().find(|(neighbour, _)| *neighbour == rank);
        seen.map(|(_, state)| state.clone())
    }

    /// The first collective that ranks called differently.
    fn mismatch(&self) -> Option<Finding> {
        let mut by_number: BTreeMap<u64, Vec<(u32, &What)>> = BTreeMap::new();
        for (rank, (_, comm)) in &self.comms {
            for operation in comm.operations.iter().filter(|operation| operation.what.is_collective()) {
                by_number.entry(operation.number).or_default().push((*rank, &operation.what));
            }
        }
        let differ = |calls: &Vec<(u32, &What)>| calls.windows(2).any(|pair| pair[0].1 != pair[1].1);
        let (number, calls) = by_number.into_iter().find(|(_, calls)| differ(calls))?;
        // What most ranks called is taken for right; with as many on both sides, what the lowest rank called.
        let votes = |what: &What| calls.iter().filter(|(_, other)| *other == what).count();
        let most = calls.iter().map(|(_, what)| votes(what)).max().unwrap_or(0);
        let (of, right) = *calls.iter().find(|(_, what)| votes(what) == most)?;
        let wrong: Vec<(u32, &What)> = calls.iter().copied().filter(|(_, what)| *what != right).collect();
        let (rank, called) = *wrong.first()?;
        let more = match wrong.len() {
            1 => String::new(),
            count => format!(" ({} more ranks differ as well)", count - 1),
        };
        let what = called.difference(right).unwrap_or("something else");
        let sentence = format!(
            "{} called {what} as {}: {called} where rank {of} called {right}{more}",
            self.who(rank),
            number_text(number)
        );
        let guilty = wrong.iter().map(|(rank, _)| *rank).collect();
        let remedy =
            "compare the code of these ranks around that call; NCCL_DEBUG_SUBSYS=COLL logs every call";
        Some(Finding { cause: Cause::Mismatch, guilty, sentence, remedy })
    }

    /// From a rank that waits to the one that is to blame.
    fn follow(&self, from: u32) -> Finding {
        let mut path: Vec<Node> = vec![(self.evidence.comm_id, from)];
        loop {
            let node = path[path.len() - 1];
            let next = match self.next(node) {
                Ok(next) => next,
                Err(finding) => return self.told_from(from, *finding),
            };
            if let Some(finding) = self.net_silent(node, next) {
                return self.told_from(from, finding);
            }
            if let Some(at) = path.iter().position(|seen| *seen == next) {
                return self.circle(&path[at..]);
            }
            path.push(next);
        }
    }

    /// Returns whether another rank says that it waits for this one in an operation.
    fn is_awaited(&self, comm: &CommReport, operation: &Operation) -> bool {
        let waits = self.evidence.reports.iter().flat_map(|report| &report.comms);
        let mut waits = waits.filter(|other| other.comm_id == comm.comm_id).flat_map(|other| &other.waits);
        waits.any(|waits| (waits.peer, waits.number) == (comm.rank, operation.number))
    }

    /// Whom a rank waits for, or why it is to blame itself.
    fn next(&self, (comm_id, rank): Node) -> Result<Node, Box<Finding>> {
        let Some((report, comm)) = self.find(comm_id, rank) else {
            let is_it = |gone: &&Gone| comm_id == self.evidence.comm_id && gone.rank == rank;
            if let Some(gone) = self.evidence.gone.iter().find(is_it) {
                return Err(Box::new(self.gone(gone)));
            }
            let text = format!("rank {rank} of another communicator has not been heard of");
            return Err(Box::new(finding(Cause::Silent, rank, text, "look at that process")));
        };
        let Some(open) = comm.open() else { return self.idle(report, comm) };
        if open.number & MESSAGES == 0
            && let Some(late) = self.has_not_called(comm_id, open.number)
        {
            return self.late((comm_id, late));
        }
        if let Some(waits) = comm.waits.iter().find(|waits| waits.number == open.number && waits.peer != rank)
        {
            return Ok((comm_id, waits.peer));
        }
        if let Some(peer) = self.peer_of_messages(comm_id, rank, &open.what) {
            return Ok((comm_id, peer));
        }
        // A kernel that has not begun may be behind one of another communicator on its stream.
        let is_before =
            |other: &&CommReport| self.is_elsewhere(report, comm, other) && !other.waits.is_empty();
        if let Some(other) = report.comms.iter().find(is_before)
            && !comm.is_exact
        {
            return Ok((other.comm_id, other.rank));
        }
        // Of a GPU it is not known which of its submitted operations is over: the one that another rank waits
        // in is not.
        let submitted = |operation: &&Operation| operation.stage == Stage::Submitted && !comm.is_exact;
        let mut submitted = comm.operations.iter().filter(submitted);
        let not_over = submitted.find(|operation| self.is_awaited(comm, operation));
        Err(Box::new(self.waits_for_nobody(comm, not_over.unwrap_or(open))))
    }

    /// A rank that has not called what another one waits in: on a GPU, what it called before may be over.
    fn late(&self, (comm_id, rank): Node) -> Result<Node, Box<Finding>> {
        match self.find(comm_id, rank) {
            Some((report, comm)) if !comm.is_exact && comm.waits.is_empty() => self.idle(report, comm),
            _ => Ok((comm_id, rank)),
        }
    }

    /// A rank without an open operation, for which another one waits: its program is busy elsewhere, if only
    /// in another communicator.
    fn idle(&self, report: &ProcessReport, comm: &CommReport) -> Result<Node, Box<Finding>> {
        let who = self.who_in(report, comm);
        if let Some((calls, ms)) = comm.queued {
            let text = format!(
                "{who} has queued {calls} calls in a group for {} and has not ended the group",
                seconds(ms)
            );
            let remedy = "is a call of ncclGroupEnd missing, or does that rank wait inside the group?";
            return Err(Box::new(finding(Cause::GroupOpen, comm.rank, text, remedy)));
        }
        if let Some(other) = report.comms.iter().find(|other| self.is_elsewhere(report, comm, other)) {
            return Ok((other.comm_id, other.rank));
        }
        let last = match comm.last_done().or(comm.operations.last()) {
            Some(last) => format!("its last was {}, called {} ago", last.text(), seconds(last.age_ms)),
            None => "it has called nothing yet".into(),
        };
        let state = report.state.as_ref();
        let main = state.map_or_else(String::new, |state| state.main_thread_text() + &state.swapped_text());
        let text = format!("{who} has not called what the others wait for: {last}{main}");
        let remedy = "look at what that rank's program does (py-spy dump --pid PID, gdb -p PID)";
        Err(Box::new(finding(Cause::NotCalled, comm.rank, text, remedy)))
    }

    /// Returns true if something is open on another communicator of the same rank.
    fn is_elsewhere(&self, report: &ProcessReport, comm: &CommReport, other: &CommReport) -> bool {
        let ranks_here = report.comms.iter().filter(|known| known.comm_id == comm.comm_id).count();
        let is_same_rank = ranks_here < 2 || other.world == comm.world;
        other.comm_id != comm.comm_id && is_same_rank && other.open().is_some()
    }

    /// The lowest rank that has not called a collective yet.
    fn has_not_called(&self, comm_id: u64, number: u64) -> Option<u32> {
        let comms = self.evidence.reports.iter().flat_map(|report| &report.comms);
        let late = comms.filter(|comm| comm.comm_id == comm_id && comm.collectives <= number);
        late.map(|comm| comm.rank).min()
    }

    /// The first peer of messages that has none open in return.
    fn peer_of_messages(&self, comm_id: u64, rank: u32, what: &What) -> Option<u32> {
        let What::Messages { first, .. } = what else { return None };
        let peers = || first.iter().map(|message| message.peer).filter(|peer| *peer != rank);
        let answers = |peer: &u32| {
            let open = self.find(comm_id, *peer).and_then(|(_, comm)| comm.open());
            open.is_some_and(|open| match &open.what {
                What::Messages { first, .. } => first.iter().any(|message| message.peer == rank),
                What::Collective { .. } => false,
            })
        };
        peers().find(|peer| !answers(peer))
    }

    /// A rank with an open operation that waits for no other rank.
    fn waits_for_nobody(&self, comm: &CommReport, open: &Operation) -> Finding {
        let who = self.find(comm.comm_id, comm.rank);
        let who = who.map_or_else(String::new, |(report, comm)| self.who_in(report, comm));
        let (text, age) = (open.text(), seconds(open.age_ms));
        if open.stage == Stage::Called {
            let text = format!("{who} has called {text} {age} ago, and plans it or makes its connections");
            let remedy = "NCCL_DEBUG=INFO shows what it connects to; is an address unreachable?";
            return finding(Cause::NotSubmitted, comm.rank, text, remedy);
        }
        if comm.is_exact {
            let text = format!("{who} runs {text} since {age} and waits for nobody: it moves data");
            return finding(Cause::Lost, comm.rank, text, "ask again: is it only slow?");
        }
        let text = format!(
            "{who} has submitted {text} {age} ago, and its kernel waits for no rank: it has not begun (work \
             before it on its stream is not over, its graph was not replayed, or other kernels fill the \
             GPU), or it moves data"
        );
        let remedy = "look at that stream: does a kernel or an event before the operation never end?";
        finding(Cause::KernelSilent, comm.rank, text, remedy)
    }

    /// Ranks that wait for each other.
    fn circle(&self, path: &[Node]) -> Finding {
        let link = |node: &Node| {
            let found = self.find(node.0, node.1);
            let open = found.and_then(|(_, comm)| comm.open().map(|open| (comm, open)));
            match open {
                Some((comm, open)) => format!("rank {} in {} ({})", node.1, open.text(), comm_name(comm)),
                None => format!("rank {}, which is elsewhere", node.1),
            }
        };
        let links: Vec<String> = path.iter().map(link).collect();
        let guilty: Vec<u32> =
            path.iter().filter(|(comm, _)| *comm == self.evidence.comm_id).map(|(_, rank)| *rank).collect();
        let comms = path.iter().map(|(comm, _)| comm).collect::<std::collections::BTreeSet<_>>().len();
        let open = |node: &Node| self.find(node.0, node.1).and_then(|(_, comm)| comm.open());
        let has_messages = path.iter().any(|node| open(node).is_some_and(|open| !open.what.is_collective()));
        let chain = links.join(" waits for ");
        let (cause, sentence, remedy) = if comms > 1 {
            let text =
                format!("ranks called operations of {comms} communicators in different orders: {chain}");
            (Cause::OtherOrder, text, "call the operations of all communicators in one order on all ranks")
        } else if has_messages {
            let text = format!("ranks wait for each other's messages: {chain}, which waits for the first");
            let remedy =
                "put sends and receives that depend on each other into one group, or order them alike";
            (Cause::MessagesCross, text, remedy)
        } else {
            let waits = self.lost_text(path);
            let text = format!("all ranks are in the operation, and what was sent did not come: {waits}");
            (Cause::Lost, text, "look at the network between these ranks; NCCL_DEBUG=INFO shows its faults")
        };
        Finding { cause, guilty, sentence, remedy }
    }

    /// Lists who waits for what of whom in an operation that all are in.
    fn lost_text(&self, path: &[Node]) -> String {
        let one = |(comm_id, rank): &Node| {
            let (_, comm) = self.find(*comm_id, *rank)?;
            let Waits { awaited, peer, block, step, since_ms, .. } = comm.waits.first()?;
            let since = seconds(*since_ms);
            Some(format!(
                "rank {rank} waits for {awaited} of rank {peer} (block {block}, step {step}) since {since}"
            ))
        };
        path.iter().filter_map(one).collect::<Vec<_>>().join(", ")
    }

    fn nothing_open(&self) -> Finding {
        if let Some((report, comm)) = self.comms.values().find(|(_, comm)| comm.queued.is_some())
            && let Err(finding) = self.idle(report, comm)
        {
            return *finding;
        }
        let count = self.comms.values().map(|(_, comm)| comm.collectives).max().unwrap_or(0);
        let sentence =
            format!("no operation is open: {count} collectives are over on all ranks that answered");
        let remedy = "if the program hangs, it does so outside of this library";
        Finding { cause: Cause::NothingOpen, guilty: Vec::new(), sentence, remedy }
    }

    fn find(&self, comm_id: u64, rank: u32) -> Option<(&'a ProcessReport, &'a CommReport)> {
        if comm_id == self.evidence.comm_id {
            return self.comms.get(&rank).copied();
        }
        let found = |report: &'a ProcessReport| Some((report, report.comm(comm_id, rank)?));
        self.evidence.reports.iter().find_map(found)
    }

    /// "rank 3 (host a, process 17)".
    fn who(&self, rank: u32) -> String {
        if let Some((report, _)) = self.comms.get(&rank) {
            return format!("rank {rank} (host {}, process {})", report.host, report.pid);
        }
        match self.evidence.members.get(&rank) {
            Some(Member { host, pid, .. }) => format!("rank {rank} (host {host}, process {pid})"),
            None => format!("rank {rank}"),
        }
    }

    fn who_in(&self, report: &ProcessReport, comm: &CommReport) -> String {
        let of = match comm.comm_id == self.evidence.comm_id {
            true => String::new(),
            false => format!(" of {}", comm_name(comm)),
        };
        format!("rank {}{of} (host {}, process {})", comm.rank, report.host, report.pid)
    }
}

fn finding(cause: Cause, guilty: u32, sentence: String, remedy: &'static str) -> Finding {
    Finding { cause, guilty: vec![guilty], sentence, remedy }
}

fn comm_name(comm: &CommReport) -> String {
    match &*comm.name {
        "" => format!("communicator {:016x}", comm.comm_id),
        name => format!("communicator {name}"),
    }
}

#[cfg(test)]
mod tests;
