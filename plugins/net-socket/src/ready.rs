//! The sockets that have something to read, asked of the kernel once for all connections of a context.
//!
//! The host tests its receives over and over. Asking every socket each time would cost a call of the kernel
//! for each, which also locks the socket just when a packet wants in. So one epoll watches them all,
//! edge-triggered: an event raises the [`Flag`] of the connection, and only who finds its flag raised reads.
//!
//! 1. A flag is lowered *before* its socket is read, and raised again by who stops reading while more may be
//!    there.
//! 2. [`Ready::look`] asks the kernel at most once per round of the host: who finds that somebody has looked
//!    since its own last look relies on that.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use rustc_hash::FxHashMap;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use crate::pool::lock;

/// A flag that says whether a connection's socket may have something to read.
#[derive(Debug, Default)]
pub(crate) struct Flag {
    raised: AtomicBool,
    /// The kernel does not report this socket: it has to be read to find out.
    always: AtomicBool,
}

impl Flag {
    /// Lowers the flag: whether it was raised.
    pub fn take(&self) -> bool {
        self.raised.load(Ordering::Relaxed) && self.raised.swap(false, Ordering::AcqRel)
            || self.always.load(Ordering::Relaxed)
    }

    /// There may be more to read.
    pub fn raise(&self) {
        self.raised.store(true, Ordering::Release);
    }
}

/// The epoll of a context and the flags of its sockets.
pub(crate) struct Ready {
    epoll: OwnedFd,
    looks: AtomicU64,
    flags: Mutex<FxHashMap<u64, Arc<Flag>>>,
    next_token: AtomicU64,
}

/// A socket whose flag is raised when something comes. Dropping it ends that.
pub(crate) struct Reported {
    ready: Arc<Ready>,
    token: u64,
}

impl std::fmt::Debug for Reported {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reported({})", self.token)
    }
}

impl Drop for Reported {
    fn drop(&mut self) {
        lock(&self.ready.flags).remove(&self.token);
    }
}

impl Ready {
    /// # Errors
    /// The kernel has no descriptors left.
    pub fn new() -> Result<Arc<Self>, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let (flags, next_token) = (Mutex::default(), AtomicU64::new(0));
        Ok(Arc::new(Self { epoll, looks: AtomicU64::new(0), flags, next_token }))
    }

    /// Raises `flag` now, since something may have come before, and whenever something comes to `fd` or it
    /// ends.
    pub fn report(self: &Arc<Self>, fd: BorrowedFd<'_>, flag: &Arc<Flag>) -> Reported {
        let token = self.next_token.fetch_add(1, Ordering::Relaxed);
        lock(&self.flags).insert(token, flag.clone());
        let events = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        let added = epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token), events);
        flag.always.store(added.is_err(), Ordering::Relaxed);
        flag.raise();
        Reported { ready: self.clone(), token }
    }

    /// Asks the kernel, unless somebody has asked since the caller did last: `seen` is the caller's.
    pub fn look(&self, seen: &AtomicU64) {
        let looks = self.looks.load(Ordering::Acquire);
        if seen.swap(looks, Ordering::Relaxed) != looks {
            return;
        }
        let mut events = [const { std::mem::MaybeUninit::<epoll::Event>::uninit() }; 32];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        if let Ok((events, _)) = epoll::wait(&self.epoll, &mut events[..], Some(&now))
            && !events.is_empty()
        {
            let flags = lock(&self.flags);
            let raised = events.iter().filter_map(|event| flags.get(&event.data.u64()));
            raised.for_each(|flag| flag.raise());
        }
        // After the flags are raised: who relies on this look finds them.
        let looks = self.looks.fetch_add(1, Ordering::AcqRel) + 1;
        seen.store(looks, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_flag_is_raised_once_for_each_arrival() {
        let ready = Ready::new().unwrap();
        let (mut near, mut far) = UnixStream::pair().unwrap();
        let (flag, seen) = (Arc::new(Flag::default()), AtomicU64::new(0));
        let reported = ready.report(far.as_fd(), &flag);
        assert!(flag.take(), "something may have come before");
        ready.look(&seen);
        assert!(!flag.take());
        near.write_all(b"ab").unwrap();
        ready.look(&seen);
        assert!(flag.take() && !flag.take());
        far.read_exact(&mut [0; 2]).unwrap();
        near.write_all(b"c").unwrap();
        ready.look(&seen);
        assert!(flag.take());
        drop(near);
        ready.look(&seen);
        assert!(flag.take(), "its end");
        drop(reported);
        assert!(lock(&ready.flags).is_empty());
    }

    #[test]
    fn one_look_serves_all_who_have_not_looked_since() {
        let ready = Ready::new().unwrap();
        let (first, second) = (AtomicU64::new(0), AtomicU64::new(0));
        ready.look(&first);
        ready.look(&second);
        assert_eq!(ready.looks.load(Ordering::Relaxed), 1, "the first one's look was enough");
        ready.look(&first);
        ready.look(&second);
        assert_eq!(ready.looks.load(Ordering::Relaxed), 2);
    }
}
