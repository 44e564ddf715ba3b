//! Communicators: one state machine from creation to the end.
//!
//! ```text
//! Starting ─► Ready ─► Finalized ─► Gone
//!     └─► Failed         any ─► Gone (abort, destroy)
//! ```
//!
//! A [`Comm`] is a cheap handle. What needs the other ranks ([`Live`]) appears when bring-up is over
//! and goes when the communicator is destroyed and the last launch has let go of it.

pub mod card;
mod init;
mod live;
mod memory;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};

use hawser_plan::choose::Choice;
use hawser_plan::p2p::Message;
use hawser_plan::world::DeviceKind;
use hawser_plan::{Call, PlanError};

pub use live::Live;
pub use memory::{mem_alloc, mem_free};

use crate::bootstrap::UniqueId;
use crate::device::Stream;
use crate::env;
use crate::error::{Error, ErrorKind, Result};
use crate::group::{self, Item};
use crate::wait::{AbortFlag, Wait};
use init::{Meeting, bring_up};
use live::lock;

/// Options of a communicator (the part of `ncclConfig_t` that the runtime acts on).
#[derive(Debug, Clone)]
pub struct Config {
    /// Calls return when they are done; otherwise at once, and [`Comm::async_error`] tells.
    pub blocking: bool,
    /// Fewest CTAs of an operation.
    pub min_ctas: Option<u32>,
    /// Most CTAs of an operation.
    pub max_ctas: Option<u32>,
    /// Name for logs and errors.
    pub name: Option<String>,
    /// Children share resources (accepted; every communicator has its own in this version).
    pub split_share: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self { blocking: true, min_ctas: None, max_ctas: None, name: None, split_share: false }
    }
}

/// A communicator. Clones are handles of the same one.
#[derive(Clone)]
pub struct Comm(Arc<Inner>);

/// What all handles of a communicator share.
pub struct Inner {
    id: u64,
    rank: u32,
    ranks: u32,
    ordinal: u32,
    config: Config,
    abort: AbortFlag,
    state: Mutex<State>,
    changed: Condvar,
}

enum State {
    Starting,
    Ready { live: Arc<Live>, pending: u32, failed: Option<Error> },
    Failed(Error),
    Finalized(Arc<Live>),
    Gone,
}

/// Makes a unique id and starts its meeting point in this process.
pub fn unique_id() -> Result<UniqueId> {
    env::settings();
    UniqueId::create(&env::bootstrap_settings())
}

impl Comm {
    /// Creates rank `rank` of a communicator of `nranks` ranks. Collective. In an open group the work
    /// is done at its end; with `config.blocking == false` it goes on in the background.
    pub fn init(ids: &[UniqueId], nranks: u32, rank: u32, ordinal: u32, config: Config) -> Result<Self> {
        if nranks == 0 || nranks > hawser_plan::algo::MAX_RANKS {
            return Err(Error::invalid_argument(format!("{nranks} ranks: a communicator has 1 to {}", hawser_plan::algo::MAX_RANKS)));
        }
        if rank >= nranks {
            return Err(Error::invalid_argument(format!("rank {rank} is not one of {nranks} ranks")));
        }
        if ids.is_empty() || ids.len() > nranks as usize {
            return Err(Error::invalid_argument(format!("{} unique ids for {nranks} ranks: 1 to the number of ranks are possible", ids.len())));
        }
        let comm = Self::new(nranks, rank, ordinal, config);
        let meeting = Meeting::Ids { ids: ids.to_vec(), nranks };
        let starting = comm.clone();
        comm.start(move || starting.bring_up(meeting))?;
        Ok(comm)
    }

    /// Creates one communicator per device in this process, ranks in the order of `ordinals`.
    pub fn init_all(ordinals: &[u32]) -> Result<Vec<Self>> {
        let id = unique_id()?;
        let nranks = ordinals.len() as u32;
        group::start()?;
        let init = |(rank, ordinal): (usize, &u32)| Self::init(&[id], nranks, rank as u32, *ordinal, Config::default());
        let comms = ordinals.iter().enumerate().map(init).collect::<Result<Vec<_>>>();
        group::end()?;
        comms
    }

