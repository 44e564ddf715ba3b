//! Ending communicators and asking them.

use std::ffi::c_int;
use std::sync::Arc;

use hawser_base::log::set_last_error;
use hawser_runtime::{Error, ErrorKind};

use crate::args::Out;
use crate::handle::{CommPtr, Handle};
use crate::p2p::grouped;
use crate::types::result;

nccl_api! {
    /// Flushes what was issued, in the background if the communicator does not block; afterwards only
    /// `ncclCommDestroy` may follow. NULL is fine, as in NCCL.
    fn ncclCommFinalize / pncclCommFinalize(comm: CommPtr) {
        if comm.is_null() {
            return Ok(());
        }
        let finalize = |handle: Arc<Handle>| {
            handle.name(handle.comm.finalize())?;
            handle.progress()
        };
        grouped(comm.ready().and_then(finalize))
    }

    /// Frees the communicator. NULL is fine, as in NCCL.
    fn ncclCommDestroy / pncclCommDestroy(comm: CommPtr) {
        if comm.is_null() { Ok(()) } else { comm.destroy() }
    }

    /// Releases what hangs, from any thread, and frees the communicator. NULL is fine, as in NCCL.
    fn ncclCommAbort / pncclCommAbort(comm: CommPtr) {
        if comm.is_null() { Ok(()) } else { comm.abort() }
    }

    /// Number of ranks.
    fn ncclCommCount / pncclCommCount(comm: CommPtr, count: Out<c_int>) {
        let handle = comm.live()?;
        count.check("count")?;
        comm.ready()?;
        count.set("count", to_int("rank count", handle.comm.ranks())?)
    }

    /// This communicator's rank.
    fn ncclCommUserRank / pncclCommUserRank(comm: CommPtr, rank: Out<c_int>) {
        let handle = comm.live()?;
        rank.check("rank")?;
        comm.ready()?;
        rank.set("rank", to_int("rank", handle.comm.rank())?)
    }

    /// CUDA ordinal of this communicator's device.
    fn ncclCommCuDevice / pncclCommCuDevice(comm: CommPtr, device: Out<c_int>) {
        let handle = comm.live()?;
        device.check("device")?;
        comm.ready()?;
        device.set("device", to_int("device", handle.comm.ordinal())?)
    }

    /// State of the communicator: success, in progress, or the error that broke it.
    fn ncclCommGetAsyncError / pncclCommGetAsyncError(comm: CommPtr, asyncError: Out<c_int>) {
        let handle = comm.live()?;
        asyncError.check("asyncError")?;
        let state = handle.comm.async_error();
        // The thread that met the error may have been another one: let ncclGetLastError tell about this one.
        if let Some(error) = state.as_ref().filter(|error| error.kind != ErrorKind::InProgress) {
            set_last_error(&error.text);
            handle.comm.note_failure_known();
        }
        asyncError.set("asyncError", state.map_or(result::SUCCESS, |error| result::of(error.kind)))
    }
}

fn to_int(what: &str, value: u32) -> Result<c_int, Error> {
    c_int::try_from(value).map_err(|_| Error::internal(format!("{what} {value} does not fit an int")))
}
