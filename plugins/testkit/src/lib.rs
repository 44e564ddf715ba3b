//! Conformance suites that a plugin author runs in one line.
//!
//! ```
//! use std::sync::Arc;
//! use hawser_plugin_testkit::loopback::Loopback;
//!
//! mod conformance {
//!     # use super::*;
//!     hawser_plugin_testkit::net_suite!(Arc::new(Loopback::default()));
//! }
//! # fn main() {
//! #     hawser_plugin_testkit::conformance::net(Arc::new(Loopback::default()));
//! # }
//! ```
//!
//! makes a `#[test]` of each case. Each suite takes what gives an `Arc<dyn Net>` (`Tuner`, ...); it is
//! evaluated once per case. Cases that a plugin is known to fail are data: `net_suite!(make(),
//! known_failures: ["closing_early"])`. Such a case must fail; when it passes one day, the test fails until
//! the name is taken off the list. `CASES` of each module in [`conformance`] says what the cases want.
//!
//! A case ends: calls that say "not now" are repeated up to a deadline, and a call that does not come back at
//! all fails the case from outside.

pub mod conformance;
pub mod loopback;
mod macros;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/plugin-guide.md")]
struct Guide;
