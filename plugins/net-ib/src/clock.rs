//! The clock of a connection: it stands still while its process does not run, or the machine sleeps. Else a
//! rail would be silent because nobody listened.

use std::time::{Duration, Instant};

/// Longest time without a look that counts.
const STALL: Duration = Duration::from_millis(100);

/// Counts the time in which somebody looks.
pub(crate) struct Clock {
    last: Instant,
    counted: Duration,
    most: Duration,
}

impl Clock {
    /// Time beyond `most` without a look does not count, but [`STALL`] always does.
    pub fn new(most: Duration) -> Self {
        Self { last: Instant::now(), counted: Duration::ZERO, most: most.max(STALL) }
    }

    /// The counted time until `now`.
    pub fn read(&mut self, now: Instant) -> Duration {
        self.counted += now.saturating_duration_since(self.last).min(self.most);
        self.last = self.last.max(now);
        self.counted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_which_nobody_looks_does_not_count() {
        let mut clock = Clock::new(Duration::ZERO);
        let (start, millis) = (clock.last, Duration::from_millis);
        assert_eq!(clock.read(start + millis(70)), millis(70));
        assert_eq!(clock.read(start + millis(5000)), millis(170));
        assert_eq!(clock.read(start + millis(4000)), millis(170));
        assert_eq!(clock.read(start + millis(5030)), millis(200));
    }
}
