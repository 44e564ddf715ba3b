//! A job whose ports are flooded with connections that say nothing, while it begins and while it works.
//!
//! Traffic stays on the loopback interface; the number of connections and the time are bounded. The ranks
//! have a small limit of open files and open files all the time, as a program does; they name the ports on
//! which they listen, so that strangers need not look for them.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, stdin};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hawser_runtime::{Comm, Config, Error, Result, unique_id};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitOptions, getrlimit, kill_process, set_parent_process_death_signal,
    setrlimit, waitpid,
};

use crate::deadline::LIMIT;
use crate::process::{Process, hex, id_from_hex};
use crate::world;

/// A flood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flood {
    /// The number of ranks, on two "hosts".
    pub ranks: u32,
    /// The limit of open files of each rank.
    pub files: u64,
    /// Silent connections to every TCP port.
    pub from_strangers: u32,
    /// Silent connections to every port, also those of this host, from a process of another user; needs root.
    pub from_another_user: u32,
    /// The degree to which strangers give way to others on this machine (nice(2)): 19 for such as have one of
    /// their own.
    pub nice: u32,
}

/// The figures of a job under a flood, or without one.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// The longest init of a rank.
    pub init: Duration,
    /// Ports of all ranks.
    pub ports: usize,
    /// Connections that strangers made.
    pub connections: u64,
    /// Files that the ranks opened for themselves.
    pub opened: u64,
    /// Files that could not be opened.
    pub failed: u64,
    /// The most log lines of a rank about strangers.
    pub lines: usize,
}

/// The other user.
const ANOTHER_USER: u32 = 4242;

/// The time that strangers spend on one port.
const MAKING: Duration = Duration::from_secs(60);

