//! NCCL's net plugins of every version behind our traits: what goes wrong, and what the user is told.

mod net_support;

use hawser_compat::library::Library;
use hawser_compat::net;
use hawser_plugin::net::{HANDLE_BYTES, MemoryKinds, Region, Registration, Request, Segment};
use hawser_plugin::{Error, ErrorKind};
use net_support::*;

#[test]
fn a_library_without_a_table_is_no_plugin() {
    assert!(net::from_library(&Library::program()).is_none());
    let symbols: Vec<_> = net::symbols().collect();
    let expected: Vec<_> = (6..=12).rev().map(|version| format!("ncclNetPlugin_v{version}")).collect();
    assert_eq!(symbols, expected, "newest first");
}

#[test]
fn a_missing_function_is_named() {
    const ENTRIES: [&str; 17] = [
        "name",
        "init",
        "devices",
        "getProperties",
        "listen",
        "connect",
        "accept",
        "regMr",
        "regMrDmaBuf",
        "deregMr",
        "isend",
        "irecv",
        "iflush",
        "test",
        "closeSend",
        "closeRecv",
        "closeListen",
    ];
    const LATER: [&str; 5] = ["getDeviceMr", "irecvConsumed", "makeVDevice", "finalize", "setNetAttr"];
    const OPTIONAL: [&str; 6] =
        ["regMrDmaBuf", "iflush", "getDeviceMr", "irecvConsumed", "makeVDevice", "setNetAttr"];
    for version in VERSIONS {
        let later = match version {
            6 => 0,
            7 | 8 => 2,
            9 | 10 => 3,
            _ => 5,
        };
        let symbol = format!("ncclNetPlugin_v{version}");
        for (at, entry) in ENTRIES.iter().chain(&LATER[..later]).enumerate() {
            let plugin = Queue::new(version);
            plugin.0.remove_entry(&symbol, at);
            let loaded = plugin.load();
            if OPTIONAL.contains(entry) {
                assert_eq!(loaded.unwrap().symbol, symbol, "without {entry}");
                continue;
            }
            let error = loaded.err().unwrap_or_else(|| panic!("{symbol} does without {entry}"));
            assert!(error.starts_with(&symbol), "{error}");
            assert!(error.contains(&format!("its {entry} is NULL")), "{error}");
        }
    }
}

#[test]
fn without_optional_functions_their_calls_are_unsupported() {
    let plugin = Queue::new(12);
    for entry in [8, 12, 17, 18, 19, 21] {
        plugin.0.remove_entry("ncclNetPlugin_v12", entry);
    }
    let context = plugin.open();
    let (mut sender, mut receiver) = join(&*context, &*context, 0);
    exchange(&mut *sender, &mut *receiver, true);
    let mut bytes = vec![0; 8];
    let region = Region { kind: MemoryKinds::DMABUF, dmabuf: Some((3, 0)), ..region(&mut bytes) };
    // SAFETY: nothing is registered.
    let refused = unsafe { receiver.register(&region) }.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Unsupported);
    assert!(refused.text.contains("regMrDmaBuf"), "{refused}");
    let target = Memory::of_receiver(&mut *receiver, bytes);
    // SAFETY: the memory is registered.
    assert_eq!(unsafe { receiver.flush(&[target.segment(0, 8, 0)]) }, Ok(None));
    assert_eq!(receiver.consumed(1, Request(1)), Ok(()));
    assert_eq!(context.make_virtual(&[0]).unwrap_err().kind, ErrorKind::Unsupported);
    assert_eq!(context.set_attributes(&Default::default()), Ok(()));
}

#[test]
fn the_newest_table_counts_even_if_it_fails() {
    let plugin = Queue::new(12); // has a v8 table as well
    assert!(plugin.0.library.data("ncclNetPlugin_v8").is_some());
    plugin.set(Knob::InitCode, 2);
    let found = plugin.load().unwrap();
    assert_eq!(found.symbol, "ncclNetPlugin_v12");
    let error = found.plugin.open(&config()).err().unwrap();
    assert_eq!(error.kind, ErrorKind::System);
    assert!(error.text.contains("init failed with 2 (ncclSystemError)"), "{error}");
}

