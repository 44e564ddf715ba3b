//! Communicators that outlive their members, and those that sleep: revoke, shrink, grow, suspend, resume.

use std::ffi::c_int;

use hawser_runtime::{Comm, Config, Error, Result, Shrink, UniqueId};

use crate::args::{In, Out};
use crate::config::CommConfig;
use crate::handle::{CommPtr, Handle};
use crate::init::{init, read_id};
use crate::p2p::grouped;
use crate::types::{IdBytes, NcclConfig};

/// `NCCL_SHRINK_DEFAULT` and `NCCL_SHRINK_ABORT`.
const SHRINK_FLAGS: [(c_int, Shrink); 2] = [(0, Shrink::Keep), (1, Shrink::Abort)];

/// `NCCL_SUSPEND_MEM`: device memory is given back.
const SUSPEND_MEM: c_int = 1;

/// `ncclStatGpuMemSuspend` and what follows it in `ncclCommMemStat_t`.
const MEM_SUSPENDABLE: c_int = 0;
const MEM_IS_SUSPENDED: c_int = 1;
const MEM_PERSISTENT: c_int = 2;
const MEM_TOTAL: c_int = 3;

/// The rank that ranks of the communicator that grows pass: they keep theirs.
const KEEPS_ITS_RANK: c_int = -1;

nccl_api! {
    /// Ends the communicator's work on this rank, at once, and refuses further calls. It can be shrunk, split
    /// and destroyed afterwards. NULL is fine, as in NCCL.
    fn ncclCommRevoke / pncclCommRevoke(comm: CommPtr, revokeFlags: c_int) {
        if comm.is_null() {
            return Ok(());
        }
        let handle = comm.live()?;
        if revokeFlags != 0 {
            let text = format!("revokeFlags {revokeFlags} is not NCCL_REVOKE_DEFAULT");
            return Err(Error::invalid_argument(text).remedy("pass 0"));
        }
        handle.name(handle.comm.revoke())
    }

    /// Makes a communicator without some ranks, which do not call it. With `NCCL_SHRINK_ABORT` (1) the
    /// parent's work is ended first: for after an error, when the excluded ranks are dead.
    fn ncclCommShrink / pncclCommShrink(
        comm: CommPtr, excludeRanksList: In<c_int>, excludeRanksCount: c_int, newcomm: Out<CommPtr>,
        config: In<NcclConfig>, shrinkFlags: c_int,
    ) {
        grouped(shrink(comm, (excludeRanksList, excludeRanksCount), newcomm, config, shrinkFlags))
    }

    /// Makes an id for ranks that join this communicator by `ncclCommGrow`.
    fn ncclCommGetUniqueId / pncclCommGetUniqueId(comm: CommPtr, uniqueId: Out<IdBytes>) {
        let parent = comm.ready()?;
        uniqueId.check("uniqueId")?;
        uniqueId.set("uniqueId", IdBytes(parent.name(parent.comm.grow_id())?.to_bytes()))
    }

    /// Makes a communicator with more ranks. Those of `comm` pass rank -1, and need not pass the id that one
    /// of them made by `ncclCommGetUniqueId`; new ones pass NULL for `comm`, the id and their rank.
    fn ncclCommGrow / pncclCommGrow(
        comm: CommPtr, nRanks: c_int, uniqueId: In<IdBytes>, rank: c_int, newcomm: Out<CommPtr>,
        config: In<NcclConfig>,
    ) {
        grouped(grow(comm, nRanks, uniqueId, rank, newcomm, config))
    }
}

nccl_api! {
    /// Waits for the communicator's operations and gives its device memory back. All ranks call it. Addresses
    /// stay; until `ncclCommResume` nothing may be called or replayed.
    fn ncclCommSuspend / pncclCommSuspend(comm: CommPtr, flags: c_int) {
        grouped(suspend(comm, flags))
    }

    /// Takes back what `ncclCommSuspend` gave. All ranks call it.
    fn ncclCommResume / pncclCommResume(comm: CommPtr) {
        grouped(resume(comm))
    }

    /// Device memory that a communicator holds, in bytes, or whether it is suspended.
    fn ncclCommMemStats / pncclCommMemStats(comm: CommPtr, stat: c_int, value: Out<u64>) {
        let handle = comm.even_busy()?;
        value.check("value")?;
        let stats = handle.name(handle.comm.memory_stats())?;
        value.set("value", match stat {
            MEM_SUSPENDABLE => stats.suspendable,
            MEM_IS_SUSPENDED => stats.is_suspended.into(),
            MEM_PERSISTENT => stats.persistent,
            MEM_TOTAL => stats.suspendable + stats.persistent,
            other => {
                let text = format!("stat {other} is not an ncclCommMemStat_t");
                let remedy = "use ncclStatGpuMemSuspend (0) to ncclStatGpuMemTotal (3)";
                return Err(Error::invalid_argument(text).remedy(remedy));
            }
        })
    }
}

