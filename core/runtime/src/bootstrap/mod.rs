//! The meeting of ranks: unique ids, the meeting at the root, and the channels between ranks afterwards.
//!
//! The way of an init: one process makes a [`UniqueId`] (which starts a root thread) and hands it to all
//! ranks by its own means. Every rank calls [`Bootstrap::join`]: it opens a listener, meets the others at the
//! root, gets everybody's addresses, and connects to rank 0. Then there are collectives
//! ([`Bootstrap::all_gather`], [`Bootstrap::barrier`]), messages ([`Bootstrap::send`], [`Bootstrap::recv`]),
//! descriptors between ranks of one host ([`Bootstrap::send_fd`], [`Bootstrap::recv_fd`]) and children
//! ([`Bootstrap::split`], [`Bootstrap::subset`]).
//!
//! Invariants: no byte of a connection is believed before its peer proved the secret of the id (see `auth`).
//! No length from a peer is allocated unchecked. No wait is without abort flag and deadline. Dropping a
//! [`Bootstrap`] joins its thread and closes its descriptors. The environment is not read here; it comes in
//! as [`Settings`].

mod asking;
mod auth;
mod centre;
mod comm_id;
mod fate;
mod fdpass;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod grow;
mod id;
mod meet;
mod peer;
mod pre_shared;
mod root;
mod search;
mod service;
mod split;
mod star;
mod stop;
mod subset;
mod tag;
mod watch;
mod wire;

pub use asking::Question;
pub use grow::Offer;
pub use id::UniqueId;
pub use pre_shared::set_pre_shared_key;
pub use root::{stop_all_roots, stop_root};
pub use service::MAX_MESSAGE;
pub use star::MAX_CONTRIBUTION;
pub use tag::Tag;

use auth::{Role, Secret};
use hawser_base::error::{Error, ErrorKind, Result};
use hawser_base::liveness::Roster;
use hawser_base::wait::{AbortFlag, Wait};
use hawser_base::{env, log};
use hawser_oob::interface::{self, Family};
use hawser_oob::socket;
use hawser_oob::stream::Stream;
use hawser_oob::wire::Wire;
use meet::{Hello, PeerAddress};
use peer::{Dialer, Outgoing, is_own_shortage};
use service::{Listeners, Service, Shared};
use star::Star;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;
use watch::Watch;

/// The part of the user's environment that the bootstrap needs to know.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `NCCL_SOCKET_IFNAME`: name prefixes, `^` excludes, `=` exact. `None`: the classes of
    /// [`hawser_oob::interface::Class`] in their order.
    pub ifname: Option<String>,
    /// `NCCL_SOCKET_FAMILY`. `None`: either family.
    pub family: Option<Family>,
    /// The time for which ranks and roots wait for each other while a communicator forms.
    pub init_timeout: Duration,
    /// The time that an incoming connection may take to prove the secret.
    pub handshake_timeout: Duration,
    /// `NCCL_COMM_ID`: `host:port` of the root that rank 0 starts. `None`: the id's creator starts it.
    pub comm_id: Option<String>,
    /// `HAWSER_COMM_ID_KEY_FILE`: the file with the key of the ranks that meet at `comm_id`.
    pub comm_id_key_file: Option<PathBuf>,
    /// `NCCL_SOCKET_RETRY_CNT`: further tries when a connection is refused or times out.
    pub retry_count: u32,
    /// `NCCL_SOCKET_RETRY_SLEEP_MSEC`: pause between tries, times the number of the try.
    pub retry_sleep: Duration,
    /// The time for which a host that ranks have connections to may give no sign of life; `None`: as long as
    /// the kernel lets it.
    pub heartbeat: Option<Duration>,
    /// `NCCL_HOSTID`: ranks with different ones count as ranks of different hosts.
    pub host_id: Option<String>,
    /// `HAWSER_WIRE`: the protection of all connections; [`Wire::Encrypt`] where there is a pre-shared key.
    pub wire: Wire,
    /// The key of [`set_pre_shared_key`].
    pub pre_shared: Option<[u8; 32]>,
}

