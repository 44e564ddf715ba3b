//! The profiler, called as a host calls it, and the trace that it writes.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hawser_plugin::profiler::{
    Event, EventHandle, EventMask, EventState, ProfilerConfig, ProfilerContext, StateArgs, What,
};
use hawser_plugin::{Level, Log, Profiler, Subsys};
use hawser_profiler::{Settings, TraceProfiler};
use serde_json::{Value, json};

type Lines = Arc<Mutex<Vec<(Level, String)>>>;

fn listening() -> (Log, Lines) {
    let lines = Lines::default();
    let keep = lines.clone();
    let sink = move |level, subsys: Subsys, line: &str| {
        assert!(level == Level::Warn || subsys == Subsys::PROFILE);
        keep.lock().unwrap().push((level, line.to_owned()));
    };
    (Log::new(sink), lines)
}

fn profiler(file: &Path, mask: u64) -> TraceProfiler {
    TraceProfiler::new(Settings {
        mask: EventMask(mask),
        file: Some(file.to_str().unwrap().to_owned()),
        ..Settings::default()
    })
}

fn open(profiler: &TraceProfiler, rank: u32) -> (Box<dyn ProfilerContext>, Lines) {
    let (log, lines) = listening();
    let mut config = ProfilerConfig::new(0xabc, 4, rank, log);
    config.comm_name = Some("tensor \"parallel\"".into());
    (profiler.open(&config).unwrap(), lines)
}

fn coll(channels: u8) -> What<'static> {
    What::Coll {
        seq: 3,
        func: "AllReduce",
        send: 0x1000,
        recv: 0x2000,
        count: 1 << 20,
        root: 0,
        datatype: "ncclFloat32",
        channels,
        warps: 16,
        algo: "RING",
        proto: "SIMPLE",
        group: None,
    }
}

fn start(context: &dyn ProfilerContext, parent: Option<EventHandle>, what: What<'_>) -> EventHandle {
    context.start(&Event { parent, rank: 0, what, tag: 0 }).unwrap()
}

fn trace(file: &Path) -> Vec<Value> {
    serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
}

/// The lines with a member of this value.
fn with<'a>(trace: &'a [Value], member: &str, value: &str) -> Vec<&'a Value> {
    trace.iter().filter(|line| line[member] == json!(value)).collect()
}

#[test]
fn a_collective_spans_its_children() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace-%r.json");
    let (context, lines) = open(&profiler(&file, 0x7fff), 2);
    assert_eq!(context.mask(), EventMask(0x7fff));
    let (pid, stream) = (std::process::id() as i32, 0x57);
    let context_of = &*context;
    let api = What::CollApi {
        func: "AllReduce",
        count: 1 << 20,
        datatype: "ncclFloat32",
        root: 0,
        stream,
        captured: false,
    };
    let call = start(context_of, None, api);
    let tagged = Event { parent: Some(call), rank: 0, what: coll(1), tag: 77 };
    let task = context_of.start(&tagged).unwrap();
    context.stop(task);
    context.stop(call);
    let send = What::ProxyOp { pid, channel: 0, peer: 3, steps: 4, chunk_bytes: 65536, is_send: true };
    let op = start(context_of, Some(task), send);
    let step = start(context_of, Some(op), What::ProxyStep { step: 1 });
    context.record(step, EventState::SEND_WAIT, StateArgs::Bytes(65536));
    context.stop(step);
    let kernel = start(context_of, Some(task), What::KernelCh { channel: 0, timer: 1000 });
    context.record(kernel, EventState::KERNEL_CH_STOP, StateArgs::Timer(5000));
    context.stop(kernel);
    context.stop(op);
    drop(context);

    let trace = trace(&folder.path().join("trace-2.json"));
    let time = |line: &Value| line["ts"].as_f64().unwrap();
    let task_ends = time(with(&with_owned(&trace, "cat", "coll"), "ph", "e")[0]);
    let op_ends = time(with(&with_owned(&trace, "cat", "proxy_op"), "ph", "e")[0]);
    let call = with(&trace, "cat", "coll_api")[0];
    assert_eq!(task_ends, op_ends, "the last child's end");
    assert!(time(call) + call["dur"].as_f64().unwrap() <= task_ends);

    let begin = |category: &str| with(&with_owned(&trace, "cat", category), "ph", "b")[0]["args"].clone();
    let (task, op, step, kernel) =
        (begin("coll"), begin("proxy_op"), begin("proxy_step"), begin("kernel_ch"));
    assert_eq!(task["parent"], call["args"]["event"]);
    assert_eq!((&task["tag"], call["args"].get("tag")), (&json!(77), None));
    assert_eq!((&op["parent"], &kernel["parent"]), (&task["event"], &task["event"]));
    assert_eq!((&step["parent"], &step["bytes"]), (&op["event"], &json!(65536)));
    assert_eq!(step["states_us"][0][0], json!("send_wait"));
    assert_eq!((&kernel["gpu_start_ns"], &kernel["gpu_stop_ns"]), (&json!(1000), &json!(5000)));
    assert_eq!((&task["algo"], &task["count"]), (&json!("RING"), &json!(1 << 20)));

    let title = with(&trace, "name", "process_name")[0]["args"]["name"].as_str().unwrap();
    assert!(title.starts_with("rank 2 of 4, communicator \"tensor \\\"parallel\\\"\" 0xabc, "), "{title}");
    let lines = lines.lock().unwrap();
    let summary = "1 coll, 1 proxy_op, 1 proxy_step, 1 kernel_ch, 1 coll_api; AllReduce 1 (4.2 MB)";
    assert!(lines.len() == 1 && lines[0].0 == Level::Info && lines[0].1.ends_with(summary), "{lines:?}");
}

