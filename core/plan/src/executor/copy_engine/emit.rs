//! The commands of a launch: what each stream waits for, copies and tells.

use std::ops::Range;
use std::sync::Arc;

use hawser_kernels_abi::{Block, HAS_DST, HAS_SRC, Place, Span, Step, Work};

use super::command::{COPIES, Command, INTER_NODE_RECEIVES, INTER_NODE_SENDS, What};
use super::direct::{Leg, Turn, Way, turns};
use super::inter_node::InterNodeEnds;
use super::staging::{At, Bases, Counters, LANES, WORD};
use super::tiles::tile;
use crate::executor::launch::{Direct, LaunchPlan};

/// Turns of a launch in lock-step that are open at once.
const OPEN_TURNS: usize = 1;

/// Puts out the commands of one launch, round after round.
///
/// **Direct transfers.** [`Emitter::legs`] lists the transfers that could go straight from user buffer to
/// user buffer, and [`Emitter::agree`] takes the way of each, on which both ends agree. The rank that was
/// called first says at the beginning of its launch that its ends are ready. The rank that was called second
/// copies when it comes to the leg. The first waits for all its legs at the end of its launch, so a device
/// that runs all its streams as one still gets to the end.
///
/// Two forms differ from that ([`Direct`]). In **lock-step** the first rank says that its ends of a turn are
/// ready when the turn before is over, and waits for them at the end of the turn. Along a **chain** the bytes
/// of tiles lie in the users' buffers, and the words of staging tell that they have come.
///
/// **Order.** Blocks that follow one another and have the same channel go side by side; those with another
/// channel come after them. So ranks begin messages in the order of their keys (see [`crate::p2p`]), also
/// where all streams are one.
pub struct Emitter<'a> {
    pub(super) plan: &'a LaunchPlan,
    pub(super) steps: &'a [Step],
    bases: &'a Bases,
    inter_node: Arc<InterNodeEnds>,
    /// Slots between hosts that this launch has filled and emptied so far.
    far_counters: Counters,
    /// Blocks that are left, with their indices, the next one last.
    pub(super) left: Vec<(usize, Block)>,
    /// Blocks under way, with their indices and places; those that send stand first.
    current: Vec<(usize, Block, Place)>,
    /// Legs that do not go through staging.
    pub(super) direct: Vec<(Leg, Way)>,
    /// The waits at the end of the launch, for peers that copy.
    owed: Vec<Command>,
    /// The turns of a launch in lock-step; none of any other.
    turns: Vec<Turn>,
}

impl<'a> Emitter<'a> {
    /// Nothing is put out yet of a launch of copy engines with the steps that its blocks name. `inter_node`
    /// has the ends of all its peers on other hosts.
    pub fn new(
        plan: &'a LaunchPlan,
        steps: &'a [Step],
        bases: &'a Bases,
        inter_node: Arc<InterNodeEnds>,
    ) -> Self {
        let used = &plan.args.blocks[..usize::from(plan.args.n_blocks)];
        let busy = |b: &&Block| plan.args.works[usize::from(b.work)].tiles > 0 && b.n_steps > 0;
        let left = used.iter().enumerate().filter(|(_, b)| busy(b)).rev().map(|(i, b)| (i, *b)).collect();
        Self {
            plan,
            steps,
            bases,
            inter_node,
            far_counters: Counters::default(),
            left,
            current: Vec::new(),
            direct: Vec::new(),
            owed: Vec::new(),
            turns: Vec::new(),
        }
    }

