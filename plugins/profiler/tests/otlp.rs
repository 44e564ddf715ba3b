//! Figures for OpenTelemetry, taken by a small collector: what arrives by HTTP is read as a collector would.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::mpsc;
use std::time::Duration;

use hawser_plugin::profiler::{Event, EventMask, ProfilerConfig, ProfilerContext, What};
use hawser_plugin::{Log, Profiler};
use hawser_profiler::{Settings, TraceProfiler};

/// Takes one request: its first line, headers and body.
fn take(listener: &TcpListener) -> (String, Vec<u8>) {
    let (mut stream, _) = listener.accept().expect("the exporter connects");
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let (mut bytes, mut part) = (Vec::new(), [0; 4096]);
    let end = loop {
        let read = stream.read(&mut part).unwrap();
        assert!(read > 0, "the request ends early");
        bytes.extend_from_slice(&part[..read]);
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
    };
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap().to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let length: usize = length.expect("a length").trim().parse().unwrap();
    let mut body = bytes.split_off(end);
    while body.len() < length {
        let read = stream.read(&mut part).unwrap();
        assert!(read > 0, "the body ends early");
        body.extend_from_slice(&part[..read]);
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").unwrap();
    (head, body)
}

/// One collective of 1 MiB.
fn run(context: &dyn ProfilerContext) {
    let what = What::Coll {
        seq: 0,
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
    context.stop(context.start(&Event { parent: None, rank: 2, what, tag: 0 }).unwrap());
}

fn contains(body: &[u8], text: &str) -> bool {
    body.windows(text.len()).any(|part| part == text.as_bytes())
}

#[test]
fn a_collector_gets_the_figures_when_a_communicator_is_closed() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/v1/metrics", listener.local_addr().unwrap());
    let (taken, requests) = mpsc::channel();
    std::thread::spawn(move || while taken.send(take(&listener)).is_ok() {});
    let profiler = TraceProfiler::new(Settings {
        mask: EventMask::COLL,
        file: None,
        metrics_otlp: Some(address),
        // None but the last push.
        metrics_interval: Duration::from_secs(3600),
        ..Settings::default()
    });
    let context = profiler.open(&ProfilerConfig::new(0xabc, 4, 2, Log::silent())).unwrap();
    run(&*context);
    drop(context);
    let (head, body) = requests.recv_timeout(Duration::from_secs(60)).expect("a request");
    assert!(head.starts_with("post /v1/metrics http/1.1"), "{head}");
    assert!(head.contains("content-type: application/x-protobuf"), "{head}");
    for text in ["hawser.operation.duration", "hawser.operation.busbw", "AllReduce", "4MiB", "hawser.rank"] {
        assert!(contains(&body, text), "no {text} in what came");
    }
}

#[test]
fn a_collector_that_is_not_there_is_no_reason_to_fail() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (lines, said) = mpsc::channel();
    let lines = std::sync::Mutex::new(lines);
    let log = Log::new(move |_, _, line: &str| {
        let _ = lines.lock().unwrap().send(line.to_owned());
    });
    let profiler = TraceProfiler::new(Settings {
        mask: EventMask::COLL,
        file: None,
        metrics_otlp: Some(format!("http://{free}/v1/metrics")),
        metrics_interval: Duration::from_secs(3600),
        ..Settings::default()
    });
    let context = profiler.open(&ProfilerConfig::new(0xabc, 4, 2, log)).unwrap();
    run(&*context);
    drop(context);
    let said: Vec<String> = said.try_iter().collect();
    assert!(said.iter().any(|line| line.contains("OpenTelemetry") && line.contains("failed")), "{said:?}");
}
