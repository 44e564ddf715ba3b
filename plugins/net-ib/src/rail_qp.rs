//! Queue pairs of a rail at one end, and the buffers of its control messages.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hawser_plugin::net::{MemoryKinds, Region};

use crate::config::Settings;
use crate::port::Port;
use crate::proto::Epoch;
use crate::proto::wire::MAX_MESSAGE;
use crate::verbs::{Caps, Cq, Errno, Qp, Route, Span, Wc};

/// Receives that are posted: more than a peer has under way (see `Rules::window`).
const RECEIVES: usize = 192;
/// Buffers of control messages under way.
const CONTROLS: usize = 96;
/// Work requests under way: chunks, twice because they may be split, and control messages.
const SENDS: u32 = 320;
/// Bytes that are asked to go inline.
const INLINE: u32 = 220;
/// Marks receives among the numbers of work requests.
const RECEIVE: u64 = 1 << 63;
/// A pair that does not flush is destroyed after this.
const DRAIN: Duration = Duration::from_millis(200);

/// Entries that the completion queue of so many queue pairs needs.
pub(crate) fn queue_depth(rail_qps: usize) -> u32 {
    (rail_qps * (RECEIVES + SENDS as usize)) as u32
}

/// One rail at one end.
pub(crate) struct RailQp {
    /// Index among the connection's ports here and at the peer.
    pub local: usize,
    /// The index of the port among the connection's ports at the peer.
    pub remote: usize,
    epoch: Epoch,
    qp: Option<Box<dyn Qp>>,
    psn: u32,
    slab: Option<Slab>,
    /// Work requests that did not complete.
    receives: usize,
    /// Their numbers, and how many completions each gives when it is flushed.
    sends: VecDeque<(u64, u8)>,
    stopping: Option<Instant>,
    /// Connects a pair: over Ethernet the kernel asks for the peer's address meanwhile, for a second or more.
    connecting: Option<JoinHandle<Connected>>,
    /// The answer to the peer when the pair is connected; None: it knows.
    answer: Option<Vec<u8>>,
    /// Destroys a pair that did not flush.
    destroyer: Option<JoinHandle<()>>,
    /// Destroys one that did.
    flushed_destroyer: Option<JoinHandle<()>>,
    turn: usize,
}

/// A pair that is connected, or is not for this reason.
type Connected = (Box<dyn Qp>, Result<(), Errno>);

/// The meaning of a completion.
#[derive(Debug)]
pub(crate) enum Seen {
    Arrived { imm: u32, bytes: u64 },
    Control(Vec<u8>),
    Sent(u64),
    Failed(u32),
    Nothing,
}

impl RailQp {
    /// A rail without a queue pair.
    pub fn new(local: usize, remote: usize) -> Self {
        Self {
            local,
            remote,
            epoch: 0,
            qp: None,
            psn: 0,
            slab: None,
            receives: 0,
            sends: VecDeque::new(),
            stopping: None,
            connecting: None,
            answer: None,
            destroyer: None,
            flushed_destroyer: None,
            turn: 0,
        }
    }

    /// The number of the current, or last, queue pair.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Tells whether the queue pair has this number.
    pub fn has_pair(&self, number: u32) -> bool {
        self.qp.as_ref().is_some_and(|qp| qp.number() == number)
    }

    /// Number of the queue pair; 0 = there is none.
    pub fn pair_number(&self) -> u32 {
        self.qp.as_ref().map_or(0, |qp| qp.number())
    }

    /// There is no queue pair, and none is being destroyed.
    pub fn is_empty(&self) -> bool {
        let is_over = |thread: &Option<JoinHandle<()>>| thread.as_ref().is_none_or(JoinHandle::is_finished);
        self.connecting.is_none()
            && self.qp.is_none()
            && is_over(&self.destroyer)
            && is_over(&self.flushed_destroyer)
    }

    /// Tells whether the rail is being fenced.
    pub fn is_stopping(&self) -> bool {
        self.stopping.is_some()
    }

