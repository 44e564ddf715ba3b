//! Bandwidth and latency over loopback: `loopback --help`.
//!
//! Ranks stand in a ring; each is a process with one thread, which sends to the next rank over some
//! connections and receives from the one before, as a proxy thread does. `--plain` moves the same messages as
//! simply as can be, for comparison: one socket per connection, the rank's thread copies everything, a
//! message begins with its size.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hawser_net_socket::{Settings, SocketNet};
use hawser_plugin::net::{
    Connector, HANDLE_BYTES, Listener, MemoryKinds, NetConfig, NetContext, Receiver, Region, Request,
    Segment, Sender,
};
use hawser_plugin::{Log, Net};

const HELP: &str = "loopback [--ranks 8] [--lanes 2] [--bytes 1048576] [--flight 8] [--seconds 2] [--plain]
Prints GB/s per rank and direction, and messages per second. NCCL_SOCKET_NTHREADS, NCCL_NSOCKS_PERTHREAD and
HAWSER_SOCKET_* count. With --flight 1 --lanes 1 --ranks 2 the time per message is about a one-way latency
plus its acknowledgement.";

#[derive(Clone, Debug)]
struct Options {
    ranks: usize,
    lanes: usize,
    bytes: usize,
    flight: usize,
    seconds: f64,
    plain: bool,
    /// Set in the processes of the ranks.
    rank: Option<usize>,
}

fn main() {
    let options = parse(std::env::args().skip(1));
    match options.rank {
        Some(_) => run_rank(&options),
        None => run_all(&options),
    }
}

fn parse(mut args: impl Iterator<Item = String>) -> Options {
    let mut options =
        Options { ranks: 8, lanes: 2, bytes: 1 << 20, flight: 8, seconds: 2.0, plain: false, rank: None };
    while let Some(arg) = args.next() {
        let mut number = || args.next().and_then(|text| text.parse::<f64>().ok()).unwrap_or_else(|| usage());
        match arg.as_str() {
            "--ranks" => options.ranks = number() as usize,
            "--lanes" => options.lanes = number() as usize,
            "--bytes" => options.bytes = number() as usize,
            "--flight" => options.flight = number() as usize,
            "--seconds" => options.seconds = number(),
            "--rank" => options.rank = Some(number() as usize),
            "--plain" => options.plain = true,
            _ => usage(),
        }
    }
    options
}

fn usage() -> ! {
    eprintln!("{HELP}");
    std::process::exit(2);
}

/// Starts the ranks, carries each one's handles to the one before it, and adds up what they measured.
fn run_all(options: &Options) {
    let program = std::env::current_exe().expect("path of this program");
    let mut ranks: Vec<Child> = (0..options.ranks)
        .map(|rank| {
            Command::new(&program)
                .args(std::env::args().skip(1))
                .args(["--rank", &rank.to_string()])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("starting a rank")
        })
        .collect();
    let size = options.lanes * HANDLE_BYTES;
    let handles: Vec<Vec<u8>> = ranks
        .iter_mut()
        .map(|rank| {
            let mut bytes = vec![0; size];
            rank.stdout.as_mut().unwrap().read_exact(&mut bytes).expect("handles of a rank");
            bytes
        })
        .collect();
    for (index, rank) in ranks.iter_mut().enumerate() {
        let next = &handles[(index + 1) % options.ranks];
        rank.stdin.as_mut().unwrap().write_all(next).expect("giving handles to a rank");
    }
    let mut mean = [0.0; 3];
    for mut rank in ranks {
        let mut text = String::new();
        rank.stdout.as_mut().unwrap().read_to_string(&mut text).expect("result of a rank");
        let _ = rank.wait();
        for (mean, word) in mean.iter_mut().zip(text.split_whitespace()) {
            *mean += word.parse::<f64>().unwrap_or(0.0) / options.ranks as f64;
        }
    }
    let [rate, processor, sleeps] = mean;
    println!(
        "{} ranks, {} lanes, {:7} bytes, {} in flight{}: {:6.3} GB/s per rank, {:7.0} messages/s per rank, \
         {:.3} s of processor per GB, {:.2} sleeps per message",
        options.ranks,
        options.lanes,
        options.bytes,
        options.flight,
        if options.plain { ", plain" } else { "" },
        rate / 1e9,
        rate / options.bytes.max(1) as f64,
        processor / rate * 1e9,
        sleeps / rate * options.bytes.max(1) as f64,
    );
}

/// One direction of a lane, whatever moves it.
trait Lane {
    /// Posts and tests; returns the messages that are over.
    fn step(&mut self) -> usize;
}

