//! Teams of ranks, and the addresses of windows that a rank can use.
//!
//! The ranks of a host that share memory by VMM are a load-store team: symmetric windows in such memory are
//! mapped by all of them, wherever they run. Without VMM it is all ranks if they are in one process whose
//! devices reach each other's ordinary memory, else each rank alone. A rail has one rank of each team.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use hawser_runtime::{Error, Result};

use crate::args::{self, Out};
use crate::handle::{self, CommPtr, Handle};
use crate::mem::Registered;
use crate::types::Team;

/// The answer after an error.
pub const NO_TEAM: Team = Team { ranks: 0, rank: 0, stride: 0 };

nccl_api! {
    /// All ranks as a team.
    fn ncclTeamWorld / pncclTeamWorld(comm: CommPtr) -> Team, else NO_TEAM, {
        Ok(world(&*comm.ready()?))
    }

    /// The ranks that load and store each other's windows, as a team.
    fn ncclTeamLsa / pncclTeamLsa(comm: CommPtr) -> Team, else NO_TEAM, {
        load_store(&*comm.ready()?)
    }

    /// The ranks that have the same place in their load-store teams, as a team.
    fn ncclTeamRail / pncclTeamRail(comm: CommPtr) -> Team, else NO_TEAM, {
        let handle = comm.ready()?;
        let (world, near) = (world(&handle), load_store(&handle)?);
        Ok(Team { ranks: world.ranks / near.ranks, rank: world.rank / near.ranks, stride: near.ranks })
    }

    /// A team's rank as one of the communicator; -1 if the team has no such rank.
    fn ncclTeamRankToWorld / pncclTeamRankToWorld(comm: CommPtr, team: Team, rank: c_int) -> c_int, else -1, {
        let world = world(&*comm.ready()?);
        rank_in(world, team, rank)
    }

    /// A team's rank as one of the load-store team; -1 if that has no such rank.
    fn ncclTeamRankToLsa / pncclTeamRankToLsa(comm: CommPtr, team: Team, rank: c_int) -> c_int, else -1, {
        let near = load_store(&*comm.ready()?)?;
        rank_in(near, team, rank)
    }

    /// Address of a window of the load-store team's rank `lsaRank`.
    fn ncclGetLsaDevicePointer / pncclGetLsaDevicePointer(
        window: *const c_void, offset: usize, lsaRank: c_int, outPtr: Out<*const c_void>,
    ) {
        let (owner, window) = place(window, offset, outPtr)?;
        let team = owner.comm.load_store_team()?;
        let rank = args::rank("lsaRank", lsaRank, team.ranks)?;
        outPtr.set("outPtr", address(&owner, window, offset, team.first + rank)?)
    }

    /// Address of rank `peer`'s window; NULL if this rank cannot load and store it.
    fn ncclGetPeerDevicePointer / pncclGetPeerDevicePointer(
        window: *const c_void, offset: usize, peer: c_int, outPtr: Out<*const c_void>,
    ) {
        let (owner, window) = place(window, offset, outPtr)?;
        let rank = args::rank("peer", peer, owner.comm.ranks())?;
        let team = owner.comm.load_store_team()?;
        let is_in_team = (team.first..team.first + team.ranks).contains(&rank);
        let is_near = is_in_team && (owner.comm.window_address(window.handle, 0, 0)?.is_some()
            || rank == owner.comm.rank() || here(&owner, rank)?.is_some());
        if is_near { outPtr.set("outPtr", address(&owner, window, offset, rank)?) } else { Ok(()) }
    }

    /// Multicast address of a window in the load-store team; NULL if it has none.
    fn ncclGetLsaMultimemDevicePointer / pncclGetLsaMultimemDevicePointer(
        window: *const c_void, offset: usize, outPtr: Out<*const c_void>,
    ) {
        multicast_address(window, offset, outPtr)
    }

    /// Multicast address of a window; NULL if it has none. The multicast handle is a struct of one pointer:
    /// only that of the load-store team is ever given out.
    fn ncclGetMultimemDevicePointer / pncclGetMultimemDevicePointer(
        window: *const c_void, offset: usize, multimem: *const c_void, outPtr: Out<*const c_void>,
    ) {
        if multimem.is_null() {
            return place(window, offset, outPtr).map(drop);
        }
        multicast_address(window, offset, outPtr)
    }
}

fn multicast_address(window: *const c_void, offset: usize, out: Out<*const c_void>) -> Result<()> {
    let (owner, window) = place(window, offset, out)?;
    match owner.comm.multicast_address(window.handle, offset as u64)? {
        Some(addr) => out.set("outPtr", addr as *const c_void),
        None => Ok(()),
    }
}

/// The communicator that a window belongs to.
///
/// # Errors
/// `InvalidArgument` for what is no window.
pub fn owner(window: *const c_void) -> Result<(Arc<Handle>, Registered)> {
    if window.is_null() {
        return Err(args::null("window"));
    }
    let found = handle::all().into_iter().find_map(|it| it.windows.find(window).map(|found| (it, found)));
    found.ok_or_else(|| {
        Error::invalid_argument(format!("window {window:?} is no window of this process"))
            .remedy("pass what ncclCommWindowRegister stored, and only until it was taken back")
    })
}

