//! A pair of hosts on a soft fabric, and a stream of checked messages between them.
#![allow(dead_code)] // each test binary uses its part

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use hawser_net_ib::soft::Fabric;
use hawser_net_ib::{IbNet, Settings, stats};
use hawser_plugin::net::{
    MemoryKinds, NetConfig, NetContext, Receiver, Region, Registration, Request, Segment, Sender,
};
use hawser_plugin::{Error, Log, Net};

/// Nothing in these tests takes longer, however busy the machine is.
pub const LIMIT: Duration = Duration::from_secs(60);
/// Longest message.
const MOST: usize = 400_000;
/// Buffers of each end.
const BUFFERS: usize = 24;

/// The profiler's handle that sends carry.
pub const PARENT: u64 = 77;

/// Settings for tests: the handshake over the loopback interface, quick to notice silence.
pub fn settings() -> Settings {
    let mut settings = Settings::default();
    settings.ifname = Some("=lo".into());
    settings.silence = Duration::from_millis(300);
    settings.chunk = 64 << 10;
    settings
}

/// Asks until there is an answer.
pub fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "{what}: nothing happened");
        std::thread::yield_now();
    }
}

/// A connection between two hosts with several devices each; the sender's come first.
pub struct Pair {
    pub fabric: Fabric,
    pub sender: Box<dyn Sender>,
    pub receiver: Box<dyn Receiver>,
    pub from: Box<dyn NetContext>,
    pub to: Box<dyn NetContext>,
}

impl Pair {
    pub fn new(devices: usize, settings: Settings) -> Self {
        Self::between(devices, devices, settings)
    }

    pub fn between(senders: usize, receivers: usize, settings: Settings) -> Self {
        Self::with(senders, receivers, settings, &NetConfig::new(1, Log::silent()))
    }

    pub fn with(senders: usize, receivers: usize, settings: Settings, config: &NetConfig) -> Self {
        let fabric = Fabric::new(senders + receivers);
        let open = |range| {
            let net = IbNet::on_soft(settings.clone(), fabric.host(range));
            net.open(config).unwrap()
        };
        let (from, to) = (open(0..senders), open(senders..senders + receivers));
        let virtual_of = |context: &dyn NetContext, count: usize| {
            let members: Vec<u32> = (0..count as u32).collect();
            context.make_virtual(&members).unwrap()
        };
        let (near, far) = (virtual_of(&*from, senders), virtual_of(&*to, receivers));
        let (handle, mut listener) = to.listen(far).unwrap();
        let mut connector = from.connect(near, &handle).unwrap();
        let (mut sender, mut receiver) = (None, None);
        until("connecting", || {
            sender = sender.take().or_else(|| connector.poll().unwrap());
            receiver = receiver.take().or_else(|| listener.accept().unwrap());
            (sender.is_some() && receiver.is_some()).then_some(())
        });
        Self { fabric, sender: sender.unwrap(), receiver: receiver.unwrap(), from, to }
    }

    pub fn stopped(&self) -> u64 {
        stats().stopped
    }

    pub fn raised(&self) -> u64 {
        stats().raised
    }
}

fn region(bytes: &[u8]) -> Region {
    Region { addr: bytes.as_ptr() as u64, bytes: bytes.len(), kind: MemoryKinds::HOST, dmabuf: None }
}

