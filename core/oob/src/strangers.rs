//! The budget of strangers: what connections that have proved nothing may take of this process.
//!
//! * **Descriptors.** All listeners together hold at most an eighth of the limit of open files
//!   (`RLIMIT_NOFILE`) for them, and never more than [`MOST`]; each listener has [`FEW`] besides, so that
//!   none is shut by others.
//! * **Log lines.** At most [`LINES`] of a listener in [`WINDOW`]; the next line says how many were left out.
//! * **Trouble.** A process that cannot accept remembers why, for the errors of those who wait.

use rustix::process::{Resource, getrlimit};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The most handshakes in progress of a process.
pub const MOST: usize = 512;
/// The handshakes that a listener may have whatever others have.
pub const FEW: usize = 4;
/// The most lines of a listener about strangers in a [`WINDOW`].
pub const LINES: u32 = 10;
/// The time in which lines are counted.
pub const WINDOW: Duration = Duration::from_secs(10);
/// The part of the limit of open files that strangers may take.
const SHARE: u64 = 8;
/// The time for which trouble counts as the reason for a wait that ends without success.
const RECENT: Duration = Duration::from_secs(5);

static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// A place for one stranger; dropping it makes room for another.
#[derive(Debug)]
pub struct Place(());

impl Place {
    /// A place of the process for one more stranger at a listener that has so many; `None` if it is full.
    pub fn take(at_the_listener: usize) -> Option<Self> {
        Self::of(most, at_the_listener)
    }

    fn of(most: impl FnOnce() -> usize, at_the_listener: usize) -> Option<Self> {
        let place = Self(());
        let before = TAKEN.fetch_add(1, Ordering::Relaxed);
        // Where it is full, dropping the place takes it back. A listener's few places need no system call.
        (at_the_listener < FEW || before < most()).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        TAKEN.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The number of strangers that the process has room for.
pub fn most() -> usize {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(files / SHARE).unwrap_or(MOST).min(MOST)
}

/// The lines that a listener writes about strangers.
#[derive(Debug, Default)]
pub struct Lines {
    since: Option<Instant>,
    written: u32,
    left_out: u64,
}

impl Lines {
    /// A line as it is written to the log, or `None` if there have been too many lately.
    pub fn line(&mut self, text: String) -> Option<String> {
        self.line_at(text, Instant::now())
    }

    fn line_at(&mut self, text: String, now: Instant) -> Option<String> {
        if self.since.is_none_or(|since| now >= since + WINDOW) {
            (self.since, self.written) = (Some(now), 0);
        }
        if self.written == LINES {
            self.left_out += 1;
            return None;
        }
        self.written += 1;
        match std::mem::take(&mut self.left_out) {
            0 => Some(text),
            count => Some(format!("{text} (and {count} more before, of which nothing was written)")),
        }
    }
}

/// The reason why this process could not accept connections, and the time.
static TROUBLE: Mutex<Option<(Instant, String)>> = Mutex::new(None);
static HAS_TROUBLE: AtomicBool = AtomicBool::new(false);

/// Remembers that connections cannot be accepted, and says in words what to do.
pub fn remember_trouble(errno: rustix::io::Errno) -> String {
    let remedy = match errno {
        rustix::io::Errno::MFILE => "; raise the limit of open files of the process (ulimit -n)",
        rustix::io::Errno::NFILE => "; raise the limit of open files of the host (fs.file-max)",
        _ => "",
    };
    let why = format!("this process cannot accept connections: {}{remedy}", std::io::Error::from(errno));
    *TROUBLE.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), why.clone()));
    HAS_TROUBLE.store(true, Ordering::Release);
    why
}

/// A connection was accepted: what was the trouble is over.
pub(crate) fn forget_trouble() {
    if HAS_TROUBLE.swap(false, Ordering::AcqRel) {
        *TROUBLE.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// The reason why this process cannot accept connections, if that was so just now.
pub fn trouble() -> Option<String> {
    if !HAS_TROUBLE.load(Ordering::Acquire) {
        return None;
    }
    let trouble = TROUBLE.lock().unwrap_or_else(PoisonError::into_inner);
    trouble.as_ref().filter(|(since, _)| since.elapsed() < RECENT).map(|(_, why)| why.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_have_a_share_of_the_limit_and_each_listener_a_few_places() {
        let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        assert!(most() <= MOST && most() as u64 <= files / SHARE);
        // Other tests take places as well, but no test takes so many.
        let places: Vec<Place> = (0..10).map(|_| Place::of(|| usize::MAX, FEW).unwrap()).collect();
        assert!(Place::of(|| 10, FEW).is_none(), "the process is full");
        assert!(Place::of(|| 10, FEW - 1).is_some(), "a listener without its few is not shut");
        drop(places);
        assert!(Place::of(|| usize::MAX, FEW).is_some());
    }

    #[test]
    fn lines_are_counted_and_summed_up() {
        let mut tally = Lines::default();
        let now = Instant::now();
        let written = (0..1000).filter_map(|_| tally.line_at("x".into(), now)).count();
        assert_eq!(written, LINES as usize);
        let next = tally.line_at("x".into(), now + WINDOW).unwrap();
        assert_eq!(next, "x (and 990 more before, of which nothing was written)");
        assert_eq!(tally.line_at("y".into(), now + WINDOW).unwrap(), "y");
    }
}
