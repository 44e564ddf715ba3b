//! NCCL's net plugins of every version behind our traits: what works.

mod net_support;

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use hawser_compat::library::Library;
use hawser_compat::net;
use hawser_plugin::ErrorKind;
use hawser_plugin::net::{
    Flows, MAX_REQUESTS, MemoryKinds, NetAttributes, NetContext, NetProperties, Region,
};
use net_support::*;

#[test]
fn every_version_loads_and_says_what_it_has() {
    for version in VERSIONS {
        let plugin = Queue::new(version);
        let found = plugin.load().unwrap();
        assert_eq!(found.symbol, format!("ncclNetPlugin_v{version}"));
        assert_eq!(found.plugin.name(), "Queue");
        assert_eq!(plugin.seen(Seen::Init), 0, "init belongs to open");
        let context = open(&found.plugin);
        assert_eq!(context.devices(), Ok(2));
        assert_eq!(context.devices(), Ok(2));
        assert_eq!(plugin.seen(Seen::Devices), 1, "asked once");
        for device in 0..2 {
            let properties = context.properties(device).unwrap();
            assert_eq!(properties, expected_properties(version, device));
            assert_eq!(context.properties(device), Ok(properties));
        }
        assert_eq!(plugin.seen(Seen::GetProperties), 2, "each asked once");
        let none = context.properties(2).unwrap_err();
        assert_eq!(none.kind, ErrorKind::InvalidArgument);
        assert!(none.text.contains("no device 2, only 2"), "{none}");
    }
}

/// The properties that net_plugin.c fills in, and defaults for those that the version lacks.
fn expected_properties(version: u32, device: u32) -> NetProperties {
    let mut expected = NetProperties::new(format!("queue{device}"), device);
    expected.pci_path = (device == 0).then(|| "/sys/devices/test".into());
    expected.guid = 100 + u64::from(device);
    expected.memory = MemoryKinds(7);
    expected.speed_mbps = 1000;
    expected.port = device;
    expected.latency_us = 2.5;
    expected.max_comms = 64;
    expected.max_recvs = 8;
    if version >= 9 {
        expected.force_flush = true;
        expected.max_p2p_bytes = 1 << 20;
        expected.max_collective_bytes = 1 << 19;
    }
    if version >= 11 {
        expected.max_multi_request = 2;
    }
    if version >= 12 {
        expected.rail = 3;
    }
    expected
}

#[test]
fn every_version_moves_bytes_both_ways() {
    for version in VERSIONS {
        let plugin = Queue::new(version);
        plugin.set(Knob::ConnectDelay, 3).set(Knob::AcceptDelay, 2).set(Knob::Skip, 3);
        let net = plugin.load().unwrap().plugin;
        let (one, two) = (open(&net), open(&net));
        let (mut there_out, mut there_in) = join(&*one, &*two, 0);
        let (mut back_out, mut back_in) = join(&*two, &*one, 1);
        exchange(&mut *there_out, &mut *there_in, true);
        exchange(&mut *back_out, &mut *back_in, true);
        exchange_groups(&mut *there_out, &mut *there_in, 8);
        exchange_groups(&mut *back_out, &mut *back_in, 1);
        assert_eq!((plugin.seen(Seen::Senders), plugin.seen(Seen::Receivers)), (2, 2));
        drop((there_out, there_in, back_out, back_in));
        let open = [Seen::Listeners, Seen::Senders, Seen::Receivers, Seen::Mrs].map(|what| plugin.seen(what));
        assert_eq!(open, [0; 4], "all is closed");
    }
}

#[test]
fn connections_are_polled_alongside_each_other() {
    let plugin = Queue::new(12);
    plugin.set(Knob::ConnectDelay, 5);
    let context = plugin.open();
    let ends: Vec<_> = (0..4).map(|_| context.listen(0).unwrap()).collect();
    let mut connectors: Vec<_> = ends.iter().map(|(handle, _)| context.connect(0, handle).unwrap()).collect();
    for _ in 0..5 {
        assert!(connectors.iter_mut().all(|connector| connector.poll().unwrap().is_none()));
    }
    for ((_, listener), connector) in ends.into_iter().zip(connectors) {
        let (mut sender, mut receiver) = establish(connector, listener);
        exchange(&mut *sender, &mut *receiver, true);
    }
}