    /// Legs that may be direct, in an order that is the same at both ends for each pair of ranks and
    /// direction; the first one of each.
    pub fn legs(&self) -> Vec<Leg> {
        let mut legs: Vec<Leg> = Vec::new();
        match self.plan.direct {
            Direct::No => return legs,
            Direct::PassedOn => return self.passed_on(),
            _ => {}
        }
        for &(index, block) in self.left.iter().rev() {
            let work = &self.plan.args.works[usize::from(block.work)];
            for number in 0..u32::from(block.n_steps) {
                let step = &self.steps[usize::from(block.first_step) + number as usize];
                for repetition in 0..step.times {
                    let span = Span::whole(work, block.instance, repetition, step, 1);
                    let mut add = |peer: u16, send: bool, (addr, bytes): (u64, usize)| {
                        let (peer, bytes) = (u32::from(peer), bytes as u64);
                        if !legs.iter().any(|leg| (leg.peer, leg.send) == (peer, send)) {
                            legs.push(Leg { peer, send, addr, bytes, at: (index, number, repetition) });
                        }
                    };
                    let passes_on = self.plan.direct == Direct::Chain;
                    let (src, dst) = (step.flags & HAS_SRC != 0, step.flags & HAS_DST != 0);
                    let sends = &step.send[..usize::from(step.n_send)];
                    if step.n_recv > 0 && dst {
                        let end = span.local(work, step.dst_buf, step.dst_chunk);
                        add(step.recv[0], false, end);
                        sends.iter().filter(|_| passes_on).for_each(|&peer| add(peer, true, end));
                    } else if step.n_recv == 0 && src {
                        let end = span.local(work, step.src_buf, step.src_chunk);
                        sends.iter().for_each(|&peer| add(peer, true, end));
                    }
                }
            }
        }
        legs
    }

    /// Takes the ways of [`Emitter::legs`], before the first round.
    pub fn agree(&mut self, legs: &[Leg], ways: &[Way], out: &mut Vec<Command>) {
        let direct = legs.iter().copied().zip(ways.iter().copied()).filter(|(_, way)| *way != Way::Staged);
        self.direct = direct.collect();
        if self.plan.direct == Direct::LockStep {
            self.turns = turns(legs, ways);
        }
        if self.turns.is_empty() {
            let tells = self.plan.direct == Direct::Chain;
            for (leg, _) in self.direct.iter().filter(|(_, way)| *way == Way::First) {
                out.push(self.ready(leg));
                if !tells {
                    self.owed.push(self.over(leg));
                }
            }
        }
        for turn in 0..OPEN_TURNS {
            self.open(turn, out);
        }
    }

    /// True if nothing goes through staging; known before the first round.
    pub fn is_direct(&self) -> bool {
        let legs = |block: &Block| {
            let steps = self.steps.iter().skip(block.first_step.into()).take(block.n_steps.into());
            let of = |s: &Step| s.times as usize * usize::from(s.n_recv + s.n_send);
            steps.map(of).sum::<usize>()
        };
        self.left.iter().map(|(_, block)| legs(block)).sum::<usize>() == self.direct.len()
    }

    /// Adds the commands of the next round; false when there is none left.
    pub fn round(&mut self, counters: &mut Counters, out: &mut Vec<Command>) -> bool {
        if self.current.is_empty() {
            self.begin();
        }
        let mut far = std::mem::take(&mut self.far_counters);
        let mut slots = Slots { near: counters, far: &mut far };
        let mut current = std::mem::take(&mut self.current);
        for (index, block, place) in &mut current {
            let step = &self.steps[usize::from(block.first_step) + place.step as usize];
            match self.chain((*index, block), *place, step) {
                Some(chain) => chain.tile(*place, &mut slots, out),
                None if self.reduces() => self.reduction((*index, block), *place, step, out),
                None => self.tile((*index, block), *place, step, &mut slots, out),
            }
            self.end_turn((*index, place.step, place.repetition), place.tile, out);
            let work = &self.plan.args.works[usize::from(block.work)];
            place.advance(work, step.times, block.n_steps.into());
        }
        let moved = !current.is_empty();
        current.retain(|(_, block, place)| place.tile < self.plan.args.works[usize::from(block.work)].tiles);
        (self.current, self.far_counters) = (current, far);
        if !moved {
            out.append(&mut self.owed);
        }
        moved
    }

    /// Takes the next blocks that go side by side.
    fn begin(&mut self) {
        let Some(channel) = self.left.last().map(|(_, block)| block.channel) else { return };
        let (mut senders, mut receivers) = (Vec::new(), Vec::new());
        while let Some((index, block)) = self.left.pop_if(|(_, block)| block.channel == channel) {
            let receives = self.steps[usize::from(block.first_step)].n_send == 0;
            let side = if receives { &mut receivers } else { &mut senders };
            side.push((index, block, Place::default()));
        }
        self.current.extend(senders.into_iter().chain(receivers));
    }

