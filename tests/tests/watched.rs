//! A tuner and a profiler that are built into this test program: what they are told, and what follows from
//! their advice.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hawser_plan::{Algorithm, Collective};
use hawser_plugin::profiler::{
    Event, EventHandle, EventMask, EventState, Profiler, ProfilerConfig, ProfilerContext, StateArgs, What,
};
use hawser_plugin::tuner::{self, Answer, Candidate, Question, Tuner, TunerConfig, TunerContext};
use hawser_plugin::{BuiltIn, Component, Error, Result, inventory};
use hawser_runtime::{Comm, Config, unique_id};
use hawser_tests::deadline::LIMIT;
use hawser_tests::puts::{FIRST, Windows, signal, wait};
use hawser_tests::world::{call, on_host, on_hosts, plain, run};

inventory::submit! {
    BuiltIn { name: "test tuner", priority: 1, make: || Component::Tuner(Arc::new(TreeLover)) }
}

inventory::submit! {
    BuiltIn { name: "test profiler", priority: 1, make: || Component::Profiler(Arc::new(Recorder)) }
}

/// Wants trees in two blocks for all-reduces; fails for broadcasts; says nothing else.
struct TreeLover;

impl Tuner for TreeLover {
    fn name(&self) -> &str {
        "tree lover"
    }

    fn open(&self, config: &TunerConfig) -> Result<Box<dyn TunerContext>> {
        assert!(config.ranks >= config.nodes);
        Ok(Box::new(TreeLover))
    }
}

impl TunerContext for TreeLover {
    fn tune(&self, question: &Question, candidates: &mut [Candidate<'_>]) -> Result<Answer> {
        match question.function {
            tuner::Function::Broadcast => {
                candidates.iter_mut().for_each(Candidate::leave_out);
                Err(Error::internal("no broadcasts today"))
            }
            tuner::Function::AllReduce => {
                let is_tree = |c: &Candidate<'_>| c.decision.algorithm == tuner::Algorithm::TREE;
                let tree = candidates.iter().position(|c| c.is_possible() && is_tree(c));
                Ok(tree.map_or_else(Answer::default, Answer::ordered).with_channels(2))
            }
            _ => Ok(Answer::default()),
        }
    }
}

/// Keeps all events.
struct Recorder;

static NEXT: AtomicU64 = AtomicU64::new(1);
static WANTS_STEPS: AtomicBool = AtomicBool::new(true);
static EVENTS: Mutex<Vec<Seen>> = Mutex::new(Vec::new());

struct Seen {
    handle: u64,
    rank: u32,
    comm: u64,
    parent: Option<u64>,
    kind: EventMask,
    func: String,
    stopped: bool,
    bytes: u64,
    predicted_ns: u64,
}

impl Profiler for Recorder {
    fn name(&self) -> &str {
        "recorder"
    }

    fn open(&self, config: &ProfilerConfig) -> Result<Box<dyn ProfilerContext>> {
        Ok(Box::new(Recording { comm: config.comm_id }))
    }
}

struct Recording {
    comm: u64,
}

impl ProfilerContext for Recording {
    fn mask(&self) -> EventMask {
        let steps = WANTS_STEPS.load(Ordering::Relaxed);
        EventMask(if steps { EventMask::PROXY_STEP.0 | EventMask::KERNEL_CH.0 } else { 0 })
    }

    fn start(&self, event: &Event<'_>) -> Option<EventHandle> {
        let handle = NEXT.fetch_add(1, Ordering::Relaxed);
        let func = match &event.what {
            What::Coll { func, .. } | What::P2p { func, .. } => (*func).to_owned(),
            _ => String::new(),
        };
        EVENTS.lock().unwrap().push(Seen {
            handle,
            rank: event.rank,
            comm: self.comm,
            parent: event.parent.map(|p| p.0),
            kind: event.what.kind(),
            func,
            stopped: false,
            bytes: 0,
            predicted_ns: 0,
        });
        Some(EventHandle(handle))
    }

    fn stop(&self, event: EventHandle) {
        change(event, |seen| {
            assert!(!seen.stopped, "stopped twice");
            seen.stopped = true;
        });
    }

