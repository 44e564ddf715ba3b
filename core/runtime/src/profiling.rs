//! The events of a communicator that profiler plugins see, in NCCL's event model.
//!
//! An event is a [`Span`]: it starts when it is made and stops when the last owner lets go. A span owns its
//! parent, so parents stop after their children. Without profilers everything here is a look at an empty
//! list.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use hawser_base::error::Result;
use hawser_base::log;
use hawser_compat::profiler::with_ancestors;
use hawser_device::{Device, Stream};
use hawser_plan::p2p::Message;
use hawser_plan::{Call, Collective, DataType, Route, Topology};
use hawser_plugin::profiler::{
    Event, EventHandle, EventMask, EventState, ProfilerConfig, ProfilerContext, StateArgs, What,
};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::plugins;

/// The profilers of a communicator.
#[derive(Default)]
pub struct Profiling {
    rank: u32,
    open: Vec<Open>,
}

/// A profiler that is open for a communicator.
struct Open {
    context: Box<dyn ProfilerContext>,
    /// The kinds of events that it is told of: those that it wanted when it was asked last, and those above
    /// them. It is asked once per group and not at each event, since that is a call into its library.
    kinds: AtomicU64,
}

impl Open {
    fn new(context: Box<dyn ProfilerContext>) -> Self {
        let open = Self { context, kinds: AtomicU64::new(0) };
        open.ask();
        open
    }

    /// Asks the profiler which kinds of events it wants.
    fn ask(&self) {
        self.kinds.store(with_ancestors(self.context.mask()).0, Ordering::Relaxed);
    }

    /// True if it is told of events of any of these kinds.
    fn wants(&self, kinds: EventMask) -> bool {
        self.kinds.load(Ordering::Relaxed) & kinds.0 != 0
    }
}

impl Profiling {
    /// Opens all profilers of the process for a communicator. One that fails is left out.
    pub fn open(comm_id: u64, name: Option<&str>, topology: &Topology, rank: u32) -> Self {
        let mut open = Vec::new();
        for candidate in plugins::profilers() {
            let profiler = &candidate.plugin;
            let mut config = ProfilerConfig::new(comm_id, topology.size(), rank, log::for_plugins());
            config.comm_name = name.map(str::to_owned);
            config.nodes = topology.hosts();
            match profiler.open(&config) {
                Ok(context) => open.push(Open::new(context)),
                Err(error) => log::warn(&format!("profiler {} is left out: {error}", profiler.name())),
            }
        }
        Self { rank, open }
    }

    /// True if nobody looks.
    pub fn is_idle(&self) -> bool {
        self.open.is_empty()
    }

    /// True if any profiler wants events of this kind, or of one that comes with it.
    pub fn wants(&self, kind: EventMask) -> bool {
        self.open.iter().any(|profiler| profiler.wants(kind))
    }

    /// Starts an event without a parent; None if nobody wants it.
    pub fn span(self: &Arc<Self>, what: &What<'_>) -> Option<Arc<Span>> {
        self.start((None, None), what, 0)
    }

    /// Starts an event below another one, and in a group, where these are wanted; None if nobody wants it.
    /// Profilers of NCCL's versions 1 to 4 have no place for calls, but for the operations inside them: an
    /// event that is wanted exists even if no profiler takes it.
    fn start(
        self: &Arc<Self>,
        (parent, group): (Option<&Arc<Span>>, Option<&Arc<Span>>),
        what: &What<'_>,
        tag: u64,
    ) -> Option<Arc<Span>> {
        let kind = what.kind();
        if !self.wants(kind) {
            return None;
        }
        let mut handles = Handles::new();
        // One event for all profilers: each is told of parent and group as it knows them.
        let mut event = Event { parent: None, rank: self.rank, what: what.clone(), tag };
        for (index, profiler) in self.open.iter().enumerate() {
            let handle = || {
                let known = |span: Option<&Arc<Span>>| span.and_then(|s| s.handles[index]);
                event.parent = known(parent);
                if let What::Coll { group: of, .. } | What::P2p { group: of, .. } = &mut event.what {
                    *of = known(group);
                }
                profiler.context.start(&event)
            };
            handles.push(profiler.wants(kind).then(handle).flatten());
        }
        let (parent, _group) = (parent.cloned(), group.cloned());
        Some(Arc::new(Span { profiling: self.clone(), parent, _group, handles }))
    }
}

