//! Collectives of one host as one or two **exchanges**: every rank writes into the areas of all others, then waits for all.
//!
//! A fused kernel runs a whole call that way and equals the program of the same name and algorithm, which other devices run
//! step by step: [`Algorithm::OneShot`], [`Algorithm::AllPairs`] and [`Algorithm::Direct`]. [`ExchangePlan::new`] says which
//! bytes go where, `kernels/cuda/exchange*.cuh` moves them.
//!
//! In an exchange, rank `a` sends rank `b` a **part**. In the first one the part has the length of `b`'s entry of
//! [`ExchangeArgs::len`], in the second that of `a`'s. Peers are counted from the own rank on (`k`: rank + k) where data
//! leave, and by rank (`p`) where they come in, since values are combined in the order of ranks.

pub mod bundle;
mod parts;

use std::mem::{offset_of, size_of};

use self::parts::{Parts, Shape};
use crate::algo::ProgramKey;
use crate::call::{Call, Collective};
use crate::choose::{Choice, protocol_bit};
use crate::config::{Algorithm, Protocol};
use crate::device_plan::{DeviceOp, KernelKey};
use crate::direct;
use crate::lower::{PACK_BYTES, device_op, scalar};
use crate::topology::{DeviceKind, Link, Topology};
use crate::{DataType, PlanConfig};

/// Most ranks of an exchange.
pub const RANKS: usize = 8;
/// Most threads of a block.
pub const THREADS: u32 = 512;

/// Form: what comes first is combined into one value.
pub const FOLD: u8 = 1;
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

/// Bytes of a slot: a word of 16 bytes for each thread; eight rows of four lines; a tile, if there are [`RANKS`].
const SLOT: [u64; 3] = [8 << 10, 4 << 10, 8 << 10];
/// Most blocks by protocol: each has slots of its own. A block fills a multiprocessor, and kernels of several communicators
/// must find room side by side, in whatever order they come: three of 44 blocks fit into 132 multiprocessors.
const BLOCKS: [u32; 3] = [32, 32, TILE_BLOCKS];
/// Those of SymSimple and SymDirect.
pub const TILE_BLOCKS: u32 = 44;
/// Warps of a block at most.
const WARPS: u64 = THREADS as u64 / 32;
/// Bytes of data in a row of lines.
const ROW_DATA: u64 = 480;
/// What it costs, in rows, that a warp needs its slots again: it waits for its peers. Measured.
const NEW_SLOT_ROWS: u64 = 5;
/// Bytes of the flags of a warp: four for each rank.
const UNIT_FLAGS: u64 = 32;

/// What one or two exchanges do with the parts, and between whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Flow {
    /// [`FOLD`] … [`EIGHTS`].
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
}

/// Arguments of an exchange kernel, passed by value (408 bytes).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct ExchangeArgs {
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
    /// Address of the rank's [`crate::device_plan::DevComm`].
    pub comm: u64,
    /// Address of this rank's counters of exchanges: `u32` for each block (SymLL) or warp.
    pub epochs: u64,
    /// As [`crate::device_plan::Args::scalar`].
    pub scalar: u64,
    /// Operation number of the communicator, for error records.
    pub op_number: u64,
    /// As [`crate::device_plan::Args::done`].
    pub done: u64,
    /// Bytes of the longest part, rounded up to a pack.
    pub most: u64,
    /// Bytes of the shortest part that is not empty by design.
    pub least: u64,
    /// Divisor for [`DIVIDE`].
    pub divisor: u32,
    /// Bytes of everything that a warp moves at a time (SymLL128: a multiple of 480; SymSimple: of 512).
    pub tile: u32,
    /// Offset of the flags in an area (SymSimple).
    pub flags_at: u32,
    /// This rank.
    pub rank: u8,
    /// Ranks.
    pub ranks: u8,
    /// What is done with the parts, and who takes part.
    pub flow: Flow,
    /// [`direct::TRY`], [`direct::READY`], [`direct::PULL`].
    pub direct: u8,
    /// Zero.
    pub pad: [u8; 2],
}

