//! The one oracle: data for collectives, and what must come out, worked out from the definition alone.
//!
//! `hawser perf` and all tests compare results with it. It shares no arithmetic with the library: of the
//! library's crates it imports the words only (`hawser-types`).
//!
//! | module | holds |
//! |---|---|
//! | [`numbers`] | the element types as numbers |
//! | [`data`] | all ranks' inputs of an operation, and their reduction |
//! | [`case`] | one call of a collective with the parts of its result, and buffers for it |

pub mod case;
pub mod data;
pub mod numbers;

pub use case::{Buffer, Case, RankBuffers};
pub use data::{Data, Expected};
