//! Communicators: one state machine from creation to the end.
//!
//! ```text
//! Starting ─► Ready ─► Finalized ─► Gone
//!     └─► Failed         any ─► Gone (abort, destroy)
//! ```
//!
//! A [`Comm`] is a cheap handle. What needs the other ranks ([`CommState`], in `comm_state/`) appears when
//! bring-up is over and goes when the communicator is destroyed and the last launch has let go of it. A
//! communicator whose operation failed stays Ready, but refuses further calls with that failure; it can be
//! shrunk, split and destroyed.

mod bringup;
mod config;
mod counts;
mod elastic;
pub mod group;
mod hangs;
mod last_decision;
mod link_constants;
mod lost_waits;
mod lsa;
mod memory;
mod one_sided;
mod operations;
mod programs;
mod split;
mod suspend;
mod teardown;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};

use hawser_plan::Call;
use hawser_plan::choose::Decision;
use hawser_plugin::tuner::SettingsFile;

pub use bringup::negotiate::{cache_file, outlook, plan_config_elsewhere, plan_config_of, program_names};
pub use bringup::unique_id;
pub use config::Config;
pub use elastic::Shrink;
use hawser_base::env;
use hawser_base::error::{Error, ErrorKind, Result};
use hawser_base::files::keep_standard_descriptors;
use hawser_base::liveness::forked;
use hawser_base::lock::lock;
use hawser_base::log;
use hawser_base::wait::AbortFlag;
pub use last_decision::LastDecision;
pub use memory::{mem_alloc, mem_free};
pub use suspend::MemoryStats;

use crate::bootstrap::UniqueId;
use crate::comm_state::CommState;
use crate::rma::Window;
use crate::rules_update::{Outcome, Switch};
use bringup::{Joining, bring_up};
use elastic::Growth;
use group::Job;

/// A communicator. Clones are handles of the same one.
#[derive(Clone)]
pub struct Comm(Arc<Inner>);

impl fmt::Debug for Comm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Comm({} of {}, number {})", self.rank(), self.ranks(), self.id())
    }
}

/// The state that all handles of a communicator share.
pub struct Inner {
    id: u64,
    /// The place of this rank; the child of a split learns it during bring-up.
    place: OnceLock<Place>,
    ordinal: u32,
    config: Config,
    abort: AbortFlag,
    /// [`Comm::revoke`] was called.
    is_revoked: AtomicBool,
    /// The program itself ended the operations, by a revoke or by a shrink that aborts.
    is_ended_by_program: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

impl Drop for Inner {
    /// A child of fork(2) frees nothing: memory and threads are its parent's.
    fn drop(&mut self) {
        if forked::is_child() {
            let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(std::mem::replace(state, State::Gone));
        }
    }
}

/// This rank among the ranks.
#[derive(Clone, Copy)]
struct Place {
    rank: u32,
    ranks: u32,
}

enum State {
    Starting,
    Ready {
        comm_state: Arc<CommState>,
        /// The number of jobs in the background that use the communicator.
        pending: u32,
        /// True once the communicator was finalized: only destroy is allowed then.
        finalized: bool,
        /// True while its memory is given back: only resume and destroy are allowed then.
        is_suspended: bool,
    },
    Failed(Error),
    /// The communicator is over, and what it had is being freed.
    Ending,
    Gone,
}

impl Comm {
    /// Creates rank `rank` of a communicator of `nranks` ranks. Collective. In an open group the work
    /// is done at its end; with `config.blocking == false` it goes on in the background.
    pub fn init(ids: &[UniqueId], nranks: u32, rank: u32, ordinal: u32, config: Config) -> Result<Self> {
        Self::prepare_init(ids, nranks, rank, ordinal, config).inspect_err(group::record)
    }

