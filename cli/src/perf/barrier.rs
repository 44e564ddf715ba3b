//! Barrier and sums over all threads of all processes, and how a failure reaches everyone.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use super::control::Control;
use super::library::Stop;

/// The time in which threads must come back after a failure.
const GRACE: Duration = Duration::from_secs(5);

/// The numbers that one thread tells the others.
pub type Row = [f64; 4];

/// A barrier of the threads of this process, and through [`Control`] of those of the others.
pub struct Barrier {
    threads: usize,
    timeout: Duration,
    grace: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    control: Control,
    rows: Vec<Option<Row>>,
    /// Counts finished exchanges.
    generation: u64,
    result: Arc<Vec<Row>>,
    failure: Option<String>,
    finished: bool,
    /// To be called when something fails.
    stops: Vec<Stop>,
}

impl Barrier {
    /// A barrier for `threads` threads in this process. Every wait is bounded by `timeout`.
    pub fn new(control: Control, threads: usize, timeout: Duration) -> Self {
        let state = State {
            control,
            rows: vec![None; threads],
            generation: 0,
            result: Arc::default(),
            failure: None,
            finished: false,
            stops: Vec::new(),
        };
        Self { threads, timeout, grace: GRACE, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Sets the stops that [`Barrier::fail`] calls, so that nobody waits in a communicator for ever.
    pub fn register(&self, stops: impl Iterator<Item = Stop>) {
        self.lock().stops.extend(stops);
    }

    /// Gives a row and returns the rows of all threads of all processes, in order. Also a barrier.
    ///
    /// # Errors
    /// Some thread failed, or did not come in time.
    pub fn exchange(&self, thread: usize, row: Row) -> Result<Arc<Vec<Row>>> {
        let deadline = Instant::now() + self.timeout;
        let mut state = self.lock();
        state.rows[thread] = Some(row);
        let generation = state.generation;
        if state.rows.iter().all(Option::is_some) && state.failure.is_none() {
            let outcome = state.exchange_processes();
            state.generation += 1;
            self.changed.notify_all();
            return outcome.map(|()| Arc::clone(&state.result));
        }
        while state.generation == generation {
            if let Some(failure) = &state.failure {
                return Err(anyhow!("stopped: {failure}"));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let here = state.rows.iter().filter(|r| r.is_some()).count();
                return Err(anyhow!(
                    "only {here} of {} threads arrived within {:?}",
                    self.threads,
                    self.timeout
                ));
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        match &state.failure {
            Some(failure) => Err(anyhow!("stopped: {failure}")),
            None => Ok(Arc::clone(&state.result)),
        }
    }

    /// Waits for all threads of all processes.
    ///
    /// # Errors
    /// As [`Barrier::exchange`].
    pub fn wait(&self, thread: usize) -> Result<()> {
        self.exchange(thread, [0.0; 4]).map(drop)
    }

    /// Tells all threads of this process to stop, and stops what they wait in. Returns the first
    /// failure: the cause, whatever followed from it.
    pub fn fail(&self, text: &str) -> String {
        let (first, stops) = self.record(text);
        stops.iter().for_each(|stop| stop());
        first
    }

    /// Fails the barrier when nothing was exchanged for the time of `timeout`. Returns when
    /// [`Barrier::finish`] was called; or, with the failure, when something failed and threads did not come
    /// back in the time of `grace`: they hang in a call that nothing can end.
    pub fn watch(&self) -> Option<String> {
        let mut state = self.lock();
        let (mut seen, mut since) = (state.generation, Instant::now());
        let mut failed: Option<Instant> = None;
        while !state.finished {
            if state.failure.is_some() {
                failed = failed.or_else(|| Some(Instant::now()));
            }
            if state.generation != seen {
                (seen, since) = (state.generation, Instant::now());
            }
            let left = match failed {
                Some(failed) => self.grace.saturating_sub(failed.elapsed()),
                None => self.timeout.saturating_sub(since.elapsed()),
            };
            if left.is_zero() && failed.is_some() {
                return state.failure.clone();
            }
            if left.is_zero() {
                drop(state);
                let timeout = self.timeout.as_secs_f64();
                let (_, stops) = self.record(&format!(
                    "no progress for {timeout} s: a rank hangs or is gone (-T sets this deadline)"
                ));
                // Apart, since stopping may hang as well.
                std::thread::spawn(move || stops.iter().for_each(|stop| stop()));
                state = self.lock();
                continue;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        None
    }

    /// Ends [`Barrier::watch`].
    pub fn finish(&self) {
        self.lock().finished = true;
        self.changed.notify_all();
    }

    /// The first failure, and what is to be stopped because of it, once.
    fn record(&self, text: &str) -> (String, Vec<Stop>) {
        let mut state = self.lock();
        let first = state.failure.get_or_insert_with(|| text.to_owned()).clone();
        let stops = std::mem::take(&mut state.stops);
        drop(state);
        self.changed.notify_all();
        (first, stops)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Runs on the thread that came last.
    fn exchange_processes(&mut self) -> Result<()> {
        let mine: Vec<u8> =
            self.rows.iter_mut().filter_map(Option::take).flatten().flat_map(f64::to_le_bytes).collect();
        let outcome =
            self.control.exchange(&mine).map(|all| all.iter().flat_map(|bytes| rows(bytes)).collect());
        match outcome {
            Ok(rows) => {
                self.result = Arc::new(rows);
                Ok(())
            }
            Err(error) => {
                self.failure.get_or_insert_with(|| format!("{error:#}"));
                Err(error)
            }
        }
    }
}

fn rows(bytes: &[u8]) -> Vec<Row> {
    let word = |b: &[u8]| b.try_into().map_or(f64::NAN, f64::from_le_bytes);
    let row = |b: &[u8]| std::array::from_fn(|i| word(&b[i * 8..i * 8 + 8]));
    bytes.chunks_exact(size_of::<Row>()).map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::super::launcher::{Meeting, Place};
    use super::*;

    fn barrier(threads: usize) -> Arc<Barrier> {
        let place = Place { process: 0, processes: 1, local: 0, launched: false, meeting: Meeting::Alone };
        let control = Control::meet(&place, Duration::from_secs(60)).expect("alone");
        Arc::new(Barrier::new(control, threads, Duration::from_secs(60)))
    }

    #[test]
    fn rows_come_back_in_order_round_after_round() {
        let barrier = barrier(3);
        let threads: Vec<_> = (0..3)
            .map(|t| {
                let barrier = Arc::clone(&barrier);
                std::thread::spawn(move || {
                    (0..100).all(|round| {
                        let rows =
                            barrier.exchange(t, [t as f64, f64::from(round), 0.0, 0.0]).expect("exchange");
                        rows.iter().enumerate().all(|(i, r)| r[0] == i as f64 && r[1] == f64::from(round))
                    })
                })
            })
            .collect();
        assert!(threads.into_iter().all(|t| t.join().expect("thread")));
    }

    #[test]
    fn a_failure_releases_those_who_wait() {
        let barrier = barrier(2);
        let waiting = Arc::clone(&barrier);
        let thread = std::thread::spawn(move || waiting.wait(0));
        assert_eq!(barrier.fail("rank 1 broke"), "rank 1 broke");
        assert_eq!(barrier.fail("follow-up"), "rank 1 broke");
        let error = thread.join().expect("thread").expect_err("released").to_string();
        assert!(error.contains("rank 1 broke"), "{error}");
        assert!(barrier.wait(0).is_err());
    }

    #[test]
    fn the_watch_ends_with_the_work() {
        let working = barrier(1);
        working.finish();
        assert_eq!(working.watch(), None);
        assert!(working.wait(0).is_ok());
    }

    #[test]
    fn the_watch_fails_and_stops_what_hangs_and_tells_who_never_returns() {
        let (sender, stopped) = std::sync::mpsc::channel();
        let short = Duration::from_millis(1);
        let hanging =
            Barrier { timeout: short, grace: short, ..Arc::into_inner(barrier(1)).expect("the only one") };
        hanging.register(std::iter::once(Box::new(move || sender.send(()).expect("send")) as Stop));
        let failure = hanging.watch().expect("nobody finished");
        assert!(failure.contains("no progress"), "{failure}");
        stopped.recv_timeout(Duration::from_secs(60)).expect("stopped");
        let error = hanging.wait(0).expect_err("failed").to_string();
        assert!(error.contains("no progress"), "{error}");
    }
}
