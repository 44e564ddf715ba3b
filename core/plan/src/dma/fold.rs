//! Reductions whose moves are made by copy engines: everybody pushes the tiles of a part to its owner, whose few CTAs combine
//! them with its own, in the order of ranks; what the program passes on is pushed from there.
//!
//! A part of the user's output may be its input too. Its owner overwrites a tile only when it has everybody's, and a peer's copy
//! of that tile is overwritten by what the owner passes on: after it has the peer's push. So no rank has to say that its output
//! may be written, beyond that it has begun.

use std::mem::{offset_of, size_of};

use super::LEAST_SLOT;
use super::direct::{Leg, Way};
use super::emit::{Command, Emitter, Ends, What};
use crate::algo::ProgramKey;
use crate::call::{Call, DataType, ReduceOp};
use crate::config::{Algorithm, PlanConfig, Protocol};
use crate::device_plan::{Block, DeviceOp, HAS_DST, HAS_SRC, KernelKey, POST, Place, Span, Step, Work};
use crate::ir::MAX_FAN;
use crate::topology::{DeviceKind, Topology};

/// Operands of a fold at most: the ranks of a reduction by copy engines.
pub const OPERANDS: usize = MAX_FAN + 1;
/// Threads of a block of the kernel.
pub const THREADS: u32 = 544;
/// Calls of fewer bytes stay with kernels that move data too, unless a rule asks for more: they have less to wait for.
pub const LEAST_BYTES: u64 = 1 << 20;

/// All is on one stream: a GPU attends to two queues that wait at once, and computing is one of them (ADR 9).
const STREAM: u32 = 0;

/// Bytes of shared memory of a block.
pub const SHARED_BYTES: u32 = 192 << 10;
/// The kernel that lets memory add ([`Fold::in_memory`]).
pub const ADDER: KernelKey = KernelKey::new(DeviceOp::Copy, DataType::Uint8, Protocol::Dma);
/// Its blocks in place of one of the other: together they take less of a multiprocessor (16 threads and 76 KiB), and beside a GEMM
/// each finds room for its 5 KiB.
const ADD_BLOCKS: u32 = 16;
/// It takes the place of so many blocks at most: 64 of its own keep half of the multiprocessors from a GEMM that begins.
const MOST_REPLACED: u32 = 2;
/// Bytes of shared memory of such a block, and those of them that it moves at once.
pub const ADD_SHARED_BYTES: u32 = 4608;
const ADD_TILE: u32 = 1152;
/// Bytes of the sum that such a kernel makes at most: some 50 µs.
const ADD_PIECE: u64 = 8 << 20;
/// GPUs from the first of these on have it, from the second on they are small ones again.
const FIRST_SM: u32 = 90;
const SMALL_SM: u32 = 120;

/// Form: operands are multiplied by the scalar on reading.
pub const SCALE: u8 = 1;
/// Form: the value is divided by the divisor.
pub const DIVIDE: u8 = 2;

/// Combines the elements of several places into one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fold {
    /// Operation and type.
    pub kernel: KernelKey,
    /// Blocks of the kernel.
    pub blocks: u32,
    /// What it reads.
    pub args: FoldArgs,
}

/// Arguments of the kernel, passed by value (104 bytes); its twin is in `kernels/cuda/plan.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct FoldArgs {
    /// Addresses of the operands, in the order in which they are combined.
    pub from: [u64; OPERANDS],
    /// Where the value goes: apart from all operands, or equal to one.
    pub to: u64,
    /// Bytes of it.
    pub bytes: u64,
    /// Factor for [`SCALE`], as [`crate::device_plan::Args::scalar`].
    pub scalar: u64,
    /// Divisor for [`DIVIDE`].
    pub divisor: u32,
    /// Operands.
    pub n: u8,
    /// [`SCALE`] and [`DIVIDE`].
    pub form: u8,
    /// What memory adds, for the kernel that lets it: 1 half, 2 bfloat16, 3 float, 4 double, 5 and 6 integers of 32 and 64 bits.
    pub adds: u8,
    /// Zero.
    pub pad: u8,
}

