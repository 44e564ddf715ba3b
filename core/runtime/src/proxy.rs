//! The proxy: one thread per device that moves slots between FIFOs and the network.
//!
//! It sweeps over the tasks of all communicators of its device. While something moves it does not rest; afterwards it
//! spins, yields and finally sleeps up to 200 µs between sweeps. It has to look by itself, since launches
//! replayed from a CUDA graph are announced by nobody; a launch that the host sees wakes it ([`Proxy::wake`]).
//!
//! Rules between the threads: (1) the list of tasks is touched under its lock only, which a sweep holds; (2) who wants
//! the lock raises `waiting` first, and the thread pauses between sweeps until it is down again; (3) after
//! [`Proxy::remove`] returned, the task is not in a sweep and never will be.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use rustc_hash::FxHashMap;

use crate::error::{Error, Result};

/// The longest pause between two sweeps when nothing moves.
const LONGEST_SLEEP: Duration = Duration::from_micros(200);
/// Sweeps that spin, and that yield, before the thread sleeps.
const SPINS: u32 = 2_000;
const YIELDS: u32 = 500;

/// What a communicator has to do. Called by the proxy thread only.
pub trait Task: Send + Sync {
    /// One look at everything, without waiting; says whether anything moved.
    fn sweep(&self) -> bool;

    /// It panicked, and is never swept again.
    fn end_after_panic(&self);
}

/// The proxy of a device.
pub struct Proxy {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    tasks: Mutex<Vec<Arc<dyn Task>>>,
    waiting: AtomicU32,
    stop: AtomicBool,
}

impl Proxy {
    /// The proxy of the device with this identity, started if need be; it ends when the last owner lets go.
    pub fn of(device: &str) -> Result<Arc<Self>> {
        static PROXIES: OnceLock<Mutex<FxHashMap<String, Weak<Proxy>>>> = OnceLock::new();
        let mut proxies = lock(PROXIES.get_or_init(Mutex::default));
        if let Some(proxy) = proxies.get(device).and_then(Weak::upgrade) {
            return Ok(proxy);
        }
        let shared = Arc::new(Shared::default());
        let thread = std::thread::Builder::new()
            .name("hawser-proxy".into())
            .spawn({
                let shared = shared.clone();
                move || shared.run()
            })
            .map_err(|e| Error::system("starting the proxy thread", e))?;
        let proxy = Arc::new(Self { shared, thread: Some(thread) });
        proxies.retain(|_, p| p.strong_count() > 0);
        proxies.insert(device.to_owned(), Arc::downgrade(&proxy));
        Ok(proxy)
    }

    /// Sweeps over `task` from now on.
    pub fn add(&self, task: Arc<dyn Task>) {
        self.shared.change(|tasks| tasks.push(task));
        self.wake();
    }

    /// Never sweeps over `task` again. Must not be called by a task.
    pub fn remove(&self, task: &Arc<dyn Task>) {
        self.shared.change(|tasks| tasks.retain(|t| !Arc::ptr_eq(t, task)));
    }

    /// There may be something to do.
    pub fn wake(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.wake();
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn change(&self, change: impl FnOnce(&mut Vec<Arc<dyn Task>>)) {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        change(&mut lock(&self.tasks));
        self.waiting.fetch_sub(1, Ordering::AcqRel);
    }

    fn run(&self) {
        let mut idle = 0u32;
        while !self.stop.load(Ordering::Acquire) {
            if self.waiting.load(Ordering::Acquire) > 0 {
                std::thread::yield_now();
                continue;
            }
            let (tasks, moved) = self.sweep();
            idle = if moved { 0 } else { idle.saturating_add(1) };
            match idle {
                _ if tasks == 0 => std::thread::park_timeout(Duration::from_millis(100)),
                0 => {}
                1..SPINS => std::hint::spin_loop(),
                _ if idle < SPINS + YIELDS => std::thread::yield_now(),
                _ => {
                    let doublings = ((idle - SPINS - YIELDS) / 64).min(8);
                    std::thread::park_timeout(Duration::from_micros(1 << doublings).min(LONGEST_SLEEP));
                }
            }
        }
    }

    /// The number of tasks, and whether anything moved. A task that panics is dropped, and ends its communicator.
    fn sweep(&self) -> (usize, bool) {
        let mut tasks = lock(&self.tasks);
        let mut moved = false;
        tasks.retain(|task| {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| task.sweep()));
            moved |= outcome.as_ref().is_ok_and(|moved| *moved);
            if outcome.is_err() {
                task.end_after_panic();
            }
            outcome.is_ok()
        });
        (tasks.len(), moved)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Counter(AtomicU32);

    impl Task for Counter {
        fn sweep(&self) -> bool {
            self.0.fetch_add(1, Ordering::Relaxed) < 10
        }

        fn end_after_panic(&self) {}
    }

    #[test]
    fn a_task_is_swept_until_it_is_removed() {
        let proxy = Proxy::of("proxy-test").unwrap();
        assert!(Arc::ptr_eq(&proxy, &Proxy::of("proxy-test").unwrap()));
        let counter = Arc::new(Counter(AtomicU32::new(0)));
        let task: Arc<dyn Task> = counter.clone();
        proxy.add(task.clone());
        while counter.0.load(Ordering::Relaxed) < 100 {
            std::thread::yield_now();
        }
        proxy.remove(&task);
        let seen = counter.0.load(Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(counter.0.load(Ordering::Relaxed), seen);
    }

    #[test]
    fn a_task_that_panics_is_told_once_and_left_alone() {
        struct Broken(AtomicU32, AtomicU32);
        impl Task for Broken {
            fn sweep(&self) -> bool {
                self.0.fetch_add(1, Ordering::Relaxed);
                panic!("on purpose");
            }

            fn end_after_panic(&self) {
                self.1.fetch_add(1, Ordering::Release);
            }
        }
        let proxy = Proxy::of("proxy-panic-test").unwrap();
        let (broken, sound) = (Arc::new(Broken(0.into(), 0.into())), Arc::new(Counter(0.into())));
        proxy.add(broken.clone());
        proxy.add(sound.clone());
        while broken.1.load(Ordering::Acquire) == 0 || sound.0.load(Ordering::Relaxed) < 100 {
            std::thread::yield_now();
        }
        assert_eq!((broken.0.load(Ordering::Relaxed), broken.1.load(Ordering::Relaxed)), (1, 1));
    }
}
