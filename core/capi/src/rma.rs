//! One-sided transfers: put with a signal, signal, and the wait for signals.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use hawser_runtime::rma::{Awaited, Put, RmaOp, Signal};
use hawser_runtime::{Error, Result, Stream};

use crate::args::{self, In};
use crate::handle::{CommPtr, Handle};
use crate::p2p::grouped;
use crate::types::WaitSignalDesc;

nccl_api! {
    /// Writes into a peer's window, `peerWinOffset` bytes behind its begin, then raises a signal there.
    /// `peerWin` is this rank's handle of the window, and `localbuff` lies in a symmetric window as well.
    fn ncclPutSignal / pncclPutSignal(
        localbuff: *const c_void, count: usize, datatype: c_int, peer: c_int, peerWin: *const c_void,
        peerWinOffset: usize, sigIdx: c_int, ctx: c_int, flags: c_uint, comm: CommPtr, stream: *const c_void,
    ) {
        one_sided(comm, stream, |handle| {
            let bytes = args::bytes(count, args::data_type(datatype)?)?;
            let (peer, signal) = target(handle, peer, (sigIdx, ctx), flags)?;
            let window = handle.windows.find(peerWin).ok_or_else(|| no_window(peerWin))?;
            let from = args::buffer("localbuff", localbuff, bytes)?;
            let put = Put { from, bytes: bytes as u64, window: window.place, offset: peerWinOffset as u64 };
            Ok(RmaOp::Signal { peer, put: Some(put), signal })
        })
    }

    /// Raises a signal at a peer, behind what was put there.
    fn ncclSignal / pncclSignal(
        peer: c_int, sigIdx: c_int, ctx: c_int, flags: c_uint, comm: CommPtr, stream: *const c_void,
    ) {
        one_sided(comm, stream, |handle| {
            let (peer, signal) = target(handle, peer, (sigIdx, ctx), flags)?;
            Ok(RmaOp::Signal { peer, put: None, signal })
        })
    }

    /// Waits for signals of peers, as many of each as its descriptor says.
    fn ncclWaitSignal / pncclWaitSignal(
        nDesc: c_int, signalDescs: In<WaitSignalDesc>, comm: CommPtr, stream: *const c_void,
    ) {
        one_sided(comm, stream, |handle| {
            let count = usize::try_from(nDesc).ok().filter(|count| *count > 0).ok_or_else(|| {
                Error::invalid_argument(format!("nDesc is {nDesc}")).remedy("wait for one signal or more")
            })?;
            let descriptors = signalDescs.read_all("signalDescs", count)?;
            let awaited = descriptors.iter().enumerate().map(|(at, one)| {
                awaited(handle, one).map_err(|error| error.context(format!("signalDescs[{at}]")))
            });
            Ok(RmaOp::Wait(awaited.collect::<Result<_>>()?))
        })
    }
}

/// Makes an operation of the arguments, and puts it on the stream or into the open group.
fn one_sided(comm: CommPtr, stream: *const c_void, op: impl FnOnce(&Handle) -> Result<RmaOp>) -> Result<()> {
    let submit = |handle: &Arc<Handle>| {
        handle.comm.one_sided(op(handle)?, Stream(stream as u64))?;
        handle.progress()
    };
    grouped(comm.ready().and_then(|handle| handle.name(submit(&handle))))
}

fn target(handle: &Handle, peer: c_int, signal: (c_int, c_int), flags: c_uint) -> Result<(u32, Signal)> {
    let peer = args::rank("peer", peer, handle.comm.ranks())?;
    if flags != 0 {
        return Err(Error::invalid_argument(format!("flags {flags} mean nothing")).remedy("pass 0"));
    }
    Ok((peer, self::signal(signal)?))
}

fn awaited(handle: &Handle, descriptor: &WaitSignalDesc) -> Result<Awaited> {
    let WaitSignalDesc { op_count, peer, signal, context } = *descriptor;
    let count = u64::try_from(op_count).ok().filter(|count| *count > 0).ok_or_else(|| {
        Error::invalid_argument(format!("opCnt is {op_count}")).remedy("wait for one operation or more")
    })?;
    let peer = args::rank("peer", peer, handle.comm.ranks())?;
    Ok(Awaited { peer, signal: self::signal((signal, context))?, count })
}

/// A signal by its numbers; whether the communicator has them is the runtime's to say.
fn signal((index, context): (c_int, c_int)) -> Result<Signal> {
    let number = |name: &str, value: c_int| {
        u32::try_from(value).map_err(|_| {
            Error::invalid_argument(format!("{name} {value} is negative")).remedy("count from 0 on")
        })
    };
    Ok(Signal { index: number("sigIdx", index)?, context: number("ctx", context)? })
}

fn no_window(window: *const c_void) -> Error {
    if window.is_null() {
        return args::null("peerWin");
    }
    Error::invalid_argument(format!("peerWin {window:?} is not registered with this communicator"))
        .remedy("pass what ncclCommWindowRegister stored, and only until it was taken back")
}
