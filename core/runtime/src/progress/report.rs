//! The report of a process that is asked: its ranks, what is open on each, and whom each waits for.

use std::time::Duration;

use hawser_base::figures::Reading;
use hawser_base::liveness::Identity;
use hawser_base::log;
use serde::{Deserialize, Serialize};

use super::joining::JoiningReport;
use super::journal::View;
use super::operation::{Operation, Stage, Waits};
use super::process_state::ProcessState;
use super::stall::Stall;

/// Operations of the communicator in question that a report holds.
const OPERATIONS: usize = 12;
/// Open operations of each other communicator.
const OTHERS: usize = 2;
/// Losses of nets that a report holds, and the letters of each.
const LOSSES: (usize, usize) = (4, 200);
/// Communicators of a report.
const MOST_COMMS: usize = 64;

/// A process, and the communicators in which it is a rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessReport {
    /// The same for all processes of one host and PID namespace.
    pub machine: [u8; 16],
    /// The name of its host.
    pub host: String,
    /// Its number there.
    pub pid: u32,
    /// The kernel's word on it, if that can be read.
    pub state: Option<ProcessState>,
    /// Its ranks.
    pub comms: Vec<CommReport>,
    /// Its ranks that wait for others in init.
    pub joining: Vec<JoiningReport>,
    /// The kernel's word on the processes of other ranks of its host, by rank of the first of `comms`.
    pub neighbours: Vec<(u32, ProcessState)>,
    /// The losses of its nets, the last one first.
    pub losses: Vec<Loss>,
    /// The figures of its rails and pools. They are not told to other hosts.
    #[serde(skip)]
    pub figures: Vec<Reading>,
}

/// Something that a net has lost, such as a rail, and goes on without.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// Milliseconds since it was noticed.
    pub age_ms: u64,
    /// The net's words.
    pub text: String,
}

impl Loss {
    /// The losses of this process.
    fn own() -> Vec<Self> {
        let (most, letters) = LOSSES;
        let of = |(age, text): (Duration, String)| Self {
            age_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
            text: text.chars().filter(|letter| !letter.is_control()).take(letters).collect(),
        };
        log::losses().into_iter().take(most).map(of).collect()
    }
}

/// A rank of a communicator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommReport {
    /// The communicator's number, the same on all ranks.
    pub comm_id: u64,
    /// Its name.
    pub name: String,
    /// The rank.
    pub rank: u32,
    /// The number of ranks.
    pub ranks: u32,
    /// The rank in the job's first communicator, by which ranks of one process are told apart.
    pub world: u32,
    /// True if the end of operations is known at once; else a GPU had to be asked.
    pub is_exact: bool,
    /// The time of the report, in milliseconds of the clock that processes of a host share.
    pub taken_ms: u64,
    /// The number of collectives that were called: the number of the next one.
    pub collectives: u64,
    /// Calls in a group that has not ended, and for how many milliseconds.
    pub queued: Option<(u64, u64)>,
    /// Whom it waits for.
    pub waits: Vec<Waits>,
    /// Its last operations, the oldest first.
    pub operations: Vec<Operation>,
    /// The requests that its net has not carried out, the oldest first.
    pub stalls: Vec<Stall>,
}

impl CommReport {
    /// Reports what a journal says.
    pub fn of_view(view: View) -> Self {
        Self {
            comm_id: view.comm_id,
            name: view.name,
            rank: view.rank,
            ranks: view.ranks,
            world: view.world,
            is_exact: view.is_exact,
            taken_ms: view.taken_ms,
            collectives: view.collectives,
            queued: view.queued,
            waits: view.waits.into_iter().collect(),
            operations: view.operations,
            stalls: Vec::new(),
        }
    }

    /// The operation in which the rank is: on a GPU the one in which a kernel says that it waits, else the
    /// oldest that is not over.
    pub fn open(&self) -> Option<&Operation> {
        let says = self.waits.first().filter(|_| !self.is_exact);
        let is_said = |operation: &&Operation| says.is_some_and(|waits| waits.number == operation.number);
        self.operations.iter().find(is_said).or_else(|| self.oldest_open())
    }

    /// The oldest operation that is not known to be over.
    pub fn oldest_open(&self) -> Option<&Operation> {
        self.operations.iter().find(|operation| operation.stage != Stage::Done)
    }

    /// The last operation that is over.
    pub fn last_done(&self) -> Option<&Operation> {
        self.operations.iter().rev().find(|operation| operation.stage == Stage::Done)
    }

    /// Keeps what is needed where this communicator is in question: the oldest that are open, and around
    /// them what was called last.
    fn shorten(&mut self) {
        let open = self.operations.iter().position(|operation| operation.stage != Stage::Done);
        let from = open.map_or(self.operations.len().saturating_sub(OPERATIONS), |at| {
            at.saturating_sub(OPERATIONS / 2).min(self.operations.len().saturating_sub(OPERATIONS))
        });
        self.operations.drain(..from);
        self.operations.truncate(OPERATIONS);
    }

    /// Keeps what is needed where another communicator is in question.
    fn shorten_to_what_is_open(&mut self) {
        self.operations.retain(|operation| operation.stage != Stage::Done);
        self.operations.truncate(OTHERS);
    }
}

impl ProcessReport {
    /// A process by its journals.
    pub fn of_journals(identity: &Identity, views: Vec<View>) -> Self {
        Self {
            machine: identity.machine(),
            host: identity.host(),
            pid: identity.pid,
            state: None,
            comms: views.into_iter().map(CommReport::of_view).collect(),
            joining: Vec::new(),
            neighbours: Vec::new(),
            losses: Vec::new(),
            figures: Vec::new(),
        }
    }

    /// The answer of a rank: all of its own communicator, and what is open on the others of the same rank.
    pub fn of_rank(identity: &Identity, own: CommReport, others: Vec<CommReport>) -> Self {
        let mut own = own;
        own.shorten();
        let mut others = others;
        others.iter_mut().for_each(CommReport::shorten_to_what_is_open);
        // Those on which nothing is open tell that it is so, if there is room.
        others.sort_by_key(|other| other.operations.is_empty() && other.queued.is_none());
        let mut comms = vec![own];
        comms.extend(others);
        comms.truncate(MOST_COMMS);
        Self {
            machine: identity.machine(),
            host: identity.host(),
            pid: identity.pid,
            state: ProcessState::of(identity.pid),
            comms,
            joining: Vec::new(),
            neighbours: Vec::new(),
            losses: Loss::own(),
            figures: Vec::new(),
        }
    }

    /// This process's rank of a communicator.
    pub fn comm(&self, comm_id: u64, rank: u32) -> Option<&CommReport> {
        self.comms.iter().find(|comm| (comm.comm_id, comm.rank) == (comm_id, rank))
    }
}