fn run_rank(options: &Options) {
    let mut lanes = if options.plain { plain::open(options) } else { socket_lanes(options) };
    let begin = Instant::now() + Duration::from_millis(300);
    let end = begin + Duration::from_secs_f64(options.seconds);
    let mut received = 0usize;
    let mut started = None;
    loop {
        for _ in 0..16 {
            for (send, receive) in &mut lanes {
                send.step();
                received += receive.step();
            }
        }
        let now = Instant::now();
        if started.is_none() && now >= begin {
            started = Some((now, received, usage_now()));
        }
        if now >= end {
            break;
        }
    }
    let (since, before, usage) = started.expect("the measurement began");
    let seconds = since.elapsed().as_secs_f64();
    let rate = ((received - before) * options.bytes.max(1)) as f64 / seconds;
    let now = usage_now();
    println!("{rate} {} {}", (now.0 - usage.0) / seconds, (now.1 - usage.1) / seconds);
    std::io::stdout().flush().expect("telling the result");
    // The neighbours are still measuring: go on moving their messages for a while.
    let until = Instant::now() + Duration::from_millis(300);
    while Instant::now() < until {
        for (send, receive) in &mut lanes {
            send.step();
            receive.step();
        }
    }
    std::process::exit(0);
}

/// Seconds of processor time that this process has used, and how often its threads went to sleep.
fn usage_now() -> (f64, f64) {
    // SAFETY: all-zero is a valid rusage, which the call fills.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live local.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 * 1e-6;
    (seconds(usage.ru_utime) + seconds(usage.ru_stime), usage.ru_nvcsw as f64)
}

type Lanes = Vec<(Box<dyn Lane>, Box<dyn Lane>)>;

fn socket_lanes(options: &Options) -> Lanes {
    let (mut settings, _) = Settings::from_environment();
    settings.ifname.get_or_insert_with(|| "=lo".into());
    let net = SocketNet::with_settings(settings);
    let context = net.open(&NetConfig::new(1, Log::silent())).expect("opening the net");
    let context: &'static dyn NetContext = Box::leak(context);
    let mut listeners: Vec<Box<dyn Listener>> = Vec::new();
    let mut out = std::io::stdout();
    for _ in 0..options.lanes {
        let (handle, listener) = context.listen(0).expect("listening");
        out.write_all(&handle).expect("telling the handle");
        listeners.push(listener);
    }
    out.flush().expect("telling the handles");
    let mut connectors: Vec<Box<dyn Connector>> = Vec::new();
    for _ in 0..options.lanes {
        let mut handle = [0; HANDLE_BYTES];
        std::io::stdin().read_exact(&mut handle).expect("the next rank's handle");
        connectors.push(context.connect(0, &handle).expect("connecting"));
    }
    let mut senders: Vec<Option<Box<dyn Sender>>> = connectors.iter().map(|_| None).collect();
    let mut receivers: Vec<Option<Box<dyn Receiver>>> = connectors.iter().map(|_| None).collect();
    while senders.iter().any(Option::is_none) || receivers.iter().any(Option::is_none) {
        for i in 0..options.lanes {
            if senders[i].is_none() {
                senders[i] = connectors[i].poll().expect("connecting");
            }
            if receivers[i].is_none() {
                receivers[i] = listeners[i].accept().expect("accepting");
            }
        }
    }
    let pairs = senders.into_iter().flatten().zip(receivers.into_iter().flatten());
    pairs
        .map(|(sender, receiver)| {
            let send: Box<dyn Lane> = Box::new(Sends::new(sender, options));
            let receive: Box<dyn Lane> = Box::new(Receives::new(receiver, options));
            (send, receive)
        })
        .collect()
}

fn region(bytes: &[u8]) -> Region {
    Region { addr: bytes.as_ptr() as u64, bytes: bytes.len(), kind: MemoryKinds::HOST, dmabuf: None }
}

struct Sends {
    sender: Box<dyn Sender>,
    slots: Vec<Segment>,
    requests: std::collections::VecDeque<Request>,
    posted: usize,
    _memory: Vec<u8>,
}

impl Sends {
    fn new(mut sender: Box<dyn Sender>, options: &Options) -> Self {
        let memory = vec![1; options.bytes.max(1) * options.flight];
        // SAFETY: the memory is never dropped: the process exits.
        let registration = unsafe { sender.register(&region(&memory)) }.expect("registering");
        let slots = (0..options.flight)
            .map(|i| Segment {
                addr: memory.as_ptr() as u64 + (i * options.bytes) as u64,
                bytes: options.bytes,
                registration,
                tag: 0,
                profile: 0,
            })
            .collect();
        Self { sender, slots, requests: Default::default(), posted: 0, _memory: memory }
    }
}

impl Lane for Sends {
    fn step(&mut self) -> usize {
        let mut over = 0;
        while let Some(&request) = self.requests.front() {
            if self.sender.test(request).expect("sending").is_none() {
                break;
            }
            self.requests.pop_front();
            over += 1;
        }
        while self.requests.len() < self.slots.len() {
            // SAFETY: the slot is free and lives as long as the process.
            let request = unsafe { self.sender.isend(&self.slots[self.posted % self.slots.len()]) };
            let Some(request) = request.expect("sending") else { break };
            self.requests.push_back(request);
            self.posted += 1;
        }
        over
    }
}

