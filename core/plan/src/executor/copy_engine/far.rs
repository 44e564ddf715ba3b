//! The data that a launch moves between hosts, through slots or straight from and to users' buffers
//! ([`super::inter_node`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use hawser_kernels_abi::{Block, HAS_DST, HAS_SRC, Place, Span, Step};
use rustc_hash::{FxHashMap, FxHashSet};

use super::command::{Command, What};
use super::direct::Leg;
use super::emit::Emitter;
use super::inter_node::InterNodeEnds;
use super::staging::{Counters, DEPTH};

/// The place of a transfer: index of the block, and the step and its repetition.
pub(super) type At = (usize, u32, u32);

/// The slots between hosts of one launch, and what goes without them.
pub(super) struct Far {
    ends: Arc<InterNodeEnds>,
    /// Slots that this launch has filled and emptied so far.
    counters: Counters,
    /// Transfers that need no slots, by place, peer and whether this rank sends.
    straight: FxHashSet<(At, u32, bool)>,
    /// The messages that come from each peer; None before the first round.
    asked: Option<FxHashMap<u32, Asked>>,
    /// Slots whose messages are taken from a user's buffer, by peer and slot: the stream, and the word that
    /// says that it is over.
    lent: BTreeMap<(u32, u32), (u32, u64)>,
}

/// The messages of a launch from one peer, in order.
struct Asked {
    /// The stream that takes them.
    stream: u32,
    /// For each the address and bytes of where it lands; None: in its slot.
    places: Vec<Option<(u64, u64)>>,
    /// Messages that were taken.
    taken: usize,
}

/// A message that is taken.
pub(super) struct Coming {
    /// The word that says that it is there.
    pub(super) full: u64,
    /// The address of its data then.
    pub(super) at: u64,
    /// True if that is in the user's buffer.
    pub(super) has_landed: bool,
    /// The words to be told when it has been read.
    pub(super) after: Vec<What>,
}

impl Far {
    /// All goes through slots so far.
    pub(super) fn new(ends: Arc<InterNodeEnds>) -> Self {
        Self {
            ends,
            counters: Counters::default(),
            straight: FxHashSet::default(),
            asked: None,
            lent: BTreeMap::new(),
        }
    }

    /// True if a transfer needs no slots.
    pub(super) fn is_straight(&self, at: At, peer: u32, send: bool) -> bool {
        self.straight.contains(&(at, peer, send))
    }

    /// True if this rank has the end of a direction.
    pub(super) fn has(&self, peer: u32, send: bool) -> bool {
        self.ends.end(peer, send).is_some()
    }

    /// Takes the next message from a peer of another host, and asks for one more.
    fn take(&mut self, peer: u32, lane: u32) -> Option<Coming> {
        let end = *self.ends.end(peer, false)?;
        let slot = Counters::next(&mut self.counters.taken, peer, lane);
        let (full, data) = (end.ready(slot), end.data(slot));
        let asked = self.asked.as_mut().and_then(|asked| asked.get_mut(&peer));
        let Some(asked) = asked else {
            let after = vec![What::Tell { addr: end.told(slot), value: 1 }];
            return Some(Coming { full, at: data, has_landed: false, after });
        };
        let landed = asked.places.get(asked.taken).copied().flatten();
        let after = asked.places.get(asked.taken + DEPTH as usize);
        let after = after.map_or_else(Vec::new, |place| end.ask(slot, *place));
        asked.taken += 1;
        let at = landed.map_or(data, |(addr, _)| addr);
        Some(Coming { full, at, has_landed: landed.is_some(), after })
    }

    /// The commands that wait, at the end of the launch, until users' buffers have been read.
    pub(super) fn end(&mut self, out: &mut Vec<Command>) {
        for ((peer, _), (stream, ready)) in std::mem::take(&mut self.lent) {
            // The next launch finds the slot free.
            let all = [What::Await { addr: ready, peer }, What::Set { addr: ready }];
            out.extend(all.map(|what| Command { stream, what }));
        }
    }
}

