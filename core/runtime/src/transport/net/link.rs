//! One end of a connection over the network, and the FIFO in front of it.
//!
//! The device works on the FIFO as on any other; the proxy plays the peer. At the sender it takes every slot
//! that the device filled, in order, sends it, and returns the credit when the plugin is done with it. At the
//! receiver it posts every free slot, in order, and publishes the tail when its data are there. Slot `s` of
//! the sender becomes slot `s` of the receiver, so nothing but data travels.

use std::collections::VecDeque;
use std::sync::Arc;

use hawser_base::error::{Error, Result};
use hawser_base::figures::{self, Counter};
use hawser_base::stages;
use hawser_base::wait::Wait;
use hawser_plugin::net::{MemoryKinds, Receiver, Registration, Request, Segment, Sender};

use super::checksum::Checksum;
use super::end::{Around, ConnectionKey, End};
use super::fifo::Fifo;
use super::opening::{Dialing, Listening};
use super::recorder::EventRecorder;
use super::user_buffers::{RegisteredHere, UserBuffer};
use crate::bootstrap::Tag;
use crate::planted::{Bug, is_planted};
use crate::profiling::Span;
use crate::progress::stall::{NetRequest, Stopwatch};

/// The figures of the NIC that a link goes through.
#[derive(Debug, Clone, Copy)]
pub struct RailFigures {
    /// Bytes sent.
    pub sent: Counter,
    /// Bytes received.
    pub received: Counter,
    /// Sends that the plugin has in hand.
    pub open: Counter,
    /// Bytes, sent and received, that went from or to users' buffers without a slot.
    pub straight: Counter,
}

impl RailFigures {
    /// Those of a NIC of a net.
    pub fn of(net: &str, nic: &str) -> Self {
        let labels = [("net", net), ("rail", nic)];
        Self {
            sent: figures::sum("rail_sent_bytes_total", &labels),
            received: figures::sum("rail_received_bytes_total", &labels),
            open: figures::level("rail_sends_open", &labels),
            straight: figures::sum("rail_unstaged_bytes_total", &labels),
        }
    }
}

/// The sending end.
pub struct SendLink {
    key: ConnectionKey,
    fifo: Fifo,
    state: SendState,
    /// The receiver is ready.
    accepted: bool,
    posted: u64,
    done: u64,
    /// Writes records, if slots have them, of which so many are written.
    checksum: Option<Checksum>,
    recorded: u64,
    /// Receives that the peer posted, once the two part; the messages behind the last slot are empty.
    wanted: u64,
    empties: u64,
    requests: VecDeque<Request>,
    /// Users' buffers that are registered here.
    buffers: RegisteredHere,
    /// The plugin did not take the last send.
    is_refused: bool,
    watch: Stopwatch,
    recorder: EventRecorder,
    rail: RailFigures,
}

/// An end of a connection that carries messages from or to users' buffers.
pub trait Lends: End {
    /// Registers a buffer here. False: the connection is not up yet.
    fn lend(&mut self, buffer: UserBuffer, kind: MemoryKinds) -> Result<bool>;

    /// The program takes the registration of a buffer back.
    fn forget(&mut self, buffer: UserBuffer);

    /// True if the plugin may have a user's buffer in hand.
    fn uses_buffer(&self) -> bool;
}

enum SendState {
    /// It is on its way.
    Opening(Dialing),
    /// Carries nothing until the receiver has accepted.
    Open(Box<dyn Sender>, Registration),
}

impl SendLink {
    /// A link that connects as soon as its receiver says where. `device` is the plugin's; slots get records
    /// if there is a checksum.
    pub fn new(
        key: ConnectionKey,
        (device, rail): (u32, RailFigures),
        fifo: Fifo,
        checksum: Option<Checksum>,
    ) -> Self {
        let state = SendState::Opening(Dialing::new(device));
        Self {
            key,
            fifo,
            state,
            accepted: false,
            posted: 0,
            done: 0,
            checksum,
            recorded: 0,
            wanted: 0,
            empties: 0,
            requests: VecDeque::new(),
            buffers: RegisteredHere::default(),
            is_refused: false,
            watch: Stopwatch::default(),
            recorder: EventRecorder::default(),
            rail,
        }
    }