    /// Makes children: ranks with the same `color` form one, ordered by (`key`, rank). Collective over
    /// all ranks; `color == -1` takes part but gets none.
    pub fn split(&self, color: i32, key: i32, config: Option<Config>) -> Result<Option<Self>> {
        if color < -1 {
            return Err(Error::invalid_argument(format!("rank {}: color {color} must be -1 (none) or not negative", self.0.rank)));
        }
        let live = self.live()?;
        let wait = Wait::new(self.0.abort.clone(), Some(env::settings().init_timeout));
        let mine: Vec<u8> = color.to_le_bytes().into_iter().chain(key.to_le_bytes()).collect();
        let all = live.bootstrap.all_gather(&mine, &wait)?;
        let mut members = Vec::new();
        for (rank, bytes) in all.iter().enumerate() {
            let (Some(c), Some(k)) = (int_at(bytes, 0), int_at(bytes, 4)) else {
                return Err(Error::remote(format!("rank {rank} sent a malformed split request")));
            };
            if color >= 0 && c == color {
                members.push((k, rank as u32));
            }
        }
        members.sort_unstable();
        let members: Vec<u32> = members.into_iter().map(|(_, rank)| rank).collect();
        let Some(bootstrap) = live.bootstrap.split(&members, &wait)? else { return Ok(None) };
        let rank = members.iter().position(|m| *m == self.0.rank).unwrap_or(0) as u32;
        let mut config = config.unwrap_or_else(|| Config { name: None, ..self.0.config.clone() });
        config.name.get_or_insert_with(|| format!("{}/{color}", live.name));
        let child = Self::new(members.len() as u32, rank, self.0.ordinal, config);
        let starting = child.clone();
        child.start(move || starting.bring_up(Meeting::Child { bootstrap }))?;
        Ok(Some(child))
    }

    /// Waits for all operations on this rank; afterwards only destroy is of use.
    pub fn finalize(&self) -> Result<()> {
        let live = self.settled()?;
        let last = *lock(&live.last_stream)?;
        if let Some(stream) = last {
            live.device.synchronize(stream)?;
        }
        *lock(&self.0.state)? = State::Finalized(live);
        Ok(())
    }

    /// Frees everything. Waits for this rank's operations.
    pub fn destroy(&self) -> Result<()> {
        let pending = self.settled().err().filter(|e| e.kind == ErrorKind::Aborted);
        self.release();
        pending.map_or(Ok(()), Err)
    }

    /// Ends everything that this communicator waits for, from any thread, and frees it.
    pub fn abort(&self) -> Result<()> {
        self.0.abort.raise();
        if let Ok(state) = self.0.state.lock()
            && let State::Ready { live, .. } | State::Finalized(live) = &*state
        {
            live.fabric.abort();
        }
        let _ = self.settled();
        self.release();
        Ok(())
    }

    /// What went wrong in the background; `InProgress` while a non-blocking call runs.
    pub fn async_error(&self) -> Option<Error> {
        let state = self.0.state.lock().ok()?;
        match &*state {
            State::Starting => Some(Error::new(ErrorKind::InProgress, "bring-up is in progress")),
            State::Ready { failed: Some(error), .. } => Some(error.clone()),
            State::Ready { pending: 1.., .. } => Some(Error::new(ErrorKind::InProgress, "an operation is in progress")),
            State::Ready { live, .. } | State::Finalized(live) => live.device_error(),
            State::Failed(error) => Some(error.clone()),
            State::Gone => Some(self.gone()),
        }
    }

    /// Puts a collective on a stream, or into the open group.
    pub fn collective(&self, call: Call, stream: Stream) -> Result<()> {
        let checked = call.validate(self.0.ranks, self.0.rank).map_err(|e: PlanError| self.name_error(e.into()));
        group::add(self, checked.map(|()| Item::Call(call, stream)))
    }

    /// Sends `bytes` bytes to `peer`, matched by its `recv`.
    pub fn send(&self, addr: u64, bytes: u64, peer: u32, stream: Stream) -> Result<()> {
        self.message(Message { peer, send: true, addr, bytes }, stream)
    }

    /// Receives `bytes` bytes from `peer`, matched by its `send`.
    pub fn recv(&self, addr: u64, bytes: u64, peer: u32, stream: Stream) -> Result<()> {
        self.message(Message { peer, send: false, addr, bytes }, stream)
    }

    /// Why a call would run as it would.
    pub fn explain(&self, call: &Call) -> Result<Choice> {
        live::explain(&*self.live()?, call)
    }

    /// Number of ranks.
    pub fn ranks(&self) -> u32 {
        self.0.ranks
    }

    /// This rank.
    pub fn rank(&self) -> u32 {
        self.0.rank
    }

    /// Ordinal of the device.
    pub fn ordinal(&self) -> u32 {
        self.0.ordinal
    }

    /// Whether calls wait for their end.
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

