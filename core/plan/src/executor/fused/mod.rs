//! Fused kernels: collectives of one host as one or two **exchanges**, in which every rank writes into the
//! areas of all others and then waits for all.
//!
//! A fused kernel runs a whole call that way and equals the program of the same name and algorithm, which
//! other executors run step by step: `OneShot`, `AllPairs` and `Direct`. [`FusedPlan::new`] says which
//! bytes go where, `kernels/cuda/exchange*.cuh` moves them.
//!
//! In an exchange, rank `a` sends rank `b` a **part**. In the first one the part has the length of `b`'s
//! entry of [`FusedArgs::len`], in the second that of `a`'s. Peers are counted from the own rank on (`k`:
//! rank + k) where data leave, and by rank (`p`) where they come in, since values are combined in the order
//! of ranks.

mod area;
pub mod batch;
mod estimate;
mod grid;
mod launch;
mod partition;
mod support;
pub mod zero_copy;

pub use area::{Area, TILE_BLOCKS, area, area_routes, tile_routes};
pub use estimate::Fused;
pub use grid::{grid, longest_part, most_blocks, rounds};
pub use hawser_kernels_abi::fused::*;
pub use launch::FusedPlan;
pub use support::{has_kernel, has_nested_kernel, is_known, refused, why_staged};