/// Where the slots of the protocols lie in an area. Every rank has one area, which its peers write into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Area {
    /// Offset of the slots by protocol.
    pub slots: [u64; 3],
    /// Offset of the flags of SymSimple.
    pub flags: u64,
    /// Offset of the lines of SymDirect.
    pub lines: u64,
    /// Bytes of an area.
    pub bytes: u64,
    /// Offset of the counters by protocol in the rank's private memory; those of SymDirect follow.
    pub epochs: [u64; 3],
    /// Bytes of the counters.
    pub epoch_bytes: u64,
}

impl Area {
    /// The areas of `ranks` ranks.
    pub fn new(ranks: u32) -> Self {
        let units = |i: usize| u64::from(BLOCKS[i]) * WARPS;
        let ranks = u64::from(ranks);
        // Two parities; the slots of words are laid out for the most ranks, so that offsets are constants.
        let words = u64::from(BLOCKS[0]) * 2 * RANKS as u64 * SLOT[0];
        let lines = units(1) * 2 * ranks * SLOT[1];
        let tiles = units(2) * 2 * ranks * slot(2, ranks);
        let flags = words + lines + tiles;
        let end = flags + units(2) * UNIT_FLAGS;
        let counters = [u64::from(BLOCKS[0]) * 4, units(1) * 4, units(2) * 4];
        Self {
            slots: [0, words, words + lines],
            flags,
            lines: end,
            bytes: end + direct::LINES_BYTES,
            epochs: [0, counters[0], counters[0] + counters[1]],
            epoch_bytes: counters.iter().sum::<u64>() + u64::from(TILE_BLOCKS) * 4,
        }
    }

    /// The same without what SymSimple and SymDirect use: a third of it.
    pub fn without_tiles(self) -> Self {
        Self { bytes: self.slots[2], ..self }
    }
}

/// Which protocols of fused kernels some call may use, as bits of [`PlanConfig::protocols`].
fn allowed(config: &PlanConfig) -> u8 {
    config.protocols.iter().fold(0, |all, mask| all | mask.unwrap_or(u8::MAX)) & area_bits()
}

/// The bits of the protocols that are so.
fn bits(is: impl Fn(Protocol) -> bool) -> u8 {
    Protocol::ALL.into_iter().filter(|p| is(*p)).fold(0, |all, p| all | protocol_bit(p))
}

/// The protocols that use areas.
pub fn area_bits() -> u8 {
    bits(Protocol::is_exchange)
}

/// The protocols that use the larger part of an area ([`Area::without_tiles`]).
pub fn tile_bits() -> u8 {
    bits(|protocol| matches!(protocol, Protocol::SymSimple | Protocol::SymDirect))
}

/// The areas of the ranks of `topology`, if the settings let some call be an exchange.
pub fn area(topology: &Topology, config: &PlanConfig) -> Option<Area> {
    let allowed = allowed(config);
    let area = (allowed != 0 && refused_topology(topology).is_none()).then(|| Area::new(topology.size()))?;
    Some(if allowed & tile_bits() == 0 { area.without_tiles() } else { area })
}

pub(crate) fn refused_topology(topology: &Topology) -> Option<String> {
    match (topology.device, topology.link) {
        (DeviceKind::Host, _) => Some("the host device has the Simple protocol only".into()),
        _ if topology.hosts() > 1 => Some("exchanges are for the ranks of one host".into()),
        _ if !(2..=RANKS as u32).contains(&topology.size()) => {
            Some(format!("exchanges are for 2 to {RANKS} ranks"))
        }
        (DeviceKind::Cuda { sm }, _) if sm < 90 => {
            Some(format!("exchange kernels need sm_90, this is sm_{sm}"))
        }
        (_, Link::HostMemory) => Some("exchanges need peer access between GPUs".into()),
        _ => None,
    }
}

