//! Launches on GPUs that wait for a rank that is dead: they are ended, with the error that names it.
//!
//! The host device asks while it waits (`executor/host/interp.rs`). Kernels only poll the abort word, so a
//! thread looks after them from the moment on at which somebody is known to be dead.

use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use hawser_base::error::Error;
use hawser_base::log;

use crate::comm_state::CommState;

/// How long launches may take to their end after a death: the dead rank may have done its part.
const IN_VAIN: Duration = Duration::from_secs(1);

/// The pause between two looks.
const PERIOD: Duration = Duration::from_millis(50);

/// From the death of a rank on, ends launches of this communicator that do not end by themselves.
pub(super) fn end_launches_in_vain(state: &Arc<CommState>) {
    if state.device.kernels().is_none() {
        return;
    }
    let weak = Arc::downgrade(state);
    state.bootstrap.on_verdict(move |why| {
        let (weak, why) = (weak.clone(), why.clone());
        // The thread of the bootstrap must not wait, nor be the last that holds the communicator.
        let thread = thread::Builder::new().name("hawser-doom".into()).spawn(move || look_after(&weak, why));
        if let Err(error) = thread {
            log::warn(&format!("launches that wait for a dead rank are not ended: no thread: {error}"));
        }
    });
}

fn look_after(state: &Weak<CommState>, why: Error) {
    let mut busy_since = None;
    loop {
        thread::sleep(PERIOD);
        let Some(state) = state.upgrade() else { return };
        if state.peer_memory.control.is_aborted() {
            return;
        }
        if !is_busy(&state) {
            busy_since = None;
        } else if busy_since.get_or_insert_with(Instant::now).elapsed() >= IN_VAIN {
            let error = why.context(format!("communicator {}, rank {}", state.name, state.rank));
            log::error(&error);
            state.bootstrap.report(&error);
            state.peer_memory.control.fail(error);
            return;
        }
    }
}

/// Whether launches are on their way, or may be: nobody tells of replays whose order is the program's.
fn is_busy(state: &CommState) -> bool {
    let device = &*state.device;
    let is_on_its_way = match state.order.end(device) {
        Ok(Some(end)) => device.is_idle(end.stream).is_ok_and(|idle| !idle),
        Ok(None) | Err(_) => false,
    };
    is_on_its_way || state.order.has_unknown_replays()
}