fn suspend(comm: CommPtr, flags: c_int) -> Result<()> {
    let handle = comm.ready()?;
    if flags != SUSPEND_MEM {
        let text = format!("flags {flags} are not NCCL_SUSPEND_MEM");
        return Err(Error::invalid_argument(text).remedy("pass NCCL_SUSPEND_MEM (1)"));
    }
    handle.name(handle.comm.suspend())?;
    handle.progress()
}

fn resume(comm: CommPtr) -> Result<()> {
    let handle = comm.ready()?;
    handle.name(handle.comm.resume())?;
    handle.progress()
}

fn shrink(
    comm: CommPtr,
    (list, count): (In<c_int>, c_int),
    newcomm: Out<CommPtr>,
    config: In<NcclConfig>,
    flags: c_int,
) -> Result<()> {
    let parent = comm.even_busy()?;
    newcomm.set("newcomm", CommPtr::NULL)?;
    let mode = SHRINK_FLAGS.iter().find(|(flag, _)| *flag == flags).map(|(_, mode)| *mode);
    let mode = mode.ok_or_else(|| {
        Error::invalid_argument(format!("shrinkFlags {flags} means nothing"))
            .remedy("use NCCL_SHRINK_DEFAULT (0) or NCCL_SHRINK_ABORT (1)")
    })?;
    let count = usize::try_from(count).ok().filter(|count| *count > 0).ok_or_else(|| {
        Error::invalid_argument(format!("excludeRanksCount is {count}"))
            .remedy("exclude at least one rank, or use ncclCommSplit")
    })?;
    let excluded = list.read_all("excludeRanksList", count.min(parent.comm.ranks() as usize + 1))?;
    derive(&parent, newcomm, config, |comm, config| comm.shrink(&excluded, config, mode))
}

fn grow(
    comm: CommPtr,
    ranks: c_int,
    id: In<IdBytes>,
    rank: c_int,
    newcomm: Out<CommPtr>,
    config: In<NcclConfig>,
) -> Result<()> {
    newcomm.set("newcomm", CommPtr::NULL)?;
    if comm.is_null() {
        return init(newcomm, ranks, &[id.read("uniqueId")?], rank, config);
    }
    let parent = comm.ready()?;
    if rank != KEEPS_ITS_RANK {
        let text = format!("rank {rank} is given for a rank of the communicator that grows");
        return Err(Error::invalid_argument(text).remedy("pass -1 there; a new rank passes NULL for comm"));
    }
    let ranks = u32::try_from(ranks).map_err(|_| {
        Error::invalid_argument(format!("nRanks {ranks} is not a number of ranks"))
            .remedy("pass the number of old and new ranks together")
    })?;
    let id: Option<UniqueId> = if id.is_null() { None } else { Some(read_id(&id.read("uniqueId")?)?) };
    derive(&parent, newcomm, config, |comm, config| comm.grow(ranks, id, config))
}

/// Makes a communicator of another one's ranks, with its options unless others are given. One that does not
/// block returns at once: its state tells when it is over.
fn derive(
    parent: &Handle,
    newcomm: Out<CommPtr>,
    config: In<NcclConfig>,
    make: impl FnOnce(&Comm, Option<Config>) -> Result<Comm>,
) -> Result<()> {
    let config = if config.is_null() { None } else { Some(CommConfig::read(config)?) };
    let inherited = (parent.blocking, parent.max_ctas);
    let (blocking, max_ctas) = config.as_ref().map_or(inherited, |c| (c.runtime.blocking, c.max_ctas()));
    let made = parent.name(make(&parent.comm, config.map(|c| c.runtime)))?;
    newcomm.set("newcomm", CommPtr::publish(made, blocking, max_ctas).0)
}
