//! The work of the sender: credits of the receiver, messages in flight, chunks to be sent. No I/O.
//!
//! 1. The receiver posts receives; each comes here as a credit with its segments' slots, tags and capacities.
//! 2. A send takes a slot of the **oldest** credit that still has one: any if the credit has one segment,
//!    else the first one with its tag. Without a fitting slot there is no send yet.
//! 3. A message is cut into chunks; any socket takes the next one. Chunks that a lost socket may not have
//!    brought go first.
//! 4. A message is over when the receiver says so, never before.
//! 5. A short message may go **early**, before a receive is known, while no known receive is left. Early
//!    messages take the receives that come to be known in the order of 2, before all later messages; so the
//!    receiver, which has the same two lists, finds the same receive for each.

use std::collections::VecDeque;

use hawser_plugin::net::{MAX_RECVS, MAX_REQUESTS};

use crate::frame::Posted;

/// Requests that the host may hold.
const MOST_REQUESTS: usize = MAX_REQUESTS * MAX_RECVS;
/// Receives that a peer may have posted: more than any host does.
const MOST_CREDITS: usize = 64 * MOST_REQUESTS;
/// Chunks start at multiples of this.
const GRAIN: usize = 4096;
/// A message is not cut smaller than this.
const LEAST_CHUNK: usize = 64 << 10;
/// Early messages without a receive that the receiver keeps.
pub(crate) const MOST_EARLY: usize = 16;
/// The longest early message: to copy a longer one twice takes as long as to wait for its receive.
pub(crate) const LONGEST_EARLY: usize = 8 << 10;

/// A piece of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// The number of the request that the chunk belongs to.
    pub request: u64,
    /// The slot of the receive that the message goes to.
    pub slot: u64,
    /// The address of the chunk in the host's memory.
    pub addr: u64,
    /// The offset of the chunk in its message.
    pub offset: u64,
    /// The length of the message in bytes.
    pub total: u64,
    /// The length of the chunk in bytes.
    pub len: u32,
}

/// A segment that waits for a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Target {
    /// The slot of the receive.
    pub slot: u64,
    /// The length of the receive in bytes.
    pub capacity: u64,
}

#[derive(Debug)]
struct Credit {
    first_slot: u64,
    segments: Vec<Posted>,
    /// Bit per segment.
    taken: u8,
}

impl Credit {
    fn find(&self, tag: i32) -> Option<usize> {
        let free = |&i: &usize| self.taken & (1 << i) == 0;
        let fits = |&i: &usize| self.segments.len() == 1 || self.segments[i].tag == tag;
        (0..self.segments.len()).find(|i| free(i) && fits(i))
    }
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// The receiver does not have all of it.
    Open,
    /// The host may be told.
    Done,
    /// The host was told.
    Over,
}

#[derive(Debug)]
struct Message {
    addr: u64,
    bytes: usize,
    slot: u64,
    claimed: usize,
    chunk: usize,
    state: State,
}

/// A message that was sent before its receive was known.
#[derive(Debug)]
struct Early {
    tag: i32,
    bytes: usize,
}

/// An early message that is longer than the receive that it meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Misfit {
    /// The length of the message in bytes.
    pub bytes: u64,
    /// The length of the receive in bytes.
    pub capacity: u64,
}

/// The sends of a connection, from the host's call until the receiver has them.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    credits: VecDeque<Credit>,
    next_slot: u64,
    /// Request number of the first message.
    first: u64,
    messages: VecDeque<Message>,
    /// Requests with bytes that no socket has taken.
    unclaimed: VecDeque<u64>,
    lost: VecDeque<Chunk>,
    /// Messages that are `Open`.
    open: usize,
    /// Early messages without a receive.
    early: VecDeque<Early>,
    misfit: Option<Misfit>,
}

impl Queue {
    /// # Errors
    /// The peer posts without end.
    pub fn add_credit(&mut self, segments: Vec<Posted>) -> Result<(), String> {
        if self.credits.len() >= MOST_CREDITS {
            return Err(format!("more than {MOST_CREDITS} receives are posted"));
        }
        let first_slot = self.next_slot;
        self.next_slot += segments.len() as u64;
        self.credits.push_back(Credit { first_slot, segments, taken: 0 });
        self.match_early();
        Ok(())
    }

