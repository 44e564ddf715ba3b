//! Tests that cross crates: every collective through bootstrap, transports and executors, against an oracle
//! of its own.

pub mod attack;
pub mod deadline;
pub mod deaths;
pub mod elastic;
pub mod floods;
pub mod hangs;
pub mod judge;
pub mod leaks;
pub mod mail;
pub mod misuse;
pub mod mixed;
pub mod net;
pub mod netns;
pub mod pages;
pub mod partitions;
pub mod process;
pub mod programs;
pub mod puts;
pub mod registered;
pub mod scenarios;
pub mod skip;
pub mod soak;
pub mod stops;
pub mod urgent;
pub mod vectors;
pub mod watched_ops;
pub mod world;

/// The oracle, which lies in a crate of its own because the command line tool uses it too.
pub use hawser_oracle as oracle;

// Built-in plugins: named here, or the linker would leave them out.
use hawser_net_ib as _;
use hawser_net_socket as _;
use hawser_tuner as _;
