//! The rank's service thread: lets other ranks in, and puts what they send into the inbox.
//!
//! One thread per [`super::Bootstrap`] sleeps in poll(2) over the TCP and the unix-domain listener and all
//! incoming connections. So a send completes whether or not the receiver is inside a call, and strangers
//! never disturb a caller.
//!
//! Rules between the threads: (1) only the service thread reads incoming connections; (2) the inbox is
//! touched only under its lock, by which bytes and descriptors change hands; (3) whoever puts something in
//! notifies `arrived`.

use super::auth::{Accepted, Acceptor, Key, Role, Secret};
use super::fdpass;
use super::meet::PeerAddress;
use super::stop::earliest;
use super::watch::{Watch, Watcher};
use super::wire::{FrameReader, Incoming, Kind, malformed};
use super::{Settings, detail, listen_address, lock, random};
use hawser_base::error::{Error, Result};
use hawser_base::liveness::Identity;
use hawser_base::wait::Wait;
use hawser_oob::socket::{self, Options};
use hawser_oob::stream::Stream;
use hawser_oob::wait::poll;
use rustix::event::{PollFd, PollFlags};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

/// The longest message [`super::Bootstrap::send`] takes, in bytes.
pub const MAX_MESSAGE: usize = 64 << 20;

/// Unread bytes and descriptors in an inbox beyond which senders have to wait.
const INBOX_BYTES: usize = 256 << 20;
const INBOX_DESCRIPTORS: usize = 1024;

/// The pause before a full inbox is looked at again.
const FULL_PAUSE: Duration = Duration::from_millis(2);

const STACK: usize = 256 << 10;

/// Both listeners of a rank.
pub(super) struct Listeners {
    tcp: OwnedFd,
    unix: OwnedFd,
    /// The addresses of both listeners, as other ranks are told them.
    pub address: PeerAddress,
}

impl Listeners {
    /// Opens them on the interface the settings choose.
    /// `world` is the rank in the first communicator.
    pub fn open(settings: &Settings, near: Option<IpAddr>, world: u32) -> Result<Listeners> {
        let ip = listen_address(settings, near)?;
        let many = "raise the limit of open files (ulimit -n) if there are many ranks in this process";
        let (tcp, address) = socket::listen(SocketAddr::new(ip, 0), &Options::default())
            .map_err(|errno| Error::system(format!("listening on {ip}"), errno).remedy(many))?;
        let token = random()?;
        let unix = socket::listen_unix(&token)
            .map_err(|errno| Error::system("listening on a unix-domain socket", errno).remedy(many))?;
        let process = Identity::own(world, settings.host_id.as_deref());
        Ok(Listeners { tcp, unix, address: PeerAddress { tcp: address, unix: token, process } })
    }
}

/// Everything that came and was not yet asked for.
#[derive(Default)]
pub(super) struct Inbox {
    /// Messages by sender and tag, in the order in which they came.
    pub messages: FxHashMap<(u32, u64), VecDeque<Vec<u8>>>,
    /// Descriptors by sender and tag, in the order in which they came.
    pub descriptors: FxHashMap<(u32, u64), VecDeque<OwnedFd>>,
    /// Arms of the star, at rank 0 while it forms.
    pub star: FxHashMap<u32, Stream>,
    /// Open message connections per rank that have brought a message; zero once all were closed again.
    connections: FxHashMap<u32, usize>,
    bytes: usize,
    held: usize,
    /// The reason why nothing will come any more.
    dead: Option<Error>,
}

impl Inbox {
    /// Puts a message behind those of the same sender and tag.
    pub fn push_message(&mut self, from: u32, tag: u64, message: Vec<u8>) {
        self.bytes += message.len();
        self.messages.entry((from, tag)).or_default().push_back(message);
    }

    /// Puts a descriptor behind those of the same sender and tag.
    pub fn push_descriptor(&mut self, from: u32, tag: u64, descriptor: OwnedFd) {
        self.held += 1;
        self.descriptors.entry((from, tag)).or_default().push_back(descriptor);
    }

    /// Takes the oldest message of a sender with a tag.
    pub fn pop_message(&mut self, from: u32, tag: u64) -> Option<Vec<u8>> {
        let message = pop(&mut self.messages, (from, tag))?;
        self.bytes -= message.len();
        Some(message)
    }

