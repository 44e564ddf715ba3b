//! The control connection: a [`stream`](crate::stream) in each direction over one socket after the other.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use hawser_oob::seal::{self, Records, SessionKeys};
use hawser_oob::socket::{self, Moved};
use rustix::io::Errno;

use crate::frame::Record;
use crate::path_health::PathHealth;
use crate::ready::Reported;
use crate::service::Watch;
use crate::stream::{Incoming, Outgoing};

/// The peer is told what we have understood when it keeps this much for us.
const CONFIRM_EVERY: u64 = 256 << 10;

/// The reason why a socket was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Loss {
    /// The reason, for people.
    pub reason: String,
    /// The peer's kernel ended it (end of stream or reset), so the process may be gone.
    pub is_abrupt: bool,
}

impl Loss {
    /// A loss that a system call reported.
    pub fn of(errno: Errno) -> Self {
        let is_abrupt = matches!(errno, Errno::CONNRESET | Errno::PIPE);
        Self { reason: std::io::Error::from(errno).to_string(), is_abrupt }
    }

    /// The peer's kernel has closed the connection.
    pub fn end_of_stream() -> Self {
        Self { reason: "the peer's end was closed".into(), is_abrupt: true }
    }

    /// The peer's host does not answer.
    pub fn silence() -> Self {
        Self { reason: "no answer from the peer's host".into(), is_abrupt: false }
    }

    /// The peer's host answers, and nothing moves.
    pub fn standstill() -> Self {
        Self { reason: "nothing moves".into(), is_abrupt: false }
    }
}

/// The reason why [`Control::pump`] stopped.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The socket is lost and closed; the stream goes on with another.
    Socket(Loss),
    /// The peer speaks nonsense.
    Peer(String),
}

impl From<String> for Trouble {
    fn from(text: String) -> Self {
        Self::Peer(text)
    }
}

/// The control connection of one end, which outlives its sockets.
#[derive(Debug)]
pub(crate) struct Control {
    socket: Option<OwnedFd>,
    /// The sealed records on this socket, if it is sealed.
    records: Option<Records>,
    /// Reports the end of the socket to the service thread.
    watch: Option<Watch>,
    /// Reports what comes to the host's threads.
    reported: Option<Reported>,
    out: Outgoing,
    inc: Incoming,
    /// Records that nobody has asked to send yet.
    waiting: usize,
    /// Of the socket.
    generation: u32,
    /// The moment at which the last socket was lost, and whether that was abrupt.
    down: Option<(Instant, bool)>,
    /// The peer has said goodbye.
    peer_left: bool,
    /// We have.
    said_bye: bool,
    path_health: PathHealth,
    /// `consumed` when [`Control::look`] was called last.
    heard: u64,
}

impl Control {
    /// Without a socket.
    pub fn new() -> Self {
        Self {
            socket: None,
            records: None,
            watch: None,
            reported: None,
            out: Outgoing::default(),
            inc: Incoming::default(),
            waiting: 0,
            generation: 0,
            down: Some((Instant::now(), false)),
            peer_left: false,
            said_bye: false,
            path_health: PathHealth::default(),
            heard: 0,
        }
    }

    /// Appends a record; [`Control::flush`] sends it.
    pub fn push(&mut self, record: &Record<'_>) {
        self.out.push(record);
    }

    /// Appends a record that waits for the next [`Control::flush`], whoever has reason for one.
    pub fn push_later(&mut self, record: &Record<'_>) {
        self.out.push_later(record);
        self.waiting += 1;
    }

    /// Records of [`Control::push_later`] that wait.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Bytes that the socket has not seen.
    pub fn unsent(&self) -> usize {
        let (first, second) = self.out.unsent();
        first.len() + second.len()
    }

    /// Bytes that the peer has not confirmed.
    pub fn unconfirmed(&self) -> usize {
        self.out.unconfirmed()
    }