impl Flood {
    /// Runs the job with ranks and strangers that run `binary`.
    ///
    /// # Errors
    /// The text is what a rank wrote that did not end well.
    pub fn carry_out(&self, binary: &str) -> std::result::Result<Outcome, String> {
        let settings = |host| [("NCCL_SOCKET_IFNAME", "lo"), ("NCCL_DEBUG", "INFO"), ("NCCL_HOSTID", host)];
        let start = |id: &str, rank: u32| {
            let args = ["flooded", id, &self.ranks.to_string(), &rank.to_string(), &self.files.to_string()];
            let host = if rank.is_multiple_of(2) { "even" } else { "odd" };
            Process::start(binary, &args.map(str::to_owned), &settings(host))
        };
        let mut ranks = vec![start("new", 0)];
        ranks[0].wait_for_part("id ");
        let id = word_after(ranks[0].written(), "id ").ok_or("no id")?;
        let mut strangers = self.strangers(binary);
        let mut known = BTreeSet::new();
        // The root's port is flooded before the first rank comes.
        let wanted = strangers.len() * tell(&mut ranks, &mut strangers, &mut known);
        wait_for_strangers(&mut strangers, wanted);
        ranks.extend((1..self.ranks).map(|rank| start(&id, rank)));
        let mut wait_for = |ranks: &mut [Process], line: &str, strangers: &mut [Process]| {
            let end = Instant::now() + LIMIT;
            while !ranks.iter_mut().all(|rank| rank.written().contains(line) || rank.has_ended()) {
                tell(ranks, strangers, &mut known);
                if Instant::now() > end {
                    return Err(ranks.iter_mut().map(|rank| rank.written().to_owned()).collect::<String>());
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        };
        wait_for(&mut ranks, "\nready\n", &mut strangers)?;
        ranks.iter_mut().for_each(|rank| rank.tell("go"));
        wait_for(&mut ranks, "\ninit ", &mut strangers)?;
        // Then all ports are known, and flooded to the end.
        tell(&mut ranks, &mut strangers, &mut known);
        let wanted = strangers.len() * known.len();
        wait_for_strangers(&mut strangers, wanted);
        ranks.iter_mut().for_each(|rank| rank.tell("stop"));
        let mut outcome = Outcome { ports: known.len(), ..Outcome::default() };
        for rank in ranks {
            let ended = rank.end();
            if !ended.status.success() {
                return Err(ended.output);
            }
            outcome.add(&ended.output);
        }
        let made = |stranger: &mut Process| counts(stranger.written(), "made ");
        outcome.connections = strangers.iter_mut().map(made).sum();
        Ok(outcome)
    }

    fn strangers(&self, binary: &str) -> Vec<Process> {
        let start = |(count, user): (u32, u32)| {
            let numbers = [count, user, self.nice].map(|number| number.to_string());
            let args: Vec<String> = ["stranger".to_owned()].into_iter().chain(numbers).collect();
            (count > 0).then(|| Process::start(binary, &args, &[]))
        };
        let own = rustix::process::getuid().as_raw();
        [(self.from_strangers, own), (self.from_another_user, ANOTHER_USER)]
            .into_iter()
            .filter_map(start)
            .collect()
    }
}

impl Outcome {
    fn add(&mut self, output: &str) {
        let number = |name| word_after(output, name).and_then(|word| word.parse().ok()).unwrap_or(0);
        self.init = self.init.max(Duration::from_micros(number("init ")));
        self.opened += number("opened ");
        self.failed += number("failed ");
        self.lines = self.lines.max(output.lines().filter(|line| is_about_strangers(line)).count());
    }
}

fn is_about_strangers(line: &str) -> bool {
    let words = ["stranger", "refused a connection", "somebody asked", "cannot accept", "wrong key"];
    line.contains(" NCCL ") && words.iter().any(|word| line.contains(word))
}

/// The word behind the line's name, of the first line that begins with it.
fn word_after(output: &str, name: &str) -> Option<String> {
    output.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned)
}

/// The sum of the numbers behind a line's name.
fn counts(output: &str, name: &str) -> u64 {
    output.lines().filter_map(|line| line.strip_prefix(name)?.parse::<u64>().ok()).sum()
}

/// Tells strangers of ports that the ranks have named since. Returns how many there are.
fn tell(ranks: &mut [Process], strangers: &mut [Process], known: &mut BTreeSet<String>) -> usize {
    for rank in ranks {
        let ports = rank.written().lines().filter_map(|line| line.strip_prefix("port "));
        let new: Vec<String> = ports.filter(|port| !known.contains(*port)).map(str::to_owned).collect();
        for port in new {
            strangers.iter_mut().for_each(|stranger| stranger.tell(&port));
            known.insert(port);
        }
    }
    known.len()
}

/// Waits until strangers have made all connections to so many ports.
fn wait_for_strangers(strangers: &mut [Process], ports: usize) {
    let end = Instant::now() + MAKING + LIMIT;
    let done = |stranger: &mut Process| stranger.written().matches("made ").count();
    while strangers.iter_mut().map(done).sum::<usize>() < ports && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A rank of a flooded job, with a limit of open files.
///
/// # Errors
/// The library's.
pub fn rank(id: &str, ranks: u32, rank: u32, files: u64) -> Result<()> {
    let bad = || Error::invalid_argument("the id is not what the test passed");
    let limit = Rlimit { current: Some(files), maximum: Some(files) };
    setrlimit(Resource::Nofile, limit).map_err(|errno| Error::system("setrlimit", errno))?;
    let program = Program::start(files);
    let id = match id {
        "new" => {
            let id = unique_id()?;
            println!("id {}", hex(&id.to_bytes()));
            id
        }
        id => id_from_hex(id).ok_or_else(bad)?,
    };
    println!("\nready");
    let mut lines = stdin().lines().map_while(std::io::Result::ok);
    let _ = lines.next();
    let begin = Instant::now();
    let comm = Comm::init(&[id], ranks, rank, 0, Config::default())?;
    println!("\ninit {}", begin.elapsed().as_micros());
    let child = comm.split(0, 0, None)?.ok_or_else(|| Error::internal("no child"))?;
    world::all_reduce(&child, 5_000)?;
    let _ = lines.next();
    for _ in 0..20 {
        world::all_reduce(&comm, 100_000)?;
    }
    child.destroy()?;
    comm.destroy()?;
    program.end();
    Ok(())
}

/// The program beside its communicators: it opens files. It also names the ports of the process.
struct Program {
    is_over: Arc<AtomicBool>,
    counts: Arc<[AtomicU64; 2]>,
    thread: std::thread::JoinHandle<()>,
}

impl Program {
    fn start(files: u64) -> Self {
        let (is_over, counts) = (Arc::new(AtomicBool::new(false)), Arc::new([0, 0].map(AtomicU64::new)));
        let (over, of) = (is_over.clone(), counts.clone());
        let run = move || {
            let mut named = BTreeSet::new();
            while !over.load(Ordering::Relaxed) {
                name_ports(files, &mut named);
                // A tenth of the limit, at the same time.
                let _open: Vec<_> = (0..files / 10).map(|_| count(&of, File::open("/dev/null"))).collect();
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        Self { is_over, counts, thread: std::thread::spawn(run) }
    }

    fn end(self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = self.thread.join();
        let [opened, failed] = [0, 1].map(|at: usize| self.counts[at].load(Ordering::Relaxed));
        println!("opened {opened}\nfailed {failed}");
    }
}

fn count(counts: &[AtomicU64; 2], outcome: std::io::Result<File>) -> Option<File> {
    counts[usize::from(outcome.is_err())].fetch_add(1, Ordering::Relaxed);
    outcome.ok()
}

/// The TCP addresses at which this process listens.
pub fn own_addresses() -> Vec<SocketAddr> {
    let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let listens = |number: i32| {
        // SAFETY: only asked, in two calls that fail where there is no such descriptor or no socket.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        let is_listening = sockopt::socket_acceptconn(descriptor) == Ok(true);
        is_listening.then(|| net::getsockname(descriptor).ok()).flatten()
    };
    numbers.filter_map(listens).filter_map(|address| SocketAddr::try_from(address).ok()).collect()
}

/// Writes the addresses of listening sockets of this process that have not been named.
fn name_ports(files: u64, named: &mut BTreeSet<String>) {
    for descriptor in 3..i32::try_from(files).unwrap_or(i32::MAX) {
        // SAFETY: only asked, in two calls that fail where there is no such descriptor or no socket.
        let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
        if sockopt::socket_acceptconn(descriptor) != Ok(true) {
            continue;
        }
        let Ok(address) = net::getsockname(descriptor) else { continue };
        let unix = SocketAddrUnix::try_from(address.clone()).ok();
        let name =
            match (unix.as_ref().and_then(SocketAddrUnix::abstract_name), SocketAddr::try_from(address)) {
                (Some(name), _) => format!("unix {}", hex(name)),
                (None, Ok(tcp)) => format!("tcp {tcp}"),
                _ => continue,
            };
        if named.insert(name.clone()) {
            println!("port {name}");
        }
    }
}

/// A stranger: makes so many connections to each port that it is told, says nothing on any, and keeps those
/// that are not closed until its input ends. Each port has a process, whose limit of open files is its own.
/// One of this user plays a stranger on the network, which reaches TCP ports only.
///
/// # Errors
/// It cannot become another user.
pub fn stranger(connections: u32, user: u32, nice: u32) -> Result<()> {
    let _ = rustix::process::nice(nice.min(19).cast_signed());
    let most = getrlimit(Resource::Nofile).maximum;
    let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(400_000), maximum: Some(400_000) })
        .or_else(|_| setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most }));
    let is_of_this_user = user == rustix::process::getuid().as_raw();
    if !is_of_this_user {
        // SAFETY: no other thread runs yet.
        if unsafe { libc::setuid(user) } != 0 {
            return Err(Error::system("setuid", std::io::Error::last_os_error()));
        }
    }
    let mut children = Vec::new();
    for port in stdin().lock().lines().map_while(std::io::Result::ok) {
        if is_of_this_user && !port.starts_with("tcp ") {
            println!("made 0");
            continue;
        }
        // SAFETY: this process has one thread.
        match unsafe { libc::fork() } {
            0 => stay_at(&port, connections),
            child => children.extend(Pid::from_raw(child)),
        }
    }
    for child in children {
        let _ = kill_process(child, Signal::KILL);
        let _ = waitpid(Some(child), WaitOptions::empty());
    }
    Ok(())
}

