//! A net plugin for tests, inside one process: copies from posted sends to posted receives, and is as awkward
//! as the contract allows (answers "not now" at random, completes late). Named "test"; built into the test
//! programs.
//!
//! It fails where plugins exist that would wait: in `accept` before the peer's `connect` was called, and in
//! `isend` before the peer has accepted.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use hawser_plugin::net::{
    Connector, HANDLE_BYTES, Handle, Listener, NetConfig, NetContext, NetProperties, Receiver, Region,
    Registration, Request, Segment, Sender,
};
use hawser_plugin::{BuiltIn, Component, Error, ErrorKind, Net, Result, inventory};

inventory::submit! {
    BuiltIn { name: "test", priority: 1, make: || Component::Net(Arc::new(TestNet)) }
}

/// The plugin that the module describes.
pub struct TestNet;

/// Bytes that connections of the whole process carried so far.
pub fn bytes_carried() -> u64 {
    CARRIED.load(Ordering::Relaxed)
}

static CARRIED: AtomicU64 = AtomicU64::new(0);

/// Returns true if the plugin was opened with this traffic class.
pub fn was_opened_with(traffic_class: i32) -> bool {
    CLASSES.lock().unwrap_or_else(PoisonError::into_inner).contains(&traffic_class)
}

static CLASSES: Mutex<Vec<i32>> = Mutex::new(Vec::new());

/// After so many more sends of the whole process, one fails; `u64::MAX` = never.
pub fn break_after(sends: u64) {
    LEFT.store(sends, Ordering::Relaxed);
}

static LEFT: AtomicU64 = AtomicU64::new(u64::MAX);

/// After so many more sends of the whole process no message arrives any more, and no send ends, until this is
/// called again; `u64::MAX` = never.
pub fn stall_after(sends: u64) {
    IS_STALLED.store(false, Ordering::Relaxed);
    UNTIL_STALL.store(sends, Ordering::Relaxed);
}

static UNTIL_STALL: AtomicU64 = AtomicU64::new(u64::MAX);

static IS_STALLED: AtomicBool = AtomicBool::new(false);

/// Flips a bit in the middle of one of the next messages of the whole process, after so many of more than
/// 1,000 bytes; `u64::MAX` = never.
pub fn flip_after(messages: u64) {
    UNTIL_FLIP.store(messages, Ordering::Relaxed);
}

static UNTIL_FLIP: AtomicU64 = AtomicU64::new(u64::MAX);

/// Counts down to the number 0, of which it says true once.
fn is_turn(left: &AtomicU64) -> bool {
    let count = |left: u64| (left != u64::MAX).then(|| left.checked_sub(1).unwrap_or(u64::MAX));
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count) == Ok(0)
}

/// Connections whose receivers were closed with receives in flight.
pub fn closed_with_receives() -> u64 {
    CLOSED_EARLY.load(Ordering::Relaxed)
}

static CLOSED_EARLY: AtomicU64 = AtomicU64::new(0);

/// The state that both ends of a connection share.
#[derive(Default)]
struct Pipe {
    sends: VecDeque<(u64, Segment)>,
    receives: VecDeque<(u64, Segment)>,
    /// Finished requests and their sizes.
    done: HashMap<u64, usize>,
    next: u64,
    called: bool,
    connected: bool,
    accepted: bool,
    closed: [bool; 2],
}

