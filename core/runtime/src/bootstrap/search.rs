//! The search for ranks that have met and do not connect.
//!
//! The end of a rank shows as the end of its connections. One that dies before it has made its first has
//! none, and nobody would be told: rank 0 connects to it now and then instead, and a process that has ended
//! no longer listens. None of this waits: a rank whose process is stopped or busy is not held for dead, since
//! the kernel answers for it.

use std::time::{Duration, Instant};

use hawser_oob::dial::{Dial, Ended};
use rustc_hash::FxHashMap;
use rustix::io::Errno;

use super::peer::Dialer;

/// The time that ranks have before they are looked for, and between two looks at one.
const PERIOD: Duration = Duration::from_millis(500);

/// The time after which a look at a process that does not answer is given up for another: the host may have
/// ended meanwhile.
const PATIENCE: Duration = Duration::from_secs(5);

/// The most looks at a time.
const SIDE_BY_SIDE: usize = 256;

/// The looks at ranks that are under way.
pub(super) struct Search {
    /// The time for which a host may give no sign of life.
    heartbeat: Option<Duration>,
    looks: FxHashMap<u32, Look>,
    next: Instant,
}

/// The looks at one rank.
struct Look {
    dial: Option<Dial>,
    /// The time since which its host has not answered.
    silent_since: Instant,
    next: Instant,
}

/// The outcome of one step of a look.
enum Found {
    /// Nothing yet, and nothing new.
    Nothing,
    /// Its host answers.
    Host,
    /// Its process answers.
    Process,
    /// There is no way to the host, for now.
    NoWay,
    /// This process could not look.
    Unknown,
    /// Its process has ended.
    Nobody(String),
}

impl Search {
    /// A search that begins after a while.
    pub fn new(heartbeat: Option<Duration>) -> Self {
        Self { heartbeat, looks: FxHashMap::default(), next: Instant::now() + PERIOD }
    }

    /// Looks for the ranks that are missing. Returns one that has gone, and the reason to think so.
    pub fn step(&mut self, dialer: &Dialer, missing: &[u32]) -> Option<(u32, String)> {
        let now = Instant::now();
        if now < self.next {
            return None;
        }
        self.looks.retain(|rank, _| missing.contains(rank));
        let room =
            SIDE_BY_SIDE.saturating_sub(self.looks.values().filter(|look| look.dial.is_some()).count());
        let is_due = |rank: &&u32| {
            let wait = |look: &Look| if look.dial.is_some() { PATIENCE } else { Duration::ZERO };
            self.looks.get(*rank).is_none_or(|look| now >= look.next + wait(look))
        };
        let due: Vec<u32> = missing.iter().filter(is_due).take(room).copied().collect();
        for rank in due {
            let new = || Look { dial: None, silent_since: now, next: now };
            let look = self.looks.entry(rank).or_insert_with(new);
            look.next = now + PERIOD;
            match dialer.begin_to_look(rank) {
                Ok(dial) => look.dial = Some(dial),
                Err(ended) => {
                    if let Found::Nobody(why) = look.note(found(&ended), now) {
                        return Some((rank, why));
                    }
                }
            }
        }
        let heartbeat = self.heartbeat;
        self.looks.iter_mut().find_map(|(rank, look)| Some((*rank, look.step(now, heartbeat)?)))
    }
}

impl Look {
    /// Returns the reason why nobody is there, if so.
    fn step(&mut self, now: Instant, heartbeat: Option<Duration>) -> Option<String> {
        let found = match self.dial.as_mut().map(Dial::advance) {
            None => Found::Nothing,
            Some(Ok(Some(_))) => Found::Process,
            Some(Ok(None)) if self.dial.as_ref().is_some_and(|dial| !dial.is_connecting()) => Found::Host,
            Some(Ok(None)) => Found::Nothing,
            Some(Err(ended)) => found(&ended),
        };
        if let Found::Nobody(why) = self.note(found, now) {
            return Some(why);
        }
        let silence = now.duration_since(self.silent_since);
        let is_lost = heartbeat.is_some_and(|limit| silence >= limit);
        is_lost.then(|| format!("its host has given no sign of life for {} s", silence.as_secs()))
    }

    /// Notes what was found.
    fn note(&mut self, found: Found, now: Instant) -> Found {
        match found {
            Found::Process | Found::Unknown => (self.dial, self.silent_since) = (None, now),
            Found::Host => self.silent_since = now,
            Found::NoWay => self.dial = None,
            Found::Nothing | Found::Nobody(_) => {}
        }
        found
    }
}

/// The meaning of a look that has failed.
fn found(ended: &Ended) -> Found {
    match ended {
        Ended::Unreachable(Errno::CONNREFUSED) => Found::Nobody("it no longer listens".into()),
        // Another program has its port by now.
        Ended::Handshake(_) => Found::Nobody(ended.to_string()),
        Ended::Unreachable(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => Found::Unknown,
        Ended::Unreachable(_) => Found::NoWay,
        // It took the connection and has closed it: it is about to end, or had no place left for this one.
        Ended::Broken(_) | Ended::Closed => Found::Process,
    }
}
