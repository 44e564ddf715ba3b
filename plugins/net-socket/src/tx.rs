//! The sending end of a connection.
//!
//! Who runs here: the host's thread (`isend`, `test`), the pool's threads (`drive`), the service thread (dials, ends of
//! sockets, ticks). The rules:
//!
//! 1. Locks are taken in the order control, lane, queue. Nothing is sent or received with the queue locked.
//! 2. A message that is not longer than `inline` is copied into the control stream, which keeps it until the receiver
//!    has understood it: the request is done at once. Longer ones are done when the receiver says that it has all bytes.
//! 3. A data socket that is lost is settled before anything of it is sent again: the receiver closes its end, then tells
//!    how many whole chunks it brought (`PipeFinal`). Chunks arrive in order on a socket, so exactly the others go back
//!    into the queue. No byte is written twice, and nothing of the old socket can arrive later.
//! 4. A settled socket is dialled again while the others carry on; so is the control connection, whose streams go on
//!    where the peer has understood them.
//! 5. When the connection has failed, no lane has a socket before the host hears of it: its memory is its own again.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use hawser_plugin::net::Segment;
use hawser_plugin::{Error, ErrorKind, Result};

use crate::auth::{Answer, Hello, Refusal, Socket};
use crate::control::{Control, Loss, Trouble};
use crate::fault::{self, Cut};
use crate::frame::Record;
use crate::handle::Place;
use crate::interface::Interface;
use crate::link::Link;
use crate::outbound::{Ended, Errand, Start};
use crate::path;
use crate::pool::{Drive, Next, SHARE, lock};
use crate::queue::Queue;
use crate::service::{Member, Watch};
use crate::shop::Shop;
use crate::stats;
use crate::stream::Outgoing;
use crate::tx_pipe::{Driven, TxPipe};

/// What the control stream keeps of short messages at most.
const MOST_KEPT: usize = 1 << 20;
/// The host's thread sends messages of up to this many bytes itself if their socket is idle.
const DIRECT: usize = 128 << 10;
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// See the module.
pub(crate) struct TxConn {
    me: Weak<TxConn>,
    pub link: Link,
    shop: Arc<Shop>,
    /// Random, tells this connection from others at the same listener.
    number: u64,
    place: Place,
    /// The interfaces to send from.
    members: Vec<Interface>,
    control: Mutex<Control>,
    queue: Mutex<Queue>,
    /// Chunks that no socket has taken; written with the queue locked.
    waiting: AtomicUsize,
    pipes: Vec<TxPipe>,
    /// Where new chunks are offered first.
    turn: AtomicUsize,
    paths: Mutex<Paths>,
    is_up: AtomicBool,
    /// The host wanted to send and could not.
    is_starved: AtomicBool,
}

struct Paths {
    /// Where the listener lives: of the handle, then as it said itself.
    remotes: Vec<SocketAddr>,
    /// Sockets dialled for control.
    dialled: u32,
    /// Since when the peer refuses.
    refused: Option<Instant>,
    /// The last reason why control could not be dialled.
    reason: String,
    /// Since when there is no data socket.
    no_pipes: Option<Instant>,
}

impl TxConn {
    /// A connection on its way.
    pub fn new(shop: Arc<Shop>, place: Place, members: Vec<Interface>, number: u64) -> Arc<Self> {
        let name = format!("sender to {}", place.addresses[0]);
        let pipes = shop.settings.sockets.max(members.len()).max(1);
        let connection = Arc::new_cyclic(|me| Self {
            me: me.clone(),
            link: Link::new(shop.log.clone(), name),
            number,
            members,
            control: Mutex::new(Control::new()),
            queue: Mutex::new(Queue::new()),
            waiting: AtomicUsize::new(0),
            pipes: (0..pipes).map(|_| TxPipe::new()).collect(),
            turn: AtomicUsize::new(0),
            paths: Mutex::new(Paths {
                remotes: place.addresses.clone(),
                dialled: 0,
                refused: None,
                reason: "no answer yet".into(),
                no_pipes: None,
            }),
            is_up: AtomicBool::new(false),
            is_starved: AtomicBool::new(false),
            place,
            shop,
        });
        let member: Weak<dyn Member> = connection.me.clone();
        connection.shop.service.join(member);
        connection.shop.service.dial(Errand::now(&connection, Socket::Control));
        let cut: Weak<dyn Cut> = connection.me.clone();
        fault::register(cut);
        connection
    }

