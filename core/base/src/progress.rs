//! One background thread per device for what must not block the caller: launches of non-blocking
//! communicators on the host device (the network has a thread of its own: `proxy`).

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread::JoinHandle;

use rustc_hash::FxHashMap;

use crate::error::{Error, Result};

type Job = Box<dyn FnOnce() + Send>;

/// The thread of a device; ends when the last owner drops it.
pub struct Worker {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// The worker of the device with this identity, started if need be.
    pub fn of(device: &str) -> Result<Arc<Self>> {
        static WORKERS: OnceLock<Mutex<FxHashMap<String, Weak<Worker>>>> = OnceLock::new();
        let mut workers = WORKERS
            .get_or_init(Mutex::default)
            .lock()
            .map_err(|_| Error::internal("worker table is poisoned"))?;
        if let Some(worker) = workers.get(device).and_then(Weak::upgrade) {
            return Ok(worker);
        }
        let (jobs, inbox) = channel::<Job>();
        let thread = std::thread::Builder::new()
            .name("hawser-progress".into())
            .spawn(move || inbox.into_iter().for_each(run))
            .map_err(|e| Error::system("starting the progress thread", e))?;
        let worker = Arc::new(Self { jobs: Some(jobs), thread: Some(thread) });
        workers.retain(|_, w| w.strong_count() > 0);
        workers.insert(device.to_owned(), Arc::downgrade(&worker));
        Ok(worker)
    }

    /// Runs a job after all earlier ones.
    pub fn submit(&self, job: impl FnOnce() + Send + 'static) -> Result<()> {
        let sent = self.jobs.as_ref().map(|jobs| jobs.send(Box::new(job)));
        sent.filter(std::result::Result::is_ok)
            .map(|_| ())
            .ok_or_else(|| Error::internal("the progress thread has ended"))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

/// A job that panics must not take the thread, and all later jobs, with it.
fn run(job: Job) {
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(job)).is_err() {
        crate::log::warn("a background job panicked: a bug in this library");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_run_in_order_and_the_worker_is_shared() {
        let worker = Worker::of("test-device").unwrap();
        assert!(Arc::ptr_eq(&worker, &Worker::of("test-device").unwrap()));
        let (tx, rx) = channel();
        for i in 0..5 {
            let tx = tx.clone();
            worker.submit(move || tx.send(i).unwrap()).unwrap();
        }
        assert_eq!(rx.iter().take(5).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    }
}