    /// The commands of one tile of one repetition of a step.
    fn tile(
        &self,
        (index, block): (usize, &Block),
        at: Place,
        step: &Step,
        slots: &mut Slots<'_>,
        out: &mut Vec<Command>,
    ) {
        let work = &self.plan.args.works[usize::from(block.work)];
        let span = Span::new(work, block.instance, at, step, 1);
        let lane = u32::from(block.lane);
        let sends = &step.send[..usize::from(step.n_send)];
        let mut put = |stream, what| out.push(Command { stream, what });
        let direct = |peer: u32, send: bool| self.direct_leg((index, at.step, at.repetition), peer, send);
        let mut taken = None;
        let (mut src, mut length) = (0, 0);
        if step.n_recv > 0 {
            let peer = u32::from(step.recv[0]);
            let stream = self.stream(block, peer, false);
            if let Some((leg, way)) = direct(peer, false) {
                self.straight(leg, way, at, stream, &mut put);
                return;
            }
            let ends = self.next(slots, (peer, false), lane);
            put(stream, What::Await { addr: ends.full_here, peer });
            (src, length) = (ends.slot_here, span.nominal);
            taken = Some((stream, self.signal(peer, ends.free_there, 0)));
        } else if step.flags & HAS_SRC != 0 {
            (src, length) = span.local(work, step.src_buf, step.src_chunk);
        }
        let kept = (step.flags & HAS_DST != 0).then(|| {
            let (dst, room) = span.local(work, step.dst_buf, step.dst_chunk);
            What::Copy { dst, src, bytes: length.min(room) as u64, of: None }
        });
        let kept = kept
            .filter(|what| !matches!(what, What::Copy { dst, src, bytes, .. } if dst == src || *bytes == 0));
        if taken.is_none() {
            // What stays on the rank does not hold up what goes, and begins first.
            kept.into_iter().for_each(|copy| put(COPIES, copy));
        }
        for &peer in sends {
            let peer = u32::from(peer);
            let stream = self.stream(block, peer, true);
            if let Some((leg, way)) = direct(peer, true) {
                self.straight(leg, way, at, stream, &mut put);
                continue;
            }
            let ends = self.next(slots, (peer, true), lane);
            put(stream, What::Await { addr: ends.free_here, peer });
            if length > 0 {
                put(stream, What::Copy { dst: ends.slot_there, src, bytes: length as u64, of: None });
            }
            put(stream, self.signal(peer, ends.full_there, length as u64));
        }
        if let Some((stream, signal)) = taken {
            kept.into_iter().for_each(|copy| put(stream, copy));
            put(stream, signal);
        }
    }

    /// The stream for what a block exchanges with a peer. All that comes from one peer comes on one stream:
    /// its slots are taken in their order. So a block that passes anything on has one stream.
    fn stream(&self, block: &Block, peer: u32, send: bool) -> u32 {
        let first = usize::from(block.first_step);
        let steps = &self.steps[first..first + usize::from(block.n_steps)];
        let lane = u32::from(block.lane);
        match (self.is_far(peer), send) {
            _ if steps.iter().any(|step| step.n_recv > 0 && step.n_send > 0) => lane,
            (false, true) => lane,
            (false, false) => lane + LANES,
            (true, true) => INTER_NODE_SENDS,
            (true, false) => INTER_NODE_RECEIVES,
        }
    }

    /// Bytes of a slot of staging.
    pub(super) fn slot_bytes(&self) -> u64 {
        self.bases.layout.slot_bytes
    }

    /// True if a peer is on another host.
    fn is_far(&self, peer: u32) -> bool {
        self.bases.staging[peer as usize] == 0
    }

    /// The peers on other hosts of which an end is missing, if any: a launch without them would wait for
    /// nobody.
    pub fn missing(&self) -> Option<u32> {
        let blocks = self.left.iter().map(|(_, block)| block);
        let steps = blocks.flat_map(|b| self.steps.iter().skip(b.first_step.into()).take(b.n_steps.into()));
        let mut ends = steps.flat_map(|step| {
            let sends = step.send[..step.n_send.into()].iter().map(|peer| (u32::from(*peer), true));
            sends.chain(step.recv[..step.n_recv.into()].iter().map(|peer| (u32::from(*peer), false)))
        });
        let found =
            ends.find(|(peer, send)| self.is_far(*peer) && self.inter_node.end(*peer, *send).is_none());
        found.map(|(peer, _)| peer)
    }

