//! The floor that devices and the runtime stand on: what every part that acts needs, and what knows no
//! device, no connection and no communicator.
//!
//! | module | has |
//! |---|---|
//! | [`error`] | the one error: who is at fault, whom and what it concerns, the system's code, the remedy |
//! | [`log`] | the log in NCCL's form and as JSON, and the text of the last error |
//! | [`mod@env`] | the table of settings; its file is the only one that reads the environment |
//! | [`liveness`] | who of a communicator's ranks is alive, and what children of fork(2) may not touch |
//! | [`files`] | files that users name, descriptors that are the program's, and limits of files |
//! | [`library`] | the version that the library stands for, and the folder that it lies in |
//! | [`lock`] | locks whose poison is an error |
//! | [`wait`] | the one way to wait: it can be aborted, has a deadline and says who waits for whom |
//! | [`stages`] | clocks for the stages that a slot passes between hosts |
//! | [`progress`] | one background thread per device |
//! | [`figures`] | what rails carried, what pools hold, what waits, as others may read it |
//! | [`readable_memory`] | memory of this process that others may read |
//! | [`nvtx`] | ranges of NVTX around the calls of a program |
//!
//! Whoever waits says for whom, and an error says what to do:
//!
//! ```
//! use hawser_base::wait::{AbortFlag, Wait};
//! use hawser_base::{Error, ErrorKind};
//! use std::time::Duration;
//!
//! let wait = Wait::new(AbortFlag::new(), Some(Duration::from_millis(20)));
//! let late: Result<u32, Error> = wait.until(|| None, || "rank 2 waits for rank 5");
//! let error = late.unwrap_err().with_peer(5).remedy("look at that rank");
//! assert_eq!(error.kind, ErrorKind::Timeout);
//! let text = "rank 2 waits for rank 5: no end within the deadline of 0.02 s; look at that rank";
//! assert_eq!(error.text, text);
//! ```

pub mod env;
pub mod error;
pub mod figures;
pub mod files;
pub mod library;
pub mod liveness;
pub mod lock;
pub mod log;
pub mod nvtx;
pub mod progress;
pub mod readable_memory;
pub mod stages;
pub mod wait;

pub use error::{Error, ErrorKind, Result};
