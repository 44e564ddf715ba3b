//! Out-of-band connections: everything that processes need before, and beside, the fast path between them.
//!
//! The bootstrap of the runtime and the net plugins all have to answer the same questions. Which network
//! interface does this host use? How does a listener tell others where it is? How do both ends of a
//! connection know that the other one belongs to them, before they believe a byte of it? This crate answers
//! them once. It imports nothing of the project, so a plugin of somebody else may use it as well.
//!
//! | module | what it holds |
//! |---|---|
//! | [`interface`] | the network interfaces of the host, and NCCL's rules for choosing among them |
//! | [`socket`], [`stream`] | sockets that never block, and a connection that can also be waited for |
//! | [`wait`] | what a wait is: the caller's deadline and abort flag, poll(2), waking a thread |
//! | [`mod@frame`] | messages with a length in front, and the fields inside them |
//! | [`handle`] | the 128 bytes that lead from a listener to the end that dials it |
//! | [`handshake`] | the proof of a shared secret, as pure functions |
//! | [`wire`], [`seal`] | the protection of what follows: which is wanted, and how it is done |
//! | [`sha256`] | sums, keyed sums, and keys that follow from others |
//! | [`mod@dial`], [`accept`] | the handshake over sockets: the connector's side and the listener's |
//! | [`error`] | the one error type of this crate; a user converts it to its own |
//!
//! Nothing here reads the environment, starts a thread or writes a log line.
//!
//! # Example
//!
//! A listener and a connector that share a secret, in one process:
//!
//! ```
//! use hawser_oob::accept::{Acceptor, Arrival, Limits};
//! use hawser_oob::dial::{self, Offer, Retry};
//! use hawser_oob::handshake::{Key, Protocol};
//! use hawser_oob::interface::{self, Family};
//! use hawser_oob::socket::{self, Address, Options};
//! use hawser_oob::wait::Until;
//! use std::time::Duration;
//!
//! // As with NCCL_SOCKET_IFNAME="=lo" and NCCL_SOCKET_FAMILY=AF_INET.
//! let ip = interface::listen_address(&interface::list()?, Some("=lo"), Family::parse("AF_INET"), None)?;
//! let (listener, at) = socket::listen((ip, 0).into(), &Options::default())?;
//!
//! // A greeting carries 4 bytes, here the rank; answers and welcomes add nothing.
//! let protocol = Protocol { magic: *b"example\0", version: 1, greeting: 4, answer: 0, welcome: 0 };
//! let key = Key::derive(&[42; 32], "example");
//! let limits =
//!     Limits { pending: 128, grace: Duration::from_millis(250), patience: Duration::from_secs(5) };
//! let mut acceptor = Acceptor::new(listener, Options::default(), protocol, limits);
//!
//! let wait = Until::after(Duration::from_secs(20));
//! std::thread::scope(|scope| {
//!     let connector = scope.spawn(|| {
//!         let offer = Offer { protocol, key: &key, greeting: &7u32.to_le_bytes(), answer: &[] };
//!         let retry = Retry {
//!             count: 0,
//!             sleep: Duration::ZERO,
//!             refused: false,
//!             when_refused: "start the listener first",
//!             when_strange: dial::SAME_ID,
//!         };
//!         dial::connect(&Address::Tcp(at), &offer, retry, &wait, &|| "rank 7 connects".into())
//!     });
//!     let accepted = loop {
//!         match acceptor.advance(|_greeting| Ok(key.clone()), |_proved| Vec::new()).pop() {
//!             Some(Arrival::Accepted(accepted)) => break accepted,
//!             _ => std::thread::yield_now(),
//!         }
//!     };
//!     assert_eq!(accepted.greeting, 7u32.to_le_bytes());
//!     connector.join().unwrap()
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod accept;
pub mod dial;
pub mod error;
pub mod foreign;
pub mod frame;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod handle;
pub mod handshake;
pub mod interface;
pub mod seal;
pub mod sha256;
pub mod silent;
pub mod socket;
pub mod strangers;
pub mod stream;
pub mod wait;
pub mod wire;

pub use error::{Error, ErrorKind, Result};

#[cfg(test)]
mod tests;