    /// The slot that is next in a direction.
    fn next(&self, slots: &mut Slots<'_>, (peer, send): (u32, bool), lane: u32) -> Ends {
        let far = self.inter_node.end(peer, send).filter(|_| self.is_far(peer));
        let counters = if far.is_some() { &mut *slots.far } else { &mut *slots.near };
        let slot = Counters::next(if send { &mut counters.sent } else { &mut counters.taken }, peer, lane);
        let Some(end) = far else { return self.ends(peer, lane, slot) };
        let (data, ready, told) = (end.data(slot), end.ready(slot), end.told(slot));
        Ends {
            slot_here: data,
            full_here: ready,
            free_here: ready,
            slot_there: data,
            full_there: told,
            free_there: told,
        }
    }

    /// Tells a peer of a slot; the proxy in its place how many bytes it has. A message of no bytes is not
    /// every network's.
    fn signal(&self, peer: u32, addr: u64, bytes: u64) -> What {
        if self.is_far(peer) {
            What::Tell { addr, value: 1 + bytes.max(1) as u32 }
        } else {
            What::Set { addr }
        }
    }

    /// The whole of a direct leg, at its first tile.
    fn straight(&self, leg: &Leg, way: Way, at: Place, stream: u32, put: &mut impl FnMut(u32, What)) {
        let Way::Second { addr, bytes } = way else { return };
        if at.tile > 0 {
            return;
        }
        let words = self.direct_words(leg);
        put(stream, What::Await { addr: words.first_here, peer: leg.peer });
        let bytes = bytes.min(leg.bytes);
        let (dst, src) = if leg.send { (addr, leg.addr) } else { (leg.addr, addr) };
        if bytes > 0 {
            put(stream, What::Copy { dst, src, bytes, of: Some(leg.peer) });
        }
        put(stream, What::Set { addr: words.done_there });
    }

    /// At the last step of a turn: waits for what peers copy, and opens another turn.
    fn end_turn(&self, at: (usize, u32, u32), tile: u32, out: &mut Vec<Command>) {
        let Some(turn) = self.turns.iter().position(|[_, (last, _)]| last.at == at).filter(|_| tile == 0)
        else {
            return;
        };
        let firsts = self.turns[turn].iter().filter(|(_, way)| *way == Way::First);
        out.extend(firsts.map(|(leg, _)| self.over(leg)));
        self.open(turn + OPEN_TURNS, out);
    }

    /// Says for a turn that this rank's ends are ready, where it was called first.
    fn open(&self, turn: usize, out: &mut Vec<Command>) {
        let firsts = self.turns.get(turn).into_iter().flatten().filter(|(_, way)| *way == Way::First);
        out.extend(firsts.map(|(leg, _)| self.ready(leg)));
    }

    /// Tells the peer that this rank's end is ready.
    fn ready(&self, leg: &Leg) -> Command {
        let what = What::Set { addr: self.direct_words(leg).first_there };
        Command { stream: if leg.send { 0 } else { LANES }, what }
    }

    /// Waits until the peer has copied.
    fn over(&self, leg: &Leg) -> Command {
        let what = What::Await { addr: self.direct_words(leg).done_here, peer: leg.peer };
        Command { stream: if leg.send { 0 } else { LANES }, what }
    }

    /// The leg of a step that goes straight, and its way.
    pub(super) fn direct_leg(&self, at: (usize, u32, u32), peer: u32, send: bool) -> Option<(&Leg, Way)> {
        let found = self.direct.iter().find(|(leg, _)| (leg.at, leg.peer, leg.send) == (at, peer, send));
        found.map(|(leg, way)| (leg, *way))
    }

