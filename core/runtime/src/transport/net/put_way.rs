//! The way of puts over the net: what is to be sent and what comes, until the proxy takes it, and the slots
//! that bytes of GPUs pass through.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use hawser_base::error::{Error, Result};
use hawser_base::wait::{AbortFlag, Wait};
use hawser_device::{Device, HostWords};
use hawser_plan::layout::HeapLayout;
use rustc_hash::{FxHashMap, FxHashSet};

use super::checksum::Checksum;
use super::end::{Around, ConnectionKey, End};
use super::link::RailFigures;
use super::nic::Nics;
use super::puts::{Area, Landing, Outgoing, PutEnd, Record, Ticket};
use super::task::NetTask;
use crate::proxy::Proxy;

/// Most bytes of a piece that goes from window to window.
const DIRECT: u64 = 4 << 20;
/// Bytes of a slot of GPUs.
const SLOT: u64 = 1 << 20;
/// Slots for what is sent, and as many for what comes.
const SLOTS: u64 = 8;
/// Bytes of the shortest put that goes over the net, by default: TCP carries messages as well, and an
/// announcement is one.
const LEAST: u64 = 64 << 10;
/// The same where the net is TCP.
const LEAST_BY_TCP: u64 = 2 << 20;
/// The longest that a window which is taken back waits for a piece that is on its way.
const MOST_OF_A_PIECE: Duration = Duration::from_secs(2);

/// The windows of a rank that pieces come for.
pub trait Windows: Send + Sync {
    /// Copies between any memory that the device reaches, and waits for the end.
    ///
    /// # Errors
    /// The device refused.
    fn copy(&self, to: u64, from: u64, bytes: u64) -> Result<()>;

    /// A piece of this rank has come to this address.
    fn landed(&self, from: u32, addr: u64);
}

/// Slots of one direction.
struct Slots {
    words: HostWords,
    free: Mutex<Vec<u64>>,
}

impl Slots {
    fn new(device: &dyn Device) -> Result<Self> {
        let words = device.host_words(SLOTS * SLOT)?;
        let free = (0..SLOTS).map(|slot| words.host as u64 + slot * SLOT).collect();
        Ok(Self { words, free: Mutex::new(free) })
    }

    fn take(&self) -> Option<(Area, u64)> {
        let area = Area { addr: self.words.host as u64, bytes: SLOTS * SLOT };
        lock(&self.free).pop().map(|slot| (area, slot))
    }

    fn give(&self, slot: u64) {
        lock(&self.free).push(slot);
    }
}

/// The work that waits for the proxy.
pub struct Inbox {
    /// By lane behind the first: the plugin's device, its figures and its name.
    rails: Vec<(u32, RailFigures, Box<str>)>,
    first_lane: u32,
    has_work: AtomicBool,
    works: Mutex<Works>,
    windows: OnceLock<Weak<dyn Windows>>,
    proxy: Arc<Proxy>,
    /// Bytes pass through slots: the device is a GPU.
    is_staged: bool,
    outgoing: OnceLock<Slots>,
    incoming: OnceLock<Slots>,
}

#[derive(Default)]
struct Works {
    out: Vec<(ConnectionKey, Outgoing)>,
    land: Vec<(ConnectionKey, u64, Landing)>,
    /// Pieces sent so far.
    numbers: FxHashMap<ConnectionKey, u64>,
}

impl Inbox {
    /// Nothing is to be done. Puts go over all NICs of the rank; the lanes are those behind LL's.
    pub fn new(
        (net, nics): (&str, &Nics),
        layout: &HeapLayout,
        place: u32,
        (proxy, is_staged): (&Arc<Proxy>, bool),
    ) -> Self {
        let rail = |lane| {
            let nic = nics.name(place, lane);
            (nics.device(place, lane), RailFigures::of(net, nic), nic.into())
        };
        let last = ConnectionKey { lane: layout.lanes, peer: 0, send: false };
        Self {
            rails: (0..nics.near.len() as u32).map(rail).collect(),
            first_lane: last.for_ll(layout.lanes).lane,
            has_work: AtomicBool::new(false),
            works: Mutex::default(),
            windows: OnceLock::new(),
            proxy: proxy.clone(),
            is_staged,
            outgoing: OnceLock::new(),
            incoming: OnceLock::new(),
        }
    }

    /// Pieces come for these windows.
    pub fn serve(&self, windows: Weak<dyn Windows>) {
        let _ = self.windows.set(windows);
    }

    /// There is a window: takes the memory for slots, if bytes need any. Not while something runs.
    ///
    /// # Errors
    /// There is none.
    pub fn prepare(&self, device: &dyn Device) -> Result<()> {
        for slots in [&self.outgoing, &self.incoming] {
            if self.is_staged && slots.get().is_none() {
                let _ = slots.set(Slots::new(device)?);
            }
        }
        Ok(())
    }

