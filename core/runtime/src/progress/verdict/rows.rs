//! A line for every rank: what is open on it, and whom it waits for.

use serde::{Deserialize, Serialize};

use super::Evidence;
use crate::progress::operation::Stage;
use crate::progress::report::{CommReport, ProcessReport};

/// A rank, as people see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// The rank.
    pub rank: u32,
    /// Its host; empty if nobody knows.
    pub host: String,
    /// Its process; 0 if nobody knows.
    pub pid: u32,
    /// The word of the kernel, or of the other ranks, on it.
    pub state: String,
    /// The number of collectives that it has called.
    pub collectives: u64,
    /// The operation that is open, or was last.
    pub operation: String,
    /// The stage of that operation.
    pub stage: String,
    /// Milliseconds since it was called.
    pub age_ms: u64,
    /// Whom it waits for.
    pub waits_for: String,
}

/// The lines of all ranks.
pub fn rows(evidence: &Evidence, ranks: u32) -> Vec<Row> {
    (0..ranks).map(|rank| row(evidence, rank)).collect()
}

fn row(evidence: &Evidence, rank: u32) -> Row {
    let member = evidence.members.get(&rank);
    let mut row = Row {
        rank,
        host: member.map_or_else(String::new, |member| member.host.clone()),
        pid: member.map_or(0, |member| member.pid),
        state: "no answer".into(),
        collectives: 0,
        operation: String::new(),
        stage: String::new(),
        age_ms: 0,
        waits_for: String::new(),
    };
    let found = |report: &ProcessReport| report.comm(evidence.comm_id, rank).is_some();
    if let Some(report) = evidence.reports.iter().find(|report| found(report)) {
        (row.host, row.pid) = (report.host.clone(), report.pid);
        row.state = report.state.as_ref().map_or_else(|| "?".into(), |state| state.text());
        if let Some(comm) = report.comm(evidence.comm_id, rank) {
            fill(&mut row, comm);
        }
    }
    if let Some(gone) = evidence.gone.iter().find(|gone| gone.rank == rank) {
        row.state = gone.how.clone();
    }
    row
}

fn fill(row: &mut Row, comm: &CommReport) {
    row.collectives = comm.collectives;
    if let Some(operation) = comm.open().or_else(|| comm.last_done()) {
        (row.operation, row.age_ms) = (operation.text(), operation.age_ms);
        row.stage = match operation.stage {
            Stage::Called => "called",
            Stage::Submitted => "submitted",
            Stage::Done => "over",
        }
        .into();
    }
    if comm.open().is_none()
        && let Some((calls, _)) = comm.queued
    {
        row.stage = format!("{calls} in an open group");
    }
    let waits = comm.waits.iter().map(|waits| {
        format!("{} of {} (block {}, step {})", waits.awaited, waits.peer, waits.block, waits.step)
    });
    row.waits_for = waits.collect::<Vec<_>>().join("; ");
}
