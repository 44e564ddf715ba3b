//! What profiler plugins see of a communicator, in NCCL's event model.
//!
//! An event is a [`Span`]: it starts when it is made and stops when the last owner lets go. A span owns its
//! parent, so parents stop after their children. Without profilers everything here is a look at an empty
//! list.

use std::sync::Arc;

use hawser_base::error::Result;
use hawser_base::log;
use hawser_compat::profiler::with_ancestors;
use hawser_device::{Device, Stream};
use hawser_plan::p2p::Message;
use hawser_plan::{Call, Route, Topology};
use hawser_plugin::profiler::{
    Event, EventHandle, EventMask, EventState, ProfilerConfig, ProfilerContext, StateArgs, What,
};
use smallvec::SmallVec;

use crate::plugins;

/// The profilers of a communicator.
#[derive(Default)]
pub struct Profiling {
    rank: u32,
    open: Vec<Box<dyn ProfilerContext>>,
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
                Ok(context) => open.push(context),
                Err(error) => log::warn(&format!("profiler {} is left out: {error}", profiler.name())),
            }
        }
        Self { rank, open }
    }

    /// True if nobody looks.
    pub fn is_idle(&self) -> bool {
        self.open.is_empty()
    }

    /// Whether any profiler wants events of this kind, or of one that comes with it.
    pub fn wants(&self, kind: EventMask) -> bool {
        self.open.iter().any(|p| with_ancestors(p.mask()).0 & kind.0 != 0)
    }

    /// Starts an event without a parent; None if nobody wants it.
    pub fn span(self: &Arc<Self>, what: &What<'_>) -> Option<Arc<Span>> {
        self.start(None, None, (what, 0))
    }

    fn start(
        self: &Arc<Self>,
        parent: Option<&Arc<Span>>,
        group: Option<&Arc<Span>>,
        (what, tag): (&What<'_>, u64),
    ) -> Option<Arc<Span>> {
        if self.open.is_empty() {
            return None;
        }
        let mut handles = Vec::with_capacity(self.open.len());
        // Profilers of NCCL's versions 1 to 4 have no place for calls, but for the operations inside them: an
        // event that is wanted exists even if no profiler takes it.
        let mut is_wanted = parent.is_some();
        for (index, profiler) in self.open.iter().enumerate() {
            let wanted = with_ancestors(profiler.mask()).contains(what.kind());
            is_wanted |= wanted;
            let known = |span: Option<&Arc<Span>>| span.and_then(|s| s.handles[index]);
            let what = in_group(what, known(group));
            let event = Event { parent: known(parent), rank: self.rank, what, tag };
            handles.push(wanted.then(|| profiler.start(&event)).flatten());
        }
        let span = Span { profiling: self.clone(), parent: parent.cloned(), _group: group.cloned(), handles };
        is_wanted.then(|| Arc::new(span))
    }
}

/// The event with its group as one profiler knows it.
fn in_group<'a>(what: &What<'a>, handle: Option<EventHandle>) -> What<'a> {
    let mut what = what.clone();
    if let What::Coll { group, .. } | What::P2p { group, .. } = &mut what {
        *group = handle;
    }
    what
}

/// A running event, as every profiler knows it.
pub struct Span {
    profiling: Arc<Profiling>,
    parent: Option<Arc<Span>>,
    /// Kept open while this event lasts.
    _group: Option<Arc<Span>>,
    handles: Vec<Option<EventHandle>>,
}

impl Span {
    /// Starts an event inside this one.
    pub fn child(self: &Arc<Self>, what: &What<'_>) -> Option<Arc<Span>> {
        self.profiling.start(Some(self), None, (what, 0))
    }

