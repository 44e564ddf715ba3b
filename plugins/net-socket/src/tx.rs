//! The sending end of a connection.
//!
//! Who runs here: the host's thread (`isend`, `test`), the pool's threads (`drive`), the service thread
//! (dials, ends of sockets, ticks). The rules:
//!
//! 1. Locks are taken in the order control, lane, queue. Nothing is sent or received with the queue locked.
//! 2. A message that is not longer than `inline` is copied into the control stream, which keeps it until the
//!    receiver has understood it: the request is done at once. It may go before the receiver has said where
//!    to. Longer ones wait for that, and are done when the receiver says that it has all bytes.
//! 3. A data socket that is lost is settled before anything of it is sent again: the receiver closes its end,
//!    then tells how many whole chunks it brought (`PipeFinal`). Chunks arrive in order on a socket, so
//!    exactly the others go back into the queue. No byte is written twice, and nothing of the old socket can
//!    arrive later.
//! 4. A settled socket is dialled again while the others carry on; so is the control connection, whose
//!    streams go on where the peer has understood them.
//! 5. When the connection has failed, no lane has a socket before the host hears of it: its memory is its own
//!    again.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use hawser_oob::handle::ConnectInfo;
use hawser_oob::interface::Interface;
use hawser_plugin::net::Segment;
use hawser_plugin::{Error, Result};

use crate::control::{Control, Loss, Trouble};
use crate::fault::{self, Cut};
use crate::frame::Record;
use crate::greeting::Socket;
use crate::link::Link;
use crate::outbound::Errand;
use crate::pool::{Drive, Next, SHARE, lock};
use crate::queue::{LONGEST_EARLY, MOST_EARLY, Misfit, Queue, Target};
use crate::ready::Flag;
use crate::rx::{HABIT, too_long};
use crate::service::Member;
use crate::shared::Shared;
use crate::stats;
use crate::stream::Outgoing;
use crate::tx_dial::Paths;
use crate::tx_pipe::{Driven, TxPipe};

/// The most bytes of short messages that the control stream keeps.
const MOST_KEPT: usize = 1 << 20;
/// The host's thread sends a message of up to this many bytes itself if nothing else is under way: waking a
/// thread takes as long as the copy.
const DIRECT: usize = 64 << 10;
/// Bytes of short messages that wait for the next test at most.
const MOST_UNSENT: usize = 32 << 10;

/// The sending end of a connection.
pub(crate) struct TxConn {
    /// The connection itself, for those who keep it.
    pub(crate) me: Weak<TxConn>,
    /// The name, the state and the log of the connection.
    pub link: Link,
    /// The state that all connections of the context share.
    pub(crate) shared: Arc<Shared>,
    /// Random, tells this connection from others at the same listener.
    pub(crate) number: u64,
    /// The content of the handle.
    pub(crate) info: ConnectInfo,
    /// The interfaces to send from.
    pub(crate) members: Vec<Interface>,
    /// The control connection.
    pub(crate) control: Mutex<Control>,
    queue: Mutex<Queue>,
    /// Chunks that no socket has taken; written with the queue locked.
    waiting: AtomicUsize,
    /// The data sockets.
    pub(crate) pipes: Vec<TxPipe>,
    /// The data socket to which new chunks are offered first.
    turn: AtomicUsize,
    /// The sender's knowledge of the ways to the receiver.
    pub(crate) paths: Mutex<Paths>,
    /// The receiver has been reached.
    pub(crate) is_up: AtomicBool,
    /// The host wanted to send and could not.
    is_starved: AtomicBool,
    /// Messages inside records since the last other one.
    sent_inline: AtomicU32,
    /// The receiver was asked for what is posted, and has not answered.
    is_asking: AtomicBool,
    /// Short messages wait for the next test.
    is_unsent: AtomicBool,
    /// Something may have come to the control socket.
    pub(crate) readable: Arc<Flag>,
    /// The look of [`Ready`](crate::ready::Ready) that the host's thread has made use of last.
    seen: AtomicU64,
}

