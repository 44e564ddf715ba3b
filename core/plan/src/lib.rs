//! Hawser's planner: from a call to the launches that every rank runs.
//!
//! ```text
//! Call ─► choose ─► algo (Program) ─► executor (launches)
//! ```
//!
//! Deciding is kept apart from doing: this crate has no I/O, no clock, no environment, no thread
//! and no `unsafe`. A choice is a pure function of what all ranks agreed on ([`Topology`], [`PlanConfig`])
//! and of the [`Call`], so equal inputs on every rank give equal plans on every rank.
//!
//! Modules import only what stands above them in this list: [`link_constants`], [`topology`] and [`config`]
//! (what the planner knows), [`imported`] and [`algo`] (programs), [`decision`] (the words of a decision),
//! `call_options` (the wishes of one call), [`executor`] (how programs run), [`reproducible`] (the order that
//! a reduction declares), [`cost`], [`choose`], [`fit`], [`p2p`] and [`vector`] (messages), [`layout`] (the
//! memory that peers write into).
//!
//! ```
//! use hawser_plan::topology::{DeviceKind, Link, Topology};
//! use hawser_plan::{Call, Collective, DataType, PlanConfig, ReduceOp, Scalar, algo, choose};
//!
//! let call = Call {
//!     collective: Collective::AllReduce,
//!     count: 1 << 20,
//!     dtype: DataType::Float32,
//!     op: ReduceOp::Sum,
//!     scalar: Scalar::Immediate(0),
//!     root: 0,
//!     input: 0x1000,
//!     output: 0x1000,
//!     gap: 0,
//! };
//! let topology = Topology::single_host(8, DeviceKind::Host, Link::HostMemory);
//! let choice = choose::choose(&call, &topology, &PlanConfig::default())?;
//! println!("{}", choice.why);
//! let program = algo::rank_program(&choice.key, 3)?;
//! assert!(!program.channels.is_empty());
//! # Ok::<(), hawser_plan::PlanError>(())
//! ```

#![forbid(unsafe_code)]

pub mod algo;
pub mod call_options;
pub mod choose;
pub mod config;
pub mod cost;
pub mod decision;
pub mod executor;
pub mod fit;
pub mod imported;
pub mod layout;
pub mod link_constants;
pub mod p2p;
pub mod reproducible;
pub mod topology;
pub mod vector;

pub use call_options::{CallOptions, Selection};
pub use config::PlanConfig;
pub use decision::{Decision, Why};
pub use hawser_program::Program;
pub use hawser_types::{
    Algorithm, Call, Class, Collective, DataType, Executor, Measured, PlanError, PlanErrorKind, Protocol,
    ReduceOp, Result, Route, Routes, Scalar,
};
pub use topology::Topology;
