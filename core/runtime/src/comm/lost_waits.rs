//! Launches on GPUs that wait for a rank that has gone: they are ended, with the error that names it.
//!
//! The host device asks while it waits (`executor/host/interp.rs`). Kernels only poll the abort word, so a
//! thread looks after them from the moment on at which the first rank is known to have gone. After a death
//! every launch that does not end soon is ended. A rank that has left in peace did all of its operations
//! before, so launches that need nothing of it are let be: through the abort word the thread asks them
//! whether they wait for that rank.

use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use hawser_base::error::Result;
use hawser_base::log;
use hawser_kernels_abi::Report;

use crate::comm_state::CommState;

/// The time that launches may take to their end after a death: the dead rank may have done its part.
const IN_VAIN: Duration = Duration::from_millis(800);

/// The pause between two looks.
const PERIOD: Duration = Duration::from_millis(50);

/// The time that a launch may take to answer: the GPU may be another process's for that time.
const PATIENCE: Duration = Duration::from_millis(60);

/// From the first news of a rank that has gone on, ends launches of this communicator that wait in vain.
pub(super) fn end_from_first_news(state: &Arc<CommState>) {
    if state.device.kernels().is_none() {
        return;
    }
    let weak = Arc::downgrade(state);
    state.bootstrap.on_first_news(move || {
        let weak = weak.clone();
        // The thread of the bootstrap must not wait, nor be the last that holds the communicator.
        let thread = thread::Builder::new().name("hawser-lost-waits".into()).spawn(move || look_after(&weak));
        if let Err(error) = thread {
            log::warn(&format!(
                "launches that wait for a rank that has gone are not ended: no thread: {error}"
            ));
        }
    });
}

fn look_after(state: &Weak<CommState>) {
    let mut launches = Launches::default();
    while state.strong_count() > 0 {
        thread::sleep(PERIOD);
        let Some(state) = state.upgrade() else { return };
        if state.peer_memory.control.is_aborted() {
            return;
        }
        if let Err(why) = launches.check(&state) {
            let error = why.context(format!("communicator {}, rank {}", state.name, state.rank));
            log::error(&error);
            state.bootstrap.report(&error);
            state.peer_memory.control.fail_soon(error);
            return;
        }
    }
}

/// The launches under way, as earlier looks saw them.
#[derive(Default)]
struct Launches {
    busy_since: Option<Instant>,
    /// The wait for a rank that has left, and when it was seen first.
    wait: Option<(Report, Instant)>,
}

impl Launches {
    /// Looks at the launches of a communicator.
    ///
    /// # Errors
    /// They wait in vain; the text names who is to blame.
    fn check(&mut self, state: &Arc<CommState>) -> Result<()> {
        if !state.has_launches() {
            *self = Self::default();
            return Ok(());
        }
        let busy_since = *self.busy_since.get_or_insert_with(Instant::now);
        let roster = state.bootstrap.roster();
        if let Some(why) = roster.verdict() {
            return if busy_since.elapsed() >= IN_VAIN { Err(why) } else { Ok(()) };
        }
        let control = &state.peer_memory.control;
        let mut gone = roster.gone_without_trouble().into_iter();
        let wait = gone.find_map(|peer| control.ask_who_waits_for(peer, PATIENCE));
        let Some(wait) = wait else {
            self.wait = None;
            return Ok(());
        };
        let since = match self.wait {
            Some((before, since)) if is_same_wait(&before, &wait) => since,
            _ => Instant::now(),
        };
        self.wait = Some((wait, since));
        roster.check(wait.peer, since, false)
    }
}

/// Returns true if the same operation gave both answers. Its blocks wait at different steps.
fn is_same_wait(before: &Report, now: &Report) -> bool {
    let place = |wait: &Report| (wait.op_number, wait.peer, wait.what);
    place(before) == place(now)
}
