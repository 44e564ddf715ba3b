//! Parts that the tests share: a pair of ranks in one process, and transfers that check every byte.
#![allow(dead_code)] // each test binary uses its part

use std::time::{Duration, Instant};

use hawser_net_socket::{Settings, SocketNet};
use hawser_plugin::net::{
    MemoryKinds, NetConfig, NetContext, Receiver, Region, Registration, Request, Segment, Sender,
};
use hawser_plugin::{Error, Log, Net};

/// Nothing in these tests takes longer, however busy the machine is.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Settings with this many threads and data sockets, on the loopback interface.
pub fn settings(threads: usize, sockets: usize) -> Settings {
    let mut settings = Settings::new(2);
    settings.threads = threads;
    settings.sockets = sockets;
    settings.ifname = Some("=lo".into());
    settings.family = Some(hawser_oob::interface::Family::V4);
    settings
}

pub fn open(settings: &Settings) -> Box<dyn NetContext> {
    open_with_log(settings, Log::silent())
}

pub fn open_with_log(settings: &Settings, log: Log) -> Box<dyn NetContext> {
    SocketNet::with_settings(settings.clone()).open(&NetConfig::new(7, log)).unwrap()
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

/// A connection from `from` to `to`.
pub fn connect(
    from: &dyn NetContext,
    to: &dyn NetContext,
    device: u32,
) -> (Box<dyn Sender>, Box<dyn Receiver>) {
    let (handle, mut listener) = to.listen(device).unwrap();
    let mut connector = from.connect(device, &handle).unwrap();
    let (mut sender, mut receiver) = (None, None);
    until("connecting", || {
        sender = sender.take().or_else(|| connector.poll().unwrap());
        receiver = receiver.take().or_else(|| listener.accept().unwrap());
        (sender.is_some() && receiver.is_some()).then_some(())
    });
    (sender.unwrap(), receiver.unwrap())
}

/// Memory that is registered at one end.
pub struct Buffer {
    pub bytes: Vec<u8>,
    pub registration: Registration,
}

impl Buffer {
    fn region(bytes: &[u8]) -> Region {
        Region { addr: bytes.as_ptr() as u64, bytes: bytes.len(), kind: MemoryKinds::HOST, dmabuf: None }
    }

    pub fn at_sender(sender: &mut dyn Sender, bytes: Vec<u8>) -> Self {
        // SAFETY: the vector is neither moved nor dropped before the connection.
        let registration = unsafe { sender.register(&Self::region(&bytes)) }.unwrap();
        Self { bytes, registration }
    }

    pub fn at_receiver(receiver: &mut dyn Receiver, bytes: Vec<u8>) -> Self {
        // SAFETY: the vector is neither moved nor dropped before the connection.
        let registration = unsafe { receiver.register(&Self::region(&bytes)) }.unwrap();
        Self { bytes, registration }
    }

    pub fn segment(&self, tag: i32) -> Segment {
        Segment {
            addr: self.bytes.as_ptr() as u64,
            bytes: self.bytes.len(),
            registration: self.registration,
            tag,
            profile: 0,
        }
    }
}

/// The bytes of message `number`.
pub fn pattern(number: usize, bytes: usize) -> Vec<u8> {
    let mut state = number as u64 ^ 0x9e37_79b9_7f4a_7c15;
    let mut made = Vec::with_capacity(bytes + 8);
    while made.len() < bytes {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        made.extend_from_slice(&(state >> 11).to_le_bytes());
    }
    made.truncate(bytes);
    made
}

/// A stream of messages over one connection, moved a step at a time by one thread.
pub struct Stream {
    sizes: Vec<usize>,
    in_flight: usize,
    sends: Vec<Option<(Buffer, Request)>>,
    receives: Vec<Option<(Buffer, Request)>>,
    sent: usize,
    pub received: usize,
    /// Bytes by which receives are longer than sends.
    slack: usize,
}

impl Stream {
    pub fn new(sizes: Vec<usize>, in_flight: usize, slack: usize) -> Self {
        let (sends, receives) = (Vec::new(), Vec::new());
        Self { sizes, in_flight, sends, receives, sent: 0, received: 0, slack }
    }

    pub fn is_over(&self) -> bool {
        self.sent == self.sizes.len() && self.received == self.sizes.len()
    }

    /// Posts what there is room for and tests the oldest.
    pub fn step(&mut self, sender: &mut dyn Sender, receiver: &mut dyn Receiver) -> Result<(), Error> {
        while self.receives.len() < self.sizes.len() && self.receives.len() - self.received < self.in_flight {
            let bytes = vec![0xee; self.sizes[self.receives.len()] + self.slack];
            let buffer = Buffer::at_receiver(receiver, bytes);
            // SAFETY: the buffer lives in `self.receives` until the request is done.
            let Some(request) = (unsafe { receiver.irecv(&[buffer.segment(3)], false)? }) else {
                receiver.deregister(buffer.registration)?;
                break;
            };
            self.receives.push(Some((buffer, request)));
        }
        while self.sends.len() < self.sizes.len() && self.sends.len() - self.sent < self.in_flight {
            let number = self.sends.len();
            let buffer = Buffer::at_sender(sender, pattern(number, self.sizes[number]));
            // SAFETY: the buffer lives in `self.sends` until the request is done.
            let Some(request) = (unsafe { sender.isend(&buffer.segment(3))? }) else {
                sender.deregister(buffer.registration)?;
                break;
            };
            self.sends.push(Some((buffer, request)));
        }
        while let Some(Some((buffer, request))) = self.sends.get(self.sent) {
            let Some(bytes) = sender.test(*request)? else { break };
            assert_eq!(bytes, buffer.bytes.len());
            sender.deregister(buffer.registration)?;
            self.sends[self.sent] = None;
            self.sent += 1;
        }
        while let Some(Some((buffer, request))) = self.receives.get(self.received) {
            let mut sizes = [usize::MAX];
            if !receiver.test(*request, &mut sizes)? {
                break;
            }
            let expected = self.sizes[self.received];
            assert_eq!(sizes, [expected], "message {}", self.received);
            let whole = buffer.bytes[..expected] == pattern(self.received, expected);
            assert!(whole, "message {} of {expected} bytes is damaged", self.received);
            assert!(buffer.bytes[expected..].iter().all(|&byte| byte == 0xee), "bytes after the message");
            receiver.deregister(buffer.registration)?;
            self.receives[self.received] = None;
            self.received += 1;
        }
        Ok(())
    }

    /// Until all messages are there.
    pub fn finish(&mut self, sender: &mut dyn Sender, receiver: &mut dyn Receiver) {
        until("moving messages", || {
            self.step(sender, receiver).unwrap();
            self.is_over().then_some(())
        });
    }
}

const ROLE: &str = "HAWSER_SOCKET_TEST_ROLE";

/// Runs one test of this program in a process of its own, which finds `input` with [`role`].
pub fn child(test: &str, input: &[u8]) -> std::process::Child {
    let digits: String = input.iter().map(|byte| format!("{byte:02x}")).collect();
    std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--quiet"])
        .env(ROLE, format!("{test}:{digits}"))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap()
}

/// The input, if this process was started for that test.
pub fn role(test: &str) -> Option<Vec<u8>> {
    let text = std::env::var(ROLE).ok()?;
    let digits = text.strip_prefix(test)?.strip_prefix(':')?;
    let byte = |i: usize| u8::from_str_radix(&digits[i..i + 2], 16).unwrap();
    Some((0..digits.len()).step_by(2).map(byte).collect())
}

/// Tells the process that started this one.
pub fn tell(bytes: &[u8]) {
    use std::io::Write;
    // What the test harness prints lies in front of it.
    let mut out = std::io::stdout();
    out.write_all(MARK).unwrap();
    out.write_all(bytes).unwrap();
    out.flush().unwrap();
}

const MARK: &[u8] = b"<told>";

/// The bytes that [`tell`] printed.
pub fn hear(child: &mut std::process::Child, bytes: usize) -> Vec<u8> {
    use std::io::Read;
    let out = child.stdout.as_mut().unwrap();
    let mut seen = Vec::new();
    while !seen.ends_with(MARK) {
        let mut byte = [0];
        out.read_exact(&mut byte).unwrap();
        seen.push(byte[0]);
    }
    let mut told = vec![0; bytes];
    out.read_exact(&mut told).unwrap();
    told
}

/// Ends when the process that started this one does, at the latest.
pub fn wait_to_be_killed() {
    use std::io::Read;
    let _ = std::io::stdin().read(&mut [0]);
}

/// The handle with another port.
pub fn redirect(handle: &[u8; 128], port: u16) -> [u8; 128] {
    let mut changed = *handle;
    changed[50..52].copy_from_slice(&port.to_be_bytes());
    let [a, b, c, d, ..] = changed;
    hawser_oob::handle::seal([a, b, c, d], &mut changed);
    changed
}
