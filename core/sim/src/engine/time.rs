//! The virtual clock.

use std::fmt;
use std::ops::{Add, Sub};

/// A moment or a length of virtual time, in picoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(u64);

impl Time {
    /// The start of every simulation.
    pub const ZERO: Time = Time(0);

    /// A time of so many picoseconds.
    pub const fn from_ps(ps: u64) -> Self {
        Self(ps)
    }

    /// A time of so many µs, rounded to a picosecond; what is negative counts as 0.
    pub fn from_us(us: f64) -> Self {
        // The cast saturates at both ends.
        Self((us * 1e6).round() as u64)
    }

    /// The time in picoseconds.
    pub const fn ps(self) -> u64 {
        self.0
    }

    /// The time, so many times as long.
    pub fn stretched(self, factor: f64) -> Self {
        if factor == 1.0 { self } else { Self((self.0 as f64 * factor).round() as u64) }
    }

    /// The time in µs.
    pub fn us(self) -> f64 {
        self.0 as f64 / 1e6
    }
}

impl Add for Time {
    type Output = Time;

    fn add(self, other: Time) -> Time {
        Time(self.0.saturating_add(other.0))
    }
}

impl Sub for Time {
    type Output = Time;

    fn sub(self, other: Time) -> Time {
        Time(self.0.saturating_sub(other.0))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn microseconds_are_rounded_to_picoseconds() {
        assert_eq!(Time::from_us(1.5).ps(), 1_500_000);
        assert_eq!((Time::from_us(-1.0), Time::from_us(f64::NAN)), (Time::ZERO, Time::ZERO));
        assert_eq!(Time::from_us(2.25).to_string(), "2.250000");
        assert_eq!(Time::ZERO - Time::from_ps(1), Time::ZERO);
    }
}
