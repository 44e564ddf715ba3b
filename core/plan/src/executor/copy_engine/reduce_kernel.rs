//! Reductions whose moves are made by copy engines: everybody pushes the tiles of a part to its owner, whose
//! few CTAs combine them with its own, in the order of ranks; what the program passes on is pushed from
//! there.
//!
//! A part of the user's output may be its input too. Its owner overwrites a tile only when it has
//! everybody's, and a peer's copy of that tile is overwritten by what the owner passes on: after it has the
//! peer's push. So no rank has to say that its output may be written, beyond that it has begun.

pub use hawser_kernels_abi::reduce::{DIVIDE, OPERANDS, ReduceArgs, SCALE};
use hawser_kernels_abi::{DeviceOp, KernelKey};
use hawser_types::{Algorithm, Call, DataType, DeviceKind, ReduceOp, Route};

use super::staging::LEAST_SLOT;
use crate::algo::ProgramKey;
use crate::config::PlanConfig;
use crate::topology::Topology;

/// Threads of a block of the kernel.
pub const THREADS: u32 = 544;
/// Calls of fewer bytes stay with kernels that move data too, unless a rule asks for more: they have less to
/// wait for.
pub const LEAST_BYTES: u64 = 1 << 20;

/// GB/s that a block of a GPU reads: measured with one and two blocks of an H200 (bench/README.md).
pub const READ_GBS: f64 = 50.0;

/// Bytes of shared memory of a block.
pub const SHARED_BYTES: u32 = 192 << 10;
/// The kernel that lets memory add ([`ReduceKernel::in_memory`]).
pub const ADDER: KernelKey = KernelKey::new(DeviceOp::Copy, DataType::Uint8, Route::COPY_ENGINE);
/// Its blocks in place of one of the other: together they take less of a multiprocessor (16 threads and 76
/// KiB), and beside a GEMM each finds room for its 5 KiB.
const ADD_BLOCKS: u32 = 16;
/// It takes the place of so many blocks at most: 64 of its own keep half of the multiprocessors from a GEMM
/// that begins.
const MOST_REPLACED: u32 = 2;
/// Bytes of shared memory of such a block, and those of them that it moves at once.
pub const ADD_SHARED_BYTES: u32 = 4608;
const ADD_TILE: u32 = 1152;
/// Bytes of the sum that such a kernel makes at most: some 50 µs.
const ADD_PIECE: u64 = 8 << 20;
/// GPUs from the first of these on have it, from the second on they are small ones again.
const FIRST_SM: u32 = 90;
const SMALL_SM: u32 = 120;

/// Combines the elements of several places into one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReduceKernel {
    /// Operation and type.
    pub kernel: KernelKey,
    /// Blocks of the kernel.
    pub blocks: u32,
    /// The arguments that the kernel reads.
    pub args: ReduceArgs,
}

impl ReduceKernel {
    /// The same by a kernel that lets memory add, if memory gets the same result. Its blocks are so small
    /// that they begin beside those of a GEMM.
    pub fn in_memory(&self) -> Option<Self> {
        let args = &self.args;
        let from = args.from.get(..args.n.into()).filter(|_| self.blocks <= MOST_REPLACED)?;
        let adds =
            memory_adds(self.kernel.dtype).filter(|_| self.kernel.op == DeviceOp::Sum && args.form == 0)?;
        // What is in place is added to first: the same as in the order of ranks if it is one of the first
        // two.
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
                args: ReduceArgs { adds, ..*args },
            }
        })
    }

    /// The parts of a reduction by memory, a kernel each: a GEMM that begins meanwhile does not get the
    /// multiprocessors of their blocks before they are over. One part of others.
    pub fn pieces(&self) -> impl Iterator<Item = Self> {
        let step = if self.kernel == ADDER { ADD_PIECE } else { u64::MAX };
        let whole = *self;
        let pieces = self.args.bytes.div_ceil(step);
        (0..pieces).map(move |piece| {
            let (at, mut reduce) = (piece * step, whole);
            let args = &mut reduce.args;
            args.from.iter_mut().take(args.n.into()).for_each(|from| *from += at);
            args.to += at;
            args.bytes = (args.bytes - at).min(step);
            reduce
        })
    }

    /// Threads of a block, and its bytes of shared memory.
    pub fn block(&self) -> (u32, u32) {
        if self.kernel == ADDER { (1, ADD_SHARED_BYTES) } else { (THREADS, SHARED_BYTES) }
    }
}

