//! Rules that change while communicators work: on all ranks at one collective, or nowhere.
//!
//! | file | holds |
//! |---|---|
//! | `protocol` | how ranks agree: pure, tested under random schedules |
//! | `turn` | where calls notice a change |
//! | `seat` | a rank's part: machines, connections, proposals |
//! | `wire` | messages and rules as bytes |
//! | `service` | the thread of a process that serves its seats |
//! | `socket` | what other programs ask, and how |
//! | `client` | asking another process |
//! | `files` | rule files that are watched |
//! | `learn` | rules that are learned from measured times |
//!
//! `docs/adr/0010-live-change.md` says why it is so.

pub mod client;
mod files;
mod learn;
mod protocol;
mod seat;
mod service;
mod socket;
mod turn;
mod wire;

pub use files::Known;
pub use protocol::Outcome;
pub use seat::{Place, Seat, Staged, Switch};
pub use service::{Seated, process_has_seats, stressed};
pub use turn::Turn;
