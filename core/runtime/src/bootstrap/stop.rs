//! Parts that the bootstrap's threads share: being told to stop, and one frame for many receivers.

use super::detail;
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

/// The outcome of a broadcast: the position of the stream that failed (none on abort or deadline) and why.
type Sent = std::result::Result<(), (Option<usize>, Error)>;

/// Sends the same bytes to all streams at once. `describe` is told how many have not taken all of them.
///
/// # Errors
/// The position of the stream that failed (none on abort or deadline) and why.
pub(super) fn broadcast(
    streams: &[&Stream],
    bytes: &[u8],
    wait: &Wait,
    describe: &dyn Fn(usize) -> String,
) -> Sent {
    send_to_all(streams, bytes, wait, describe, &|at, error| Err((Some(at), error)))
}

/// The same for bytes that are of use to the others although some have gone: streams that fail are left out.
///
/// # Errors
/// As [`Wait::check`].
pub(super) fn broadcast_to_present(
    streams: &[&Stream],
    bytes: &[u8],
    wait: &Wait,
    describe: &dyn Fn(usize) -> String,
) -> Result<()> {
    let leave_out = |_, error: Error| {
        detail(&error.text);
        Ok(())
    };
    send_to_all(streams, bytes, wait, describe, &leave_out).map_err(|(_, error)| error)
}

/// Sends the same bytes to all streams; `lose` says what the failure of one means for the others.
fn send_to_all(
    streams: &[&Stream],
    bytes: &[u8],
    wait: &Wait,
    describe: &dyn Fn(usize) -> String,
    lose: &dyn Fn(usize, Error) -> Sent,
) -> Sent {
    let mut open: Vec<(usize, usize)> = (0..streams.len()).map(|at| (at, 0)).collect();
    loop {
        for (at, sent) in &mut open {
            while *sent < bytes.len() {
                match streams[*at].write_some(&bytes[*sent..], false) {
                    Ok(0) => break,
                    Ok(count) => *sent += count,
                    Err(errno) => {
                        lose(*at, Error::system("sending to a rank", errno))?;
                        *sent = bytes.len();
                    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn pair() -> (Stream, Stream) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (here, there) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        (Stream::from(here), Stream::from(there))
    }

    /// As a rank that ends after its hello: the others need the table all the same.
    #[test]
    fn one_that_has_gone_keeps_nothing_from_the_others() {
        let wait = Wait::new(AbortFlag::new(), Some(Duration::from_secs(60)));
        let pairs = [pair(), pair()];
        let [(to_gone, gone), (to_present, present)] = pairs;
        drop(gone);
        let streams = [&to_gone, &to_present];
        let describe = |slow: usize| format!("{slow} ranks");
        let refused = broadcast(&streams, b"table", &wait, &describe);
        assert_eq!(refused.unwrap_err().0, Some(0));
        broadcast_to_present(&streams, b"table", &wait, &describe).unwrap();
        let mut bytes = [0; 8];
        assert_eq!(rustix::io::read(&present, &mut bytes).unwrap(), 5);
    }
}
