//! Send, receive and groups.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::sync::Arc;

use hawser_runtime::{ErrorKind, Result, Stream, group};

use crate::args::{self, Out};
use crate::handle::{CommPtr, Handle};
use crate::types::{SIM_INFO_MAGIC, SimInfo};

nccl_api! {
    /// Sends `count` elements to `peer`, which receives as many of the same type.
    fn ncclSend / pncclSend(
        sendbuff: *const c_void, count: usize, datatype: c_int, peer: c_int, comm: CommPtr,
        stream: *const c_void,
    ) {
        message(comm, "sendbuff", sendbuff, count, datatype, peer, |handle, addr, bytes, peer| {
            handle.comm.send(addr, bytes, peer, Stream(stream as u64))
        })
    }

    /// Receives `count` elements from `peer`.
    fn ncclRecv / pncclRecv(
        recvbuff: *const c_void, count: usize, datatype: c_int, peer: c_int, comm: CommPtr,
        stream: *const c_void,
    ) {
        message(comm, "recvbuff", recvbuff, count, datatype, peer, |handle, addr, bytes, peer| {
            handle.comm.recv(addr, bytes, peer, Stream(stream as u64))
        })
    }

    /// Opens a group; groups nest.
    fn ncclGroupStart / pncclGroupStart() {
        group::start()
    }

    /// Closes a group; the outermost one launches what was collected. In progress if a communicator
    /// of the group that does not block is.
    fn ncclGroupEnd / pncclGroupEnd() {
        end()
    }

    /// Closes a group and estimates its time in microseconds; nothing is launched. With NULL it is
    /// `ncclGroupEnd`.
    fn ncclGroupSimulateEnd / pncclGroupSimulateEnd(simInfo: Out<SimInfo>) {
        if simInfo.is_null() {
            return end();
        }
        // The group is closed in any case, as in NCCL.
        let time = group::simulate_end();
        forget();
        let time = time?;
        let unset = SimInfo { size: 0, magic: 0, version: 0, estimated_time: -1.0 };
        let given = simInfo.input().read_versioned("simInfo", unset, SIM_INFO_MAGIC)?;
        simInfo.set_prefix("simInfo", &SimInfo { estimated_time: time, ..given }, given.size)
    }
}

fn end() -> Result<()> {
    let outcome = group::end();
    let members = forget();
    outcome?;
    members.iter().find_map(|handle| handle.comm.async_error()).map_or(Ok(()), Err)
}

/// Tells an open group about an error of a call that belongs to it: its end must fail too.
pub fn grouped(outcome: Result<()>) -> Result<()> {
    outcome.inspect_err(|error| {
        if error.kind != ErrorKind::InProgress {
            group::record(error);
        }
    })
}

thread_local! {
    /// Communicators of the open group whose calls do not block.
    /// Without a destructor, since destructors of static objects may still call.
    static MEMBERS: RefCell<ManuallyDrop<Vec<Arc<Handle>>>> =
        const { RefCell::new(ManuallyDrop::new(Vec::new())) };
}

/// Notes a communicator that does not block, for the end of the open group, if there is one.
pub fn remember(handle: &Arc<Handle>) -> bool {
    let is_grouped = group::depth() > 0;
    if is_grouped {
        MEMBERS.with_borrow_mut(|members| members.push(handle.clone()));
    }
    is_grouped
}

/// Takes the notes, once the outermost group is closed.
fn forget() -> Vec<Arc<Handle>> {
    if group::depth() == 0 {
        MEMBERS.with_borrow_mut(|members| std::mem::take(&mut **members))
    } else {
        Vec::new()
    }
}

fn message(
    comm: CommPtr,
    name: &str,
    buffer: *const c_void,
    count: usize,
    datatype: c_int,
    peer: c_int,
    submit: impl FnOnce(&Handle, u64, u64, u32) -> Result<()>,
) -> Result<()> {
    let checked = |handle: &Arc<Handle>| {
        let dtype = args::data_type(datatype)?;
        let peer = args::rank("peer", peer, handle.comm.ranks())?;
        let bytes = args::bytes(count, dtype)?;
        let addr = if bytes == 0 { buffer as u64 } else { args::buffer(name, buffer, bytes)? };
        submit(handle, addr, bytes as u64, peer)?;
        handle.progress()
    };
    grouped(comm.operable().and_then(|handle| handle.name(checked(&handle))))
}
