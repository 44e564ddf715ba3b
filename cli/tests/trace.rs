//! `hawser trace merge` and `hawser trace view`, on traces that the profiler plugin has written.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use hawser_plugin::profiler::{Event, EventMask, ProfilerConfig, ProfilerContext, What};
use hawser_plugin::{Log, Profiler};
use hawser_profiler::{Settings, TraceProfiler};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

/// The time by which the second host's clock is ahead, in microseconds.
const AHEAD: f64 = 5_000_000.0;
/// Collectives of a job.
const COLLECTIVES: u64 = 10;

fn hawser(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hawser")).args(arguments).output().expect("the tool runs")
}

fn collective(seq: u64) -> What<'static> {
    What::Coll {
        seq,
        func: "AllReduce",
        send: 0x1000,
        recv: 0x2000,
        count: 1 << 10,
        root: 0,
        datatype: "ncclFloat32",
        channels: 0,
        warps: 16,
        algo: "RING",
        proto: "SIMPLE",
        group: None,
    }
}

/// The call of the user that makes a collective.
const CALL: What<'static> = What::CollApi {
    func: "AllReduce",
    count: 1 << 10,
    datatype: "ncclFloat32",
    root: 0,
    stream: 0,
    captured: false,
};

/// Two ranks that run collectives, each with a trace of its own, as if they were on two hosts.
fn job(folder: &Path) -> [PathBuf; 2] {
    let settings = Settings {
        mask: EventMask(EventMask::COLL.0 | EventMask::COLL_API.0),
        file: Some(folder.join("rank%r.json").to_str().unwrap().to_owned()),
        ..Settings::default()
    };
    let profiler = TraceProfiler::new(settings);
    let open = |rank| profiler.open(&ProfilerConfig::new(0xabc, 2, rank, Log::silent())).unwrap();
    let ranks: [Box<dyn ProfilerContext>; 2] = [open(0), open(1)];
    for seq in 0..COLLECTIVES {
        let start = |rank: &dyn ProfilerContext| {
            let begin = |parent, what| rank.start(&Event { parent, rank: 0, what, tag: 0 }).unwrap();
            let call = begin(None, CALL);
            let event = begin(Some(call), collective(seq));
            rank.stop(call);
            event
        };
        let events = ranks.each_ref().map(|rank| start(&**rank));
        std::thread::sleep(Duration::from_millis(1));
        ranks.iter().zip(events).for_each(|(rank, event)| rank.stop(event));
    }
    drop(ranks);
    let files = [folder.join("rank0.json"), folder.join("rank1.json")];
    move_to_another_host(&files[1]);
    files
}

/// Gives a trace another host with another clock, and the process the number that the other file's has.
fn move_to_another_host(path: &Path) {
    let mut events = events(path);
    for event in &mut events {
        if let Some(time) = event.get("ts").and_then(Value::as_f64) {
            event.insert("ts".into(), json!(time + AHEAD));
        }
        if event["name"] == json!("process_name") {
            event["args"]["boot"] = json!("another");
            event["args"]["host"] = json!("b");
        }
        event.insert("pid".into(), json!(4711));
    }
    std::fs::write(path, serde_json::to_string(&events).unwrap()).unwrap();
}

fn events(path: &Path) -> Vec<Map<String, Value>> {
    let text = std::fs::read_to_string(path).unwrap();
    match serde_json::from_str(&text).unwrap() {
        Value::Object(mut object) => serde_json::from_value(object["traceEvents"].take()).unwrap(),
        list => serde_json::from_value(list).unwrap(),
    }
}

/// Beginnings and ends of collectives by process of a trace, in order, in microseconds.
fn collectives(events: &[Map<String, Value>], process: &Value) -> Vec<(f64, f64)> {
    let of = |phase: &str| {
        let is_it = |event: &&Map<String, Value>| {
            event["pid"] == *process && event["ph"] == json!(phase) && event["cat"] == json!("coll")
        };
        events.iter().filter(is_it).map(|event| event["ts"].as_f64().unwrap()).collect::<Vec<_>>()
    };
    of("b").into_iter().zip(of("e")).collect()
}