#[test]
fn the_parts_of_a_copy_engine_collective_are_in_its_trace() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace-%r.json");
    let (context, _) = open(&profiler(&file, 0x7fff), 2);
    let (func, datatype) = ("AllGather", "ncclFloat32");
    let (seq, send, recv, count, root, stream) = (4, 0x10, 0x20, 1 << 20, 0, 0x57);
    let what = What::CeColl { seq, func, send, recv, count, root, datatype, stream };
    let coll = start(&*context, None, what);
    let parts = [
        What::CeSync { complete: false, ranks: 4 },
        What::CeBatch { ops: 3, bytes: 12 << 20, intra_sync: true },
        What::CeSync { complete: true, ranks: 4 },
    ];
    for part in parts {
        let part = start(&*context, Some(coll), part);
        context.stop(part);
    }
    context.stop(coll);
    drop(context);
    let trace = trace(&folder.path().join("trace-2.json"));
    let begin = |category: &str| with_owned(&with_owned(&trace, "cat", category), "ph", "b");
    let coll = begin("ce_coll").remove(0);
    assert_eq!((&coll["name"], &coll["args"]["bytes"]), (&json!("AllGather"), &json!(4 << 20)));
    let (batch, syncs) = (begin("ce_batch").remove(0), begin("ce_sync"));
    assert_eq!((&batch["args"]["ops"], &batch["args"]["bytes"]), (&json!(3), &json!(12 << 20)));
    let complete: Vec<&Value> = syncs.iter().map(|sync| &sync["args"]["complete"]).collect();
    assert_eq!(complete, [&json!(false), &json!(true)]);
    for part in syncs.iter().chain([&batch]) {
        assert_eq!(part["args"]["parent"], coll["args"]["event"]);
    }
}

fn with_owned(trace: &[Value], member: &str, value: &str) -> Vec<Value> {
    with(trace, member, value).into_iter().cloned().collect()
}

#[test]
fn the_trace_is_valid_while_the_process_runs() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.json");
    let (context, _lines) = open(&profiler(&file, EventMask::GROUP.0), 0);
    let group = start(&*context, None, What::Group);
    context.stop(group);
    let deadline = Instant::now() + Duration::from_secs(30);
    while with(&trace(&file), "cat", "group").len() < 2 {
        assert!(Instant::now() < deadline, "nothing is written");
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(context);
}

