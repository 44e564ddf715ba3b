//! The queue of what will happen.
//!
//! It is a radix heap. Time never goes back, so an event need only be sorted as far as its time differs from
//! the current one: place `n` holds the events of whose times bit `n` is the highest that differs, in the
//! order in which they were added. When the clock moves on, the events of the first place that is not empty
//! are spread over the ones before it. Nothing else has to move, and events of one time are always in one
//! place.

use super::time::Time;

/// Events in the order of their times; those of one time come in the order in which they were added.
#[derive(Debug)]
pub struct Events<E> {
    /// Those of now, the next one last.
    now: Vec<E>,
    /// Those of now that were added since.
    more: Vec<E>,
    /// By the highest bit that differs from the current time.
    later: Vec<Vec<(Time, E)>>,
    /// The places of `later` that are not empty, one bit for each.
    used: u64,
    time: Time,
}

impl<E> Default for Events<E> {
    fn default() -> Self {
        let later = (0..u64::BITS).map(|_| Vec::new()).collect();
        Self { now: Vec::new(), more: Vec::new(), later, used: 0, time: Time::ZERO }
    }
}

impl<E> Events<E> {
    /// The current virtual time.
    pub fn now(&self) -> Time {
        self.time
    }

    /// Adds an event. One whose time has passed happens now.
    pub fn add(&mut self, at: Time, event: E) {
        match at.max(self.time) {
            at if at == self.time => self.more.push(event),
            at => self.put(at, event),
        }
    }

    /// Puts an event that happens later into its place.
    fn put(&mut self, at: Time, event: E) {
        let place = (at.ps() ^ self.time.ps()).ilog2();
        self.used |= 1 << place;
        self.later[place as usize].push((at, event));
    }

    /// Takes the next event if it happens at the current time.
    pub fn take_now(&mut self) -> Option<E> {
        if self.now.is_empty() {
            std::mem::swap(&mut self.now, &mut self.more);
            self.now.reverse();
        }
        self.now.pop()
    }

    /// Moves the clock to the next event. Returns false if there is none.
    pub fn advance(&mut self) -> bool {
        if !self.now.is_empty() || !self.more.is_empty() {
            return true;
        }
        if self.used == 0 {
            return false;
        }
        let place = self.used.trailing_zeros();
        self.used &= !(1 << place);
        let mut events = std::mem::take(&mut self.later[place as usize]);
        self.time = events.iter().map(|(at, _)| *at).min().unwrap_or(self.time);
        for (at, event) in events.drain(..) {
            self.add(at, event);
        }
        // The room is kept for others.
        self.later[place as usize] = events;
        true
    }
}

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

    #[test]
    fn the_order_is_that_of_a_stable_sort() {
        let mut random = crate::engine::Random::new(7);
        let mut events = Events::default();
        let (mut added, mut seen) = (Vec::new(), Vec::new());
        while seen.len() < if cfg!(miri) { 200 } else { 20_000 } {
            // As many as are taken, at times that are near, far, and often equal.
            for reach in [1.0, 30.0, 1e4, 1e9] {
                let at = events.now() + Time::from_ps((random.unit() * reach) as u64);
                events.add(at, added.len());
                added.push(at);
            }
            assert!(events.advance());
            while let Some(number) = events.take_now() {
                assert_eq!(events.now(), added[number]);
                seen.push(number);
            }
        }
        while events.advance() {
            seen.extend(std::iter::from_fn(|| events.take_now()));
        }
        let mut sorted: Vec<usize> = (0..added.len()).collect();
        sorted.sort_by_key(|number| added[*number]);
        assert_eq!(seen, sorted);
    }
}
