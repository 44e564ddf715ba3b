//! Profiler version 5 (NCCL 2.28): the user's calls are events, and parents of what they enqueue.

use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};

use hawser_plugin::profiler::{Event, EventHandle, EventMask, EventState, StateArgs, What};

use super::abi::{self, Abi, Comm, Reads, address, int, natural, object};
use super::v1::head;
use super::v4::{self, Args, text_of};
use crate::logger::Logger;

/// `ncclProfilerEventDescr_v5_t`.
pub(super) type Descr = abi::Descr<u64, Body>;

/// The events of version 5; later versions have them too.
#[derive(Clone, Copy)]
#[repr(C)]
pub union Body {
    /// The fields of version 4, at the same places.
    v4: v4::Body,
    coll: Coll,
    p2p: P2p,
    group_api: GroupApi,
    coll_api: CollApi,
    p2p_api: P2pApi,
    kernel_launch: *mut c_void,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Coll {
    v4: v4::Coll,
    group: *mut c_void,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct P2p {
    v4: v4::P2p,
    group: *mut c_void,
}

/// Truth values are bytes here: what a C host writes into a `bool` need not be 0 or 1.
#[derive(Clone, Copy)]
#[repr(C)]
struct GroupApi {
    captured: u8,
    depth: c_int,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct CollApi {
    func: *const c_char,
    count: usize,
    datatype: *const c_char,
    root: c_int,
    stream: *mut c_void,
    captured: u8,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct P2pApi {
    func: *const c_char,
    count: usize,
    datatype: *const c_char,
    stream: *mut c_void,
    captured: u8,
}

const _: () = {
    assert!(size_of::<Descr>() == 112);
    assert!(offset_of!(Descr, parent) == 8 && offset_of!(Descr, rank) == 16 && offset_of!(Descr, body) == 24);
    assert!(offset_of!(Coll, group) == 80 && offset_of!(P2p, group) == 40);
    assert!(offset_of!(GroupApi, depth) == 4);
    assert!(offset_of!(CollApi, root) == 24 && offset_of!(CollApi, stream) == 32);
    assert!(offset_of!(CollApi, captured) == 40);
    assert!(offset_of!(P2pApi, stream) == 24 && offset_of!(P2pApi, captured) == 32);
};

pub(super) struct V5;

// SAFETY: the descriptor has pointers and numbers only.
unsafe impl Abi for V5 {
    const SYMBOL: &'static str = "ncclProfiler_v5";
    const KINDS: EventMask = EventMask((1 << 12) - 1);
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
        v4::args_up_to(EventState::GROUP_END_API_START, state, args)
    }
}

// SAFETY: only the members that the kind names are read.
unsafe impl Reads for V5 {
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

/// `init` since version 5: context out, communicator's id, mask, name, nodes, ranks, rank, logger.
pub(super) type Init = unsafe extern "C" fn(
    *mut *mut c_void,
    u64,
    *mut c_int,
    *const c_char,
    c_int,
    c_int,
    c_int,
    Option<Logger>,
) -> c_int;

/// Describes an event of version 5; false if it is of a later one.
pub(super) fn describe(event: &Event<'_>, comm: &Comm, body: &mut Body) -> bool {
    match event.what {
        What::GroupApi { depth, captured } => {
            (body.group_api.depth, body.group_api.captured) = (int(depth), captured.into());
        }
        What::CollApi { func, count, datatype, root, stream, captured } => {
            // SAFETY: as above.
            let api = unsafe { &mut body.coll_api };
            (api.func, api.datatype) = (comm.strings.of(func), comm.strings.of(datatype));
            (api.count, api.root) = (count as usize, int(root));
            (api.stream, api.captured) = (address(stream), captured.into());
        }
        What::P2pApi { func, count, datatype, stream, captured } => {
            // SAFETY: as above.
            let api = unsafe { &mut body.p2p_api };
            (api.func, api.datatype) = (comm.strings.of(func), comm.strings.of(datatype));
            (api.count, api.stream, api.captured) = (count as usize, address(stream), captured.into());
        }
        What::KernelLaunch { stream } => body.kernel_launch = address(stream),
        _ => {
            // SAFETY: as above; version 4's members lie where they did.
            if !v4::describe(event, comm, unsafe { &mut body.v4 }) {
                return false;
            }
        }
    }
    match event.what {
        What::Coll { group, .. } => body.coll.group = object(group),
        What::P2p { group, .. } => body.p2p.group = object(group),
        _ => {}
    }
    true
}

/// The event in a host's descriptor, for the kinds of version 5.
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
        let mut what = match EventMask(kind) {
            EventMask::GROUP_API => What::GroupApi {
                depth: natural(body.group_api.depth),
                captured: body.group_api.captured != 0,
            },
            EventMask::COLL_API => coll_api_of(&body.coll_api),
            EventMask::P2P_API => p2p_api_of(&body.p2p_api),
            EventMask::KERNEL_LAUNCH => What::KernelLaunch { stream: body.kernel_launch.addr() as u64 },
            _ => v4::what(kind, &body.v4)?,
        };
        match &mut what {
            What::Coll { group, .. } => *group = resolve(body.coll.group),
            What::P2p { group, .. } => *group = resolve(body.p2p.group),
            _ => {}
        }
        Some(what)
    }
}

/// # Safety
/// The strings are NULL or terminated.
unsafe fn coll_api_of<'a>(api: &'a CollApi) -> What<'a> {
    // SAFETY: the caller's promise.
    let text = |text| unsafe { text_of::<'a>(text) };
    What::CollApi {
        func: text(api.func),
        count: api.count as u64,
        datatype: text(api.datatype),
        root: natural(api.root),
        stream: api.stream.addr() as u64,
        captured: api.captured != 0,
    }
}

/// # Safety
/// The strings are NULL or terminated.
unsafe fn p2p_api_of<'a>(api: &'a P2pApi) -> What<'a> {
    // SAFETY: the caller's promise.
    let text = |text| unsafe { text_of::<'a>(text) };
    What::P2pApi {
        func: text(api.func),
        count: api.count as u64,
        datatype: text(api.datatype),
        stream: api.stream.addr() as u64,
        captured: api.captured != 0,
    }
}