    /// Takes the oldest descriptor of a sender with a tag.
    pub fn pop_descriptor(&mut self, from: u32, tag: u64) -> Option<OwnedFd> {
        let descriptor = pop(&mut self.descriptors, (from, tag))?;
        self.held -= 1;
        Some(descriptor)
    }

    /// Message connections of `from` that are open; None if a message never came by one. One that was closed
    /// before says nothing: its rank may have got tired of waiting for this one, and will connect again.
    pub fn open_connections(&self, from: u32) -> Option<usize> {
        self.connections.get(&from).copied()
    }

    /// Tells whether `from` had message connections and closed the last one.
    pub fn has_left(&self, from: u32) -> bool {
        self.connections.get(&from) == Some(&0)
    }

    fn is_full(&self) -> bool {
        self.bytes > INBOX_BYTES || self.held > INBOX_DESCRIPTORS
    }
}

fn pop<T>(queues: &mut FxHashMap<(u32, u64), VecDeque<T>>, key: (u32, u64)) -> Option<T> {
    let queue = queues.get_mut(&key)?;
    let item = queue.pop_front();
    if queue.is_empty() {
        queues.remove(&key);
    }
    item
}

/// The inbox and the bell that rings when something came.
#[derive(Default)]
pub(super) struct Shared {
    inbox: Mutex<Inbox>,
    arrived: Condvar,
    /// Told of messages with a tag, and of connections that end.
    hook: OnceLock<Hook>,
    /// Those who take the messages with their tags instead of the inbox.
    servers: Mutex<Vec<(u64, Arc<Handler>)>>,
    /// No other rank sends descriptors any more.
    takes_no_descriptors: AtomicBool,
}

type Hook = (Vec<u64>, Box<dyn Fn() + Send + Sync>);
/// A function that takes messages, with their senders.
pub(super) type Handler = Box<dyn Fn(u32, &[u8]) + Send + Sync>;