impl Settings {
    /// The secret of the meeting of an id.
    fn secret_of(&self, id: &UniqueId) -> Secret {
        pre_shared::mixed(&id.secret, self.pre_shared.as_ref())
    }

    /// The advice where the other end does not know the secret.
    fn when_strange(&self) -> &'static str {
        match self.pre_shared {
            Some(_) => {
                "check that all ranks got the same, fresh unique id, and set the same pre-shared key \
                 (ncclSetEncryption) before it was made"
            }
            None => auth::SAME_ID,
        }
    }

    /// The settings of this process.
    pub fn of_process() -> Self {
        let s = env::settings();
        let pre_shared = pre_shared::pre_shared_key();
        Self {
            wire: if pre_shared.is_some() { Wire::Encrypt } else { s.wire },
            pre_shared,
            ifname: s.socket_ifname.clone(),
            family: s.socket_family.map(|version| if version == 6 { Family::V6 } else { Family::V4 }),
            init_timeout: s.join_timeout(),
            handshake_timeout: s.handshake_timeout,
            comm_id: s.comm_id.clone(),
            comm_id_key_file: s.comm_id_key_file.as_ref().map(PathBuf::from),
            retry_count: s.socket_retry_count,
            retry_sleep: s.socket_retry_sleep,
            heartbeat: s.heartbeat,
            host_id: s.host_id.clone(),
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            ifname: None,
            family: None,
            init_timeout: Duration::from_secs(300),
            handshake_timeout: Duration::from_secs(5),
            comm_id: None,
            comm_id_key_file: None,
            retry_count: 34,
            retry_sleep: Duration::from_millis(100),
            heartbeat: Some(Duration::from_secs(60)),
            host_id: None,
            wire: Wire::Plain,
            pre_shared: None,
        }
    }
}

/// One rank's connections to the other ranks of a communicator.
pub struct Bootstrap {
    rank: u32,
    nranks: u32,
    label: String,
    secret: Secret,
    peers: Vec<PeerAddress>,
    settings: Settings,
    /// The root's address where it decides the interface (`NCCL_COMM_ID`).
    near: Option<IpAddr>,
    star: Mutex<Star>,
    outgoing: Outgoing,
    dialer: Arc<Dialer>,
    splits: AtomicU32,
    /// The id that this rank has made for a growth, until one begins.
    made_grow_id: Mutex<Option<UniqueId>>,
    /// The inbox: everything that came from other ranks (and from this one).
    shared: Arc<Shared>,
    /// The knowledge of the other ranks.
    watch: Arc<Watch>,
    /// The user has aborted the communicator.
    is_aborted: AtomicBool,
    /// `None` for a communicator of one rank.
    _service: Option<Service>,
}

impl Bootstrap {
    /// Meets the other ranks. All of them pass the same ids in the same order; the first is the meeting
    /// point, the roots of the others are told that they are not needed. Waits no longer than
    /// `settings.init_timeout` and `wait` allow.
    ///
    /// # Errors
    /// `InvalidArgument` for a wrong rank or list of ids; `InvalidUsage` when ranks contradict each other or
    /// the id is used up; `Timeout` naming the ranks that are missing; `Remote` when one left; `System` from
    /// the sockets.
    pub fn join(
        ids: &[UniqueId],
        rank: u32,
        nranks: u32,
        settings: &Settings,
        wait: &Wait,
    ) -> Result<Bootstrap> {
        check_arguments(ids, rank, nranks)?;
        let wait = &wait.at_most(settings.init_timeout);
        let label = "world".to_string();
        let near = ids[0].fixed.then_some(ids[0].address.ip());
        if nranks == 1 {
            // Nobody else will come: the root, here or elsewhere, is not needed.
            if !ids[0].fixed && !stop_root(&ids[0]) {
                meet::release(&ids[0], rank, None, settings, wait)?;
            }
            return Bootstrap::assemble(
                0,
                label,
                settings.secret_of(&ids[0]),
                Vec::new(),
                None,
                settings,
                wait,
            );
        }
        let in_init = |error: Error| error.context(format!("rank {rank} of {nranks}"));
        let listeners = Listeners::open(settings, near, rank)
            .inspect_err(|error| cannot_join(ids, rank, error, settings))
            .map_err(in_init)?;
        let own_root = start_fixed_root(&ids[0], rank, settings, wait).map_err(in_init)?;
        let hello = Hello { nranks, ids: meet::digest(ids), address: listeners.address };
        let peers = release_own(ids, rank, settings, wait)
            .and_then(|()| meet::meet(&ids[0], rank, &hello, settings, wait))
            .inspect_err(|error| release_others(ids, rank, error, settings, wait))
            .map_err(in_init)?;
        if let Some(root) = own_root {
            root.finish();
        }
        let mut joined = Bootstrap::assemble(
            rank,
            label,
            settings.secret_of(&ids[0]),
            peers,
            Some(listeners),
            settings,
            wait,
        )?;
        joined.near = near;
        Ok(joined)
    }

