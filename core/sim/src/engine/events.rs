//! The queue of what will happen.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::time::Time;

/// Events in the order of their times; those of one time come in the order in which they were added.
#[derive(Debug)]
pub struct Events<E> {
    heap: BinaryHeap<Entry<E>>,
    added: u64,
    now: Time,
}

#[derive(Debug)]
struct Entry<E> {
    at: Time,
    number: u64,
    event: E,
}

impl<E> Default for Events<E> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), added: 0, now: Time::ZERO }
    }
}

impl<E> Events<E> {
    /// The current virtual time.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Adds an event. One whose time has passed happens now.
    pub fn add(&mut self, at: Time, event: E) {
        self.added += 1;
        self.heap.push(Entry { at: at.max(self.now), number: self.added, event });
    }

    /// Takes the next event if it happens at the current time.
    pub fn take_now(&mut self) -> Option<E> {
        if self.heap.peek()?.at > self.now {
            return None;
        }
        self.heap.pop().map(|entry| entry.event)
    }

    /// Moves the clock to the next event. Returns false if there is none.
    pub fn advance(&mut self) -> bool {
        let Some(next) = self.heap.peek() else { return false };
        self.now = next.at;
        true
    }
}

// The heap has its largest entry on top: the earliest one has to be the largest.
impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Entry<E> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_then_by_age() {
        let mut events = Events::default();
        for (us, name) in [(2.0, 'c'), (1.0, 'a'), (2.0, 'd'), (1.0, 'b')] {
            events.add(Time::from_us(us), name);
        }
        let mut seen = String::new();
        while events.advance() {
            while let Some(name) = events.take_now() {
                seen.push(name);
                if name == 'c' {
                    events.add(Time::ZERO, 'e');
                }
            }
        }
        assert_eq!((seen.as_str(), events.now()), ("abcde", Time::from_us(2.0)));
    }
}
