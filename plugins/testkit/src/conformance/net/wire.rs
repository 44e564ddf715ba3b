//! Connections, memory and an engine that moves messages.

use std::ops::Range;

use hawser_plugin::net::{
    Connector, Handle, Listener, MAX_REQUESTS, MemoryKinds, Net, NetConfig, NetContext, Receiver, Region,
    Registration, Request, Segment, Sender,
};
use hawser_plugin::{Log, Result};

use crate::conformance::case::{Outcome, Patience, Trial, want};

/// The byte that memory holds before anything is received.
const BLANK: u8 = 0xa5;
/// Bytes around a buffer that nobody may touch.
const GUARD: usize = 64;
/// A size that a plugin leaves if it does not know.
const UNKNOWN: usize = usize::MAX;

pub type Fails<T> = std::result::Result<T, String>;

pub fn told<T>(what: &str, result: Result<T>) -> Fails<T> {
    result.map_err(|error| format!("{what}: {error}"))
}

/// Host memory for one case. It is never given back, so that a plugin that writes late does no harm.
pub struct Memory {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: it is memory of the process; who may look at it when is the case's business.
unsafe impl Send for Memory {}

impl Memory {
    pub fn blank(bytes: usize) -> Self {
        let whole = vec![BLANK; bytes + 2 * GUARD].leak();
        Self { base: whole[GUARD..].as_mut_ptr(), bytes }
    }

    /// Filled with what only this seed gives.
    pub fn pattern(bytes: usize, seed: usize) -> Self {
        let memory = Self::blank(bytes);
        memory.all().iter_mut().enumerate().for_each(|(at, byte)| *byte = pattern(seed, at));
        memory
    }

    #[allow(clippy::mut_from_ref)] // raw memory
    fn all(&self) -> &mut [u8] {
        // SAFETY: the allocation lives for ever; cases look only when no request is in flight.
        unsafe { std::slice::from_raw_parts_mut(self.base, self.bytes) }
    }

    /// The bytes of a range.
    pub fn bytes(&self, range: Range<usize>) -> &[u8] {
        &self.all()[range]
    }

    pub fn region(&self) -> Region {
        Region { addr: self.base as u64, bytes: self.bytes, kind: MemoryKinds::HOST, dmabuf: None }
    }

    pub fn segment(&self, registration: Registration, range: Range<usize>, tag: i32) -> Segment {
        let (addr, bytes) = (self.base as u64 + range.start as u64, range.len());
        Segment { addr, bytes, registration, tag, profile: 0 }
    }

    /// True if a range holds the pattern from its beginning.
    pub fn holds(&self, seed: usize, range: Range<usize>) -> Outcome {
        let start = range.start;
        let wrong = self.bytes(range).iter().enumerate().find(|(at, byte)| **byte != pattern(seed, *at));
        match wrong {
            None => Ok(()),
            Some((at, byte)) => {
                let want = pattern(seed, at);
                Err(format!("byte {at} of the message at {start} is {byte:#04x}, sent was {want:#04x}"))
            }
        }
    }

    /// True if a range is as it was.
    pub fn is_blank(&self, range: Range<usize>) -> bool {
        self.bytes(range).iter().all(|byte| *byte == BLANK)
    }

    /// True if nobody wrote around the memory.
    pub fn guards(&self) -> Outcome {
        // SAFETY: the guards are part of the allocation.
        let (before, after) = unsafe {
            let before = std::slice::from_raw_parts(self.base.sub(GUARD), GUARD);
            (before, std::slice::from_raw_parts(self.base.add(self.bytes), GUARD))
        };
        want!(before.iter().chain(after).all(|byte| *byte == BLANK), "bytes outside the buffer were written");
        Ok(())
    }
}

pub fn pattern(seed: usize, at: usize) -> u8 {
    let mixed = (at ^ seed.wrapping_mul(0x9e37)).wrapping_mul(0x0100_0193);
    (mixed ^ (mixed >> 8) ^ (at >> 11) ^ seed) as u8
}

/// Both ends of a connection.
pub struct Pair {
    pub sender: Box<dyn Sender>,
    pub receiver: Box<dyn Receiver>,
}

/// A connection with the contexts of its two ranks. Fields are dropped in this order.
pub struct Wire {
    pub pair: Pair,
    pub contexts: [Box<dyn NetContext>; 2],
}

impl Trial<dyn Net> {
    pub fn open(&self, comm_id: u64) -> Fails<Box<dyn NetContext>> {
        told("open", self.plugin.open(&NetConfig::new(comm_id, Log::silent())))
    }

