//! The executor of steps: blocks that follow the steps of their channel, tile by tile.
//!
//! A block starts a step when every slot that it takes is full and every slot that it fills is free. It then
//! streams the tile at the rate of a block, or what the links leave it, and goes on after the overhead of a
//! step. Receivers see the slot after the time of a hop, senders have it back after half of that.

mod load;
mod machine;
mod proxy;

pub use load::Programs;
pub use machine::run;
