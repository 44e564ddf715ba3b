//! The cases of a profiler: what it has to do right.

use std::sync::Arc;

use hawser_plugin::Log;
use hawser_plugin::profiler::{
    Event, EventHandle, EventMask, EventState, Profiler, ProfilerConfig, ProfilerContext, StateArgs, What,
};

use super::case::{Case, Options, Outcome, Trial, check_name, only, want};

/// The cases, in the order in which they run.
pub const CASES: &[Case<dyn Profiler>] = &[
    Case { name: "name_is_constant", wants: "one name that fits into a log line", run: name_is_constant },
    Case { name: "mask_is_sane", wants: "a mask of kinds that exist", run: mask_is_sane },
    Case {
        name: "a_whole_operation",
        wants: "all events of a collective and of a message, with their states, in order",
        run: a_whole_operation,
    },
    Case {
        name: "unwanted_and_unknown_events",
        wants: "events without parent, of all kinds, with odd texts and states, to do no harm",
        run: unwanted_and_unknown_events,
    },
    Case {
        name: "events_out_of_order",
        wants: "children that outlive their parents, and operations that overlap",
        run: events_out_of_order,
    },
    Case {
        name: "many_threads_report",
        wants: "events of several threads at once, stopped by other threads",
        run: many_threads_report,
    },
    Case {
        name: "communicators_side_by_side",
        wants: "several communicators, opened and dropped in any order",
        run: communicators_side_by_side,
    },
    Case {
        name: "closing_with_open_events",
        wants: "a communicator that goes away while events are open",
        run: closing_with_open_events,
    },
];

/// Runs one case.
///
/// # Panics
/// If it does not come out as expected.
pub fn one(name: &str, plugin: Arc<dyn Profiler>, options: &Options) {
    only(CASES, name, plugin, options);
}

fn open(trial: &Trial<dyn Profiler>, comm_id: u64, rank: u32) -> Result<Box<dyn ProfilerContext>, String> {
    let mut config = ProfilerConfig::new(comm_id, 4, rank, Log::silent());
    config.comm_name = (rank.is_multiple_of(2)).then(|| "world \"zero\"".to_owned());
    trial.plugin.open(&config).map_err(|error| format!("open for rank {rank}: {error}"))
}

/// A host's view of a context: it reports what the mask asks for.
struct Host<'a> {
    context: &'a dyn ProfilerContext,
    all: bool,
}