    /// The next slots belong to an operation that is watched.
    pub fn expect(&mut self, slots: u64, parent: &Arc<Span>) {
        let so_far = (self.posted, self.fifo.depth());
        self.recorder.expect(self.key, slots, self.fifo.slot_bytes(), so_far, parent);
    }

    /// Slots that the plugin has sent.
    pub fn sent(&self) -> u64 {
        self.done
    }

    /// The two part, and nothing more will be sent: the peer has posted receives for so many slots, which are
    /// to be filled.
    pub fn fill(&mut self, posted: u64) {
        self.wanted = posted;
    }

    /// True if the peer has no receive that waits for something.
    pub fn has_filled(&self) -> bool {
        self.posted + self.empties >= self.wanted && self.requests.is_empty()
    }

    /// True if everything that the device wrote has been sent.
    pub fn is_drained(&self) -> bool {
        self.done == self.fifo.filled(self.posted)
    }

    /// Moves a connection that is not open yet one step on; says whether anything moved.
    fn connect(&mut self, around: &Around<'_>) -> Result<bool> {
        let SendState::Opening(dialing) = &mut self.state else { return Ok(false) };
        let (has_moved, sender) = dialing.step(self.key, around)?;
        if let Some(mut sender) = sender {
            // SAFETY: the FIFO's memory lives until `close` has deregistered it.
            let registration = unsafe { sender.register(&self.fifo.region()) }?;
            self.state = SendState::Open(sender, registration);
        }
        Ok(has_moved)
    }

    fn carry(&mut self, around: &Around<'_>) -> Result<bool> {
        let SendState::Open(sender, registration) = &mut self.state else { return Ok(false) };
        self.recorder.look();
        let mut moved = false;
        let tail = self.fifo.filled(self.posted);
        while self.posted < tail && self.empties == 0 && self.posted - self.done < around.window {
            let (bytes, room) = (self.fifo.bytes_of(self.posted), self.fifo.slot_bytes());
            if bytes > room {
                let text = format!("a slot of {room} bytes was filled with {bytes}");
                return Err(Error::internal(text));
            }
            if let Some(checksum) = &self.checksum
                && self.recorded == self.posted
            {
                self.fifo.write_record(checksum, self.posted, bytes);
                self.recorded += 1;
            }
            let place = self.fifo.place_to_send();
            let mut segment = match place {
                Some(place) => self.buffers.segment(place, self.key.lane)?,
                None => self.fifo.slot(self.posted, bytes, *registration, self.key.lane),
            };
            segment.profile = self.recorder.sending(self.posted);
            let filled = around.trace.borrow_mut().filled();
            // SAFETY: the slot lies in the registered FIFO, or the piece in a registered buffer; the device
            // writes it again only after the credit below.
            let request = unsafe { sender.isend(&segment) }?;
            self.is_refused = request.is_none();
            let Some(request) = request else { break };
            around.trace.borrow_mut().sent(filled);
            self.requests.push_back(request);
            self.rail.sent.add(bytes as u64);
            self.rail.straight.add(place.map_or(0, |(_, bytes)| bytes as u64));
            self.rail.open.add(1);
            self.recorder.sends(self.posted, bytes);
            self.posted += 1;
            moved = true;
        }
        // Behind the first empty message only empty ones follow, whatever the device writes meanwhile.
        let is_filling = self.posted == tail || self.empties > 0;
        while is_filling && self.posted + self.empties < self.wanted {
            let segment =
                Segment { bytes: 0, ..self.fifo.slot(self.posted, 0, *registration, self.key.lane) };
            // SAFETY: nothing is read: the message is empty.
            let Some(request) = unsafe { sender.isend(&segment) }? else { break };
            self.requests.push_back(request);
            self.empties += 1;
            moved = true;
        }
        while let Some(&request) = self.requests.front()
            && sender.test(request)?.is_some()
        {
            self.requests.pop_front();
            if self.done == self.posted {
                continue;
            }
            self.recorder.sent(self.done);
            self.rail.open.take(1);
            self.done += 1;
            let lost = if is_planted(Bug::LostCredit) { self.done / 2 } else { 0 };
            self.fifo.publish_credit(self.done - lost);
            moved = true;
        }
        if moved {
            self.buffers.clear(sender.as_mut(), !self.requests.is_empty());
        }
        Ok(moved)
    }
}

