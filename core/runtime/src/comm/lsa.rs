//! Windows and communicators for kernels of the user. Collective calls wait for the other ranks: at once, or
//! at the end of the open group.

use std::sync::Arc;

use hawser_base::env;
use hawser_base::error::{Error, Result};
use hawser_base::lock::lock;
use hawser_base::log;
use hawser_base::wait::Wait;

use super::suspend::fail_with;
use super::{Comm, State};
use crate::comm_state::CommState;
use crate::lsa::Registration;
use crate::lsa::resources::{DevComm, Wanted};
use crate::rma::Window;

/// The ranks whose memory a rank's kernels load and store: neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadStoreTeam {
    /// Rank of the first one in the communicator.
    pub first: u32,
    /// Number of ranks.
    pub ranks: u32,
}

impl Comm {
    /// The ranks whose memory this rank loads and stores: those that map each other's windows; else all, if
    /// they are in one process whose devices reach each other's memory, or this one alone.
    ///
    /// # Errors
    /// As [`Comm::state`].
    pub fn load_store_team(&self) -> Result<LoadStoreTeam> {
        let state = self.state()?;
        let team = state.lsa.team();
        Ok(match state.lsa.missing() {
            Some(_) if state.is_load_store => LoadStoreTeam { first: 0, ranks: self.ranks() },
            _ => LoadStoreTeam { first: team.first, ranks: team.ranks() },
        })
    }

    /// The reason why kernels of the user cannot have windows of other ranks, if so.
    ///
    /// # Errors
    /// As [`Comm::state`].
    pub fn kernels_cannot_have_windows(&self) -> Result<Option<&'static str>> {
        self.state().map(|state| state.lsa.missing())
    }

    /// Maps a window with the number of [`Comm::expose`], and hands `then` the handle by which
    /// kernels use it; none if the memory of some rank does not allow that. Collective.
    ///
    /// # Errors
    /// Another rank did not answer, mapping failed, or what `then` says.
    pub fn make_window_for_kernels(
        &self,
        number: u64,
        window: Window,
        then: impl FnOnce(Result<Option<u64>>) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let state = self.state()?;
        self.in_turn(move || {
            let limits = state.rma.exposed().limits();
            let registered = state.lsa.register(number, window, limits, &wait(&state));
            then(fail_with(&state, registered).and_then(|registered| {
                let Registration { handle, words, is_mapped } = registered;
                state.share_words(words, is_mapped).and(handle)
            }))
        })
    }

    /// Takes the window with this number back; false if it is not mapped.
    ///
    /// # Errors
    /// The driver refused.
    pub fn drop_window_for_kernels(&self, number: u64) -> Result<bool> {
        let Some(state) = self.holder()? else { return Ok(false) };
        state.wait_for_streams_puts();
        let dropped = state.lsa.deregister(number);
        state.free_retired_later();
        dropped
    }

    /// The address at which this rank's kernels find an offset of a window of a rank of the load-store team.
    /// None if kernels cannot use the window.
    ///
    /// # Errors
    /// As [`Comm::state`].
    pub fn window_address(&self, handle: u64, team_rank: u32, offset: u64) -> Result<Option<u64>> {
        Ok(self.state()?.lsa.address(handle, team_rank, offset))
    }

    /// True if windows have multicast addresses where their memory allows it.
    ///
    /// # Errors
    /// As [`Comm::state`].
    pub fn offers_multicast(&self) -> Result<bool> {
        self.state().map(|state| state.lsa.offers_multicast())
    }

    /// The address at which an offset of a window is on all ranks of the load-store team at once. None if it
    /// has none.
    ///
    /// # Errors
    /// As [`Comm::state`].
    pub fn multicast_address(&self, handle: u64, offset: u64) -> Result<Option<u64>> {
        Ok(self.state()?.lsa.multicast_address(handle, offset))
    }

    /// Makes a communicator for kernels, and hands it to `then`. Collective.
    ///
    /// # Errors
    /// `InvalidUsage`: kernels cannot have windows; otherwise another rank did not answer, there is no
    /// memory, or what `then` says.
    pub fn make_dev_comm(
        &self,
        wanted: Wanted,
        then: impl FnOnce(DevComm) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let state = self.state()?;
        if let Some(why) = state.lsa.missing() {
            return Err(Error::invalid_usage(format!("there are no communicators for kernels: {why}"))
                .remedy("call collectives from the host, or run on GPUs with peer access and VMM"));
        }
        if let Some(why) = state.lsa.host_only() {
            log::warn(&format!(
                "{} rank {}: kernels cannot use a window that is registered: {why}",
                state.name, state.rank
            ));
        }
        let ranks = self.ranks();
        self.in_turn(move || {
            let abort_flag = state.peer_memory.control.leave_word();
            let made = state.lsa.make_dev_comm(&wanted, (ranks, abort_flag), &wait(&state));
            let made = fail_with(&state, made)??;
            if let Some((number, resources)) = made.network {
                state.open_network(number, resources)?;
            }
            then(made)
        })
    }

    /// Frees the resources of a communicator for kernels by the handle of its resource window; 0 if it has
    /// none.
    ///
    /// # Errors
    /// `InvalidArgument`: there is none with this window; the driver refused.
    pub fn destroy_dev_comm(&self, resource_window: u64) -> Result<()> {
        let Some(state) = self.holder()? else { return Ok(()) };
        if let Some(network) = state.lsa.destroy_dev_comm(resource_window)? {
            state.forget_window(state.rma.exposed().hide(network));
        }
        Ok(())
    }

    /// The state, also of a communicator that has failed: what it holds can be given back.
    pub(super) fn holder(&self) -> Result<Option<Arc<CommState>>> {
        Ok(match &*lock(&self.0.state)? {
            State::Ready { comm_state, .. } => Some(comm_state.clone()),
            _ => None,
        })
    }
}

/// A wait for calls of other ranks, which may come late.
fn wait(state: &CommState) -> Wait {
    Wait::new(state.abort.clone(), Some(env::settings().join_timeout()))
}
