//! News of ranks: the service thread notices them, and rank 0 passes it on to all.
//!
//! Every other rank has a connection to rank 0, the **centre**, for this alone. The end of one tells the
//! centre that a process or host has ended, and the end of the centre's own tells all others; the kernel asks
//! across hosts whether the other host is there ([`Settings::heartbeat`]), so that a process which is stopped
//! or busy is not taken for dead. When the centre has gone, the lowest rank that has not takes its place: the
//! others connect to that one. Processes of one host are watched by descriptors as well (see
//! [`hawser_base::liveness::process`]): those tell the end of a process also while somebody else holds its
//! connections open.
//!
//! A rank that leaves in peace, or whose operation failed, says so before its connection ends.

use super::asking::{Asking, LONGEST_ANSWER};
use super::centre::LOOK;
use super::fate::{TEXT_LIMIT, cut, decode, encode};
use super::peer::Dialer;
use super::wire::{FrameReader, Incoming, Kind};
use super::{Settings, detail, lock};
use crate::planted::{Bug, is_planted};
use hawser_base::error::{Error, ErrorKind, Result};
use hawser_base::liveness::forked::ClosedInChildren;
use hawser_base::liveness::process::{Found, find};
use hawser_base::liveness::{End, Identity, Roster};
use hawser_base::wait::{AbortFlag, Wait};
use hawser_oob::socket::{Keepalive, Options};
use hawser_oob::stream::Stream;
use hawser_oob::wait::Bell;
use rustc_hash::FxHashMap;
use rustix::event::{PollFd, PollFlags};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, Once, OnceLock, TryLockError, Weak};
use std::time::{Duration, Instant};

/// Bytes of the longest frame between watchers.
const FRAME_LIMIT: usize = LONGEST_ANSWER + 64;

/// The time after the first news at which the hook is called: all may be about to leave.
const HOOK: Duration = Duration::from_millis(300);

/// The time after the end of a centre at which the next one is connected to: all may be about to leave.
const MOVE: Duration = Duration::from_millis(200);

/// Bytes that may wait for a rank that takes none.
const MOST_WAITING: usize = 8 << 20;

/// The knowledge of a rank about the others, and its connections for news.
pub(super) struct Watch {
    /// The knowledge of all ranks.
    pub roster: Roster,
    pub(super) rank: u32,
    outs: Mutex<FxHashMap<u32, Out>>,
    /// Connections that the service thread has not seen yet.
    come: Mutex<Vec<(u32, Arc<Stream>)>>,
    bell: Bell,
    /// Ended by the death of a rank.
    flags: Mutex<Vec<AbortFlag>>,
    /// Called once, in the service thread, some time after the first news.
    hook: OnceLock<Hook>,
    /// The time for which another host may give no sign of life.
    pub(super) heartbeat: Option<Duration>,
    pub(super) dialer: Arc<Dialer>,
    /// Raised when the service thread shall end.
    must_end: AbortFlag,
    /// Raised when the service thread ends.
    pub(super) is_over: AbortFlag,
    /// Questions how ranks are.
    pub(super) asking: Asking,
}

type Hook = Box<dyn Fn() + Send + Sync>;

/// The way to another watcher.
struct Out {
    /// A child that held it open would hide the end of its parent.
    _closed_in_children: ClosedInChildren,
    stream: Arc<Stream>,
    /// The bytes that the kernel has not taken yet.
    waiting: Vec<u8>,
}

impl Out {
    /// Keeps bytes until the next push.
    fn keep(&mut self, bytes: &[u8]) {
        if self.waiting.len() < MOST_WAITING {
            self.waiting.extend_from_slice(bytes);
        }
    }

    /// Sends what is possible now.
    fn push(&mut self, bytes: &[u8]) {
        self.keep(bytes);
        while !self.waiting.is_empty() {
            match self.stream.write_some(&self.waiting, false) {
                Ok(0) => return,
                Ok(count) => drop(self.waiting.drain(..count)),
                // The service thread sees the end.
                Err(_) => self.waiting.clear(),
            }
        }
    }
}

impl Watch {
    /// All ranks are alive, and there are no connections yet.
    pub fn new(
        rank: u32,
        members: Vec<Identity>,
        dialer: Arc<Dialer>,
        settings: &Settings,
    ) -> Result<Arc<Watch>> {
        let bell = Bell::new().map_err(|errno| Error::system("eventfd for the bootstrap", errno))?;
        let watch = Arc::new(Watch {
            roster: Roster::new(rank, members),
            rank,
            outs: Mutex::default(),
            come: Mutex::default(),
            bell,
            flags: Mutex::default(),
            hook: OnceLock::new(),
            heartbeat: settings.heartbeat,
            dialer,
            must_end: AbortFlag::new(),
            is_over: AbortFlag::new(),
            asking: Asking::default(),
        });
        all::register(&watch);
        Ok(watch)
    }