#[test]
fn two_plugins_of_one_version_live_side_by_side() {
    let (one, two) = (Queue::new(9), Queue::new(9));
    two.set(Knob::Devices, 5);
    let (first, second) = (one.open(), two.open());
    assert_eq!((first.devices(), second.devices()), (Ok(2), Ok(5)));
    let (mut a, mut b) = join(&*first, &*first, 0);
    let (mut c, mut d) = join(&*second, &*second, 4);
    exchange(&mut *a, &mut *b, true);
    exchange(&mut *c, &mut *d, true);
    assert_eq!((one.seen(Seen::Senders), two.seen(Seen::Senders)), (1, 1));
}

#[test]
fn one_library_twice_and_two_versions_at_once() {
    let (new, old) = (Queue::new(11), Queue::new(6));
    let again = Library::open(&new.0.path).unwrap();
    let nets = [
        new.load().unwrap().plugin,
        net::from_library(&again).unwrap().unwrap().plugin,
        old.load().unwrap().plugin,
    ];
    let contexts: Vec<_> = nets.iter().map(open).collect();
    for context in &contexts {
        let (mut sender, mut receiver) = join(&**context, &**context, 1);
        exchange(&mut *sender, &mut *receiver, true);
    }
    assert_eq!((new.seen(Seen::Init), old.seen(Seen::Init)), (2, 1));
    drop(contexts);
    assert_eq!(new.seen(Seen::Finalize), 2);
}

#[test]
fn init_is_once_per_process_before_v11_and_per_communicator_since() {
    for version in VERSIONS {
        let plugin = Queue::new(version);
        let net = plugin.load().unwrap().plugin;
        let contexts: Vec<_> = (0..3).map(|_| open(&net)).collect();
        let (sender, receiver) = join(&*contexts[0], &*contexts[1], 0);
        assert_eq!(plugin.seen(Seen::Init), if version >= 11 { 3 } else { 1 });
        drop(contexts);
        // What is open keeps its context open.
        assert_eq!(plugin.seen(Seen::Finalize), if version >= 11 { 1 } else { 0 });
        drop((sender, receiver));
        assert_eq!(plugin.seen(Seen::Finalize), if version >= 11 { 3 } else { 0 });
        drop(open(&net));
        assert_eq!(plugin.seen(Seen::Init), if version >= 11 { 4 } else { 1 });
    }
}

#[test]
fn what_a_communicator_says_reaches_the_plugin() {
    for version in VERSIONS {
        let plugin = Queue::new(version);
        let mut config = config();
        config.traffic_class = Some(17);
        let context = plugin.load().unwrap().plugin.open(&config).unwrap();
        let (handle, _listener) = context.listen(0).unwrap();
        context.connect(0, &handle).unwrap().poll().unwrap();
        assert_eq!(plugin.seen(Seen::TrafficClass), if version >= 10 { 17 } else { 0 });
        assert_eq!(plugin.seen(Seen::CommId), if version >= 11 { 0x1234 } else { 0 });
        if version >= 10 {
            let context = plugin.open();
            let (handle, _listener) = context.listen(0).unwrap();
            context.connect(0, &handle).unwrap().poll().unwrap();
            assert_eq!(plugin.seen(Seen::TrafficClass), -1, "not set");
        }
        let send = Flows { max_peers: 4, ..Flows::default() };
        let attributes = NetAttributes { send, recv: Flows::default(), what: [0x30, 1, 2] };
        assert_eq!(context.set_attributes(&attributes), Ok(()));
        assert_eq!(plugin.seen(Seen::AttributeOp), if version >= 11 { 0x30 } else { 0 });
    }
}

static STARTED: AtomicUsize = AtomicUsize::new(0);
static STOPPED: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn profiler(
    event: *mut *mut c_void,
    kind: c_int,
    parent: *mut c_void,
    plugin: i64,
    _payload: *mut c_void,
) -> c_int {
    assert_eq!(plugin, 0x70001);
    match kind {
        0 => {
            STARTED.fetch_add(1, Ordering::Relaxed);
            // SAFETY: the contract of the callback.
            unsafe { *event = parent };
        }
        1 => {
            STOPPED.fetch_add(1, Ordering::Relaxed);
        }
        _ => return 3,
    }
    0
}

