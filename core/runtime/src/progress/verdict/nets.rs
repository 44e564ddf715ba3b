//! Net plugins that do not carry out what they were asked for: a connection that is never made, a send that
//! never ends, a call that does not return.

use super::{Case, Cause, Finding, Node, finding};
use crate::progress::stall::{NetRequest, Stall};

/// A request counts if nothing has moved on its connection for so many milliseconds.
const SILENT_MS: u64 = 500;

impl Case<'_> {
    /// The net that keeps one rank waiting for another one of the same communicator: at the end that sends,
    /// unless that has no room at the other one, or at the end that receives.
    pub(super) fn net_silent(&self, waiting: Node, awaited: Node) -> Option<Finding> {
        if waiting.0 != awaited.0 {
            return None;
        }
        let ends = [(awaited, waiting), (waiting, awaited)];
        ends.into_iter().find_map(|(own, peer)| {
            let is_cause = |stall: &&Stall| self.is_cause(stall, own, peer);
            let (report, comm) = self.find(own.0, own.1)?;
            let stall = comm.stalls.iter().find(is_cause)?;
            let sentence = format!("{}: {}", self.who_in(report, comm), stall.text());
            let remedy = "look at that NIC, at the way to that rank, and at what the plugin says \
                          (NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=NET)";
            Some(finding(Cause::NetSilent, own.1, sentence, remedy))
        })
    }

    /// Returns whether a request of a rank holds up what it and its peer do together.
    fn is_cause(&self, stall: &Stall, own: Node, peer: Node) -> bool {
        let is_old = stall.age_ms >= SILENT_MS;
        let concerns = stall.peer.is_none_or(|of| of == peer.1);
        let has_no_room = |at: Node, from: Node| {
            let stalls = self.find(at.0, at.1).map_or(&[][..], |(_, comm)| &comm.stalls);
            stalls.iter().any(|stall| stall.request == NetRequest::NoRoom && stall.peer == Some(from.1))
        };
        is_old
            && concerns
            && match stall.request {
                NetRequest::NoRoom => false,
                NetRequest::Send => !has_no_room(peer, own),
                _ => true,
            }
    }
}