    /// Takes a connection to the watcher of another rank, and tells it what is known.
    pub fn connect(&self, rank: u32, stream: Stream) {
        let options = Options { keepalive: self.heartbeat.map(keepalive), ..Options::default() };
        options.apply(stream.as_fd());
        if let Some(limit) = self.heartbeat {
            // The same for what was sent and is not acknowledged. Without it, the kernel tries for long.
            let limit = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
            let _ = rustix::net::sockopt::set_tcp_user_timeout(&stream, limit);
        }
        let stream = Arc::new(stream);
        let closed = ClosedInChildren::new(stream.as_fd());
        let mut out = Out { _closed_in_children: closed, stream: stream.clone(), waiting: Vec::new() };
        let mut outs = lock(&self.outs);
        for (of, end, age) in self.roster.all() {
            out.push(&encode(of, &end, age));
        }
        outs.insert(rank, out);
        lock(&self.come).push((rank, stream));
        self.bell.ring();
    }

    /// Tells the service thread to end.
    pub fn end(&self) {
        self.must_end.raise();
        self.bell.ring();
    }

    /// Tells whether the service thread shall end. To be asked after [`Watcher::serve`] too, which hushes the
    /// bell.
    pub fn must_end(&self) -> bool {
        self.must_end.is_raised()
    }

    /// Wakes the service thread.
    pub fn wake(&self) {
        self.bell.ring();
    }

    /// This rank.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// True if a rank has a connection for news to this one.
    pub fn is_linked(&self, rank: u32) -> bool {
        lock(&self.outs).contains_key(&rank)
    }

    /// The number of ranks that have neither left nor died.
    pub fn present(&self) -> usize {
        let is_gone = |rank: &u32| self.roster.absence(*rank).is_some();
        let ranks = self.roster.members().len() as u32;
        (0..ranks).filter(|rank| !is_gone(rank)).count().max(1)
    }

    /// Sends a frame to a rank that has a connection to this one.
    pub fn push_to(&self, rank: u32, bytes: &[u8]) {
        if let Some(out) = lock(&self.outs).get_mut(&rank) {
            out.push(bytes);
        }
        self.bell.ring();
    }

    /// Sends a frame to all that have a connection to this rank, but for the one that it came from.
    pub fn push_to_others(&self, from: Option<u32>, bytes: &[u8]) {
        let mut outs = lock(&self.outs);
        outs.iter_mut().filter(|(to, _)| Some(**to) != from).for_each(|(_, out)| out.push(bytes));
        drop(outs);
        self.bell.ring();
    }

    /// Notes what became of a rank, and passes it on: `from` knows it already.
    pub fn learn(&self, rank: u32, end: &End, age: Duration, from: Option<u32>) {
        if self.note(rank, end, age, from) {
            self.pass_on();
            self.bell.ring();
        }
    }

    /// Notes what became of a rank, which [`Watch::pass_on`] has to tell the others. Returns true if it is
    /// news.
    fn note(&self, rank: u32, end: &End, age: Duration, from: Option<u32>) -> bool {
        if is_planted(Bug::DisbelievedDeath) && matches!(end, End::Died(_)) {
            return false;
        }
        // Held meanwhile, so that who connects now is told once.
        let mut outs = lock(&self.outs);
        let is_news = self.roster.note(rank, end, age);
        if is_news {
            let bytes = encode(rank, end, age);
            outs.iter_mut().filter(|(to, _)| Some(**to) != from).for_each(|(_, out)| out.keep(&bytes));
        }
        is_news
    }

    /// Sends the news that are kept for others: all that are meant for one in one message.
    fn pass_on(&self) {
        lock(&self.outs).values_mut().filter(|out| !out.waiting.is_empty()).for_each(|out| out.push(&[]));
    }

    /// Tells the others that this rank goes in peace.
    pub fn leave(&self, how: &str) {
        let bytes = encode(self.rank, &End::Left(how.into()), Duration::ZERO);
        lock(&self.outs).values_mut().for_each(|out| out.push(&bytes));
    }