    /// Starts an event inside this one that belongs to a group.
    fn child_of_group(
        self: &Arc<Self>,
        group: Option<&Arc<Span>>,
        tagged: (&What<'_>, u64),
    ) -> Option<Arc<Span>> {
        self.profiling.start(Some(self), group, tagged)
    }

    /// True if any profiler wants events of this kind.
    pub fn wants(&self, kind: EventMask) -> bool {
        self.profiling.wants(kind)
    }

    /// The event is in a new state.
    pub fn record(&self, state: EventState, args: StateArgs) {
        for (profiler, handle) in self.profiling.open.iter().zip(&self.handles) {
            if let Some(handle) = handle {
                profiler.record(*handle, state, args);
            }
        }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        for (profiler, handle) in self.profiling.open.iter().zip(&self.handles) {
            if let Some(handle) = handle {
                profiler.stop(*handle);
            }
        }
        self.parent = None;
    }
}

/// The events around one group of calls on a communicator.
pub struct GroupSpans {
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
        let is_captured = device.stream_state(stream)?.capture.is_some();
        let api = profiling.span(&What::GroupApi { depth: 1, captured: is_captured });
        Ok(Some(Arc::new(Self { api, group: profiling.span(&What::Group), is_captured })))
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
        (algorithm, route, channels): (&str, Route, u8),
        predicted_ns: u64,
    ) -> CollectiveSpans {
        let (func, datatype) = (nccl_name(call.collective.name()), nccl_type(call.dtype.name()));
        let root = call.root;
        let api = What::CollApi {
            func,
            count: call.count,
            datatype,
            root,
            stream: stream.0,
            captured: self.is_captured,
        };
        let api = self.api.as_ref().and_then(|group| group.child_of_group(None, (&api, tag)));
        let Some(api) = api else { return CollectiveSpans::default() };
        // NCCL's spelling; an executor that NCCL does not have stands behind the algorithm.
        let mut algo = algorithm.to_ascii_uppercase();
        if route.is_fused() || route.is_copied() {
            algo.extend(["/", &route.executor.name().to_ascii_uppercase()]);
        }
        let proto = route.protocol.name().to_ascii_uppercase();
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
            algo: &algo,
            proto: &proto,
            group: None,
        };
        let event = api.child_of_group(self.group.as_ref(), (&what, tag));
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
        let is_copied = route.is_copied() && api.wants(EventMask::CE_COLL);
        let copied = if is_copied { api.child_of_group(None, (&by_copies, tag)) } else { None };
        CollectiveSpans { event, copied }
    }

    /// A message of the group.
    pub fn message(&self, message: &Message, stream: Stream) -> Option<Arc<Span>> {
        let func = if message.send { "Send" } else { "Recv" };
        let (count, datatype) = (message.bytes, "ncclInt8");
        let api = What::P2pApi { func, count, datatype, stream: stream.0, captured: self.is_captured };
        let api = self.api.as_ref()?.child(&api)?;
        let (buff, peer) = (message.addr, message.peer);
        let what = What::P2p { func, buff, datatype, count, peer, channels: 1, group: None };
        api.child_of_group(self.group.as_ref(), (&what, 0))
    }

    /// A one-sided operation of the group: one event of its call, and in it one for each rank that it has to
    /// do with, as a message. NCCL's event model has no kind of their own for them, but their names.
    pub fn one_sided(&self, call: &OneSidedCall, stream: Stream) -> Vec<Arc<Span>> {
        let OneSidedCall { func, datatype, transfers } = call;
        let count = transfers.iter().map(|transfer| transfer.count).sum();
        let captured = self.is_captured;
        let api = What::P2pApi { func, count, datatype, stream: stream.0, captured };
        let Some(api) = self.api.as_ref().and_then(|group| group.child(&api)) else { return Vec::new() };
        let transfer = |transfer: &Transfer| {
            let Transfer { peer, buff, count } = *transfer;
            let what = What::P2p { func, buff, datatype, count, peer, channels: 0, group: None };
            api.child_of_group(self.group.as_ref(), (&what, 0))
        };
        transfers.iter().filter_map(transfer).collect()
    }

    /// A launch of the group is put on a stream; what the returned span lasts.
    pub fn launch(&self, stream: Stream) -> Option<Arc<Span>> {
        self.api.as_ref()?.child(&What::KernelLaunch { stream: stream.0 })
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

/// `all_reduce` is `AllReduce` in NCCL's events.
fn nccl_name(name: &str) -> &'static str {
    match name {
        "all_reduce" => "AllReduce",
        "all_gather" => "AllGather",
        "reduce_scatter" => "ReduceScatter",
        "broadcast" => "Broadcast",
        "reduce" => "Reduce",
        "alltoall" | "all_to_all" => "AlltoAll",
        "gather" => "Gather",
        "scatter" => "Scatter",
        _ => "Unknown",
    }
}

/// `float` is `ncclFloat32` in NCCL's events.
fn nccl_type(name: &str) -> &'static str {
    match name {
        "int8" => "ncclInt8",
        "uint8" => "ncclUint8",
        "int32" => "ncclInt32",
        "uint32" => "ncclUint32",
        "int64" => "ncclInt64",
        "uint64" => "ncclUint64",
        "half" => "ncclFloat16",
        "float" => "ncclFloat32",
        "double" => "ncclFloat64",
        "bfloat16" => "ncclBfloat16",
        "f8e4m3" => "ncclFloat8e4m3",
        "f8e5m2" => "ncclFloat8e5m2",
        _ => "Unknown",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use hawser_plan::Scalar;
    use hawser_plan::{Collective, DataType, ReduceOp};

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

    #[test]
    fn a_profiler_without_calls_sees_operations_in_their_group() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let profiling = Arc::new(Profiling { rank: 0, open: vec![Box::new(Old(seen.clone()))] });
        let call = Call {
            collective: Collective::AllReduce,
            count: 1,
            dtype: DataType::Float32,
            op: ReduceOp::Sum,
            scalar: Scalar::Immediate(0),
            root: 0,
            input: 16,
            output: 16,
        };
        let device = hawser_device::host::HostDevice::beside().unwrap();
        let spans = GroupSpans::start(&profiling, &device, Stream(0)).unwrap().unwrap();
        let event = spans.collective((&call, 9), Stream(0), 0, ("Ring", Route::SIMPLE, 1), 5_000);
        assert!(event.event.is_some() && event.copied.is_none());
        let group = (None, None, "group".to_owned());
        assert_eq!(*seen.lock().unwrap(), [group, (None, Some(EventHandle(1)), "RING SIMPLE 9".to_owned())]);
    }
}
