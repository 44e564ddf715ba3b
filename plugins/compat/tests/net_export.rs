//! A Rust net as tables for NCCL: called as NCCL calls them, and loaded back through our own importer.

#[path = "net_support/loopback.rs"]
mod loopback;
mod net_support;

use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};

use hawser_compat::net::export::{self, Export, State};
use hawser_compat::{Found, net};
use hawser_plugin::net::{Flows, MemoryKinds, NetAttributes, NetConfig, Region, Request};
use hawser_plugin::{ErrorKind, Log, Net};
use loopback::{DEVICES, Loopback, PANIC_TAG};
use net_support::*;

static MADE: AtomicUsize = AtomicUsize::new(0);

hawser_compat::export_nccl_net!("Loop", {
    MADE.fetch_add(1, Relaxed);
    Arc::new(Loopback { name: "Loop", ..Loopback::default() }) as Arc<dyn Net>
});

/// The tables of the macro, as the dynamic loader would hand them out.
fn exported() -> [(&'static str, *const c_void); 5] {
    [
        ("ncclNetPlugin_v8", (&raw const ncclNetPlugin_v8).cast()),
        ("ncclNetPlugin_v9", (&raw const ncclNetPlugin_v9).cast()),
        ("ncclNetPlugin_v10", (&raw const ncclNetPlugin_v10).cast()),
        ("ncclNetPlugin_v11", (&raw const ncclNetPlugin_v11).cast()),
        ("ncclNetPlugin_v12", (&raw const ncclNetPlugin_v12).cast()),
    ]
}

#[test]
fn every_exported_version_moves_bytes() {
    for (symbol, table) in exported() {
        // SAFETY: the table is a static of this program.
        let net = unsafe { net::from_table(symbol, table) }.unwrap().plugin;
        assert_eq!(net.name(), "Loop");
        let (one, two) = (open(&net), open(&net));
        assert_eq!(one.devices(), Ok(DEVICES));
        let (mut there_out, mut there_in) = join(&*one, &*two, 2);
        let (mut back_out, mut back_in) = join(&*two, &*one, 0);
        exchange(&mut *there_out, &mut *there_in, true);
        exchange_groups(&mut *there_out, &mut *there_in, 8);
        exchange_groups(&mut *back_out, &mut *back_in, 2);
        let target = Memory::of_receiver(&mut *back_in, vec![0; 8]);
        // SAFETY: the memory is registered.
        let (flush, none) =
            unsafe { (back_in.flush(&[target.segment(0, 8, 0)]), back_in.flush(&[target.segment(0, 0, 0)])) };
        assert!(back_in.test(flush.unwrap().unwrap(), &mut []).unwrap());
        assert_eq!(none, Ok(None));
    }
    assert_eq!(MADE.load(Relaxed), 1, "all tables lead to one plugin");
}

/// A plugin of its own for a test: a type and the tables behind it.
macro_rules! own_plugin {
    ($plugin:ident, $type:ident) => {
        static $plugin: LazyLock<Arc<Loopback>> =
            LazyLock::new(|| Arc::new(Loopback { name: stringify!($type), ..Loopback::default() }));
        struct $type;
        impl Export for $type {
            fn state() -> &'static State {
                static STATE: State = State::new(NAME, || $plugin.clone());
                &STATE
            }
        }
    };
}

const NAME: &CStr = c"test";

/// An exported plugin through the importer.
fn load<T: 'static>(symbol: &str, table: T) -> Found<dyn Net> {
    let table: &'static T = Box::leak(Box::new(table));
    // SAFETY: the table is leaked; the symbol fits it in all tests here.
    unsafe { net::from_table(symbol, (&raw const *table).cast()) }.unwrap()
}

fn config_of(comm_id: u64, traffic_class: Option<i32>) -> NetConfig {
    let mut config = NetConfig::new(comm_id, Log::silent());
    config.traffic_class = traffic_class;
    config
}

