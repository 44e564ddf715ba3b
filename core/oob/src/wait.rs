//! Waiting for a socket: with a deadline, and so that somebody else can end it.
//!
//! This crate does not decide how long to wait. Whoever calls a function that blocks passes a [`Patience`];
//! [`Until`] is a simple one.

use crate::error::{Error, ErrorKind, Result};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Permission to wait.
pub trait Patience {
    /// The error of the caller's own, which says that the patience is over.
    type Error: From<Error>;

    /// Says whether the caller may go on waiting. `describe` says who waits for whom.
    ///
    /// # Errors
    /// The deadline has passed, or somebody wants the wait to end.
    fn check(&self, describe: &dyn Fn() -> String) -> std::result::Result<(), Self::Error>;

    /// The time for which one system call may block before [`Patience::check`] has to be asked again.
    fn slice(&self) -> Duration;
}

/// The longest time a system call blocks before [`Until`] looks at its flag again.
const SLICE: Duration = Duration::from_millis(20);

/// A time that no clock's range is too short for.
const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Patience until a moment, or until a flag is raised.
#[derive(Clone, Copy, Debug)]
pub struct Until<'a> {
    deadline: Instant,
    abort: Option<&'a AtomicBool>,
}

impl<'a> Until<'a> {
    /// Patience for so long, from now, and at most for a century.
    pub fn after(limit: Duration) -> Self {
        Self { deadline: Instant::now() + limit.min(CENTURY), abort: None }
    }

    /// Patience that also ends when somebody sets `flag`.
    #[must_use]
    pub fn or_flag(self, flag: &'a AtomicBool) -> Self {
        Self { abort: Some(flag), ..self }
    }
}

impl Patience for Until<'_> {
    type Error = Error;

    fn check(&self, describe: &dyn Fn() -> String) -> Result<()> {
        if self.abort.is_some_and(|flag| flag.load(Ordering::Acquire)) {
            return Err(Error::new(ErrorKind::Aborted, format!("aborted while {}", describe())));
        }
        if Instant::now() >= self.deadline {
            return Err(Error::new(
                ErrorKind::Timeout,
                format!("{}: no end within the deadline", describe()),
            ));
        }
        Ok(())
    }

    fn slice(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now()).min(SLICE)
    }
}

/// Waits until a descriptor is ready or the timeout is over; an interrupted call counts as a timeout. Returns
/// the number of ready descriptors.
///
/// # Errors
/// `System` from poll(2).
pub fn poll(fds: &mut [PollFd<'_>], timeout: Option<Duration>) -> Result<usize> {
    let timeout = timeout.map(|limit| libc::timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    });
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let array = fds.as_mut_ptr().cast::<libc::pollfd>();
    // By the C library's function, which a program may replace (the twin's clock does), unlike rustix'.
    // SAFETY: `PollFd` is what rustix passes to poll(2) itself, and the descriptors are borrowed by it.
    let count = unsafe { libc::ppoll(array, fds.len() as libc::nfds_t, timeout, std::ptr::null()) };
    if let Ok(count) = usize::try_from(count) {
        return Ok(count);
    }
    match Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO) {
        Errno::INTR => Ok(0),
        errno => Err(Error::system("poll", errno)),
    }
}

/// A `PollFd` is the kernel's `struct pollfd`.
const _: () = assert!(
    size_of::<PollFd<'_>>() == size_of::<libc::pollfd>()
        && align_of::<PollFd<'_>>() == align_of::<libc::pollfd>()
);

/// Blocks until `fd` is ready for `flags`, or has an error to report.
///
/// # Errors
/// As [`Patience::check`], and `System` from poll(2).
pub fn ready<P: Patience>(
    fd: BorrowedFd<'_>,
    flags: PollFlags,
    wait: &P,
    describe: &dyn Fn() -> String,
) -> std::result::Result<(), P::Error> {
    loop {
        wait.check(describe)?;
        if poll(&mut [PollFd::from_borrowed_fd(fd, flags)], Some(wait.slice()))? > 0 {
            return Ok(());
        }
    }
}

/// A descriptor by which one thread wakes another out of poll(2) or epoll.
#[derive(Debug)]
pub struct Bell(OwnedFd);

impl Bell {
    /// A silent bell.
    ///
    /// # Errors
    /// The kernel has no descriptors left.
    pub fn new() -> std::result::Result<Self, Errno> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Makes the descriptor readable, until [`Bell::hush`].
    pub fn ring(&self) {
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Makes it silent again.
    pub fn hush(&self) {
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bell_rings_until_it_is_hushed() {
        let bell = Bell::new().unwrap();
        let is_ringing = || poll(&mut [PollFd::new(&bell, PollFlags::IN)], Some(Duration::ZERO)).unwrap() > 0;
        assert!(!is_ringing());
        bell.ring();
        bell.ring();
        assert!(is_ringing());
        bell.hush();
        assert!(!is_ringing());
    }

    #[test]
    fn a_wait_ends_with_its_deadline_or_its_flag() {
        let bell = Bell::new().unwrap();
        let silent = |wait: &Until<'_>| ready(bell.as_fd(), PollFlags::IN, wait, &|| "rank 1 waits".into());
        let late = silent(&Until::after(Duration::from_millis(5))).unwrap_err();
        assert_eq!(late.kind, ErrorKind::Timeout);
        assert!(late.text.starts_with("rank 1 waits: "), "{late}");
        let flag = AtomicBool::new(true);
        let aborted = silent(&Until::after(Duration::from_secs(60)).or_flag(&flag)).unwrap_err();
        assert_eq!(aborted.kind, ErrorKind::Aborted);
    }
}
