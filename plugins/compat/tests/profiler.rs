//! C profilers of every ABI version behind our trait.

#[path = "cc/mod.rs"]
mod cc;

use std::sync::{Arc, Mutex};

use cc::CPlugin;
use hawser_compat::profiler::from_library;
use hawser_plugin::profiler::{
    Event, EventHandle, EventMask, EventState, ProfilerConfig, ProfilerContext, StateArgs, What,
};
use hawser_plugin::{ErrorKind, Log, Profiler};

const INIT_FAILS: i32 = 1;
const START_FAILS: i32 = 2;
const NOT_WANTED: i32 = 3;
const NO_CONTEXT: i32 = 4;
const STOP_FAILS: i32 = 5;
const MASK_ONCE: i32 = 6;

/// The kinds of events that a version has.
const KINDS: [u64; 7] = [0x3f, 0x3f, 0xff, 0xff, 0xfff, 0x7fff, 0xffff];

/// The lines of all plugins: they go to the log that any test set last, so every log keeps its own lines and
/// these.
static ALL: Mutex<Vec<String>> = Mutex::new(Vec::new());

type Lines = Arc<Mutex<Vec<String>>>;

fn listening() -> (Log, Lines) {
    let lines = Lines::default();
    let keep = lines.clone();
    let sink = move |_, _, line: &str| {
        keep.lock().unwrap().push(line.to_owned());
        ALL.lock().unwrap().push(line.to_owned());
    };
    (Log::new(sink), lines)
}

fn config() -> ProfilerConfig {
    let mut config = ProfilerConfig::new(99, 16, 5, listening().0);
    (config.nodes, config.comm_name) = (2, Some("world".into()));
    config
}

fn load(plugin: &CPlugin) -> Arc<dyn Profiler> {
    from_library(&plugin.library).unwrap().unwrap().plugin
}

fn open(plugin: &CPlugin) -> Box<dyn ProfilerContext> {
    load(plugin).open(&config()).unwrap()
}

fn event(parent: u64, what: What<'_>) -> Event<'_> {
    Event { parent: Some(EventHandle(parent)).filter(|parent| parent.0 != 0), rank: 5, what, tag: 0x7a6 }
}

/// One event of every kind, in the order of their bits. Group 0xa0, calls 0xb0, tasks 0xc0 are their parents.
fn events() -> Vec<Event<'static>> {
    let (func, datatype, group) = ("AllReduce", "ncclFloat8e4m3", Some(EventHandle(0xa0)));
    let (send, recv, count, stream) = (0x1000, 0x2000, 5_000_000_000, 0x57);
    let (root, channels) = (3, 9);
    let (seq, algo, proto, warps) = (41, "NVLS_TREE", "SIMPLE", 16);
    vec![
        event(0, What::Group),
        event(
            0xb0,
            What::Coll { seq, func, send, recv, count, root, datatype, channels, warps, algo, proto, group },
        ),
        event(
            0xb0,
            What::P2p { func: "Recv", buff: 0x3000, datatype: "ncclUint8", count, peer: 7, channels, group },
        ),
        event(
            0xc0,
            What::ProxyOp { pid: 1234, channel: 8, peer: 6, steps: 4, chunk_bytes: 65536, is_send: true },
        ),
        event(0xd0, What::ProxyStep { step: 11 }),
        event(0, What::ProxyCtrl),
        event(0xc0, What::KernelCh { channel: 31, timer: 1 << 60 }),
        event(0xe0, What::NetPlugin { id: (2 << 16) + 1, data: 0x4000 }),
        event(0, What::GroupApi { depth: 2, captured: true }),
        event(0xa1, What::CollApi { func, count, datatype, root, stream, captured: true }),
        event(0xa1, What::P2pApi { func: "Send", count, datatype, stream, captured: false }),
        event(0xa1, What::KernelLaunch { stream }),
        event(0xb0, What::CeColl { seq, func, send, recv, count, root, datatype, stream }),
        event(0xf0, What::CeSync { complete: true, ranks: 16 }),
        event(0xf0, What::CeBatch { ops: 3, bytes: 6_000_000_000, intra_sync: true }),
        event(0xf1, What::KernelPhase { channel: 31, phase: 2, name: "final_sync", timer: 1 << 60 }),
    ]
}

/// The buffers and the size of the collective, in the plugin's words.
const SIZES: &str = "send=0x1000 recv=0x2000 count=5000000000 root=3 datatype=";