#[test]
fn properties_lose_only_what_a_version_lacks() {
    own_plugin!(PLUGIN, Props);
    let nets = [
        load("ncclNetPlugin_v8", export::v8::<Props>(NAME)),
        load("ncclNetPlugin_v9", export::v9::<Props>(NAME)),
        load("ncclNetPlugin_v10", export::v10::<Props>(NAME)),
        load("ncclNetPlugin_v11", export::v11::<Props>(NAME)),
        load("ncclNetPlugin_v12", export::v12::<Props>(NAME)),
    ];
    for (version, found) in (8..).zip(nets) {
        let context = open(&found.plugin);
        for device in 0..DEVICES {
            let mut expected = loopback::properties(device, None);
            if version < 12 {
                (expected.rail, expected.plane) = (-1, -1);
            }
            if version < 11 {
                expected.max_multi_request = 1;
            }
            if version < 9 {
                expected.max_p2p_bytes = 1 << 30;
            }
            assert_eq!(context.properties(device), Ok(expected), "v{version}");
        }
    }
}

#[test]
fn contexts_are_opened_and_closed_with_communicators_since_v11() {
    own_plugin!(PLUGIN, Contexts);
    let shared = &PLUGIN.shared;
    let net = load("ncclNetPlugin_v11", export::v11::<Contexts>(NAME)).plugin;
    let one = net.open(&config_of(7, Some(3))).unwrap();
    let two = net.open(&config_of(8, None)).unwrap();
    assert_eq!(*shared.opened.lock().unwrap(), [(7, Some(3)), (8, None)]);
    let (handle, listener) = one.listen(0).unwrap();
    let ends = establish(two.connect(0, &handle).unwrap(), listener);
    assert_eq!(shared.connections.load(Relaxed), 2);
    let attributes = NetAttributes {
        send: Flows { max_peers: 9, ..Flows::default() },
        recv: Flows::default(),
        what: [1, 2, 3],
    };
    one.set_attributes(&attributes).unwrap();
    assert_eq!(*shared.attributes.lock().unwrap(), Some(attributes));
    drop(one);
    drop(two);
    assert_eq!(shared.contexts.load(Relaxed), 2, "connections keep them open");
    drop(ends);
    assert_eq!((shared.contexts.load(Relaxed), shared.connections.load(Relaxed)), (0, 0));
    assert_eq!(net.open(&config_of(9, None)).unwrap().devices(), Ok(DEVICES));
}

#[test]
fn without_contexts_there_is_one_per_process_and_traffic_class() {
    own_plugin!(PLUGIN, Process);
    let net = load("ncclNetPlugin_v10", export::v10::<Process>(NAME)).plugin;
    for class in [None, Some(5), None, Some(5), Some(6)] {
        let context = net.open(&config_of(1, class)).unwrap();
        let (handle, listener) = context.listen(0).unwrap();
        establish(context.connect(0, &handle).unwrap(), listener);
    }
    assert_eq!(*PLUGIN.shared.opened.lock().unwrap(), [(0, None), (0, Some(5)), (0, Some(6))]);
    let old = load("ncclNetPlugin_v8", export::v8::<Process>(NAME)).plugin;
    assert_eq!(open(&old).devices(), Ok(DEVICES));
    assert_eq!(PLUGIN.shared.opened.lock().unwrap().len(), 3, "tables share their contexts");
}

#[test]
fn virtual_devices_are_in_every_later_context() {
    own_plugin!(PLUGIN, Virtual);
    let net = load("ncclNetPlugin_v12", export::v12::<Virtual>(NAME)).plugin;
    let one = open(&net);
    assert_eq!(one.make_virtual(&[0, 2]), Ok(DEVICES));
    assert_eq!(one.make_virtual(&[1, 0]), Ok(DEVICES + 1));
    drop(one);
    // Another communicator, of a library that has kept the plugin: it knows the devices and does not count
    // them.
    let two = open(&net);
    let (mut sender, mut receiver) = join(&*two, &*two, DEVICES + 1);
    exchange(&mut *sender, &mut *receiver, true);
    assert_eq!(two.properties(DEVICES + 1).unwrap().members, [1, 0]);
    assert_eq!(two.devices(), Ok(DEVICES + 2));
    assert_eq!(two.make_virtual(&[0, 1, 2]), Ok(DEVICES + 2));
    assert_eq!(two.make_virtual(&[40]).unwrap_err().kind, ErrorKind::InvalidArgument);
}

