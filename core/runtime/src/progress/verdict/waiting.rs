//! The rank that waits, in the sentence about the rank that it waits for.

use super::{Case, Cause, Finding, finding};
use crate::progress::operation::{Operation, seconds};

impl Case<'_> {
    /// Adds who waits for the guilty rank.
    pub(super) fn told_from(&self, from: u32, mut finding: Finding) -> Finding {
        let open = self.comms.get(&from).and_then(|(_, comm)| comm.open());
        let Some(open) = open.filter(|_| !finding.guilty.contains(&from)) else { return finding };
        let has_called = finding.guilty.iter().copied().find(|rank| self.has_called(*rank, open));
        if let Some(rank) = has_called.filter(|_| finding.cause == Cause::NotCalled) {
            if let Some(through) = self.is_through(rank, from, open) {
                return through;
            }
            finding.sentence += &waits(from, open);
            finding.sentence += ", which the other has called before: a graph with it was not replayed there";
            return finding;
        }
        finding.sentence += &waits(from, open);
        finding
    }

    fn has_called(&self, rank: u32, open: &Operation) -> bool {
        let called = self.comms.get(&rank).map_or(0, |(_, comm)| comm.collectives);
        open.what.is_collective() && called > open.number
    }

    /// A rank of a device without graphs that has called what another one waits in, and has ended it, has
    /// done its part: what it sent has not come yet.
    fn is_through(&self, rank: u32, from: u32, open: &Operation) -> Option<Finding> {
        let (report, comm) = self.comms.get(&rank).filter(|(_, comm)| comm.is_exact)?;
        let who = self.who_in(report, comm);
        let sentence = format!(
            "{who} is through with what others wait in: what it sent has not come{}",
            waits(from, open)
        );
        let remedy = "ask again: is it only slow? NCCL_DEBUG=INFO shows faults of the network between them";
        Some(finding(Cause::Lost, rank, sentence, remedy))
    }
}

/// Says for how long a rank has waited.
fn waits(rank: u32, open: &Operation) -> String {
    format!("; rank {rank} has waited in {} for {}", open.text(), seconds(open.age_ms))
}
