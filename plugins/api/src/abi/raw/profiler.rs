//! Mirror of [`crate::profiler`].

use abi_stable::std_types::{RBox, ROption, RResult, RStr, RString, RVec};
use abi_stable::{StableAbi, sabi_trait};

use super::{RawError, RawHostBox};
use crate::profiler::{Event, EventHandle, EventMask, StateArgs, What};

#[sabi_trait]
pub trait RawProfiler: Send + Sync {
    fn name(&self) -> RResult<RString, RawError>;
    #[sabi(last_prefix_field)]
    fn open(&self, config: RawProfilerConfig) -> RResult<RawProfilerContextBox, RawError>;
}

#[sabi_trait]
pub trait RawProfilerContext: Send + Sync {
    fn mask(&self) -> u64;
    fn start(&self, event: &RawEvent<'_>) -> ROption<u64>;
    fn stop(&self, event: u64);
    #[sabi(last_prefix_field)]
    fn record(&self, event: u64, state: u32, args: RawStateArgs);
}

pub type RawProfilerBox = RawProfiler_TO<'static, RBox<()>>;
pub type RawProfilerContextBox = RawProfilerContext_TO<'static, RBox<()>>;

/// [`crate::profiler::ProfilerConfig`].
#[repr(C)]
#[derive(StableAbi)]
pub struct RawProfilerConfig {
    pub comm_id: u64,
    pub comm_name: ROption<RString>,
    pub nodes: u32,
    pub ranks: u32,
    pub rank: u32,
    pub spare: u32,
    pub host: RawHostBox,
    pub room: [u64; 8],
    pub texts: RVec<RString>,
}

/// [`Event`]. `kind` is the bit; what lies in `words` and `texts` depends on it. Bits of `given`: 0 parent, 1
/// group.
#[repr(C)]
#[derive(StableAbi)]
pub struct RawEvent<'a> {
    pub kind: u64,
    pub given: u32,
    pub rank: u32,
    pub parent: u64,
    pub group: u64,
    pub words: [u64; 16],
    pub texts: [RStr<'a>; 8],
}

/// The word of every event that has the tag of its call; older hosts leave 0 there, which is no tag.
const TAG: usize = 15;

impl<'a> From<&Event<'a>> for RawEvent<'a> {
    #[inline]
    fn from(event: &Event<'a>) -> Self {
        let mut raw = Self {
            kind: event.what.kind().0,
            given: u32::from(event.parent.is_some()),
            rank: event.rank,
            parent: event.parent.map_or(0, |p| p.0),
            group: 0,
            words: [0; 16],
            texts: [RStr::empty(); 8],
        };
        raw.words[TAG] = event.tag;
        raw.fill(&event.what);
        raw
    }
}

impl<'a> RawEvent<'a> {
    /// Writes group, words and texts of an event, which [`unpack`] reads, to their places. Every operation
    /// passes here, so nothing is copied on the way.
    #[inline]
    fn fill(&mut self, what: &What<'a>) {
        match *what {
            What::Group | What::ProxyCtrl => {}
            What::Coll {
                seq,
                func,
                send,
                recv,
                count,
                root,
                datatype,
                channels,
                warps,
                algo,
                proto,
                group,
            } => {
                self.words(&[seq, send, recv, count, root.into(), channels.into(), warps.into()]);
                self.texts(&[func, datatype, algo, proto]);
                self.group(group);
            }
            What::P2p { func, buff, datatype, count, peer, channels, group } => {
                self.words(&[buff, count, peer.into(), channels.into()]);
                self.texts(&[func, datatype]);
                self.group(group);
            }
            What::ProxyOp { pid, channel, peer, steps, chunk_bytes, is_send } => {
                let pid = u64::from(pid.cast_unsigned());
                let (steps, chunk) = (steps.into(), chunk_bytes.into());
                self.words(&[pid, channel.into(), peer.into(), steps, chunk, is_send.into()]);
            }
            What::ProxyStep { step } => self.words(&[step.into()]),
            What::KernelCh { channel, timer } => self.words(&[channel.into(), timer]),
            What::NetPlugin { id, data } => self.words(&[id.cast_unsigned(), data]),
            _ => self.fill_api(what),
        }
    }

