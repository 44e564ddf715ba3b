//! The thread that listens for clients of RAS. It is there as long as the process has a communicator, and
//! sleeps until somebody connects.

use std::collections::BTreeSet;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use hawser_base::env::Settings;
use hawser_base::error::{Error, Result};
use hawser_base::log::{self, Subsys};
use hawser_oob::strangers::{self, Place};
use hawser_oob::wait;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};

use super::census::ProcessKey;
use super::client::{Client, Wanted};
use super::listener::{self, Listener};
use super::protocol::Format;
use super::{clock, json, sources, text};

/// Clients of a process at once; of more, one that has not said a word gives way.
const MOST_CLIENTS: usize = 32;
/// The interval at which processes that have gone are looked for while somebody wants to hear of them.
const LOOKS: Duration = Duration::from_millis(500);
/// The pause of a process that cannot let anybody in, or cannot wait.
const REST: Duration = Duration::from_millis(100);
/// Stacks of the threads.
const STACK: usize = 512 << 10;

/// The thread, and what stops it.
struct Running {
    stop: Arc<AtomicBool>,
    bell: Arc<OwnedFd>,
    thread: JoinHandle<()>,
}

static RUNNING: Mutex<Option<Running>> = Mutex::new(None);

/// Opens the port, unless that is done or not wanted. Where it cannot be had, the log says why, and jobs run
/// without.
pub fn start(settings: &Settings) {
    let mut running = lock();
    if running.is_some() || !settings.ras_enable {
        return;
    }
    match begin(settings) {
        Ok(begun) => *running = Some(begun),
        Err(error) => log::info(Subsys::Ras, || format!("no RAS on this process: {error}")),
    }
}

/// Closes the port and all connections. Waits for the thread, which never waits long.
pub fn stop() {
    let Some(Running { stop, bell, thread }) = lock().take() else { return };
    stop.store(true, Ordering::Release);
    ring(&bell);
    // A communicator may end in a thread that makes an answer; never in this one.
    if thread.thread().id() != std::thread::current().id() {
        let _ = thread.join();
    }
}

fn begin(settings: &Settings) -> Result<Running> {
    let listeners = listener::open(&settings.ras_addr)?;
    let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    let bell = Arc::new(made.map_err(|errno| Error::system("eventfd for RAS", errno))?);
    for Listener { address, .. } in &listeners {
        log::info(Subsys::Ras, || format!("clients of RAS are answered at {address}"));
        if !address.ip().is_loopback() {
            let text = format!("whoever reaches {address} can read what this job does (NCCL_RAS_ADDR)");
            log::info(Subsys::Ras, || text.clone());
        }
    }
    let stop = Arc::new(AtomicBool::new(false));
    let (told, silence) = (stop.clone(), settings.handshake_timeout);
    let (tell, answers) = channel();
    let mut server = Server {
        listeners,
        bell: bell.clone(),
        clients: Vec::new(),
        next: 0,
        silence,
        lines: strangers::Lines::default(),
        tell,
        answers,
        known: None,
        looked: Instant::now(),
    };
    let run = move || {
        let work = std::panic::AssertUnwindSafe(|| server.serve(&told));
        if std::panic::catch_unwind(work).is_err() {
            log::warn("the thread of RAS panicked: a bug in this library; clients get no answers any more");
        }
    };
    let thread = std::thread::Builder::new().name("hawser-ras".into()).stack_size(STACK).spawn(run);
    let thread = thread.map_err(|error| Error::system("starting the thread of RAS", error))?;
    Ok(Running { stop, bell, thread })
}

struct Server {
    listeners: Vec<Listener>,
    bell: Arc<OwnedFd>,
    clients: Vec<Client>,
    next: u64,
    /// The time that a client may be silent.
    silence: Duration,
    lines: strangers::Lines,
    /// Answers that were made, with the number of their client.
    tell: Sender<(u64, String)>,
    answers: Receiver<(u64, String)>,
    /// The processes that monitoring clients know, with whether each has died; `None` while there are no
    /// such clients.
    known: Option<BTreeSet<(ProcessKey, bool)>>,
    looked: Instant,
}

