//! Launches without a kernel: copy engines move slots of **staging** memory, stream memory operations tell of them.
//!
//! The steps are those of any program of moves; the sends of a lane share a stream, and so do its receives. A
//! slot has two words: `full`, in the memory of its owner, set by the peer that filled it, and `free`, in the memory of
//! that peer, set by the owner that has emptied it. Whoever waits for a word clears it, so a replayed graph finds the words
//! as it left them. Commands come out in rounds, the sends of a round before its receives: a device that runs all its
//! streams one after the other in that order still gets to the end.

use crate::algo::{self, ProgramKey};
use crate::call::Collective;
use crate::choose::protocol_bit;
use crate::device_plan::{Block, HAS_DST, HAS_SRC, Place, Span, Step};
use crate::knobs::{Algorithm, Knobs, Protocol};
use crate::lower::LaunchPlan;
use crate::world::{DeviceKind, Link, World};

/// Streams in each direction, and staging lanes per peer. A second lane would take half of the slots' memory, and larger slots are
/// faster.
pub const LANES: u32 = 1;
/// Slots of a lane.
pub const DEPTH: u32 = 3;
/// Staging of a rank, unless the user says otherwise.
const STAGING_BYTES: u64 = 192 << 20;
/// Largest and smallest slot.
const MOST_SLOT: u64 = 32 << 20;
const LEAST_SLOT: u64 = 4 << 10;
/// Bytes from word to word.
const WORD: u64 = 16;
/// Words of direct transfers with a peer: "first" and "done", for what goes there and for what comes from there.
const DIRECT_WORDS: u64 = 4;
/// Alignment of slots.
const PAGE: u64 = 64 << 10;

/// Whether ranks have staging: `NCCL_PASS_SM` or a rule asks for it, and copy engines can do something.
pub fn has_staging(world: &World, knobs: &Knobs) -> bool {
    let bit = protocol_bit(Protocol::Dma);
    let wanted = knobs.protocols.iter().any(|mask| mask.is_none_or(|mask| mask & bit != 0));
    wanted && refused_world(world, knobs).is_none()
}

