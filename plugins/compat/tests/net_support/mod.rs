//! Parts that the tests of net and collnet plugins share: compiling test plugins, their knobs, and moving
//! data.

#![allow(dead_code)] // each test file uses a part of it

use std::collections::BTreeMap;
use std::ffi::{c_int, c_long};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

use hawser_compat::library::Library;
use hawser_compat::{Found, net};
use hawser_plugin::net::{
    Connector, Listener, MemoryKinds, NetConfig, NetContext, Receiver, Region, Registration, Request,
    Segment, Sender,
};
use hawser_plugin::{Log, Net};

/// All versions there are.
pub const VERSIONS: std::ops::RangeInclusive<u32> = 6..=12;
/// Attempts before a test gives up waiting; nothing here takes more than a few hundred.
const ATTEMPTS: usize = 100_000;

/// A copy of a test plugin of tests/c for a version, in a directory of its own, so that it has statics of its
/// own. Each is compiled once per test program.
pub fn compile(source: &str, version: u32) -> (tempfile::TempDir, PathBuf) {
    static COMPILED: Mutex<BTreeMap<(String, u32), Vec<u8>>> = Mutex::new(BTreeMap::new());
    let directory = tempfile::tempdir().unwrap();
    let library = directory.path().join(format!("lib{source}-v{version}.so"));
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    let bytes = compiled.entry((source.to_owned(), version)).or_insert_with(|| {
        run_compiler(source, version, &library);
        std::fs::read(&library).unwrap()
    });
    std::fs::write(&library, bytes).unwrap();
    (directory, library)
}

fn run_compiler(source: &str, version: u32, library: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/c/{source}.c"));
    let output = Command::new("cc")
        .args(["-std=c11", "-D_GNU_SOURCE", "-shared", "-fPIC", "-O1", "-pthread"])
        .args(["-Wall", "-Wextra", "-Werror", &format!("-DVERSION={version}"), "-o"])
        .arg(library)
        .arg(source)
        .output()
        .expect("the tests need a C compiler called cc");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A test plugin and its knobs. Each has a file of its own, so no two tests share state.
pub struct TestPlugin {
    pub library: Arc<Library>,
    pub path: PathBuf,
    _directory: tempfile::TempDir,
}

impl TestPlugin {
    pub fn new(source: &str, version: u32) -> Self {
        let (directory, path) = compile(source, version);
        let library = Library::open(&path).unwrap();
        Self { library, path, _directory: directory }
    }

    /// Sets a number of the plugin's, by the name of its array.
    pub fn set(&self, array: &str, at: usize, value: c_int) {
        let array = self.library.data(array).unwrap().cast::<c_int>().cast_mut();
        // SAFETY: the plugin has an int array of that name with at least so many entries, and is not running.
        unsafe { array.add(at).write_volatile(value) };
    }

    /// Reads a counter of the plugin's, by the name of its array.
    pub fn counter(&self, array: &str, at: usize) -> i64 {
        let array = self.library.data(array).unwrap().cast::<c_long>();
        // SAFETY: the plugin has a long array of that name with at least so many entries.
        unsafe { array.add(at).read_volatile() }
    }

    /// Takes an entry out of a table; entry 0 is the name.
    pub fn remove_entry(&self, symbol: &str, at: usize) {
        let table = self.library.data(symbol).unwrap().cast::<usize>().cast_mut();
        // SAFETY: test plugins have writable tables, of pointers only.
        unsafe { table.add(at).write(0) };
    }
}

/// Knobs of net_plugin.c.
#[derive(Clone, Copy)]
#[repr(usize)]
pub enum Knob {
    InitCode,
    Devices,
    Skip,
    ConnectDelay,
    AcceptDelay,
    FailCall,
    FailCode,
    Sizes,
    Properties,
    NullObjects,
}

/// Calls of net_plugin.c that can be made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Call {
    Devices = 1,
    GetProperties,
    Listen,
    Connect,
    Accept,
    RegMr,
    DeregMr,
    Isend,
    Irecv,
    Iflush,
    Test,
    MakeVDevice,
    SetNetAttr,
    Close,
}

