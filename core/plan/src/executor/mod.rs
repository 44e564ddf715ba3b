//! Executors: how a program runs. Each has a folder.

pub mod copy_engine;
pub mod fused;
pub mod interpreter;
pub mod launch;
