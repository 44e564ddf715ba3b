//! Communicators of one rank: what others move is at most a copy here, and nothing in place.
//!
//! Such communicators are common: groups of size 1 in tensor- or data-parallel programs. Their calls touch
//! nothing but the user's buffers, and the driver copies with whatever is fastest for the size. Only a sum
//! with a factor needs a kernel.

use hawser_base::error::Result;
use hawser_device::Stream;
use hawser_plan::p2p::{self, Message, OwnCopy};
use hawser_plan::{Call, ReduceOp};
use smallvec::SmallVec;

use super::CommState;

impl CommState {
    /// True if a call is a copy, or nothing, since there is no other rank.
    pub fn is_alone(&self, call: &Call) -> bool {
        self.topology.size() == 1 && call.op != ReduceOp::PreMulSum && self.profiling.is_idle()
    }

    /// The copy that a call is for which [`CommState::is_alone`] holds; None in place.
    pub fn own_copy(&self, call: &Call) -> Option<OwnCopy> {
        let copy = OwnCopy { from: call.input, to: call.output, bytes: call.block_bytes() };
        (copy.from != copy.to).then_some(copy)
    }

    /// The copies that a group's messages are, if there is no other rank.
    ///
    /// # Errors
    /// Sends and receives do not pair up.
    pub fn own_messages(&self, messages: &[Message]) -> Result<Option<SmallVec<[OwnCopy; 1]>>> {
        let is_alone = self.topology.size() == 1 && self.profiling.is_idle();
        if is_alone { Ok(Some(p2p::own_copies(messages, self.rank)?.into())) } else { Ok(None) }
    }

    /// Copies within the device on a stream; nothing where both addresses are one.
    ///
    /// # Errors
    /// The driver refused it.
    pub fn copy(&self, copy: &OwnCopy, stream: Stream) -> Result<()> {
        if copy.from == copy.to {
            return Ok(());
        }
        self.device.copy(stream, copy.to, copy.from, copy.bytes)
    }
}