/// NCCL unloads plugins after the last communicator and loads them anew. Ours stay in the process, but must
/// count as a new one.
#[test]
fn virtual_devices_are_forgotten_with_the_library() {
    own_plugin!(PLUGIN, Reloaded);
    let newest = || load("ncclNetPlugin_v12", export::v12::<Reloaded>(NAME)).plugin;
    let without_contexts = || load("ncclNetPlugin_v10", export::v10::<Reloaded>(NAME)).plugin;
    for load_again in [&newest as &dyn Fn() -> Arc<dyn Net>, &without_contexts] {
        for members in [[0, 2], [1, 0]] {
            let context = open(&load_again());
            assert_eq!(context.devices(), Ok(DEVICES), "all are physical");
            assert_eq!(context.make_virtual(&members), Ok(DEVICES));
            let properties = context.properties(DEVICES).unwrap();
            assert_eq!(properties.members, members);
            let (mut sender, mut receiver) = join(&*context, &*context, DEVICES);
            exchange(&mut *sender, &mut *receiver, true);
            assert_eq!(context.devices(), Ok(DEVICES + 1));
        }
    }
}

/// As in one process with a rank per thread: the first thread makes the device, all use it.
#[test]
fn virtual_devices_are_in_contexts_that_were_open_before() {
    own_plugin!(PLUGIN, Before);
    let communicator = || open(&load("ncclNetPlugin_v12", export::v12::<Before>(NAME)).plugin);
    let (one, two) = (communicator(), communicator());
    assert_eq!(two.make_virtual(&[0, 2]), Ok(DEVICES));
    let (mut sender, mut receiver) = join(&*one, &*one, DEVICES);
    exchange(&mut *sender, &mut *receiver, true);
    assert_eq!(two.properties(DEVICES).unwrap().members, [0, 2]);
}

#[test]
fn a_pending_connection_is_known_by_its_handle() {
    own_plugin!(PLUGIN, Pending);
    let table = export::v12::<Pending>(NAME);
    let (connect, shared) = (table.connect.unwrap(), &PLUGIN.shared);
    let context = init(&table, 1);
    let (mut first, first_listener) = listen(&table, context);
    let (mut second, second_listener) = listen(&table, context);
    let attempt = |handle: *mut c_void| {
        let mut comm = null_mut();
        // SAFETY: NCCL's way to call it.
        assert_eq!(unsafe { connect(context, 0, handle, &raw mut comm, null_mut()) }, 0);
        comm
    };
    // Two at a time, at different places.
    let (a, b) = (first.as_mut_ptr().cast(), second.as_mut_ptr().cast());
    for _ in 0..3 {
        assert!(attempt(a).is_null() && attempt(b).is_null());
    }
    assert_eq!(shared.connectors.load(Relaxed), 2);
    let (to_first, to_second) = (attempt(a), attempt(b));
    assert!(!to_first.is_null() && !to_second.is_null());
    assert_eq!(shared.connectors.load(Relaxed), 0);
    // An attempt that is given up, and another one in the same memory.
    let (third, third_listener) = listen(&table, context);
    assert!(attempt(a).is_null());
    *first = *third;
    for _ in 0..3 {
        assert!(attempt(a).is_null());
    }
    assert_eq!(shared.connectors.load(Relaxed), 1, "the old one is gone");
    let to_third = attempt(a);
    assert!(!to_third.is_null());
    for comm in [to_first, to_second, to_third] {
        // SAFETY: open, and closed once.
        assert_eq!(unsafe { table.close_send.unwrap()(comm) }, 0);
    }
    for listener in [first_listener, second_listener, third_listener] {
        // SAFETY: open, and closed once.
        assert_eq!(unsafe { table.close_listen.unwrap()(listener) }, 0);
    }
    // SAFETY: opened above.
    assert_eq!(unsafe { table.finalize.unwrap()(context) }, 0);
    assert_eq!(shared.contexts.load(Relaxed), 0);
}

fn init(table: &export::TableV12, comm_id: u64) -> *mut c_void {
    let mut context = null_mut();
    // SAFETY: NCCL's way to call it; NULL is allowed for what is optional.
    assert_eq!(unsafe { table.init.unwrap()(&raw mut context, comm_id, null_mut(), None, None) }, 0);
    assert!(!context.is_null());
    context
}

