//! Profiler version 3 (NCCL 2.26): channels of kernels, events of net plugins.

use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};

use hawser_plugin::profiler::{Event, EventMask, EventState, StateArgs, What};

use super::abi::{self, Abi, Comm, address, int, object};
use super::v1::{Args, Init, ProxyOp, ProxyStep, head, old_args, proxy_op};
use super::v2::{P2p, p2p};

/// `ncclProfilerEventDescr_v3_t`.
type Descr = abi::Descr<u8, Body>;

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) union Body {
    coll: Coll,
    p2p: P2p,
    proxy_op: ProxyOp,
    proxy_step: ProxyStep,
    kernel_ch: KernelCh,
    net_plugin: NetPlugin,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Coll {
    name: *const c_char,
    comm_id: u64,
    seq: u64,
    func: *const c_char,
    send: *mut c_void,
    recv: *mut c_void,
    count: usize,
    root: c_int,
    datatype: *const c_char,
    max_channels: u8,
    warps: u8,
    algo: *const c_char,
    proto: *const c_char,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct KernelCh {
    channel: u8,
}

/// The same in every version since.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct NetPlugin {
    pub(super) id: i64,
    pub(super) data: *mut c_void,
}

const _: () = {
    assert!(size_of::<Descr>() == 120);
    assert!(offset_of!(Coll, datatype) == 64 && offset_of!(Coll, max_channels) == 72);
    assert!(offset_of!(Coll, algo) == 80 && offset_of!(Coll, proto) == 88);
    assert!(offset_of!(NetPlugin, data) == 8);
};

pub(super) struct V3;

// SAFETY: the descriptor has pointers and numbers only.
unsafe impl Abi for V3 {
    const SYMBOL: &'static str = "ncclProfiler_v3";
    const KINDS: EventMask = EventMask((1 << 8) - 1);
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
            What::Coll { group, .. } => {
                descr.parent = object(group.or(event.parent));
                // SAFETY: plain numbers and pointers in a zeroed union.
                coll(event, comm, unsafe { &mut descr.body.coll });
            }
            What::P2p { group, .. } => {
                descr.parent = object(group.or(event.parent));
                // SAFETY: as above.
                p2p(event, comm, unsafe { &mut descr.body.p2p });
            }
            // SAFETY: as above.
            What::ProxyOp { .. } => proxy_op(event, unsafe { &mut descr.body.proxy_op }),
            What::ProxyStep { step } => descr.body.proxy_step.step = int(step),
            What::KernelCh { channel, .. } => descr.body.kernel_ch.channel = channel,
            What::NetPlugin { id, data } => {
                (descr.body.net_plugin.id, descr.body.net_plugin.data) = (id, address(data));
            }
            What::Group | What::ProxyCtrl => {}
            _ => return false,
        }
        true
    }

    fn args(state: EventState, args: StateArgs) -> Option<Args> {
        old_args(state, args)
    }
}

fn coll(event: &Event<'_>, comm: &Comm, to: &mut Coll) {
    let What::Coll { seq, func, send, recv, count, root, datatype, channels, warps, algo, proto, .. } =
        event.what
    else {
        return;
    };
    (to.name, to.comm_id, to.seq) = (comm.name(), comm.id, seq);
    (to.func, to.datatype) = (comm.strings.of(func), comm.strings.of(datatype));
    (to.send, to.recv) = (address(send), address(recv));
    (to.count, to.root) = (count as usize, int(root));
    (to.max_channels, to.warps) = (channels, warps);
    (to.algo, to.proto) = (comm.strings.of(algo), comm.strings.of(proto));
}
