//! The arguments of fused kernels: `kernels/cuda/exchange*.cuh` read it.

use std::mem::{offset_of, size_of};

/// Most ranks of an exchange.
pub const RANKS: usize = 8;
/// Most threads of a block.
pub const THREADS: u32 = 512;

/// Form: what comes first is combined into one value.
pub const REDUCE: u8 = 1;
/// Form: `src[0]` is an operand too.
pub const OWN: u8 = 2;
/// Form: the value goes on in a second exchange.
pub const SECOND: u8 = 4;
/// Form: all of `src` are equal.
pub const SAME: u8 = 8;
/// Form: `src` is multiplied by the scalar on reading.
pub const SCALE: u8 = 16;
/// Form: the value is divided by the divisor.
pub const DIVIDE: u8 = 32;
/// Form: all of `src` and `dst` are multiples of a pack.
pub const ALIGNED: u8 = 64;
/// Form: all of `len` are multiples of 8 bytes.
pub const EIGHTS: u8 = 128;

/// [`Flow::order`]: operands are combined along the balanced tree over ranks.
pub const NESTED: u8 = 1;

/// [`FusedArgs::direct`]: it is wanted.
pub const TRY: u8 = 1;
/// [`FusedArgs::direct`]: the other ranks can reach this rank's buffers.
pub const READY: u8 = 2;
/// [`FusedArgs::direct`]: data are read by those who get them.
pub const PULL: u8 = 4;

/// The moves of one or two exchanges, and the ranks that take part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Flow {
    /// [`REDUCE`] … [`EIGHTS`].
    pub form: u8,
    /// 1 when `scalar` is an address.
    pub scalar_is_address: u8,
    /// By k: peers that get data in the first exchange.
    pub send1: u8,
    /// By rank: peers whose data count in the first exchange.
    pub recv1: u8,
    /// By rank: parts whose user data stay on this rank too, `src` of its k to `dst`.
    pub keep: u8,
    /// As `send1`, of the second exchange.
    pub send2: u8,
    /// As `recv1`, of the second exchange.
    pub recv2: u8,
    /// 0: operands are combined in the order of ranks; or [`NESTED`].
    pub order: u8,
}

/// Arguments of a fused kernel, passed by value (424 bytes).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct FusedArgs {
    /// By k: where this rank's slots lie in the area of rank + k.
    pub to: [u64; RANKS],
    /// By k: user data for rank + k; `src[0]` is this rank's own.
    pub src: [u64; RANKS],
    /// By k: bytes of the part of rank + k.
    pub src_len: [u64; RANKS],
    /// By rank: where what came from it is kept; the own entry is for the combined value. 0 = nowhere.
    pub dst: [u64; RANKS],
    /// By rank: bytes of its part.
    pub len: [u64; RANKS],
    /// This rank's area.
    pub mine: u64,
    /// Address of the rank's [`crate::DevComm`].
    pub comm: u64,
    /// Address of this rank's counters of exchanges: `u32` for each block (LL) or warp.
    pub epochs: u64,
    /// As [`crate::Args::scalar`].
    pub scalar: u64,
    /// Operation number of the communicator, for error records.
    pub op_number: u64,
    /// As [`crate::Args::done`].
    pub done: u64,
    /// Bytes of the longest part, rounded up to a pack.
    pub most: u64,
    /// Bytes of the shortest part that is not empty by design.
    pub least: u64,
    /// Address of a `u64` for each rank: the number that is added to an address of the input so that the rank
    /// finds it in its own process, modulo 2^64. 0: all ranks find it where it is.
    pub src_seen: u64,
    /// As `src_seen`, for the output.
    pub dst_seen: u64,
    /// Divisor for [`DIVIDE`].
    pub divisor: u32,
    /// Bytes of everything that a warp moves at a time (LL128: a multiple of 480; Simple: of 512).
    pub tile: u32,
    /// Offset of the flags in an area (Simple).
    pub flags_at: u32,
    /// This rank.
    pub rank: u8,
    /// The number of ranks.
    pub ranks: u8,
    /// The moves of the parts, and the ranks that take part.
    pub flow: Flow,
    /// [`TRY`], [`READY`], [`PULL`].
    pub direct: u8,
    /// The padding, which is zero.
    pub pad: [u8; 1],
}