fn pattern(seed: usize, number: usize, bytes: &mut [u8]) {
    let mut state = (seed as u64) << 32 ^ number as u64 ^ 0x9e37_79b9_7f4a_7c15;
    for chunk in bytes.chunks_mut(8) {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let word = (state >> 7).to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
}

fn size(seed: usize, number: usize) -> usize {
    [0, 1, 100, 4097, 70_000, MOST, 65_536][(seed * 31 + number * 7 + number / 5) % 7]
}

type Flying = VecDeque<(usize, usize, Request)>;

/// A stream of messages, moved a step at a time by one thread.
pub struct Stream {
    seed: usize,
    total: usize,
    sent: usize,
    begun: usize,
    posted: usize,
    received: usize,
    sources: Vec<(Vec<u8>, Registration)>,
    targets: Vec<(Vec<u8>, Registration)>,
    sends: Flying,
    receives: Flying,
}

impl Stream {
    pub fn new(seed: usize, total: usize) -> Self {
        let (sources, targets) = (Vec::new(), Vec::new());
        let (sends, receives) = (Flying::new(), Flying::new());
        Self { seed, total, sent: 0, begun: 0, posted: 0, received: 0, sources, targets, sends, receives }
    }

    pub fn received(&self) -> usize {
        self.received
    }

    fn prepare(&mut self, pair: &mut Pair) {
        while self.sources.len() < BUFFERS {
            let (source, target) = (vec![0; MOST], vec![0xa5; MOST]);
            // SAFETY: both live as long as the pair in every test.
            let registrations = unsafe {
                (
                    pair.sender.register(&region(&source)).unwrap(),
                    pair.receiver.register(&region(&target)).unwrap(),
                )
            };
            self.sources.push((source, registrations.0));
            self.targets.push((target, registrations.1));
        }
    }

    fn segment(buffer: &(Vec<u8>, Registration), bytes: usize) -> Segment {
        Segment { addr: buffer.0.as_ptr() as u64, bytes, registration: buffer.1, tag: 0, profile: PARENT }
    }

    /// Posts, sends and tests what there is.
    pub fn step(&mut self, pair: &mut Pair) -> Result<(), Error> {
        self.prepare(pair);
        while self.posted < self.total && self.receives.len() < BUFFERS / 2 {
            let (number, at) = (self.posted, self.posted % BUFFERS);
            // Poisoned when it was used last: a late write would have changed it.
            assert!(
                self.targets[at].0.iter().all(|&byte| byte == 0xa5),
                "a late write before message {number}"
            );
            let segment = Self::segment(&self.targets[at], size(self.seed, number));
            // SAFETY: the buffer is not touched before the request is done.
            let Some(request) = (unsafe { pair.receiver.irecv(&[segment], false)? }) else { break };
            self.receives.push_back((number, at, request));
            self.posted += 1;
        }
        while self.begun < self.total && self.sends.len() < BUFFERS / 2 {
            let (number, at) = (self.begun, self.begun % BUFFERS);
            let bytes = size(self.seed, number);
            pattern(self.seed, number, &mut self.sources[at].0[..bytes]);
            let segment = Self::segment(&self.sources[at], bytes);
            // SAFETY: the buffer is not written before the request is done.
            let Some(request) = (unsafe { pair.sender.isend(&segment)? }) else { break };
            self.sends.push_back((number, at, request));
            self.begun += 1;
        }
        while let Some(&(number, at, request)) = self.sends.front() {
            let Some(bytes) = pair.sender.test(request)? else { break };
            assert_eq!(bytes, size(self.seed, number));
            self.sources[at].0[..bytes].fill(0xee);
            self.sends.pop_front();
            self.sent += 1;
        }
        while let Some(&(number, at, request)) = self.receives.front() {
            let mut sizes = [usize::MAX];
            if !pair.receiver.test(request, &mut sizes)? {
                break;
            }
            self.check(number, at, sizes[0]);
            self.receives.pop_front();
            self.received += 1;
        }
        Ok(())
    }

    /// The error of the sender alone, once it has failed.
    #[allow(dead_code)] // not every test asks
    pub fn error_of_sender(&mut self, pair: &mut Pair) -> Option<Error> {
        if let Some(&(_, _, request)) = self.sends.front() {
            return pair.sender.test(request).err();
        }
        let segment = Self::segment(&self.sources[0], 1);
        // SAFETY: the buffer lives as long as the stream, and nothing is sent any more.
        unsafe { pair.sender.isend(&segment) }.err()
    }

    /// The error of the receiver alone, once it has failed; a receive is in flight.
    #[allow(dead_code)] // not every test asks
    pub fn error_of_receiver(&mut self, pair: &mut Pair) -> Option<Error> {
        let &(_, _, request) = self.receives.front().expect("a receive in flight");
        pair.receiver.test(request, &mut [usize::MAX]).err()
    }

    fn check(&mut self, number: usize, at: usize, bytes: usize) {
        assert_eq!(bytes, size(self.seed, number), "message {number}");
        let mut wanted = vec![0; bytes];
        pattern(self.seed, number, &mut wanted);
        let buffer = &mut self.targets[at].0;
        assert!(buffer[..bytes] == wanted[..], "message {number} is corrupt");
        assert!(
            buffer[bytes..].iter().all(|&byte| byte == 0xa5),
            "message {number} is followed by something"
        );
        buffer[..bytes].fill(0xa5);
    }

    /// Goes on until so many messages were received.
    pub fn run_to(&mut self, pair: &mut Pair, received: usize) {
        until("messages", || {
            self.step(pair).unwrap();
            (self.received >= received.min(self.total)).then_some(())
        });
    }

    /// A step of a stream that must not end yet.
    pub fn more(&mut self, pair: &mut Pair) {
        self.total = self.total.max(self.received + 100);
        self.step(pair).unwrap();
    }

    /// Goes on to the end.
    pub fn finish(&mut self, pair: &mut Pair) {
        until("the last messages", || {
            self.step(pair).unwrap();
            (self.received == self.total && self.sent == self.total).then_some(())
        });
        let clean = |(buffer, _): &(Vec<u8>, Registration)| buffer.iter().all(|&byte| byte == 0xa5);
        assert!(self.targets.iter().all(clean), "a late write after the end");
    }
}
