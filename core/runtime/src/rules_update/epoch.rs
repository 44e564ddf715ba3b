//! The epoch between the calls of a rank and changes of rules: a number that calls compare themselves with,
//! and behind it, for the few that come near a change, the [`Barrier`].
//!
//! The tests of `loom` try every order of a rank's calls and a fence (CONTRIBUTING.md, Models).

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hawser_base::error::{Error, ErrorKind, Result};

use super::protocol::{Barrier, Pass};
use crate::model::{AtomicU64, Condvar, Mutex, MutexGuard, sequential};
use crate::planted::{Bug, is_planted};

/// The time that a call that is held sleeps before it looks for an abort.
const SLICE: Duration = Duration::from_millis(20);

/// The count of a rank's collectives, which finds the one at which its rules change. `S` is what a change
/// brings.
pub struct Epoch<S> {
    /// The number of collectives that have begun.
    begun: AtomicU64,
    /// The first collective that has to ask the barrier.
    asks: AtomicU64,
    barrier: Mutex<Barrier<S>>,
    changed: Condvar,
}

impl<S> Default for Epoch<S> {
    fn default() -> Self {
        Self {
            begun: AtomicU64::new(0),
            asks: AtomicU64::new(u64::MAX),
            barrier: Mutex::new(Barrier::default()),
            changed: Condvar::new(),
        }
    }
}

impl<S> Epoch<S> {
    /// The number of a collective that begins now, and whether it has to [`Epoch::pass`] first.
    #[inline]
    pub fn begin(&self) -> (u64, bool) {
        // Both orders matter: whoever is not seen by `fence` sees the fence.
        let number = self.begun.fetch_add(1, Ordering::SeqCst);
        sequential();
        (number, number >= self.asks.load(Ordering::SeqCst))
    }

    /// The number of collectives that have begun.
    pub fn begun(&self) -> u64 {
        self.begun.load(Ordering::SeqCst)
    }

    /// Takes the changes that count from this collective on, and waits where the decision is open. `stop`
    /// says why waiting makes no sense any more.
    ///
    /// # Errors
    /// The error that `stop` gives; `Remote` when the decision may never come.
    pub fn pass(
        &self,
        number: u64,
        stop: impl Fn() -> Option<Error>,
        mut take: impl FnMut(u64, u64, S) -> Result<()>,
    ) -> Result<()> {
        let mut barrier = self.lock();
        loop {
            let late = u64::from(is_planted(Bug::EpochOffByOne));
            match barrier.pass(number.saturating_sub(late)) {
                Pass::Go => {
                    self.asks.store(barrier.epoch(), Ordering::SeqCst);
                    return Ok(());
                }
                Pass::Take(change, at, staged) => take(change, at, staged)?,
                Pass::Never(why) => return Err(Error::new(ErrorKind::Remote, why)),
                Pass::Hold => {
                    if let Some(error) = stop() {
                        return Err(error);
                    }
                    let waited = self.changed.wait_timeout(barrier, SLICE);
                    barrier = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }

    /// Changes the barrier, and wakes the calls that it holds.
    pub fn with<T>(&self, change: impl FnOnce(&mut Barrier<S>) -> T) -> T {
        let mut barrier = self.lock();
        let answer = change(&mut barrier);
        self.asks.store(barrier.epoch(), Ordering::SeqCst);
        self.changed.notify_all();
        answer
    }

    /// Puts up a fence that no collective has passed. Returns the number of the collective that it stands at.
    pub fn fence(&self, margin: u64) -> u64 {
        let mut barrier = self.lock();
        if is_planted(Bug::MissingFence) {
            return self.begun();
        }
        loop {
            let fence = barrier.fence(self.begun(), margin);
            self.asks.store(barrier.epoch(), Ordering::SeqCst);
            sequential();
            // A call that began in between may not have seen it.
            if self.begun() <= fence {
                return fence;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Barrier<S>> {
        self.barrier.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, feature = "loom"))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;

    /// The collectives that a rank begins in the model.
    const CALLS: u64 = 3;

    /// Whatever the order: a change that is decided for a collective is taken by exactly that one, or by none
    /// where the rank begins no more, and no collective is run by two sets of rules.
    #[test]
    fn loom_a_change_is_taken_by_the_collective_that_it_was_decided_for() {
        for margin in 0..2 {
            loom::model(move || {
                let epoch = Arc::new(Epoch::<u64>::default());
                let rank = epoch.clone();
                let caller = loom::thread::spawn(move || {
                    let mut taken = Vec::new();
                    for _ in 0..CALLS {
                        let (number, asks) = rank.begin();
                        if asks {
                            let take = |_, at, fence| {
                                taken.push((number, at, fence));
                                Ok(())
                            };
                            rank.pass(number, || None, take).unwrap();
                        }
                    }
                    taken
                });
                let fence = epoch.fence(margin);
                epoch.with(|barrier| barrier.commit(1, fence, fence));
                let taken = caller.join().unwrap();
                let expected: &[_] = if fence < CALLS { &[(fence, fence, fence)] } else { &[] };
                assert_eq!(taken, expected);
            });
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn without_a_change_nobody_asks() {
        let epoch = Epoch::<()>::default();
        assert_eq!((epoch.begin(), epoch.begin()), ((0, false), (1, false)));
    }

    /// A thread that calls as fast as it can never passes a fence, wherever it comes up, and takes each
    /// change in its place.
    #[test]
    fn a_fence_is_never_overrun() {
        let (epoch, stop) = (Epoch::<u64>::default(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let caller = scope.spawn(|| {
                let (mut seen, mut taken) = (0, Vec::new());
                while !stop.load(Ordering::Relaxed) {
                    let (number, asks) = epoch.begin();
                    if asks {
                        epoch
                            .pass(
                                number,
                                || None,
                                |_, at, fence| {
                                    taken.push((number, at, fence));
                                    Ok(())
                                },
                            )
                            .unwrap();
                    }
                    seen += 1;
                }
                (seen, taken)
            });
            for change in 1..=2_000 {
                let fence = epoch.fence(change % 3);
                assert!(epoch.begun() <= fence + 1, "a call has passed");
                epoch.with(|barrier| barrier.commit(change, fence + change % 2, fence));
                while epoch.begun() <= fence + 1 {
                    std::thread::yield_now();
                }
            }
            stop.store(true, Ordering::Relaxed);
            let (seen, taken) = caller.join().unwrap();
            assert_eq!(seen, epoch.begun());
            assert_eq!(taken.len(), 2_000);
            assert!(taken.iter().all(|(number, at, fence)| number == at && at >= fence));
        });
    }

    #[test]
    fn who_is_held_can_be_stopped() {
        let epoch = Epoch::<()>::default();
        let fence = epoch.fence(0);
        let stop = || Some(Error::new(ErrorKind::Aborted, "aborted"));
        assert_eq!(epoch.pass(fence, stop, |_, _, ()| Ok(())).unwrap_err().kind, ErrorKind::Aborted);
        epoch.with(|barrier| barrier.doubt("rank 0 is silent".into()));
        let error = epoch.pass(fence, || None, |_, _, ()| Ok(())).unwrap_err();
        assert!(error.kind == ErrorKind::Remote && error.text.contains("rank 0 is silent"));
    }
}
