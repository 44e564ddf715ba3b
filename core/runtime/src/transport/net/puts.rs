//! Connections for what is put into windows of ranks on other hosts, without FIFOs: pieces are sent from
//! where they lie and received where they go, which on GPUs are slots in memory of the host.
//!
//! The sender announces each piece over the control connection, with its number on this connection; the
//! receiver posts a receive for it, in the order of numbers. So no receive is posted for which nothing comes,
//! and what was announced is received before what the sender tells afterwards is carried out (`rma/`).

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, OnceLock};

use hawser_base::error::{Error, Result};
use hawser_plugin::net::{
    MAX_REQUESTS, MemoryKinds, Receiver, Region, Registration, Request, Segment, Sender,
};

use super::checksum::{Checksum, RECORD};
use super::end::{Around, ConnectionKey, End};
use super::link::RailFigures;
use super::opening::{Dialing, Listening};
use super::put_way::Inbox;
use crate::bootstrap::Tag;
use crate::progress::stall::{NetRequest, Stopwatch};

/// The record of a piece, if it has a checksum.
pub type Record = [u8; RECORD];

/// Memory that is registered as a whole: a window, or slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Area {
    /// Its address.
    pub addr: u64,
    /// Its length.
    pub bytes: u64,
}

/// The end of a piece, for those who wait for it.
pub type Ticket = OnceLock<Result<()>>;

/// A piece on its way out.
pub struct Outgoing {
    /// Its address.
    pub addr: u64,
    /// Its length.
    pub bytes: u64,
    /// The memory that it lies in.
    pub area: Area,
    /// Set when it may change.
    pub ticket: Arc<Ticket>,
}

/// A piece that comes.
pub struct Landing {
    /// The address that it goes to.
    pub addr: u64,
    /// Its length.
    pub bytes: u64,
    /// The window.
    pub area: Area,
    /// Its record, if pieces have checksums.
    pub record: Option<Record>,
}

/// One end of a connection.
pub enum PutEnd {
    /// This rank puts.
    Out(PutSend),
    /// Its peer does.
    In(PutRecv),
}

/// The sending end.
pub struct PutSend {
    key: ConnectionKey,
    rail: RailFigures,
    /// On its way until it is there.
    state: std::result::Result<Box<dyn Sender>, Dialing>,
    /// The receiver is ready.
    accepted: bool,
    registrations: Vec<(Area, Registration)>,
    waiting: VecDeque<Outgoing>,
    flying: VecDeque<(Request, Outgoing)>,
    sent: u64,
    watch: Stopwatch,
}

/// The receiving end.
pub struct PutRecv {
    key: ConnectionKey,
    rail: RailFigures,
    nic: Box<str>,
    checksum: Checksum,
    /// On its way until it is there.
    state: std::result::Result<Box<dyn Receiver>, Listening>,
    registrations: Vec<(Area, Registration)>,
    /// By number.
    waiting: BTreeMap<u64, Landing>,
    /// With the addresses of the slots that they pass through.
    flying: VecDeque<(Request, Landing, Option<u64>)>,
    posted: u64,
    come: u64,
    watch: Stopwatch,
    inbox: Arc<Inbox>,
}

impl PutEnd {
    /// The end with this key, through a device of the plugin. Tells the sender where it listens.
    pub fn new(
        key: ConnectionKey,
        (device, rail, nic): (u32, RailFigures, &str),
        around: &Around<'_>,
        inbox: &Arc<Inbox>,
    ) -> Result<Self> {
        let (registrations, watch) = (Vec::new(), Stopwatch::default());
        if key.send {
            let (state, waiting, flying) = (Err(Dialing::new(device)), VecDeque::new(), VecDeque::new());
            let (accepted, sent) = (false, 0);
            return Ok(Self::Out(PutSend {
                key,
                rail,
                state,
                accepted,
                registrations,
                waiting,
                flying,
                sent,
                watch,
            }));
        }
        let (handle, listener) = around.context.listen(device)?;
        around.teller.tell(key.peer, Tag::NetHandle.on_lane(key.lane), &handle)?;
        Ok(Self::In(PutRecv {
            key,
            rail,
            nic: nic.into(),
            checksum: Checksum::of(key, around.bootstrap.rank()),
            state: Err(Listening::new(listener)),
            registrations,
            waiting: BTreeMap::new(),
            flying: VecDeque::new(),
            posted: 0,
            come: 0,
            watch,
            inbox: inbox.clone(),
        }))
    }

    /// Pieces that were sent.
    pub fn sent(&self) -> u64 {
        match self {
            Self::Out(end) => end.sent,
            Self::In(_) => 0,
        }
    }

    /// True if nothing is to be sent, or no receive is in flight or due.
    pub fn is_idle(&self) -> bool {
        match self {
            Self::Out(end) => end.waiting.is_empty() && end.flying.is_empty(),
            Self::In(end) => end.waiting.is_empty() && end.flying.is_empty(),
        }
    }

