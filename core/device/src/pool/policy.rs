//! The policy of the pool, which says how much it may take and keep: pure arithmetic on the settings.

use std::time::Duration;

use hawser_base::env::Settings;

/// The settings of every pool of this process (`NCCL_CUMEM_POOL_SIZE` and its kin).
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// `NCCL_CUMEM_POOL_SIZE`: bytes below which nothing is given back while the pool lives.
    pub floor: u64,
    /// `NCCL_CUMEM_PREALLOC`: that much is taken when a communicator comes up.
    pub preallocate: bool,
    /// `NCCL_CUMEM_GROWTH_FACTOR`: by how much shared memory grows at least.
    pub growth: f64,
    /// `NCCL_CUMEM_MAX_SIZE`: no more than this is ever taken.
    pub most: Option<u64>,
    /// `NCCL_CUMEM_TRIM_THRESHOLD`: idle bytes beyond which memory goes back.
    pub trim: u64,
    /// `NCCL_CUMEM_MONITOR`, `NCCL_CUMEM_MONITOR_INTERVAL`: lines with figures, at this period; zero: at
    /// events only.
    pub monitor: Option<Duration>,
}

impl Default for Policy {
    fn default() -> Self {
        Self { floor: 0, preallocate: false, growth: 1.0, most: None, trim: 0, monitor: None }
    }
}

impl Policy {
    /// The user's settings of the pool.
    pub fn of(settings: &Settings) -> Self {
        Self {
            floor: settings.pool_size,
            preallocate: settings.pool_preallocate,
            growth: settings.pool_growth,
            most: settings.pool_max,
            trim: settings.pool_trim,
            monitor: settings.pool_monitor.then_some(settings.pool_monitor_interval),
        }
    }

    /// Bytes to keep: `NCCL_CUMEM_POOL_SIZE` within the limit.
    pub fn floor(&self) -> u64 {
        self.floor.min(self.most.unwrap_or(u64::MAX))
    }

    /// Sizes of the next piece of shared memory in the order in which they are tried: what growing by the
    /// factor comes to, then just the need.
    pub fn growth(&self, committed: u64, need: u64, granularity: u64) -> [u64; 2] {
        let target = (committed as f64 * self.growth) as u64;
        let wished = target.saturating_sub(committed).next_multiple_of(granularity);
        [wished.max(need).min(self.room(committed).max(need)) / granularity * granularity, need]
    }

    /// Bytes that may be taken beside those that are.
    pub fn room(&self, committed: u64) -> u64 {
        self.most.map_or(u64::MAX, |most| most.saturating_sub(committed))
    }

    /// To how many bytes the pool shrinks, if it holds too many idle ones.
    pub fn shrinks_to(&self, committed: u64, in_use: u64) -> Option<u64> {
        let idle = committed.saturating_sub(in_use);
        (idle > self.trim).then(|| self.floor().max(in_use + self.trim / 2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn settings_make_a_policy() {
        let given = [
            ("NCCL_CUMEM_POOL_SIZE", "2G"),
            ("NCCL_CUMEM_PREALLOC", "1"),
            ("NCCL_CUMEM_GROWTH_FACTOR", "1.5"),
            ("NCCL_CUMEM_MAX_SIZE", "8GB"),
            ("NCCL_CUMEM_TRIM_THRESHOLD", "1gib"),
            ("NCCL_CUMEM_MONITOR", "on"),
            ("NCCL_CUMEM_MONITOR_INTERVAL", "500ms"),
        ];
        let policy = Policy {
            floor: 2 << 30,
            preallocate: true,
            growth: 1.5,
            most: Some(8 << 30),
            trim: 1 << 30,
            monitor: Some(Duration::from_millis(500)),
        };
        assert_eq!(Policy::of(&Settings::of(&given)), policy);
        assert_eq!(Policy::of(&Settings::of(&[])), Policy::default());
        let unlimited = Settings::of(&[("NCCL_CUMEM_MAX_SIZE", "0"), ("NCCL_CUMEM_MONITOR", "1")]);
        let unlimited = Policy::of(&unlimited);
        assert_eq!((unlimited.most, unlimited.monitor), (None, Some(Duration::from_secs(10))));
    }

    #[test]
    fn growth_follows_the_factor_and_stays_under_the_limit() {
        let policy = Policy { growth: 1.5, ..Policy::default() };
        assert_eq!(policy.growth(0, 2 * MIB, 2 * MIB), [2 * MIB, 2 * MIB]);
        assert_eq!(policy.growth(64 * MIB, 2 * MIB, 2 * MIB), [32 * MIB, 2 * MIB]);
        assert_eq!(policy.growth(64 * MIB, 48 * MIB, 2 * MIB), [48 * MIB; 2]);
        let capped = Policy { most: Some(75 * MIB), ..policy };
        assert_eq!(capped.growth(64 * MIB, 2 * MIB, 2 * MIB), [10 * MIB, 2 * MIB]);
        assert_eq!(capped.growth(75 * MIB, 2 * MIB, 2 * MIB), [2 * MIB; 2], "the limit is checked elsewhere");
        assert_eq!(Policy::default().growth(64 * MIB, 2 * MIB, 2 * MIB), [2 * MIB; 2]);
    }

    #[test]
    fn shrinking_leaves_half_the_threshold_and_the_floor() {
        let policy = Policy { trim: 10 * MIB, ..Policy::default() };
        assert_eq!(policy.shrinks_to(30 * MIB, 20 * MIB), None);
        assert_eq!(policy.shrinks_to(31 * MIB, 20 * MIB), Some(25 * MIB));
        let floored = Policy { floor: 28 * MIB, ..policy };
        assert_eq!(floored.shrinks_to(31 * MIB, 20 * MIB), Some(28 * MIB));
        assert_eq!(Policy::default().shrinks_to(2 * MIB, 0), Some(0));
        assert_eq!(Policy::default().shrinks_to(2 * MIB, 2 * MIB), None);
        let limited = Policy { floor: 8 * MIB, most: Some(4 * MIB), ..Policy::default() };
        assert_eq!(limited.floor(), 4 * MIB);
    }
}
