//! The profiler interface: watches what communicators do, in NCCL's event model.
//!
//! An event starts, may change its state, and stops. Events form a tree through `parent`. The host only
//! reports kinds of events that [`ProfilerContext::mask`] asks for (their ancestors come with them).

use crate::error::Result;
use crate::host::Log;

/// Kinds of events: bits, with NCCL's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EventMask(pub u64);

#[allow(missing_docs)] // NCCL's names
impl EventMask {
    pub const NONE: Self = Self(0);
    pub const GROUP: Self = Self(1);
    pub const COLL: Self = Self(1 << 1);
    pub const P2P: Self = Self(1 << 2);
    pub const PROXY_OP: Self = Self(1 << 3);
    pub const PROXY_STEP: Self = Self(1 << 4);
    pub const PROXY_CTRL: Self = Self(1 << 5);
    pub const KERNEL_CH: Self = Self(1 << 6);
    pub const NET_PLUGIN: Self = Self(1 << 7);
    pub const GROUP_API: Self = Self(1 << 8);
    pub const COLL_API: Self = Self(1 << 9);
    pub const P2P_API: Self = Self(1 << 10);
    pub const KERNEL_LAUNCH: Self = Self(1 << 11);
    pub const CE_COLL: Self = Self(1 << 12);
    pub const CE_SYNC: Self = Self(1 << 13);
    pub const CE_BATCH: Self = Self(1 << 14);
    pub const KERNEL_PHASE: Self = Self(1 << 15);
    /// No kind: with it the host leaves out events that are not asked for and only stand above those that
    /// are, so that operations have no calls around them. Each event costs the job a little. Hosts that do
    /// not know it, NCCL among them, report them all the same.
    pub const ALONE: Self = Self(1 << 63);

    /// True if all of `other` is in.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// A profiler plugin.
pub trait Profiler: Send + Sync {
    /// Name for logs. Constant.
    fn name(&self) -> &str;

    /// Makes the profiler ready for a communicator. May open files; must not wait for other ranks.
    ///
    /// # Errors
    /// Any: the host says why and goes on without it.
    fn open(&self, config: &ProfilerConfig) -> Result<Box<dyn ProfilerContext>>;
}

/// The facts about a communicator that a profiler is opened with.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ProfilerConfig {
    /// Equal on all ranks of the communicator.
    pub comm_id: u64,
    /// The communicator's name, if the user gave one.
    pub comm_name: Option<String>,
    /// Number of hosts.
    pub nodes: u32,
    /// Number of ranks.
    pub ranks: u32,
    /// This rank.
    pub rank: u32,
    /// The log for lines.
    pub log: Log,
}

impl ProfilerConfig {
    /// A communicator without a name.
    pub fn new(comm_id: u64, ranks: u32, rank: u32, log: Log) -> Self {
        Self { comm_id, comm_name: None, nodes: 1, ranks, rank, log }
    }
}

/// Names an event that the profiler keeps; its number means something to the profiler only, and any number is
/// possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EventHandle(pub u64);

/// An event that starts. Strings live as long as the call.
#[derive(Debug, Clone, PartialEq)]
pub struct Event<'a> {
    /// The event that holds it, if the profiler kept that.
    pub parent: Option<EventHandle>,
    /// Rank of the communicator that reports it.
    pub rank: u32,
    /// Kind and particulars.
    pub what: What<'a>,
    /// The number that the program gave the call (`ncclCollConfig_t::userProfilerTag`); 0 for none. Events of
    /// a collective and of its call have it, as far as the host knows tags.
    pub tag: u64,
}

/// The particulars of an event. NCCL's names and units.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs)] // the fields carry NCCL's names
pub enum What<'a> {
    /// A group of operations that is launched together.
    Group,
    /// A collective is enqueued; its end is that of its last proxy or kernel event.
    Coll {
        seq: u64,
        func: &'a str,
        send: u64,
        recv: u64,
        count: u64,
        root: u32,
        datatype: &'a str,
        channels: u8,
        warps: u8,
        algo: &'a str,
        proto: &'a str,
        group: Option<EventHandle>,
    },
    /// A message is enqueued.
    P2p {
        func: &'a str,
        buff: u64,
        datatype: &'a str,
        count: u64,
        peer: u32,
        channels: u8,
        group: Option<EventHandle>,
    },
    /// A proxy moves the data of one channel between this rank and a peer.
    ProxyOp { pid: i32, channel: u8, peer: u32, steps: u32, chunk_bytes: u32, is_send: bool },
    /// One chunk of a `ProxyOp`.
    ProxyStep { step: u32 },
    /// The work that the proxy thread does.
    ProxyCtrl,
    /// A channel of a kernel; `timer` is the GPU's clock in nanoseconds.
    KernelCh { channel: u8, timer: u64 },
    /// An event of a net plugin, with its payload's id and address.
    NetPlugin { id: i64, data: u64 },
    /// A group call of the user.
    GroupApi { depth: u32, captured: bool },
    /// A collective call of the user.
    CollApi { func: &'a str, count: u64, datatype: &'a str, root: u32, stream: u64, captured: bool },
    /// A message call of the user.
    P2pApi { func: &'a str, count: u64, datatype: &'a str, stream: u64, captured: bool },
    /// A kernel launch.
    KernelLaunch { stream: u64 },
    /// A collective that copy engines run.
    CeColl {
        seq: u64,
        func: &'a str,
        send: u64,
        recv: u64,
        count: u64,
        root: u32,
        datatype: &'a str,
        stream: u64,
    },
    /// A synchronisation of a copy-engine collective.
    CeSync { complete: bool, ranks: u32 },
    /// A batch of copies of a copy-engine collective.
    CeBatch { ops: u32, bytes: u64, intra_sync: bool },
    /// A part of a `KernelCh`: its barrier at the beginning (0), its work (1), its barrier at the end (2),
    /// with NCCL's name of it. `timer` is the GPU's clock in nanoseconds.
    KernelPhase { channel: u8, phase: u8, name: &'a str, timer: u64 },
}

