//! The device API: not offered. Its structs are compiled into users' kernels, so half an answer would
//! be worse than none; `ncclCommQueryProperties` says `deviceApiSupport = false`, and callers go by that.

use std::ffi::{c_int, c_void};

use hawser_runtime::Error;

use crate::args::Out;
use crate::handle::CommPtr;
use crate::later::not_offered;
use crate::types::{API_MAGIC, CommProperties, Team};

const NO_TEAM: Team = Team { ranks: 0, rank: 0, stride: 0 };

nccl_api! {
    /// What the communicator can do; writes no more than the caller's struct holds.
    fn ncclCommQueryProperties / pncclCommQueryProperties(comm: CommPtr, props: Out<CommProperties>) {
        let handle = comm.ready()?;
        let given = props.input().read_versioned("props", NOTHING, API_MAGIC);
        let given = if props.is_null() { given? } else { given.map_err(uninitialised)? };
        let (ranks, rank, device) = (handle.comm.ranks(), handle.comm.rank(), handle.comm.ordinal());
        let known = CommProperties {
            size: given.size, magic: given.magic, version: given.version,
            rank: rank.cast_signed(), ranks: ranks.cast_signed(), cuda_device: device.cast_signed(),
            nvml_device: handle.comm.nvml_device()?.cast_signed(), comm_hash: handle.comm.hash()?, ..NOTHING
        };
        props.set_prefix("props", &known, given.size)
    }

    /// A communicator for kernels.
    fn ncclDevCommCreate / pncclDevCommCreate(comm: CommPtr, _reqs: *const c_void,
        _outDevComm: *const c_void) {
        comm.ready().and_then(|_| Err(refusal()))
    }

    /// Frees a communicator for kernels.
    fn ncclDevCommDestroy / pncclDevCommDestroy(comm: CommPtr, _devComm: *const c_void) {
        comm.ready().and_then(|_| Err(refusal()))
    }

    /// All ranks as a team.
    fn ncclTeamWorld / pncclTeamWorld(_comm: CommPtr) -> Team, else NO_TEAM, {
        Err(refusal())
    }

    /// Ranks that load and store each other's memory, as a team.
    fn ncclTeamLsa / pncclTeamLsa(_comm: CommPtr) -> Team, else NO_TEAM, {
        Err(refusal())
    }

    /// Ranks on the same rail, as a team.
    fn ncclTeamRail / pncclTeamRail(_comm: CommPtr) -> Team, else NO_TEAM, {
        Err(refusal())
    }

    /// Ranks reached by counted transfers, as a team.
    fn ncclTeamCft / pncclTeamCft(_comm: CommPtr, _mode: c_int) -> Team, else NO_TEAM, {
        Err(refusal())
    }

    /// Ranks reached by counted multicast, as a team.
    fn ncclTeamCftMultimem / pncclTeamCftMultimem(_comm: CommPtr) -> Team, else NO_TEAM, {
        Err(refusal())
    }

    /// A team's rank as one of the communicator; -1 here.
    fn ncclTeamRankToWorld / pncclTeamRankToWorld(_comm: CommPtr, _team: Team, _rank: c_int) -> c_int,
        else -1, {
        Err(refusal())
    }

    /// A team's rank as one of the load-store team; -1 here.
    fn ncclTeamRankToLsa / pncclTeamRankToLsa(_comm: CommPtr, _team: Team, _rank: c_int) -> c_int, else -1, {
        Err(refusal())
    }

    /// Resources that a barrier of a load-store team needs.
    fn ncclLsaBarrierCreateRequirement / pncclLsaBarrierCreateRequirement(
        _team: Team, _nBarriers: c_int, _outHandle: *const c_void, _outReq: *const c_void,
    ) {
        Err(refusal())
    }

    /// Resources that a barrier over the network needs.
    fn ncclGinBarrierCreateRequirement / pncclGinBarrierCreateRequirement(
        _comm: CommPtr, _team: Team, _nBarriers: c_int, _outHandle: *const c_void, _outReq: *const c_void,
    ) {
        Err(refusal())
    }

    /// Resources that an inbox of an all-to-all over the network needs.
    fn ncclGinInboxA2ACreateRequirement / pncclGinInboxA2ACreateRequirement(
        _peers: Team, _nBlocks: c_int, _sizeLog2: c_int, _outHandle: *const c_void, _outReq: *const c_void,
    ) {
        Err(refusal())
    }

    /// Resources that an outbox for the network needs.
    fn ncclGinOutboxCreateRequirement / pncclGinOutboxCreateRequirement(
        _nBlocks: c_int, _sizeLog2: c_int, _outHandle: *const c_void, _outReq: *const c_void,
    ) {
        Err(refusal())
    }

    /// Slots of a low-latency all-to-all; 0 here.
    fn ncclLLA2ACalcSlots / pncclLLA2ACalcSlots(_maxElts: c_int, _maxEltSize: c_int) -> c_int, else 0, {
        Err(refusal())
    }

    /// Resources that a low-latency all-to-all needs.
    fn ncclLLA2ACreateRequirement / pncclLLA2ACreateRequirement(
        _nBlocks: c_int, _nSlots: c_int, _outHandle: *const c_void, _outReq: *const c_void,
    ) {
        Err(refusal())
    }

    /// Address of a load-store peer's window.
    fn ncclGetLsaDevicePointer / pncclGetLsaDevicePointer(
        _window: *const c_void, _offset: usize, _lsaRank: c_int, outPtr: Out<*const c_void>,
    ) {
        no_address(outPtr)
    }

    /// Address of a peer's window.
    fn ncclGetPeerDevicePointer / pncclGetPeerDevicePointer(
        _window: *const c_void, _offset: usize, _peer: c_int, outPtr: Out<*const c_void>,
    ) {
        no_address(outPtr)
    }

    /// Multicast address of a window in the load-store team.
    fn ncclGetLsaMultimemDevicePointer / pncclGetLsaMultimemDevicePointer(
        _window: *const c_void, _offset: usize, outPtr: Out<*const c_void>,
    ) {
        no_address(outPtr)
    }

    /// Multicast address of a window. The multicast handle is a struct of one pointer.
    fn ncclGetMultimemDevicePointer / pncclGetMultimemDevicePointer(
        _window: *const c_void, _offset: usize, _multimem: *const c_void, outPtr: Out<*const c_void>,
    ) {
        no_address(outPtr)
    }

    /// Logical endpoint of a window in a counted team.
    fn ncclGetCftDeviceLeInfo / pncclGetCftDeviceLeInfo(
        _window: *const c_void, _offset: usize, _peerCft: c_int, _cftTeam: Team, leId: Out<u32>,
        leOffset: Out<usize>,
    ) {
        no_endpoint(leId, leOffset)
    }

    /// Logical endpoint of a peer's window.
    fn ncclGetPeerDeviceLeInfo / pncclGetPeerDeviceLeInfo(
        _window: *const c_void, _offset: usize, _peerWorld: c_int, leId: Out<u32>, leOffset: Out<usize>,
    ) {
        no_endpoint(leId, leOffset)
    }

    /// Multicast logical endpoint of a window.
    fn ncclGetMultimemDeviceLeInfo / pncclGetMultimemDeviceLeInfo(
        _window: *const c_void, _offset: usize, leId: Out<u32>, leOffset: Out<usize>,
    ) {
        no_endpoint(leId, leOffset)
    }
}

