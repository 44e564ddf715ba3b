//! The one way to wait: abortable, with a deadline, and able to say who waits for whom.
//!
//! Every loop of the library that depends on somebody else asks a [`Wait`] on each turn. How long a thread
//! rests between two looks is [`Backoff`]'s to say; a poll(2) never blocks longer than [`Wait::slice`], so an
//! abort is seen within 20 ms.

use crate::error::{Error, ErrorKind, Result};
use hawser_oob::wait::Patience;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The longest sleep between two looks in [`Wait::until`].
pub const LONGEST_PAUSE: Duration = Duration::from_micros(200);

/// The longest time a system call may block before the abort flag is looked at again.
pub const LONGEST_SLICE: Duration = Duration::from_millis(20);

/// A thread looks all the time for so long; what arrives within it is not delayed by any pause.
pub const LIVELY: Duration = Duration::from_millis(2);

/// After [`LIVELY`], a pause is this part of the time that the thread has waited already.
const SHARE: u32 = 64;

/// Looks before a thread begins to give way to others that want its processor.
const SPINS: u32 = 200;

/// A thread that gives way and is away for longer than this has let another one run.
const AWAY: Duration = Duration::from_micros(3);

/// The number of waits that give way from their first look on, after a thread has found its processor wanted
/// by others.
const WANTED: u32 = 256;

/// A process whose threads were away so often sleeps for a moment: the kernel then looks for an idle
/// processor to wake the thread on, which it does not do for one that only gives way. Where none is idle the
/// moment is lost, so it takes twice as often for the next one, and half as often after one that helped.
const MOVE_AFTER: u32 = 64;
/// The longest interval between two such moments.
const MOVE_AT_LEAST_EVERY: u32 = 1 << 16;

/// Waits that still give way at once: processors are fewer than threads that look.
static CROWDED: AtomicU32 = AtomicU32::new(0);

/// Times that a thread was away since one of this process slept for a moment, and how many it takes for the
/// next.
static AWAYS: AtomicU32 = AtomicU32::new(0);
static MOVE_NEXT: AtomicU32 = AtomicU32::new(MOVE_AFTER);

/// One has slept for a moment, and nobody knows yet whether it helped.
static HAS_MOVED: AtomicBool = AtomicBool::new(false);

/// The rests of a thread between looks for something that another thread, process or device does.
///
/// It looks without a pause for [`LIVELY`], then sleeps for 1/64 of the time it has waited, at most
/// `longest`: so a pause never makes a wait more than 2 % longer, and a thread that waits for seconds uses
/// next to nothing of a processor. While it looks it gives way (`sched_yield`) to other threads that want the
/// processor: after some looks where nobody does, at once where somebody did just before. That is measured,
/// so it holds for few processors, for affinities and for quotas alike.
#[derive(Debug, Default)]
pub struct Backoff {
    looks: u32,
    since: Option<Instant>,
}

impl Backoff {
    /// A thread that has just found something.
    pub const fn new() -> Self {
        Self { looks: 0, since: None }
    }

    /// Something was found: the next wait begins.
    pub fn reset(&mut self) {
        (self.looks, self.since) = (0, None);
    }

    /// Rests until the next look; at most `longest` if it sleeps.
    pub fn rest(&mut self, longest: Duration) {
        if let Some(pause) = self.pause() {
            std::thread::sleep(pause.min(longest));
        }
    }

    /// Spins or gives way, or says how long the thread may sleep before it looks again.
    pub fn pause(&mut self) -> Option<Duration> {
        self.looks = self.looks.saturating_add(1);
        if self.looks < SPINS && CROWDED.load(Ordering::Relaxed) == 0 {
            std::hint::spin_loop();
            return None;
        }
        let before = Instant::now();
        let waited = before.duration_since(*self.since.get_or_insert(before));
        if waited > LIVELY {
            return Some(waited / SHARE);
        }
        give_way();
        None
    }
}