/// Counters of net_plugin.c.
#[derive(Clone, Copy)]
#[repr(usize)]
pub enum Seen {
    Init,
    Finalize,
    Devices,
    GetProperties,
    CommId,
    TrafficClass,
    Listeners,
    Senders,
    Receivers,
    Mrs,
    Optional,
    Flushes,
    Profile,
    MrKind,
    MrFd,
    MrOffset,
    Members,
    AttributeOp,
    Consumed,
}

/// A net test plugin.
pub struct Queue(pub TestPlugin);

impl Queue {
    pub fn new(version: u32) -> Self {
        Self(TestPlugin::new("net_plugin", version))
    }

    pub fn set(&self, knob: Knob, value: c_int) -> &Self {
        self.0.set("net_test_knobs", knob as usize, value);
        self
    }

    pub fn fail(&self, call: Call, code: c_int) -> &Self {
        self.set(Knob::FailCode, code).set(Knob::FailCall, call as c_int)
    }

    pub fn seen(&self, what: Seen) -> i64 {
        self.0.counter("net_test_seen", what as usize)
    }

    pub fn load(&self) -> Result<Found<dyn Net>, String> {
        net::from_library(&self.0.library).expect("the library holds a net table")
    }

    pub fn open(&self) -> Box<dyn NetContext> {
        open(&self.load().unwrap().plugin)
    }
}

pub fn config() -> NetConfig {
    NetConfig::new(0x1234, Log::silent())
}

pub fn open(net: &Arc<dyn Net>) -> Box<dyn NetContext> {
    net.open(&config()).unwrap()
}

/// Asks until there is an answer.
pub fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    for _ in 0..ATTEMPTS {
        if let Some(answer) = ask() {
            return answer;
        }
        std::thread::yield_now();
    }
    panic!("{what} never came");
}

/// Both ends of a connection from `from` to `to`.
pub fn join(from: &dyn NetContext, to: &dyn NetContext, device: u32) -> (Box<dyn Sender>, Box<dyn Receiver>) {
    let (handle, listener) = to.listen(device).unwrap();
    establish(from.connect(device, &handle).unwrap(), listener)
}

/// Polls both sides in turn, as hosts do.
pub fn establish(
    mut connector: Box<dyn Connector>,
    mut listener: Box<dyn Listener>,
) -> (Box<dyn Sender>, Box<dyn Receiver>) {
    let (mut sender, mut receiver) = (None, None);
    until("a connection", || {
        if sender.is_none() {
            sender = connector.poll().unwrap();
        }
        if receiver.is_none() {
            receiver = listener.accept().unwrap();
        }
        (sender.is_some() && receiver.is_some()).then(|| (sender.take().unwrap(), receiver.take().unwrap()))
    })
}

/// Memory that is registered at one end.
pub struct Memory {
    pub bytes: Vec<u8>,
    pub registration: Registration,
    addr: u64,
}

impl Memory {
    pub fn of_sender(sender: &mut dyn Sender, mut bytes: Vec<u8>) -> Self {
        let region = region(&mut bytes);
        // SAFETY: tests keep the memory until they drop the connection.
        let registration = unsafe { sender.register(&region) }.unwrap();
        Self { bytes, registration, addr: region.addr }
    }

    pub fn of_receiver(receiver: &mut dyn Receiver, mut bytes: Vec<u8>) -> Self {
        let region = region(&mut bytes);
        // SAFETY: tests keep the memory until they drop the connection.
        let registration = unsafe { receiver.register(&region) }.unwrap();
        Self { bytes, registration, addr: region.addr }
    }

    pub fn segment(&self, at: usize, bytes: usize, tag: i32) -> Segment {
        assert!(at + bytes <= self.bytes.len());
        Segment { addr: self.addr + at as u64, bytes, registration: self.registration, tag, profile: 0 }
    }
}

pub fn region(bytes: &mut [u8]) -> Region {
    Region { addr: bytes.as_mut_ptr() as u64, bytes: bytes.len(), kind: MemoryKinds::HOST, dmabuf: None }
}

/// Bytes that differ from place to place and from seed to seed.
pub fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|at| (at.wrapping_mul(31) ^ (at >> 8) ^ seed.wrapping_mul(7)) as u8).collect()
}