    /// A rank has told of a piece that it sends.
    pub fn expect(&self, from: u32, (rail, number): (u32, u64), piece: Landing) {
        lock(&self.works).land.push((self.key(from, rail, false), number, piece));
        self.wake();
    }

    fn key(&self, peer: u32, rail: u32, send: bool) -> ConnectionKey {
        ConnectionKey { lane: self.first_lane.saturating_add(rail), peer, send }
    }

    fn wake(&self) {
        self.has_work.store(true, Ordering::Release);
        self.proxy.wake();
    }

    /// True if bytes pass through slots.
    pub fn is_staged(&self) -> bool {
        self.is_staged
    }

    /// A slot for what comes, with the memory that it lies in; none while all are in use.
    ///
    /// # Errors
    /// There was no memory for any.
    pub fn take_slot(&self) -> Result<Option<(Area, u64)>> {
        let missing = || Error::internal("a put has come, and there is no window");
        Ok(self.incoming.get().ok_or_else(missing)?.take())
    }

    /// A slot is free again.
    pub fn give_slot(&self, slot: u64) {
        self.incoming.get().into_iter().for_each(|slots| slots.give(slot));
    }

    /// A piece has come, and lies in a slot if there is one.
    ///
    /// # Errors
    /// It could not be copied.
    pub fn landed(&self, from: u32, piece: &Landing, slot: Option<u64>) -> Result<()> {
        let Some(windows) = self.windows.get().and_then(Weak::upgrade) else { return Ok(()) };
        if let Some(slot) = slot {
            windows.copy(piece.addr, slot, piece.bytes)?;
        }
        windows.landed(from, piece.addr);
        Ok(())
    }

    /// True if there is nothing that the proxy has not taken.
    pub fn is_empty(&self) -> bool {
        !self.has_work.load(Ordering::Acquire)
    }

    /// Hands all work to the ends of its connections, which are made if need be. Answers those that could not
    /// be made.
    pub(super) fn hand_out(
        self: &Arc<Self>,
        (ends, have_ended): (&mut Vec<PutEnd>, &FxHashSet<ConnectionKey>),
        around: &Around<'_>,
    ) -> Vec<(ConnectionKey, Error)> {
        if !self.has_work.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        let (out, land) = {
            let mut works = lock(&self.works);
            (std::mem::take(&mut works.out), std::mem::take(&mut works.land))
        };
        let mut failed = Vec::new();
        for (key, piece) in out {
            match self.end((ends, have_ended), key, around) {
                Ok(PutEnd::Out(end)) => end.add(piece),
                Ok(PutEnd::In(_)) => {}
                Err(error) => {
                    let _ = piece.ticket.set(Err(error.clone()));
                    failed.push((key, error));
                }
            }
        }
        for (key, number, piece) in land {
            match self.end((ends, have_ended), key, around) {
                Ok(PutEnd::In(end)) => end.add(number, piece),
                Ok(PutEnd::Out(_)) => {}
                Err(error) => failed.push((key, error)),
            }
        }
        failed
    }

    fn end<'a>(
        self: &Arc<Self>,
        (ends, have_ended): (&'a mut Vec<PutEnd>, &FxHashSet<ConnectionKey>),
        key: ConnectionKey,
        around: &Around<'_>,
    ) -> Result<&'a mut PutEnd> {
        let at = match ends.iter().position(|end| end.key() == key) {
            Some(at) => at,
            // One that has failed is not made again.
            None if have_ended.contains(&key) => {
                let text = format!("the connection for puts with rank {} has ended", key.peer);
                return Err(Error::remote(text).with_peer(key.peer));
            }
            None => {
                let rail = (key.lane - self.first_lane) as usize % self.rails.len();
                let (device, figures, nic) = &self.rails[rail];
                ends.push(PutEnd::new(key, (*device, *figures, nic), around, self)?);
                ends.len() - 1
            }
        };
        Ok(&mut ends[at])
    }
}

/// The announcement of a piece.
pub struct Announced {
    /// The connection that it goes over, counted from 0 on.
    pub rail: u32,
    /// Its number on it.
    pub number: u64,
    /// Its record, if pieces have checksums.
    pub record: Option<Record>,
}

/// The way of a rank's puts.
pub struct PutWay {
    task: Arc<NetTask>,
    inbox: Arc<Inbox>,
    has_checksums: bool,
    /// Bytes of the shortest put that goes this way; 0: none does.
    least_bytes: u64,
    most_bytes: u64,
    next_rail: AtomicU32,
}

