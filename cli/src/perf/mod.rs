//! `hawser perf`: measures collectives and checks their results.
//!
//! ```text
//! options ─► launcher (who am I) ─► control (processes meet) ─► run (threads, loops) ─► report
//!                                                    seat (one rank: buffers, oracle) ┘
//! ```

pub mod collective;
mod control;
mod launcher;
pub mod options;
mod report;
mod run;
mod seat;
mod team;

pub use options::Options;
pub use run::run;
