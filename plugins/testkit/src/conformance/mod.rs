//! The suites: each case is a function, and which of them a plugin fails is data.

mod case;
pub mod collnet;
pub mod env;
pub mod net;
pub mod profiler;
pub mod tuner;

use std::sync::Arc;

use hawser_plugin::{CollNet, Env, Net, Profiler, Tuner};

pub use case::{Case, Options, all};

/// Runs all cases of the net suite.
///
/// # Panics
/// With a list of what failed.
pub fn net(plugin: Arc<dyn Net>) {
    all(net::CASES, &plugin, &Options::default());
}

/// Runs all cases of the collnet suite.
///
/// # Panics
/// With a list of what failed.
pub fn collnet(plugin: Arc<dyn CollNet>) {
    all(collnet::CASES, &plugin, &Options::default());
}

/// Runs all cases of the tuner suite.
///
/// # Panics
/// With a list of what failed.
pub fn tuner(plugin: Arc<dyn Tuner>) {
    all(tuner::CASES, &plugin, &Options::default());
}

/// Runs all cases of the profiler suite.
///
/// # Panics
/// With a list of what failed.
pub fn profiler(plugin: Arc<dyn Profiler>) {
    all(profiler::CASES, &plugin, &Options::default());
}

/// Runs all cases of the env suite.
///
/// # Panics
/// With a list of what failed.
pub fn env(plugin: Arc<dyn Env>) {
    all(env::CASES, &plugin, &Options::default());
}
