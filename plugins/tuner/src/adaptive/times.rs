//! Measured times, the latest few of a kind.

use std::collections::VecDeque;

/// So many are kept.
const KEPT: usize = 16;

/// The latest times of something, in microseconds.
#[derive(Debug, Clone, Default)]
pub struct Times(VecDeque<f32>);

impl Times {
    /// One more; the oldest goes.
    pub fn push(&mut self, us: f32) {
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        self.0.push_back(us);
    }

    /// The number of times.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The time that a share of them does not exceed; 0 without any.
    pub fn quantile(&self, share: f32) -> f32 {
        let mut sorted = Vec::with_capacity(KEPT);
        for us in &self.0 {
            sorted.insert(sorted.partition_point(|other: &f32| other.total_cmp(us).is_le()), *us);
        }
        let at = (share * sorted.len().saturating_sub(1) as f32).round() as usize;
        sorted.get(at).copied().unwrap_or(0.0)
    }

    /// Half of them are not longer.
    pub fn median(&self) -> f32 {
        self.quantile(0.5)
    }

    /// Three quarters of them are not longer.
    pub fn upper(&self) -> f32 {
        self.quantile(0.75)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_count() {
        let mut times = Times::default();
        assert_eq!((times.count(), times.median()), (0, 0.0));
        (1..=5).rev().for_each(|us| times.push(us as f32));
        assert_eq!((times.quantile(0.25), times.median(), times.upper()), (2.0, 3.0, 4.0));
        (0..KEPT).for_each(|_| times.push(9.0));
        assert_eq!((times.count(), times.quantile(0.0)), (KEPT, 9.0));
    }
}
