//! The words that all of Hawser shares: what a user asks for, and how a decision about it is named.
//!
//! This crate holds plain values without behaviour of their own: [`Collective`], [`DataType`], [`ReduceOp`],
//! the validated [`Call`], the names of algorithms, executors and protocols, the kinds of devices and links,
//! and the error of the planner. It imports no other crate of Hawser, so every crate may use it.
//!
//! ```
//! use hawser_types::{Call, Collective, DataType, ReduceOp, Scalar};
//!
//! let call = Call {
//!     collective: Collective::AllGather,
//!     count: 1000,
//!     dtype: DataType::Float32,
//!     op: ReduceOp::Sum,
//!     scalar: Scalar::Immediate(0),
//!     root: 0,
//!     input: 0x1000,
//!     output: 0x8000,
//!     gap: 0,
//! };
//! call.validate(4, 0)?;
//! assert_eq!(call.total_bytes(4), 16_000, "the output has a block of each of the 4 ranks");
//! # Ok::<(), hawser_types::PlanError>(())
//! ```

#![forbid(unsafe_code)]

mod algorithm;
mod call;
mod class;
mod collective;
mod data;
mod device;
mod digest;
mod error;
mod protocol;
mod route;

pub use algorithm::{Algorithm, Handle, Measured};
pub use call::Call;
pub use class::Class;
pub use collective::Collective;
pub use data::{DataType, ReduceOp, Scalar};
pub use device::{DeviceKind, Link};
pub use digest::Digest;
pub use error::{PlanError, PlanErrorKind, Result};
pub use protocol::Protocol;
pub use route::{Executor, Route, Routes};