    /// True if it has this memory in flight.
    pub fn uses(&self, area: Area) -> bool {
        match self {
            Self::Out(end) => {
                let out = end.flying.iter().map(|(_, piece)| piece).chain(&end.waiting);
                out.into_iter().any(|piece| piece.area == area)
            }
            Self::In(end) => {
                let pieces = end.flying.iter().map(|(_, piece, _)| piece).chain(end.waiting.values());
                pieces.into_iter().any(|piece| piece.area == area)
            }
        }
    }

    /// The memory goes: it is not registered any more. Nothing of it is in flight.
    pub fn forget(&mut self, area: Area) -> Result<()> {
        let registrations = match self {
            Self::Out(end) => &mut end.registrations,
            Self::In(end) => &mut end.registrations,
        };
        let Some(at) = registrations.iter().position(|(of, _)| *of == area) else { return Ok(()) };
        let (_, registration) = registrations.swap_remove(at);
        match self {
            Self::Out(PutSend { state: Ok(sender), .. }) => sender.deregister(registration)?,
            Self::In(PutRecv { state: Ok(receiver), .. }) => receiver.deregister(registration)?,
            Self::Out(_) | Self::In(_) => {}
        }
        Ok(())
    }

    /// Closes the connection, and ends what waits with this error; without one, the end of the communicator
    /// or of the peer does that soon. Errors are of no use any more.
    pub fn end_with(&mut self, why: Option<&Error>) {
        if self.is_idle() {
            let areas: Vec<Area> = match self {
                Self::Out(end) => end.registrations.iter().map(|(area, _)| *area).collect(),
                Self::In(end) => end.registrations.iter().map(|(area, _)| *area).collect(),
            };
            areas.into_iter().for_each(|area| drop(self.forget(area)));
        }
        match self {
            Self::Out(end) => {
                end.state = Err(Dialing::new(0));
                end.rail.open.take(end.flying.len() as u64);
                let pieces = std::mem::take(&mut end.flying).into_iter().map(|(_, piece)| piece);
                for piece in pieces.chain(std::mem::take(&mut end.waiting)) {
                    let _ = why.map(|why| piece.ticket.set(Err(why.clone())));
                }
            }
            Self::In(end) => {
                let flying = std::mem::take(&mut end.flying);
                end.waiting.clear();
                // The plugin lets go of all memory.
                if let Ok(receiver) = std::mem::replace(&mut end.state, Err(Listening::nowhere())) {
                    drop(receiver);
                }
                flying.into_iter().filter_map(|(.., slot)| slot).for_each(|slot| end.inbox.give_slot(slot));
            }
        }
    }
}

impl End for PutEnd {
    fn key(&self) -> ConnectionKey {
        match self {
            Self::Out(end) => end.key,
            Self::In(end) => end.key,
        }
    }

    fn go_on(&mut self, around: &Around<'_>) -> Result<bool> {
        match self {
            Self::Out(end) => end.go_on(around).map_err(|error| error.or_peer(end.key.peer)),
            Self::In(end) => end.go_on(around),
        }
    }

    fn asked(&self) -> Option<(NetRequest, u32)> {
        match self {
            Self::Out(end) => end.asked(),
            Self::In(end) => end.asked().map(|request| (request, 1)),
        }
    }

    fn watch(&mut self) -> &mut Stopwatch {
        match self {
            Self::Out(end) => &mut end.watch,
            Self::In(end) => &mut end.watch,
        }
    }

    fn close(&mut self) {
        self.end_with(None);
    }

    fn come(&self) -> u64 {
        match self {
            Self::Out(_) => 0,
            Self::In(end) => end.come,
        }
    }
}

impl PutSend {
    /// Sends a piece, too.
    pub fn add(&mut self, piece: Outgoing) {
        self.waiting.push_back(piece);
    }

    fn asked(&self) -> Option<(NetRequest, u32)> {
        match &self.state {
            Err(dialing) => dialing.has_begun().then_some((NetRequest::Connect, 1)),
            Ok(_) if self.flying.is_empty() && self.waiting.is_empty() => None,
            Ok(_) => Some((NetRequest::Send, (self.flying.len() + self.waiting.len()) as u32)),
        }
    }

    fn go_on(&mut self, around: &Around<'_>) -> Result<bool> {
        let sender = match &mut self.state {
            Ok(sender) => sender,
            Err(dialing) => {
                let (has_moved, sender) = dialing.step(self.key, around)?;
                if let Some(sender) = sender {
                    self.state = Ok(sender);
                }
                return Ok(has_moved);
            }
        };
        // Looked for only while there is something to send.
        if self.waiting.is_empty() && self.flying.is_empty() {
            return Ok(false);
        }
        self.accepted = self.accepted || around.was_told(self.key, Tag::LinkAccepted);
        if !self.accepted {
            return Ok(false);
        }
        let mut has_moved = false;
        while self.flying.len() < MAX_REQUESTS.min(around.window as usize)
            && let Some(piece) = self.waiting.front()
        {
            // SAFETY: windows stay until `forget`, slots as long as the communicator.
            let registered =
                registered(&mut self.registrations, piece.area, |region| unsafe { sender.register(region) });
            let segment = segment(registered?, (piece.addr, piece.bytes), self.key);
            // SAFETY: the piece lies in its area; who put it leaves it alone until its ticket is set.
            let Some(request) = (unsafe { sender.isend(&segment) })? else { break };
            self.rail.sent.add(piece.bytes);
            self.rail.open.add(1);
            self.flying.extend(self.waiting.pop_front().map(|piece| (request, piece)));
            has_moved = true;
        }
        while let Some((request, _)) = self.flying.front()
            && sender.test(*request)?.is_some()
        {
            if let Some((_, piece)) = self.flying.pop_front() {
                let _ = piece.ticket.set(Ok(()));
            }
            self.rail.open.take(1);
            self.sent += 1;
            has_moved = true;
        }
        Ok(has_moved)
    }
}