/// Posts a send, asking again while there is no room.
pub fn send(sender: &mut dyn Sender, segment: &Segment) -> Request {
    // SAFETY: tests keep the memory and do not touch it until the request is done.
    until("room for a send", || unsafe { sender.isend(segment) }.unwrap())
}

/// Posts a receive, asking again while there is no room.
pub fn receive(receiver: &mut dyn Receiver, segments: &[Segment]) -> Request {
    // SAFETY: tests keep the memory and do not touch it until the request is done.
    until("room for a receive", || unsafe { receiver.irecv(segments, false) }.unwrap())
}

/// Waits for a send and gives its bytes.
pub fn sent(sender: &mut dyn Sender, request: Request) -> usize {
    until("the end of a send", || sender.test(request).unwrap())
}

/// Waits for a receive of `segments` and gives the bytes of each; what a plugin does not write stays
/// `usize::MAX`.
pub fn received(receiver: &mut dyn Receiver, request: Request, segments: usize) -> Vec<usize> {
    let mut sizes = vec![usize::MAX; segments];
    until("the end of a receive", || receiver.test(request, &mut sizes).unwrap().then_some(()));
    sizes
}

/// Moves messages of several lengths over a connection, several at a time, and checks them.
pub fn exchange(sender: &mut dyn Sender, receiver: &mut dyn Receiver, knows_sizes: bool) {
    let lengths = [1usize, 0, 7, 4096, 65536, 3, 100_000, 0];
    let total: usize = lengths.iter().sum();
    let source = Memory::of_sender(sender, pattern(total, 1));
    // Receives are larger than sends.
    let target = Memory::of_receiver(receiver, vec![0xee; total + 16 * lengths.len()]);
    let mut requests = Vec::new();
    let (mut from, mut to) = (0, 0);
    for length in lengths {
        let into = receive(receiver, &[target.segment(to, length + 16, 5)]);
        requests.push((send(sender, &source.segment(from, length, 5)), into));
        from += length;
        to += length + 16;
    }
    let (mut from, mut to) = (0, 0);
    for ((out, into), length) in requests.into_iter().zip(lengths) {
        assert_eq!(received(receiver, into, 1), [if knows_sizes { length } else { usize::MAX }]);
        assert_eq!(sent(sender, out), length);
        assert_eq!(target.bytes[to..to + length], source.bytes[from..from + length]);
        assert_eq!(target.bytes[to + length..to + length + 16], [0xee; 16]);
        from += length;
        to += length + 16;
    }
    sender.deregister(source.registration).unwrap();
    receiver.deregister(target.registration).unwrap();
}

/// Moves groups of messages whose tags come in another order than the buffers, and checks them.
pub fn exchange_groups(sender: &mut dyn Sender, receiver: &mut dyn Receiver, group: usize) {
    const LENGTH: usize = 100;
    const GROUPS: usize = 3;
    let source = Memory::of_sender(sender, pattern(GROUPS * group * LENGTH, 2));
    let target = Memory::of_receiver(receiver, vec![0; GROUPS * group * LENGTH]);
    let place = |groups: usize, at: usize| (groups * group + at) * LENGTH;
    let mut requests = Vec::new();
    for number in 0..GROUPS {
        // Two buffers share a tag: the first one is filled first.
        let tag = |at: usize| (number * 100 + at.saturating_sub(1)) as i32;
        let segments: Vec<_> =
            (0..group).map(|at| target.segment(place(number, at), LENGTH, tag(at))).collect();
        requests.push(receive(receiver, &segments));
        let order = (0..group).rev().filter(|at| *at > 1).chain(0..group.min(2));
        for at in order {
            let bytes = LENGTH - at;
            let out = send(sender, &source.segment(place(number, at), bytes, tag(at)));
            requests.push(out);
        }
    }
    for (number, chunk) in requests.chunks(group + 1).enumerate() {
        let sizes = received(receiver, chunk[0], group);
        for out in &chunk[1..] {
            sent(sender, *out);
        }
        for (at, size) in sizes.into_iter().enumerate() {
            assert_eq!(size, LENGTH - at);
            let range = place(number, at)..place(number, at) + size;
            assert_eq!(target.bytes[range.clone()], source.bytes[range], "group {number}, buffer {at}");
        }
    }
    sender.deregister(source.registration).unwrap();
    receiver.deregister(target.registration).unwrap();
}