/// A running event, as every profiler knows it.
pub struct Span {
    profiling: Arc<Profiling>,
    parent: Option<Arc<Span>>,
    /// Kept open while this event lasts.
    _group: Option<Arc<Span>>,
    handles: Handles,
}

/// The event as each profiler knows it; there is mostly one.
type Handles = SmallVec<[Option<EventHandle>; 1]>;

impl Span {
    /// Starts an event inside this one.
    pub fn child(self: &Arc<Self>, what: &What<'_>) -> Option<Arc<Span>> {
        self.profiling.start((Some(self), None), what, 0)
    }

    /// True if any profiler wants events of this kind.
    pub fn wants(&self, kind: EventMask) -> bool {
        self.profiling.wants(kind)
    }

    /// The event is in a new state.
    pub fn record(&self, state: EventState, args: StateArgs) {
        for (profiler, handle) in self.profiling.open.iter().zip(&self.handles) {
            if let Some(handle) = handle {
                profiler.context.record(*handle, state, args);
            }
        }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        for (profiler, handle) in self.profiling.open.iter().zip(&self.handles) {
            if let Some(handle) = handle {
                profiler.context.stop(*handle);
            }
        }
        self.parent = None;
    }
}

/// The events around one group of calls on a communicator.
pub struct GroupSpans {
    profiling: Arc<Profiling>,
    api: Option<Arc<Span>>,
    group: Option<Arc<Span>>,
    /// The calls are captured: they move nothing now, and nobody knows when their replays do.
    pub is_captured: bool,
}

impl GroupSpans {
    /// A group is handed over, for this stream; None while no profiler watches.
    pub fn start(
        profiling: &Arc<Profiling>,
        device: &dyn Device,
        stream: Stream,
    ) -> Result<Option<Arc<Self>>> {
        if profiling.is_idle() {
            return Ok(None);
        }
        profiling.open.iter().for_each(Open::ask);
        let is_captured = device.stream_state(stream)?.capture.is_some();
        let api = profiling.span(&What::GroupApi { depth: 1, captured: is_captured });
        let group = profiling.span(&What::Group);
        Ok(Some(Arc::new(Self { profiling: profiling.clone(), api, group, is_captured })))
    }

