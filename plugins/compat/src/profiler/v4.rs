//! Profiler version 4 (NCCL 2.27): `init` tells the communicator, so events do not; GPU clocks; more states.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::{MaybeUninit, offset_of, size_of};

use hawser_plugin::profiler::{Event, EventHandle, EventMask, EventState, StateArgs, What};

use super::abi::{self, Abi, Comm, Reads, address, int, natural, object};
use super::v1::{ProxyOp, ProxyStep, head, proxy_op};
use super::v3::NetPlugin;
use crate::logger::Logger;

/// `ncclProfilerEventDescr_v4_t`.
pub(super) type Descr = abi::Descr<u8, Body>;

/// The events of version 4; later versions have them too.
#[derive(Clone, Copy)]
#[repr(C)]
pub union Body {
    pub(super) coll: Coll,
    pub(super) p2p: P2p,
    proxy_op: ProxyOp,
    proxy_step: ProxyStep,
    kernel_ch: KernelCh,
    net_plugin: NetPlugin,
}

/// Later versions add a field.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Coll {
    seq: u64,
    func: *const c_char,
    send: *mut c_void,
    recv: *mut c_void,
    count: usize,
    root: c_int,
    datatype: *const c_char,
    channels: u8,
    warps: u8,
    algo: *const c_char,
    proto: *const c_char,
}

/// Later versions add a field.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct P2p {
    func: *const c_char,
    buff: *mut c_void,
    datatype: *const c_char,
    count: usize,
    peer: c_int,
    channels: u8,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct KernelCh {
    channel: u8,
    timer: u64,
}

/// `ncclProfilerEventStateArgs_v4_t`; the same in later versions.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) union Args {
    bytes: usize,
    appended: c_int,
    data: *mut c_void,
    timer: u64,
}

const _: () = {
    assert!(size_of::<Descr>() == 104 && size_of::<Args>() == 8);
    assert!(offset_of!(Coll, func) == 8 && offset_of!(Coll, root) == 40 && offset_of!(Coll, datatype) == 48);
    assert!(offset_of!(Coll, channels) == 56 && offset_of!(Coll, warps) == 57);
    assert!(offset_of!(Coll, algo) == 64 && offset_of!(Coll, proto) == 72);
    assert!(
        offset_of!(P2p, datatype) == 16 && offset_of!(P2p, peer) == 32 && offset_of!(P2p, channels) == 36
    );
    assert!(offset_of!(KernelCh, timer) == 8);
};

pub(super) struct V4;

// SAFETY: the descriptor has pointers and numbers only.
unsafe impl Abi for V4 {
    const SYMBOL: &'static str = "ncclProfiler_v4";
    const KINDS: EventMask = EventMask((1 << 8) - 1);
    type Init = Init;
    type Descr = Descr;
    type Args = Args;

    unsafe fn init(init: Init, comm: &Comm, context: *mut *mut c_void, mask: *mut c_int) -> c_int {
        let logger = Some(comm.logger);
        // SAFETY: the caller's promise.
        unsafe { init(context, mask, comm.name(), comm.id, comm.nodes, comm.ranks, comm.rank, logger) }
    }

    fn describe(event: &Event<'_>, comm: &Comm, descr: &mut Descr) -> bool {
        head(event, descr, event.what.kind().0 as u8);
        if let What::Coll { group, .. } | What::P2p { group, .. } = event.what {
            descr.parent = object(group.or(event.parent));
        }
        describe(event, comm, &mut descr.body)
    }

    fn args(state: EventState, args: StateArgs) -> Option<Args> {
        args_up_to(EventState::KERNEL_CH_STOP, state, args)
    }
}

// SAFETY: only the members that the kind names are read.
unsafe impl Reads for V4 {
    unsafe fn event<'a>(
        descr: &'a Descr,
        resolve: &dyn Fn(*mut c_void) -> Option<EventHandle>,
    ) -> Option<Event<'a>> {
        // SAFETY: the caller's promise.
        let mut what = unsafe { what(u64::from(descr.kind), &descr.body) }?;
        let parent = resolve(descr.parent);
        if let What::Coll { group, .. } | What::P2p { group, .. } = &mut what {
            *group = parent;
        }
        Some(Event { parent, rank: natural(descr.rank), what, tag: 0 })
    }

    unsafe fn state(state: c_int, args: *const Args) -> StateArgs {
        // SAFETY: the caller's promise.
        unsafe { state_args(state, args) }
    }
}

/// `init`: context out, mask, communicator's name and id, nodes, ranks, rank, logger.
pub(super) type Init = unsafe extern "C" fn(
    *mut *mut c_void,
    *mut c_int,
    *const c_char,
    u64,
    c_int,
    c_int,
    c_int,
    Option<Logger>,
) -> c_int;

/// Describes an event of version 4; false if it is of a later one.
pub(super) fn describe(event: &Event<'_>, comm: &Comm, body: &mut Body) -> bool {
    match event.what {
        // SAFETY: plain numbers and pointers in a zeroed union.
        What::Coll { .. } => coll(event, comm, unsafe { &mut body.coll }),
        // SAFETY: as above.
        What::P2p { .. } => p2p(event, comm, unsafe { &mut body.p2p }),
        // SAFETY: as above.
        What::ProxyOp { .. } => proxy_op(event, unsafe { &mut body.proxy_op }),
        What::ProxyStep { step } => body.proxy_step.step = int(step),
        What::KernelCh { channel, timer } => {
            (body.kernel_ch.channel, body.kernel_ch.timer) = (channel, timer);
        }
        What::NetPlugin { id, data } => {
            (body.net_plugin.id, body.net_plugin.data) = (id, address(data));
        }
        What::Group | What::ProxyCtrl => {}
        _ => return false,
    }
    true
}

