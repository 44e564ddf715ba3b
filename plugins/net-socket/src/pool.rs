//! The threads that move long messages: a few per context, shared by all of its connections.
//!
//! 1. Each data socket belongs to one thread, and is watched edge-triggered: an event means "drive it until
//!    the socket has nothing more or no room".
//! 2. [`Ticket::wake`] puts a socket on its thread's list of things to drive; the thread is rung only if it
//!    sleeps. It says that it sleeps *before* it looks at the list for the last time, so no wake-up is lost.
//! 3. Driving stops after a share of bytes, so that no socket starves the others; then the socket goes to the
//!    end of the list.
//! 4. The host's threads may drive sockets too, without waiting for a lane that somebody else drives. What
//!    they leave undone is put on the list, or brings an event.
//! 5. A ticket keeps nothing alive. When it is dropped its socket is not driven any more, except by a call
//!    under way.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hawser_oob::wait::Bell;
use rustc_hash::FxHashMap;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use crate::config::Help;
use crate::cpu_contention::{CpuContention, Meter};

/// Bytes that one call of [`Drive::drive`] moves before the next socket gets its turn.
pub(crate) const SHARE: usize = 1 << 20;

const BELL: u64 = 0;

/// A connection whose sockets the threads drive.
pub(crate) trait Drive: Send + Sync {
    /// Moves bytes on a data socket.
    fn drive(&self, pipe: usize) -> Next;
    /// Driving it panicked: a bug of ours, which must not look like a silent peer.
    fn broke(&self);
}

/// The next need of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// An event of the socket, or a wake-up.
    Wait,
    /// Another turn.
    Again,
}

/// The threads of one context that move long messages.
pub(crate) struct Pool {
    workers: Vec<Arc<Worker>>,
    /// Started with the first socket.
    threads: Mutex<Vec<JoinHandle<()>>>,
    next_token: AtomicU64,
    spin: Duration,
    contention: Arc<CpuContention>,
}

struct Worker {
    epoll: OwnedFd,
    bell: Bell,
    tasks: Mutex<FxHashMap<u64, Task>>,
    list: Mutex<VecDeque<u64>>,
    sleeps: AtomicBool,
    stops: AtomicBool,
    sockets: AtomicUsize,
}

#[derive(Clone)]
struct Task {
    connection: Weak<dyn Drive>,
    pipe: usize,
}

impl Pool {
    /// # Errors
    /// The kernel has no descriptors left.
    pub fn new(threads: usize, spin: Duration, help: Help) -> Result<Self, Errno> {
        let workers = (0..threads).map(|_| Worker::new().map(Arc::new)).collect::<Result<_, _>>()?;
        Ok(Self {
            workers,
            threads: Mutex::new(Vec::new()),
            next_token: AtomicU64::new(BELL + 1),
            spin,
            contention: Arc::new(CpuContention::new(help)),
        })
    }

    /// Tells whether there are no threads.
    pub fn is_empty(&self) -> bool {
        self.workers.is_empty()
    }

    /// True if the host's threads should drive sockets: there are no others, or those wait for processors.
    pub fn wants_help(&self) -> bool {
        self.is_empty() || self.contention.is_on()
    }

    /// Gives a socket to the thread with the fewest; `hint` decides between equals.
    ///
    /// # Errors
    /// The kernel has no room for another descriptor or thread.
    pub fn attach(
        &self,
        socket: BorrowedFd<'_>,
        connection: Weak<dyn Drive>,
        pipe: usize,
        hint: usize,
    ) -> Result<Option<Ticket>, Errno> {
        let count = self.workers.len();
        let order = (0..count).map(|i| &self.workers[(i + hint) % count]);
        let Some(worker) = order.min_by_key(|worker| worker.sockets.load(Ordering::Relaxed)) else {
            return Ok(None);
        };
        self.start()?;
        let token = self.next_token.fetch_add(1, Ordering::Relaxed);
        lock(&worker.tasks).insert(token, Task { connection, pipe });
        worker.sockets.fetch_add(1, Ordering::Relaxed);
        let ticket = Ticket { worker: worker.clone(), token };
        let flags =
            epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        epoll::add(&worker.epoll, socket, epoll::EventData::new_u64(token), flags)?;
        Ok(Some(ticket))
    }

    fn start(&self) -> Result<(), Errno> {
        let mut threads = lock(&self.threads);
        while let Some(worker) = self.workers.get(threads.len()) {
            let (worker, spin, contention) = (worker.clone(), self.spin, self.contention.clone());
            let name = format!("hawser-sock-{}", threads.len());
            let thread = std::thread::Builder::new().name(name).spawn(move || worker.run(spin, &contention));
            threads.push(thread.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::AGAIN))?);
        }
        Ok(())
    }
}

impl Pool {
    /// Ends the threads and waits for them. Not from one of them.
    pub fn stop(&self) {
        self.tell_to_stop();
        for thread in lock(&self.threads).drain(..) {
            let _ = thread.join();
        }
    }

    fn tell_to_stop(&self) {
        for worker in &self.workers {
            worker.stops.store(true, Ordering::SeqCst);
            worker.bell.ring();
        }
    }
}

impl Drop for Pool {
    /// Does not wait: the last holder may be one of the threads.
    fn drop(&mut self) {
        self.tell_to_stop();
    }
}

/// A socket's place in the pool.
pub(crate) struct Ticket {
    worker: Arc<Worker>,
    token: u64,
}

