//! Making communicators: from unique ids, for all devices of a process, and by splitting.

use std::ffi::c_int;
use std::sync::Arc;

use hawser_base::env;
use hawser_runtime::{Comm, Error, ErrorKind, Result, UniqueId, unique_id};

use crate::args::{In, Out};
use crate::config::CommConfig;
use crate::handle::{CommPtr, Handle};
use crate::p2p::grouped;
use crate::types::{IdBytes, NcclConfig, SPLIT_NOCOLOR};

/// Most ranks of a communicator.
const MOST_RANKS: c_int = hawser_plan::algo::MAX_RANKS.cast_signed();

nccl_api! {
    /// Makes an id for a new communicator and starts the thread at which its ranks meet.
    fn ncclGetUniqueId / pncclGetUniqueId(uniqueId: Out<IdBytes>) {
        uniqueId.check("uniqueId")?;
        uniqueId.set("uniqueId", IdBytes(unique_id()?.to_bytes()))
    }

    /// Joins a communicator as `rank` of `nranks` with the current device. All ranks call it.
    fn ncclCommInitRank / pncclCommInitRank(comm: Out<CommPtr>, nranks: c_int, commId: IdBytes, rank: c_int) {
        grouped(init(comm, nranks, &[commId], rank, In::NULL))
    }

    /// As `ncclCommInitRank`, with a configuration (NULL for the defaults).
    fn ncclCommInitRankConfig / pncclCommInitRankConfig(
        comm: Out<CommPtr>, nranks: c_int, commId: IdBytes, rank: c_int, config: In<NcclConfig>,
    ) {
        grouped(init(comm, nranks, &[commId], rank, config))
    }

    /// As `ncclCommInitRankConfig`, with several ids that share the work of meeting.
    fn ncclCommInitRankScalable / pncclCommInitRankScalable(
        newcomm: Out<CommPtr>, nranks: c_int, myrank: c_int, nId: c_int, commIds: In<IdBytes>,
        config: In<NcclConfig>,
    ) {
        grouped(check_size(newcomm, nranks, myrank).and_then(|_| {
            let ids = commIds.read_all("commIds", id_count(nId, nranks)?)?;
            init(newcomm, nranks, &ids, myrank, config)
        }))
    }

    /// One communicator per device of the list (NULL: devices 0 to ndev-1), all in this process.
    fn ncclCommInitAll / pncclCommInitAll(comm: Out<CommPtr>, ndev: c_int, devlist: In<c_int>) {
        comm.check("comm")?;
        let comms = Comm::init_all(&ordinals(ndev, devlist)?)?;
        let config = CommConfig::read(In::NULL)?;
        let publish = |c| CommPtr::publish(c, config.runtime.blocking, config.max_ctas()).0;
        comm.set_all("comm", comms.into_iter().map(publish))
    }

    /// Parts a communicator by colour; `key` orders the ranks of a part. Colour -1 joins none and gets NULL.
    /// If the parent does not block, it is in progress until the part can be used.
    fn ncclCommSplit / pncclCommSplit(
        comm: CommPtr, color: c_int, key: c_int, newcomm: Out<CommPtr>, config: In<NcclConfig>,
    ) {
        grouped(split(comm, color, key, newcomm, config))
    }
}

fn split(
    comm: CommPtr,
    color: c_int,
    key: c_int,
    newcomm: Out<CommPtr>,
    config: In<NcclConfig>,
) -> Result<()> {
    let parent = comm.ready()?;
    newcomm.set("newcomm", CommPtr::NULL)?;
    check_color(color)?;
    let config = if config.is_null() { None } else { Some(CommConfig::read(config)?) };
    let inherited = (parent.blocking, parent.max_ctas);
    let (blocking, max_ctas) = config.as_ref().map_or(inherited, |c| (c.runtime.blocking, c.max_ctas()));
    let part = parent.name(parent.comm.split(color, key, config.map(|c| c.runtime)))?;
    let Some(part) = part else { return begun(&parent) };
    newcomm.set("newcomm", CommPtr::publish(part, blocking, max_ctas).0)?;
    begun(&parent)
}

/// A split that does not block returns success, as in NCCL: the state of the parent tells when it is over.
fn begun(handle: &Arc<Handle>) -> Result<()> {
    match handle.progress() {
        Err(error) if error.kind == ErrorKind::InProgress => Ok(()),
        other => other,
    }
}