impl Fold {
    /// The same by a kernel that lets memory add, if memory gets the same result. Its blocks are so small that they begin beside those of a GEMM.
    pub fn in_memory(&self) -> Option<Self> {
        let args = &self.args;
        let from = args.from.get(..args.n.into()).filter(|_| self.blocks <= MOST_REPLACED)?;
        let adds =
            memory_adds(self.kernel.dtype).filter(|_| self.kernel.op == DeviceOp::Sum && args.form == 0)?;
        // What is in place is added to first: the same as in the order of ranks if it is one of the first two.
        let is_ordered = from.iter().position(|at| *at == args.to).is_none_or(|own| own < 2);
        let is_exact = match self.kernel.dtype {
            // They are to be summed up in float.
            DataType::Float16 | DataType::Bfloat16 => args.n == 2,
            DataType::Float32 | DataType::Float64 => is_ordered,
            _ => true,
        };
        let is_even = from.iter().chain([&args.to, &args.bytes]).all(|at| at.is_multiple_of(16));
        (is_exact && is_even).then(|| {
            let tiles = args.bytes.div_ceil(u64::from(ADD_TILE)).min(u32::MAX.into()) as u32;
            Self {
                kernel: ADDER,
                blocks: (self.blocks * ADD_BLOCKS).min(tiles),
                args: FoldArgs { adds, ..*args },
            }
        })
    }

    /// The parts of a fold by memory, a kernel each: a GEMM that begins meanwhile does not get the multiprocessors of their blocks before they
    /// are over. One part of others.
    pub fn pieces(&self) -> impl Iterator<Item = Self> {
        let step = if self.kernel == ADDER { ADD_PIECE } else { u64::MAX };
        let whole = *self;
        let pieces = self.args.bytes.div_ceil(step);
        (0..pieces).map(move |piece| {
            let (at, mut fold) = (piece * step, whole);
            let args = &mut fold.args;
            args.from.iter_mut().take(args.n.into()).for_each(|from| *from += at);
            args.to += at;
            args.bytes = (args.bytes - at).min(step);
            fold
        })
    }

    /// Threads of a block, and its bytes of shared memory.
    pub fn block(&self) -> (u32, u32) {
        if self.kernel == ADDER { (1, ADD_SHARED_BYTES) } else { (THREADS, SHARED_BYTES) }
    }
}

/// The number in [`FoldArgs::adds`] of a type whose sums memory makes, bit for bit as a kernel would (bench/README.md).
fn memory_adds(dtype: DataType) -> Option<u8> {
    Some(match dtype {
        DataType::Float16 => 1,
        DataType::Bfloat16 => 2,
        DataType::Float32 => 3,
        DataType::Float64 => 4,
        DataType::Int32 | DataType::Uint32 => 5,
        DataType::Int64 | DataType::Uint64 => 6,
        _ => return None,
    })
}

const _: () = {
    assert!(size_of::<FoldArgs>() == 104 && offset_of!(FoldArgs, to) == 72);
    assert!(offset_of!(FoldArgs, divisor) == 96 && offset_of!(FoldArgs, adds) == 102);
};

/// Why copy engines cannot move what a reduction needs, if so.
pub(super) fn refused(call: &Call, key: &ProgramKey, topology: &Topology) -> Option<String> {
    if topology.hosts() > 1 {
        return Some("between hosts kernels move what they reduce".into());
    }
    if key.algorithm != Algorithm::AllPairs {
        return Some("copy engines move for reductions from everybody to everybody only".into());
    }
    if key.ranks as usize > OPERANDS {
        return Some(format!("copy engines move for reductions of at most {OPERANDS} ranks"));
    }
    if let DeviceKind::Cuda { sm } = topology.device {
        if sm < FIRST_SM {
            return Some(format!(
                "the kernel that reduces what copy engines moved needs sm_{FIRST_SM}, this is sm_{sm}"
            ));
        }
        if !has_room(topology.device) {
            let kib = SHARED_BYTES >> 10;
            return Some(format!(
                "the kernel that reduces what copy engines moved needs {kib} KiB of shared memory"
            ));
        }
    }
    (call.op == ReduceOp::PreMulSum)
        .then(|| "ranks multiply by factors of their own before data move: copy engines cannot".into())
}

/// Whether blocks of a device have as much shared memory as the kernels take.
pub fn has_room(device: DeviceKind) -> bool {
    matches!(device, DeviceKind::Cuda { sm } if (FIRST_SM..SMALL_SM).contains(&sm))
}

