//! Launches without a kernel: copy engines move slots of **staging** memory, stream memory operations tell of them.
//!
//! The steps are those of any program of moves; the sends of a lane share a stream, and so do its receives. A
//! slot has two words: `full`, in the memory of its owner, set by the peer that filled it, and `free`, in the memory of
//! that peer, set by the owner that has emptied it. Whoever waits for a word clears it, so a replayed graph finds the words
//! as it left them. Commands come out in rounds, the sends of a round before its receives: a device that runs all its
//! streams one after the other in that order still gets to the end. Between hosts both words and slots are this rank's own,
//! and the proxy is the peer ([`far`]).

pub mod far;
mod staging;

use std::sync::Arc;

use crate::algo::{self, ProgramKey};
use crate::call::Collective;
use crate::choose::protocol_bit;
use crate::device_plan::{Block, HAS_DST, HAS_SRC, Place, Span, Step};
use crate::knobs::{Algorithm, Knobs, Protocol};
use crate::lower::LaunchPlan;
use crate::world::{DeviceKind, Link, World};
use far::Far;
use staging::At;
pub use staging::Staging;

/// Streams in each direction, and staging lanes per peer. A second lane would take half of the slots' memory, and larger slots are
/// faster.
pub const LANES: u32 = 1;
/// Slots of a lane.
pub const DEPTH: u32 = 3;
/// Largest and smallest slot.
const MOST_SLOT: u64 = 32 << 20;
const LEAST_SLOT: u64 = 4 << 10;
/// Bytes from word to word.
const WORD: u64 = 16;

/// Whether ranks have staging: `NCCL_PASS_SM` asks for it, and copy engines can do something.
pub fn has_staging(world: &World, knobs: &Knobs) -> bool {
    let bit = protocol_bit(Protocol::Dma);
    let wanted = knobs.protocols.iter().any(|mask| mask.is_none_or(|mask| mask & bit != 0));
    wanted && refused_world(world, knobs).is_none()
}

/// Why copy engines can do nothing for a communicator, if so.
pub fn refused_world(world: &World, knobs: &Knobs) -> Option<String> {
    match world.link {
        _ if knobs.pass_sm == 0 => Some("copy engines are used with NCCL_PASS_SM=1".into()),
        _ if world.size() < 2 => Some("there is one rank only".into()),
        Link::HostMemory if world.device != DeviceKind::Host => {
            Some("copy engines need peer access between the GPUs of a host".into())
        }
        _ => None,
    }
}

/// Why copy engines cannot do a program, if so.
pub fn refused(key: &ProgramKey, world: &World, knobs: &Knobs) -> Option<String> {
    if let Some(reason) = refused_world(world, knobs) {
        return Some(reason);
    }
    if key.collective.reduces() {
        return Some("copy engines do not reduce".into());
    }
    (!is_known(key)).then(|| "its channels wait for each other".into())
}

/// Programs whose channels do not wait for each other.
fn is_known(key: &ProgramKey) -> bool {
    use Collective::{AllGather, AllToAll, Broadcast, Gather, Scatter};
    matches!(
        (key.algorithm, key.collective),
        (Algorithm::Ring, AllGather | Broadcast)
            | (Algorithm::AllPairs, AllGather)
            | (Algorithm::Direct, AllToAll | Gather | Scatter)
    )
}

/// The settings under which programs are bound to calls that give each peer `bytes` bytes: one block runs all channels, so
/// that ranks go through their peers in the same order.
pub fn knobs(knobs: &Knobs, world: &World, bytes: u64) -> Knobs {
    let (local, far) = (world.places().1, world.hosts() > 1);
    let most = |near: u64| if far { far::slot_bytes(world, knobs).min(near) } else { near };
    let slot = match local {
        1 => most(MOST_SLOT),
        _ => most(Staging::new(local, knobs).slot_bytes),
    };
    Knobs {
        slot_bytes: [0, 0, slot.min(tile(bytes)) as u32],
        depth: DEPTH,
        lanes: LANES,
        min_ctas: 1,
        max_ctas: LANES,
        ..knobs.clone()
    }
}

/// Bytes of a part that a call of a program gives each peer.
pub fn part(key: &ProgramKey, bytes: u64) -> u64 {
    bytes / algo::shape(key).map_or(1, |shape| u64::from(shape.per_block.max(1)))
}

/// The tile with which a message is fastest: each costs about 8 µs (measured: copies and stream memory operations take
/// turns), and the first and the last of them are alone on their way. Largest where a slot takes no more.
fn tile(bytes: u64) -> u64 {
    /// Bytes that a link moves in the time that a tile costs.
    const COST: u64 = 3 << 20;
    bytes.saturating_mul(COST).isqrt().max(LEAST_SLOT).next_multiple_of(LEAST_SLOT).min(MOST_SLOT)
}

