//! Transfers from user buffer to user buffer: what may go that way, and in which order.
//!
//! Neither end knows the other's buffer when it is called. Receivers say first where theirs is, senders give
//! them a moment for that, and then **push**: copy engines write to a peer at the link's rate, however many
//! GPUs do so, and a process that only pushes keeps one direction of its links busy. A receiver that comes
//! later still pulls.

/// The bytes that a step of this rank sends to a peer, or gets from it, as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leg {
    /// The other rank.
    pub peer: u32,
    /// True: to the peer.
    pub send: bool,
    /// The address at which this rank's end begins.
    pub addr: u64,
    /// Bytes of this rank's end.
    pub bytes: u64,
    /// Index of the block, and the step and its repetition.
    pub(super) at: (usize, u32, u32),
}

/// The ways of a leg. Both ends agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Through staging.
    Staged,
    /// The peer, which is called later, will copy: this rank tells it that its end is ready, and waits.
    First,
    /// This rank, called later, copies straight between its end and the peer's.
    Second {
        /// The peer's end as this rank's device sees it.
        addr: u64,
        /// Its bytes.
        bytes: u64,
    },
}

/// A send and a receive that every rank has at the same time.
pub(super) type Turn = [(Leg, Way); 2];

/// The turns of a launch in lock-step; none if its legs are no such pairs.
pub(super) fn turns(legs: &[Leg], ways: &[Way]) -> Vec<Turn> {
    let all: Vec<(Leg, Way)> = legs.iter().copied().zip(ways.iter().copied()).collect();
    let (pairs, rest) = all.as_chunks::<2>();
    let is_turn = |[(a, _), (b, _)]: &Turn| a.send && !b.send;
    if rest.is_empty() && pairs.iter().all(is_turn) { pairs.to_vec() } else { Vec::new() }
}
