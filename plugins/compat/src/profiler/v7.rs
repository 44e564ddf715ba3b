//! Profiler version 7 (NCCL 2.31): the tag that the program gave the call, and parts of kernels.

use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};

use hawser_plugin::profiler::{Event, EventHandle, EventMask, EventState, StateArgs, What};

use super::abi::{self, Abi, Comm, Reads, natural};
use super::v1::head;
use super::v4::{self, Args, text_of};
use super::v5::{self, Init};
use super::v6;

/// `ncclProfilerEventDescr_v7_t`.
pub(super) type Descr = abi::Descr<u64, Body>;

/// The events of version 7.
#[derive(Clone, Copy)]
#[repr(C)]
pub union Body {
    /// The fields of version 6, at the same places.
    v6: v6::Body,
    coll: Coll,
    p2p: Tagged<v5::P2p>,
    coll_api: Tagged<v5::CollApi>,
    p2p_api: Tagged<v5::P2pApi>,
    ce_coll: Tagged<v6::CeColl>,
    phase: Phase,
}

/// The fields of a version before with the tag behind them.
#[derive(Clone, Copy)]
#[repr(C)]
struct Tagged<T> {
    before: T,
    tag: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Coll {
    v5: v5::Coll,
    /// The name of a kernel for symmetric memory (`kernelVariant`).
    variant: *const c_char,
    /// True if such a kernel runs the collective (`isSymColl`).
    is_symmetric: u8,
    tag: u64,
}

/// `kernelPhase`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Phase {
    channel: u8,
    phase: u8,
    name: *const c_char,
    timer: u64,
}

const _: () = {
    assert!(size_of::<Descr>() == 136);
    assert!(offset_of!(Coll, variant) == 88 && offset_of!(Coll, is_symmetric) == 96);
    assert!(offset_of!(Coll, tag) == 104 && offset_of!(Tagged<v5::P2p>, tag) == 48);
    assert!(offset_of!(Tagged<v5::CollApi>, tag) == 48 && offset_of!(Tagged<v5::P2pApi>, tag) == 40);
    assert!(offset_of!(Tagged<v6::CeColl>, tag) == 88);
    assert!(offset_of!(Phase, phase) == 1 && offset_of!(Phase, name) == 8 && offset_of!(Phase, timer) == 16);
};

pub(super) struct V7;

// SAFETY: the descriptor has pointers and numbers only.
unsafe impl Abi for V7 {
    const SYMBOL: &'static str = "ncclProfiler_v7";
    const KINDS: EventMask = EventMask((1 << 16) - 1);
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
        let body = &mut descr.body;
        if let What::KernelPhase { channel, phase, name, timer } = event.what {
            let name = comm.strings.of(name);
            body.phase = Phase { channel, phase, name, timer };
            return true;
        }
        // SAFETY: plain numbers and pointers in a zeroed union; version 6's members lie where they did.
        if !v6::describe(event, comm, unsafe { &mut body.v6 }) {
            return false;
        }
        match event.what {
            What::Coll { .. } => {
                body.coll.variant = c"".as_ptr(); // plugins print it
                body.coll.tag = event.tag;
            }
            What::P2p { .. } => body.p2p.tag = event.tag,
            What::CollApi { .. } => body.coll_api.tag = event.tag,
            What::P2pApi { .. } => body.p2p_api.tag = event.tag,
            What::CeColl { .. } => body.ce_coll.tag = event.tag,
            _ => {}
        }
        true
    }

    fn args(state: EventState, args: StateArgs) -> Option<Args> {
        v4::args_up_to(EventState::KERNEL_PHASE_STOP, state, args)
    }
}

// SAFETY: only the members that the kind names are read.
unsafe impl Reads for V7 {
    unsafe fn event<'a>(
        descr: &'a Descr,
        resolve: &dyn Fn(*mut c_void) -> Option<EventHandle>,
    ) -> Option<Event<'a>> {
        let body = &descr.body;
        // SAFETY: in each arm the kind says which member is there.
        let (what, tag) = unsafe {
            match EventMask(descr.kind) {
                EventMask::KERNEL_PHASE => (phase_of(&body.phase), 0),
                kind => {
                    let tag = match kind {
                        EventMask::COLL => body.coll.tag,
                        EventMask::P2P => body.p2p.tag,
                        EventMask::COLL_API => body.coll_api.tag,
                        EventMask::P2P_API => body.p2p_api.tag,
                        EventMask::CE_COLL => body.ce_coll.tag,
                        _ => 0,
                    };
                    (v6::what(descr.kind, &body.v6, resolve)?, tag)
                }
            }
        };
        Some(Event { parent: resolve(descr.parent), rank: natural(descr.rank), what, tag })
    }

    unsafe fn state(state: c_int, args: *const Args) -> StateArgs {
        // SAFETY: the caller's promise.
        unsafe { v4::state_args(state, args) }
    }
}

/// # Safety
/// The name is NULL or terminated.
unsafe fn phase_of<'a>(phase: &Phase) -> What<'a> {
    let Phase { channel, phase, name, timer } = *phase;
    // SAFETY: the caller's promise.
    What::KernelPhase { channel, phase, name: unsafe { text_of::<'a>(name) }, timer }
}