impl Ticket {
    /// Has the socket driven soon.
    pub fn wake(&self) {
        self.worker.put(self.token);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        lock(&self.worker.tasks).remove(&self.token);
        self.worker.sockets.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Worker {
    fn new() -> Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let bell = Bell::new()?;
        epoll::add(&epoll, bell.as_fd(), epoll::EventData::new_u64(BELL), epoll::EventFlags::IN)?;
        Ok(Self {
            epoll,
            bell,
            tasks: Mutex::default(),
            list: Mutex::default(),
            sleeps: AtomicBool::new(false),
            stops: AtomicBool::new(false),
            sockets: AtomicUsize::new(0),
        })
    }

    fn put(&self, token: u64) {
        lock(&self.list).push_back(token);
        if self.sleeps.swap(false, Ordering::SeqCst) {
            self.bell.ring();
        }
    }

    fn run(&self, spin: Duration, contention: &CpuContention) {
        let mut meter = Meter::start(contention);
        let mut events = Vec::with_capacity(64);
        while !self.stops.load(Ordering::SeqCst) {
            let worked = self.drive_list();
            // Work in hand: only look. Else first look for a while, then sleep.
            let mut found = self.poll(&mut events, false);
            if !worked && found == 0 && !spin.is_zero() && !contention.is_on() {
                let until = Instant::now() + spin;
                while found == 0 && lock(&self.list).is_empty() && Instant::now() < until {
                    std::hint::spin_loop();
                    found = self.poll(&mut events, false);
                }
            }
            if !worked && found == 0 {
                self.sleeps.store(true, Ordering::SeqCst);
                let nothing = lock(&self.list).is_empty();
                self.poll(&mut events, nothing);
                self.sleeps.store(false, Ordering::SeqCst);
            }
            for event in events.drain(..) {
                match event.data.u64() {
                    BELL => self.bell.hush(),
                    token => self.drive(token),
                }
            }
            meter.look(contention);
        }
    }

    /// Drives what is on the list now. Whether there was anything.
    fn drive_list(&self) -> bool {
        let mut left = lock(&self.list).len();
        let worked = left > 0;
        while left > 0 {
            let Some(token) = lock(&self.list).pop_front() else { break };
            self.drive(token);
            left -= 1;
        }
        worked
    }

    fn drive(&self, token: u64) {
        let task = lock(&self.tasks).get(&token).cloned();
        let Some(task) = task else { return };
        let Some(connection) = task.connection.upgrade() else { return };
        match catch_unwind(AssertUnwindSafe(|| connection.drive(task.pipe))) {
            Ok(Next::Again) => lock(&self.list).push_back(token),
            Ok(Next::Wait) => {}
            Err(_) => connection.broke(),
        }
    }

    /// Number of events; `sleep` waits for one.
    fn poll(&self, events: &mut Vec<epoll::Event>, sleep: bool) -> usize {
        events.clear();
        let timeout = (!sleep).then_some(Timespec { tv_sec: 0, tv_nsec: 0 });
        let found = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), timeout.as_ref());
        found.unwrap_or_default()
    }
}

/// Locks a mutex, also after a panic of another holder.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks a mutex if nobody holds it.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc;

    struct Reader {
        socket: Mutex<UnixStream>,
        calls: mpsc::Sender<(usize, usize)>,
        again: AtomicUsize,
    }

    impl Drive for Reader {
        fn drive(&self, pipe: usize) -> Next {
            let mut bytes = [0; 64];
            let got = lock(&self.socket).read(&mut bytes).unwrap_or(0);
            let _ = self.calls.send((pipe, got));
            assert!(&bytes[..got] != b"panic");
            let more =
                self.again.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
            if more.is_ok() { Next::Again } else { Next::Wait }
        }

        fn broke(&self) {
            let _ = self.calls.send((99, 99));
        }
    }

    #[test]
    fn events_and_wake_ups_drive_a_socket_until_its_ticket_is_gone() {
        let pool = Pool::new(2, Duration::ZERO, Help::Never).unwrap();
        let (near, mut far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        let fd = near.try_clone().unwrap();
        let (calls, seen) = mpsc::channel();
        let reader = Arc::new(Reader { socket: Mutex::new(near), calls, again: AtomicUsize::new(0) });
        let weak: Weak<dyn Drive> = Arc::downgrade(&(reader.clone() as Arc<dyn Drive>));
        let ticket = pool.attach(fd.as_fd(), weak, 7, 0).unwrap().unwrap();
        let limit = Duration::from_secs(20);
        // The socket is writable from the start.
        assert_eq!(seen.recv_timeout(limit).unwrap(), (7, 0));
        far.write_all(b"abc").unwrap();
        while seen.recv_timeout(limit).unwrap() != (7, 3) {}
        far.write_all(b"panic").unwrap();
        while seen.recv_timeout(limit).unwrap() != (99, 99) {}
        reader.again.store(5, Ordering::SeqCst);
        ticket.wake();
        (0..6).for_each(|_| assert_eq!(seen.recv_timeout(limit).unwrap().0, 7));
        drop(ticket);
        drop(reader);
        far.write_all(b"abc").unwrap();
        // The only sender of calls is gone with the reader, so this ends.
        assert_eq!(seen.iter().filter(|call| call.1 == 3).count(), 0);
        pool.stop();
    }

    #[test]
    fn no_threads_is_no_ticket() {
        let pool = Pool::new(0, Duration::ZERO, Help::Never).unwrap();
        let (near, _far) = UnixStream::pair().unwrap();
        let nobody: Weak<dyn Drive> = Weak::<Reader>::new();
        assert!(pool.is_empty() && pool.attach(near.as_fd(), nobody, 0, 0).unwrap().is_none());
    }
}
