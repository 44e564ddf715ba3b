//! The root: the thread behind a unique id where all ranks meet once.
//!
//! It collects one authenticated hello per rank, sends everybody the table of addresses and ends. Any
//! contradiction (two claims of one rank, different rank counts, different id lists, a rank that leaves) ends
//! the meeting at once with the same text for all who came, and for those who come within [`LINGER`] after
//! it. While ranks are missing, those who wait are told which, so that their own deadlines can name them.
//! Before the first hello the root waits as long as its process lives.

use super::auth::{Accepted, Acceptor, Key, ROOT, Role, differs};
use super::id::UniqueId;
use super::meet::{Hello, PeerAddress};
use super::stop::{StopSignal, broadcast_to_present, earliest};
use super::wire::{
    FrameReader, Incoming, Kind, decode_failure, encode_failure, encode_status, frame_bytes, list_ranks,
    malformed,
};
use super::{Remark, Settings, detail, lock, remark};
use hawser_base::error::{Error, ErrorKind, Result};
use hawser_base::wait::Wait;
use hawser_oob::stream::Stream;
use hawser_oob::wait::poll;
use hawser_oob::wire::Wire;
use rustix::event::{PollFd, PollFlags};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, LazyLock, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

/// Ranks a communicator can have; what a hello may announce.
pub(super) const MOST_RANKS: u32 = 1 << 20;

/// The pause before those who wait are told again which ranks are missing.
const STATUS_PERIOD: Duration = Duration::from_millis(50);

/// The pause before the log names the missing ranks again.
const WARNING_PERIOD: Duration = Duration::from_secs(60);

/// The time that sending the table may take once all ranks are there.
const TABLE_TIME: Duration = Duration::from_secs(60);

/// Bytes of the longest frame a rank sends to the root.
const FRAME_LIMIT: usize = 64 << 10;

/// The least time for which a failed meeting tells the reason to ranks that come late.
const LINGER: Duration = Duration::from_secs(5);

const STACK: usize = 256 << 10;

/// The roots of this process that nobody else owns, by nonce.
static ROOTS: LazyLock<Mutex<FxHashMap<[u8; 16], RootHandle>>> = LazyLock::new(Default::default);

/// A running root; dropping it stops the thread and waits for its end.
pub(super) struct RootHandle {
    stop: Arc<StopSignal>,
    thread: Option<JoinHandle<()>>,
}

impl RootHandle {
    /// Waits for the end of a root that has all its ranks.
    pub fn finish(mut self) {
        self.join();
    }

    fn join(&mut self) {
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            detail("the bootstrap root thread panicked");
        }
    }
}

impl Drop for RootHandle {
    fn drop(&mut self) {
        self.stop.raise();
        self.join();
    }
}

/// Starts the root of a fresh id. It leaves the list of this process's roots when it ends.
pub(super) fn start_registered(id: &UniqueId, listener: OwnedFd, settings: &Settings) -> Result<()> {
    let nonce = id.nonce;
    // The lock is held until the handle is in the list: the thread cannot look for it earlier.
    let mut roots = lock(&ROOTS);
    let handle = start(id, listener, settings, move || {
        if let Some(mut own) = lock(&ROOTS).remove(&nonce) {
            own.thread = None;
        }
    })?;
    roots.insert(nonce, handle);
    Ok(())
}

/// Starts a root that belongs to the caller.
pub(super) fn start_owned(id: &UniqueId, listener: OwnedFd, settings: &Settings) -> Result<RootHandle> {
    start(id, listener, settings, || {})
}

/// Stops the root of `id` if it runs in this process, and waits for its end. Ranks that already came get an
/// error. Returns whether there was one.
pub fn stop_root(id: &UniqueId) -> bool {
    let handle = lock(&ROOTS).remove(&id.nonce);
    handle.is_some()
}

/// Stops every root of this process, for the end of the process or of the library.
pub fn stop_all_roots() {
    let handles = std::mem::take(&mut *lock(&ROOTS));
    handles.values().for_each(|handle| handle.stop.raise());
    drop(handles);
}

