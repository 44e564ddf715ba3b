//! The round trip: a Rust profiler through the exported tables and back through the adapters, versions 4 to
//! 7.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use hawser_compat::library::Library;
use hawser_compat::profiler::from_table;
use hawser_plugin::profiler::{
    Event, EventHandle, EventMask, EventState, ProfilerConfig, ProfilerContext, StateArgs, What,
};
use hawser_plugin::{Error, ErrorKind, Log, Profiler, Result};

/// Steps with these numbers get no handle, a panic.
const UNWANTED: u32 = 13;
const PANICS: u32 = 14;

/// The profiler's handles are these numbers and the following ones: as large as they get.
const FIRST_HANDLE: u64 = u64::MAX - 1000;

/// The events that the profiler saw, and those that it wants. Tests run one after the other.
static SEEN: Mutex<Vec<String>> = Mutex::new(Vec::new());
static MASK: AtomicU64 = AtomicU64::new(0);
static STARTED: AtomicU64 = AtomicU64::new(0);
static MADE: AtomicUsize = AtomicUsize::new(0);
static ALONE: Mutex<()> = Mutex::new(());

struct Probe;

struct ProbeContext {
    rank: u32,
    mask: Option<EventMask>,
}

impl Profiler for Probe {
    fn name(&self) -> &str {
        "probe"
    }

    fn open(&self, config: &ProfilerConfig) -> Result<Box<dyn ProfilerContext>> {
        match config.ranks {
            500 => return Err(Error::new(ErrorKind::System, "no room for the trace")),
            501 => panic!("501 ranks"),
            _ => {}
        }
        let ProfilerConfig { comm_id, comm_name, nodes, ranks, rank, log, .. } = config;
        log.warn("profiler is there");
        saw(format!("open {comm_id} {comm_name:?} {nodes} {ranks} {rank}"));
        // Ranks from 100 on want kernel channels only, whatever the others want.
        let mask = (*rank >= 100).then_some(EventMask::KERNEL_CH);
        Ok(Box::new(ProbeContext { rank: *rank, mask }))
    }
}

impl ProfilerContext for ProbeContext {
    fn mask(&self) -> EventMask {
        self.mask.unwrap_or(EventMask(MASK.load(Ordering::SeqCst)))
    }

    fn start(&self, event: &Event<'_>) -> Option<EventHandle> {
        match event.what {
            What::ProxyStep { step: PANICS } => panic!("step {PANICS}"),
            What::ProxyStep { step: UNWANTED } => return None,
            _ => saw(format!("{event:?}")),
        }
        Some(EventHandle(FIRST_HANDLE + STARTED.fetch_add(1, Ordering::SeqCst)))
    }

    fn stop(&self, event: EventHandle) {
        saw(format!("stop {}", event.0 - FIRST_HANDLE));
    }

    fn record(&self, event: EventHandle, state: EventState, args: StateArgs) {
        saw(format!("record {} {} {args:?}", event.0 - FIRST_HANDLE, state.0));
    }
}

impl Drop for ProbeContext {
    fn drop(&mut self) {
        saw(format!("close {}", self.rank));
        if self.rank == 9 {
            panic!("closing rank 9");
        }
    }
}

hawser_compat::export_nccl_profiler!({
    MADE.fetch_add(1, Ordering::SeqCst);
    Arc::new(Probe)
});

/// Version 6 as a C host declares it, for what the adapters never do.
#[repr(C)]
struct Table {
    name: *const c_char,
    init: unsafe extern "C" fn(
        *mut *mut c_void,
        u64,
        *mut c_int,
        *const c_char,
        c_int,
        c_int,
        c_int,
        *const c_void,
    ) -> c_int,
    start: unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *mut [u64; 14]) -> c_int,
    stop: unsafe extern "C" fn(*mut c_void) -> c_int,
    record: unsafe extern "C" fn(*mut c_void, c_int, *mut c_void) -> c_int,
    finalize: unsafe extern "C" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    static ncclProfiler_v4: c_void;
    static ncclProfiler_v5: c_void;
    static ncclProfiler_v6: c_void;
    static ncclProfiler_v7: c_void;
}