/// Whether programs of a family can be exchanges.
pub const fn is_known(algorithm: Algorithm) -> bool {
    matches!(algorithm, Algorithm::OneShot | Algorithm::AllPairs | Algorithm::Direct)
}

/// Whether there are exchange kernels for an operation on a type: those that training and inference call all the time.
/// Each takes seconds to compile and kilobytes of the library.
pub fn has_kernel(op: DeviceOp, dtype: DataType) -> bool {
    use DataType::{
        Bfloat16, Float8e4m3, Float8e5m2, Float16, Float32, Float64, Int32, Int64, Uint32, Uint64,
    };
    match op {
        DeviceOp::Copy => true,
        DeviceOp::Sum => match dtype {
            Int32 | Uint32 | Int64 | Uint64 | Float16 | Bfloat16 | Float32 | Float64 | Float8e4m3
            | Float8e5m2 => true,
            DataType::Int8 | DataType::Uint8 => false,
        },
        DeviceOp::PreMulSum | DeviceOp::Max => matches!(dtype, Float16 | Bfloat16 | Float32),
        DeviceOp::Prod | DeviceOp::Min | DeviceOp::SumDiv => false,
    }
}

/// Why a call has no exchange kernel of `protocol` by the program `key` in this topology, if so.
pub fn refused(call: &Call, key: &ProgramKey, protocol: Protocol, topology: &Topology) -> Option<String> {
    if let Some(reason) = refused_topology(topology) {
        return Some(reason);
    }
    if !has_kernel(device_op(call), call.dtype) {
        return Some(format!("no fused kernel reduces {} by {}", call.dtype.name(), call.op.name()));
    }
    if protocol == Protocol::SymLl128 && topology.link != Link::NvLink {
        return Some("SymLL128 needs lines that land whole: NVLink only".into());
    }
    if !is_known(key.algorithm) {
        return Some("its steps are no exchanges".into());
    }
    if protocol == Protocol::SymDirect { direct::refused(call, key, topology) } else { None }
}

/// Most blocks of a launch.
pub fn most_blocks(protocol: Protocol) -> u32 {
    BLOCKS[index(protocol)]
}

/// Blocks and threads for a call, and what a warp moves at a time: (blocks, threads, tile).
pub fn grid(protocol: Protocol, ranks: u32, most: u64, max_ctas: u32) -> (u32, u32, u32) {
    let most = most.max(PACK_BYTES);
    let limit = u64::from(most_blocks(protocol).min(max_ctas.max(1)));
    // Half of the threads are faster where they hold everything.
    let few = u64::from(THREADS) / 2;
    match protocol {
        Protocol::SymLl => {
            let words = most.div_ceil(8);
            let threads = if words <= few * limit { few } else { u64::from(THREADS) };
            let threads = threads.min(words.next_multiple_of(32).max(64));
            (words.div_ceil(threads).min(limit) as u32, threads as u32, 0)
        }
        Protocol::SymLl128 => {
            let rows = most.div_ceil(ROW_DATA);
            let threads = if rows <= few / 32 * limit { few } else { u64::from(THREADS) };
            let units = threads / 32 * limit;
            let per_unit = rows.div_ceil(units).min(SLOT[1] / 512);
            let blocks = rows.div_ceil(per_unit).div_ceil(threads / 32).min(limit);
            (blocks as u32, threads as u32, (per_unit * ROW_DATA) as u32)
        }
        _ => {
            // As many rounds as full slots make, of equal tiles, so that no warp has more to do than another.
            let units = WARPS * limit;
            let rounds = most.div_ceil(units * slot(2, ranks.into()));
            let tile = most.div_ceil(units * rounds).next_multiple_of(512);
            (most.div_ceil(tile).div_ceil(WARPS).min(limit) as u32, THREADS, tile as u32)
        }
    }
}

