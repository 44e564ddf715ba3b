//! Profiler version 6 (NCCL 2.30): collectives that copy engines run.

use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};

use hawser_plugin::profiler::{Event, EventHandle, EventMask, EventState, StateArgs, What};

use super::abi::{self, Abi, Comm, Reads, address, int, natural};
use super::v1::head;
use super::v4::{self, Args, text_of};
use super::v5::{self, Init};

/// `ncclProfilerEventDescr_v6_t`.
pub(super) type Descr = abi::Descr<u64, Body>;

/// The events of version 6; version 7 has them too.
#[derive(Clone, Copy)]
#[repr(C)]
pub union Body {
    /// The fields of version 5, at the same places.
    v5: v5::Body,
    ce_coll: CeColl,
    ce_sync: CeSync,
    ce_batch: CeBatch,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct CeColl {
    seq: u64,
    func: *const c_char,
    send: *mut c_void,
    recv: *mut c_void,
    count: usize,
    root: c_int,
    datatype: *const c_char,
    sync_strategy: *const c_char,
    intra_batch_sync: u8,
    batch_size: u32,
    batches: u32,
    ce_seq: u32,
    stream: *mut c_void,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct CeSync {
    complete: u8,
    ranks: c_int,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct CeBatch {
    ops: c_int,
    bytes: usize,
    intra_sync: u8,
}

const _: () = {
    assert!(size_of::<Descr>() == 112);
    assert!(offset_of!(CeColl, root) == 40 && offset_of!(CeColl, sync_strategy) == 56);
    assert!(offset_of!(CeColl, intra_batch_sync) == 64 && offset_of!(CeColl, batch_size) == 68);
    assert!(offset_of!(CeColl, ce_seq) == 76 && offset_of!(CeColl, stream) == 80);
    assert!(offset_of!(CeSync, ranks) == 4);
    assert!(offset_of!(CeBatch, bytes) == 8 && offset_of!(CeBatch, intra_sync) == 16);
};

/// `ncclProfilerCeBatchComplete`, the newest state.
const LAST_STATE: EventState = EventState(30);

pub(super) struct V6;

// SAFETY: the descriptor has pointers and numbers only.
unsafe impl Abi for V6 {
    const SYMBOL: &'static str = "ncclProfiler_v6";
    const KINDS: EventMask = EventMask((1 << 15) - 1);
    type Init = Init;
    type Descr = Descr;
    type Args = Args;

    unsafe fn init(init: Init, comm: &Comm, context: *mut *mut c_void, mask: *mut c_int) -> c_int {
        let logger = Some(comm.logger);
        // SAFETY: the caller's promise.
        unsafe { init(context, comm.id, mask, comm.name(), comm.nodes, comm.ranks, comm.rank, logger) }
    }

    fn describe(event: &Event<'_>, comm: &Comm, descr: &mut Descr) -> bool {
        head(event, descr, event.what.kind().0);
        describe(event, comm, &mut descr.body)
    }

    fn args(state: EventState, args: StateArgs) -> Option<Args> {
        v4::args_up_to(LAST_STATE, state, args)
    }
}

// SAFETY: only the members that the kind names are read.
unsafe impl Reads for V6 {
    unsafe fn event<'a>(
        descr: &'a Descr,
        resolve: &dyn Fn(*mut c_void) -> Option<EventHandle>,
    ) -> Option<Event<'a>> {
        // SAFETY: the caller's promise.
        let what = unsafe { what(descr.kind, &descr.body, resolve) }?;
        Some(Event { parent: resolve(descr.parent), rank: natural(descr.rank), what, tag: 0 })
    }

    unsafe fn state(state: c_int, args: *const Args) -> StateArgs {
        // SAFETY: the caller's promise.
        unsafe { v4::state_args(state, args) }
    }
}

/// Describes an event of version 6; false if it is of a later one.
pub(super) fn describe(event: &Event<'_>, comm: &Comm, body: &mut Body) -> bool {
    match event.what {
        What::CeColl { seq, func, send, recv, count, root, datatype, stream } => {
            // SAFETY: plain numbers and pointers in a zeroed union.
            let ce = unsafe { &mut body.ce_coll };
            (ce.seq, ce.func, ce.datatype) = (seq, comm.strings.of(func), comm.strings.of(datatype));
            (ce.send, ce.recv, ce.stream) = (address(send), address(recv), address(stream));
            (ce.count, ce.root) = (count as usize, int(root));
            // Ranks tell each peer by a word of its own.
            ce.sync_strategy = c"unicast".as_ptr();
        }
        What::CeSync { complete, ranks } => {
            (body.ce_sync.complete, body.ce_sync.ranks) = (complete.into(), int(ranks));
        }
        What::CeBatch { ops, bytes, intra_sync } => {
            // SAFETY: as above.
            let ce = unsafe { &mut body.ce_batch };
            (ce.ops, ce.bytes, ce.intra_sync) = (int(ops), bytes as usize, intra_sync.into());
        }
        // SAFETY: as above; version 5's members lie where they did.
        _ => return v5::describe(event, comm, unsafe { &mut body.v5 }),
    }
    true
}

/// The event in a host's descriptor, for the kinds of version 6.
///
/// # Safety
/// The body has the member of the kind; its strings are NULL or terminated.
pub(super) unsafe fn what<'a>(
    kind: u64,
    body: &'a Body,
    resolve: &dyn Fn(*mut c_void) -> Option<EventHandle>,
) -> Option<What<'a>> {
    // SAFETY: in each arm the kind says which member is there.
    unsafe {
        Some(match EventMask(kind) {
            EventMask::CE_COLL => ce_coll_of(&body.ce_coll),
            EventMask::CE_SYNC => {
                What::CeSync { complete: body.ce_sync.complete != 0, ranks: natural(body.ce_sync.ranks) }
            }
            EventMask::CE_BATCH => What::CeBatch {
                ops: natural(body.ce_batch.ops),
                bytes: body.ce_batch.bytes as u64,
                intra_sync: body.ce_batch.intra_sync != 0,
            },
            _ => v5::what(kind, &body.v5, resolve)?,
        })
    }
}

/// # Safety
/// The strings are NULL or terminated.
unsafe fn ce_coll_of<'a>(ce: &'a CeColl) -> What<'a> {
    // SAFETY: the caller's promise.
    let text = |text| unsafe { text_of::<'a>(text) };
    What::CeColl {
        seq: ce.seq,
        func: text(ce.func),
        send: ce.send.addr() as u64,
        recv: ce.recv.addr() as u64,
        count: ce.count as u64,
        root: natural(ce.root),
        datatype: text(ce.datatype),
        stream: ce.stream.addr() as u64,
    }
}
