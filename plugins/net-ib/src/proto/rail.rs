//! One rail at one end: its phase, its epochs, and what is under way on it.

use std::collections::VecDeque;

use super::{Epoch, Rules, Time, Why};

/// The phase that a rail is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    /// Nothing: all epochs are fenced here.
    Down,
    /// The driver makes a queue pair.
    Making,
    /// Sender: the peer was offered the new epoch.
    Offered,
    /// Sender: the driver connects.
    Connecting,
    /// Sender: probes are under way; so many came back.
    Probing(u8),
    /// Receiver: connected, waiting for probes.
    Ready,
    /// It carries data.
    Up,
    /// The driver fences.
    Fencing,
}

/// A work request under way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Posted {
    /// The number of the work request.
    pub wr: u64,
    /// The kind of the work request.
    pub work: Work,
    /// The number of bytes that it moves.
    pub bytes: u64,
    /// The moment at which it was posted.
    pub at: Time,
}

/// The kind of a work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Work {
    /// A chunk of this slot.
    Chunk(u64),
    /// A control message.
    Control,
}

/// The facts about a rail that the driver knows before it is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Spec {
    /// Speed in Mb/s, of the slower end as far as it is known; not 0.
    pub weight: u32,
    /// Rails of a higher tier carry data only while none of a lower one is up.
    pub tier: u8,
    /// The local port is usable.
    pub usable: bool,
}

/// The state of one rail at one end.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Rail {
    /// The speed in Mb/s, by which chunks are shared out; not 0.
    pub weight: u64,
    /// The tier: rails of a higher tier carry data only while none of a lower one is up.
    pub tier: u8,
    /// The local port is usable.
    pub usable: bool,
    /// The phase that the rail is in.
    pub phase: Phase,
    /// The number of the current, or last, queue pair.
    pub epoch: Epoch,
    /// Everything up to here is fenced at this end.
    pub fenced: Epoch,
    /// The same at the peer, as it said last.
    pub peer_fenced: Epoch,
    /// The value of `fenced` that the peer heard last.
    pub peer_heard: Epoch,
    /// The reason why the rail is not up.
    pub why: Why,
    /// Work requests that are not over, in order.
    pub posted: VecDeque<Posted>,
    /// Bytes in `posted`.
    pub bytes: u64,
    /// Control messages in `posted`.
    pub controls: u32,
    /// The probe or its echo that came last and was not answered yet.
    pub probed: Option<u8>,
    /// Receiver: an offer that came while the port was not usable, and where its queue pair is.
    pub offer: Option<(Epoch, Vec<u8>)>,
    /// Chunks written in this epoch, modulo 2^32 like the two below.
    pub written: u32,
    /// Chunks of this epoch that the receiver has taken off its queue.
    pub taken: u32,
    /// The value of `taken` that the receiver told last.
    pub told: u32,
    /// The moment at which something last moved.
    pub moved: Time,
    /// The moment at which the phase began.
    pub since: Time,
    /// The moment at which the rail is tried again.
    pub retry_at: Time,
    /// Sender: chunks that had to be written again.
    pub lost: u64,
    strikes: u32,
    tries: u32,
}

impl Rail {
    /// A rail that was never set up.
    pub fn new(spec: Spec, now: Time) -> Self {
        Self {
            weight: u64::from(spec.weight.max(1)),
            tier: spec.tier,
            usable: spec.usable,
            phase: Phase::Down,
            epoch: 0,
            fenced: 0,
            peer_fenced: 0,
            peer_heard: 0,
            why: Why::New,
            posted: VecDeque::new(),
            bytes: 0,
            controls: 0,
            probed: None,
            offer: None,
            written: 0,
            taken: 0,
            told: 0,
            moved: now,
            since: now,
            retry_at: now,
            lost: 0,
            strikes: 0,
            tries: 0,
        }
    }

    /// Tells whether data may use the rail.
    pub fn is_up(&self) -> bool {
        self.phase == Phase::Up
    }

    /// Begins a phase.
    pub fn enter(&mut self, phase: Phase, now: Time) {
        self.phase = phase;
        self.probed = None;
        self.since = now;
        self.moved = now;
        if phase == Phase::Up {
            self.tries = 0;
        }
    }

