//! The receiving end of a connection.
//!
//! Who runs here: the host's thread (`irecv`, `test`), the pool's threads (`drive`), the service thread (new
//! sockets, ends of sockets, ticks). The rules:
//!
//! 1. Locks are taken in the order control, lane, table. Nothing is received or sent with the table locked.
//! 2. Chunks are read straight into posted buffers: the sender sends none before it knows the receive
//!    (credit). Short messages come inside records and are copied.
//! 3. Of a closed data socket the sender is told once how many whole chunks it brought, after the last byte
//!    was read from it. What it brought of an unfinished chunk does not count; the sender sends that chunk
//!    again on another socket.
//! 4. A receive is over when every byte came once, so no socket can write into its memory any more.
//! 5. While messages come inside records, credits wait, so that a small message costs one call of the kernel
//!    at each end: they are told together when the sender may have used half of those that it knows, or, once
//!    many came so, when several wait. A sender that needs one says so, and is told of all at once.
//! 6. When the connection has failed, no lane has a socket before the host hears of it: its memory is its own
//!    again.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use hawser_oob::accept::send_whole;
use hawser_oob::handshake::Responder;
use hawser_oob::seal::SessionKeys;
use hawser_oob::socket::Caller;
use hawser_plugin::net::Segment;
use hawser_plugin::{Error, ErrorKind, Result};

use crate::control::{Control, Trouble};
use crate::fault::{self, Cut};
use crate::frame::Record;
use crate::greeting::{Answer, Hello, Refusal, Socket, Welcome};
use crate::inbound::Listening;
use crate::link::Link;
use crate::pool::{Drive, Next, SHARE, lock};
use crate::queue::LONGEST_EARLY;
use crate::ready::Flag;
use crate::rx_pipe::{Driven, Final, Joined, RxPipe};
use crate::service::Member;
use crate::shared::Shared;
use crate::stream::Outgoing;
use crate::table::Table;

/// Credits that wait at most while messages come inside records.
const MOST_UNTOLD: usize = 8;
/// After so many messages inside records one after the other the next are expected to come so too.
pub(crate) const HABIT: u32 = 16;

/// The receiving end of a connection.
pub(crate) struct RxConn {
    me: Weak<RxConn>,
    /// The name, the state and the log of the connection.
    pub link: Link,
    shared: Arc<Shared>,
    listening: Arc<Listening>,
    control: Mutex<Control>,
    table: Mutex<Table>,
    /// Messages that came inside records since the last other one.
    came_inline: AtomicU32,
    pipes: Vec<RxPipe>,
    /// Something may have come to the control socket.
    readable: Arc<Flag>,
    /// The look of [`Ready`](crate::ready::Ready) that the host's thread has made use of last.
    seen: AtomicU64,
}

impl RxConn {
    /// The connection of a handle, before its first socket.
    pub fn new(listening: Arc<Listening>, pipes: usize, from: Caller) -> Arc<Self> {
        let shared = listening.shared.clone();
        let connection = Arc::new_cyclic(|me| Self {
            me: me.clone(),
            link: Link::new(shared.log.clone(), format!("receiver from {from}")),
            listening,
            control: Mutex::new(Control::new()),
            table: Mutex::default(),
            came_inline: AtomicU32::new(0),
            pipes: (0..pipes).map(|_| RxPipe::new()).collect(),
            readable: Arc::default(),
            seen: AtomicU64::new(0),
            shared,
        });
        let member: Weak<dyn Member> = connection.me.clone();
        connection.shared.service.join(member);
        let cut: Weak<dyn Cut> = connection.me.clone();
        fault::register(cut);
        connection
    }

    /// A socket whose other end knows the secret.
    pub fn admit(
        &self,
        fd: OwnedFd,
        hello: &Hello,
        responder: &Responder,
        answer: Answer,
        listening: &Listening,
    ) {
        if self.link.is_dead() && (self.link.check().is_err() || hello.socket != Socket::Control) {
            send_whole(fd.as_fd(), &responder.refuse(Refusal::Unknown.code()));
            return;
        }
        let addresses = listening.addresses.clone();
        let keys = hello.wire.is_sealed().then(|| responder.session());
        match hello.socket {
            Socket::Control => {
                let mut control = lock(&self.control);
                if hello.generation <= control.generation() {
                    send_whole(fd.as_fd(), &responder.refuse(Refusal::Stale.code()));
                    return;
                }
                let welcome = Welcome { consumed: control.consumed(), addresses };
                if !send_whole(fd.as_fd(), &responder.welcome(&welcome.encode())) {
                    return;
                }
                let member: Weak<dyn Member> = self.me.clone();
                let watch = self.shared.service.watch(fd.as_fd(), member, Socket::Control);
                let reported = self.shared.ready.report(fd.as_fd(), &self.readable);
                match control.attach((fd, keys), watch, Some(reported), hello.generation, answer.consumed) {
                    Ok(()) => self.pump_locked(control),
                    Err(text) => {
                        drop(control);
                        self.handle(Err(Trouble::Peer(text)));
                    }
                }
            }
            Socket::Pipe(pipe) => {
                self.admit_pipe((fd, keys), hello.generation, usize::from(pipe), responder, addresses)
            }
        }
    }