/// Checks the slices of a trace as Perfetto's importer does: what begins ends, later, and slices of a thread
/// nest. Returns how many there are of each category.
fn slices(events: &[Map<String, Value>]) -> BTreeMap<String, usize> {
    let text = |event: &Map<String, Value>, name: &str| event[name].as_str().unwrap().to_owned();
    let number = |event: &Map<String, Value>, name: &str| event[name].as_i64().unwrap();
    let time =
        |event: &Map<String, Value>, name: &str| (event[name].as_f64().unwrap() * 1000.0).round() as i64;
    let (mut counts, mut open, mut threads) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    for event in events.iter().filter(|event| event["ph"] != json!("M")) {
        let category = text(event, "cat");
        match event["ph"].as_str().unwrap() {
            "X" => {
                let (start, thread) = (time(event, "ts"), (number(event, "pid"), number(event, "tid")));
                let of_thread: &mut Vec<(i64, i64)> = threads.entry(thread).or_default();
                of_thread.push((start, start + time(event, "dur")));
                *counts.entry(category).or_default() += 1;
            }
            "b" => {
                let id = text(event["id2"].as_object().unwrap(), "local");
                assert_eq!(open.insert((number(event, "pid"), category, id), time(event, "ts")), None);
            }
            "e" => {
                let id = text(event["id2"].as_object().unwrap(), "local");
                let start = open.remove(&(number(event, "pid"), category.clone(), id));
                assert!(start.is_some_and(|start| start <= time(event, "ts")), "{event:?}");
                *counts.entry(category).or_default() += 1;
            }
            other => panic!("no {other:?} is written"),
        }
    }
    assert!(open.is_empty(), "never ended: {open:?}");
    for mut slices in threads.into_values() {
        // Those that begin together: the longer one is around the other.
        slices.sort_by_key(|(start, end)| (*start, -end));
        let mut around: Vec<i64> = Vec::new();
        for (start, end) in slices {
            while around.last().is_some_and(|until| *until <= start) {
                around.pop();
            }
            assert!(around.last().is_none_or(|until| end <= *until), "slices overlap at {start}");
            around.push(end);
        }
    }
    counts
}

fn merge(folder: &TempDir, files: &[PathBuf]) -> (Vec<Map<String, Value>>, String) {
    let out = folder.path().join("merged.json");
    let mut arguments = vec!["trace", "merge"];
    arguments.extend(files.iter().map(|file| file.to_str().unwrap()));
    arguments.extend(["-o", out.to_str().unwrap()]);
    let output = hawser(&arguments);
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}{errors}");
    (events(&out), text.into_owned())
}

fn processes(events: &[Map<String, Value>]) -> Vec<Value> {
    let ranks = events.iter().filter(|event| event["name"] == json!("process_name"));
    ranks.map(|event| event["pid"].clone()).collect()
}