/// The number in [`ReduceArgs::adds`] of a type whose sums memory makes, bit for bit as a kernel would
/// (bench/README.md).
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

/// The reason why copy engines cannot move what a reduction needs, if so.
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

/// True if blocks of a device have as much shared memory as the kernels take.
pub fn has_room(device: DeviceKind) -> bool {
    matches!(device, DeviceKind::Cuda { sm } if (FIRST_SM..SMALL_SM).contains(&sm))
}

/// The bytes of a tile of a part of `part` bytes. On one stream nothing of a rank goes on at once, and beside
/// a GEMM each tile's kernel waits until one is over: as few as all slots of a peer together take (`room`
/// bytes), of equal size.
pub(super) fn tile(part: u64, room: u64) -> u64 {
    let tiles = part.div_ceil(room.max(1)).max(1);
    part.div_ceil(tiles).next_multiple_of(LEAST_SLOT).clamp(LEAST_SLOT, room.max(LEAST_SLOT))
}

/// True if there is a kernel for an operation on a type: all that users have, but factors of their own.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(dtype: DataType, from: &[u64], to: u64) -> ReduceKernel {
        let mut args = ReduceArgs { to, bytes: 1 << 20, n: from.len() as u8, ..ReduceArgs::default() };
        args.from[..from.len()].copy_from_slice(from);
        ReduceKernel { kernel: KernelKey::new(DeviceOp::Sum, dtype, Route::COPY_ENGINE), blocks: 2, args }
    }

    #[test]
    fn memory_adds_what_it_adds_right() {
        use DataType::{Bfloat16, Float16, Float32, Float64, Int32, Uint8, Uint64};
        let adds = |dtype, from: &[u64], to| sum(dtype, from, to).in_memory().map(|reduce| reduce.args.adds);
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
        let odd = |change: fn(&mut ReduceKernel)| {
            let mut reduce = sum(Int32, &[a, b], c);
            change(&mut reduce);
            reduce.in_memory().is_none()
        };
        assert!(odd(|reduce| reduce.args.bytes = 1000) && odd(|reduce| reduce.args.form = DIVIDE));
        assert!(odd(|reduce| reduce.kernel.op = DeviceOp::Max) && odd(|reduce| reduce.blocks = 4));
    }

    #[test]
    fn blocks_that_let_memory_add_are_small_and_no_more_than_tiles() {
        let reduce = sum(DataType::Int32, &[4096, 8192], 1 << 20);
        let small = reduce.in_memory().unwrap();
        assert_eq!((small.blocks, small.block(), reduce.block()), (32, (1, 4608), (THREADS, SHARED_BYTES)));
        let pieces: Vec<ReduceKernel> =
            ReduceKernel { args: ReduceArgs { bytes: 2 * ADD_PIECE + 32, ..small.args }, ..small }
                .pieces()
                .collect();
        let cut: Vec<_> = pieces
            .iter()
            .map(|piece| (piece.args.from[1] - 8192, piece.args.to - (1 << 20), piece.args.bytes))
            .collect();
        assert_eq!(
            cut,
            [(0, 0, ADD_PIECE), (ADD_PIECE, ADD_PIECE, ADD_PIECE), (2 * ADD_PIECE, 2 * ADD_PIECE, 32)]
        );
        assert!(pieces.iter().all(|piece| piece.args.from[2] == 0));
        assert_eq!(
            ReduceKernel { args: ReduceArgs { bytes: 1 << 30, ..reduce.args }, ..reduce }.pieces().count(),
            1
        );
        let short = ReduceKernel { args: ReduceArgs { bytes: 3 * 1152 + 16, ..reduce.args }, ..reduce };
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