/// Lets other threads run, and notes whether any wanted to.
fn give_way() {
    let before = Instant::now();
    std::thread::yield_now();
    if before.elapsed() <= AWAY {
        let left = CROWDED.load(Ordering::Relaxed);
        if left == 1 && HAS_MOVED.swap(false, Ordering::Relaxed) {
            let next = MOVE_NEXT.load(Ordering::Relaxed);
            MOVE_NEXT.store((next / 2).max(MOVE_AFTER), Ordering::Relaxed);
        }
        CROWDED.store(left.saturating_sub(1), Ordering::Relaxed);
        return;
    }
    CROWDED.store(WANTED, Ordering::Relaxed);
    let next = MOVE_NEXT.load(Ordering::Relaxed);
    if AWAYS.fetch_add(1, Ordering::Relaxed) + 1 >= next {
        AWAYS.store(0, Ordering::Relaxed);
        HAS_MOVED.store(true, Ordering::Relaxed);
        MOVE_NEXT.store((next * 2).min(MOVE_AT_LEAST_EVERY), Ordering::Relaxed);
        std::thread::sleep(Duration::from_micros(1));
    }
}

/// A flag that ends every wait holding a clone of it. Once raised it stays raised.
#[derive(Clone, Debug, Default)]
pub struct AbortFlag(Arc<Flag>);

#[derive(Debug, Default)]
struct Flag {
    raised: AtomicBool,
    /// Counts as well, until the two are parted.
    parent: Option<AbortFlag>,
    parted: AtomicBool,
    /// The parent's own reason why waits are in vain does not count; that of its parent does.
    is_hopeful: bool,
    /// The reason why waits on the flag are in vain, and the time since when.
    doom: OnceLock<(Instant, Error)>,
}

/// The time for which a wait goes on that is in vain: what was on its way has come by then.
const IN_VAIN: Duration = Duration::from_millis(500);

impl AbortFlag {
    /// A flag that is not raised.
    pub fn new() -> Self {
        Self::default()
    }

    /// A flag that counts as raised while `self` is, until [`AbortFlag::part`].
    pub fn child(&self) -> Self {
        Self(Arc::new(Flag { parent: Some(self.clone()), ..Flag::default() }))
    }

    /// A flag that counts as raised while `self` is. Waits on it go on where those on `self` are in vain, for
    /// what needs nobody who has died; they end where those on the parent of `self` do.
    pub fn hopeful_child(&self) -> Self {
        Self(Arc::new(Flag { parent: Some(self.clone()), is_hopeful: true, ..Flag::default() }))
    }

    /// From now on this flag's parent does not count.
    pub fn part(&self) {
        self.0.parted.store(true, Ordering::Release);
    }

    /// Ends every wait on this flag. What was written before is visible to those who see the flag raised.
    pub fn raise(&self) {
        self.0.raised.store(true, Ordering::Release);
    }

    /// Waits on this flag are in vain, since somebody is dead. Those that find nothing for a while end with
    /// this error; nothing else changes. The first reason counts.
    pub fn doom(&self, why: Error) {
        let _ = self.0.doom.set((Instant::now(), why));
    }

    /// The reason why a wait that began at a moment is in vain, if it has gone on for long enough.
    fn end_in_vain(&self, began: Instant) -> Option<&Error> {
        if let Some((since, why)) = self.0.doom.get()
            && began.max(*since).elapsed() >= IN_VAIN
        {
            return Some(why);
        }
        let parent = self.unparted_parent()?;
        match self.0.is_hopeful {
            true => parent.unparted_parent()?.end_in_vain(began),
            false => parent.end_in_vain(began),
        }
    }

    /// The parent, where it counts.
    fn unparted_parent(&self) -> Option<&AbortFlag> {
        self.0.parent.as_ref().filter(|_| !self.0.parted.load(Ordering::Acquire))
    }

    /// True if somebody raised the flag.
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

