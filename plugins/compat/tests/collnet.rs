//! NCCL's collnet plugins of every version behind our traits. The ranks are threads.

mod net_support;

use std::ffi::c_int;
use std::sync::Arc;

use hawser_compat::library::Library;
use hawser_compat::{Found, collnet};
use hawser_plugin::collnet::{
    CollNetComm, CollNetContext, CollNetListener, CollNetSegment, DataType, ReduceOp,
};
use hawser_plugin::net::{Handle, MAX_REQUESTS, MemoryKinds, Registration, Request};
use hawser_plugin::{CollNet, Error, ErrorKind, Log};
use net_support::{Queue, TestPlugin, VERSIONS, region, until};

/// Knobs of collnet_plugin.c.
#[derive(Clone, Copy)]
#[repr(usize)]
enum Knob {
    InitCode,
    Devices,
    Skip,
    FailCall,
    FailCode,
    NoSizes,
    NullObjects,
}

/// Calls of collnet_plugin.c that can be made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
enum Call {
    Devices = 1,
    GetProperties,
    Listen,
    Connect,
    ReduceSupport,
    RegMr,
    DeregMr,
    Iallreduce,
    Iallgather,
    Ireducescatter,
    Iflush,
    Test,
}

/// Counters of collnet_plugin.c.
#[derive(Clone, Copy)]
#[repr(usize)]
enum Seen {
    Init,
    Finalize,
    Devices,
    CommId,
    Listeners,
    Comms,
    Mrs,
    Flushes,
}

/// A collnet test plugin.
struct Switch(TestPlugin);

impl Switch {
    fn new(version: u32) -> Self {
        Self(TestPlugin::new("collnet_plugin", version))
    }

    fn set(&self, knob: Knob, value: c_int) -> &Self {
        self.0.set("collnet_test_knobs", knob as usize, value);
        self
    }

    fn seen(&self, what: Seen) -> i64 {
        self.0.counter("collnet_test_seen", what as usize)
    }

    fn load(&self) -> Result<Found<dyn CollNet>, String> {
        collnet::from_library(&self.0.library).expect("the library holds a collnet table")
    }

    fn open(&self) -> Box<dyn CollNetContext> {
        open(&self.load().unwrap().plugin).unwrap()
    }
}

fn open(plugin: &Arc<dyn CollNet>) -> Result<Box<dyn CollNetContext>, Error> {
    plugin.open(0x77, &Log::silent())
}

/// Runs `body` in a thread per rank, joined by the plugin.
fn with_ranks(context: &dyn CollNetContext, ranks: usize, body: impl Fn(usize, &mut dyn CollNetComm) + Sync) {
    let (handles, listeners): (Vec<Handle>, Vec<_>) = (0..ranks).map(|_| context.listen(0).unwrap()).unzip();
    std::thread::scope(|scope| {
        for (rank, listener) in listeners.into_iter().enumerate() {
            let (handles, body) = (&handles, &body);
            scope.spawn(move || {
                let mut comm = listener.connect(handles, rank as u32).unwrap();
                body(rank, &mut *comm);
            });
        }
    });
}

/// A registered buffer of floats.
struct Floats {
    values: Vec<f32>,
    addr: u64,
    registration: Registration,
}

impl Floats {
    fn new(comm: &mut dyn CollNetComm, mut values: Vec<f32>) -> Self {
        let bytes = values.len() * 4;
        // SAFETY: floats are bytes, too.
        let region = region(unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), bytes) });
        // SAFETY: tests keep the memory until they drop the connection.
        let registration = unsafe { comm.register(&region) }.unwrap();
        Self { values, addr: region.addr, registration }
    }

    fn buffer(&self) -> (u64, Registration) {
        (self.addr, self.registration)
    }

    fn segment(&self, first: usize, count: usize) -> CollNetSegment {
        let (addr, bytes) = (self.addr + first as u64 * 4, count * 4);
        CollNetSegment { registration: self.registration, addr, bytes }
    }
}

fn finished(comm: &mut dyn CollNetComm, request: Request) -> usize {
    until("the end of an operation", || comm.test(request).unwrap())
}

/// Value of an element of a rank's input; sums of a few of them are exact.
fn value(rank: usize, at: usize) -> f32 {
    (at * (rank + 1)) as f32 + rank as f32 / 2.0
}

