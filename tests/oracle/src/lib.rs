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
//!
//! ```
//! use hawser_oracle::Data;
//! use hawser_types::{DataType, ReduceOp};
//!
//! let data = Data { dtype: DataType::Int32, op: Some(ReduceOp::Sum), ranks: 2, seed: 7 };
//! let (mut mine, mut theirs) = ([0; 4], [0; 4]);
//! data.fill(0, &mut mine);
//! data.fill(1, &mut theirs);
//! let sum = i32::from_ne_bytes(mine).wrapping_add(i32::from_ne_bytes(theirs));
//! assert_eq!(data.reduced(ReduceOp::Sum, 1).count_wrong(0, &sum.to_ne_bytes()), 0);
//! ```

pub mod case;
pub mod data;
pub mod numbers;

pub use case::{Buffer, Case, RankBuffers};
pub use data::{Data, Expected};