fn listen(table: &export::TableV12, context: *mut c_void) -> (Box<[u8; 128]>, *mut c_void) {
    let (mut handle, mut listener) = (Box::new([0; 128]), null_mut());
    let place = handle.as_mut_ptr().cast();
    // SAFETY: NCCL's way to call it.
    assert_eq!(unsafe { table.listen.unwrap()(context, 0, place, &raw mut listener) }, 0);
    (handle, listener)
}

#[test]
fn requests_and_registrations_that_count_from_0_are_not_null() {
    own_plugin!(PLUGIN, Zero);
    for table in ["ncclNetPlugin_v9", "ncclNetPlugin_v12"] {
        let found = match table {
            "ncclNetPlugin_v9" => load(table, export::v9::<Zero>(NAME)),
            _ => load(table, export::v12::<Zero>(NAME)),
        };
        let context = open(&found.plugin);
        let (mut sender, mut receiver) = join(&*context, &*context, 0);
        let source = Memory::of_sender(&mut *sender, vec![4; 16]);
        let target = Memory::of_receiver(&mut *receiver, vec![0; 16]);
        assert_eq!((source.registration.0, target.registration.0), (1, 1), "0 and 1");
        // SAFETY: the memory is registered and left alone; the first call always has room.
        let into = unsafe { receiver.irecv(&[target.segment(0, 16, 1)], true) }.unwrap().unwrap();
        assert_ne!(into, Request(0));
        let out = send(&mut *sender, &source.segment(0, 16, 1));
        assert_eq!((received(&mut *receiver, into, 1), sent(&mut *sender, out)), (vec![16], 16));
        sender.deregister(source.registration).unwrap();
        receiver.deregister(target.registration).unwrap();
    }
    assert_eq!(PLUGIN.shared.optional.load(Relaxed), 2, "optional completion is passed on");
    assert_eq!(PLUGIN.shared.connections.load(Relaxed), 0);
}

#[test]
fn descriptors_reach_the_plugin() {
    own_plugin!(PLUGIN, DmaBuf);
    let context = open(&load("ncclNetPlugin_v12", export::v12::<DmaBuf>(NAME)).plugin);
    let (mut sender, _receiver) = join(&*context, &*context, 0);
    let mut bytes = vec![0; 32];
    let host = region(&mut bytes);
    let dmabuf = Region { kind: MemoryKinds::DMABUF, dmabuf: Some((11, 64)), ..host };
    let cuda = Region { kind: MemoryKinds::CUDA, ..host };
    for region in [host, dmabuf, cuda] {
        // SAFETY: the memory outlives the connection.
        unsafe { sender.register(&region) }.unwrap();
    }
    assert_eq!(*PLUGIN.shared.regions.lock().unwrap(), [host, dmabuf, cuda]);
}

#[test]
fn panics_become_codes_and_end_their_connection() {
    own_plugin!(PLUGIN, Panics);
    LazyLock::force(&PLUGIN);
    let context = open(&load("ncclNetPlugin_v12", export::v12::<Panics>(NAME)).plugin);
    let (mut sender, mut receiver) = join(&*context, &*context, 0);
    let source = Memory::of_sender(&mut *sender, vec![4; 16]);
    // SAFETY: it panics before it looks at the memory.
    let error = unsafe { sender.isend(&source.segment(0, 16, PANIC_TAG)) }.unwrap_err();
    assert!(error.text.contains("isend failed with 3 (ncclInternalError)"), "{error}");
    // SAFETY: refused.
    let after = unsafe { sender.isend(&source.segment(0, 16, 0)) }.unwrap_err();
    assert_eq!(after.kind, ErrorKind::Internal);
    // Others go on, and what is closed is closed.
    Memory::of_receiver(&mut *receiver, vec![0; 16]);
    drop((sender, receiver));
    assert_eq!(PLUGIN.shared.connections.load(Relaxed), 0);
    let (mut sender, mut receiver) = join(&*context, &*context, 0);
    exchange(&mut *sender, &mut *receiver, true);
}