    /// Sends what the socket has room for.
    pub fn flush(&mut self) -> Result<(), Trouble> {
        self.waiting = 0;
        while let Some(socket) = &self.socket {
            let (first, second) = self.out.unsent();
            if first.is_empty() && second.is_empty() {
                if self.said_bye {
                    socket::finish_writing(socket.as_fd());
                }
                return Ok(());
            }
            let bytes = if first.is_empty() { second } else { first };
            let asked = bytes.len();
            let moved = match &mut self.records {
                Some(records) => records.send(socket.as_fd(), bytes, false),
                None => socket::send(socket.as_fd(), bytes),
            };
            match moved {
                Ok(Moved::Bytes(count)) => {
                    self.out.sent(count);
                    // A record that is gone says nothing of the room for the next.
                    if count < asked && self.records.is_none() {
                        return Ok(());
                    }
                }
                Ok(Moved::Nothing | Moved::Closed) => return Ok(()),
                Err(errno) => return Err(self.lose(Loss::of(errno))),
            }
        }
        Ok(())
    }

    /// Reads what has arrived, hands the records to `take` and sends what is urgent. `take` may push records.
    pub fn pump(
        &mut self,
        mut take: impl FnMut(Record<'_>, &mut Outgoing) -> Result<(), String>,
    ) -> Result<(), Trouble> {
        let mut end = false;
        while let Some(socket) = &self.socket {
            let space = self.inc.space();
            let asked = space.len();
            let moved = match &mut self.records {
                Some(records) => records.receive(socket.as_fd(), space),
                None => socket::receive(socket.as_fd(), space),
            };
            match moved {
                Ok(Moved::Bytes(count)) => {
                    let (out, peer_left) = (&mut self.out, &mut self.peer_left);
                    self.inc.filled::<Trouble>(count, |record| {
                        match record {
                            Record::Bye => *peer_left = true,
                            Record::Confirm { consumed } => return Ok(out.confirm(consumed)?),
                            _ => {}
                        }
                        Ok(take(record, out)?)
                    })?;
                    if count < asked {
                        break;
                    }
                }
                Ok(Moved::Nothing) => break,
                Ok(Moved::Closed) => {
                    end = true;
                    break;
                }
                Err(seal::FORGED) => return Err(Trouble::Peer(seal::reason(seal::FORGED))),
                Err(errno) => return Err(self.lose(Loss::of(errno))),
            }
        }
        let threshold = if self.peer_left { 1 } else { CONFIRM_EVERY };
        if let Some(consumed) = self.inc.take_confirmation(threshold) {
            self.out.push(&Record::Confirm { consumed });
        }
        let result = if self.out.is_urgent() { self.flush() } else { Ok(()) };
        if end && result.is_ok() {
            return Err(self.lose(Loss::end_of_stream()));
        }
        result
    }

    /// Drops the socket.
    pub fn lose(&mut self, loss: Loss) -> Trouble {
        self.drop_socket();
        self.down = Some((Instant::now(), loss.is_abrupt));
        Trouble::Socket(loss)
    }

    /// The number of bytes of the peer's stream that were understood. Only valid for a new socket once the
    /// old one is dropped.
    pub fn consumed(&mut self) -> u64 {
        self.drop_socket();
        self.inc.consumed()
    }

    fn drop_socket(&mut self) {
        (self.socket, self.watch, self.reported) = (None, None, None);
        self.records = None;
    }

    /// Goes on with another socket, sealed if there are keys.
    ///
    /// # Errors
    /// The peer speaks nonsense.
    pub fn attach(
        &mut self,
        (socket, keys): (OwnedFd, Option<SessionKeys>),
        watch: Option<Watch>,
        reported: Option<Reported>,
        generation: u32,
        peer_consumed: u64,
    ) -> Result<(), String> {
        self.out.resume(peer_consumed)?;
        self.inc.restart();
        self.generation = generation;
        self.records = keys.map(|keys| Records::new(keys, true));
        (self.socket, self.watch, self.reported) = (Some(socket), watch, reported);
        self.path_health.restart();
        self.down = None;
        Ok(())
    }

    /// The number of the current, or last, socket.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// The current socket.
    pub fn socket(&self) -> Option<&OwnedFd> {
        self.socket.as_ref()
    }

    /// For how long there has been no socket, and whether the last one ended abruptly.
    pub fn down_for(&self) -> Option<(Duration, bool)> {
        self.down.map(|(since, is_abrupt)| (since.elapsed(), is_abrupt))
    }

    /// Looks after the path, now and then: asks if nothing was heard although something is `wanted`, and
    /// gives up on a peer whose kernel does not answer.
    pub fn look(&mut self, wanted: bool) -> Result<(), Trouble> {
        let Some(socket) = &self.socket else { return Ok(()) };
        if let Some(loss) = self.path_health.look(socket.as_fd()) {
            return Err(self.lose(loss));
        }
        let consumed = self.inc.consumed();
        if wanted && consumed == self.heard && self.out.is_sent() && !self.said_bye {
            self.out.push(&Record::Confirm { consumed });
        }
        self.heard = consumed;
        self.flush()
    }

    /// Says that nothing more will be said.
    pub fn say_bye(&mut self) {
        if !self.said_bye {
            self.push(&Record::Bye);
            self.said_bye = true;
        }
    }

    /// After [`Control::say_bye`]: the peer knows all, or has left too.
    pub fn is_settled(&self) -> bool {
        self.peer_left || self.out.unconfirmed() == 0
    }

    /// Returns true if there is no socket.
    pub fn is_cut(&self) -> bool {
        self.socket.is_none()
    }

    /// Ends the socket as a failing network would.
    pub fn cut(&self) -> bool {
        self.socket.as_ref().inspect(|socket| socket::cut(socket.as_fd())).is_some()
    }

    /// Tells whether the peer has said goodbye.
    pub fn has_peer_left(&self) -> bool {
        self.peer_left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sockets() -> (OwnedFd, OwnedFd) {
        let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        far.set_nonblocking(true).unwrap();
        (near.into(), far.into())
    }

    fn pump(control: &mut Control) -> (Vec<u64>, Result<(), Trouble>) {
        let mut slots = Vec::new();
        let result = control.pump(|record, _| {
            if let Record::Done { slot } = record {
                slots.push(slot);
            }
            Ok(())
        });
        (slots, result)
    }

    #[test]
    fn a_lost_socket_loses_no_record() {
        let (mut a, mut b) = (Control::new(), Control::new());
        let (near, far) = sockets();
        a.attach((near, None), None, None, 1, 0).unwrap();
        b.attach((far, None), None, None, 1, 0).unwrap();
        for slot in 0..3 {
            a.push(&Record::Done { slot });
        }
        a.flush().unwrap();
        assert_eq!(pump(&mut b), (vec![0, 1, 2], Ok(())));
        a.push(&Record::Done { slot: 3 });
        a.flush().unwrap();
        b.lose(Loss::silence());
        assert!(matches!(pump(&mut a).1, Err(Trouble::Socket(_))));
        a.push(&Record::Done { slot: 4 });
        a.flush().unwrap();
        let (near, far) = sockets();
        let (to_a, to_b) = (b.consumed(), a.consumed());
        a.attach((near, None), None, None, 2, to_a).unwrap();
        b.attach((far, None), None, None, 2, to_b).unwrap();
        a.flush().unwrap();
        assert_eq!(pump(&mut b), (vec![3, 4], Ok(())));
        assert!(b.down_for().is_none());
    }

    #[test]
    fn a_goodbye_is_confirmed() {
        let (mut a, mut b) = (Control::new(), Control::new());
        let (near, far) = sockets();
        a.attach((near, None), None, None, 1, 0).unwrap();
        b.attach((far, None), None, None, 1, 0).unwrap();
        a.push(&Record::Done { slot: 0 });
        a.say_bye();
        a.flush().unwrap();
        assert!(!a.is_settled());
        let (slots, end) = pump(&mut b);
        assert_eq!((slots, b.has_peer_left()), (vec![0], true));
        let end = if end.is_ok() { pump(&mut b).1 } else { end };
        assert!(matches!(end, Err(Trouble::Socket(_))));
        assert!(matches!(pump(&mut a), (_, Ok(()) | Err(Trouble::Socket(_)))));
        assert!(a.is_settled());
    }

    #[test]
    fn nonsense_is_told_apart_from_a_lost_socket() {
        let mut a = Control::new();
        let (near, far) = sockets();
        a.attach((near, None), None, None, 1, 0).unwrap();
        socket::send(far.as_fd(), &[0xff; 8]).unwrap();
        assert!(matches!(pump(&mut a).1, Err(Trouble::Peer(_))));
    }
}
