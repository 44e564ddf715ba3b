//! A trace that reaches the limit of a file's size, in a process of its own: the limit is the whole
//! process's.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hawser_plugin::profiler::{Event, EventMask, ProfilerConfig, What};
use hawser_plugin::{Level, Log, Profiler};
use hawser_profiler::{Settings, TraceProfiler};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::Value;

/// The limit of a file's size, in bytes.
const LIMIT: u64 = 16 << 10;
/// The longest time that the profiler's thread may take for the first batch.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn a_trace_that_reaches_the_limit_of_a_files_size_stays_whole() {
    let before = getrlimit(Resource::Fsize);
    setrlimit(Resource::Fsize, Rlimit { current: Some(LIMIT), ..before }).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    let settings = Settings {
        mask: EventMask(0x7fff),
        file: Some(path.to_str().unwrap().to_owned()),
        ..Settings::default()
    };
    let warnings = Arc::new(Mutex::new(Vec::new()));
    let keep = warnings.clone();
    let log = Log::new(move |level, _, line: &str| {
        if level == Level::Warn {
            keep.lock().unwrap().push(line.to_owned());
        }
    });
    let profiler = TraceProfiler::new(settings);
    let context = profiler.open(&ProfilerConfig::new(0xabc, 4, 0, log)).unwrap();
    let record = |calls: u64| {
        for stream in 0..calls {
            let call = What::CollApi {
                func: "AllReduce",
                count: 1 << 20,
                datatype: "ncclFloat32",
                root: 0,
                stream,
                captured: false,
            };
            context.stop(context.start(&Event { parent: None, rank: 0, what: call, tag: 0 }).unwrap());
        }
    };
    // The first batch fits, and is in the file before the rest comes, which does not.
    record(20);
    let since = Instant::now();
    while std::fs::metadata(&path).map_or(0, |file| file.len()) < 200 && since.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(5));
    }
    record(2000);
    drop(context);
    setrlimit(Resource::Fsize, before).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<Value> = serde_json::from_str(&text).unwrap();
    assert!(lines.len() > 2 && text.len() as u64 <= LIMIT, "{} lines in {} bytes", lines.len(), text.len());
    let warnings = warnings.lock().unwrap();
    assert!(warnings.iter().any(|line| line.contains("its events are lost")), "{warnings:?}");
}