    /// A connection between two contexts, on the first device.
    pub fn wire(&self, comm_id: u64) -> Fails<Wire> {
        let contexts = [self.open(comm_id)?, self.open(comm_id)?];
        let pair = connect(&*contexts[0], &*contexts[1], 0, &mut self.patience())?;
        Ok(Wire { pair, contexts })
    }
}

/// Both ends of a connection on their way.
pub struct Meeting {
    pub listener: Option<Box<dyn Listener>>,
    pub connector: Option<Box<dyn Connector>>,
    pub receiver: Option<Box<dyn Receiver>>,
    pub sender: Option<Box<dyn Sender>>,
}

impl Meeting {
    pub fn new(receiving: &dyn NetContext, sending: &dyn NetContext, device: u32) -> Fails<Self> {
        let (handle, listener) = told("listen", receiving.listen(device))?;
        Self::to(listener, &handle, sending, device)
    }

    pub fn to(
        listener: Box<dyn Listener>,
        handle: &Handle,
        sending: &dyn NetContext,
        device: u32,
    ) -> Fails<Self> {
        let connector = told("connect", sending.connect(device, handle))?;
        Ok(Self { listener: Some(listener), connector: Some(connector), receiver: None, sender: None })
    }

    /// One turn at the receiver.
    pub fn accept(&mut self) -> Outcome {
        if let Some(listener) = &mut self.listener
            && let Some(receiver) = told("accept", listener.accept())?
        {
            (self.receiver, self.listener) = (Some(receiver), None);
        }
        Ok(())
    }

    /// One turn at the sender.
    pub fn poll(&mut self) -> Outcome {
        if let Some(connector) = &mut self.connector
            && let Some(sender) = told("poll of a connector", connector.poll())?
        {
            (self.sender, self.connector) = (Some(sender), None);
        }
        Ok(())
    }

    pub fn pair(&mut self) -> Option<Pair> {
        if self.sender.is_none() || self.receiver.is_none() {
            return None;
        }
        Some(Pair { sender: self.sender.take()?, receiver: self.receiver.take()? })
    }
}

pub fn connect(
    receiving: &dyn NetContext,
    sending: &dyn NetContext,
    device: u32,
    patience: &mut Patience,
) -> Fails<Pair> {
    let mut meeting = Meeting::new(receiving, sending, device)?;
    loop {
        meeting.accept()?;
        meeting.poll()?;
        if let Some(pair) = meeting.pair() {
            return Ok(pair);
        }
        patience.turn(|| "a connection".to_owned())?;
    }
}

pub fn register_sender(sender: &mut dyn Sender, memory: &Memory) -> Fails<Registration> {
    // SAFETY: the memory is never given back.
    told("register at the sender", unsafe { sender.register(&memory.region()) })
}

pub fn register_receiver(receiver: &mut dyn Receiver, memory: &Memory) -> Fails<Registration> {
    // SAFETY: the memory is never given back.
    told("register at the receiver", unsafe { receiver.register(&memory.region()) })
}

/// One end of a connection with its messages: posted in order, at most so many in flight, tested oldest
/// first.
pub struct Line<M> {
    messages: Vec<M>,
    posted: usize,
    flying: Vec<Request>,
    done: usize,
    limit: usize,
}

impl<M> Line<M> {
    fn new(messages: Vec<M>, limit: usize) -> Self {
        Self { messages, posted: 0, flying: Vec::new(), done: 0, limit }
    }

    /// The operations that can be posted now.
    fn next(&self) -> Option<&M> {
        self.messages.get(self.posted).filter(|_| self.flying.len() < self.limit)
    }

    fn took(&mut self, request: Option<Request>) {
        self.posted += usize::from(request.is_some());
        self.flying.extend(request);
    }

    fn over(&mut self) {
        self.flying.remove(0);
        self.done += 1;
    }

    fn is_done(&self) -> bool {
        self.done == self.messages.len()
    }
}

/// The sending half of an exchange.
pub struct Sends(Line<Segment>);

impl Sends {
    pub fn new(messages: Vec<Segment>) -> Self {
        // A send of a group is a request of its own.
        Self(Line::new(messages, MAX_REQUESTS))
    }

    pub fn is_done(&self) -> bool {
        self.0.is_done()
    }

    pub fn in_flight(&self) -> usize {
        self.0.flying.len()
    }

    pub fn turn(&mut self, sender: &mut dyn Sender) -> Outcome {
        self.post(sender)?;
        let Some(oldest) = self.0.flying.first() else { return Ok(()) };
        let at = self.0.done;
        if let Some(bytes) = told(&format!("test of send {at}"), sender.test(*oldest))? {
            let sent = self.0.messages[at].bytes;
            want!(bytes == sent, "send {at} says {bytes} bytes, it has {sent}");
            self.0.over();
        }
        Ok(())
    }

