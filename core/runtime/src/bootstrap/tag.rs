//! The tags of all messages that ranks send each other through the bootstrap, in one table: two kinds of
//! messages never share a tag, since the compiler refuses two equal numbers here.

/// A kind of message between ranks. Its number travels in the frames of the connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Tag {
    /// The descriptor of a rank's heap (`transport/`).
    Heap = 1,
    /// The handle of a net plugin's listener; one for each lane (`transport/net/link.rs`).
    NetHandle = 2,
    /// The sender of a link has begun to connect; one for each lane.
    LinkCalling = 3,
    /// The receiver of a link has accepted; one for each lane.
    LinkAccepted = 4,
    /// The handle of a collnet plugin's listener; one for each lane (`transport/net/coll.rs`).
    CollNetHandle = 5,
    /// The network of a rank has failed, and why (`transport/net/task.rs`).
    NetFault = 6,
    /// A rank goes in peace.
    Goodbye = 7,
    /// All that a rank which goes has sent has come.
    Thanks = 8,
    /// The protocol of rules that change (`rules_update/`).
    RulesUpdate = 9,
    /// The times of operations, which nobody is woken for (`rules_update/`).
    OpTimes = 10,
    /// A text of what makes operations slow on a rank (`rules_update/`).
    Stress = 11,
    /// Puts and signals (`rma/`).
    OneSided = 12,
    /// The messages by which a subset of the ranks forms (`bootstrap/subset.rs`).
    Subset = 13,
    /// The messages by which those who are there collect what each of them gives.
    Present = 14,
    /// The messages by which the ranks that have grown tell each other the outcome (`bootstrap/grow.rs`).
    Grown = 15,
    /// A rank needs a part of the heap of another one (`transport/parts.rs`).
    PartWanted = 16,
    /// The name of a part, and its descriptor; one for each part.
    PartNamed = 17,
    /// The memory of a window for a load-store team (`lsa/`).
    LsaOffer = 18,
    /// The outcome of mapping it.
    LsaOutcome = 19,
    /// An end of a connection to a rank that goes is gone.
    EndLost = 20,
    /// Buffers that a rank has registered for itself, and their descriptors; one lane for each buffer
    /// (`lsa/registered.rs`).
    Registered = 21,
}

/// Bits below the kind, for a lane.
const LANE_BITS: u32 = 32;

impl Tag {
    /// The number that travels.
    pub fn word(self) -> u64 {
        self.on_lane(0)
    }

    /// The number that travels for a kind of message that each lane has of its own.
    pub fn on_lane(self, lane: u32) -> u64 {
        (self as u64) << LANE_BITS | u64::from(lane)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_of_one_kind_are_not_those_of_another() {
        assert_ne!(Tag::NetHandle.on_lane(u32::MAX), Tag::LinkCalling.on_lane(0));
        assert_ne!(Tag::NetHandle.on_lane(1), Tag::NetHandle.word());
    }
}
