//! The connection as a state machine: no I/O, no clock, no memory. A driver hands it events and the time, and
//! does what its [`Action`]s say. The tests of this module drive it through random and through all small
//! schedules.
//!
//! Terms. A **rail** is a pair of queue pairs, one at each end. Each time that a rail is set up it gets the
//! next **epoch**, and queue pairs of its own. To **fence** an epoch is to bring its local queue pair to a
//! state in which it neither sends nor takes anything, and to have seen all of its completions. A receive
//! takes the next **slot**; a message is cut into at most 64 **chunks**, each one RDMA write with an
//! immediate that names slot and chunk.
//!
//! The rules:
//! 1. Each end tells for every rail the newest epoch up to which it has fenced everything. The number only
//!    grows, so a message may be lost, late or doubled. An end that hears of a higher number than its own
//!    fences too.
//! 2. The receiver records the chunks that arrived. It tells finished slots as they finish, and everything
//!    together with its fences. What it says after a fence about chunks of that epoch is final: nothing of it
//!    can land later.
//! 3. A chunk is written again only if the receiver has fenced the epoch that it was written in, and its
//!    record of the same or a later moment lacks the chunk. So each chunk lands once, and no write can land
//!    after its slot is done.
//! 4. A send is over when the receiver's record has all of it and no local queue pair can still read its
//!    memory.
//! 5. A receive is over when all chunks of its slots have arrived.
//! 6. Only the sender sets a rail up again, when both ends have fenced all of its epochs; it carries data
//!    when probes have gone both ways.

pub(crate) mod imm;
pub(crate) mod rail;
pub(crate) mod rails;
pub(crate) mod rx;
pub(crate) mod tx;
pub(crate) mod wire;

#[cfg(test)]
mod tests;

use std::fmt;

use wire::Message;

/// Microseconds of a clock that never goes back.
pub(crate) type Time = u64;
/// The number of times that a rail was set up; 0 = never.
pub(crate) type Epoch = u32;

/// Rails of a connection at most.
pub(crate) const MAX_RAILS: usize = 32;
/// Slots that are not done, at most.
pub(crate) const MAX_SLOTS: u64 = 256;
/// Chunks of a message at most: a record of a slot is one word.
pub(crate) const MAX_CHUNKS: u64 = 64;

/// The rules that a connection follows. Times in microseconds.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Rules {
    /// A rail on which something is under way and nothing completes for this long is stopped.
    pub silence: Time,
    /// The time for which there may be work and no rail that is up; 0 = for ever.
    pub deadline: Time,
    /// The time that an attempt to set a rail up may take.
    pub attempt: Time,
    /// First pause before a rail is tried again, doubled each time.
    pub pause: Time,
    /// Longest pause.
    pub longest_pause: Time,
    /// Longest pause of a rail that failed more often than `strikes`.
    pub damped_pause: Time,
    /// Failures within `calm` that are forgiven.
    pub strikes: u32,
    /// A rail that was up for this long is forgiven everything.
    pub calm: Time,
    /// The pause before an end repeats what its peer has not yet confirmed.
    pub repeat: Time,
    /// Probes that must come back in order.
    pub probes: u8,
    /// Chunks that may be on a rail and that the receiver has not taken. Its queue is longer than this.
    pub window: u32,
    /// Control messages that may be under way on a rail.
    pub control_window: u32,
    /// Chunks are not shorter than this (the last one of a message excepted).
    pub least_chunk: u64,
    /// Chunks are not longer than this unless the message needs more than 64.
    pub most_chunk: u64,
    /// Go on when a rail fails. Without it the first failure is the connection's.
    pub failover: bool,
    /// A rail that carried data and failed may be set up again. The sender's rule counts.
    pub recovery: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            silence: 1_000_000,
            deadline: 10_000_000,
            attempt: 1_500_000,
            pause: 100_000,
            longest_pause: 2_000_000,
            damped_pause: 30_000_000,
            strikes: 5,
            calm: 60_000_000,
            repeat: 50_000,
            probes: 2,
            window: 96,
            control_window: 48,
            least_chunk: 64 << 10,
            most_chunk: 1 << 20,
            failover: true,
            recovery: true,
        }
    }
}