impl Lends for SendLink {
    fn lend(&mut self, buffer: UserBuffer, kind: MemoryKinds) -> Result<bool> {
        let SendState::Open(sender, _) = &mut self.state else { return Ok(false) };
        self.buffers.add(sender.as_mut(), buffer, kind).map(|()| true)
    }

    fn forget(&mut self, buffer: UserBuffer) {
        if let SendState::Open(sender, _) = &mut self.state {
            self.buffers.forget(sender.as_mut(), buffer, !self.requests.is_empty());
        }
    }

    fn uses_buffer(&self) -> bool {
        self.fifo.place_to_send().is_some()
    }
}

impl End for SendLink {
    fn key(&self) -> ConnectionKey {
        self.key
    }

    fn go_on(&mut self, around: &Around<'_>) -> Result<bool> {
        if let SendState::Open(..) = &self.state {
            self.accepted = self.accepted || around.was_told(self.key, Tag::LinkAccepted);
            return if self.accepted { self.carry(around) } else { Ok(false) };
        }
        self.connect(around).map_err(|error| error.or_peer(self.key.peer))
    }

    fn asked(&self) -> Option<(NetRequest, u32)> {
        let sends = self.requests.len() as u32 + u32::from(self.is_refused);
        match &self.state {
            SendState::Opening(dialing) => dialing.has_begun().then_some((NetRequest::Connect, 1)),
            SendState::Open(..) => (sends > 0).then_some((NetRequest::Send, sends)),
        }
    }

    fn watch(&mut self) -> &mut Stopwatch {
        &mut self.watch
    }

    fn close(&mut self) {
        if let SendState::Open(sender, registration) = &mut self.state
            && self.requests.is_empty()
        {
            self.buffers.end(sender.as_mut());
            let _ = sender.deregister(*registration);
        }
        self.state = SendState::Opening(Dialing::new(0));
        self.rail.open.take(self.posted - self.done);
        self.done = self.posted;
    }

    fn is_unsent(&self) -> bool {
        !self.is_drained()
    }
}

/// The receiving end.
pub struct RecvLink {
    key: ConnectionKey,
    fifo: Fifo,
    state: RecvState,
    posted: u64,
    done: u64,
    /// The slots that come at all, once the two part; what is received behind them is empty.
    end: Option<u64>,
    requests: VecDeque<Request>,
    /// Users' buffers that are registered here.
    buffers: RegisteredHere,
    /// A flush of the slot at `done`.
    flush: Option<Request>,
    watch: Stopwatch,
    recorder: EventRecorder,
    /// Looks at records, if slots have them, with the name of the NIC that they come through.
    check: Option<Check>,
    rail: RailFigures,
}

/// The comparison of slots with their records, and the NIC that they come through.
pub type Check = (Checksum, Box<str>);

enum RecvState {
    /// It is on its way.
    Opening(Listening),
    Open(Box<dyn Receiver>, Registration),
    Closed,
}

