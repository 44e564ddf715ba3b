//! The time of operations between hosts by stage: a clock for each stage that a slot passes on this host.
//!
//! Off until [`start`] is called; then every slot costs a few looks at the clock. One table for the process,
//! since it is for a person who measures one thing at a time (`hawser perf --where`).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A stage that a slot passes; they are listed in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// From the launch, or from what came before, until the device has filled a slot and the proxy has seen
    /// it.
    Device,
    /// The slot is given to the net plugin.
    Send,
    /// From what was sent last until something comes: the network, and all that the peer does.
    Away,
    /// A slot that came is taken from the plugin and told to the device.
    Receive,
}

impl Stage {
    /// All stages in the order in which a slot passes them.
    pub const ALL: [Self; 4] = [Self::Device, Self::Send, Self::Away, Self::Receive];

    /// Returns the name of the stage.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Send => "send",
            Self::Away => "away",
            Self::Receive => "receive",
        }
    }

    /// Returns a description of the stage in a few words.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Device => "from the launch, or what came before, until a slot is filled",
            Self::Send => "giving the slot to the net plugin",
            Self::Away => "from what was sent until something comes: network and peer",
            Self::Receive => "taking what came from the plugin",
        }
    }
}

/// The measurements of a stage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Measured {
    /// The number of times that the stage was passed.
    pub count: u64,
    /// The sum of all times.
    pub total: Duration,
    /// The longest time.
    pub longest: Duration,
}

struct Clock {
    count: AtomicU64,
    total_ns: AtomicU64,
    longest_ns: AtomicU64,
}

static IS_ON: AtomicBool = AtomicBool::new(false);
static CLOCKS: [Clock; Stage::ALL.len()] = [const {
    Clock { count: AtomicU64::new(0), total_ns: AtomicU64::new(0), longest_ns: AtomicU64::new(0) }
}; Stage::ALL.len()];

/// Measures from now on, from nothing.
pub fn start() {
    for clock in &CLOCKS {
        for number in [&clock.count, &clock.total_ns, &clock.longest_ns] {
            number.store(0, Ordering::Relaxed);
        }
    }
    IS_ON.store(true, Ordering::Release);
}

/// Measures no more; what was measured stays.
pub fn stop() {
    IS_ON.store(false, Ordering::Release);
}

/// Returns what was measured of a stage so far.
pub fn measured(stage: Stage) -> Measured {
    let clock = &CLOCKS[stage as usize];
    Measured {
        count: clock.count.load(Ordering::Relaxed),
        total: Duration::from_nanos(clock.total_ns.load(Ordering::Relaxed)),
        longest: Duration::from_nanos(clock.longest_ns.load(Ordering::Relaxed)),
    }
}

/// The moment, if anybody measures.
pub fn now() -> Option<Instant> {
    IS_ON.load(Ordering::Relaxed).then(Instant::now)
}

/// A stage has lasted from `since` until now, which is returned.
pub fn passed(stage: Stage, since: Option<Instant>) -> Option<Instant> {
    let now = now()?;
    if let Some(since) = since {
        let ns = now.duration_since(since).as_nanos() as u64;
        let clock = &CLOCKS[stage as usize];
        clock.count.fetch_add(1, Ordering::Relaxed);
        clock.total_ns.fetch_add(ns, Ordering::Relaxed);
        clock.longest_ns.fetch_max(ns, Ordering::Relaxed);
    }
    Some(now)
}

/// The moments that the stages of one communicator are counted from.
#[derive(Debug, Default)]
pub struct Trace {
    /// The device has had something to do since.
    device: Option<Instant>,
    /// Something was sent, and nothing has come since.
    sent: Option<Instant>,
}

impl Trace {
    /// Operations were launched.
    pub fn launched(&mut self) {
        self.device = now();
    }

    /// A slot is filled, and will be given to the plugin now.
    pub fn filled(&mut self) -> Option<Instant> {
        passed(Stage::Device, self.device.take())
    }

    /// It was, `since` it was seen to be filled.
    pub fn sent(&mut self, since: Option<Instant>) {
        self.sent = passed(Stage::Send, since);
    }

    /// Something has come, for which the plugin was asked at `since`; the device has been told.
    pub fn came(&mut self, since: Option<Instant>) {
        if let Some((sent, asked)) = self.sent.take().zip(since) {
            let away = asked.saturating_duration_since(sent);
            // What was asked for has come before.
            passed(Stage::Away, Instant::now().checked_sub(away));
        }
        self.device = passed(Stage::Receive, since);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stages_of_a_slot_follow_one_another() {
        let mut trace = Trace::default();
        assert_eq!(trace.filled(), None, "nobody measures");
        start();
        trace.launched();
        let filled = trace.filled();
        trace.sent(filled);
        trace.came(now());
        trace.filled();
        let counts = Stage::ALL.map(|stage| measured(stage).count);
        assert_eq!(counts, [2, 1, 1, 1]);
        stop();
        assert!(Stage::ALL.iter().all(|stage| measured(*stage).longest <= measured(*stage).total));
    }
}