#[test]
fn a_failing_open_can_be_tried_again() {
    own_plugin!(PLUGIN, Broken);
    PLUGIN.broken.store(true, Relaxed);
    let table = export::v11::<Broken>(NAME);
    let mut context = null_mut();
    // SAFETY: NCCL's way to call it.
    let code = unsafe { table.init.unwrap()(&raw mut context, 1, null_mut(), None, None) };
    assert_eq!((code, context), (2, null_mut()));
    // NCCL 2.28 finalises whatever it finds, also the context of another plugin.
    for odd in [null_mut(), (&raw mut context).cast()] {
        // SAFETY: any address is allowed.
        assert_eq!(unsafe { table.finalize.unwrap()(odd) }, 0);
    }
    let old = export::v9::<Broken>(NAME);
    let (init, mut devices) = (old.init.unwrap(), -1);
    // SAFETY: NCCL's way to call them.
    unsafe {
        assert_eq!(init(None), 2);
        assert_eq!(old.devices.unwrap()(&raw mut devices), 3, "nothing is open");
        PLUGIN.broken.store(false, Relaxed);
        assert_eq!(init(None), 0);
        assert_eq!(old.devices.unwrap()(&raw mut devices), 0);
    }
    assert_eq!(devices as u32, DEVICES);
}

#[test]
fn a_plugin_that_cannot_be_made_is_an_error() {
    struct Unmade;
    impl Export for Unmade {
        fn state() -> &'static State {
            static STATE: State = State::new(NAME, || panic!("no memory for plugins"));
            &STATE
        }
    }
    let table = export::v8::<Unmade>(NAME);
    for _ in 0..2 {
        // SAFETY: NCCL's way to call it.
        assert_eq!(unsafe { table.init.unwrap()(None) }, 3);
    }
}

#[test]
fn arguments_that_are_null_or_odd_are_errors() {
    own_plugin!(PLUGIN, Null);
    LazyLock::force(&PLUGIN);
    let table = export::v12::<Null>(NAME);
    let context = init(&table, 1);
    let (mut handle, mut out, mut number): ([u8; 128], *mut c_void, c_int) = ([0; 128], null_mut(), 0);
    let (place, out) = (handle.as_mut_ptr().cast::<c_void>(), &raw mut out);
    // SAFETY: NULL and foreign contexts are checked; the rest is valid.
    let codes = unsafe {
        [
            table.init.unwrap()(null_mut(), 1, null_mut(), None, None),
            table.devices.unwrap()(null_mut()),
            table.get_properties.unwrap()(0, null_mut()),
            table.make_v_device.unwrap()(&raw mut number, null_mut()),
            table.set_net_attr.unwrap()(context, null_mut()),
            table.listen.unwrap()(context, 0, null_mut(), out),
            table.listen.unwrap()(context, 0, place, null_mut()),
            table.listen.unwrap()(context, -1, place, out),
            table.listen.unwrap()(context, 99, place, out),
            table.connect.unwrap()(context, 0, null_mut(), out, null_mut()),
            table.accept.unwrap()(null_mut(), out, null_mut()),
            table.reg_mr.unwrap()(null_mut(), place, 8, 1, out),
            table.dereg_mr.unwrap()(null_mut(), null_mut()),
            table.isend.unwrap()(null_mut(), place, 8, 0, null_mut(), null_mut(), out),
            table.test.unwrap()(null_mut(), &raw mut number, null_mut()),
            table.close_send.unwrap()(null_mut()),
            table.close_listen.unwrap()(null_mut()),
        ]
    };
    assert_eq!(codes, [ErrorKind::InvalidArgument as c_int; 17]);
    // SAFETY: as above.
    let codes = unsafe {
        [
            table.listen.unwrap()(null_mut(), 0, place, out),
            table.listen.unwrap()(place, 0, place, out),
            table.set_net_attr.unwrap()(place, null_mut()),
        ]
    };
    assert_eq!(codes, [3, 3, 4]);
    assert!(table.get_device_mr.is_none() && table.irecv_consumed.is_none());
    // SAFETY: opened above.
    assert_eq!(unsafe { table.finalize.unwrap()(context) }, 0);
    // SAFETY: refused before the arrays are looked at.
    let codes = [0, -1, 9, 1].map(|count| unsafe {
        let none: (*mut *mut c_void, *mut usize) = (null_mut(), null_mut());
        table.irecv.unwrap()(null_mut(), count, none.0, none.1, null_mut(), none.0, none.0, out)
    });
    assert_eq!(codes, [4; 4]);
}