fn start(
    id: &UniqueId,
    listener: OwnedFd,
    settings: &Settings,
    at_end: impl FnOnce() + Send + 'static,
) -> Result<RootHandle> {
    let stop = Arc::new(StopSignal::new()?);
    let key = Key::derive(&settings.secret_of(id), "root");
    let acceptor = Acceptor::new(
        listener,
        (key, settings.wire),
        ROOT,
        &[Role::Join, Role::Release],
        settings.handshake_timeout,
    );
    let root = Root {
        acceptor,
        wire: settings.wire,
        stop: stop.clone(),
        patience: settings.init_timeout,
        linger: LINGER,
        is_fixed: id.fixed,
        connections: Vec::new(),
        plan: None,
        status: Vec::new(),
    };
    let name = format!("root at {}", id.address);
    let run = move || {
        if let Err(error) = root.run() {
            detail(&format!("bootstrap {name}: {error}"));
        }
        at_end();
    };
    let thread = std::thread::Builder::new().name("hawser-root".into()).stack_size(STACK).spawn(run);
    let thread = thread.map_err(|error| Error::system("starting the bootstrap root thread", error))?;
    Ok(RootHandle { stop, thread: Some(thread) })
}

struct Root {
    acceptor: Acceptor,
    wire: Wire,
    stop: Arc<StopSignal>,
    patience: Duration,
    /// The time for which a failed meeting tells the reason to those who come late.
    linger: Duration,
    /// The address is needed for the next meeting.
    is_fixed: bool,
    connections: Vec<Connection>,
    plan: Option<Plan>,
    /// The last status: which ranks are missing.
    status: Vec<u8>,
}

/// An authenticated connection of a rank.
struct Connection {
    stream: Stream,
    reader: FrameReader,
    rank: u32,
    role: Role,
    came: bool,
}

/// The arguments that the first hello settled, and who has come so far.
struct Plan {
    first: u32,
    nranks: u32,
    ids: (u32, [u8; 32]),
    addresses: BTreeMap<u32, PeerAddress>,
    started: Instant,
    next_status: Instant,
    next_warning: Instant,
}

/// The way in which the meeting goes on after an event.
enum Next {
    Wait,
    /// Nobody needs this root.
    End,
    /// All ranks are there.
    Complete,
}

impl Root {
    /// Runs the meeting to its end; an error was already told to all who came.
    fn run(mut self) -> Result<()> {
        loop {
            match self.turn() {
                Ok(Next::Wait) => {}
                Ok(Next::End) => return Ok(()),
                Ok(Next::Complete) => return self.send_table(),
                Err(error) => {
                    self.fail(&error);
                    return Err(error);
                }
            }
        }
    }

    fn turn(&mut self) -> Result<Next> {
        let clock = self.plan.as_ref().map(|plan| plan.next_status.min(plan.started + self.patience));
        let ready = self.wait_for_events(clock)?;
        if self.stop.is_raised() {
            let text = "the root of the unique id was stopped before all ranks had joined";
            return Err(Error::new(ErrorKind::Aborted, text));
        }
        for at in (0..self.connections.len()).rev().filter(|at| ready[*at]) {
            match self.listen_to(at)? {
                Next::Wait => {}
                next => return Ok(next),
            }
        }
        // All of them are there before one is heard: an error must reach every one.
        let known = self.connections.len();
        let accepted = self.acceptor.advance();
        let other = accepted.iter().find_map(|one| one.other_wire.map(|wire| (one.rank, wire)));
        self.connections.extend(accepted.into_iter().filter(Accepted::is_alike).map(Connection::new));
        if let Some((rank, wire)) = other {
            // That rank knows it from its welcome; those who come later are told.
            self.linger_for_all();
            let own = format!("the process that made the unique id has {}", self.wire);
            return Err(differs(&format!("rank {rank} has HAWSER_WIRE={wire}, {own}")));
        }
        for at in (known..self.connections.len()).rev() {
            match self.listen_to(at)? {
                Next::Wait => {}
                next => return Ok(next),
            }
        }
        self.watch_the_clock()?;
        Ok(Next::Wait)
    }

    /// Blocks until something happens or `clock` strikes; says which connections have something to read.
    fn wait_for_events(&self, clock: Option<Instant>) -> Result<Vec<bool>> {
        let timeout = earliest([clock, self.acceptor.next_deadline()]);
        let mut fds = vec![self.stop.poll_fd()];
        fds.extend(self.connections.iter().map(|connection| PollFd::new(&connection.stream, PollFlags::IN)));
        self.acceptor.register(&mut fds);
        poll(&mut fds, timeout)?;
        Ok(fds[1..=self.connections.len()].iter().map(|fd| !fd.revents().is_empty()).collect())
    }

