//! Blocks that cannot keep one lane for both of their directions.
//!
//! A program names a FIFO by (lane, sender, receiver), and on a rank both directions between it and a peer
//! belong, on one lane, to one channel: a device keeps them in one place. A file may let one block send to a
//! peer and another one receive from it on the same `chan`. Blocks that receive and send join the connections
//! that they have to one lane. Where that would bring two blocks of a rank together that have the same peer,
//! the block that joins them becomes two: one receives and works, the other one sends. They wait for each
//! other, so that everything happens in the order of the file.

use rustc_hash::FxHashMap;

use super::fault::Change;
use super::lanes::peers;
use super::xml::{Algo, Block, Gpu, Kind, Step};
use hawser_program::Buf;

/// A block: index of its rank, index of the block.
type Place = (usize, usize);

/// A connection: sender, receiver, channel.
type Key = (u32, u32, u32);

/// The two directions of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Half {
    Receives,
    Sends,
}

/// Splits the blocks that need it. Returns what was changed.
pub(super) fn split(algo: &mut Algo) -> Vec<Change> {
    let mut apart: Vec<Place> = Vec::new();
    loop {
        let found = refused(algo, &apart);
        if found.is_empty() {
            break;
        }
        apart.extend(found);
    }
    apart.sort_unstable();
    let mut changes = Vec::new();
    for rank in 0..algo.gpus.len() {
        let gpu = &mut algo.gpus[rank];
        let blocks: Vec<usize> = apart.iter().filter(|place| place.0 == rank).map(|place| place.1).collect();
        for &block in &blocks {
            let tb = &gpu.blocks[block];
            let text = format!(
                "tb {} of gpu {} became two blocks, one that receives and one that sends: on chan {} other \
                 blocks send to a peer or receive from it alone",
                tb.id, gpu.id, tb.chan
            );
            changes.push(Change::new(tb.pos, text));
        }
        split_rank(gpu, &blocks);
    }
    changes
}

/// The ends of a connection; the half is named where the block is in two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct End {
    place: Place,
    half: Option<Half>,
}

/// Connections that are joined to sets, each of which has one lane.
struct Sets {
    /// Set of every connection.
    of: FxHashMap<Key, usize>,
    members: Vec<Vec<Key>>,
    /// Sender and receiver.
    ends: FxHashMap<Key, [Option<End>; 2]>,
}

impl Sets {
    fn new(algo: &Algo, apart: &[Place]) -> Self {
        let mut ends: FxHashMap<Key, [Option<End>; 2]> = FxHashMap::default();
        for (rank, gpu) in algo.gpus.iter().enumerate() {
            for (block, tb) in gpu.blocks.iter().enumerate() {
                let place = (rank, block);
                let half = |half| apart.contains(&place).then_some(half);
                let (to, from) = peers(tb);
                if let Some(to) = to {
                    ends.entry((gpu.id, to, tb.chan)).or_default()[0] =
                        Some(End { place, half: half(Half::Sends) });
                }
                if let Some(from) = from {
                    ends.entry((from, gpu.id, tb.chan)).or_default()[1] =
                        Some(End { place, half: half(Half::Receives) });
                }
            }
        }
        let mut keys: Vec<Key> = ends.keys().copied().collect();
        keys.sort_unstable();
        let of = keys.iter().enumerate().map(|(set, key)| (*key, set)).collect();
        Self { of, members: keys.into_iter().map(|key| vec![key]).collect(), ends }
    }

    /// True if the two directions between two ranks meet in one block or half on both ranks, or never.
    fn fits(&self, key: Key) -> bool {
        let [sender, receiver] = self.ends[&key];
        match self.ends.get(&(key.1, key.0, key.2)) {
            Some([other_sender, other_receiver]) => sender == *other_receiver && receiver == *other_sender,
            None => true,
        }
    }

    /// Joins two connections, unless two blocks of a rank with the same peer would come together.
    fn join(&mut self, one: Key, other: Key) -> bool {
        let (mut into, mut from) = (self.of[&one], self.of[&other]);
        if self.members[into].len() < self.members[from].len() {
            std::mem::swap(&mut into, &mut from);
        }
        let is_there = |key: &Key| {
            let back = (key.1, key.0, key.2);
            self.of.get(&back).is_some_and(|set| *set == into || *set == from) && !self.fits(*key)
        };
        if self.members[into].iter().chain(&self.members[from]).any(is_there) {
            return false;
        }
        if into != from {
            let moved = std::mem::take(&mut self.members[from]);
            moved.iter().for_each(|key| {
                self.of.insert(*key, into);
            });
            self.members[into].extend(moved);
        }
        true
    }
}

