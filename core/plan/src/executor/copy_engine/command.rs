//! The commands that streams get.

use super::reduce_kernel::ReduceKernel;
use super::staging::LANES;

/// One thing to put on a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Command {
    /// The number of the launch's stream that runs it, below [`STREAMS`].
    pub stream: u32,
    /// The operation that the stream runs.
    pub what: What,
}

/// See [`Command`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// Wait until the word at `addr` is not 0, then make it 0. `peer` is who sets it.
    Await {
        /// Address in this rank's memory.
        addr: u64,
        /// For errors.
        peer: u32,
    },
    /// Copy bytes.
    Copy {
        /// The address that is written.
        dst: u64,
        /// The address that is read.
        src: u64,
        /// The number of bytes.
        bytes: u64,
        /// The rank whose user's buffer one of the addresses is; None where both are this rank's or staging.
        /// That rank may give its buffer up before the copy.
        of: Option<u32>,
    },
    /// Make the word at `addr` 1 when everything before it on the stream is there.
    Set {
        /// Address in a peer's memory.
        addr: u64,
    },
    /// Make the word at `addr` this value likewise: the proxy reads it.
    Tell {
        /// Address in memory that the CPU reaches.
        addr: u64,
        /// 1 and the bytes of the slot.
        value: u32,
    },
    /// Combine what came with what is here: by few multiprocessors.
    Reduce(ReduceKernel),
}

/// Streams of a launch: [`LANES`] that send, or pass on what they receive, then as many that only receive,
/// one for what stays on the rank, and two that send to other hosts and receive from there. Steps that only
/// move do not read what others have written to the user's memory, so they need no order among each other;
/// reductions are on the first alone.
pub const STREAMS: u32 = NEAR_STREAMS + 2;
/// Those that launches within a host use, which come first.
const NEAR_STREAMS: u32 = 2 * LANES + 1;
/// The last of these.
pub const COPIES: u32 = 2 * LANES;
/// The stream of what is sent to other hosts.
pub const INTER_NODE_SENDS: u32 = NEAR_STREAMS;
pub(super) const INTER_NODE_RECEIVES: u32 = NEAR_STREAMS + 1;
