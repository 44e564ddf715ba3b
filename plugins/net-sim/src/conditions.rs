//! The conditions of the made-up network, and the draws that follow from its seed.

use std::time::Duration;

use hawser_plugin::net::MAX_REQUESTS;
use hawser_plugin::{Error, ErrorKind, Result};

/// The conditions of a network. All percentages are chances of draws from the seed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conditions {
    /// The number that all draws follow from.
    pub seed: u64,
    /// The time that a message takes at least, in microseconds.
    pub latency_us: u64,
    /// The time that a message may take more.
    pub jitter_us: u64,
    /// The bandwidth of a connection in MB/s.
    pub mbytes: u64,
    /// Percent of calls that are answered "not now".
    pub not_now: u64,
    /// The number of messages that a connection holds.
    pub queue: u64,
    /// Percent of messages that stall.
    pub stalls: u64,
    /// The longest stall in microseconds.
    pub stall_us: u64,
    /// Percent of connections that die with an error.
    pub deaths: u64,
    /// The number of messages within which what dies does so.
    pub within: u64,
    /// Percent of connections that die without an error at either end.
    pub silences: u64,
    /// Percent of devices that die, with all connections of the device.
    pub nic_deaths: u64,
    /// Percent of connections that are refused.
    pub refusals: u64,
}

impl Default for Conditions {
    fn default() -> Self {
        Self {
            seed: 0,
            latency_us: 5,
            jitter_us: 0,
            mbytes: 10_000,
            not_now: 0,
            queue: MAX_REQUESTS as u64,
            stalls: 0,
            stall_us: 2_000,
            deaths: 0,
            within: 200,
            silences: 0,
            nic_deaths: 0,
            refusals: 0,
        }
    }
}

impl Conditions {
    /// Reads conditions as `HAWSER_NET_SIM` has them: `seed=7,stalls=2`.
    ///
    /// # Errors
    /// An unknown key, or a value that is no number or out of range.
    pub fn parse(text: &str) -> Result<Self> {
        let mut conditions = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let wrong = |why: &str| {
                let text = format!("HAWSER_NET_SIM has {part:?}, which {why}; see plugins/net-sim/README.md");
                Error::new(ErrorKind::InvalidArgument, text)
            };
            let (key, value) = part.split_once('=').ok_or_else(|| wrong("is not KEY=NUMBER"))?;
            let value: u64 = value.trim().parse().map_err(|_| wrong("is not KEY=NUMBER"))?;
            let most = match key.trim() {
                "not_now" => 90,
                "stalls" | "deaths" | "silences" | "nic_deaths" | "refusals" => 100,
                "queue" => MAX_REQUESTS as u64,
                "seed" => u64::MAX,
                _ => 1 << 40,
            };
            let field = conditions.field(key.trim()).ok_or_else(|| wrong("no one knows"))?;
            let least = u64::from(matches!(key.trim(), "queue" | "mbytes" | "within"));
            if !(least..=most).contains(&value) {
                return Err(wrong(&format!("must lie between {least} and {most}")));
            }
            *field = value;
        }
        Ok(conditions)
    }

    fn field(&mut self, key: &str) -> Option<&mut u64> {
        Some(match key {
            "seed" => &mut self.seed,
            "latency_us" => &mut self.latency_us,
            "jitter_us" => &mut self.jitter_us,
            "mbytes" => &mut self.mbytes,
            "not_now" => &mut self.not_now,
            "queue" => &mut self.queue,
            "stalls" => &mut self.stalls,
            "stall_us" => &mut self.stall_us,
            "deaths" => &mut self.deaths,
            "within" => &mut self.within,
            "silences" => &mut self.silences,
            "nic_deaths" => &mut self.nic_deaths,
            "refusals" => &mut self.refusals,
            _ => return None,
        })
    }

    /// True if the network itself may make operations fail.
    pub fn may_fail(&self) -> bool {
        self.deaths + self.silences + self.nic_deaths + self.refusals > 0
    }

    /// The time that a message of so many bytes occupies a connection.
    pub(crate) fn on_the_wire(&self, bytes: usize) -> Duration {
        Duration::from_nanos((bytes as u64).saturating_mul(1_000) / self.mbytes.max(1))
    }
}

/// Numbers that follow from a seed (splitmix64).
#[derive(Debug, Clone)]
pub struct Draws(u64);

impl Draws {
    /// The draws of a part of the network.
    pub fn new(seed: u64, part: u64) -> Self {
        let mut draws = Self(seed ^ part.wrapping_mul(0xd6e8_feb8_6659_fd93));
        draws.next();
        draws
    }

    /// The next number.
    #[allow(clippy::should_implement_trait)] // it never ends
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`; 0 if `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next().checked_rem(end).unwrap_or(0)
    }

    /// True with a chance of so many percent.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_read_and_wrong_ones_refused() {
        let read = Conditions::parse("seed=7, stalls=2,,queue=1").unwrap();
        assert_eq!(read, Conditions { seed: 7, stalls: 2, queue: 1, ..Conditions::default() });
        for wrong in ["stalls", "stalls=x", "colour=1", "queue=0", "queue=33", "deaths=101", "not_now=91"] {
            let error = Conditions::parse(wrong).unwrap_err();
            assert!(error.text.contains(wrong) && error.text.contains("HAWSER_NET_SIM"), "{error}");
        }
    }

    #[test]
    fn draws_follow_from_seed_and_part() {
        let numbers = |seed, part| {
            let mut draws = Draws::new(seed, part);
            [draws.next(), draws.next(), draws.below(10)]
        };
        assert_eq!(numbers(3, 4), numbers(3, 4));
        assert_ne!(numbers(3, 4), numbers(3, 5));
        assert_ne!(numbers(3, 4), numbers(4, 4));
    }
}