/// The blocks beside `apart` that cannot keep both directions on one lane.
fn refused(algo: &Algo, apart: &[Place]) -> Vec<Place> {
    let mut sets = Sets::new(algo, apart);
    let mut refused = Vec::new();
    for (rank, gpu) in algo.gpus.iter().enumerate() {
        for (block, tb) in gpu.blocks.iter().enumerate() {
            let (Some(to), Some(from)) = peers(tb) else { continue };
            let place = (rank, block);
            if !apart.contains(&place) && !sets.join((from, gpu.id, tb.chan), (gpu.id, to, tb.chan)) {
                refused.push(place);
            }
        }
    }
    refused
}

/// Splits blocks of a rank: the half that sends comes behind all blocks.
fn split_rank(gpu: &mut Gpu, blocks: &[usize]) {
    let mut awaited: FxHashMap<(u32, u32), (u32, u32)> = FxHashMap::default();
    let mut olds = Vec::new();
    for &block in blocks {
        let id = gpu.blocks.len() as u32;
        let halves = Halves::of(&gpu.blocks[block], id, &mut gpu.used[2]);
        awaited.extend(halves.awaited);
        olds.extend(halves.olds);
        gpu.blocks[block] = halves.blocks.0;
        gpu.blocks.push(halves.blocks.1);
    }
    let split: Vec<u32> = blocks.iter().map(|block| *block as u32).collect();
    let is_half = |id: u32, count: usize| split.contains(&id) || id as usize >= count;
    let before = gpu.blocks.len() - blocks.len();
    let renamed = |dep: (u32, u32)| awaited.get(&dep).copied().unwrap_or(dep);
    for tb in gpu.blocks.iter_mut().filter(|tb| !is_half(tb.id, before)) {
        tb.steps.iter_mut().for_each(|step| step.dep = step.dep.map(renamed));
    }
    for (block, step) in olds {
        let step = &mut gpu.blocks[block as usize].steps[step as usize];
        step.dep = step.dep.map(renamed);
    }
}

/// A block on its way to two.
struct Halves {
    blocks: (Block, Block),
    /// New place of the end of every old step.
    awaited: Vec<((u32, u32), (u32, u32))>,
    /// Places of steps whose dependency is one of the file.
    olds: Vec<(u32, u32)>,
    last: Option<(Half, u32)>,
}

impl Halves {
    fn of(tb: &Block, id: u32, scratch: &mut u32) -> Self {
        let receives = Block { send: None, steps: Vec::new(), ..tb.clone() };
        let sends = Block { id, recv: None, steps: Vec::new(), ..tb.clone() };
        let mut halves =
            Self { blocks: (receives, sends), awaited: Vec::new(), olds: Vec::new(), last: None };
        let mut nops: Vec<&Step> = Vec::new();
        for step in &tb.steps {
            if step.kind == Kind::Nop {
                nops.push(step);
                continue;
            }
            let (first, second) = parts(step, scratch);
            let half = match first.kind {
                Kind::S => Half::Sends,
                Kind::Cpy | Kind::Re => halves.last.map_or(Half::Receives, |last| last.0),
                _ => Half::Receives,
            };
            nops.drain(..).for_each(|nop| halves.push(half, nop.clone(), true));
            halves.add(half, first);
            if let Some(second) = second {
                halves.add(Half::Sends, second);
            }
            let end = halves.last.map(|(half, number)| (halves.id(half), number));
            halves.awaited.extend(end.map(|end| ((tb.id, step.number), end)));
        }
        halves
    }

    fn id(&self, half: Half) -> u32 {
        if half == Half::Receives { self.blocks.0.id } else { self.blocks.1.id }
    }

    fn steps(&mut self, half: Half) -> &mut Vec<Step> {
        if half == Half::Receives { &mut self.blocks.0.steps } else { &mut self.blocks.1.steps }
    }

    /// Adds a step that comes after everything that was added so far.
    fn add(&mut self, half: Half, mut step: Step) {
        if let Some((other, number)) = self.last.filter(|last| last.0 != half) {
            self.steps(other)[number as usize].has_dep = true;
            let before = Some((self.id(other), number));
            match step.dep {
                None => step.dep = before,
                Some(_) => {
                    let wait = Step { kind: Kind::Nop, count: 0, dep: before, has_dep: false, ..step };
                    self.push(half, wait, false);
                    return self.push_last(half, step, true);
                }
            }
            return self.push_last(half, step, false);
        }
        let is_old = step.dep.is_some();
        self.push_last(half, step, is_old);
    }

    fn push_last(&mut self, half: Half, step: Step, is_old: bool) {
        self.push(half, step, is_old);
        self.last = Some((half, self.steps(half).len() as u32 - 1));
    }

    fn push(&mut self, half: Half, step: Step, is_old: bool) {
        let (id, number) = (self.id(half), self.steps(half).len() as u32);
        self.steps(half).push(Step { number, ..step });
        if is_old {
            self.olds.push((id, number));
        }
    }
}