impl RecvLink {
    /// Listens, and tells the sender where. May wait for the bootstrap to carry the message. Slots have
    /// records if there is a `check`.
    pub fn new(
        key: ConnectionKey,
        (device, rail): (u32, RailFigures),
        (fifo, check): (Fifo, Option<Check>),
        around: &Around<'_>,
        wait: &Wait,
    ) -> Result<Self> {
        let (handle, listener) = around.context.listen(device)?;
        around.bootstrap.send(key.peer, Tag::NetHandle.on_lane(key.lane), &handle, wait)?;
        let state = RecvState::Opening(Listening::new(listener));
        let (requests, watch, recorder) = (VecDeque::new(), Stopwatch::default(), EventRecorder::default());
        let (posted, done, end, flush) = (0, 0, None, None);
        let buffers = RegisteredHere::default();
        Ok(Self {
            key,
            fifo,
            state,
            posted,
            done,
            end,
            requests,
            buffers,
            flush,
            watch,
            recorder,
            check,
            rail,
        })
    }

    /// Receives that were posted.
    pub fn posted(&self) -> u64 {
        self.posted
    }

    /// The two part: no more than so many slots come, and receives are posted for no more.
    pub fn end_at(&mut self, slots: u64) {
        self.end = Some(slots.max(self.end.unwrap_or(self.done)));
    }

    /// True if the stream has asked for a message that has not come.
    pub fn has_asked(&self) -> bool {
        self.fifo.asks() && !self.requests.is_empty()
    }

    /// True if no receive is in flight.
    pub fn is_idle(&self) -> bool {
        self.requests.is_empty() && self.flush.is_none()
    }

    /// The next slots belong to an operation that is watched.
    pub fn expect(&mut self, slots: u64, parent: &Arc<Span>) {
        let so_far = (self.done, self.fifo.depth());
        self.recorder.expect(self.key, slots, self.fifo.slot_bytes(), so_far, parent);
    }

    /// Posts every free slot.
    fn post(&mut self) -> Result<bool> {
        let free = self.fifo.receivable().min(self.end.unwrap_or(u64::MAX));
        let before = self.posted;
        while self.posted < free {
            let RecvState::Open(receiver, registration) = &mut self.state else { return Ok(false) };
            let segment = to_fill(&self.fifo, &self.buffers, self.posted, (*registration, self.key.lane))?;
            // SAFETY: the slot lies in the registered FIFO, or the piece in a registered buffer; the device
            // reads it only after the tail was published.
            let Some(request) = unsafe { receiver.irecv(&[segment], false) }? else { break };
            self.requests.push_back(request);
            self.posted += 1;
        }
        Ok(self.posted > before)
    }

    /// Publishes slots whose data are there.
    fn take(&mut self, around: &Around<'_>) -> Result<bool> {
        let RecvState::Open(receiver, registration) = &mut self.state else { return Ok(false) };
        let before = self.done;
        loop {
            let asked = stages::now();
            if let Some(request) = self.flush {
                if !receiver.test(request, &mut [])? {
                    break;
                }
                self.flush = None;
            } else {
                let Some(&request) = self.requests.front() else { break };
                let place = self.fifo.place_to_fill();
                let room = place.map_or(self.fifo.slot_bytes(), |(_, bytes)| bytes);
                let record = self.fifo.record_bytes();
                // What counts if the plugin does not say.
                let mut sizes = [room + record];
                if !receiver.test(request, &mut sizes)? {
                    break;
                }
                self.requests.pop_front();
                if self.end.is_some_and(|end| self.done >= end) {
                    continue;
                }
                if sizes[0] > room + record {
                    let text = format!("{} bytes arrived for a slot of {}", sizes[0], room + record);
                    return Err(Error::remote(text));
                }
                if let Some((checksum, rail)) = &self.check {
                    self.fifo.check_record(checksum, self.done, rail)?;
                }
                let bytes = sizes[0].saturating_sub(record);
                self.rail.received.add(bytes as u64);
                self.rail.straight.add(if place.is_some() { bytes as u64 } else { 0 });
                self.recorder.received(self.done, bytes);
                if around.flush && (self.fifo.in_device() || place.is_some()) {
                    let at = (*registration, self.key.lane);
                    let segment = to_fill(&self.fifo, &self.buffers, self.done, at)?;
                    // SAFETY: the segment is what the finished receive wrote.
                    self.flush = unsafe { receiver.flush(&[segment]) }?;
                    if self.flush.is_some() {
                        continue;
                    }
                }
            }
            self.recorder.readable(self.done);
            self.done += 1;
            if is_planted(Bug::DoubleCompletion) && self.done % 4 == 3 {
                self.done += 1;
            }
            self.fifo.publish_tail(self.done);
            around.trace.borrow_mut().came(asked);
            self.recorder.receives(self.done);
        }
        if self.done > before {
            self.buffers.clear(receiver.as_mut(), !self.requests.is_empty() || self.flush.is_some());
        }
        Ok(self.done > before)
    }
}