fn table() -> &'static Table {
    // SAFETY: the table of version 6.
    unsafe { &*(&raw const ncclProfiler_v6).cast::<Table>() }
}

fn saw(what: String) {
    SEEN.lock().unwrap().push(what);
}

fn seen() -> Vec<String> {
    std::mem::take(&mut *SEEN.lock().unwrap())
}

/// Nothing seen, no handle given, everything wanted.
fn alone() -> MutexGuard<'static, ()> {
    let guard = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    seen();
    STARTED.store(0, Ordering::SeqCst);
    MASK.store(0xffff, Ordering::SeqCst);
    guard
}

fn config(ranks: u32, rank: u32, log: Log) -> ProfilerConfig {
    let mut config = ProfilerConfig::new(1 << 63, ranks, rank, log);
    (config.nodes, config.comm_name) = (2, Some("world".into()));
    config
}

/// The exported tables behind our trait again, with their versions.
fn imported() -> [(u32, Arc<dyn Profiler>); 4] {
    let tables = [
        &raw const ncclProfiler_v4,
        &raw const ncclProfiler_v5,
        &raw const ncclProfiler_v6,
        &raw const ncclProfiler_v7,
    ];
    let mut version = 3;
    tables.map(|table| {
        version += 1;
        // SAFETY: each table is of the version that its name says.
        let found = unsafe { from_table(&format!("ncclProfiler_v{version}"), table, &Library::program()) };
        (version, found.unwrap().plugin)
    })
}

fn event(parent: Option<EventHandle>, what: What<'_>) -> Event<'_> {
    Event { parent, rank: 5, what, tag: 0 }
}

/// One event of every kind below the given ones.
fn events(parent: Option<EventHandle>, group: Option<EventHandle>) -> Vec<Event<'static>> {
    let (func, datatype) = ("AllReduce", "ncclFloat32");
    let (send, recv, count, root, stream) = (0x1000, 0x2000, 5_000_000_000, 3, 0x57);
    let (seq, algo, proto, channels, warps) = (41, "RING", "LL", 9, 16);
    let pid = std::process::id() as i32;
    let all = [
        What::Group,
        What::Coll { seq, func, send, recv, count, root, datatype, channels, warps, algo, proto, group },
        What::P2p { func: "Recv", buff: 0x3000, datatype: "ncclUint8", count, peer: 7, channels, group },
        What::ProxyOp { pid, channel: 8, peer: 6, steps: 4, chunk_bytes: 65536, is_send: true },
        What::ProxyStep { step: 11 },
        What::ProxyCtrl,
        What::KernelCh { channel: 31, timer: 1 << 60 },
        What::NetPlugin { id: (2 << 16) + 1, data: 0x4000 },
        What::GroupApi { depth: 2, captured: true },
        What::CollApi { func, count, datatype, root, stream, captured: true },
        What::P2pApi { func: "Send", count, datatype, stream, captured: false },
        What::KernelLaunch { stream },
        What::CeColl { seq, func, send, recv, count, root, datatype, stream },
        What::CeSync { complete: true, ranks: 16 },
        What::CeBatch { ops: 3, bytes: 6_000_000_000, intra_sync: true },
        What::KernelPhase { channel: 31, phase: 2, name: "final_sync", timer: 1 << 60 },
    ];
    all.map(|what| event(parent, what)).into()
}