    fn prepare_init(ids: &[UniqueId], nranks: u32, rank: u32, ordinal: u32, config: Config) -> Result<Self> {
        forked::refuse()?;
        let most = hawser_plan::algo::MAX_RANKS;
        if nranks == 0 || nranks > most {
            return Err(Error::invalid_argument(format!("{nranks} ranks: a communicator has 1 to {most}"))
                .remedy("make several communicators, and one of a rank of each"));
        }
        if rank >= nranks {
            return Err(Error::invalid_argument(format!("rank {rank} is not one of {nranks} ranks")));
        }
        if ids.is_empty() || ids.len() > nranks as usize {
            let text =
                format!("{} unique ids for {nranks} ranks: 1 to the number of ranks are possible", ids.len());
            return Err(Error::invalid_argument(text));
        }
        let blocking = config.blocking;
        let place = Some(Place { rank, ranks: nranks });
        let comm = Self::new(place, ordinal, config, AbortFlag::new());
        let (joining, starting) = (Joining::Ids { ids: ids.to_vec(), nranks }, Starting(comm.clone()));
        let work = Box::new(move |_| starting.bring_up(joining, None));
        group::create(Job { owner: comm.clone(), blocking, work })?;
        Ok(comm)
    }

    /// Creates one communicator per device in this process, ranks in the order of `ordinals`.
    pub fn init_all(ordinals: &[u32]) -> Result<Vec<Self>> {
        let id = unique_id()?;
        let nranks = ordinals.len() as u32;
        group::start()?;
        let init = |(rank, ordinal): (usize, &u32)| {
            Self::init(&[id], nranks, rank as u32, *ordinal, Config::default())
        };
        let comms = ordinals.iter().enumerate().map(init).collect::<Result<Vec<_>>>();
        group::end()?;
        comms
    }

    /// The error of work in the background; `InProgress` while a non-blocking call runs. What ended before
    /// the program itself ended all operations, by a revoke or by a shrink that aborts, is no error any more:
    /// it asks then whether that call is through, as with NCCL.
    pub fn async_error(&self) -> Option<Error> {
        if forked::is_child() {
            return Some(forked::refusal());
        }
        let state = self.0.state.lock().ok()?;
        let in_progress = |what| Some(Error::new(ErrorKind::InProgress, what));
        match &*state {
            State::Starting => in_progress("bring-up is in progress"),
            State::Ready { comm_state, pending, .. } => {
                let is_known = self.0.is_ended_by_program.load(Ordering::Acquire);
                match comm_state.failure().filter(|_| !is_known) {
                    None if *pending > 0 => in_progress("an operation is in progress"),
                    failure => failure,
                }
            }
            State::Failed(error) => Some(error.clone()),
            State::Ending | State::Gone => Some(self.gone()),
        }
    }

    /// Notes that the program has been told that operations failed, so that it will end those that wait and
    /// not take what they leave behind for results.
    pub fn note_failure_known(&self) {
        if let Ok(state) = self.0.state.lock()
            && let State::Ready { comm_state, .. } = &*state
        {
            comm_state.peer_memory.control.note_failure_known();
        }
    }

    /// The error of bring-up, if it failed.
    pub fn bring_up_error(&self) -> Option<Error> {
        if forked::is_child() {
            return Some(forked::refusal());
        }
        match &*self.0.state.lock().ok()? {
            State::Failed(error) => Some(error.clone()),
            _ => None,
        }
    }

    /// The reason why a call would run as it would.
    pub fn explain(&self, call: &Call) -> Result<Decision> {
        self.state()?.choose(call)
    }