/// What a rank knows of everybody's staging: addresses by rank as its device sees them; 0 on other hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bases {
    /// This rank.
    pub rank: u32,
    /// By rank; 0 where a rank is on another host.
    pub staging: Vec<u64>,
    /// Place on its host by rank.
    pub places: Vec<u32>,
    /// The layout.
    pub layout: Staging,
}

/// Slots that a rank has filled and emptied so far, by peer and lane; kept from launch to launch.
#[derive(Debug, Clone, Default)]
pub struct Counters {
    sent: Vec<u32>,
    taken: Vec<u32>,
}

impl Counters {
    fn next(list: &mut Vec<u32>, peer: u32, lane: u32) -> u32 {
        let index = (peer * LANES + lane) as usize;
        if list.len() <= index {
            list.resize(index + 1, 0);
        }
        let slot = list[index];
        list[index] = (slot + 1) % DEPTH;
        slot
    }
}

/// One thing to put on a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Command {
    /// Which of the launch's streams, below [`STREAMS`].
    pub stream: u32,
    /// What.
    pub what: What,
}

/// See [`Command`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// Wait until the word at `addr` is not 0, then make it 0. `peer` is who sets it.
    Await {
        /// Address in this rank's memory.
        addr: u64,
        /// For errors.
        peer: u32,
    },
    /// Copy bytes.
    Copy {
        /// To.
        dst: u64,
        /// From.
        src: u64,
        /// How many.
        bytes: u64,
    },
    /// Make the word at `addr` 1 when everything before it on the stream is there.
    Set {
        /// Address in a peer's memory.
        addr: u64,
    },
    /// Make the word at `addr` this value likewise: the proxy reads it.
    Tell {
        /// Address in memory that the CPU reaches.
        addr: u64,
        /// 1 and the bytes of the slot.
        value: u32,
    },
}

/// Streams of a launch: [`LANES`] that send, or pass on what they receive, then as many that only receive, one for what
/// stays on the rank, and two that send to other hosts and receive from there. Steps of the programs that copy engines run do
/// not read what others have written to the user's memory, so they need no order among each other.
pub const STREAMS: u32 = NEAR_STREAMS + 2;
/// Those that launches within a host use, which come first.
pub const NEAR_STREAMS: u32 = 2 * LANES + 1;
/// The last of these.
const COPIES: u32 = 2 * LANES;
const FAR_SENDS: u32 = NEAR_STREAMS;
const FAR_RECEIVES: u32 = NEAR_STREAMS + 1;

/// What a step of this rank sends to a peer, or gets from it, as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leg {
    /// The other rank.
    pub peer: u32,
    /// True: to the peer.
    pub send: bool,
    /// Where this rank's end begins.
    pub addr: u64,
    /// Bytes of this rank's end.
    pub bytes: u64,
    /// Index of the block, and the step and its repetition.
    at: (usize, u32, u32),
}

/// How a leg goes. Both ends have to agree: neither knows the other's buffer when it is called first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Through staging.
    Staged,
    /// The peer, which is called later, will copy: this rank tells it that its end is ready, and waits.
    First,
    /// This rank, called later, copies straight between its end and the peer's.
    Second {
        /// The peer's end as this rank's device sees it.
        addr: u64,
        /// Its bytes.
        bytes: u64,
    },
}

/// Whether all legs of a program begin and end in user buffers: nothing is passed on from staging. Equal on all ranks.
pub fn is_direct(key: &ProgramKey) -> bool {
    key.algorithm != Algorithm::Ring || key.ranks == 2
}

/// Puts out the commands of one launch, round after round.
///
/// **Direct transfers.** [`Emitter::legs`] lists what could go straight from user buffer to user buffer, [`Emitter::agree`] takes
/// what both ends have made of it. Whoever was called first says at the beginning of its launch that its ends are ready; whoever
/// was called second copies when it comes to the leg; the first waits for all its legs at the end of its launch. So a device
/// that runs all its streams as one still gets to the end.
///
/// Blocks that follow one another and have the same channel go side by side; those with another channel come after them. So
/// ranks begin messages in the order of their keys ([`crate::p2p`]), also where all streams are one.
pub struct Emitter<'a> {
    plan: &'a LaunchPlan,
    steps: &'a [Step],
    bases: &'a Bases,
    far: Arc<Far>,
    /// Slots between hosts that this launch has filled and emptied so far.
    far_counters: Counters,
    /// Blocks that are left, with their indices, the next one last.
    left: Vec<(usize, Block)>,
    /// Blocks under way, those that send first, and where they are.
    current: Vec<(usize, Block, Place)>,
    /// Legs that do not go through staging.
    direct: Vec<(Leg, Way)>,
    /// Waits for the peers that copy.
    owed: Vec<Command>,
}