    /// Reads what connection number `at` has to say.
    fn listen_to(&mut self, at: usize) -> Result<Next> {
        let connection = &mut self.connections[at];
        let frame = match connection.reader.advance(&connection.stream) {
            Ok(Incoming::Frame(frame)) => frame,
            Ok(Incoming::Nothing) => return Ok(Next::Wait),
            Ok(Incoming::Closed) => return self.farewell(at, "it closed its connection"),
            Err(error) => return self.farewell(at, &error.text),
        };
        match (connection.role, frame.kind) {
            (Role::Join, Kind::Hello) if !connection.came => {
                connection.came = true;
                let rank = connection.rank;
                self.admit(rank, Hello::decode(&frame.payload)?)
            }
            (Role::Release, Kind::Release) => self.release(at, &frame.payload),
            (Role::Release, Kind::Failure) => {
                let rank = connection.rank;
                self.linger_for_all();
                Err(decode_failure(&frame.payload).context(format!("rank {rank} could not join")))
            }
            (role, kind) => Err(malformed(format!("{kind:?} from rank {} as {role:?}", connection.rank))),
        }
    }

    /// The meeting fails before all have come: they are told for as long as they may take, unless the address
    /// is needed.
    fn linger_for_all(&mut self) {
        self.linger = self.linger.max(if self.is_fixed { LINGER } else { self.patience });
    }

    /// Ends a connection that a rank has left. Before its hello that is its own business, afterwards the
    /// meeting cannot succeed any more.
    fn farewell(&mut self, at: usize, why: &str) -> Result<Next> {
        let connection = self.connections.swap_remove(at);
        if !connection.came {
            return Ok(Next::Wait);
        }
        let missing = self.missing();
        let text = format!(
            "rank {} left while {} had not joined yet ({why})",
            connection.rank,
            list_ranks(&missing)
        );
        Err(Error::remote(text).remedy("see the error of that rank"))
    }

    fn admit(&mut self, rank: u32, hello: Hello) -> Result<Next> {
        let now = Instant::now();
        let plan = self.plan.get_or_insert_with(|| Plan {
            first: rank,
            nranks: hello.nranks,
            ids: hello.ids,
            addresses: BTreeMap::new(),
            started: now,
            next_status: now + STATUS_PERIOD,
            next_warning: now + WARNING_PERIOD,
        });
        let first = plan.first;
        let remedy = "all ranks must be given the same arguments";
        if hello.nranks != plan.nranks {
            let text =
                format!("rank {rank} says nranks = {}, rank {first} says {}", hello.nranks, plan.nranks);
            return Err(Error::invalid_usage(text).remedy(remedy));
        }
        if hello.ids != plan.ids {
            let text = match (hello.ids.0, plan.ids.0) {
                (here, there) if here != there => {
                    format!("rank {rank} gave {here} unique ids, rank {first} {there}")
                }
                _ => {
                    format!("rank {rank} and rank {first} gave different unique ids or another order of them")
                }
            };
            return Err(Error::invalid_usage(text).remedy(remedy));
        }
        if rank >= plan.nranks || plan.nranks > MOST_RANKS {
            return Err(malformed(format!("rank {rank} of {}", plan.nranks)));
        }
        if plan.addresses.insert(rank, hello.address).is_some() {
            let text = format!("two callers both say they are rank {rank} of {}", plan.nranks);
            return Err(Error::invalid_usage(text).remedy("give every rank its own number"));
        }
        Ok(if plan.addresses.len() == plan.nranks as usize { Next::Complete } else { Next::Wait })
    }

    /// Somebody says this root is not where its ranks meet.
    fn release(&mut self, at: usize, payload: &[u8]) -> Result<Next> {
        let releaser = self.connections[at].rank;
        if let Some(plan) = &self.plan {
            return Err(match payload {
                [] => Error::invalid_usage(format!(
                    "the unique ids are in a different order: rank {} has this one first, rank {releaser} \
                     has not",
                    plan.first
                ))
                .remedy("give all ranks the same ids in the same order"),
                _ => decode_failure(payload).context(format!("rank {releaser} could not join")),
            });
        }
        let connection = &self.connections[at];
        let _ = connection.stream.write_some(&frame_bytes(Kind::Released, 0, &[])?, false);
        Ok(Next::End)
    }

