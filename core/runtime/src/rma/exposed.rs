//! The memory that a rank exposes to the others: its windows and the counters of its signals.
//!
//! All of it is under one lock. Messages are written into windows under it too, so that what came first is
//! there first, also where a window is registered while messages come.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use hawser_base::error::{Error, Result};
use hawser_base::log;
use hawser_base::wait::{Backoff, LONGEST_PAUSE};
use hawser_device::{Device, OwnedStream};

use super::board::{Board, Boards};
use super::counters::Counters;
use super::message::{Header, Piece, Sums};
use super::window::Window;
use super::words::{SignalWord, SignalWords};
use super::{Awaited, CHUNK, Fetch, Limits, RESOURCES, Signal};
use crate::planted::{Bug, is_planted};
use crate::transport::control::Control;
use crate::transport::net::{Area, Inbox, Landing, Windows};

/// The longest rest of a thread that waits for a signal before it looks whether it may go on.
const SLICE: Duration = Duration::from_millis(10);

/// The longest that a rank which gives its windows up waits for a put that is being written.
const MOST_OF_A_PUT: Duration = Duration::from_secs(2);

/// Most bytes that come for windows that are not registered yet.
const MOST_EARLY: usize = 256 << 20;

/// The windows and counters of one rank.
pub struct Exposed {
    rank: u32,
    limits: Limits,
    sums: Sums,
    device: Arc<dyn Device>,
    control: Arc<Control>,
    /// The inbox of pieces that come over the net, if there is one.
    inbox: Option<Arc<Inbox>>,
    /// The stream that bytes are copied on, once there were any.
    stream: OnceLock<OwnedStream>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Windows by number, which is the number of registrations before.
    windows: BTreeMap<u64, Window>,
    /// Registrations of the user so far.
    made: u64,
    /// Networks in kernels.
    boards: Boards,
    counters: Counters,
    /// By rank: places of pieces of its puts that come over the net.
    coming: FxHashMap<u32, Vec<(u64, u64)>>,
    /// Messages for windows that are not registered yet or behind pieces that come over the net, with their
    /// senders, and what these sent afterwards.
    early: VecDeque<(u32, Vec<u8>)>,
    early_bytes: usize,
    /// Ranks of this process that are writing into a window.
    writers: u32,
    /// The rank has aborted: its windows are the program's.
    is_closed: bool,
}

/// A window as its number finds it.
enum Found {
    /// It can be written to.
    Here(Window),
    /// This rank has not registered it yet.
    NotYet,
}

impl Exposed {
    /// Nothing is registered, and no signal was raised.
    pub fn new(
        rank: u32,
        (limits, sums): (Limits, Sums),
        device: Arc<dyn Device>,
        control: Arc<Control>,
        inbox: Option<Arc<Inbox>>,
    ) -> Self {
        let (stream, state, changed) = (OnceLock::new(), Mutex::default(), Condvar::new());
        Self { rank, limits, sums, device, control, inbox, stream, state, changed }
    }

