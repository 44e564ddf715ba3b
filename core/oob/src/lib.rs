//! Out-of-band connections: everything that processes need before, and beside, the fast path between them.
//!
//! The bootstrap of the runtime and the net plugins all have to answer the same questions: which network interface
//! does this host use, and at which addresses can it be dialled? This crate answers them once. It imports nothing of
//! the project, so a plugin of somebody else may use it as well.
//!
//! | module | what it holds |
//! |---|---|
//! | [`interface`] | the network interfaces of the host, and NCCL's rules for choosing among them |
//! | [`error`] | the one error type of this crate; a user converts it to its own |
//!
//! # Example
//!
//! ```
//! use hawser_oob::interface::{self, Family};
//!
//! // As with NCCL_SOCKET_IFNAME="=lo" and NCCL_SOCKET_FAMILY=AF_INET.
//! let family = Family::parse("AF_INET");
//! let address = interface::listen_address(&interface::list()?, Some("=lo"), family, None)?;
//! assert!(address.is_loopback());
//! # Ok::<(), hawser_oob::Error>(())
//! ```

pub mod error;
pub mod interface;

pub use error::{Error, ErrorKind, Result};
