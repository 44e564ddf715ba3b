//! The one way to wait: abortable, with a deadline, and able to say who waits for whom.
//!
//! Every loop of the runtime that depends on somebody else asks a [`Wait`] on each turn. Pauses start at zero (spinning)
//! and grow to [`LONGEST_PAUSE`]; a poll(2) never blocks longer than [`Wait::slice`], so an abort is seen within 20 ms.

use crate::error::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The longest sleep between two looks in [`Wait::until`].
pub const LONGEST_PAUSE: Duration = Duration::from_micros(200);

/// The longest time a system call may block before the abort flag is looked at again.
pub const LONGEST_SLICE: Duration = Duration::from_millis(20);

/// Looks that spin before [`Wait::until`] gives up the processor, and looks that yield before it sleeps.
const SPINS: u32 = 200;
const YIELDS: u32 = 50;

/// A flag that ends every wait holding a clone of it. Once raised it stays raised.
#[derive(Clone, Debug, Default)]
pub struct AbortFlag(Arc<Flag>);

#[derive(Debug, Default)]
struct Flag {
    raised: AtomicBool,
    /// Counts as well, until the two are parted.
    parent: Option<AbortFlag>,
    parted: AtomicBool,
}

impl AbortFlag {
    /// A flag that is not raised.
    pub fn new() -> Self {
        Self::default()
    }

    /// A flag that counts as raised while `self` is, until [`AbortFlag::part`].
    pub fn child(&self) -> Self {
        Self(Arc::new(Flag { parent: Some(self.clone()), ..Flag::default() }))
    }

    /// From now on this flag's parent does not count.
    pub fn part(&self) {
        self.0.parted.store(true, Ordering::Release);
    }

    /// Ends every wait on this flag. What was written before is visible to those who see the flag raised.
    pub fn raise(&self) {
        self.0.raised.store(true, Ordering::Release);
    }

    /// Whether somebody raised the flag.
    pub fn is_raised(&self) -> bool {
        let by_parent = || {
            self.0.parent.as_ref().is_some_and(|p| !self.0.parted.load(Ordering::Acquire) && p.is_raised())
        };
        self.0.raised.load(Ordering::Acquire) || by_parent()
    }
}

/// Permission to wait: until the flag is raised or the deadline passes, whichever is first.
#[derive(Clone, Debug)]
pub struct Wait {
    abort: AbortFlag,
    started: Instant,
    limit: Option<Duration>,
}

impl Wait {
    /// Starts the clock now. `deadline` counts from now; `None` waits until the flag is raised.
    pub fn new(abort: AbortFlag, deadline: Option<Duration>) -> Self {
        Wait { abort, started: Instant::now(), limit: deadline }
    }

    /// A wait with the same flag whose deadline is `limit` from now or this one's, whichever is first.
    #[must_use]
    pub fn at_most(&self, limit: Duration) -> Wait {
        let limit = self.remaining().map_or(limit, |left| left.min(limit));
        Wait::new(self.abort.clone(), Some(limit))
    }

    /// The flag that ends this wait.
    pub fn abort_flag(&self) -> &AbortFlag {
        &self.abort
    }

    /// May the caller go on waiting? `describe` says who waits for whom, as in `rank 2 waits for rank 5 in all_gather`.
    ///
    /// # Errors
    /// `Aborted` when the flag is raised, `Timeout` with the sentence and the limit when the deadline has passed.
    pub fn check<S: Into<String>>(&self, describe: impl FnOnce() -> S) -> Result<()> {
        if self.abort.is_raised() {
            return Err(Error::new(ErrorKind::Aborted, format!("aborted while {}", describe().into())));
        }
        match self.limit {
            Some(limit) if self.started.elapsed() >= limit => {
                let text =
                    format!("{}: no end within the deadline of {}", describe().into(), in_seconds(limit));
                Err(Error::new(ErrorKind::Timeout, text))
            }
            _ => Ok(()),
        }
    }

