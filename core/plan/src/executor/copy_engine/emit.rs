//! The commands of a launch: what each stream waits for, copies and tells.

use std::ops::Range;
use std::sync::Arc;

use hawser_kernels_abi::{Block, HAS_DST, HAS_SRC, Place, Span, Step, Work};

use super::command::{COPIES, Command, INTER_NODE_RECEIVES, INTER_NODE_SENDS, What};
use super::direct::{Leg, Turn, Way, turns};
use super::far::{self, Far, Slots};
use super::inter_node::InterNodeEnds;
use super::rounds::Rounds;
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
    /// The slots between hosts.
    pub(super) far: Far,
    /// The tiles that are left.
    pub(super) rounds: Rounds,
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
        Self {
            plan,
            steps,
            bases,
            far: Far::new(inter_node),
            rounds: Rounds::new(plan),
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
        for &(index, block) in self.rounds.left.iter().rev() {
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
        self.rounds.left.iter().map(|(_, block)| legs(block)).sum::<usize>() == self.direct.len()
    }

    /// Adds the commands of the next round; false when there is none left.
    pub fn round(&mut self, counters: &mut Counters, out: &mut Vec<Command>) -> bool {
        self.ask_first(out);
        let round = self.rounds.next(self.plan, self.steps);
        let mut far = std::mem::replace(&mut self.far, Far::new(Arc::default()));
        let mut slots = Slots { near: counters, far: &mut far };
        for (index, block, place) in &round {
            let step = &self.steps[usize::from(block.first_step) + place.step as usize];
            match self.chain((*index, block), *place, step) {
                Some(chain) => chain.tile(*place, &mut slots, out),
                None if self.reduces() => self.reduction((*index, block), *place, step, out),
                None => self.tile((*index, block), *place, step, &mut slots, out),
            }
            self.end_turn((*index, place.step, place.repetition), place.tile, out);
        }
        if round.is_empty() {
            out.append(&mut self.owed);
            far.end(out);
        }
        self.far = far;
        !round.is_empty()
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
        let here = (index, at.step, at.repetition);
        let direct = |peer: u32, send: bool| self.direct_leg(here, peer, send);
        let mut taken = None;
        let (mut src, mut length) = (0, 0);
        if step.n_recv > 0 {
            let peer = u32::from(step.recv[0]);
            let stream = self.stream(block, peer, false);
            if let Some((leg, way)) = direct(peer, false) {
                self.straight(leg, way, at, stream, &mut put);
                return;
            }
            let coming = self.take(peer, lane, slots);
            put(stream, What::Await { addr: coming.full, peer });
            (src, length) = (coming.at, span.nominal);
            taken = Some((stream, coming.after));
        } else if step.flags & HAS_SRC != 0 {
            (src, length) = span.local(work, step.src_buf, step.src_chunk);
        }
        let mut kept = None;
        if step.flags & HAS_DST != 0 {
            let (dst, room) = span.local(work, step.dst_buf, step.dst_chunk);
            let bytes = length.min(room) as u64;
            kept = Some(What::Copy { dst, src, bytes, of: None }).filter(|_| dst != src && bytes > 0);
            let goes_straight = |peer: &u16| slots.far.is_straight(here, u32::from(*peer), true);
            if let Some((stream, _)) = taken.as_ref().filter(|_| sends.iter().any(goes_straight)) {
                // It goes from where it stays.
                kept.take().into_iter().for_each(|copy| put(*stream, copy));
                (src, length) = (dst, room);
            }
        }
        if taken.is_none() {
            // What stays on the rank does not hold up what goes, and begins first.
            kept.take().into_iter().for_each(|copy| put(COPIES, copy));
        }
        for &peer in sends {
            let peer = u32::from(peer);
            let stream = self.stream(block, peer, true);
            if let Some((leg, way)) = direct(peer, true) {
                self.straight(leg, way, at, stream, &mut put);
                continue;
            }
            self.send((peer, here), (stream, lane), (src, length as u64), slots, &mut put);
        }
        if let Some((stream, after)) = taken {
            kept.into_iter().chain(after).for_each(|what| put(stream, what));
        }
    }

    /// The stream for what a block exchanges with a peer. All that comes from one peer comes on one stream:
    /// its slots are taken in their order. So a block that passes anything on has one stream.
    pub(super) fn stream(&self, block: &Block, peer: u32, send: bool) -> u32 {
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
    pub(super) fn is_far(&self, peer: u32) -> bool {
        self.bases.staging[peer as usize] == 0
    }

    /// The peers on other hosts of which an end is missing, if any: a launch without them would wait for
    /// nobody.
    pub fn missing(&self) -> Option<u32> {
        let blocks = self.rounds.left.iter().map(|(_, block)| block);
        let steps = blocks.flat_map(|b| self.steps.iter().skip(b.first_step.into()).take(b.n_steps.into()));
        let mut ends = steps.flat_map(|step| {
            let sends = step.send[..step.n_send.into()].iter().map(|peer| (u32::from(*peer), true));
            sends.chain(step.recv[..step.n_recv.into()].iter().map(|peer| (u32::from(*peer), false)))
        });
        let found = ends.find(|(peer, send)| self.is_far(*peer) && !self.far.has(*peer, *send));
        found.map(|(peer, _)| peer)
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
        let (at, arrives) = ((index, at.step, at.repetition), arrives.is_some());
        Some(Chain { emitter: self, block, step, work, at, from, to, arrives, goes, at_once })
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
    at: far::At,
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
                Vec::new()
            }
        };
        if let Some(peer) = self.to {
            self.pass_on(peer, &tiles, slots, out);
        }
        // Only when it has been passed on: the peer's words allow it so many groups.
        out.extend(taken.into_iter().map(|what| self.command(what)));
    }

    /// Waits for what comes; through staging it is copied to the user's buffer. Returns what is still to be
    /// told.
    fn take(
        &self,
        peer: u32,
        tiles: &Range<u32>,
        slots: &mut Slots<'_>,
        out: &mut Vec<Command>,
    ) -> Vec<What> {
        let lane = u32::from(self.block.lane);
        let mut next = || self.emitter.take(peer, lane, slots);
        if self.arrives {
            let coming = next();
            out.push(self.command(What::Await { addr: coming.full, peer }));
            return coming.after;
        }
        for tile in tiles.clone() {
            let (coming, (dst, bytes)) = (next(), self.end(&(tile..tile + 1)));
            out.push(self.command(What::Await { addr: coming.full, peer }));
            if bytes > 0 && !coming.has_landed {
                out.push(self.command(What::Copy { dst, src: coming.at, bytes, of: None }));
            }
            out.extend(coming.after.into_iter().map(|what| self.command(what)));
        }
        Vec::new()
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
        let Some((leg, way)) = self.goes else {
            let mut put = |stream, what| out.push(Command { stream, what });
            for tile in tiles.clone() {
                let end = self.end(&(tile..tile + 1));
                self.emitter.send((peer, self.at), (self.stream(), lane), end, slots, &mut put);
            }
            return;
        };
        if tiles.start == 0 {
            let addr = self.emitter.direct_words(leg).first_here;
            out.push(self.command(What::Await { addr, peer }));
        }
        let slot = Counters::next(&mut slots.near.sent, peer, lane);
        let ends = self.emitter.ends(peer, lane, slot);
        let (src, bytes) = self.end(tiles);
        out.push(self.command(What::Await { addr: ends.free_here, peer }));
        if let Way::Second { addr, .. } = way
            && bytes > 0
        {
            let dst = addr + (src - leg.addr);
            out.push(self.command(What::Copy { dst, src, bytes, of: Some(peer) }));
        }
        out.push(self.command(What::Set { addr: ends.full_there }));
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
        Command { stream: self.stream(), what }
    }

    /// The stream of the chain.
    fn stream(&self) -> u32 {
        match (self.from, self.to) {
            (Some(from), None) => self.emitter.stream(self.block, from, false),
            _ => u32::from(self.block.lane),
        }
    }
}