    /// Whether the receiver has been reached.
    pub fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Acquire)
    }

    /// Begins to send.
    ///
    /// # Safety
    /// The segment is readable until the request is done or the connection has failed or is closed.
    pub unsafe fn isend(&self, segment: &Segment) -> Result<Option<u64>> {
        self.check()?;
        let mut place = lock(&self.queue).place(segment.tag);
        if place.is_none() {
            self.pump();
            place = lock(&self.queue).place(segment.tag);
        }
        if self.link.has_left() {
            return self.give_up();
        }
        let Some(place) = place.filter(|_| lock(&self.queue).has_room()) else {
            self.check()?;
            self.is_starved.store(true, Ordering::Relaxed);
            return Ok(None);
        };
        if segment.bytes as u64 > place.capacity {
            return self.refuse(place.slot, segment.bytes as u64, place.capacity);
        }
        if segment.bytes > self.shop.settings.inline {
            let (sockets, most) = (self.pipes.len(), self.shop.settings.chunk);
            let request = {
                let mut queue = lock(&self.queue);
                let request = queue.begin(place, segment.addr, segment.bytes, sockets, most);
                self.count(&queue);
                request
            };
            self.move_chunks(segment.bytes <= DIRECT);
            return Ok(Some(request));
        }
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
        control.push(&Record::Inline { slot: place.slot, data });
        stats::add(&stats::INLINE, 1);
        let request = lock(&self.queue).begin_done(place, segment.bytes);
        let trouble = control.flush();
        drop(control);
        self.handle(trouble);
        Ok(Some(request))
    }

    /// Whether a request is over.
    pub fn test(&self, request: u64) -> Result<Option<usize>> {
        let finish = || lock(&self.queue).finish(request).map_err(Error::internal);
        if let Some(bytes) = finish()? {
            return Ok(Some(bytes));
        }
        self.check()?;
        self.pump();
        if self.shop.pool.is_empty() {
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
            self.shop.service.say_goodbye(me);
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
        let text = format!(
            "a send of {bytes} bytes meets a receive of {capacity}: sizes of sends and receives must agree"
        );
        self.link.fail(Error::new(ErrorKind::InvalidUsage, text));
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
    fn move_chunks(&self, direct: bool) {
        let mut wanted = self.waiting.load(Ordering::SeqCst);
        let mut direct = direct || self.shop.pool.is_empty();
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
                direct = self.shop.pool.is_empty();
                if self.drive(index) == Next::Wait {
                    wanted = wanted.min(self.waiting.load(Ordering::SeqCst));
                    continue;
                }
            }
            self.pipes[index].wake();
        }
    }

    /// Without threads the host's calls move everything.
    fn drive_all(&self) {
        for (index, pipe) in self.pipes.iter().enumerate() {
            let has_work = self.waiting.load(Ordering::SeqCst) > 0 && pipe.rouse();
            if has_work || pipe.is_busy() {
                self.drive(index);
            }
        }
    }

    fn pump(&self) {
        self.pump_locked(lock(&self.control));
    }

    fn pump_locked(&self, mut control: std::sync::MutexGuard<'_, Control>) {
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
            Record::Credit { segments } => lock(&self.queue).add_credit(segments),
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
                    self.redial(Socket::Pipe(pipe));
                    // Without threads the next call of the host sees to it; control is locked here.
                    if !self.shop.pool.is_empty() {
                        self.move_chunks(false);
                    }
                }
                Ok(())
            }
            // Handled by the stream.
            Record::Confirm { .. } | Record::Bye => Ok(()),
            other => Err(format!("a receiver does not say {other:?}")),
        }
    }

    fn handle(&self, trouble: std::result::Result<(), Trouble>) {
        match trouble {
            Ok(()) => {}
            Err(Trouble::Socket(_)) if self.link.has_left() => {}
            Err(Trouble::Socket(loss)) => {
                stats::add(&stats::LOST, 1);
                self.link.info(format!("lost the control socket ({}), dialling again", loss.reason));
                self.redial(Socket::Control);
            }
            Err(Trouble::Peer(text)) => {
                self.link.fail(Error::remote(format!("the peer speaks nonsense: {text}")));
            }
        }
    }

    fn redial(&self, socket: Socket) {
        if let Some(me) = self.me.upgrade() {
            self.shop.service.dial(Errand::now(&me, socket));
        }
    }

    fn pipe_lost(&self, index: usize, generation: u32, loss: &Loss) {
        self.link.info(format!("lost data socket {index} ({}), the others carry on", loss.reason));
        let mut control = lock(&self.control);
        control.push(&Record::PipeDown { pipe: index as u16, generation });
        let trouble = control.flush();
        drop(control);
        self.handle(trouble);
    }

    /// What a dial needs; None if the socket is not wanted any more.
    pub fn begin_dial(&self, socket: Socket, attempt: u32) -> Option<Start> {
        let wanted = match socket {
            Socket::Control => !self.link.is_dead() || self.link.is_closed(),
            Socket::Pipe(_) => !self.link.is_dead(),
        };
        let nonce = wanted.then(crate::sys::random)?.ok()?;
        let (generation, consumed) = match socket {
            Socket::Pipe(pipe) => (self.pipes.get(usize::from(pipe))?.next_generation()?, 0),
            Socket::Control => {
                let mut control = lock(&self.control);
                if control.socket().is_some() {
                    return None;
                }
                let mut paths = lock(&self.paths);
                paths.dialled += 1;
                (paths.dialled, control.consumed())
            }
        };
        let (origin, to) = path::choose(&self.members, &lock(&self.paths).remotes, socket, attempt)?;
        let hello = Hello {
            listener: self.place.listener,
            connection: self.number,
            socket,
            pipes: self.pipes.len() as u16,
            generation,
            nonce,
        };
        Some(Start { origin, to, hello, secret: self.place.secret, answer: Answer { consumed } })
    }

    /// A socket is connected and both ends trust it.
    pub fn dialled(
        &self,
        fd: OwnedFd,
        hello: &Hello,
        to: SocketAddr,
        consumed: u64,
        addresses: Vec<SocketAddr>,
    ) {
        let watch = self.watch(&fd, hello.socket);
        match hello.socket {
            Socket::Control => self.control_dialled(fd, hello, watch, consumed, addresses),
            Socket::Pipe(pipe) => {
                let index = usize::from(pipe);
                let connection: Weak<dyn Drive> = self.me.clone();
                let ticket = self.shop.pool.attach(fd.as_fd(), connection, index, index + self.number as usize);
                let Ok(ticket) = ticket else { return };
                let zero_copy = self.shop.settings.zero_copy && !path::is_local(to.ip());
                if !self.link.is_dead()
                    && self.pipes[index].attach(fd, hello.generation, ticket, watch, zero_copy)
                {
                    if hello.generation > 1 {
                        stats::add(&stats::REDIALLED, 1);
                        self.link.info(format!("data socket {index} is back"));
                    }
                    if self.link.is_dead() {
                        self.pipes[index].close();
                    }
                    self.move_chunks(false);
                    // It may have ended before the lane knew it.
                    self.ended(hello.socket);
                }
            }
        }
    }

    fn control_dialled(
        &self,
        fd: OwnedFd,
        hello: &Hello,
        watch: Option<Watch>,
        consumed: u64,
        addresses: Vec<SocketAddr>,
    ) {
        let mut control = lock(&self.control);
        {
            let mut paths = lock(&self.paths);
            if control.socket().is_some() || paths.dialled != hello.generation {
                return;
            }
            paths.remotes = addresses;
            paths.refused = None;
        }
        if let Err(text) = control.attach(fd, watch, hello.generation, consumed) {
            drop(control);
            return self.handle(Err(Trouble::Peer(text)));
        }
        self.pump_locked(control);
        if self.is_up.swap(true, Ordering::AcqRel) {
            stats::add(&stats::REDIALLED, 1);
            self.link.info("the control socket is back");
        } else {
            (0..self.pipes.len()).for_each(|pipe| self.redial(Socket::Pipe(pipe as u16)));
        }
    }

    /// A dial failed. The pause before the next one; None if there is none.
    pub fn dial_failed(&self, socket: Socket, attempt: u32, ended: &Ended) -> Option<Duration> {
        if socket == Socket::Control {
            self.judge(ended);
        }
        if self.link.is_dead() && !(self.link.is_closed() && socket == Socket::Control) {
            return None;
        }
        Some((FIRST_PAUSE * 2u32.saturating_pow(attempt.min(8))).min(LONGEST_PAUSE))
    }

    /// Whether the peer is gone for good.
    fn judge(&self, ended: &Ended) {
        let mut paths = lock(&self.paths);
        let (reason, is_refusal) = match ended {
            Ended::Refused => ("its process is gone (connection refused)".to_string(), true),
            Ended::Unwanted(Refusal::Unknown) => ("it has closed its end".into(), true),
            Ended::Unwanted(Refusal::Taken) => ("another sender has used the handle".into(), true),
            Ended::Wrong => ("what listens there does not know the secret of the handle".into(), true),
            Ended::Unwanted(Refusal::Stale) => ("an older connection is still there".into(), false),
            Ended::Failed(reason) => (reason.clone(), false),
            Ended::Well { .. } => return,
        };
        paths.reason.clone_from(&reason);
        if !is_refusal {
            paths.refused = None;
            return;
        }
        let since = *paths.refused.get_or_insert_with(Instant::now);
        drop(paths);
        if since.elapsed() >= self.shop.settings.patience_with_refusals() {
            self.link.fail(Error::remote(format!("the receiver is lost: {reason}")));
        }
    }

    /// Fails the connection when there has been no path for too long.
    fn watch_deadline(&self, control_down: Option<Duration>, busy: bool) {
        let limit = self.shop.settings.timeout;
        let pipes_down = {
            let mut paths = lock(&self.paths);
            if !busy || self.pipes.iter().any(TxPipe::is_up) {
                paths.no_pipes = None;
            } else {
                paths.no_pipes.get_or_insert_with(Instant::now);
            }
            paths.no_pipes.map(|since| since.elapsed())
        };
        if control_down.max(pipes_down).is_some_and(|down| down >= limit) {
            let reason = lock(&self.paths).reason.clone();
            let seconds = limit.as_secs();
            self.link.fail(Error::remote(format!(
                "no path to the receiver for {seconds} s (HAWSER_SOCKET_TIMEOUT): {reason}; check network and peer"
            )));
        }
    }

    fn watch(&self, fd: &OwnedFd, socket: Socket) -> Option<Watch> {
        let member: Weak<dyn Member> = self.me.clone();
        self.shop.service.watch(fd.as_fd(), member, socket)
    }
}

impl Drive for TxConn {
    fn drive(&self, pipe: usize) -> Next {
        match self.pipes[pipe].drive(&self.queue, |queue| self.count(queue), SHARE) {
            Driven::Wait => Next::Wait,
            Driven::Again => Next::Again,
            Driven::Lost { generation, loss } => {
                self.pipe_lost(pipe, generation, &loss);
                Next::Wait
            }
        }
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
}

impl Cut for TxConn {
    fn cut(&self, socket: usize) -> bool {
        match socket.checked_sub(1) {
            None => lock(&self.control).cut(),
            Some(pipe) => self.pipes.get(pipe).is_some_and(TxPipe::cut),
        }
    }
}
