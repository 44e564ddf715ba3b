//! Figures for Prometheus, as node_exporter and Prometheus read them.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hawser_plugin::profiler::{Event, EventMask, ProfilerConfig, ProfilerContext, What};
use hawser_plugin::{Log, Profiler};
use hawser_profiler::{Listen, Settings, TraceProfiler};

const OPERATIONS: u64 = 5;

fn settings() -> Settings {
    Settings {
        mask: EventMask::COLL,
        file: None,
        metrics_interval: Duration::from_millis(20),
        ..Settings::default()
    }
}

fn open(profiler: &TraceProfiler, rank: u32, log: Log) -> Box<dyn ProfilerContext> {
    let mut config = ProfilerConfig::new(0xabc, 4, rank, log);
    config.comm_name = Some("a \"name\"".into());
    profiler.open(&config).unwrap()
}

fn listening() -> (Log, Arc<Mutex<Vec<String>>>) {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let keep = lines.clone();
    (Log::new(move |_, _, line: &str| keep.lock().unwrap().push(line.to_owned())), lines)
}

fn run(context: &dyn ProfilerContext) {
    for seq in 0..OPERATIONS {
        let what = What::Coll {
            seq,
            func: "AllReduce",
            send: 0,
            recv: 0,
            count: 1 << 18,
            root: 0,
            datatype: "ncclFloat32",
            channels: 0,
            warps: 16,
            algo: "RING",
            proto: "LL",
            group: None,
        };
        context.stop(context.start(&Event { parent: None, rank: 0, what, tag: 0 }).unwrap());
    }
}

/// Checks a text as Prometheus's parser would, and returns the sum of the samples of a name.
fn samples(text: &str, name: &str) -> f64 {
    let mut typed = std::collections::BTreeSet::new();
    let mut seen = std::collections::BTreeSet::new();
    let mut sum = 0.0;
    assert!(text.ends_with('\n'));
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# ") {
            let mut words = rest.splitn(3, ' ');
            let (kind, family) = (words.next().unwrap(), words.next().unwrap());
            assert!(words.next().is_some_and(|rest| !rest.is_empty()), "{line}");
            if kind == "TYPE" {
                assert!(typed.insert(family.to_owned()), "{line} comes twice");
            }
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap();
        assert!(seen.insert(series.to_owned()), "{series} comes twice");
        let value: f64 = value.parse().unwrap();
        let (found, labels) = series.split_once('{').unwrap();
        assert!(
            labels.ends_with('}') && labels.contains("rank=\"2\"") && labels.contains("process="),
            "{line}"
        );
        let family = ["_bucket", "_sum", "_count"].iter().find_map(|end| found.strip_suffix(end));
        assert!(typed.contains(found) || family.is_some_and(|family| typed.contains(family)), "{line}");
        if found == name {
            sum += value;
        }
    }
    sum
}

fn wait_for(mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < deadline, "it does not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn count(path: &Path) -> f64 {
    samples(&std::fs::read_to_string(path).unwrap(), "hawser_operation_seconds_count")
}

#[test]
fn the_file_is_whole_at_every_time_and_counts_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let pattern = folder.path().join("hawser-%r.prom").to_str().unwrap().to_owned();
    let profiler = TraceProfiler::new(Settings { metrics_file: Some(pattern), ..settings() });
    let path = folder.path().join("hawser-2.prom");
    let context = open(&profiler, 2, Log::silent());
    assert_eq!(count(&path), 0.0, "it is there from the beginning");
    run(&*context);
    wait_for(|| count(&path) == OPERATIONS as f64);
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(samples(&text, "hawser_communicator_info"), 1.0);
    assert!(text.contains(r#"name="a \"name\"""#) && text.contains(r#"communicator="0xabc""#), "{text}");
    assert_eq!(samples(&text, "hawser_operation_bytes_total"), (OPERATIONS << 20) as f64);
    drop(context);
    assert_eq!(samples(&std::fs::read_to_string(&path).unwrap(), "hawser_communicator_info"), 0.0);
    // A later communicator of the process goes on, in the same file.
    let context = open(&profiler, 3, Log::silent());
    run(&*context);
    drop(context);
    assert_eq!(count(&path), 2.0 * OPERATIONS as f64);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
}

fn ask(mut stream: impl Read + Write) -> String {
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: text/plain\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK") && head.contains("version=0.0.4"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
    body.to_owned()
}

#[test]
fn prometheus_is_answered_on_loopback_also_beside_silent_clients() {
    let (log, lines) = listening();
    // Both processes would want the first port.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let last_port = address.port().saturating_add(200);
    let listen = Some(Listen::Tcp { address, last_port });
    let profiler = TraceProfiler::new(Settings { metrics_listen: listen, ..settings() });
    let context = open(&profiler, 2, log);
    run(&*context);
    let said = lines.lock().unwrap().join("\n");
    let place = said.split("http://").nth(1).unwrap_or_else(|| panic!("no address in {said}"));
    let place = place.split("/metrics").next().unwrap().to_owned();
    assert_ne!(place, address.to_string());
    let _silent = TcpStream::connect(&place).unwrap();
    let text = ask(TcpStream::connect(&place).unwrap());
    assert_eq!(samples(&text, "hawser_operation_seconds_count"), OPERATIONS as f64);
    drop(context);
    assert!(TcpStream::connect(&place).is_err(), "nobody listens any more");
}

#[test]
fn a_socket_of_the_file_system_is_for_this_user_and_goes() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("metrics");
    // One that a dead process has left.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let listen = Some(Listen::Unix(path.clone()));
    let profiler = TraceProfiler::new(Settings { metrics_listen: listen, ..settings() });
    let context = open(&profiler, 2, Log::silent());
    run(&*context);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let text = ask(UnixStream::connect(&path).unwrap());
    assert_eq!(samples(&text, "hawser_operation_seconds_count"), OPERATIONS as f64);
    drop(context);
    assert!(!path.exists());
}

#[test]
fn a_place_that_cannot_be_had_is_said_and_the_trace_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.json");
    let (log, lines) = listening();
    let profiler = TraceProfiler::new(Settings {
        file: Some(trace.to_str().unwrap().to_owned()),
        metrics_file: Some(folder.path().join("none/x.prom").to_str().unwrap().to_owned()),
        ..settings()
    });
    let context = open(&profiler, 2, log);
    run(&*context);
    drop(context);
    let said = lines.lock().unwrap().join("\n");
    assert!(said.contains("none/x.prom") && said.contains("there are no figures for Prometheus"), "{said}");
    assert!(std::fs::read_to_string(&trace).unwrap().contains("AllReduce"));
}