    /// [`Self::fill`] for calls of the user, copy engines and parts of kernels.
    fn fill_api(&mut self, what: &What<'a>) {
        match *what {
            What::GroupApi { depth, captured } => self.words(&[depth.into(), captured.into()]),
            What::CollApi { func, count, datatype, root, stream, captured } => {
                self.words(&[count, root.into(), stream, captured.into()]);
                self.texts(&[func, datatype]);
            }
            What::P2pApi { func, count, datatype, stream, captured } => {
                self.words(&[count, stream, captured.into()]);
                self.texts(&[func, datatype]);
            }
            What::KernelLaunch { stream } => self.words(&[stream]),
            What::CeColl { seq, func, send, recv, count, root, datatype, stream } => {
                self.words(&[seq, send, recv, count, root.into(), stream]);
                self.texts(&[func, datatype]);
            }
            What::CeSync { complete, ranks } => self.words(&[complete.into(), ranks.into()]),
            What::CeBatch { ops, bytes, intra_sync } => self.words(&[ops.into(), bytes, intra_sync.into()]),
            What::KernelPhase { channel, phase, name, timer } => {
                self.words(&[channel.into(), phase.into(), timer]);
                self.texts(&[name]);
            }
            _ => {}
        }
    }

    #[inline]
    fn words<const N: usize>(&mut self, words: &[u64; N]) {
        self.words[..N].copy_from_slice(words);
    }

    #[inline]
    fn texts<const N: usize>(&mut self, texts: &[&'a str; N]) {
        self.texts[..N].iter_mut().zip(texts).for_each(|(place, text)| *place = RStr::from(*text));
    }

    #[inline]
    fn group(&mut self, group: Option<EventHandle>) {
        if let Some(EventHandle(group)) = group {
            self.given |= 2;
            self.group = group;
        }
    }

    /// None for kinds that this side does not know.
    pub fn plain(&self) -> Option<Event<'a>> {
        let parent = (self.given & 1 != 0).then_some(EventHandle(self.parent));
        Some(Event { parent, rank: self.rank, what: unpack(self)?, tag: self.words[TAG] })
    }
}

/// The particulars of an event that crossed. Numbers that were narrower before they crossed are cut back.
fn unpack<'a>(raw: &RawEvent<'a>) -> Option<What<'a>> {
    let group = (raw.given & 2 != 0).then_some(EventHandle(raw.group));
    let w = &raw.words;
    let text = |n: usize| raw.texts[n].as_str();
    let flag = |n: usize| w[n] != 0;
    Some(match EventMask(raw.kind) {
        EventMask::GROUP => What::Group,
        EventMask::COLL => What::Coll {
            seq: w[0],
            func: text(0),
            send: w[1],
            recv: w[2],
            count: w[3],
            root: w[4] as u32,
            datatype: text(1),
            channels: w[5] as u8,
            warps: w[6] as u8,
            algo: text(2),
            proto: text(3),
            group,
        },
        EventMask::P2P => What::P2p {
            func: text(0),
            buff: w[0],
            datatype: text(1),
            count: w[1],
            peer: w[2] as u32,
            channels: w[3] as u8,
            group,
        },
        EventMask::PROXY_OP => What::ProxyOp {
            pid: w[0] as i32,
            channel: w[1] as u8,
            peer: w[2] as u32,
            steps: w[3] as u32,
            chunk_bytes: w[4] as u32,
            is_send: flag(5),
        },
        EventMask::PROXY_STEP => What::ProxyStep { step: w[0] as u32 },
        EventMask::PROXY_CTRL => What::ProxyCtrl,
        EventMask::KERNEL_CH => What::KernelCh { channel: w[0] as u8, timer: w[1] },
        EventMask::NET_PLUGIN => What::NetPlugin { id: w[0].cast_signed(), data: w[1] },
        _ => return unpack_api(raw),
    })
}