    /// This rank.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// The protection of this communicator's connections.
    pub fn wire(&self) -> Wire {
        self.settings.wire
    }

    /// The number of ranks.
    pub fn nranks(&self) -> u32 {
        self.nranks
    }

    /// The name errors use for this communicator: `world` after init.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Gives the communicator another name in errors.
    pub fn set_label(&mut self, label: impl Into<String>) {
        self.label = label.into();
    }

    /// Starts the service and forms the star. `listeners` is `None` for a communicator of one rank.
    fn assemble(
        rank: u32,
        label: String,
        secret: Secret,
        peers: Vec<PeerAddress>,
        listeners: Option<Listeners>,
        settings: &Settings,
        wait: &Wait,
    ) -> Result<Bootstrap> {
        let nranks = peers.len().max(1) as u32;
        let shared = Arc::new(Shared::default());
        let dialer = Arc::new(Dialer::new(rank, &secret, &peers, settings));
        let members = peers.iter().map(|peer| peer.process).collect();
        let watch = Watch::new(rank, members, dialer.clone(), settings)?;
        watch.doom(wait.abort_flag());
        let service = listeners
            .map(|own| Service::start(own, (shared.clone(), watch.clone()), &secret, rank, nranks, settings));
        let bootstrap = Bootstrap {
            rank,
            nranks,
            label,
            secret,
            peers,
            settings: settings.clone(),
            near: None,
            star: Mutex::default(),
            outgoing: Outgoing::default(),
            dialer,
            splits: AtomicU32::new(0),
            made_grow_id: Mutex::default(),
            shared,
            watch,
            is_aborted: AtomicBool::new(false),
            _service: service.transpose()?,
        };
        let formed = bootstrap.watch_rank_0(wait).and_then(|()| bootstrap.form_star(wait));
        *lock(&bootstrap.star) = formed.map_err(|error| bootstrap.blame(error))?;
        Ok(bootstrap)
    }

    /// Connects this rank's watcher to that of rank 0.
    fn watch_rank_0(&self, wait: &Wait) -> Result<()> {
        if self.rank == 0 {
            return Ok(());
        }
        let describe = || format!("rank {} connects to rank 0 in init '{}'", self.rank, self.label);
        self.watch.connect(0, self.dial_rank_0(Role::Watch, wait, &describe)?);
        Ok(())
    }

    /// A connection to rank 0 while the communicator forms. The error names its process if that has ended.
    fn dial_rank_0(&self, role: Role, wait: &Wait, describe: &dyn Fn() -> String) -> Result<Stream> {
        self.dial(role, 0, wait, describe).map_err(|error| match error.kind {
            ErrorKind::System | ErrorKind::Remote if !is_own_shortage(&error) => {
                self.watch.is_out_of_reach(0, &error.text);
                self.roster().absence(0).unwrap_or(error)
            }
            _ => error,
        })
    }

    /// The knowledge of the other ranks.
    pub fn roster(&self) -> &Roster {
        &self.watch.roster
    }