    /// Waits on this flag end when somebody dies.
    pub fn doom(&self, flag: &AbortFlag) {
        match self.roster.verdict() {
            Some(error) => flag.doom(error),
            None => lock(&self.flags).push(flag.clone()),
        }
    }

    /// Calls `hook` once, in the service thread, when something has become of a rank and this one is still
    /// there 300 ms later. It must not wait. The first hook counts.
    pub fn on_first_news(&self, hook: Hook) {
        let _ = self.hook.set(hook);
        self.bell.ring();
    }

    /// An error with those who are to blame for it, if anybody is known to be. The others are told.
    pub fn blame(&self, error: Error) -> Error {
        let error = self.name_the_guilty(error);
        if may_be_consequence(&error) && self.roster.members().len() > 1 {
            self.look_for_the_cause(&error);
            self.report(&error);
        }
        error
    }

    /// Looks whether the rank that an error is about is there, if nobody has told of its end: the rank that
    /// passes news on may be stopped.
    fn look_for_the_cause(&self, error: &Error) {
        // The error of a parent communicator may have ended a wait, with the number of a rank there.
        let is_one = |peer: &u32| (*peer as usize) < self.roster.members().len();
        let is_unknown = |peer: &u32| *peer != self.rank && is_one(peer) && !self.roster.has_gone(*peer);
        if let Some(peer) = error.peer.filter(is_unknown).filter(|_| error.kind != ErrorKind::Timeout) {
            self.look_for(peer, &Wait::new(self.is_over.clone(), Some(LOOK)));
        }
    }

    /// An error with those who are to blame for it, if anybody is known to be.
    pub fn name_the_guilty(&self, error: Error) -> Error {
        if !may_be_consequence(&error) || self.roster.members().len() < 2 {
            return error;
        }
        let verdict = match self.roster.verdict() {
            None if error.kind == ErrorKind::Timeout && self.roster.is_quiet() => None,
            None => self.roster.explain(),
            verdict => verdict,
        };
        match verdict {
            Some(why) if !error.text.contains(&why.text) => {
                let text = format!("{}; it showed as: {}", why.text, error.text);
                why.with_text(text)
            }
            _ => error,
        }
    }

    /// Tells the others why this rank fails; where a process is to blame, in all communicators that it is
    /// part of: this process may end next, and is not to blame in those either.
    pub fn report(&self, error: &Error) {
        if error.kind == ErrorKind::Aborted {
            return;
        }
        let because_of = error.peer.filter(|peer| self.roster.has_gone(*peer));
        let failed = |because_of| End::Failed { text: cut(&error.text, TEXT_LIMIT).into(), because_of };
        self.learn(self.rank, &failed(because_of), Duration::ZERO, None);
        let members = self.roster.members();
        let Some(guilty) = because_of.map(|rank| &members[rank as usize]) else { return };
        // Ranks of one process share its end, and elsewhere nobody would know which of them is meant.
        let is_own = guilty.is_same_process(&members[self.rank as usize]);
        for other in all::list().into_iter().filter(|other| !is_own && !std::ptr::eq(&**other, self)) {
            if let Some(rank) = other.roster.rank_of(guilty) {
                other.learn(other.rank, &failed(Some(rank)), Duration::ZERO, None);
            }
        }
    }
}

/// The service thread's part: the connections and the processes that it listens to.
pub(super) struct Watcher {
    watch: Arc<Watch>,
    links: Vec<Link>,
    processes: Vec<(Arc<OwnedFd>, Vec<u32>)>,
    is_doomed: bool,
    /// The time from which the hook is called, and whether it was.
    hook_at: Option<Instant>,
    has_called: bool,
    /// The rank that passes news on, and the time from which this rank connects to the next one.
    centre: u32,
    next_centre_at: Option<Instant>,
}

struct Link {
    rank: u32,
    stream: Arc<Stream>,
    reader: FrameReader,
}

impl Watcher {
    /// Begins to watch the processes of this host.
    pub fn new(watch: Arc<Watch>) -> Watcher {
        let members = watch.roster.members();
        let own = members.get(watch.rank as usize).copied();
        let mut of: FxHashMap<u32, Vec<u32>> = FxHashMap::default();
        for (rank, member) in (0..).zip(members) {
            if own.is_some_and(|own| own.is_near(member)) {
                of.entry(member.pid).or_default().push(rank);
            }
        }
        let mut processes = Vec::new();
        for (pid, ranks) in of {
            match find(&members[ranks[0] as usize]) {
                Found::Running(descriptor) => processes.push((descriptor, ranks)),
                Found::Over => over(&watch, &ranks),
                Found::Unknown(errno) => {
                    detail(&format!("process {pid} of this host is watched by its connection only: {errno}"));
                }
            }
        }
        Watcher {
            watch,
            links: Vec::new(),
            processes,
            is_doomed: false,
            hook_at: None,
            has_called: false,
            centre: 0,
            next_centre_at: None,
        }
    }