#[test]
fn every_version_loads_and_says_what_it_has() {
    for version in VERSIONS {
        let plugin = Switch::new(version);
        plugin.set(Knob::Devices, 2);
        let found = plugin.load().unwrap();
        assert_eq!(found.symbol, format!("ncclCollNetPlugin_v{version}"));
        assert_eq!(found.plugin.name(), "Switch");
        let contexts = [open(&found.plugin).unwrap(), open(&found.plugin).unwrap()];
        assert_eq!(plugin.seen(Seen::Init), if version >= 11 { 2 } else { 1 });
        assert_eq!(plugin.seen(Seen::CommId), if version >= 11 { 0x77 } else { 0 });
        assert_eq!(contexts[0].devices(), Ok(2));
        assert_eq!(plugin.seen(Seen::Devices), 1);
        let properties = contexts[1].properties(1).unwrap();
        assert_eq!((properties.name.as_str(), properties.guid, properties.speed_mbps), ("switch", 1, 100));
        assert_eq!(properties.memory, MemoryKinds::HOST);
        assert_eq!(properties.members, [1]);
        let most = if version >= 9 { 1 << 18 } else { 512 << 20 };
        assert_eq!(properties.max_collective_bytes, most);
        assert_eq!(contexts[0].properties(2).unwrap_err().kind, ErrorKind::InvalidArgument);
        for dtype in DataType::ALL {
            for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min, ReduceOp::Avg] {
                let known = matches!(dtype, DataType::Int32 | DataType::Float32);
                let expected = known && matches!(op, ReduceOp::Sum | ReduceOp::Max);
                assert_eq!(contexts[0].supports(dtype, op), Ok(expected), "{dtype:?} {op:?}");
            }
        }
        drop(contexts);
        assert_eq!(plugin.seen(Seen::Finalize), if version >= 11 { 2 } else { 0 });
    }
}

#[test]
fn every_version_reduces() {
    const COUNT: usize = 1000;
    for version in VERSIONS {
        let plugin = Switch::new(version);
        plugin.set(Knob::Skip, 3);
        for ranks in [1, 2, 3] {
            with_ranks(&*plugin.open(), ranks, |rank, comm| {
                let send = Floats::new(comm, (0..COUNT).map(|at| value(rank, at)).collect());
                for op in [ReduceOp::Sum, ReduceOp::Max] {
                    let recv = Floats::new(comm, vec![-1.0; COUNT + 1]);
                    // SAFETY: the buffers are registered and left alone.
                    let request = until("room", || unsafe {
                        comm.iall_reduce(send.buffer(), recv.buffer(), COUNT, DataType::Float32, op).unwrap()
                    });
                    assert_eq!(finished(comm, request), COUNT * 4);
                    let all = |at| (0..ranks).map(move |rank| value(rank, at));
                    let expected = |at| match op {
                        ReduceOp::Sum => all(at).sum(),
                        _ => all(at).fold(f32::MIN, f32::max),
                    };
                    assert!((0..COUNT).all(|at| recv.values[at] == expected(at)), "v{version} {op:?}");
                    assert_eq!(recv.values[COUNT], -1.0);
                    comm.deregister(recv.registration).unwrap();
                }
                comm.deregister(send.registration).unwrap();
            });
        }
        let open = [Seen::Listeners, Seen::Comms, Seen::Mrs].map(|what| plugin.seen(what));
        assert_eq!(open, [0; 3], "all is closed");
    }
}