#[test]
fn network_events_reach_the_profiler() {
    for version in VERSIONS {
        let plugin = Queue::new(version);
        let mut config = config();
        config.profiler = Some(profiler);
        let context = plugin.load().unwrap().plugin.open(&config).unwrap();
        let (mut sender, mut receiver) = join(&*context, &*context, 0);
        let source = Memory::of_sender(&mut *sender, vec![1; 8]);
        let target = Memory::of_receiver(&mut *receiver, vec![0; 8]);
        STARTED.store(0, Ordering::Relaxed);
        STOPPED.store(0, Ordering::Relaxed);
        let mut segment = target.segment(0, 8, 0);
        segment.profile = 0x2000;
        let into = receive(&mut *receiver, &[segment]);
        assert_eq!(plugin.seen(Seen::Profile), if version >= 10 { 0x2000 } else { 0 });
        let mut segment = source.segment(0, 8, 0);
        segment.profile = 0x1000;
        let out = send(&mut *sender, &segment);
        assert_eq!(plugin.seen(Seen::Profile), if version >= 10 { 0x1000 } else { 0 });
        let events = if version >= 10 { 2 } else { 0 };
        assert_eq!((STARTED.load(Ordering::Relaxed), STOPPED.load(Ordering::Relaxed)), (events, events));
        received(&mut *receiver, into, 1);
        sent(&mut *sender, out);
    }
}

#[test]
fn virtual_devices_exist_since_v9() {
    for version in VERSIONS {
        let plugin = Queue::new(version);
        plugin.set(Knob::Devices, 6);
        let context = plugin.open();
        assert_eq!(context.devices(), Ok(6));
        let made = context.make_virtual(&[5, 0, 3]);
        if version < 9 {
            assert_eq!(made.unwrap_err().kind, ErrorKind::Unsupported);
            continue;
        }
        assert_eq!(made, Ok(6));
        assert_eq!(plugin.seen(Seen::Members), 503);
        assert_eq!(context.devices(), Ok(7));
        let five = context.make_virtual(&[0, 1, 2, 3, 4]);
        if version < 12 {
            assert_eq!(five.unwrap_err().kind, ErrorKind::Unsupported);
        } else {
            assert_eq!(five, Ok(7));
            assert_eq!(plugin.seen(Seen::Members), 1234);
        }
        assert_eq!(context.make_virtual(&[]).unwrap_err().kind, ErrorKind::InvalidArgument);
        assert_eq!(context.make_virtual(&[0, 90]).unwrap_err().kind, ErrorKind::InvalidArgument);
        let (mut sender, mut receiver) = join(&*context, &*context, 6);
        exchange(&mut *sender, &mut *receiver, true);
    }
}

#[test]
fn memory_of_every_kind_is_registered() {
    for version in VERSIONS {
        let plugin = Queue::new(version);
        let context = plugin.open();
        let (mut sender, mut receiver) = join(&*context, &*context, 0);
        let mut bytes = vec![0; 64];
        let host = region(&mut bytes);
        let cuda = Region { kind: MemoryKinds::CUDA, ..host };
        let dmabuf = Region { kind: MemoryKinds::DMABUF, dmabuf: Some((7, 4096)), ..host };
        // SAFETY: the memory outlives the connection.
        let made = [host, cuda, dmabuf]
            .map(|region| (unsafe { sender.register(&region) }.unwrap(), seen_mr(&plugin)));
        assert_eq!(made.map(|(_, seen)| seen), [[1, 0, 0], [2, 0, 0], [2, 7, 4096]]);
        // SAFETY: as above.
        let other = unsafe { receiver.register(&cuda) }.unwrap();
        assert_eq!(plugin.seen(Seen::Mrs), 4);
        for (registration, _) in made {
            sender.deregister(registration).unwrap();
        }
        receiver.deregister(other).unwrap();
        assert_eq!(plugin.seen(Seen::Mrs), 0);
        for kind in [MemoryKinds(0), MemoryKinds(3), MemoryKinds::DMABUF, MemoryKinds(8)] {
            // SAFETY: as above.
            let refused = unsafe { sender.register(&Region { kind, ..host }) }.unwrap_err();
            assert_eq!(refused.kind, ErrorKind::InvalidArgument, "{refused}");
        }
    }
}