#[test]
fn every_event_survives_the_trip_through_c() {
    for (version, profiler) in imported() {
        let _alone = alone();
        assert_eq!(profiler.name(), "hawser-compat");
        let context = profiler.open(&config(16, 5, Log::silent())).unwrap();
        let kinds = [0xff, 0xfff, 0x7fff, 0xffff][version as usize - 4];
        assert_eq!(context.mask(), EventMask(kinds), "v{version}");
        assert_eq!(seen(), ["open 9223372036854775808 Some(\"world\") 2 16 5"]);

        let group = context.start(&event(None, What::Group)).unwrap();
        let call = context.start(&event(None, What::ProxyCtrl)).unwrap();
        seen();
        for event in events(Some(call), Some(group)) {
            let handle = context.start(&event);
            let known = kinds & event.what.kind().0 != 0;
            assert_eq!(handle.is_some(), known, "v{version} {event:?}");
            let ours = |parent: u64| Some(EventHandle(FIRST_HANDLE + parent));
            // Before version 5 the group is the parent of tasks.
            let is_task = matches!(event.what, What::Coll { .. } | What::P2p { .. });
            let parent = if version == 4 && is_task { ours(0) } else { ours(1) };
            let expected = events(parent, ours(0)).into_iter().find(|e| e.what.kind() == event.what.kind());
            assert_eq!(seen(), Vec::from_iter(expected.filter(|_| known).map(|e| format!("{e:?}"))));
        }
        context.stop(group);
        drop(context);
        assert_eq!(seen(), ["stop 0", "close 5"]);
    }
    assert_eq!(MADE.load(Ordering::SeqCst), 1);
}

#[test]
fn states_survive_the_trip_through_c() {
    for (version, profiler) in imported() {
        let _alone = alone();
        let context = profiler.open(&config(16, 5, Log::silent())).unwrap();
        let handle = context.start(&event(None, What::ProxyStep { step: 1 })).unwrap();
        seen();
        let states = [
            (EventState::SEND_WAIT, StateArgs::Bytes(1 << 40)),
            (EventState::SEND_PEER_WAIT, StateArgs::Bytes(7)),
            (EventState::PROXY_APPEND, StateArgs::Appended(3)),
            (EventState::PROXY_OP_IN_PROGRESS, StateArgs::None),
            (EventState::NET_PLUGIN_UPDATE, StateArgs::Data(0x99)),
            (EventState::KERNEL_CH_STOP, StateArgs::Timer(1 << 62)),
            (EventState::GROUP_START_API_STOP, StateArgs::None),
            (EventState(27), StateArgs::None),
            (EventState::KERNEL_PHASE_STOP, StateArgs::Timer(1 << 62)),
            (EventState(32), StateArgs::None),
        ];
        states.iter().for_each(|(state, args)| context.record(handle, *state, *args));
        let last = [22, 24, 30, 31][version as usize - 4];
        let known = states.iter().filter(|(state, _)| state.0 <= last);
        let expected: Vec<String> =
            known.map(|(state, args)| format!("record 0 {} {args:?}", state.0)).collect();
        assert_eq!(seen(), expected, "v{version}");
    }
}

#[test]
fn tags_of_calls_survive_from_version_7_on() {
    for (version, profiler) in imported() {
        let _alone = alone();
        let context = profiler.open(&config(16, 5, Log::silent())).unwrap();
        for mut event in events(None, None) {
            event.tag = 0x7a6;
            seen();
            if context.start(&event).is_none() {
                continue;
            }
            let tagged = matches!(
                event.what,
                What::Coll { .. }
                    | What::P2p { .. }
                    | What::CollApi { .. }
                    | What::P2pApi { .. }
                    | What::CeColl { .. }
            );
            let tag = if version >= 7 && tagged { 0x7a6 } else { 0 };
            assert!(seen()[0].ends_with(&format!("tag: {tag} }}")), "v{version} {event:?}");
        }
    }
}

#[test]
fn a_child_names_a_parent_that_is_over() {
    let _alone = alone();
    let [.., (_, profiler)] = imported();
    let context = profiler.open(&config(16, 5, Log::silent())).unwrap();
    let group = context.start(&event(None, What::Group)).unwrap();
    context.stop(group);
    seen();
    context.start(&event(Some(group), What::KernelCh { channel: 1, timer: 2 })).unwrap();
    assert!(seen()[0].starts_with(&format!("Event {{ parent: Some(EventHandle({FIRST_HANDLE}))")));
}