    /// Gives early messages the receives that are theirs.
    fn match_early(&mut self) {
        while let Some(credit) = self.credits.front() {
            let fit = |(at, early): (usize, &Early)| Some((at, credit.find(early.tag)?));
            let Some((at, segment)) = self.early.iter().enumerate().find_map(fit) else { return };
            let capacity = credit.segments[segment].capacity;
            let slot = credit.first_slot + segment as u64;
            let bytes = self.early.remove(at).map_or(0, |early| early.bytes as u64);
            if bytes > capacity {
                self.misfit = Some(Misfit { bytes, capacity });
            }
            self.take(slot);
        }
    }

    /// An early message that did not fit its receive, if there was one.
    pub fn misfit(&self) -> Option<Misfit> {
        self.misfit
    }

    /// Early messages that have no receive yet.
    pub fn early(&self) -> usize {
        self.early.len()
    }

    /// Tells whether a message of so many bytes may go before a receive for it is known.
    pub fn may_go_early(&self, bytes: usize) -> bool {
        self.credits.is_empty() && self.early.len() < MOST_EARLY && bytes <= LONGEST_EARLY
    }

    /// Begins an early message, which is safe already. Returns its request and the first slot that it may
    /// go to.
    pub fn begin_early(&mut self, tag: i32, bytes: usize) -> (u64, u64) {
        self.early.push_back(Early { tag, bytes });
        let (slot, state) = (u64::MAX, State::Done);
        let message = Message { addr: 0, bytes, slot, claimed: bytes, chunk: 0, state };
        (self.push(message), self.next_slot)
    }

    /// The receive that a message with this tag would go to now.
    pub fn target(&self, tag: i32) -> Option<Target> {
        let credit = self.credits.front()?;
        let index = credit.find(tag)?;
        let slot = credit.first_slot + index as u64;
        Some(Target { slot, capacity: credit.segments[index].capacity })
    }

    /// Tells whether the host holds no request.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Tells whether the host may begin one more request.
    pub fn has_room(&self) -> bool {
        self.messages.len() < MOST_REQUESTS
    }

    /// Begins the message that goes to [`Queue::target`] and will be cut for `sockets` sockets.
    pub fn begin(&mut self, target: Target, addr: u64, bytes: usize, sockets: usize, most: usize) -> u64 {
        let chunk = bytes.div_ceil(sockets.max(1)).next_multiple_of(GRAIN).max(LEAST_CHUNK).min(most);
        let message = Message { addr, bytes, slot: target.slot, claimed: 0, chunk, state: State::Open };
        let request = self.push_to(target, message);
        self.unclaimed.push_back(request);
        self.open += 1;
        request
    }

    /// As [`Queue::begin`] for a message that is safe already.
    pub fn begin_done(&mut self, target: Target, bytes: usize) -> u64 {
        let message =
            Message { addr: 0, bytes, slot: target.slot, claimed: bytes, chunk: 0, state: State::Done };
        self.push_to(target, message)
    }

    fn push_to(&mut self, target: Target, message: Message) -> u64 {
        if self.take(target.slot) {
            self.match_early();
        }
        self.push(message)
    }

    fn push(&mut self, message: Message) -> u64 {
        self.messages.push_back(message);
        self.first + self.messages.len() as u64 - 1
    }

    /// Takes a slot of the oldest credit. Tells whether that was its last.
    fn take(&mut self, slot: u64) -> bool {
        let Some(credit) = self.credits.front_mut() else { return false };
        credit.taken |= 1 << (slot - credit.first_slot);
        let is_full = credit.taken.count_ones() as usize == credit.segments.len();
        if is_full {
            self.credits.pop_front();
        }
        is_full
    }