/// The place of a message that is received, as the plugin knows it: a slot, which has this registration, or a
/// piece of a registered buffer.
fn to_fill(
    fifo: &Fifo,
    buffers: &RegisteredHere,
    number: u64,
    (registration, tag): (Registration, u32),
) -> Result<Segment> {
    match fifo.place_to_fill() {
        Some(place) => buffers.segment(place, tag),
        None => Ok(fifo.slot(number, fifo.slot_bytes(), registration, tag)),
    }
}

impl Lends for RecvLink {
    fn lend(&mut self, buffer: UserBuffer, kind: MemoryKinds) -> Result<bool> {
        let RecvState::Open(receiver, _) = &mut self.state else { return Ok(false) };
        self.buffers.add(receiver.as_mut(), buffer, kind).map(|()| true)
    }

    fn forget(&mut self, buffer: UserBuffer) {
        if let RecvState::Open(receiver, _) = &mut self.state {
            let is_busy = !self.requests.is_empty() || self.flush.is_some();
            self.buffers.forget(receiver.as_mut(), buffer, is_busy);
        }
    }

    fn uses_buffer(&self) -> bool {
        // The stream may just have asked for it.
        _ = self.fifo.receivable();
        self.fifo.place_to_fill().is_some()
    }
}

impl End for RecvLink {
    fn key(&self) -> ConnectionKey {
        self.key
    }

    fn go_on(&mut self, around: &Around<'_>) -> Result<bool> {
        match &mut self.state {
            RecvState::Opening(listening) => {
                let Some(mut receiver) = listening.step(self.key, around)? else { return Ok(false) };
                // SAFETY: the FIFO's memory lives until `close` has deregistered it.
                let registration = unsafe { receiver.register(&self.fifo.region()) }?;
                around.tell(self.key, Tag::LinkAccepted)?;
                self.state = RecvState::Open(receiver, registration);
                Ok(true)
            }
            RecvState::Open(..) => {
                self.recorder.look();
                if self.recorder.is_waiting() {
                    self.recorder.receives(self.done);
                }
                // What came goes first; new receives are posted when nothing comes, while enough are in
                // flight.
                let has_taken = self.take(around)?;
                let is_stocked = 2 * self.requests.len() as u64 > self.fifo.depth();
                let has_posted = !(has_taken && is_stocked) && self.post()?;
                Ok(has_taken || has_posted)
            }
            RecvState::Closed => Ok(false),
        }
    }

    /// Receives count only where there are none: the peer may have nothing to send.
    fn asked(&self) -> Option<(NetRequest, u32)> {
        let request = match &self.state {
            RecvState::Opening(listening) => listening.has_begun().then_some(NetRequest::Accept),
            RecvState::Open(..) if self.flush.is_some() => Some(NetRequest::Flush),
            RecvState::Open(..) if self.requests.is_empty() => Some(NetRequest::NoRoom),
            RecvState::Open(..) | RecvState::Closed => None,
        };
        Some((request?, 1))
    }

    fn watch(&mut self) -> &mut Stopwatch {
        &mut self.watch
    }

    /// Receives may be in flight, after a failure.
    fn close(&mut self) {
        if let RecvState::Open(receiver, registration) = &mut self.state {
            self.buffers.end(receiver.as_mut());
            let _ = receiver.deregister(*registration);
        }
        self.state = RecvState::Closed;
    }

    fn come(&self) -> u64 {
        self.done
    }
}
