//! The waits of the receiver: posted receives and how much of each has arrived. No I/O.
//!
//! 1. A posted receive gets the next slots, one per segment; the sender learns of them in the same order.
//! 2. A message comes either inside one record or as chunks, never both. Each byte comes once: the sender
//!    only repeats what this end has said not to have (see `rx`).
//! 3. A receive is over when all of its segments are.
//! 4. An early message goes to the oldest receive that fits from the slot on that its sender did not know;
//!    until one is posted it is kept here (see `queue`).

use std::collections::VecDeque;

use hawser_plugin::net::{MAX_REQUESTS, Segment};

use crate::frame::{ChunkHeader, Posted};
use crate::queue::{LONGEST_EARLY, MOST_EARLY};

/// Receives that the host may hold. One is over before its successor is posted, so a few more than in flight.
const MOST_RECEIVES: usize = 2 * MAX_REQUESTS;

#[derive(Debug)]
struct Slot {
    addr: u64,
    capacity: u64,
    tag: i32,
    /// Known with the first chunk.
    total: Option<u64>,
    arrived: u64,
    is_over: bool,
}

#[derive(Debug)]
struct Receive {
    first_slot: u64,
    slots: Vec<Slot>,
    /// Slots that are not over.
    left: usize,
    /// The host was told.
    told: bool,
}

impl Receive {
    /// The slot that an early message with this tag goes to.
    fn find(&self, tag: i32) -> Option<u64> {
        let is_free = |slot: &Slot| !slot.is_over && slot.total.is_none();
        let fits = |slot: &&Slot| is_free(slot) && (self.slots.len() == 1 || slot.tag == tag);
        let slot = self.slots.iter().position(|slot| fits(&slot))?;
        Some(self.first_slot + slot as u64)
    }
}

/// A message for which no receive was posted when it came.
#[derive(Debug)]
struct Early {
    known: u64,
    tag: i32,
    data: Vec<u8>,
}

/// The posted receives of a connection.
#[derive(Debug, Default)]
pub(crate) struct Table {
    next_slot: u64,
    /// Request number of the first receive.
    first: u64,
    receives: VecDeque<Receive>,
    /// Slots that are not over.
    open: usize,
    early: VecDeque<Early>,
}

impl Table {
    /// Posts a receive; None when there is no room. Returns its request and what the sender has to know.
    pub fn post(&mut self, segments: &[Segment]) -> Option<(u64, Vec<Posted>)> {
        if self.receives.len() >= MOST_RECEIVES {
            return None;
        }
        let slot = |segment: &Segment| Slot {
            addr: segment.addr,
            capacity: segment.bytes as u64,
            tag: segment.tag,
            total: None,
            arrived: 0,
            is_over: false,
        };
        let slots: Vec<Slot> = segments.iter().map(slot).collect();
        let posted = segments.iter().map(|s| Posted { tag: s.tag, capacity: s.bytes as u64 }).collect();
        let (first_slot, left) = (self.next_slot, slots.len());
        self.next_slot += left as u64;
        self.open += left;
        self.receives.push_back(Receive { first_slot, slots, left, told: false });
        Some((self.first + self.receives.len() as u64 - 1, posted))
    }

    /// Slots that wait for bytes.
    pub fn open(&self) -> usize {
        self.open
    }

    /// Tells whether one of the `last` receives that were posted waits for bytes.
    pub fn is_open(&self, last: usize) -> bool {
        self.receives.iter().rev().take(last).any(|receive| receive.left > 0)
    }

    /// The slot that an early message goes to now.
    pub fn early_slot(&self, known: u64, tag: i32) -> Option<u64> {
        let first = self.receives.partition_point(|receive| receive.first_slot < known);
        self.receives.iter().skip(first).find_map(|receive| receive.find(tag))
    }

    /// Keeps an early message until its receive is posted.
    ///
    /// # Errors
    /// The peer sends more early than it may.
    pub fn keep_early(&mut self, known: u64, tag: i32, data: &[u8]) -> Result<(), String> {
        let (before, bytes) = (self.early.len(), data.len());
        if before >= MOST_EARLY || bytes > LONGEST_EARLY {
            return Err(format!("{bytes} bytes before their receive, after {before} other messages"));
        }
        self.early.push_back(Early { known, tag, data: data.to_vec() });
        Ok(())
    }