    /// The next chunk for a socket.
    pub fn claim(&mut self) -> Option<Chunk> {
        while let Some(chunk) = self.lost.pop_front() {
            if self.is_open(chunk.request) {
                return Some(chunk);
            }
        }
        let request = *self.unclaimed.front()?;
        let message = self.messages.get_mut((request - self.first) as usize)?;
        let offset = message.claimed;
        let len = message.chunk.min(message.bytes - offset);
        message.claimed += len;
        if message.claimed == message.bytes {
            self.unclaimed.pop_front();
        }
        Some(Chunk {
            request,
            slot: message.slot,
            addr: message.addr + offset as u64,
            offset: offset as u64,
            total: message.bytes as u64,
            len: len as u32,
        })
    }

    /// Chunks that [`Queue::claim`] would give now, at least.
    pub fn waiting(&self) -> usize {
        self.lost.len()
            + self.unclaimed.front().map_or(0, |request| {
                let message = &self.messages[(request - self.first) as usize];
                (message.bytes - message.claimed).div_ceil(message.chunk) + self.unclaimed.len() - 1
            })
    }

    /// These chunks were on a socket that is lost and did not arrive.
    pub fn requeue(&mut self, chunks: impl Iterator<Item = Chunk>) -> usize {
        let before = self.lost.len();
        self.lost.extend(chunks);
        self.lost.len() - before
    }

    /// Tells whether a request is not yet with the receiver.
    pub fn is_open(&self, request: u64) -> bool {
        self.message(request).is_some_and(|message| message.state == State::Open)
    }

    /// Tells whether any request is not yet with the receiver.
    pub fn any_open(&self) -> bool {
        self.open > 0
    }

    /// The receiver has the message for this slot.
    ///
    /// # Errors
    /// That cannot be.
    pub fn done(&mut self, slot: u64) -> Result<(), String> {
        let fits = |message: &&mut Message| message.slot == slot && message.state == State::Open;
        match self.messages.iter_mut().find(fits) {
            Some(message) if message.claimed == message.bytes => {
                message.state = State::Done;
                self.open -= 1;
                Ok(())
            }
            _ => Err(format!("it says that message {slot} has arrived, which was not sent")),
        }
    }

    /// Ends a request that is done, once: its bytes.
    ///
    /// # Errors
    /// There is no such request.
    pub fn finish(&mut self, request: u64) -> Result<Option<usize>, String> {
        let index = request.checked_sub(self.first).map(|index| index as usize);
        let message = index.and_then(|index| self.messages.get_mut(index));
        let Some(message) = message.filter(|message| message.state != State::Over) else {
            return Err(format!("request {request} is not in flight"));
        };
        if message.state == State::Open {
            return Ok(None);
        }
        message.state = State::Over;
        let bytes = message.bytes;
        while self.messages.front().is_some_and(|message| message.state == State::Over) {
            self.messages.pop_front();
            self.first += 1;
        }
        Ok(Some(bytes))
    }