impl Host<'_> {
    fn start(&self, parent: Option<EventHandle>, what: What<'_>) -> Option<EventHandle> {
        let wanted = self.all || self.context.mask().contains(what.kind());
        wanted.then(|| self.context.start(&Event { parent, rank: 1, what, tag: 0 })).flatten()
    }

    fn record(&self, event: Option<EventHandle>, state: EventState, args: StateArgs) {
        event.into_iter().for_each(|event| self.context.record(event, state, args));
    }

    fn stop(&self, event: Option<EventHandle>) {
        event.into_iter().for_each(|event| self.context.stop(event));
    }

    /// A collective with all that belongs to it.
    fn collective(&self, seq: u64) {
        let group_api = self.start(None, What::GroupApi { depth: 1, captured: false });
        let (func, datatype, count) = ("AllReduce", "ncclFloat32", 1 << 20);
        let api = What::CollApi { func, count, datatype, root: 0, stream: 9, captured: false };
        let api = self.start(group_api, api);
        self.record(group_api, EventState::GROUP_START_API_STOP, StateArgs::None);
        let launch = self.start(group_api, What::KernelLaunch { stream: 9 });
        let group = self.start(None, What::Group);
        let coll = self.start(api, collective(seq, group));
        self.stop(coll);
        for channel in 0..2 {
            let kernel = self.start(coll, What::KernelCh { channel, timer: 1000 });
            self.proxy(coll, channel);
            self.record(kernel, EventState::KERNEL_CH_STOP, StateArgs::Timer(2000));
            self.stop(kernel);
        }
        self.stop(group);
        self.stop(launch);
        self.stop(api);
        self.record(group_api, EventState::GROUP_END_API_START, StateArgs::None);
        self.stop(group_api);
    }

    fn proxy(&self, parent: Option<EventHandle>, channel: u8) {
        let pid = std::process::id().cast_signed();
        let op = What::ProxyOp { pid, channel, peer: 2, steps: 2, chunk_bytes: 4096, is_send: true };
        let op = self.start(parent, op);
        self.record(op, EventState::PROXY_OP_IN_PROGRESS, StateArgs::None);
        for number in 0..2 {
            let step = self.start(op, What::ProxyStep { step: number });
            self.record(step, EventState::SEND_GPU_WAIT, StateArgs::Bytes(0));
            self.record(step, EventState::SEND_PEER_WAIT, StateArgs::Bytes(0));
            self.record(step, EventState::SEND_WAIT, StateArgs::Bytes(4096));
            let net = self.start(step, What::NetPlugin { id: 2 << 16 | 1, data: 0 });
            self.record(net, EventState::NET_PLUGIN_UPDATE, StateArgs::Data(0));
            self.stop(net);
            self.stop(step);
        }
        self.stop(op);
        let control = self.start(None, What::ProxyCtrl);
        self.record(control, EventState::PROXY_APPEND, StateArgs::Appended(0));
        self.record(control, EventState::PROXY_APPEND_END, StateArgs::Appended(1));
        self.stop(control);
    }

    fn message(&self) {
        let (func, datatype, count) = ("Send", "ncclInt8", 77);
        let api = self.start(None, What::P2pApi { func, count, datatype, stream: 0, captured: true });
        let p2p = What::P2p { func, buff: 4096, datatype, count, peer: 3, channels: 1, group: None };
        let p2p = self.start(api, p2p);
        self.stop(api);
        self.proxy(p2p, 0);
        self.stop(p2p);
    }
}

fn collective(seq: u64, group: Option<EventHandle>) -> What<'static> {
    What::Coll {
        seq,
        func: "AllReduce",
        send: 0x1000,
        recv: 0x2000,
        count: 1 << 20,
        root: 0,
        datatype: "ncclFloat32",
        channels: 2,
        warps: 8,
        algo: "RING",
        proto: "SIMPLE",
        group,
    }
}

/// One event of each kind.
fn every_kind<'a>(text: &'a str) -> Vec<What<'a>> {
    let (func, datatype, algo, proto) = (text, text, text, text);
    let (seq, send, recv, count, root, stream) = (u64::MAX, 0, u64::MAX, u64::MAX, u32::MAX, u64::MAX);
    let (channels, warps, channel, group) = (u8::MAX, 0, u8::MAX, None);
    vec![
        What::Group,
        What::Coll { seq, func, send, recv, count, root, datatype, channels, warps, algo, proto, group },
        What::P2p { func, buff: 0, datatype, count, peer: u32::MAX, channels, group },
        What::ProxyOp { pid: -1, channel, peer: 0, steps: 0, chunk_bytes: u32::MAX, is_send: false },
        What::ProxyStep { step: u32::MAX },
        What::ProxyCtrl,
        What::KernelCh { channel, timer: u64::MAX },
        What::NetPlugin { id: -1, data: 0 },
        What::GroupApi { depth: 0, captured: true },
        What::CollApi { func, count, datatype, root, stream, captured: true },
        What::P2pApi { func, count, datatype, stream, captured: false },
        What::KernelLaunch { stream },
        What::CeColl { seq, func, send, recv, count, root, datatype, stream },
        What::CeSync { complete: true, ranks: 0 },
        What::CeBatch { ops: 0, bytes: u64::MAX, intra_sync: true },
        What::KernelPhase { channel, phase: u8::MAX, name: text, timer: u64::MAX },
    ]
}

fn name_is_constant(trial: &Trial<dyn Profiler>) -> Outcome {
    let first = trial.plugin.name().to_owned();
    drop(open(trial, 1, 0)?);
    check_name(&first, trial.plugin.name())
}