impl<'a> Emitter<'a> {
    /// For a launch of protocol [`Protocol::Dma`] with the steps that its blocks name. `far` has the ends of all its peers on
    /// other hosts.
    pub fn new(plan: &'a LaunchPlan, steps: &'a [Step], bases: &'a Bases, far: Arc<Far>) -> Self {
        let used = &plan.args.blocks[..usize::from(plan.args.n_blocks)];
        let busy = |b: &&Block| plan.args.works[usize::from(b.work)].tiles > 0 && b.n_steps > 0;
        let left = used.iter().enumerate().filter(|(_, b)| busy(b)).rev().map(|(i, b)| (i, *b)).collect();
        let (far_counters, current) = (Counters::default(), Vec::new());
        Self { plan, steps, bases, far, far_counters, left, current, direct: Vec::new(), owed: Vec::new() }
    }

    /// Legs that may be direct, in an order that is the same at both ends for each pair of ranks and direction; the first one
    /// of each. Only for launches without forwarding ([`is_direct`]).
    pub fn legs(&self) -> Vec<Leg> {
        let mut legs: Vec<Leg> = Vec::new();
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
                    let (src, dst) = (step.flags & HAS_SRC != 0, step.flags & HAS_DST != 0);
                    if step.n_recv > 0 && dst {
                        add(step.recv[0], false, span.local(work, step.dst_buf, step.dst_chunk));
                    }
                    let sends = &step.send[..usize::from(step.n_send)];
                    for &peer in sends.iter().filter(|_| src && step.n_recv == 0) {
                        add(peer, true, span.local(work, step.src_buf, step.src_chunk));
                    }
                }
            }
        }
        legs
    }

    /// Takes the ways of [`Emitter::legs`], before the first round.
    pub fn agree(&mut self, legs: &[Leg], ways: &[Way], out: &mut Vec<Command>) {
        for (leg, way) in legs.iter().zip(ways) {
            if *way == Way::Staged {
                continue;
            }
            self.direct.push((*leg, *way));
            if *way == Way::First {
                let words = self.direct_words(leg);
                let stream = if leg.send { 0 } else { LANES };
                out.push(Command { stream, what: What::Set { addr: words.first_there } });
                let what = What::Await { addr: words.done_here, peer: leg.peer };
                self.owed.push(Command { stream, what });
            }
        }
    }

    /// Adds the commands of the next round; false when there is none left.
    pub fn round(&mut self, counters: &mut Counters, out: &mut Vec<Command>) -> bool {
        if self.current.is_empty() {
            self.begin();
        }
        let mut far = std::mem::take(&mut self.far_counters);
        let mut turns = Turns { near: counters, far: &mut far };
        let mut current = std::mem::take(&mut self.current);
        for (index, block, place) in &mut current {
            let step = &self.steps[usize::from(block.first_step) + place.step as usize];
            self.tile((*index, block), *place, step, &mut turns, out);
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
        while let Some((index, block)) = self.left.pop_if(|(_, block)| block.channel == channel) {
            self.current.push((index, block, Place::default()));
        }
        let receives = |block: &Block| self.steps[usize::from(block.first_step)].n_send == 0;
        self.current.sort_by_key(|(_, block, _)| receives(block));
    }

    /// The commands of one tile of one repetition of a step.
    fn tile(
        &self,
        (index, block): (usize, &Block),
        at: Place,
        step: &Step,
        turns: &mut Turns<'_>,
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
            let ends = self.next(turns, (peer, false), lane);
            put(stream, What::Await { addr: ends.full_here, peer });
            (src, length) = (ends.slot_here, span.nominal);
            taken = Some((stream, self.signal(peer, ends.free_there, 0)));
        } else if step.flags & HAS_SRC != 0 {
            (src, length) = span.local(work, step.src_buf, step.src_chunk);
        }
        for &peer in sends {
            let peer = u32::from(peer);
            let stream = self.stream(block, peer, true);
            if let Some((leg, way)) = direct(peer, true) {
                self.straight(leg, way, at, stream, &mut put);
                continue;
            }
            let ends = self.next(turns, (peer, true), lane);
            put(stream, What::Await { addr: ends.free_here, peer });
            if length > 0 {
                put(stream, What::Copy { dst: ends.slot_there, src, bytes: length as u64 });
            }
            // A message of no bytes is not every network's.
            put(stream, self.signal(peer, ends.full_there, length.max(1) as u32));
        }
        if step.flags & HAS_DST != 0 {
            let (dst, room) = span.local(work, step.dst_buf, step.dst_chunk);
            let bytes = length.min(room) as u64;
            // What stays on the rank does not hold up what goes.
            let stream = taken.map_or(COPIES, |(stream, _)| stream);
            if bytes > 0 && dst != src {
                put(stream, What::Copy { dst, src, bytes });
            }
        }
        if let Some((stream, signal)) = taken {
            put(stream, signal);
        }
    }

    /// The stream for what a block exchanges with a peer. All that comes from one peer comes on one stream: its slots are taken
    /// in their order. So a block that passes anything on has one stream.
    fn stream(&self, block: &Block, peer: u32, send: bool) -> u32 {
        let first = usize::from(block.first_step);
        let steps = &self.steps[first..first + usize::from(block.n_steps)];
        let lane = u32::from(block.lane);
        match (self.is_far(peer), send) {
            _ if steps.iter().any(|step| step.n_recv > 0 && step.n_send > 0) => lane,
            (false, true) => lane,
            (false, false) => lane + LANES,
            (true, true) => FAR_SENDS,
            (true, false) => FAR_RECEIVES,
        }
    }

    /// Whether a peer is on another host.
    fn is_far(&self, peer: u32) -> bool {
        self.bases.staging[peer as usize] == 0
    }

    /// The peers on other hosts of which an end is missing, if any: a launch without them would wait for nobody.
    pub fn missing(&self) -> Option<u32> {
        let blocks = self.left.iter().map(|(_, block)| block);
        let steps = blocks.flat_map(|b| self.steps.iter().skip(b.first_step.into()).take(b.n_steps.into()));
        let mut ends = steps.flat_map(|step| {
            let sends = step.send[..step.n_send.into()].iter().map(|peer| (u32::from(*peer), true));
            sends.chain(step.recv[..step.n_recv.into()].iter().map(|peer| (u32::from(*peer), false)))
        });
        let found = ends.find(|(peer, send)| self.is_far(*peer) && self.far.end(*peer, *send).is_none());
        found.map(|(peer, _)| peer)
    }

    /// The slot that is next in a direction.
    fn next(&self, turns: &mut Turns<'_>, (peer, send): (u32, bool), lane: u32) -> Ends {
        let far = self.far.end(peer, send).filter(|_| self.is_far(peer));
        let counters = if far.is_some() { &mut *turns.far } else { &mut *turns.near };
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

    /// Tells a peer, or the proxy in its place, of a slot with these bytes.
    fn signal(&self, peer: u32, addr: u64, bytes: u32) -> What {
        if self.is_far(peer) { What::Tell { addr, value: bytes + 1 } } else { What::Set { addr } }
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
            put(stream, What::Copy { dst, src, bytes });
        }
        put(stream, What::Set { addr: words.done_there });
    }

    fn direct_leg(&self, at: (usize, u32, u32), peer: u32, send: bool) -> Option<(&Leg, Way)> {
        let found = self.direct.iter().find(|(leg, _)| (leg.at, leg.peer, leg.send) == (at, peer, send));
        found.map(|(leg, way)| (leg, *way))
    }

    fn direct_words(&self, leg: &Leg) -> DirectWords {
        let Bases { rank, staging, places, layout } = self.bases;
        let (here, there) = (places[*rank as usize], places[leg.peer as usize]);
        let own = staging[*rank as usize] + layout.direct(here, there, leg.send);
        let theirs = staging[leg.peer as usize] + layout.direct(there, here, !leg.send);
        DirectWords { first_here: own, done_here: own + WORD, first_there: theirs, done_there: theirs + WORD }
    }

    fn ends(&self, peer: u32, lane: u32, slot: u32) -> Ends {
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

/// The slots that are next.
struct Turns<'a> {
    near: &'a mut Counters,
    far: &'a mut Counters,
}

/// Addresses of the words of a direct leg: "whoever was called first is ready" and "whoever was called second has copied", in this
/// rank's memory and in the peer's.
struct DirectWords {
    first_here: u64,
    done_here: u64,
    first_there: u64,
    done_there: u64,
}

/// Addresses of a slot number in both directions: our slot that the peer fills, its slot that we fill, and their words.
struct Ends {
    slot_here: u64,
    full_here: u64,
    free_here: u64,
    slot_there: u64,
    full_there: u64,
    free_there: u64,
}