    /// Adds everything that it waits for.
    pub fn register<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        let outs = lock(&self.watch.outs);
        fds.push(PollFd::new(&self.watch.bell, PollFlags::IN));
        for link in &self.links {
            let waits = outs.get(&link.rank).is_some_and(|out| !out.waiting.is_empty());
            let flags = if waits { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            fds.push(PollFd::new(&*link.stream, flags));
        }
        fds.extend(self.processes.iter().map(|(descriptor, _)| PollFd::new(&**descriptor, PollFlags::IN)));
    }

    /// The moment at which [`Watcher::serve`] must be called even if nothing happens.
    pub fn next_deadline(&self) -> Option<Instant> {
        let verdict = if self.is_doomed { None } else { self.watch.roster.verdict_at() };
        verdict.into_iter().chain(self.next_centre_at).chain(self.hook_at).min()
    }

    /// Takes all steps that need no waiting: `ready` says which of the registered descriptors are.
    pub fn serve(&mut self, ready: &[bool]) {
        let is_ready = |at: usize| ready.get(at).is_some_and(|ready| *ready);
        if is_ready(0) {
            self.watch.bell.hush();
        }
        let (links, processes) = (self.links.len(), self.processes.len());
        let ended: Vec<usize> = (0..processes).filter(|at| is_ready(1 + links + at)).collect();
        let ended: Vec<(Arc<OwnedFd>, Vec<u32>)> =
            ended.into_iter().rev().map(|at| self.processes.swap_remove(at)).collect();
        // Last words first: they were sent before the process ended.
        let has_ended = |rank: u32| ended.iter().any(|(_, ranks)| ranks.contains(&rank));
        for at in (0..links).rev() {
            if is_ready(1 + at) || has_ended(self.links[at].rank) {
                self.listen_to(at);
            }
        }
        ended.iter().for_each(|(_, ranks)| over(&self.watch, ranks));
        let come = std::mem::take(&mut *lock(&self.watch.come));
        for (rank, stream) in come {
            self.links.push(Link { rank, stream, reader: FrameReader::new(FRAME_LIMIT) });
            self.listen_to(self.links.len() - 1);
        }
        // Many may have left at once, and all others hear of each.
        self.watch.pass_on();
        self.call_the_hook();
        self.follow_the_centre();
        self.pass_sentence();
    }

    /// Reads what another watcher says, and notices its end.
    fn listen_to(&mut self, at: usize) {
        let Link { rank, stream, reader } = &mut self.links[at];
        if let Some(out) = lock(&self.watch.outs).get_mut(rank) {
            out.push(&[]);
        }
        let end = loop {
            match reader.advance(stream) {
                Ok(Incoming::Frame(frame)) if frame.kind == Kind::Fate => {
                    let Ok((of, end, age)) = decode(frame.tag, &frame.payload) else {
                        break "it sent nonsense".into();
                    };
                    self.watch.note(of, &end, age, Some(*rank));
                }
                Ok(Incoming::Frame(frame)) if self.watch.take_question(*rank, &frame) => {}
                Ok(Incoming::Frame(_)) => break "it sent nonsense".into(),
                Ok(Incoming::Nothing) => return,
                Ok(Incoming::Closed) => {
                    break "its process or host ended (its connection was closed)".to_string();
                }
                Err(error) => break format!("its process or host ended ({})", error.text),
            }
        };
        let rank = *rank;
        // Also before the other end of the same descriptor is closed.
        lock(&self.watch.outs).remove(&rank);
        self.links.swap_remove(at);
        self.watch.note(rank, &End::Died(end), Duration::ZERO, None);
    }

    /// Calls the hook a while after the first news, if this rank is still there then.
    fn call_the_hook(&mut self) {
        let Some(hook) = self.watch.hook.get() else { return };
        if self.has_called || self.watch.roster.is_quiet() {
            return;
        }
        let now = Instant::now();
        if now >= *self.hook_at.get_or_insert(now + HOOK) {
            (self.hook_at, self.has_called) = (None, true);
            hook();
        }
    }

