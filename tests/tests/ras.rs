//! Clients of RAS, as NCCL's `ncclras` and those of Ray and SGLang speak: jobs of several processes on one
//! port, whose ranks work, stop, die and leave.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use hawser_tests::deadline::LIMIT;
use hawser_tests::hangs::Hang;
use hawser_tests::world::on_host;
use serde_json::Value;

const BINARY: &str = env!("CARGO_BIN_EXE_hawser-test-rank");

/// An address that nobody listens at.
fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its address").to_string()
}

/// A job whose clients are answered at an address.
fn job(address: &str, hosts: usize, steps: &[&str]) -> Hang {
    Hang::start(BINARY, hosts, steps, &[("NCCL_RAS_ADDR", address)])
}

/// Connects as soon as somebody listens there.
fn connect(address: &str) -> TcpStream {
    let until = Instant::now() + LIMIT;
    loop {
        match TcpStream::connect(address) {
            Ok(stream) => {
                stream.set_read_timeout(Some(LIMIT)).expect("a deadline");
                return stream;
            }
            Err(error) if Instant::now() >= until => panic!("{address}: {error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Sends lines and reads what comes until the server closes the connection.
///
/// # Errors
/// The process that was connected to has ended meanwhile.
fn try_to_talk(address: &str, lines: &str) -> std::io::Result<String> {
    let mut stream = connect(address);
    stream.write_all(lines.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// The same, with a job that goes on.
fn talk(address: &str, lines: &str) -> String {
    try_to_talk(address, lines).expect("an answer")
}

/// The state of the job as JSON, as SGLang's reader asks for it; `None` if the process that was
/// asked has ended.
fn json(address: &str) -> Option<Value> {
    let answer = try_to_talk(address, "SET FORMAT json\nTIMEOUT 2\nSTATUS\n").ok()?;
    let json = answer.strip_prefix("OK\nOK\n").filter(|json| !json.is_empty())?;
    Some(serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {json}")))
}

/// Asks until the state is the one that is expected.
#[track_caller]
fn wait_until(address: &str, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
    let until = Instant::now() + LIMIT;
    loop {
        let state = json(address);
        if let Some(state) = state.as_ref().filter(|state| is_it(state)) {
            return state.clone();
        }
        assert!(Instant::now() < until, "not {what}: {state:#?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn world(state: &Value) -> &Value {
    &state["communicators"][0]
}

fn all_reduces(rank: &Value) -> u64 {
    rank["collective_counts"]["AllReduce"].as_u64().expect("a count")
}

#[test]
fn the_state_of_a_job() {
    if !on_host() {
        return;
    }
    let address = free_address();
    let steps = ["call=all_gather/100 all_reduce sleep", "call=all_gather/100 all_reduce sleep"];
    let mut job = job(&address, 2, &[steps[0], steps[1], steps[0]]);
    let has_called = |state: &Value| {
        let ranks = world(state)["ranks"].as_array().is_some_and(|ranks| ranks.len() == 3);
        ranks && (0..3).all(|rank| all_reduces(&world(state)["ranks"][rank]) == 1)
    };
    let state = wait_until(&address, "three ranks with one all-reduce", has_called);
    let comm = world(&state);
    assert_eq!((&comm["size"], &comm["missing_ranks_count"]), (&3.into(), &0.into()));
    for rank in 0..3 {
        let found = &comm["ranks"][rank];
        assert_eq!((&found["rank"], &found["pid"]), (&rank.into(), &job.rank(rank).id().into()));
        assert_eq!(found["collective_counts"]["AllGather"], 1);
        assert_eq!(found["status"]["init_state"], 0);
    }
    // As `ncclras` does. Another process may have an answer of a moment ago, which it gives for 0.1 s.
    std::thread::sleep(Duration::from_millis(200));
    let answer = talk(&address, "CLIENT PROTOCOL 2\nTIMEOUT 5\nVERBOSE STATUS\n");
    let parts = ["SERVER PROTOCOL 2\nOK\nNCCL version 2.", "Job summary", "RUNNING      OK\n"];
    for part in parts {
        assert!(answer.contains(part), "no {part:?} in:\n{answer}");
    }
    // As `echo status | nc` does, which closes its side at once.
    let mut stream = connect(&address);
    stream.write_all(b"status\n").expect("a question");
    stream.shutdown(std::net::Shutdown::Write).expect("the end of the question");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.contains("Job summary") && answer.ends_with("Warnings\n========\n\n"), "{answer}");
}

/// Sends a line and waits for the line that answers it, as NVIDIA's client does.
fn say(stream: &mut BufReader<TcpStream>, line: &str) -> String {
    stream.get_mut().write_all(line.as_bytes()).expect("a question");
    let mut answer = String::new();
    stream.read_line(&mut answer).expect("an answer");
    answer
}

/// The state of a rank, as Ray's reader makes one word of it.
fn in_rays_words(status: &Value) -> &'static str {
    let flag = |name: &str| status[name].as_bool().unwrap_or_else(|| panic!("no {name} in {status}"));
    match (flag("abort_flag"), flag("finalize_called") || flag("destroy_flag"), status["init_state"].as_i64())
    {
        (true, ..) => "ABORT",
        (false, true, _) => "FINALIZE",
        (false, false, Some(0)) => "RUNNING",
        _ => "INIT",
    }
}

#[test]
fn nvidias_client_and_rays_reader_find_all_that_they_look_for() {
    if !on_host() {
        return;
    }
    let address = free_address();
    let steps = ["call=all_gather/100 all_reduce sleep", "call=all_gather/100 sleep"];
    let _job = job(&address, 1, &steps);
    wait_until(&address, "rank 1 behind", |state| {
        let ranks = world(state)["ranks"].as_array().cloned().unwrap_or_default();
        ranks.iter().map(all_reduces).eq([1, 0])
    });
    // Another process may have an answer of a moment ago, which it gives for 0.1 s.
    std::thread::sleep(Duration::from_millis(200));
    // `ncclras -f json -t 8`: each line waits for its answer.
    let mut client = BufReader::new(connect(&address));
    assert_eq!(say(&mut client, "CLIENT PROTOCOL 2\n"), "SERVER PROTOCOL 2\n");
    assert_eq!(say(&mut client, "TIMEOUT 8\n"), "OK\n");
    assert_eq!(say(&mut client, "SET FORMAT json\n"), "OK\n");
    client.get_mut().write_all(b"STATUS\n").expect("a question");
    let mut json = String::new();
    client.read_to_string(&mut json).expect("the state, and the end of the connection");
    let state: Value = serde_json::from_str(&json).expect("JSON");
    assert!(state["timestamp"].is_string() && state["nccl_version"].is_string(), "{json}");
    assert_eq!(state["communicators_count"], 1);
    let comm = world(&state);
    // Ray keeps communicators by hash, compares counts by the names of operations, and takes a mismatch for a
    // hang where all ranks run.
    assert!(
        comm["hash"].as_str().is_some_and(|hash| hash.starts_with("0x"))
            && comm["secondary_hash"].is_string()
    );
    let ranks = comm["ranks"].as_array().expect("ranks");
    let counts = |name: &str| -> Vec<u64> {
        let of = |rank: &Value| rank["collective_counts"][name].as_u64().expect("a count");
        ranks.iter().map(of).collect()
    };
    assert_eq!((counts("AllGather"), counts("AllReduce")), (vec![1, 1], vec![1, 0]));
    for name in ["Broadcast", "Reduce", "ReduceScatter", "AlltoAll", "Gather", "Scatter"] {
        assert_eq!(counts(name), [0, 0], "{name}");
    }
    assert!(ranks.iter().all(|rank| in_rays_words(&rank["status"]) == "RUNNING"), "{json}");
    assert!(ranks.iter().all(|rank| rank["host"].is_string() && rank["cuda_dev"].is_i64()), "{json}");
    // `ncclras -m` and `ncclras -mlifecycle,trace`: acknowledged, then quiet.
    for events in ["MONITOR\n", "MONITOR lifecycle,trace\n", "MONITOR all\n"] {
        let mut monitor = BufReader::new(connect(&address));
        assert_eq!(say(&mut monitor, "CLIENT PROTOCOL 2\n"), "SERVER PROTOCOL 2\n");
        assert_eq!(say(&mut monitor, events), "OK\n", "{events}");
    }
}

#[test]
fn a_rank_that_is_late_and_one_that_is_stopped() {
    if !on_host() {
        return;
    }
    let address = free_address();
    let mut job = job(&address, 1, &["all_reduce all_reduce", "all_reduce sleep", "all_reduce all_reduce"]);
    let counts = |state: &Value| {
        let ranks = world(state)["ranks"].as_array().cloned().unwrap_or_default();
        ranks.iter().map(all_reduces).collect::<Vec<_>>()
    };
    wait_until(&address, "rank 1 behind", |state| counts(state) == [2, 1, 2]);
    // Another process may give an answer of a moment ago.
    let until = Instant::now() + LIMIT;
    loop {
        let text = talk(&address, "status\n");
        if text.contains("MISMATCH") && text.contains("  Rank 1 -- GPU 0 managed by process") {
            break;
        }
        assert!(Instant::now() < until, "{text}");
    }
    job.rank(1).signal("STOP");
    // SGLang's reader gives up when nothing comes for a second: it has to learn of the rank before that. A
    // stopped process may be asked itself; then the kernel lets the client wait.
    let until = Instant::now() + LIMIT;
    loop {
        let mut stream = connect(&address);
        stream.set_read_timeout(Some(Duration::from_secs(1))).expect("a deadline");
        stream.write_all(b"SET FORMAT json\nSTATUS\n").expect("a question");
        let mut answer = String::new();
        let state = stream
            .read_to_string(&mut answer)
            .ok()
            .and_then(|_| serde_json::from_str::<Value>(answer.strip_prefix("OK\n")?).ok());
        let missing = state.as_ref().map(|state| world(state)["missing_ranks"][0].clone());
        let status = serde_json::json!({ "unresponsive": true, "considered_dead": false });
        if missing.as_ref().is_some_and(|m| m["rank"] == 1 && m["status"] == status) {
            break;
        }
        assert!(Instant::now() < until, "rank 1 does not count as unresponsive: {state:?}");
    }
    job.rank(1).signal("CONT");
}

#[test]
fn a_dead_rank_is_named_by_those_that_are_left_and_told_to_monitors() {
    if !on_host() {
        return;
    }
    let address = free_address();
    let mut job = job(&address, 1, &["sleep", "sleep", "sleep"]);
    let is_up = |state: &Value| world(state)["ranks_count"] == 3;
    wait_until(&address, "three ranks", is_up);
    // Enough that others than the victim have some of them.
    let mut monitors: Vec<BufReader<TcpStream>> =
        (0..12).map(|_| BufReader::new(connect(&address))).collect();
    for monitor in &mut monitors {
        monitor.get_mut().write_all(b"SET FORMAT json\nSET FORMAT text\nMONITOR\n").expect("a question");
        for _ in 0..3 {
            let mut line = String::new();
            monitor.read_line(&mut line).expect("an acknowledgement");
            assert_eq!(line, "OK\n");
        }
    }
    let pid = job.rank(0).id();
    // What is known before is no news.
    std::thread::sleep(Duration::from_secs(1));
    job.rank(0).kill();
    let is_dead = |state: &Value| {
        let missing = &world(state)["missing_ranks"][0];
        (&missing["rank"], &missing["pid"]) == (&0.into(), &pid.into())
            && missing["status"]["considered_dead"] == Value::Bool(true)
    };
    wait_until(&address, "a dead rank 0", is_dead);
    let wanted = format!("PEER_DEAD: Process {pid} on node ");
    let told = monitors.into_iter().filter_map(|mut monitor| {
        let mut line = String::new();
        // Those of the dead process end.
        (monitor.read_line(&mut line).unwrap_or(0) > 0).then_some(line)
    });
    let told: Vec<String> = told.collect();
    assert!(!told.is_empty() && told.iter().all(|line| line.contains(&wanted)), "{told:?}");
}

#[test]
fn the_port_can_be_closed_and_ends_with_the_last_communicator() {
    if !on_host() {
        return;
    }
    let address = free_address();
    let off = [("NCCL_RAS_ADDR", &*address), ("NCCL_RAS_ENABLE", "0")];
    let mut silent = Hang::start(BINARY, 1, &["all_reduce read", "all_reduce read"], &off);
    assert!(TcpStream::connect(&address).is_err(), "NCCL_RAS_ENABLE=0 opens no port");
    drop((silent.rank(0).id(), silent));
    let mut job = job(&address, 1, &["rounds destroy sleep", "rounds destroy sleep"]);
    wait_until(&address, "two ranks", |state| world(state)["ranks_count"] == 2);
    job.rank(0).tell("stop");
    let until = Instant::now() + LIMIT;
    while TcpStream::connect(&address).is_ok() {
        assert!(Instant::now() < until, "the port stays open without communicators");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn strangers_and_nonsense_shut_nobody_out() {
    if !on_host() {
        return;
    }
    let address = free_address();
    let _job = job(&address, 1, &["again", "again"]);
    wait_until(&address, "two ranks", |state| world(state)["ranks_count"] == 2);
    // More silent ones than places.
    let _silent: Vec<TcpStream> = (0..100).map(|_| connect(&address)).collect();
    wait_until(&address, "two ranks beside strangers", |state| world(state)["ranks_count"] == 2);
    let answer = talk(&address, "GET /metrics HTTP/1.1\r\nTIMEOUT x\nSTATUS\n");
    assert!(
        answer.starts_with("ERROR: Unknown command GET /metrics HTTP/1.1\nERROR: Invalid timeout"),
        "{answer}"
    );
    // A line without end is cut.
    let mut endless = connect(&address);
    let _ = endless.write_all(&[b'x'; 64 << 10]);
    let mut answer = Vec::new();
    let _ = endless.read_to_end(&mut answer);
    assert!(answer.is_empty());
    wait_until(&address, "two ranks after nonsense", |state| world(state)["ranks_count"] == 2);
}
