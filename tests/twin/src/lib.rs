//! Worlds that break: Hawser's runtime, its bring-up, proxies, connections and aborts, with ranks in threads
//! of this process on a simulated network (`plugins/net-sim`). A seed draws hosts, programs, faults and
//! conditions; the invariants are those that users rely on.
//!
//! | module | has |
//! |---|---|
//! | [`cases`] | worlds in which bugs were found |
//! | [`world`] | the hosts, programs and faults that a seed draws |
//! | [`step`] | the steps of a program, carried out by a rank |
//! | [`run`] | a world from init to its end, and the findings |
//! | [`fates`] | who is dead, and where the others meet |
//! | `player` | a rank of a world: its steps, its way to the next communicator, and whether errors may be |
//! | [`holdings`] | the things that a process holds, which worlds must give back |
//! | [`loopback`] | the network that a process has for itself |
//! | [`shrink`] | a failing world, made small |
//! | [`turns`] | a clock and an order of threads that follow from a seed |
//!
//! ```
//! use hawser_twin::world::World;
//!
//! let world = World::draw(7, &Default::default());
//! assert_eq!(format!("{world:?}"), format!("{:?}", World::draw(7, &Default::default())));
//! ```

pub mod cases;
pub mod fates;
pub mod holdings;
pub mod loopback;
mod player;
pub mod run;
pub mod shrink;
pub mod step;
pub mod turns;
pub mod world;