    /// The first early message that has a receive now, with its slot.
    pub fn take_early(&mut self) -> Option<(u64, Vec<u8>)> {
        let fit = |(at, early): (usize, &Early)| Some((at, self.early_slot(early.known, early.tag)?));
        let (at, slot) = self.early.iter().enumerate().find_map(fit)?;
        Some((slot, self.early.remove(at)?.data))
    }

    /// The address that a chunk goes to.
    ///
    /// # Errors
    /// The peer speaks nonsense.
    pub fn place(&mut self, chunk: &ChunkHeader) -> Result<u64, String> {
        let slot = self.slot(chunk.slot)?;
        let fits = chunk.total <= slot.capacity && *slot.total.get_or_insert(chunk.total) == chunk.total;
        if !fits || slot.arrived + u64::from(chunk.len) > chunk.total {
            return Err(format!("a chunk that does not fit the receive {}", chunk.slot));
        }
        Ok(slot.addr + chunk.offset)
    }

    /// All bytes of a chunk are in place. Whether the message is complete.
    ///
    /// # Errors
    /// The peer speaks nonsense.
    pub fn arrived(&mut self, slot: u64, bytes: u64) -> Result<bool, String> {
        let known = self.slot(slot)?;
        known.arrived += bytes;
        match known.total {
            Some(total) if known.arrived > total => {
                Err(format!("more bytes than it said for the receive {slot}"))
            }
            Some(total) if known.arrived == total => {
                self.close(slot, total);
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Takes a whole message: where its bytes go. They must be there before the table is asked for anything
    /// else.
    ///
    /// # Errors
    /// The peer speaks nonsense.
    pub fn whole(&mut self, slot: u64, bytes: u64) -> Result<u64, String> {
        let known = self.slot(slot)?;
        if bytes > known.capacity || known.total.is_some() {
            return Err(format!("a message of {bytes} bytes that does not fit the receive {slot}"));
        }
        let addr = known.addr;
        self.close(slot, bytes);
        Ok(addr)
    }

    /// The capacity of a slot that waits for bytes.
    pub fn capacity(&mut self, slot: u64) -> Option<u64> {
        self.slot(slot).ok().map(|slot| slot.capacity)
    }

    /// Ends a request that is over, once, and writes its sizes.
    ///
    /// # Errors
    /// There is no such request.
    pub fn finish(&mut self, request: u64, sizes: &mut [usize]) -> Result<bool, String> {
        let index = request.checked_sub(self.first).map(|index| index as usize);
        let receive = index.and_then(|index| self.receives.get_mut(index));
        let Some(receive) = receive.filter(|receive| !receive.told) else {
            return Err(format!("request {request} is not in flight"));
        };
        if receive.left > 0 {
            return Ok(false);
        }
        receive.told = true;
        for (size, slot) in sizes.iter_mut().zip(&receive.slots) {
            *size = slot.arrived as usize;
        }
        while self.receives.front().is_some_and(|receive| receive.told) {
            self.receives.pop_front();
            self.first += 1;
        }
        Ok(true)
    }

    fn slot(&mut self, number: u64) -> Result<&mut Slot, String> {
        self.find(number)
            .map(|receive| {
                let index = (number - receive.first_slot) as usize;
                &mut receive.slots[index]
            })
            .filter(|slot| !slot.is_over)
            .ok_or_else(|| format!("bytes for the receive {number}, which is not posted"))
    }

    fn close(&mut self, number: u64, bytes: u64) {
        if let Some(receive) = self.find(number) {
            let index = (number - receive.first_slot) as usize;
            let slot = &mut receive.slots[index];
            (slot.arrived, slot.is_over) = (bytes, true);
            receive.left -= 1;
            self.open -= 1;
        }
    }

    fn find(&mut self, number: u64) -> Option<&mut Receive> {
        let after = self.receives.partition_point(|receive| receive.first_slot <= number);
        let receive = self.receives.get_mut(after.checked_sub(1)?)?;
        (number - receive.first_slot < receive.slots.len() as u64).then_some(receive)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_plugin::net::Registration;

    fn segment(addr: u64, bytes: usize, tag: i32) -> Segment {
        Segment { addr, bytes, registration: Registration(0), tag, profile: 0 }
    }

    fn chunk(slot: u64, offset: u64, len: u32, total: u64) -> ChunkHeader {
        ChunkHeader { slot, total, offset, len }
    }

    #[test]
    fn chunks_in_any_order_fill_a_receive() {
        let mut table = Table::default();
        let (request, posted) = table.post(&[segment(1000, 100, 4)]).unwrap();
        assert_eq!(posted, [Posted { tag: 4, capacity: 100 }]);
        assert_eq!(table.place(&chunk(0, 50, 30, 80)), Ok(1050));
        assert_eq!(table.arrived(0, 30), Ok(false));
        assert_eq!(table.finish(request, &mut [0]), Ok(false));
        assert_eq!(table.place(&chunk(0, 0, 50, 80)), Ok(1000));
        assert_eq!(table.arrived(0, 50), Ok(true));
        let mut sizes = [0];
        assert_eq!(table.finish(request, &mut sizes), Ok(true));
        assert_eq!((sizes, table.open()), ([80], 0));
        assert!(table.finish(request, &mut sizes).is_err());
    }

    #[test]
    fn a_group_is_over_with_its_last_segment() {
        let mut table = Table::default();
        let (request, _) = table.post(&[segment(0, 10, 1), segment(100, 10, 2), segment(200, 0, 3)]).unwrap();
        let (next, _) = table.post(&[segment(300, 10, 1)]).unwrap();
        assert_eq!(table.whole(1, 7), Ok(100));
        assert_eq!(table.whole(3, 10), Ok(300));
        assert_eq!(table.whole(2, 0), Ok(200));
        assert_eq!(table.finish(request, &mut []), Ok(false));
        assert_eq!(table.whole(0, 10), Ok(0));
        let mut sizes = [99; 3];
        assert_eq!(table.finish(next, &mut sizes[..1]), Ok(true));
        assert_eq!(table.finish(request, &mut sizes), Ok(true));
        assert_eq!(sizes, [10, 7, 0]);
    }

    #[test]
    fn early_messages_wait_for_their_receive() {
        let mut table = Table::default();
        table.post(&[segment(0, 10, 4)]).unwrap();
        assert_eq!(table.early_slot(1, 4), None, "that receive was known, and is for another message");
        table.keep_early(1, 7, b"seven").unwrap();
        assert_eq!(table.take_early(), None);
        table.post(&[segment(100, 10, 6), segment(200, 10, 5)]).unwrap();
        assert_eq!((table.take_early(), table.early_slot(1, 5)), (None, Some(2)));
        table.post(&[segment(300, 10, 1)]).unwrap();
        assert_eq!(table.take_early(), Some((3, b"seven".to_vec())));
        assert_eq!((table.whole(3, 5), table.early_slot(1, 0)), (Ok(300), None));
        assert!(table.is_open(2) && !table.is_open(1));
        assert!(table.keep_early(9, 0, &[0; LONGEST_EARLY + 1]).is_err());
        (0..MOST_EARLY).for_each(|_| table.keep_early(9, 0, &[0]).unwrap());
        assert!(table.keep_early(9, 0, &[0]).is_err());
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let mut table = Table::default();
        table.post(&[segment(1000, 100, 0)]).unwrap();
        assert!(table.place(&chunk(1, 0, 1, 1)).is_err());
        assert!(table.place(&chunk(0, 0, 1, 101)).is_err());
        assert!(table.place(&chunk(0, 0, 10, 100)).is_ok());
        assert!(table.place(&chunk(0, 0, 10, 99)).is_err());
        assert!(table.whole(0, 5).is_err());
        assert_eq!(table.arrived(0, 10), Ok(false));
        assert!(table.place(&chunk(0, 0, 91, 100)).is_err());
        assert!(table.arrived(0, 91).is_err());
        table.post(&[segment(0, 4, 0)]).unwrap();
        assert!(table.whole(1, 5).is_err());
        assert_eq!(table.capacity(1), Some(4));
        assert_eq!(table.whole(1, 4), Ok(0));
        assert!(table.whole(1, 4).is_err());
        assert_eq!(table.capacity(1), None);
    }

    #[test]
    fn room_is_bounded() {
        let mut table = Table::default();
        let posted = (0..).take_while(|_| table.post(&[segment(0, 1, 0)]).is_some()).count();
        assert_eq!(posted, MOST_RECEIVES);
    }
}
