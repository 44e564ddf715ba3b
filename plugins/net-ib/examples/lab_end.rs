//! One end of a connection over the machine's verbs, for `tests/lab`: sends or receives numbered messages
//! with a check sum for some seconds, or until the file `/run/lab-stop` is there, and prints what happened: a
//! line for each gap in the traffic, and a last one.
//!
//!     lab_end receive PORT SECONDS BYTES      then, on the other machine
//!     lab_end send ADDRESS:PORT SECONDS BYTES
//!
//! With a fifth word, `unchecked`, nothing is filled in or looked at, to measure.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use hawser_net_ib::{IbNet, stats};
use hawser_plugin::net::{
    HANDLE_BYTES, MemoryKinds, NetConfig, NetContext, Region, Registration, Request, Segment,
};
use hawser_plugin::{Error, Log, Net};

/// Messages under way.
const FLYING: usize = 8;
/// Time without a message that is worth a line.
const GAP: Duration = Duration::from_millis(60);
/// Turns without anything new before it rests.
const SPINS: u32 = 100;
/// A buffer that nobody may write.
const POISON: u8 = 0xa5;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, role, place, seconds, bytes, more @ ..] = &arguments[..] else {
        panic!("see the top of the source")
    };
    let checked = !more.iter().any(|word| word == "unchecked");
    let (seconds, bytes): (u64, usize) = (seconds.parse().unwrap(), bytes.parse().unwrap());
    let log = Log::new(|_, _, text| println!("log {text}"));
    let context = IbNet::new().open(&NetConfig::new(1, log)).unwrap();
    let devices = context.devices().unwrap();
    assert!(devices > 0, "no devices");
    let members: Vec<u32> = (0..devices).collect();
    let device = context.make_virtual(&members).unwrap();
    let time = Duration::from_secs(seconds);
    let mut end = match role.as_str() {
        "receive" => End::receiver(&*context, device, place.parse().unwrap(), bytes),
        _ => End::sender(&*context, device, place, bytes),
    };
    end.checked = checked;
    println!("up");
    end.run(time);
}

enum Half {
    Out(Box<dyn hawser_plugin::net::Sender>),
    In(Box<dyn hawser_plugin::net::Receiver>),
}

struct End {
    half: Half,
    buffers: Vec<(Vec<u8>, Registration)>,
    flying: VecDeque<(u64, usize, Request)>,
    begun: u64,
    over: u64,
    checked: bool,
    /// For the last message.
    peer: TcpStream,
}

/// The longest time between two things.
struct Pause {
    last: Instant,
    longest: Duration,
}

impl Pause {
    fn new() -> Self {
        Self { last: Instant::now(), longest: Duration::ZERO }
    }

    /// It happened now. How long it took.
    fn happened(&mut self) -> Duration {
        let took = self.last.elapsed();
        self.last += took;
        self.longest = self.longest.max(took);
        took
    }
}

/// Milliseconds for which this thread could have run and the guest's kernel ran something else (proc(5),
/// schedstat).
fn queued() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_whitespace().nth(1).and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0) / 1_000_000
}

impl End {
    fn receiver(context: &dyn NetContext, device: u32, port: u16, bytes: usize) -> Self {
        let (mut peer, _) = TcpListener::bind(("0.0.0.0", port)).unwrap().accept().unwrap();
        let (handle, mut listener) = context.listen(device).unwrap();
        peer.write_all(&handle).unwrap();
        let mut receiver = wait(|| listener.accept());
        let buffers = (0..3 * FLYING).map(|_| {
            let buffer = vec![POISON; bytes];
            // SAFETY: the buffers live as long as the connection.
            let registration = unsafe { receiver.register(&region(&buffer)) }.unwrap();
            (buffer, registration)
        });
        let buffers = buffers.collect();
        Self {
            half: Half::In(receiver),
            buffers,
            flying: VecDeque::new(),
            begun: 0,
            over: 0,
            checked: true,
            peer,
        }
    }

    fn sender(context: &dyn NetContext, device: u32, place: &str, bytes: usize) -> Self {
        let start = Instant::now();
        let mut peer = loop {
            match TcpStream::connect(place) {
                Ok(peer) => break peer,
                Err(error) => assert!(start.elapsed().as_secs() < 60, "{place}: {error}"),
            }
            std::thread::sleep(Duration::from_millis(200));
        };
        let mut handle = [0; HANDLE_BYTES];
        peer.read_exact(&mut handle).unwrap();
        let mut connector = context.connect(device, &handle).unwrap();
        let mut sender = wait(|| connector.poll());
        let buffers = (0..3 * FLYING).map(|_| {
            let buffer = vec![0; bytes];
            // SAFETY: the buffers live as long as the connection.
            let registration = unsafe { sender.register(&region(&buffer)) }.unwrap();
            (buffer, registration)
        });
        let buffers = buffers.collect();
        Self {
            half: Half::Out(sender),
            buffers,
            flying: VecDeque::new(),
            begun: 0,
            over: 0,
            checked: true,
            peer,
        }
    }

