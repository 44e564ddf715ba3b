//! The thread of a context that does what must not wait for the host's calls: it accepts and dials sockets,
//! notices sockets that end, watches deadlines, and says goodbye for connections that were dropped.
//!
//! 1. It sleeps in one epoll. Sockets in use are in it only for their end (`EPOLLRDHUP`), so traffic does not
//!    wake it.
//! 2. Everything it does to a connection goes through the connection's own locks; it holds none of its own
//!    meanwhile.
//! 3. Members are looked at every [`TICK`] while one has something in flight, every [`IDLE_TICK`] otherwise.
//! 4. It ends with the context, after the goodbyes are said or [`GOODBYE`] has passed.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hawser_oob::accept::{Visitor, first_to_go};
use hawser_oob::socket::{self, Options};
use hawser_oob::strangers::{self, Lines, Place};
use hawser_oob::wait::Bell;
use hawser_plugin::{Log, Subsys};
use rustc_hash::FxHashMap;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use crate::greeting::{PROTOCOL, Socket};
use crate::inbound::{self, Registry, Visit};
use crate::outbound::{Dial, Ended, Errand};
use crate::pool::lock;

const TICK: Duration = Duration::from_millis(250);
const IDLE_TICK: Duration = Duration::from_secs(1);
/// The time that a dropped connection may take to tell its peer.
const GOODBYE: Duration = Duration::from_secs(2);
/// The same for a connection whose control socket is lost: mostly its peer has died.
const GOODBYE_WHEN_CUT: Duration = Duration::from_millis(500);
/// The pause between two looks at goodbyes.
const GOODBYE_TICK: Duration = Duration::from_millis(5);
/// Handshakes of strangers and friends at a time; beyond it one gives way.
const MOST_HANDSHAKES: usize = 512;
/// The time that listeners rest when the process has no descriptors left.
const REST: Duration = Duration::from_millis(50);

const BELL: u64 = 0;

/// A connection, as the service sees it.
pub(crate) trait Member: Send + Sync {
    /// Looks after deadlines and paths. True: something is in flight.
    fn tick(&self) -> bool;
    /// A socket has ended.
    fn ended(&self, socket: Socket);
    /// After the goodbye: nothing is left to tell.
    fn is_settled(&self) -> bool;
    /// There is no control socket to tell anything by, unless the sender dials again.
    fn is_cut(&self) -> bool;
}

enum Command {
    Listen(Arc<OwnedFd>),
    Dial(Errand),
    Join(Weak<dyn Member>),
    Goodbye(Arc<dyn Member>),
}

/// A socket that is watched: the connection it belongs to, and its name there.
#[derive(Clone)]
struct Watched {
    member: Weak<dyn Member>,
    socket: Socket,
}

/// The thread's other side: what connections and contexts talk to.
pub(crate) struct Service {
    /// The listeners of the context.
    pub registry: Registry,
    options: Options,
    log: Log,
    epoll: OwnedFd,
    bell: Bell,
    commands: Mutex<Vec<Command>>,
    watched: Mutex<FxHashMap<u64, Watched>>,
    next_token: AtomicU64,
    stops: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// A socket whose end is reported. Dropping it ends that.
pub(crate) struct Watch {
    service: Arc<Service>,
    token: u64,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Watch({})", self.token)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        lock(&self.service.watched).remove(&self.token);
    }
}