/// How often a block or warp begins anew (a warp of lines: with the next row), since the grid does not hold everything at
/// once.
pub fn rounds(protocol: Protocol, most: u64, blocks: u32, threads: u32, tile: u32) -> u64 {
    let warps = u64::from(blocks * threads / 32).max(1);
    match protocol {
        Protocol::SymLl => most.div_ceil(u64::from(blocks * threads).max(1) * 8),
        Protocol::SymLl128 => {
            let rows = most.div_ceil(warps * ROW_DATA);
            if rows * ROW_DATA > u64::from(tile) { rows + NEW_SLOT_ROWS } else { rows }
        }
        Protocol::SymDirect => 1,
        _ => most.div_ceil(warps * u64::from(tile.max(1))),
    }
}

/// Bytes of a slot where there are `ranks` ranks. Larger tiles wait less often for peers; few ranks have room for them.
fn slot(index: usize, ranks: u64) -> u64 {
    match (index, ranks) {
        (2, ..=2) => 4 * SLOT[2],
        (2, ..=4) => 2 * SLOT[2],
        _ => SLOT[index],
    }
}

/// Position of a protocol among those that have slots: SymDirect has those of SymSimple.
fn index(protocol: Protocol) -> usize {
    match protocol {
        Protocol::SymLl => 0,
        Protocol::SymLl128 => 1,
        _ => 2,
    }
}

/// Bytes of the longest part of a call: what decides about the grid.
pub fn longest_part(collective: Collective, algorithm: Algorithm, block_bytes: u64, ranks: u32) -> u64 {
    let parts = match (collective, algorithm) {
        (Collective::AllReduce, Algorithm::AllPairs) => u64::from(ranks),
        (Collective::Broadcast | Collective::Reduce, Algorithm::AllPairs) => u64::from(ranks.max(2)) - 1,
        _ => 1,
    };
    block_bytes.div_ceil(parts).next_multiple_of(PACK_BYTES)
}

/// One launch, ready but for addresses: `src` and `dst` are offsets in the call's buffers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExchangePlan {
    args: ExchangeArgs,
    /// By rank: whether `dst` is a place in the output.
    has_dst: u8,
    /// Offsets and lengths in few numbers.
    shape: Shape,
    /// Bytes of an element.
    element: u64,
    /// Whether all offsets are multiples of a pack.
    aligned: bool,
    /// Bytes of input and output that this rank has.
    used: [u64; 2],
    /// Whether, in place, ranks would overwrite what has not been sent yet.
    needs_two_buffers: bool,
    /// Which kernel.
    pub kernel: KernelKey,
    /// Grid size.
    pub blocks: u32,
    /// Threads per block.
    pub threads: u32,
}

impl ExchangePlan {
    /// Plans `call` for `rank`. The choice must be one that [`refused`] does not refuse.
    pub fn new(call: &Call, choice: &Choice, rank: u32, ranks: u32, config: &PlanConfig) -> Self {
        let op = device_op(call);
        let bytes = call.block_bytes();
        let mut parts = Parts::new(rank, ranks);
        parts.fill(call.collective, choice.key.algorithm, call.root, bytes);
        let Parts { mut args, flow, has_dst, shape, .. } = parts;
        args.flow = flow;
        args.most = longest_part(call.collective, choice.key.algorithm, bytes, ranks);
        let mut max_ctas = config.most_ctas(call.collective);
        if choice.instances > 0 {
            max_ctas = max_ctas.min(choice.instances);
        }
        let (blocks, threads, tile) = grid(choice.protocol, ranks, args.most, max_ctas);
        args.tile = tile;
        args.divisor = ranks;
        (args.scalar, args.flow.scalar_is_address) = scalar(call, ranks);
        args.flow.form |= match op {
            DeviceOp::PreMulSum => SCALE,
            DeviceOp::SumDiv => DIVIDE,
            _ => 0,
        };
        if args.len.iter().chain(&args.src_len).all(|len| len.is_multiple_of(8)) {
            args.flow.form |= EIGHTS;
        }
        if choice.protocol == Protocol::SymDirect {
            args.direct = direct::wish(&choice.key);
            // Where values are combined all data are read, also those of ranks that get none.
            args.flow.form |= if call.collective.reduces() { FOLD } else { 0 };
        }
        let offsets = args.src.iter().chain(&args.dst);
        let aligned = offsets.fold(0, |all, offset| all | offset) % PACK_BYTES == 0;
        let dtype = if op == DeviceOp::Copy { DataType::Uint8 } else { call.dtype };
        let kernel = KernelKey::new(op, dtype, choice.protocol);
        let blocks_of = |some: bool, blocks: u32| if some { bytes * u64::from(blocks) } else { 0 };
        let (collective, root) = (call.collective, call.root);
        let used = [
            blocks_of(collective.has_input(rank, root), collective.input_blocks(ranks)),
            blocks_of(collective.has_output(rank, root), collective.output_blocks(ranks)),
        ];
        let needs_two_buffers = collective == Collective::AllToAll;
        let element = call.dtype.size() as u64;
        Self { args, has_dst, shape, element, aligned, used, needs_two_buffers, kernel, blocks, threads }
    }

