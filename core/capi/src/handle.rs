//! The table of live communicators: what an `ncclComm_t` stands for.
//!
//! A handle is the address of a small tag that is never freed, so a value is never used twice and a
//! handle that was destroyed, or was never one, is told apart from a live one without following it.
//! The tags (16 bytes each) and their entries are the price of that.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use hawser_runtime::{Comm, Error, ErrorKind, Result};
use rustc_hash::{FxBuildHasher, FxHashMap};

use crate::mem::Registrations;
use crate::p2p;
use crate::redop::UserOps;

/// An `ncclComm_t` as it comes from C.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct CommPtr(*const c_void);

/// A live communicator and what C has attached to it.
pub struct Handle {
    /// The runtime's communicator.
    pub comm: Comm,
    /// True if calls wait for their end; otherwise they may return `ncclInProgress`.
    pub blocking: bool,
    /// Most CTAs of one operation, as its configuration says.
    pub max_ctas: u32,
    /// Reductions made by `ncclRedOpCreatePreMulSum`.
    pub ops: UserOps,
    /// Buffers of `ncclCommRegister`.
    pub buffers: Registrations,
    /// Windows of `ncclCommWindowRegister`.
    pub windows: Registrations,
}

enum Slot {
    Live(Arc<Handle>),
    /// Being destroyed: only an abort may still come, to release a destroy that hangs.
    Closing(Arc<Handle>),
    /// The way in which the communicator ended.
    Dead(&'static str),
}

/// The way in which a communicator ends while `ncclCommDestroy` runs.
const CLOSING: &str = "handed to ncclCommDestroy";

type Table = FxHashMap<usize, Slot>;

/// A part of the table, in cache lines of its own.
#[repr(align(128))]
struct Shard(RwLock<Table>);

/// Several locks, so that threads with communicators of their own do not meet.
static SHARDS: [Shard; 16] = [const { Shard(RwLock::new(Table::with_hasher(FxBuildHasher))) }; 16];

impl CommPtr {
    /// The value that C gets where there is no communicator.
    pub const NULL: Self = CommPtr(std::ptr::null());

    /// Returns whether C passed NULL.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Enters a communicator into the table.
    pub fn publish(comm: Comm, blocking: bool, max_ctas: u32) -> (Self, Arc<Handle>) {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let tag: &'static [u64; 2] = Box::leak(Box::new([u64::from_le_bytes(*b"HAWSERCM"), serial]));
        let pointer = CommPtr(tag.as_ptr().cast());
        let handle = Arc::new(Handle {
            comm,
            blocking,
            max_ctas,
            ops: UserOps::default(),
            buffers: Registrations::default(),
            windows: Registrations::default(),
        });
        write(pointer.shard()).insert(pointer.key(), Slot::Live(handle.clone()));
        (pointer, handle)
    }

    /// The communicator, whatever its state.
    ///
    /// # Errors
    /// `InvalidArgument` for NULL, for what is no communicator and for one that was destroyed or aborted.
    pub fn live(self) -> Result<Arc<Handle>> {
        match read(self.shard()).get(&self.key()) {
            Some(Slot::Live(handle)) => Ok(handle.clone()),
            Some(Slot::Closing(_)) => Err(self.dead(CLOSING)),
            Some(Slot::Dead(how)) => Err(self.dead(how)),
            None => Err(self.unknown()),
        }
    }

    /// The communicator, if no call on it is still in progress.
    ///
    /// # Errors
    /// As [`CommPtr::live`], what made bring-up fail, and `InvalidArgument` before a non-blocking call is
    /// over.
    pub fn ready(self) -> Result<Arc<Handle>> {
        let handle = self.operable()?;
        handle.comm.bring_up_error().map_or(Ok(handle), Err)
    }

    /// As [`CommPtr::ready`], for calls that look themselves at why bring-up failed: operations.
    ///
    /// # Errors
    /// As [`CommPtr::live`], and `InvalidArgument` before a non-blocking call is over.
    pub fn operable(self) -> Result<Arc<Handle>> {
        let handle = self.live()?;
        if !handle.blocking
            && handle.comm.async_error().is_some_and(|error| error.kind == ErrorKind::InProgress)
        {
            return Err(Error::invalid_argument(format!(
                "a call on communicator {:?} is still in progress",
                self.0
            ))
            .remedy("poll ncclCommGetAsyncError until it says ncclSuccess"));
        }
        Ok(handle)
    }