    /// May the caller go on waiting? `describe` says who waits for whom, as in
    /// `rank 2 waits for rank 5 in all_gather`.
    ///
    /// # Errors
    /// `Aborted` when the flag is raised, `Timeout` with the sentence and the limit when the deadline has
    /// passed, or why the wait is in vain ([`AbortFlag::doom`]).
    pub fn check<S: Into<String>>(&self, describe: impl FnOnce() -> S) -> Result<()> {
        if self.abort.is_raised() {
            return Err(Error::new(ErrorKind::Aborted, format!("aborted while {}", describe().into())));
        }
        if let Some(why) = self.abort.end_in_vain(self.started) {
            return Err(why.clone().context(describe().into()));
        }
        match self.limit {
            Some(limit) if self.started.elapsed() >= limit => {
                let mut text =
                    format!("{}: no end within the deadline of {}", describe().into(), in_seconds(limit));
                if let Some(why) = hawser_oob::strangers::trouble() {
                    text = format!("{text} ({why})");
                }
                Err(Error::new(ErrorKind::Timeout, text))
            }
            _ => Ok(()),
        }
    }

    /// Calls `probe` until it returns something, with the pauses of a [`Backoff`] up to [`LONGEST_PAUSE`].
    ///
    /// # Errors
    /// As [`Wait::check`]. The probe is asked at least once, also when the deadline has already passed.
    pub fn until<T, S: Into<String>>(
        &self,
        mut probe: impl FnMut() -> Option<T>,
        describe: impl Fn() -> S,
    ) -> Result<T> {
        let mut backoff = Backoff::new();
        loop {
            if let Some(found) = probe() {
                return Ok(found);
            }
            self.check(&describe)?;
            backoff.rest(LONGEST_PAUSE);
        }
    }

    /// Time left until the deadline, zero when it has passed; `None` without a deadline.
    pub fn remaining(&self) -> Option<Duration> {
        self.limit.map(|limit| limit.saturating_sub(self.started.elapsed()))
    }

    /// The time that one blocking system call may take now.
    pub fn slice(&self) -> Duration {
        self.remaining().map_or(LONGEST_SLICE, |left| left.min(LONGEST_SLICE))
    }
}

impl Patience for Wait {
    type Error = Error;

    fn check(&self, describe: &dyn Fn() -> String) -> Result<()> {
        Wait::check(self, describe)
    }

    fn slice(&self) -> Duration {
        Wait::slice(self)
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
        let hopeful = parent.hopeful_child();
        parent.raise();
        assert!(hopeful.is_raised() && late.is_raised() && late.child().is_raised());
        assert!(!early.is_raised() && !own.is_raised());
        early.raise();
        assert!(early.is_raised());
    }

    #[test]
    fn a_thread_sleeps_only_a_small_part_of_what_it_waited() {
        let mut backoff = Backoff::new();
        let begin = Instant::now();
        let pause = std::iter::repeat_with(|| backoff.pause()).flatten().next().unwrap();
        let waited = begin.elapsed();
        assert!(waited >= LIVELY && pause <= waited / SHARE, "{pause:?} after {waited:?}");
        assert!(backoff.pause().is_some_and(|later| later >= pause));
        backoff.reset();
        assert_eq!(backoff.pause(), None);
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
    fn a_wait_in_vain_says_why_and_what_is_there_is_still_found() {
        let flag = AbortFlag::new();
        let wait = Wait::new(flag.child(), None);
        flag.doom(Error::remote("rank 5 has died"));
        flag.doom(Error::remote("rank 6 has died"));
        assert_eq!(wait.until(|| Some(7), || "rank 2 waits").unwrap(), 7);
        let error = wait.until(|| None::<()>, || "rank 2 waits").unwrap_err();
        assert_eq!((error.kind, error.text.as_str()), (ErrorKind::Remote, "rank 2 waits: rank 5 has died"));
        assert!(!flag.is_raised());
        Wait::new(flag.hopeful_child(), None).check(|| "rank 2 waits").unwrap();
        let grandchild = Wait::new(flag.child().hopeful_child(), None);
        assert!(grandchild.until(|| None::<()>, || "rank 2 waits").is_err());
        let parted = flag.child();
        parted.part();
        Wait::new(parted, None).check(|| "rank 2 waits").unwrap();
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