#[test]
fn memory_is_registered_while_another_thread_sends() {
    own_plugin!(PLUGIN, Threads);
    let table = export::v12::<Threads>(NAME);
    let context = init(&table, 1);
    let (mut handle, listener) = listen(&table, context);
    let (mut sender, mut receiver): (*mut c_void, *mut c_void) = (null_mut(), null_mut());
    until("a connection", || {
        // SAFETY: NCCL's way to call them.
        unsafe {
            if sender.is_null() {
                let place = handle.as_mut_ptr().cast();
                assert_eq!(table.connect.unwrap()(context, 0, place, &raw mut sender, null_mut()), 0);
            }
            assert_eq!(table.accept.unwrap()(listener, &raw mut receiver, null_mut()), 0);
        }
        (!receiver.is_null()).then_some(())
    });
    let (comm, register, deregister) =
        (sender.expose_provenance(), table.reg_mr.unwrap(), table.dereg_mr.unwrap());
    let registering = std::thread::spawn(move || {
        let (mut memory, mut mr) = ([0u8; 8], null_mut());
        for _ in 0..500 {
            let comm = std::ptr::with_exposed_provenance_mut(comm);
            // SAFETY: NCCL's service thread does this while its progress thread sends.
            unsafe {
                assert_eq!(register(comm, memory.as_mut_ptr().cast(), 8, 1, &raw mut mr), 0);
                assert_eq!(deregister(comm, mr), 0);
            }
        }
    });
    send_some(&table, sender, receiver);
    registering.join().unwrap();
    // SAFETY: open, and closed once.
    let codes = unsafe {
        [
            table.close_send.unwrap()(sender),
            table.close_recv.unwrap()(receiver),
            table.close_listen.unwrap()(listener),
            table.finalize.unwrap()(context),
        ]
    };
    assert_eq!(codes, [0; 4]);
    assert_eq!(PLUGIN.shared.contexts.load(Relaxed), 0);
}

/// Sends and receives through the C functions, one message at a time.
fn send_some(table: &export::TableV12, sender: *mut c_void, receiver: *mut c_void) {
    let (mut source, mut target) = (vec![0u8; 64], vec![0u8; 64]);
    let (from, mut into) = (source.as_mut_ptr(), target.as_mut_ptr().cast::<c_void>());
    let (mut out_mr, mut in_mr, mut tag, mut bytes) = (null_mut(), null_mut(), 3, 64);
    // SAFETY: NCCL's way to call them; the memory lives until the end.
    unsafe {
        assert_eq!(table.reg_mr.unwrap()(sender, from.cast(), 64, 1, &raw mut out_mr), 0);
        assert_eq!(table.reg_mr.unwrap()(receiver, into, 64, 1, &raw mut in_mr), 0);
    }
    for round in 0..200u8 {
        // SAFETY: nobody else uses the memory between two messages.
        unsafe { from.write_bytes(round, 64) };
        let (mut out, mut inn): (*mut c_void, *mut c_void) = (null_mut(), null_mut());
        until("room", || {
            // SAFETY: as above.
            unsafe {
                let (data, sizes, mrs, request) =
                    (&raw mut into, &raw mut bytes, &raw mut in_mr, &raw mut inn);
                let irecv = table.irecv.unwrap();
                assert_eq!(irecv(receiver, 1, data, sizes, &raw mut tag, mrs, null_mut(), request), 0);
            }
            (!inn.is_null()).then_some(())
        });
        until("room", || {
            let isend = table.isend.unwrap();
            // SAFETY: as above.
            let code = unsafe { isend(sender, from.cast(), 64, tag, out_mr, null_mut(), &raw mut out) };
            assert_eq!(code, 0);
            (!out.is_null()).then_some(())
        });
        for request in [inn, out] {
            let (mut done, mut sizes) = (0, [0; 8]);
            until("the end", || {
                // SAFETY: the request is in flight.
                let code = unsafe { table.test.unwrap()(request, &raw mut done, sizes.as_mut_ptr()) };
                assert_eq!(code, 0);
                (done == 1).then_some(())
            });
            assert_eq!(sizes, [64, 0, 0, 0, 0, 0, 0, 0]);
        }
        // SAFETY: the receive is over.
        assert_eq!(unsafe { into.cast::<u8>().add(63).read() }, round);
    }
}
