//! The smallest useful net plugin: hosts that share a file system.