/// [`unpack`] for calls of the user, copy engines and parts of kernels.
fn unpack_api<'a>(raw: &RawEvent<'a>) -> Option<What<'a>> {
    let w = &raw.words;
    let (func, datatype) = (raw.texts[0].as_str(), raw.texts[1].as_str());
    let flag = |n: usize| w[n] != 0;
    Some(match EventMask(raw.kind) {
        EventMask::GROUP_API => What::GroupApi { depth: w[0] as u32, captured: flag(1) },
        EventMask::COLL_API => {
            What::CollApi { func, count: w[0], datatype, root: w[1] as u32, stream: w[2], captured: flag(3) }
        }
        EventMask::P2P_API => What::P2pApi { func, count: w[0], datatype, stream: w[1], captured: flag(2) },
        EventMask::KERNEL_LAUNCH => What::KernelLaunch { stream: w[0] },
        EventMask::CE_COLL => What::CeColl {
            seq: w[0],
            func,
            send: w[1],
            recv: w[2],
            count: w[3],
            root: w[4] as u32,
            datatype,
            stream: w[5],
        },
        EventMask::CE_SYNC => What::CeSync { complete: flag(0), ranks: w[1] as u32 },
        EventMask::CE_BATCH => What::CeBatch { ops: w[0] as u32, bytes: w[1], intra_sync: flag(2) },
        EventMask::KERNEL_PHASE => {
            What::KernelPhase { channel: w[0] as u8, phase: w[1] as u8, name: func, timer: w[2] }
        }
        _ => return None,
    })
}

/// [`StateArgs`]: which one, and its number.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct RawStateArgs {
    pub kind: u32,
    pub spare: u32,
    pub value: u64,
    pub room: [u64; 2],
}

impl From<StateArgs> for RawStateArgs {
    fn from(args: StateArgs) -> Self {
        let (kind, value) = match args {
            StateArgs::None => (0, 0),
            StateArgs::Bytes(value) => (1, value),
            StateArgs::Appended(value) => (2, value.into()),
            StateArgs::Data(value) => (3, value),
            StateArgs::Timer(value) => (4, value),
            StateArgs::Predicted(value) => (5, value),
        };
        Self { kind, spare: 0, value, room: [0; 2] }
    }
}

impl From<RawStateArgs> for StateArgs {
    fn from(raw: RawStateArgs) -> Self {
        match raw.kind {
            1 => Self::Bytes(raw.value),
            2 => Self::Appended(raw.value as u32),
            3 => Self::Data(raw.value),
            4 => Self::Timer(raw.value),
            5 => Self::Predicted(raw.value),
            _ => Self::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<What<'static>> {
        let group = Some(EventHandle(u64::MAX));
        let (func, datatype) = ("AllReduce", "ncclFloat32");
        vec![
            What::Group,
            What::Coll {
                seq: 1,
                func,
                send: 2,
                recv: 3,
                count: 4,
                root: 5,
                datatype,
                channels: 6,
                warps: 7,
                algo: "RING",
                proto: "LL128",
                group,
            },
            What::P2p { func: "Send", buff: 1, datatype, count: 2, peer: 3, channels: 4, group: None },
            What::ProxyOp { pid: -7, channel: 1, peer: 2, steps: 3, chunk_bytes: 4, is_send: true },
            What::ProxyStep { step: 9 },
            What::ProxyCtrl,
            What::KernelCh { channel: 3, timer: u64::MAX },
            What::NetPlugin { id: -(1 << 40), data: 8 },
            What::GroupApi { depth: 2, captured: true },
            What::CollApi { func, count: 1, datatype, root: 2, stream: 3, captured: true },
            What::P2pApi { func, count: 1, datatype, stream: 2, captured: true },
            What::KernelLaunch { stream: 5 },
            What::CeColl { seq: 1, func, send: 2, recv: 3, count: 4, root: 5, datatype, stream: 6 },
            What::CeSync { complete: true, ranks: 8 },
            What::CeBatch { ops: 1, bytes: 2, intra_sync: true },
            What::KernelPhase { channel: 1, phase: 2, name: "final_sync", timer: u64::MAX },
        ]
    }

    #[test]
    fn every_event_comes_out_as_it_went_in() {
        let kinds: Vec<u64> = all().iter().map(|what| what.kind().0).collect();
        assert_eq!(kinds, (0..16).map(|bit| 1 << bit).collect::<Vec<u64>>(), "the list below is complete");
        for parent in [None, Some(EventHandle(0)), Some(EventHandle(17))] {
            for what in all() {
                let event = Event { parent, rank: 11, what, tag: u64::MAX };
                assert_eq!(RawEvent::from(&event).plain().as_ref(), Some(&event));
            }
        }
    }

    #[test]
    fn events_of_newer_hosts_are_nothing() {
        let mut raw = RawEvent::from(&Event { parent: None, rank: 0, what: What::Group, tag: 0 });
        raw.kind = 1 << 40;
        assert_eq!(raw.plain(), None);
    }
}
