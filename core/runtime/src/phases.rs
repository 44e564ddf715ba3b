//! Phases of a group: which of its messages run side by side, and which wait for others.
//!
//! In most groups all messages run side by side, in one phase. Some programs put each step of an algorithm
//! into a group of its own, and these into one outer group, for several devices of a thread. There a later
//! step may send on what an earlier one received, so it has to wait: it begins a new phase.
//!
//! Only a nested group that both sends and receives counts as such a step. Where ranks swap or shift a buffer
//! in place, in one nested group or in two, a send that waited for the receive would wait for ever.

use hawser_plan::p2p::Message;
use smallvec::{SmallVec, smallvec};

use crate::executor::interpreter::Messages;

/// The messages of one phase.
pub type Phase = Messages;

/// The messages of a group, phase by phase. Each comes with the number of nested groups that had been closed
/// before it.
pub fn phases(messages: impl Iterator<Item = (Message, u32)> + Clone) -> SmallVec<[Phase; 1]> {
    if !has_nested_groups(messages.clone()) {
        let all: Phase = messages.map(|(message, _)| message).collect();
        return if all.is_empty() { SmallVec::new() } else { smallvec![all] };
    }
    let (mut phases, mut phase, mut received) = (SmallVec::new(), Phase::new(), Received::default());
    for (message, nested) in messages {
        if received.feeds(&message, nested) {
            phases.push(std::mem::take(&mut phase));
            received = Received::default();
        }
        received.add(&message, nested);
        phase.push(message);
    }
    phases.push(phase);
    phases
}

/// True if messages of a group come from several nested groups: all others are one phase.
fn has_nested_groups(mut messages: impl Iterator<Item = (Message, u32)>) -> bool {
    let first = messages.next();
    first.is_some_and(|(_, first)| messages.any(|(_, nested)| nested != first))
}

/// The buffers that the messages of a phase receive into.
#[derive(Default)]
struct Received {
    /// Nested groups that send.
    senders: Vec<u32>,
    /// The lowest address and the end of the highest range, as a first test that is cheap.
    hull: (u64, u64),
    /// Each range that is received into: first address, end, nested group.
    ranges: Vec<(u64, u64, u32)>,
}

impl Received {
    /// Takes a message of the phase into account.
    fn add(&mut self, message: &Message, nested: u32) {
        if message.send {
            if self.senders.last() != Some(&nested) {
                self.senders.push(nested);
            }
            return;
        }
        let (from, to) = (message.addr, message.addr.saturating_add(message.bytes));
        let (low, high) = if self.ranges.is_empty() { (from, to) } else { self.hull };
        self.hull = (low.min(from), high.max(to));
        self.ranges.push((from, to, nested));
    }

    /// True if a message sends what another nested group, one that sends too, receives here.
    fn feeds(&self, message: &Message, nested: u32) -> bool {
        let (from, to) = (message.addr, message.addr.saturating_add(message.bytes));
        let meets = |low: u64, high: u64| from < high && low < to;
        let is_step = |other: u32| other != nested && self.senders.contains(&other);
        message.send
            && message.bytes > 0
            && meets(self.hull.0, self.hull.1)
            && self.ranges.iter().any(|&(low, high, other)| meets(low, high) && is_step(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lengths of the phases of messages: (sends, address, bytes, nested group).
    fn lengths(messages: &[(bool, u64, u64, u32)]) -> Vec<usize> {
        let message = |&(send, addr, bytes, nested): &(bool, u64, u64, u32)| {
            (Message { peer: 1, send, addr, bytes }, nested)
        };
        phases(messages.iter().map(message)).iter().map(|phase| phase.len()).collect()
    }

    #[test]
    fn what_is_sent_on_waits_for_what_is_received() {
        assert_eq!(lengths(&[]), [0; 0]);
        let exchange = |nested| [(true, 100, 50, nested), (false, 300, 50, nested)];
        assert_eq!(lengths(&[exchange(0), exchange(1), exchange(2)].concat()), [6], "nothing is sent on");
        // A hypercube: what one step received is sent by the next, with what was there before.
        let step = |nested, bytes| [(true, 0, bytes, nested), (false, bytes, bytes, nested)];
        assert_eq!(lengths(&[step(0, 8), step(1, 16), step(2, 32)].concat()), [2, 2, 2]);
        assert_eq!(lengths(&[step(0, 8), step(0, 16), step(0, 32)].concat()), [6], "one group has no steps");
        // Ranges that only touch, or are empty, are different ones; what was sent may be received into.
        let first = [(true, 900, 50, 0), (false, 100, 50, 0)];
        let with = |more: &[(bool, u64, u64, u32)]| lengths(&[&first[..], more].concat());
        assert_eq!(with(&[(true, 150, 50, 1), (true, 50, 50, 1)]), [4]);
        assert_eq!(with(&[(true, 120, 0, 1)]), [3]);
        assert_eq!(with(&[(false, 900, 50, 1)]), [3]);
        assert_eq!(with(&[(false, 0, 50, 0), (true, 149, 1, 1), (true, 0, 1, 1)]), [3, 2]);
        // A shift in place: all ranks would wait for each other.
        assert_eq!(lengths(&[(false, 100, 50, 0), (true, 100, 50, 1)]), [2]);
        assert_eq!(lengths(&[(true, 100, 50, 0), (false, 100, 50, 0)]), [2]);
    }
}
