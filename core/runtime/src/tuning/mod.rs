//! What is asked of tuner plugins, and what they hear: their choices, and how long operations took.

pub mod call_attributes;
mod op_timing;
mod tuner_bridge;
pub mod tuners;

pub use call_attributes::{CallAttributes, Windows};
pub use op_timing::{OpTimings, Ran, Taken, TimedOp};
pub use tuner_bridge::{asked, config as tuner_config, decision_of, in_their_terms};
pub use tuners::{TunedDecision, Tuners};