    /// The device that the windows are memory of.
    pub fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// Copies between any memory that this rank's device reaches, and waits for the end. The stream is an
    /// urgent one: streams that wait for a signal do not hold up what they wait for.
    ///
    /// # Errors
    /// The device refused.
    pub fn copy(&self, to: u64, from: u64, bytes: u64) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        self.device.copy_and_wait(self.stream()?, to, from, bytes)
    }

    /// Copies into memory of a rank of this process, and waits for the end: through the host where its memory
    /// is not this device's to reach, either because the devices are no peers or because this memory was
    /// given to no peer, as that of `cudaMallocAsync`.
    ///
    /// # Errors
    /// A device refused.
    pub fn copy_into(&self, near: &Self, (to, from, bytes): (u64, u64, u64), are_peers: bool) -> Result<()> {
        let is_reached = match near.device.kernels() {
            Some(_) if self.device.caps().id == near.device.caps().id => true,
            Some(kernels) => are_peers && kernels.is_reached(to, bytes)?,
            None => true,
        };
        if is_reached {
            return self.copy(to, from, bytes);
        }
        let mut room = vec![0u8; CHUNK.min(bytes) as usize];
        let mut at = 0;
        while at < bytes {
            let (part, between) = (CHUNK.min(bytes - at), room.as_mut_ptr() as u64);
            self.copy(between, from + at, part)?;
            near.copy(to + at, between, part)?;
            at += part;
        }
        Ok(())
    }

    /// The same as [`Exposed::copy`] without multiprocessors of this GPU, which kernels that wait for these
    /// bytes may fill; through `bounce` ([`hawser_device::Streams::copy_beside_kernels`]) where it has to be.
    ///
    /// # Errors
    /// The device refused.
    pub fn copy_for_kernel(&self, (to, from, bytes): (u64, u64, u64), bounce: (u64, u64)) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        self.device.copy_beside_kernels(self.stream()?, to, from, bytes, bounce)
    }

    fn stream(&self) -> Result<&OwnedStream> {
        if self.stream.get().is_none() {
            // Another thread may be faster.
            let _ = self.stream.set(self.device.urgent_stream()?);
        }
        self.stream.get().ok_or_else(|| Error::internal("a stream vanished"))
    }

    /// The numbers of signals and contexts.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// The checksums of messages of other ranks, if they have them.
    pub fn sums(&self) -> Sums {
        self.sums
    }

    /// Registers a window; what has come for it already is written.
    pub fn register(&self, number: u64, window: Window) {
        if let Some(inbox) = &self.inbox
            && let Err(error) = inbox.prepare(&*self.device)
        {
            log::warn(&format!("rank {}: puts cannot go over the net: {error}", self.rank));
        }
        let mut state = self.state();
        state.windows.insert(number, window);
        if number < RESOURCES {
            state.made = state.made.max(number + 1);
        }
        self.receive_early(state);
    }

    /// Shows the signals of a network in kernels, whose resources have been registered as a window; what has
    /// come for them already is added.
    pub fn show(&self, number: u64, board: Arc<dyn Board>) {
        let mut state = self.state();
        state.boards.show(number, board);
        self.receive_early(state);
    }

    /// Takes a network in kernels back, with its window, whose memory is the answer.
    pub fn hide(&self, number: u64) -> Option<Area> {
        let mut state = self.state();
        state.boards.hide(number);
        drop(state);
        self.deregister(RESOURCES + number)
    }

    /// The oldest request of another rank for its kernels, if there is one.
    pub fn take_wanted(&self) -> Option<(u32, Fetch)> {
        self.state().boards.take_wanted()
    }

    /// True, once, if all that this rank wanted by a ticket has come.
    pub fn take_got(&self, ticket: u64) -> bool {
        self.state().boards.take_got(ticket)
    }

    fn receive_early(&self, mut state: MutexGuard<'_, State>) {
        state.early_bytes = 0;
        for (from, message) in std::mem::take(&mut state.early) {
            self.receive(&mut state, from, &message);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Takes a window back, whose memory is the answer: the net may still know it.
    pub fn deregister(&self, number: u64) -> Option<Area> {
        self.state().windows.remove(&number).as_ref().map(Window::area)
    }

    /// True if these bytes lie in one symmetric window.
    pub fn holds(&self, addr: u64, bytes: u64) -> bool {
        let state = self.state();
        state.windows.values().any(|window| window.is_symmetric && window.holds(addr, bytes))
    }

    /// The window that these bytes lie in.
    pub fn area_of(&self, addr: u64, bytes: u64) -> Option<Area> {
        self.state().windows.values().find(|window| window.holds(addr, bytes)).map(Window::area)
    }

    /// The window with a number, if it is registered.
    pub fn window(&self, number: u64) -> Option<Window> {
        self.state().windows.get(&number).copied()
    }

    /// Gives all windows back to the program: nothing is written into them any more. Waits for what is being
    /// written, unless it takes too long.
    pub fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        state.windows.clear();
        state.early.clear();
        let begin = Instant::now();
        while state.writers > 0 && begin.elapsed() < MOST_OF_A_PUT {
            state = self.rest(state);
        }
        if state.writers > 0 {
            let rank = self.rank;
            log::warn(&format!("rank {rank}: a put into a window that it gives up is not over"));
        }
    }

    /// The address for a put into a window of this rank, which stays valid until [`Exposed::leave_place`]. If
    /// the window is not registered yet, waits for that as long as `may_wait` allows.
    ///
    /// # Errors
    /// `Remote`: there is no such place; and what `may_wait` says.
    pub fn place(
        &self,
        (number, offset, bytes): (u64, u64, u64),
        may_wait: impl Fn() -> Result<()>,
    ) -> Result<u64> {
        let mut state = self.state();
        loop {
            if let Found::Here(window) = self.find(&state, number)? {
                let at = self.within(&window, number, offset, bytes)?;
                state.writers += 1;
                return Ok(at);
            }
            drop(state);
            may_wait()?;
            state = self.rest(self.state());
        }
    }

    /// A put that had a place has been written.
    pub fn leave_place(&self) {
        self.state().writers -= 1;
        self.changed.notify_all();
    }

    /// Raises a signal of rank `from` here.
    ///
    /// # Errors
    /// `Remote`: this rank has no such signal.
    pub fn raise(&self, from: u32, signal: Signal) -> Result<()> {
        self.count(&mut self.state(), from, signal)?;
        self.changed.notify_all();
        Ok(())
    }

    /// Takes as many raises as are asked for. Waits for those that are missing, as long as `may_wait` allows:
    /// it is told what is waited for, how many raises are missing, and since when nothing has come.
    ///
    /// # Errors
    /// The answer of `may_wait`.
    pub fn take(
        &self,
        awaited: &[Awaited],
        may_wait: impl Fn(&Awaited, u64, Instant) -> Result<()>,
    ) -> Result<()> {
        let mut state = self.state();
        let targets: Vec<_> = awaited.iter().map(|one| (one, state.counters.take(one))).collect();
        for (one, target) in targets {
            let (mut seen, mut since, mut backoff) = (0, Instant::now(), Backoff::new());
            loop {
                let has_word = state.counters.has_words_of(one.peer);
                let raised = state.counters.raised(one.peer, one.signal);
                if raised >= target {
                    break;
                }
                if raised != seen {
                    (seen, since) = (raised, Instant::now());
                }
                drop(state);
                may_wait(one, target - raised, since)?;
                // Nobody tells of words that change.
                if has_word {
                    backoff.rest(LONGEST_PAUSE);
                }
                state = self.state();
                if !has_word && state.counters.raised(one.peer, one.signal) == raised {
                    state = self.rest(state);
                }
            }
        }
        Ok(())
    }

    /// Gives a wait of a stream its share. Answers the word to wait for and the number there, or None where
    /// the rank's words are not shared.
    pub fn take_on_stream(&self, one: &Awaited) -> Option<(SignalWord, u32)> {
        let mut state = self.state();
        let word = state.counters.word(one.peer, one.signal)?;
        Some((word, state.counters.take(one) as u32))
    }

    /// From now on the ranks of the team raise these words.
    pub fn share_words(&self, words: Arc<SignalWords>) {
        self.state().counters.share(self.rank, words);
        self.changed.notify_all();
    }

    /// A word of this rank has changed.
    pub fn wake(&self) {
        self.changed.notify_all();
    }

    /// Carries out a message of rank `from`. What cannot be carried out ends the communicator on this rank:
    /// the sender does not learn of it.
    pub fn serve(&self, from: u32, message: &[u8]) {
        self.receive(&mut self.state(), from, message);
        self.changed.notify_all();
    }

    fn receive(&self, state: &mut State, from: u32, message: &[u8]) {
        if state.is_closed {
            return;
        }
        let is_behind = state.early.iter().any(|(sender, _)| *sender == from);
        let outcome = match is_behind {
            true => Ok(false),
            false => self.carry_out(state, from, message),
        };
        let outcome = outcome.and_then(|is_done| if is_done { Ok(()) } else { keep(state, from, message) });
        if let Err(error) = outcome {
            let error = error.context(format!("rank {}: a put or signal of rank {from}", self.rank));
            log::error(&error);
            self.control.fail(error.with_peer(from));
        }
    }

    /// False if the window is not registered yet, or bytes that were put before have not come yet.
    fn carry_out(&self, state: &mut State, from: u32, message: &[u8]) -> Result<bool> {
        let (header, bytes) = Header::read(message, self.sums)?;
        if let Header::Come(piece) = header {
            return self.expect(state, from, &piece);
        }
        if state.coming.contains_key(&from) {
            return Ok(false);
        }
        match (header, bytes) {
            (Header::Come(_), _) => {}
            (Header::Raise(signal), _) => self.count(state, from, signal)?,
            (Header::Count(signal), _) => state.counters.count(from, signal),
            (Header::Put { window: number, offset }, bytes) => {
                let Found::Here(window) = self.find(state, number)? else { return Ok(false) };
                let addr = self.within(&window, number, offset, bytes.len() as u64)?;
                self.copy(addr, bytes.as_ptr() as u64, bytes.len() as u64)?;
            }
            (Header::AddSignal { network, place, value }, _) => {
                return state.boards.add(network, place, value);
            }
            (Header::AddWord { window: number, offset, value }, _) => {
                let Found::Here(window) = self.find(state, number)? else { return Ok(false) };
                self.add(self.within(&window, number, offset, 8)?, value)?;
            }
            (Header::Get(fetch), _) => state.boards.want(from, fetch),
            (Header::Got(ticket), _) => state.boards.get(ticket),
        }
        Ok(true)
    }

    /// Receives a piece over the net. False if that has to wait: its window is not registered yet, or a part
    /// of its place is that of a piece which comes, too.
    fn expect(&self, state: &mut State, from: u32, piece: &Piece) -> Result<bool> {
        let Some(inbox) = &self.inbox else {
            return Err(Error::remote("a put comes over the net, and there is none"));
        };
        let Found::Here(window) = self.find(state, piece.window)? else { return Ok(false) };
        let (addr, bytes) = (self.within(&window, piece.window, piece.offset, piece.bytes)?, piece.bytes);
        let coming = state.coming.entry(from).or_default();
        if coming.iter().any(|(other, length)| addr < other + length && *other < addr + bytes) {
            return Ok(false);
        }
        coming.push((addr, bytes));
        let landing = Landing { addr, bytes, area: window.area(), record: piece.record };
        inbox.expect(from, piece.place, landing);
        Ok(true)
    }

    /// Adds to a word of a window. All who do that hold the lock.
    fn add(&self, addr: u64, value: u64) -> Result<()> {
        let mut word = 0u64;
        self.copy(&raw mut word as u64, addr, 8)?;
        let sum = word.wrapping_add(value);
        self.copy(addr, &raw const sum as u64, 8)
    }

    fn count(&self, state: &mut State, from: u32, signal: Signal) -> Result<()> {
        let Limits { signals, contexts } = self.limits;
        if signal.index >= signals || signal.context >= contexts {
            let text = format!(
                "signal {} of context {}, but rank {} has {signals} signals and {contexts} contexts",
                signal.index, signal.context, self.rank
            );
            return Err(Error::remote(text).remedy("set numRmaSig and numRmaCtx alike on all ranks"));
        }
        if is_planted(Bug::LostSignal) && state.counters.raised(from, signal) == 1 {
            return Ok(());
        }
        state.counters.tell(from, signal);
        Ok(())
    }

    fn find(&self, state: &State, number: u64) -> Result<Found> {
        let refuse = |what: &str| {
            Err(Error::remote(format!("window {number} of rank {} {what}", self.rank))
                .remedy("register windows in the same order on all ranks"))
        };
        match state.windows.get(&number) {
            Some(window) => Ok(Found::Here(*window)),
            // Who waits for it learns that the rank has gone.
            None if state.is_closed => Ok(Found::NotYet),
            None if number < state.made => refuse("was taken back"),
            None if number >= RESOURCES && state.boards.has_made(number - RESOURCES) => {
                refuse("was a communicator for kernels that has been destroyed")
            }
            None => Ok(Found::NotYet),
        }
    }

    /// The address at an offset of a window that has room for so many bytes.
    fn within(&self, window: &Window, number: u64, offset: u64, bytes: u64) -> Result<u64> {
        if offset <= window.bytes && bytes <= window.bytes - offset {
            return Ok(window.addr + offset);
        }
        let text = format!(
            "{bytes} bytes at offset {offset} do not fit window {number} of rank {}, which has {}",
            self.rank, window.bytes
        );
        Err(Error::remote(text).remedy("register windows of the same size on all ranks"))
    }

    fn rest<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, SLICE).unwrap_or_else(PoisonError::into_inner).0
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Windows for Exposed {
    fn copy(&self, to: u64, from: u64, bytes: u64) -> Result<()> {
        self.copy(to, from, bytes)
    }

    fn landed(&self, from: u32, addr: u64) {
        let mut state = self.state();
        if let Some(coming) = state.coming.get_mut(&from) {
            coming.retain(|(other, _)| *other != addr);
            if coming.is_empty() {
                state.coming.remove(&from);
            }
        }
        if state.early.is_empty() {
            // Nobody waits for bytes alone.
            return;
        }
        self.receive_early(state);
    }
}

/// Keeps a message until its window is registered and all that comes before it has come.
fn keep(state: &mut State, from: u32, message: &[u8]) -> Result<()> {
    state.early_bytes += message.len();
    if state.early_bytes > MOST_EARLY {
        let text = format!("more than {} MiB wait for their windows or for other puts", MOST_EARLY >> 20);
        return Err(Error::remote(text).remedy("register the window on all ranks before the first put"));
    }
    state.early.push_back((from, message.to_vec()));
    Ok(())
}

#[cfg(test)]
#[path = "exposed_tests.rs"]
mod tests;
