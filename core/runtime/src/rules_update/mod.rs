//! Rules that change while communicators work: on all ranks at one collective, or nowhere.
//!
//! | file | holds |
//! |---|---|
//! | `protocol` | how ranks agree: pure, tested under random schedules |
//! | `epoch` | where calls notice a change |
//! | `participant` | a rank's part: its state machines, connections and proposals |
//! | `wire` | messages and rules as bytes |
//! | `service` | the thread of a process that serves its participants |
//! | `control_socket` | what other programs ask, and how |
//! | `address` | how the control socket of a process is found |
//! | `same_user` | who may ask, and who may answer |
//! | `client` | asking another process |
//! | `files` | rule files that are watched |
//! | `learn` | rules that are learned from measured times |
//!
//! `docs/adr/0010-live-change.md` says why it is so.

mod address;
pub mod client;
mod control_socket;
mod epoch;
mod files;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod learn;
mod participant;
mod protocol;
mod same_user;
mod service;
mod wire;

pub use epoch::Epoch;
pub use files::Known;
pub use participant::{Participant, Place, Staged, Switch};
pub use protocol::Outcome;
pub use service::{ServedParticipant, process_has_participants, stressed};
