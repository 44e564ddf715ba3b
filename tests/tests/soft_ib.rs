//! The library's collectives over the IB net, on its double of verbs, while ports go and come; and what
//! profilers see of it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use hawser_net_ib::soft::Fabric;
use hawser_net_ib::{IbNet, Settings};
use hawser_plan::Collective;
use hawser_plugin::profiler::{
    Event, EventHandle, EventMask, Profiler, ProfilerConfig, ProfilerContext, What,
};
use hawser_plugin::{BuiltIn, Component, Result, inventory};
use hawser_runtime::Config;
use hawser_runtime::progress::reader;
use hawser_tests::world::{on_host, on_hosts, plain, run};
use hawser_tests::{puts, registered};

inventory::submit! {
    BuiltIn { name: "soft ib", priority: 1, make: || Component::Net(Arc::new(net())) }
}

inventory::submit! {
    BuiltIn { name: "counter", priority: 1, make: || Component::Profiler(Arc::new(Counter)) }
}

/// Devices that all ranks of this process have in common.
const DEVICES: usize = 2;

fn fabric() -> &'static Fabric {
    static FABRIC: OnceLock<Fabric> = OnceLock::new();
    FABRIC.get_or_init(|| Fabric::new(DEVICES))
}

fn net() -> IbNet {
    let mut settings = Settings::default();
    settings.ifname = Some("=lo".into());
    settings.flaps = 1_000_000;
    IbNet::on_soft(settings, fabric().host(0..DEVICES))
}

/// Counts the net's events.
struct Counter;

static NEXT: AtomicU64 = AtomicU64::new(1);
static STARTED: AtomicU64 = AtomicU64::new(0);
static OPEN: Mutex<Vec<u64>> = Mutex::new(Vec::new());

impl Profiler for Counter {
    fn name(&self) -> &str {
        "counter"
    }

    fn open(&self, _: &ProfilerConfig) -> Result<Box<dyn ProfilerContext>> {
        Ok(Box::new(Counter))
    }
}

impl ProfilerContext for Counter {
    fn mask(&self) -> EventMask {
        EventMask::NET_PLUGIN
    }

    fn start(&self, event: &Event<'_>) -> Option<EventHandle> {
        let handle = NEXT.fetch_add(1, Ordering::Relaxed);
        if let What::NetPlugin { id, data } = event.what {
            assert!(id == 1 << 16 | 1 && data != 0 && event.parent.is_some());
            // SAFETY: the payload of IB's events, valid during the call: a kind, then the operation, whose
            // length is last.
            let (kind, bytes) = unsafe { (*(data as *const u8), *((data + 32) as *const u64)) };
            assert!(kind == 1 && bytes <= 1 << 20, "kind {kind}, {bytes} bytes");
            STARTED.fetch_add(1, Ordering::Relaxed);
            OPEN.lock().unwrap().push(handle);
        }
        Some(EventHandle(handle))
    }

    fn stop(&self, event: EventHandle) {
        OPEN.lock().unwrap().retain(|open| *open != event.0);
    }
}

/// One test, since net and profiler are the process's.
/// Long puts go from window to window over it.
#[test]
fn puts_are_right() {
    if !on_host() {
        return;
    }
    on_hosts("abb", &Config::default(), |comm| {
        puts::run_all(comm).unwrap();
        let report = reader::read(std::process::id()).expect("the journals of this process");
        let net = [("way".to_owned(), "net".to_owned())];
        let figure = report.figures.iter().find(|f| f.name == "put_bytes_total" && f.labels == net);
        // All that this rank put is over: two long puts to a rank on another host at least.
        assert!(figure.is_some_and(|figure| figure.value >= 70_001 + 2_500_003), "{:?}", report.figures);
    });
}

/// Ports take turns in going down while `work` runs.
fn while_ports_go_and_come(work: impl FnOnce()) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut device = 0;
            while !over.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(20));
                fabric().port(device, false);
                std::thread::sleep(Duration::from_millis(10));
                fabric().port(device, true);
                device = (device + 1) % DEVICES;
            }
        });
        work();
        over.store(true, Ordering::Relaxed);
    });
}

/// Registered buffers go from user memory to user memory, past slots.
#[test]
fn registered_buffers_are_right_while_ports_go_and_come() {
    if !on_host() {
        return;
    }
    let config = Config { sm_free: true, ..Config::default() };
    let before = registered::moved().1;
    while_ports_go_and_come(|| {
        on_hosts("abb", &config, |comm| {
            (0..2).try_for_each(|_| registered::run_all(comm)).unwrap();
        });
    });
    assert!(registered::moved().1 > before + (20 << 20), "{} bytes unstaged", registered::moved().1 - before);
}

#[test]
fn collectives_are_right_while_ports_go_and_come() {
    if !on_host() {
        return;
    }
    let stopped = hawser_net_ib::stats().stopped;
    while_ports_go_and_come(|| {
        on_hosts("aabb", &Config::default(), |comm| {
            for round in 0..15 {
                for collective in [Collective::AllReduce, Collective::AllGather, Collective::AllToAll] {
                    run(comm, plain(collective, 4, 30_000 + round), false, 0).unwrap();
                }
            }
        });
    });
    let after = hawser_net_ib::stats();
    assert!(after.chunks > 0, "another net was chosen");
    assert!(after.stopped > stopped, "no fault hit a rail");
    let started = STARTED.load(Ordering::Relaxed);
    assert!(started > 0 && started <= after.chunks, "{started} events, {} chunks", after.chunks);
    assert_eq!(*OPEN.lock().unwrap(), Vec::<u64>::new(), "events that never stopped");
}