    /// Changes the rules of this communicator on all ranks, from one collective on, to those in these files;
    /// without files to none. One rank asks, from any thread; the others need not know. Returns the first
    /// collective (counted from 0 on each rank) with the new rules. It may be one that nobody has called yet.
    ///
    /// # Errors
    /// `InvalidUsage`: nothing has changed on any rank, and why; `Remote`: rank 0 could not be asked.
    pub fn change_rules(&self, files: &[SettingsFile]) -> Result<u64> {
        let comm_state = self.state()?;
        let Some(participant) = &comm_state.participant else {
            return Err(Error::invalid_usage("one rank alone only copies, whatever rules say"));
        };
        let (tell, outcome) = std::sync::mpsc::channel();
        participant.participant().propose(files, Box::new(move |outcome| drop(tell.send(outcome))));
        // The communicator may end before the answer comes.
        drop(comm_state);
        match outcome.recv_timeout(env::settings().rules_timeout * 10) {
            Ok(Outcome::Changed(at)) => Ok(at),
            Ok(Outcome::Unchanged(why)) => {
                Err(self.name_error(Error::invalid_usage(format!("the rules stay as they are: {why}"))))
            }
            Ok(Outcome::Unknown(why)) => {
                Err(self.name_error(Error::remote(format!("what became of the rules is not known: {why}"))))
            }
            Err(_) => Err(self.name_error(Error::new(
                ErrorKind::Timeout,
                "what became of the rules is not known: no answer within 10 times HAWSER_RULES_TIMEOUT",
            ))),
        }
    }

    /// The changes of rules that have happened on this rank, the latest few thousand of them.
    pub fn rule_changes(&self) -> Vec<Switch> {
        match lock(&self.0.state).as_deref() {
            // Also when it has failed.
            Ok(State::Ready { comm_state, .. }) => comm_state
                .participant
                .as_ref()
                .map_or_else(Vec::new, |participant| participant.participant().switches()),
            _ => Vec::new(),
        }
    }

    /// A buffer of this rank is a symmetric window of the communicator: all ranks say so of theirs. Calls
    /// whose buffers lie in such count as registered for rules.
    ///
    /// # Errors
    /// The communicator is not up.
    pub fn add_window(&self, addr: u64, bytes: u64) -> Result<()> {
        self.state()?.windows.add(addr, bytes);
        Ok(())
    }

    /// Takes a window of [`Comm::add_window`] back.
    pub fn remove_window(&self, addr: u64, bytes: u64) {
        if let Ok(State::Ready { comm_state, .. }) = lock(&self.0.state).as_deref() {
            comm_state.windows.remove(addr, bytes);
        }
    }

    /// The program registers a buffer of this rank, which stays until it takes that back: other ranks of the
    /// host may map it, and the network may read and write it itself.
    ///
    /// # Errors
    /// The communicator is not up.
    pub fn register_buffer(&self, addr: u64, bytes: u64) -> Result<()> {
        self.register_with_net(addr, bytes)?;
        self.state()?.lsa.lend_registered((addr, bytes));
        Ok(())
    }

    /// Takes a registration of [`Comm::register_buffer`] back.
    pub fn deregister_buffer(&self, addr: u64, bytes: u64) {
        self.deregister_with_net(addr, bytes);
        if let Ok(Some(comm_state)) = self.holder() {
            comm_state.lsa.take_back_registered((addr, bytes), comm_state.epoch.begun());
            comm_state.free_retired_later();
        }
    }

    /// The network may read and write a buffer of this rank itself, which stays until that is taken back.
    ///
    /// # Errors
    /// The communicator is not up.
    pub fn register_with_net(&self, addr: u64, bytes: u64) -> Result<()> {
        if let Some(net) = &self.state()?.net {
            net.register_buffer(addr, bytes);
        }
        Ok(())
    }

    /// Takes a registration of [`Comm::register_with_net`] back.
    pub fn deregister_with_net(&self, addr: u64, bytes: u64) {
        if let Ok(Some(comm_state)) = self.holder()
            && let Some(net) = &comm_state.net
        {
            net.deregister_buffer(addr, bytes);
        }
    }

    /// A buffer of this rank is its window with this number, which is the number of windows that were
    /// registered before it. Others may put into it if it is symmetric.
    ///
    /// # Errors
    /// The communicator is not up.
    pub fn expose(&self, number: u64, window: Window) -> Result<()> {
        self.state()?.rma.exposed().register(number, window);
        Ok(())
    }