    fn admit_pipe(
        &self,
        (fd, keys): (OwnedFd, Option<SessionKeys>),
        generation: u32,
        index: usize,
        responder: &Responder,
        addresses: Vec<std::net::SocketAddr>,
    ) {
        let Some(pipe) = self.pipes.get(index) else { return };
        let join = |fd: std::os::fd::BorrowedFd<'_>| {
            let connection: Weak<dyn Drive> = self.me.clone();
            let member: Weak<dyn Member> = self.me.clone();
            let hint = index + self.listening.number as usize;
            // Refused without a thread that reads it: the sender dials again.
            let ticket = self.shared.pool.attach(fd, connection, index, hint).ok()?;
            let watch = self.shared.service.watch(fd, member, Socket::Pipe(index as u16));
            // One that has a thread is reported to that.
            let reported = ticket.is_none().then(|| self.shared.ready.report(fd, pipe.readable()));
            Some(Joined { ticket, _watch: watch, _reported: reported })
        };
        let welcome = responder.welcome(&Welcome { consumed: 0, addresses }.encode());
        let last = pipe.attach((fd, keys), generation, join, |fd| send_whole(fd, &welcome));
        if self.link.is_dead() {
            pipe.close();
        }
        if let Some(Some(last)) = last {
            self.report(index, last);
        }
    }

    /// Posts a receive.
    ///
    /// # Safety
    /// The segments are writable and left alone until the request is done or the connection has failed or is
    /// closed.
    pub unsafe fn irecv(&self, segments: &[Segment]) -> Result<Option<u64>> {
        self.check()?;
        let mut control = lock(&self.control);
        let mut table = lock(&self.table);
        let Some((request, segments)) = table.post(segments) else { return Ok(None) };
        while let Some((slot, data)) = table.take_early() {
            self.put(&mut table, slot, &data).map_err(Error::internal)?;
        }
        drop(table);
        control.push_later(&Record::Credit { segments });
        let trouble = self.tell_credits(&mut control);
        drop(control);
        self.handle(trouble);
        Ok(Some(request))
    }

    /// Tells the sender of receives that it does not know, if it is time.
    fn tell_credits(&self, control: &mut Control) -> std::result::Result<(), Trouble> {
        let waiting = control.waiting();
        if waiting == 0 {
            return Ok(());
        }
        let came_inline = self.came_inline.load(Ordering::Relaxed);
        let table = lock(&self.table);
        let has_many = came_inline > 0 && 2 * waiting < table.open();
        let is_needless = came_inline >= HABIT || !table.is_open(waiting);
        drop(table);
        if has_many || waiting < MOST_UNTOLD && is_needless { Ok(()) } else { control.flush() }
    }

    /// Tells whether a request is over, and gives its sizes.
    pub fn test(&self, request: u64, sizes: &mut [usize]) -> Result<bool> {
        if self.finish(request, sizes)? {
            return Ok(true);
        }
        self.check()?;
        self.shared.ready.look(&self.seen);
        if self.readable.take() {
            self.pump();
        }
        if self.shared.pool.wants_help() && lock(&self.table).open() > 0 {
            (0..self.pipes.len()).for_each(|pipe| self.help(pipe));
        }
        if self.finish(request, sizes)? {
            return Ok(true);
        }
        if self.link.has_left() {
            self.link.fail(Error::remote("the sender has closed the connection with receives unfinished"));
        }
        self.check().map(|()| false)
    }

    fn finish(&self, request: u64, sizes: &mut [usize]) -> Result<bool> {
        lock(&self.table).finish(request, sizes).map_err(Error::internal)
    }

    /// The host drops its end.
    pub fn close(&self) {
        self.link.close();
        self.pipes.iter().for_each(RxPipe::close);
        let mut control = lock(&self.control);
        control.say_bye();
        let trouble = control.flush();
        let settled = control.is_settled();
        drop(control);
        self.handle(trouble);
        if !settled
            && self.link.is_closed()
            && let Some(me) = self.me.upgrade()
        {
            self.shared.service.say_goodbye(me);
        }
    }

    /// # Errors
    /// The connection has failed; the host's memory is its own again.
    pub fn check(&self) -> Result<()> {
        self.link.check().inspect_err(|_| {
            // Records are copied with control locked: wait for one under way.
            drop(lock(&self.control));
            self.pipes.iter().for_each(RxPipe::close);
        })
    }

    fn pump(&self) {
        self.pump_locked(lock(&self.control));
    }

    fn pump_locked(&self, mut control: MutexGuard<'_, Control>) {
        let trouble = control.pump(|record, out| self.take(record, out));
        let trouble = trouble.and_then(|()| self.tell_credits(&mut control));
        if control.has_peer_left() {
            self.link.set_left();
        }
        drop(control);
        self.handle(trouble);
    }

    /// A record of the sender. With control locked.
    fn take(&self, record: Record<'_>, out: &mut Outgoing) -> std::result::Result<(), String> {
        match record {
            // Confirmed all the same, so that the sender can leave.
            Record::Inline { .. } | Record::TooLong { .. } | Record::Early { .. } if self.link.is_dead() => {
                Ok(())
            }
            Record::Inline { slot, data } => {
                self.count_inline(data.len());
                self.put(&mut lock(&self.table), slot, data)
            }
            Record::Early { known, tag, data } => {
                self.count_inline(data.len());
                let mut table = lock(&self.table);
                match table.early_slot(known, tag) {
                    Some(slot) => self.put(&mut table, slot, data),
                    None => table.keep_early(known, tag, data),
                }
            }
            Record::Want => {
                self.came_inline.store(0, Ordering::Relaxed);
                Ok(())
            }
            Record::PipeDown { pipe, generation } => {
                let known = self.pipes.get(usize::from(pipe)).ok_or("a socket that does not exist")?;
                if let Some(last) = known.settle(generation) {
                    out.push(&Record::PipeFinal { pipe, generation, chunks: last.chunks });
                }
                Ok(())
            }
            Record::TooLong { slot, bytes } => {
                let capacity = lock(&self.table).capacity(slot).ok_or("a receive that is not posted")?;
                self.link.fail(too_long(bytes, capacity));
                Ok(())
            }
            // Handled by the stream.
            Record::Confirm { .. } | Record::Bye => Ok(()),
            other => Err(format!("a sender does not say {other:?}")),
        }
    }

    /// Counts a message that came inside a record; of long ones the next has to wait for its credit.
    fn count_inline(&self, bytes: usize) {
        let came = if bytes > LONGEST_EARLY { 0 } else { self.came_inline.load(Ordering::Relaxed) };
        self.came_inline.store(came.saturating_add(1), Ordering::Relaxed);
    }

    /// Copies a whole message to its receive.
    fn put(&self, table: &mut Table, slot: u64, data: &[u8]) -> std::result::Result<(), String> {
        let bytes = data.len() as u64;
        if let Some(capacity) = table.capacity(slot).filter(|&capacity| capacity < bytes) {
            self.link.fail(too_long(bytes, capacity));
            return Ok(());
        }
        let addr = table.whole(slot, bytes)?;
        // SAFETY: `whole` has checked that a posted segment at `addr` has room for the bytes; the host leaves
        // it alone until it has asked the table, which is locked. The data lies in memory of our own.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), addr as *mut u8, data.len()) };
        Ok(())
    }

    fn handle(&self, trouble: std::result::Result<(), Trouble>) {
        match trouble {
            Ok(()) => {}
            Err(Trouble::Socket(_)) if self.link.has_left() || self.link.is_dead() => {}
            Err(Trouble::Socket(loss)) => {
                self.link.info(format!("lost the control socket ({}), waiting for the sender", loss.reason));
            }
            Err(Trouble::Peer(text)) => {
                self.link.fail(Error::remote(format!("the peer speaks nonsense: {text}")));
            }
        }
    }

    /// Reads chunks unless somebody else does: the socket's thread, if it has one, hears of all that comes.
    fn help(&self, index: usize) {
        let (pipe, mut complete) = (&self.pipes[index], Vec::new());
        if self.shared.pool.is_empty() && !pipe.readable().take() {
            return;
        }
        let is_left = match pipe.try_drive(&self.table, SHARE, &mut complete) {
            Some(driven) => self.after(index, driven, &complete) == Next::Again,
            None => true,
        };
        if is_left {
            pipe.readable().raise();
        }
    }

    /// Reads chunks; see [`RxPipe::drive`].
    fn read(&self, pipe: usize, to_the_end: bool) -> Next {
        let mut complete = Vec::new();
        let driven = self.pipes[pipe].drive(&self.table, SHARE, to_the_end, &mut complete);
        self.after(pipe, driven, &complete)
    }

    fn after(&self, pipe: usize, driven: Driven, complete: &[u64]) -> Next {
        self.acknowledge(complete);
        match driven {
            Driven::Wait => Next::Wait,
            Driven::Again => Next::Again,
            Driven::Lost { last, loss } => {
                if !self.link.has_left() {
                    self.link.info(format!("lost data socket {pipe} ({})", loss.reason));
                }
                self.report(pipe, last);
                Next::Wait
            }
            Driven::Nonsense(text) => {
                self.handle(Err(Trouble::Peer(text)));
                Next::Wait
            }
        }
    }

    /// Tells the sender of complete messages.
    fn acknowledge(&self, complete: &[u64]) {
        if complete.is_empty() {
            return;
        }
        self.came_inline.store(0, Ordering::Relaxed);
        let mut control = lock(&self.control);
        for &slot in complete {
            control.push(&Record::Done { slot });
        }
        let trouble = control.flush();
        drop(control);
        self.handle(trouble);
    }

    /// Tells the sender how far a closed socket came.
    fn report(&self, pipe: usize, last: Final) {
        let mut control = lock(&self.control);
        let Final { generation, chunks } = last;
        control.push(&Record::PipeFinal { pipe: pipe as u16, generation, chunks });
        let trouble = control.flush();
        drop(control);
        self.handle(trouble);
    }

    /// Fails the connection when its sender is gone for good.
    fn watch_deadline(&self, down: Option<(Duration, bool)>) {
        let Some((down, is_abrupt)) = down else { return };
        let limit = self.shared.settings.timeout;
        let text = if is_abrupt && down >= self.shared.settings.patience_with_silence() {
            let seconds = down.as_secs();
            format!("the sender is lost: its sockets were closed, and it did not come back for {seconds} s")
        } else if down >= limit {
            let seconds = limit.as_secs();
            format!("no path to the sender for {seconds} s (HAWSER_SOCKET_TIMEOUT); check network and peer")
        } else {
            return;
        };
        self.link.fail(Error::remote(text));
    }
}

