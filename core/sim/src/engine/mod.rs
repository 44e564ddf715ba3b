//! The engine: virtual time, events, and flows that share links.

pub mod events;
pub mod flows;
pub mod random;
pub mod share;
pub mod time;

pub use events::Events;
pub use flows::{FlowId, Flows, Hop};
pub use random::Random;
pub use time::Time;