impl TxConn {
    /// A connection on its way.
    pub fn new(shared: Arc<Shared>, info: ConnectInfo, members: Vec<Interface>, number: u64) -> Arc<Self> {
        let name = format!("sender to {}", info.addresses[0]);
        let pipes = shared.settings.sockets.max(members.len()).max(1);
        let connection = Arc::new_cyclic(|me| Self {
            me: me.clone(),
            link: Link::new(shared.log.clone(), name),
            number,
            members,
            control: Mutex::new(Control::new()),
            queue: Mutex::new(Queue::default()),
            waiting: AtomicUsize::new(0),
            pipes: (0..pipes).map(|_| TxPipe::new()).collect(),
            turn: AtomicUsize::new(0),
            paths: Mutex::new(Paths::new(info.addresses.clone())),
            is_up: AtomicBool::new(false),
            is_starved: AtomicBool::new(false),
            sent_inline: AtomicU32::new(0),
            is_asking: AtomicBool::new(false),
            is_unsent: AtomicBool::new(false),
            readable: Arc::default(),
            seen: AtomicU64::new(0),
            info,
            shared,
        });
        let member: Weak<dyn Member> = connection.me.clone();
        connection.shared.service.join(member);
        connection.shared.service.dial(Errand::now(&connection, Socket::Control));
        let cut: Weak<dyn Cut> = connection.me.clone();
        fault::register(cut);
        connection
    }