    fn watch_the_clock(&mut self) -> Result<()> {
        let now = Instant::now();
        let Some(plan) = &mut self.plan else { return Ok(()) };
        if now >= plan.started + self.patience {
            let note = self.acceptor.last_stranger().map(|text| format!(" ({text})")).unwrap_or_default();
            let text = format!(
                "{} did not join within {} s{note}",
                list_ranks(&self.missing()),
                self.patience.as_secs_f32()
            );
            return Err(Error::new(ErrorKind::Timeout, text)
                .remedy("check that these ranks run and reached their init"));
        }
        if now >= plan.next_warning {
            plan.next_warning = now + WARNING_PERIOD;
            let (since, patience) = (now - plan.started, self.patience.as_secs());
            let text = format!(
                "init waits for {} since {} s, at most {patience} s (HAWSER_INIT_TIMEOUT)",
                list_ranks(&self.missing()),
                since.as_secs()
            );
            remark(Remark::Warning, &text);
        }
        let Some(plan) = &mut self.plan else { return Ok(()) };
        if now >= plan.next_status {
            plan.next_status = now + STATUS_PERIOD;
            let missing = self.missing();
            let status = encode_status(&missing, self.acceptor.last_stranger());
            if status != self.status {
                self.tell_all(Kind::Status, &status);
                self.status = status;
            }
        }
        Ok(())
    }

    fn missing(&self) -> Vec<u32> {
        let Some(plan) = &self.plan else { return Vec::new() };
        (0..plan.nranks).filter(|rank| !plan.addresses.contains_key(rank)).collect()
    }

    /// A short frame for everybody. Who cannot take it at once has left or will learn it from the closed
    /// connection.
    fn tell_all(&self, kind: Kind, payload: &[u8]) {
        let Ok(bytes) = frame_bytes(kind, 0, payload) else { return };
        self.connections.iter().for_each(|connection| {
            let _ = connection.stream.write_some(&bytes, false);
        });
    }

    /// Tells all who came why the meeting failed, and for a while those who come late.
    fn fail(&mut self, error: &Error) {
        let failure = encode_failure(error);
        self.tell_all(Kind::Failure, &failure);
        let Ok(bytes) = frame_bytes(Kind::Failure, 0, &failure) else { return };
        let came = self.connections.iter().filter(|connection| connection.came).count();
        // Without a hello nobody knows how many will come; the rank that failed will not.
        let ranks = match &self.plan {
            Some(plan) => plan.nranks as usize,
            None if self.linger > LINGER => usize::MAX,
            None => return,
        };
        let mut untold = ranks.saturating_sub(came);
        self.connections.retain(|connection| !connection.came);
        let end = Instant::now() + self.linger;
        while untold > 0 && Instant::now() < end && !self.stop.is_raised() {
            if self.wait_for_events(Some(end)).is_err() {
                return;
            }
            let accepted = self.acceptor.advance().into_iter().filter(Accepted::is_alike);
            self.connections.extend(accepted.map(Connection::new));
            // Answered only when the hello was read: closing with unread bytes would destroy the answer on
            // its way.
            self.connections.retain_mut(|connection| match connection.reader.advance(&connection.stream) {
                Ok(Incoming::Nothing) => true,
                Ok(Incoming::Frame(_)) => {
                    let _ = connection.stream.write_some(&bytes, false);
                    untold = untold.saturating_sub((connection.role == Role::Join).into());
                    false
                }
                Ok(Incoming::Closed) | Err(_) => false,
            });
        }
    }

    fn send_table(self) -> Result<()> {
        let Root { acceptor, connections, plan, stop, .. } = self;
        // Closed first: who comes now, for another meeting at the same address, is refused at once.
        drop(acceptor);
        let Some(plan) = plan else { return Ok(()) };
        let table: Vec<u8> = plan.addresses.values().flat_map(PeerAddress::encode).collect();
        let streams: Vec<&Stream> = connections
            .iter()
            .filter(|connection| connection.came)
            .map(|connection| &connection.stream)
            .collect();
        let wait = Wait::new(stop.flag(), Some(TABLE_TIME));
        // One that has gone meanwhile is missed by rank 0, which names it to the others.
        broadcast_to_present(&streams, &frame_bytes(Kind::Table, 0, &table)?, &wait, &|slow| {
            format!("the root still sends the table to {slow} ranks")
        })
    }
}

impl Connection {
    fn new(accepted: Accepted) -> Connection {
        let Accepted { stream, role, rank, .. } = accepted;
        Connection { stream, reader: FrameReader::new(FRAME_LIMIT), rank, role, came: false }
    }
}