impl Shared {
    /// Waits until `probe` finds something in the inbox.
    pub fn take<T>(
        &self,
        wait: &Wait,
        describe: &dyn Fn(&Inbox) -> String,
        mut probe: impl FnMut(&mut Inbox) -> Option<Result<T>>,
    ) -> Result<T> {
        let mut inbox = lock(&self.inbox);
        loop {
            if let Some(found) = probe(&mut inbox) {
                return found;
            }
            if let Some(error) = &inbox.dead {
                return Err(error.clone());
            }
            wait.check(|| describe(&inbox))?;
            let guard = self.arrived.wait_timeout(inbox, wait.slice());
            inbox = guard.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
    }

    /// Takes something out of the inbox without waiting.
    pub fn look<T>(&self, probe: impl FnOnce(&mut Inbox) -> Option<T>) -> Option<T> {
        probe(&mut lock(&self.inbox))
    }

    /// Rests until something has come, for at most `longest`.
    pub fn rest(&self, longest: Duration) {
        drop(self.arrived.wait_timeout(lock(&self.inbox), longest));
    }

    /// Changes the inbox and rings the bell.
    pub fn put(&self, change: impl FnOnce(&mut Inbox)) {
        change(&mut lock(&self.inbox));
        self.arrived.notify_all();
    }

    /// No other rank sends descriptors from now on: the service thread closes their listener when it wakes.
    pub fn take_no_descriptors(&self) {
        self.takes_no_descriptors.store(true, Ordering::Release);
    }

    fn takes_no_descriptors(&self) -> bool {
        self.takes_no_descriptors.load(Ordering::Acquire)
    }

    /// Calls `hook` in the service thread whenever a message with one of `tags` has come or a connection has
    /// ended. The first one counts.
    pub fn hook(&self, tags: &[u64], hook: Box<dyn Fn() + Send + Sync>) {
        let _ = self.hook.set((tags.to_vec(), hook));
    }

    /// Hands messages with `tag` to `server`, with their sender, instead of putting them into the inbox. It
    /// is called in the service thread, so while it works nothing else is received, and senders wait. The
    /// first one of a tag counts.
    pub fn serve(&self, tag: u64, server: Handler) {
        let mut servers = lock(&self.servers);
        if servers.iter().all(|(taken, _)| *taken != tag) {
            servers.push((tag, Arc::new(server)));
        }
    }

    /// Returns true if a message was for the server of its tag.
    fn is_served(&self, from: u32, tag: u64, message: &[u8]) -> bool {
        let server =
            lock(&self.servers).iter().find(|(taken, _)| *taken == tag).map(|(_, server)| server.clone());
        server.inspect(|server| server(from, message)).is_some()
    }

    /// `tag`: of what has come; None when a connection ended.
    fn tell_hook(&self, tag: Option<u64>) {
        if let Some((wanted, hook)) = self.hook.get()
            && tag.is_none_or(|tag| wanted.contains(&tag))
        {
            hook();
        }
    }

    fn is_full(&self) -> bool {
        lock(&self.inbox).is_full()
    }
}

/// The running thread; dropping it closes the listeners and all incoming connections.
pub(super) struct Service {
    watch: Arc<Watch>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    /// Starts serving `rank` of `nranks` ranks that share `secret`; what comes goes to `shared`.
    pub fn start(
        listeners: Listeners,
        (shared, watch): (Arc<Shared>, Arc<Watch>),
        secret: &Secret,
        rank: u32,
        nranks: u32,
        settings: &Settings,
    ) -> Result<Service> {
        let (key, limit) = (Key::derive(secret, "peer"), settings.handshake_timeout);
        let mut server = Server {
            tcp: Acceptor::new(listeners.tcp, (key.clone(), settings.wire), rank, ROLES, limit),
            unix: Some(Acceptor::new(listeners.unix, (key, settings.wire), rank, &[Role::Descriptor], limit)),
            links: Vec::new(),
            nranks,
            shared,
            watcher: Watcher::new(watch.clone()),
            watch: watch.clone(),
        };
        let run = move || {
            if let Err(error) = server.run() {
                let error = error.context(format!("rank {rank}: the bootstrap service ended"));
                server.shared.put(|inbox| inbox.dead = Some(error));
            }
        };
        let thread = std::thread::Builder::new().name("hawser-boot".into()).stack_size(STACK).spawn(run);
        let thread = thread.map_err(|error| Error::system("starting the bootstrap service thread", error))?;
        Ok(Service { watch, thread: Some(thread) })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.watch.end();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            detail("a bootstrap service thread panicked");
        }
    }
}

struct Server {
    tcp: Acceptor,
    /// None once no descriptors come any more.
    unix: Option<Acceptor>,
    links: Vec<Link>,
    nranks: u32,
    shared: Arc<Shared>,
    watcher: Watcher,
    watch: Arc<Watch>,
}

/// The roles in which other ranks may connect over TCP.
const ROLES: &[Role] = &[Role::Star, Role::Peer, Role::Watch, Role::Look];

/// An incoming connection.
struct Link {
    stream: Stream,
    rank: u32,
    /// `None` for a connection that brings descriptors.
    reader: Option<FrameReader>,
    /// A message has come.
    has_spoken: bool,
}

impl Server {
    fn run(&mut self) -> Result<()> {
        loop {
            let (watched, ready) = self.wait_for_events()?;
            if self.watch.must_end() {
                return Ok(());
            }
            self.watcher.serve(&watched);
            // Once more: the bell may have been hushed together with news.
            if self.watch.must_end() {
                return Ok(());
            }
            if self.shared.takes_no_descriptors() {
                self.unix = None;
            }
            self.serve_links(|at, _| ready[at]);
            let come = self.unix.as_mut().map(Acceptor::advance).unwrap_or_default();
            for accepted in self.tcp.advance().into_iter().chain(come) {
                self.admit(accepted);
            }
        }
    }