    /// Device memory that this rank holds for the communicator, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.live().map_or(0, |l| l.memory_bytes())
    }

    /// The live part, for operations.
    pub fn live(&self) -> Result<Arc<Live>> {
        match &*lock(&self.0.state)? {
            State::Ready { failed: Some(error), .. } | State::Failed(error) => Err(error.clone()),
            State::Ready { live, .. } => Ok(live.clone()),
            State::Starting => Err(self.name_error(Error::invalid_usage("bring-up is still in progress; poll ncclCommGetAsyncError first"))),
            State::Finalized(_) => Err(self.name_error(Error::invalid_usage("the communicator was finalized"))),
            State::Gone => Err(self.gone()),
        }
    }

    /// Runs a job for this communicator in the background and counts it as pending until it is over.
    pub(crate) fn in_background(&self, live: &Arc<Live>, job: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
        if let State::Ready { pending, .. } = &mut *lock(&self.0.state)? {
            *pending += 1;
        }
        let worker = crate::progress::Worker::of(&live.device.caps().id)?;
        let (comm, keep) = (self.clone(), worker.clone());
        worker.submit(move || {
            let outcome = job();
            if let Ok(mut state) = comm.0.state.lock()
                && let State::Ready { pending, failed, .. } = &mut *state
            {
                *pending -= 1;
                if failed.is_none() {
                    *failed = outcome.err();
                }
            }
            comm.0.changed.notify_all();
            drop(keep);
        })
    }

    fn new(ranks: u32, rank: u32, ordinal: u32, config: Config) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(Arc::new(Inner {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            rank,
            ranks,
            ordinal,
            config,
            abort: AbortFlag::new(),
            state: Mutex::new(State::Starting),
            changed: Condvar::new(),
        }))
    }

    /// Runs bring-up now, at the end of the group, or in the background.
    fn start(&self, job: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
        if group::depth() > 0 {
            return group::add_job(Box::new(job), self.0.config.blocking);
        }
        if self.0.config.blocking {
            return job();
        }
        group::spawn("hawser-init", move || drop(job()))
    }

    fn bring_up(&self, meeting: Meeting) -> Result<()> {
        let outcome = bring_up(meeting, self.0.rank, self.0.ordinal, &self.0.config, &self.0.abort);
        let outcome = outcome.map_err(|e| e.context(format!("rank {} of {}", self.0.rank, self.0.ranks)));
        let mut state = lock(&self.0.state)?;
        let result = outcome.as_ref().map(|_| ()).map_err(Clone::clone);
        if matches!(*state, State::Starting) {
            *state = match outcome {
                Ok(live) => State::Ready { live, pending: 0, failed: None },
                Err(error) => {
                    crate::log::warn(&error.text);
                    State::Failed(error)
                }
            };
        }
        self.0.changed.notify_all();
        result
    }

    fn message(&self, message: Message, stream: Stream) -> Result<()> {
        let (verb, ranks) = (if message.send { "send to" } else { "recv from" }, self.0.ranks);
        let fault = if message.peer >= ranks {
            Some(format!("{verb} rank {}: not a rank of this communicator (0..{})", message.peer, ranks - 1))
        } else if message.bytes > 0 && message.addr == 0 {
            Some(format!("{verb} rank {}: the buffer is NULL", message.peer))
        } else {
            None
        };
        let item = fault.map_or(Ok(Item::Message(message, stream)), |text| Err(self.name_error(Error::invalid_argument(text))));
        group::add(self, item)
    }

    /// Waits until nothing runs in the background; the live part, also of a finalized communicator.
    fn settled(&self) -> Result<Arc<Live>> {
        let mut state = lock(&self.0.state)?;
        loop {
            match &*state {
                State::Starting | State::Ready { pending: 1.., .. } => {}
                State::Ready { live, .. } | State::Finalized(live) => return Ok(live.clone()),
                State::Failed(error) => return Err(error.clone()),
                State::Gone => return Err(self.gone()),
            }
            state = self.0.changed.wait(state).map_err(|_| Error::internal("a lock is poisoned by an earlier panic"))?;
        }
    }

    fn release(&self) {
        let old = self.0.state.lock().map(|mut state| std::mem::replace(&mut *state, State::Gone));
        drop(old);
    }

    fn gone(&self) -> Error {
        self.name_error(Error::invalid_argument("the communicator was destroyed or aborted"))
    }

    fn name_error(&self, error: Error) -> Error {
        error.context(format!("rank {} of {}", self.0.rank, self.0.ranks))
    }
}

impl Comm {
    /// Whether programs of this communicator run on the host device.
    pub fn is_host(&self) -> bool {
        self.live().is_ok_and(|l| l.device.caps().kind == DeviceKind::Host)
    }
}

fn int_at(bytes: &[u8], at: usize) -> Option<i32> {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map(i32::from_le_bytes)
}
