//! A data socket at the sender: takes chunks and pushes them out.
//!
//! States of the atomic, which says whether somebody has to be woken for new work: `DOWN` no socket; `IDLE`
//! nothing to do, nobody drives; `BUSY` somebody drives, will be woken by the socket, or is on a thread's
//! list. Who turns `IDLE` into `BUSY` has to see to it that the socket is driven. A driver that finds no
//! chunk first says `IDLE`, then looks again, so no chunk is left behind.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard};

use hawser_oob::seal::{Sealer, SessionKeys, TAG};
use hawser_oob::socket::{self, Moved};
use rustix::io::Errno;

use crate::control::Loss;
use crate::frame::{CHUNK_HEADER, ChunkHeader};
use crate::path_health::PathHealth;
use crate::pool::{Ticket, lock, try_lock};
use crate::queue::{Chunk, Queue};
use crate::service::Watch;
use crate::stats;
use crate::sys::{self, Span};

const DOWN: u8 = 0;
const IDLE: u8 = 1;
const BUSY: u8 = 2;

/// Shorter chunks are copied: pinning their pages costs more.
const ZERO_COPY_FROM: usize = 64 << 10;
/// Zero-copy sends after which the kernel's notices are taken away.
const NOTICES: u32 = 16;

/// One data socket of a connection, whichever socket that is at the time.
pub(crate) struct TxPipe {
    state: AtomicU8,
    lane: Mutex<Lane>,
}

/// The part of a data socket that its driver owns.
pub(crate) struct Lane {
    socket: Option<OwnedFd>,
    ticket: Option<Ticket>,
    _watch: Option<Watch>,
    generation: u32,
    /// Generations handed out to dials.
    dialled: u32,
    /// The socket is lost; the receiver has not yet said how far it came.
    is_dying: bool,
    /// No socket comes any more: the host's memory is its own again.
    is_barred: bool,
    current: Option<Current>,
    /// Seals chunks, if anything does, and has room for the one that is being sent.
    sealer: Option<Sealer>,
    sealed: Vec<u8>,
    /// Chunks given to this socket, without the first `forgotten`, whose messages are over.
    given: VecDeque<Chunk>,
    forgotten: u64,
    zero_copy: bool,
    notices: u32,
    path_health: PathHealth,
}

/// A chunk that is being sent: header, payload and, where it is sealed, a tag behind each of them.
struct Current {
    header: [u8; CHUNK_HEADER + TAG],
    /// Bytes of the header with its tag.
    header_len: usize,
    addr: u64,
    payload_len: usize,
    /// The payload's tag.
    tail: [u8; TAG],
    tail_len: usize,
    sent: usize,
}

/// The outcome of driving a data socket.
pub(crate) enum Driven {
    /// Nothing to do, or no room.
    Wait,
    /// Its share of bytes is moved.
    Again,
    /// The socket is lost.
    Lost { generation: u32, loss: Loss },
}

impl TxPipe {
    pub fn new() -> Self {
        Self {
            state: AtomicU8::new(DOWN),
            lane: Mutex::new(Lane {
                socket: None,
                ticket: None,
                _watch: None,
                generation: 0,
                dialled: 0,
                is_dying: false,
                is_barred: false,
                current: None,
                sealer: None,
                sealed: Vec::new(),
                given: VecDeque::new(),
                forgotten: 0,
                zero_copy: false,
                notices: 0,
                path_health: PathHealth::default(),
            }),
        }
    }

