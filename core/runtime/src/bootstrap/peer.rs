//! Messages from rank to rank, over connections made on first use.

use super::auth::{self, Greeting, Key, Retry, Role, SAME_ID, Secret};
use super::meet::PeerAddress;
use super::service::MAX_MESSAGE;
use super::wire::Kind;
use super::{Bootstrap, Settings, lock};
use hawser_base::error::{Error, Result, SystemCode};
use hawser_base::wait::Wait;
use hawser_oob::dial::{Dial, Ended};
use hawser_oob::socket::Address;
use hawser_oob::stream::Stream;
use hawser_oob::wait::Patience;
use hawser_oob::wire::Wire;
use std::sync::{Arc, Mutex, TryLockError};
use std::time::Duration;

use rustc_hash::FxHashMap;
use rustix::io::Errno;

/// The connections this rank made. Each carries messages in one direction: away from here.
#[derive(Default)]
pub(super) struct Outgoing {
    streams: Mutex<FxHashMap<u32, Arc<Mutex<Option<Stream>>>>>,
}

impl Bootstrap {
    /// Sends `bytes` (at most [`MAX_MESSAGE`]) to `peer`, who gets them with [`Bootstrap::recv`] and the same
    /// `tag`. Messages with one tag arrive in order. Returns when the kernel has them: the peer need not be
    /// receiving.
    ///
    /// # Errors
    /// `InvalidArgument` for a wrong rank or length, `Remote` or `System` when the peer is gone, or as
    /// [`Wait::check`].
    pub fn send(&self, peer: u32, tag: u64, bytes: &[u8], wait: &Wait) -> Result<()> {
        self.check_peer(peer)?;
        if bytes.len() > MAX_MESSAGE {
            let text = format!("rank {}: a message of {} bytes to rank {peer}", self.rank, bytes.len());
            return Err(Error::invalid_argument(format!("{text} is over the limit of {MAX_MESSAGE}")));
        }
        if peer == self.rank {
            self.shared.put(|inbox| inbox.push_message(peer, tag, bytes.to_vec()));
            return Ok(());
        }
        let slot = lock(&self.outgoing.streams).entry(peer).or_default().clone();
        // Held while sending, so that messages of several threads do not mix.
        let describe = || format!("rank {} sends to rank {peer} ({})", self.rank, self.label);
        // Another thread may be dialling: this one has a deadline and an abort flag of its own.
        let free = || match slot.try_lock() {
            Ok(slot) => Some(slot),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        let mut slot = wait.until(free, describe).map_err(|error| error.or_peer(peer))?;
        let while_there = WhileThere { wait: &wait.at_most(self.settings.init_timeout), boot: self, peer };
        let dial = || self.dialer.dial(Role::Peer, peer, &while_there, &describe);
        let stream = slot.take().map_or_else(dial, Ok).map_err(|error| error.or_peer(peer))?;
        // Put back only if whole: a broken or cut off connection is not used again.
        let written = stream.write_frame(Kind::Message, tag, bytes, wait, &describe);
        written.map_err(|error| error.or_peer(peer))?;
        *slot = Some(stream);
        Ok(())
    }

    /// Takes the next message that `peer` sent with `tag`.
    ///
    /// # Errors
    /// `InvalidArgument` for a wrong rank, `Remote` when the peer has left, or as [`Wait::check`].
    pub fn recv(&self, peer: u32, tag: u64, wait: &Wait) -> Result<Vec<u8>> {
        self.check_peer(peer)?;
        let describe = || format!("rank {} waits for a message from rank {peer} ({})", self.rank, self.label);
        let taken = self.shared.take(wait, &|_| describe(), |inbox| match inbox.pop_message(peer, tag) {
            Some(message) => Some(Ok(message)),
            None if inbox.has_left(peer) => {
                Some(Err(Error::remote(format!("{}: that rank closed its connection", describe()))))
            }
            None => None,
        });
        taken.map_err(|error| error.or_peer(peer))
    }

    /// The next message that `peer` sent with `tag`, if it is there already. Does not wait.
    pub fn take(&self, peer: u32, tag: u64) -> Option<Vec<u8>> {
        self.shared.look(|inbox| inbox.pop_message(peer, tag))
    }

    /// A message that any rank sent with `tag`, and that rank, if there is one. Does not wait.
    pub fn take_any(&self, tag: u64) -> Option<(u32, Vec<u8>)> {
        self.shared.look(|inbox| {
            let from = inbox.messages.keys().find(|(_, t)| *t == tag)?.0;
            Some((from, inbox.pop_message(from, tag)?))
        })
    }

    /// Calls `hook`, in a thread of the bootstrap, when a message with one of `tags` has come or a rank
    /// has closed its connection. It must not wait. There is one hook; the first counts.
    pub fn on_message(&self, tags: &[u64], hook: impl Fn() + Send + Sync + 'static) {
        self.shared.hook(tags, Box::new(hook));
    }

    /// Hands messages with `tag` to `server`, with their sender, in a thread of the bootstrap, instead of
    /// keeping them for [`Bootstrap::recv`]. It must not wait for other ranks, nor panic, nor hold this
    /// `Bootstrap`; while it works senders wait. To be called before peers may send. A tag has one server;
    /// the first counts.
    pub fn serve(&self, tag: u64, server: impl Fn(u32, &[u8]) + Send + Sync + 'static) {
        self.shared.serve(tag, Box::new(server));
    }

    /// True if `peer` had connections with this rank and closed them: it has ended, or dropped its
    /// `Bootstrap`; or if it is known to be dead, though somebody else may hold a connection of it open. What
    /// it sent before can still be taken.
    pub fn has_left(&self, peer: u32) -> bool {
        if self.roster().has_died(peer) {
            return true;
        }
        match self.shared.look(|inbox| inbox.open_connections(peer)) {
            Some(0) => return true,
            // What came last may not have been read yet.
            Some(_) => return false,
            None => {}
        }
        let slot = lock(&self.outgoing.streams).get(&peer).cloned();
        // Peers never write there: whatever can be read is the end. One that is being sent to is looked at
        // another time.
        let slot = slot.as_ref().and_then(|slot| slot.try_lock().ok());
        slot.is_some_and(|slot| match &*slot {
            Some(stream) => stream.is_at_end(),
            // It broke when something was sent: the end of it cannot be seen any more.
            None => self.roster().absence(peer).is_some(),
        })
    }

    /// An authenticated TCP connection to `peer`.
    pub(super) fn dial(
        &self,
        role: Role,
        peer: u32,
        wait: &Wait,
        describe: &dyn Fn() -> String,
    ) -> Result<Stream> {
        self.dialer.dial(role, peer, wait, describe)
    }
}

/// A wait for a connection to a rank, which ends when that rank is known to have gone: somebody else, such as
/// a forked child, may hold its listener open, and then nobody ever answers.
pub(super) struct WhileThere<'a> {
    pub wait: &'a Wait,
    pub boot: &'a Bootstrap,
    pub peer: u32,
}