impl Server {
    fn serve(&mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::Acquire) {
            if self.wait().is_err() {
                std::thread::sleep(REST);
            }
            let mut count = [0; 8];
            let _ = rustix::io::read(&*self.bell, &mut count);
            self.let_in();
            while let Ok((number, answer)) = self.answers.try_recv() {
                let of = |client: &&mut Client| client.number == number;
                if let Some(client) = self.clients.iter_mut().find(of) {
                    client.finish(&answer);
                }
            }
            self.tell_events();
            let mut clients = std::mem::take(&mut self.clients);
            clients.retain_mut(|client| match client.go_on() {
                Some(Wanted::Status(is_verbose)) => self.begin_answer(client, is_verbose),
                Some(Wanted::Nothing) => true,
                None => false,
            });
            self.clients = clients;
        }
    }

    fn wait(&self) -> hawser_oob::Result<()> {
        let listening = self.listeners.iter().map(|listener| PollFd::new(&listener.fd, PollFlags::IN));
        let mut fds: Vec<PollFd<'_>> = vec![PollFd::new(&*self.bell, PollFlags::IN)];
        fds.extend(listening.chain(self.clients.iter().filter_map(Client::interest)));
        let deadline = self.clients.iter().filter_map(Client::until).min();
        let events = self.clients.iter().any(Client::monitors).then(|| self.looked + LOOKS);
        let until = deadline.into_iter().chain(events).min();
        // Not before it, lest the loop runs in circles.
        let pause = until.map(|at| at.saturating_duration_since(Instant::now()) + Duration::from_millis(1));
        wait::poll(&mut fds, pause).map(drop)
    }

    /// Lets in who has connected, as far as the budget of strangers goes.
    fn let_in(&mut self) {
        for at in 0..self.listeners.len() {
            // More come with the next look.
            for _ in 0..MOST_CLIENTS {
                match accept_with(&self.listeners[at].fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                    Ok(fd) => self.admit(TcpStream::from(fd)),
                    Err(Errno::AGAIN) => break,
                    Err(Errno::INTR | Errno::CONNABORTED) => {}
                    Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                        self.note(strangers::remember_trouble(errno));
                        std::thread::sleep(REST);
                        break;
                    }
                    Err(errno) => {
                        self.note(format!("RAS: accept: {}", std::io::Error::from(errno)));
                        std::thread::sleep(REST);
                        break;
                    }
                }
            }
        }
    }

    fn admit(&mut self, stream: TcpStream) {
        if self.clients.len() >= MOST_CLIENTS {
            let silent = self.clients.iter().position(Client::is_silent);
            let Some(silent) = silent else {
                self.note(format!("RAS: there are {MOST_CLIENTS} clients already; another one is sent away"));
                return;
            };
            self.clients.remove(silent);
        }
        let Some(place) = Place::take(self.clients.len()) else {
            self.note("RAS: a client is sent away, since too many strangers are connected".into());
            return;
        };
        self.next += 1;
        self.clients.push(Client::new(self.next, stream, place, self.silence));
    }

    fn note(&mut self, text: String) {
        if let Some(line) = self.lines.line(text) {
            log::info(Subsys::Ras, || line.clone());
        }
    }

    /// Begins to make an answer in a thread of its own, since it takes a while; false if that cannot be.
    fn begin_answer(&self, client: &mut Client, is_verbose: bool) -> bool {
        let (number, timeout, format) = (client.number, client.patience(), client.format);
        let (tell, bell) = (self.tell.clone(), self.bell.clone());
        let work = move || {
            let job = sources::look(timeout);
            let answer = match format {
                Format::Text => text::status(&job, is_verbose),
                Format::Json => json::status(&job),
            };
            let _ = tell.send((number, answer));
            ring(&bell);
        };
        std::thread::Builder::new().name("hawser-ras-look".into()).stack_size(STACK).spawn(work).is_ok()
    }

    /// Tells monitoring clients which processes have come and which have died.
    fn tell_events(&mut self) {
        if !self.clients.iter().any(Client::monitors) {
            self.known = None;
            return;
        }
        if self.known.is_some() && self.looked.elapsed() < LOOKS {
            return;
        }
        self.looked = Instant::now();
        let mut now = BTreeSet::new();
        let mut nodes = std::collections::BTreeMap::new();
        for roster in sources::rosters() {
            for (rank, (key, node)) in (0..).zip(roster.members) {
                now.insert((key, false));
                if roster.died.contains(&rank) {
                    now.insert((key, true));
                }
                nodes.insert(key, node);
            }
        }
        for (key, has_died) in now.difference(self.known.as_ref().unwrap_or(&now)) {
            let (name, node) = (if *has_died { "PEER_DEAD" } else { "PEER_NEW" }, &*nodes[key]);
            let line =
                format!("[{}] {name}: Process {} on node {node}\n", clock::local(SystemTime::now()), key.pid);
            for client in self.clients.iter_mut().filter(|client| client.monitors()) {
                match client.format {
                    Format::Text => client.send(&line),
                    Format::Json => client.send(&json::event(name, (node, key.pid), "")),
                }
            }
        }
        self.known = Some(now);
    }
}

fn ring(bell: &OwnedFd) {
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

fn lock() -> MutexGuard<'static, Option<Running>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}