    /// The part of a step along a chain; None where both its legs go through staging.
    fn chain<'e>(
        &'e self,
        (index, block): (usize, &'e Block),
        at: Place,
        step: &'e Step,
    ) -> Option<Chain<'e>> {
        if self.plan.direct != Direct::Chain {
            return None;
        }
        let leg = |peer: u32, send| self.direct_leg((index, at.step, at.repetition), peer, send);
        let from = (step.n_recv > 0).then(|| u32::from(step.recv[0]));
        let to = (step.n_send > 0).then(|| u32::from(step.send[0]));
        let (arrives, goes) = (from.and_then(|peer| leg(peer, false)), to.and_then(|peer| leg(peer, true)));
        if arrives.is_none() && goes.is_none() {
            return None;
        }
        let work = &self.plan.args.works[usize::from(block.work)];
        let hops = self.bases.staging.len() as u64 - 2;
        let at_once = (tile(work.instance / hops.max(1)) / u64::from(work.tile)).max(1) as u32;
        Some(Chain { emitter: self, block, step, work, from, to, arrives: arrives.is_some(), goes, at_once })
    }

    /// The words by which both ends of a leg tell each other.
    pub(super) fn direct_words(&self, leg: &Leg) -> DirectWords {
        let Bases { rank, staging, places, layout } = self.bases;
        let (here, there) = (places[*rank as usize], places[leg.peer as usize]);
        let own = staging[*rank as usize] + layout.direct(here, there, leg.send);
        let theirs = staging[leg.peer as usize] + layout.direct(there, here, !leg.send);
        DirectWords { first_here: own, done_here: own + WORD, first_there: theirs, done_there: theirs + WORD }
    }

    /// The ends of a slot of staging between this rank and a peer of its host.
    pub(super) fn ends(&self, peer: u32, lane: u32, slot: u32) -> Ends {
        let Bases { rank, staging, places, layout } = self.bases;
        let (here, there) = (places[*rank as usize], places[peer as usize]);
        let (own, theirs) = (staging[*rank as usize], staging[peer as usize]);
        let (of_them, of_us) = (At { lane, peer: there, slot }, At { lane, peer: here, slot });
        Ends {
            slot_here: own + layout.slot(here, of_them),
            full_here: own + layout.full(here, of_them),
            free_here: own + layout.free(here, of_them),
            slot_there: theirs + layout.slot(there, of_us),
            full_there: theirs + layout.full(there, of_us),
            free_there: theirs + layout.free(there, of_us),
        }
    }
}

/// The counters of slots: which is next for each peer, within the host and between hosts.
struct Slots<'a> {
    near: &'a mut Counters,
    far: &'a mut Counters,
}

/// Addresses of the two words of a direct leg, in this rank's memory and in the peer's. The first word says
/// that the rank which was called first is ready, the second that the other one has copied.
pub(super) struct DirectWords {
    pub(super) first_here: u64,
    done_here: u64,
    first_there: u64,
    pub(super) done_there: u64,
}

/// Addresses of a slot number in both directions: our slot that the peer fills, its slot that we fill, and
/// their words.
pub(super) struct Ends {
    pub(super) slot_here: u64,
    pub(super) full_here: u64,
    pub(super) free_here: u64,
    pub(super) slot_there: u64,
    pub(super) full_there: u64,
    pub(super) free_there: u64,
}

/// A step of a chain with a leg that is direct. Its tiles go in groups, a copy each.
struct Chain<'e> {
    emitter: &'e Emitter<'e>,
    block: &'e Block,
    step: &'e Step,
    work: &'e Work,
    from: Option<u32>,
    to: Option<u32>,
    /// True if the peer writes what comes into the user's buffer.
    arrives: bool,
    /// The leg that this rank writes into the peer's buffer, and its way.
    goes: Option<(&'e Leg, Way)>,
    /// Tiles of a group.
    at_once: u32,
}

