//! The questions to tuner plugins about choices, and the times of operations that they are told.

pub mod call_attributes;
mod op_timing;
mod tuner_bridge;
pub mod tuners;

pub use call_attributes::{CallAttributes, Windows};
pub use op_timing::{OpTimings, Ran, Taken, TimedOp};
pub use tuner_bridge::{asked, config as tuner_config, decision_of, in_their_terms};
pub use tuners::{TunedDecision, Tuners};