    fn message(&self, request: u64) -> Option<&Message> {
        self.messages.get(usize::try_from(request.checked_sub(self.first)?).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn posted(tags: &[i32]) -> Vec<Posted> {
        tags.iter().map(|&tag| Posted { tag, capacity: 1 << 20 }).collect()
    }

    fn begin(queue: &mut Queue, tag: i32, bytes: usize) -> Option<(u64, u64)> {
        let target = queue.target(tag)?;
        Some((queue.begin(target, 0x1000, bytes, 2, 256 << 10), target.slot))
    }

    #[test]
    fn tags_pick_inside_the_oldest_credit_only() {
        let mut queue = Queue::default();
        assert_eq!(begin(&mut queue, 1, 100), None);
        queue.add_credit(posted(&[5, 6, 5])).unwrap();
        queue.add_credit(posted(&[7])).unwrap();
        assert_eq!(begin(&mut queue, 7, 100), None);
        assert_eq!(begin(&mut queue, 6, 100), Some((0, 1)));
        assert_eq!(begin(&mut queue, 6, 100), None);
        assert_eq!(begin(&mut queue, 5, 100), Some((1, 0)));
        assert_eq!(begin(&mut queue, 5, 100), Some((2, 2)));
        assert_eq!(begin(&mut queue, 99, 100), Some((3, 3)));
        assert_eq!(begin(&mut queue, 7, 100), None);
    }

    #[test]
    fn chunks_cover_a_message_once() {
        let mut queue = Queue::default();
        queue.add_credit(posted(&[0])).unwrap();
        let (request, slot) = begin(&mut queue, 0, 300_000).unwrap();
        assert_eq!(queue.waiting(), 2);
        let chunks: Vec<Chunk> = std::iter::from_fn(|| queue.claim()).collect();
        assert_eq!(
            chunks.iter().map(|c| (c.offset, c.len)).collect::<Vec<_>>(),
            [(0, 151_552), (151_552, 148_448)]
        );
        assert!(chunks.iter().all(|c| c.addr == 0x1000 + c.offset && c.total == 300_000));
        assert_eq!(queue.waiting(), 0);
        assert_eq!(queue.finish(request), Ok(None));
        assert_eq!(queue.requeue(chunks[1..].iter().copied()), 1);
        assert_eq!(queue.claim(), Some(chunks[1]));
        queue.done(slot).unwrap();
        assert!(queue.done(slot).is_err());
        queue.requeue(chunks.into_iter());
        assert_eq!(queue.claim(), None);
        assert_eq!(queue.finish(request), Ok(Some(300_000)));
        assert!(queue.finish(request).is_err());
        assert!(queue.finish(77).is_err());
    }

    #[test]
    fn early_messages_take_the_first_receives_that_fit() {
        let mut queue = Queue::default();
        assert!(queue.may_go_early(8));
        assert_eq!([5, 7, 5].map(|tag| queue.begin_early(tag, 8)), [(0, 0), (1, 0), (2, 0)]);
        queue.add_credit(posted(&[5, 6])).unwrap();
        assert_eq!(queue.early(), 2);
        assert!(!queue.may_go_early(8), "a receive is known");
        assert_eq!(begin(&mut queue, 5, 8), None, "that place is taken");
        queue.add_credit(posted(&[1])).unwrap();
        queue.add_credit(posted(&[2])).unwrap();
        queue.add_credit(posted(&[3])).unwrap();
        assert_eq!(begin(&mut queue, 6, 8), Some((3, 1)));
        assert_eq!((queue.early(), begin(&mut queue, 0, 8)), (0, Some((4, 4))));
        assert_eq!(queue.begin_early(0, 8).1, 5);
        assert!([0, 1, 2].map(|request| queue.finish(request)) == [const { Ok(Some(8)) }; 3]);
    }

    #[test]
    fn early_messages_are_few_and_must_fit() {
        let mut queue = Queue::default();
        assert!(queue.may_go_early(LONGEST_EARLY) && !queue.may_go_early(LONGEST_EARLY + 1));
        for _ in 0..MOST_EARLY {
            assert!(queue.may_go_early(8));
            queue.begin_early(0, 8);
        }
        assert!(!queue.may_go_early(8));
        queue.add_credit(vec![Posted { tag: 0, capacity: 8 }]).unwrap();
        assert!(queue.may_go_early(8) && queue.misfit().is_none());
        queue.add_credit(vec![Posted { tag: 0, capacity: 7 }]).unwrap();
        assert_eq!(queue.misfit(), Some(Misfit { bytes: 8, capacity: 7 }));
    }

    #[test]
    fn requests_end_in_any_order_and_room_is_bounded() {
        let mut queue = Queue::default();
        for _ in 0..MOST_REQUESTS {
            queue.add_credit(posted(&[0])).unwrap();
        }
        for i in 0..MOST_REQUESTS as u64 {
            assert!(queue.has_room());
            let target = queue.target(0).unwrap();
            assert_eq!(queue.begin_done(target, 7), i);
        }
        assert!(!queue.has_room());
        for i in (1..MOST_REQUESTS as u64).rev() {
            assert_eq!(queue.finish(i), Ok(Some(7)));
        }
        assert!(!queue.has_room());
        assert_eq!(queue.finish(0), Ok(Some(7)));
        assert!(queue.has_room() && !queue.any_open());
    }

    #[test]
    fn what_was_not_sent_cannot_have_arrived() {
        let mut queue = Queue::default();
        queue.add_credit(posted(&[0])).unwrap();
        let (_, slot) = begin(&mut queue, 0, 1 << 20).unwrap();
        assert!(queue.done(slot).is_err());
        assert!(queue.done(slot + 1).is_err());
    }
}