    fn run(&mut self, time: Duration) {
        let start = Instant::now();
        let (mut message, mut turn, mut told) = (Pause::new(), Pause::new(), Instant::now());
        let (mut stop, mut idle, mut waited, is_sender) =
            (false, 0, queued(), matches!(self.half, Half::Out(_)));
        while !(stop && is_sender && self.flying.is_empty()) {
            let before = self.over;
            if let Err(error) = self.step(!is_sender || !stop) {
                let silent = message.last.elapsed();
                if self.is_end() {
                    break;
                }
                println!("error after {} ms: {error}", silent.as_millis());
                return;
            }
            // How long this process did not even get to look, and for how much of it the guest's processor
            // was elsewhere.
            turn.happened();
            idle = if self.over > before { 0 } else { idle + 1 };
            if idle > SPINS {
                // As the library's proxy does.
                std::thread::sleep(Duration::from_micros(200));
            }
            if self.over > before {
                let gap = message.happened();
                let own = std::mem::take(&mut turn.longest);
                let queued = queued();
                if gap > GAP {
                    let (gap, own) = (gap.as_millis(), own.as_millis());
                    println!("gap {gap} ms own {own} ms messages {before} queued {} ms", queued - waited);
                }
                waited = queued;
            }
            if told.elapsed() > Duration::from_millis(500) {
                told = Instant::now();
                stop = start.elapsed() > time || Path::new("/run/lab-stop").exists();
            }
        }
        if is_sender {
            self.peer.write_all(&self.over.to_le_bytes()).unwrap();
        }
        let (own, seconds) = (stats(), start.elapsed().as_secs_f64());
        println!(
            "done messages {} longest gap {} ms resent {} stopped {} raised {} MB/s {:.2}",
            self.over,
            message.longest.as_millis(),
            own.resent,
            own.stopped,
            own.raised,
            self.over as f64 * self.buffers[0].0.len() as f64 / seconds / 1e6,
        );
    }

    /// The sender has ended in peace, and everything that it sent has come.
    fn is_end(&mut self) -> bool {
        let is_receiver = matches!(self.half, Half::In(_));
        let mut sent = [0; 8];
        let told = is_receiver
            && self.peer.set_read_timeout(Some(Duration::from_secs(2))).is_ok()
            && self.peer.read_exact(&mut sent).is_ok();
        told && u64::from_le_bytes(sent) == self.over
    }

    fn step(&mut self, more: bool) -> Result<(), Error> {
        while more && self.flying.len() < FLYING {
            let at = (self.begun % self.buffers.len() as u64) as usize;
            let (buffer, registration) = &mut self.buffers[at];
            let request = match &mut self.half {
                Half::Out(sender) => {
                    if self.checked {
                        fill(self.begun, buffer);
                    }
                    // SAFETY: the buffer is left alone until the request is over.
                    unsafe { sender.isend(&segment(buffer, *registration))? }
                }
                Half::In(receiver) => {
                    let clean = !self.checked || buffer.iter().all(|&byte| byte == POISON);
                    assert!(clean, "a late write before message {}", self.begun);
                    // SAFETY: as above.
                    unsafe { receiver.irecv(&[segment(buffer, *registration)], false)? }
                }
            };
            let Some(request) = request else { break };
            self.flying.push_back((self.begun, at, request));
            self.begun += 1;
        }
        while let Some(&(number, at, request)) = self.flying.front() {
            let bytes = self.buffers[at].0.len();
            let is_over = match &mut self.half {
                Half::Out(sender) => sender.test(request)?.is_some(),
                Half::In(receiver) => {
                    let mut sizes = [0];
                    let is_over = receiver.test(request, &mut sizes)?;
                    assert!(!is_over || sizes == [bytes], "message {number} has {sizes:?} bytes");
                    is_over
                }
            };
            if !is_over {
                break;
            }
            if self.checked && matches!(self.half, Half::In(_)) {
                check(number, &self.buffers[at].0);
                self.buffers[at].0.fill(POISON);
            }
            self.flying.pop_front();
            self.over += 1;
        }
        Ok(())
    }
}

fn wait<T>(mut ask: impl FnMut() -> hawser_plugin::Result<Option<T>>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask().unwrap() {
            return answer;
        }
        assert!(start.elapsed().as_secs() < 60, "the connection does not come up");
        std::thread::sleep(Duration::from_micros(300));
    }
}

fn region(bytes: &[u8]) -> Region {
    Region { addr: bytes.as_ptr() as u64, bytes: bytes.len(), kind: MemoryKinds::HOST, dmabuf: None }
}

fn segment(bytes: &[u8], registration: Registration) -> Segment {
    Segment { addr: bytes.as_ptr() as u64, bytes: bytes.len(), registration, tag: 0, profile: 0 }
}

/// Number, pseudo-random words, and their sum at the end.
fn fill(number: u64, bytes: &mut [u8]) {
    let (mut state, mut sum) = (number ^ 0x9e37_79b9_7f4a_7c15, number);
    let words = bytes.len() / 8;
    for (at, word) in bytes.chunks_exact_mut(8).enumerate() {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let value = match at {
            0 => number,
            _ if at == words - 1 => sum,
            _ => state,
        };
        sum = sum.rotate_left(7) ^ value;
        word.copy_from_slice(&value.to_le_bytes());
    }
}

fn check(number: u64, bytes: &[u8]) {
    let mut wanted = bytes.to_vec();
    fill(number, &mut wanted);
    let found = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert!(found == number, "message {number} was wanted and {found} came: lost, doubled or out of order");
    assert!(wanted == bytes, "message {number} is corrupt");
}