/// The same events in the plugin's words.
fn expected_events(version: usize) -> Vec<String> {
    let (coll, p2p) = expected_operations(version);
    let tag = if version >= 7 { " tag=1958" } else { "" };
    let coll = coll + if version >= 7 { " variant='' symmetric=0" } else { "" } + tag;
    let p2p = p2p + tag;
    let timer = if version >= 4 { " timer=1152921504606846976" } else { "" };
    let call = "count=5000000000 datatype=ncclFloat8e4m3";
    let all = [
        "type=1 parent=(nil) rank=5".to_owned(),
        coll,
        p2p,
        "type=8 parent=0xc0 rank=5 op pid=1234 channel=8 peer=6 steps=4 chunk=65536 send=1".into(),
        "type=16 parent=0xd0 rank=5 step 11".into(),
        "type=32 parent=(nil) rank=5".into(),
        format!("type=64 parent=0xc0 rank=5 kernel channel=31{timer}"),
        "type=128 parent=0xe0 rank=5 net id=131073 data=0x4000".into(),
        "type=256 parent=(nil) rank=5 group api captured=1 depth=2".into(),
        format!(
            "type=512 parent=0xa1 rank=5 coll api func=AllReduce {call} root=3 stream=0x57 captured=1{tag}"
        ),
        format!("type=1024 parent=0xa1 rank=5 p2p api func=Send {call} stream=0x57 captured=0{tag}"),
        "type=2048 parent=0xa1 rank=5 launch stream=0x57".into(),
        format!(
            "type=4096 parent=0xb0 rank=5 ce coll seq=41 func=AllReduce {SIZES}ncclFloat8e4m3 \
             stream=0x57 strategy='unicast' \
             intra=0 batch=0,0,0{tag}"
        ),
        "type=8192 parent=0xf0 rank=5 ce sync complete=1 ranks=16".into(),
        "type=16384 parent=0xf0 rank=5 ce batch ops=3 bytes=6000000000 intra=1".into(),
        format!("type=32768 parent=0xf1 rank=5 phase channel=31 2 final_sync{timer}"),
    ];
    let known = all.into_iter().enumerate().filter(|(bit, _)| KINDS[version - 1] & (1 << bit) != 0);
    known.enumerate().map(|(n, (_, line))| format!("start 0x101 {line} -> {:#x}", 0x12 + n)).collect()
}

/// The operations among them, a collective and a message, without what version 7 adds.
fn expected_operations(version: usize) -> (String, String) {
    let comm = "name=world hash=99 ";
    match version {
        1 => (
            format!(
                "type=2 parent=0xa0 rank=5 coll {comm}seq=41 func=4 {SIZES}10 channels=9 warps=16 algo=5 \
                 proto=2 op=0 \
                 collnet=0 nvls=1 traffic=0"
            ),
            format!(
                "type=4 parent=0xa0 rank=5 p2p {comm}func=7 buff=0x3000 datatype=1 count=5000000000 peer=7"
            ),
        ),
        _ => {
            let comm = if version <= 3 { comm } else { "" };
            let parent = if version <= 4 { "0xa0" } else { "0xb0" };
            let traffic = if version == 2 { " traffic=0" } else { "" };
            let channels = if version >= 4 { " channels=9" } else { "" };
            let group = if version >= 5 { " group=0xa0" } else { "" };
            (
                format!(
                    "type=2 parent={parent} rank=5 coll {comm}seq=41 func=AllReduce {SIZES}ncclFloat8e4m3 \
                     channels=9 \
                     warps=16 algo=NVLS_TREE proto=SIMPLE{traffic}{group}"
                ),
                format!(
                    "type=4 parent={parent} rank=5 p2p {comm}func=Recv buff=0x3000 datatype=ncclUint8 \
                     count=5000000000 peer=7{channels}{group}"
                ),
            )
        }
    }
}

#[test]
fn every_version_sees_every_field_of_the_events_it_knows() {
    for version in 1..=7 {
        let plugin = CPlugin::build("profiler", version, &[]);
        let found = from_library(&plugin.library).unwrap().unwrap();
        assert_eq!(found.symbol, format!("ncclProfiler_v{version}"));
        assert_eq!(found.plugin.name(), "recorder");
        let context = found.plugin.open(&config()).unwrap();
        let version = version as usize;
        assert_eq!(context.mask(), EventMask(KINDS[version - 1]), "v{version}");
        let handles: Vec<_> = events().iter().map(|event| context.start(event)).collect();
        for (bit, handle) in handles.iter().enumerate() {
            assert_eq!(handle.is_some(), KINDS[version - 1] & (1 << bit) != 0, "v{version} bit {bit}");
        }
        handles.iter().flatten().for_each(|handle| context.stop(*handle));
        drop(context);

        let init = match version {
            1..=3 => "init mask=0",
            _ => "init mask=0 id=99 name=world nodes=2 ranks=16 rank=5",
        };
        let mut expected = vec![init.to_owned()];
        expected.extend(expected_events(version));
        expected.extend(handles.iter().flatten().map(|handle| format!("stop {:#x}", handle.0)));
        expected.push("finalize 0x101".into());
        assert_eq!(plugin.recorded(), expected, "v{version}");
    }
}

