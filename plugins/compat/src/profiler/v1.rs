//! Profiler version 1 (NCCL 2.23): functions, types, algorithms and protocols are numbers, and every event
//! says which communicator it is of.

use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};

use hawser_plugin::profiler::{Event, EventMask, EventState, StateArgs, What};

use super::abi::{self, Abi, Comm, address, int, object};
use super::names;

/// `ncclProfilerEventDescr_v1_t`.
type Descr = abi::Descr<u8, Body>;

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) union Body {
    coll: Coll,
    p2p: P2p,
    proxy_op: ProxyOp,
    proxy_step: ProxyStep,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Coll {
    name: *const c_char,
    comm_id: u64,
    seq: u64,
    func: u8,
    send: *mut c_void,
    recv: *mut c_void,
    count: usize,
    root: c_int,
    datatype: u8,
    op: u32,
    traffic_bytes: usize,
    max_channels: u8,
    warps: u8,
    algo: u8,
    proto: u8,
    is_collnet: c_int,
    is_nvls: c_int,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct P2p {
    name: *const c_char,
    comm_id: u64,
    func: u8,
    buff: *mut c_void,
    datatype: u8,
    count: usize,
    peer: c_int,
}

/// The same in every version.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct ProxyOp {
    pub(super) pid: c_int,
    pub(super) channel: u8,
    pub(super) peer: c_int,
    pub(super) steps: c_int,
    pub(super) chunk_bytes: c_int,
    pub(super) is_send: c_int,
}

/// The same in every version.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct ProxyStep {
    pub(super) step: c_int,
}

/// `ncclProfilerEventStateArgs_v1_t`; the same up to version 3.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) union Args {
    proxy_op: ProxyOpArgs,
    appended: c_int,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct ProxyOpArgs {
    bytes: usize,
    steps: c_int,
}

const _: () = {
    assert!(size_of::<Descr>() == 120 && size_of::<Args>() == 16);
    assert!(offset_of!(Descr, parent) == 8 && offset_of!(Descr, rank) == 16 && offset_of!(Descr, body) == 24);
    assert!(offset_of!(Coll, func) == 24 && offset_of!(Coll, send) == 32 && offset_of!(Coll, root) == 56);
    assert!(offset_of!(Coll, datatype) == 60 && offset_of!(Coll, op) == 64);
    assert!(offset_of!(Coll, traffic_bytes) == 72 && offset_of!(Coll, max_channels) == 80);
    assert!(offset_of!(Coll, proto) == 83 && offset_of!(Coll, is_nvls) == 88);
    assert!(offset_of!(P2p, func) == 16 && offset_of!(P2p, buff) == 24 && offset_of!(P2p, peer) == 48);
    assert!(offset_of!(ProxyOp, channel) == 4 && offset_of!(ProxyOp, is_send) == 20);
    assert!(offset_of!(ProxyOpArgs, steps) == 8);
};

pub(super) struct V1;

// SAFETY: the descriptor has pointers and numbers only.
unsafe impl Abi for V1 {
    const SYMBOL: &'static str = "ncclProfiler_v1";
    const KINDS: EventMask = EventMask((1 << 6) - 1);
    type Init = Init;
    type Descr = Descr;
    type Args = Args;

    unsafe fn init(init: Init, _comm: &Comm, context: *mut *mut c_void, mask: *mut c_int) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { init(context, mask) }
    }

    fn describe(event: &Event<'_>, comm: &Comm, descr: &mut Descr) -> bool {
        head(event, descr, event.what.kind().0 as u8);
        match event.what {
            What::Coll { .. } => coll(event, comm, descr),
            What::P2p { .. } => p2p(event, comm, descr),
            // SAFETY: plain numbers in a zeroed union.
            What::ProxyOp { .. } => proxy_op(event, unsafe { &mut descr.body.proxy_op }),
            What::ProxyStep { step } => descr.body.proxy_step.step = int(step),
            What::Group | What::ProxyCtrl => {}
            _ => return false,
        }
        true
    }

    fn args(state: EventState, args: StateArgs) -> Option<Args> {
        old_args(state, args)
    }
}

/// `init` up to version 3: context out, mask.
pub(super) type Init = unsafe extern "C" fn(*mut *mut c_void, *mut c_int) -> c_int;

/// The head of any descriptor.
pub(super) fn head<K, B>(event: &Event<'_>, descr: &mut abi::Descr<K, B>, kind: K) {
    descr.kind = kind;
    descr.parent = object(event.parent);
    descr.rank = int(event.rank);
}

fn coll(event: &Event<'_>, comm: &Comm, descr: &mut Descr) {
    let What::Coll { seq, func, send, recv, count, root, datatype, channels, warps, algo, proto, group } =
        event.what
    else {
        return;
    };
    descr.parent = object(group.or(event.parent));
    // SAFETY: plain numbers and pointers in a zeroed union.
    let coll = unsafe { &mut descr.body.coll };
    (coll.name, coll.comm_id, coll.seq) = (comm.name(), comm.id, seq);
    (coll.func, coll.datatype) = (names::function(func), names::datatype(datatype));
    (coll.send, coll.recv) = (address(send), address(recv));
    (coll.count, coll.root) = (count as usize, int(root));
    (coll.max_channels, coll.warps) = (channels, warps);
    (coll.algo, coll.proto) = (names::algorithm(algo), names::protocol(proto));
    coll.is_collnet = c_int::from(matches!(coll.algo, 2 | 3));
    coll.is_nvls = c_int::from(matches!(coll.algo, 4 | 5));
}

fn p2p(event: &Event<'_>, comm: &Comm, descr: &mut Descr) {
    let What::P2p { func, buff, datatype, count, peer, group, .. } = event.what else { return };
    descr.parent = object(group.or(event.parent));
    // SAFETY: plain numbers and pointers in a zeroed union.
    let p2p = unsafe { &mut descr.body.p2p };
    (p2p.name, p2p.comm_id) = (comm.name(), comm.id);
    (p2p.func, p2p.datatype) = (names::function(func), names::datatype(datatype));
    (p2p.buff, p2p.count, p2p.peer) = (address(buff), count as usize, int(peer));
}

/// The same in every version.
pub(super) fn proxy_op(event: &Event<'_>, to: &mut ProxyOp) {
    let What::ProxyOp { pid, channel, peer, steps, chunk_bytes, is_send } = event.what else { return };
    (to.pid, to.channel, to.peer) = (pid, channel, int(peer));
    (to.steps, to.chunk_bytes, to.is_send) = (int(steps), int(chunk_bytes), c_int::from(is_send));
}

/// The states and arguments of versions 1 to 3.
pub(super) fn old_args(state: EventState, args: StateArgs) -> Option<Args> {
    const LAST: u32 = EventState::PROXY_APPEND_END.0;
    if state.0 > LAST {
        return None;
    }
    let bytes = if let StateArgs::Bytes(bytes) = args { bytes as usize } else { 0 };
    let mut to = Args { proxy_op: ProxyOpArgs { bytes, steps: 0 } };
    if let StateArgs::Appended(number) = args {
        to.appended = int(number);
    }
    Some(to)
}
