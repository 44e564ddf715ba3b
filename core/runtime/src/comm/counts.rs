//! Lets clients of RAS hear of a communicator.

use std::sync::{Arc, Weak};
use std::time::Duration;

use hawser_base::liveness::{End, Identity};

use crate::bootstrap::Question;
use crate::comm_state::CommState;
use crate::ras::census::{ProcessCensus, ProcessKey, RankCensus, nccl_code};
use crate::ras::job::RosterOf;
use crate::ras::{self, Source};
use crate::record;

/// A rank of which clients hear.
pub(super) struct Counted(pub Weak<CommState>);

impl Source for Counted {
    fn census(&self) -> Option<RankCensus> {
        let state = self.0.upgrade()?;
        Some(RankCensus {
            comm_id: state.comm_id,
            size: state.topology.size(),
            rank: state.rank,
            device: state.device.caps().ordinal,
            counts: state.journal.counts(),
            async_error: state.failure().map_or(0, |error| nccl_code(error.kind)),
            is_finalized: state.journal.is_finalized(),
            is_aborted: state.abort.is_raised(),
        })
    }

    fn roster(&self) -> Option<RosterOf> {
        let state = self.0.upgrade()?;
        let (roster, size) = (state.bootstrap.roster(), state.topology.size());
        let member = |rank| {
            let identity = identity(&state, rank);
            (ProcessKey::of(&identity), node(&state, rank, &identity))
        };
        let ends = roster.all();
        let left = |(rank, end, _): &(u32, End, _)| matches!(end, End::Left(_)).then_some(*rank);
        let died = |(rank, end, _): &(u32, End, _)| matches!(end, End::Died(_)).then_some(*rank);
        Some(RosterOf {
            comm_id: state.comm_id,
            members: (0..size).map(member).collect(),
            left: ends.iter().filter_map(left).collect(),
            died: ends.iter().filter_map(died).collect(),
        })
    }

    fn ask(&self, limit: Duration) -> Vec<ProcessCensus> {
        let Some(state) = self.0.upgrade() else { return Vec::new() };
        if state.topology.size() < 2 {
            return vec![census_of(&state)];
        }
        let answers = state.bootstrap.ask(Question::Census, limit);
        answers.iter().filter_map(|(_, bytes)| record::decode(bytes)).collect()
    }
}

/// The answer of this process to the other ranks of a communicator.
pub(super) fn answer(state: &Arc<CommState>) -> Vec<u8> {
    census_of(state).encode()
}

fn census_of(state: &CommState) -> ProcessCensus {
    let identity = identity(state, state.rank);
    ProcessCensus {
        process: ProcessKey::of(&identity),
        node: node(state, state.rank, &identity),
        ranks: ras::own_ranks(state.comm_id),
    }
}

/// The process of a rank.
fn identity(state: &CommState, rank: u32) -> Identity {
    let members = state.bootstrap.roster().members();
    members.get(rank as usize).copied().unwrap_or_else(|| {
        let host_id = hawser_base::env::settings().host_id.as_deref();
        Identity::own(rank, host_id)
    })
}

/// The address of a rank's host, else its name.
fn node(state: &CommState, rank: u32, identity: &Identity) -> String {
    let address = state.bootstrap.address_of(rank);
    address.map_or_else(|| identity.host(), |address| address.to_canonical().to_string())
}
