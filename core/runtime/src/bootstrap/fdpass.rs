//! File descriptors from rank to rank of one host, over abstract unix-domain sockets.
//!
//! The sockets have random names that the table carries, and the same handshake as TCP. They belong to a
//! network namespace: ranks in containers reach each other only if they share it.

use super::Bootstrap;
use super::auth::{self, Greeting, Key, Retry, Role, SAME_ID};
use super::peer::WhileThere;
use super::wire::{HEADER, Header, Kind, malformed};
use hawser_base::error::{Error, Result};
use hawser_base::wait::Wait;
use hawser_oob::socket::Address;
use hawser_oob::stream::Stream;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// The time in which the last descriptors of a rank that has gone arrive: news of it may overtake them.
const LATE: Duration = Duration::from_millis(500);

impl Bootstrap {
    /// Gives `peer`, a rank of this host, a duplicate of `fd`. The peer gets it with [`Bootstrap::recv_fd`]
    /// and the same `tag`; several with one tag arrive in order. Returns when the kernel has it: the caller
    /// may close its own.
    ///
    /// # Errors
    /// `InvalidArgument` for a wrong rank, `System` when the peer is on another host or in another network
    /// namespace.
    pub fn send_fd(&self, peer: u32, tag: u64, fd: BorrowedFd<'_>, wait: &Wait) -> Result<()> {
        self.check_peer(peer)?;
        if peer == self.rank {
            let copy =
                fd.try_clone_to_owned().map_err(|error| Error::system("duplicating a descriptor", error))?;
            self.shared.put(|inbox| inbox.push_descriptor(peer, tag, copy));
            return Ok(());
        }
        let describe =
            || format!("rank {} sends a file descriptor to rank {peer} ({})", self.rank, self.label);
        let retry = Retry {
            count: self.settings.retry_count,
            sleep: self.settings.retry_sleep,
            refused: false,
            when_refused: "that rank is on another host, in another network namespace, or has left",
            when_strange: SAME_ID,
        };
        let greeting = Greeting { role: Role::Descriptor, rank: self.rank, target: peer };
        let key = Key::derive(&self.secret, "peer");
        let wait = wait.at_most(self.settings.init_timeout);
        let while_there = WhileThere { wait: &wait, boot: self, peer };
        let address = Address::Unix(self.peers[peer as usize].unix);
        let key = (&key, self.settings.wire);
        let stream = auth::connect(&address, key, greeting, retry, &while_there, &describe)
            .map_err(|error| error.or_peer(peer))?;
        let header = Header { kind: Kind::Descriptor, tag, len: 0 }.encode()?;
        loop {
            match send(&stream, &header, fd) {
                Ok(HEADER) => return Ok(()),
                Ok(count) => return Err(Error::internal(format!("{}: {count} bytes went out", describe()))),
                Err(Errno::AGAIN | Errno::INTR) => stream.ready(PollFlags::OUT, &wait, &describe)?,
                Err(errno) => return Err(Error::system(describe(), errno)),
            }
        }
    }

    /// Closes the listener for descriptors: no other rank sends any to this one from now on. With many ranks
    /// in one process there are that many fewer open files.
    pub fn take_no_descriptors(&self) {
        self.shared.take_no_descriptors();
        self.watch.wake();
    }

    /// Takes the next descriptor that `peer` sent with `tag`; it is close-on-exec and belongs to the caller.
    ///
    /// # Errors
    /// `InvalidArgument` for a wrong rank, `Remote` when the peer has left, or as [`Wait::check`].
    pub fn recv_fd(&self, peer: u32, tag: u64, wait: &Wait) -> Result<OwnedFd> {
        self.check_peer(peer)?;
        let (rank, label) = (self.rank, &self.label);
        let describe = || format!("rank {rank} waits for rank {peer} to send a file descriptor ({label})");
        let mut missed = None;
        let taken = self.shared.take(wait, &|_| describe(), |inbox| {
            if let Some(descriptor) = inbox.pop_descriptor(peer, tag) {
                return Some(Ok(descriptor));
            }
            let absence = self.roster().absence(peer)?;
            let since = *missed.get_or_insert_with(Instant::now);
            (since.elapsed() >= LATE).then(|| Err(absence.context(describe())))
        });
        taken.map_err(|error| error.or_peer(peer))
    }
}

fn send(stream: &Stream, header: &[u8; HEADER], fd: BorrowedFd<'_>) -> std::result::Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [fd];
    if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(Errno::NOBUFS);
    }
    sendmsg(stream, &[IoSlice::new(header)], &mut control, SendFlags::NOSIGNAL)
}

/// Takes one descriptor and its tag from an incoming connection, without blocking: `None` if there is nothing
/// yet.
///
/// # Errors
/// `None` when the peer closed the connection, else what is wrong; the connection is over.
pub(super) fn receive(stream: &Stream) -> std::result::Result<Option<(u64, OwnedFd)>, Option<Error>> {
    let mut header = [0; HEADER];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut header)];
    let count = match recvmsg(stream, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
        Ok(message) => message.bytes,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        Err(errno) => return Err(Some(Error::system("receiving a file descriptor", errno))),
    };
    // Collected first: what is not returned is closed here.
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(found) = message {
            descriptors.extend(found);
        }
    }
    match count {
        0 => return Err(None),
        // The sender's sixteen bytes are one message of the kernel, so they come together.
        HEADER => {}
        _ => return Err(Some(malformed(format!("{count} bytes with a descriptor")))),
    }
    let header = Header::parse(&header, 0).map_err(|error| Some(error.into()))?;
    match (header.kind, descriptors.pop()) {
        (Kind::Descriptor, Some(descriptor)) => Ok(Some((header.tag, descriptor))),
        _ => Err(Some(malformed("no descriptor (the limit of open files may be reached)"))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{in_threads, patient, settings};
    use super::super::{Bootstrap, UniqueId};
    use hawser_base::error::ErrorKind;

    /// A rank that is stopped while it connects is turned away, and aborts before it tries again: no message
    /// ever came from it.
    #[test]
    fn nobody_waits_for_a_descriptor_of_one_that_left() {
        let id = UniqueId::create(&settings()).unwrap();
        let join = |rank| Bootstrap::join(&[id], rank, 2, &settings(), &patient()).unwrap();
        let mut world = in_threads(2, join);
        drop(world.remove(1));
        let error = world[0].recv_fd(1, 9, &patient()).unwrap_err();
        assert_eq!((error.kind, error.peer), (ErrorKind::Remote, Some(1)), "{error}");
    }
}