    pub fn post(&mut self, sender: &mut dyn Sender) -> Outcome {
        if let Some(segment) = self.0.next() {
            // SAFETY: the memory is never given back, and cases leave it alone while a request is in flight.
            let request = told(&format!("isend {}", self.0.posted), unsafe { sender.isend(segment) })?;
            self.0.took(request);
        }
        Ok(())
    }
}

/// The receiving half. What comes out is checked against the sizes that are sent.
pub struct Receives {
    line: Line<Vec<Segment>>,
    /// Bytes that each segment of each group must get.
    expected: Vec<Vec<usize>>,
    optional: bool,
}

impl Receives {
    pub fn new(groups: Vec<Vec<Segment>>, expected: Vec<Vec<usize>>) -> Self {
        Self { line: Line::new(groups, MAX_REQUESTS), expected, optional: false }
    }

    pub fn optional(mut self) -> Self {
        self.optional = true;
        self
    }

    pub fn is_done(&self) -> bool {
        self.line.is_done()
    }

    pub fn in_flight(&self) -> usize {
        self.line.flying.len()
    }

    pub fn turn(&mut self, receiver: &mut dyn Receiver) -> Outcome {
        self.post(receiver)?;
        let Some(oldest) = self.line.flying.first() else { return Ok(()) };
        let at = self.line.done;
        let mut sizes = vec![UNKNOWN; self.expected[at].len()];
        if told(&format!("test of receive {at}"), receiver.test(*oldest, &mut sizes))? {
            let fits = |(size, expected): (&usize, &usize)| *size == UNKNOWN || size == expected;
            let expected = &self.expected[at];
            let fine = self.optional || sizes.iter().zip(expected).all(fits);
            want!(fine, "receive {at} says {sizes:?} bytes, sent were {expected:?}");
            self.line.over();
        }
        Ok(())
    }

    pub fn post(&mut self, receiver: &mut dyn Receiver) -> Outcome {
        if let Some(group) = self.line.next() {
            // SAFETY: as for sends.
            let request = unsafe { receiver.irecv(group, self.optional) };
            self.line.took(told(&format!("irecv {}", self.line.posted), request)?);
        }
        Ok(())
    }
}

/// Moves everything.
pub fn exchange(
    pair: &mut Pair,
    sends: &mut Sends,
    receives: &mut Receives,
    patience: &mut Patience,
) -> Outcome {
    while !(sends.is_done() && receives.is_done()) {
        sends.turn(&mut *pair.sender)?;
        receives.turn(&mut *pair.receiver)?;
        patience.turn(|| {
            let (sent, received) = (sends.0.done, receives.line.done);
            let (all_sends, all_receives) = (sends.0.messages.len(), receives.line.messages.len());
            format!("an exchange ({sent} of {all_sends} sends over, {received} of {all_receives} receives)")
        })?;
    }
    Ok(())
}

/// Sends messages of these sizes in one go and checks what comes out.
pub fn messages(pair: &mut Pair, sizes: &[usize], patience: &mut Patience) -> Outcome {
    let most = sizes.iter().copied().max().unwrap_or(0);
    let slots: Vec<Range<usize>> = (0..sizes.len()).map(|n| n * most..n * most + sizes[n]).collect();
    let (from, to) = (Memory::blank(most * sizes.len()), Memory::blank(most * sizes.len()));
    for (seed, slot) in slots.iter().enumerate() {
        let bytes = from.all()[slot.clone()].iter_mut().enumerate();
        bytes.for_each(|(at, byte)| *byte = pattern(seed, at));
    }
    let mine = register_sender(&mut *pair.sender, &from)?;
    let theirs = register_receiver(&mut *pair.receiver, &to)?;
    let mut sends = Sends::new(slots.iter().map(|slot| from.segment(mine, slot.clone(), 0)).collect());
    let groups = slots.iter().map(|slot| vec![to.segment(theirs, slot.clone(), 0)]).collect();
    let mut receives = Receives::new(groups, sizes.iter().map(|size| vec![*size]).collect());
    exchange(pair, &mut sends, &mut receives, patience)?;
    for (seed, slot) in slots.iter().enumerate() {
        to.holds(seed, slot.clone())?;
        let rest = slot.end..(seed + 1) * most;
        want!(to.is_blank(rest), "bytes behind the receive of {} bytes were written", slot.len());
    }
    to.guards()?;
    told("deregister at the sender", pair.sender.deregister(mine))?;
    told("deregister at the receiver", pair.receiver.deregister(theirs))
}
