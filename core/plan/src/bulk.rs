//! SymBulk: exchanges between the buffers of one process, without staging (`kernels/cuda/exchange_bulk.cuh`).
//!
//! The ranks' kernels tell each other addresses, then bulk copies move the data: what is combined is read from all ranks,
//! everything else is written where it belongs. So few blocks fill the links. Whether all buffers can be reached is known
//! to the kernels only: where some cannot, they go on as [`Protocol::SymSimple`], whose arguments and kernel these are.

use crate::algo::ProgramKey;
use crate::call::{Call, Collective, ReduceOp};
use crate::choose::protocol_bit;
use crate::exchange::{self, RANKS};
use crate::knobs::{Algorithm, Knobs, Protocol};
use crate::lower::PACK_BYTES;
use crate::world::{DeviceKind, World};

/// [`crate::exchange::ExchangeArgs::bulk`]: bulk copies are wanted.
pub const TRY: u8 = 1;
/// [`crate::exchange::ExchangeArgs::bulk`]: the other ranks can reach this rank's buffers.
pub const READY: u8 = 2;

/// Most blocks. Each has lines of its own in the areas.
pub const BLOCKS: u32 = 12;
/// Bytes of shared memory of a block.
pub const SHARED_BYTES: u32 = 192 << 10;
/// Bytes of a line: what a rank tells a peer's block, twice by parity.
pub(crate) const LINE_BYTES: u64 = 32;
/// Bytes of lines, and of the flags behind them, of an area.
pub(crate) const LINES_BYTES: u64 = BLOCKS as u64 * RANKS as u64 * (2 * LINE_BYTES + 4);

/// Parts below this do not pay for telling addresses.
const LEAST_PART: u64 = 64 << 10;
/// GPUs from here on are small ones again, whose blocks have less than [`SHARED_BYTES`].
const SMALL_SM: u32 = 120;

/// Whether ranks should try to reach each other's memory at bring-up: they share a process and some call may use it.
pub fn is_wanted(world: &World, knobs: &Knobs, processes: &[u64]) -> bool {
    let together = processes.windows(2).all(|pair| pair[0] == pair[1]);
    let bit = protocol_bit(Protocol::SymBulk);
    let allowed = knobs.protocols.iter().any(|mask| mask.is_none_or(|mask| mask & bit != 0));
    together && allowed && exchange::refused_world(world).is_none() && !is_small(world)
}

/// Why a call of which exchange kernels are capable cannot be done so, if so.
pub(crate) fn refused(call: &Call, key: &ProgramKey, world: &World) -> Option<String> {
    let bytes = call.block_bytes();
    let most = exchange::longest_part(call.collective, key.algorithm, bytes, world.size());
    if !world.direct {
        return Some("SymBulk is for GPUs of one process that reach each other's memory".into());
    }
    if is_small(world) {
        return Some(format!("SymBulk needs {} KiB of shared memory per block", SHARED_BYTES >> 10));
    }
    if call.collective.reduces() && call.op == ReduceOp::PreMulSum {
        return Some("every rank has a factor of its own, and SymBulk reads other ranks' data".into());
    }
    if (call.collective, key.algorithm) == (Collective::AllReduce, Algorithm::OneShot) {
        return Some("in place, ranks would overwrite what others still read".into());
    }
    let blocks = call.collective.input_blocks(world.size()).max(call.collective.output_blocks(world.size()));
    if blocks > 1 && !bytes.is_multiple_of(PACK_BYTES) {
        return Some(format!("parts of {bytes} bytes are no multiple of {PACK_BYTES}"));
    }
    (most < LEAST_PART).then(|| format!("parts of {most} bytes are too small for SymBulk"))
}

pub(crate) fn is_small(world: &World) -> bool {
    matches!(world.device, DeviceKind::Cuda { sm } if sm >= SMALL_SM)
}

/// Blocks that a program makes use of: what only reads from other ranks needs more of them. Measured.
pub fn useful_blocks(key: &ProgramKey) -> u32 {
    let pulls_only = match key.collective {
        Collective::ReduceScatter => true,
        Collective::Reduce => key.algorithm == Algorithm::OneShot,
        _ => false,
    };
    if pulls_only { BLOCKS } else { 8 }
}