impl Pipe {
    /// Copies as far as sends meet receives.
    fn carry(&mut self) {
        if IS_STALLED.load(Ordering::Relaxed) {
            return;
        }
        while let (Some(&(send, from)), Some(&(receive, to))) = (self.sends.front(), self.receives.front()) {
            assert!(from.bytes <= to.bytes, "a send of {} bytes meets a receive of {}", from.bytes, to.bytes);
            // SAFETY: both ends promised memory that stays valid until their requests are done.
            unsafe { std::ptr::copy_nonoverlapping(from.addr as *const u8, to.addr as *mut u8, from.bytes) };
            if from.bytes > 1000 && is_turn(&UNTIL_FLIP) {
                // SAFETY: a byte of what was just written.
                unsafe { *((to.addr as *mut u8).add(from.bytes / 2)) ^= 0x40 };
            }
            CARRIED.fetch_add(from.bytes as u64, Ordering::Relaxed);
            self.done.extend([(send, from.bytes), (receive, from.bytes)]);
            self.sends.pop_front();
            self.receives.pop_front();
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

/// One end of a pipe.
struct End {
    pipe: Arc<Mutex<Pipe>>,
    side: usize,
    dice: u64,
    /// The memory that is registered here.
    regions: Vec<Option<Region>>,
}

impl End {
    fn lock(&self) -> MutexGuard<'_, Pipe> {
        self.pipe.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn register(&mut self, region: &Region) -> Registration {
        self.regions.push(Some(*region));
        Registration(self.regions.len() as u64 - 1)
    }

    fn deregister(&mut self, registration: Registration) {
        let region = self.regions.get_mut(registration.0 as usize).and_then(Option::take);
        assert!(region.is_some(), "what is deregistered was registered");
    }

    fn check(&self, segment: &Segment) {
        let region = self.regions.get(segment.registration.0 as usize).copied().flatten();
        let holds = |region: Region| {
            let end = region.addr + region.bytes as u64;
            region.addr <= segment.addr && segment.addr + segment.bytes as u64 <= end
        };
        assert!(region.is_some_and(holds), "a segment outside its registration: {segment:?} {region:?}");
    }

    /// True once in four.
    fn not_now(&mut self) -> bool {
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        self.dice.is_multiple_of(4)
    }

    fn post(&mut self, segment: &Segment) -> Result<Option<Request>> {
        self.check(segment);
        if self.side == 0 && is_turn(&LEFT) {
            let timed_out = std::io::Error::from_raw_os_error(110);
            return Err(Error::system("sending through the test net", timed_out));
        }
        if self.side == 0 && is_turn(&UNTIL_STALL) {
            IS_STALLED.store(true, Ordering::Relaxed);
        }
        if self.not_now() {
            return Ok(None);
        }
        let mut pipe = self.lock();
        let number = pipe.number();
        let queue = if self.side == 0 { &mut pipe.sends } else { &mut pipe.receives };
        queue.push_back((number, *segment));
        pipe.carry();
        Ok(Some(Request(number)))
    }

    fn done(&mut self, request: Request) -> Result<Option<usize>> {
        if self.not_now() {
            return Ok(None);
        }
        let mut pipe = self.lock();
        let done = pipe.done.remove(&request.0);
        if done.is_none() && pipe.closed[1 - self.side] {
            return Err(Error::remote("the peer closed the connection"));
        }
        Ok(done)
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let mut pipe = self.lock();
        pipe.closed[self.side] = true;
        // Its memory is not touched any more.
        let own = if self.side == 0 { &mut pipe.sends } else { &mut pipe.receives };
        own.clear();
    }
}

fn pipes() -> &'static Mutex<HashMap<u64, Arc<Mutex<Pipe>>>> {
    static PIPES: OnceLock<Mutex<HashMap<u64, Arc<Mutex<Pipe>>>>> = OnceLock::new();
    PIPES.get_or_init(Mutex::default)
}

impl Net for TestNet {
    fn name(&self) -> &str {
        "test"
    }

    fn open(&self, config: &NetConfig) -> Result<Box<dyn NetContext>> {
        CLASSES.lock().unwrap_or_else(PoisonError::into_inner).extend(config.traffic_class);
        let program = std::env::current_exe().unwrap_or_default();
        let is_alone = program.file_stem().is_some_and(|name| name == "hawser-test-rank");
        if is_alone && std::env::var_os("NCCL_NET").is_none_or(|name| name != "test") {
            return Err(Error::new(ErrorKind::InvalidUsage, "the ranks are in processes of their own"));
        }
        Ok(Box::new(Context))
    }
}

struct Context;

impl NetContext for Context {
    fn devices(&self) -> Result<u32> {
        Ok(2)
    }

    fn properties(&self, device: u32) -> Result<NetProperties> {
        Ok(NetProperties::new(format!("test{device}"), device))
    }

    fn listen(&self, _device: u32) -> Result<(Handle, Box<dyn Listener>)> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = u64::from(std::process::id()) << 32 | NEXT.fetch_add(1, Ordering::Relaxed);
        let pipe = Arc::new(Mutex::new(Pipe::default()));
        pipes().lock().unwrap_or_else(PoisonError::into_inner).insert(number, pipe.clone());
        let mut handle = [0; HANDLE_BYTES];
        handle[..8].copy_from_slice(&number.to_le_bytes());
        Ok((handle, Box::new(Waiting { pipe, dice: number.wrapping_mul(0x9e37_79b9) | 1 })))
    }

    fn connect(&self, _device: u32, handle: &Handle) -> Result<Box<dyn Connector>> {
        let number = u64::from_le_bytes(handle[..8].try_into().unwrap_or_default());
        let pipe = pipes().lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
        let pipe = pipe.ok_or_else(|| Error::remote("nobody of this process listens there"))?;
        Ok(Box::new(Waiting { pipe, dice: number.wrapping_mul(0x85eb_ca6b) | 1 }))
    }
}

/// Either end before the connection is up.
struct Waiting {
    pipe: Arc<Mutex<Pipe>>,
    dice: u64,
}

impl Connector for Waiting {
    fn poll(&mut self) -> Result<Option<Box<dyn Sender>>> {
        let mut end = End { pipe: self.pipe.clone(), side: 0, dice: self.dice, regions: Vec::new() };
        end.lock().called = true;
        let not_now = end.not_now();
        self.dice = end.dice;
        if not_now {
            std::mem::forget(end);
            return Ok(None);
        }
        end.lock().connected = true;
        Ok(Some(Box::new(end)))
    }
}

impl Listener for Waiting {
    fn accept(&mut self) -> Result<Option<Box<dyn Receiver>>> {
        let mut pipe = self.pipe.lock().unwrap_or_else(PoisonError::into_inner);
        if !pipe.called {
            return Err(Error::internal("accept before the peer's connect: some plugins wait here"));
        }
        pipe.accepted = pipe.connected;
        let end = || End { pipe: self.pipe.clone(), side: 1, dice: self.dice, regions: Vec::new() };
        Ok(pipe.connected.then(|| Box::new(end()) as Box<dyn Receiver>))
    }
}

impl Sender for End {
    unsafe fn register(&mut self, region: &Region) -> Result<Registration> {
        Ok(End::register(self, region))
    }

