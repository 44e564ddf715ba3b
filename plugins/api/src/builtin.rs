//! Plugins that are linked into the library: found by `inventory`, without any list.

use std::sync::Arc;

use crate::{CollNet, Env, Net, Profiler, Tuner};

/// One thing that a plugin offers.
#[derive(Clone)]
#[non_exhaustive]
#[allow(missing_docs)] // the names say it
pub enum Component {
    Net(Arc<dyn Net>),
    CollNet(Arc<dyn CollNet>),
    Tuner(Arc<dyn Tuner>),
    Profiler(Arc<dyn Profiler>),
    Env(Arc<dyn Env>),
}

/// A plugin that is part of the library. `inventory::submit!` one in the plugin's crate; the final crate
/// needs `use the_crate as _;`.
pub struct BuiltIn {
    /// Name for logs; the component's own name counts for selection.
    pub name: &'static str,
    /// Lower is tried first.
    pub priority: u32,
    /// Makes the component.
    pub make: fn() -> Component,
}

inventory::collect!(BuiltIn);

/// All built-in plugins of this library, in order of priority and name (link order differs between builds).
pub fn built_in() -> Vec<&'static BuiltIn> {
    let mut all: Vec<&BuiltIn> = Vec::new();
    for one in inventory::iter::<BuiltIn> {
        let at = all.partition_point(|other| (other.priority, other.name) <= (one.priority, one.name));
        all.insert(at, one);
    }
    all
}