    /// Makes a queue pair for an epoch and tells where it is.
    pub fn make(
        &mut self,
        epoch: Epoch,
        port: &Arc<Port>,
        cq: &mut dyn Cq,
        settings: &Settings,
    ) -> Result<Vec<u8>, Errno> {
        self.epoch = epoch;
        let state = port.state();
        let (_, gid) = state.gid.ok_or(libc::EADDRNOTAVAIL)?;
        if self.slab.is_none() {
            self.slab = Some(Slab::new(port.clone())?);
        }
        let inline = if settings.inline { INLINE } else { 0 };
        let caps = Caps { sends: SENDS, receives: RECEIVES as u32, inline };
        let mut qp = cq.pair(port.number, settings.pkey, caps)?;
        self.psn = random_psn();
        let blob = Blob {
            qp: qp.number(),
            psn: self.psn,
            lid: state.info.lid,
            mtu: state.info.mtu,
            ethernet: state.info.ethernet,
            gid: gid.bytes,
        };
        self.forget();
        for index in 0..RECEIVES {
            let span = self.slab.as_ref().ok_or(libc::ENOMEM)?.receive(index);
            // SAFETY: the slab outlives the pair.
            unsafe { qp.receive(RECEIVE | index as u64, span)? };
            self.receives += 1;
        }
        self.qp = Some(qp);
        Ok(blob.encode())
    }

    /// Begins to connect to the peer's pair, in a thread of its own. `answer` is kept until that is done.
    pub fn connect(
        &mut self,
        blob: &[u8],
        port: &Port,
        settings: &Settings,
        class: u8,
        answer: Option<Vec<u8>>,
    ) -> Result<(), Errno> {
        let peer = Blob::decode(blob).ok_or(libc::EPROTO)?;
        let state = port.state();
        let (gid_index, own) = state.gid.ok_or(libc::EADDRNOTAVAIL)?;
        if peer.ethernet != state.info.ethernet {
            return Err(libc::EPROTOTYPE);
        }
        let route = Route {
            port: port.number,
            global: peer.ethernet || peer.lid == 0 || own.bytes[..8] != peer.gid[..8],
            qp: peer.qp,
            psn: (self.psn, peer.psn),
            lid: peer.lid,
            gid: peer.gid,
            gid_index: gid_index as u8,
            mtu: peer.mtu.min(state.info.mtu),
            service_level: settings.service_level,
            traffic_class: class,
            timeout: settings.timeout,
            retries: settings.retries,
        };
        let mut qp = self.qp.take().ok_or(libc::ENOTCONN)?;
        self.answer = answer;
        let connect = move || {
            let outcome = qp.connect(&route);
            (qp, outcome)
        };
        let thread = std::thread::Builder::new().name("hawser-ib-connect".into()).spawn(connect);
        self.connecting = Some(thread.map_err(|error| error.raw_os_error().unwrap_or(libc::EAGAIN))?);
        Ok(())
    }

    /// Once, when connecting is over: what the peer shall be told, or why it failed.
    pub fn connected(&mut self) -> Option<Result<Option<Vec<u8>>, Errno>> {
        if self.is_stopping() || !self.connecting.as_ref()?.is_finished() {
            return None;
        }
        let outcome = self.end_connecting();
        Some(outcome.map(|()| self.answer.take()))
    }

    /// Waits for the thread.
    fn end_connecting(&mut self) -> Result<(), Errno> {
        let Some(Ok((qp, outcome))) = self.connecting.take().map(JoinHandle::join) else {
            return Err(libc::ENOTCONN);
        };
        self.qp = Some(qp);
        outcome
    }

    /// Sends a control message.
    pub fn send(&mut self, wr: u64, bytes: &[u8]) -> Result<(), Errno> {
        let (Some(qp), Some(slab)) = (&mut self.qp, &mut self.slab) else { return Err(libc::ENOTCONN) };
        if bytes.len() as u32 <= qp.inline() {
            let span = Span { addr: bytes.as_ptr() as u64, len: bytes.len() as u32, lkey: 0 };
            // SAFETY: inline bytes are copied before this returns.
            unsafe { qp.send(wr, span, true)? };
        } else {
            let span = slab.fill(self.turn, bytes);
            self.turn = (self.turn + 1) % CONTROLS;
            // SAFETY: the slab outlives the pair, and this part of it is not used again before the work
            // request is over: fewer control messages are under way than there are parts.
            unsafe { qp.send(wr, span, false)? };
        }
        self.sends.push_back((wr, 1));
        Ok(())
    }