impl Patience for WhileThere<'_> {
    type Error = Error;

    fn check(&self, describe: &dyn Fn() -> String) -> Result<()> {
        match self.boot.roster().absence(self.peer) {
            Some(absence) => Err(absence.context(describe())),
            None => self.wait.check(describe),
        }
    }

    fn slice(&self) -> Duration {
        self.wait.slice()
    }
}

/// The way to the other ranks: their addresses, and the key that they ask for.
pub(super) struct Dialer {
    rank: u32,
    key: Key,
    wire: Wire,
    addresses: Vec<Address>,
    retry: Retry,
}

impl Dialer {
    /// The dialer of `rank`.
    pub fn new(rank: u32, secret: &Secret, peers: &[PeerAddress], settings: &Settings) -> Self {
        let retry = Retry {
            count: settings.retry_count,
            sleep: settings.retry_sleep,
            refused: false,
            when_refused: "that rank has ended or left the communicator",
            when_strange: SAME_ID,
        };
        let addresses = peers.iter().map(|peer| Address::Tcp(peer.tcp)).collect();
        Self { rank, key: Key::derive(secret, "peer"), wire: settings.wire, addresses, retry }
    }

    /// An authenticated TCP connection to `peer`.
    pub fn dial(
        &self,
        role: Role,
        peer: u32,
        wait: &impl Patience<Error = Error>,
        describe: &dyn Fn() -> String,
    ) -> Result<Stream> {
        let greeting = Greeting { role, rank: self.rank, target: peer };
        let (to, key) = (&self.addresses[peer as usize], (&self.key, self.wire));
        auth::connect(to, key, greeting, self.retry, wait, describe)
    }

    /// Begins to look whether `peer` is there.
    ///
    /// # Errors
    /// The connection cannot be begun: all that fails at once.
    pub fn begin_to_look(&self, peer: u32) -> std::result::Result<Dial, Ended> {
        let greeting = Greeting { role: Role::Look, rank: self.rank, target: peer };
        auth::begin(&self.addresses[peer as usize], (&self.key, self.wire), greeting)
    }
}

/// Returns true if this process has no descriptors or memory left: that tells nothing about another rank.
pub(super) fn is_own_shortage(error: &Error) -> bool {
    let Some(SystemCode::Errno(code)) = error.code else { return false };
    [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM].iter().any(|errno| errno.raw_os_error() == code)
}

#[cfg(test)]
mod tests {
    use super::super::UniqueId;
    use super::super::tests::{in_threads, patient, settings};
    use super::*;

    /// The rank that an error of the parent communicator is about need not have a number here.
    #[test]
    fn an_error_about_a_rank_of_the_parent_looks_for_nobody() {
        let id = UniqueId::create(&settings()).unwrap();
        let join = |rank| Bootstrap::join(&[id], rank, 2, &settings(), &patient()).unwrap();
        let world = in_threads(2, join);
        let error = world[0].blame(Error::remote("rank 5 has died").with_peer(5));
        assert_eq!((error.peer, &*error.text), (Some(5), "rank 5 has died"));
    }

    /// The break of the only connection to a rank takes the sign of its end away, which others may look for.
    #[test]
    fn a_rank_that_left_is_missed_although_sending_to_it_has_failed() {
        let id = UniqueId::create(&settings()).unwrap();
        let join = |rank| Bootstrap::join(&[id], rank, 2, &settings(), &patient()).unwrap();
        let mut world = in_threads(2, join);
        let (other, boot) = (world.remove(1), world.remove(0));
        boot.send(1, 7, b"first", &patient()).unwrap();
        drop(other);
        let fails = || boot.send(1, 7, &[0; 4096], &patient()).is_err().then_some(());
        patient().until(fails, || "a message is refused".to_owned()).unwrap();
        let has_left = || boot.has_left(1).then_some(());
        patient().until(has_left, || "rank 0 does not miss rank 1".to_owned()).unwrap();
    }
}
