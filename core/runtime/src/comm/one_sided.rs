//! The checks of one-sided operations. Codes are those of NCCL 2.32.

use hawser_base::error::{Error, Result};
use hawser_device::Device;

use crate::rma::{Awaited, Exposed, Put, Signal};

/// # Errors
/// `InvalidArgument`: there is no such rank, signal or context.
pub fn check(ranks: u32, exposed: &Exposed, peer: u32, signal: Signal) -> Result<()> {
    let limits = exposed.limits();
    let limit = |what: &str, value: u32, most: u32, field: &str| {
        let refuse = || {
            Error::invalid_argument(format!("{what} {value}: the communicator has {most}"))
                .remedy(format!("use 0 to {}, or set {field} when it is made", most.saturating_sub(1)))
        };
        if value < most { Ok(()) } else { Err(refuse()) }
    };
    if peer >= ranks {
        return Err(Error::invalid_argument(format!("peer {peer} is not a rank of this communicator"))
            .remedy(format!("use 0 to {}", ranks.saturating_sub(1))));
    }
    limit("sigIdx", signal.index, limits.signals, "numRmaSig")?;
    limit("ctx", signal.context, limits.contexts, "numRmaCtx")
}

/// # Errors
/// `InvalidArgument`: the buffer or the place in the window is not right.
pub fn check_put(exposed: &Exposed, put: &Put) -> Result<()> {
    let Put { from, bytes, window: number, offset } = *put;
    let refuse = |text: String, remedy: &str| Err(Error::invalid_argument(text).remedy(remedy));
    if !exposed.holds(from, bytes) {
        let text = format!("localbuff {from:#x} with {bytes} bytes does not lie in a symmetric window");
        return refuse(text, "register it with ncclCommWindowRegister and NCCL_WIN_COLL_SYMMETRIC");
    }
    match exposed.window(number) {
        Some(window) if !window.is_symmetric => {
            refuse("peerWin is not symmetric".into(), "register it with NCCL_WIN_COLL_SYMMETRIC")
        }
        Some(window) if offset > window.bytes || bytes > window.bytes - offset => {
            let text = format!("{bytes} bytes at offset {offset} do not fit a window of {}", window.bytes);
            refuse(text, "pass the offset in bytes, and put less")
        }
        Some(_) => Ok(()),
        None => refuse(
            format!("window {number} is not registered with this communicator"),
            "pass what ncclCommWindowRegister stored, and only until it was taken back",
        ),
    }
}

/// # Errors
/// `InvalidArgument`: nothing is waited for, or what cannot come.
pub fn check_wait(ranks: u32, exposed: &Exposed, awaited: &[Awaited]) -> Result<()> {
    for (at, one) in awaited.iter().enumerate() {
        let named = |error: Error| error.context(format!("signalDescs[{at}]"));
        check(ranks, exposed, one.peer, one.signal).map_err(named)?;
    }
    Ok(())
}

/// # Errors
/// `InvalidUsage`: the streams of this GPU cannot wait for words.
pub fn check_device(device: &dyn Device) -> Result<()> {
    if device.kernels().is_none() || device.stream_words().is_some() {
        return Ok(());
    }
    Err(Error::invalid_usage("one-sided transfers need streams that wait for words of memory")
        .remedy("use ncclSend and ncclRecv"))
}