#[test]
fn a_failed_init_is_final_before_v11() {
    for version in VERSIONS {
        let plugin = Queue::new(version);
        plugin.set(Knob::InitCode, 8);
        let net = plugin.load().unwrap().plugin;
        let error = net.open(&config()).err().unwrap();
        assert_eq!(error.kind, ErrorKind::Internal);
        let start = format!("net plugin 'Queue' (ncclNetPlugin_v{version} of ");
        assert!(error.text.starts_with(&start) && error.text.contains("init failed with 8"), "{error}");
        plugin.set(Knob::InitCode, 0);
        let again = net.open(&config());
        match version {
            6..11 => assert_eq!(again.err(), Some(error)),
            _ => assert_eq!(again.ok().unwrap().devices(), Ok(2)),
        }
        assert_eq!(plugin.seen(Seen::Init), if version >= 11 { 2 } else { 1 });
        assert_eq!(plugin.seen(Seen::Finalize), if version >= 11 { 1 } else { 0 }, "no context, no end");
    }
}

#[test]
fn impossible_numbers_of_devices_are_errors() {
    for version in VERSIONS {
        for (devices, possible) in [(0, true), (1024, true), (1025, false), (-1, false), (i32::MIN, false)] {
            let plugin = Queue::new(version);
            plugin.set(Knob::Devices, devices);
            let context = plugin.open();
            match context.devices() {
                Ok(count) => assert!(possible && count as i32 == devices, "{devices}"),
                Err(error) => {
                    assert!(!possible, "{error}");
                    assert!(error.text.contains(&format!("says {devices} devices")), "{error}");
                    assert!(context.listen(0).is_err());
                }
            }
        }
        let plugin = Queue::new(version);
        plugin.set(Knob::Devices, 0);
        let context = plugin.open();
        assert_eq!(context.properties(0).unwrap_err().kind, ErrorKind::InvalidArgument);
        assert_eq!(context.listen(0).err().unwrap().kind, ErrorKind::InvalidArgument);
        assert_eq!(plugin.seen(Seen::GetProperties), 0);
    }
}

/// The call that is made to fail, its name in C, and an error of the adapter's making for it.
fn provoke(plugin: &Queue, call: Call) -> Error {
    let context = plugin.open();
    match call {
        Call::Devices => return context.devices().unwrap_err(),
        Call::GetProperties => return context.properties(0).unwrap_err(),
        Call::Listen => return context.listen(0).err().unwrap(),
        Call::MakeVDevice => return context.make_virtual(&[0]).unwrap_err(),
        Call::SetNetAttr => return context.set_attributes(&Default::default()).unwrap_err(),
        _ => {}
    }
    let (handle, mut listener) = context.listen(0).unwrap();
    let mut connector = context.connect(0, &handle).unwrap();
    if call == Call::Connect {
        let error = connector.poll().err().unwrap();
        assert!(connector.poll().err().unwrap().text.contains("used up"));
        return error;
    }
    if call == Call::Accept {
        let error = listener.accept().err().unwrap();
        assert!(listener.accept().err().unwrap().text.contains("used up"));
        return error;
    }
    let (mut sender, mut receiver) = establish(connector, listener);
    let mut bytes = vec![0; 8];
    // SAFETY: the memory outlives the connection.
    let registration = match unsafe { sender.register(&region(&mut bytes)) } {
        Err(error) => return error,
        Ok(registration) => registration,
    };
    let segment = Segment { addr: bytes.as_ptr() as u64, bytes: 8, registration, tag: 0, profile: 0 };
    // SAFETY: the memory is registered where it is used, or the call fails before that matters.
    unsafe {
        match call {
            Call::DeregMr => sender.deregister(registration).unwrap_err(),
            Call::Isend => sender.isend(&segment).unwrap_err(),
            Call::Irecv => receiver.irecv(&[segment], false).unwrap_err(),
            Call::Iflush => receiver.flush(&[segment]).unwrap_err(),
            Call::Test => {
                let request = sender.isend(&segment).unwrap().unwrap();
                sender.test(request).unwrap_err()
            }
            other => panic!("{other:?} has no way to fail"),
        }
    }
}