/// The error of both ends when a send is longer than its receive.
pub(crate) fn too_long(bytes: u64, capacity: u64) -> Error {
    let text = format!(
        "a send of {bytes} bytes meets a receive of {capacity}: sizes of sends and receives must agree"
    );
    Error::new(ErrorKind::InvalidUsage, text)
}

impl Drop for RxConn {
    fn drop(&mut self) {
        self.shared.service.registry.remove(self.listening.number);
    }
}

impl Drive for RxConn {
    fn drive(&self, pipe: usize) -> Next {
        self.read(pipe, false)
    }

    fn broke(&self) {
        self.link.fail(Error::internal("a thread of the plugin panicked: a bug of the Socket plugin"));
    }
}

impl Member for RxConn {
    fn tick(&self) -> bool {
        if self.link.is_dead() && !self.link.is_closed() {
            return false;
        }
        self.pump();
        let (trouble, down) = {
            let mut control = lock(&self.control);
            (control.look(false), control.down_for())
        };
        self.handle(trouble);
        if !self.link.has_left() {
            self.watch_deadline(down);
        }
        lock(&self.table).open() > 0 || down.is_some()
    }

    fn ended(&self, socket: Socket) {
        match socket {
            Socket::Control => self.pump(),
            Socket::Pipe(pipe) if usize::from(pipe) < self.pipes.len() => {
                while self.read(usize::from(pipe), true) == Next::Again {}
            }
            Socket::Pipe(_) => {}
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

impl Cut for RxConn {
    fn cut(&self, socket: usize) -> bool {
        match socket.checked_sub(1) {
            None => lock(&self.control).cut(),
            Some(pipe) => self.pipes.get(pipe).is_some_and(RxPipe::cut),
        }
    }
}
