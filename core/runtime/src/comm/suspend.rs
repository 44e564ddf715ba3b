//! Communicators that sleep: they give device memory back and take it again at the same addresses.

use std::sync::{Arc, MutexGuard};

use hawser_base::env;
use hawser_base::error::{Error, Result};
use hawser_base::lock::lock;
use hawser_base::wait::Wait;

use super::{Busy, Comm, State};
use crate::comm::group::{self, Job};
use crate::comm_state::CommState;

/// Device memory of a communicator on one rank, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// The part that [`Comm::suspend`] gives back, whether or not it has.
    pub suspendable: u64,
    /// True while it is given back.
    pub is_suspended: bool,
    /// The part that stays.
    pub persistent: u64,
}

impl Comm {
    /// Waits for all operations and gives device memory back: the heap of this rank, and the mappings of its
    /// peers' heaps. Collective. Afterwards only [`Comm::resume`], questions, abort and destroy are of use,
    /// and no captured graph may be replayed. Addresses stay as they are. In groups and without blocking as
    /// [`Comm::split`].
    ///
    /// # Errors
    /// `InvalidUsage` if it is suspended, or another call is in progress; otherwise what made an operation or
    /// a peer fail.
    pub fn suspend(&self) -> Result<()> {
        self.begin_suspend().inspect_err(group::record)
    }

    fn begin_suspend(&self) -> Result<()> {
        let state = self.state()?;
        self.refuse_if_busy("suspend")?;
        self.set_suspended(true)?;
        let unless_run = Awake(Some(self.clone()));
        self.in_turn(move || {
            unless_run.forget();
            let wait = Wait::new(state.abort.clone(), Some(env::settings().join_timeout()));
            fail_with(&state, state.suspend(&wait))
        })
    }

    /// Takes back what [`Comm::suspend`] gave, with what it held. Collective.
    ///
    /// # Errors
    /// `InvalidUsage` if it is not suspended; there is no memory; otherwise as [`Comm::suspend`].
    pub fn resume(&self) -> Result<()> {
        self.begin_resume().inspect_err(group::record)
    }

    fn begin_resume(&self) -> Result<()> {
        let state = match &*lock(&self.0.state)? {
            State::Ready { is_suspended: true, comm_state, .. } => comm_state.clone(),
            _ => {
                let error = Error::invalid_usage("the communicator is not suspended");
                return Err(self.name_error(error.remedy("call ncclCommSuspend on all ranks before")));
            }
        };
        self.refuse_if_busy("resume")?;
        let comm = self.clone();
        self.in_turn(move || {
            let wait = Wait::new(state.abort.clone(), Some(env::settings().join_timeout()));
            fail_with(&state, state.resume(&wait))?;
            comm.set_suspended(false)
        })
    }

    /// The device memory that this rank holds for the communicator.
    ///
    /// # Errors
    /// As [`Comm::revoke`].
    pub fn memory_stats(&self) -> Result<MemoryStats> {
        let state = self.state_even_failed()?;
        let suspendable = state.peer_memory.suspendable_bytes(&*state.device);
        let is_suspended = matches!(&*lock(&self.0.state)?, State::Ready { is_suspended: true, .. });
        let persistent = state.memory_bytes().saturating_sub(suspendable);
        Ok(MemoryStats { suspendable, is_suspended, persistent })
    }

    /// Runs a job that waits for the other ranks, as the creation of a communicator.
    pub(super) fn in_turn(&self, work: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
        let work = Box::new(move |_: Option<Busy>| work());
        group::create(Job { owner: self.clone(), blocking: self.is_blocking(), work })
    }

    fn set_suspended(&self, now: bool) -> Result<()> {
        let mut state: MutexGuard<'_, State> = lock(&self.0.state)?;
        if let State::Ready { is_suspended, .. } = &mut *state {
            *is_suspended = now;
        }
        Ok(())
    }
}

/// A communicator that is awake again if its suspend is dropped unrun, as when its group fails.
struct Awake(Option<Comm>);

impl Awake {
    fn forget(mut self) {
        self.0 = None;
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        if let Some(comm) = &self.0 {
            let _ = comm.set_suspended(false);
        }
    }
}

/// After a failure nobody knows what is mapped: the communicator is not to be used any more.
pub(super) fn fail_with<T>(state: &Arc<CommState>, outcome: Result<T>) -> Result<T> {
    outcome.map_err(|error| {
        let error = state.bootstrap.blame(error);
        let _ = state.broken.set(error.clone());
        error
    })
}
