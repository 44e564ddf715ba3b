//! Sender and receiver find the same receive for every message, whatever comes late.

use std::collections::VecDeque;

use hawser_plugin::net::{Registration, Segment};
use proptest::prelude::*;

use crate::frame::{ChunkHeader, Posted};
use crate::queue::Queue;
use crate::table::Table;

/// A message on its way to the receiver on the control connection.
enum Sent {
    Inline { slot: u64, number: u8 },
    Early { known: u64, tag: i32, number: u8 },
}

#[derive(Default)]
struct Pair {
    queue: Queue,
    table: Table,
    control: VecDeque<Sent>,
    /// Long messages on data sockets, which keep no order.
    chunks: Vec<ChunkHeader>,
    credits: VecDeque<Vec<Posted>>,
    sends: VecDeque<u64>,
    receives: VecDeque<u64>,
    /// Messages that were sent, and slots that were posted.
    sent: u8,
    posted: usize,
}

impl Pair {
    fn post(&mut self, tags: &[i32]) {
        let segment =
            |&tag: &i32| Segment { addr: 0, bytes: 100, registration: Registration(0), tag, profile: 0 };
        let segments: Vec<Segment> = tags.iter().map(segment).collect();
        let Some((request, posted)) = self.table.post(&segments) else { return };
        while let Some((slot, data)) = self.table.take_early() {
            self.table.whole(slot, data.len() as u64).unwrap();
        }
        self.posted += tags.len();
        self.receives.push_back(request);
        self.credits.push_back(posted);
    }

    /// Sends a message if there is a way. A message's length is its number.
    fn send(&mut self, tag: i32, is_long: bool) {
        let (number, bytes) = (self.sent, usize::from(self.sent));
        let request = match self.queue.target(tag) {
            Some(target) if is_long && bytes > 0 => {
                let request = self.queue.begin(target, 0, bytes, 1, 1 << 20);
                while let Some(chunk) = self.queue.claim() {
                    let (slot, offset, total, len) = (chunk.slot, chunk.offset, chunk.total, chunk.len);
                    self.chunks.push(ChunkHeader { slot, total, offset, len });
                }
                request
            }
            Some(target) => {
                self.control.push_back(Sent::Inline { slot: target.slot, number });
                self.queue.begin_done(target, bytes)
            }
            None if !is_long && self.queue.may_go_early(bytes) => {
                let (request, known) = self.queue.begin_early(tag, bytes);
                self.control.push_back(Sent::Early { known, tag, number });
                request
            }
            None => return,
        };
        self.sent += 1;
        self.sends.push_back(request);
    }

    fn deliver(&mut self, way: usize, at: usize) {
        match way {
            0 => {
                if let Some(segments) = self.credits.pop_front() {
                    self.queue.add_credit(segments).unwrap();
                }
            }
            1 => match self.control.pop_front() {
                Some(Sent::Inline { slot, number }) => drop(self.table.whole(slot, number.into()).unwrap()),
                Some(Sent::Early { known, tag, number }) => match self.table.early_slot(known, tag) {
                    Some(slot) => drop(self.table.whole(slot, number.into()).unwrap()),
                    None => self.table.keep_early(known, tag, &vec![0; number.into()]).unwrap(),
                },
                None => {}
            },
            _ if self.chunks.is_empty() => {}
            _ => {
                let chunk = self.chunks.swap_remove(at % self.chunks.len());
                self.table.place(&chunk).unwrap();
                if self.table.arrived(chunk.slot, chunk.len.into()).unwrap() {
                    self.queue.done(chunk.slot).unwrap();
                }
            }
        }
    }

    fn settle(&mut self) {
        while !(self.credits.is_empty() && self.control.is_empty() && self.chunks.is_empty()) {
            (0..3).for_each(|way| self.deliver(way, 0));
        }
        while let Some(&request) = self.sends.front()
            && self.queue.finish(request).unwrap().is_some()
        {
            self.sends.pop_front();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn both_ends_find_the_same_receive(
        steps in prop::collection::vec((0usize..7, 0i32..3, any::<bool>(), 0usize..9), 1..120)
    ) {
        let mut pair = Pair::default();
        for (step, tag, is_long, at) in steps {
            match step {
                0 => pair.post(&[tag]),
                1 => pair.post(&[tag, (tag + 1) % 3, tag][..1 + at % 3]),
                2 | 3 if pair.sent < 100 => pair.send(tag, is_long),
                _ => pair.deliver(step % 3, at),
            }
        }
        pair.settle();
        prop_assert!(pair.sends.is_empty(), "every send is over");
        // Receives without a tag take what is left.
        while pair.queue.early() > 0 {
            let tag = (0..3).find(|&tag| pair.queue.target(tag).is_some());
            match tag {
                Some(tag) => pair.send(tag, true),
                None => pair.post(&[0]),
            }
            pair.settle();
        }
        let open = pair.posted - usize::from(pair.sent);
        prop_assert_eq!(pair.table.open(), open, "as many slots wait as no message was sent for");
        while let Some(tag) = (0..3).find(|&tag| pair.queue.target(tag).is_some()) {
            pair.send(tag, true);
            pair.settle();
        }
        prop_assert_eq!(pair.table.open(), 0);
        for request in std::mem::take(&mut pair.receives) {
            prop_assert!(pair.table.finish(request, &mut []).unwrap());
        }
    }
}