impl PutRecv {
    /// Receives a piece, too.
    pub fn add(&mut self, number: u64, piece: Landing) {
        self.waiting.insert(number, piece);
    }

    fn asked(&self) -> Option<NetRequest> {
        match &self.state {
            Err(listening) => listening.has_begun().then_some(NetRequest::Accept),
            Ok(_) if self.flying.is_empty() && !self.waiting.is_empty() => Some(NetRequest::NoRoom),
            Ok(_) => None,
        }
    }

    fn go_on(&mut self, around: &Around<'_>) -> Result<bool> {
        if let Err(listening) = &mut self.state {
            let Some(receiver) = listening.step(self.key, around)? else { return Ok(false) };
            around.tell(self.key, Tag::LinkAccepted)?;
            self.state = Ok(receiver);
            return Ok(true);
        }
        let has_posted = self.post()?;
        Ok(self.take()? || has_posted)
    }

    /// Posts receives for what was announced, in the order of numbers.
    fn post(&mut self) -> Result<bool> {
        let Ok(receiver) = &mut self.state else { return Ok(false) };
        let before = self.posted;
        while self.flying.len() < MAX_REQUESTS
            && let Some(piece) = self.waiting.get(&self.posted)
        {
            let slot = if self.inbox.is_staged() { Some(self.inbox.take_slot()?) } else { None };
            let (area, addr) = match slot {
                Some(Some((area, slot))) => (area, slot),
                Some(None) => break,
                None => (piece.area, piece.addr),
            };
            let slot = slot.map(|_| addr);
            // SAFETY: as in `PutSend::go_on`.
            let registered =
                registered(&mut self.registrations, area, |region| unsafe { receiver.register(region) });
            let segment = segment(registered?, (addr, piece.bytes), self.key);
            // SAFETY: the piece lies in its area, which nobody reads before its signal.
            let Some(request) = (unsafe { receiver.irecv(&[segment], false) })? else {
                slot.into_iter().for_each(|slot| self.inbox.give_slot(slot));
                break;
            };
            let piece = self.waiting.remove(&self.posted);
            self.flying.extend(piece.map(|piece| (request, piece, slot)));
            self.posted += 1;
        }
        Ok(self.posted > before)
    }

    /// Tells the window of what has come.
    fn take(&mut self) -> Result<bool> {
        let Ok(receiver) = &mut self.state else { return Ok(false) };
        let before = self.come;
        while let Some((request, piece, slot)) = self.flying.front() {
            // What counts if the plugin does not say.
            let mut sizes = [piece.bytes as usize];
            if !receiver.test(*request, &mut sizes)? {
                break;
            }
            if sizes[0] as u64 != piece.bytes {
                let text =
                    format!("{} bytes came of a put of which {} were announced", sizes[0], piece.bytes);
                return Err(Error::remote(text));
            }
            let at = slot.unwrap_or(piece.addr);
            if let Some(record) = &piece.record {
                // SAFETY: the receive is over, and has filled so many bytes of memory of the host.
                let data = unsafe { std::slice::from_raw_parts(at as *const u8, piece.bytes as usize) };
                self.checksum.check(self.come, record, data, &self.nic)?;
            }
            self.inbox.landed(self.key.peer, piece, *slot)?;
            self.rail.received.add(piece.bytes);
            self.come += 1;
            if let Some((.., Some(slot))) = self.flying.pop_front() {
                self.inbox.give_slot(slot);
            }
        }
        Ok(self.come > before)
    }
}

fn segment(registration: Registration, (addr, bytes): (u64, u64), key: ConnectionKey) -> Segment {
    Segment { addr, bytes: bytes as usize, registration, tag: key.lane as i32, profile: 0 }
}

/// The registration of an area, made if need be.
fn registered(
    registrations: &mut Vec<(Area, Registration)>,
    area: Area,
    register: impl FnOnce(&Region) -> hawser_plugin::Result<Registration>,
) -> Result<Registration> {
    if let Some((_, registration)) = registrations.iter().find(|(of, _)| *of == area) {
        return Ok(*registration);
    }
    let bytes = area.bytes as usize;
    let region = Region { addr: area.addr, bytes, kind: MemoryKinds::HOST, dmabuf: None };
    let registration = register(&region).map_err(|error| {
        Error::from(error)
            .context(format!("registering a window of {bytes} bytes with the net"))
            .remedy("raise the limit of locked memory (ulimit -l), or set HAWSER_PUT_NET=0")
    })?;
    registrations.push((area, registration));
    Ok(registration)
}