    /// Waits on this flag end when a rank dies.
    pub fn doom(&self, flag: &AbortFlag) {
        self.watch.doom(flag);
    }

    /// Calls `hook` once, in a thread of the bootstrap, 300 ms after the first rank has left, died or
    /// failed, if this one is still there. It must not wait. There is one hook; the first counts.
    pub fn on_first_news(&self, hook: impl Fn() + Send + Sync + 'static) {
        self.watch.on_first_news(Box::new(hook));
    }

    /// An error of this rank that may be the consequence of another one's: says who is to blame, if that is
    /// known within half a second, and tells the others.
    pub fn blame(&self, error: Error) -> Error {
        self.watch.blame(error)
    }

    /// The same for an error that is no end of this rank's part: the others are not told.
    pub fn name_the_guilty(&self, error: Error) -> Error {
        self.watch.name_the_guilty(error)
    }

    /// Tells the others why this rank fails.
    pub fn report(&self, error: &Error) {
        self.watch.report(error);
    }

    /// Looks whether ranks are there that do not do what is waited for: one that left at the same time as the
    /// rank that passes news on could tell nobody. Takes up to `limit`, and begins with another one in each
    /// `round`.
    pub fn look_for(&self, ranks: &[u32], round: usize, wait: &Wait, limit: Duration) {
        let wait = wait.at_most(limit);
        let (last, first) = ranks.split_at(round % ranks.len().max(1));
        let is_time = |_: &&u32| wait.remaining().is_none_or(|left| !left.is_zero());
        first.iter().chain(last).take_while(is_time).for_each(|rank| self.watch.look_for(*rank, &wait));
    }

    /// Sets what this rank answers when it is asked how it is, and what it does with a sentence that another
    /// rank tells all. Both run in threads of the bootstrap. The first counts.
    pub fn on_ask(
        &self,
        answer: impl Fn(Question) -> Vec<u8> + Send + Sync + 'static,
        notice: impl Fn(u32, &str) + Send + Sync + 'static,
    ) {
        self.watch.asking.on_ask(Box::new(answer), Box::new(notice));
    }

    /// Asks all ranks how they are, and returns the answers that come within `limit`. Waits for no operation.
    pub fn ask(&self, question: Question, limit: Duration) -> Vec<(u32, Vec<u8>)> {
        self.watch.ask(question, limit)
    }

    /// The address at which a rank listens; `None` where there is but one rank, which does not.
    pub fn address_of(&self, rank: u32) -> Option<IpAddr> {
        Some(self.peers.get(rank as usize)?.tcp.ip())
    }

    /// The user aborts the communicator on this rank: the others are told so when it leaves.
    pub fn note_abort(&self) {
        self.is_aborted.store(true, Ordering::Release);
    }

    /// Tells all other ranks a sentence.
    pub fn notify(&self, sentence: &str) {
        self.watch.notify(sentence);
    }

    fn check_peer(&self, peer: u32) -> Result<()> {
        if peer < self.nranks {
            return Ok(());
        }
        Err(Error::invalid_argument(format!(
            "rank {}: peer {peer} is not below {} ranks",
            self.rank, self.nranks
        )))
    }
}

impl Drop for Bootstrap {
    fn drop(&mut self) {
        let is_aborted = self.is_aborted.load(Ordering::Acquire);
        self.watch.leave(if is_aborted { "it has aborted it" } else { "it has destroyed it" });
    }
}

impl fmt::Debug for Bootstrap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bootstrap({} of {} in '{}')", self.rank, self.nranks, self.label)
    }
}

fn check_arguments(ids: &[UniqueId], rank: u32, nranks: u32) -> Result<()> {
    let refuse = |what: String| Err(Error::invalid_argument(what));
    if nranks == 0 || nranks > root::MOST_RANKS {
        return refuse(format!("nranks = {nranks} is not between 1 and {}", root::MOST_RANKS));
    }
    if rank >= nranks {
        return refuse(format!("rank {rank} is not below nranks = {nranks}"));
    }
    if ids.is_empty() || ids.len() > nranks as usize {
        return refuse(format!("{} unique ids for {nranks} ranks; give between 1 and {nranks}", ids.len()));
    }
    for (at, id) in ids.iter().enumerate() {
        if ids[..at].contains(id) {
            return refuse(format!("unique id number {at} is given twice; make every id with its own call"));
        }
    }
    Ok(())
}