/// Most operations of a launch.
pub const OPS: usize = 64;
/// Most blocks of a launch.
pub const MOST_BLOCKS: usize = 32;
/// Shape: what is sent to rank p is part p of the input.
pub const SPREAD_SRC: u8 = 1;
/// Shape: what belongs to rank p is part p of the output.
pub const SPREAD_DST: u8 = 2;
/// Shape: input and output are cut into the parts, and the last ones may be shorter.
pub const CUT: u8 = 4;
/// No rank.
pub const NO_RANK: u8 = 255;

/// One operation of a batch (56 bytes): [`FusedArgs`] follow from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct BatchOp {
    /// Address of the input.
    pub input: u64,
    /// Address of the output.
    pub output: u64,
    /// As [`FusedArgs::scalar`].
    pub scalar: u64,
    /// As [`FusedArgs::op_number`].
    pub op_number: u64,
    /// Bytes of a part; of all but the last ones with [`CUT`].
    pub part: u32,
    /// Bytes of all parts with [`CUT`].
    pub total: u32,
    /// As [`FusedArgs::flow`].
    pub flow: Flow,
    /// By rank: whether [`FusedArgs::dst`] is a place in the output.
    pub has_dst: u8,
    /// [`SPREAD_SRC`], [`SPREAD_DST`], [`CUT`].
    pub shape: u8,
    /// The rank that has no part, or [`NO_RANK`].
    pub skipped: u8,
    /// Its first block.
    pub first: u8,
    /// The padding, which is zero.
    pub pad: [u8; 4],
}

/// Arguments of a batch's kernel, passed by value (3944 bytes).
#[derive(Debug, Clone, PartialEq, Eq)]
#[repr(C)]
pub struct BatchArgs {
    /// As [`FusedArgs::to`].
    pub to: [u64; RANKS],
    /// By block, from `first` on: a bit for each operation that it runs.
    pub todo: [u64; MOST_BLOCKS],
    /// As [`FusedArgs::mine`].
    pub mine: u64,
    /// As [`FusedArgs::comm`].
    pub comm: u64,
    /// As [`FusedArgs::epochs`].
    pub epochs: u64,
    /// As [`FusedArgs::done`].
    pub done: u64,
    /// As [`FusedArgs::rank`].
    pub rank: u8,
    /// As [`FusedArgs::ranks`].
    pub ranks: u8,
    /// The number of the launch's first block.
    pub first: u8,
    /// The number of operations.
    pub n_ops: u8,
    /// The padding, which is zero.
    pub pad: [u8; 4],
    /// The operations.
    pub ops: [BatchOp; OPS],
}

impl Default for BatchArgs {
    fn default() -> Self {
        Self {
            to: [0; RANKS],
            todo: [0; MOST_BLOCKS],
            mine: 0,
            comm: 0,
            epochs: 0,
            done: 0,
            rank: 0,
            ranks: 0,
            first: 0,
            n_ops: 0,
            pad: [0; 4],
            ops: [BatchOp::default(); OPS],
        }
    }
}

const _: () = {
    assert!(size_of::<FusedArgs>() == 424 && offset_of!(FusedArgs, mine) == 320);
    assert!(offset_of!(FusedArgs, flow) == 414 && offset_of!(FusedArgs, direct) == 422);
};

const _: () = {
    assert!(
        size_of::<BatchOp>() == 56 && offset_of!(BatchOp, part) == 32 && offset_of!(BatchOp, first) == 51
    );
    assert!(size_of::<BatchArgs>() == 3944 && offset_of!(BatchArgs, mine) == 320);
    assert!(offset_of!(BatchArgs, rank) == 352 && offset_of!(BatchArgs, ops) == 360);
};