#[test]
fn parents_of_other_processes_and_communicators_are_none() {
    let _alone = alone();
    let [.., (_, profiler)] = imported();
    let contexts = [5, 6].map(|rank| profiler.open(&config(16, rank, Log::silent())).unwrap());
    let parent = contexts[0].start(&event(None, What::Group));
    let op = |pid| What::ProxyOp { pid, channel: 0, peer: 0, steps: 0, chunk_bytes: 0, is_send: false };
    let pid = std::process::id() as i32;
    seen();
    contexts[0].start(&event(parent, op(pid))).unwrap();
    contexts[0].start(&event(parent, op(pid + 1))).unwrap();
    contexts[1].start(&event(parent, op(pid))).unwrap();
    let with_parent: Vec<bool> = seen().iter().map(|line| line.contains("parent: Some")).collect();
    assert_eq!(with_parent, [true, false, false]);
}

#[test]
fn each_communicator_gets_what_it_wants() {
    let _alone = alone();
    MASK.store(EventMask::P2P.0, Ordering::SeqCst);
    let [.., (_, profiler)] = imported();
    let contexts = [5, 100].map(|rank| profiler.open(&config(16, rank, Log::silent())).unwrap());
    let both = EventMask::P2P.0 | EventMask::KERNEL_CH.0;
    assert_eq!(contexts[0].mask(), EventMask(both), "there is one mask in C");
    let wanted = contexts.each_ref().map(|context| {
        let started = events(None, None).into_iter().filter(|event| context.start(event).is_some());
        started.fold(0, |all, event| all | event.what.kind().0)
    });
    let api = EventMask::GROUP_API.0 | EventMask::P2P_API.0;
    let p2p = EventMask::P2P.0 | EventMask::GROUP.0 | api;
    let kernel = p2p | EventMask::KERNEL_CH.0 | EventMask::COLL.0 | EventMask::COLL_API.0;
    assert_eq!(wanted, [p2p, kernel]);

    MASK.store(EventMask::NONE.0, Ordering::SeqCst);
    contexts[0].start(&event(None, What::Group));
    assert_eq!(contexts[0].mask(), EventMask::KERNEL_CH, "a new wish is published");
    let [first, second] = contexts;
    drop(first);
    assert_eq!(second.mask(), EventMask::KERNEL_CH);
}

#[test]
fn a_profiler_that_panics_is_left_alone() {
    for (_, profiler) in imported() {
        let _alone = alone();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let keep = lines.clone();
        let log = Log::new(move |_, _, line| keep.lock().unwrap().push(line.to_owned()));
        let context = profiler.open(&config(16, 5, log.clone())).unwrap();
        let step = |step| event(None, What::ProxyStep { step });
        let handle = context.start(&step(1)).unwrap();
        assert_eq!(context.start(&step(UNWANTED)), None);
        assert_eq!(context.start(&step(PANICS)), None);
        assert_eq!(context.start(&step(1)), None, "a dead profiler is not asked");
        seen();
        context.stop(handle);
        context.record(handle, EventState::SEND_WAIT, StateArgs::None);
        assert_eq!(seen(), [""; 0]);
        drop(context);
        assert_eq!(seen(), ["close 5"]);
        drop(profiler.open(&config(16, 9, log)).unwrap());
        let lines = lines.lock().unwrap().join("\n");
        for text in
            ["startEvent: panicked: step 14", "finalize: panicked: closing rank 9", "profiler is there"]
        {
            assert!(lines.contains(text), "{lines}");
        }
    }
}