/// Rank 0 starts the root that `NCCL_COMM_ID` names. A root of an earlier communicator may just be leaving
/// the port.
fn start_fixed_root(
    id: &UniqueId,
    rank: u32,
    settings: &Settings,
    wait: &Wait,
) -> Result<Option<root::RootHandle>> {
    if !id.fixed || rank != 0 {
        return Ok(None);
    }
    let bound = wait.until(
        || match socket::listen(id.address, &socket::Options::default()) {
            Err(rustix::io::Errno::ADDRINUSE) => None,
            other => Some(other),
        },
        || format!("the address {} of NCCL_COMM_ID is in use", id.address),
    )?;
    let (listener, _) = bound.map_err(|errno| {
        Error::system(format!("listening on {} (NCCL_COMM_ID)", id.address), errno)
            .remedy("it must be an address of the host where rank 0 runs")
    })?;
    root::start_owned(id, listener, settings).map(Some)
}

/// Rank j tells the root of id number j that it is not needed.
fn release_own(ids: &[UniqueId], rank: u32, settings: &Settings, wait: &Wait) -> Result<()> {
    match ids.get(rank as usize) {
        Some(id) if rank > 0 && !id.fixed => meet::release(id, rank, None, settings, wait),
        _ => Ok(()),
    }
}

/// After a failure: ranks with another order of ids may wait at one of the other roots.
fn release_others(ids: &[UniqueId], rank: u32, failure: &Error, settings: &Settings, wait: &Wait) {
    for id in ids.iter().skip(1).filter(|id| !id.fixed) {
        if let Err(error) = meet::release(id, rank, Some(failure), settings, wait) {
            detail(&error.text);
        }
    }
}

/// Tells the root that this rank will not come, so that the others need not wait for it.
pub fn cannot_join(ids: &[UniqueId], rank: u32, failure: &Error, settings: &Settings) {
    if let Some(id) = ids.first() {
        meet::cannot_join(id, rank, failure, settings);
    }
}

/// The address on which this process listens, as the settings choose it; `near` is an address that should be
/// in reach.
fn listen_address(settings: &Settings, near: Option<IpAddr>) -> Result<IpAddr> {
    let all = interface::list()?;
    Ok(interface::listen_address(&all, settings.ifname.as_deref(), settings.family, near)?)
}

fn random<const N: usize>() -> Result<[u8; N]> {
    socket::random().map_err(|errno| Error::system("getrandom", errno))
}

/// The weight of a remark of the bootstrap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remark {
    /// To those who look for a fault.
    Detail,
    /// To everybody.
    Warning,
}

/// The receiver of the bootstrap's remarks: those about strangers, and whatever has no caller to return an
/// error to.
static LOG: RwLock<fn(Remark, &str)> = RwLock::new(|remark, text| match remark {
    Remark::Detail => log::info(log::Subsys::Bootstrap, || text.to_owned()),
    Remark::Warning => log::warn(text),
});

/// Sets where the bootstrap's remarks go instead of the log.
#[cfg(test)]
pub fn set_log(hook: fn(Remark, &str)) {
    *LOG.write().unwrap_or_else(PoisonError::into_inner) = hook;
}

fn detail(text: &str) {
    remark(Remark::Detail, text);
}

fn remark(remark: Remark, text: &str) {
    let hook = *LOG.read().unwrap_or_else(PoisonError::into_inner);
    hook(remark, text);
}

/// The lock, also after a panic of another holder: no holder leaves the data half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod sealed_tests;
#[cfg(test)]
mod shortage_tests;
#[cfg(test)]
pub(crate) mod tests;