    /// Connects to the rank that takes the place of a centre that has gone, if this rank is still there then.
    fn follow_the_centre(&mut self) {
        let roster = &self.watch.roster;
        if roster.is_quiet() || roster.first_present() == self.centre {
            return;
        }
        let now = Instant::now();
        if now < *self.next_centre_at.get_or_insert(now + MOVE) {
            return;
        }
        self.next_centre_at = None;
        self.centre = roster.first_present();
        let is_linked = self.links.iter().any(|link| link.rank == self.centre);
        if is_linked {
            return;
        }
        let (watch, is_own) = (self.watch.clone(), self.centre == self.watch.rank);
        let work = move || match is_own {
            true => watch.look_for_the_silent(),
            false => watch.connect_to_the_next_centre(),
        };
        // This thread must not wait.
        let thread = std::thread::Builder::new().name("hawser-centre".into());
        if let Err(error) = thread.spawn(work) {
            detail(&format!("rank {}: nobody tells it news any more: no thread: {error}", self.watch.rank));
        }
    }

    /// Ends the waits that are in vain, once it is clear who is to blame.
    fn pass_sentence(&mut self) {
        if self.is_doomed {
            return;
        }
        let mut flags = lock(&self.watch.flags);
        if let Some(error) = self.watch.roster.verdict() {
            detail(&format!("rank {}: {error}", self.watch.rank));
            flags.drain(..).for_each(|flag| flag.doom(error.clone()));
            self.is_doomed = true;
        }
    }
}

impl Drop for Watcher {
    /// Takes all that has come, and passes it on: who left just before this rank has told nobody else. Data
    /// left unread would also destroy this rank's last words on their way.
    fn drop(&mut self) {
        self.watch.is_over.raise();
        (0..self.links.len()).rev().for_each(|at| self.listen_to(at));
        lock(&self.watch.outs).clear();
    }
}

fn may_be_consequence(error: &Error) -> bool {
    matches!(error.kind, ErrorKind::Remote | ErrorKind::System | ErrorKind::Timeout)
}

/// The process of these ranks has ended.
pub(super) fn over(watch: &Watch, ranks: &[u32]) {
    for rank in ranks {
        watch.learn(*rank, &End::Died("its process ended".into()), Duration::ZERO, None);
    }
}

/// The questions by which a host that is gone is known after about `period`.
fn keepalive(period: Duration) -> Keepalive {
    let second = Duration::from_secs(1);
    let interval = (period / 5).max(second);
    let count = (period.as_secs_f32() / interval.as_secs_f32()) as u32;
    Keepalive { idle: interval, interval, count: count.saturating_sub(1).max(1) }
}

/// The watches of this process. One that ends in order says so for all its communicators that were not
/// destroyed.
mod all {
    use super::{Arc, Mutex, Once, TryLockError, Watch, Weak, lock};

    static ALL: Mutex<Vec<Weak<Watch>>> = Mutex::new(Vec::new());

    pub fn register(watch: &Arc<Watch>) {
        static HANDLER: Once = Once::new();
        HANDLER.call_once(|| {
            // SAFETY: `say_goodbye` may be called at any time, also while other threads run. Without it the
            // end of the process says the same, less kindly.
            unsafe { libc::atexit(say_goodbye) };
        });
        let mut all = lock(&ALL);
        all.retain(|watch| watch.strong_count() > 0);
        all.push(Arc::downgrade(watch));
    }

    pub fn list() -> Vec<Arc<Watch>> {
        lock(&ALL).iter().filter_map(Weak::upgrade).collect()
    }

    extern "C" fn say_goodbye() {
        let all = match ALL.try_lock() {
            Ok(all) => all,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let own = std::process::id();
        for watch in all.iter().filter_map(Weak::upgrade) {
            let is_own = watch.roster.members().get(watch.rank as usize).is_some_and(|m| m.pid == own);
            if is_own && let Ok(mut outs) = watch.outs.try_lock() {
                let how = "its process ended before it destroyed the communicator";
                let bytes = super::encode(watch.rank, &super::End::Left(how.into()), super::Duration::ZERO);
                outs.values_mut().for_each(|out| out.push(&bytes));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_is_gone_is_known_in_time() {
        for seconds in [1, 2, 5, 20, 60] {
            let Keepalive { idle, interval, count } = keepalive(Duration::from_secs(seconds));
            let known = idle + interval * count;
            assert!(
                known <= Duration::from_secs(seconds.max(2)) && known.as_secs() * 2 >= seconds,
                "{seconds}"
            );
        }
    }
}