/// A window whose byte `offset` exists. NULL is stored where the address will be.
fn place(window: *const c_void, offset: usize, out: Out<*const c_void>) -> Result<(Arc<Handle>, Registered)> {
    let (owner, found) = owner(window)?;
    out.set("outPtr", std::ptr::null())?;
    if offset as u64 > found.bytes {
        return Err(Error::invalid_argument(format!("offset {offset} is beyond the {} bytes", found.bytes))
            .remedy("pass an offset within the window"));
    }
    Ok((owner, found))
}

/// The address of a rank's part of a window: where kernels find it, else where its owner has it, in this
/// process.
fn address(owner: &Handle, window: Registered, offset: usize, rank: u32) -> Result<*const c_void> {
    let team = owner.comm.load_store_team()?;
    if let Some(addr) = owner.comm.window_address(window.handle, rank - team.first, offset as u64)? {
        return Ok(addr as *const c_void);
    }
    let part = if rank == owner.comm.rank() { window } else { part_of(owner, window, rank)? };
    Ok((part.base + offset as u64) as *const c_void)
}

/// Another rank's part of a window, which lies in this process.
fn part_of(owner: &Handle, window: Registered, rank: u32) -> Result<Registered> {
    let missing = || {
        Error::invalid_usage(format!("rank {rank} has not registered its part of the window"))
            .remedy("ask after ncclCommWindowRegister has returned on all ranks")
    };
    let not_mapped = || {
        Error::invalid_usage(format!("the window of rank {rank}, in another process, is not mapped here"))
            .remedy("register memory of ncclMemAlloc on all ranks")
    };
    let peer = here(owner, rank)?.ok_or_else(not_mapped)?;
    let part = peer.windows.at(window.place).ok_or_else(missing)?;
    if !peer.comm.is_reached(part.base, part.bytes)? {
        return Err(Error::invalid_usage(format!("rank {rank}'s buffer cannot be used by other GPUs"))
            .remedy("register memory of ncclMemAlloc or cudaMalloc on all ranks"));
    }
    Ok(part)
}

/// Another rank of a communicator, if it is in this process.
fn here(owner: &Handle, rank: u32) -> Result<Option<Arc<Handle>>> {
    let comm = owner.comm.hash()?;
    let is_it =
        |other: &Arc<Handle>| other.comm.rank() == rank && other.comm.hash().is_ok_and(|it| it == comm);
    Ok(handle::all().into_iter().find(is_it))
}

fn world(handle: &Handle) -> Team {
    Team { ranks: handle.comm.ranks().cast_signed(), rank: handle.comm.rank().cast_signed(), stride: 1 }
}

/// The load-store team of a rank.
pub fn load_store(handle: &Handle) -> Result<Team> {
    let team = handle.comm.load_store_team()?;
    let rank = handle.comm.rank() - team.first;
    Ok(Team { ranks: team.ranks.cast_signed(), rank: rank.cast_signed(), stride: 1 })
}

/// The number of load-store teams.
pub fn rails(handle: &Handle) -> Result<u32> {
    Ok(handle.comm.ranks() / handle.comm.load_store_team()?.ranks)
}

/// The number that a rank of `team` has in `other`: both teams say where this rank stands.
fn rank_in(other: Team, team: Team, rank: c_int) -> Result<c_int> {
    let number = rank
        .checked_sub(team.rank)
        .and_then(|steps| steps.checked_mul(team.stride))
        .and_then(|steps| steps.checked_add(other.rank));
    let is_there = (0..team.ranks).contains(&rank);
    number.filter(|number| is_there && (0..other.ranks).contains(number)).ok_or_else(|| {
        Error::invalid_argument(format!("rank {rank} of {team:?} is not one of {other:?}"))
            .remedy("pass a team of this communicator and one of its ranks")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_change_their_numbers_between_teams() {
        // Rank 5 of eight, in load-store teams of four.
        let (world, near, rail) = (
            Team { ranks: 8, rank: 5, stride: 1 },
            Team { ranks: 4, rank: 1, stride: 1 },
            Team { ranks: 2, rank: 1, stride: 4 },
        );
        let all =
            |other, team, ranks: c_int| (0..ranks).map(|r| rank_in(other, team, r).ok()).collect::<Vec<_>>();
        assert_eq!(all(world, near, 5), [Some(4), Some(5), Some(6), Some(7), None]);
        assert_eq!(all(world, rail, 3), [Some(1), Some(5), None]);
        assert_eq!(all(near, rail, 2), [None, Some(1)]);
        assert_eq!(all(near, world, 8), [None, None, None, None, Some(0), Some(1), Some(2), Some(3)]);
        let wild = Team { ranks: c_int::MAX, rank: c_int::MIN, stride: c_int::MAX };
        assert!(rank_in(world, wild, 7).is_err());
    }
}