#[test]
fn a_profiler_that_does_not_open_fails_init() {
    for (_, profiler) in imported() {
        let _alone = alone();
        for (ranks, kind) in [(500, ErrorKind::System), (501, ErrorKind::Internal)] {
            let error = profiler.open(&config(ranks, 5, Log::silent())).err().unwrap();
            assert_eq!(error.kind, kind);
        }
        assert_eq!(seen(), [""; 0]);
    }
}

#[test]
fn what_nccl_leaves_out_is_added_and_the_unknown_ignored() {
    let _alone = alone();
    let table = table();
    // SAFETY: the table has version 6, and every pointer is NULL or lives here.
    unsafe {
        assert_eq!(CStr::from_ptr(table.name), c"hawser-compat");
        let (mut context, mut mask) = (ptr::null_mut(), 0);
        assert_eq!((table.init)(&mut context, 1, &mut mask, ptr::null(), 1, 8, 7, ptr::null()), 0);
        assert_eq!((seen(), mask), (vec!["open 1 None 1 8 7".into()], 0xffff));

        let mut handle = ptr::without_provenance_mut(1);
        for kind in [1, 32, 64, 8192] {
            let mut descr = [0; 14];
            descr[0] = kind;
            assert_eq!((table.start)(context, &mut handle, &mut descr), 0);
            assert!(!handle.is_null());
            let rank = if kind == 8192 { 0 } else { 7 };
            assert!(seen()[0].contains(&format!("rank: {rank},")), "kind {kind}");
        }
        // NULL names, a kind of the future, two kinds at once.
        let mut coll = [0; 14];
        coll[0] = 2;
        assert_eq!((table.start)(context, &mut handle, &mut coll), 0);
        assert!(seen()[0].contains("func: \"\""));
        for kind in [1 << 15, 1 << 63, 3, 0] {
            let mut descr = [u64::MAX; 14];
            (descr[0], handle) = (kind, ptr::without_provenance_mut(1));
            assert_eq!((table.start)(context, &mut handle, &mut descr), 0);
            assert!(handle.is_null());
        }
        // The group API's states come without arguments.
        let mut descr = [0; 14];
        descr[0] = EventMask::GROUP_API.0;
        assert_eq!((table.start)(context, &mut handle, &mut descr), 0);
        seen();
        assert_eq!((table.record)(handle, 23, ptr::null_mut()), 0);
        assert_eq!((table.record)(handle, 22, ptr::null_mut()), 0);
        assert_eq!(seen(), ["record 5 23 None", "record 5 22 None"]);
        assert_eq!((table.finalize)(context), 0);
        // After the end, and for what never was.
        assert_eq!((table.stop)(handle), 0);
        assert_eq!((table.record)(ptr::null_mut(), 9, ptr::null_mut()), 0);
        assert_eq!((table.start)(context, &mut handle, &mut descr), 0);
        assert!(handle.is_null());
        assert_eq!((table.finalize)(context), 0);
        assert_eq!((table.finalize)(ptr::null_mut()), 0);
        assert_eq!(seen(), ["close 7"]);
    }
}

#[test]
fn what_a_host_must_not_pass_is_refused() {
    let _alone = alone();
    let table = table();
    // SAFETY: the table has version 6, and every pointer is NULL or lives here.
    unsafe {
        let mut mask = 0;
        assert_eq!((table.init)(ptr::null_mut(), 1, &mut mask, ptr::null(), 1, 8, 7, ptr::null()), 4);
        let mut context = ptr::null_mut();
        assert_eq!((table.init)(&mut context, 1, ptr::null_mut(), ptr::null(), -1, -1, -1, ptr::null()), 0);
        assert_eq!(seen(), ["open 1 None 0 0 0"]);
        let mut handle = ptr::null_mut();
        assert_eq!((table.start)(context, &mut handle, ptr::null_mut()), 4);
        assert_eq!((table.start)(context, ptr::null_mut(), &mut [0; 14]), 4);
        assert_eq!((table.finalize)(context), 0);
    }
}
