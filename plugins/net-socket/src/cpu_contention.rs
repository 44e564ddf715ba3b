//! A measure of contention for processors: do the threads have to wait for one?
//!
//! A thread that is kept from running while the host's thread spins in `test` makes everything slower than no
//! thread at all: eight ranks on 16 processors moved half as much with two threads each as with none. So the
//! threads measure how long they are ready to run and do not (the second figure of
//! `/proc/thread-self/schedstat`); if that is long, the host's threads help for a while. Then it is tried
//! again without them, at ever longer intervals while nothing changes.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::config::Help;

/// The time that one measurement lasts.
const WINDOW: Duration = Duration::from_millis(20);
/// The time for which the host's threads help at first, and at most, in milliseconds.
const REST: [u64; 2] = [250, 4000];

/// Of a context.
pub(crate) struct CpuContention {
    help: Help,
    begin: Instant,
    /// Milliseconds after `begin`.
    until: AtomicU64,
    rest: AtomicU64,
}

impl CpuContention {
    pub fn new(help: Help) -> Self {
        Self { help, begin: Instant::now(), until: AtomicU64::new(0), rest: AtomicU64::new(REST[0]) }
    }

    /// Tells whether the host's threads should help.
    pub fn is_on(&self) -> bool {
        match self.help {
            Help::Always => true,
            Help::Never => false,
            Help::WhenCrowded => match self.until.load(Ordering::Relaxed) {
                0 => false,
                until => self.begin.elapsed().as_millis() < u128::from(until),
            },
        }
    }

    /// Takes in what a thread has measured while nobody helped.
    fn report(&self, is_late: bool) {
        if !is_late {
            self.rest.store(REST[0], Ordering::Relaxed);
            return;
        }
        let rest = self.rest.load(Ordering::Relaxed);
        self.rest.store((rest * 2).min(REST[1]), Ordering::Relaxed);
        self.until.store(self.begin.elapsed().as_millis() as u64 + rest, Ordering::Relaxed);
    }
}

/// Of a thread.
pub(crate) struct Meter {
    /// None where the kernel does not say.
    file: Option<File>,
    since: Instant,
    /// Nanoseconds on a processor, and ready for one, at `since`.
    last: [u64; 2],
}

impl Meter {
    /// Of the calling thread.
    pub fn start(contention: &CpuContention) -> Self {
        let file = (contention.help == Help::WhenCrowded)
            .then(|| File::open("/proc/thread-self/schedstat").ok())
            .flatten();
        let mut meter = Self { file, since: Instant::now(), last: [0; 2] };
        meter.last = meter.read().unwrap_or_default();
        meter
    }

    /// To be called now and then by a thread that works.
    pub fn look(&mut self, contention: &CpuContention) {
        if self.file.is_none() || self.since.elapsed() < WINDOW {
            return;
        }
        let Some(now) = self.read() else {
            self.file = None;
            return;
        };
        let [ran, waited] = [0, 1].map(|i| now[i].saturating_sub(self.last[i]));
        (self.since, self.last) = (Instant::now(), now);
        if !contention.is_on()
            && let Some(is_late) = verdict(ran, waited)
        {
            contention.report(is_late);
        }
    }

    fn read(&self) -> Option<[u64; 2]> {
        let mut text = [0; 96];
        let len = self.file.as_ref()?.read_at(&mut text, 0).ok()?;
        parse(&text[..len])
    }
}

fn parse(text: &[u8]) -> Option<[u64; 2]> {
    let mut words = std::str::from_utf8(text).ok()?.split_ascii_whitespace().map(str::parse);
    Some([words.next()?.ok()?, words.next()?.ok()?])
}

/// True if a thread that ran and waited so many nanoseconds was kept from its work; None if it had too
/// little.
fn verdict(ran: u64, waited: u64) -> Option<bool> {
    (ran + waited >= WINDOW.as_nanos() as u64 / 10).then_some(waited > ran / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_wait_for_processors_are_helped_for_a_while() {
        let contention = CpuContention::new(Help::WhenCrowded);
        assert!(!contention.is_on());
        contention.report(false);
        assert!(!contention.is_on());
        contention.report(true);
        assert!(contention.is_on());
        assert_eq!(contention.rest.load(Ordering::Relaxed), 2 * REST[0]);
        (0..9).for_each(|_| contention.report(true));
        assert_eq!(contention.rest.load(Ordering::Relaxed), REST[1]);
        // Long ago.
        contention.until.store(1, Ordering::Relaxed);
        while contention.begin.elapsed() < Duration::from_millis(2) {}
        assert!(!contention.is_on());
        contention.report(false);
        assert_eq!(contention.rest.load(Ordering::Relaxed), REST[0]);
        assert!(CpuContention::new(Help::Always).is_on());
        let never = CpuContention::new(Help::Never);
        never.report(true);
        assert!(!never.is_on());
    }

    #[test]
    fn what_the_kernel_says() {
        assert_eq!(parse(b"1284753 25000 17\n"), Some([1_284_753, 25_000]));
        assert_eq!([parse(b""), parse(b"12"), parse(b"a b c"), parse(b"\xff 1")], [None; 4]);
        assert_eq!(verdict(1_000, 500_000), None, "nothing to do");
        assert_eq!(
            [verdict(10_000_000, 1_000_000), verdict(5_000_000, 5_000_000)],
            [Some(false), Some(true)]
        );
    }

    #[test]
    fn a_thread_measures_itself() {
        let contention = CpuContention::new(Help::WhenCrowded);
        let mut meter = Meter::start(&contention);
        if meter.file.is_none() {
            return; // The kernel was built without it.
        }
        let before = meter.read().unwrap();
        while meter.since.elapsed() < 2 * WINDOW {}
        let after = meter.read().unwrap();
        assert!(after[0] + after[1] > before[0] + before[1], "{before:?} {after:?}");
        meter.look(&contention);
        assert!(meter.since.elapsed() < WINDOW || meter.last != before);
    }
}
