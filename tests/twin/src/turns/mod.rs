//! Turns and a clock of its own for a whole process: of all its threads one runs at a time, and a seed says
//! who is next; nobody waits for time to pass.
//!
//! The library is unchanged. A thread gives up its turn where it would wait: the functions of the C library
//! by which Rust waits (futexes, poll(2), sleeps, the ends of threads) and reads the clock are replaced in
//! this program (`replaced`). So every order of waits can be had again by its seed, a deadline of a minute
//! costs nothing, and a wait that nobody ends is found at once. Two threads between whose waits memory is all
//! they share are not mixed: that is loom's work.
//!
//! | module | has |
//! |---|---|
//! | `schedule` | the clock, the threads' states, and who is next |
//! | `replaced` | the functions of the C library |
//! | `backlog` | what the kernel has on its way between sockets |
//! | `sockets` | whose sockets are whose |

mod backlog;
mod replaced;
mod schedule;
mod sockets;

pub use replaced::{begin, freeze, go_on, group, part, reseed, stop, turns};
pub use sockets::cut_sockets;