/// Joins a communicator.
pub fn init(
    comm: Out<CommPtr>,
    nranks: c_int,
    ids: &[IdBytes],
    rank: c_int,
    config: In<NcclConfig>,
) -> Result<()> {
    let (ranks, rank) = check_size(comm, nranks, rank)?;
    let at = |error: Error| error.context(format!("rank {rank} of {ranks}"));
    let config = CommConfig::read(config).map_err(at)?;
    let ids: Vec<UniqueId> = ids.iter().map(read_id).collect::<Result<_>>().map_err(at)?;
    let made = Comm::init(&ids, ranks, rank, hawser_device::current()?, config.runtime.clone())?;
    let (pointer, handle) = CommPtr::publish(made, config.runtime.blocking, config.max_ctas());
    comm.set("comm", pointer)?;
    handle.progress()
}

/// Reads an id that came from C.
pub fn read_id(id: &IdBytes) -> Result<UniqueId> {
    UniqueId::from_bytes(&id.0)
}

/// Checks how many ranks there are to be, and stores that there is no communicator yet.
fn check_size(comm: Out<CommPtr>, nranks: c_int, rank: c_int) -> Result<(u32, u32)> {
    comm.set("comm", CommPtr::NULL)?;
    if !(1..=MOST_RANKS).contains(&nranks) {
        return Err(Error::invalid_argument(format!(
            "nranks {nranks} is not a number of ranks (this is rank {rank})"
        ))
        .remedy(format!("use 1 to {MOST_RANKS}")));
    }
    if !(0..nranks).contains(&rank) {
        return Err(Error::invalid_argument(format!("rank {rank} is not a rank of {nranks}"))
            .remedy(format!("give each rank its own number from 0 to {}", nranks - 1)));
    }
    Ok((nranks.unsigned_abs(), rank.unsigned_abs()))
}

fn id_count(count: c_int, nranks: c_int) -> Result<usize> {
    usize::try_from(count).ok().filter(|_| (1..=nranks).contains(&count)).ok_or_else(|| {
        Error::invalid_argument(format!("nId {count} is not a number of unique ids for {nranks} ranks"))
            .remedy(format!("use 1 to {nranks}, the same on every rank"))
    })
}

fn ordinals(count: c_int, list: In<c_int>) -> Result<Vec<u32>> {
    if !(1..=MOST_RANKS).contains(&count) {
        return Err(Error::invalid_argument(format!("ndev {count} is not a number of devices"))
            .remedy(format!("use 1 to {MOST_RANKS}")));
    }
    let count = count.unsigned_abs();
    let wanted = if list.is_null() {
        (0..count.cast_signed()).collect()
    } else {
        list.read_all("devlist", count as usize)?
    };
    each_once(&wanted, hawser_device::count(), env::settings().multi_rank_gpu)
}

/// Devices that exist, named once each unless ranks may share one.
fn each_once(wanted: &[c_int], present: u32, may_share: bool) -> Result<Vec<u32>> {
    let check = |(rank, &ordinal): (usize, &c_int)| {
        let valid = u32::try_from(ordinal).ok().filter(|o| *o < present).ok_or_else(|| {
            Error::invalid_argument(format!(
                "device {ordinal} of rank {rank} does not exist: this process sees {present}"
            ))
            .remedy("check devlist and CUDA_VISIBLE_DEVICES")
        })?;
        if may_share || !wanted[..rank].contains(&ordinal) {
            return Ok(valid);
        }
        Err(Error::invalid_usage(format!("device {ordinal} is in devlist twice, again for rank {rank}"))
            .remedy("name each device once, or set NCCL_MULTI_RANK_GPU_ENABLE=1"))
    };
    wanted.iter().enumerate().map(check).collect()
}

fn check_color(color: c_int) -> Result<()> {
    if color >= 0 || color == SPLIT_NOCOLOR {
        return Ok(());
    }
    Err(Error::invalid_argument(format!("color {color} is negative"))
        .remedy("use 0 or more, or NCCL_SPLIT_NOCOLOR (-1) to join no part"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_exist_and_are_named_once_unless_ranks_may_share_them() {
        assert_eq!(each_once(&[2, 0], 3, false).unwrap(), [2, 0]);
        assert_eq!(each_once(&[1, 1, 1], 2, true).unwrap(), [1, 1, 1]);
        let text = |wanted: &[c_int], may_share| each_once(wanted, 2, may_share).unwrap_err().to_string();
        for may_share in [false, true] {
            assert!(text(&[0, 2], may_share).contains("device 2 of rank 1 does not exist"));
            assert!(text(&[-1], may_share).contains("device -1 of rank 0"));
        }
        let twice = text(&[1, 0, 1], false);
        assert!(
            twice.contains("again for rank 2") && twice.contains("NCCL_MULTI_RANK_GPU_ENABLE=1"),
            "{twice}"
        );
    }
}
