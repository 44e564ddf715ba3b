//! Functions that exist and are not offered yet: pausing communicators, one-sided transfers, encryption.
//! Each says so and stores a safe value where the caller expects one.

use std::ffi::{c_int, c_uint, c_void};

use hawser_runtime::Error;

use crate::args::In;
use crate::handle::CommPtr;
use crate::p2p::grouped;
use crate::types::{API_MAGIC, EncryptionConfig};

/// The refusal of a function; its name is put in front at the boundary.
pub fn not_offered(instead: &str) -> Error {
    Error::invalid_usage("this function is not offered at Hawser API level 1 (names of NCCL 2.32.3)")
        .remedy(instead)
}

nccl_api! {
    /// Writes to a peer's window and raises a signal there.
    fn ncclPutSignal / pncclPutSignal(
        _localbuff: *const c_void, _count: usize, _datatype: c_int, _peer: c_int, _peerWin: *const c_void,
        _peerWinOffset: usize, _sigIdx: c_int, _ctx: c_int, _flags: c_uint, comm: CommPtr,
        _stream: *const c_void,
    ) {
        grouped(comm.ready().and_then(|_| Err(not_offered("use ncclSend and ncclRecv"))))
    }

    /// Raises a signal at a peer.
    fn ncclSignal / pncclSignal(
        _peer: c_int, _sigIdx: c_int, _ctx: c_int, _flags: c_uint, comm: CommPtr, _stream: *const c_void,
    ) {
        grouped(comm.ready().and_then(|_| Err(not_offered("use ncclSend and ncclRecv"))))
    }

    /// Waits for signals of peers.
    fn ncclWaitSignal / pncclWaitSignal(
        _nDesc: c_int, _signalDescs: *const c_void, comm: CommPtr, _stream: *const c_void,
    ) {
        grouped(comm.ready().and_then(|_| Err(not_offered("use ncclSend and ncclRecv"))))
    }

    /// Sets the encryption of the library's own sockets: none. NULL stands for that.
    fn ncclSetEncryption / pncclSetEncryption(config: In<EncryptionConfig>) {
        if config.is_null() {
            return Ok(());
        }
        let config = config.read_versioned("config", EncryptionConfig::UNDEFINED, API_MAGIC)?;
        match config.mode {
            EncryptionConfig::NO_ENCRYPTION => Ok(()),
            EncryptionConfig::PRE_SHARED_KEY => Err(no_pre_shared_key(config)),
            mode => Err(Error::invalid_argument(format!("config->mode {mode} is not a mode of encryption"))
                .remedy("use NCCL_ENCRYPTION_MODE_NONE (0)")),
        }
    }
}

/// The fewest bytes of a pre-shared key that NCCL takes.
const LEAST_KEY_BYTES: usize = 32;

fn no_pre_shared_key(config: EncryptionConfig) -> Error {
    if In::inside(config.psk).text().is_none_or(|key| key.len() < LEAST_KEY_BYTES) {
        return Error::invalid_argument(format!("config->psk has less than {LEAST_KEY_BYTES} bytes"))
            .remedy("pass a longer key; this library has no TLS to use it for");
    }
    Error::invalid_usage(
        "NCCL_ENCRYPTION_MODE_PSK is not offered: this library has no TLS, sockets carry data in the clear",
    )
    .remedy("pass NCCL_ENCRYPTION_MODE_NONE and encrypt below, by WireGuard or IPsec between the hosts")
}