    /// Writes a chunk.
    ///
    /// # Safety
    /// The memory is readable until the work request is over or the rail is fenced.
    pub unsafe fn write(
        &mut self,
        wr: u64,
        span: Span,
        to: (u64, u32),
        imm: u32,
        split: bool,
    ) -> Result<(), Errno> {
        let qp = self.qp.as_mut().ok_or(libc::ENOTCONN)?;
        // SAFETY: the caller vouches for the memory.
        unsafe { qp.write(wr, span, to, imm, split)? };
        self.sends.push_back((wr, if split { 2 } else { 1 }));
        Ok(())
    }

    /// Takes a completion of this rail, and posts its receive again.
    pub fn seen(&mut self, wc: &Wc) -> Seen {
        let is_receive = wc.wr & RECEIVE != 0;
        if wc.status != 0 {
            if is_receive {
                self.receives = self.receives.saturating_sub(1);
            } else {
                self.flushed(wc.wr);
            }
            return Seen::Failed(wc.status);
        }
        if !is_receive {
            while self.sends.front().is_some_and(|send| send.0 <= wc.wr) {
                self.sends.pop_front();
            }
            return Seen::Sent(wc.wr);
        }
        let index = (wc.wr & !RECEIVE) as usize;
        let (Some(slab), Some(qp)) = (&self.slab, &mut self.qp) else { return Seen::Nothing };
        let seen = match wc.imm {
            Some(imm) => Seen::Arrived { imm, bytes: u64::from(wc.bytes) },
            None => Seen::Control(slab.read(index, wc.bytes as usize)),
        };
        // SAFETY: the slab outlives the pair; the receive is over, so its part is free.
        let again = self.stopping.is_none() && unsafe { qp.receive(wc.wr, slab.receive(index)) }.is_ok();
        if !again {
            self.receives = self.receives.saturating_sub(1);
        }
        seen
    }

    /// A work request has failed or was flushed; those before it are over.
    fn flushed(&mut self, wr: u64) {
        while let Some(send) = self.sends.front_mut().filter(|send| send.0 <= wr) {
            if send.0 == wr && send.1 > 1 {
                send.1 -= 1;
                return;
            }
            self.sends.pop_front();
        }
    }

    fn forget(&mut self) {
        self.receives = 0;
        self.sends.clear();
    }

    /// Begins to fence.
    pub fn stop(&mut self) {
        self.stopping = Some(Instant::now());
        self.stop_pair();
    }

    fn stop_pair(&mut self) {
        if let Some(mut qp) = self.qp.take() {
            match qp.stop() {
                Ok(()) => self.qp = Some(qp),
                // It does not even take a state: destroying it is all that is left.
                Err(_) => self.destroyer = destroy_in_thread(qp),
            }
        }
    }

    /// Asks whether the fence is complete: everything was flushed, or the pair is destroyed. Drivers may take
    /// seconds to destroy a pair, so a thread does it, and other rails go on meanwhile. Says once how long it
    /// took.
    pub fn is_fenced(&mut self) -> Option<Duration> {
        let since = self.stopping?;
        if let Some(thread) = &self.connecting {
            if !thread.is_finished() {
                return None;
            }
            let _ = self.end_connecting();
            self.stop_pair();
        }
        let flushed = self.receives == 0 && self.sends.is_empty();
        if self.qp.is_some() && !flushed && since.elapsed() < DRAIN {
            return None;
        }
        if let Some(qp) = self.qp.take() {
            let destroyer = destroy_in_thread(qp);
            if flushed {
                self.flushed_destroyer = destroyer;
            } else {
                self.destroyer = destroyer;
            }
        }
        if self.destroyer.as_ref().is_some_and(|destroyer| !destroyer.is_finished()) {
            return None;
        }
        self.destroyer = None;
        self.stopping = None;
        self.forget();
        Some(since.elapsed())
    }

    /// Nothing lands or is read through this rail after this returns.
    pub fn destroy(&mut self) {
        let _ = self.end_connecting();
        self.qp = None;
        if let Some(destroyer) = self.destroyer.take() {
            let _ = destroyer.join();
        }
        self.stopping = None;
        self.forget();
    }
}