#[test]
fn every_call_that_fails_says_which_and_why() {
    const CALLS: [(Call, &str, u32); 13] = [
        (Call::Devices, "devices", 6),
        (Call::GetProperties, "getProperties", 6),
        (Call::Listen, "listen on device 0", 6),
        (Call::Connect, "connect on device 0", 6),
        (Call::Accept, "accept", 6),
        (Call::RegMr, "regMr", 6),
        (Call::DeregMr, "deregMr", 6),
        (Call::Isend, "isend", 6),
        (Call::Irecv, "irecv", 6),
        (Call::Iflush, "iflush", 6),
        (Call::Test, "test", 6),
        (Call::MakeVDevice, "makeVDevice of 1 devices", 9),
        (Call::SetNetAttr, "setNetAttr", 11),
    ];
    for version in VERSIONS {
        for (call, name, since) in CALLS.into_iter().filter(|(_, _, since)| version >= *since) {
            for (code, kind) in [(6, ErrorKind::Remote), (8, ErrorKind::Internal), (-3, ErrorKind::Internal)]
            {
                let plugin = Queue::new(version);
                let error = provoke(plugin.fail(call, code), call);
                assert_eq!(error.kind, kind, "v{version} {name}, since {since}: {error}");
                let expected = format!("): {name} failed with {code} (");
                assert!(error.text.contains(&expected), "v{version}: {error}");
            }
        }
    }
}

#[test]
fn failing_to_close_is_survived() {
    for version in VERSIONS {
        let plugin = Queue::new(version);
        plugin.fail(Call::Close, 2);
        let context = plugin.open();
        drop(join(&*context, &*context, 0));
        assert_eq!((plugin.seen(Seen::Senders), plugin.seen(Seen::Receivers)), (0, 0));
    }
}

#[test]
fn sizes_that_a_plugin_does_not_write_stay_preset() {
    for version in VERSIONS {
        let plugin = Queue::new(version);
        plugin.set(Knob::Sizes, 1);
        let context = plugin.open();
        let (mut sender, mut receiver) = join(&*context, &*context, 0);
        exchange(&mut *sender, &mut *receiver, false);
    }
}

#[test]
fn nonsense_sizes_fail_a_receive_and_not_a_send() {
    let plugin = Queue::new(9);
    let context = plugin.open();
    let (mut sender, mut receiver) = join(&*context, &*context, 0);
    let source = Memory::of_sender(&mut *sender, vec![1; 8]);
    let target = Memory::of_receiver(&mut *receiver, vec![0; 8]);
    let into = receive(&mut *receiver, &[target.segment(0, 8, 0)]);
    let out = send(&mut *sender, &source.segment(0, 8, 0));
    plugin.set(Knob::Sizes, 2);
    assert_eq!(sent(&mut *sender, out), 8);
    let error = receiver.test(into, &mut [0]).unwrap_err();
    assert!(error.text.contains("test says -7 bytes arrived in a buffer of 8"), "{error}");
}

#[test]
fn a_longer_send_than_receive_is_the_users_mistake() {
    for version in VERSIONS {
        let context = Queue::new(version).open();
        let (mut sender, mut receiver) = join(&*context, &*context, 0);
        let source = Memory::of_sender(&mut *sender, vec![1; 8]);
        let target = Memory::of_receiver(&mut *receiver, vec![0; 8]);
        let into = receive(&mut *receiver, &[target.segment(0, 7, 0)]);
        send(&mut *sender, &source.segment(0, 8, 0));
        assert_eq!(receiver.test(into, &mut [0]).unwrap_err().kind, ErrorKind::InvalidUsage);
        assert_eq!(target.bytes, [0; 8]);
    }
}

#[test]
fn old_tables_refuse_what_an_int_cannot_say() {
    const TOO_LONG: usize = 1 << 31;
    for version in 6..=8 {
        let plugin = Queue::new(version);
        let context = plugin.open();
        assert_eq!(context.properties(0).unwrap().max_p2p_bytes, 1 << 30, "hosts cut before that");
        let (mut sender, mut receiver) = join(&*context, &*context, 0);
        let long = Segment { addr: 4096, bytes: TOO_LONG, registration: Registration(1), tag: 0, profile: 0 };
        // SAFETY: refused before anybody looks at the memory.
        let (out, into) = unsafe { (sender.isend(&long), receiver.irecv(&[long], false)) };
        for (error, call) in [(out.unwrap_err(), "isend"), (into.unwrap_err(), "irecv")] {
            assert_eq!(error.kind, ErrorKind::InvalidArgument);
            assert!(error.text.contains(call) && error.text.contains("2147483648"), "{error}");
        }
        let region = Region { addr: 4096, bytes: TOO_LONG, kind: MemoryKinds::HOST, dmabuf: None };
        // SAFETY: refused, or the test plugin only notes it.
        let registered = unsafe { sender.register(&region) };
        match version {
            8 => assert!(registered.is_ok()),
            _ => assert!(registered.unwrap_err().text.contains("use pieces")),
        }
        exchange(&mut *sender, &mut *receiver, true);
    }
}