    fn record(&self, event: EventHandle, _state: EventState, args: StateArgs) {
        change(event, |seen| {
            assert!(!seen.stopped, "a state after the stop");
            match args {
                StateArgs::Bytes(bytes) => seen.bytes = bytes,
                StateArgs::Predicted(nanoseconds) => seen.predicted_ns = nanoseconds,
                _ => {}
            }
        });
    }
}

fn change(event: EventHandle, change: impl FnOnce(&mut Seen)) {
    change_in(&mut EVENTS.lock().unwrap(), event, change);
}

fn change_in(events: &mut [Seen], event: EventHandle, change: impl FnOnce(&mut Seen)) {
    change(events.iter_mut().find(|e| e.handle == event.0).expect("an event of ours"));
}

/// One test, since the plugins are the process's.
#[test]
fn advice_is_followed_and_everything_is_seen() {
    if !on_host() {
        return;
    }
    on_hosts("aabb", &Config::default(), |comm| {
        let choice =
            |collective, count| comm.explain(&call(&plain(collective, 4, count), 0, (16, 16))).unwrap();
        let advised = choice(Collective::AllReduce, 100_000);
        assert_eq!((advised.key.algorithm, advised.instances), (Algorithm::Tree, 1));
        assert!(advised.why.decided.contains("tree lover"), "{}", advised.why.decided);
        let failed = choice(Collective::Broadcast, 100_000);
        assert!(failed.why.decided.contains("predicted"), "{}", failed.why.decided);
        for collective in [Collective::AllReduce, Collective::Broadcast, Collective::AllGather] {
            run(comm, plain(collective, 4, 100_000), false, 0).unwrap();
        }
        put_in_a_circle(comm);
    });
    let seen = std::mem::take(&mut *EVENTS.lock().unwrap());
    check(&seen);
    WANTS_STEPS.store(false, Ordering::Relaxed);
    on_hosts("aabb", &Config::default(), |comm| {
        run(comm, plain(Collective::AllReduce, 4, 1000), false, 0).unwrap()
    });
    assert!(EVENTS.lock().unwrap().is_empty(), "events that nobody asked for");
    WANTS_STEPS.store(true, Ordering::Relaxed);
    abort_in_the_middle();
    // The proxy lets go of what it moved for them when it sees the abort.
    let until = Instant::now() + LIMIT;
    loop {
        let seen = EVENTS.lock().unwrap();
        let open: Vec<String> =
            seen.iter().filter(|event| !event.stopped).map(|e| format!("{:?} {}", e.kind, e.func)).collect();
        if open.is_empty() {
            let calls = seen.iter().filter(|event| event.kind == EventMask::COLL_API).count();
            assert_eq!(calls, 4 + 3, "those that ended, and those that were aborted");
            break;
        }
        assert!(Instant::now() < until, "open after an abort: {open:?}");
        drop(seen);
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Ranks on two hosts are aborted in a collective for which the last of them does not come.
fn abort_in_the_middle() {
    let id = unique_id().unwrap();
    std::thread::scope(|scope| {
        for (rank, host) in (0..).zip("aabb".chars()) {
            scope.spawn(move || {
                let config = Config { host: Some(host.to_string()), ..Config::default() };
                let comm = Comm::init(&[id], 4, rank, rank, config).unwrap();
                run(&comm, plain(Collective::AllReduce, 4, 1000), false, 0).unwrap();
                let aborting = comm.clone();
                let aborter = std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(300));
                    aborting.abort()
                });
                if rank < 3 {
                    run(&comm, plain(Collective::AllReduce, 4, 100_000), false, 0).unwrap_err();
                }
                aborter.join().unwrap().unwrap();
            });
        }
    });
}

/// Every rank puts bytes to the next one, raises a signal there without any, and waits for both of the one
/// before.
fn put_in_a_circle(comm: &Comm) {
    let (rank, ranks) = (comm.rank(), comm.ranks());
    let mut windows = Windows::new(comm, 1000, 0).unwrap();
    let (next, before) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
    windows.put(next, 1000, 0, FIRST).unwrap();
    signal(comm, next, FIRST).unwrap();
    wait(comm, [before].into_iter(), 2, FIRST).unwrap();
    windows.check(before, 1000, 0).unwrap();
    run(comm, plain(Collective::AllReduce, ranks, 10), false, 0).unwrap(); // windows end after all puts
}

fn check(seen: &[Seen]) {
    let by_handle: HashMap<u64, &Seen> = seen.iter().map(|e| (e.handle, e)).collect();
    assert!(seen.iter().all(|e| e.stopped), "an event never stopped");
    assert!(seen.windows(2).all(|w| w[0].comm == w[1].comm), "one communicator, several ids");
    let above = |event: &Seen| event.parent.map(|p| by_handle[&p].kind);
    for event in seen {
        let expected = match event.kind {
            EventMask::PROXY_STEP => Some(EventMask::PROXY_OP),
            EventMask::PROXY_OP | EventMask::KERNEL_CH => Some(EventMask::COLL),
            EventMask::COLL => Some(EventMask::COLL_API),
            EventMask::P2P => Some(EventMask::P2P_API),
            EventMask::COLL_API | EventMask::P2P_API | EventMask::KERNEL_LAUNCH => Some(EventMask::GROUP_API),
            _ => None,
        };
        assert_eq!(above(event), expected, "parent of {:?}", event.kind);
        assert!(event.rank < 4);
    }
    let calls = [
        ("AllReduce", 2),
        ("Broadcast", 1),
        ("AllGather", 1),
        ("PutSignal", 1),
        ("Signal", 1),
        ("WaitSignal", 1),
    ];
    for (func, calls) in calls {
        assert_eq!(seen.iter().filter(|e| e.func == func).count(), 4 * calls, "{func}");
    }
    for event in seen {
        assert_eq!(event.predicted_ns > 0, event.kind == EventMask::COLL, "{:?} {}", event.kind, event.func);
    }
    let steps: Vec<&Seen> = seen.iter().filter(|e| e.kind == EventMask::PROXY_STEP).collect();
    assert!(steps.len() > 10 && steps.iter().all(|e| e.bytes > 0), "{} steps", steps.len());
}
