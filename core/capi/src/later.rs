//! Functions that exist and are not offered yet: pausing communicators, one-sided transfers, encryption.
//! Each says so and stores a safe value where the caller expects one.

use std::ffi::{c_int, c_uint, c_void};

use hawser_runtime::Error;

use crate::args::Out;
use crate::handle::CommPtr;
use crate::p2p::grouped;

/// The refusal of a function; its name is put in front at the boundary.
pub fn not_offered(instead: &str) -> Error {
    Error::invalid_usage("this function is not offered at Hawser API level 1 (names of NCCL 2.32.3)")
        .remedy(instead)
}

nccl_api! {
    /// Gives memory of an idle communicator back.
    fn ncclCommSuspend / pncclCommSuspend(_comm: CommPtr, _flags: c_int) {
        Err(not_offered("destroy the communicator and make it again"))
    }

    /// Takes back what `ncclCommSuspend` gave.
    fn ncclCommResume / pncclCommResume(_comm: CommPtr) {
        Err(not_offered("destroy the communicator and make it again"))
    }

    /// Memory that a communicator holds.
    fn ncclCommMemStats / pncclCommMemStats(_comm: CommPtr, _stat: c_int, value: Out<u64>) {
        value.set_if_given(0);
        Err(not_offered("read the device's free memory instead"))
    }

    /// Writes to a peer's window and raises a signal there.
    fn ncclPutSignal / pncclPutSignal(
        _localbuff: *const c_void, _count: usize, _datatype: c_int, _peer: c_int, _peerWin: *const c_void,
        _peerWinOffset: usize, _sigIdx: c_int, _ctx: c_int, _flags: c_uint, _comm: CommPtr,
        _stream: *const c_void,
    ) {
        grouped(Err(not_offered("use ncclSend and ncclRecv")))
    }

    /// Raises a signal at a peer.
    fn ncclSignal / pncclSignal(
        _peer: c_int, _sigIdx: c_int, _ctx: c_int, _flags: c_uint, _comm: CommPtr, _stream: *const c_void,
    ) {
        grouped(Err(not_offered("use ncclSend and ncclRecv")))
    }

    /// Waits for signals of peers.
    fn ncclWaitSignal / pncclWaitSignal(
        _nDesc: c_int, _signalDescs: *const c_void, _comm: CommPtr, _stream: *const c_void,
    ) {
        grouped(Err(not_offered("use ncclSend and ncclRecv")))
    }

    /// Switches encryption of the library's own sockets on.
    fn ncclSetEncryption / pncclSetEncryption(_config: *const c_void) {
        Err(not_offered("run the ranks in a network that is encrypted below"))
    }
}
