//! The parts of the device API that a communicator offers, and those that there are none of: counted
//! transfers. Load-store teams and the network in kernels are offered (`dev_comm`, `teams`, `requirements`,
//! `gin`) where ranks share memory by VMM.

use std::ffi::{c_int, c_void};

use hawser_runtime::Error;

use crate::args::Out;
use crate::dev_comm;
use crate::gin;
use crate::handle::CommPtr;
use crate::teams::{self, NO_TEAM};
use crate::types::{API_MAGIC, CommProperties, Team};

nccl_api! {
    /// The abilities of the communicator; writes no more than the caller's struct holds.
    fn ncclCommQueryProperties / pncclCommQueryProperties(comm: CommPtr, props: Out<CommProperties>) {
        let handle = comm.ready()?;
        let given = props.input().read_versioned("props", NOTHING, API_MAGIC);
        let given = if props.is_null() { given? } else { given.map_err(uninitialised)? };
        let (ranks, rank, device) = (handle.comm.ranks(), handle.comm.rank(), handle.comm.ordinal());
        let has_windows = handle.comm.kernels_cannot_have_windows()?.is_none();
        let kind = if has_windows && gin::form(given.version).is_some() { gin::PROXY } else { 0 };
        let gin_support = std::array::from_fn(|of| u8::from(kind != 0 && of == kind as usize));
        let known = CommProperties {
            size: given.size, magic: given.magic, version: given.version,
            rank: rank.cast_signed(), ranks: ranks.cast_signed(), cuda_device: device.cast_signed(),
            nvml_device: handle.comm.nvml_device()?.cast_signed(), comm_hash: handle.comm.hash()?,
            host_rma_support: 1,
            device_api_support: has_windows.into(),
            multimem_support: handle.comm.offers_multicast()?.into(),
            gin_type: kind, railed_gin_type: kind, gin_connection_type: if kind == 0 { 0 } else { gin::FULL },
            gin_min_stride: c_int::from(kind != 0), gin_support,
            device_comm_size: dev_comm::own_bytes(),
            lsa_teams: (ranks / handle.comm.load_store_team()?.ranks).cast_signed(), ..NOTHING
        };
        props.set_prefix("props", &known, given.size)
    }

    /// Ranks reached by counted transfers, as a team.
    fn ncclTeamCft / pncclTeamCft(_comm: CommPtr, _mode: c_int) -> Team, else NO_TEAM, {
        Err(Missing::Counted.refusal())
    }

    /// Ranks reached by counted multicast, as a team.
    fn ncclTeamCftMultimem / pncclTeamCftMultimem(_comm: CommPtr) -> Team, else NO_TEAM, {
        Err(Missing::Counted.refusal())
    }

    /// Logical endpoint of a window in a counted team.
    fn ncclGetCftDeviceLeInfo / pncclGetCftDeviceLeInfo(
        window: *const c_void, _offset: usize, _peerCft: c_int, _cftTeam: Team, leId: Out<u32>,
        leOffset: Out<usize>,
    ) {
        no_endpoint(window, leId, leOffset)
    }

    /// Logical endpoint of a peer's window.
    fn ncclGetPeerDeviceLeInfo / pncclGetPeerDeviceLeInfo(
        window: *const c_void, _offset: usize, _peerWorld: c_int, leId: Out<u32>, leOffset: Out<usize>,
    ) {
        no_endpoint(window, leId, leOffset)
    }

    /// Multicast logical endpoint of a window.
    fn ncclGetMultimemDeviceLeInfo / pncclGetMultimemDeviceLeInfo(
        window: *const c_void, _offset: usize, leId: Out<u32>, leOffset: Out<usize>,
    ) {
        no_endpoint(window, leId, leOffset)
    }
}

/// Nothing is supported.
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

/// The parts of the device API that functions here would need.
enum Missing {
    /// Counted transfers.
    Counted,
    /// Logical endpoints of windows.
    Endpoint,
}

impl Missing {
    /// The answer of a function that needs the part: what is missing, and what to use instead.
    fn refusal(&self) -> Error {
        let (what, instead) = match self {
            Self::Counted => (
                "there are no counted transfers (ncclCommQueryProperties says cftSupport = false and \
                 cftMulticastSupport = false)",
                "use ncclTeamLsa for ranks that load and store each other's windows, ncclTeamWorld for all",
            ),
            Self::Endpoint => (
                "windows have no logical endpoints, as there are no counted transfers \
                 (ncclCommQueryProperties says cftSupport = false)",
                "use ncclGetPeerDevicePointer for addresses, or ncclPutSignal for transfers",
            ),
        };
        Error::invalid_usage(what).remedy(instead)
    }
}

/// All ones is NCCL's invalid endpoint.
fn no_endpoint(window: *const c_void, id: Out<u32>, offset: Out<usize>) -> Result<(), Error> {
    teams::owner(window)?;
    id.set_if_given(u32::MAX);
    offset.set_if_given(0);
    Err(Missing::Endpoint.refusal())
}
