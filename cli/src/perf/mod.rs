//! `hawser perf`: measures collectives and checks their results.
//!
//! ```text
//! options ─► launcher (who am I) ─► control (processes meet) ─► run ─► worker (one thread: loops) ─► report
//!                                                    seat (one rank: buffers, oracle) ┘
//!                                                     └► library (linked, or a libnccl.so.2)
//! ```

pub mod collective;
mod control;
mod launcher;
mod library;
pub mod options;
mod report;
mod run;
mod seat;
mod team;
mod worker;

pub use options::Options;
pub use run::run;
