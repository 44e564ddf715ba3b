//! The proxies of ranks, and the messages that they send for connections between hosts.
//!
//! A proxy is one thread: it handles one message at a time, in the order in which they come. The messages of
//! a connection follow each other on the wire, as in a stream.

use std::collections::VecDeque;

use hawser_plan::link_constants::Constants;

use crate::engine::Time;
use crate::executor::per_ps;
use crate::links::Links;

/// The times of the network, from the constants of the cost model.
#[derive(Debug, Clone, Copy)]
pub struct NetTimes {
    /// The time of a proxy for the first message of an operation on a connection.
    pub first: Time,
    /// The same for each further message.
    pub further: Time,
    /// The time on the wire of an empty message.
    pub wire: Time,
}

impl NetTimes {
    /// Splits the time of a hop among the proxies of both ends and the wire.
    pub fn new(constants: &Constants) -> Self {
        let Constants { net_hop_us, net_round_us, net_message_us, .. } = *constants;
        let first = net_message_us.min(net_hop_us / 2.0);
        let further = (net_round_us / 2.0).min(first);
        let wire = (net_hop_us - 2.0 * first).max(0.0);
        Self { first: Time::from_us(first), further: Time::from_us(further), wire: Time::from_us(wire) }
    }

    /// The time of a proxy for a message.
    pub fn of_proxy(&self, is_first: bool) -> Time {
        if is_first { self.first } else { self.further }
    }
}

/// Bytes of the longest message that proxies copy themselves: what the socket plugin sends with its header.
const SHORT_MESSAGE: u64 = 64 << 10;
/// GB/s at which they do: fitted by hand to halves of the points of `bench/results/2026-11-29-tcp-ways.json`
/// and `2026-11-28-copies-between-hosts.txt`.
const SHORT_GBS: f64 = 4.5;
/// The part of a copy that the receiver still has to make when the sender has made its own.
const TAKEN: f64 = 0.3;

/// A connection that threads feed (`connection_gbps`): they move its long messages, proxies the short ones.
#[derive(Debug, Clone, Copy)]
pub struct Fed {
    wake: Time,
}

impl Fed {
    /// The connection of two ranks of the cluster; None if nothing but NICs limits it.
    pub fn of(links: &Links<'_>, (from, to): (u32, u32)) -> Option<Self> {
        let wake_us =
            links.description(from).connection_wake_us.max(links.description(to).connection_wake_us);
        links.of_connection(from, to).is_finite().then(|| Self { wake: Time::from_us(wake_us) })
    }

    /// True if proxies copy messages of so many bytes: those are not on the wire.
    pub fn is_copied(&self, bytes: u64) -> bool {
        bytes <= SHORT_MESSAGE
    }

    /// The time in which the proxy of the sender, or of the receiver, copies a message.
    pub fn copy(&self, bytes: u64, is_taken: bool) -> Time {
        if !self.is_copied(bytes) {
            return Time::ZERO;
        }
        Time::from_ps((bytes as f64 / per_ps(SHORT_GBS)) as u64).stretched(if is_taken { TAKEN } else { 1.0 })
    }

    /// The time until threads have woken up for a message.
    pub fn wake(&self, bytes: u64) -> Time {
        if self.is_copied(bytes) { Time::ZERO } else { self.wake }
    }
}

/// The proxies of all ranks: when each is free again.
#[derive(Debug)]
pub struct Proxies(Vec<Time>);

impl Proxies {
    /// Proxies that have nothing to do.
    pub fn new(ranks: u32) -> Self {
        Self(vec![Time::ZERO; ranks as usize])
    }

    /// Gives a rank's proxy some work, from `now` on. Returns when it is done.
    pub fn work(&mut self, rank: u32, now: Time, length: Time) -> Time {
        let free = &mut self.0[rank as usize];
        *free = now.max(*free) + length;
        *free
    }
}

/// The messages that a connection between hosts has on their way.
#[derive(Debug, Default)]
pub struct Stream {
    /// Lengths of the messages that the sender's proxy has handed over while another was on the wire, in
    /// order. Most connections never have any.
    #[allow(clippy::box_collection)] // there are millions of streams
    waiting: Option<Box<VecDeque<u64>>>,
    /// True if a message is on the wire.
    is_busy: bool,
    /// The operation, from 1 on, in which the sender's proxy has had a message last.
    sent_in: u32,
    /// The same of the receiver's.
    taken_in: u32,
}

impl Stream {
    /// The sender's proxy has a message in this operation. Returns true if it is the first one.
    pub fn is_first_sent(&mut self, operation: u32) -> bool {
        std::mem::replace(&mut self.sent_in, operation) != operation
    }

    /// The receiver's proxy has a message in this operation. Returns true if it is the first one.
    pub fn is_first_taken(&mut self, operation: u32) -> bool {
        std::mem::replace(&mut self.taken_in, operation) != operation
    }

    /// A message has been handed over. Returns true if it goes on the wire now.
    pub fn hand_over(&mut self, bytes: u64) -> bool {
        if self.is_busy {
            self.waiting.get_or_insert_default().push_back(bytes);
            return false;
        }
        self.is_busy = true;
        true
    }

    /// A message has left the wire. Returns the length of the next one, which goes on it now.
    pub fn next(&mut self) -> Option<u64> {
        let next = self.waiting.as_mut().and_then(|waiting| waiting.pop_front());
        self.is_busy = next.is_some();
        next
    }
}
