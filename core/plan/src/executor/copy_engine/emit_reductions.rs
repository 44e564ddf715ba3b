//! The commands of reductions: pushes to owners, kernels that combine, and what is passed on.

use hawser_kernels_abi::reduce::{DIVIDE, OPERANDS, ReduceArgs, SCALE};
use hawser_kernels_abi::{Block, DeviceOp, HAS_DST, HAS_SRC, POST, Place, Span, Step, Work};

use super::command::{Command, What};
use super::direct::{Leg, Way};
use super::emit::{Emitter, Ends};
use super::reduce_kernel::ReduceKernel;

/// All is on one stream: a GPU attends to two queues that wait at once, and computing is one of them (ADR 9).
const STREAM: u32 = 0;

/// A tile of a reduction.
struct Tile<'a> {
    work: &'a Work,
    number: u32,
    is_last: bool,
}

impl Emitter<'_> {
    /// True if the launch reduces.
    pub(super) fn reduces(&self) -> bool {
        self.plan.reduces()
    }

    /// Bytes of an element.
    pub(super) fn element(&self) -> usize {
        if self.reduces() { self.plan.kernel.dtype.size() } else { 1 }
    }

    /// Legs of a reduction: what is passed on.
    pub(super) fn passed_on(&self) -> Vec<Leg> {
        let mut legs = Vec::new();
        for &(index, block) in self.rounds.left.iter().rev() {
            let work = &self.plan.args.works[usize::from(block.work)];
            for number in 0..u32::from(block.n_steps) {
                let step = &self.steps[usize::from(block.first_step) + number as usize];
                let span = Span::whole(work, block.instance, 0, step, self.element());
                let at = (index, number, 0);
                let mut add = |peer: u16, send, (addr, count): (u64, usize)| {
                    let bytes = (count * self.element()) as u64;
                    legs.push(Leg { peer: peer.into(), send, addr, bytes, at });
                };
                if step.n_recv == 0 {
                    continue;
                }
                if step.flags & HAS_SRC == 0 {
                    add(step.recv[0], false, span.local(work, step.dst_buf, step.dst_chunk));
                } else {
                    let own = span.local(work, step.src_buf, step.src_chunk);
                    step.send[..usize::from(step.n_send)].iter().for_each(|&peer| add(peer, true, own));
                }
            }
        }
        legs
    }

    /// The commands of a tile of a step: a push, what combines and passes on, or what was passed on.
    pub(super) fn reduction(
        &self,
        (index, block): (usize, &Block),
        at: Place,
        step: &Step,
        out: &mut Vec<Command>,
    ) {
        let work = &self.plan.args.works[usize::from(block.work)];
        let span = Span::new(work, block.instance, at, step, self.element());
        let tile = Tile { work, number: at.tile, is_last: at.tile + 1 == work.tiles };
        let local = |buf, chunk| {
            let (addr, count) = span.local(work, buf, chunk);
            (addr, (count * span.size) as u64)
        };
        let peers =
            step.recv[..usize::from(step.n_recv)].iter().chain(&step.send[..usize::from(step.n_send)]);
        let leg = |peer: &u16| {
            let leg = |send| self.direct_leg((index, at.step, at.repetition), u32::from(*peer), send);
            (u32::from(*peer), leg(step.flags & HAS_SRC != 0))
        };
        let own = local(step.src_buf, step.src_chunk);
        let kept = (step.flags & HAS_DST != 0).then(|| local(step.dst_buf, step.dst_chunk));
        match (step.n_recv, step.flags & HAS_SRC != 0) {
            (0, _) => peers.for_each(|&peer| self.push(peer.into(), work, own, out)),
            (_, false) => {
                let staged = peers.map(leg).filter(|(_, leg)| leg.is_none());
                staged.for_each(|(peer, _)| self.get(peer, work, kept.unwrap_or_default(), out));
            }
            (_, true) => {
                let (value, freed) = self.reduce(step, work, own, kept, out);
                let to = step.send[..usize::from(step.n_send)].iter().map(leg);
                to.for_each(|to| self.pass_on(to, &tile, own.0, (value, own.1), out));
                out.extend(freed.into_iter().map(|what| Command { stream: STREAM, what }));
            }
        }
    }

    /// Pushes a tile to its owner.
    fn push(&self, peer: u32, work: &Work, (src, bytes): (u64, u64), out: &mut Vec<Command>) {
        let slots = self.slots(peer, work);
        let free = slots.iter().map(|ends| What::Await { addr: ends.free_here, peer });
        let copy = (bytes > 0).then_some(What::Copy { dst: slots[0].slot_there, src, bytes, of: None });
        let all = free.chain(copy).chain([What::Set { addr: slots[0].full_there }]);
        out.extend(all.map(|what| Command { stream: STREAM, what }));
    }

    /// Combines a tile of everybody's, whose slots are then free. Returns where the value is, and what frees
    /// that, if it is in slots.
    fn reduce(
        &self,
        step: &Step,
        work: &Work,
        (own, bytes): (u64, u64),
        kept: Option<(u64, u64)>,
        out: &mut Vec<Command>,
    ) -> (u64, Vec<What>) {
        let mut args = ReduceArgs { bytes, n: step.n_recv + 1, ..self.rule(step) };
        args.from[usize::from(step.order)] = own;
        let mut taken = Vec::with_capacity(OPERANDS);
        for (i, &peer) in step.recv[..usize::from(step.n_recv)].iter().enumerate() {
            let peer = u32::from(peer);
            let slots = self.slots(peer, work);
            out.push(Command { stream: STREAM, what: What::Await { addr: slots[0].full_here, peer } });
            args.from[i + usize::from(i >= usize::from(step.order))] = slots[0].slot_here;
            taken.push((slots[0].slot_here, freed(&slots)));
        }
        // What is not kept lies in slots until it has been passed on.
        let (to, freed) = match kept {
            Some((addr, _)) => (addr, Vec::new()),
            None => taken.remove(0),
        };
        args.to = to;
        let (kernel, blocks) = (self.plan.kernel, self.plan.ctas.max(1));
        let reduce = (bytes > 0).then_some(What::Reduce(ReduceKernel { kernel, blocks, args }));
        let free = taken.into_iter().flat_map(|(_, what)| what);
        out.extend(reduce.into_iter().chain(free).map(|what| Command { stream: STREAM, what }));
        (to, freed)
    }

    /// Pushes a combined tile to a peer. `own`: where this rank's operand was.
    fn pass_on(
        &self,
        (peer, leg): (u32, Option<(&Leg, Way)>),
        tile: &Tile<'_>,
        own: u64,
        (src, bytes): (u64, u64),
        out: &mut Vec<Command>,
    ) {
        let (before, dst, after) = match leg {
            Some((leg, Way::Second { addr, .. })) => {
                let words = self.direct_words(leg);
                let before = if tile.number == 0 { vec![words.first_here] } else { Vec::new() };
                (before, addr + (own - leg.addr), tile.is_last.then_some(words.done_there))
            }
            // The peer has combined what was in these slots before, so nobody waits in a circle.
            _ => {
                let slots = self.slots(peer, tile.work);
                let free = slots.iter().map(|ends| ends.free_here).collect();
                (free, slots[0].slot_there, Some(slots[0].full_there))
            }
        };
        let of = leg.is_some_and(|(_, way)| way != Way::Staged).then_some(peer);
        let copy = (bytes > 0).then_some(What::Copy { dst, src, bytes, of });
        let before = before.into_iter().map(|addr| What::Await { addr, peer });
        let all = before.chain(copy).chain(after.map(|addr| What::Set { addr }));
        out.extend(all.map(|what| Command { stream: STREAM, what }));
    }

    /// Takes a tile that was passed on through slots.
    fn get(&self, peer: u32, work: &Work, (dst, bytes): (u64, u64), out: &mut Vec<Command>) {
        let slots = self.slots(peer, work);
        let full = What::Await { addr: slots[0].full_here, peer };
        let copy = (bytes > 0).then_some(What::Copy { dst, src: slots[0].slot_here, bytes, of: None });
        let all = std::iter::once(full).chain(copy).chain(freed(&slots));
        out.extend(all.map(|what| Command { stream: STREAM, what }));
    }

    /// The slots that a tile takes, in both directions: the first ones, which follow each other in memory.
    /// The first one's word tells that all are full; each has a word that tells that it is free, since moves
    /// use them one by one.
    fn slots(&self, peer: u32, work: &Work) -> Vec<Ends> {
        let bytes = work.tile as u64 * self.element() as u64;
        let slots = bytes.div_ceil(self.slot_bytes()).max(1) as u32;
        (0..slots).map(|slot| self.ends(peer, 0, slot)).collect()
    }

    /// The rule by which a kernel combines the values of a step. The operands are what users gave: none has
    /// been multiplied before it was sent.
    fn rule(&self, step: &Step) -> ReduceArgs {
        let args = &self.plan.args;
        let scale = if self.plan.kernel.op == DeviceOp::PreMulSum { SCALE } else { 0 };
        let divide = if step.flags & POST != 0 { DIVIDE } else { 0 };
        ReduceArgs {
            scalar: args.scalar,
            divisor: args.divisor,
            form: scale | divide,
            ..ReduceArgs::default()
        }
    }
}

/// The writes that tell a peer that slots are free again.
fn freed(slots: &[Ends]) -> Vec<What> {
    slots.iter().map(|ends| What::Set { addr: ends.free_there }).collect()
}
