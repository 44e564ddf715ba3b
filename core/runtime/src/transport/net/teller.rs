//! Short messages of links to other ranks, which must not hold up the proxy.
//!
//! The first message to a rank needs an answer of its process. One that is stopped or held gives none for as
//! long as that lasts, and is not dead: after a short try a thread goes on telling it, and the connections of
//! other ranks and communicators move meanwhile.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use hawser_base::error::{Error, ErrorKind, Result};
use hawser_base::wait::{AbortFlag, Wait};
use rustc_hash::FxHashMap;

use crate::bootstrap::Bootstrap;

/// The time for which a message may hold up the thread that sends it.
const AT_ONCE: Duration = Duration::from_millis(200);

/// The sender of a communicator's short messages.
pub struct Teller {
    bootstrap: Arc<Bootstrap>,
    /// Raised when the communicator is over.
    over: AbortFlag,
    late: Mutex<FxHashMap<u32, Late>>,
    failure: Arc<OnceLock<Error>>,
}

/// A rank that did not answer at once, and the thread that tells it.
struct Late {
    messages: Sender<(u64, Vec<u8>)>,
    thread: JoinHandle<()>,
}

impl Teller {
    /// Nobody was told anything.
    pub fn new(bootstrap: Arc<Bootstrap>, over: AbortFlag) -> Self {
        Self { bootstrap, over, late: Mutex::default(), failure: Arc::default() }
    }

    /// Sends a short message with this tag, now or as soon as the rank takes it.
    ///
    /// # Errors
    /// As [`Bootstrap::send`], also those of earlier messages.
    pub fn tell(&self, peer: u32, tag: u64, bytes: &[u8]) -> Result<()> {
        if let Some(error) = self.failure.get() {
            return Err(error.clone());
        }
        let mut late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        let message = || (tag, bytes.to_vec());
        if late.get(&peer).is_some_and(|rank| rank.messages.send(message()).is_ok()) {
            return Ok(());
        }
        let wait = Wait::new(self.over.clone(), Some(AT_ONCE));
        match self.bootstrap.send(peer, tag, bytes, &wait) {
            Err(error) if error.kind == ErrorKind::Timeout => {
                let (messages, waiting) = channel();
                let _ = messages.send(message());
                late.insert(peer, Late { messages, thread: self.begin(peer, waiting)? });
                Ok(())
            }
            sent => sent,
        }
    }

    /// Starts the thread that tells a rank what waits.
    fn begin(&self, peer: u32, waiting: Receiver<(u64, Vec<u8>)>) -> Result<JoinHandle<()>> {
        let (bootstrap, over, failure) = (self.bootstrap.clone(), self.over.clone(), self.failure.clone());
        let run = move || {
            for (tag, bytes) in waiting {
                match bootstrap.send(peer, tag, &bytes, &Wait::new(over.clone(), None)) {
                    Ok(()) => {}
                    Err(error) if error.kind == ErrorKind::Aborted => return,
                    Err(error) => return drop(failure.set(error)),
                }
            }
        };
        let thread = std::thread::Builder::new().name("hawser-teller".into()).spawn(run);
        thread.map_err(|error| Error::system(format!("starting the thread that tells rank {peer}"), error))
    }

    /// Ends the threads, once the communicator is over.
    pub fn close(&self) {
        let late = std::mem::take(&mut *self.late.lock().unwrap_or_else(PoisonError::into_inner));
        for Late { messages, thread } in late.into_values() {
            drop(messages);
            let _ = thread.join();
        }
    }
}