struct Receives {
    receiver: Box<dyn Receiver>,
    slots: Vec<Segment>,
    requests: std::collections::VecDeque<Request>,
    posted: usize,
    _memory: Vec<u8>,
}

impl Receives {
    fn new(mut receiver: Box<dyn Receiver>, options: &Options) -> Self {
        let memory = vec![1; options.bytes.max(1) * options.flight];
        // SAFETY: the memory is never dropped: the process exits.
        let registration = unsafe { receiver.register(&region(&memory)) }.expect("registering");
        let slots = (0..options.flight)
            .map(|i| Segment {
                addr: memory.as_ptr() as u64 + (i * options.bytes) as u64,
                bytes: options.bytes,
                registration,
                tag: 0,
                profile: 0,
            })
            .collect();
        Self { receiver, slots, requests: Default::default(), posted: 0, _memory: memory }
    }
}

impl Lane for Receives {
    fn step(&mut self) -> usize {
        let mut over = 0;
        while let Some(&request) = self.requests.front() {
            if !self.receiver.test(request, &mut [0]).expect("receiving") {
                break;
            }
            self.requests.pop_front();
            over += 1;
        }
        while self.requests.len() < self.slots.len() {
            let slot = self.slots[self.posted % self.slots.len()];
            // SAFETY: the slot is free and lives as long as the process.
            let request = unsafe { self.receiver.irecv(&[slot], false) };
            let Some(request) = request.expect("receiving") else { break };
            self.requests.push_back(request);
            self.posted += 1;
        }
        over
    }
}

/// The comparison.
mod plain {
    use super::*;

    pub fn open(options: &Options) -> Lanes {
        let listeners: Vec<TcpListener> =
            (0..options.lanes).map(|_| TcpListener::bind("127.0.0.1:0").expect("listening")).collect();
        let mut out = std::io::stdout();
        for listener in &listeners {
            let mut handle = [0; HANDLE_BYTES];
            handle[..2].copy_from_slice(&listener.local_addr().expect("address").port().to_le_bytes());
            out.write_all(&handle).expect("telling the handle");
        }
        out.flush().expect("telling the handles");
        let tune = |stream: TcpStream| {
            stream.set_nodelay(true).expect("nodelay");
            stream.set_nonblocking(true).expect("nonblocking");
            stream
        };
        let out: Vec<TcpStream> = (0..options.lanes)
            .map(|_| {
                let mut handle = [0; HANDLE_BYTES];
                std::io::stdin().read_exact(&mut handle).expect("the next rank's handle");
                let port = u16::from_le_bytes([handle[0], handle[1]]);
                tune(TcpStream::connect(("127.0.0.1", port)).expect("connecting"))
            })
            .collect();
        let lanes = out.into_iter().zip(listeners);
        lanes
            .map(|(out, listener)| {
                let inc = tune(listener.accept().expect("accepting").0);
                let memory = || vec![1; options.bytes * options.flight];
                let lane = |socket, sends| Plain {
                    socket,
                    sends,
                    memory: memory(),
                    bytes: options.bytes,
                    start: 0,
                    at: 0,
                    head: 0,
                };
                let (send, receive): (Box<dyn Lane>, Box<dyn Lane>) =
                    (Box::new(lane(out, true)), Box::new(lane(inc, false)));
                (send, receive)
            })
            .collect()
    }

    struct Plain {
        socket: TcpStream,
        sends: bool,
        memory: Vec<u8>,
        bytes: usize,
        /// The buffer in which the current message lies.
        start: usize,
        /// Bytes of the current message that are moved, and of its size in front.
        at: usize,
        head: usize,
    }

    impl Lane for Plain {
        fn step(&mut self) -> usize {
            let mut over = 0;
            let mut size = (self.bytes as u64).to_le_bytes();
            loop {
                let in_head = self.head < 8;
                let part = if in_head {
                    &mut size[self.head..]
                } else {
                    &mut self.memory[self.start + self.at..self.start + self.bytes]
                };
                let part_is_empty = part.is_empty();
                let moved = if part_is_empty {
                    Ok(0)
                } else if self.sends {
                    self.socket.write(part)
                } else {
                    self.socket.read(part)
                };
                match moved {
                    Ok(count) if in_head && count > 0 => self.head += count,
                    Ok(count) if count > 0 || part_is_empty => self.at += count,
                    Ok(_) | Err(_) => return over, // the neighbour has finished
                }
                if self.head == 8 && self.at == self.bytes {
                    (self.head, self.at) = (0, 0);
                    self.start = (self.start + self.bytes) % self.memory.len().max(1);
                    over += 1;
                    if over == 8 {
                        return over;
                    }
                }
            }
        }
    }
}