impl Service {
    /// Starts the thread.
    ///
    /// # Errors
    /// The kernel has no descriptors or threads left.
    pub fn start(options: Options, log: Log) -> Result<Arc<Self>, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let bell = Bell::new()?;
        epoll::add(&epoll, bell.as_fd(), epoll::EventData::new_u64(BELL), epoll::EventFlags::IN)?;
        let service = Arc::new(Self {
            registry: Registry::default(),
            options,
            log,
            epoll,
            bell,
            commands: Mutex::default(),
            watched: Mutex::default(),
            next_token: AtomicU64::new(BELL + 1),
            stops: AtomicBool::new(false),
            thread: Mutex::default(),
        });
        let body = Body::new(service.clone());
        let thread = std::thread::Builder::new().name("hawser-sock-ctl".into()).spawn(move || body.run());
        let thread = thread.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::AGAIN))?;
        *lock(&service.thread) = Some(thread);
        Ok(service)
    }

    /// Ends the thread and waits for it: at most as long as goodbyes take. Not from that thread.
    pub fn stop(&self) {
        self.stops.store(true, Ordering::SeqCst);
        self.bell.ring();
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }

    /// Accepts what comes to this socket from now on.
    pub fn listen(&self, socket: Arc<OwnedFd>) {
        self.command(Command::Listen(socket));
    }

    /// Dials a socket, now or later.
    pub fn dial(&self, errand: Errand) {
        self.command(Command::Dial(errand));
    }

    /// Looks after a connection.
    pub fn join(&self, member: Weak<dyn Member>) {
        self.command(Command::Join(member));
    }

    /// Keeps a dropped connection until it has told its peer.
    pub fn say_goodbye(&self, member: Arc<dyn Member>) {
        self.command(Command::Goodbye(member));
    }

    /// Reports the end of a socket, and of control that it has room again. None only costs time: the loss is
    /// noticed with the next use.
    pub fn watch(
        self: &Arc<Self>,
        fd: BorrowedFd<'_>,
        member: Weak<dyn Member>,
        socket: Socket,
    ) -> Option<Watch> {
        let token = self.token();
        lock(&self.watched).insert(token, Watched { member, socket });
        let watch = Watch { service: self.clone(), token };
        let mut flags = epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        if socket == Socket::Control {
            // Room again for what a host that has no more calls to make has left behind.
            flags |= epoll::EventFlags::OUT;
        }
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token), flags).ok().map(|()| watch)
    }

    /// The options of every socket.
    pub fn options(&self) -> &Options {
        &self.options
    }

    fn command(&self, command: Command) {
        lock(&self.commands).push(command);
        self.bell.ring();
    }

    fn token(&self) -> u64 {
        self.next_token.fetch_add(1, Ordering::Relaxed)
    }
}

/// The state of the thread, which nobody else touches.
struct Body {
    service: Arc<Service>,
    listeners: FxHashMap<u64, Arc<OwnedFd>>,
    handshakes: FxHashMap<u64, Visitor>,
    dials: FxHashMap<u64, Dial>,
    /// Dials that wait for their time.
    later: Vec<Errand>,
    members: Vec<Weak<dyn Member>>,
    /// Dropped connections that still tell their peers, and since when.
    leaving: Vec<(Arc<dyn Member>, Instant)>,
    next_tick: Instant,
    /// Listeners that are out of the epoll until then.
    resting: Option<Instant>,
    strangers: u64,
    lines: Lines,
}

impl Body {
    fn new(service: Arc<Service>) -> Self {
        Self {
            service,
            listeners: FxHashMap::default(),
            handshakes: FxHashMap::default(),
            dials: FxHashMap::default(),
            later: Vec::new(),
            members: Vec::new(),
            leaving: Vec::new(),
            next_tick: Instant::now(),
            resting: None,
            strangers: 0,
            lines: Lines::default(),
        }
    }

    fn run(mut self) {
        let mut events = Vec::with_capacity(64);
        loop {
            self.obey();
            self.keep_time();
            if self.service.stops.load(Ordering::SeqCst) && self.leaving.is_empty() {
                return;
            }
            self.wait(&mut events);
            for event in events.drain(..) {
                match event.data.u64() {
                    BELL => self.service.bell.hush(),
                    token => self.event(token),
                }
            }
        }
    }