    /// Blocks until something happens; says which of the watcher's descriptors are ready, and which links
    /// have something to read.
    fn wait_for_events(&self) -> Result<(Vec<bool>, Vec<bool>)> {
        let full = self.shared.is_full();
        let again = full.then(|| Instant::now() + FULL_PAUSE);
        let unix = self.unix.as_ref().and_then(Acceptor::next_deadline);
        let deadlines = [self.tcp.next_deadline(), unix, self.watcher.next_deadline()];
        let timeout = earliest([again, deadlines.into_iter().flatten().min()]);
        let mut fds = Vec::new();
        self.watcher.register(&mut fds);
        let others = fds.len();
        self.tcp.register(&mut fds);
        if let Some(unix) = &self.unix {
            unix.register(&mut fds);
        }
        let first = fds.len();
        if !full {
            fds.extend(self.links.iter().map(|link| PollFd::new(&link.stream, PollFlags::IN)));
        }
        poll(&mut fds, timeout)?;
        let ready = |fds: &[PollFd<'_>]| fds.iter().map(|fd| !fd.revents().is_empty()).collect::<Vec<bool>>();
        let (watched, mut links) = (ready(&fds[..others]), ready(&fds[first..]));
        links.resize(self.links.len(), false);
        Ok((watched, links))
    }

    fn admit(&mut self, accepted: Accepted) {
        let Accepted { stream, role, rank, from, other_wire } = accepted;
        if let Some(wire) = other_wire {
            detail(&format!("bootstrap dropped {from}: rank {rank} has HAWSER_WIRE={wire}"));
            return;
        }
        if rank >= self.nranks {
            detail(&format!("bootstrap dropped {from}: it says it is rank {rank} of {}", self.nranks));
            return;
        }
        let reader = match role {
            Role::Star => {
                self.shared.put(|inbox| {
                    inbox.star.insert(rank, stream);
                });
                return;
            }
            Role::Watch => return self.watch.connect(rank, stream),
            // It has its answer.
            Role::Look => return,
            Role::Descriptor => None,
            _ => Some(FrameReader::new(MAX_MESSAGE)),
        };
        self.links.push(Link { stream, rank, reader, has_spoken: false });
        let newest = self.links.len() - 1;
        // A rank sends its descriptors one after the other, each on a connection of its own: the older ones
        // have come by now and go first.
        self.serve_links(|at, link| at == newest || link.reader.is_none() && link.rank == rank);
    }

    /// Moves whole messages to the inbox from the links that are `chosen`, the oldest link first, and removes
    /// those that ended.
    fn serve_links(&mut self, chosen: impl Fn(usize, &Link) -> bool) {
        let mut at = 0;
        let shared = &self.shared;
        self.links.retain_mut(|link| {
            at += 1;
            !chosen(at - 1, link) || link.serve(shared)
        });
    }
}

impl Link {
    /// Moves whole messages to the inbox; `false` when the link has ended.
    fn serve(&mut self, shared: &Shared) -> bool {
        let end = loop {
            match self.receive(shared) {
                Ok(true) if !shared.is_full() => {}
                Ok(_) => return true,
                Err(end) => break end,
            }
        };
        if let Some(error) = end {
            detail(&error.context(format!("bootstrap connection from rank {}", self.rank)).text);
        }
        if self.has_spoken {
            shared.put(|inbox| *inbox.connections.entry(self.rank).or_default() -= 1);
            shared.tell_hook(None);
        }
        false
    }

    /// One message or descriptor: `true` if there was one, an error (or none for a plain end) when the link
    /// is over.
    fn receive(&mut self, shared: &Shared) -> std::result::Result<bool, Option<Error>> {
        let rank = self.rank;
        let Some(reader) = &mut self.reader else {
            let Some((tag, descriptor)) = fdpass::receive(&self.stream)? else { return Ok(false) };
            shared.put(|inbox| inbox.push_descriptor(rank, tag, descriptor));
            return Ok(true);
        };
        match reader.advance(&self.stream).map_err(|error| Some(error.into()))? {
            Incoming::Frame(frame) if frame.kind == Kind::Message => {
                let tag = frame.tag;
                if !std::mem::replace(&mut self.has_spoken, true) {
                    shared.put(|inbox| *inbox.connections.entry(rank).or_default() += 1);
                }
                if !shared.is_served(rank, tag, &frame.payload) {
                    shared.put(|inbox| inbox.push_message(rank, tag, frame.payload));
                    shared.tell_hook(Some(tag));
                }
                Ok(true)
            }
            Incoming::Frame(frame) => {
                Err(Some(malformed(format!("{:?} on a message connection", frame.kind))))
            }
            Incoming::Nothing => Ok(false),
            Incoming::Closed => Err(None),
        }
    }
}