    /// The communicator once its bring-up is over, also while a call on it is in progress: those that end
    /// such a call.
    ///
    /// # Errors
    /// As [`CommPtr::live`], and what made bring-up fail.
    pub fn even_busy(self) -> Result<Arc<Handle>> {
        let handle = self.live()?;
        handle.comm.bring_up_error().map_or(Ok(handle), Err)
    }

    /// Destroys the communicator. A refusal because of how it was called leaves it as it was; after
    /// anything else the handle is dead.
    pub fn destroy(self) -> Result<()> {
        let handle = self.swap(false, Slot::Closing)?;
        let outcome = handle.comm.destroy();
        let refusals = [ErrorKind::InvalidUsage, ErrorKind::InvalidArgument];
        let refused = outcome.as_ref().is_err_and(|error| refusals.contains(&error.kind));
        if let Some(slot) = write(self.shard()).get_mut(&self.key())
            && matches!(slot, Slot::Closing(_))
        {
            *slot = if refused { Slot::Live(handle) } else { Slot::Dead("destroyed by ncclCommDestroy") };
        }
        outcome
    }

    /// Aborts the communicator, also one whose destruction hangs in another thread.
    pub fn abort(self) -> Result<()> {
        self.swap(true, |_| Slot::Dead("aborted by ncclCommAbort"))?.comm.abort()
    }

    /// Takes the communicator out of its slot and leaves `next` there.
    fn swap(self, even_closing: bool, next: impl FnOnce(Arc<Handle>) -> Slot) -> Result<Arc<Handle>> {
        let mut shard = write(self.shard());
        let slot = shard.get_mut(&self.key()).ok_or_else(|| self.unknown())?;
        let handle = match slot {
            Slot::Closing(handle) if even_closing => handle.clone(),
            Slot::Live(handle) => handle.clone(),
            Slot::Closing(_) => return Err(self.dead(CLOSING)),
            Slot::Dead(how) => return Err(self.dead(how)),
        };
        *slot = next(handle.clone());
        Ok(handle)
    }

    fn key(self) -> usize {
        self.0 as usize
    }

    fn shard(self) -> &'static Shard {
        &SHARDS[(self.key() >> 5) % SHARDS.len()]
    }

    fn unknown(self) -> Error {
        if self.is_null() {
            return Error::invalid_argument("comm is NULL")
                .remedy("pass a communicator made by an ncclCommInit function");
        }
        Error::invalid_argument(format!("comm {:?} is not a communicator of this library", self.0))
            .remedy("pass the value that ncclCommInitRank or its kin stored, and load only one libnccl.so.2")
    }

    fn dead(self, how: &str) -> Error {
        Error::invalid_argument(format!("communicator {:?} was {how}", self.0))
            .remedy("do not use it any more")
    }
}

impl Handle {
    /// The result of a call on this communicator: success, or the state of a non-blocking one; in a group the
    /// group's end tells what is in progress.
    pub fn progress(self: &Arc<Self>) -> Result<()> {
        if self.blocking {
            return Ok(());
        }
        let is_grouped = p2p::remember(self);
        match self.comm.async_error() {
            Some(error) if !is_grouped || error.kind != ErrorKind::InProgress => Err(error),
            _ => Ok(()),
        }
    }

    /// Puts the rank in front of an error.
    pub fn name<T>(&self, outcome: Result<T>) -> Result<T> {
        let rank = self.comm.rank();
        outcome.map_err(|error| error.on_rank(rank, format_args!("rank {rank}")))
    }
}

/// All live communicators, for texts that name another one.
pub fn all() -> Vec<Arc<Handle>> {
    let live = |slot: &Slot| if let Slot::Live(handle) = slot { Some(handle.clone()) } else { None };
    SHARDS.iter().flat_map(|shard| read(shard).values().filter_map(live).collect::<Vec<_>>()).collect()
}

fn read(shard: &'static Shard) -> RwLockReadGuard<'static, Table> {
    shard.0.read().unwrap_or_else(PoisonError::into_inner)
}

fn write(shard: &'static Shard) -> RwLockWriteGuard<'static, Table> {
    shard.0.write().unwrap_or_else(PoisonError::into_inner)
}

// SAFETY: an address that is compared, never followed.
unsafe impl Send for CommPtr {}