#[test]
fn every_version_is_told_the_states_it_knows() {
    let known = [0..=18, 0..=18, 0..=18, 8..=22, 8..=24, 8..=30, 8..=31];
    for version in 1..=7 {
        let plugin = CPlugin::build("profiler", version, &[]);
        let context = open(&plugin);
        plugin.recorded();
        let args = |state| match state {
            13..=18 => StateArgs::Appended(state + 100),
            21 => StateArgs::Data(0x2100),
            22 | 31 => StateArgs::Timer(1 << 61),
            19 | 23.. => StateArgs::None,
            _ => StateArgs::Bytes(u64::from(state) + (1 << 40)),
        };
        (0..=40).for_each(|state| context.record(EventHandle(0x12), EventState(state), args(state)));
        let line = |state| match (args(state), version <= 3) {
            (StateArgs::Appended(number), _) => format!("state 0x12 {state} appended={number}"),
            (StateArgs::Bytes(bytes), true) => format!("state 0x12 {state} bytes={bytes} steps=0"),
            (StateArgs::Bytes(number) | StateArgs::Data(number) | StateArgs::Timer(number), _) => {
                format!("state 0x12 {state} args={number}")
            }
            _ => format!("state 0x12 {state} args=0"),
        };
        let expected: Vec<String> = known[version as usize - 1].clone().map(line).collect();
        assert_eq!(plugin.recorded(), expected, "v{version}");
    }
}

#[test]
fn a_task_without_a_group_keeps_its_parent() {
    for (version, parent) in [(1, "0xb0"), (4, "0xb0"), (5, "0xb0")] {
        let plugin = CPlugin::build("profiler", version, &[]);
        let mut all = events();
        for at in [1, 2] {
            let (What::Coll { group, .. } | What::P2p { group, .. }) = &mut all[at].what else { panic!() };
            *group = None;
            open(&plugin).start(&all[at]).unwrap();
        }
        let lines = plugin.recorded();
        let starts = lines.iter().filter(|line| line.contains(&format!("parent={parent} ")));
        assert_eq!(starts.count(), 2, "{lines:?}");
    }
}

#[test]
fn strings_outlive_the_call_and_numbers_stay_in_range() {
    let plugin = CPlugin::build("profiler", 1, &[]);
    let context = open(&plugin);
    let mut all = events();
    if let What::Coll { func, datatype, algo, proto, root, count, .. } = &mut all[1].what {
        (*func, *datatype, *algo, *proto) = ("Dance", "ncclFloat4", "one_shot", "LL256");
        (*root, *count) = (u32::MAX, u64::MAX);
    }
    context.start(&all[1]).unwrap();
    let line = plugin.recorded().pop().unwrap();
    let names = "func=255 send=0x1000 recv=0x2000 count=18446744073709551615 root=2147483647 datatype=255";
    assert!(line.contains(names) && line.contains("algo=255 proto=255 op=0 collnet=0 nvls=0"), "{line}");
}

#[test]
fn the_mask_is_read_whenever_it_is_asked_for() {
    for version in 1..=7 {
        let plugin = CPlugin::build("profiler", version, &[]);
        plugin.set("wanted", 0);
        let context = open(&plugin);
        assert_eq!(context.mask(), EventMask::NONE);
        let change = plugin.library.data("change_mask").unwrap();
        // SAFETY: the function of the plugin with this name has this type.
        let change: extern "C" fn(i32) = unsafe { std::mem::transmute(change) };
        for (mask, seen) in [(2, 2), (-1, KINDS[version as usize - 1]), (1 << 20, 0), (0x1002, 0x1002)] {
            change(mask);
            assert_eq!(context.mask(), EventMask(seen & KINDS[version as usize - 1]), "v{version}");
        }
    }
}

#[test]
fn a_plugin_that_writes_its_mask_once_is_heard_by_all_communicators() {
    let plugin = CPlugin::build("profiler", 5, &[]);
    plugin.set("fault", MASK_ONCE);
    plugin.set("wanted", 6);
    let profiler = load(&plugin);
    let contexts = [(); 2].map(|()| profiler.open(&config()).unwrap());
    assert_eq!(contexts.each_ref().map(|context| context.mask().0), [6, 6]);
}