/// Destroys a queue pair in a thread of its own; None: it is done.
fn destroy_in_thread(qp: Box<dyn Qp>) -> Option<JoinHandle<()>> {
    let builder = std::thread::Builder::new().name("hawser-ib-destroy".into());
    // Without a thread the closure is dropped here, and the pair with it.
    builder.spawn(move || drop(qp)).ok()
}

impl Drop for RailQp {
    fn drop(&mut self) {
        // The pair before the memory that it uses.
        self.destroy();
        self.slab = None;
    }
}

fn random_psn() -> u32 {
    u32::from_le_bytes(hawser_oob::socket::random().unwrap_or_default()) & 0xff_ffff
}

/// Registered memory for control messages: first those that come, then those that go.
struct Slab {
    bytes: Box<[u8]>,
    region: Region,
    lkey: u32,
    port: Arc<Port>,
}

impl Slab {
    fn new(port: Arc<Port>) -> Result<Self, Errno> {
        let bytes = vec![0u8; (RECEIVES + CONTROLS) * MAX_MESSAGE].into_boxed_slice();
        let region =
            Region { addr: bytes.as_ptr() as u64, bytes: bytes.len(), kind: MemoryKinds::HOST, dmabuf: None };
        // SAFETY: the box is deregistered before it is dropped.
        let mr = unsafe { port.register(&region) }?;
        Ok(Self { bytes, region, lkey: mr.lkey, port })
    }

    fn receive(&self, index: usize) -> Span {
        let addr = self.region.addr + (index * MAX_MESSAGE) as u64;
        Span { addr, len: MAX_MESSAGE as u32, lkey: self.lkey }
    }

    fn read(&self, index: usize, bytes: usize) -> Vec<u8> {
        let start = index.min(RECEIVES - 1) * MAX_MESSAGE;
        self.bytes[start..start + bytes.min(MAX_MESSAGE)].to_vec()
    }

    fn fill(&mut self, turn: usize, bytes: &[u8]) -> Span {
        let start = (RECEIVES + turn) * MAX_MESSAGE;
        let len = bytes.len().min(MAX_MESSAGE);
        self.bytes[start..start + len].copy_from_slice(&bytes[..len]);
        Span { addr: self.region.addr + start as u64, len: len as u32, lkey: self.lkey }
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        let _ = self.port.deregister(&self.region);
    }
}

/// The address of a queue pair, as its peer needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Blob {
    qp: u32,
    psn: u32,
    lid: u16,
    mtu: u8,
    ethernet: bool,
    gid: [u8; 16],
}

const BLOB: usize = 28;

impl Blob {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(BLOB);
        bytes.extend_from_slice(&self.qp.to_le_bytes());
        bytes.extend_from_slice(&self.psn.to_le_bytes());
        bytes.extend_from_slice(&self.lid.to_le_bytes());
        bytes.extend_from_slice(&[self.mtu, u8::from(self.ethernet)]);
        bytes.extend_from_slice(&self.gid);
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; BLOB] = bytes.try_into().ok()?;
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let mut gid = [0; 16];
        gid.copy_from_slice(&bytes[12..]);
        let (qp, psn) = (word(0), word(4));
        let sane = qp < 1 << 24 && psn < 1 << 24 && (1..=5).contains(&bytes[10]) && bytes[11] < 2;
        let lid = u16::from_le_bytes([bytes[8], bytes[9]]);
        sane.then_some(Self { qp, psn, lid, mtu: bytes[10], ethernet: bytes[11] == 1, gid })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::Rules;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn blobs_come_back_and_any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Some(blob) = Blob::decode(&bytes) {
                prop_assert_eq!(blob.encode(), bytes);
            }
            let blob = Blob { qp: 77, psn: 0xff_ffff, lid: 3, mtu: 5, ethernet: true, gid: [7; 16] };
            prop_assert_eq!(Blob::decode(&blob.encode()), Some(blob));
        }
    }

    #[test]
    fn the_queues_are_longer_than_what_may_be_under_way() {
        let rules = Rules::default();
        assert!(rules.window + rules.control_window + 8 < RECEIVES as u32);
        assert!(rules.control_window + 16 < CONTROLS as u32);
        assert!(2 * rules.window + CONTROLS as u32 <= SENDS);
    }
}