/// Why copy engines can do nothing for a communicator, if so.
pub fn refused_world(world: &World, knobs: &Knobs) -> Option<String> {
    match world.link {
        _ if knobs.pass_sm == 0 && !knobs.copy_engines => {
            Some("copy engines are used with NCCL_PASS_SM=1, or where a rule asks for them".into())
        }
        _ if world.size() < 2 => Some("there is one rank only".into()),
        _ if world.hosts() > 1 => Some("copy engines reach the ranks of one host".into()),
        Link::HostMemory if world.device != DeviceKind::Host => {
            Some("copy engines need peer access between GPUs".into())
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
pub fn knobs(knobs: &Knobs, local: u32, bytes: u64) -> Knobs {
    let slot = Staging::new(local, knobs).slot_bytes.min(tile(bytes)) as u32;
    Knobs {
        slot_bytes: [0, 0, slot],
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

/// Where staging lies in a rank's heap, from its start on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Staging {
    /// Ranks of the largest host.
    pub local: u32,
    /// Bytes of a slot.
    pub slot_bytes: u64,
}

impl Staging {
    /// For hosts of at most `local` ranks.
    pub fn new(local: u32, knobs: &Knobs) -> Self {
        let slots = u64::from(LANES * DEPTH) * u64::from(local.max(2) - 1);
        let wanted = match knobs.staging_bytes {
            0 => STAGING_BYTES / slots,
            per_peer => per_peer / u64::from(LANES * DEPTH),
        };
        let slot = wanted.clamp(LEAST_SLOT, MOST_SLOT);
        Self { local, slot_bytes: 1 << slot.ilog2() }
    }

    /// The setting that halves the slots; None if they are as small as `least` already.
    pub fn halved(&self, least: u64) -> Option<u64> {
        (self.slot_bytes > least.max(LEAST_SLOT)).then(|| self.slot_bytes / 2 * u64::from(LANES * DEPTH))
    }

    /// Bytes of it all.
    pub fn bytes(&self) -> u64 {
        self.slots_at() + self.slots() * self.slot_bytes
    }

    /// Bytes of the words, which lie first: `full`, then `free`, then those of direct transfers.
    pub fn word_bytes(&self) -> u64 {
        (2 * self.slots() + DIRECT_WORDS * u64::from(self.local.max(2) - 1)) * WORD
    }

    /// Offset and bytes of the `free` words: all are 1 at first, the `full` ones 0.
    pub fn free_words(&self) -> (u64, u64) {
        (self.slots() * WORD, self.slots() * WORD)
    }

    /// Offset of a slot that place `peer`, as place `owner` counts it, fills.
    fn slot(&self, owner: u32, at: At) -> u64 {
        self.slots_at() + self.index(owner, at) * self.slot_bytes
    }

    /// Offset of the word that says that a slot is full.
    fn full(&self, owner: u32, at: At) -> u64 {
        self.index(owner, at) * WORD
    }

    /// Offset of the word that says, in the heap of place `owner`, that its slot at place `peer` is free.
    fn free(&self, owner: u32, at: At) -> u64 {
        (self.slots() + self.index(owner, at)) * WORD
    }

    /// Offset of the words of direct transfers between place `owner` and place `peer`, as `owner` has them.
    fn direct(&self, owner: u32, peer: u32, owner_sends: bool) -> u64 {
        let peer = u64::from(if peer > owner { peer - 1 } else { peer });
        let first = 2 * self.slots() + peer * DIRECT_WORDS + if owner_sends { 0 } else { 2 };
        first * WORD
    }

    fn slots(&self) -> u64 {
        u64::from(LANES * DEPTH) * u64::from(self.local.max(2) - 1)
    }

    fn slots_at(&self) -> u64 {
        self.word_bytes().next_multiple_of(PAGE)
    }

    fn index(&self, owner: u32, at: At) -> u64 {
        let peer = if at.peer > owner { at.peer - 1 } else { at.peer };
        u64::from((at.lane * (self.local.max(2) - 1) + peer) * DEPTH + at.slot)
    }
}

/// A slot of a lane between two places.
#[derive(Debug, Clone, Copy)]
struct At {
    lane: u32,
    peer: u32,
    slot: u32,
}

/// What a rank knows of everybody's staging: addresses by rank as its device sees them; 0 where it reaches none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bases {
    /// This rank.
    pub rank: u32,
    /// By rank.
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
}

/// Streams of a launch: [`LANES`] that send, or pass on what they receive, then as many that only receive, and one for what
/// stays on the rank. Steps of the programs that copy engines run do not read what others have written to the user's
/// memory, so they need no order among each other.
pub const STREAMS: u32 = 2 * LANES + 1;
/// The last of them.
const COPIES: u32 = 2 * LANES;

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
    /// For a launch of protocol [`Protocol::Dma`] with the steps that its blocks name.
    pub fn new(plan: &'a LaunchPlan, steps: &'a [Step], bases: &'a Bases) -> Self {
        let used = &plan.args.blocks[..usize::from(plan.args.n_blocks)];
        let busy = |b: &&Block| plan.args.works[usize::from(b.work)].tiles > 0 && b.n_steps > 0;
        let left = used.iter().enumerate().filter(|(_, b)| busy(b)).rev().map(|(i, b)| (i, *b)).collect();
        Self { plan, steps, bases, left, current: Vec::new(), direct: Vec::new(), owed: Vec::new() }
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
        let mut current = std::mem::take(&mut self.current);
        for (index, block, place) in &mut current {
            let step = &self.steps[usize::from(block.first_step) + place.step as usize];
            self.tile((*index, block), *place, step, counters, out);
            let work = &self.plan.args.works[usize::from(block.work)];
            place.advance(work, step.times, block.n_steps.into());
        }
        let moved = !current.is_empty();
        current.retain(|(_, block, place)| place.tile < self.plan.args.works[usize::from(block.work)].tiles);
        self.current = current;
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
        counters: &mut Counters,
        out: &mut Vec<Command>,
    ) {
        let work = &self.plan.args.works[usize::from(block.work)];
        let span = Span::new(work, block.instance, at, step, 1);
        let lane = u32::from(block.lane);
        let sends = &step.send[..usize::from(step.n_send)];
        let stream = lane + if sends.is_empty() { LANES } else { 0 };
        let mut put = |stream, what| out.push(Command { stream, what });
        let direct = |peer: u32, send: bool| self.direct_leg((index, at.step, at.repetition), peer, send);
        let mut taken = None;
        let (mut src, mut length) = (0, 0);
        if step.n_recv > 0 {
            let peer = u32::from(step.recv[0]);
            if let Some((leg, way)) = direct(peer, false) {
                self.straight(leg, way, at, stream, &mut put);
                return;
            }
            let slot = Counters::next(&mut counters.taken, peer, lane);
            let ends = self.ends(peer, lane, slot);
            put(stream, What::Await { addr: ends.full_here, peer });
            (src, length) = (ends.slot_here, span.nominal);
            taken = Some(ends.free_there);
        } else if step.flags & HAS_SRC != 0 {
            (src, length) = span.local(work, step.src_buf, step.src_chunk);
        }
        for &peer in sends {
            let peer = u32::from(peer);
            if let Some((leg, way)) = direct(peer, true) {
                self.straight(leg, way, at, stream, &mut put);
                continue;
            }
            let slot = Counters::next(&mut counters.sent, peer, lane);
            let ends = self.ends(peer, lane, slot);
            put(stream, What::Await { addr: ends.free_here, peer });
            if length > 0 {
                put(stream, What::Copy { dst: ends.slot_there, src, bytes: length as u64 });
            }
            put(stream, What::Set { addr: ends.full_there });
        }
        if step.flags & HAS_DST != 0 {
            let (dst, room) = span.local(work, step.dst_buf, step.dst_chunk);
            let bytes = length.min(room) as u64;
            // What stays on the rank does not hold up what goes.
            let stream = if taken.is_some() { stream } else { COPIES };
            if bytes > 0 && dst != src {
                put(stream, What::Copy { dst, src, bytes });
            }
        }
        if let Some(addr) = taken {
            put(stream, What::Set { addr });
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