/// The bytes of a tile of a part of `part` bytes. On one stream nothing of a rank goes on at once, and beside a GEMM each tile's kernel
/// waits until one is over: as few as all slots of a peer together take (`room` bytes), of equal size.
pub(super) fn tile(part: u64, room: u64) -> u64 {
    let tiles = part.div_ceil(room.max(1)).max(1);
    part.div_ceil(tiles).next_multiple_of(LEAST_SLOT).clamp(LEAST_SLOT, room.max(LEAST_SLOT))
}

/// Whether there is a kernel for an operation on a type: all that users have, but factors of their own.
pub const fn has_kernel(op: DeviceOp, dtype: DataType) -> bool {
    match op {
        // It lets memory add, whatever the type is.
        DeviceOp::Copy => matches!(dtype, DataType::Uint8),
        DeviceOp::Sum | DeviceOp::Prod | DeviceOp::Max | DeviceOp::Min => true,
        DeviceOp::PreMulSum => dtype.is_float(),
        DeviceOp::SumDiv => !dtype.is_float(),
    }
}

/// The CTAs that a reduction's kernels take at once.
pub fn ctas(config: &PlanConfig) -> u32 {
    config.reducing_ctas.max(1)
}

/// A tile of a reduction.
struct Tile<'a> {
    work: &'a Work,
    number: u32,
    is_last: bool,
}

impl Emitter<'_> {
    /// Whether the launch reduces.
    pub(super) fn folds(&self) -> bool {
        self.plan.folds()
    }

    /// Bytes of an element.
    pub(super) fn element(&self) -> usize {
        if self.folds() { self.plan.kernel.dtype.size() } else { 1 }
    }

    /// Legs of a reduction: what is passed on.
    pub(super) fn passed_on(&self) -> Vec<Leg> {
        let mut legs = Vec::new();
        for &(index, block) in self.left.iter().rev() {
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
                let (value, freed) = self.fold(step, work, own, kept, out);
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
        let copy = (bytes > 0).then_some(What::Copy { dst: slots[0].slot_there, src, bytes });
        let all = free.chain(copy).chain([What::Set { addr: slots[0].full_there }]);
        out.extend(all.map(|what| Command { stream: STREAM, what }));
    }

    /// Combines a tile of everybody's, whose slots are then free. Returns where the value is, and what frees that, if it is in slots.
    fn fold(
        &self,
        step: &Step,
        work: &Work,
        (own, bytes): (u64, u64),
        kept: Option<(u64, u64)>,
        out: &mut Vec<Command>,
    ) -> (u64, Vec<What>) {
        let mut args = FoldArgs { bytes, n: step.n_recv + 1, ..self.rule(step) };
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
        let fold = (bytes > 0).then_some(What::Fold(Fold { kernel, blocks, args }));
        let free = taken.into_iter().flat_map(|(_, what)| what);
        out.extend(fold.into_iter().chain(free).map(|what| Command { stream: STREAM, what }));
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
        let copy = (bytes > 0).then_some(What::Copy { dst, src, bytes });
        let before = before.into_iter().map(|addr| What::Await { addr, peer });
        let all = before.chain(copy).chain(after.map(|addr| What::Set { addr }));
        out.extend(all.map(|what| Command { stream: STREAM, what }));
    }

    /// Takes a tile that was passed on through slots.
    fn get(&self, peer: u32, work: &Work, (dst, bytes): (u64, u64), out: &mut Vec<Command>) {
        let slots = self.slots(peer, work);
        let full = What::Await { addr: slots[0].full_here, peer };
        let copy = (bytes > 0).then_some(What::Copy { dst, src: slots[0].slot_here, bytes });
        let all = std::iter::once(full).chain(copy).chain(freed(&slots));
        out.extend(all.map(|what| Command { stream: STREAM, what }));
    }

    /// The slots that a tile takes, in both directions: the first ones, which follow each other in memory. The first one's word
    /// tells that all are full; each has a word that tells that it is free, since moves use them one by one.
    fn slots(&self, peer: u32, work: &Work) -> Vec<Ends> {
        let bytes = work.tile as u64 * self.element() as u64;
        let slots = bytes.div_ceil(self.slot_bytes()).max(1) as u32;
        (0..slots).map(|slot| self.ends(peer, 0, slot)).collect()
    }

    /// What is done to values. The operands are what users gave: none has been multiplied before it was sent.
    fn rule(&self, step: &Step) -> FoldArgs {
        let args = &self.plan.args;
        let scale = if self.plan.kernel.op == DeviceOp::PreMulSum { SCALE } else { 0 };
        let divide = if step.flags & POST != 0 { DIVIDE } else { 0 };
        FoldArgs { scalar: args.scalar, divisor: args.divisor, form: scale | divide, ..FoldArgs::default() }
    }
}