    /// Names the areas of all ranks, the counters of this one, and its image of the communicator.
    pub fn connect(&mut self, areas: &[u64], epochs: u64, comm: u64) {
        let args = &mut self.args;
        let (area, index, ranks) = (Area::new(areas.len() as u32), index(self.kernel.protocol), areas.len());
        let at = |rank: usize| areas.get(rank).map_or(0, |base| base + area.slots[index]);
        let own = usize::from(args.rank);
        for (k, to) in args.to.iter_mut().enumerate().take(ranks) {
            *to = at((own + k) % ranks) + own as u64 * slot(index, ranks as u64);
        }
        args.mine = at(own);
        args.flags_at = (area.flags - area.slots[2]) as u32;
        args.epochs = epochs + area.epochs[index];
        args.comm = comm;
    }

    /// The arguments of a launch for these buffers.
    pub fn bind(&self, input: u64, output: u64, scalar: u64, op_number: u64) -> ExchangeArgs {
        let mut args = self.args;
        args.src.iter_mut().for_each(|src| *src += input);
        for (p, dst) in args.dst.iter_mut().enumerate() {
            *dst = if self.has_dst >> p & 1 == 1 { *dst + output } else { 0 };
        }
        if self.aligned && (input | output).is_multiple_of(PACK_BYTES) {
            args.flow.form |= ALIGNED;
        }
        // In place there is nothing to keep.
        if args.flow.keep != 0 {
            let p = args.flow.keep.trailing_zeros() as usize;
            let k = (p + usize::from(args.ranks) - usize::from(args.rank)) % usize::from(args.ranks);
            if args.src[k] == args.dst[p] {
                args.flow.keep = 0;
            }
        }
        (args.scalar, args.op_number) = (scalar, op_number);
        args
    }

    /// Input and output as (address, bytes), if a launch for them has to know whether other ranks reach them
    /// ([`direct::READY`]).
    pub fn to_reach(&self, input: u64, output: u64) -> Option<[(u64, u64); 2]> {
        let possible = self.args.direct & direct::TRY != 0 && !(self.needs_two_buffers && input == output);
        possible.then_some([(input, self.used[0]), (output, self.used[1])])
    }

    /// The factor as planned, for calls that have no other.
    pub fn scalar(&self) -> u64 {
        self.args.scalar
    }

    /// The plan's arguments; `src` and `dst` are offsets.
    pub fn args(&self) -> &ExchangeArgs {
        &self.args
    }
}

const _: () = {
    assert!(size_of::<ExchangeArgs>() == 408 && offset_of!(ExchangeArgs, mine) == 320);
    assert!(offset_of!(ExchangeArgs, flow) == 398 && offset_of!(ExchangeArgs, direct) == 405);
};
