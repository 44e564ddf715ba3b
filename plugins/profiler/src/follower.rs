//! The thread that follows the events of all communicators: it takes their steps now and then, and makes
//! lines and figures of them, so that the host's threads need not.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hawser_plugin::{Error, Result};

use crate::watched::Watched;

/// Time between two looks while something happens.
const PERIOD: Duration = Duration::from_millis(20);
/// Time between two looks while nothing happens.
const IDLE: Duration = Duration::from_millis(100);
/// The longest time for which a look waits for room in a trace.
const PATIENCE: Duration = Duration::from_secs(1);

/// The communicators that are followed, and the thread that does so while there are any.
#[derive(Default)]
pub struct Follower {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    list: Mutex<List>,
    /// Somebody has much for the thread.
    is_called: AtomicBool,
    call: Condvar,
}

/// Whoever looks after the events of a communicator holds the list: who has taken one out knows that nobody
/// does.
#[derive(Default)]
struct List {
    watched: Vec<Arc<Watched>>,
    thread: Option<JoinHandle<()>>,
    /// The number of the thread; one with another number ends.
    number: u64,
}

impl Follower {
    /// Follows a communicator from now on.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn add(&self, watched: Arc<Watched>) -> Result<()> {
        let mut list = self.shared.lock();
        if list.thread.is_none() {
            list.number += 1;
            let (shared, number) = (self.shared.clone(), list.number);
            let run = move || shared.run(number);
            let thread = thread::Builder::new().name("hawser-events".into()).spawn(run);
            let failed = |error| Error::system("profiler: starting the thread that follows events", error);
            list.thread = Some(thread.map_err(failed)?);
        }
        list.watched.push(watched);
        Ok(())
    }

    /// Follows a communicator no longer. The thread has ended when the last one has gone.
    pub fn remove(&self, watched: &Arc<Watched>) {
        let mut list = self.shared.lock();
        list.watched.retain(|known| !Arc::ptr_eq(known, watched));
        let thread = list.watched.is_empty().then(|| list.thread.take()).flatten();
        if let Some(thread) = thread {
            list.number += 1;
            drop(list);
            self.call();
            let _ = thread.join();
        }
    }

    /// Has the thread look soon. A call that comes while it looks is not heard; it looks again by itself.
    pub fn call(&self) {
        self.shared.is_called.store(true, Ordering::Relaxed);
        self.shared.call.notify_one();
    }

    /// Takes everything that has come.
    pub fn look(&self) {
        self.shared.lock().look();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, number: u64) {
        let mut list = self.lock();
        let mut period = PERIOD;
        while list.number == number {
            let is_alone = |list: &mut List| list.number == number && !self.is_called.load(Ordering::Relaxed);
            let waited = self.call.wait_timeout_while(list, period, is_alone);
            list = waited.unwrap_or_else(PoisonError::into_inner).0;
            self.is_called.store(false, Ordering::Relaxed);
            if list.number == number {
                period = if list.look() { PERIOD } else { IDLE };
            }
        }
    }
}

impl List {
    /// Takes the steps of all communicators; true if there were any.
    fn look(&self) -> bool {
        let deadline = Instant::now() + PATIENCE;
        self.watched.iter().fold(false, |any, watched| watched.follow(deadline) | any)
    }
}