/// What tells a peer that slots are free again.
fn freed(slots: &[Ends]) -> Vec<What> {
    slots.iter().map(|ends| What::Set { addr: ends.free_there }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(dtype: DataType, from: &[u64], to: u64) -> Fold {
        let mut args = FoldArgs { to, bytes: 1 << 20, n: from.len() as u8, ..FoldArgs::default() };
        args.from[..from.len()].copy_from_slice(from);
        Fold { kernel: KernelKey::new(DeviceOp::Sum, dtype, Protocol::Dma), blocks: 2, args }
    }

    #[test]
    fn memory_adds_what_it_adds_right() {
        use DataType::{Bfloat16, Float16, Float32, Float64, Int32, Uint8, Uint64};
        let adds = |dtype, from: &[u64], to| sum(dtype, from, to).in_memory().map(|fold| fold.args.adds);
        let [a, b, c, d] = [4096, 8192, 1 << 20, 2 << 20];
        assert_eq!((adds(Float16, &[a, b], c), adds(Bfloat16, &[a, b], b)), (Some(1), Some(2)));
        assert_eq!(
            (adds(Bfloat16, &[a, b, c], d), adds(Float32, &[a, b], c), adds(Uint8, &[a, b], c)),
            (None, Some(3), None)
        );
        assert_eq!((adds(Float64, &[a, b, c], d), adds(Float64, &[a, b, c], b)), (Some(4), Some(4)));
        assert_eq!(
            (adds(Float64, &[a, b, c], c), adds(Int32, &[a, b, c], c)),
            (None, Some(5)),
            "in another order"
        );
        assert_eq!(
            (adds(Uint64, &[a, b + 8], c), adds(Uint64, &[a, b], c + 8)),
            (None, None),
            "odd addresses"
        );
        let odd = |change: fn(&mut Fold)| {
            let mut fold = sum(Int32, &[a, b], c);
            change(&mut fold);
            fold.in_memory().is_none()
        };
        assert!(odd(|fold| fold.args.bytes = 1000) && odd(|fold| fold.args.form = DIVIDE));
        assert!(odd(|fold| fold.kernel.op = DeviceOp::Max) && odd(|fold| fold.blocks = 4));
    }

    #[test]
    fn blocks_that_let_memory_add_are_small_and_no_more_than_tiles() {
        let fold = sum(DataType::Int32, &[4096, 8192], 1 << 20);
        let small = fold.in_memory().unwrap();
        assert_eq!((small.blocks, small.block(), fold.block()), (32, (1, 4608), (THREADS, SHARED_BYTES)));
        let pieces: Vec<Fold> =
            Fold { args: FoldArgs { bytes: 2 * ADD_PIECE + 32, ..small.args }, ..small }.pieces().collect();
        let cut: Vec<_> = pieces
            .iter()
            .map(|piece| (piece.args.from[1] - 8192, piece.args.to - (1 << 20), piece.args.bytes))
            .collect();
        assert_eq!(
            cut,
            [(0, 0, ADD_PIECE), (ADD_PIECE, ADD_PIECE, ADD_PIECE), (2 * ADD_PIECE, 2 * ADD_PIECE, 32)]
        );
        assert!(pieces.iter().all(|piece| piece.args.from[2] == 0));
        assert_eq!(Fold { args: FoldArgs { bytes: 1 << 30, ..fold.args }, ..fold }.pieces().count(), 1);
        let short = Fold { args: FoldArgs { bytes: 3 * 1152 + 16, ..fold.args }, ..fold };
        assert_eq!(short.in_memory().unwrap().blocks, 4);
    }

    #[test]
    fn tiles_are_few_and_equal() {
        for room in [3 * LEAST_SLOT, 24 << 20, 96 << 20] {
            for part in (12..34).map(|bits| 1u64 << bits).chain([1, 5000, 3_000_001, 100_000_000]) {
                let tile = tile(part, room);
                assert!((LEAST_SLOT..=room).contains(&tile) && tile.is_multiple_of(LEAST_SLOT));
                assert_eq!(part.div_ceil(tile), part.div_ceil(room), "{part} in {room}");
            }
        }
        assert_eq!(tile(100 << 20, 32 << 20), 25 << 20);
    }
}
