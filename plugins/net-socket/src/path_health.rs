//! A judgement of a socket's path as the kernel sees it: is it alive? A kernel answers even when its program
//! does not read.
//!
//! 1. A packet or window probe that was repeated [`SILENCE`] times without any answer: the path is lost.
//! 2. Nothing is acknowledged for a while although the peer has room: lost too. Linux can sit like that for
//!    minutes after a link was away, because it tried to send while there was no route and now waits longer
//!    and longer. It can also have missed that a full peer has room again, so the patience with one that has
//!    none ends too, later. The patience doubles with each such loss and comes back with progress, so a
//!    mistake costs little.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use crate::control::Loss;
use crate::sys::{self, Flow};

/// About 1.5 s of silence, longer if the path has long round trips.
const SILENCE: u32 = 3;
const FIRST_PATIENCE: Duration = Duration::from_secs(2);
const LAST_PATIENCE: Duration = Duration::from_secs(60);
/// The factor by which the patience with a peer without room is longer.
const FULL: u32 = 8;

/// Watches one socket after the other.
#[derive(Debug)]
pub(crate) struct PathHealth {
    acknowledged: u64,
    /// Since when it should move and does not.
    stuck: Option<Instant>,
    patience: Duration,
}

impl Default for PathHealth {
    fn default() -> Self {
        Self { acknowledged: 0, stuck: None, patience: FIRST_PATIENCE }
    }
}

impl PathHealth {
    /// Looks at the socket; to be called every now and then. Some: its path is lost.
    pub fn look(&mut self, fd: BorrowedFd<'_>) -> Option<Loss> {
        self.judge(sys::flow(fd)?, Instant::now())
    }

    fn judge(&mut self, flow: Flow, now: Instant) -> Option<Loss> {
        if flow.unanswered >= SILENCE {
            self.restart();
            return Some(Loss::silence());
        }
        if !flow.is_pending || flow.acknowledged != self.acknowledged {
            if flow.is_pending && self.stuck.is_some() {
                self.patience = FIRST_PATIENCE;
            }
            self.acknowledged = flow.acknowledged;
            self.stuck = flow.is_pending.then_some(now);
            return None;
        }
        let since = *self.stuck.get_or_insert(now);
        let patience = if flow.has_room { self.patience } else { self.patience * FULL };
        if now.duration_since(since) < patience {
            return None;
        }
        self.patience = (self.patience * 2).min(LAST_PATIENCE);
        self.restart();
        Some(Loss::standstill())
    }

    /// The next socket counts from 0.
    pub fn restart(&mut self) {
        (self.acknowledged, self.stuck) = (0, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(acknowledged: u64, is_pending: bool) -> Flow {
        Flow { unanswered: 0, acknowledged, is_pending, has_room: true }
    }

    #[test]
    fn silence_is_a_loss_at_once() {
        let mut path_health = PathHealth::default();
        let now = Instant::now();
        assert_eq!(path_health.judge(Flow { unanswered: 2, ..flow(5, true) }, now), None);
        assert_eq!(path_health.judge(Flow { unanswered: 3, ..flow(6, true) }, now), Some(Loss::silence()));
    }

    #[test]
    fn a_standstill_is_a_loss_after_a_while_and_a_longer_while_the_next_time() {
        let mut path_health = PathHealth::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(path_health.judge(flow(100, true), at(0)), None);
        assert_eq!(path_health.judge(flow(100, true), at(1)), None);
        assert_eq!(path_health.judge(flow(200, true), at(2)), None);
        assert_eq!(path_health.judge(flow(200, true), at(3)), None);
        assert_eq!(path_health.judge(flow(200, true), at(4)), Some(Loss::standstill()));
        assert_eq!(path_health.judge(flow(0, true), at(5)), None);
        assert_eq!(path_health.judge(flow(0, true), at(8)), None);
        assert_eq!(path_health.judge(flow(0, true), at(9)), Some(Loss::standstill()));
        assert_eq!(path_health.judge(flow(10, true), at(10)), None);
        assert_eq!(path_health.judge(flow(20, true), at(11)), None);
        assert_eq!(path_health.judge(flow(20, true), at(13)), Some(Loss::standstill()));
    }

    #[test]
    fn a_quiet_socket_may_stand_still_and_a_full_one_for_longer() {
        let mut path_health = PathHealth::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        for seconds in 0..1000 {
            assert_eq!(path_health.judge(flow(100, false), at(seconds)), None);
        }
        let full = Flow { has_room: false, ..flow(100, true) };
        assert_eq!(path_health.judge(full, at(1000)), None);
        assert_eq!(path_health.judge(full, at(1015)), None);
        assert_eq!(path_health.judge(full, at(1016)), Some(Loss::standstill()));
    }
}
