//! A connected socket that can also be waited for.

use crate::error::Error;
use crate::frame::{Frame, FrameReader, Header, Incoming, Kind};
use crate::seal::{self, Records, SessionKeys};
use crate::socket::{self, Moved};
use crate::wait::{self, Patience};
use rustix::event::PollFlags;
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

/// The longest payload of a frame that is copied behind its header, in bytes: a copy takes less time than a
/// system call.
const COPIED: usize = 16 << 10;

/// A connected stream, non-blocking.
#[derive(Debug)]
pub struct Stream {
    fd: OwnedFd,
    /// The keys of its handshake, until it is sealed.
    keys: Option<Box<SessionKeys>>,
    /// The sealed records on it, if it is sealed.
    records: Option<Box<Mutex<Records>>>,
}

impl From<OwnedFd> for Stream {
    /// Takes a connected, non-blocking socket.
    fn from(fd: OwnedFd) -> Self {
        Self { fd, keys: None, records: None }
    }
}

impl From<Stream> for OwnedFd {
    fn from(stream: Stream) -> Self {
        stream.fd
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Stream {
    /// A connection after a handshake that gave it keys. Nothing is sealed before [`Stream::seal`].
    pub fn with_keys(fd: OwnedFd, keys: SessionKeys) -> Self {
        Self { fd, keys: Some(Box::new(keys)), records: None }
    }

    /// From now on everything is encrypted and authenticated, in both directions; the other end has to do the
    /// same. A writer whose bytes were not taken has to come with the same bytes again.
    ///
    /// # Errors
    /// `Usage` when no handshake gave it keys, or it is sealed already.
    pub fn seal(&mut self) -> Result<(), Error> {
        let missing = || Error::usage("a connection without keys of a handshake cannot be sealed");
        let keys = self.keys.take().ok_or_else(missing)?;
        self.records = Some(Box::new(Mutex::new(Records::new(*keys, false))));
        Ok(())
    }

    /// The socket and the keys of its handshake, for who seals by himself.
    pub fn into_parts(self) -> (OwnedFd, Option<SessionKeys>) {
        (self.fd, self.keys.map(|keys| *keys))
    }

    /// Reads what is there.
    ///
    /// # Errors
    /// The connection is broken; [`seal::FORGED`] when it is sealed and what came is not what was sent.
    pub fn read_some(&self, into: &mut [u8]) -> Result<Moved, Errno> {
        match &self.records {
            Some(records) => {
                records.lock().unwrap_or_else(PoisonError::into_inner).receive(self.as_fd(), into)
            }
            None => socket::receive(self.as_fd(), into),
        }
    }

    /// Writes what fits, possibly nothing. `more` says that further bytes follow at once.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn write_some(&self, bytes: &[u8], more: bool) -> Result<usize, Errno> {
        let moved = match &self.records {
            Some(records) => {
                records.lock().unwrap_or_else(PoisonError::into_inner).send(self.as_fd(), bytes, more)
            }
            None if more => socket::send_more(self.as_fd(), bytes),
            None => socket::send(self.as_fd(), bytes),
        };
        moved.map(|moved| if let Moved::Bytes(count) = moved { count } else { 0 })
    }

    /// True if the other end has closed the connection, and all that it sent was read.
    pub fn is_at_end(&self) -> bool {
        socket::is_at_end(self.as_fd())
    }

    /// Fills `into`.
    ///
    /// # Errors
    /// `Peer` when the connection ends, or as [`Patience::check`].
    pub fn read_exact<P: Patience>(
        &self,
        into: &mut [u8],
        wait: &P,
        describe: &dyn Fn() -> String,
    ) -> Result<(), P::Error> {
        let mut have = 0;
        while have < into.len() {
            match self.read_some(&mut into[have..]).map_err(|errno| broken(errno, describe))? {
                Moved::Bytes(count) => have += count,
                Moved::Nothing => self.ready(PollFlags::IN, wait, describe)?,
                Moved::Closed => return Err(closed(describe).into()),
            }
        }
        Ok(())
    }

    /// Writes all of `bytes`. `more` says that further bytes follow at once.
    ///
    /// # Errors
    /// `Peer` when the connection ends, or as [`Patience::check`].
    pub fn write_all<P: Patience>(
        &self,
        bytes: &[u8],
        more: bool,
        wait: &P,
        describe: &dyn Fn() -> String,
    ) -> Result<(), P::Error> {
        let mut sent = 0;
        while sent < bytes.len() {
            match self.write_some(&bytes[sent..], more).map_err(|errno| broken(errno, describe))? {
                0 => self.ready(PollFlags::OUT, wait, describe)?,
                count => sent += count,
            }
        }
        Ok(())
    }

    /// Writes one frame.
    ///
    /// # Errors
    /// `Usage` when the payload is too long for a frame, else as [`Stream::write_all`].
    pub fn write_frame<K: Kind, P: Patience>(
        &self,
        kind: K,
        tag: u64,
        payload: &[u8],
        wait: &P,
        describe: &dyn Fn() -> String,
    ) -> Result<(), P::Error> {
        let header = Header { kind, tag, len: payload.len() }.encode()?;
        if self.records.is_some() || payload.len() <= COPIED {
            // Neither a record nor a system call for the header alone.
            return self.write_all(&[&header, payload].concat(), false, wait, describe);
        }
        self.write_all(&header, !payload.is_empty(), wait, describe)?;
        self.write_all(payload, false, wait, describe)
    }

    /// Reads one frame of at most `limit` payload bytes.
    ///
    /// # Errors
    /// `Peer` when the connection ends or what comes is no such frame, or as [`Patience::check`].
    pub fn read_frame<K: Kind, P: Patience>(
        &self,
        limit: usize,
        wait: &P,
        describe: &dyn Fn() -> String,
    ) -> Result<Frame<K>, P::Error> {
        let mut reader = FrameReader::new(limit);
        loop {
            match reader.advance(self).map_err(|error| error.context(describe()))? {
                Incoming::Frame(frame) => return Ok(frame),
                Incoming::Nothing => self.ready(PollFlags::IN, wait, describe)?,
                Incoming::Closed => return Err(closed(describe).into()),
            }
        }
    }

    /// Blocks until the socket is ready for `flags`, or has an error to report.
    ///
    /// # Errors
    /// As [`Patience::check`], and `System` from poll(2).
    pub fn ready<P: Patience>(
        &self,
        flags: PollFlags,
        wait: &P,
        describe: &dyn Fn() -> String,
    ) -> Result<(), P::Error> {
        wait::ready(self.as_fd(), flags, wait, describe)
    }
}

fn broken(errno: Errno, describe: &dyn Fn() -> String) -> Error {
    let reason = seal::reason(errno);
    Error::peer(format!("{}: the connection broke: {reason}", describe()))
}

fn closed(describe: &dyn Fn() -> String) -> Error {
    Error::peer(format!("{}: the peer closed the connection (its process ended or it gave up)", describe()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::tests::{patient, stream_pair};

    #[test]
    fn a_long_length_is_refused_before_the_payload() {
        let (near, far) = stream_pair();
        near.write_frame((), 1, &[7; 101], &patient(), &|| "test".into()).unwrap();
        let error = far.read_frame::<(), _>(100, &patient(), &|| "test".into()).unwrap_err();
        assert!(error.text.contains("101"), "{error}");
    }

    #[test]
    fn sealed_streams_carry_frames_and_notice_what_is_not_theirs() {
        let (near, far) = stream_pair();
        let keys = |is_connector| SessionKeys::derive(&[1; 32], b"said", is_connector);
        let mut near = Stream::with_keys(near.into(), keys(true));
        let mut far = Stream::with_keys(far.into(), keys(false));
        near.seal().unwrap();
        far.seal().unwrap();
        assert_eq!(near.seal().unwrap_err().kind, ErrorKind::Usage);
        let payload: Vec<u8> = (0..200_000u32).map(|i| i as u8).collect();
        let test = || "test".to_string();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                near.write_frame((), 9, &payload, &patient(), &test).unwrap();
                near.write_frame((), 10, &[], &patient(), &test).unwrap();
            });
            let frame = far.read_frame::<(), _>(payload.len(), &patient(), &test).unwrap();
            assert!(frame.payload == payload && frame.tag == 9);
            assert_eq!(far.read_frame::<(), _>(0, &patient(), &test).unwrap().tag, 10);
        });
        // Somebody who has no keys writes into the connection.
        crate::socket::send(near.as_fd(), &[3; 64]).unwrap();
        let error = far.read_frame::<(), _>(100, &patient(), &test).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Peer);
        assert!(error.text.contains("wrong seal"), "{error}");
    }

    #[test]
    fn large_frames_pass_and_a_closed_peer_is_no_signal() {
        let (near, far) = stream_pair();
        let payload: Vec<u8> = (0..3_000_000u32).map(|i| i as u8).collect();
        let test = || "test".to_string();
        std::thread::scope(|scope| {
            scope.spawn(|| near.write_frame((), 9, &payload, &patient(), &test).unwrap());
            let frame = far.read_frame::<(), _>(payload.len(), &patient(), &|| "test".into()).unwrap();
            assert!(frame.payload == payload && frame.tag == 9);
        });
        drop(far);
        let write = || near.write_all(&[0; 4096], false, &patient(), &|| "rank 1".into());
        let failed = (0..1000).find_map(|_| write().err());
        assert_eq!(failed.unwrap().kind, ErrorKind::Peer);
    }
}
