//! One-sided transfers: a rank writes into a window of another one and raises a signal there, and the other
//! waits for signals, not for calls (`ncclPutSignal`, `ncclSignal`, `ncclWaitSignal`).
//!
//! A signal is a counter: one for each rank that raises it, index and context. A wait takes a number of
//! raises from each of several counters; what came before it was called counts as well. Everything that a
//! rank puts to another one, and the signals that it raises there, arrive in the order of its calls, whatever
//! the context.
//!
//! Networks in kernels (`gin/`) put by the same messages, add to signals of their own ([`Board`]) and to
//! words of windows, and ask for bytes of windows.
//!
//! The part of a rank that others reach is [`Exposed`]: its windows by number and its counters. Ranks of one
//! process reach each other's directly. All others send what they put as messages over the control
//! connections (`message.rs`), which the thread of the bootstrap writes into the window; the rank itself
//! takes no part. ADR 22 says why, and what would be faster.

mod board;
mod counters;
mod exposed;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod message;
mod raises;
mod window;
mod words;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};

use serde::{Deserialize, Serialize};

use hawser_base::error::{Error, Result};
use hawser_base::lock::lock;
use hawser_base::wait::Wait;
use hawser_device::Device;

pub use self::board::Board;
pub use self::exposed::Exposed;
pub use self::message::{Header, Piece, Sums};
use self::raises::Raises;
pub use self::raises::{Manner, Raise};
pub use self::window::Window;
pub use self::words::{SignalWord, SignalWords};
use crate::bootstrap::{Bootstrap, Tag};
use crate::transport::control::Control;
use crate::transport::net::Inbox;

/// Most bytes of a put in one message.
pub const CHUNK: u64 = 1 << 20;

/// The numbers of signals and contexts that a communicator has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Signals of each context (`numRmaSig`).
    pub signals: u32,
    /// Contexts (`numRmaCtx`).
    pub contexts: u32,
}

/// One signal of a rank, of which each other rank has a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Signal {
    /// Its index (`sigIdx`).
    pub index: u32,
    /// Its context.
    pub context: u32,
}

/// A number of raises that a rank waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Awaited {
    /// The rank that raises the signal.
    pub peer: u32,
    /// The signal.
    pub signal: Signal,
    /// The number of raises that there have to be.
    pub count: u64,
}

/// Bytes that are written into a window of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Put {
    /// The address that the bytes come from.
    pub from: u64,
    /// Their number.
    pub bytes: u64,
    /// The number of the window, the same on all ranks.
    pub window: u64,
    /// The offset in the window of the peer.
    pub offset: u64,
}

/// Windows with numbers from here on are resources of communicators for kernels; those before are the user's.
pub const RESOURCES: u64 = 1 << 40;

/// Bytes of a window that another rank wants, for its kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetch {
    /// The number of the window, and the offset in it.
    pub from: (u64, u64),
    /// The number of bytes.
    pub bytes: u64,
    /// The number of the window that they go to, and the offset in it.
    pub to: (u64, u64),
    /// Comes back when they are there.
    pub ticket: u64,
}

/// A one-sided operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RmaOp {
    /// Writes into a window of `peer`, if there is anything to write, then raises a signal there.
    Signal {
        /// The rank that is written to.
        peer: u32,
        /// The bytes that are written before.
        put: Option<Put>,
        /// The signal that is raised.
        signal: Signal,
    },
    /// Waits for signals.
    Wait(Vec<Awaited>),
}

impl RmaOp {
    /// True for a wait.
    pub fn is_wait(&self) -> bool {
        matches!(self, Self::Wait(_))
    }
}

/// The part of a communicator for one-sided operations.
pub struct Rma {
    comm_id: u64,
    rank: u32,
    exposed: Arc<Exposed>,
    /// By rank: whether it is in this process.
    is_near: Vec<bool>,
    raises: Mutex<Raises>,
}

/// The ranks of this process, by communicator and number.
static NEAR: Mutex<BTreeMap<(u64, u32), Weak<Exposed>>> = Mutex::new(BTreeMap::new());

impl Rma {
    /// Exposes nothing yet; from now on messages of other ranks are served. To be called before they may
    /// come.
    ///
    /// # Errors
    /// A thread panicked while it changed the list of this process.
    pub fn open(
        bootstrap: &Bootstrap,
        comm_id: u64,
        is_near: Vec<bool>,
        (limits, sums): (Limits, Sums),
        (device, control): (&Arc<dyn Device>, &Arc<Control>),
        inbox: Option<&Arc<Inbox>>,
    ) -> Result<Self> {
        let rank = bootstrap.rank();
        let (device, control, own_inbox) = (device.clone(), control.clone(), inbox.cloned());
        let exposed = Arc::new(Exposed::new(rank, (limits, sums), device, control, own_inbox));
        let weak = Arc::downgrade(&exposed);
        if let Some(inbox) = inbox {
            inbox.serve(weak.clone());
        }
        bootstrap.serve(Tag::OneSided.word(), move |from, message| {
            if let Some(exposed) = weak.upgrade() {
                exposed.serve(from, message);
            }
        });
        lock(&NEAR)?.insert((comm_id, rank), Arc::downgrade(&exposed));
        Ok(Self { comm_id, rank, exposed, is_near, raises: Mutex::default() })
    }

    /// The windows and counters of this rank.
    pub fn exposed(&self) -> &Exposed {
        &self.exposed
    }