    /// Tells whether the receiver has been reached.
    pub fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Acquire)
    }

    /// Begins to send.
    ///
    /// # Safety
    /// The segment is readable until the request is done or the connection has failed or is closed.
    pub unsafe fn isend(&self, segment: &Segment) -> Result<Option<u64>> {
        self.check()?;
        let is_short = segment.bytes <= self.shared.settings.inline;
        let mut target = lock(&self.queue).target(segment.tag);
        if target.is_none() && !(is_short && self.may_go_early(segment.bytes, MOST_EARLY / 2)) {
            self.pump_readable();
            target = lock(&self.queue).target(segment.tag);
        }
        if self.link.has_left() {
            return self.give_up();
        }
        let can_go = target.is_some() || is_short && self.may_go_early(segment.bytes, MOST_EARLY);
        if !can_go || !lock(&self.queue).has_room() {
            self.check()?;
            self.starve();
            return Ok(None);
        }
        if let Some(target) = target.filter(|target| segment.bytes as u64 > target.capacity) {
            return self.refuse(target.slot, segment.bytes as u64, target.capacity);
        }
        let Some(target) = target.filter(|_| !is_short) else {
            // SAFETY: the caller vouches for the segment.
            return unsafe { self.send_inline(segment) };
        };
        self.sent_inline.store(0, Ordering::Relaxed);
        let (request, is_alone) = self.begin(target, segment);
        self.move_chunks(is_alone && segment.bytes <= DIRECT);
        Ok(Some(request))
    }

    /// Sends a message inside a record, early if no receive is known for it.
    ///
    /// # Safety
    /// The segment is readable.
    unsafe fn send_inline(&self, segment: &Segment) -> Result<Option<u64>> {
        let mut control = lock(&self.control);
        if control.unconfirmed() > MOST_KEPT {
            self.pump_locked(control);
            return Ok(None);
        }
        let data: &[u8] = if segment.bytes == 0 {
            &[]
        } else {
            // SAFETY: the caller vouches for the segment, which nobody writes now.
            unsafe { std::slice::from_raw_parts(segment.addr as *const u8, segment.bytes) }
        };
        // No receive comes to be known while control is locked.
        let mut queue = lock(&self.queue);
        let is_alone = queue.is_empty();
        let request = match queue.target(segment.tag) {
            // Known only since the caller has looked; the next call says what is wrong.
            Some(target) if target.capacity < segment.bytes as u64 => return Ok(None),
            Some(target) => {
                control.push(&Record::Inline { slot: target.slot, data });
                queue.begin_done(target, segment.bytes)
            }
            None if queue.may_go_early(segment.bytes) => {
                let (request, known) = queue.begin_early(segment.tag, segment.bytes);
                control.push(&Record::Early { known, tag: segment.tag, data });
                stats::add(&stats::EARLY, 1);
                request
            }
            None => return Ok(None),
        };
        self.check_fit(&queue);
        drop(queue);
        stats::add(&stats::INLINE, 1);
        self.is_asking.store(false, Ordering::Relaxed);
        let is_long = segment.bytes > LONGEST_EARLY;
        let sent = if is_long { 0 } else { self.sent_inline.load(Ordering::Relaxed) };
        self.sent_inline.store(sent.saturating_add(1), Ordering::Relaxed);
        // What follows an untested one waits for the test, and goes with all others that do.
        if !is_alone && control.unsent() < MOST_UNSENT {
            self.is_unsent.store(true, Ordering::Release);
            return Ok(Some(request));
        }
        self.send_short(control);
        Ok(Some(request))
    }

    /// Fails the connection if an early message does not fit the receive that it met, as the receiver does.
    fn check_fit(&self, queue: &Queue) {
        if let Some(Misfit { bytes, capacity }) = queue.misfit() {
            self.link.fail(too_long(bytes, capacity));
        }
    }

    /// Tells whether a message may go before a receive for it is known, with `most` of its kind in all.
    fn may_go_early(&self, bytes: usize, most: usize) -> bool {
        let queue = lock(&self.queue);
        self.is_up() && queue.early() < most && queue.may_go_early(bytes)
    }

    /// The host wants to send, and no receive is known. The receiver says at once what is posted, unless it
    /// expects short messages.
    fn starve(&self) {
        self.is_starved.store(true, Ordering::Relaxed);
        if self.sent_inline.load(Ordering::Relaxed) >= HABIT {
            self.ask();
        }
    }

    /// Asks for all receives that are posted, once until the answer comes.
    fn ask(&self) {
        if !self.is_asking.swap(true, Ordering::Relaxed) {
            let mut control = lock(&self.control);
            control.push(&Record::Want);
            let trouble = control.flush();
            drop(control);
            self.handle(trouble);
        }
    }

    /// Sends what [`TxConn::isend`] left for the next test.
    fn send_left(&self) {
        if self.is_unsent.load(Ordering::Acquire) {
            self.send_short(lock(&self.control));
        }
    }

    /// Sends short messages; what the socket has no room for waits for the next test.
    fn send_short(&self, mut control: MutexGuard<'_, Control>) {
        let trouble = control.flush();
        self.is_unsent.store(control.unsent() > 0, Ordering::Release);
        drop(control);
        self.handle(trouble);
    }

    /// Puts a message into the queue. Returns its request and whether there is no other.
    fn begin(&self, target: Target, segment: &Segment) -> (u64, bool) {
        let sockets = self.pipes.len();
        // With one socket there is no reason to cut, but that all sockets of a thread get their turn.
        // A sealed chunk is encrypted as a whole before its first byte goes out.
        let is_whole = sockets == 1 && !self.shared.settings.wire.is_sealed();
        let most = self.shared.settings.chunk.max(if is_whole { SHARE } else { 0 });
        let mut queue = lock(&self.queue);
        let is_alone = !queue.any_open();
        let request = queue.begin(target, segment.addr, segment.bytes, sockets, most);
        self.check_fit(&queue);
        self.count(&queue);
        (request, is_alone)
    }

    /// Tells whether a request is over.
    pub fn test(&self, request: u64) -> Result<Option<usize>> {
        self.send_left();
        let finish = || lock(&self.queue).finish(request).map_err(Error::internal);
        if let Some(bytes) = finish()? {
            return Ok(Some(bytes));
        }
        self.check()?;
        self.pump_readable();
        if self.shared.pool.wants_help() {
            self.drive_all();
        }
        if let Some(bytes) = finish()? {
            return Ok(Some(bytes));
        }
        if self.link.has_left() { self.give_up() } else { self.check().map(|()| None) }
    }

    /// The host drops its end.
    pub fn close(&self) {
        self.link.close();
        self.pipes.iter().for_each(TxPipe::close);
        let mut control = lock(&self.control);
        control.say_bye();
        let trouble = control.flush();
        let settled = control.is_settled();
        drop(control);
        self.handle(trouble);
        if !settled
            && self.link.is_closed()
            && self.is_up()
            && let Some(me) = self.me.upgrade()
        {
            self.shared.service.say_goodbye(me);
        }
    }

    /// # Errors
    /// The connection has failed; the host's memory is its own again.
    pub fn check(&self) -> Result<()> {
        self.link.check().inspect_err(|_| self.pipes.iter().for_each(TxPipe::close))
    }

    fn give_up<T>(&self) -> Result<T> {
        self.link.fail(Error::remote("the receiver has closed the connection with sends unfinished"));
        self.check()?;
        Err(Error::internal("the connection is closed"))
    }

    /// A send that is longer than its receive. Both ends fail.
    fn refuse<T>(&self, slot: u64, bytes: u64, capacity: u64) -> Result<T> {
        let mut control = lock(&self.control);
        control.push(&Record::TooLong { slot, bytes });
        let trouble = control.flush();
        drop(control);
        self.handle(trouble);
        self.link.fail(too_long(bytes, capacity));
        self.check()?;
        Err(Error::internal("the connection is closed"))
    }

    /// Publishes the number of waiting chunks. With the queue locked.
    fn count(&self, queue: &Queue) -> usize {
        let waiting = queue.waiting();
        self.waiting.store(waiting, Ordering::SeqCst);
        waiting
    }

    /// Finds sockets for waiting chunks. `direct`: one of them may be driven by this thread.
    pub(crate) fn move_chunks(&self, direct: bool) {
        let helps = self.shared.pool.wants_help();
        self.offer_chunks(direct || helps, helps);
    }

    /// `first`, `others`: whether this thread drives the first socket, and the others. Not with control
    /// locked.
    fn offer_chunks(&self, first: bool, others: bool) {
        let mut wanted = self.waiting.load(Ordering::SeqCst);
        let mut direct = first;
        let start = self.turn.fetch_add(1, Ordering::Relaxed);
        for i in 0..self.pipes.len() {
            if wanted == 0 {
                return;
            }
            let index = (start + i) % self.pipes.len();
            if !self.pipes[index].rouse() {
                continue;
            }
            wanted -= 1;
            if direct {
                direct = others;
                if self.drive(index) == Next::Wait {
                    wanted = wanted.min(self.waiting.load(Ordering::SeqCst));
                    continue;
                }
            }
            self.pipes[index].wake();
        }
    }

    /// The host's calls move everything, or help: what they leave is for the socket's thread, if it has one.
    fn drive_all(&self) {
        for (index, pipe) in self.pipes.iter().enumerate() {
            let has_work = self.waiting.load(Ordering::SeqCst) > 0 && pipe.rouse();
            let driven = if has_work {
                pipe.drive(&self.queue, |queue| self.count(queue), SHARE)
            } else if pipe.is_busy() {
                pipe.try_drive(&self.queue, |queue| self.count(queue), SHARE)
            } else {
                continue;
            };
            if self.after(index, driven) == Next::Again {
                pipe.wake();
            }
        }
    }

    fn after(&self, pipe: usize, driven: Driven) -> Next {
        match driven {
            Driven::Wait => Next::Wait,
            Driven::Again => Next::Again,
            Driven::Lost { generation, loss } => {
                self.pipe_lost(pipe, generation, &loss);
                Next::Wait
            }
        }
    }

    fn pump(&self) {
        self.pump_locked(lock(&self.control));
    }

    /// Reads what has come, if anything has.
    fn pump_readable(&self) {
        self.shared.ready.look(&self.seen);
        if self.readable.take() {
            self.pump();
        }
    }

    /// Moves records both ways, and lets go of the control connection.
    pub(crate) fn pump_locked(&self, mut control: MutexGuard<'_, Control>) {
        let trouble = control.pump(|record, out| self.take(record, out));
        if control.has_peer_left() {
            self.link.set_left();
        }
        drop(control);
        self.handle(trouble);
    }

    /// A record of the receiver. With control locked.
    fn take(&self, record: Record<'_>, _out: &mut Outgoing) -> std::result::Result<(), String> {
        match record {
            Record::Credit { segments } => {
                self.is_asking.store(false, Ordering::Relaxed);
                let mut queue = lock(&self.queue);
                queue.add_credit(segments)?;
                self.check_fit(&queue);
                Ok(())
            }
            Record::Done { slot } if self.link.is_dead() => {
                let _ = slot;
                Ok(())
            }
            Record::Done { slot } => lock(&self.queue).done(slot),
            Record::PipeFinal { pipe, generation, chunks } => {
                let known = self.pipes.get(usize::from(pipe)).ok_or("a socket that does not exist")?;
                if self.link.is_dead() {
                    return Ok(());
                }
                let settled = known.settle(generation, chunks, &self.queue, |queue| self.count(queue))?;
                if let Some(repeated) = settled {
                    stats::add(&stats::LOST, 1);
                    stats::add(&stats::REPEATED, repeated as u64);
                    self.link.count(self.home(pipe.into()), "resent_chunks", repeated as u64);
                    self.redial(Socket::Pipe(pipe));
                    // Without threads the next call of the host sees to it; control is locked here.
                    if !self.shared.pool.is_empty() {
                        self.offer_chunks(false, false);
                    }
                }
                Ok(())
            }
            // Handled by the stream.
            Record::Confirm { .. } | Record::Bye => Ok(()),
            other => Err(format!("a receiver does not say {other:?}")),
        }
    }

    /// Deals with what went wrong on the control connection.
    pub(crate) fn handle(&self, trouble: std::result::Result<(), Trouble>) {
        match trouble {
            Ok(()) => {}
            Err(Trouble::Socket(_)) if self.link.has_left() => {}
            Err(Trouble::Socket(loss)) => {
                stats::add(&stats::LOST, 1);
                self.link.stress(format!("lost the control socket ({}), dialling again", loss.reason));
                self.redial(Socket::Control);
            }
            Err(Trouble::Peer(text)) => {
                self.link.fail(Error::remote(format!("the peer speaks nonsense: {text}")));
            }
        }
    }

    /// Has a socket dialled again.
    pub(crate) fn redial(&self, socket: Socket) {
        if let Some(me) = self.me.upgrade() {
            self.shared.service.dial(Errand::now(&me, socket));
        }
    }

    /// The interface of a data socket where it was dialled first and comes back to; empty if there is none.
    fn home(&self, index: usize) -> &str {
        self.members.get(index % self.members.len().max(1)).map_or("", |member| &member.name)
    }

    fn pipe_lost(&self, index: usize, generation: u32, loss: &Loss) {
        let home = self.home(index);
        let of = if home.is_empty() { String::new() } else { format!(" of {home}") };
        self.link.stress(format!("lost data socket {index}{of} ({}), the others carry on", loss.reason));
        self.link.count(home, "losses", 1);
        let mut control = lock(&self.control);
        control.push(&Record::PipeDown { pipe: index as u16, generation });
        let trouble = control.flush();
        drop(control);
        self.handle(trouble);
    }
}

