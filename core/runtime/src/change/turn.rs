//! What stands between the calls of a rank and changes: a number that calls compare themselves with, and behind it, for the
//! few that come near a change, the [`Gate`].

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::protocol::{Gate, Pass};
use crate::error::{Error, ErrorKind, Result};

/// How long a call that is held sleeps before it looks for an abort.
const SLICE: Duration = Duration::from_millis(20);

/// Counts the collectives of a rank and turns its rules over. `S` is what a change brings.
pub struct Turn<S> {
    /// Collectives begun.
    begun: AtomicU64,
    /// The first collective that has to ask the gate.
    asks: AtomicU64,
    gate: Mutex<Gate<S>>,
    changed: Condvar,
}

impl<S> Default for Turn<S> {
    fn default() -> Self {
        Self {
            begun: AtomicU64::new(0),
            asks: AtomicU64::new(u64::MAX),
            gate: Mutex::default(),
            changed: Condvar::new(),
        }
    }
}

impl<S> Turn<S> {
    /// The number of a collective that begins now, and whether it has to [`Turn::pass`] first.
    #[inline]
    pub fn begin(&self) -> (u64, bool) {
        // Both orders matter: whoever is not seen by `fence` sees the fence.
        let number = self.begun.fetch_add(1, Ordering::SeqCst);
        (number, number >= self.asks.load(Ordering::SeqCst))
    }

    /// How many have begun.
    pub fn begun(&self) -> u64 {
        self.begun.load(Ordering::SeqCst)
    }

    /// Takes the changes that count from this collective on, and waits where the decision is open. `stop` says why waiting makes
    /// no sense any more.
    ///
    /// # Errors
    /// What `stop` says; `Remote` when the decision may never come.
    pub fn pass(
        &self,
        number: u64,
        stop: impl Fn() -> Option<Error>,
        mut take: impl FnMut(u64, u64, S) -> Result<()>,
    ) -> Result<()> {
        let mut gate = self.lock();
        loop {
            match gate.pass(number) {
                Pass::Go => {
                    self.asks.store(gate.turn(), Ordering::SeqCst);
                    return Ok(());
                }
                Pass::Take(change, at, staged) => take(change, at, staged)?,
                Pass::Never(why) => return Err(Error::new(ErrorKind::Remote, why)),
                Pass::Hold => {
                    if let Some(error) = stop() {
                        return Err(error);
                    }
                    let waited = self.changed.wait_timeout(gate, SLICE);
                    gate = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }

    /// Changes the gate.
    pub fn with<T>(&self, change: impl FnOnce(&mut Gate<S>) -> T) -> T {
        let mut gate = self.lock();
        let answer = change(&mut gate);
        self.asks.store(gate.turn(), Ordering::SeqCst);
        self.changed.notify_all();
        answer
    }

    /// Puts a fence up that no collective has passed; says where.
    pub fn fence(&self, margin: u64) -> u64 {
        let mut gate = self.lock();
        loop {
            let fence = gate.fence(self.begun(), margin);
            self.asks.store(gate.turn(), Ordering::SeqCst);
            // A call that began in between may not have seen it.
            if self.begun() <= fence {
                return fence;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Gate<S>> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn without_a_change_nobody_asks() {
        let turn = Turn::<()>::default();
        assert_eq!((turn.begin(), turn.begin()), ((0, false), (1, false)));
    }

    /// A thread that calls as fast as it can never passes a fence, wherever it comes up, and takes each change in its place.
    #[test]
    fn a_fence_is_never_overrun() {
        let (turn, stop) = (Turn::<u64>::default(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let caller = scope.spawn(|| {
                let (mut seen, mut taken) = (0, Vec::new());
                while !stop.load(Ordering::Relaxed) {
                    let (number, asks) = turn.begin();
                    if asks {
                        turn.pass(
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
                let fence = turn.fence(change % 3);
                assert!(turn.begun() <= fence + 1, "a call has passed");
                turn.with(|gate| gate.commit(change, fence + change % 2, fence));
                while turn.begun() <= fence + 1 {
                    std::thread::yield_now();
                }
            }
            stop.store(true, Ordering::Relaxed);
            let (seen, taken) = caller.join().unwrap();
            assert_eq!(seen, turn.begun());
            assert_eq!(taken.len(), 2_000);
            assert!(taken.iter().all(|(number, at, fence)| number == at && at >= fence));
        });
    }

    #[test]
    fn who_is_held_can_be_stopped() {
        let turn = Turn::<()>::default();
        let fence = turn.fence(0);
        let stop = || Some(Error::new(ErrorKind::Aborted, "aborted"));
        assert_eq!(turn.pass(fence, stop, |_, _, ()| Ok(())).unwrap_err().kind, ErrorKind::Aborted);
        turn.with(|gate| gate.doubt("rank 0 is silent".into()));
        let error = turn.pass(fence, || None, |_, _, ()| Ok(())).unwrap_err();
        assert!(error.kind == ErrorKind::Remote && error.text.contains("rank 0 is silent"));
    }
}