/// The process that makes connections to a port and keeps them until its parent ends it or has gone.
fn stay_at(port: &str, connections: u32) -> ! {
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let mut open = Vec::new();
    println!("made {}", make(port, connections, &mut open));
    loop {
        // Seldom: to ask thousands of sockets takes time from the ranks.
        std::thread::sleep(Duration::from_secs(1));
        keep_open_ones(&mut open);
    }
}

/// Makes connections to a port. Returns how many there were.
fn make(port: &str, connections: u32, open: &mut Vec<OwnedFd>) -> u32 {
    let end = Instant::now() + MAKING;
    let mut made = 0;
    while made < connections && Instant::now() < end {
        match connect(port) {
            Ok(connection) => {
                open.push(connection);
                made += 1;
                if made.is_multiple_of(1024) {
                    keep_open_ones(open);
                }
            }
            // Nobody listens any more.
            Err(Errno::CONNREFUSED) => break,
            // The queue is full, or this process is.
            Err(_) => {
                keep_open_ones(open);
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
    made
}

/// Begins a connection; the port is in the words of [`name_ports`].
fn connect(port: &str) -> std::result::Result<OwnedFd, Errno> {
    let open = |family| {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        net::socket_with(family, SocketType::STREAM, flags, None)
    };
    let (socket, begun) = match port.split_once(' ') {
        Some(("tcp", address)) => {
            let address: SocketAddr = address.parse().map_err(|_| Errno::CONNREFUSED)?;
            // Nothing leaves this host.
            if !address.ip().is_loopback() {
                return Err(Errno::CONNREFUSED);
            }
            let socket = open(AddressFamily::INET)?;
            let begun = net::connect(&socket, &address);
            (socket, begun)
        }
        Some(("unix", name)) => {
            let name = crate::process::bytes_from_hex(name).ok_or(Errno::CONNREFUSED)?;
            let socket = open(AddressFamily::UNIX)?;
            let begun = net::connect(&socket, &SocketAddrUnix::new_abstract_name(&name)?);
            (socket, begun)
        }
        _ => return Err(Errno::CONNREFUSED),
    };
    match begun {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(errno) => Err(errno),
    }
}

/// Drops connections that the other end has closed.
fn keep_open_ones(open: &mut Vec<OwnedFd>) {
    let mut fds: Vec<PollFd<'_>> =
        open.iter().map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::RDHUP)).collect();
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    let _ = poll(&mut fds, Some(&now));
    let mut is_open = fds.iter().map(|fd| fd.revents().is_empty()).collect::<Vec<_>>().into_iter();
    open.retain(|_| is_open.next().unwrap_or(true));
}