impl What<'_> {
    /// The bit of the kind.
    pub fn kind(&self) -> EventMask {
        match self {
            Self::Group => EventMask::GROUP,
            Self::Coll { .. } => EventMask::COLL,
            Self::P2p { .. } => EventMask::P2P,
            Self::ProxyOp { .. } => EventMask::PROXY_OP,
            Self::ProxyStep { .. } => EventMask::PROXY_STEP,
            Self::ProxyCtrl => EventMask::PROXY_CTRL,
            Self::KernelCh { .. } => EventMask::KERNEL_CH,
            Self::NetPlugin { .. } => EventMask::NET_PLUGIN,
            Self::GroupApi { .. } => EventMask::GROUP_API,
            Self::CollApi { .. } => EventMask::COLL_API,
            Self::P2pApi { .. } => EventMask::P2P_API,
            Self::KernelLaunch { .. } => EventMask::KERNEL_LAUNCH,
            Self::CeColl { .. } => EventMask::CE_COLL,
            Self::CeSync { .. } => EventMask::CE_SYNC,
            Self::CeBatch { .. } => EventMask::CE_BATCH,
            Self::KernelPhase { .. } => EventMask::KERNEL_PHASE,
        }
    }
}

/// The states of events, with NCCL's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EventState(pub u32);

#[allow(missing_docs)] // NCCL's names
impl EventState {
    pub const SEND_WAIT: Self = Self(9);
    pub const RECV_WAIT: Self = Self(10);
    pub const RECV_FLUSH_WAIT: Self = Self(11);
    pub const RECV_GPU_WAIT: Self = Self(12);
    pub const SEND_GPU_WAIT: Self = Self(8);
    pub const PROXY_IDLE: Self = Self(13);
    pub const PROXY_ACTIVE: Self = Self(14);
    pub const PROXY_SLEEP: Self = Self(15);
    pub const PROXY_WAKEUP: Self = Self(16);
    pub const PROXY_APPEND: Self = Self(17);
    pub const PROXY_APPEND_END: Self = Self(18);
    pub const PROXY_OP_IN_PROGRESS: Self = Self(19);
    pub const SEND_PEER_WAIT: Self = Self(20);
    pub const NET_PLUGIN_UPDATE: Self = Self(21);
    pub const KERNEL_CH_STOP: Self = Self(22);
    pub const GROUP_START_API_STOP: Self = Self(23);
    pub const GROUP_END_API_START: Self = Self(24);
    pub const KERNEL_PHASE_STOP: Self = Self(31);
    /// Hawser's own: a collective is planned, and [`StateArgs::Predicted`] says how long it should take. Not
    /// told to plugins by NCCL's interface.
    pub const PREDICTED: Self = Self(1 << 30);
}

/// The data that come with a new state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)] // the variants say it
pub enum StateArgs {
    None,
    /// Bytes moved by a step so far.
    Bytes(u64),
    /// Operations appended to the proxy.
    Appended(u32),
    /// Payload of a net plugin's event.
    Data(u64),
    /// GPU clock at the end of a kernel channel or of a part of it.
    Timer(u64),
    /// The time that the planner predicts for a collective, in nanoseconds.
    Predicted(u64),
}

/// A profiler, opened for a communicator. Its methods may be called by several threads at once, never block,
/// and report errors by themselves: the operation that they watch must not fail because of them.
pub trait ProfilerContext: Send + Sync {
    /// The kinds of events that the profiler wants. They may change at any time; the host asks before every
    /// operation.
    fn mask(&self) -> EventMask;

    /// An event starts. None: not interested, and the host will not mention it again.
    fn start(&self, event: &Event<'_>) -> Option<EventHandle>;

    /// An event is over.
    fn stop(&self, event: EventHandle);

    /// An event is in a new state.
    fn record(&self, event: EventHandle, state: EventState, args: StateArgs) {
        let _ = (event, state, args);
    }
}
