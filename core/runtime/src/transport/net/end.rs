//! An end of a connection as the proxy sees it, whichever way its data go.

use std::cell::RefCell;

use hawser_base::error::Result;
use hawser_base::stages::Trace;
use hawser_plan::executor::copy_engine::DEPTH;
use hawser_plugin::net::NetContext;

use super::teller::Teller;
use crate::bootstrap::{Bootstrap, Tag};
use crate::progress::stall::{NetRequest, Stopwatch};

/// The key of a connection's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConnectionKey {
    /// FIFO lane; behind the lanes, a slot of staging (`stage.rs`); behind those, a lane of LL's FIFOs.
    pub lane: u32,
    /// The rank at the other end.
    pub peer: u32,
    /// True if this rank sends.
    pub send: bool,
}

impl ConnectionKey {
    /// The key of LL's FIFO beside this one, where FIFOs have so many lanes.
    pub fn for_ll(self, lanes: u32) -> Self {
        Self { lane: lanes + DEPTH + self.lane, ..self }
    }

    /// The key of the FIFO beside this one, if this one is LL's.
    pub fn beside_ll(self, lanes: u32) -> Option<Self> {
        let lane = self.lane.checked_sub(lanes + DEPTH)?;
        Some(Self { lane, ..self })
    }
}

/// The parts of its communicator that a link needs.
pub struct Around<'a> {
    /// The plugin.
    pub context: &'a dyn NetContext,
    /// Carries handles.
    pub bootstrap: &'a Bootstrap,
    /// True if receives into device memory must be flushed.
    pub flush: bool,
    /// Carries short messages to the other ends.
    pub teller: &'a Teller,
    /// The trace of where the time goes, if anybody wants to know.
    pub trace: &'a RefCell<Trace>,
    /// The most sends of a connection that the plugin may have at a time.
    pub window: u64,
}

impl Around<'_> {
    /// Tells the rank at the other end of a link that it has begun to connect, or has accepted. Plugins exist
    /// that wait in `accept` for their peer's `connect`, and in `test` for its `accept`; with these messages,
    /// what they wait for has been called already, and does not depend on what this thread does next.
    pub fn tell(&self, key: ConnectionKey, tag: Tag) -> Result<()> {
        self.teller.tell(key.peer, tag.on_lane(key.lane), &[])
    }

    /// True if the rank at the other end has told it. True once.
    pub fn was_told(&self, key: ConnectionKey, tag: Tag) -> bool {
        self.bootstrap.take(key.peer, tag.on_lane(key.lane)).is_some()
    }
}

/// An end of a connection: it sends, it receives, or it has the network reduce.
pub(super) trait End {
    /// The key of this end.
    fn key(&self) -> ConnectionKey;

    /// Moves on as far as possible without waiting; says whether anything moved.
    fn go_on(&mut self, around: &Around<'_>) -> Result<bool>;

    /// The request that the plugin has in hand, or that it cannot be asked, and how many there are.
    fn asked(&self) -> Option<(NetRequest, u32)>;

    /// The clock of what the plugin has in hand.
    fn watch(&mut self) -> &mut Stopwatch;

    /// Closes the connection. Errors are of no use any more.
    fn close(&mut self);

    /// Slots that have come.
    fn come(&self) -> u64 {
        0
    }

    /// True if something is to be sent that others wait for.
    fn is_unsent(&self) -> bool {
        false
    }

    /// Moves on, and notes for how long nothing has moved.
    fn sweep(&mut self, around: &Around<'_>) -> Result<bool> {
        let has_moved = self.go_on(around)?;
        let has_request = self.asked().is_some();
        self.watch().note(has_moved, has_request);
        Ok(has_moved)
    }

    /// The request that the plugin has not carried out, how many there are, and for how many milliseconds.
    fn stalled(&mut self) -> Option<(NetRequest, u32, u64)> {
        let (request, count) = self.asked()?;
        Some((request, count, self.watch().age_ms()?))
    }
}