#[test]
fn small_handles_are_handles_and_null_is_none() {
    let plugin = CPlugin::build("profiler", 4, &[]);
    let context = open(&plugin);
    assert_eq!(context.start(&events()[0]), Some(EventHandle(0x12)));
    assert_eq!(context.start(&events()[0]), Some(EventHandle(0x13)));
    plugin.set("fault", NOT_WANTED);
    assert_eq!(context.start(&events()[0]), None);
}

#[test]
fn a_failing_call_is_said_once_and_hurts_nobody() {
    for (fault, call) in [(START_FAILS, "startEvent"), (STOP_FAILS, "stopEvent")] {
        let plugin = CPlugin::build("profiler", 6, &[]);
        plugin.set("fault", fault);
        let (log, lines) = listening();
        let context = load(&plugin).open(&ProfilerConfig::new(1, 1, 0, log)).unwrap();
        for _ in 0..3 {
            let handle = context.start(&events()[1]);
            assert_eq!(handle.is_none(), fault == START_FAILS, "the handle of a failed start is none");
            context.stop(EventHandle(0x12));
        }
        let text = format!("{call} of profiler recorder failed with 3");
        let said = lines.lock().unwrap().iter().filter(|line| line.contains(&text)).count();
        assert_eq!(said, 1, "{lines:?}");
    }
}

#[test]
fn a_failing_init_is_an_error_with_its_number() {
    for version in 1..=7 {
        let plugin = CPlugin::build("profiler", version, &[]);
        plugin.set("fault", INIT_FAILS);
        let error = load(&plugin).open(&config()).err().unwrap();
        assert_eq!(error.kind, ErrorKind::Internal);
        assert!(error.text.contains("init of profiler recorder failed with 8"), "{error}");
        let lines = plugin.recorded();
        assert!(lines.len() == 1 && lines[0].starts_with("init"), "no finalize: {lines:?}");
    }
}

#[test]
fn without_a_context_there_is_nothing_to_finalize() {
    let plugin = CPlugin::build("profiler", 4, &[]);
    plugin.set("fault", NO_CONTEXT);
    let context = open(&plugin);
    context.start(&events()[0]).unwrap();
    drop(context);
    let lines = plugin.recorded();
    assert!(lines[1].starts_with("start (nil) type=1") && lines.len() == 2, "{lines:?}");
}

#[test]
fn an_incomplete_table_is_refused_by_the_missing_name() {
    let holes = [
        ("NO_INIT", "init"),
        ("NO_START", "startEvent"),
        ("NO_STOP", "stopEvent"),
        ("NO_RECORD", "recordEventState"),
        ("NO_FINALIZE", "finalize"),
    ];
    for version in [1, 6, 7] {
        for (hole, name) in holes {
            let plugin = CPlugin::build("profiler", version, &[hole]);
            let error = from_library(&plugin.library).unwrap().err().unwrap();
            assert!(error.contains(&format!("its {name} is NULL")), "{error}");
            assert!(error.contains(&format!("ncclProfiler_v{version} of ")), "{error}");
        }
        let plugin = CPlugin::build("profiler", version, &["NO_NAME"]);
        assert_eq!(load(&plugin).name(), "unnamed");
    }
    let none = CPlugin::build("env", 1, &[]);
    assert!(from_library(&none.library).is_none());
}

#[test]
fn plugins_of_one_version_do_not_mix() {
    for version in 1..=7 {
        let plugins = [(); 2].map(|()| CPlugin::build("profiler", version, &[]));
        plugins[0].set("wanted", 1);
        plugins[1].set("wanted", 2);
        let contexts = plugins.each_ref().map(open);
        assert_eq!(contexts.each_ref().map(|context| context.mask().0), [1, 2], "v{version}");
        contexts[0].start(&events()[0]).unwrap();
        contexts[1].start(&events()[0]).unwrap();
        contexts[0].start(&events()[5]).unwrap();
        drop(contexts);
        let starts = plugins
            .each_ref()
            .map(|plugin| plugin.recorded().iter().filter(|line| line.starts_with("start")).count());
        assert_eq!(starts, [2, 1], "v{version}");
    }
}

#[test]
fn a_context_outlives_everything_it_was_made_from() {
    let plugin = CPlugin::build("profiler", 6, &[]);
    let mut config = config();
    config.rank = 4321;
    let context = load(&plugin).open(&config).unwrap();
    drop((plugin, config)); // the test's own reference to the library, the communicator's name
    assert_eq!(context.start(&events()[1]), Some(EventHandle(0x12)));
    let line = "profiler of version 6 for rank 4321";
    assert!(ALL.lock().unwrap().iter().any(|said| said == line), "{ALL:?}");
}