/// The path that a control message takes or took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Path {
    /// The TCP connection of the handshake.
    ControlChannel,
    /// A rail, and the epoch of the queue pair.
    Rail(u8, Epoch),
}

/// The reason why a rail is not up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Why {
    /// It was not set up yet.
    New,
    /// The local port went down, or its address changed.
    Port,
    /// The device reported a fatal event.
    Device,
    /// A completion with this `ibv_wc_status`.
    Completion(u8),
    /// Something was under way and nothing completed.
    Silence,
    /// The peer stopped it, for the reason that it gives.
    Peer(u8),
    /// The peer did not answer an offer in time.
    NoAnswer,
    /// Probes did not come back in time.
    NoProbe,
    /// The peer has closed its end of the connection.
    Closed,
    /// A verbs call failed with this errno.
    Verbs(u8),
}

impl Why {
    /// One byte for the wire.
    pub fn code(self) -> u8 {
        match self {
            Why::New => 0,
            Why::Port => 1,
            Why::Device => 2,
            Why::Silence => 3,
            Why::NoAnswer => 4,
            Why::NoProbe => 5,
            Why::Closed => 6,
            Why::Peer(code) => code,
            Why::Completion(status) => 0x40 | (status & 0x3f),
            Why::Verbs(errno) => 0x80 | (errno & 0x7f),
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let code = match self {
            Why::Peer(code) => {
                write!(f, "the peer says: ")?;
                *code
            }
            other => other.code(),
        };
        match code {
            0 => write!(f, "not set up yet"),
            1 => write!(f, "its port went down or changed its address"),
            2 => write!(f, "its device reported a fatal event"),
            3 => write!(f, "nothing completed in time (silent loss)"),
            4 => write!(f, "the peer did not answer in time"),
            6 => write!(f, "the other end is closed"),
            5 => write!(f, "probes did not come back in time"),
            0x40..=0x7f => write!(f, "completion error {} ({})", code & 0x3f, status_text(code & 0x3f)),
            0x80.. => write!(
                f,
                "a verbs call failed: {}",
                std::io::Error::from_raw_os_error(i32::from(code & 0x7f))
            ),
            _ => write!(f, "reason {code}"),
        }
    }
}

/// The meaning of a status of `enum ibv_wc_status`, in words.
fn status_text(status: u8) -> &'static str {
    match status {
        1 => "local length error",
        2 => "local queue pair operation error",
        4 => "local protection error",
        5 => "flushed",
        9 => "remote invalid request",
        10 => "remote access error",
        11 => "remote operation error",
        12 => "transport retries exhausted",
        13 => "receiver-not-ready retries exhausted",
        21 => "fatal error",
        22 => "response time-out",
        _ => "see ibv_wc_status",
    }
}

/// An action that the state machine asks of its driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Make a queue pair for this epoch; with `peer`, connect it too. Answer: `made` or `failed`.
    Make { rail: u8, epoch: Epoch, peer: Option<Vec<u8>> },
    /// Connect the queue pair. Answer: `connected` or `failed`.
    Connect { rail: u8, epoch: Epoch, peer: Vec<u8> },
    /// Fence the epoch, whether or not there is a queue pair. Answer: `fenced`, always.
    Fence { rail: u8, epoch: Epoch },
    /// Write a chunk.
    Write(Write),
    /// Send a control message; `wr` is the work request's number on a rail.
    Send { path: Path, wr: u64, message: Message },
    /// A rail has changed: one line for the log.
    Note { rail: u8, epoch: Epoch, up: bool, why: Why },
}

/// A chunk to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Write {
    pub rail: u8,
    pub epoch: Epoch,
    /// Number of the work request.
    pub wr: u64,
    /// The message.
    pub slot: u64,
    /// Bytes from the start of the message.
    pub offset: u64,
    pub len: u64,
    /// The immediate.
    pub imm: u32,
}
