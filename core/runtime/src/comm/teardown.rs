//! The ends of a communicator: finalize, destroy, abort.

use std::sync::{Arc, MutexGuard, Weak};
use std::thread;
use std::time::{Duration, Instant};

use hawser_base::error::{Error, Result};
use hawser_base::liveness::forked;
use hawser_base::lock::lock;

use super::{Comm, State};
use crate::comm::group;
use crate::planted::{Bug, is_planted};

/// The time for which an end waits for threads that look at the communicator now and then. Captured graphs
/// keep it for longer.
const LOOK: Duration = Duration::from_millis(50);
/// The pause between two looks whether they are through.
const PAUSE: Duration = Duration::from_micros(100);

impl Comm {
    /// Waits for all operations on this rank, in the background if `config.blocking` is false; afterwards
    /// only destroy is of use.
    ///
    /// # Errors
    /// What made bring-up or an earlier operation fail; `InvalidArgument` after destroy or abort.
    pub fn finalize(&self) -> Result<()> {
        let mut state = self.settle()?;
        let comm_state = match &mut *state {
            State::Ready { comm_state, finalized, .. } => {
                if let Some(error) = comm_state.failure() {
                    return Err(error);
                }
                if *finalized {
                    let error = Error::invalid_argument("ncclCommFinalize was called before")
                        .remedy("call it once, then ncclCommDestroy");
                    return Err(self.name_error(error));
                }
                *finalized = true;
                comm_state.journal.finalize();
                comm_state.clone()
            }
            State::Failed(error) => return Err(error.clone()),
            State::Starting | State::Ending | State::Gone => return Err(self.gone()),
        };
        drop(state);
        if self.is_blocking() {
            return comm_state.flush();
        }
        let busy = self.busy()?;
        let flush = move || {
            if let Err(error) = comm_state.flush() {
                let _ = comm_state.broken.set(error);
            }
            drop((comm_state, busy));
        };
        let thread = std::thread::Builder::new().name("hawser-finalize".into()).spawn(flush);
        thread.map(drop).map_err(|e| Error::system("starting the thread of a finalize", e))
    }

    /// Frees everything. Waits for bring-up and for this rank's operations.
    ///
    /// # Errors
    /// `InvalidArgument` after destroy or abort; `InvalidUsage` inside the group that creates it.
    pub fn destroy(&self) -> Result<()> {
        drop(self.settle()?);
        self.release();
        Ok(())
    }

    /// Ends everything that this communicator waits for, from any thread, and frees it. Returns when nothing
    /// in the background uses its buffers any more, and no other rank on the host device does; bring-up may
    /// still be unwinding.
    ///
    /// # Errors
    /// `InvalidArgument` after destroy or abort.
    pub fn abort(&self) -> Result<()> {
        forked::refuse()?;
        self.0.abort.raise();
        let mut state = lock(&self.0.state)?;
        match &*state {
            State::Ready { comm_state, .. } => {
                comm_state.bootstrap.note_abort();
                comm_state.peer_memory.control.abort();
                if is_planted(Bug::LeakingAbort) {
                    std::mem::forget(comm_state.clone());
                }
            }
            State::Starting | State::Failed(_) => {}
            // A destroy is released: its thread frees what there is.
            State::Ending => {
                while matches!(&*state, State::Ending) {
                    state = self.wait_for_change(state)?;
                }
                return Ok(());
            }
            State::Gone => return Err(self.gone()),
        }
        while matches!(&*state, State::Ready { pending: 1.., .. }) {
            state = self.wait_for_change(state)?;
        }
        let comm_state = match &*state {
            State::Ready { comm_state, .. } => Some(comm_state.clone()),
            _ => None,
        };
        drop(state);
        if let Some(comm_state) = comm_state {
            comm_state.give_up_buffers();
            comm_state.close_windows();
        }
        self.release();
        Ok(())
    }

    /// Waits until bring-up is over and nothing runs in the background. Never `Starting` or `Gone`.
    fn settle(&self) -> Result<MutexGuard<'_, State>> {
        forked::refuse()?;
        let mut state = lock(&self.0.state)?;
        loop {
            match &*state {
                State::Starting if group::depth() > 0 => {
                    let text = "bring-up is not over: close the open group of this thread first";
                    return Err(self.name_error(Error::invalid_usage(text)));
                }
                State::Starting | State::Ready { pending: 1.., .. } => {}
                State::Ready { .. } | State::Failed(_) => return Ok(state),
                State::Ending | State::Gone => return Err(self.gone()),
            }
            state = self.wait_for_change(state)?;
        }
    }

    fn wait_for_change<'a>(&self, state: MutexGuard<'a, State>) -> Result<MutexGuard<'a, State>> {
        self.0.changed.wait(state).map_err(|_| Error::internal("a lock is poisoned by an earlier panic"))
    }

    fn release(&self) {
        let old = self.0.state.lock().map(|mut state| match &*state {
            State::Ending | State::Gone => None,
            _ => Some(std::mem::replace(&mut *state, State::Ending)),
        });
        self.0.changed.notify_all();
        let Ok(Some(old)) = old else { return };
        let alive = match &old {
            State::Ready { comm_state, .. } => Arc::downgrade(&comm_state.alive),
            _ => Weak::new(),
        };
        drop(old);
        await_lookers(&alive);
        if let Ok(mut state) = self.0.state.lock() {
            *state = State::Gone;
        }
        self.0.changed.notify_all();
    }
}

/// Waits for threads that happen to look at a communicator when it ends: the last of them frees it, and
/// callers expect that nothing of it is left.
fn await_lookers(alive: &Weak<()>) {
    let begin = Instant::now();
    while alive.strong_count() > 0 && begin.elapsed() < LOOK {
        thread::sleep(PAUSE);
    }
}