    /// Takes a window of [`Comm::expose`] back.
    pub fn hide(&self, number: u64) {
        let comm_state = match lock(&self.0.state).as_deref() {
            Ok(State::Ready { comm_state, .. }) => comm_state.clone(),
            _ => return,
        };
        comm_state.forget_window(comm_state.rma.exposed().deregister(number));
    }

    /// Number of ranks; 0 for a child whose split is not over or has failed.
    pub fn ranks(&self) -> u32 {
        self.0.place.get().map_or(0, |place| place.ranks)
    }

    /// This rank; 0 for a child whose split is not over or has failed.
    pub fn rank(&self) -> u32 {
        self.0.place.get().map_or(0, |place| place.rank)
    }

    /// Ordinal of the device.
    pub fn ordinal(&self) -> u32 {
        self.0.ordinal
    }

    /// True if calls wait for their end.
    pub fn is_blocking(&self) -> bool {
        self.0.config.blocking
    }

    /// The options it was made with.
    pub fn config(&self) -> &Config {
        &self.0.config
    }

    /// A number that no other communicator of this process has.
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// A number that all ranks of the communicator have, and hardly another one.
    ///
    /// # Errors
    /// As [`Comm::state`].
    pub fn hash(&self) -> Result<u64> {
        self.state().map(|comm_state| comm_state.comm_id)
    }

    /// NVML's number of the device; the ordinal if NVML does not know it.
    ///
    /// # Errors
    /// As [`Comm::state`].
    pub fn nvml_device(&self) -> Result<u32> {
        let comm_state = self.state()?;
        Ok(hawser_device::nvml_index(&comm_state.device.caps().id).unwrap_or(self.0.ordinal))
    }

    /// True if the other ranks of a load-store team can use a buffer of this one.
    ///
    /// # Errors
    /// As [`Comm::state`], or the driver's.
    pub fn is_reached(&self, addr: u64, bytes: u64) -> Result<bool> {
        match self.state()?.device.kernels() {
            Some(kernels) => kernels.is_reached(addr, bytes),
            None => Ok(true),
        }
    }

    /// Device memory that this rank holds for the communicator, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.state().map_or(0, |l| l.memory_bytes())
    }

    /// The live part, for operations.
    pub fn state(&self) -> Result<Arc<CommState>> {
        self.with_ready(Arc::clone)
    }

    /// Succeeds if operations can be put on the communicator now.
    pub(crate) fn check_ready(&self) -> Result<()> {
        self.with_ready(|_| ())
    }

    fn with_ready<T>(&self, take: impl FnOnce(&Arc<CommState>) -> T) -> Result<T> {
        forked::refuse()?;
        let refuse = |text: &str| Err(self.name_error(Error::invalid_usage(text)));
        match &*lock(&self.0.state)? {
            State::Ready { finalized: true, .. } => refuse("the communicator was finalized"),
            State::Ready { is_suspended: true, comm_state, .. } if comm_state.failure().is_none() => {
                refuse("the communicator is suspended; call ncclCommResume on all ranks first")
            }
            State::Ready { comm_state, .. } => match comm_state.failure() {
                None => Ok(take(comm_state)),
                Some(error) => {
                    // The others may wait for this rank in what it is refused.
                    if !self.0.is_revoked.load(Ordering::Acquire) {
                        comm_state.bootstrap.report(&error);
                    }
                    Err(error)
                }
            },
            State::Failed(error) => Err(error.clone()),
            State::Starting => refuse("bring-up is still in progress; poll ncclCommGetAsyncError first"),
            State::Ending | State::Gone => Err(self.gone()),
        }
    }

    /// Runs a job for this communicator in the background; it is busy until the job is over.
    pub(crate) fn in_background(
        &self,
        comm_state: &CommState,
        job: impl FnOnce() + Send + 'static,
    ) -> Result<()> {
        let worker = hawser_base::progress::Worker::of(&comm_state.device.caps().id)?;
        let (busy, keep) = (self.busy()?, worker.clone());
        worker.submit(move || {
            job();
            drop((busy, keep));
        })
    }