/// A step as one that receives, and one that sends what the first one has stored.
fn parts(step: &Step, scratch: &mut u32) -> (Step, Option<Step>) {
    let kind = match step.kind {
        Kind::Rcs => Kind::R,
        Kind::Rrcs | Kind::Rrs => Kind::Rrc,
        _ => return (step.clone(), None),
    };
    let dst = if step.kind == Kind::Rrs { (Buf::Scratch, i64::from(*scratch)) } else { step.dst };
    if step.kind == Kind::Rrs {
        *scratch += step.count;
    }
    let first = Step { kind, dst, has_dep: false, ..step.clone() };
    (first, Some(Step { kind: Kind::S, src: dst, dep: None, ..step.clone() }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{check, prove, translate, xml};

    /// A ring of three ranks that adds up three chunks: every block sends, receives and has all kinds of
    /// steps.
    fn ring() -> String {
        let mut text = String::from(
            "<algo name=\"ring\" proto=\"Simple\" nchannels=\"1\" nchunksperloop=\"3\" ngpus=\"3\" \
             coll=\"allreduce\" inplace=\"1\">",
        );
        for rank in 0..3_u32 {
            let (next, before) = ((rank + 1) % 3, (rank + 2) % 3);
            text += &format!(
                "<gpu id=\"{rank}\" i_chunks=\"3\" o_chunks=\"0\" s_chunks=\"1\"><tb id=\"0\" \
                 send=\"{next}\" recv=\"{before}\" chan=\"0\">"
            );
            let dep = "depid=\"1\" deps=\"0\"";
            for (number, (kind, back, dep)) in
                [("s", 3, dep), ("rrs", 2, ""), ("rrcs", 1, dep), ("rcs", 3, ""), ("r", 2, "")]
                    .into_iter()
                    .enumerate()
            {
                let chunk = (rank + back) % 3;
                let dep = if dep.is_empty() { "depid=\"-1\" deps=\"-1\"" } else { dep };
                text += &format!(
                    "<step s=\"{number}\" type=\"{kind}\" srcbuf=\"i\" srcoff=\"{chunk}\" dstbuf=\"i\" \
                     dstoff=\"{chunk}\" cnt=\"1\" {dep} hasdep=\"{}\"/>",
                    u8::from(kind == "rcs")
                );
            }
            // Another block begins, and ends with a copy of what the ring has stored.
            text += &format!(
                "</tb><tb id=\"1\" send=\"-1\" recv=\"-1\" chan=\"0\"><step s=\"0\" type=\"cpy\" \
                 srcbuf=\"i\" srcoff=\"{rank}\" dstbuf=\"s\" dstoff=\"0\" cnt=\"1\" depid=\"-1\" deps=\"-1\" \
                 hasdep=\"1\"/>\
                 <step s=\"1\" type=\"cpy\" srcbuf=\"i\" srcoff=\"{rank}\" dstbuf=\"s\" dstoff=\"0\" \
                 cnt=\"1\" depid=\"0\" deps=\"3\" hasdep=\"0\"/></tb></gpu>"
            );
        }
        text + "</algo>"
    }

    fn algo() -> Algo {
        let mut algo = xml::read(&ring()).unwrap_or_else(|error| panic!("{error}"));
        check::check(&mut algo).unwrap_or_else(|error| panic!("{error}"));
        algo
    }

    #[test]
    fn halves_do_what_the_block_does() {
        // Miri takes half a minute for each.
        for set in if cfg!(miri) { 5..6_u32 } else { 0..8 } {
            let mut algo = algo();
            assert!(split(&mut algo).is_empty(), "a ring keeps its lane");
            for rank in (0..3).filter(|rank| set >> rank & 1 == 1) {
                split_rank(&mut algo.gpus[rank], &[0]);
                assert_eq!(algo.gpus[rank].blocks.len(), 3);
            }
            let translated = translate::translate(&algo).unwrap_or_else(|error| panic!("{set}: {error}"));
            let proved = prove(&algo, &translated);
            assert_eq!(proved.map(|(_, right_in_place)| right_in_place), Ok(true), "{set}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "proves a dozen programs, which takes minutes")]
    fn a_half_that_does_not_wait_is_found() {
        let mut algo = algo();
        split_rank(&mut algo.gpus[1], &[0]);
        let waits: Vec<(usize, usize)> = (0..3)
            .flat_map(|block| (0..algo.gpus[1].blocks[block].steps.len()).map(move |step| (block, step)))
            .filter(|&(block, step)| algo.gpus[1].blocks[block].steps[step].dep.is_some())
            .collect();
        let is_right =
            |algo: &Algo| translate::translate(algo).and_then(|translated| prove(algo, &translated)).is_ok();
        let needed = waits.iter().filter(|&&(block, step)| {
            let mut without = algo.clone();
            without.gpus[1].blocks[block].steps[step].dep = None;
            !is_right(&without)
        });
        // What is sent must have been stored; some other waits only keep the file's order.
        assert!(needed.count() >= 3, "{waits:?}");
    }
}
