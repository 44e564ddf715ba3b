//! The boundary of libraries that Rust plugins cross: a checked, growing ABI behind the plain traits.
//!
//! Authors implement the traits of this crate and write [`export_plugin!`](crate::export_plugin) in a
//! `cdylib`; the host calls [`load()`] and gets the same traits back. In between lies `raw`, a frozen mirror
//! of the traits made of types with a fixed layout (crate `abi_stable`):
//!
//! ```text
//! author's object ─ plugin (shield: catches panics) ─ raw ══ .so ══ raw ─ host (the plain traits again)
//! ```
//!
//! Rules for whoever extends it, so that every 1.x host takes every 1.x plugin and the other way round:
//!
//! * a new method goes to the end of its raw trait, below `last_prefix_field`, with a body: hosts run it for
//!   older plugins;
//! * a new datum takes a word of the `room` of its struct; older sides leave 0 there, so 0 has to mean "not
//!   given";
//! * a new kind of component is a new variant of [`raw::RawComponent`]; older hosts skip it;
//! * a new field of the manifest goes to its end with `missing_field(option)`;
//! * nothing else changes. A change that cannot be made so is a new crate with a root module of its own.
//!
//! A library that was loaded stays loaded: its code may be on some thread's stack.

#[doc(hidden)]
pub mod glue;
mod host;
mod load;
mod plugin;
// What the macros of abi_stable write trips these.
#[allow(non_local_definitions, non_camel_case_types, clippy::undocumented_unsafe_blocks)]
#[doc(hidden)]
pub mod raw;

pub use load::{LoadError, LoadErrorKind, Manifest, SYMBOL, from_symbol, load};
