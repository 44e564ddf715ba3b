//! A step of training: computing, and the collectives of several communicators, in an order with
//! dependencies.
//!
//! Each operation is first predicted alone, by the twin: its time, and how much of every link it uses. The
//! timeline then lets operations run side by side. Where they want more of a link than there is, they share
//! it max-min fairly, so each goes on as slowly as its narrowest link makes it. Multiprocessors are shared by
//! computing and kernels likewise.
//!
//! | file | holds |
//! |---|---|
//! | `file` | the text of a step |
//! | `ops` | its operations in order, with what each waits for |
//! | `timeline` | when each runs, and what links carry meanwhile |
//! | `summary` | how long ranks compute, communicate and wait |

mod file;
mod ops;
mod summary;
mod timeline;

pub use file::{BlockFile, Bytes, GroupFile, OpFile, RanksFile, StepFile};
pub use ops::{Builder, Collected, Group, Kind, MOST_OPS, Op, Step};
pub use summary::{Shares, shares};
pub use timeline::{Alone, Moment, Part, Span, Timeline, run};