#[test]
fn groups_larger_than_the_device_takes_are_refused() {
    let context = Queue::new(8).open();
    let (_sender, mut receiver) = join(&*context, &*context, 0);
    let target = Memory::of_receiver(&mut *receiver, vec![0; 8]);
    let group = vec![target.segment(0, 8, 0); 9];
    // SAFETY: refused before anybody looks at the memory.
    let (many, none, flush) =
        unsafe { (receiver.irecv(&group, false), receiver.irecv(&[], false), receiver.flush(&group)) };
    for error in [many.unwrap_err(), none.unwrap_err(), flush.unwrap_err()] {
        assert_eq!(error.kind, ErrorKind::InvalidArgument, "{error}");
    }
}

#[test]
fn dead_and_unknown_requests_are_not_passed_on() {
    let context = Queue::new(10).open();
    let (mut sender, mut receiver) = join(&*context, &*context, 0);
    let source = Memory::of_sender(&mut *sender, vec![1; 8]);
    let target = Memory::of_receiver(&mut *receiver, vec![0; 8]);
    let into = receive(&mut *receiver, &[target.segment(0, 8, 0)]);
    let out = send(&mut *sender, &source.segment(0, 8, 0));
    assert!(sender.test(into).unwrap_err().text.contains("not in flight"));
    received(&mut *receiver, into, 1);
    sent(&mut *sender, out);
    assert!(receiver.test(into, &mut [0]).unwrap_err().text.contains("not in flight"));
    assert!(sender.test(out).unwrap_err().text.contains("not in flight"));
}

#[test]
fn a_listener_that_is_not_there_is_the_plugins_bug() {
    for version in VERSIONS {
        let plugin = Queue::new(version);
        plugin.set(Knob::NullObjects, 1);
        let error = plugin.open().listen(0).err().unwrap();
        assert!(error.text.contains("gave no listener; this is a bug of the plugin"), "{error}");
    }
}

#[test]
fn a_foreign_handle_is_an_error_of_connect() {
    for version in VERSIONS {
        let context = Queue::new(version).open();
        let mut connector = context.connect(1, &[7; HANDLE_BYTES]).unwrap();
        assert!(connector.poll().err().unwrap().text.contains("connect on device 1 failed with 3"));
        assert!(context.connect(9, &[7; HANDLE_BYTES]).is_err());
    }
}

#[test]
fn odd_properties_are_made_usable() {
    for version in VERSIONS {
        let plugin = Queue::new(version);
        plugin.set(Knob::Properties, 1);
        assert_eq!(plugin.open().properties(1).unwrap().name, "unnamed");
        let plugin = Queue::new(version);
        plugin.set(Knob::Properties, 2);
        let context = plugin.open();
        let properties = context.properties(1).unwrap();
        assert_eq!(properties.memory, MemoryKinds::HOST);
        assert_eq!((properties.speed_mbps, properties.port, properties.latency_us), (0, 0, 0.0));
        assert_eq!((properties.max_comms, properties.max_recvs), (1, 8));
        assert_eq!(properties.members, [1]);
        assert_eq!(properties.max_p2p_bytes, 1 << 30);
        let collective = if version >= 9 { 1 << 40 } else { 512 << 20 };
        assert_eq!(properties.max_collective_bytes, collective);
        let (mut sender, mut receiver) = join(&*context, &*context, 1);
        exchange(&mut *sender, &mut *receiver, true);
    }
}

#[test]
fn tables_in_memory_are_checked_too() {
    // SAFETY: refused before the address is used.
    let (unknown, null) = unsafe {
        let null = std::ptr::null();
        (net::from_table("ncclNetPlugin_v5", null), net::from_table("ncclNetPlugin_v6", null))
    };
    assert!(unknown.err().unwrap().contains("not the name of a net table"));
    assert!(null.err().unwrap().contains("no table"));
}