    /// The windows and counters of `peer`, if it is in this process; None for ranks elsewhere.
    ///
    /// # Errors
    /// `Remote`: it has destroyed its communicator.
    pub fn near(&self, peer: u32) -> Result<Option<Arc<Exposed>>> {
        if !self.is_near[peer as usize] {
            return Ok(None);
        }
        let found = lock(&NEAR)?.get(&(self.comm_id, peer)).and_then(Weak::upgrade);
        let gone = || Error::remote(format!("rank {peer} has ended its communicator")).with_peer(peer);
        found.ok_or_else(gone).map(Some)
    }

    /// Sends a put as messages, which come in the order of all that this rank sends or tells.
    ///
    /// # Errors
    /// As [`Bootstrap::send`] and [`Rma::near`].
    pub fn send_put(&self, bootstrap: &Bootstrap, (peer, put): (u32, &Put), wait: &Wait) -> Result<()> {
        let mut at = 0;
        while at < put.bytes {
            let bytes = CHUNK.min(put.bytes - at);
            let header = Header::Put { window: put.window, offset: put.offset + at };
            let fill = |room: &mut [u8]| self.exposed.copy(room.as_mut_ptr() as u64, put.from + at, bytes);
            let message = header.message(bytes as usize, self.exposed.sums(), fill)?;
            self.deliver(bootstrap, (peer, &message), wait)?;
            at += bytes;
        }
        Ok(())
    }

    /// Sends a put of these bytes of the host, in one message.
    ///
    /// # Errors
    /// As [`Rma::send_put`].
    pub fn send_bytes(
        &self,
        bootstrap: &Bootstrap,
        (peer, window, offset): (u32, u64, u64),
        bytes: &[u8],
        wait: &Wait,
    ) -> Result<()> {
        let fill = |room: &mut [u8]| {
            room.copy_from_slice(bytes);
            Ok(())
        };
        let message = Header::Put { window, offset }.message(bytes.len(), self.exposed.sums(), fill)?;
        self.deliver(bootstrap, (peer, &message), wait)
    }

    /// Tells a rank something behind what was sent there; it may be this one.
    ///
    /// # Errors
    /// As [`Bootstrap::send`] and [`Rma::near`].
    pub fn tell(&self, bootstrap: &Bootstrap, (peer, header): (u32, &Header), wait: &Wait) -> Result<()> {
        let message = header.message(0, self.exposed.sums(), |_| Ok(()))?;
        self.deliver(bootstrap, (peer, &message), wait)
    }

    fn deliver(&self, bootstrap: &Bootstrap, (peer, message): (u32, &[u8]), wait: &Wait) -> Result<()> {
        match if peer == self.rank { Some(self.exposed.clone()) } else { self.near(peer)? } {
            Some(exposed) => exposed.serve(self.rank, message),
            None => bootstrap.send(peer, Tag::OneSided.word(), message, wait)?,
        }
        Ok(())
    }

    /// Raises a signal, behind what was put there.
    ///
    /// # Errors
    /// As [`Bootstrap::send`] and [`Rma::near`].
    pub fn raise(&self, bootstrap: &Bootstrap, peer: u32, signal: Signal, wait: &Wait) -> Result<()> {
        let near = self.near(peer)?;
        let raise = lock(&self.raises)?.now(peer, signal, near.is_none());
        match (raise, near) {
            (Raise::Count(word) | Raise::Write(word, _), near) => {
                word.count();
                near.iter().for_each(|near| near.wake());
                Ok(())
            }
            (Raise::Tell(_), Some(near)) => near.raise(self.rank, signal),
            (Raise::Tell(header), None) => self.tell(bootstrap, (peer, &header), wait),
        }
    }

    /// From now on signals between the ranks of a team are raised in these words, in this manner or a later
    /// one.
    ///
    /// # Errors
    /// A thread panicked while it raised a signal.
    pub fn share_words(&self, words: SignalWords, manner: Manner) -> Result<()> {
        let words = Arc::new(words);
        let mut raises = lock(&self.raises)?;
        raises.change(manner);
        raises.share(self.rank, words.clone());
        self.exposed.share_words(words);
        Ok(())
    }

    /// The words that are shared, if they are; they live as long as the answer.
    pub fn words(&self) -> Option<Arc<SignalWords>> {
        self.raises.lock().ok()?.words()
    }

    /// The manner in which signals are raised at a rank whose words are shared, and its at this one; None for
    /// others.
    ///
    /// # Errors
    /// As [`Rma::share_words`].
    pub fn manner(&self, peer: u32) -> Result<Option<Manner>> {
        lock(&self.raises).map(|raises| raises.manner(peer))
    }

    /// Signals are raised in this manner from now on, or a later one.
    ///
    /// # Errors
    /// As [`Rma::share_words`].
    pub fn change_manner(&self, manner: Manner) -> Result<()> {
        lock(&self.raises).map(|mut raises| raises.change(manner))
    }

    /// A raise that a stream is to carry out; None where the thread of the communicator has to.
    ///
    /// # Errors
    /// As [`Rma::share_words`].
    pub fn raise_on_stream(&self, peer: u32, signal: Signal) -> Result<Option<Raise>> {
        lock(&self.raises).map(|mut raises| raises.on_stream(peer, signal))
    }
}

impl Drop for Rma {
    fn drop(&mut self) {
        if let Ok(mut near) = NEAR.lock() {
            near.remove(&(self.comm_id, self.rank));
        }
    }
}
