//! Launches whose moves need no kernel: copy engines move slots of **staging** memory, stream memory
//! operations tell of them.
//!
//! The steps are those of any program of moves; the sends of a lane share a stream, and so do its receives. A
//! slot has two words: `full`, in the memory of its owner, set by the peer that filled it, and `free`, in the
//! memory of that peer, set by the owner that has emptied it. Whoever waits for a word clears it, so a
//! replayed graph finds the words as it left them. Commands come out in rounds, the sends of a round before
//! its receives: a device that runs all its streams one after the other in that order still gets to the end.
//! Between hosts both words and slots are this rank's own, and the proxy is the peer ([`inter_node`]).
//! Reductions have steps that combine: by few multiprocessors ([`reduce_kernel`]).

mod command;
mod direct;
mod emit;
mod emit_reductions;
mod estimate;
mod far;
pub mod inter_node;
pub mod reduce_kernel;
mod rounds;
mod staging;
mod support;
mod tiles;

pub use crate::executor::launch::Direct;
pub use command::{COPIES, Command, INTER_NODE_SENDS, STREAMS, What};
pub use direct::{Leg, Way};
pub use emit::Emitter;
pub use estimate::CopyEngine;
pub use reduce_kernel::{READ_GBS, ReduceArgs, ReduceKernel};
pub use staging::{Bases, Counters, DEPTH, LANES, Staging};
pub use support::{has_staging, is_known, refused, refused_topology};
pub use tiles::{config, config_for, part};