impl PutWay {
    /// A way for pieces of at most `most_bytes` bytes.
    pub fn new(
        task: &Arc<NetTask>,
        inbox: Arc<Inbox>,
        has_checksums: bool,
        (least_bytes, most_bytes): (u64, u64),
    ) -> Self {
        let most_bytes = most_bytes.min(if inbox.is_staged { SLOT } else { DIRECT });
        Self {
            task: task.clone(),
            inbox,
            has_checksums,
            least_bytes,
            most_bytes,
            next_rail: AtomicU32::new(0),
        }
    }

    /// The work that waits for the proxy.
    pub fn inbox(&self) -> &Arc<Inbox> {
        &self.inbox
    }

    /// True if a put of so many bytes goes this way.
    pub fn takes(&self, bytes: u64) -> bool {
        let is_long = self.least_bytes > 0 && bytes >= self.least_bytes;
        is_long && self.most_bytes > 0 && (!self.inbox.is_staged || self.inbox.outgoing.get().is_some())
    }

    /// True if bytes pass through slots.
    pub fn is_staged(&self) -> bool {
        self.inbox.is_staged
    }

    /// Most bytes of a piece.
    pub fn most_bytes(&self) -> u64 {
        self.most_bytes
    }

    /// A slot for what is sent; none while all are in use.
    pub fn take_slot(&self) -> Option<(Area, u64)> {
        self.inbox.outgoing.get()?.take()
    }

    /// A slot is free again.
    pub fn give_slot(&self, slot: u64) {
        self.inbox.outgoing.get().into_iter().for_each(|slots| slots.give(slot));
    }

    /// Begins to send a piece to a rank, which has to be told of it.
    pub fn send(&self, peer: u32, piece: Outgoing) -> Announced {
        let rail = self.next_rail.fetch_add(1, Ordering::Relaxed) % self.inbox.rails.len() as u32;
        let key = self.inbox.key(peer, rail, true);
        let (addr, bytes) = (piece.addr, piece.bytes as usize);
        let number = {
            let mut works = lock(&self.inbox.works);
            works.out.push((key, piece));
            let numbers = works.numbers.entry(key).or_default();
            *numbers += 1;
            *numbers - 1
        };
        self.inbox.wake();
        let record = self.has_checksums.then(|| {
            // SAFETY: the piece lies in memory of the host, and nobody writes it until its ticket is set.
            let data = unsafe { std::slice::from_raw_parts(addr as *const u8, bytes) };
            Checksum::of(key, self.task.rank()).record(number, data)
        });
        Announced { rail, number, record }
    }

    /// A window goes: waits until nothing of it is on its way, unless the communicator has ended, and has it
    /// registered no more.
    pub fn forget(&self, area: Area, has_ended: impl Fn() -> bool) {
        let wait = Wait::new(AbortFlag::new(), Some(MOST_OF_A_PIECE));
        let is_over = || (self.task.is_over() || has_ended() || !self.task.puts_use(area)).then_some(());
        // What is on its way still has its connection closed.
        let _ = wait.until(is_over, || "a put into a window that is taken back ends".to_owned());
        self.task.forget_window(area);
    }

    /// Ends the connections with `peer`, or all: their memory is the program's from now on.
    pub fn end(&self, peer: Option<u32>, why: &Error) {
        self.task.end_puts(peer, why);
    }
}

impl NetTask {
    /// True if no put is on its way, out or in.
    pub(super) fn are_puts_over(&self) -> bool {
        self.inbox.is_empty() && self.lock().puts.iter().all(PutEnd::is_idle)
    }

    /// True if a put that is on its way, or may be, uses this memory.
    fn puts_use(&self, area: Area) -> bool {
        !self.inbox.is_empty() || self.lock().puts.iter().any(|end| end.uses(area))
    }

    /// No connection for puts has this memory registered from now on; those that use it are closed.
    fn forget_window(&self, area: Area) {
        let why = Error::invalid_usage("a window was taken back while a rank put into it");
        let mut links = self.lock();
        links.end_puts(|end| end.uses(area), Some(&why));
        links.puts.iter_mut().for_each(|end| drop(end.forget(area)));
    }

    /// Ends the connections for puts with `peer`, or all.
    fn end_puts(&self, peer: Option<u32>, why: &Error) {
        self.lock().end_puts(|end| peer.is_none_or(|peer| end.key().peer == peer), Some(why));
    }
}

/// Bytes of the shortest put that goes over the net with this name.
pub fn least_bytes(net: &str, asked: Option<u64>) -> u64 {
    let by_default = if net.eq_ignore_ascii_case("Socket") { LEAST_BY_TCP } else { LEAST };
    asked.unwrap_or(by_default)
}

/// The outcome of a piece, once there is one.
pub fn outcome(ticket: &Ticket) -> Option<Result<()>> {
    ticket.get().cloned()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