fn mask_is_sane(trial: &Trial<dyn Profiler>) -> Outcome {
    let context = open(trial, 1, 0)?;
    let known = EventMask::CE_BATCH.0 * 2 - 1;
    for _ in 0..10 {
        let mask = context.mask();
        want!(mask.0 & !known == 0, "{mask:?} asks for kinds that do not exist");
    }
    Ok(())
}

fn a_whole_operation(trial: &Trial<dyn Profiler>) -> Outcome {
    let context = open(trial, 2, 1)?;
    let host = Host { context: &*context, all: false };
    for seq in 0..50 {
        host.collective(seq);
        host.message();
    }
    Ok(())
}

fn unwanted_and_unknown_events(trial: &Trial<dyn Profiler>) -> Outcome {
    let context = open(trial, 3, 2)?;
    let host = Host { context: &*context, all: true };
    let long = "x".repeat(5000);
    for text in ["", "AllReduce", "\"\\\n\u{7f}", "größe", long.as_str()] {
        for what in every_kind(text) {
            let event = host.start(None, what);
            for state in (0..40).chain([u32::MAX]) {
                for args in
                    [StateArgs::None, StateArgs::Bytes(u64::MAX), StateArgs::Appended(1), StateArgs::Timer(0)]
                {
                    host.record(event, EventState(state), args);
                }
            }
            host.stop(event);
        }
    }
    host.collective(1);
    Ok(())
}

fn events_out_of_order(trial: &Trial<dyn Profiler>) -> Outcome {
    let context = open(trial, 4, 3)?;
    let host = Host { context: &*context, all: false };
    let group = host.start(None, What::Group);
    let first = host.start(group, collective(1, group));
    let second = host.start(group, collective(2, group));
    host.stop(group);
    let step = |parent| {
        let op = What::ProxyOp { pid: 1, channel: 0, peer: 1, steps: 1, chunk_bytes: 1, is_send: false };
        let op = host.start(parent, op);
        (op, host.start(op, What::ProxyStep { step: 0 }))
    };
    let ((op, inner), (other, later)) = (step(second), step(first));
    host.stop(first);
    host.stop(op);
    host.record(inner, EventState::RECV_WAIT, StateArgs::Bytes(1));
    host.stop(inner);
    host.stop(second);
    host.stop(other);
    host.stop(later);
    host.collective(3);
    Ok(())
}

fn many_threads_report(trial: &Trial<dyn Profiler>) -> Outcome {
    let context = open(trial, 5, 0)?;
    let host = Host { context: &*context, all: false };
    std::thread::scope(|scope| {
        let work = || (0..100).for_each(|seq| host.collective(seq));
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(work)).collect();
        let events: Vec<_> = (0..100).map(|seq| host.start(None, collective(seq, None))).collect();
        scope.spawn(|| events.into_iter().for_each(|event| host.stop(event)));
        let panicked = threads.into_iter().any(|thread| thread.join().is_err());
        want!(!panicked, "it panicked");
        Ok(())
    })
}

fn communicators_side_by_side(trial: &Trial<dyn Profiler>) -> Outcome {
    let mut contexts = (0..6).map(|n| open(trial, n, (n % 4) as u32)).collect::<Result<Vec<_>, String>>()?;
    while !contexts.is_empty() {
        contexts.iter().for_each(|context| Host { context: &**context, all: false }.collective(7));
        drop(contexts.remove(contexts.len() / 2));
    }
    Ok(())
}

fn closing_with_open_events(trial: &Trial<dyn Profiler>) -> Outcome {
    for _ in 0..3 {
        let context = open(trial, 8, 1)?;
        let host = Host { context: &*context, all: false };
        let coll = host.start(None, collective(1, None));
        host.start(coll, What::KernelCh { channel: 0, timer: 5 });
        host.start(None, What::ProxyCtrl);
        drop(context);
    }
    let context = open(trial, 8, 1)?;
    Host { context: &*context, all: false }.collective(1);
    Ok(())
}