impl Emitter<'_> {
    /// Transfers with other hosts that may go without slots where the network reaches the bytes.
    pub fn far_legs(&self) -> Vec<Leg> {
        let mut legs = Vec::new();
        if !self.far.ends.asks() {
            return legs;
        }
        for &(index, block) in self.rounds.left.iter().rev() {
            let work = &self.plan.args.works[usize::from(block.work)];
            for number in 0..u32::from(block.n_steps) {
                let step = &self.steps[usize::from(block.first_step) + number as usize];
                for repetition in 0..step.times {
                    let span = Span::whole(work, block.instance, repetition, step, 1);
                    let at = (index, number, repetition);
                    let (receives, keeps) = (step.n_recv > 0, step.flags & HAS_DST != 0);
                    let (addr, bytes) = match (receives, keeps, step.flags & HAS_SRC != 0) {
                        (true, true, _) => span.local(work, step.dst_buf, step.dst_chunk),
                        (false, _, true) => span.local(work, step.src_buf, step.src_chunk),
                        _ => continue,
                    };
                    let received = step.recv[..usize::from(step.n_recv)].iter().map(|&peer| (peer, false));
                    let sent = step.send[..usize::from(step.n_send)].iter().map(|&peer| (peer, true));
                    let leg =
                        |(peer, send)| Leg { peer: u32::from(peer), send, addr, bytes: bytes as u64, at };
                    let all = received.chain(sent).map(leg);
                    legs.extend(all.filter(|leg| leg.bytes > 0 && self.is_far(leg.peer)));
                }
            }
        }
        legs
    }

    /// Takes those of [`Emitter::far_legs`] that go without slots, before the first round.
    pub fn go_straight(&mut self, legs: impl Iterator<Item = Leg>) {
        self.far.straight.extend(legs.map(|leg| (leg.at, leg.peer, leg.send)));
    }

    /// Asks for the first messages from other hosts, before the first round.
    pub(super) fn ask_first(&mut self, out: &mut Vec<Command>) {
        if !self.far.ends.asks() || self.far.asked.is_some() {
            return;
        }
        let mut asked: BTreeMap<u32, Asked> = BTreeMap::new();
        let mut rounds = self.rounds.clone();
        loop {
            let round = rounds.next(self.plan, self.steps);
            if round.is_empty() {
                break;
            }
            for (index, block, place) in round {
                let step = &self.steps[usize::from(block.first_step) + place.step as usize];
                let peer = u32::from(step.recv[0]);
                if step.n_recv == 0 || !self.is_far(peer) {
                    continue;
                }
                let stream = self.stream(&block, peer, false);
                let of_peer = || Asked { stream, places: Vec::new(), taken: 0 };
                asked.entry(peer).or_insert_with(of_peer).places.push(self.landing(
                    (index, &block),
                    place,
                    step,
                ));
            }
        }
        for (peer, asked) in &asked {
            let Some(end) = self.far.ends.end(*peer, false) else { continue };
            for (slot, place) in asked.places.iter().take(DEPTH as usize).enumerate() {
                let ask = end.ask(slot as u32, *place).into_iter();
                out.extend(ask.map(|what| Command { stream: asked.stream, what }));
            }
        }
        self.far.asked = Some(asked.into_iter().collect());
    }

    /// The place in the user's buffer where a tile lands; None where it goes through a slot, as one does that
    /// is longer than what is left of the buffer.
    fn landing(&self, (index, block): (usize, &Block), at: Place, step: &Step) -> Option<(u64, u64)> {
        if !self.far.is_straight((index, at.step, at.repetition), u32::from(step.recv[0]), false) {
            return None;
        }
        let work = &self.plan.args.works[usize::from(block.work)];
        let span = Span::new(work, block.instance, at, step, 1);
        let (addr, room) = span.local(work, step.dst_buf, step.dst_chunk);
        (room == span.nominal).then_some((addr, room as u64))
    }

    /// The commands that send a tile to a peer: through its next slot, or straight from where it is.
    pub(super) fn send(
        &self,
        (peer, at): (u32, At),
        (stream, lane): (u32, u32),
        (src, bytes): (u64, u64),
        slots: &mut Slots<'_>,
        put: &mut impl FnMut(u32, What),
    ) {
        if !self.is_far(peer) {
            let slot = Counters::next(&mut slots.near.sent, peer, lane);
            let ends = self.ends(peer, lane, slot);
            put(stream, What::Await { addr: ends.free_here, peer });
            if bytes > 0 {
                put(stream, What::Copy { dst: ends.slot_there, src, bytes, of: None });
            }
            return put(stream, What::Set { addr: ends.full_there });
        }
        let far = &mut *slots.far;
        // Launches whose ends are missing are not emitted (`Emitter::missing`).
        let Some(end) = far.ends.end(peer, true).copied() else { return };
        let slot = Counters::next(&mut far.counters.sent, peer, lane);
        put(stream, What::Await { addr: end.ready(slot), peer });
        far.lent.remove(&(peer, slot));
        if bytes > 0 && far.is_straight(at, peer, true) {
            far.lent.insert((peer, slot), (stream, end.ready(slot)));
            return end.straight(slot, src, bytes).into_iter().for_each(|what| put(stream, what));
        }
        if bytes > 0 {
            put(stream, What::Copy { dst: end.data(slot), src, bytes, of: None });
        }
        // A message of no bytes is not every network's.
        put(stream, What::Tell { addr: end.told(slot), value: 1 + bytes.max(1) as u32 });
    }

    /// Takes the next message of a peer.
    pub(super) fn take(&self, peer: u32, lane: u32, slots: &mut Slots<'_>) -> Coming {
        if self.is_far(peer)
            && let Some(coming) = slots.far.take(peer, lane)
        {
            return coming;
        }
        let slot = Counters::next(&mut slots.near.taken, peer, lane);
        let ends = self.ends(peer, lane, slot);
        let after = vec![What::Set { addr: ends.free_there }];
        Coming { full: ends.full_here, at: ends.slot_here, has_landed: false, after }
    }
}

/// The counters of slots: which is next for each peer, within the host and between hosts.
pub(super) struct Slots<'a> {
    pub(super) near: &'a mut Counters,
    pub(super) far: &'a mut Far,
}