    /// A bug in the work for one connection must not end the thread of all.
    fn shielded<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        let result = catch_unwind(AssertUnwindSafe(work));
        if result.is_err() {
            self.service.log.warn("Socket: a panic in the service thread: a bug of the Socket plugin");
        }
        result.ok()
    }

    fn obey(&mut self) {
        let commands = std::mem::take(&mut *lock(&self.service.commands));
        for command in commands {
            match command {
                Command::Listen(socket) => {
                    let token = self.service.token();
                    self.arm(token, &socket);
                    self.listeners.insert(token, socket);
                }
                Command::Dial(errand) => self.later.push(errand),
                Command::Join(member) => {
                    self.members.push(member);
                    self.next_tick = self.next_tick.min(Instant::now() + TICK);
                }
                Command::Goodbye(member) => self.leaving.push((member, Instant::now())),
            }
        }
    }

    fn arm(&self, token: u64, listener: &OwnedFd) {
        let data = epoll::EventData::new_u64(token);
        if let Err(errno) = epoll::add(&self.service.epoll, listener, data, epoll::EventFlags::IN) {
            self.service.log.warn(format!("Socket: a listener cannot be watched: {errno}"));
        }
    }

    fn keep_time(&mut self) {
        let now = Instant::now();
        let (due, later) = std::mem::take(&mut self.later).into_iter().partition(|errand| errand.at <= now);
        self.later = later;
        for errand in due {
            self.begin_dial(errand);
        }
        let late: Vec<u64> =
            self.dials.iter().filter(|(_, dial)| dial.deadline <= now).map(|(&t, _)| t).collect();
        for token in late {
            self.end_dial(token, Ended::late());
        }
        self.handshakes.retain(|_, visitor| visitor.since + inbound::PATIENCE > now);
        if self.resting.is_some_and(|until| until <= now) {
            self.resting = None;
            for (&token, listener) in &self.listeners {
                self.arm(token, listener);
            }
        }
        if !self.members.is_empty() && self.next_tick <= now {
            self.members.retain(|member| member.strong_count() > 0);
            let mut busy = false;
            for member in self.members.iter().filter_map(Weak::upgrade) {
                busy |= self.shielded(|| member.tick()).unwrap_or(false);
            }
            self.next_tick = now + if busy { TICK } else { IDLE_TICK };
        }
        let mut leaving = std::mem::take(&mut self.leaving);
        leaving.retain(|(member, since)| {
            let is_over = || {
                member.tick();
                let limit = if member.is_cut() { GOODBYE_WHEN_CUT } else { GOODBYE };
                member.is_settled() || now.saturating_duration_since(*since) > limit
            };
            !self.shielded(is_over).unwrap_or(true)
        });
        self.leaving = leaving;
    }

    /// Sleeps until something happens or the next deadline.
    fn wait(&self, events: &mut Vec<epoll::Event>) {
        let now = Instant::now();
        let tick = (!self.members.is_empty()).then_some(self.next_tick);
        let goodbye = (!self.leaving.is_empty()).then(|| now + GOODBYE_TICK);
        let dials = self.dials.values().map(|dial| dial.deadline);
        let handshakes = self.handshakes.values().map(|visitor| visitor.since + inbound::PATIENCE);
        let later = self.later.iter().map(|errand| errand.at);
        let fixed = [tick, goodbye, self.resting].into_iter().flatten();
        let next = dials.chain(handshakes).chain(later).chain(fixed).min();
        let timeout = next.map(|next| {
            // A millisecond more than needed, because older kernels count in those.
            let rest = next.saturating_duration_since(now) + Duration::from_millis(1);
            Timespec {
                tv_sec: i64::try_from(rest.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(rest.subsec_millis()) * 1_000_000,
            }
        });
        events.clear();
        let _ = epoll::wait(&self.service.epoll, rustix::buffer::spare_capacity(events), timeout.as_ref());
    }

    fn event(&mut self, token: u64) {
        if let Some(listener) = self.listeners.get(&token) {
            let listener = listener.clone();
            return self.accept(&listener);
        }
        if self.handshakes.contains_key(&token) {
            return self.hear(token);
        }
        if let Some(dial) = self.dials.get_mut(&token) {
            if let Some(ended) = dial.advance() {
                self.end_dial(token, ended);
            }
            return;
        }
        let watched = lock(&self.service.watched).get(&token).cloned();
        if let Some(Watched { member, socket }) = watched
            && let Some(member) = member.upgrade()
        {
            self.shielded(|| member.ended(socket));
        }
    }

    fn accept(&mut self, listener: &OwnedFd) {
        let now = Instant::now();
        loop {
            let (fd, from) = match socket::accept(listener.as_fd()) {
                Ok(Some(found)) => found,
                Ok(None) => return,
                // The descriptors of strangers are the first to be given up.
                Err(Errno::MFILE | Errno::NFILE) if self.make_room(now) => continue,
                Err(errno) => {
                    let why = strangers::remember_trouble(errno);
                    let line = self.lines.line(format!("Socket: {why}; trying again"));
                    line.into_iter().for_each(|line| self.service.log.warn(line));
                    return self.rest();
                }
            };
            let Some(place) = self.place(now) else { continue };
            let token = self.service.token();
            let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
            if epoll::add(&self.service.epoll, &fd, epoll::EventData::new_u64(token), flags).is_ok() {
                self.handshakes.insert(token, Visitor::new(fd, from, PROTOCOL, place));
                // At once: a friend that waited has said its greeting, and is not silent when others want its
                // place.
                self.hear(token);
            }
        }
    }

    /// A place for one more handshake, in place of another if it has to be.
    fn place(&mut self, now: Instant) -> Option<Place> {
        if self.handshakes.len() >= MOST_HANDSHAKES {
            self.make_room(now);
        }
        Place::take(self.handshakes.len()).or_else(|| {
            self.make_room(now);
            Place::take(self.handshakes.len())
        })
    }

    /// Ends a handshake; false if there is none that was there before.
    fn make_room(&mut self, now: Instant) -> bool {
        let handshakes = self.handshakes.iter().map(|(&token, visitor)| (token, visitor));
        let token = first_to_go(handshakes, now, Duration::ZERO);
        token.and_then(|token| self.handshakes.remove(&token)).is_some()
    }

    /// The process has no descriptors left: a listener that stays ready would make this thread spin.
    fn rest(&mut self) {
        for listener in self.listeners.values() {
            let _ = epoll::delete(&self.service.epoll, listener);
        }
        self.resting = Some(Instant::now() + REST);
    }

    /// Goes on with a handshake as far as possible.
    fn hear(&mut self, token: u64) {
        let Some(visitor) = self.handshakes.remove(&token) else { return };
        let from = visitor.from;
        match inbound::advance(visitor, &self.service.registry) {
            Visit::Wait(visitor) => {
                self.handshakes.insert(token, visitor);
            }
            Visit::Friend(friend) => {
                // The connection watches its sockets itself.
                let _ = epoll::delete(&self.service.epoll, friend.fd());
                self.service.options.apply(friend.fd());
                self.shielded(|| friend.come_in());
            }
            Visit::Stranger(reason) => {
                self.strangers += 1;
                crate::stats::add(&crate::stats::STRANGERS, 1);
                let text = format!("Socket: dropped a connection from {from}: {reason}");
                if self.strangers == 1 {
                    self.service.log.warn(text);
                } else if let Some(line) = self.lines.line(text) {
                    self.service.log.info(Subsys::NET, line);
                }
            }
        }
    }

    fn begin_dial(&mut self, errand: Errand) {
        let token = self.service.token();
        let begun = Dial::begin(errand, &self.service.options, |fd| {
            let flags = epoll::EventFlags::IN
                | epoll::EventFlags::OUT
                | epoll::EventFlags::RDHUP
                | epoll::EventFlags::ET;
            epoll::add(&self.service.epoll, fd, epoll::EventData::new_u64(token), flags)
        });
        match begun {
            Ok(Some(dial)) => {
                self.dials.insert(token, dial);
            }
            Ok(None) => {}
            Err((errand, ended)) => self.retry(errand, &ended),
        }
    }

    fn end_dial(&mut self, token: u64, ended: Ended) {
        let Some(dial) = self.dials.remove(&token) else { return };
        let _ = epoll::delete(&self.service.epoll, dial.fd());
        if let Some((errand, ended)) = self.shielded(|| dial.finish(ended)).flatten() {
            self.retry(errand, &ended);
        }
    }

    fn retry(&mut self, errand: Errand, ended: &Ended) {
        self.later.extend(errand.again(ended));
    }
}