fn coll(event: &Event<'_>, comm: &Comm, to: &mut Coll) {
    let What::Coll { seq, func, send, recv, count, root, datatype, channels, warps, algo, proto, .. } =
        event.what
    else {
        return;
    };
    (to.seq, to.func, to.datatype) = (seq, comm.strings.of(func), comm.strings.of(datatype));
    (to.send, to.recv) = (address(send), address(recv));
    (to.count, to.root) = (count as usize, int(root));
    (to.channels, to.warps) = (channels, warps);
    (to.algo, to.proto) = (comm.strings.of(algo), comm.strings.of(proto));
}

fn p2p(event: &Event<'_>, comm: &Comm, to: &mut P2p) {
    let What::P2p { func, buff, datatype, count, peer, channels, .. } = event.what else { return };
    (to.func, to.datatype) = (comm.strings.of(func), comm.strings.of(datatype));
    (to.buff, to.count) = (address(buff), count as usize);
    (to.peer, to.channels) = (int(peer), channels);
}

/// The arguments of a state from version 4 on; `last` is the newest state that the version knows.
pub(super) fn args_up_to(last: EventState, state: EventState, args: StateArgs) -> Option<Args> {
    if !(EventState::SEND_GPU_WAIT.0..=last.0).contains(&state.0) {
        return None;
    }
    // Zeroed as a whole: `appended` is the smaller member.
    // SAFETY: zeroes are valid for every member.
    let mut to: Args = unsafe { MaybeUninit::zeroed().assume_init() };
    match args {
        StateArgs::Bytes(bytes) => to.bytes = bytes as usize,
        StateArgs::Appended(number) => to.appended = int(number),
        StateArgs::Data(data) => to.data = address(data),
        StateArgs::Timer(timer) => to.timer = timer,
        _ => {}
    }
    Some(to)
}

/// The event in a host's descriptor, for the kinds of version 4. Groups are left out.
///
/// # Safety
/// The body has the member of the kind; its strings are NULL or terminated.
pub(super) unsafe fn what<'a>(kind: u64, body: &'a Body) -> Option<What<'a>> {
    // SAFETY: in each arm the kind says which member is there.
    unsafe {
        Some(match EventMask(kind) {
            EventMask::GROUP => What::Group,
            EventMask::COLL => coll_of(&body.coll),
            EventMask::P2P => p2p_of(&body.p2p),
            EventMask::PROXY_OP => proxy_op_of(&body.proxy_op),
            EventMask::PROXY_STEP => What::ProxyStep { step: natural(body.proxy_step.step) },
            EventMask::PROXY_CTRL => What::ProxyCtrl,
            EventMask::KERNEL_CH => {
                What::KernelCh { channel: body.kernel_ch.channel, timer: body.kernel_ch.timer }
            }
            EventMask::NET_PLUGIN => {
                What::NetPlugin { id: body.net_plugin.id, data: body.net_plugin.data.addr() as u64 }
            }
            _ => return None,
        })
    }
}

/// # Safety
/// The strings are NULL or terminated.
unsafe fn coll_of<'a>(coll: &'a Coll) -> What<'a> {
    // SAFETY: the caller's promise.
    let text = |text| unsafe { text_of::<'a>(text) };
    What::Coll {
        seq: coll.seq,
        func: text(coll.func),
        send: coll.send.addr() as u64,
        recv: coll.recv.addr() as u64,
        count: coll.count as u64,
        root: natural(coll.root),
        datatype: text(coll.datatype),
        channels: coll.channels,
        warps: coll.warps,
        algo: text(coll.algo),
        proto: text(coll.proto),
        group: None,
    }
}

/// # Safety
/// The strings are NULL or terminated.
unsafe fn p2p_of<'a>(p2p: &'a P2p) -> What<'a> {
    // SAFETY: the caller's promise.
    let text = |text| unsafe { text_of::<'a>(text) };
    What::P2p {
        func: text(p2p.func),
        buff: p2p.buff.addr() as u64,
        datatype: text(p2p.datatype),
        count: p2p.count as u64,
        peer: natural(p2p.peer),
        channels: p2p.channels,
        group: None,
    }
}

fn proxy_op_of(op: &ProxyOp) -> What<'static> {
    What::ProxyOp {
        pid: op.pid,
        channel: op.channel,
        peer: natural(op.peer),
        steps: natural(op.steps),
        chunk_bytes: natural(op.chunk_bytes),
        is_send: op.is_send != 0,
    }
}

/// A host's string: NULL is empty, what is not UTF-8 a question mark.
///
/// # Safety
/// NULL or terminated and alive for `'a`.
pub(super) unsafe fn text_of<'a>(text: *const c_char) -> &'a str {
    if text.is_null() {
        return "";
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("?")
}

/// The arguments of a host's state, from version 4 on.
///
/// # Safety
/// `args` is NULL or has the member of the state.
pub(super) unsafe fn state_args(state: c_int, args: *const Args) -> StateArgs {
    // SAFETY: the caller's promise.
    let Some(args) = (unsafe { args.as_ref() }) else { return StateArgs::None };
    // SAFETY: the state says which member is there.
    unsafe {
        match state {
            8..=12 | 20 => StateArgs::Bytes(args.bytes as u64),
            13..=18 => StateArgs::Appended(natural(args.appended)),
            21 => StateArgs::Data(args.data.addr() as u64),
            22 | 31 => StateArgs::Timer(args.timer),
            _ => StateArgs::None,
        }
    }
}