#[test]
fn communicators_share_a_file_and_later_ones_continue_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.json");
    let profiler = profiler(&file, EventMask::GROUP.0);
    let contexts = [0, 1].map(|rank| open(&profiler, rank).0);
    let handles = contexts.each_ref().map(|context| start(&**context, None, What::Group));
    assert_ne!(handles[0], handles[1]);
    std::thread::scope(|scope| {
        for context in &contexts {
            scope.spawn(|| {
                for _ in 0..100 {
                    context.stop(start(&**context, None, What::Group));
                }
            });
        }
    });
    drop(contexts);
    assert_eq!(with(&trace(&file), "name", "process_name").len(), 2);
    let (context, _) = open(&profiler, 2);
    context.stop(start(&*context, None, What::Group));
    drop(context);
    let trace = trace(&file);
    let mut processes: Vec<u64> =
        with(&trace, "name", "process_name").iter().map(|line| line["pid"].as_u64().unwrap()).collect();
    processes.dedup();
    assert_eq!(processes.len(), 3);
    let groups = with_owned(&trace, "cat", "group");
    assert_eq!(with(&groups, "ph", "b").len(), 2 * 101 + 1);
    let unfinished = groups.iter().filter(|line| line["args"]["unfinished"] == json!(true));
    assert_eq!(unfinished.count(), 2, "the groups that nobody stopped");
}

#[test]
fn without_a_file_events_are_counted() {
    let profiler = TraceProfiler::new(Settings { mask: EventMask::COLL, file: None, ..Settings::default() });
    let (context, lines) = open(&profiler, 0);
    for _ in 0..3 {
        assert_eq!(context.start(&Event { parent: None, rank: 0, what: coll(1), tag: 0 }), None);
    }
    context.stop(EventHandle(1));
    drop(context);
    let lines = lines.lock().unwrap();
    assert!(lines[0].1.ends_with(": 3 coll; AllReduce 3 (12.6 MB)"), "{lines:?}");
}

#[test]
fn who_wants_nothing_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.json");
    let (context, lines) = open(&profiler(&file, 0), 0);
    assert_eq!(context.mask(), EventMask::NONE);
    drop(context);
    assert!(!file.exists());
    assert!(lines.lock().unwrap()[0].1.ends_with(": no events"));
}

#[test]
fn too_many_open_events_are_dropped_and_said() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.json");
    let (context, lines) = open(&profiler(&file, 0x7fff), 0);
    let group = || context.start(&Event { parent: None, rank: 0, what: What::Group, tag: 0 });
    let kept = (0..20_000).filter(|_| group().is_some()).count();
    assert_eq!(kept, 1 << 14);
    drop(context);
    let dropped = 20_000 - kept;
    let text = format!("; {dropped} events are not in the trace");
    assert!(lines.lock().unwrap()[0].1.contains(&text), "{lines:?}");
    let trace = trace(&file);
    let labels = &with(&trace, "name", "process_labels")[0]["args"]["labels"];
    assert_eq!(labels, &json!(format!("{dropped} events are missing")));
    assert_eq!(with(&trace, "ph", "b").len(), kept);
}

#[test]
fn a_trace_that_cannot_be_written_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("none").join("trace.json");
    let (log, _) = listening();
    let error = profiler(&file, 1).open(&ProfilerConfig::new(1, 1, 0, log)).err().unwrap();
    assert!(error.text.contains("none/trace.json") && error.text.contains("No such file"), "{error}");
}

/// The file has all that viewers need: threads have names, communicators stand in the order of ranks, calls
/// have bytes.
#[test]
fn threads_have_names_and_calls_have_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.json");
    let (context, _lines) = open(&profiler(&file, 0x7fff), 3);
    let run = || {
        let event = start(&*context, None, coll(0));
        context.stop(event);
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("worker".into()).spawn_scoped(scope, || {
            run();
            run();
        });
        thread.unwrap().join().unwrap();
        run();
    });
    drop(context);
    let trace = trace(&file);
    assert_eq!(with(&trace, "name", "process_sort_index")[0]["args"]["sort_index"], json!(3));
    let names = with(&trace, "name", "thread_name");
    assert_eq!(names.len(), 2, "each thread has one: {names:?}");
    assert!(names[0]["args"]["name"].as_str().unwrap().starts_with("worker ("), "{names:?}");
    assert_eq!(with(&trace, "name", "thread_sort_index").len(), 2);
    let events = with(&trace, "ph", "b");
    assert!(events.iter().all(|event| event["args"]["bytes"] == json!(4 << 20)), "{events:?}");
    assert!(events.iter().all(|event| names.iter().any(|name| name["tid"] == event["tid"])), "{events:?}");
}
