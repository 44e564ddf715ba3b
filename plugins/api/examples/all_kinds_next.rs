//! [`all_kinds`], built with the imagined next version of the ABI.

#[path = "all_kinds.rs"]
mod all_kinds;