#[test]
fn clocks_of_two_hosts_are_laid_on_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let files = job(folder.path());
    let (merged, text) = merge(&folder, &files);
    let all = files.iter().map(|file| events(file).len()).sum::<usize>();
    assert_eq!(merged.len(), all, "no event is lost");
    let each = 2 * COLLECTIVES as usize;
    assert_eq!(slices(&merged), BTreeMap::from([("coll".into(), each), ("coll_api".into(), each)]));
    assert!(text.contains(&format!("the ends of {COLLECTIVES} collectives in common")), "{text}");
    let ranks = processes(&merged);
    let [a, b] = [0, 1].map(|rank: usize| collectives(&merged, &ranks[rank]));
    assert_eq!((a.len(), b.len()), (COLLECTIVES as usize, COLLECTIVES as usize));
    for (a, b) in a.iter().zip(&b) {
        assert!(a.1 >= b.0 && b.1 >= a.0, "nobody ends before all have begun: {a:?} {b:?}");
    }
    // Viewers put the ranks in their order.
    let order = |process: &Value| {
        let is_it = |event: &&Map<String, Value>| {
            event["name"] == json!("process_sort_index") && event["pid"] == *process
        };
        merged.iter().find(is_it).unwrap()["args"]["sort_index"].as_u64().unwrap()
    };
    assert!(order(&ranks[0]) < order(&ranks[1]));
    // A merged trace is one like any other.
    let merged = folder.path().join("merged.json");
    let again = folder.path().join("again.json");
    let output = hawser(&["trace", "merge", merged.to_str().unwrap(), "-o", again.to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(events(&again).len(), all);
}

#[test]
fn wall_clocks_count_where_no_collective_is_in_common() {
    let folder = tempfile::tempdir().unwrap();
    let files = job(folder.path());
    let mut other = events(&files[1]);
    other.retain(|event| event.get("cat").is_none());
    for event in other.iter_mut().filter(|event| event["name"] == json!("process_name")) {
        // The other clock has begun two seconds later.
        let monotonic = event["args"]["monotonic_ns"].as_u64().unwrap();
        event["args"]["monotonic_ns"] = json!(monotonic - 2_000_000_000);
    }
    other.push(
        json!({ "ph": "i", "pid": 4711, "tid": 1, "ts": 7.0, "name": "x" }).as_object().unwrap().clone(),
    );
    std::fs::write(&files[1], serde_json::to_string(&other).unwrap()).unwrap();
    let (merged, text) = merge(&folder, &files);
    assert!(text.contains("by wall clocks"), "{text}");
    let moved = merged.iter().find(|event| event["name"] == json!("x")).unwrap()["ts"].as_f64().unwrap();
    assert!((moved - 2_000_007.0).abs() < 500_000.0, "{moved}");
}

#[test]
fn numbers_that_two_files_have_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let name = |name: &str| folder.path().join(name);
    let event = r#"[{"ph":"s","pid":7,"tid":1,"ts":1,"id":3,"name":"flow"}]"#;
    std::fs::write(name("a"), event).unwrap();
    std::fs::write(name("b"), event).unwrap();
    std::fs::write(name("c"), r#"[{"ph":"i","pid":7,"ts":1},{"ph":"#).unwrap();
    let (merged, text) = merge(&folder, &[name("a"), name("b"), name("c"), name("a")]);
    assert!(text.contains("c breaks off") && text.contains("3 events of 3 files"), "{text}");
    assert!(text.contains("neither collectives in common nor a wall clock are known"), "{text}");
    let numbers: std::collections::BTreeSet<i64> =
        merged.iter().map(|event| event["pid"].as_i64().unwrap()).collect();
    assert_eq!(numbers.len(), 3, "{merged:?}");
    assert_ne!(merged[0]["id"], merged[1]["id"]);
}

#[test]
fn what_cannot_be_merged_is_said_and_nothing_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let name = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(name("good"), "[]").unwrap();
    std::fs::write(name("bad"), "nothing").unwrap();
    for (arguments, part) in [
        (vec![name("bad"), "-o".into(), name("out")], "bad is no trace in Chrome's format"),
        (vec![name("none"), "-o".into(), name("out")], "No such file"),
        (vec![name("good"), "-o".into(), name("good")], "give -o another name"),
        (vec![name("good"), "-o".into(), name("x/out")], "there is no folder"),
    ] {
        let mut all = vec!["trace", "merge"];
        all.extend(arguments.iter().map(String::as_str));
        let output = hawser(&all);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && errors.contains(part), "{errors}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "nothing is left behind");
}

#[test]
fn a_page_holds_the_timelines_of_all_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let files = job(folder.path());
    let page = folder.path().join("page.html");
    let view = |most: &str| {
        let [a, b] = files.each_ref().map(|file| file.to_str().unwrap());
        let output = hawser(&["trace", "view", a, b, "-o", page.to_str().unwrap(), "--most", most]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        let text = std::fs::read_to_string(&page).unwrap();
        let data = text.split("id=\"data\">").nth(1).unwrap().split("</script>").next().unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        (text, data, String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (text, data, said) = view("1000");
    assert!(!text.contains("src=") && !text.contains("href="), "nothing is fetched");
    assert!(said.contains("20 operations of 2 ranks"), "{said}");
    let bars = data["bars"].as_array().unwrap();
    assert_eq!(bars.len(), 2 * COLLECTIVES as usize);
    let longest = bars.iter().map(|bar| bar[3].as_f64().unwrap()).fold(0.0, f64::max);
    assert!(
        bars.iter().all(|bar| bar[2].as_f64().unwrap() <= 10.0 * longest * COLLECTIVES as f64),
        "one clock"
    );
    let found = &data["findings"];
    assert_eq!(found["ranks"][0]["of"], json!(COLLECTIVES));
    assert_eq!(
        (&found["kinds"][0]["name"], &found["kinds"][0]["count"]),
        (&json!("AllReduce"), &json!(COLLECTIVES))
    );
    assert_eq!(data["ranks"][1]["host"], json!("b"));
    let (_, data, said) = view("10");
    assert_eq!(data["bars"].as_array().unwrap().len(), 10);
    assert!(said.contains("10 earlier ones are left out"), "{said}");
    // What is no trace of ours has no timelines.
    let foreign = folder.path().join("foreign.json");
    std::fs::write(&foreign, "[]").unwrap();
    let output = hawser(&["trace", "view", foreign.to_str().unwrap(), "-o", page.to_str().unwrap()]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && errors.contains("name no ranks"), "{errors}");
}