    pub fn lane(&self) -> MutexGuard<'_, Lane> {
        lock(&self.lane)
    }

    /// True: the caller now has to see to it that the socket is driven.
    pub fn rouse(&self) -> bool {
        self.state.compare_exchange(IDLE, BUSY, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Has its thread drive it; false if it has none.
    pub fn wake(&self) -> bool {
        let lane = self.lane();
        lane.ticket.as_ref().inspect(|ticket| ticket.wake()).is_some()
    }

    /// Tells whether it has bytes that the socket had no room for.
    pub fn is_busy(&self) -> bool {
        self.state.load(Ordering::SeqCst) == BUSY
    }

    /// Tells whether the pipe has a socket.
    pub fn is_up(&self) -> bool {
        self.state.load(Ordering::SeqCst) != DOWN
    }

    /// Sends chunks of the queue until there are none, the socket is full, or `share` bytes are moved.
    /// `waiting` says how many chunks there are.
    pub fn drive(&self, queue: &Mutex<Queue>, waiting: impl Fn(&Queue) -> usize, share: usize) -> Driven {
        self.drive_lane(self.lane(), queue, waiting, share)
    }

    /// As [`TxPipe::drive`], unless somebody else drives it now.
    pub fn try_drive(&self, queue: &Mutex<Queue>, waiting: impl Fn(&Queue) -> usize, share: usize) -> Driven {
        match try_lock(&self.lane) {
            Some(lane) => self.drive_lane(lane, queue, waiting, share),
            None => Driven::Wait,
        }
    }

    fn drive_lane(
        &self,
        mut lane: MutexGuard<'_, Lane>,
        queue: &Mutex<Queue>,
        waiting: impl Fn(&Queue) -> usize,
        share: usize,
    ) -> Driven {
        let mut moved = 0;
        loop {
            if lane.socket.is_none() {
                return Driven::Wait;
            }
            if lane.current.is_none() {
                let claimed = lane.claim(&mut lock(queue), &waiting);
                let Some(chunk) = claimed else {
                    self.state.store(IDLE, Ordering::SeqCst);
                    if waiting(&lock(queue)) == 0 || !self.rouse() {
                        return Driven::Wait;
                    }
                    continue;
                };
                lane.begin(&chunk);
            }
            match lane.push() {
                Ok(Moved::Bytes(count)) => moved += count,
                Ok(Moved::Nothing | Moved::Closed) => return Driven::Wait,
                Err(errno) => {
                    let generation = lane.lose();
                    self.state.store(DOWN, Ordering::SeqCst);
                    return Driven::Lost { generation, loss: Loss::of(errno) };
                }
            }
            if moved >= share {
                return Driven::Again;
            }
        }
    }

    /// Looks whether the peer has ended the socket: it never sends anything here.
    pub fn probe(&self) -> Option<(u32, Loss)> {
        let mut lane = self.lane();
        let loss = match socket::receive(lane.socket.as_ref()?.as_fd(), &mut [0]) {
            Ok(Moved::Nothing) => return None,
            Ok(Moved::Bytes(_)) => Loss { reason: "data came the wrong way".into(), is_abrupt: false },
            Ok(Moved::Closed) => Loss::end_of_stream(),
            Err(errno) => Loss::of(errno),
        };
        self.state.store(DOWN, Ordering::SeqCst);
        Some((lane.lose(), loss))
    }

    /// Looks whether the path is alive.
    pub fn look(&self) -> Option<(u32, Loss)> {
        let mut lane = self.lane();
        let Lane { socket, path_health, .. } = &mut *lane;
        let loss = path_health.look(socket.as_ref()?.as_fd())?;
        self.state.store(DOWN, Ordering::SeqCst);
        Some((lane.lose(), loss))
    }

    /// The number of the next socket to be dialled; None if none is needed.
    pub fn next_generation(&self) -> Option<u32> {
        let mut lane = self.lane();
        if lane.socket.is_some() || lane.is_dying {
            return None;
        }
        lane.dialled += 1;
        Some(lane.dialled)
    }

    /// A new socket, sealed if there are keys, to another host if `is_far`. False: it is not wanted any more.
    pub fn attach(
        &self,
        (socket, keys): (OwnedFd, Option<SessionKeys>),
        generation: u32,
        (ticket, watch): (Option<Ticket>, Option<Watch>),
        is_far: bool,
        zero_copy: bool,
    ) -> bool {
        let mut lane = self.lane();
        if lane.socket.is_some() || lane.is_dying || lane.is_barred || generation != lane.dialled {
            return false;
        }
        if is_far {
            sys::limit_unsent(socket.as_fd());
        }
        lane.zero_copy = is_far && zero_copy && sys::allow_zero_copy(socket.as_fd());
        (lane.socket, lane.ticket, lane._watch) = (Some(socket), ticket, watch);
        lane.sealer = keys.map(|keys| keys.into_ends().0);
        lane.generation = generation;
        lane.given.clear();
        lane.forgotten = 0;
        lane.path_health.restart();
        self.state.store(IDLE, Ordering::SeqCst);
        true
    }

    /// The receiver has closed the socket of this generation after so many whole chunks. Puts the others back
    /// into the queue and returns how many; None if that socket was settled before.
    ///
    /// # Errors
    /// The peer speaks nonsense.
    pub fn settle(
        &self,
        generation: u32,
        chunks: u64,
        queue: &Mutex<Queue>,
        waiting: impl Fn(&Queue) -> usize,
    ) -> Result<Option<usize>, String> {
        let mut lane = self.lane();
        if lane.generation != generation || (lane.socket.is_none() && !lane.is_dying) {
            return Ok(None);
        }
        lane.lose();
        lane.is_dying = false;
        self.state.store(DOWN, Ordering::SeqCst);
        let arrived = usize::try_from(chunks.saturating_sub(lane.forgotten)).unwrap_or(usize::MAX);
        if chunks < lane.forgotten || arrived > lane.given.len() {
            let given = lane.forgotten + lane.given.len() as u64;
            return Err(format!("it has {chunks} chunks of a socket, {} to {given} can be", lane.forgotten));
        }
        let mut queue = lock(queue);
        let repeated = queue.requeue(lane.given.drain(..).skip(arrived));
        waiting(&queue);
        Ok(Some(repeated))
    }

    /// Lets go of everything. Afterwards no memory of the host is touched.
    pub fn close(&self) {
        let mut lane = self.lane();
        lane.is_barred = true;
        lane.lose();
        lane.given.clear();
        self.state.store(DOWN, Ordering::SeqCst);
    }

    /// Ends the socket as a failing network would.
    pub fn cut(&self) -> bool {
        let lane = self.lane();
        lane.socket.as_ref().inspect(|socket| socket::cut(socket.as_fd())).is_some()
    }
}

impl Lane {
    /// Takes a chunk, if there is one.
    fn claim(&mut self, queue: &mut Queue, waiting: &impl Fn(&Queue) -> usize) -> Option<Chunk> {
        while self.given.front().is_some_and(|chunk| !queue.is_open(chunk.request)) {
            self.given.pop_front();
            self.forgotten += 1;
        }
        let chunk = queue.claim()?;
        waiting(queue);
        self.given.push_back(chunk);
        stats::add(&stats::CHUNKS, 1);
        stats::add(&stats::CHUNK_BYTES, u64::from(chunk.len));
        Some(chunk)
    }

    /// Makes the bytes of a chunk that was claimed.
    fn begin(&mut self, chunk: &Chunk) {
        let &Chunk { slot, total, offset, len, addr, .. } = chunk;
        let plain = ChunkHeader { slot, total, offset, len }.encode();
        let mut header = [0; CHUNK_HEADER + TAG];
        header[..CHUNK_HEADER].copy_from_slice(&plain);
        let (payload_len, tail) = (len as usize, [0; TAG]);
        let current =
            Current { header, header_len: CHUNK_HEADER, addr, payload_len, tail, tail_len: 0, sent: 0 };
        let current = match &mut self.sealer {
            None => current,
            Some(sealer) => {
                let (head, head_tag) = header.split_at_mut(CHUNK_HEADER);
                head_tag.copy_from_slice(&sealer.seal(&[], head));
                // SAFETY: the payload is part of a message that is not over, as in `push`.
                let payload = unsafe { std::slice::from_raw_parts(addr as *const u8, payload_len) };
                self.sealed.clear();
                self.sealed.extend_from_slice(payload);
                let tail = sealer.seal(&[], &mut self.sealed);
                let (header_len, addr) = (header.len(), self.sealed.as_ptr() as u64);
                Current { header, header_len, addr, tail, tail_len: TAG, ..current }
            }
        };
        self.current = Some(current);
    }

    /// Sends what there is room for of the current chunk.
    fn push(&mut self) -> Result<Moved, Errno> {
        let (Some(socket), Some(current)) = (&self.socket, &mut self.current) else {
            return Ok(Moved::Nothing);
        };
        let header = &current.header[current.sent.min(current.header_len)..current.header_len];
        let behind = current.sent.saturating_sub(current.header_len);
        let done = behind.min(current.payload_len);
        let payload = Span { addr: current.addr + done as u64, len: current.payload_len - done };
        let tail = &current.tail[behind - done..current.tail_len];
        let whole = current.header_len + current.payload_len + current.tail_len;
        let pinned = self.zero_copy && payload.len >= ZERO_COPY_FROM && header.is_empty();
        // With zero copy the header goes alone: its memory is ours and changes.
        let first = if self.zero_copy && !header.is_empty() { Span { len: 0, ..payload } } else { payload };
        // SAFETY: header and tail live in `current`; the payload lies in `sealed`, or it is part of a message
        // that is not over, because messages are only over when the receiver has all of their bytes, or after
        // `close` has emptied this lane under its lock.
        let moved =
            unsafe { sys::send_spans(socket.as_fd(), [Span::of(header), first, Span::of(tail)], pinned) };
        let moved = match moved {
            // No room for another notice: this once by copying.
            Err(Errno::NOBUFS) if pinned => {
                sys::drop_notices(socket.as_fd());
                // SAFETY: as above.
                unsafe { sys::send_spans(socket.as_fd(), [Span::of(header), first, Span::of(tail)], false) }
            }
            other => other,
        };
        if pinned {
            self.notices += 1;
            if self.notices.is_multiple_of(NOTICES) {
                sys::drop_notices(socket.as_fd());
            }
        }
        if let Ok(Moved::Bytes(count)) = moved {
            current.sent += count;
            if current.sent == whole {
                self.current = None;
            }
        }
        moved
    }

    /// Drops the socket; its chunks stay until the receiver has said how far it came.
    fn lose(&mut self) -> u32 {
        (self.socket, self.ticket, self._watch) = (None, None, None);
        (self.current, self.sealer) = (None, None);
        self.is_dying = true;
        self.generation
    }
}