fn seen_mr(plugin: &Queue) -> [i64; 3] {
    [plugin.seen(Seen::MrKind), plugin.seen(Seen::MrFd), plugin.seen(Seen::MrOffset)]
}

#[test]
fn flushes_are_requests_without_sizes() {
    for version in VERSIONS {
        let plugin = Queue::new(version);
        let context = plugin.open();
        let (_sender, mut receiver) = join(&*context, &*context, 0);
        let target = Memory::of_receiver(&mut *receiver, vec![0; 100]);
        let segments = [target.segment(0, 50, 0), target.segment(50, 50, 0)];
        // SAFETY: the memory is registered.
        let flush = unsafe { receiver.flush(&segments) }.unwrap().unwrap();
        assert!(receiver.test(flush, &mut []).unwrap());
        // SAFETY: no memory at all.
        assert_eq!(unsafe { receiver.flush(&[]) }, Ok(None));
        assert_eq!(plugin.seen(Seen::Flushes), 1);
        assert_eq!(receiver.consumed(2, flush), Ok(()));
        assert_eq!(plugin.seen(Seen::Consumed), if version >= 7 { 2 } else { 0 });
    }
}

#[test]
fn optional_completion_is_told_since_v9() {
    for version in VERSIONS {
        let plugin = Queue::new(version);
        let context = plugin.open();
        let (mut sender, mut receiver) = join(&*context, &*context, 0);
        let source = Memory::of_sender(&mut *sender, vec![9; 8]);
        let target = Memory::of_receiver(&mut *receiver, vec![0; 8]);
        for optional in [true, false] {
            // SAFETY: the memory is registered and left alone.
            let into = unsafe { receiver.irecv(&[target.segment(0, 8, 0)], optional) }.unwrap().unwrap();
            let out = send(&mut *sender, &source.segment(0, 8, 0));
            assert_eq!(received(&mut *receiver, into, 1), [8]);
            assert_eq!(sent(&mut *sender, out), 8);
        }
        assert_eq!(plugin.seen(Seen::Optional), if version >= 9 { 1 } else { 0 });
    }
}

#[test]
fn more_requests_than_a_plugin_holds_are_not_now() {
    for version in VERSIONS {
        let context = Queue::new(version).open();
        let (mut sender, mut receiver) = join(&*context, &*context, 0);
        let source = Memory::of_sender(&mut *sender, vec![3; 8]);
        let target = Memory::of_receiver(&mut *receiver, vec![0; 8]);
        let most = if version == 6 { 8 } else { MAX_REQUESTS };
        // SAFETY: the memory is registered and left alone.
        let outs: Vec<_> =
            std::iter::from_fn(|| unsafe { sender.isend(&source.segment(0, 8, 0)) }.unwrap()).collect();
        assert_eq!(outs.len(), most * 8, "eight receives may be grouped");
        let post = |receiver: &mut dyn hawser_plugin::net::Receiver| {
            // SAFETY: as above.
            unsafe { receiver.irecv(&[target.segment(0, 8, 0)], false) }.unwrap()
        };
        let mut ins: Vec<_> = std::iter::from_fn(|| post(&mut *receiver)).collect();
        assert_eq!(ins.len(), most);
        // Oldest first, with a new receive for each that ends.
        let mut outs = outs.into_iter();
        for _ in 0..3 * most {
            let oldest = ins.remove(0);
            received(&mut *receiver, oldest, 1);
            sent(&mut *sender, outs.next().unwrap());
            ins.push(post(&mut *receiver).expect("there is room again"));
        }
    }
}

#[test]
fn a_context_keeps_its_library_open() {
    let plugin = Queue::new(12);
    let context: Box<dyn NetContext> = plugin.open();
    let (mut sender, mut receiver) = join(&*context, &*context, 0);
    drop(plugin); // the file and our own handle
    drop(context);
    exchange(&mut *sender, &mut *receiver, true);
}