impl Drive for TxConn {
    fn drive(&self, pipe: usize) -> Next {
        self.after(pipe, self.pipes[pipe].drive(&self.queue, |queue| self.count(queue), SHARE))
    }

    fn broke(&self) {
        self.link.fail(Error::internal("a thread of the plugin panicked: a bug of the Socket plugin"));
    }
}

impl Member for TxConn {
    fn tick(&self) -> bool {
        if self.link.is_dead() && !self.link.is_closed() {
            return false;
        }
        let starved = self.is_starved.swap(false, Ordering::Relaxed);
        let open = lock(&self.queue).any_open();
        let busy = open || starved;
        self.pump();
        if starved && !self.link.is_dead() {
            self.ask();
        }
        let (trouble, down) = {
            let mut control = lock(&self.control);
            (control.look(busy), control.down_for())
        };
        self.handle(trouble);
        if open {
            for (index, pipe) in self.pipes.iter().enumerate() {
                if let Some((generation, loss)) = pipe.look() {
                    self.pipe_lost(index, generation, &loss);
                }
            }
            self.move_chunks(false);
        }
        if !self.link.has_left() {
            self.watch_deadline(down.map(|down| down.0), open);
        }
        busy || down.is_some()
    }

    fn ended(&self, socket: Socket) {
        match socket {
            Socket::Control => self.pump(),
            Socket::Pipe(pipe) => {
                let index = usize::from(pipe);
                if let Some((generation, loss)) = self.pipes.get(index).and_then(TxPipe::probe) {
                    self.pipe_lost(index, generation, &loss);
                }
            }
        }
    }

    fn is_settled(&self) -> bool {
        let control = lock(&self.control);
        control.is_settled() || !self.link.is_closed()
    }

    fn is_cut(&self) -> bool {
        lock(&self.control).is_cut()
    }
}

impl Cut for TxConn {
    fn cut(&self, socket: usize) -> bool {
        match socket.checked_sub(1) {
            None => lock(&self.control).cut(),
            Some(pipe) => self.pipes.get(pipe).is_some_and(TxPipe::cut),
        }
    }
}
