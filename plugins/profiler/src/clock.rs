//! Times of events, which are taken on the way of an operation and must cost next to nothing.
//!
//! Where the kernel itself keeps time by the processor's counter, an event takes the counter, and whoever
//! follows the events makes nanoseconds of it: between two moments at which both clocks were read, the
//! counter runs evenly. Elsewhere an event takes the monotonic clock.

use std::sync::LazyLock;

use rustix::time::{ClockId, clock_gettime};

/// A time as it is taken: of the counter, or nanoseconds of the monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticks(u64);

/// Times that both clocks are read for one moment: the closest of them counts.
const READINGS: usize = 3;

/// Makes nanoseconds of the times of events.
pub struct Clock {
    /// The last moment at which both clocks were read: the counter, and nanoseconds.
    last: (u64, u64),
}

impl Clock {
    /// A clock that knows this moment.
    pub fn new() -> Self {
        Self { last: both() }
    }

    /// Reads both clocks again. What it returns makes nanoseconds of times since the reading before.
    pub fn advance(&mut self) -> impl Fn(Ticks) -> u64 + use<> {
        let (from, to) = (self.last, both());
        self.last = to;
        between(from, to)
    }
}

/// Makes nanoseconds of times between two readings, or close to them.
fn between(from: (u64, u64), to: (u64, u64)) -> impl Fn(Ticks) -> u64 {
    let ticks = i128::from(to.0.saturating_sub(from.0)).max(1);
    let nanoseconds = i128::from(to.1.saturating_sub(from.1));
    move |Ticks(at)| {
        let since = i128::from(at) - i128::from(from.0);
        (i128::from(from.1) + since * nanoseconds / ticks).max(0) as u64
    }
}

/// Both clocks at one moment.
fn both() -> (u64, u64) {
    let reading = |_| {
        let (before, nanoseconds, after) = (now().0, monotonic(), now().0);
        (after.wrapping_sub(before), (before.midpoint(after), nanoseconds))
    };
    let closest = (0..READINGS).map(reading).min_by_key(|(gap, _)| *gap);
    closest.map_or((0, 0), |(_, both)| both)
}

/// Nanoseconds of the monotonic clock, which the processes of a host share.
pub fn monotonic() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The time now.
#[inline]
pub fn now() -> Ticks {
    #[cfg(target_arch = "x86_64")]
    if *COUNTS {
        // SAFETY: every x86-64 processor has the instruction; the kernel uses it itself here, so it is not
        // forbidden to programs.
        return Ticks(unsafe { core::arch::x86_64::_rdtsc() });
    }
    Ticks(monotonic())
}

/// The kernel keeps time by the counter: it runs evenly, and alike on all processors.
static COUNTS: LazyLock<bool> = LazyLock::new(|| {
    let source = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    std::fs::read_to_string(source).is_ok_and(|name| name.trim() == "tsc")
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_lie_between_what_the_monotonic_clock_says() {
        let mut clock = Clock::new();
        for _ in 0..100 {
            let before = monotonic();
            let times = [now(), now(), now()];
            let after = monotonic();
            let nanoseconds = clock.advance();
            let times = times.map(&nanoseconds);
            assert!(times.is_sorted(), "{times:?}");
            // A reading is wrong by no more than the time that it takes; a thread may be put aside meanwhile.
            let slack = 20_000_000;
            assert!(times[0] + slack >= before && times[2] <= after + slack, "{before} {times:?} {after}");
        }
    }

    #[test]
    fn the_counter_runs_evenly_between_two_readings() {
        let nanoseconds = between((1_000, 500), (3_000, 1_500));
        assert_eq!(
            [0, 1_000, 2_000, 3_000, 4_000].map(|at| nanoseconds(Ticks(at))),
            [0, 500, 1_000, 1_500, 2_000]
        );
        let still = between((7, 9), (7, 9));
        assert_eq!(still(Ticks(7)), 9);
    }
}