    /// Calls `probe` until it returns something: first spinning, then yielding, then with pauses up to [`LONGEST_PAUSE`].
    ///
    /// # Errors
    /// As [`Wait::check`]. The probe is asked at least once, also when the deadline has already passed.
    pub fn until<T, S: Into<String>>(
        &self,
        mut probe: impl FnMut() -> Option<T>,
        describe: impl Fn() -> S,
    ) -> Result<T> {
        let mut looks = 0u32;
        loop {
            if let Some(found) = probe() {
                return Ok(found);
            }
            self.check(&describe)?;
            pause(looks);
            looks = looks.saturating_add(1);
        }
    }

    /// Time left until the deadline, zero when it has passed; `None` without a deadline.
    pub fn remaining(&self) -> Option<Duration> {
        self.limit.map(|limit| limit.saturating_sub(self.started.elapsed()))
    }

    /// How long one blocking system call may take now.
    pub fn slice(&self) -> Duration {
        self.remaining().map_or(LONGEST_SLICE, |left| left.min(LONGEST_SLICE))
    }
}

/// Waits a little, longer with every look that found nothing.
fn pause(looks: u32) {
    if looks < SPINS {
        std::hint::spin_loop();
    } else if looks < SPINS + YIELDS {
        std::thread::yield_now();
    } else {
        let doublings = ((looks - SPINS - YIELDS) / 8).min(8);
        std::thread::sleep(Duration::from_micros(1 << doublings).min(LONGEST_PAUSE));
    }
}

/// A duration as people write deadlines: `0.25 s`, `300 s`.
fn in_seconds(limit: Duration) -> String {
    let text = format!("{:.3}", limit.as_secs_f64());
    format!("{} s", text.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_counts_its_parent_until_they_part() {
        let (parent, own) = (AbortFlag::new(), AbortFlag::new());
        let [early, late] = [parent.child(), parent.child()];
        early.part();
        parent.raise();
        assert!(late.is_raised() && late.child().is_raised());
        assert!(!early.is_raised() && !own.is_raised());
        early.raise();
        assert!(early.is_raised());
    }

    #[test]
    fn a_raised_flag_ends_the_wait_with_the_sentence() {
        let flag = AbortFlag::new();
        let wait = Wait::new(flag.clone(), None);
        wait.check(|| "nothing yet").unwrap();
        let raiser = std::thread::spawn(move || flag.raise());
        let error = wait.until(|| None::<()>, || "rank 2 waits for rank 5").unwrap_err();
        raiser.join().unwrap();
        assert_eq!(error.kind, ErrorKind::Aborted);
        assert!(error.text.contains("rank 2 waits for rank 5"), "{error}");
    }

    #[test]
    fn an_expired_deadline_names_itself() {
        let wait = Wait::new(AbortFlag::new(), Some(Duration::from_millis(250)));
        assert!(wait.slice() <= LONGEST_SLICE);
        let error = wait.until(|| None::<()>, || "rank 0 waits for ranks 3, 5".to_string()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Timeout);
        assert_eq!(error.text, "rank 0 waits for ranks 3, 5: no end within the deadline of 0.25 s");
        assert_eq!(wait.remaining(), Some(Duration::ZERO));
        assert_eq!(wait.until(|| Some(7), || "ready").unwrap(), 7);
    }

    #[test]
    fn a_tighter_limit_keeps_the_flag_and_the_outer_deadline() {
        let wait = Wait::new(AbortFlag::new(), Some(Duration::from_secs(1)));
        assert!(wait.at_most(Duration::from_secs(100)).remaining().unwrap() <= Duration::from_secs(1));
        let inner = wait.at_most(Duration::ZERO);
        assert_eq!(inner.check(|| "x").unwrap_err().kind, ErrorKind::Timeout);
        wait.abort_flag().raise();
        assert_eq!(inner.check(|| "x").unwrap_err().kind, ErrorKind::Aborted);
    }
}
