//! The way of copy engines between hosts: slots that streams fill and empty, and the network in between.
//!
//! A slot of the sender becomes the same slot of the receiver. The sender's stream tells its proxy that it
//! has filled one; the message goes once the receiver's stream has emptied the slot at the other end, and
//! then both ends get their words back ([`hawser_plan::executor::copy_engine::inter_node`]).

use hawser_plan::executor::copy_engine::DEPTH;
use hawser_plan::executor::copy_engine::inter_node::{End, TOLD, WORDS};
use hawser_plan::link_constants::Constants;
use rustc_hash::FxHashMap;

use super::steps::proxy::{Fed, NetTimes, Proxies, Stream};
use crate::engine::Time;

/// The places of a rank's slots for other hosts, and of their words, in its part of addresses.
const PLACES: u64 = (1 << 43) + (1 << 42);
const DATA: u64 = PLACES + (1 << 41);
/// The bits of an address that are a rank's own.
const OWN: u64 = (1 << 44) - 1;

/// The end of a direction between two ranks of different hosts, in the memory of one of them.
pub fn end(memory: u64, peer: u32, send: bool) -> End {
    let place = u64::from(peer) * 2 + u64::from(send);
    End { words: memory + PLACES + place * u64::from(DEPTH) * WORDS, slots: memory + DATA, stride: 0 }
}

/// True for the address of a slot for other hosts.
pub fn is_slot(addr: u64) -> bool {
    addr & OWN >= DATA
}

/// A slot of a direction: the members that fill and empty it, and its number.
pub type Key = (u32, u32, u32);

/// A step of a slot's way.
#[derive(Debug, Clone, Copy)]
pub enum Move {
    /// The sender's proxy has handed the message over.
    Sent(Key),
    /// The threads that move its bytes have woken up: it goes on the wire.
    Away(Key, u64),
    /// The last byte is at the other host.
    Received(Key),
    /// The receiver's proxy has had it.
    Taken(Key),
}

#[derive(Debug)]
struct Slot {
    /// Bytes that the sender has put there, and that its proxy has handed over.
    filled: Option<u64>,
    /// Bytes of its last message.
    on_wire: u64,
    /// True if the receiver's end is empty.
    is_empty: bool,
    /// The first message of an operation costs proxies more.
    stream: Stream,
}

/// All slots that were used so far, and the proxies that serve them.
#[derive(Debug)]
pub struct Slots {
    slots: FxHashMap<Key, Slot>,
    /// Bytes that the sender has put into a slot, before its proxy knows.
    told: FxHashMap<Key, u64>,
    proxies: Proxies,
    net: NetTimes,
}

impl Slots {
    /// Empty slots of so many members.
    pub fn new(members: u32, constants: &Constants) -> Self {
        Self {
            slots: FxHashMap::default(),
            told: FxHashMap::default(),
            proxies: Proxies::new(members),
            net: NetTimes::new(constants),
        }
    }

    /// The slot whose word a stream of `member` tells, and whether it sends; None for another address.
    /// `first`: the first member of its communicator.
    pub fn told_at(addr: u64, member: u32, first: u32) -> Option<(Key, bool)> {
        let at = (addr & OWN).checked_sub(PLACES).filter(|at| *at < DATA - PLACES)?;
        let (word, place) = (at / WORDS, at % WORDS);
        debug_assert_eq!(place, TOLD);
        let (pair, slot) = (word / u64::from(DEPTH), (word % u64::from(DEPTH)) as u32);
        let (peer, send) = (first + (pair / 2) as u32, pair % 2 == 1);
        Some((if send { (member, peer, slot) } else { (peer, member, slot) }, send))
    }

    /// A stream has filled a slot in an operation. Returns when the sender's proxy has handed it over.
    pub fn fill(&mut self, key: Key, (bytes, fed): (u64, Option<Fed>), operation: u32, now: Time) -> Time {
        let is_first = self.slot(key).stream.is_first_sent(operation);
        self.told.insert(key, bytes);
        let copy = fed.map_or(Time::ZERO, |fed| fed.copy(bytes, false));
        self.proxies.work(key.0, now, self.net.of_proxy(is_first) + copy)
    }

    /// The sender's proxy has handed a slot over. Returns the bytes that go on the wire now, if any do.
    pub fn sent(&mut self, key: Key) -> Option<u64> {
        let bytes = self.told.remove(&key);
        self.slot(key).filled = bytes;
        self.go(key)
    }

    /// A stream has emptied a slot. Returns the bytes that go on the wire now, if any do.
    pub fn emptied(&mut self, key: Key) -> Option<u64> {
        self.slot(key).is_empty = true;
        self.go(key)
    }

    /// The message of a slot has left the wire. Returns when it is at the other host.
    pub fn left(&self, now: Time) -> Time {
        now + self.net.wire
    }

    /// A message is at the other host, in an operation of its receiver. Returns when its proxy has had it.
    pub fn received(&mut self, key: Key, fed: Option<Fed>, operation: u32, now: Time) -> Time {
        let slot = self.slot(key);
        let (is_first, bytes) = (slot.stream.is_first_taken(operation), slot.on_wire);
        let copy = fed.map_or(Time::ZERO, |fed| fed.copy(bytes, true));
        self.proxies.work(key.1, now, self.net.of_proxy(is_first) + copy)
    }

    fn go(&mut self, key: Key) -> Option<u64> {
        let slot = self.slot(key);
        let bytes = slot.filled.filter(|_| slot.is_empty)?;
        (slot.filled, slot.is_empty, slot.on_wire) = (None, false, bytes);
        Some(bytes)
    }

    fn slot(&mut self, key: Key) -> &mut Slot {
        self.slots.entry(key).or_insert_with(|| Slot {
            filled: None,
            on_wire: 0,
            is_empty: true,
            stream: Stream::default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use hawser_types::{DeviceKind, Link};

    use super::*;

    #[test]
    fn a_word_tells_whose_slot_it_is() {
        for (peer, send) in [(0, false), (0, true), (7, true), (65_000, false)] {
            let end = end(5 << 44, peer, send);
            for slot in 0..DEPTH {
                let key = if send { (9, peer + 8, slot) } else { (peer + 8, 9, slot) };
                assert_eq!(Slots::told_at(end.told(slot), 9, 8), Some((key, send)));
                assert!(is_slot(end.data(slot)) && !is_slot(end.told(slot)));
            }
        }
        assert_eq!(Slots::told_at(5 << 44, 9, 8), None);
    }

    #[test]
    fn a_message_goes_when_both_ends_are_ready() {
        let mut slots = Slots::new(2, &Constants::builtin(DeviceKind::Host, Link::HostMemory));
        let key = (0, 1, 0);
        slots.fill(key, (100, None), 0, Time::ZERO);
        assert_eq!(slots.sent(key), Some(100));
        slots.fill(key, (200, None), 0, Time::ZERO);
        assert_eq!(slots.sent(key), None, "the first one lies there");
        assert_eq!(slots.emptied(key), Some(200));
    }
}