#[test]
fn parts_of_buffers_are_gathered_and_scattered_since_v8() {
    const RANKS: usize = 3;
    const EACH: usize = 10;
    for version in VERSIONS {
        let plugin = Switch::new(version);
        with_ranks(&*plugin.open(), RANKS, |rank, comm| {
            let send = Floats::new(comm, (0..EACH).map(|at| value(rank, at)).collect());
            let recv = Floats::new(comm, vec![0.0; 3 * RANKS * EACH]);
            // Elements 4 to 28 of the whole, into two pieces.
            let parts = [recv.segment(50, 5), recv.segment(0, 20)];
            // SAFETY: the buffers are registered and left alone.
            let gather = unsafe { comm.iall_gather(send.buffer(), &parts, EACH * 4, (16, 100)) };
            if version < 8 {
                assert_eq!(gather.unwrap_err().kind, ErrorKind::Unsupported);
                return;
            }
            assert_eq!(finished(comm, gather.unwrap().unwrap()), 100);
            let whole = |at: usize| value(at / EACH, at % EACH);
            assert!((0..5).all(|at| recv.values[50 + at] == whole(4 + at)));
            assert!((0..20).all(|at| recv.values[at] == whole(9 + at)));
            let input = Floats::new(comm, (0..RANKS * EACH).map(|at| value(rank, at)).collect());
            let output = Floats::new(comm, vec![0.0; EACH]);
            let parts = [input.segment(0, 7), input.segment(7, RANKS * EACH - 7)];
            let (dtype, op) = (DataType::Float32, ReduceOp::Sum);
            // SAFETY: as above.
            let scatter = unsafe {
                comm.ireduce_scatter(&parts, output.buffer(), EACH * 4, (8, (EACH - 2) * 4), dtype, op)
            };
            assert_eq!(finished(comm, scatter.unwrap().unwrap()), (EACH - 2) * 4);
            let sum = |at: usize| (0..RANKS).map(|rank| value(rank, at)).sum::<f32>();
            assert!((0..EACH - 2).all(|at| output.values[at] == sum(rank * EACH + 2 + at)));
        });
    }
}

#[test]
fn flushes_requests_and_missing_sizes() {
    for version in VERSIONS {
        let plugin = Switch::new(version);
        plugin.set(Knob::NoSizes, 1);
        with_ranks(&*plugin.open(), 1, |_, comm| {
            let data = Floats::new(comm, vec![2.0; 4]);
            // SAFETY: the buffer is registered and left alone.
            let flush = unsafe { comm.flush(data.addr, 16, data.registration) }.unwrap().unwrap();
            assert_eq!(comm.test(flush), Ok(Some(0)));
            assert!(comm.test(flush).unwrap_err().text.contains("not in flight"));
            let begin = |comm: &mut dyn CollNetComm| {
                let (dtype, op) = (DataType::Float32, ReduceOp::Sum);
                // SAFETY: as above.
                unsafe { comm.iall_reduce(data.buffer(), data.buffer(), 4, dtype, op) }.unwrap()
            };
            let requests: Vec<_> = std::iter::from_fn(|| begin(comm)).collect();
            assert_eq!(requests.len(), MAX_REQUESTS, "then it is not now");
            for request in requests {
                assert_eq!(finished(comm, request), 16, "what was asked for");
            }
        });
        assert_eq!(plugin.seen(Seen::Flushes), 1);
    }
}

#[test]
fn virtual_devices_exist_since_v9() {
    for version in VERSIONS {
        let plugin = Switch::new(version);
        plugin.set(Knob::Devices, 3);
        let context = plugin.open();
        let made = context.make_virtual(&[2, 0]);
        if version < 9 {
            assert_eq!(made.unwrap_err().kind, ErrorKind::Unsupported);
        } else {
            assert_eq!((made, context.devices()), (Ok(3), Ok(4)));
        }
    }
}

/// The entries of a version's table, by their names in C.
fn entries(version: u32) -> Vec<&'static str> {
    let first =
        "name init devices getProperties listen connect reduceSupport regMr regMrDmaBuf deregMr iallreduce";
    let parts = if version >= 8 { " iallgather ireducescatter" } else { "" };
    let last = " iflush test closeColl closeListen";
    let since_v9 = if version >= 9 { " makeVDevice" } else { "" };
    let since_v11 = if version >= 11 { " finalize" } else { "" };
    [first, parts, last, since_v9, since_v11].into_iter().flat_map(|names| names.split_whitespace()).collect()
}