    /// The epoch is lost: decides when the rail may be tried again.
    pub fn lose(&mut self, why: Why, rules: &Rules, now: Time) {
        let pause = if self.phase == Phase::Up {
            if now.saturating_sub(self.since) >= rules.calm {
                self.strikes = 0;
            }
            self.strikes = self.strikes.saturating_add(1);
            let most = if self.is_damped(rules) { rules.damped_pause } else { rules.longest_pause };
            doubled(rules.pause, self.strikes - 1, most)
        } else {
            self.tries = self.tries.saturating_add(1);
            doubled(rules.pause, self.tries - 1, rules.longest_pause)
        };
        self.retry_at = self.retry_at.max(now.saturating_add(pause));
        self.why = why;
        self.enter(Phase::Fencing, now);
    }

    /// The port is back: no need to wait, unless it flaps.
    pub fn hurry(&mut self, rules: &Rules, now: Time) {
        if !self.is_damped(rules) {
            self.retry_at = self.retry_at.min(now.saturating_add(rules.pause / 2));
        }
    }

    /// The time at which the next attempt may begin; `dark`: no rail is up, so neither back-off nor damping
    /// has anything to spare.
    pub fn due(&self, dark: bool, rules: &Rules) -> Time {
        if dark { self.retry_at.min(self.since.saturating_add(2 * rules.pause)) } else { self.retry_at }
    }

    /// It was up once, and failed.
    pub fn has_failed(&self) -> bool {
        self.strikes > 0
    }

    fn is_damped(&self, rules: &Rules) -> bool {
        self.strikes > rules.strikes
    }

    /// Notes a work request that was posted.
    pub fn post(&mut self, posted: Posted) {
        if self.posted.is_empty() {
            self.moved = posted.at;
        }
        self.bytes += posted.bytes;
        match posted.work {
            Work::Chunk(_) => self.written = self.written.wrapping_add(1),
            Work::Control => self.controls += 1,
        }
        self.posted.push_back(posted);
    }

    /// A queue pair completes in order: this one and all before it are over.
    pub fn complete(&mut self, wr: u64, now: Time) -> Vec<Work> {
        let over = self.posted.iter().take_while(|posted| posted.wr <= wr).count();
        if over > 0 {
            self.moved = now;
        }
        let over: Vec<Posted> = self.posted.drain(..over).collect();
        for posted in &over {
            self.bytes -= posted.bytes;
            self.controls -= u32::from(posted.work == Work::Control);
        }
        over.into_iter().map(|posted| posted.work).collect()
    }

    /// Nothing is under way any more.
    pub fn clear(&mut self) -> Vec<Work> {
        (self.bytes, self.controls, self.written, self.taken, self.told) = (0, 0, 0, 0, 0);
        self.posted.drain(..).map(|posted| posted.work).collect()
    }
}

fn doubled(pause: Time, times: u32, most: Time) -> Time {
    pause.saturating_mul(1 << times.min(20)).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_flaps_are_damped() {
        let rules = Rules::default();
        let mut rail = Rail::new(Spec { weight: 1, tier: 0, usable: true }, 0);
        let mut now = 0;
        let mut pauses = Vec::new();
        for _ in 0..12 {
            rail.enter(Phase::Up, now);
            rail.lose(Why::Port, &rules, now);
            pauses.push(rail.retry_at - now);
            now = rail.retry_at;
        }
        assert_eq!(pauses[..5], [100_000, 200_000, 400_000, 800_000, 1_600_000]);
        assert_eq!(pauses[5..9], [3_200_000, 6_400_000, 12_800_000, 25_600_000]);
        assert_eq!(pauses[9..], [30_000_000; 3]);
        let before = rail.retry_at;
        rail.hurry(&rules, before - 20_000_000);
        assert_eq!(rail.retry_at, before);
        rail.enter(Phase::Up, now);
        now += rules.calm;
        rail.lose(Why::Port, &rules, now);
        assert_eq!(rail.retry_at - now, 100_000);
        rail.hurry(&rules, now);
        assert_eq!(rail.retry_at - now, 50_000);
    }

    #[test]
    fn attempts_never_wait_longer_than_the_longest_pause() {
        let rules = Rules::default();
        let mut rail = Rail::new(Spec { weight: 1, tier: 0, usable: true }, 0);
        for _ in 0..40 {
            let now = rail.retry_at;
            rail.enter(Phase::Offered, now);
            rail.lose(Why::NoAnswer, &rules, now);
            assert!(rail.retry_at - now <= rules.longest_pause);
        }
    }
}