    fn deregister(&mut self, registration: Registration) -> Result<()> {
        End::deregister(self, registration);
        Ok(())
    }

    unsafe fn isend(&mut self, segment: &Segment) -> Result<Option<Request>> {
        if !self.lock().accepted {
            return Err(Error::internal("isend before the peer has accepted: some plugins wait here"));
        }
        self.post(segment)
    }

    fn test(&mut self, request: Request) -> Result<Option<usize>> {
        self.done(request)
    }
}

impl Receiver for End {
    unsafe fn register(&mut self, region: &Region) -> Result<Registration> {
        Ok(End::register(self, region))
    }

    fn deregister(&mut self, registration: Registration) -> Result<()> {
        End::deregister(self, registration);
        let is_early = !self.lock().receives.is_empty();
        CLOSED_EARLY.fetch_add(is_early.into(), Ordering::Relaxed);
        Ok(())
    }

    unsafe fn irecv(&mut self, segments: &[Segment], _optional: bool) -> Result<Option<Request>> {
        self.post(&segments[0])
    }

    fn test(&mut self, request: Request, sizes: &mut [usize]) -> Result<bool> {
        let done = self.done(request)?;
        if let (Some(bytes), Some(size)) = (done, sizes.first_mut()) {
            *size = bytes;
        }
        Ok(done.is_some())
    }
}