#[test]
fn a_plugin_without_devices_needs_no_more_functions() {
    const OPTIONAL: [&str; 5] = ["regMrDmaBuf", "iflush", "iallgather", "ireducescatter", "makeVDevice"];
    for version in VERSIONS {
        let symbol = format!("ncclCollNetPlugin_v{version}");
        let entries = entries(version);
        for (at, entry) in entries.iter().enumerate() {
            let optional = OPTIONAL.contains(entry);
            let plugin = Switch::new(version);
            plugin.0.remove_entry(&symbol, at);
            let loaded = plugin.load();
            if at < 3 {
                let error = loaded.err().unwrap();
                assert!(
                    error.starts_with(&symbol) && error.contains(&format!("its {entry} is NULL")),
                    "{error}"
                );
                continue;
            }
            let plugin = loaded.unwrap().plugin;
            match open(&plugin) {
                Ok(context) => {
                    assert!(optional && context.devices() == Ok(1), "{symbol} does without {entry}")
                }
                Err(error) => {
                    assert!(!optional, "{error}");
                    assert!(error.text.contains(&format!("but {entry} is NULL")), "{error}");
                }
            }
        }
        let bare = Switch::new(version);
        (3..entries.len()).for_each(|at| bare.0.remove_entry(&symbol, at));
        bare.set(Knob::Devices, 0);
        let context = bare.open();
        assert_eq!(context.devices(), Ok(0));
        assert!(context.listen(0).err().unwrap().text.contains("no device 0, only 0"));
        assert!(context.properties(0).is_err() && context.make_virtual(&[0]).is_err());
        assert!(context.supports(DataType::Int8, ReduceOp::Sum).is_err());
    }
}

#[test]
fn optional_functions_are_unsupported_without_a_crash() {
    let plugin = Switch::new(12);
    for entry in [8, 11, 12, 13, 17] {
        plugin.0.remove_entry("ncclCollNetPlugin_v12", entry);
    }
    let context = plugin.open();
    assert_eq!(context.make_virtual(&[0]).unwrap_err().kind, ErrorKind::Unsupported);
    with_ranks(&*context, 1, |_, comm| {
        let data = Floats::new(comm, vec![2.0; 4]);
        let (dtype, op, parts) = (DataType::Float32, ReduceOp::Sum, [data.segment(0, 4)]);
        // SAFETY: the buffer is registered, and refused.
        unsafe {
            assert_eq!(comm.flush(data.addr, 16, data.registration), Ok(None));
            let gather = comm.iall_gather(data.buffer(), &parts, 16, (0, 16));
            assert_eq!(gather.unwrap_err().kind, ErrorKind::Unsupported);
            let scatter = comm.ireduce_scatter(&parts, data.buffer(), 16, (0, 16), dtype, op);
            assert_eq!(scatter.unwrap_err().kind, ErrorKind::Unsupported);
        }
    });
}

/// Makes a call fail and returns the error of the adapter.
fn provoke(plugin: &Switch, call: Call) -> Error {
    let context = match open(&plugin.load().unwrap().plugin) {
        Ok(context) => context,
        Err(error) => return error,
    };
    match call {
        Call::GetProperties => return context.properties(0).unwrap_err(),
        Call::Listen => return context.listen(0).err().unwrap(),
        Call::ReduceSupport => return context.supports(DataType::Int8, ReduceOp::Sum).unwrap_err(),
        _ => {}
    }
    let (handle, listener): (Handle, Box<dyn CollNetListener>) = context.listen(0).unwrap();
    let mut comm = match listener.connect(&[handle], 0) {
        Ok(comm) => comm,
        Err(error) => return error,
    };
    let mut bytes = vec![0; 64];
    let region = region(&mut bytes);
    // SAFETY: the memory outlives the connection.
    let registration = match unsafe { comm.register(&region) } {
        Ok(registration) => registration,
        Err(error) => return error,
    };
    let (buffer, dtype, op) = ((region.addr, registration), DataType::Int32, ReduceOp::Sum);
    let parts = [CollNetSegment { registration, addr: region.addr, bytes: 64 }];
    // SAFETY: the memory is registered.
    unsafe {
        match call {
            Call::DeregMr => comm.deregister(registration).unwrap_err(),
            Call::Iallreduce => comm.iall_reduce(buffer, buffer, 4, dtype, op).unwrap_err(),
            Call::Iallgather => comm.iall_gather(buffer, &parts, 64, (0, 64)).unwrap_err(),
            Call::Ireducescatter => comm.ireduce_scatter(&parts, buffer, 64, (0, 64), dtype, op).unwrap_err(),
            Call::Iflush => comm.flush(region.addr, 64, registration).unwrap_err(),
            Call::Test => {
                let request = comm.iall_reduce(buffer, buffer, 4, dtype, op).unwrap().unwrap();
                comm.test(request).unwrap_err()
            }
            other => panic!("{other:?} has no way to fail"),
        }
    }
}

