//! Tests that cross crates: every collective through bootstrap, transports and executors, against an oracle of its own.

pub mod oracle;
