//! Hawser's planner: from a call to the steps that every rank runs.
//!
//! ```text
//! Call ─► choose ─► algo (Program) ─► ir::verify (tests, imports) ─► lower ─► device_plan
//! ```
//!
//! Deciding is kept apart from doing: this crate has no I/O, no clock, no environment, no thread
//! and no `unsafe`. A choice is a pure function of what all ranks agreed on ([`Topology`], [`PlanConfig`])
//! and of the [`Call`], so equal inputs on every rank give equal plans on every rank.

#![forbid(unsafe_code)]

pub mod algo;
pub mod call;
pub mod choose;
pub mod config;
pub mod cost;
pub mod device_plan;
pub mod direct;
pub mod dma;
pub mod error;
pub mod exchange;
pub mod imported;
pub mod ir;
pub mod layout;
pub mod lower;
pub mod msccl;
pub mod p2p;
pub mod topology;
pub mod vector;

pub use call::{Call, Collective, DataType, ReduceOp};
pub use choose::{Choice, Why};
pub use config::{Algorithm, Measured, PlanConfig, Protocol};
pub use error::{PlanError, Result};
pub use ir::Program;
pub use topology::Topology;