#[test]
fn every_call_that_fails_says_which_and_why() {
    const CALLS: [(Call, &str, u32); 12] = [
        (Call::Devices, "devices", 6),
        (Call::GetProperties, "getProperties", 6),
        (Call::Listen, "listen on device 0", 6),
        (Call::Connect, "connect of rank 0 of 1", 6),
        (Call::ReduceSupport, "reduceSupport", 6),
        (Call::RegMr, "regMr", 6),
        (Call::DeregMr, "deregMr", 6),
        (Call::Iallreduce, "iallreduce", 6),
        (Call::Iallgather, "iallgather", 8),
        (Call::Ireducescatter, "ireducescatter", 8),
        (Call::Iflush, "iflush", 6),
        (Call::Test, "test", 6),
    ];
    for version in VERSIONS {
        let who = format!("collnet plugin 'Switch' (ncclCollNetPlugin_v{version} of ");
        for (call, name, _) in CALLS.into_iter().filter(|(_, _, since)| version >= *since) {
            for (code, kind) in [(2, ErrorKind::System), (8, ErrorKind::Internal)] {
                let plugin = Switch::new(version);
                plugin.set(Knob::FailCode, code).set(Knob::FailCall, call as c_int);
                let error = provoke(&plugin, call);
                assert_eq!(error.kind, kind, "v{version} {name}: {error}");
                assert!(error.text.starts_with(&who), "{error}");
                assert!(error.text.contains(&format!("): {name} failed with {code} (")), "{error}");
            }
        }
        let plugin = Switch::new(version);
        plugin.set(Knob::InitCode, 6);
        let error = open(&plugin.load().unwrap().plugin).err().unwrap();
        assert_eq!(error.kind, ErrorKind::Remote);
        assert!(error.text.contains("init failed with 6"), "{error}");
    }
}

#[test]
fn objects_that_are_not_there_are_the_plugins_bug() {
    for version in VERSIONS {
        let plugin = Switch::new(version);
        let context = plugin.open();
        plugin.set(Knob::NullObjects, 1);
        let error = context.listen(0).err().unwrap();
        assert!(error.text.contains("listen gave no listener"), "{error}");
        plugin.set(Knob::NullObjects, 2);
        let (handle, listener) = context.listen(0).unwrap();
        let error = listener.connect(&[handle], 0).err().unwrap();
        assert!(error.text.contains("connect gave no connection"), "{error}");
        let (handle, listener) = context.listen(0).unwrap();
        assert_eq!(listener.connect(&[handle], 1).err().unwrap().kind, ErrorKind::InvalidArgument);
    }
}

#[test]
fn old_tables_refuse_what_their_types_cannot_say() {
    for version in 6..=8 {
        let plugin = Switch::new(version);
        with_ranks(&*plugin.open(), 1, |_, comm| {
            let data = Floats::new(comm, vec![0.0; 4]);
            // SAFETY: refused before anybody looks at the memory.
            let error = unsafe {
                comm.iall_reduce(data.buffer(), data.buffer(), 1 << 31, DataType::Float32, ReduceOp::Sum)
            };
            let error = error.unwrap_err();
            assert!(error.text.contains("iallreduce: 2147483648 is more than 2147483647"), "{error}");
            if version == 8 {
                let long = CollNetSegment { bytes: 1 << 32, ..data.segment(0, 4) };
                // SAFETY: as above.
                let error = unsafe { comm.iall_gather(data.buffer(), &[long], 16, (0, 16)) }.unwrap_err();
                assert!(error.text.contains("4294967296 is more than 4294967295"), "{error}");
            }
        });
    }
}

#[test]
fn two_of_one_version_live_side_by_side_and_net_libraries_hold_none() {
    let (one, two) = (Switch::new(10), Switch::new(10));
    two.set(Knob::Devices, 2);
    let (first, second) = (one.open(), two.open());
    assert_eq!((first.devices(), second.devices()), (Ok(1), Ok(2)));
    assert!(collnet::from_library(&Queue::new(9).0.library).is_none());
    assert!(collnet::from_library(&Library::program()).is_none());
    let symbols: Vec<_> = collnet::symbols().collect();
    let expected: Vec<_> = (6..=12).rev().map(|version| format!("ncclCollNetPlugin_v{version}")).collect();
    assert_eq!(symbols, expected, "newest first");
}