impl Chain<'_> {
    /// At the last tile of a group: takes the group, and passes it on.
    fn tile(&self, at: Place, slots: &mut Slots<'_>, out: &mut Vec<Command>) {
        if !(at.tile + 1).is_multiple_of(self.at_once) && at.tile + 1 < self.work.tiles {
            return;
        }
        let tiles = at.tile / self.at_once * self.at_once..at.tile + 1;
        let taken = match self.from {
            Some(peer) => self.take(peer, &tiles, slots, out),
            None => {
                self.keep(&tiles, out);
                None
            }
        };
        if let Some(peer) = self.to {
            self.pass_on(peer, &tiles, slots, out);
        }
        // Only when it has been passed on: the peer's words allow it so many groups.
        out.extend(taken.map(|signal| self.command(signal)));
    }

    /// Waits for what comes; through staging it is copied to the user's buffer. Returns what is still to be
    /// told.
    fn take(
        &self,
        peer: u32,
        tiles: &Range<u32>,
        slots: &mut Slots<'_>,
        out: &mut Vec<Command>,
    ) -> Option<What> {
        let lane = u32::from(self.block.lane);
        let mut next = || self.emitter.next(slots, (peer, false), lane);
        if self.arrives {
            let ends = next();
            out.push(self.command(What::Await { addr: ends.full_here, peer }));
            return Some(self.emitter.signal(peer, ends.free_there, 0));
        }
        for tile in tiles.clone() {
            let (ends, (dst, bytes)) = (next(), self.end(&(tile..tile + 1)));
            out.push(self.command(What::Await { addr: ends.full_here, peer }));
            if bytes > 0 {
                out.push(self.command(What::Copy { dst, src: ends.slot_here, bytes, of: None }));
            }
            out.push(self.command(self.emitter.signal(peer, ends.free_there, 0)));
        }
        None
    }

    /// Emits the copies of what the first rank of a chain keeps itself.
    fn keep(&self, tiles: &Range<u32>, out: &mut Vec<Command>) {
        let (src, bytes) = self.end(tiles);
        let (dst, _) = self.local(tiles, self.step.dst_buf, self.step.dst_chunk);
        if self.step.flags & HAS_DST != 0 && bytes > 0 && dst != src {
            out.push(Command { stream: COPIES, what: What::Copy { dst, src, bytes, of: None } });
        }
    }

    /// Sends tiles on to the next rank of the chain.
    fn pass_on(&self, peer: u32, tiles: &Range<u32>, slots: &mut Slots<'_>, out: &mut Vec<Command>) {
        let lane = u32::from(self.block.lane);
        let parts = match self.goes {
            Some(_) => vec![tiles.clone()],
            None => tiles.clone().map(|tile| tile..tile + 1).collect(),
        };
        if let Some((leg, _)) = self.goes.filter(|_| tiles.start == 0) {
            let addr = self.emitter.direct_words(leg).first_here;
            out.push(self.command(What::Await { addr, peer }));
        }
        for part in parts {
            let ends = self.emitter.next(slots, (peer, true), lane);
            let (src, bytes) = self.end(&part);
            let (dst, of) = match self.goes {
                Some((leg, Way::Second { addr, .. })) => (addr + (src - leg.addr), Some(peer)),
                _ => (ends.slot_there, None),
            };
            out.push(self.command(What::Await { addr: ends.free_here, peer }));
            if bytes > 0 {
                out.push(self.command(What::Copy { dst, src, bytes, of }));
            }
            out.push(self.command(self.emitter.signal(peer, ends.full_there, bytes)));
        }
    }

    /// Address and bytes of tiles at this rank: of the input where the chain begins, of the output elsewhere.
    fn end(&self, tiles: &Range<u32>) -> (u64, u64) {
        match self.from {
            Some(_) => self.local(tiles, self.step.dst_buf, self.step.dst_chunk),
            None => self.local(tiles, self.step.src_buf, self.step.src_chunk),
        }
    }

    /// Address and bytes of tiles in a chunk of one of this rank's buffers.
    fn local(&self, tiles: &Range<u32>, buf: u8, chunk: u32) -> (u64, u64) {
        let at = |tile| Place { tile, ..Place::default() };
        let span = |tile| Span::new(self.work, self.block.instance, at(tile), self.step, 1);
        let (first, _) = span(tiles.start).local(self.work, buf, chunk);
        let (last, bytes) = span(tiles.end - 1).local(self.work, buf, chunk);
        (first, last + bytes as u64 - first)
    }

    /// A command on the stream of the chain.
    fn command(&self, what: What) -> Command {
        let lane = u32::from(self.block.lane);
        Command { stream: lane + if self.to.is_none() { LANES } else { 0 }, what }
    }
}
