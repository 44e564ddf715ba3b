//! The proxy: one thread per device that moves slots between FIFOs and the network.
//!
//! It sweeps over the tasks of all communicators of its device. While something moves it does not rest, nor
//! for [`LIVELY`](hawser_base::wait::LIVELY) after the last movement or launch; then it sleeps for a small
//! part of the time in which nothing moved. It has to look by itself, since launches replayed from a CUDA
//! graph are announced by nobody; a launch that the host sees wakes it ([`Proxy::wake`]).
//!
//! A thread that waits for an operation of the host device moves the slots of its communicator itself
//! ([`Task::is_helped`]), since on few processors two threads that look keep each other from running. The
//! proxy leaves such tasks alone until they are left to it again.
//!
//! Rules between the threads: (1) the list of tasks is touched under its lock only, which a sweep holds; (2)
//! who wants the lock raises `waiting` first, and the thread pauses between sweeps until it is down again;
//! (3) after [`Proxy::remove`] returned, the task is not in a sweep and never will be.

use std::cmp::Reverse;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use rustc_hash::FxHashMap;

use hawser_base::error::{Error, Result};
use hawser_base::wait::Backoff;
use hawser_plan::Class;

use crate::classes;

/// The longest pause between two sweeps where launches may come unannounced.
const LONGEST_PAUSE: Duration = Duration::from_micros(200);
/// The longest pause where all launches are announced.
const LONGEST_REST: Duration = Duration::from_millis(10);
/// The longest pause while others move everything that there is: they wake the proxy for what they leave.
const HELPED: Duration = Duration::from_millis(20);
/// The longest pause when there is nothing to look at.
const IDLE: Duration = Duration::from_millis(100);

/// A task of a communicator. Called by the proxy thread only.
pub trait Task: Send + Sync {
    /// One look at everything, without waiting; says whether anything moved.
    fn sweep(&self) -> bool;

    /// Another thread sweeps it at present, and wakes the proxy if it leaves something undone.
    fn is_helped(&self) -> bool {
        false
    }

    /// True if everything that it has to move is announced by a wake-up.
    fn is_announced(&self) -> bool {
        false
    }

    /// The most urgent class of the operations whose data it moves. Those with urgent ones are swept first.
    fn class(&self) -> Class {
        Class::Normal
    }

    /// True if it gives way to more urgent work at this look ([`crate::classes`]).
    fn holds_back(&self) -> bool {
        false
    }

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
    woken: AtomicBool,
    stop: AtomicBool,
}

/// The result of a sweep over all tasks.
#[derive(Default)]
struct Swept {
    /// Tasks that are there, and those of them that were swept.
    tasks: usize,
    looked_at: usize,
    /// Some gave way.
    are_held: bool,
    /// Something moved.
    has_moved: bool,
    /// Something may be launched without a wake-up.
    is_unannounced: bool,
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
        self.shared.woken.store(true, Ordering::Release);
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
        let mut backoff = Backoff::new();
        while !self.stop.load(Ordering::Acquire) {
            if self.waiting.load(Ordering::Acquire) > 0 {
                std::thread::yield_now();
                continue;
            }
            let is_woken = self.woken.swap(false, Ordering::AcqRel);
            let swept = self.sweep();
            if swept.has_moved || is_woken {
                backoff.reset();
            }
            if swept.looked_at == 0 {
                let pause = if swept.tasks == 0 { IDLE } else { HELPED };
                std::thread::park_timeout(if swept.are_held { classes::PAUSE } else { pause });
            } else if !swept.has_moved
                && let Some(pause) = backoff.pause()
            {
                let is_short = swept.is_unannounced || swept.are_held;
                std::thread::park_timeout(pause.min(if is_short { LONGEST_PAUSE } else { LONGEST_REST }));
            }
        }
    }

    /// Looks at every task that nobody helps and that does not hold back, the most urgent ones first. A task
    /// that panics is dropped, and ends its communicator.
    fn sweep(&self) -> Swept {
        let mut tasks = lock(&self.tasks);
        let mut swept = Swept { tasks: tasks.len(), ..Swept::default() };
        let has_classes = classes::are_used();
        if has_classes {
            tasks.sort_by_key(|task| Reverse(task.class()));
        }
        tasks.retain(|task| {
            if task.is_helped() {
                return true;
            }
            if has_classes && task.holds_back() {
                swept.are_held = true;
                return true;
            }
            let moved = shielded_sweep(&**task);
            swept.looked_at += 1;
            swept.has_moved |= moved == Some(true);
            swept.is_unannounced |= !task.is_announced();
            moved.is_some()
        });
        swept
    }
}

/// Sweeps over a task: whether anything moved, or None if it panicked, which ends its communicator.
pub fn shielded_sweep(task: &dyn Task) -> Option<bool> {
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| task.sweep()));
    if outcome.is_err() {
        task.end_after_panic();
    }
    outcome.ok()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classes::Turns;

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
    fn a_task_that_somebody_helps_is_left_alone() {
        struct Helped(AtomicBool, AtomicU32);
        impl Task for Helped {
            fn sweep(&self) -> bool {
                self.1.fetch_add(1, Ordering::Relaxed);
                false
            }

            fn is_helped(&self) -> bool {
                self.0.load(Ordering::Acquire)
            }

            fn end_after_panic(&self) {}
        }
        let proxy = Proxy::of("proxy-help-test").unwrap();
        let (helped, other) = (Arc::new(Helped(true.into(), 0.into())), Arc::new(Counter(0.into())));
        proxy.add(helped.clone());
        proxy.add(other.clone());
        while other.0.load(Ordering::Relaxed) < 100 {
            std::thread::yield_now();
        }
        assert_eq!(helped.1.load(Ordering::Relaxed), 0);
        assert_eq!(shielded_sweep(&*helped), Some(false));
        helped.0.store(false, Ordering::Release);
        proxy.wake();
        while helped.1.load(Ordering::Relaxed) < 2 {
            std::thread::yield_now();
        }
    }

    /// Sweeps are counted: no clock says who comes first.
    #[test]
    fn urgent_tasks_come_first_and_best_effort_ones_at_last() {
        struct Ordered(Class, Turns, Arc<Mutex<Vec<Class>>>);
        impl Task for Ordered {
            fn sweep(&self) -> bool {
                lock(&self.2).push(self.0);
                classes::moved(self.0);
                false
            }

            fn class(&self) -> Class {
                self.0
            }

            fn holds_back(&self) -> bool {
                self.0 == Class::BestEffort && self.1.hold_back()
            }

            fn end_after_panic(&self) {}
        }
        classes::expect(Class::Urgent);
        let (shared, seen) = (Shared::default(), Arc::new(Mutex::new(Vec::new())));
        for class in Class::ALL {
            let task = Ordered(class, Turns::default(), seen.clone());
            shared.change(|tasks| tasks.push(Arc::new(task)));
        }
        // A best-effort task is swept once after so many sweeps, and may be once more where this thread was
        // kept from running for a while.
        let sweeps = 3 * (classes::MOST_HELD as usize + 1);
        (0..sweeps).for_each(|_| assert_eq!(shared.sweep().tasks, 3));
        let seen = lock(&seen).clone();
        let of = |class| seen.iter().filter(|other| **other == class).count();
        assert_eq!((of(Class::Urgent), of(Class::Normal)), (sweeps, sweeps));
        assert!((3..sweeps).contains(&of(Class::BestEffort)), "{seen:?}");
        assert_eq!(seen[..2], [Class::Urgent, Class::Normal]);
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
