//! Parts that the bootstrap's threads share: being told to stop, and one frame for many receivers.

use hawser_base::error::{Error, Result};
use hawser_base::wait::{AbortFlag, Wait};
use hawser_oob::stream::Stream;
use hawser_oob::wait::{Bell, poll};
use rustix::event::{PollFd, PollFlags};
use std::time::{Duration, Instant};

/// An [`AbortFlag`] that also wakes a thread out of poll(2).
pub(super) struct StopSignal {
    flag: AbortFlag,
    bell: Bell,
}

impl StopSignal {
    /// A signal that is not raised.
    pub fn new() -> Result<StopSignal> {
        let bell = Bell::new().map_err(|errno| Error::system("eventfd for the bootstrap", errno))?;
        Ok(StopSignal { flag: AbortFlag::new(), bell })
    }

    /// Tells the thread to end. The bell is never hushed, so no later poll(2) can miss it.
    pub fn raise(&self) {
        self.flag.raise();
        self.bell.ring();
    }

    /// Tells whether the thread shall end.
    pub fn is_raised(&self) -> bool {
        self.flag.is_raised()
    }

    /// The flag, for waits that end with the signal.
    pub fn flag(&self) -> AbortFlag {
        self.flag.clone()
    }

    /// The descriptor that becomes readable with the signal.
    pub fn poll_fd(&self) -> PollFd<'_> {
        PollFd::new(&self.bell, PollFlags::IN)
    }
}

/// Time from now until the first of some moments; `None` if there is none.
pub(super) fn earliest<const N: usize>(moments: [Option<Instant>; N]) -> Option<Duration> {
    let first = moments.into_iter().flatten().min()?;
    // Rounded up, so that the moment has passed when poll(2) returns.
    Some(first.saturating_duration_since(Instant::now()) + Duration::from_micros(100))
}

/// Sends the same bytes to all streams at once. `describe` is told how many have not taken all of them.
///
/// # Errors
/// The position of the stream that failed (none on abort or deadline) and why.
pub(super) fn broadcast(
    streams: &[&Stream],
    bytes: &[u8],
    wait: &Wait,
    describe: &dyn Fn(usize) -> String,
) -> std::result::Result<(), (Option<usize>, Error)> {
    let mut open: Vec<(usize, usize)> = (0..streams.len()).map(|at| (at, 0)).collect();
    loop {
        for (at, sent) in &mut open {
            while *sent < bytes.len() {
                match streams[*at].write_some(&bytes[*sent..], false) {
                    Ok(0) => break,
                    Ok(count) => *sent += count,
                    Err(errno) => return Err((Some(*at), Error::system("sending to a rank", errno))),
                }
            }
        }
        open.retain(|(_, sent)| *sent < bytes.len());
        if open.is_empty() {
            return Ok(());
        }
        wait.check(|| describe(open.len())).map_err(|error| (None, error))?;
        let mut fds: Vec<_> = open.iter().map(|(at, _)| PollFd::new(streams[*at], PollFlags::OUT)).collect();
        poll(&mut fds, Some(wait.slice())).map_err(|error| (None, error.into()))?;
    }
}