/// Nothing is supported: no device API, no multicast, no network from kernels.
const NOTHING: CommProperties = CommProperties {
    size: 0,
    magic: 0,
    version: 0,
    rank: 0,
    ranks: 0,
    cuda_device: 0,
    nvml_device: 0,
    device_api_support: 0,
    multimem_support: 0,
    gin_type: 0,
    lsa_teams: 0,
    host_rma_support: 0,
    railed_gin_type: 0,
    comm_hash: 0,
    gin_min_stride: 0,
    gin_connection_type: 0,
    gin_support: [0; 64],
    device_comm_size: 0,
    cft_support: 0,
    cft_multicast_support: 0,
    cft_counted_support: 0,
};

/// A struct without its initialiser: NCCL has `ncclInvalidUsage` for it here.
fn uninitialised(error: Error) -> Error {
    Error::invalid_usage(error.text.as_str())
}

fn refusal() -> Error {
    not_offered("the device API is missing as a whole; ncclCommQueryProperties says deviceApiSupport = false")
}

fn no_address(out: Out<*const c_void>) -> Result<(), Error> {
    out.set_if_given(std::ptr::null());
    Err(refusal())
}

/// All ones is NCCL's invalid endpoint.
fn no_endpoint(id: Out<u32>, offset: Out<usize>) -> Result<(), Error> {
    id.set_if_given(u32::MAX);
    offset.set_if_given(0);
    Err(refusal())
}