    /// Counts a job in the background until the guard is dropped; None unless bring-up is over.
    pub(crate) fn busy(&self) -> Result<Option<Busy>> {
        let mut state = lock(&self.0.state)?;
        let State::Ready { pending, .. } = &mut *state else { return Ok(None) };
        *pending += 1;
        Ok(Some(Busy(self.clone())))
    }

    fn is_busy(&self) -> Result<bool> {
        Ok(matches!(&*lock(&self.0.state)?, State::Ready { pending: 1.., .. }))
    }

    fn new(place: Option<Place>, ordinal: u32, config: Config, abort: AbortFlag) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        forked::begin();
        keep_standard_descriptors();
        Self(Arc::new(Inner {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            place: place.map_or_else(OnceLock::new, OnceLock::from),
            ordinal,
            config,
            abort,
            is_revoked: AtomicBool::new(false),
            is_ended_by_program: AtomicBool::new(false),
            state: Mutex::new(State::Starting),
            changed: Condvar::new(),
        }))
    }

    /// Ends `Starting`, unless an abort was faster.
    fn started(&self, outcome: Result<Arc<CommState>>) {
        if let Ok(mut state) = self.0.state.lock()
            && matches!(*state, State::Starting)
        {
            *state = outcome.map_or_else(State::Failed, |comm_state| State::Ready {
                comm_state,
                pending: 0,
                finalized: false,
                is_suspended: false,
            });
            self.0.abort.part();
        }
        self.0.changed.notify_all();
    }

    fn gone(&self) -> Error {
        self.name_error(Error::invalid_argument("the communicator was destroyed or aborted"))
    }

    /// Puts the rank in front, unless the error has it already.
    fn name_error(&self, error: Error) -> Error {
        match self.0.place.get() {
            Some(Place { rank, ranks }) => error.on_rank(*rank, format_args!("rank {rank} of {ranks}")),
            None => error.on_resource("child communicator"),
        }
    }
}

/// A communicator that a job brings up. If the job is dropped unrun or panics, bring-up has failed.
struct Starting(Comm);

impl Starting {
    /// Brings the communicator up. The old ranks of a growth agree on the outcome.
    fn bring_up(self, joining: Joining, growth: Option<&Growth>) -> Result<()> {
        let Comm(inner) = &self.0;
        let brought = bring_up(joining, self.0.rank(), inner.ordinal, &inner.config, &inner.abort);
        let own = brought.as_ref().err().cloned();
        match (brought, growth.map_or(Ok(()), |growth| growth.agree(own))) {
            (Ok(comm_state), Ok(())) => {
                self.0.started(Ok(comm_state));
                Ok(())
            }
            (Ok(comm_state), Err(error)) => {
                // The new ranks have this communicator already.
                comm_state.bootstrap.report(&error);
                Err(self.fail(error))
            }
            (Err(error), Ok(())) | (Err(_), Err(error)) => Err(self.fail(error)),
        }
    }

    /// Ends bring-up with an error, which it returns with the rank in front.
    fn fail(self, error: Error) -> Error {
        let error = self.0.name_error(error);
        log::error(&error);
        self.0.started(Err(error.clone()));
        error
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        let text = "bring-up was not carried out: see the error of the group's end";
        self.0.started(Err(self.0.name_error(Error::invalid_usage(text))));
    }
}

/// A job in the background that uses a communicator.
pub(crate) struct Busy(Comm);

impl Drop for Busy {
    fn drop(&mut self) {
        if let Ok(mut state) = self.0.0.state.lock()
            && let State::Ready { comm_state, pending, .. } = &mut *state
        {
            *pending -= 1;
            if std::thread::panicking() {
                let _ = comm_state
                    .broken
                    .set(Error::internal("a background operation panicked: a bug in this library"));
            }
        }
        self.0.0.changed.notify_all();
    }
}

impl Comm {
    /// True if programs of this communicator run on the host device.
    pub fn is_host(&self) -> bool {
        self.state().is_ok_and(|l| l.device.kernels().is_none())
    }
}

#[cfg(test)]
mod tests;