    /// A collective of the group with the tag that the program gave it, run so on so many channels, which
    /// should take so long.
    ///
    /// One that copy engines run has two events: that of any collective, which profilers of all versions
    /// know, and the one that NCCL has for copy engines.
    pub fn collective(
        &self,
        (call, tag): (&Call, u64),
        stream: Stream,
        number: u64,
        (algorithm, route, channels): (&'static str, Route, u8),
        predicted_ns: u64,
    ) -> CollectiveSpans {
        let (func, datatype) = (nccl_name(call.collective), nccl_type(call.dtype));
        let root = call.root;
        let api = What::CollApi {
            func,
            count: call.count,
            datatype,
            root,
            stream: stream.0,
            captured: self.is_captured,
        };
        let api = self.profiling.start((self.api.as_ref(), None), &api, tag);
        let (algo, proto) = in_capitals(algorithm, route);
        let what = What::Coll {
            seq: number,
            func,
            send: call.input,
            recv: call.output,
            count: call.count,
            root,
            datatype,
            channels,
            warps: 16,
            algo,
            proto,
            group: None,
        };
        let event = self.profiling.start((api.as_ref(), self.group.as_ref()), &what, tag);
        if let Some(event) = event.as_ref().filter(|_| predicted_ns > 0) {
            event.record(EventState::PREDICTED, StateArgs::Predicted(predicted_ns));
        }
        let by_copies = What::CeColl {
            seq: number,
            func,
            send: call.input,
            recv: call.output,
            count: call.count,
            root,
            datatype,
            stream: stream.0,
        };
        let copied = route.is_copied().then(|| self.profiling.start((api.as_ref(), None), &by_copies, tag));
        let copied = copied.flatten();
        CollectiveSpans { event, copied }
    }

    /// A message of the group.
    pub fn message(&self, message: &Message, stream: Stream) -> Option<Arc<Span>> {
        let func = if message.send { "Send" } else { "Recv" };
        let (count, datatype) = (message.bytes, "ncclInt8");
        let api = What::P2pApi { func, count, datatype, stream: stream.0, captured: self.is_captured };
        let api = self.profiling.start((self.api.as_ref(), None), &api, 0);
        let (buff, peer) = (message.addr, message.peer);
        let what = What::P2p { func, buff, datatype, count, peer, channels: 1, group: None };
        self.profiling.start((api.as_ref(), self.group.as_ref()), &what, 0)
    }

    /// A one-sided operation of the group: one event of its call, and in it one for each rank that it has to
    /// do with, as a message. NCCL's event model has no kind of their own for them, but their names.
    pub fn one_sided(&self, call: &OneSidedCall, stream: Stream) -> Vec<Arc<Span>> {
        let OneSidedCall { func, datatype, transfers } = call;
        let count = transfers.iter().map(|transfer| transfer.count).sum();
        let captured = self.is_captured;
        let api = What::P2pApi { func, count, datatype, stream: stream.0, captured };
        let api = self.profiling.start((self.api.as_ref(), None), &api, 0);
        let transfer = |transfer: &Transfer| {
            let Transfer { peer, buff, count } = *transfer;
            let what = What::P2p { func, buff, datatype, count, peer, channels: 0, group: None };
            self.profiling.start((api.as_ref(), self.group.as_ref()), &what, 0)
        };
        transfers.iter().filter_map(transfer).collect()
    }

    /// A launch of the group is put on a stream; what the returned span lasts.
    pub fn launch(&self, stream: Stream) -> Option<Arc<Span>> {
        self.profiling.start((self.api.as_ref(), None), &What::KernelLaunch { stream: stream.0 }, 0)
    }
}

/// The events of a collective.
#[derive(Default)]
pub struct CollectiveSpans {
    /// The event that every collective has.
    pub event: Option<Arc<Span>>,
    /// The event of a collective that copy engines run.
    pub copied: Option<Arc<Span>>,
}

/// A call for a one-sided operation, in the words of NCCL's events.
pub struct OneSidedCall {
    /// `PutSignal`, `Signal` or `WaitSignal`.
    pub func: &'static str,
    /// The type of the elements that are counted; empty where signals are counted.
    pub datatype: &'static str,
    /// The ranks that the call has to do with.
    pub transfers: SmallVec<[Transfer; 2]>,
}

/// The part of a one-sided operation that has to do with one rank.
pub struct Transfer {
    /// The rank.
    pub peer: u32,
    /// The buffer that bytes are put from, or 0.
    pub buff: u64,
    /// The elements that are put, or the signals that are waited for.
    pub count: u64,
}

/// The names of an algorithm and a protocol.
type Names = (&'static str, &'static str);
/// The names of what ran, by the algorithm's own name.
type AllNames = FxHashMap<(&'static str, Route), Names>;

/// The algorithm and the protocol in NCCL's spelling; an executor that NCCL does not have stands behind the
/// algorithm. Every collective has them, and most have those of the one before: they are made once and kept.
fn in_capitals(algorithm: &'static str, route: Route) -> Names {
    static ALL: Mutex<Option<AllNames>> = Mutex::new(None);
    thread_local!(static LAST: Cell<Option<(&'static str, Route, Names)>> = const { Cell::new(None) });
    if let Some((last, of, names)) = LAST.get()
        && std::ptr::eq(last, algorithm)
        && of == route
    {
        return names;
    }
    let make = || {
        let has_executor = route.is_fused() || route.is_copied();
        let (slash, executor) = if has_executor { ("/", route.executor.name()) } else { ("", "") };
        let keep = |text: String| &*text.to_ascii_uppercase().leak();
        (keep(format!("{algorithm}{slash}{executor}")), keep(route.protocol.name().to_owned()))
    };
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    let names = *all.get_or_insert_default().entry((algorithm, route)).or_insert_with(make);
    LAST.set(Some((algorithm, route, names)));
    names
}

/// The name of a collective in NCCL's events.
fn nccl_name(collective: Collective) -> &'static str {
    match collective {
        Collective::AllReduce => "AllReduce",
        Collective::AllGather => "AllGather",
        Collective::ReduceScatter => "ReduceScatter",
        Collective::Broadcast => "Broadcast",
        Collective::Reduce => "Reduce",
        Collective::AllToAll => "AlltoAll",
        Collective::Gather => "Gather",
        Collective::Scatter => "Scatter",
        Collective::SendRecv => "Unknown",
    }
}

/// The name of a type in NCCL's events.
fn nccl_type(datatype: DataType) -> &'static str {
    match datatype {
        DataType::Int8 => "ncclInt8",
        DataType::Uint8 => "ncclUint8",
        DataType::Int32 => "ncclInt32",
        DataType::Uint32 => "ncclUint32",
        DataType::Int64 => "ncclInt64",
        DataType::Uint64 => "ncclUint64",
        DataType::Float16 => "ncclFloat16",
        DataType::Float32 => "ncclFloat32",
        DataType::Float64 => "ncclFloat64",
        DataType::Bfloat16 => "ncclBfloat16",
        DataType::Float8e4m3 => "ncclFloat8e4m3",
        DataType::Float8e5m2 => "ncclFloat8e5m2",
    }
}

#[cfg(test)]
mod tests {
    use hawser_plan::ReduceOp;
    use hawser_plan::Scalar;

    use super::*;

    type Seen = (Option<EventHandle>, Option<EventHandle>, String);

    /// A profiler that knows groups and operations but no calls, as NCCL's below version 5.
    struct Old(Arc<Mutex<Vec<Seen>>>);

    impl ProfilerContext for Old {
        fn mask(&self) -> EventMask {
            EventMask::COLL
        }

        fn start(&self, event: &Event<'_>) -> Option<EventHandle> {
            let (group, text) = match &event.what {
                What::Group => (None, "group".to_owned()),
                What::Coll { group, algo, proto, .. } => (*group, format!("{algo} {proto} {}", event.tag)),
                _ => return None,
            };
            let mut seen = self.0.lock().unwrap();
            seen.push((event.parent, group, text));
            Some(EventHandle(seen.len() as u64))
        }

        fn stop(&self, _event: EventHandle) {}
    }

    /// A profiler that counts how often it is asked, and wants groups from the second time on.
    struct Asked(Arc<AtomicU64>);

    impl ProfilerContext for Asked {
        fn mask(&self) -> EventMask {
            let before = self.0.fetch_add(1, Ordering::Relaxed);
            if before < 2 { EventMask::NONE } else { EventMask::GROUP }
        }

        fn start(&self, _event: &Event<'_>) -> Option<EventHandle> {
            Some(EventHandle(1))
        }

        fn stop(&self, _event: EventHandle) {}
    }

    #[test]
    fn a_profiler_is_asked_once_per_group() {
        let asked = Arc::new(AtomicU64::new(0));
        let profiling =
            Arc::new(Profiling { rank: 0, open: vec![Open::new(Box::new(Asked(asked.clone())))] });
        let device = hawser_device::host::HostDevice::beside().unwrap();
        let group = || GroupSpans::start(&profiling, &device, Stream(0)).unwrap().unwrap();
        assert!(group().group.is_none() && !profiling.wants(EventMask::GROUP));
        assert!(
            group().group.is_some() && profiling.wants(EventMask::GROUP),
            "a change counts from there on"
        );
        assert_eq!(asked.load(Ordering::Relaxed), 3, "when it was opened, and for each group");
    }

    #[test]
    fn a_profiler_without_calls_sees_operations_in_their_group() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let profiling = Arc::new(Profiling { rank: 0, open: vec![Open::new(Box::new(Old(seen.clone())))] });
        let call = Call {
            collective: Collective::AllReduce,
            count: 1,
            dtype: DataType::Float32,
            op: ReduceOp::Sum,
            scalar: Scalar::Immediate(0),
            root: 0,
            input: 16,
            output: 16,
            gap: 0,
        };
        let device = hawser_device::host::HostDevice::beside().unwrap();
        let spans = GroupSpans::start(&profiling, &device, Stream(0)).unwrap().unwrap();
        let event = spans.collective((&call, 9), Stream(0), 0, ("Ring", Route::SIMPLE, 1), 5_000);
        assert!(event.event.is_some() && event.copied.is_none());
        let group = (None, None, "group".to_owned());
        assert_eq!(*seen.lock().unwrap(), [group, (None, Some(EventHandle(1)), "RING SIMPLE 9".to_owned())]);
    }

    #[test]
    fn names_are_nccls_with_executors_of_our_own_behind() {
        let fused = Route { executor: hawser_plan::Executor::Fused, ..Route::SIMPLE };
        for _ in 0..2 {
            assert_eq!(in_capitals("AllPairs", Route::SIMPLE), ("ALLPAIRS", "SIMPLE"));
            assert_eq!(in_capitals("AllPairs", fused), ("ALLPAIRS/FUSED", "SIMPLE"));
            assert_eq!(in_capitals("Ring", fused), ("RING/FUSED", "SIMPLE"));
        }
        let (first, again) = (in_capitals("Ring", fused).0, in_capitals("Ring", fused).0);
        assert!(std::ptr::eq(first, again), "they are made once");
    }
}
