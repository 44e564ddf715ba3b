//! The number of blocks and threads of a fused kernel, and the bytes that a warp moves at a time.

use hawser_kernels_abi::fused::THREADS;
use hawser_types::{Algorithm, Collective, Route};

use super::area::{BLOCKS, SLOT, WARPS, index, slot};
use crate::executor::launch::PACK_BYTES;

/// Bytes of data in a row of lines.
const ROW_DATA: u64 = 480;
/// The cost, in rows, of a warp that needs its slots again: it waits for its peers. Measured.
const NEW_SLOT_ROWS: u64 = 5;
/// Most blocks of a launch.
pub fn most_blocks(route: Route) -> u32 {
    BLOCKS[index(route)]
}

/// Blocks and threads for a call, and what a warp moves at a time: (blocks, threads, tile).
pub fn grid(route: Route, ranks: u32, most: u64, max_ctas: u32) -> (u32, u32, u32) {
    let most = most.max(PACK_BYTES);
    let limit = u64::from(most_blocks(route).min(max_ctas.max(1)));
    // Half of the threads are faster where they hold everything.
    let few = u64::from(THREADS) / 2;
    match route {
        Route::FUSED_LL => {
            let words = most.div_ceil(8);
            let threads = if words <= few * limit { few } else { u64::from(THREADS) };
            let threads = threads.min(words.next_multiple_of(32).max(64));
            (words.div_ceil(threads).min(limit) as u32, threads as u32, 0)
        }
        Route::FUSED_LL128 => {
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

/// The number of times that a block or warp begins anew (a warp of lines: with the next row), since the grid
/// does not hold everything at once.
pub fn rounds(route: Route, most: u64, blocks: u32, threads: u32, tile: u32) -> u64 {
    let warps = u64::from(blocks * threads / 32).max(1);
    match route {
        Route::FUSED_LL => most.div_ceil(u64::from(blocks * threads).max(1) * 8),
        Route::FUSED_LL128 => {
            let rows = most.div_ceil(warps * ROW_DATA);
            if rows * ROW_DATA > u64::from(tile) { rows + NEW_SLOT_ROWS } else { rows }
        }
        Route::ZERO_COPY => 1,
        _ => most.div_ceil(warps * u64::from(tile.max(1))),
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
